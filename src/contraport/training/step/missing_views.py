"""Missing views: each view is encoded only for the items that have it; nothing is imputed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from contraport.distributed import current_processes

Embed = Callable[[Sequence[Tensor]], tuple[Tensor, ...]]
"""Maps the views of items, ``(b, ...)`` each, to output tensors ``(b, ...)``, one or more for each view, in order."""

MIN_ITEMS = 2
"""A view that fewer items of a batch have is dropped from it: batch norm needs a variance."""


def wrap_for_missing_views(embed: Embed) -> Embed:
    """Wrap an embedding function of complete views so that it accepts items with missing views.

    The last input is a mask ``(b, views)`` of the views that items have. Outputs are those of `embed` for items that
    have the view, zeros for the others. The last output is the mask in effect: without views that fewer than
    `MIN_ITEMS` items of all processes have.

    >>> import torch
    >>> double = wrap_for_missing_views(lambda views: tuple(2 * view for view in views))
    >>> mask = torch.tensor([[True, True], [False, True], [True, True]])
    >>> twice, _, _ = double([torch.tensor([[1.0], [torch.nan], [3.0]]), torch.ones(3, 1), mask])
    >>> twice.flatten().tolist()
    [2.0, 0.0, 6.0]
    """

    def wrapped(inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        *views, present = inputs
        # Counted over all processes: each must drop the same views, or they would wait for different collectives.
        counts = present.sum(0)
        current_processes().all_reduce_(counts)
        present = present & (counts >= MIN_ITEMS)
        rows = [column.nonzero()[:, 0] for column in present.T]
        outputs = embed([view[places] for view, places in zip(views, rows, strict=True)])
        whole = [
            output.new_zeros(len(present), *output.shape[1:]).index_copy(0, rows[number % len(views)], output)
            for number, output in enumerate(outputs)
        ]
        return *whole, present

    return wrapped
