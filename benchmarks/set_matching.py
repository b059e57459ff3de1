"""Do two-sided plans between words retrieve texts better than MaxSim? NDCG@10 on two sets of short text pairs.

The same encoder of words is trained with InfoNCE on each similarity, and its test pairs are ranked by the similarity
that it was trained with. Pairs: names of emoji in English and French (package `emoji`), and synopses and tags of Debian
packages (`apt-cache dumpavail`). The query is the first of each pair.

    python -m benchmarks.set_matching [--seeds 3] [--out benchmarks/results/set_matching.json]
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

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

TEST, BATCH, EPOCHS, TEMPERATURE = 500, 100, 6, 0.05
BASE = "max"

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
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/set_matching.json"))
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    results = []
    for data, read in (("emoji", read_emoji), ("debian", read_debian)):
        pairs = read()
        gains: dict[str, np.ndarray] = {}
        for name, kernel in KERNELS.items():
            gains[name] = np.stack([train_and_rank(pairs, kernel(), seed) for seed in range(options.seeds)])
            print(f"{data}, {name}: {gains[name].mean():.4f}", flush=True)
        for name, gain in gains.items():
            difference, low, high = interval(gain - gains[BASE])
            row = {"data": data, "similarity": name, "ndcg@10": gain.mean(), "difference": difference}
            results.append(row | {"low": low, "high": high})
    print_table(results)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    settings = {"test": TEST, "batch": BATCH, "epochs": EPOCHS, "seeds": options.seeds}
    options.out.write_text(json.dumps({"machine": machine(), **settings, "rows": results}, indent=1) + "\n")
    print(f"written to {options.out}")


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
    train = min(2_000, len(pairs) - TEST) // BATCH * BATCH
    steps = EPOCHS * train // BATCH
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)

    def embed(rows: np.ndarray) -> list[Tensor]:
        texts = [texts_to_tensor([side[row] for row in rows]) for side in (queries, items)]
        return [model.project(model.encode([text], pooled=not kernel.compares_sets))[0] for text in texts]

    for _ in range(EPOCHS):
        for rows in np.split(torch.randperm(train).numpy(), train // BATCH):
            optimizer.zero_grad()
            objective(*embed(rows)).backward()
            optimizer.step()
            schedule.step()
    with torch.no_grad():
        model.eval()
        scores = kernel(*embed(np.arange(train, train + TEST))).dense()
    ranks = (scores >= scores.diag()[:, None]).sum(1).double()  # of equal scores the last
    return torch.where(ranks <= 10, 1 / torch.log2(1 + ranks), 0).numpy()


def interval(differences: np.ndarray, draws: int = 2_000) -> tuple[float, float, float]:
    """Return the mean of (seeds, queries) differences, with its 95 % bootstrap interval over seeds and queries."""
    random = np.random.default_rng(0)
    seeds, queries = differences.shape
    means = [
        differences[random.integers(seeds, size=seeds)][:, random.integers(queries, size=queries)].mean()
        for _ in range(draws)
    ]
    low, high = np.quantile(means, [0.025, 0.975])
    return float(differences.mean()), float(low), float(high)


def print_table(rows: list[dict[str, str | float]]) -> None:
    table = Table(title=f"NDCG@10, and its difference from that of {BASE!r}")
    for heading in ("data", "similarity", "NDCG@10", "difference", "95 % interval"):
        table.add_column(heading)
    for row in rows:
        bounds = f"{row['low']:+.3f} to {row['high']:+.3f}"
        cells = str(row["data"]), str(row["similarity"]), f"{row['ndcg@10']:.3f}", f"{row['difference']:+.3f}", bounds
        table.add_row(*cells)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
