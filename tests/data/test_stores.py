"""Stores of subsets of items, of views, and of combined views."""

import numpy as np
import torch

from contraport.data import from_arrays
from contraport.data.stores import CombinedViewsStore, SubsetStore, ViewSubsetStore, combine_views

ITEMS = from_arrays((np.arange(5.0)[:, None], np.arange(10.0).reshape(5, 2)))


def test_subset_has_the_items_at_its_positions() -> None:
    subset = SubsetStore(ITEMS.store, torch.tensor([4, 1, 3]))
    first, second = subset.fetch_views(torch.tensor([2, 0]))
    assert first.flatten().tolist() == [3, 4]
    assert second.tolist() == [[6, 7], [8, 9]]
    assert len(subset) == 3
    assert (subset.shapes, subset.is_in_memory) == (ITEMS.shapes, ITEMS.is_in_memory)


def test_view_subset_has_all_items() -> None:
    subset = ViewSubsetStore(ITEMS.store, (1,))
    (only,) = subset.fetch_views(torch.tensor([4]))
    assert only.tolist() == [[8, 9]]
    assert (subset.shapes, len(subset)) == (((2,),), 5)


def test_combined_stores_have_all_views() -> None:
    store = ITEMS.store
    assert combine_views([store]) is store
    combined = combine_views([store, ViewSubsetStore(store, (0,))])
    assert isinstance(combined, CombinedViewsStore)
    assert [view.tolist() for view in combined.fetch_views(torch.tensor([3]))] == [[[3]], [[6, 7]], [[3]]]
