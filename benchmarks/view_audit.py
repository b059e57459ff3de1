"""Which view of an item is wrong: audits of all pairs of views, on data with planted wrong views.

Six views of UCI's multiple features, once with one view of a fifth of the items shuffled, once with a twentieth of each
view; and pictures and names of emoji in six languages, with a tenth of the names in two languages shuffled (if
`python -m benchmarks.comparing emoji` made the data). Printed and written: AUROC over all views of all items, how often
the wrong view is named, and precision and recall of what is flagged.

With ``--training``, an online audit instead: trainings on UCI's six views, one view of a fifth of the training items
shuffled; `plain`, `audit` (``audit=True``) and `oracle` (the wrong views missing). Measured on clean test items:
recall@1 between the views, the mean over all ordered pairs and over those with the shuffled view, and the accuracy of a
linear probe on the features of all views and on those of the shuffled one.

    python -m benchmarks.view_audit [--seeds 2]
    python -m benchmarks.view_audit --training --seeds 3 --out benchmarks/results/view_audit_training.json
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import contraport
from benchmarks.engine import machine
from contraport.auditing.pairs.paired_features import encode_and_project_views
from contraport.data import Dataset, from_arrays, load
from contraport.embedding import LoaderConfig
from contraport.runs import Run
from contraport.training.components.data_builder import build_views

EMOJI = Path("runs/suites/emoji.npz")
SHUFFLED, SHARE = 2, 0.2
TRAINING_OPTIONS = {"objective": "info-nce", "temperature": 0.2, "projection": 64, "epochs": 18, "batch_size": 200}


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


def measure_trainings(seed: int) -> Iterator[dict[str, object]]:
    """Yield what trainings on UCI's six views reach, one view of a fifth of the items shuffled."""
    data_by_split = {split: load("uci-multiple-features", split) for split in ("train", "test")}
    names, random = data_by_split["train"].view_names, np.random.default_rng(seed)
    arrays = {
        split: dict(zip(names, (view.numpy() for view in one.store.fetch_views(torch.arange(len(one)))), strict=True))
        for split, one in data_by_split.items()
    }
    clean, views = {split: from_arrays(one) for split, one in arrays.items()}, dict(arrays["train"])
    items = len(data_by_split["train"])
    wrong = random.permutation(items)[: round(SHARE * items)]
    views[names[SHUFFLED]] = views[names[SHUFFLED]].copy()
    views[names[SHUFFLED]][wrong] = views[names[SHUFFLED]][np.roll(wrong, 1)]
    is_wrong = np.zeros((items, len(views)), dtype=bool)
    is_wrong[wrong, SHUFFLED] = True
    for method in ("plain", "audit", "oracle"):
        dataset = from_arrays(views, present=~is_wrong if method == "oracle" else None)
        with tempfile.TemporaryDirectory() as folder:
            started = time.process_time()
            run = contraport.train(
                data=dataset,
                out=f"{folder}/run",
                seed=seed,
                audit=method == "audit",
                progress=False,
                **TRAINING_OPTIONS,
            )
            row = {"method": method, "seed": seed, "cpu": time.process_time() - started}
            features, projections = zip(*(encode(run, clean[name]) for name in ("train", "test")), strict=True)
            recalls = recall_by_pair(projections[1])
            row["recall"] = float(np.mean(list(recalls.values())))
            row["recall of shuffled"] = float(np.mean([value for pair, value in recalls.items() if SHUFFLED in pair]))
            for name, chosen in (("probe", slice(None)), ("probe of shuffled", slice(SHUFFLED, SHUFFLED + 1))):
                rows = [np.concatenate(part[chosen], axis=1) for part in features]
                probe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=300)).fit(
                    rows[0], data_by_split["train"].labels.numpy()
                )
                row[name] = float(probe.score(rows[1], data_by_split["test"].labels.numpy()))
            if method == "audit":
                saved = run.view_scores()
                scores, flagged = saved["view_scores"], saved["view_scores"] < 0
                row["auroc"] = float(roc_auc_score(is_wrong.ravel(), -scores.ravel()))
                row["named"] = float((scores[wrong].argmin(axis=1) == SHUFFLED).mean())
                row["precision"], row["found"] = float(is_wrong[flagged].mean()), float(flagged[is_wrong].mean())
                row["rate"] = float(saved["view_rates"][SHUFFLED])
                row["other rates"] = float(np.delete(saved["view_rates"], SHUFFLED).max())
        yield row


def encode(run: Run, dataset: Dataset) -> tuple[list[np.ndarray], list[torch.Tensor]]:
    """Return the features and the projections of each view of a dataset, by the model of a run."""
    views = build_views(run.settings(), dataset)
    features, projections = encode_and_project_views(run.model(), dataset, views, LoaderConfig())
    return [one.numpy() for one in features], list(projections)


def recall_by_pair(projections: list[torch.Tensor]) -> dict[tuple[int, int], float]:
    """Return the recall@1 from each view to each other one."""
    units = [torch.nn.functional.normalize(rows, dim=1) for rows in projections]
    places = torch.arange(len(units[0]))
    return {
        (one, other): float(((units[one] @ units[other].T).argmax(dim=1) == places).float().mean())
        for one in range(len(units))
        for other in range(len(units))
        if one != other
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--training", action="store_true", help="measure trainings with an online audit")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/view_audit.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.training:
        rows = []
        for seed in range(options.seeds):
            for row in measure_trainings(seed):
                rows.append(row)
                print(json.dumps(row), flush=True)
        command = f"python -m benchmarks.view_audit --training --seeds {options.seeds} --out {options.out}"
        options.out.write_text(json.dumps({"command": command, "machine": machine(), "results": rows}, indent=1) + "\n")
        return
    table, results = Table("data", "seed", "AUROC", "view named", "precision", "recall"), []
    for name, inputs, shares in list_cases():
        for seed in range(options.seeds):
            random = np.random.default_rng(seed)
            views = {view: values.copy() for view, values in inputs.items()}
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
