"""Statistics of how well two views match, higher for better matches."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from contraport._utils.formatting import join_names
from contraport._utils.vector_search import TensorOrComputedRows, mean_top_products
from contraport.auditing.pairs.paired_features import (
    CORRELATION_POWERS_BY_DIRECTION,
    SIMILARITY_TIE_TOLERANCE,
    PairedFeatures,
    PairIndices,
    average_neighbor_rows,
    split_into_row_blocks,
)
from contraport.engine import Gibbs
from contraport.errors import UsageError, check_name
from contraport.objectives import Balanced, Unbalanced, transport
from contraport.objectives.constraints.sinkhorn import SinkhornConstraint

SCORE_TEMPERATURE = 0.1
"""Temperature of the statistics `softmax`, `balanced` and `unbalanced`."""

MARGINAL_RELAXATION = 0.1
"""Relaxation of the marginals of the unbalanced plan."""

SINKHORN_ITERATIONS = 200
"""Number of Sinkhorn iterations of the plans."""

_ScoreFunction = Callable[[PairedFeatures, PairIndices], Tensor]
"""Function that scores pairs, ``(p,)``; higher scores mean better matches."""


@dataclass(frozen=True)
class Statistic:
    """Statistic that scores pairs, with its description and requirements.

    Attributes:
        score_function: function from paired features and pairs to scores, ``(p,)``; higher is better.
    """

    description: str
    score_function: _ScoreFunction
    needs_shared_space: bool


STATISTICS: dict[str, Statistic] = {}
"""All statistics by name, in the order of listings."""


def score_pairs(paired: PairedFeatures, pairs: PairIndices | None = None, statistic: str = "neighbors") -> Tensor:
    """Return scores ``(p,)`` of pairs by a statistic, higher for better matches.

    The statistic is a name in `STATISTICS`; default pairs: each item with itself.

    Raises:
        UsageError: an unknown statistic, or one that needs embeddings in one space where there are none.

    >>> u = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    >>> scores = score_pairs(PairedFeatures((u, torch.cat([u[:190], u[190:].flip(0)]))))
    >>> bool(scores[:190].median() > scores[190:].median())
    True
    """
    check_name("statistic", statistic, STATISTICS)
    chosen = STATISTICS[statistic]
    if chosen.needs_shared_space and paired.embeddings is None:
        usable = join_names([name for name, other in STATISTICS.items() if not other.needs_shared_space], "or")
        message = f"statistic: {statistic!r} needs embeddings of both views in one space; without them, use {usable}."
        raise UsageError(message, kind="no_shared_space")
    return chosen.score_function(paired, pairs or paired.observed_pair_indices)


def _register_statistic(name: str, summary: str, *, shared_space: bool) -> Callable[[_ScoreFunction], _ScoreFunction]:
    """Return a decorator that registers a scoring function as statistic `name`."""

    def register(function: _ScoreFunction) -> _ScoreFunction:
        STATISTICS[name] = Statistic(summary, function, shared_space)
        return function

    return register


@_register_statistic(
    "neighbors", "how near the partners of a member's neighbors are to the other member, by rank", shared_space=False
)
def _score_neighbors(paired: PairedFeatures, pairs: PairIndices) -> Tensor:
    """Agreement between the neighbors of the two items of each pair.

    In a right pair, the items near one member have partners near the other member. The score is the mean negative log
    of the rank of these partners, by nearness to the other member.

    Nearness is only measured within a view, so each view may have its own space, and a memorized wrong pair does not
    bring its neighbors' partners together. A rank is a p-value; the mean of the logs is Fisher's (1925) combination.
    Counting shared neighbors instead carries less information, and none among many equal items: of a thousand equal
    captions the fifteen nearest are arbitrary.
    """
    scores = []
    # In blocks, as each pair takes some hundred bytes per neighbor.
    for first, second in zip(*(members.split(2**16) for members in pairs), strict=True):
        near_first, near_second = paired.neighbors_by_view_excluding_members(PairIndices(first, second))
        in_second = paired.neg_log_reference_rank_shares(1, second, near_first)
        in_first = paired.neg_log_reference_rank_shares(0, first, near_second)
        scores.append((in_second.mean(dim=1) + in_first.mean(dim=1)) / 2)
    return torch.cat(scores)


@_register_statistic("canonical", "csls in a common space that is learned from the other pairs", shared_space=False)
def _score_canonical(paired: PairedFeatures, pairs: PairIndices) -> Tensor:
    """Hub-corrected similarity (CSLS) in a space found by canonical correlation.

    It compares what one member predicts of the other view with the predictable part of the other member.

    The maps of a pair are fitted to other folds, so that a pair does not confirm itself.
    """
    scores = torch.empty(len(pairs.first), dtype=torch.float32, device=pairs.first.device)
    centers, folds, maps, correlations = paired.cross_fitted_canonical_maps
    references = paired.reference_cca_coordinates_by_fold
    # With fewer references, fewer count as nearest, so that they are the same share of the items. Of more than 4,096
    # items the share is constant.
    nearest = math.ceil(paired.num_neighbors * len(paired.reference_sample_indices) / min(len(paired), 4_096))
    for fold, (fold_maps, weights) in enumerate(zip(maps, correlations, strict=True)):
        in_fold = folds[pairs.first] == fold
        # Projections and hub corrections are computed once for each item, not for each of its pairs.
        (first, first_at), (second, second_at) = (members[in_fold].unique(return_inverse=True) for members in pairs)
        x, y = (
            torch.cat([(values[block] - center) @ linear for block in split_into_row_blocks(items, values.shape[1])])
            for values, center, linear, items in zip(paired.features, centers, fold_maps, (first, second), strict=True)
        )
        total = scores.new_zeros(len(first_at))
        for (first_power, second_power), (first_references, second_references) in zip(
            CORRELATION_POWERS_BY_DIRECTION, references[fold], strict=True
        ):
            u, v = F.normalize(x * weights**first_power, dim=1), F.normalize(y * weights**second_power, dim=1)
            total += 2 * (u[first_at] * v[second_at]).sum(dim=1)
            total -= mean_top_products(u, second_references, nearest)[first_at]
            total -= mean_top_products(v, first_references, nearest)[second_at]
        scores[in_fold] = total / 2
    return scores


@_register_statistic(
    "likeness", "similarity in one view to the items nearest in the other view, averaged over both", shared_space=False
)
def _score_similarity_to_partner_neighbors(paired: PairedFeatures, pairs: PairIndices) -> Tensor:
    """Similarity of an item to its partner's nearest neighbors, averaged over both views."""
    (near_first, near_second), (x, y) = paired.neighbors_by_view_excluding_members(pairs), paired.features
    return (_mean_similarity(y, pairs.second, near_first) + _mean_similarity(x, pairs.first, near_second)) / 2


