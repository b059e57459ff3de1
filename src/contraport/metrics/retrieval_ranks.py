"""Retrieval ranks and nearest neighbors of embeddings."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, permutations
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from contraport._utils.vector_search import top_products_and_indices
from contraport.data.duplicate_groups import first_index_by_group
from contraport.errors import UsageError, check, check_all_values, check_integer, check_positive, type_and_shape

MAX_COSINES_IN_MEMORY = 1 << 24
"""Number of cosines held in memory at a time: 64 MiB."""

POINTS_PER_FINITE_CHECK = 2**13  # number of points that are checked for NaN and infinity at a time

TILE_SIZE = 1_024
"""Number of rows and of columns of a tile of cosines that ranks are counted in: it fits the cache of a processor."""

NUM_SAMPLED_RETRIEVAL_TEST_ITEMS = 20_000
"""Number of test items whose ranks are computed, drawn at random, if all exceed `MAX_PAIRS_WITHOUT_SAMPLING`."""

MAX_PAIRS_WITHOUT_SAMPLING = 10**9
"""Maximum number of test items times candidates; beyond it, a metric of pairs uses a random sample of test items."""

TIE_DISTANCE_TOLERANCE = 4e-6
"""Distances between unit vectors that differ by at most this are ties: rounding depends on the position in a batch."""


def is_dense_real_tensor(value: object) -> TypeGuard[Tensor]:
    """Return whether a value is a dense tensor of real numbers."""
    return isinstance(value, Tensor) and not (value.is_complex() or value.is_meta or value.layout != torch.strided)


def check_points(argument: str, points: Tensor, min_points: int = 1) -> None:
    """Raise `UsageError` unless a value is a finite tensor, (n, d)."""
    if not is_dense_real_tensor(points) or points.ndim != 2 or len(points) < min_points or points.shape[1] == 0:
        expected = f"a tensor (n, d) with n >= {min_points}"
        raise UsageError(f"{argument}: must be {expected}, got {type_and_shape(points)}.", kind="shape")
    # Block by block: torch finds the finite points by a copy of all of them.
    for block in points.split(POINTS_PER_FINITE_CHECK):
        if not bool(block.float().isfinite().all()):
            check_all_values(argument, points, points.float().isfinite(), "finite numbers")


def check_labels(argument: str, labels: Tensor, num_items: int) -> None:
    """Raise `UsageError` unless a value is a tensor of integers, (items,)."""
    if not is_dense_real_tensor(labels) or labels.shape != (num_items,) or labels.is_floating_point():
        expected = f"integers, ({num_items},)"
        raise UsageError(f"{argument}: must be {expected}, got {type_and_shape(labels)}.", kind="shape")


def check_equal_widths(argument: str, points: Tensor, other_argument: str, other: Tensor) -> None:
    """Raise `UsageError` unless two tensors have the same number of features."""
    expected = f"must have {other.shape[1]} features, as {other_argument}"
    check(points.shape[1] == other.shape[1], f"{argument}: {expected}, got {points.shape[1]}.", "shape")


def unit_vectors(argument: str, points: Tensor, min_points: int = 1, dtype: torch.dtype = torch.float32) -> Tensor:
    """Check points, (n, d), and return them scaled to unit length.

    Rows of zeros stay zero. The result has no gradient.
    """
    check_points(argument, points, min_points)
    return scale_to_unit_length(points, dtype)


def scale_to_unit_length(points: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Scale points, (n, d), to unit length, except rows of zeros."""
    points = points.detach().to(dtype)
    # Divided by the largest entry first, so that the squared length neither overflows nor underflows.
    largest = points.abs().amax(dim=1, keepdim=True)
    return F.normalize(points / largest.where(largest > 0, 1.0), dim=1)


