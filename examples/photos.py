"""Four hundred photos in a folder: fixed features, training from scratch, and pretraining on similar photos.

    python examples/photos.py                   # JPEG files of Fashion-MNIST: small and well centered
    python examples/photos.py --scenes          # the same clothes at any place and size, before parts of photographs
    python examples/photos.py --samples 5       # five times four hundred, the mean and its interval
    python examples/photos.py --ways edges      # only what the log proposes where there are no weights
    python examples/photos.py --folder photos/  # a folder of your own, with a folder of each class; a fifth judges
    python examples/photos.py --weights FILE --encoder resnet18  # beside these, weights that others trained, of timm

It prints each training and writes all accuracies to examples/results/photos.json.

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
from contraport.data.image_decoding import IMAGE_SUFFIXES

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
    """Return a tinted grayscale item at a random place and size in front of a part of a photograph."""
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


def write_photos(folder: Path, images: Dataset, positions: dict[str, np.ndarray], random: np.random.Generator) -> None:
    """Write items of a data set as JPEG files, in a folder for each class."""
    backgrounds = [Image.fromarray(image) for image in load_sample_images().images]
    for name, chosen in positions.items():
        of_class = folder / name.replace("/", " or ")
        of_class.mkdir(parents=True)
        for position in chosen.tolist():
            pixels = images[position].views[0][0, 0].numpy()
            image = scene(pixels, backgrounds, random) if options.scenes else Image.fromarray(pixels).convert("RGB")
            image.save(of_class / f"{position:05d}.jpg", quality=90)


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--data", default="fashion-mnist", help="data set that the photos are made of")
parser.add_argument("--folder", type=Path, help="photos of your own, with a folder of each class")
parser.add_argument("--scenes", action="store_true", help="items at any place and size in front of photographs")
parser.add_argument("--tiny", action="store_true", help="few photos and steps, as a test; writes nothing")
parser.add_argument("--samples", type=int, default=1, help="number of times that photos are drawn and trained on")
parser.add_argument("--weights", type=Path, help="weights of a model of timm; default: none")
parser.add_argument("--encoder", default="resnet18", help="name of their timm model; default: %(default)s")
parser.add_argument("--image_size", type=int, help="side of its images in pixels; default: as it was trained")
parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="trainings to compare; default: all")
options = parser.parse_args()
per_class, judged, others, epochs, epochs_of_many = (8, 4, 64, 1, 1) if options.tiny else (40, 100, 3_000, 200, 12)
kind = options.folder.name if options.folder else "scenes" if options.scenes else "well centred"
if options.folder and "frozen" in options.ways:
    options.ways.remove("frozen")  # it needs other photos of the same kind
if options.weights is None and "pretrained" in options.ways:
    options.ways.remove("pretrained")
start_time = time.perf_counter()


def log(text: str) -> None:
    """Print a message with the elapsed time."""
    print(f"{time.perf_counter() - start_time:5.0f} s  {text}", flush=True)


def train_and_evaluate(photos: Path, out: Path, **settings: object) -> dict[str, list[float]]:
    """Train with the settings that the log suggests for few photos; return probe and kNN accuracy of each encoder."""
    batch_size = 32 if options.tiny or options.folder else 64
    run = train(data=photos, out=out, batch_size=batch_size, epochs=epochs, progress=False, **settings)
    rows = evaluate(run, metrics=METRICS, neighbors=5 if options.tiny else 20, progress=False)["rows"]
    return {name: [row[key] for key in METRICS] for name, row in rows.items()}


def write_folder_split(folder: Path, number: int) -> None:
    """Write a random split of the photos in class folders, with a fifth of each class as test split."""
    for of_class in sorted(path for path in options.folder.iterdir() if path.is_dir()):
        files = sorted(path for path in of_class.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES)
        for place, chosen in enumerate(np.random.default_rng(number).permutation(len(files))):
            split = folder / ("test" if place < len(files) // 5 else "train") / of_class.name
            split.mkdir(parents=True, exist_ok=True)
            shutil.copy(files[chosen], split / f"{chosen}{files[chosen].suffix}")


def write_sample_split(folder: Path, number: int) -> None:
    """Write a training and a test split; no two samples share training items."""
    of, places = dict(zip(source.class_names, kinds, strict=True)), np.random.default_rng(1 + number)
    own = slice(number * per_class, (number + 1) * per_class)
    write_photos(folder / "train", source, {name: each[own] for name, each in of.items()}, places)
    further = slice(trained_on, trained_on + judged)
    write_photos(folder / "test", source, {name: each[further] for name, each in of.items()}, places)


with tempfile.TemporaryDirectory() as place:
    temporary = Path(place)
    pretrained = {"encoder": options.encoder, "init": options.weights, "image_size": options.image_size, "freeze": True}
    settings = {
        "pretrained": pretrained,
        "edges": {"encoder": "gradients", "augment": "mixup"},
        "standard": {"encoder": "gradients"},
        "frozen": {"init": temporary / "before", "freeze": True},
        "nothing": {},
    }
    if not options.folder:
        source = load(options.data)
        labels, random = source.labels.numpy(), np.random.default_rng(0)
        kinds = [random.permutation(np.flatnonzero(labels == number)) for number in range(len(source.class_names))]
        trained_on = options.samples * per_class  # of each kind; test items and the other photos come after these
    if "frozen" in options.ways:
        rest = random.permutation(np.concatenate([of_kind[trained_on + judged :] for of_kind in kinds]))
        log(f"an encoder is trained on {len(rest[:others]):,} other photos")
        write_photos(temporary / "many", source, {"all": rest[:others]}, np.random.default_rng(0))
        many = {"data": temporary / "many", "ignore_labels": True, "batch_size": 32 if options.tiny else 128}
        train(out=temporary / "before", epochs=epochs_of_many, progress=False, **many)
        log("it is trained")

    columns = defaultdict(list)
    for number in range(options.samples):
        photos = temporary / f"photos-{number}"
        (write_folder_split if options.folder else write_sample_split)(photos, number)
        counts = [sum(path.is_file() for path in (photos / split).rglob("*")) for split in ("train", "test")]

        for way in options.ways:
            if way == "nothing" and number > 0:  # once, as it takes longer than the rest
                continue
            result = train_and_evaluate(photos, temporary / f"{way}-{number}", seed=number, **settings[way])
            numbers = ", ".join(f"{name} {probe:.1%} {knn:.1%}" for name, (probe, knn) in result.items())
            log(f"sample {number + 1} of {options.samples}, {WAYS[way]}: {numbers}")
            columns[RAW] = [*columns[RAW][:number], result["raw"]]
            if way in (*PROPOSED, "nothing"):
                (before,) = result.keys() - {"raw", "trained"}  # as given, or with random weights
                columns[f"{WAYS[way]}, {before}"].append(result[before])
            columns[WAYS[way]].append(result["trained"])


def format_means(values: np.ndarray) -> list[str]:
    """Format the mean of each metric over samples, with the half-width of its 95% interval."""
    if len(values) == 1:
        return [f"{value:.1%}" for value in values[0]]
    error = stats.sem(values) * stats.t.ppf(0.975, len(values) - 1)
    return [f"{mean:.1%} +- {half:.1%}" for mean, half in zip(values.mean(0), error, strict=True)]


rows = {name: np.array(values) for name, values in columns.items()}
for way in [way for way in PROPOSED if way in options.ways]:
    for name in [name for name in rows if name == RAW or name.startswith(f"{WAYS[way]}, ")]:
        rows[f"  {WAYS[way]}, ahead of: {name}"] = rows[WAYS[way]] - rows[name]
print(f"\n{counts[0]} photos, {kind}, judged on {counts[1]:,} others; mean of so many times, 95%")
print(f"{'':70} {'times':>5} {'probe':>15} {'kNN':>15}")
for name, values in rows.items():
    print(f"{name:70} {len(values):5} {' '.join(f'{text:>15}' for text in format_means(values))}")
if not options.tiny:
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    facts = {"photos": counts[0], "judged": counts[1], "measures": METRICS}
    results[kind] = results.get(kind, {}) | facts | columns  # ways that were not selected keep their earlier results
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