def _mean_similarity(features: TensorOrComputedRows, items: Tensor, neighbors: Tensor) -> Tensor:
    """Return the mean similarity of each item to its `neighbors`, ``(p,)``."""
    width = features.shape[1]
    blocks = zip(split_into_row_blocks(items, width), split_into_row_blocks(neighbors, width), strict=True)
    return torch.cat([(features[i] * average_neighbor_rows(features, k)).sum(dim=1) for i, k in blocks])


@_register_statistic("cosine", "cosine similarity of the two embeddings", shared_space=True)
def _score_cosine(paired: PairedFeatures, pairs: PairIndices) -> Tensor:
    """Cosine similarity of the two embeddings of each pair."""
    assert paired.embeddings is not None
    x, y = paired.embeddings
    blocks = zip(*(split_into_row_blocks(members, x.shape[1]) for members in pairs), strict=True)
    return torch.cat([(x[first] * y[second]).sum(dim=1) for first, second in blocks])


@_register_statistic("softmax", "log-softmax in both directions: minus the InfoNCE loss", shared_space=True)
def _score_mean_log_softmax(paired: PairedFeatures, pairs: PairIndices) -> Tensor:
    """Log-softmax of each pair's cosine similarity, the mean of row-wise and column-wise."""
    x, y = paired.load_embeddings()
    rows, columns = (
        torch.cat(
            [
                torch.logsumexp(block @ others.T / SCORE_TEMPERATURE, 1)
                for block in split_into_row_blocks(own, len(others))
            ]
        )
        for own, others in ((x, y), (y, x))
    )
    return _score_cosine(paired, pairs) / SCORE_TEMPERATURE - (rows[pairs.first] + columns[pairs.second]) / 2


