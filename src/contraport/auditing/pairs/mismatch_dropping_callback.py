"""Online audit that drops suspected mismatches between the epochs of a training run.

Networks memorize wrong pairs, the more the longer they are trained on them. So the pairs are first scored after one
epoch, before any is seen twice, and dropped pairs are not memorized further. Neighbors are only looked up among the
pairs that are trained on. A pair's score is its mean over all scorings: early ones are less affected by memorization,
late ones by an untrained network.

The share of wrong pairs is estimated with decoys (`contraport.auditing.pairs.synthetic_mismatches`), which are trained
on and dropped like all other pairs. For a third of the training they replace the items that they are made of; then
these items take part.

Where the views are vectors, the vectors themselves are scored too: they memorize nothing, and hold what the encoders
have not learned yet, or never will.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from contraport._utils.formatting import format_percent
from contraport.auditing.pairs.canonical_maps import find_width_reduction_note
from contraport.auditing.pairs.noise_rate import (
    area_under_roc_curve,
    estimate_noise_rate,
    estimate_pair_fdrs,
    is_rate_reliable,
)
from contraport.auditing.pairs.pair_scoring import score_pairs
from contraport.auditing.pairs.paired_features import (
    MAX_WIDTH_TO_SCORE_INPUT_VECTORS,
    NUM_NEIGHBORS,
    PairedFeatures,
    PairIndices,
    encode_pairs,
    has_only_vector_views,
    load_vector_pairs,
)
from contraport.auditing.pairs.partner_proposals import (
    lowest_scoring_indices,
    propose_partners,
    second_view_content_ids_if_repeated,
)
from contraport.auditing.pairs.synthetic_mismatches import DatasetWithDecoysPastEnd
from contraport.data import BatchOrder
from contraport.data.mismatches_and_corruptions import assign_wrong_partners
from contraport.distributed import broadcast_object, is_main_process, stop_all_on_error
from contraport.embedding import LoaderConfig
from contraport.runs import WritableRun
from contraport.seeding import numpy_generator
from contraport.training.loop import Callback, Loop

if TYPE_CHECKING:
    from contraport.auditing.pairs.view_audit_callback import ViewAuditState
    from contraport.training.step.training_module import TrainingModule

log = logging.getLogger("contraport.training")

MAX_DROPPED_SHARE = 2 / 3
"""Maximum share of the pairs that is dropped: uninformative scores would otherwise drop all of them."""

MEMORIZATION_AUC_THRESHOLD = 0.75
"""Scores count as memorized if decoys that were trained on score above fresh ones more often than this."""

SAVED_FIELD_NAMES = ("epoch", "number", "scores", "mismatched", "rate", "low", "high", "remembered", "drawn")
"""Names of the fields of `PairAuditState`, in their order, in checkpoints and run folders."""


class PairAuditState(NamedTuple):
    """Scores, noise rate and selected pairs of an online audit so far.

    Attributes:
        trained_epochs: number of epochs trained before the scoring.
        mean_scores: score of each pair, averaged over all scorings, ``(n,)``.
        mean_decoy_scores: score of each decoy, averaged over all scorings, ``(d,)``.
        noise_rate: estimated share of wrong pairs, from the last scoring with decoys in training.
        noise_rate_low: lower end of the 95% interval of the noise rate.
        noise_rate_high: upper end of the 95% interval of the noise rate.
        memorization_auc: AUC of decoys that were trained on against fresh decoys; 0.5 without memorization.
        training_positions: positions of the pairs to train on next; positions from `n` on are decoys.
    """

    trained_epochs: int
    num_scorings: int
    mean_scores: Tensor
    mean_decoy_scores: Tensor
    noise_rate: float
    noise_rate_low: float
    noise_rate_high: float
    memorization_auc: float
    training_positions: Tensor


AuditStateT = TypeVar("AuditStateT", bound="PairAuditState | ViewAuditState")
"""Type of the state of an online audit: of pairs or of views."""


class MismatchDroppingCallback(Callback, ABC, Generic[AuditStateT]):
    """Base class of callbacks that drop suspected mismatches between epochs.

    Attributes:
        last_state: state after the most recent scoring; None before the first.
        run_folder: run folder to write the scores to; None: they are not written.
    """

    def __init__(
        self,
        dataset: DatasetWithDecoysPastEnd,
        pipeline: TrainingModule,
        order: BatchOrder,
        *,
        epochs: int,
        loader_config: LoaderConfig | None = None,
    ) -> None:
        self.last_state: AuditStateT | None = None
        self.run_folder: WritableRun | None = None
        self._dataset = dataset
        self._pipeline = pipeline
        self._order = order
        self._epochs = epochs
        self._loader_config = loader_config or LoaderConfig()
        # Five scorings, most of them early: scores change most there, and a pair that is dropped is not memorized.
        self._scoring_epochs = {round(epochs ** (step / 4)) for step in range(5)}
        self._decoy_epochs = max(1, epochs // 3)
        items = torch.arange(len(dataset))
        self._items_without_decoy = items[~torch.isin(items, dataset.decoy_pairs.first)]
        self._initial_positions = torch.cat(
            [self._items_without_decoy, len(dataset) + torch.arange(len(dataset.decoy_pairs.first))]
        )
        self._apply_selection()

    def after_epoch(self, loop: Loop) -> None:
        """Score the pairs if due, then log and save the scores.

        Checkpoints are written afterwards, and contain the new state.
        """
        is_due = self.score_and_select_if_due(loop.completed_epochs)
        if not is_due or self.run_folder is None:
            return
        state, is_last = self.last_state, loop.completed_epochs == loop.epochs
        assert state is not None
        with stop_all_on_error():
            if is_main_process():
                self.save_scores(self.run_folder)
        description = self.describe_noise_and_kept_data()
        (log.info if is_last else log.debug)("audit at epoch %d: %s", state.trained_epochs, description)
        if is_last and state.memorization_auc > MEMORIZATION_AUC_THRESHOLD:
            log.warning(format_memorization_warning(state.memorization_auc))

    def score_and_select_if_due(self, epoch: int) -> bool:
        """Score and select pairs if scoring is due after `epoch` epochs; return whether it was.

        Training then continues on the items that the scores select.
        """
        if epoch not in self._scoring_epochs:
            return False
        state: AuditStateT | None = None
        with stop_all_on_error():  # ends before the broadcast, for which the others would wait if the first one failed
            # Processes could differ in the last bits and then draw different pairs, so only the first one scores.
            if is_main_process():
                state = self._compute_audit_state(epoch)
        self.last_state = broadcast_object(state)
        self._apply_selection()
        return True

    @abstractmethod
    def save_scores(self, run: WritableRun) -> None:
        """Write the latest scores to a run folder."""

    @abstractmethod
    def describe_noise_and_kept_data(self) -> str:
        """Describe the share of mismatches and the data left to train on."""

    @abstractmethod
    def _compute_audit_state(self, epoch: int) -> AuditStateT:
        """Score the data after `epoch` epochs, and return the new audit state."""

    @property
    def _all_source_rows_and_keys(self) -> dict[str, np.ndarray]:
        """Named arrays of all items' row numbers in the source, and of their keys if present."""
        keys = self._dataset.keys
        return {"rows": self._dataset.source_rows.numpy()} | (
            {} if keys is None else {"keys": np.array(keys, dtype=np.str_)}
        )

    def _apply_selection(self) -> None:
        """Restrict training to the items that the latest scores select."""
        state = self.last_state
        self._positions = self._initial_positions if state is None else state.training_positions
        self._order.fill_epochs_by_repeating(self._positions.numpy())

    def _draw_fresh_wrong_partners_of_decoys(self, purpose: str) -> Tensor:
        """Draw a wrong partner for each decoy, ``(d,)``, other than the one it is trained with.

        It is the item itself where there is no other.
        """
        decoys = self._dataset.decoy_pairs
        random = numpy_generator(purpose, len(decoys.first))
        return assign_wrong_partners(decoys.first, self._dataset.view_content_ids_if_repeated, random, shift=2)


