"""Retrieval of texts by two-sided plans between words, beside MaxSim: NDCG@10 on two sets of short text pairs.

The same encoder of words is trained with InfoNCE on each similarity, and its test pairs are ranked by the similarity
that it was trained with. Pairs: names of emoji in English and French (package `emoji`), and synopses and tags of Debian
packages (`apt-cache dumpavail`). The query is the first of each pair.

    python -m benchmarks.set_matching emoji|debian [--seeds 3] [--out benchmarks/results]
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.engine import machine
from contraport import Gibbs, LateInteraction, info_nce
from contraport._utils.text_bytes import texts_to_tensor
from contraport.encoders import Model
from contraport.engine import Kernel

TRAIN, TEST, BATCH, EPOCHS, TEMPERATURE = 1_000, 500, 100, 10, 0.05
BASES = "max", "soft"
"""Similarities that the others are compared with."""

KERNELS: dict[str, Callable[[], Kernel]] = {
    "mean of the words": lambda: Gibbs("cosine", TEMPERATURE),
    "max": lambda: LateInteraction("max", TEMPERATURE),
    "soft": lambda: LateInteraction("soft", TEMPERATURE),
    "transport, balanced": lambda: LateInteraction("transport", TEMPERATURE, iterations=3),
    "transport, columns at price 0.1": lambda: LateInteraction(
        "transport", TEMPERATURE, relaxation=(math.inf, 0.1), iterations=3
    ),
}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", choices=("emoji", "debian"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    pairs = read_emoji() if options.data == "emoji" else read_debian()
    gains: dict[str, np.ndarray] = {}
    for name, kernel in KERNELS.items():
        gains[name] = np.stack([train_and_rank(pairs, kernel(), seed) for seed in range(options.seeds)])
        print(f"{name}: {gains[name].mean():.4f}", flush=True)
    rows = [
        {"similarity": name, "ndcg@10": gain.mean()} | {f"over {base}": interval(gain - gains[base]) for base in BASES}
        for name, gain in gains.items()
    ]
    print_table(options.data, rows)
    options.out.mkdir(parents=True, exist_ok=True)
    settings = {"train": TRAIN, "test": TEST, "batch": BATCH, "epochs": EPOCHS, "seeds": options.seeds}
    path = options.out / f"set_matching_{options.data}.json"
    path.write_text(json.dumps({"machine": machine(), **settings, "rows": rows}, indent=1) + "\n")
    print(f"written to {path}")


def read_emoji() -> list[tuple[str, str]]:
    """Return the English and French name of each emoji, each name once."""
    from examples.emoji_table import load_names

    pairs, seen = [], set()
    for names in load_names().values():
        pair = names["en"].lower(), names.get("fr", "").lower()
        if pair[1] and not seen & set(pair):
            seen |= set(pair)
            pairs.append(pair)
    return pairs


def read_debian() -> list[tuple[str, str]]:
    """Return the synopsis and the tags of packages, each synopsis and each set of tags once."""
    listing = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, text=True, check=True).stdout
    pairs, seen = [], set()
    for record in listing.split("\n\n"):
        fields = dict(re.findall(r"^(Description|Tag): ((?:.|\n )*)", record, re.M))
        if len(fields) < 2:
            continue
        pair = fields["Description"], re.sub(r"::|,\s*", " ", fields["Tag"])
        if not seen & set(pair):
            seen |= set(pair)
            pairs.append(pair)
    return pairs


def train_and_rank(pairs: list[tuple[str, str]], kernel: Kernel, seed: int) -> np.ndarray:
    """Train an encoder of words, and return the NDCG@10 of each test query, whose only relevant item is its pair."""
    order = np.random.default_rng(seed).permutation(len(pairs))
    queries, items = ([pairs[k][side] for k in order] for side in (0, 1))
    torch.manual_seed(seed)
    model = Model("small-text", shapes=[()], projection=64, projection_layers=1)
    objective = info_nce(TEMPERATURE)
    objective.kernel = kernel
    steps = EPOCHS * TRAIN // BATCH
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)

    def embed(rows: np.ndarray) -> list[Tensor]:
        texts = [texts_to_tensor([side[row] for row in rows]) for side in (queries, items)]
        return [model.project(model.encode([text], pooled=not kernel.compares_sets))[0] for text in texts]

    for _ in range(EPOCHS):
        for rows in np.split(torch.randperm(TRAIN).numpy(), TRAIN // BATCH):
            optimizer.zero_grad()
            objective(*embed(rows)).backward()
            optimizer.step()
            schedule.step()
    with torch.no_grad():
        model.eval()
        scores = kernel(*embed(np.arange(TRAIN, TRAIN + TEST))).dense()
    ranks = (scores >= scores.diag()[:, None]).sum(1).double()  # of equal scores the last
    return torch.where(ranks <= 10, 1 / torch.log2(1 + ranks), 0).numpy()


def interval(differences: np.ndarray, draws: int = 2_000) -> tuple[float, float, float]:
    """Return the mean of (seeds, queries) differences, with its 95% bootstrap interval over seeds and queries."""
    random = np.random.default_rng(0)
    seeds, queries = differences.shape
    means = [
        differences[random.integers(seeds, size=seeds)][:, random.integers(queries, size=queries)].mean()
        for _ in range(draws)
    ]
    low, high = np.quantile(means, [0.025, 0.975])
    return float(differences.mean()), float(low), float(high)


def print_table(data: str, rows: list[dict[str, Any]]) -> None:
    table = Table(title=f"{data}: NDCG@10, and its difference with a 95% interval")
    headings = "similarity", "NDCG@10", *(f"over {base}" for base in BASES)
    for heading in headings:
        table.add_column(heading)
    for row in rows:
        differences = (row[heading] for heading in headings[2:])
        cells = (f"{value:+.3f} ({low:+.3f} to {high:+.3f})" for value, low, high in differences)
        table.add_row(row["similarity"], f"{row['ndcg@10']:.3f}", *cells)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
