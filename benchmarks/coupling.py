"""Couplings between two sets: which software package depends on which, from the descriptions of both.

Rows and columns are packages of a Debian archive; a pair is a dependency. Descriptions are vectors of tf-idf, reduced
to 128 numbers. A fifth of the pairs and all pairs of a twentieth of the rows are held out. Two-tower encoders are
trained with several objectives; popularity and matrix factorization (implicit's ALS and BPR, if it is installed) are
the baselines, which use no descriptions. Printed and written: link recall, NDCG, coverage and popularity bias at 10.

    apt-get update && python -m benchmarks.coupling [--rows 4000] [--seeds 3] [--epochs 20]
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer

import contraport
from benchmarks.engine import machine
from contraport.data import from_coupling
from contraport.metrics.retrieval import LinkRanking, rank_links

DIMENSIONS = 128
FEWEST = 3
"""Columns with fewer pairs are left out."""
NEW_ROWS, DEFAULT_TEST_FRACTION = 0.05, 0.2

ONE_WAY: dict[str, Any] = {"objective": "info-nce", "objective_settings": {"symmetric": False}}
OBJECTIVES: dict[str, dict[str, Any]] = {
    "InfoNCE, partners as negatives": ONE_WAY | {"target": "pairs"},
    "InfoNCE": ONE_WAY,
    "InfoNCE, log-q": ONE_WAY | {"log_q": True},
    "InfoNCE, both directions": {"objective": "info-nce"},
    "InfoNCE, balanced": {"objective": "info-nce", "constraint": "balanced:iterations=5"},
    "InfoNCE, unbalanced": {"objective": "info-nce", "constraint": "unbalanced:relaxation=0.5"},
}
TEMPERATURES = (0.05, 0.1, 0.2)


def read_packages() -> dict[str, dict[str, Any]]:
    """Return text and dependencies of each package that the package manager lists."""
    listing = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, text=True, check=True).stdout
    packages = {}
    for entry in listing.split("\n\n"):
        fields = dict(re.findall(r"^(\S+?): (.*(?:\n .*)*)", entry, flags=re.M))
        if "Package" in fields and "Description" in fields:
            depends = re.split(r"[,|]", fields.get("Depends", ""))
            text = f"{fields['Package'].replace('-', ' ')} {fields['Description']} {fields.get('Tag', '')}"
            packages[fields["Package"]] = {
                "text": text,
                "depends": {part.split()[0] for part in depends if part.split()},
            }
    return packages


def make_coupling(number: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return vectors of the rows and columns, the pairs, and which of these are held out."""
    packages, random = read_packages(), np.random.default_rng(seed)
    with_depends = sorted(name for name, entry in packages.items() if entry["depends"] & packages.keys())
    rows = sorted(random.choice(with_depends, size=min(number, len(with_depends)), replace=False))
    links = [(row, name) for row in rows for name in sorted(packages[row]["depends"] & packages.keys())]
    counts: dict[str, int] = {}
    for _, name in links:
        counts[name] = counts.get(name, 0) + 1
    columns = sorted(name for name, count in counts.items() if count >= FEWEST)
    place = {name: position for position, name in enumerate(columns)}
    row_place = {name: position for position, name in enumerate(rows)}
    pairs = np.array([(row_place[row], place[name]) for row, name in links if name in place])
    texts = TfidfVectorizer(sublinear_tf=True, min_df=3, max_df=0.2).fit_transform(
        [packages[name]["text"] for name in (*rows, *columns)]
    )
    vectors = TruncatedSVD(DIMENSIONS, random_state=0).fit_transform(texts).astype(np.float32)
    vectors /= vectors.std()
    # Packages with the same words are one: otherwise a test pair could repeat the content of a training pair.
    for side, part in enumerate((vectors[: len(rows)], vectors[len(rows) :])):
        _, first, same = np.unique(part, axis=0, return_index=True, return_inverse=True)
        pairs[:, side] = first[same.ravel()][pairs[:, side]]
    pairs = np.unique(pairs, axis=0)
    new = random.random(len(rows)) < NEW_ROWS
    is_test = (random.random(len(pairs)) < DEFAULT_TEST_FRACTION) | new[pairs[:, 0]]
    return vectors[: len(rows)], vectors[len(rows) :], pairs, is_test


def measure(ranking: LinkRanking) -> dict[str, float]:
    """Return the measures of a ranking at 10."""
    return {
        "recall@10": float(ranking.recall(10).mean()),
        "NDCG@10": float(ranking.ndcg(10).mean()),
        "new rows, recall@10": float(ranking.recall(10)[ranking.is_new_row].mean()),
        "coverage@10": ranking.coverage(10),
        "popularity@10": ranking.popularity_ratio(10),
    }


