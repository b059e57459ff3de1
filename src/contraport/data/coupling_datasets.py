"""Datasets of weighted pairs between two different sets, such as users and items."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from contraport.data.array_datasets import ArrayLikeOrTensor, as_weight_per_item, from_arrays
from contraport.data.dataset import Dataset
from contraport.data.duplicate_groups import digest_rows
from contraport.data.splits import select_split_positions
from contraport.data.stores import Shape, Store
from contraport.errors import check

COUPLING_VIEW_NAMES = ("row", "column")
"""Names of the two views of a coupling."""


@dataclass(frozen=True)
class EntityPairStore(Store):
    """Store of pairs whose two views come from two different stores.

    Attributes:
        side_stores: stores of the rows and of the columns, of one view each.
        entity_ids: row and column of each pair, int64 ``(n, 2)``.
    """

    side_stores: tuple[Store, Store]
    entity_ids: Tensor

    @property
    def shapes(self) -> tuple[Shape, ...]:
        return self.side_stores[0].shapes + self.side_stores[1].shapes

    @property
    def is_in_memory(self) -> bool:
        return all(side.is_in_memory for side in self.side_stores)

    @cached_property
    def view_content_digests(self) -> Tensor | None:
        """Content digest of each pair, repeated for both views, int64 ``(n, 2)``.

        The digest is that of the pair and not of its row or column: a row has pairs in the training and in the test
        split, and a test pair is new as long as the pair itself was not trained on.
        """
        rows, columns = (side.view_content_digests for side in self.side_stores)
        if rows is None or columns is None:
            return None
        pairs = torch.stack([rows[self.entity_ids[:, 0], 0], columns[self.entity_ids[:, 1], 0]], dim=1)
        return digest_rows(pairs)[:, None].expand(-1, 2)

    def __len__(self) -> int:
        return len(self.entity_ids)

    def fetch_views(self, positions: Tensor) -> tuple[Tensor, ...]:
        ids = self.entity_ids[positions]
        return self.side_stores[0].fetch_views(ids[:, 0]) + self.side_stores[1].fetch_views(ids[:, 1])


def from_coupling(
    rows: Any,
    columns: Any,
    pairs: ArrayLikeOrTensor,
    weights: ArrayLikeOrTensor | None = None,
    *,
    name: str = "coupling",
    split: str = "train",
    test_fraction: float | None = None,
    is_test: NDArray[np.bool_] | None = None,
) -> Dataset:
    """Build a dataset of the pairs of a coupling between two sets.

    The views of a pair are its row and its column. A row and a column may each be in several pairs. Known partners are
    never negatives of one another: the default target of a training spreads the mass of each row over all its partners
    in the batch.

    Args:
        rows: the rows, one view: an array or a list of texts as in `from_arrays`, or a `Dataset`.
        columns: the columns, likewise; of another kind and shape than the rows, if need be.
        pairs: row and column of each pair, integers ``(n, 2)``. Repeated pairs are merged.
        weights: weight of each pair, such as a count or a rating, nonnegative ``(n,)``; those of repeated pairs add up.
        name: name of the data, for messages.
        split: "train" or "test".
        test_fraction: fraction of the pairs to hold out; default: 0.2; 0 holds out none.
        is_test: mask of the pairs of the test split, in place of a random fraction.

    Raises:
        UsageError: wrong shapes, an index out of range, or a side with several views.

    >>> import numpy as np
    >>> users, items = np.eye(3, 4), ["tea", "coffee"]
    >>> data = from_coupling(users, items, [[0, 0], [0, 1], [2, 1]], test_fraction=0)
    >>> data.shapes, data.view_names, data.entity_ids.tolist()
    (((4,), ()), ('row', 'column'), [[0, 0], [0, 1], [2, 1]])
    """
    sides: list[Dataset] = []
    for argument, values in (("rows", rows), ("columns", columns)):
        side = values if isinstance(values, Dataset) else from_arrays(values, argument=argument, name=argument)
        message = f"{argument}: must have one view, got {len(side.shapes)}: {side.view_names}."
        check(len(side.shapes) == 1, message, "views")
        sides.append(side)
    ids = np.asarray(pairs)
    good = ids.ndim == 2 and ids.shape[1] == 2 and len(ids) > 0 and ids.dtype.kind in "iu"
    check(good, f"pairs: must be integers (n, 2), the row and column of each pair, got {ids.dtype} {ids.shape}.")
    for column, (argument, side) in enumerate(zip(("rows", "columns"), sides, strict=True)):
        largest, smallest = int(ids[:, column].max()), int(ids[:, column].min())
        message = (
            f"pairs: must be from 0 to {len(side) - 1} in column {column} ({argument}), got {smallest}..{largest}."
        )
        check(smallest >= 0 and largest < len(side), message, "out_of_range")
    pair_weights = None if weights is None else as_weight_per_item("weights", weights)
    if pair_weights is not None:
        message = f"weights: must be one per pair, ({len(ids)},), got {tuple(pair_weights.shape)}."
        check(pair_weights.shape == (len(ids),), message, "shape")
    codes = ids[:, 0].astype(np.int64) * len(sides[1]) + ids[:, 1]
    _, first, index = np.unique(codes, return_index=True, return_inverse=True)
    order = np.argsort(first)  # distinct pairs in the order in which they first occur
    distinct = first[order]
    if pair_weights is not None:
        place = torch.from_numpy(np.argsort(order)[index])
        pair_weights = pair_weights.new_zeros(len(distinct)).index_add(0, place, pair_weights)
    mask = None if is_test is None else np.asarray(is_test, dtype=bool)[distinct]
    positions = select_split_positions(split, len(distinct), is_test=mask, labels=None, test_fraction=test_fraction)
    check(len(positions) > 0, f"data: {name!r} has no pair in its {split} split.", "empty")
    number_held_out = len(positions) if split == "test" else len(distinct) - len(positions)
    chosen = distinct[positions]
    entity_ids = torch.from_numpy(ids[chosen].astype(np.int64))
    # An entity without a key is named by its number.
    entity_keys = tuple(list(map(str, range(len(side)))) if side.keys is None else side.keys for side in sides)
    keys = None
    if any(side.keys is not None for side in sides):
        keys = [f"{entity_keys[0][row]} | {entity_keys[1][column]}" for row, column in ids[chosen].tolist()]
    return Dataset(
        EntityPairStore((sides[0].store, sides[1].store), entity_ids),
        name=name,
        split=split,
        weights=None if pair_weights is None else pair_weights[torch.from_numpy(positions)],
        num_random_test_items=number_held_out if mask is None else None,
        source_rows=torch.from_numpy(chosen),
        keys=keys,
        view_names=COUPLING_VIEW_NAMES,
        column_names=tuple(side.column_names[0] for side in sides),
        entity_ids=entity_ids,
        entity_keys=entity_keys,
    )
