"""Partner proposals by a transport plan with slack: a dense reference, hubs, and items without a partner."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from tests.engine.test_memory import LargestTensor

from contraport.auditing.pairs.pair_scoring import score_pairs
from contraport.auditing.pairs.paired_features import PairedFeatures, PairIndices
from contraport.auditing.pairs.partner_proposals import (
    MIN_FITTED_PAIRS,
    CandidateScoreEntries,
    _assign_copies_to_proposals,
    lowest_scoring_indices,
    propose_partners,
    score_likely_candidates,
    solve_mass_and_slack,
)

ITEMS, WRONG = 300, 40


def build_swapped_views(seed: int = 0, *, noise: float = 0.05) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the features of both views, where the first items have exchanged partners, and the right partners."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(ITEMS, 4, generator=generator)
    second = hidden @ torch.randn(4, 6, generator=generator) + noise * torch.randn(ITEMS, 6, generator=generator)
    partners = torch.arange(ITEMS)
    partners[:WRONG] = torch.arange(WRONG).roll(1)
    right = torch.empty(ITEMS, dtype=torch.int64)
    right[partners] = torch.arange(ITEMS)
    return hidden, second[partners], right


def test_plan_matches_a_dense_solution_in_log_space() -> None:
    random = np.random.default_rng(0)
    scores = random.normal(size=(12, 9)) * 3
    is_candidate = random.random((12, 9)) < 0.6
    capacities = random.integers(1, 4, 9).astype(float)
    rows, columns = np.nonzero(is_candidate)
    result = CandidateScoreEntries(rows, columns, scores[is_candidate], capacities, np.full(12, -1))
    mass, slack = solve_mass_and_slack(result, 1.7, 0.4, 500)
    logits = np.where(is_candidate, 1.7 * (scores - 0.4), -np.inf)
    f, g = np.zeros(12), np.zeros(9)
    for _ in range(500):
        f = -np.logaddexp(logsumexp(logits + g, axis=1), 0)
        g = np.log(capacities) - np.logaddexp(logsumexp(logits + f[:, None], axis=0), 0)
    dense = np.exp(logits + f[:, None] + g)
    np.testing.assert_allclose(mass, dense[is_candidate], rtol=1e-9)
    np.testing.assert_allclose(slack, np.exp(f), rtol=1e-9)
    np.testing.assert_allclose(dense.sum(axis=1) + slack, 1, rtol=1e-6)
    assert (np.bincount(columns, mass, 9) <= capacities).all()


@pytest.mark.parametrize("statistic", ["combined", "likeness"])
def test_finds_exchanged_partners(statistic: str) -> None:
    first, second, right = build_swapped_views()
    paired = PairedFeatures((first, second))
    free = lowest_scoring_indices(score_pairs(paired, None, statistic), WRONG / ITEMS)
    proposals = propose_partners(paired, free, statistic)
    proposed = proposals.partners_or_minus_one >= 0
    assert not proposed[WRONG:][~torch.isin(torch.arange(WRONG, ITEMS), free)].any()
    assert (proposals.partners_or_minus_one == right)[:WRONG].float().mean() > 0.25
    assert (proposals.partners_or_minus_one == right)[proposed].float().mean() > 0.8
    own = score_pairs(paired, None, statistic)
    assert (proposals.best_scores[proposed] > own[proposed]).all()
    assert torch.equal(proposals.best_scores[~proposed], own[~proposed])
    assert ((proposals.confidences > 0) == proposed).all()
    assert torch.isin(proposals.partners_or_minus_one[proposed], free).all()


def test_hub_item_is_proposed_once() -> None:
    first, second, _ = build_swapped_views(noise=0.6)
    # Without the plan, several items often have the same best partner.
    paired = PairedFeatures((first, second))
    free = torch.arange(WRONG)
    result = score_likely_candidates(paired, free, free, "likeness", np.arange(ITEMS), with_own=True)
    best = [result.columns[result.rows == row][result.scores[result.rows == row].argmax()] for row in range(WRONG)]
    proposals = propose_partners(paired, free, "likeness")
    proposed = proposals.partners_or_minus_one[proposals.partners_or_minus_one >= 0]
    assert np.bincount(best).max() > 2
    assert len(proposed) > 5
    assert len(proposed.unique()) == len(proposed)


def test_proposes_almost_nothing_where_nothing_fits() -> None:
    first, second, right = build_swapped_views(noise=0.2)
    remaining = torch.cat([torch.arange(0, WRONG, 2), torch.arange(WRONG, ITEMS)])  # no right partner is in the data
    assert not torch.isin(right[:WRONG:2], remaining).any()
    proposals = propose_partners(PairedFeatures((first[remaining], second[remaining])), torch.arange(WRONG // 2))
    assert (proposals.partners_or_minus_one >= 0).sum() <= 0.3 * (WRONG // 2)


def test_equal_contents_are_one_candidate_proposed_in_turn() -> None:
    generator = torch.Generator().manual_seed(0)
    kinds = torch.arange(ITEMS) % 12
    first = torch.randn(12, 5, generator=generator)[kinds] + 0.2 * torch.randn(ITEMS, 5, generator=generator)
    second = torch.randn(12, 5, generator=generator)[kinds]
    wrong = torch.arange(36)
    second[wrong], content_ids = second[wrong.roll(1)], kinds.clone()
    content_ids[wrong] = kinds[wrong.roll(1)]
    proposals = propose_partners(
        PairedFeatures((first, second)), wrong, "likeness", second_view_content_ids=content_ids
    )
    proposed = proposals.partners_or_minus_one >= 0
    assert (content_ids[proposals.partners_or_minus_one[proposed]] == kinds[proposed]).float().mean() > 0.9
    assert proposals.partners_or_minus_one[proposed].unique(return_counts=True)[1].max() == 1
    without_content_ids = propose_partners(PairedFeatures((first, second)), wrong, "likeness")
    assert without_content_ids.confidences.max() < proposals.confidences.max()  # equal candidates share the mass


def test_proposes_nothing_with_too_few_trusted_pairs() -> None:
    first, second, _ = build_swapped_views()
    free = torch.arange(ITEMS - MIN_FITTED_PAIRS + 1)
    assert (propose_partners(PairedFeatures((first, second)), free, "likeness").partners_or_minus_one == -1).all()


def test_scores_the_pairs_of_both_shortlists() -> None:
    first, second, _ = build_swapped_views(3)
    paired = PairedFeatures((first, second))
    free = torch.arange(0, ITEMS, 6)
    result = score_likely_candidates(paired, free, free, "likeness", np.arange(ITEMS), with_own=True)
    x, y = (values.double() for values in paired.features)
    near = (x @ x.T).fill_diagonal_(-2).topk(15).indices[free]
    likeness = y[near].mean(dim=1) @ y[free].T
    near_second = (y @ y.T).fill_diagonal_(-2).topk(15).indices[free]
    likeness_second = x[near_second].mean(dim=1) @ x[free].T
    expected = {(row, column) for row, columns in enumerate(likeness.topk(16).indices.tolist()) for column in columns}
    expected |= {(row, column) for column, rows in enumerate(likeness_second.topk(16).indices.tolist()) for row in rows}
    expected |= {(row, row) for row in range(len(free))}
    assert set(zip(result.rows.tolist(), result.columns.tolist(), strict=True)) == expected
    scores = score_pairs(paired, PairIndices(free[result.rows], free[result.columns]), "likeness")
    np.testing.assert_allclose(result.scores, scores.numpy(), rtol=1e-6)


def test_free_items_are_the_lowest_scores_and_at_least_a_tenth() -> None:
    values = torch.rand(200, generator=torch.Generator().manual_seed(0))
    for rate, number in ((0.0, 20), (0.251, 51), (0.25, 50), (1.0, 200)):
        free = lowest_scoring_indices(values, rate)
        assert sorted(values[free].tolist()) == values.sort().values[:number].tolist()
        assert free.tolist() == sorted(free.tolist())


def test_partner_search_memory_is_linear(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dense similarity matrix of many free items would take gigabytes."""
    generator = torch.Generator().manual_seed(0)
    paired = PairedFeatures((torch.randn(3_000, 3, generator=generator), torch.randn(3_000, 3, generator=generator)))
    free = torch.arange(2_000)
    expected = propose_partners(paired, free, "likeness").partners_or_minus_one
    monkeypatch.setattr("contraport.auditing.pairs.paired_features.MAX_VALUES_PER_BLOCK", 2**14)
    with LargestTensor() as seen:
        result = propose_partners(paired, free, "likeness").partners_or_minus_one
    assert seen.entries <= 33 * 17 * 2 * len(free), (
        seen.operation
    )  # the mask of neighbors that are members of the candidate pair
    assert torch.equal(result, expected)


