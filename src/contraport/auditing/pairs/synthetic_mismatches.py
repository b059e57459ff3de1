"""Pairs mismatched on purpose, to measure the scores of wrong pairs.

An online audit trains on such pairs, called decoys: a network memorizes wrong pairs, the more the longer it is trained
on them, and decoys are trained on, scored and dropped like all other pairs, so their scores rise as those of unknown
wrong pairs do. In a cross-fit, items exchange their second views within small groups.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from contraport._utils.formatting import pluralize
from contraport.auditing.pairs.paired_features import MIN_PAIRS, PairIndices, check_pair_count
from contraport.data import Batch, Dataset
from contraport.data.duplicate_groups import break_same_content_pairs, draw_wrong_partners, group_by_content
from contraport.data.splits import max_held_out_group_size
from contraport.errors import check
from contraport.seeding import numpy_generator

SHARE = 0.1
MIN_DECOYS, MAX_DECOYS, MAX_SHARE = 200, 2_000, 0.2


class DecoyDataset(Dataset):
    """Dataset of `n` pairs that also has decoys, mismatched pairs at positions from `n` on; the length stays `n`.

    Decoy k has the first view of item ``decoy_pairs.first[k]`` and the second view of ``decoy_pairs.second[k]``. Its
    id, label and all else are those of the former.

    Attributes:
        decoy_pairs: items whose first views and items whose second views make up the decoys, ``(d,)`` each.

    >>> import numpy as np
    >>> from contraport.data import from_arrays
    >>> pairs = from_arrays((np.arange(60.0)[:, None], np.arange(60.0)[:, None]))
    >>> dataset = add_decoys(pairs, seed=0)
    >>> len(dataset), len(dataset.decoy_pairs.first)
    (60, 12)
    >>> first, second = dataset.__getitems__([5, 60]).views
    >>> (first == second).flatten().tolist()
    [True, False]
    """

    decoy_pairs: PairIndices

    def __getitems__(self, positions: list[int]) -> Batch:
        """Return the batch of the pairs and decoys at the given positions."""
        places = torch.as_tensor(positions, dtype=torch.int64)
        is_decoy, number = places >= len(self), (places - len(self)).clamp(min=0)
        first, second = (torch.where(is_decoy, items[number], places) for items in self.decoy_pairs)
        batch = super().__getitems__(first.tolist())
        if torch.equal(first, second):
            return batch
        # All second views are fetched again: a batch of texts is as wide as its own longest text.
        return batch._replace(views=(batch.views[0], self.store.fetch(second)[1]))


def add_decoys(dataset: Dataset, *, seed: int) -> DecoyDataset:
    """Add decoys to a dataset of pairs: 10 % of the number of items, clipped to 200 to 2,000, and at most 20 %."""
    check_paired_dataset(dataset)
    items = len(dataset)
    number = int(min(max(SHARE * items, MIN_DECOYS), MAX_DECOYS, MAX_SHARE * items))
    random = numpy_generator("audit.decoys", seed)
    drawn = torch.from_numpy(random.permutation(items)[:number])
    partners = draw_wrong_partners(drawn, dataset.content_ids, random)
    decoys = PairIndices(drawn[partners != drawn], partners[partners != drawn])
    decoyed = dataset.as_subclass(DecoyDataset)
    decoyed.decoy_pairs = decoys
    return decoyed


def check_paired_dataset(dataset: Dataset) -> None:
    """Raise `UsageError` unless a dataset has two complete, varying views and enough pairs for an audit."""
    views, name = len(dataset.shapes), repr(dataset.name)
    choice = " Choose two with views." if views > 2 else ""
    check(
        views == 2,
        f"data: must have two views for an audit, got {pluralize(views, 'view')} in {name}.{choice}",
        "views",
    )
    lacking = 0 if dataset.present is None else int((~dataset.present.all(dim=1)).sum())
    message = f"data: must have both views of every item for an audit, got {lacking} items of {name} with one view."
    check(lacking == 0, message, "missing_views")
    check_pair_count(len(dataset))
    # A few items suffice: reading all of them could take minutes.
    some = dataset.__getitems__(torch.linspace(0, len(dataset) - 1, MIN_PAIRS).long().tolist())
    for view, values in zip(dataset.view_names, some.views, strict=True):
        varies = bool((values != values[0]).any())
        message = f"data: view {view!r} is the same in {MIN_PAIRS} items, so it cannot distinguish pairs."
        check(varies, message, "constant_view")


ExchangeGroup = tuple[Tensor, ...]
"""Two or three sets of items that exchange partners; the items of a set share content, mostly it is one item."""


def draw_exchange_groups(dataset: Dataset, *, seed: int) -> tuple[ExchangeGroup, ...]:
    """Draw random groups of two item sets of similar size to exchange partners; equal contents are in one set.

    If the number of sets is odd, the last group has three.

    >>> from contraport.data import from_arrays
    >>> dataset = from_arrays((np.arange(7.0)[:, None], np.arange(7.0)[:, None]))
    >>> [len(group) for group in draw_exchange_groups(dataset, seed=0)]
    [2, 2, 3]
    """
    random, ids = numpy_generator("audit.exchange", seed), dataset.content_ids
    largest = max_held_out_group_size(len(dataset), None)
    set_of = np.arange(len(dataset)) if ids is None else group_by_content(ids, largest).group_ids
    sizes, members = np.bincount(set_of), np.argsort(set_of, kind="stable")
    sets = torch.from_numpy(members).split(sizes.tolist())
    order = random.permutation(len(sets))
    order = order[np.argsort(sizes[order], kind="stable")]
    first, second = order[: len(order) - 1 : 2], order[1::2].copy()
    if ids is not None:
        content = ids.numpy()[members[sizes.cumsum() - sizes]]
        break_same_content_pairs(first, second, content, random)
    groups = [[one, other] for one, other in zip(first.tolist(), second.tolist(), strict=True)]
    if len(order) % 2:
        groups[-1].append(int(order[-1]))
    return tuple(tuple(sets[number] for number in group) for group in groups)


def rotate_partners(groups: tuple[ExchangeGroup, ...]) -> Tensor:
    """Return mismatched partners, int64 ``(n,)``: within a group, each item set gets the partners of the preceding set.

    >>> rotate_partners((tuple(torch.tensor([[0], [2]])), tuple(torch.tensor([[1], [3], [4]])))).tolist()
    [2, 4, 0, 1, 3]
    """
    sets = [items for group in groups for items in group]
    sizes = torch.tensor([items.numel() for items in sets])
    preceding = torch.arange(len(sets)) - 1  # the first set of a group is preceded by its last
    lengths = torch.tensor([len(group) for group in groups])
    ends = lengths.cumsum(0)
    preceding[ends - lengths] = ends - 1
    # All sets at once: a loop over half a million groups takes minutes.
    items, starts, set_of = torch.cat(sets), sizes.cumsum(0) - sizes, torch.arange(len(sets)).repeat_interleave(sizes)
    others = preceding[set_of]
    partners = torch.empty_like(items)
    partners[items] = items[starts[others] + (torch.arange(len(items)) - starts[set_of]) % sizes[others]]
    return partners
