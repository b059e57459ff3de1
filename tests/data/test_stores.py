"""What stores over other ones give, and what they pass on."""

import numpy as np
import torch

from contraport.data import from_arrays
from contraport.data.stores import MultiViewStore, SubsetStore, ViewSubsetStore, combine_views

ITEMS = from_arrays((np.arange(5.0)[:, None], np.arange(10.0).reshape(5, 2)))


def test_chosen_items_are_those_at_the_positions() -> None:
    chosen = SubsetStore(ITEMS.store, torch.tensor([4, 1, 3]))
    first, second = chosen.fetch_views(torch.tensor([2, 0]))
    assert first.flatten().tolist() == [3, 4]
    assert second.tolist() == [[6, 7], [8, 9]]
    assert len(chosen) == 3
    assert (chosen.shapes, chosen.is_in_memory) == (ITEMS.shapes, ITEMS.is_in_memory)


def test_chosen_views_keep_their_items() -> None:
    chosen = ViewSubsetStore(ITEMS.store, (1,))
    (only,) = chosen.fetch_views(torch.tensor([4]))
    assert only.tolist() == [[8, 9]]
    assert (chosen.shapes, len(chosen)) == (((2,),), 5)


def test_joined_stores_give_all_views() -> None:
    store = ITEMS.store
    assert combine_views([store]) is store
    both = combine_views([store, ViewSubsetStore(store, (0,))])
    assert isinstance(both, MultiViewStore)
    assert [view.tolist() for view in both.fetch_views(torch.tensor([3]))] == [[[3]], [[6, 7]], [[3]]]