def rank_scores(scores: np.ndarray, train: np.ndarray, test: np.ndarray) -> dict[str, float]:
    """Return the measures of given scores, (rows, columns)."""
    # A row of the identity picks its scores as cosines; their order within a row is all that counts.
    table = torch.from_numpy(scores.astype(np.float32))
    return measure(
        rank_links(torch.eye(len(table)), table.T, torch.from_numpy(train), torch.from_numpy(test), normalize=False)
    )


def baselines(shape: tuple[int, int], train: np.ndarray, test: np.ndarray, seed: int) -> dict[str, dict[str, float]]:
    """Return the measures of popularity and, if implicit is installed, of matrix factorization."""
    counts = np.bincount(train[:, 1], minlength=shape[1])
    found = {"popularity": rank_scores(np.tile(counts, (shape[0], 1)), train, test)}
    try:
        from implicit.als import AlternatingLeastSquares
        from implicit.bpr import BayesianPersonalizedRanking
    except ImportError:
        return found
    from scipy.sparse import csr_matrix

    matrix = csr_matrix((np.ones(len(train), dtype=np.float32), train.T), shape=shape)
    factors = (32, 64, 128)
    searched: dict[str, tuple[Any, list[dict[str, float]]]] = {
        "implicit ALS": (
            AlternatingLeastSquares,
            [{"factors": f, "regularization": r} for f in factors for r in (0.01, 0.1, 1.0)],
        ),
        "implicit BPR": (
            BayesianPersonalizedRanking,
            [{"factors": f, "learning_rate": r} for f in factors for r in (0.01, 0.05)],
        ),
    }
    for name, (kind, options) in searched.items():
        tried = []
        for option in options:
            model = kind(**option, random_state=seed, num_threads=1)
            model.fit(matrix, show_progress=False)
            tried.append(rank_scores(model.user_factors @ model.item_factors.T, train, test))
        found[name] = max(tried, key=lambda one: one["recall@10"])  # chosen on the test pairs, in its favour
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/coupling.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, list[dict[str, float]]] = {}
    sizes: dict[str, int] = {}
    for seed in range(options.seeds):
        rows, columns, pairs, is_test = make_coupling(options.rows, seed)
        parts = {
            split: from_coupling(rows, columns, pairs, split=split, is_test=is_test, name="packages")
            for split in ("train", "test")
        }
        train, test = (part.entity_ids.numpy() for part in parts.values())
        sizes = {"rows": len(rows), "columns": len(columns), "training pairs": len(train), "test pairs": len(test)}
        for name, found in baselines((len(rows), len(columns)), train, test, seed).items():
            results.setdefault(name, []).append(found)
        for name, objective in track(OBJECTIVES.items(), description=f"seed {seed}"):
            for temperature in TEMPERATURES:
                with tempfile.TemporaryDirectory() as folder:
                    run = contraport.train(
                        data=parts["train"], temperature=temperature, epochs=options.epochs, batch_size=512,
                        seed=seed, out=f"{folder}/run", device="cpu", threads=1, progress=False, projection=64,
                        projection_layers=1, **objective,
                    )  # fmt: skip
                    found = contraport.evaluate(
                        run.path, data=(parts["train"], parts["test"]), metrics=["links"], alone=True, progress=False
                    )["rows"]["trained"]
                results.setdefault(f"{name}, temperature {temperature}", []).append(
                    {
                        "recall@10": found["link_recall@10"],
                        "NDCG@10": found["link_ndcg@10"],
                        "new rows, recall@10": found["new_row_recall@10"],
                        "coverage@10": found["link_coverage@10"],
                        "popularity@10": found["link_popularity@10"],
                    }
                )
    table = Table("method", *next(iter(results.values()))[0])
    for name, by_seed in results.items():
        columns = [[one[key] for one in by_seed] for key in by_seed[0]]
        spreads = [statistics.stdev(values) if len(values) > 1 else 0.0 for values in columns]
        cells = [f"{statistics.mean(values):.3f} ± {one:.3f}" for values, one in zip(columns, spreads, strict=True)]
        table.add_row(name, *cells)
    Console(width=160).print(table)
    command = f"python -m benchmarks.coupling --rows {options.rows} --seeds {options.seeds} --epochs {options.epochs}"
    options.out.write_text(
        json.dumps({"command": command, "machine": machine(), "sizes": sizes, "results": results}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
