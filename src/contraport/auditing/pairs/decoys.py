"""Decoys: pairs of a training that are known to be wrong, so that one can see how it treats wrong pairs.

A network remembers wrong pairs that it is trained on, and the more the longer. Whatever they come to score, decoys that
are trained on, left out and judged with all others come to score too.
"""

from __future__ import annotations

import torch
from torch import Tensor

from contraport.auditing.pairs.paired_features import MIN_PAIRS, ItemPairs, check_pair_count
from contraport.data import Batch, Dataset
from contraport.data.duplicate_groups import exchange_partners
from contraport.errors import check
from contraport.seeding import generator

SHARE = 0.1
FEWEST, MOST, LARGEST_SHARE = 200, 2_000, 0.2


class DecoyDataset(Dataset):
    """A dataset of `n` pairs that gives a decoy for each position from `n` on.

    The first view of decoy k is that of item ``sources[k]``, the second one that of ``partners[k]``; it has the id, the
    label and all else of its source. The length stays `n`.

    Attributes:
        decoys: which items they are made of.

    >>> import numpy as np
    >>> from contraport.data import from_arrays
    >>> pairs = from_arrays((np.arange(60.0)[:, None], np.arange(60.0)[:, None]))
    >>> decoyed = add_decoys(pairs, seed=0)
    >>> len(decoyed), len(decoyed.decoys.first)
    (60, 12)
    >>> first, second = decoyed.__getitems__([5, 60]).views
    >>> (first == second).flatten().tolist()
    [True, False]
    """

    decoys: ItemPairs

    def __getitems__(self, positions: list[int]) -> Batch:
        """Return the items and decoys at some positions as one batch."""
        own, partners = resolve_positions(torch.as_tensor(positions, dtype=torch.int64), len(self), self.decoys)
        batch = super().__getitems__(own.tolist())
        is_decoy = own != partners
        if not is_decoy.any():
            return batch
        # All of them anew, as a batch of texts is as wide as the longest of its own.
        return batch._replace(views=(batch.views[0], self.store.fetch(partners)[1]))


def resolve_positions(positions: Tensor, items: int, decoys: ItemPairs) -> tuple[Tensor, Tensor]:
    """Return of which item the first view at each position is, and of which the second, ``(b,)`` each."""
    number = (positions - items).clamp(min=0)
    is_decoy = positions >= items
    first, second = (torch.where(is_decoy, side[number], positions) for side in decoys)
    return first, second


def add_decoys(dataset: Dataset, *, seed: int) -> DecoyDataset:
    """Return a dataset of pairs with decoys: a tenth of the items, but 200 to 2,000 and at most a fifth.

    Raises:
        UsageError: the data have not two given views, items lack one, or there are fewer than 50 pairs.
    """
    check_paired_dataset(dataset)
    items = len(dataset)
    number = int(min(max(SHARE * items, FEWEST), MOST, LARGEST_SHARE * items))
    random = generator("audit.decoys", seed)
    drawn = torch.from_numpy(random.permutation(items)[:number])
    partners = exchange_partners(drawn, dataset.content_ids, random)
    decoys = ItemPairs(drawn[partners != drawn], partners[partners != drawn])
    decoyed = dataset.as_subclass(DecoyDataset)
    decoyed.decoys = decoys
    return decoyed


def check_paired_dataset(dataset: Dataset) -> None:
    """Raise `UsageError` unless a dataset is of pairs, enough to judge any, of items that differ in both."""
    views = len(dataset.shapes)
    check(
        views == 2,
        f"data: pairs are judged by two given views, and the items of {dataset.name!r} have {views}"
        + ("; views chooses two of them." if views > 2 else "."),
    )
    lacking = 0 if dataset.present is None else int((~dataset.present.all(dim=1)).sum())
    check(lacking == 0, f"data: pairs are judged by both views, and {lacking} items of {dataset.name!r} lack one.")
    check_pair_count(len(dataset))
    some = dataset.__getitems__(torch.linspace(0, len(dataset) - 1, MIN_PAIRS).long().tolist())
    for name, view in zip(dataset.view_names, some.views, strict=True):
        differ = bool((view != view[0]).any())
        check(differ, f"data: view {name!r} is the same in each of {MIN_PAIRS} items, so it tells nothing of pairs.")
