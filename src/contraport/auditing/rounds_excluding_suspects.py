"""Audit in rounds, each without the pairs suspected in the previous round.

A cross-fitted encoder scores only pairs that it was not trained on, so it has not memorized them. Frozen vectors are
scored without training.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from contraport._utils.files import read_npz_arrays, write_npz
from contraport.auditing.pairs.noise_rate import NoiseRate, estimate_noise_rate
from contraport.auditing.pairs.pair_scoring import score_pairs
from contraport.auditing.pairs.paired_features import (
    MIN_PAIRS,
    NUM_NEIGHBORS,
    PairedFeatures,
    PairIndices,
    encode_pairs,
    has_only_vector_views,
    load_vector_pairs,
)
from contraport.auditing.pairs.synthetic_mismatches import (
    draw_groups_of_exchanging_sets,
    draw_mismatches_item_by_item,
    exchange_partners_across_sets,
)
from contraport.data import BatchOrder, Dataset, build_loader
from contraport.embedding import LoaderConfig
from contraport.errors import UsageError, check, one_line_reason, translate_write_errors
from contraport.seeding import derive_torch_seed, fork_rng_locked_at_ends, numpy_generator
from contraport.training.callbacks.finite_guard import FiniteGuard
from contraport.training.components.step_builder import build_objective, build_training_module
from contraport.training.config import Settings
from contraport.training.optimization import build_loop


class RoundResult(NamedTuple):
    """Scores of `n` pairs and the noise rate after an audit round.

    Attributes:
        scores: scores of the pairs, ``(n,)``; of a cross-fit, averaged over the rounds so far.
        known_mismatch_scores: scores of known mismatches, at most one per pair, ``(m,)``, averaged likewise.
        last_computed_features: features of all pairs; of a cross-fit, those by the latest encoder, or None if all
            scores were stored before the audit was resumed.
    """

    scores: NDArray[np.float32]
    known_mismatch_scores: NDArray[np.float32]
    noise_rate: NoiseRate
    last_computed_features: PairedFeatures | None

    def get_trusted_pair_indices(self, names_for_error: Sequence[str]) -> Tensor:
        """Return the sorted indices of the pairs that are not suspected mismatches."""
        items, suspects = len(self.scores), round(self.noise_rate.rate * len(self.scores))
        check(
            items - suspects >= NUM_NEIGHBORS + 2,
            f"data: {suspects} of {items} pairs of {' and '.join(names_for_error)} look wrong, which leaves too few to "
            "score others by. The two views may not share enough information; with three or more views, select "
            "others by given_views.",
            "too_few_trusted",
        )
        return torch.from_numpy(np.sort(np.argsort(self.scores, kind="stable")[suspects:]))


def score_frozen_rounds(dataset: Dataset, *, statistic: str, rounds: int, seed: int) -> Iterator[RoundResult]:
    """Audit fixed vectors in rounds, without training, and yield each round's result.

    Only pairs that the round before did not suspect count as neighbors.
    """
    shapes = f"the views of {dataset.name!r} have shapes {dataset.shapes}"
    check(has_only_vector_views(dataset), f"method: frozen needs views that are vectors, and {shapes}.", "not_vectors")
    items, mismatches = torch.arange(len(dataset)), draw_mismatches_item_by_item(dataset, seed=seed)
    message = (
        f"data: {dataset.name!r} must have at least {MIN_PAIRS} items for which a wrong partner is found, got "
        f"{len(mismatches.first)}: nearly all combinations of its contents occur as pairs."
    )
    check(len(mismatches.first) >= MIN_PAIRS, message, "too_few_mismatches")
    everything = PairIndices(*(torch.cat([items, drawn]) for drawn in mismatches))
    paired, result = load_vector_pairs(dataset), None
    for _ in range(rounds):
        paired = (
            paired if result is None else paired.with_neighbor_pool(result.get_trusted_pair_indices(dataset.view_names))
        )
        scores, mismatch_scores = np.split(score_pairs(paired, everything, statistic).numpy(), [len(items)])
        result = RoundResult(scores, mismatch_scores, estimate_noise_rate(scores, mismatch_scores), paired)
        yield result


class CrossFitPairAndMismatchScores:
    """Scores of pairs and deliberate mismatches in finished folds, saved for resuming.

    Args:
        path: the file; None: nothing is saved.
        num_rounds: number of rounds.
        num_repeats: number of repeats of each round.
        num_pairs: number of pairs, `n`.

    Attributes:
        scores_by_round: scores of pairs and of their mismatches, float32 ``(rounds, repeats, 2, n)``; NaN in unfinished
            folds.

    Raises:
        UsageError: the file is damaged.
    """

    def __init__(self, path: Path | None, *, num_rounds: int, num_repeats: int, num_pairs: int) -> None:
        self._path = path
        self.scores_by_round = np.full((num_rounds, num_repeats, 2, num_pairs), np.nan, dtype=np.float32)
        if path is None or not path.exists():
            return
        try:
            saved = read_npz_arrays(path)["scores"].astype(np.float32)
            self.scores_by_round = saved.reshape(self.scores_by_round.shape)
        except Exception as error:  # parsers raise errors of any class on damaged files
            message = f"resume: {path} is corrupt: {one_line_reason(error)}; delete it to score all pairs again."
            raise UsageError(message, kind="corrupt") from error

    def are_all_pairs_scored(self, round_repeat: tuple[int, int], pairs: Tensor) -> bool:
        """Return whether all `pairs` have scores from a round of cross-fitting."""
        return bool(np.isfinite(self.scores_by_round[round_repeat][:, pairs.numpy()]).all())

    def save_fold_scores(
        self, round_repeat: tuple[int, int], pairs: Tensor, scores: Tensor, mismatch_scores: Tensor
    ) -> None:
        """Save a fold's scores of ``m`` pairs and ``m`` deliberate mismatches."""
        self.scores_by_round[round_repeat][:, pairs.numpy()] = torch.stack([scores, mismatch_scores]).numpy()
        if self._path is not None:
            with translate_write_errors("out", self._path):
                write_npz(self._path, {"scores": self.scores_by_round})


