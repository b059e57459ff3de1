"""What an online audit makes of the scores of a look: who is judged, what is estimated of whom, what is drawn next."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from contraport.auditing.pairs import ItemPairs, PairedFeatures, estimate_noise_rate
from contraport.auditing.pairs import pair_filter as module
from contraport.auditing.pairs.decoys import add_decoys
from contraport.auditing.pairs.pair_filter import PairFilter
from contraport.data import BatchOrder, from_arrays
from contraport.embedding import LoaderConfig

ITEMS, WRONG, EPOCHS = 400, 100, 12
RANDOM = np.random.default_rng(0)


class Told(PairFilter):
    """An audit that is told what scores its looks give, of pairs, of decoys, and of mismatches not trained on."""

    looks: list[tuple[Tensor, Tensor, Tensor]]

    def _score(self) -> tuple[Tensor, ...]:
        return self.looks.pop(0)


@pytest.fixture
def audit() -> Told:
    views = RANDOM.normal(size=(2, ITEMS, 20))
    dataset = add_decoys(from_arrays(tuple(views)), seed=0)
    order = BatchOrder(ITEMS, batch_size=50, shuffle=True, seed=0, drop_last=True)
    pipeline: Any = None  # what it would say of the pairs is told
    return Told(dataset, pipeline, order, epochs=EPOCHS, reader=LoaderConfig())


def judged(audit: Told, sources: float = 0.0) -> tuple[Tensor, Tensor, Tensor]:
    """Return scores where the first items are as wrong as decoys; what decoys are made of scores as it is said."""
    number = len(audit._dataset.decoys.first)
    scores = torch.from_numpy(RANDOM.normal(5, 1, ITEMS))
    scores[:WRONG] -= 5
    scores[audit._dataset.decoys.first] += sources
    mismatched, fresh = (torch.from_numpy(RANDOM.normal(0, 1, number)) for _ in range(2))
    return scores, mismatched, fresh


def sources_of(audit: Told) -> set[int]:
    return set(audit._dataset.decoys.first.tolist())


def drawn(audit: Told) -> set[int]:
    return set(audit._drawn.tolist())


def test_decoys_stand_for_the_items_that_they_are_made_of(audit: Told) -> None:
    decoys = set(range(ITEMS, ITEMS + len(sources_of(audit))))
    assert drawn(audit) == set(range(ITEMS)) - sources_of(audit) | decoys


def test_noise_is_estimated_of_what_was_trained_on(audit: Told) -> None:
    """Items whose decoys were trained on in their place were not: whatever they score, they say nothing of the rest."""
    for sources in (0.0, -50.0):
        scores, mismatched, fresh = judged(audit, sources)
        audit.last, audit.looks = None, [(scores, mismatched, fresh)]
        assert audit.after_epoch(1)
        own = [item for item in range(ITEMS) if item not in sources_of(audit)]
        rate, (low, high) = estimate_noise_rate(scores[own].numpy(), mismatched.numpy())
        assert audit.last is not None
        assert (audit.last.rate, audit.last.low, audit.last.high) == (rate, low, high)
        assert rate == pytest.approx(WRONG / ITEMS, abs=0.08)


def test_trained_decoys_that_score_above_fresh_ones_are_remembered(audit: Told) -> None:
    scores, mismatched, fresh = judged(audit)
    audit.looks = [(scores, mismatched, fresh - 100)]
    audit.after_epoch(1)
    assert audit.last is not None
    assert audit.last.remembered == 1


def test_decoys_are_kept_as_pairs_of_their_scores_are(audit: Told) -> None:
    scores, mismatched, fresh = judged(audit)
    mismatched[::2] += 9
    audit.looks = [(scores, mismatched, fresh)]
    audit.after_epoch(1)
    assert audit.last is not None
    own = ITEMS - len(sources_of(audit))
    assert sum(item < ITEMS for item in drawn(audit)) == own - round(audit.last.rate * (own - 1))
    lowest = min(float(scores[item]) for item in drawn(audit) if item < ITEMS)
    kept = {ITEMS + place for place, score in enumerate(mismatched.tolist()) if score >= lowest}
    assert drawn(audit) >= kept
    assert not drawn(audit) & ({*range(ITEMS, ITEMS + len(mismatched))} - kept | sources_of(audit))
    assert not drawn(audit) & {item for item in range(WRONG) if scores[item] < 2}


def test_after_a_third_decoys_go_and_their_items_come_back(audit: Told) -> None:
    audit.looks = [judged(audit) for _ in range(4)]
    for _, mismatched, _ in audit.looks:
        mismatched[::2] += 9  # these are taken for pairs
    for epoch in (1, 2, 3):
        assert audit.after_epoch(epoch)
        assert max(drawn(audit)) >= ITEMS
    assert audit.after_epoch(4)
    assert max(drawn(audit)) < ITEMS
    right = {item for item in sources_of(audit) if item >= WRONG}
    assert len(drawn(audit) & right) > len(right) / 2


def test_once_no_decoy_is_trained_on_the_rate_stays(audit: Told) -> None:
    audit.looks = [judged(audit) for _ in range(5)]
    for epoch in (1, 2, 3, 4):
        audit.after_epoch(epoch)
    before = audit.last
    scores, mismatched, fresh = audit.looks.pop()
    audit.looks = [(scores, mismatched + 100, fresh)]  # as they would be if only what is trained on came to score low
    audit.after_epoch(6)
    assert before is not None
    assert audit.last is not None
    assert (audit.last.number, audit.last.rate, audit.last.remembered) == (5, before.rate, before.remembered)


def test_what_counts_is_the_mean_of_all_looks(audit: Told) -> None:
    looks = [judged(audit) for _ in range(3)]
    audit.looks = list(looks)
    for epoch in (1, 2, 3):
        audit.after_epoch(epoch)
    assert audit.last is not None
    torch.testing.assert_close(audit.last.scores, torch.stack([look[0] for look in looks]).mean(0))
    torch.testing.assert_close(audit.last.mismatched, torch.stack([look[1] for look in looks]).mean(0))


def test_fresh_mismatches_are_none_that_was_trained_on(audit: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[ItemPairs] = []

    def scores(sides: PairedFeatures, pairs: ItemPairs, statistic: str) -> Tensor:
        asked.append(pairs)
        return torch.from_numpy(RANDOM.normal(size=len(pairs.first)))

    features = torch.from_numpy(RANDOM.normal(size=(ITEMS, 8)))
    monkeypatch.setattr(module, "score_pairs", scores)
    monkeypatch.setattr(audit, "paired_features", lambda: PairedFeatures((features, features)))
    found = PairFilter._score(audit)
    number = len(sources_of(audit))
    assert [len(part) for part in found] == [ITEMS, number, number]
    first, second = (part.tolist() for part in asked[0])
    pairs = list(zip(first, second, strict=True))
    assert pairs[:ITEMS] == [(item, item) for item in range(ITEMS)]
    assert pairs[ITEMS:-number] == list(zip(*(side.tolist() for side in audit._dataset.decoys), strict=True))
    assert not set(pairs[-number:]) & set(pairs[:-number])
    assert set(first[-number:]) == set(second[-number:]) == sources_of(audit)
