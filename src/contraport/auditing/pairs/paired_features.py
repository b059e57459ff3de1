"""Features of paired items in two views, with neighbors in each view."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import NamedTuple, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from contraport._utils.vector_search import (
    MAX_NORMALIZED_COPY_VALUES,
    CellSearch,
    ComputedRows,
    TensorOrComputedRows,
    inner_products_of_all_row_pairs,
    mean_top_products,
    select_rows,
    top_indices,
    top_products_and_indices,
)
from contraport.auditing.pairs.canonical_maps import CanonicalMaps, cross_fit_canonical_maps
from contraport.data import Dataset, Views
from contraport.data.stores import Store
from contraport.embedding import LoaderConfig, extract_item_features
from contraport.encoders import Model
from contraport.engine import normalize, normalize_rows_by_max_then_norm
from contraport.errors import check
from contraport.seeding import numpy_generator, torch_generator

NUM_NEIGHBORS = 15
"""Number of neighbors of an item by which its pair is scored."""

MIN_PAIRS = 50
"""Minimum number of pairs of an audit; fewer give too few scores to tell wrong pairs from right ones."""

MAX_REFERENCE_ITEMS = 1_024
"""Maximum number of random items against which ranks and hubs are measured: all items would take O(n^2) time."""

MAX_EXACT_NEIGHBOR_ITEMS = 20_000
"""Maximum number of items for exact nearest neighbors, in O(n^2) time; of more items they are found by cells."""

MAX_SIMILARITY_MATRIX_ITEMS = 4_096
"""Maximum number of items whose similarities within a view are all kept, in 64 MiB per view: neighbors and ranks take
them from there. Of more items they are computed where needed."""

SIMILARITY_TIE_TOLERANCE = 1e-6
"""Similarities that differ by at most this are ties: equal items differ by rounding alone."""

CORRELATION_POWERS_BY_DIRECTION = ((1, 2), (2, 1))
"""Powers of the correlations that weight the canonical coordinates of both views, for each direction of prediction:
the prediction from one view is weighted by the correlation, the predictable part of the other view by its square."""

CoordinatesByDirection = tuple[tuple[Tensor, Tensor], ...]
"""Canonical coordinates of both views for each direction of prediction."""

MAX_VALUES_PER_BLOCK = 2**20
"""Maximum number of values of a block of rows: larger blocks leave the cache of the processor."""


class PairIndices(NamedTuple):
    """Indices of the two items of each pair, int64 ``(p,)`` per view."""

    first: Tensor
    second: Tensor


@dataclass(frozen=True, eq=False)
class PairedFeatures:
    """Features of `n` items in two views, with neighbors within each view.

    Args:
        features: ``(n, F)`` and ``(n, G)``, finite, each in its own space; no row of zeros. They are normalized to unit
            length; rows that are computed when they are read, such as those of a file, have it already.
        embeddings: ``(n, P)`` twice, in one space where both views of an item should be close; default: none.
        neighbor_pool: int64 ``(m,)``, the items that may be neighbors; default: all.
        num_neighbors: number of neighbors of each item in a view.
        are_normalized: whether the rows of features and embeddings have unit length already, in single precision.

    Raises:
        UsageError: too small a pool.

    >>> u = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    >>> paired = PairedFeatures((u, u.flip(1)))
    >>> paired.neighbors_in_pool_by_view[0].shape
    torch.Size([60, 17])
    """

    features: tuple[TensorOrComputedRows, TensorOrComputedRows]
    embeddings: tuple[TensorOrComputedRows, TensorOrComputedRows] | None = None
    neighbor_pool: Tensor | None = None
    num_neighbors: int = NUM_NEIGHBORS
    are_normalized: bool = False
    _original: PairedFeatures | None = field(default=None, init=False, repr=False)
    """Original that `with_neighbor_pool` was called on, whose neighbors and ranks are reused; None for an original."""

    def __post_init__(self) -> None:
        normalized: dict[int, Tensor] = {}
        for name in ("features", "embeddings"):
            views = getattr(self, name)
            if views is not None and not self.are_normalized:
                for values in views:
                    if id(values) not in normalized:  # the same vectors may be features and embeddings
                        normalized[id(values)] = normalize(values.float())
                object.__setattr__(self, name, tuple(normalized[id(values)] for values in views))
        self._check_enough_neighbor_candidates()

    def __len__(self) -> int:
        return len(self.features[0])

    @cached_property
    def observed_pair_indices(self) -> PairIndices:
        """Indices that pair each item's first view with its own second view."""
        items = torch.arange(len(self), device=self.features[0].device)
        return PairIndices(items, items)

    def with_neighbor_pool(self, neighbor_pool: Tensor) -> Self:
        """Return a copy that looks for neighbors only among the given items.

        >>> u = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
        >>> whole = PairedFeatures((u, u))
        >>> half = whole.with_neighbor_pool(torch.arange(30))
        >>> int(half.neighbors_in_pool_by_view[0].max()) < 30, half.features is whole.features
        (True, True)
        """
        other = copy.copy(self)
        maps = ("cross_fitted_canonical_maps", "reference_cca_coordinates_by_fold")
        for name in ("neighbors_in_pool_by_view", *maps, "observed_score_cache"):
            other.__dict__.pop(name, None)
        object.__setattr__(other, "neighbor_pool", neighbor_pool)
        object.__setattr__(other, "_original", self if self._original is None else self._original)
        other._check_enough_neighbor_candidates()
        return other

    def _check_enough_neighbor_candidates(self) -> None:
        """Raise `UsageError` if there are too few candidate neighbors."""
        fewest, size = self.num_neighbors + 2, len(self.neighbor_pool_items)
        check(size >= fewest, f"neighbor_pool: must have at least {fewest} items, got {size}.")

    @property
    def neighbor_pool_items(self) -> Tensor:
        """Items among which neighbors are searched, ``(m,)``."""
        return self.observed_pair_indices.first if self.neighbor_pool is None else self.neighbor_pool

    @cached_property
    def observed_score_cache(self) -> dict[str, Tensor]:
        """Cached scores of the observed pairs, ``(n,)``, by name of the statistic."""
        return {}

    @cached_property
    def reference_sample_indices(self) -> Tensor:
        """Sorted indices of a random sample of reference items, ``(r,)``.

        Ranks and hub corrections are computed against them. Items outside the pool count too: a wrong pair consists of
        two right members.
        """
        if len(self) <= MAX_REFERENCE_ITEMS:
            return self.observed_pair_indices.first
        drawn = numpy_generator("audit.references", len(self)).choice(len(self), MAX_REFERENCE_ITEMS, replace=False)
        return torch.from_numpy(np.sort(drawn)).to(self.features[0].device)

    @cached_property
    def _similarity_matrices(self) -> tuple[Tensor, Tensor] | None:
        """Similarity matrix of each view, ``(n, n)``, or None if too large."""
        if self._original is not None:
            return self._original._similarity_matrices
        if len(self) > MAX_SIMILARITY_MATRIX_ITEMS:
            return None
        first, second = self.features
        return inner_products_of_all_row_pairs(first[:]), inner_products_of_all_row_pairs(second[:])

    def _nearest_candidates_of_items(self, view: int, candidates: Tensor, count: int) -> Tensor:
        """Return the candidates nearest to each item in a view, int64 ``(n, count)``."""
        if self._similarity_matrices is None:
            return self.nearest_candidate_indices(self.features[view], self.features[view], candidates, count)
        blocks = split_into_row_blocks(self._similarity_matrices[view], len(candidates))
        if len(candidates) < len(self):
            blocks = tuple(block.index_select(1, candidates) for block in blocks)
        return candidates[torch.cat([top_indices(block, count) for block in blocks])]

    @cached_property
    def neighbors_with_self_by_view(self) -> tuple[Tensor, Tensor]:
        """Indices of the items nearest to each item, itself included, by view."""
        items, count = self.observed_pair_indices.first, min(2 * (self.num_neighbors + 2), len(self))
        return self._nearest_candidates_of_items(0, items, count), self._nearest_candidates_of_items(1, items, count)

    @cached_property
    def neighbors_in_pool_by_view(self) -> tuple[Tensor, Tensor]:
        """Indices of each item's nearest pool items, possibly itself, ``(n, k)`` per view."""
        # Two more than needed: `neighbors_by_view_excluding_members` removes the two members of a pair.
        count = self.num_neighbors + 2
        if self.neighbor_pool is None:
            first, second = self.neighbors_with_self_by_view
            return first[:, :count], second[:, :count]
        if self._original is None or self._original.neighbor_pool is not None:
            first, second = (self._nearest_candidates_of_items(view, self.neighbor_pool, count) for view in (0, 1))
            return first, second
        in_pool = torch.zeros(len(self), dtype=torch.bool, device=self.neighbor_pool.device)
        in_pool[self.neighbor_pool] = True
        indices_by_view = []
        for values, nearest in zip(self.features, self._original.neighbors_with_self_by_view, strict=True):
            blocks, counts = [], []
            for block in split_into_row_blocks(nearest, nearest.shape[1]):
                inside = in_pool[block]
                order = inside.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :count]
                blocks.append(block.gather(1, order))
                counts.append(inside.sum(dim=1))
            chosen, short = torch.cat(blocks), (torch.cat(counts) < count).nonzero().flatten()
            if len(short) > 0:
                queries = select_rows(values, short)
                chosen[short] = self.nearest_candidate_indices(queries, values, self.neighbor_pool, count)
            indices_by_view.append(chosen)
        return indices_by_view[0], indices_by_view[1]

    @staticmethod
    def nearest_candidate_indices(
        queries: TensorOrComputedRows, values: TensorOrComputedRows, shared_candidates: Tensor, count: int
    ) -> Tensor:
        """Return the indices of the candidates nearest to each query, int64 ``(q, count)``.

        The nearest comes first. The search is exact for up to 20,000 queries and candidates, or as many products. A
        larger search is by cells, and finds most of the nearest candidates.
        """
        if len(queries) * len(shared_candidates) > MAX_EXACT_NEIGHBOR_ITEMS**2:
            generator = torch_generator("audit.cells", len(values), len(shared_candidates))
            return CellSearch(values, shared_candidates, generator).nearest_row_indices(queries, count)
        return shared_candidates[top_products_and_indices(queries, select_rows(values, shared_candidates), count)[1]]

    def neighbors_by_view_excluding_members(self, pairs: PairIndices) -> tuple[Tensor, Tensor]:
        """Return the nearest items of each pair in each view, without the pair's own items.

        A member among the neighbors would confirm its own pair, or in a re-paired one the pair that it comes from.
        """
        members = torch.stack(pairs, dim=1)
        near = []
        for nearest, own in zip(self.neighbors_in_pool_by_view, pairs, strict=True):
            of_pairs = nearest[own]
            is_member = (of_pairs[:, :, None] == members[:, None]).any(dim=2)
            order = is_member.to(torch.uint8).argsort(dim=1, stable=True)[:, : self.num_neighbors]
            near.append(of_pairs.gather(1, order))
        return near[0], near[1]

    def neg_log_reference_rank_shares(self, view: int, queries: Tensor, candidates_by_query: Tensor) -> Tensor:
        """Return -log of the relative rank of each query's candidates, ``(p, k)``.

        The relative rank is the share of references at least as near to the query. It is uniform for a random item,
        so the mean is 1 in every space. Ties count as one group.
        """
        values, thresholds = self.features[view], self._similarities_at_ranks_by_view[view]
        if self._similarity_matrices is not None:
            similarity = self._similarity_matrices[view][queries[:, None], candidates_by_query]
        else:
            # Filled in place: small results that are kept between large temporary blocks would scatter the heap.
            similarity = torch.empty(candidates_by_query.shape, dtype=torch.float32, device=values.device)
            width = candidates_by_query.shape[1] * values.shape[1]
            for rows in split_into_row_blocks(torch.arange(len(queries), device=values.device), width):
                k = candidates_by_query[rows]
                near = values.index_select(0, k.flatten()).unflatten(0, k.shape)
                similarity[rows] = torch.einsum("pf,pkf->pk", values[queries[rows]], near)
        passed = torch.searchsorted(-thresholds[queries], SIMILARITY_TIE_TOLERANCE - similarity, right=True)
        shares = self._log_spaced_ranks / (len(self.reference_sample_indices) - 1)
        return -shares[(passed - 1).clamp(min=0)].log()

    @cached_property
    def _log_spaced_ranks(self) -> Tensor:
        """At most 64 log-spaced neighbor ranks, from nearest to farthest, ``(r,)``.

        Only the log of a rank is used, so that few ranks suffice. An item's rank excludes the item itself.
        """
        number = len(self.reference_sample_indices) - 1
        ranks: Tensor = torch.logspace(0, math.log10(number), 64).round().clamp(max=number).unique()
        return ranks.to(self.features[0].device)

    @cached_property
    def _similarities_at_ranks_by_view(self) -> tuple[Tensor, Tensor]:
        """Similarities of each item to its neighbors at log-spaced ranks, ``(n, r)`` per view."""
        if self._original is not None:
            return self._original._similarities_at_ranks_by_view
        references, thresholds_by_view = self.reference_sample_indices, []
        reference_of = torch.full((len(self),), -1, device=references.device)
        reference_of[references] = torch.arange(len(references), device=references.device)
        for view, values in enumerate(self.features):
            compared, thresholds = values[references], []
            for items in split_into_row_blocks(self.observed_pair_indices.first, len(references)):
                if self._similarity_matrices is None:
                    similarity = values[items] @ compared.T
                else:
                    similarity = self._similarity_matrices[view][items[0] : items[-1] + 1].index_select(1, references)
                places = reference_of[items]
                own = (places >= 0).nonzero().flatten()
                similarity[own, places[own]] = -torch.inf
                if values.device.type == "cpu":
                    # On the CPU, NumPy sorts in a thirtieth of torch's time, as torch computes the indices too.
                    similarity.numpy().sort(axis=1)
                else:
                    similarity = similarity.sort(1).values
                thresholds.append(similarity[:, -self._log_spaced_ranks.long()])
            thresholds_by_view.append(torch.cat(thresholds))
        return thresholds_by_view[0], thresholds_by_view[1]

    @cached_property
    def cross_fitted_canonical_maps(self) -> CanonicalMaps:
        """Linear CCA maps of both views for each fold, fitted on the other folds."""
        return cross_fit_canonical_maps(self.features, self.neighbor_pool_items)

    @cached_property
    def reference_cca_coordinates_by_fold(self) -> tuple[CoordinatesByDirection, ...]:
        """CCA coordinates of the reference items in both views, by fold and predicted view."""
        centers, _, maps, correlations = self.cross_fitted_canonical_maps
        folds = []
        for fold_maps, weights in zip(maps, correlations, strict=True):
            first, second = (
                (values[self.reference_sample_indices] - center) @ linear
                for values, center, linear in zip(self.features, centers, fold_maps, strict=True)
            )
            folds.append(
                tuple(
                    (F.normalize(first * weights**a, dim=1), F.normalize(second * weights**b, dim=1))
                    for a, b in CORRELATION_POWERS_BY_DIRECTION
                )
            )
        return tuple(folds)

    def load_embeddings(self) -> tuple[Tensor, Tensor]:
        """Load the embeddings of both views into memory."""
        assert self.embeddings is not None
        return self.embeddings[0][:], self.embeddings[1][:]

    @cached_property
    def hub_similarities_by_view(self) -> tuple[Tensor, Tensor]:
        """Mean similarity of each embedding to the nearest embeddings of the other view."""
        x, y = self.load_embeddings()
        return mean_top_products(x, y, self.num_neighbors), mean_top_products(y, x, self.num_neighbors)


