"""Audit callback: noise rate, memorization, and the pairs selected for training, with stubbed scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from contraport.auditing.pairs import mismatch_dropping_callback as module
from contraport.auditing.pairs.mismatch_dropping_callback import AuditCallback
from contraport.auditing.pairs.noise_rate import estimate_noise_rate
from contraport.auditing.pairs.paired_features import PairedFeatures, PairIndices
from contraport.auditing.pairs.synthetic_mismatches import add_decoys
from contraport.data import BatchOrder, from_arrays
from contraport.embedding import LoaderConfig

ITEMS, WRONG, EPOCHS = 400, 100, 12
RANDOM = np.random.default_rng(0)


class AuditCallbackWithStubScores(AuditCallback):
    """Audit callback with prepared scores of pairs, of decoys, and of mismatches that were not trained on."""

    scorings: list[tuple[Tensor, Tensor, Tensor]]

    def _score_pairs_decoys_fresh_decoys(self) -> tuple[Tensor, ...]:
        return self.scorings.pop(0)


@pytest.fixture
def audit() -> AuditCallbackWithStubScores:
    views = RANDOM.normal(size=(2, ITEMS, 20))
    dataset = add_decoys(from_arrays(tuple(views)), seed=0)
    order = BatchOrder(ITEMS, batch_size=50, shuffle=True, seed=0, drop_last=True)
    pipeline: Any = None  # unused, since the scores are stubs
    return AuditCallbackWithStubScores(dataset, pipeline, order, epochs=EPOCHS, loader_config=LoaderConfig())


def draw_scores(audit: AuditCallbackWithStubScores, source_shift: float = 0.0) -> tuple[Tensor, Tensor, Tensor]:
    """Draw scores where the first items score like decoys, and the source items of decoys are shifted."""
    number = len(audit._dataset.decoy_pairs.first)
    scores = torch.from_numpy(RANDOM.normal(5, 1, ITEMS))
    scores[:WRONG] -= 5
    scores[audit._dataset.decoy_pairs.first] += source_shift
    mismatched, fresh = (torch.from_numpy(RANDOM.normal(0, 1, number)) for _ in range(2))
    return scores, mismatched, fresh


def decoy_sources(audit: AuditCallbackWithStubScores) -> set[int]:
    return set(audit._dataset.decoy_pairs.first.tolist())


def selected_positions(audit: AuditCallbackWithStubScores) -> set[int]:
    return set(audit._positions.tolist())


def test_decoys_replace_their_source_items(audit: AuditCallbackWithStubScores) -> None:
    decoys = set(range(ITEMS, ITEMS + len(decoy_sources(audit))))
    assert selected_positions(audit) == set(range(ITEMS)) - decoy_sources(audit) | decoys


def test_noise_rate_ignores_items_that_were_not_trained_on(audit: AuditCallbackWithStubScores) -> None:
    """The source items of decoys were not trained on, so their scores must not affect the estimate."""
    for source_shift in (0.0, -50.0):
        scores, mismatched, fresh = draw_scores(audit, source_shift)
        audit.last_state, audit.scorings = None, [(scores, mismatched, fresh)]
        assert audit.score_and_select_if_due(1)
        own = [item for item in range(ITEMS) if item not in decoy_sources(audit)]
        rate, (low, high) = estimate_noise_rate(scores[own].numpy(), mismatched.numpy())
        assert audit.last_state is not None
        assert (audit.last_state.noise_rate, audit.last_state.noise_rate_low, audit.last_state.noise_rate_high) == (
            rate,
            low,
            high,
        )
        assert rate == pytest.approx(WRONG / ITEMS, abs=0.08)


def test_detects_memorized_decoys(audit: AuditCallbackWithStubScores) -> None:
    scores, mismatched, fresh = draw_scores(audit)
    audit.scorings = [(scores, mismatched, fresh - 100)]
    audit.score_and_select_if_due(1)
    assert audit.last_state is not None
    assert audit.last_state.memorization_auc == 1


def test_decoys_stay_if_they_score_like_trusted_pairs(audit: AuditCallbackWithStubScores) -> None:
    scores, mismatched, fresh = draw_scores(audit)
    mismatched[::2] += 9
    audit.scorings = [(scores, mismatched, fresh)]
    audit.score_and_select_if_due(1)
    assert audit.last_state is not None
    own = ITEMS - len(decoy_sources(audit))
    assert sum(item < ITEMS for item in selected_positions(audit)) == own - round(
        audit.last_state.noise_rate * (own - 1)
    )
    lowest = min(float(scores[item]) for item in selected_positions(audit) if item < ITEMS)
    kept = {ITEMS + place for place, score in enumerate(mismatched.tolist()) if score >= lowest}
    assert selected_positions(audit) >= kept
    assert not selected_positions(audit) & ({*range(ITEMS, ITEMS + len(mismatched))} - kept | decoy_sources(audit))
    assert not selected_positions(audit) & {item for item in range(WRONG) if scores[item] < 2}


def test_decoys_are_replaced_by_their_items_after_a_third(audit: AuditCallbackWithStubScores) -> None:
    audit.scorings = [draw_scores(audit) for _ in range(4)]
    for _, mismatched, _ in audit.scorings:
        mismatched[::2] += 9  # these decoys score like pairs
    for epoch in (1, 2, 3):
        assert audit.score_and_select_if_due(epoch)
        assert max(selected_positions(audit)) >= ITEMS
    assert audit.score_and_select_if_due(6)
    assert max(selected_positions(audit)) < ITEMS
    right = {item for item in decoy_sources(audit) if item >= WRONG}
    assert len(selected_positions(audit) & right) > len(right) / 2


def test_noise_rate_is_fixed_once_decoys_are_removed(audit: AuditCallbackWithStubScores) -> None:
    audit.scorings = [draw_scores(audit) for _ in range(5)]
    for epoch in (1, 2, 3, 6):
        audit.score_and_select_if_due(epoch)
    before = audit.last_state
    scores, mismatched, fresh = audit.scorings.pop()
    audit.scorings = [(scores, mismatched + 100, fresh)]  # decoys that are no longer trained on may score higher
    audit.score_and_select_if_due(12)
    assert before is not None
    assert audit.last_state is not None
    assert (audit.last_state.num_scorings, audit.last_state.noise_rate, audit.last_state.memorization_auc) == (
        5,
        before.noise_rate,
        before.memorization_auc,
    )


def test_scores_are_means_over_all_scorings(audit: AuditCallbackWithStubScores) -> None:
    scorings = [draw_scores(audit) for _ in range(3)]
    audit.scorings = list(scorings)
    for epoch in (1, 2, 3):
        audit.score_and_select_if_due(epoch)
    assert audit.last_state is not None
    torch.testing.assert_close(audit.last_state.mean_scores, torch.stack([scoring[0] for scoring in scorings]).mean(0))
    torch.testing.assert_close(
        audit.last_state.mean_decoy_scores, torch.stack([scoring[1] for scoring in scorings]).mean(0)
    )


def test_fresh_mismatches_were_not_trained_on(
    audit: AuditCallbackWithStubScores, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored: list[PairIndices] = []

    def record_pairs(sides: PairedFeatures, pairs: PairIndices, statistic: str) -> Tensor:
        scored.append(pairs)
        return torch.from_numpy(RANDOM.normal(size=len(pairs.first)))

    features = torch.from_numpy(RANDOM.normal(size=(ITEMS, 8)))
    monkeypatch.setattr(module, "score_pairs", record_pairs)
    monkeypatch.setattr(audit, "encode_all_pairs", lambda: PairedFeatures((features, features)))
    result = AuditCallback._score_pairs_decoys_fresh_decoys(audit)
    number = len(decoy_sources(audit))
    assert [len(part) for part in result] == [ITEMS, number, number]
    first, second = (part.tolist() for part in scored[0])
    pairs = list(zip(first, second, strict=True))
    assert pairs[:ITEMS] == [(item, item) for item in range(ITEMS)]
    assert pairs[ITEMS:-number] == list(zip(*(side.tolist() for side in audit._dataset.decoy_pairs), strict=True))
    assert not set(pairs[-number:]) & set(pairs[:-number])
    assert set(first[-number:]) == set(second[-number:]) == decoy_sources(audit)
