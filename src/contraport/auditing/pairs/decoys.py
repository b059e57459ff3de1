"""Decoys: pairs mismatched on purpose and trained on in an online audit, to measure the scores of wrong pairs.

A network memorizes wrong pairs, the more the longer it is trained on them. Decoys are trained on, scored and dropped
like all other pairs, so their scores rise as those of unknown wrong pairs do.
"""

from __future__ import annotations

import torch
from torch import Tensor

from contraport._utils.formatting import pluralize
from contraport.auditing.pairs.paired_features import MIN_PAIRS, PairIndices, check_pair_count
from contraport.data import Batch, Dataset
from contraport.data.duplicate_groups import permute_partners
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
        first, second = map_positions_to_items(
            torch.as_tensor(positions, dtype=torch.int64), len(self), self.decoy_pairs
        )
        batch = super().__getitems__(first.tolist())
        if torch.equal(first, second):
            return batch
        # All second views are fetched again: a batch of texts is as wide as its own longest text.
        return batch._replace(views=(batch.views[0], self.store.fetch(second)[1]))


def map_positions_to_items(positions: Tensor, items: int, decoys: PairIndices) -> tuple[Tensor, Tensor]:
    """Return the item index of the first and of the second view at each position, ``(b,)`` each."""
    number = (positions - items).clamp(min=0)
    is_decoy = positions >= items
    first, second = (torch.where(is_decoy, members[number], positions) for members in decoys)
    return first, second


def add_decoys(dataset: Dataset, *, seed: int) -> DecoyDataset:
    """Add decoys to a dataset of pairs: 10 % of the number of items, clipped to 200 to 2,000, and at most 20 %.

    Raises:
        UsageError: the data do not have two views, items lack one of them, or there are fewer than 50 pairs.
    """
    check_paired_dataset(dataset)
    items = len(dataset)
    number = int(min(max(SHARE * items, MIN_DECOYS), MAX_DECOYS, MAX_SHARE * items))
    random = numpy_generator("audit.decoys", seed)
    drawn = torch.from_numpy(random.permutation(items)[:number])
    partners = permute_partners(drawn, dataset.content_ids, random)
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
        message = f"data: view {view!r} is the same in {MIN_PAIRS} items, so pairs cannot be told apart by it."
        check(varies, message, "constant_view")
