"""Maps by t-SNE: time and trustworthiness beside scikit-learn's, from random starts.

The 1,797 digits with each seed and 10,000 images of Fashion-MNIST with the first, by pixels, on one thread. Times are
processor times. Printed and written: a row for each program, data and seed.

    python -m benchmarks.maps [--seeds 3]
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from sklearn import manifold
from sklearn.datasets import load_digits

from benchmarks.engine import machine
from contraport.data import load
from contraport.estimators import TSNE
from contraport.metrics.embedding_geometry import trustworthiness

LARGE = 10_000


def measure(name: str, rows: np.ndarray, seed: int) -> list[dict[str, Any]]:
    """Fit both programs from a random start, and return their time and trustworthiness."""
    programs = {
        "contraport": TSNE(method="interpolated", init="random", random_state=seed),
        "scikit-learn": manifold.TSNE(init="random", random_state=seed, n_jobs=1),
    }
    results = []
    for program, estimator in programs.items():
        begin = time.process_time()
        points = estimator.fit_transform(rows)
        seconds = time.process_time() - begin
        trust = trustworthiness(torch.from_numpy(rows), torch.from_numpy(points))
        results.append(
            {
                "data": name,
                "program": program,
                "seed": seed,
                "seconds": round(seconds, 1),
                "trustworthiness": round(trust, 4),
                "kl_divergence": round(float(estimator.kl_divergence_), 3),
            }
        )
        print(results[-1], flush=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/maps.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    digits = (load_digits().data / 16).astype(np.float32)
    fashion = load("fashion-mnist")
    images = fashion.__getitems__(list(range(LARGE))).views[0].flatten(1).float().numpy() / 255
    results = [one for seed in range(options.seeds) for one in measure("digits", digits, seed)]
    results += measure("Fashion-MNIST", images, 0)
    table = Table(*results[0])
    for one in results:
        table.add_row(*map(str, one.values()))
    Console(width=120).print(table)
    command = f"python -m benchmarks.maps --seeds {options.seeds}"
    options.out.write_text(json.dumps({"command": command, "machine": machine(), "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
