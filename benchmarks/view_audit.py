"""Which view of an item is wrong: audits of all pairs of views, on data with planted wrong views.

Six views of UCI's multiple features, once with one view of a fifth of the items shuffled, once with a twentieth of each
view; and pictures and names of emoji in six languages, with a tenth of the names in two languages shuffled (if
`python -m benchmarks.comparing emoji` made the data). Printed and written: AUROC over all views of all items, how often
the wrong view is named, and precision and recall of what is flagged.

    python -m benchmarks.view_audit [--seeds 2]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from sklearn.metrics import roc_auc_score

import contraport
from benchmarks.engine import machine
from contraport.data import load

EMOJI = Path("runs/suites/emoji.npz")


def list_cases() -> Iterator[tuple[str, dict[str, np.ndarray], dict[str, float]]]:
    """Yield the name, the views and the share of wrong items of each view, for each data set."""
    dataset = load("uci-multiple-features")
    batch = dataset.__getitems__(list(range(len(dataset))))
    views = {name: view.numpy() for name, view in zip(dataset.view_names, batch.views, strict=True)}
    yield "UCI, 20 % of one view", views, {dataset.view_names[2]: 0.2}
    yield "UCI, 5 % of each view", views, dict.fromkeys(views, 0.05)
    if EMOJI.exists():
        with np.load(EMOJI) as file:
            yield "emoji, 10 % of two languages", dict(file), {"de": 0.1, "es": 0.1}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/view_audit.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    table, results = Table("data", "seed", "AUROC", "view named", "precision", "recall"), []
    for name, given, shares in list_cases():
        for seed in range(options.seeds):
            random = np.random.default_rng(seed)
            views = {view: values.copy() for view, values in given.items()}
            items = len(next(iter(views.values())))
            is_wrong = np.zeros((items, len(views)), dtype=bool)
            for place, view in enumerate(views):
                wrong = random.permutation(items)[: round(shares.get(view, 0) * items)]
                views[view][wrong] = views[view][np.roll(wrong, 1)]
                is_wrong[wrong, place] = True
            found = contraport.audit(data=views, method="frozen", progress=False)
            single, flagged = is_wrong.sum(axis=1) == 1, found.flagged()
            row = {
                "auroc": float(roc_auc_score(is_wrong.ravel(), -found.scores.ravel())),
                "named": float((found.scores[single].argmin(axis=1) == is_wrong[single].argmax(axis=1)).mean()),
                "precision": float(is_wrong[tuple(flagged.T)].mean()),
                "recall": float((found.scores < 0)[is_wrong].mean()),
            }
            results.append({"data": name, "seed": seed, **row})
            table.add_row(name, str(seed), *(f"{value:.3f}" for value in row.values()))
    Console(width=100).print(table)
    command = f"python -m benchmarks.view_audit --seeds {options.seeds}"
    options.out.write_text(json.dumps({"command": command, "machine": machine(), "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