class AuditCallback(MismatchDroppingCallback[PairAuditState]):
    """Training callback that scores pairs between epochs and drops suspected mismatches."""

    _last_features: PairedFeatures | None = None
    """Features of the scoring after the last epoch, until better partners are found by them; None otherwise."""

    def save_scores(self, run: WritableRun) -> None:
        run.save_arrays(run.pairs_path, self.build_result_arrays())

    def describe_noise_and_kept_data(self) -> str:
        state = self.last_state
        assert state is not None
        rate, low, high = map(format_percent, (state.noise_rate, state.noise_rate_low, state.noise_rate_high))
        wrong = f"{rate} of the pairs look wrong (95% interval {low} to {high})"
        if not is_rate_reliable(state.mean_scores.numpy(), state.mean_decoy_scores.numpy(), state.noise_rate_low):
            wrong = "the views share too little to estimate how many pairs are wrong"
        return f"{wrong}; {len(state.training_positions)} of {len(state.mean_scores)} kept"

    def encode_all_pairs(self) -> PairedFeatures:
        """Return the features of all pairs, with neighbors only among training pairs."""
        pool = self._positions[self._positions < len(self._dataset)]
        return encode_pairs(
            self._pipeline.model, self._dataset, self._pipeline.views, self._loader_config, neighbor_pool=pool
        )

    @cached_property
    def _input_vector_features(self) -> PairedFeatures:
        """Input vectors of both views of all items, loaded once."""
        return load_vector_pairs(self._dataset)

    def state(self) -> dict[str, Any]:
        return {} if self.last_state is None else dict(zip(SAVED_FIELD_NAMES, self.last_state, strict=True))

    def restore(self, state: dict[str, Any]) -> None:
        self.last_state = PairAuditState(*(state[name] for name in SAVED_FIELD_NAMES)) if state else None
        self._apply_selection()

    def build_result_arrays(self) -> dict[str, np.ndarray]:
        """Return the latest audit's arrays for the run folder, by name.

        Better partners are only searched for at the end of the training.
        """
        state = self.last_state
        assert state is not None
        arrays = {name: np.asarray(value) for name, value in self.state().items() if name not in ("number", "drawn")}
        arrays["fdr"] = estimate_pair_fdrs(state.mean_scores.numpy(), state.mean_decoy_scores.numpy(), state.noise_rate)
        arrays["kept"] = np.isin(np.arange(len(state.mean_scores)), state.training_positions.numpy())
        arrays |= self._all_source_rows_and_keys
        if state.trained_epochs == self._epochs:
            # The features of the last scoring, with its neighbors and maps; None after a restart.
            scored, self._last_features = self._last_features, None
            proposals = propose_partners(
                self.encode_all_pairs() if scored is None else scored,
                lowest_scoring_indices(state.mean_scores, state.noise_rate),
                second_view_content_ids=second_view_content_ids_if_repeated(self._dataset),
            )
            arrays["partners"] = proposals.partners_or_minus_one.numpy()
            arrays["partner_scores"] = proposals.best_scores.numpy()
            arrays["partner_confidences"] = proposals.confidences.numpy()
        return arrays

    def _compute_audit_state(self, epoch: int) -> PairAuditState:
        last = self.last_state
        scores, decoy_scores, fresh_scores = self._score_pairs_decoys_fresh_decoys()
        if epoch < self._epochs:  # they are used once more, for better partners after the last epoch
            self._last_features = None
        trained_scores, number = decoy_scores, 1
        if last is not None:
            number += last.num_scorings
            scores = torch.lerp(last.mean_scores, scores, 1 / number)
            decoy_scores = torch.lerp(last.mean_decoy_scores, decoy_scores, 1 / number)
        if last is None or last.trained_epochs < self._decoy_epochs:
            # Sources of decoys are not trained on yet, so their scores do not count.
            rate, (low, high) = estimate_noise_rate(scores[self._items_without_decoy].numpy(), decoy_scores.numpy())
            memorized = area_under_roc_curve(trained_scores.numpy(), fresh_scores.numpy())
        else:
            rate, low, high = last.noise_rate, last.noise_rate_low, last.noise_rate_high
            memorized = last.memorization_auc
        # Positions to train on next: those of the lowest scores are left out.
        items, trains_on_decoys = len(self._dataset), epoch < self._decoy_epochs
        positions = self._items_without_decoy if trains_on_decoys else torch.arange(items)
        values = scores[positions]
        threshold = values.sort().values[round(min(rate, MAX_DROPPED_SHARE) * (len(values) - 1))]
        if trains_on_decoys:  # they stay if they score like pairs that stay
            positions = torch.cat([positions, items + torch.arange(len(decoy_scores))])
            values = torch.cat([values, decoy_scores])
        num_kept = max(int((values >= threshold).sum()), self._order.batch_size, NUM_NEIGHBORS + 2)
        positions = positions[values.argsort(descending=True, stable=True)[:num_kept]].sort().values
        return PairAuditState(epoch, number, scores, decoy_scores, rate, low, high, memorized, positions)

    def _score_pairs_decoys_fresh_decoys(self) -> tuple[Tensor, Tensor, Tensor]:
        """Score the pairs, the mismatches added to training, and mismatches never trained on."""
        paired, decoys = self.encode_all_pairs(), self._dataset.decoy_pairs
        self._last_features = paired
        if self.last_state is None and (projection := find_width_reduction_note(paired.features)):
            log.info("Audit: %s.", projection)
        partners = self._draw_fresh_wrong_partners_of_decoys("audit.fresh_mismatches")
        differ = partners != decoys.first
        fresh = PairIndices(decoys.first[differ], partners[differ])
        pairs = PairIndices(*map(torch.cat, zip(paired.observed_pair_indices, decoys, fresh, strict=True)))
        sources = [paired]
        if has_only_vector_views(self._dataset, max_width=MAX_WIDTH_TO_SCORE_INPUT_VECTORS):
            sources.append(self._input_vector_features.with_neighbor_pool(paired.neighbor_pool_items))
        total = torch.stack([score_pairs(source, pairs, "combined") for source in sources]).sum(dim=0)
        scores, decoy_scores, fresh_scores = total.tensor_split([len(paired), len(paired) + len(decoys.first)])
        return scores, decoy_scores, fresh_scores


def max_audited_batch_size(num_items: int) -> int:
    """Return the largest batch size for an online audit of `num_items` pairs.

    Even if most pairs are dropped, at least one batch of this size is left.

    >>> max_audited_batch_size(60), max_audited_batch_size(600)
    (17, 150)
    """
    return max(NUM_NEIGHBORS + 2, num_items // 4)


def format_memorization_warning(memorization_auc: float) -> str:
    """Format the warning that the scores seem to come from memorized pairs."""
    return (
        f"The network seems to have memorized wrong pairs: known mismatches that it was trained on score above fresh "
        f"ones in {memorization_auc:.0%} of cases (50% without memorization). Fewer epochs, a higher temperature or "
        "method=crossfit help."
    )