def retrieval_ranks_by_view_pair(
    *views: Tensor, content_ids: Tensor | None = None, positions: np.ndarray[Any, Any] | None = None
) -> np.ndarray[Any, Any]:
    """Return each item's retrieval rank for each ordered pair of views, `(n, k)`.

    The columns are the k ordered pairs of views, and rank 1 is the nearest. The candidates are the other views of all
    items. Views are `(n, d)` each, and their pairs in the order of `itertools.permutations`: the first view of a pair
    queries the second. Ties up to the rounding of single precision count as nearer, so that a collapsed encoder has the
    last rank, not the first.

    Args:
        views: embeddings of the same items.
        content_ids: identity of the content of each view, `(n, views)` integers, equal where two items share a view,
            such as one image with several captions. A shared view then counts once, as a query and as a candidate, and
            the best of its matches counts.
        positions: positions of the items to rank, `(q,)`, among all items; the result has a row for each of them.
            Default: all items.

    Raises:
        UsageError: the shapes differ, or an embedding is not finite.

    >>> retrieval_ranks_by_view_pair(torch.eye(3), torch.eye(3)[[0, 2, 1]]).tolist()
    [[1, 1], [3, 3], [3, 3]]
    >>> retrieval_ranks_by_view_pair(torch.eye(3), torch.eye(3)[[0, 2, 1]], positions=np.array([2, 0])).tolist()
    [[3, 3], [1, 1]]
    >>> ids = torch.tensor([[0, 0], [0, 1], [1, 2]])
    >>> retrieval_ranks_by_view_pair(torch.eye(3)[[0, 0, 1]], torch.eye(3)[[0, 2, 1]], content_ids=ids).tolist()
    [[1, 1], [1, 2], [1, 1]]
    """
    check(len(views) > 1, f"views: must be at least 2, got {len(views)}.")
    points = _normalize_views(*views)
    shape = (len(points[0]), len(points))
    if content_ids is None:
        content_ids = torch.arange(shape[0])[:, None].expand(shape)
    good = is_dense_real_tensor(content_ids) and content_ids.shape == shape and not content_ids.is_floating_point()
    check(good, f"content_ids: must be integers of shape {shape}, got {type_and_shape(content_ids)}.", "shape")
    ids = content_ids.T
    ranks = {}
    for v, w in combinations(range(len(points)), 2):
        distinct = _DistinctViews.from_paired_points(points[v], points[w], ids[v], ids[w])
        if positions is not None:
            at = torch.from_numpy(positions).to(points[v].device)
            ranks[v, w], ranks[w, v] = _query_ranks_at(distinct, at), _query_ranks_at(distinct.swap(), at)
            continue
        row_thresholds, column_thresholds = distinct.row_tie_thresholds, distinct.column_tie_thresholds
        row_ranks, column_ranks = torch.ones_like(row_thresholds), torch.ones_like(column_thresholds)
        for across, down, cosines in distinct.iter_mismatch_cosine_tiles():  # each tile serves both directions
            x, y = distinct.row_points[across], distinct.column_points[down]
            row_ranks[across] += _count_keys_reaching(cosines, x, y, row_thresholds[across])
            column_ranks[down] += _count_keys_reaching(cosines.T, y, x, column_thresholds[down])
        ranks[v, w] = row_ranks[distinct.row_by_item].long().cpu()
        ranks[w, v] = column_ranks[distinct.column_by_item].long().cpu()
    return torch.stack([ranks[pair] for pair in permutations(range(len(points)), 2)], dim=1).numpy()