def train_crossfit_rounds(
    dataset: Dataset, settings: Settings, resumable_scores: CrossFitPairAndMismatchScores, *, statistic: str, folds: int
) -> Iterator[RoundResult]:
    """Audit by cross-fitting in rounds; yield each pair's mean score after each round.

    A round deals the pairs into folds and scores each by an encoder that is trained on the others, without the suspects
    of the rounds before. Pairs that exchange partners to make mismatches are always in the same fold, so that pairs and
    mismatches are scored alike. Each repeat and round draws new initial weights.
    """
    rounds, repeats = resumable_scores.scores_by_round.shape[:2]
    groups = draw_groups_of_exchanging_sets(dataset, seed=settings.seed)
    contents = sum(map(len, groups))
    message = (
        f"method: crossfit requires at least {MIN_PAIRS} different contents, got {contents} in {len(dataset):,} pairs. "
        "Pairs that share a content are held out together, so encoders would score contents that they have not seen; "
        "use the method online."
    )
    check(contents >= MIN_PAIRS, message, "too_few_contents")
    message = (
        f"folds: must be at most {len(groups)}, half of the {contents} different contents of {len(dataset):,} pairs, "
        f"got {folds}."
    )
    check(folds <= len(groups), message, "too_many")
    partners = exchange_partners_across_sets(groups)
    trusted, paired, result = torch.arange(len(dataset)), None, None
    for number in range(rounds):
        trusted = trusted if result is None else result.get_trusted_pair_indices(dataset.view_names)
        for repeat in range(repeats):
            place, run = (number, repeat), number * repeats + repeat
            run_settings = settings.replace_unchecked(seed=derive_torch_seed("audit.crossfit", settings.seed, run))
            order = numpy_generator("audit.folds", settings.seed, run).permutation(len(groups))
            for fold in range(folds):
                part = torch.cat([items for group in order[fold::folds] for items in groups[group]])
                is_last = run == rounds * repeats - 1 and fold == folds - 1  # its encoder proposes partners
                if resumable_scores.are_all_pairs_scored(place, part) and not is_last:
                    continue
                paired = _train_and_encode_all_pairs(dataset, run_settings, trusted[~torch.isin(trusted, part)])
                scores = score_pairs(paired, PairIndices(part, part), statistic)
                mismatch_scores = score_pairs(paired, PairIndices(part, partners[part]), statistic)
                resumable_scores.save_fold_scores(place, part, scores, mismatch_scores)
        scores, mismatch_scores = resumable_scores.scores_by_round[: number + 1].mean(axis=(0, 1))
        result = RoundResult(scores, mismatch_scores, estimate_noise_rate(scores, mismatch_scores), paired)
        yield result


def _train_and_encode_all_pairs(dataset: Dataset, settings: Settings, training_indices: Tensor) -> PairedFeatures:
    """Return features of all pairs from an encoder trained on some pairs only."""
    fewest = max(settings.batch_size, NUM_NEIGHBORS + 2)
    check(
        len(training_indices) >= fewest,
        f"folds: must leave at least {fewest} pairs to train on with batches of {settings.batch_size}, got "
        f"{len(training_indices)}. Use more folds or a smaller batch_size.",
        "too_few_pairs",
    )
    batches = build_loader(
        dataset, settings.batch_size, shuffle=True, seed=settings.seed, num_workers=settings.num_workers, drop_last=True
    )
    cast(BatchOrder, batches.batch_sampler).fill_epochs_by_repeating(training_indices.numpy())
    pipeline = build_training_module(settings, dataset, build_objective(settings), steps_per_epoch=len(batches))
    device = torch.device(settings.device)
    pipeline.to(device)
    loop = build_loop(settings, pipeline, batches, device, [FiniteGuard()], steps_per_epoch=len(batches))
    with fork_rng_locked_at_ends(range(torch.cuda.device_count())):
        loop.run()
    loader_config = LoaderConfig(num_workers=settings.num_workers)
    return encode_pairs(pipeline.model, dataset, pipeline.views, loader_config, neighbor_pool=training_indices)
