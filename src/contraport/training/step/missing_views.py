"""Items that lack a view: of each view the networks see the items that have it, and nothing stands for the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from contraport.distributed import world

Embed = Callable[[Sequence[Tensor]], tuple[Tensor, ...]]
"""Turns the views of some items, ``(b, ...)`` each, into tensors ``(b, ...)``, one or more for each view, in turn."""

FEWEST = 2
"""A view that fewer items of a batch have is left out of it: batch norm knows no variance of one."""


def embed_present(embed: Embed) -> Embed:
    """Return the function of views and, as the last of them, the marks of the items that have them, ``(b, views)``.

    What it returns is what `embed` makes of the items that have a view, zeros where others would stand, and, last, the
    marks that it went by: those that were given, less the views that too few items of all processes have.

    >>> import torch
    >>> double = embed_present(lambda views: tuple(2 * view for view in views))
    >>> marks = torch.tensor([[True, True], [False, True], [True, True]])
    >>> twice, _, _ = double([torch.tensor([[1.0], [torch.nan], [3.0]]), torch.ones(3, 1), marks])
    >>> twice.flatten().tolist()
    [2.0, 0.0, 6.0]
    """

    def embedded(given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        *views, present = given
        counts = present.sum(0)
        world().all_reduce_(counts)
        present = present & (counts >= FEWEST)
        rows = [marks.nonzero()[:, 0] for marks in present.T]
        outputs = embed([view[places] for view, places in zip(views, rows, strict=True)])
        whole = [
            output.new_zeros(len(present), *output.shape[1:]).index_copy(0, rows[number % len(views)], output)
            for number, output in enumerate(outputs)
        ]
        return *whole, present

    return embedded
