"""Reliability of the estimated share of wrong pairs, for views that share much, little or nothing.

Audits of frozen vectors, with 0, 5, 20 and 40% of the pairs shuffled: the data of `benchmarks.partners`; digits and
their classes; and synthetic views, each a hidden vector plus noise of another size, or nothing in common. Printed and
written: the true and the estimated share, how often right pairs score above known mismatches as an audit estimates it,
and whether it prints the share.

    apt-get update && python -m benchmarks.noise_rate
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
from sklearn.datasets import load_digits

from benchmarks.audit import draw_partners
from benchmarks.engine import machine
from benchmarks.partners import list_cases
from contraport.auditing.pairs.noise_rate import MIN_SEPARATION_AUC, estimate_separation_auc
from contraport.auditing.rounds_excluding_suspects import score_frozen_rounds
from contraport.data import from_arrays
from contraport.errors import UsageError

SHARES = (0.0, 0.05, 0.2, 0.4)
NOISES = (1, 2, 4)
MADE, WIDTH = 1_500, 20


def list_all_cases() -> Iterator[tuple[str, np.ndarray, np.ndarray, np.ndarray]]:
    """Yield the name, both views and the content of the second view of each item, for each data set."""
    for name, first, second in list_cases():
        yield name, first, second, np.arange(len(first))
    images, classes = load_digits(return_X_y=True)
    yield "digits and their class", images / 16, np.eye(10)[classes], classes
    random = np.random.default_rng(0)
    hidden, items = random.normal(size=(MADE, WIDTH)), np.arange(MADE)
    for noise in NOISES:
        first, second = (hidden + noise * random.normal(size=hidden.shape) for _ in range(2))
        yield f"made, {noise} times as much noise as signal", first, second, items
    yield "made, nothing shared", random.normal(size=hidden.shape), random.normal(size=hidden.shape), items


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/noise_rate.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    table, results = Table("data", "wrong", "estimated", "separation", "printed"), []
    for name, first, second, contents in list_all_cases():
        for share in SHARES:
            partners = draw_partners(len(first), share, 0)
            wrong = float((contents != contents[partners]).mean())
            pairs = from_arrays((first.astype(np.float32), second[partners].astype(np.float32)))
            try:
                *_, result = score_frozen_rounds(pairs, statistic="combined", rounds=2, seed=0)
            except UsageError as error:  # all pairs look wrong, and the audit stops
                table.add_row(name, f"{wrong:.3f}", error.code, "-", "-")
                continue
            noise = result.noise_rate
            separation = estimate_separation_auc(result.scores, result.known_mismatch_scores, noise.interval[0])
            row = {"wrong": wrong, "estimated": noise.rate, "separation": separation}
            results.append({"data": name, **row, "printed": separation >= MIN_SEPARATION_AUC})
            table.add_row(name, *(f"{value:.3f}" for value in row.values()), str(separation >= MIN_SEPARATION_AUC))
        print(name, flush=True)
    Console(width=110).print(table)
    results_file = {"command": "python -m benchmarks.noise_rate", "machine": machine(), "results": results}
    options.out.write_text(json.dumps(results_file, indent=1) + "\n")


if __name__ == "__main__":
    main()
