"""Four hundred photos in a folder: a fixed encoder, one from nothing, and one that saw others of their kind before.

    python examples/photos.py                   # JPEG files of Fashion-MNIST: small and well centered
    python examples/photos.py --scenes          # the same clothes at any place and size, before parts of photographs
    python examples/photos.py --samples 5       # five times four hundred, the mean and its interval
    python examples/photos.py --ways edges      # only what the log proposes where there are no weights
    python examples/photos.py --folder photos/  # a folder of your own, with a folder of each class; a fifth judges
    python examples/photos.py --weights FILE --encoder resnet18  # beside these, weights that others trained, of timm

It tells each training as it goes, and writes what all reached to examples/results/photos.json.

On the command line, with photos of your own: what the log proposes, with timm's weights, or with those of a run on many
photos without labels:

    contraport train --data photos/ --encoder gradients --augment mixup --batch_size 64 --epochs 200 --out runs/photos
    contraport train --data photos/ --encoder resnet18 --pretrained --freeze --out runs/photos
    contraport train --data photos/ --init runs/many --freeze --out runs/photos
    contraport evaluate runs/photos --metrics linear_probe knn
"""

import argparse
import json
import shutil
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
from PIL import Image
from scipy import stats
from sklearn.datasets import load_sample_images

from contraport import evaluate, train
from contraport.data import Dataset, load
from contraport.data.image_decoding import SUFFIXES

RESULTS = Path(__file__).parent / "results" / "photos.json"
SIDE = 40  # of a scene
METRICS = ["linear_probe", "knn"]
RAW = "raw pixels"
PROPOSED = ("pretrained", "edges")  # by the log, with weights of others and without
WAYS = {
    "pretrained": "weights of ImageNet, held",
    "edges": "edges and hues, views mixed",
    "standard": "the same, standard views",
    "frozen": "an encoder of others, frozen",
    "nothing": "an encoder from nothing",
}


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


def write(folder: Path, images: Dataset, positions: dict[str, np.ndarray], random: np.random.Generator) -> None:
    """Write items of a data set as JPEG files, in a folder for each class."""
    backgrounds = [Image.fromarray(image) for image in load_sample_images().images]
    for name, chosen in positions.items():
        of_class = folder / name.replace("/", " or ")
        of_class.mkdir(parents=True)
        for position in chosen.tolist():
            pixels = images[position].views[0][0, 0].numpy()
            image = scene(pixels, backgrounds, random) if asked.scenes else Image.fromarray(pixels).convert("RGB")
            image.save(of_class / f"{position:05d}.jpg", quality=90)


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--data", default="fashion-mnist", help="what the photos are made of")
parser.add_argument("--folder", type=Path, help="photos of your own, with a folder of each class")
parser.add_argument("--scenes", action="store_true", help="items at any place and size, before parts of photographs")
parser.add_argument("--tiny", action="store_true", help="few photos and steps, to see that it runs; writes nothing")
parser.add_argument("--samples", type=int, default=1, help="how many times photos are drawn and trained on")
parser.add_argument("--weights", type=Path, help="weights of a model of timm; default: none, and not that way")
parser.add_argument("--encoder", default="resnet18", help="which model of timm they are of; default: %(default)s")
parser.add_argument("--image_size", type=int, help="side of its images in pixels; default: as it was trained")
parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="which trainings; default: all")
asked = parser.parse_args()
per_class, judged, others, epochs, epochs_of_many = (8, 4, 64, 1, 1) if asked.tiny else (40, 100, 3_000, 200, 12)
kind = asked.folder.name if asked.folder else "scenes" if asked.scenes else "well centred"
if asked.folder and "frozen" in asked.ways:
    asked.ways.remove("frozen")  # it is of other photos of the same kind, which a folder has not
if asked.weights is None and "pretrained" in asked.ways:
    asked.ways.remove("pretrained")
begun = time.perf_counter()


def tell(text: str) -> None:
    """Print what happens, and when."""
    print(f"{time.perf_counter() - begun:5.0f} s  {text}", flush=True)


def reached(photos: Path, out: Path, **settings: object) -> dict[str, list[float]]:
    """Train as the log of a training on so few photos proposes, and return probe and kNN of its rows."""
    batch_size = 32 if asked.tiny or asked.folder else 64
    run = train(data=photos, out=out, batch_size=batch_size, epochs=epochs, progress=False, **settings)
    rows = evaluate(run, metrics=METRICS, neighbors=5 if asked.tiny else 20, progress=False)["rows"]
    return {name: [row[key] for key in METRICS] for name, row in rows.items()}


