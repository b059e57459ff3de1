"""Four hundred photos in a folder: an encoder from nothing, and one that saw others of their kind before, frozen.

    python examples/photos.py                   # JPEG files of Fashion-MNIST: small and well centred
    python examples/photos.py --scenes          # the same clothes at any place and size, before parts of photographs

On the command line, with photos of your own and timm's weights, or those of a run on many photos without labels:

    contraport train --data photos/ --encoder resnet18 --pretrained --freeze --out runs/photos
    contraport train --data photos/ --init runs/many --freeze --out runs/photos
    contraport evaluate runs/photos --measures linear_probe knn
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_images

from contraport import evaluate, train
from contraport.data import load

SIDE = 40  # of a scene


def scene(pixels: np.ndarray, backgrounds: list[Image.Image], random: np.random.Generator) -> Image.Image:
    """Return a grey item, tinted, at a random place and size before a part of a photograph."""
    behind = backgrounds[random.integers(len(backgrounds))]
    width = int(random.integers(80, 400))
    x, y = (int(random.integers(side - width)) for side in behind.size)
    canvas = np.asarray(behind.crop((x, y, x + width, y + width)).resize((SIDE, SIDE)), np.float32)
    canvas = canvas * random.uniform(0.4, 1)
    size = int(random.integers(22, 36))
    item = (
        np.asarray(Image.fromarray(pixels).resize((size, size), Image.Resampling.BICUBIC), np.float32)[..., None] / 255
    )
    top, left = random.integers(0, SIDE - size + 1, 2)
    place = canvas[top : top + size, left : left + size]
    opaque = np.minimum(1, 4 * item)
    place[:] = place * (1 - opaque) + opaque * item * random.uniform(0.4, 1, 3) * 255
    return Image.fromarray(canvas.clip(0, 255).astype(np.uint8))


def write(folder: Path, data: str, positions: dict[str, list[int]], scenes: bool) -> None:
    """Write items of a data set as JPEG files, in a folder for each class."""
    images, random = load(data), np.random.default_rng(0)
    backgrounds = [Image.fromarray(image) for image in load_sample_images().images]
    for name, chosen in positions.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for position in chosen:
            pixels = images[position].views[0][0, 0].numpy()
            image = scene(pixels, backgrounds, random) if scenes else Image.fromarray(pixels).convert("RGB")
            image.save(folder / name / f"{position:05d}.jpg", quality=90)


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--data", default="fashion-mnist", help="what the photos are made of")
parser.add_argument("--scenes", action="store_true", help="items at any place and size, before parts of photographs")
parser.add_argument("--tiny", action="store_true", help="few photos and steps, to see that it runs")
asked = parser.parse_args()
per_class, others, epochs, epochs_of_many = (8, 64, 1, 1) if asked.tiny else (40, 6_000, 200, 24)

with tempfile.TemporaryDirectory() as place:
    folder = Path(place)
    labels = load(asked.data).labels.numpy()
    names = load(asked.data).class_names
    few = {name: np.flatnonzero(labels == number)[:per_class].tolist() for number, name in enumerate(names)}
    used = {position for chosen in few.values() for position in chosen}
    many = [position for position in range(len(labels) - 1, -1, -1) if position not in used][:others]
    write(folder / "photos", asked.data, few, asked.scenes)
    write(folder / "many", asked.data, {"all": many}, asked.scenes)

    def reached(**settings: object) -> dict[str, dict[str, float]]:
        """Train on the photos, and return what is measured of those that are held out."""
        out = folder / f"run{len(list(folder.glob('run*')))}"
        train(data=folder / "photos", out=out, progress=False, **settings)
        return evaluate(out, measures=["linear_probe", "knn"], neighbors=5 if asked.tiny else 20, progress=False)[
            "rows"
        ]

    # What the log of a training on few photos proposes: batches of a quarter of them, and a thousand steps.
    alone = reached(batch_size=32 if asked.tiny else 64, epochs=epochs)
    before = train(
        data=folder / "many",
        ignore_labels=True,
        batch_size=32 if asked.tiny else 128,
        epochs=epochs_of_many,
        out=folder / "before",
        progress=False,
    )
    frozen = reached(init=before.path, freeze=True, batch_size=32 if asked.tiny else 64, epochs=epochs)

kind = "scenes" if asked.scenes else "well centred"
print(f"{sum(map(len, few.values()))} photos, {kind}: a fifth is held out   probe    kNN")
rows = {
    "raw pixels": alone["raw"],
    "the encoder untrained": alone["untrained"],
    "trained on the photos alone": alone["trained"],
    f"on an encoder of {len(many):,} others, frozen": frozen["trained"],
}
for name, row in rows.items():
    print(f"{name:45} {row['linear_probe']:6.1%} {row['knn']:6.1%}")
