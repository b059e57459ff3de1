"""Proposals of better partners for suspected mismatches, by partial transport.

A wrong pair took its second member from another pair, which is then wrong too. So only suspected mismatches exchange
partners: the members of a right pair already have theirs. The best partner of each item alone would often be the same
generic one (a hub), so all items are matched at once: in the plan every item has mass 1, so has every candidate, and
mass that fits nowhere goes to the slack. The mass of a proposal is its confidence. A candidate is proposed to one item.

The plan is that of exp(slope * (score - threshold)), against a slack of weight 1. Both are fitted by maximum likelihood
to pairs that are not suspected, with half of their partners replaced, so that the right answers are known.

Source: Sarlin et al. (2020), SuperGlue, section 3.2: entropic transport with a slack row and column.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from contraport._utils.vector_search import select_rows
from contraport.auditing.pairs.pair_scoring import score_pairs
from contraport.auditing.pairs.paired_features import (
    PairedFeatures,
    PairIndices,
    average_neighbor_rows,
    split_into_row_blocks,
)
from contraport.data import Dataset
from contraport.seeding import numpy_generator

CANDIDATES_PER_ITEM = 16
"""Number of candidates scored for each item, and of items scored for each candidate."""

MIN_FITTED_PAIRS, MAX_FITTED_PAIRS = 30, 2_000
"""Minimum and maximum number of pairs that the plan is fitted to; with fewer trusted pairs nothing is proposed."""

SINKHORN_ITERATIONS, FIT_SINKHORN_ITERATIONS = 200, 30
"""Sinkhorn iterations of the plan, and of each plan while fitting."""

MAX_SLOPE, MAX_EXPONENT = 20.0, 500.0
"""Bounds of the slope, for standardized scores, and of the exponents, which double precision holds."""

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class PartnerProposals(NamedTuple):
    """Proposed partners of `n` items, with scores and confidences, ``(n,)`` each.

    Attributes:
        partners_or_minus_one: item whose second view is proposed, int64; -1 where nothing fits better.
        best_scores: score of each pair with its better partner; without one, the score of the pair itself.
        confidences: mass of the proposal in the plan, from 0 to 1; 0 without a proposal.
    """

    partners_or_minus_one: Tensor
    best_scores: Tensor
    confidences: Tensor


class CandidateScoreEntries(NamedTuple):
    """Sparse matrix of scores with items as rows and candidate partners as columns.

    A candidate is a second view; equal second views are one candidate.

    Attributes:
        rows: row of each entry, int64 ``(e,)``, sorted.
        columns: column of each entry, int64 ``(e,)``.
        scores: score of each entry, ``(e,)``.
        column_capacities: number of items that have the second view of each column, ``(c,)``.
        own_columns_or_minus_one: column of the own partner of each row, int64 ``(r,)``; -1 if it is no candidate.
    """

    rows: IntArray
    columns: IntArray
    scores: FloatArray
    column_capacities: FloatArray
    own_columns_or_minus_one: IntArray

    @property
    def own_partner_entry_mask(self) -> NDArray[np.bool_]:
        """Mask of the entries that score an item with its own partner, ``(e,)``."""
        return np.asarray(self.columns == self.own_columns_or_minus_one[self.rows])


def lowest_scoring_indices(scores: Tensor, share: float, *, min_share: float = 0.1) -> Tensor:
    """Return the sorted indices of the fraction `share` with the lowest scores.

    The share is at least `min_share`, as users also inspect pairs beyond the estimated noise rate.

    >>> lowest_scoring_indices(torch.tensor([0.9, 0.1, 0.8, 0.2]), 0.5)
    tensor([1, 3])
    """
    number = math.ceil(max(share, min_share) * len(scores))
    return scores.argsort(stable=True)[:number].sort().values


def second_view_content_ids_if_repeated(dataset: Dataset) -> Tensor | None:
    """Return ids, equal for equal second views, ``(n,)``, or None if all views differ.

    The second view of a pair of a coupling is a column, and its id that of the column.
    """
    ids = dataset.view_content_ids_if_repeated if dataset.entity_ids is None else dataset.entity_ids
    return None if ids is None else ids[:, 1]


def propose_partners(
    paired: PairedFeatures,
    exchangeable: Tensor,
    statistic: str = "combined",
    *,
    second_view_content_ids: Tensor | None = None,
) -> PartnerProposals:
    """Propose how the `exchangeable` items could exchange partners to match better.

    An item gets no proposal where the slack, or its own partner, has more mass than any other candidate, or where its
    best candidate is proposed to another item with more mass.

    Args:
        paired: features of all items.
        exchangeable: sorted items that may exchange partners.
        statistic: name of the statistic that scores pairs.
        second_view_content_ids: content id of each second view, int64 ``(n,)``; second views of equal content
            are one candidate, which is proposed as often as it occurs. Default: all differ.

    >>> u = torch.randn(400, 3, generator=torch.Generator().manual_seed(0))
    >>> second = u.clone()
    >>> second[:40] = u[:40].roll(1, 0)
    >>> proposals = propose_partners(PairedFeatures((u, second)), torch.arange(40), "likeness")
    >>> bool((proposals.partners_or_minus_one[:40] == torch.arange(40).roll(-1)).float().mean() > 0.5)
    True
    """
    items = paired.observed_pair_indices.first
    content_ids = (items if second_view_content_ids is None else second_view_content_ids.to(items.device)).cpu().numpy()
    own_scores = score_pairs(paired, None, statistic)
    partners, best, confidences = torch.full_like(items, -1), own_scores.clone(), torch.zeros_like(own_scores)
    trusted = items[~torch.isin(items, exchangeable)]
    if len(trusted) >= MIN_FITTED_PAIRS:
        shuffled = numpy_generator("audit.partners", len(items)).permutation(len(trusted))
        drawn = trusted[torch.from_numpy(shuffled).to(trusted.device)][:MAX_FITTED_PAIRS]
        # There are as many candidates as exchangeable items: among more candidates, some would fit by chance.
        samples = drawn.tensor_split(max(1, len(drawn) // max(math.ceil(1.5 * len(exchangeable)), MIN_FITTED_PAIRS)))
        slope, threshold = fit_plan_slope_and_threshold([
            score_likely_candidates(paired, part[: 2 * len(part) // 3], part[len(part) // 3 :], statistic, content_ids)
            for part in samples
        ])  # fmt: skip
        candidates = score_likely_candidates(paired, exchangeable, exchangeable, statistic, content_ids, with_own=True)
        mass, slack = solve_mass_and_slack(candidates, slope, threshold)
        own = np.zeros(len(exchangeable))
        own[candidates.rows[candidates.own_partner_entry_mask]] = mass[candidates.own_partner_entry_mask]
        order = np.lexsort((-np.where(candidates.own_partner_entry_mask, -1.0, mass), candidates.rows))
        entries = order[np.unique(candidates.rows[order], return_index=True)[1]]  # the largest of each row
        better = candidates.scores[entries] > own_scores[exchangeable].cpu().numpy()
        entries = entries[better & (mass[entries] > np.maximum(own, slack))]
        members = _assign_copies_to_proposals(entries, candidates, mass, content_ids[exchangeable.cpu().numpy()])
        entries, members = entries[members >= 0], members[members >= 0]
        at = exchangeable[torch.from_numpy(candidates.rows[entries]).to(exchangeable.device)]
        partners[at] = exchangeable[torch.from_numpy(members).to(exchangeable.device)]
        best[at] = torch.from_numpy(candidates.scores[entries]).to(best)
        confidences[at] = torch.from_numpy(mass[entries]).to(confidences)
    return PartnerProposals(partners, best, confidences)


def score_likely_candidates(
    paired: PairedFeatures,
    items: Tensor,
    others: Tensor,
    statistic: str,
    second_view_content_ids: IntArray,
    *,
    with_own: bool = False,
) -> CandidateScoreEntries:
    """Return scores of `items` with their likely partners among `others`.

    Each item's own partner is always scored if `with_own`, which requires that it is among the candidates.
    """
    other_contents, own_contents = (second_view_content_ids[part.cpu().numpy()] for part in (others, items))
    columns, first, column_capacities = np.unique(other_contents, return_index=True, return_counts=True)
    candidates = others[torch.from_numpy(first).to(others.device)]
    own_places = np.searchsorted(columns, own_contents).clip(max=len(columns) - 1)
    own_columns_or_minus_one = np.where(columns[own_places] == own_contents, own_places, -1)
    of_items = _shortlist_partner_positions(paired, 0, items, candidates).cpu().numpy()
    of_candidates = _shortlist_partner_positions(paired, 1, candidates, items).cpu().numpy()
    codes = [np.arange(len(items))[:, None] * len(candidates) + of_items]
    codes.append(of_candidates * len(candidates) + np.arange(len(candidates))[:, None])
    if with_own:
        codes.append(np.arange(len(items)) * len(candidates) + own_columns_or_minus_one)
    rows, places = np.divmod(np.unique(np.concatenate([code.ravel() for code in codes])), len(candidates))
    pairs = PairIndices(
        items[torch.from_numpy(rows).to(items.device)], candidates[torch.from_numpy(places).to(items.device)]
    )
    scores = score_pairs(paired, pairs, statistic).double().cpu().numpy()
    return CandidateScoreEntries(rows, places, scores, column_capacities.astype(float), own_columns_or_minus_one)


def _shortlist_partner_positions(paired: PairedFeatures, view: int, items: Tensor, others: Tensor) -> Tensor:
    """Return the positions in `others` of each item's likely partners, int64 ``(p, k)``.

    The partners of an item's neighbors in `view` are averaged; candidates are nearest to the mean in the other view.
    """
    values = paired.features[1 - view]
    queries = torch.cat([
        average_neighbor_rows(values, paired.neighbors_by_view_excluding_members(PairIndices(block, block))[view])
        for block in split_into_row_blocks(items, values.shape[1])
    ])  # fmt: skip
    places = torch.arange(len(others), device=others.device)
    return paired.nearest_candidate_indices(
        queries, select_rows(values, others), places, min(CANDIDATES_PER_ITEM, len(others))
    )


def fit_plan_slope_and_threshold(samples: Sequence[CandidateScoreEntries]) -> tuple[float, float]:
    """Fit the log-kernel of a transport plan, slope * (score - threshold).

    The right partner of an item is its own; if that is no candidate, its mass should stay unmatched (slack). The mean
    log mass of right partners is maximized.
    """
    from scipy.optimize import minimize

    stacked = _stack_block_diagonally(samples)
    is_right = stacked.own_partner_entry_mask
    rows_with = stacked.rows[is_right]
    rows_without = np.setdiff1d(np.arange(len(stacked.own_columns_or_minus_one)), rows_with)
    mean, spread = float(stacked.scores.mean()), float(stacked.scores.std()) or 1.0
    standard = stacked._replace(scores=(stacked.scores - mean) / spread)
    low, high = float(standard.scores.min()), float(standard.scores.max())

    def loss(parameters: FloatArray) -> float:
        mass, slack = solve_mass_and_slack(standard, math.exp(parameters[0]), parameters[1], FIT_SINKHORN_ITERATIONS)
        right = np.concatenate([mass[is_right], slack[rows_without]])
        return -float(np.log(np.maximum(right, np.finfo(float).tiny)).mean())

    largest = math.log(min(MAX_SLOPE, MAX_EXPONENT / max(high - low, 1e-6)))
    starts = [(slope, threshold) for slope in np.linspace(-1, largest, 5) for threshold in np.linspace(low, high, 5)]
    start = min(starts, key=lambda parameters: loss(np.array(parameters)))
    bounds = [(-3, largest), (low, high)]
    fitted = minimize(loss, start, method="Nelder-Mead", bounds=bounds, options={"maxfev": 60}).x
    slope = math.exp(fitted[0]) / spread
    return slope, mean + spread * float(fitted[1])


def _stack_block_diagonally(samples: Sequence[CandidateScoreEntries]) -> CandidateScoreEntries:
    """Combine score matrices into one block-diagonal matrix."""
    rows = np.cumsum([0, *(len(one.own_columns_or_minus_one) for one in samples)])
    columns = np.cumsum([0, *(len(one.column_capacities) for one in samples)])
    return CandidateScoreEntries(
        np.concatenate([one.rows + begin for one, begin in zip(samples, rows[:-1], strict=True)]),
        np.concatenate([one.columns + begin for one, begin in zip(samples, columns[:-1], strict=True)]),
        np.concatenate([one.scores for one in samples]),
        np.concatenate([one.column_capacities for one in samples]),
        np.concatenate([
            np.where(one.own_columns_or_minus_one < 0, -1, one.own_columns_or_minus_one + begin)
            for one, begin in zip(samples, columns[:-1], strict=True)
        ]),
    )  # fmt: skip


def solve_mass_and_slack(
    candidates: CandidateScoreEntries, slope: float, threshold: float, iterations: int = SINKHORN_ITERATIONS
) -> tuple[FloatArray, FloatArray]:
    """Return each candidate pair's mass, ``(e,)``, and each row's unmatched mass, ``(r,)``.

    With the unmatched mass (slack), rows have mass 1 and columns their capacity; columns exactly, as their potentials
    are updated last.

    >>> one = np.array([0, 0, 1]), np.array([0, 1, 1]), np.array([3.0, 0.0, 3.0])
    >>> mass, slack = solve_mass_and_slack(CandidateScoreEntries(*one, np.ones(2), np.array([0, 1])), 1.0, 0.0)
    >>> mass.round(2).tolist(), slack.round(2).tolist()
    ([0.79, 0.03, 0.79], [0.18, 0.21])
    """
    from scipy.sparse import csr_array

    values = np.exp(slope * (candidates.scores - threshold))
    shape = (len(candidates.own_columns_or_minus_one), len(candidates.column_capacities))
    kernel = csr_array((values, (candidates.rows, candidates.columns)), shape=shape)
    transposed, columns = kernel.T.tocsr(), candidates.column_capacities
    for _ in range(iterations):
        rows = 1 / (kernel @ columns + 1)
        columns = candidates.column_capacities / (transposed @ rows + 1)
    return rows[candidates.rows] * values * columns[candidates.columns], rows


def _assign_copies_to_proposals(
    proposed_entries: IntArray, candidates: CandidateScoreEntries, mass: FloatArray, second_view_content_ids: IntArray
) -> IntArray:
    """Assign proposals of a second view to different items that have it.

    A proposal gets -1 if no such item is left.

    Args:
        proposed_entries: entries of the matrix that are proposals, ``(p,)``.
        candidates: the matrix.
        mass: mass of each entry in the plan, ``(e,)``.
        second_view_content_ids: content id of each item's second view.
    """
    order = np.lexsort((-mass[proposed_entries], candidates.columns[proposed_entries]))
    columns = candidates.columns[proposed_entries[order]]
    turn = np.arange(len(columns)) - np.searchsorted(columns, columns)
    is_left = turn < candidates.column_capacities[columns]
    members = np.argsort(second_view_content_ids, kind="stable")
    begin = np.concatenate([[0], candidates.column_capacities.cumsum()[:-1]]).astype(np.int64)
    assigned = np.full(len(proposed_entries), -1)
    assigned[order[is_left]] = members[(begin[columns] + turn)[is_left]]
    return assigned