def drawn_of_folder(folder: Path, number: int) -> None:
    """Write the photos of a class folder as a training and a test split: a fifth of each class, anew each time."""
    for of_class in sorted(path for path in asked.folder.iterdir() if path.is_dir()):
        files = sorted(path for path in of_class.rglob("*") if path.suffix.lower() in SUFFIXES)
        for place, chosen in enumerate(np.random.default_rng(number).permutation(len(files))):
            split = folder / ("test" if place < len(files) // 5 else "train") / of_class.name
            split.mkdir(parents=True, exist_ok=True)
            shutil.copy(files[chosen], split / f"{chosen}{files[chosen].suffix}")


def drawn(folder: Path, number: int) -> None:
    """Write photos to train on and others to judge by, of items that no other draw trains on."""
    of, places = dict(zip(source.class_names, kinds, strict=True)), np.random.default_rng(1 + number)
    own = slice(number * per_class, (number + 1) * per_class)
    write(folder / "train", source, {name: each[own] for name, each in of.items()}, places)
    further = slice(trained_on, trained_on + judged)
    write(folder / "test", source, {name: each[further] for name, each in of.items()}, places)


with tempfile.TemporaryDirectory() as place:
    temporary = Path(place)
    pretrained = {"encoder": asked.encoder, "init": asked.weights, "image_size": asked.image_size, "freeze": True}
    settings = {
        "pretrained": pretrained,
        "edges": {"encoder": "gradients", "augment": "mixup"},
        "standard": {"encoder": "gradients"},
        "frozen": {"init": temporary / "before", "freeze": True},
        "nothing": {},
    }
    if not asked.folder:
        source = load(asked.data)
        labels, random = source.labels.numpy(), np.random.default_rng(0)
        kinds = [random.permutation(np.flatnonzero(labels == number)) for number in range(len(source.class_names))]
        trained_on = asked.samples * per_class  # of each kind; behind these come those that judge, and the others
    if "frozen" in asked.ways:
        rest = random.permutation(np.concatenate([of_kind[trained_on + judged :] for of_kind in kinds]))
        tell(f"an encoder is trained on {len(rest[:others]):,} other photos")
        write(temporary / "many", source, {"all": rest[:others]}, np.random.default_rng(0))
        many = {"data": temporary / "many", "ignore_labels": True, "batch_size": 32 if asked.tiny else 128}
        train(out=temporary / "before", epochs=epochs_of_many, progress=False, **many)
        tell("it is trained")

    columns = defaultdict(list)
    for number in range(asked.samples):
        photos = temporary / f"photos-{number}"
        (drawn_of_folder if asked.folder else drawn)(photos, number)
        counts = [sum(path.is_file() for path in (photos / split).rglob("*")) for split in ("train", "test")]

        for way in asked.ways:
            if way == "nothing" and number > 0:  # once, as it takes longer than the rest
                continue
            found = reached(photos, temporary / f"{way}-{number}", seed=number, **settings[way])
            numbers = ", ".join(f"{name} {probe:.1%} {knn:.1%}" for name, (probe, knn) in found.items())
            tell(f"sample {number + 1} of {asked.samples}, {WAYS[way]}: {numbers}")
            columns[RAW] = [*columns[RAW][:number], found["raw"]]
            if way in (*PROPOSED, "nothing"):
                (before,) = found.keys() - {"raw", "trained"}  # as given, or with random weights
                columns[f"{WAYS[way]}, {before}"].append(found[before])
            columns[WAYS[way]].append(found["trained"])


def told(values: np.ndarray) -> list[str]:
    """Return the mean over samples of what each measure says, and the half width of its interval of 95 %."""
    if len(values) == 1:
        return [f"{value:.1%}" for value in values[0]]
    error = stats.sem(values) * stats.t.ppf(0.975, len(values) - 1)
    return [f"{mean:.1%} +- {half:.1%}" for mean, half in zip(values.mean(0), error, strict=True)]


rows = {name: np.array(values) for name, values in columns.items()}
for way in [way for way in PROPOSED if way in asked.ways]:
    for name in [name for name in rows if name == RAW or name.startswith(f"{WAYS[way]}, ")]:
        rows[f"  {WAYS[way]}, ahead of: {name}"] = rows[WAYS[way]] - rows[name]
print(f"\n{counts[0]} photos, {kind}, judged on {counts[1]:,} others; mean of so many times, 95 %")
print(f"{'':70} {'times':>5} {'probe':>15} {'kNN':>15}")
for name, values in rows.items():
    print(f"{name:70} {len(values):5} {' '.join(f'{text:>15}' for text in told(values))}")
if not asked.tiny:
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    facts = {"photos": counts[0], "judged": counts[1], "measures": METRICS}
    results[kind] = results.get(kind, {}) | facts | columns  # of ways that were not asked for, what they reached before
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
