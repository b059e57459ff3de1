"""Pairs mismatched on purpose, to measure the scores of wrong pairs.

An online audit trains on such pairs, called decoys: a network memorizes wrong pairs, the more the longer it is trained
on them, and decoys are trained on, scored and dropped like all other pairs, so their scores rise as those of unknown
wrong pairs do. In a cross-fit, items exchange their second views within small groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from contraport.auditing.pairs.paired_features import MIN_PAIRS, PairIndices
from contraport.data import Batch, Dataset
from contraport.data.duplicate_groups import group_by_shared_content
from contraport.data.formats.tables import check_several_views
from contraport.data.mismatches_and_corruptions import assign_wrong_partners, swap_correct_pairs
from contraport.data.splits import max_held_out_group_size
from contraport.errors import UsageError, check
from contraport.seeding import numpy_generator

DECOY_SHARE = 0.1
"""Number of decoys of each pair of views, as a share of the items."""

MIN_DECOYS, MAX_DECOYS, MAX_DECOY_SHARE = 200, 2_000, 0.2
"""Bounds of the number of decoys of each pair of views, and of all decoys as a share of the items."""


class DatasetWithDecoysPastEnd(Dataset):
    """Dataset with deliberate mismatches (decoys) appended to its items.

    Its length is the number `n` of items: decoys are fetched by position but not counted.

    Decoy k is item ``decoy_pairs.first[k]``, with one view of item ``decoy_pairs.second[k]``. Its id, label and all
    else are those of the former.

    Attributes:
        decoy_pairs: items that the decoys are made of, and items that one of their views is from, ``(d,)`` each.
        replaced_view_indices: index of the view of each decoy that is from the other item, int64 ``(d,)``; of two
            views it is the second.
        trusted_view_mask: mask of the views that are trained on, of all items and decoys, Booleans ``(n + d,
            views)``; None with two views. It is in shared memory, so that the processes of a loader see changes.

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
    replaced_view_indices: Tensor
    trusted_view_mask: Tensor | None = None

    @property
    def has_missing_or_distrusted_views(self) -> bool:
        """True if batches have a mask of missing and suspected views."""
        return self.trusted_view_mask is not None or super().has_missing_or_distrusted_views

    def __getitems__(self, positions: list[int]) -> Batch:
        """Return the items and deliberate mismatches at the given positions as a batch."""
        places = torch.as_tensor(positions, dtype=torch.int64)
        is_decoy, number = places >= len(self), (places - len(self)).clamp(min=0)
        first, second = (torch.where(is_decoy, items[number], places) for items in self.decoy_pairs)
        batch = super().__getitems__(first.tolist())
        if self.trusted_view_mask is not None:
            batch = batch._replace(present=self.trusted_view_mask[places])
        replaced, views = self.replaced_view_indices[number], list(batch.views)
        for view in replaced[is_decoy].unique().tolist():
            # The view of the whole batch is fetched again: a batch of texts is as wide as its own longest text.
            views[view] = self.store.fetch_views(torch.where(replaced == view, second, first))[view]
        return batch._replace(views=tuple(views))


def add_decoys(dataset: Dataset, *, seed: int) -> DatasetWithDecoysPastEnd:
    """Add deliberate mismatches (decoys), about 10% of items per pair of views.

    Each pair of views gets 200 to 2,000 decoys; all together are at most 20% of the items. Of more than two views, each
    is replaced in equally many decoys.
    """
    items, views = len(dataset), len(dataset.shapes)
    number = int(min(min(max(DECOY_SHARE * items, MIN_DECOYS), MAX_DECOYS) * views / 2, MAX_DECOY_SHARE * items))
    random = numpy_generator("audit.decoys", seed)
    drawn = torch.from_numpy(random.permutation(items)[:number])
    partners = assign_wrong_partners(drawn, dataset.view_content_ids_if_repeated, random)
    differ = partners != drawn
    decoyed = DatasetWithDecoysPastEnd(**dataset.get_field_values())
    decoyed.decoy_pairs = PairIndices(drawn[differ], partners[differ])
    decoyed.replaced_view_indices = torch.ones_like(drawn) if views == 2 else torch.arange(number) % views
    decoyed.replaced_view_indices = decoyed.replaced_view_indices[differ]
    if views > 2:
        decoyed.trusted_view_mask = torch.ones(items + int(differ.sum()), views, dtype=torch.bool).share_memory_()
    return decoyed


def check_auditable_dataset(
    dataset: Dataset, *, data: Any = None, declared_roles: Mapping[str, Any] | None = None
) -> None:
    """Raise `UsageError` if a dataset is too small, incomplete or constant to audit.

    Args:
        dataset: the pairs.
        data: their source, for the error about a table of one view.
        declared_roles: roles of the columns of a table.
    """
    check_several_views(dataset, "an audit", data=data, declared_roles=declared_roles)
    if dataset.present is not None:
        message = f"data: must have all views of every item for an audit, got {format_incomplete_items(dataset)}. "
        raise UsageError(f"{message}Leave these rows out, as `contraport audit` does.", kind="missing_views")
    message = f"data: an audit needs at least {MIN_PAIRS} pairs, got {len(dataset)}."
    check(len(dataset) >= MIN_PAIRS, message, "too_few_pairs")
    items = f"all of {MIN_PAIRS} items read from {len(dataset):,}"
    constant = dataset.find_constant_view(num_sampled_items=MIN_PAIRS)
    message = f"data: view {constant!r} is the same in {items}, so it cannot distinguish pairs."
    check(constant is None, message, "constant_view")


