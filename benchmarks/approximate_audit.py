"""AUROC of audits whose ranks use reference items and whose neighbors are found by cells, against exact audits.

An exact audit compares every item with all others. Up to `MAX_EXACT_NEIGHBOR_ITEMS` items an audit finds its neighbors
exactly; for smaller data the search by cells is forced here, with the share of the items that it compares in the
smallest data that are searched by cells. Fashion-MNIST's halves are vectors of 98 pixels, "generated" is the data of
`benchmarks.scale`. A fifth of the pairs are wrong.

    python -m benchmarks.approximate_audit [--root FOLDER] [--images FOLDER] [--data NAME ...] [--items 24000]
        [--seeds 3] [--out benchmarks/results/approximate_audit.json]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import contraport
from benchmarks.audit import auroc, load_fashion, load_pairs, split_halves
from benchmarks.engine import machine
from benchmarks.scale import write_pairs
from contraport._utils import vector_search
from contraport.auditing.pairs import paired_features
from contraport.data import Dataset, load_split_or_all_items

DATA = ("generated", "fashion-halves", "zer-kar", "fou-kar", "zer-fou", "digits-halves")
LARGE = ("generated", "fashion-halves")
WRONG, WIDTH = 0.2, 64


def load_noisy_pairs(
    name: str, items: int, seed: int, root: Path | None, images: Path | None
) -> tuple[Dataset, np.ndarray]:
    """Load pairs of which a fifth are wrong, and the mask of these."""
    if name == "generated":
        with tempfile.TemporaryDirectory() as folder:
            is_wrong = write_pairs(Path(folder) / "pairs.npz", items, WIDTH, seed=seed)
            return load_split_or_all_items(Path(folder) / "pairs.npz"), is_wrong
    pairs = (
        split_halves(load_fashion("train", items, images)[0]) if name in LARGE else load_pairs(name, root, images)[0]
    )
    dataset, is_wrong, _ = pairs.mismatch(WRONG, seed, name)
    return dataset, is_wrong


def list_limits(items: int) -> dict[str, dict[tuple[object, str], int]]:
    """Return the constants of the audit that make it exact, exact but for its reference items, or search by cells."""
    exact_items, references = (
        (paired_features, "MAX_EXACT_NEIGHBOR_ITEMS"),
        (paired_features, "MAX_REFERENCE_ITEMS"),
    )
    by_cells = {exact_items: min(paired_features.MAX_EXACT_NEIGHBOR_ITEMS, items - 1)}
    if items <= paired_features.MAX_EXACT_NEIGHBOR_ITEMS:
        share = items / paired_features.MAX_EXACT_NEIGHBOR_ITEMS
        for constant in ("MAX_CELL_ROWS", "MIN_COMPARED_ROWS_PER_QUERY"):
            by_cells[vector_search, constant] = round(share * getattr(vector_search, constant))
    return {"exact": {exact_items: items, references: items}, "references": {exact_items: items}, "cells": by_cells}


def measure(dataset: Dataset, is_wrong: np.ndarray) -> dict[str, dict[str, float]]:
    """Audit pairs exactly, by reference items, and by cells too; return AUROC, estimated share and CPU seconds."""
    measured = {}
    for name, limits in list_limits(len(dataset)).items():
        patches = [patch.object(module, constant, value) for (module, constant), value in limits.items()]
        for one in patches:
            one.start()
        started = time.process_time()
        result = contraport.audit(data=dataset, method="frozen", progress=False)
        seconds = time.process_time() - started
        patch.stopall()
        measured[name] = {"auroc": auroc(result.scores, is_wrong), "rate": result.noise_rate, "seconds": seconds}
    return measured


def print_table(results: list[dict[str, object]]) -> None:
    table = Table("data", "pairs", "seed", "exact", "references", "and cells", "difference")
    for row in results:
        values = [one["auroc"] for one in row["measured"].values()]  # type: ignore[attr-defined]
        cells = [f"{value:.4f}" for value in (*values, values[-1] - values[0])]
        table.add_row(str(row["data"]), f"{row['pairs']:,}", str(row["seed"]), *cells)
    Console(width=110).print(table)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--root", type=Path)
    parser.add_argument("--images", type=Path)
    parser.add_argument("--data", nargs="+", choices=DATA, default=list(DATA))
    parser.add_argument("--items", type=int, default=24_000)
    parser.add_argument("--seeds", type=int, default=3, help="Seeds of small data; the larger ones have one.")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/approximate_audit.json"))
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    results = json.loads(options.out.read_text())["results"] if options.out.exists() else []
    for name in options.data:
        for seed in range(1 if name in LARGE else options.seeds):
            dataset, is_wrong = load_noisy_pairs(name, options.items, seed, options.root, options.images)
            row = {"data": name, "pairs": len(dataset), "seed": seed, "measured": measure(dataset, is_wrong)}
            print(json.dumps(row), flush=True)
            results = [r for r in results if (r["data"], r["pairs"], r["seed"]) != (name, len(dataset), seed)] + [row]
            results.sort(key=lambda r: (DATA.index(r["data"]), r["pairs"], r["seed"]))
            options.out.write_text(json.dumps({"machine": machine(), "results": results}, indent=1) + "\n")
    print_table(results)


if __name__ == "__main__":
    main()
