"""Four hundred photos in a folder: a fixed encoder, one from nothing, and one that saw others of their kind before.

    python examples/photos.py                   # JPEG files of Fashion-MNIST: small and well centred
    python examples/photos.py --scenes          # the same clothes at any place and size, before parts of photographs
    python examples/photos.py --samples 5       # five times four hundred, the mean and its interval

On the command line, with photos of your own: what the log proposes, with timm's weights, or with those of a run on many
photos without labels:

    contraport train --data photos/ --encoder gradients --batch_size 64 --epochs 200 --out runs/photos
    contraport train --data photos/ --encoder resnet18 --pretrained --freeze --out runs/photos
    contraport train --data photos/ --init runs/many --freeze --out runs/photos
    contraport evaluate runs/photos --measures linear_probe knn
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from scipy import stats
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
parser.add_argument("--samples", type=int, default=1, help="how many times photos are drawn and trained on")
asked = parser.parse_args()
per_class, others, epochs, epochs_of_many = (8, 64, 1, 1) if asked.tiny else (40, 6_000, 200, 24)
MEASURES = ["linear_probe", "knn"]


def sample(number: int) -> dict[str, list[float]]:
    """Draw photos, train on them, and return probe and kNN of those that are held out, for each way."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        source, random = load(asked.data), np.random.default_rng(number)
        labels, names = source.labels.numpy(), source.class_names
        kinds = {name: random.permutation(np.flatnonzero(labels == kind)) for kind, name in enumerate(names)}
        few = {name: kind[:per_class].tolist() for name, kind in kinds.items()}
        rest = np.concatenate([kind[per_class:] for kind in kinds.values()])
        many = random.permutation(rest)[:others].tolist()
        write(folder / "photos", asked.data, few, asked.scenes)
        write(folder / "many", asked.data, {"all": many}, asked.scenes)

        def reached(out: str, **settings: object) -> dict[str, list[float]]:
            run = train(data=folder / "photos", out=folder / out, seed=number, progress=False, **settings)
            rows = evaluate(run, measures=MEASURES, neighbors=5 if asked.tiny else 20, progress=False)["rows"]
            return {name: [row[key] for key in MEASURES] for name, row in rows.items()}

        # What the log of a training on few photos proposes: batches of a quarter of them, and a thousand steps.
        proposed = {"batch_size": 32 if asked.tiny else 64, "epochs": epochs}
        gradients = reached("gradients", encoder="gradients", **proposed)
        nothing = reached("nothing", **proposed)
        before = train(
            data=folder / "many",
            ignore_labels=True,
            batch_size=32 if asked.tiny else 128,
            epochs=epochs_of_many,
            out=folder / "before",
            progress=False,
        )
        frozen = reached("frozen", init=before.path, freeze=True, **proposed)
    return {
        "raw pixels": gradients["raw"],
        "gradients, projection untrained": gradients["untrained"],
        "gradients, projection trained": gradients["trained"],
        "an encoder from nothing, untrained": nothing["untrained"],
        "an encoder from nothing, trained": nothing["trained"],
        f"on an encoder of {len(many):,} others, frozen": frozen["trained"],
    }


samples = [sample(number) for number in range(asked.samples)]
kind = "scenes" if asked.scenes else "well centred"
print(f"{10 * per_class} photos, {kind}: a fifth is held out")
print(f"{'':45} {'probe':>16} {'kNN':>16}")
for name in samples[0]:
    found = np.array([each[name] for each in samples])
    error = stats.sem(found) * stats.t.ppf(0.975, len(found) - 1) if len(found) > 1 else None
    told = [f"{mean:.1%}" if error is None else f"{mean:.1%} +- {error[i]:.1%}" for i, mean in enumerate(found.mean(0))]
    print(f"{name:45} {told[0]:>16} {told[1]:>16}")