def split_into_row_blocks(values: Tensor, width: int) -> tuple[Tensor, ...]:
    """Split a tensor into blocks of rows that fit the processor's cache."""
    blocks: tuple[Tensor, ...] = values.split(max(1, MAX_VALUES_PER_BLOCK // max(1, width)))
    return blocks


def average_neighbor_rows(values: TensorOrComputedRows, neighbors: Tensor) -> Tensor:
    """Return, for each item, the mean of the rows of `values` at its `neighbors`, ``(p, F)``."""
    if isinstance(values, ComputedRows):
        blocks = split_into_row_blocks(neighbors, neighbors.shape[1] * values.shape[1])
        return torch.cat([values[block.flatten()].unflatten(0, block.shape).mean(dim=1) for block in blocks])
    return F.embedding_bag(neighbors, values, mode="mean")  # does not materialize (p, k, F)


MAX_WIDTH_TO_SCORE_INPUT_VECTORS = 1_024
"""Maximum width of input vectors that are scored beside an encoder's features: the time grows with its cube."""


def has_only_vector_views(dataset: Dataset, *, max_width: int | None = None) -> bool:
    """Return whether all views are vectors of at most `max_width` entries.

    >>> from contraport.data import from_arrays
    >>> pairs = from_arrays((torch.zeros(60, 3), torch.zeros(60, 8)))
    >>> has_only_vector_views(pairs), has_only_vector_views(pairs, max_width=5)
    (True, False)
    """
    return all(len(shape) == 1 and (max_width is None or shape[0] <= max_width) for shape in dataset.shapes)


def load_vector_pairs(dataset: Dataset) -> PairedFeatures:
    """Load a dataset of vectors, which are used as features themselves.

    Views of equal width are treated as one embedding space. Of many vectors no copy is made: rows are read from the
    data, and normalized, where they are needed.
    """
    features: list[TensorOrComputedRows] = []
    widths = [shape[0] for shape in dataset.shapes]
    is_copied = len(dataset) * sum(widths) <= MAX_NORMALIZED_COPY_VALUES
    for view, width in enumerate(widths):
        store = dataset.store.select_views((view,))
        maxima_and_norms = torch.empty(2, len(dataset), 1, dtype=torch.float32)
        values = torch.empty(len(dataset), width, dtype=torch.float32) if is_copied else None
        for rows in split_into_row_blocks(torch.arange(len(dataset)), width):
            block = store.fetch_views(rows)[0].float()
            units, (maxima_and_norms[0, rows], maxima_and_norms[1, rows]) = normalize_rows_by_max_then_norm(block, 1.0)
            if values is not None:
                values[rows] = units
        computed = ComputedRows(partial(_read_unit_rows, store, maxima_and_norms), (len(dataset), width))
        features.append(computed if values is None else values)
    first, second = features
    embeddings = (first, second) if widths[0] == widths[1] else None
    return PairedFeatures((first, second), embeddings, are_normalized=True)


def _read_unit_rows(store: Store, maxima_and_norms: Tensor, rows: Tensor) -> Tensor:
    """Return the given rows of a view, scaled to unit length."""
    unscaled = store.fetch_views(rows)[0].float()
    return (unscaled / maxima_and_norms[0].index_select(0, rows)).div_(maxima_and_norms[1].index_select(0, rows))


def encode_pairs(
    model: Model, dataset: Dataset, views: Views, loader_config: LoaderConfig, *, neighbor_pool: Tensor | None = None
) -> PairedFeatures:
    """Compute the features and the embeddings (projections) of all pairs with a model.

    The mode and device of the model stay as they are.
    """
    (first, second), (x, y) = encode_and_project_views(model, dataset, views, loader_config)
    return PairedFeatures((first, second), (x, y) if x.shape == y.shape else None, neighbor_pool)


def encode_and_project_views(
    model: Model, dataset: Dataset, views: Views, loader_config: LoaderConfig
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return the features and the projections of all items, one tensor per view each.

    The mode and device of the model stay as they are.
    """
    loader_config = loader_config._replace(device=next(model.parameters()).device)

    def features_and_projections(*inputs: Tensor) -> Tensor:
        features = model.encode(inputs)
        return torch.cat([*features, *model.project(features)], dim=1)

    values = extract_item_features(model, dataset, views, loader_config, "pairs", function=features_and_projections)
    places, sizes = range(len(dataset.shapes)), ("num_features", "projection_width")
    widths = [getattr(model.tower(view), size) for size in sizes for view in places]
    encoded: tuple[Tensor, ...] = values.split(widths, dim=1)
    return encoded[: len(places)], encoded[len(places) :]