def symmetric_log_match_probability(
    z0: Tensor, z1: Tensor, temperature: float, *, positions: np.ndarray[Any, Any] | None = None
) -> np.ndarray[Any, Any]:
    """Return the log probability that each item matches its other view, `(n,)`.

    The probability is a softmax over all items. Logits are cosines over the temperature; the mean of both directions is
    returned. Minus its mean is the InfoNCE loss with all items in one batch. With `positions`, `(q,)`, only those of
    the items there are computed, `(q,)`.

    Raises:
        UsageError: the shapes differ, an embedding is not finite, or the temperature is not positive.

    >>> bool(np.allclose(symmetric_log_match_probability(torch.ones(4, 2), torch.ones(4, 2), 0.1), -np.log(4)))
    True
    """
    check_positive("temperature", temperature)
    a, b = _normalize_views(z0, z1)
    at = slice(None) if positions is None else torch.from_numpy(positions).to(a.device)

    def log_softmax_of_matches(queries: Tensor, keys: Tensor) -> Tensor:
        queries, positives = queries[at], (queries[at] * keys[at]).sum(dim=1) / temperature
        chunks = queries.split(max(1, MAX_COSINES_IN_MEMORY // len(keys)))
        sums = [(chunk @ keys.T / temperature).logsumexp(dim=1) for chunk in chunks]
        return positives - torch.cat(sums)

    return ((log_softmax_of_matches(a, b) + log_softmax_of_matches(b, a)) / 2).cpu().numpy()


def nearest_indices(z: Tensor, count: int) -> Tensor:
    """Return the positions of each item's nearest other items by cosine, `(n, count)`.

    Raises:
        UsageError: `z` is not finite, or has no more than `count` items.
    """
    z = unit_vectors("z", z)
    check_integer("count", count, 0, len(z) - 1)
    nearest = top_products_and_indices(z, z, count + 1)[1]
    is_self = nearest == torch.arange(len(z), device=z.device)[:, None]
    return nearest.gather(1, is_self.to(torch.uint8).argsort(dim=1, stable=True)[:, :count])


def _normalize_views(*views: Tensor) -> list[Tensor]:
    """Return views `(n, d)` scaled to unit length, in double precision."""
    points = [unit_vectors(f"z{number}", view, dtype=torch.float64) for number, view in enumerate(views)]
    for number, view in enumerate(points):
        expected, got = tuple(points[0].shape), tuple(view.shape)
        check(got == expected, f"z{number}: shape must be {expected}, got {got}.", "shape")
    return points


class _DistinctViews(NamedTuple):
    """First and second views without duplicates, with each item's index into both.

    Attributes:
        row_points: first views, unit vectors in double precision, ``(n, d)``.
        column_points: second views, ``(m, d)``.
        row_by_item: position of each item's first view in `row_points`, ``(items,)``.
        column_by_item: position of each item's second view in `column_points`, ``(items,)``.
        row_tie_thresholds: smallest cosine with a first view that counts as nearer than its match, ``(n,)``.
        column_tie_thresholds: the same for second views, ``(m,)``.
    """

    row_points: Tensor
    column_points: Tensor
    row_by_item: Tensor
    column_by_item: Tensor
    row_tie_thresholds: Tensor
    column_tie_thresholds: Tensor

    @classmethod
    def from_paired_points(
        cls, first: Tensor, second: Tensor, first_content_ids: Tensor, second_content_ids: Tensor
    ) -> _DistinctViews:
        """Build from paired vectors, merging the views that have equal content ids."""
        _, rows = torch.unique(first_content_ids, return_inverse=True)
        _, columns = torch.unique(second_content_ids, return_inverse=True)
        first_at, second_at = first_index_by_group(rows), first_index_by_group(columns)
        x, y = first[first_at.to(first.device)], second[second_at.to(first.device)]
        rows, columns = rows.to(x.device), columns.to(x.device)
        matched = x.new_empty(len(rows))
        for part in torch.arange(len(rows), device=x.device).split(TILE_SIZE):
            matched[part] = torch.linalg.vecdot(x[rows[part]], y[columns[part]])
        thresholds = (_compute_tie_threshold_by_point(matched, at, len(z)) for at, z in ((rows, x), (columns, y)))
        return cls(x, y, rows, columns, *thresholds)

    def swap(self) -> _DistinctViews:
        """Return the same matches with first and second views exchanged."""
        x, y, rows, columns, row_tie_thresholds, column_tie_thresholds = self
        return _DistinctViews(y, x, columns, rows, column_tie_thresholds, row_tie_thresholds)

    def iter_mismatch_cosine_tiles(self) -> Iterator[tuple[slice, slice, Tensor]]:
        """Yield tiles of the cosine matrix, with matched pairs set to minus infinity."""
        # Single precision decides most comparisons; where it is reduced further, its rounding errors have no bound.
        fast = torch.float32 if torch.get_float32_matmul_precision() == "highest" else torch.float64
        x, y = self.row_points.to(fast), self.column_points.to(fast)
        for row in range(0, len(x), TILE_SIZE):
            across = slice(row, row + TILE_SIZE)
            here = (self.row_by_item // TILE_SIZE == row // TILE_SIZE).nonzero().flatten()
            for column in range(0, len(y), TILE_SIZE):
                down = slice(column, column + TILE_SIZE)
                inside = here[self.column_by_item[here] // TILE_SIZE == column // TILE_SIZE]
                cosines = x[across] @ y[down].T
                # Matches are few, so they are taken out by index: a mask of all pairs takes as long as the product.
                cosines[self.row_by_item[inside] - row, self.column_by_item[inside] - column] = -torch.inf
                yield across, down, cosines


def _query_ranks_at(views: _DistinctViews, positions: Tensor) -> Tensor:
    """Return the best rank of each query's partners among all second views, (q,).

    The queries are first views.
    """
    chosen, at = views.row_by_item[positions].unique(return_inverse=True)
    index_in_chosen = views.row_by_item.new_full((len(views.row_points),), -1)
    index_in_chosen[chosen] = torch.arange(len(chosen), device=chosen.device)
    rows = index_in_chosen[views.row_by_item]
    has_pair = rows >= 0
    selected = views._replace(
        row_points=views.row_points[chosen],
        row_by_item=rows[has_pair],
        column_by_item=views.column_by_item[has_pair],
        row_tie_thresholds=views.row_tie_thresholds[chosen],
    )
    ranks = torch.ones_like(selected.row_tie_thresholds)
    for across, down, cosines in selected.iter_mismatch_cosine_tiles():
        x, y = selected.row_points[across], selected.column_points[down]
        ranks[across] += _count_keys_reaching(cosines, x, y, selected.row_tie_thresholds[across])
    return ranks[at].long().cpu()


def _count_keys_reaching(cosines: Tensor, query_vectors: Tensor, key_vectors: Tensor, thresholds: Tensor) -> Tensor:
    """Count the keys whose cosine reaches each query's threshold, ``(q,)``.

    `query_vectors`, ``(q, d)``, and `key_vectors`, ``(k, d)``, are unit vectors in float64, and `cosines`, ``(q, k)``,
    their cosines in any precision; minus infinity does not count.
    """
    bound = (query_vectors.shape[1] + 4) * torch.finfo(cosines.dtype).eps / 2  # on the error of a sum of d products
    least = _count_cosines_reaching(cosines, thresholds + bound)
    most = _count_cosines_reaching(cosines, thresholds - bound)
    unclear = (least != most).nonzero().flatten()
    is_nearer = (query_vectors[unclear] @ key_vectors.T >= thresholds[unclear, None]) & (cosines[unclear] > -torch.inf)
    least[unclear] = is_nearer.sum(dim=1).to(least)
    return least


def _count_cosines_reaching(cosines: Tensor, thresholds: Tensor) -> Tensor:
    """Count the cosines in each row that reach the row's threshold, `(q,)`."""
    # A sum of floats takes a fraction of the time of a sum of Booleans, and is exact in a tile.
    return torch.ge(cosines, thresholds.to(cosines)[:, None], out=torch.empty_like(cosines)).sum(dim=1)


def _compute_tie_threshold_by_point(match_cosines: Tensor, point_by_match: Tensor, num_points: int) -> Tensor:
    """Return the lowest cosine that ties with each point's best match, (points,).

    Match `k`, with cosine ``match_cosines[k]``, is one of point ``point_by_match[k]``. The tolerance applies to
    distances, which rounding moves by as much as the vectors. The cosine of nearly equal vectors moves by the square of
    that: a fixed tolerance of cosines would tie everything in a narrow cone.
    """
    best = match_cosines.new_full((num_points,), -torch.inf).scatter_reduce(0, point_by_match, match_cosines, "amax")
    distances = (2 - 2 * best).clamp(min=0).sqrt() + TIE_DISTANCE_TOLERANCE
    return 1 - distances.square() / 2