@pytest.mark.parametrize(("own", "proposes"), [(0.2, True), (0.6, False)])
def test_own_partner_with_more_mass_is_kept(monkeypatch: pytest.MonkeyPatch, own: float, proposes: bool) -> None:
    def solve(result: CandidateScoreEntries, *_: float) -> tuple[np.ndarray, np.ndarray]:
        return np.where(result.own_partner_entry_mask, own, 0.3), np.full(len(result.own_columns_or_minus_one), 0.1)

    monkeypatch.setattr("contraport.auditing.pairs.partner_proposals.solve_mass_and_slack", solve)
    first, second, _ = build_swapped_views()
    proposals = propose_partners(PairedFeatures((first, second)), torch.arange(WRONG), "likeness")
    assert bool((proposals.partners_or_minus_one >= 0).any()) == proposes


def test_equal_items_are_assigned_to_the_largest_masses() -> None:
    entries, rows, columns = np.arange(3), np.arange(3), np.zeros(3, dtype=np.int64)
    result = CandidateScoreEntries(rows, columns, np.zeros(3), np.array([2.0]), np.full(3, -1))
    assigned = _assign_copies_to_proposals(entries, result, np.array([0.5, 0.3, 0.9]), np.zeros(2, dtype=np.int64))
    assert assigned.tolist() == [1, -1, 0]
