"""Images and captions: two encoders, search of images by texts and of texts by images, zero-shot classification.

    python examples/captions.py                      # Fashion-MNIST, with captions made from labels and pixels
    python examples/captions.py --recipe siglip
    python examples/captions.py --folder captioned   # keeps the images, the table, the run and a page of what is found

On the command line, with a table of yours that has a column of image files and one of captions:

    contraport train --data captions.csv --recipe clip --out runs/captioned
    contraport evaluate runs/captioned --metrics retrieval zero-shot
    contraport search runs/captioned "a bright, wide bag"
"""

import argparse
import csv
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from contraport import embed, evaluate, search, train
from contraport.data import load

TEMPLATES = ["a photo of a {}.", "a {}.", "this is a {}"]
TOP = 10


def measure_items(images: np.ndarray, limits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the brightness of the item on each image as 0, 1 or 2, and its width as 0 or 1."""
    seen = images > 40
    brightness = np.array(
        [image[where].mean() if where.any() else 0 for image, where in zip(images, seen, strict=True)]
    )
    return np.digitize(brightness, limits[:2]), (seen.any(1).sum(1) > limits[2]).astype(int)


def choose_thresholds(images: np.ndarray) -> np.ndarray:
    """Return the two thresholds of brightness and the threshold of width."""
    seen = images > 40
    brightness = [image[where].mean() for image, where in zip(images, seen, strict=True) if where.any()]
    return np.array([*np.quantile(brightness, [1 / 3, 2 / 3]), np.median(seen.any(1).sum(1))])


def write(folder: Path, data: str, numbers: dict[str, int]) -> dict[str, tuple[str, str, str]]:
    """Write images and a table of two captions for each; return the class, brightness and width of each file."""
    (folder / "images").mkdir(parents=True, exist_ok=True)
    limits, captions, rows = None, {}, []
    for split, number in numbers.items():
        items = load(data, split)
        number = min(number, len(items))
        batch = items.__getitems__(list(range(number)))
        images = batch.views[0][:, 0].numpy()
        limits = choose_thresholds(images) if limits is None else limits
        for place, (pixels, label, bright, wide) in enumerate(
            zip(images, batch.labels.tolist(), *measure_items(images, limits), strict=True)
        ):
            name, file = items.class_names[label].lower(), f"images/{split}-{place:05d}.png"
            words = ("dark", "grey", "bright")[bright], ("narrow", "wide")[wide]
            Image.fromarray(pixels).save(folder / file)
            captions[str(folder / file)] = name, *words
            for caption in (f"a {words[0]}, {words[1]} {name}", f"a photo of a {name}"):
                rows.append({"image": file, "caption": caption, "label": name, "split": split})
    with (folder / "captions.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    return captions


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--data", default="fashion-mnist", help="images with classes that have names")
parser.add_argument("--recipe", default="clip", choices=["clip", "siglip"])
parser.add_argument("--folder", help="where to keep what is made; default: nothing is kept")
parser.add_argument("--images", type=int, default=6_000, help="to train on")
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--tiny", action="store_true", help="few images and steps, to see that it runs")
args = parser.parse_args()
if args.tiny:
    args.images, args.epochs = 60, 1

with tempfile.TemporaryDirectory() as place:
    folder = Path(args.folder or place)
    captions = write(folder, args.data, {"train": args.images, "test": max(args.images // 5, 40)})
    run = train(
        data=folder / "captions.csv",
        recipe=args.recipe,
        epochs=args.epochs,
        batch_size=32 if args.tiny else 128,
        out=folder / "run",
        overwrite=True,
        progress=False,
    )
    result = evaluate(run, metrics=["retrieval", "zero-shot"], templates=TEMPLATES, progress=False)
    print(f"{args.recipe}, {args.images:,} images with two captions each, {result['test_items'] // 2:,} others to find")
    print(f"{'':20} {'R@1':>6} {'R@5':>6} {'R@10':>6}  median rank")
    for direction, numbers in result["directions"].items():
        recalls = " ".join(f"{numbers[f'recall@{number}']['value']:6.1%}" for number in (1, 5, 10))
        print(f"{direction:20} {recalls}  {numbers['median_rank']['value']:.1f}")
    trained, untrained = (result["rows"][name]["zero_shot"] for name in ("trained", "untrained"))
    print(f"zero-shot, {result['classes']} classes by name: {trained:.1%} (untrained {untrained:.1%})")

    searches = sorted({(name, bright) for file, (name, bright, _) in captions.items() if "/test-" in file})
    searches = searches[:2] if args.tiny else searches
    hits = {"class": [], "class and brightness": []}
    images = embed(run, view="image", split="test", out=folder / "images.npz", overwrite=True, progress=False)
    for name, bright in searches:
        near = [captions[one.name] for one in search(images, f"a {bright} {name}", top=TOP)]
        hits["class"].append(np.mean([one[0] == name for one in near]))
        hits["class and brightness"].append(np.mean([one[:2] == (name, bright) for one in near]))
    example = f"a {searches[0][1]} {searches[0][0]}"
    for what, shares in hits.items():
        print(f"search by {len(searches)} texts such as {example!r}: {np.mean(shares):.1%} of the "
              f"first {TOP} have the {what}")  # fmt: skip
    if args.folder:
        search(images, f"a {searches[0][1]} {searches[0][0]}", page=folder / "found.html", overwrite=True)
