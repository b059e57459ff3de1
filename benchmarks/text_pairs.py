"""Text pairs that share words: `weighted-ngrams` and `small-text`, before and after training, beside raw counts.

Names and short descriptions of 3,000 software packages (`apt-cache dumpavail`), and names and docstrings of functions
of Python's own library (`docstrings`). Trained as `contraport advise` recommends. Printed and written, per seed: the
share of held-out pairs whose partner is first, and among ten, and the seconds of the training.

    python -m benchmarks.text_pairs [--seeds 3]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from scipy import stats

from benchmarks.engine import machine
from contraport import evaluate, train
from contraport.data import from_arrays

METRICS = ["recall@1", "recall@10"]
ENCODERS = ("weighted-ngrams", "small-text")
SETTINGS = {"objective": "info-nce", "temperature": 0.05, "projection": 0, "batch_size": 256, "epochs": 15}


def read_packages(count: int) -> list[tuple[str, str]]:
    """Return the names and short descriptions of some packages, drawn at random; no description occurs twice."""
    listing = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, text=True, check=True).stdout
    names: dict[str, str] = {}
    for record in listing.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in record.split("\n") if ": " in line and not line.startswith(" "))
        if "Package" in fields and "Description" in fields:
            names.setdefault(fields["Description"], fields["Package"])
    items = sorted((name, description) for description, name in names.items())
    return [items[number] for number in np.random.default_rng(0).permutation(len(items))[:count]]


def split(pairs: list[tuple[str, str]], seed: int) -> tuple[Any, Any]:
    """Return a random split of pairs, a fifth of them to test, as data with two views."""
    order = np.random.default_rng(seed).permutation(len(pairs))
    parts = order[len(pairs) // 5 :], order[: len(pairs) // 5]
    views = {"name": 0, "description": 1}
    train_data, test_data = (
        from_arrays({view: [pairs[number][place] for number in part] for view, place in views.items()})
        for part in parts
    )
    return train_data, test_data


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--encoders", nargs="+", choices=ENCODERS, default=list(ENCODERS))
    parser.add_argument("--packages", type=int, default=3_000)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/text_pairs.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    packages = read_packages(options.packages)
    rows: dict[str, dict[str, list[list[float]]]] = defaultdict(lambda: defaultdict(list))
    seconds: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for seed in range(options.seeds):
        data: dict[str, Any] = {"packages": split(packages, seed), "docstrings": "docstrings"}
        for name, source in data.items():
            for encoder in options.encoders:
                with tempfile.TemporaryDirectory() as folder:
                    started = time.perf_counter()
                    run = train(
                        data=source if isinstance(source, str) else source[0],
                        **{"encoder": encoder, **SETTINGS},
                        seed=seed, threads=1, out=Path(folder, "run"), progress=False,
                    )  # fmt: skip
                    seconds[name][encoder].append(round(time.perf_counter() - started, 1))
                    on = {} if isinstance(source, str) else {"data": source}
                    results_of = evaluate(run, metrics=METRICS, progress=False, **on)
                for which, row in results_of["rows"].items():
                    label = which if which == "raw" else f"{encoder}, {which}"
                    rows[name][label][seed:] = [[row[metric] for metric in METRICS]]
                print(
                    seed,
                    name,
                    encoder,
                    results_of["test_items"],
                    {k: row["recall@1"] for k, row in results_of["rows"].items()},
                )
    table, summary = Table("", "", *METRICS), defaultdict(dict)
    for name, of_data in rows.items():
        values = {label: np.array(numbers) for label, numbers in of_data.items()}
        ahead = {f"{label} - raw": values[label] - values["raw"] for label in values if label.endswith(" trained")}
        for label, numbers in (values | ahead).items():
            half = stats.sem(numbers) * stats.t.ppf(0.975, len(numbers) - 1)
            pairs = zip(METRICS, numbers.mean(0), half, strict=True)
            summary[name][label] = {metric: [round(100 * mean, 1), round(100 * h, 1)] for metric, mean, h in pairs}
            table.add_row(name, label, *(f"{mean:.1f} ± {h:.1f}" for mean, h in summary[name][label].values()))
    Console(width=110).print(table)
    result = {"machine": machine(), "seconds": seconds, "seeds": rows, "summary": summary}
    options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