@_register_statistic("csls", "cosine similarity relative to each member's nearest in the other view", shared_space=True)
def _score_csls(paired: PairedFeatures, pairs: PairIndices) -> Tensor:
    """Hub-corrected cosine similarity by CSLS (Conneau et al., 2018)."""
    rows, columns = paired.hub_similarities_by_view
    return 2 * _score_cosine(paired, pairs) - rows[pairs.first] - columns[pairs.second]


@_register_statistic("rank", "minus the share of items that are nearer than the partner", shared_space=True)
def _score_neg_rank_share(paired: PairedFeatures, pairs: PairIndices) -> Tensor:
    """Negated share of candidates that are nearer to an item than its partner is."""
    x, y = paired.load_embeddings()
    first, second = x[pairs.first], y[pairs.second]
    return -(_share_nearer_than_partner(first, y, second) + _share_nearer_than_partner(second, x, first)) / 2


def _share_nearer_than_partner(queries: Tensor, candidates: Tensor, partner_vectors: Tensor) -> Tensor:
    """Return the share of candidates nearer to each query than its partner, ``(p,)``."""
    blocks = zip(*(split_into_row_blocks(x, len(candidates)) for x in (queries, partner_vectors)), strict=True)
    return torch.cat([
        (x @ candidates.T > (x * y).sum(1, keepdim=True) + SIMILARITY_TIE_TOLERANCE).float().mean(1) for x, y in blocks
    ])  # fmt: skip


def _compute_log_mass_per_pair(paired: PairedFeatures, pairs: PairIndices, constraint: SinkhornConstraint) -> Tensor:
    """Return the log mass of each pair in a transport plan, ``(p,)``."""
    x, y = paired.load_embeddings()
    with torch.no_grad():
        return transport(x, y, Gibbs(temperature=SCORE_TEMPERATURE), constraint).plan.log_at(pairs.first, pairs.second)


STATISTICS |= {
    name: Statistic(
        f"log of the pair's mass in the {name} plan of all items",
        partial(_compute_log_mass_per_pair, constraint=constraint),
        needs_shared_space=True,
    )
    for name, constraint in (
        ("balanced", Balanced(SINKHORN_ITERATIONS)),
        ("unbalanced", Unbalanced(MARGINAL_RELAXATION, SINKHORN_ITERATIONS)),
    )
}


@_register_statistic(
    "combined",
    "the sum of two other statistics, neighbors and canonical, each divided by its spread",
    shared_space=False,
)
def _score_neighbors_plus_canonical(paired: PairedFeatures, pairs: PairIndices) -> Tensor:
    """Sum of the neighbor score and the canonical correlation score, both standardized."""
    total = torch.zeros(len(pairs.first), dtype=torch.float32, device=pairs.first.device)
    number = len(paired)
    starts_with_data = all(torch.equal(a[:number], b) for a, b in zip(pairs, paired.observed_pair_indices, strict=True))
    for name in ("neighbors", "canonical"):
        score, observed = STATISTICS[name].score_function, paired.observed_score_cache
        if name not in observed and not starts_with_data:
            observed[name] = score(paired, paired.observed_pair_indices)
        is_known = name in observed and starts_with_data and len(total) == number
        values = observed[name] if is_known else score(paired, pairs)
        spread, mean = torch.std_mean(observed.setdefault(name, values[:number]))
        if spread > 0:
            total += (values - mean) / spread
    return total