def format_incomplete_items(dataset: Dataset) -> str:
    """Return a text for messages: how many items lack a view, and which rows they are.

    >>> from contraport.data import from_arrays
    >>> format_incomplete_items(from_arrays({"hand": np.eye(3), "eye": np.array([[1.0], [np.nan], [2.0]])}))
    "1 of 3 items of 'arrays' that lack a view (row 1)"
    """
    assert dataset.present is not None
    rows = dataset.source_rows[~dataset.present.all(dim=1)].tolist()
    shown = ", ".join(map(str, rows[:5])) + (", ..." if len(rows) > 5 else "")
    noun = "row" if len(rows) == 1 else "rows"
    return f"{len(rows):,} of {len(dataset):,} items of {dataset.name!r} that lack a view ({noun} {shown})"


def draw_mismatches_item_by_item(dataset: Dataset, *, seed: int) -> PairIndices:
    """Draw a mismatched pair for each item, ``(m,)``, leaving out items without one.

    Items of equal content get partners of different contents, as wrong pairs do, so that the mismatches are as
    independent of one another as the pairs are.

    >>> from contraport.data import from_arrays
    >>> classes = np.arange(60)[:, None] % 3
    >>> first, second = draw_mismatches_item_by_item(from_arrays((np.arange(60)[:, None], classes)), seed=0)
    >>> len(first), bool((first % 3 != second % 3).all()), len(set(zip((first % 3).tolist(), (second % 3).tolist())))
    (60, True, 6)
    """
    items, ids = torch.arange(len(dataset)), dataset.view_content_ids_if_repeated
    partners = exchange_partners_across_sets(draw_groups_of_exchanging_sets(dataset, seed=seed, holds_copies=False))
    if ids is None:
        return PairIndices(items, partners)
    random, second = numpy_generator("audit.exchange.copies", seed), partners.numpy()
    is_wrong = torch.from_numpy(~swap_correct_pairs(items.numpy(), second, ids.numpy(), random))
    return PairIndices(items[is_wrong], torch.from_numpy(second)[is_wrong])


def draw_groups_of_exchanging_sets(
    dataset: Dataset, *, seed: int, holds_copies: bool = True
) -> tuple[tuple[Tensor, ...], ...]:
    """Draw random groups of item sets; mismatches exchange partners within a group.

    A group has two sets of similar size, ``(m,)`` items each; items of equal content share a set if `holds_copies`,
    otherwise each item is a set. If the number of sets is odd, the last group has three sets.

    >>> from contraport.data import from_arrays
    >>> dataset = from_arrays((np.arange(7.0)[:, None], np.arange(7.0)[:, None]))
    >>> [len(group) for group in draw_groups_of_exchanging_sets(dataset, seed=0)]
    [2, 2, 3]
    """
    random = numpy_generator("audit.exchange", seed)
    ids = dataset.view_content_ids_if_repeated if holds_copies else None
    largest = max_held_out_group_size(len(dataset))
    set_of = np.arange(len(dataset)) if ids is None else group_by_shared_content(ids, largest).group_ids
    sizes, members = np.bincount(set_of), np.argsort(set_of, kind="stable")
    sets = torch.from_numpy(members).split(sizes.tolist())
    order = random.permutation(len(sets))
    order = order[np.argsort(sizes[order], kind="stable")]
    first, second = order[: len(order) - 1 : 2], order[1::2].copy()
    if ids is not None:
        content = ids.numpy()[members[sizes.cumsum() - sizes]]
        swap_correct_pairs(first, second, content, random)
    groups = [[one, other] for one, other in zip(first.tolist(), second.tolist(), strict=True)]
    if len(order) % 2:
        groups[-1].append(int(order[-1]))
    return tuple(tuple(sets[number] for number in group) for group in groups)


def exchange_partners_across_sets(groups_of_sets: tuple[tuple[Tensor, ...], ...]) -> Tensor:
    """Return a wrong partner for each item, from another set of items in its group of sets.

    >>> exchange_partners_across_sets((tuple(torch.tensor([[0], [2]])), tuple(torch.tensor([[1], [3], [4]])))).tolist()
    [2, 4, 0, 1, 3]
    """
    sets = [items for group in groups_of_sets for items in group]
    sizes = torch.tensor([items.numel() for items in sets])
    preceding = torch.arange(len(sets)) - 1  # the first set of a group is preceded by its last
    lengths = torch.tensor([len(group) for group in groups_of_sets])
    ends = lengths.cumsum(0)
    preceding[ends - lengths] = ends - 1
    # All sets at once: a loop over half a million groups takes minutes.
    items, starts, set_of = torch.cat(sets), sizes.cumsum(0) - sizes, torch.arange(len(sets)).repeat_interleave(sizes)
    others = preceding[set_of]
    partners = torch.empty_like(items)
    partners[items] = items[starts[others] + (torch.arange(len(items)) - starts[set_of]) % sizes[others]]
    return partners
