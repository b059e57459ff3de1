"""Pair filter of an online audit: noise rate, memorization, and the pairs drawn next, for given scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from contraport.auditing.pairs import audit_callback as module
from contraport.auditing.pairs.audit_callback import AuditCallback
from contraport.auditing.pairs.noise_rate import estimate_noise_rate
from contraport.auditing.pairs.paired_features import PairedFeatures, PairIndices
from contraport.auditing.pairs.synthetic_mismatches import add_decoys
from contraport.data import BatchOrder, from_arrays
from contraport.embedding import LoaderConfig

ITEMS, WRONG, EPOCHS = 400, 100, 12
RANDOM = np.random.default_rng(0)


class FilterWithGivenScores(AuditCallback):
    """A pair filter with given scores of pairs, of decoys, and of mismatches that were not trained on."""

    looks: list[tuple[Tensor, Tensor, Tensor]]

    def _score_pairs_decoys_fresh_decoys(self) -> tuple[Tensor, ...]:
        return self.looks.pop(0)


@pytest.fixture
def audit() -> FilterWithGivenScores:
    views = RANDOM.normal(size=(2, ITEMS, 20))
    dataset = add_decoys(from_arrays(tuple(views)), seed=0)
    order = BatchOrder(ITEMS, batch_size=50, shuffle=True, seed=0, drop_last=True)
    pipeline: Any = None  # what it would say of the pairs is told
    return FilterWithGivenScores(dataset, pipeline, order, epochs=EPOCHS, loader_config=LoaderConfig())


def judged(audit: FilterWithGivenScores, sources: float = 0.0) -> tuple[Tensor, Tensor, Tensor]:
    """Return scores where the first items are as wrong as decoys; what decoys are made of scores as it is said."""
    number = len(audit._dataset.decoy_pairs.first)
    scores = torch.from_numpy(RANDOM.normal(5, 1, ITEMS))
    scores[:WRONG] -= 5
    scores[audit._dataset.decoy_pairs.first] += sources
    mismatched, fresh = (torch.from_numpy(RANDOM.normal(0, 1, number)) for _ in range(2))
    return scores, mismatched, fresh


def sources_of(audit: FilterWithGivenScores) -> set[int]:
    return set(audit._dataset.decoy_pairs.first.tolist())


def drawn(audit: FilterWithGivenScores) -> set[int]:
    return set(audit._positions.tolist())


def test_decoys_replace_their_source_items(audit: FilterWithGivenScores) -> None:
    decoys = set(range(ITEMS, ITEMS + len(sources_of(audit))))
    assert drawn(audit) == set(range(ITEMS)) - sources_of(audit) | decoys


def test_noise_rate_ignores_items_that_were_not_trained_on(audit: FilterWithGivenScores) -> None:
    """Items whose decoys were trained on in their place were not: whatever they score, they say nothing of the rest."""
    for sources in (0.0, -50.0):
        scores, mismatched, fresh = judged(audit, sources)
        audit.last_state, audit.looks = None, [(scores, mismatched, fresh)]
        assert audit.score_if_due(1)
        own = [item for item in range(ITEMS) if item not in sources_of(audit)]
        rate, (low, high) = estimate_noise_rate(scores[own].numpy(), mismatched.numpy())
        assert audit.last_state is not None
        assert (audit.last_state.noise_rate, audit.last_state.noise_rate_low, audit.last_state.noise_rate_high) == (
            rate,
            low,
            high,
        )
        assert rate == pytest.approx(WRONG / ITEMS, abs=0.08)


def test_detects_memorized_decoys(audit: FilterWithGivenScores) -> None:
    scores, mismatched, fresh = judged(audit)
    audit.looks = [(scores, mismatched, fresh - 100)]
    audit.score_if_due(1)
    assert audit.last_state is not None
    assert audit.last_state.memorization_auc == 1


def test_decoys_stay_if_they_score_like_trusted_pairs(audit: FilterWithGivenScores) -> None:
    scores, mismatched, fresh = judged(audit)
    mismatched[::2] += 9
    audit.looks = [(scores, mismatched, fresh)]
    audit.score_if_due(1)
    assert audit.last_state is not None
    own = ITEMS - len(sources_of(audit))
    assert sum(item < ITEMS for item in drawn(audit)) == own - round(audit.last_state.noise_rate * (own - 1))
    lowest = min(float(scores[item]) for item in drawn(audit) if item < ITEMS)
    kept = {ITEMS + place for place, score in enumerate(mismatched.tolist()) if score >= lowest}
    assert drawn(audit) >= kept
    assert not drawn(audit) & ({*range(ITEMS, ITEMS + len(mismatched))} - kept | sources_of(audit))
    assert not drawn(audit) & {item for item in range(WRONG) if scores[item] < 2}


def test_decoys_are_replaced_by_their_items_after_a_third(audit: FilterWithGivenScores) -> None:
    audit.looks = [judged(audit) for _ in range(4)]
    for _, mismatched, _ in audit.looks:
        mismatched[::2] += 9  # these are taken for pairs
    for epoch in (1, 2, 3):
        assert audit.score_if_due(epoch)
        assert max(drawn(audit)) >= ITEMS
    assert audit.score_if_due(6)
    assert max(drawn(audit)) < ITEMS
    right = {item for item in sources_of(audit) if item >= WRONG}
    assert len(drawn(audit) & right) > len(right) / 2


def test_rate_is_fixed_once_decoys_are_gone(audit: FilterWithGivenScores) -> None:
    audit.looks = [judged(audit) for _ in range(5)]
    for epoch in (1, 2, 3, 6):
        audit.score_if_due(epoch)
    before = audit.last_state
    scores, mismatched, fresh = audit.looks.pop()
    audit.looks = [(scores, mismatched + 100, fresh)]  # as they would be if only what is trained on came to score low
    audit.score_if_due(12)
    assert before is not None
    assert audit.last_state is not None
    assert (audit.last_state.num_scorings, audit.last_state.noise_rate, audit.last_state.memorization_auc) == (
        5,
        before.noise_rate,
        before.memorization_auc,
    )


def test_scores_are_means_over_all_scorings(audit: FilterWithGivenScores) -> None:
    looks = [judged(audit) for _ in range(3)]
    audit.looks = list(looks)
    for epoch in (1, 2, 3):
        audit.score_if_due(epoch)
    assert audit.last_state is not None
    torch.testing.assert_close(audit.last_state.mean_scores, torch.stack([look[0] for look in looks]).mean(0))
    torch.testing.assert_close(audit.last_state.mean_decoy_scores, torch.stack([look[1] for look in looks]).mean(0))


def test_fresh_mismatches_were_not_trained_on(audit: FilterWithGivenScores, monkeypatch: pytest.MonkeyPatch) -> None:
    scored: list[PairIndices] = []

    def scores(sides: PairedFeatures, pairs: PairIndices, statistic: str) -> Tensor:
        scored.append(pairs)
        return torch.from_numpy(RANDOM.normal(size=len(pairs.first)))

    features = torch.from_numpy(RANDOM.normal(size=(ITEMS, 8)))
    monkeypatch.setattr(module, "score_pairs", scores)
    monkeypatch.setattr(audit, "extract_paired_features", lambda: PairedFeatures((features, features)))
    result = AuditCallback._score_pairs_decoys_fresh_decoys(audit)
    number = len(sources_of(audit))
    assert [len(part) for part in result] == [ITEMS, number, number]
    first, second = (part.tolist() for part in scored[0])
    pairs = list(zip(first, second, strict=True))
    assert pairs[:ITEMS] == [(item, item) for item in range(ITEMS)]
    assert pairs[ITEMS:-number] == list(zip(*(side.tolist() for side in audit._dataset.decoy_pairs), strict=True))
    assert not set(pairs[-number:]) & set(pairs[:-number])
    assert set(first[-number:]) == set(second[-number:]) == sources_of(audit)
