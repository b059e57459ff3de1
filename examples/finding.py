"""Similarity search: duplicates in a folder, photos similar to a photo, and clusters, with HTML pages.

    python examples/finding.py [--pages pages]

On the command line, with photos of your own:

    contraport train --data photos/ --out runs/photos
    contraport embed runs/photos --out photos.npy
    contraport duplicates photos.npy --threshold 0.99 --page same.html
    contraport neighbors photos.npy --query holiday.jpg --page near.html
    contraport cluster photos.npy --k 10 --page clusters.html
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from contraport import cluster, duplicates, embed, neighbors, train
from contraport.data import load

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--data", default="fashion-mnist", help="what the photos are made of")
parser.add_argument("--pages", type=Path, help="a folder for the pages; default: none are kept")
parser.add_argument("--tiny", action="store_true", help="few photos and steps, to see that it runs")
args = parser.parse_args()
items, copied, epochs = (60, 10, 1) if args.tiny else (1_000, 100, 30)

images, random = load(args.data), np.random.default_rng(0)
with tempfile.TemporaryDirectory() as place:
    photos, pages = Path(place) / "photos", args.pages or Path(place)
    photos.mkdir()
    pages.mkdir(exist_ok=True)
    for position in range(items):
        image = Image.fromarray(images[position].views[0][0, 0].numpy()).convert("RGB").resize((56, 56))
        image.save(photos / f"{position:05d}.jpg", quality=90)
        if position < copied:  # saved again, smaller and worse
            image.resize((48, 48)).save(photos / f"{position:05d}-copy.jpg", quality=60)

    run = train(data=photos, image_size=28, batch_size=32 if args.tiny else 128, epochs=epochs, out=f"{place}/run",
                progress=False)  # fmt: skip
    features = embed(run, out=f"{place}/photos.npy", progress=False)

    print("threshold  pairs found  of these copies")
    for threshold in (0.999, 0.99, 0.98):
        groups = duplicates(features, threshold=threshold, page=pages / f"same-{threshold}.html", overwrite=True)
        pairs = sum(len(group.names) - 1 for group in groups)
        originals = [{Path(name).stem.removesuffix("-copy") for name in group.names} for group in groups]
        right = sum(len(group.names) == 2 and len(names) == 1 for group, names in zip(groups, originals, strict=True))
        print(f"{threshold:9} {pairs:12} {right:16}")

    first = 0
    for position in range(copied):
        result = neighbors(features, query=photos / f"{position:05d}-copy.jpg", top=1)
        first += Path(result[0].name).stem == f"{position:05d}"
    print(f"the original is the nearest of a copy: {first} of {copied}")
    neighbors(features, query=photos / "00000.jpg", top=12, page=pages / "near.html", overwrite=True)
    result = cluster(features, k=10, page=pages / "clusters.html", overwrite=True)
    print(f"clusters of {', '.join(str(one.size) for one in result.clusters)} items")
