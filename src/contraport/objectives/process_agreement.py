"""Agreement of the processes on a call, before anything is gathered: one small collective, and none with one process.

Collectives wait for each other. Where one process gives weights and another gives none, each would wait for what the
other never sends, or take it for something else. So all say first, in a few numbers, in which form they have each
option, and whether they refuse their own part; then all go on, or all raise.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from contraport.distributed import Processes, world
from contraport.errors import UsageError

OPTIONS = (
    "views", "target", "weights", "labels", "domains", "ids", "column_weights", "features", "negatives",
    "negative_ids", "shared_negatives", "present", "temperature",
)  # fmt: skip
"""Optional arguments of a call, in the order in which processes compare them."""


class Sizes(NamedTuple):
    """Numbers of rows of each process.

    Attributes:
        items: of the views, and of all that is known of the items.
        negatives: of the negatives.
    """

    items: tuple[int, ...]
    negatives: tuple[int, ...]


def form(value: object) -> str:
    """Return in which form an option is given: of a tensor, its precision and its shape but for the rows.

    >>> form(torch.zeros(5, 3)), form(None), form(0.5)
    ('torch.float32 (n, 3)', 'none', 'float')
    """
    if isinstance(value, Tensor):
        trailing = "".join(f", {size}" for size in value.shape[1:])
        return f"{value.dtype} (n{trailing})" if value.ndim else f"{value.dtype} ()"
    return "none" if value is None else type(value).__name__


def agree(
    processes: Processes, forms: Mapping[str, str], items: int, negatives: int, device: torch.device
) -> Sizes | None:
    """Return the sizes of all processes, once it is known that all give the same options in the same forms.

    Args:
        processes: who takes part; None is returned where it is one.
        forms: of the options of this process, by their names; the others are not given.
        items: how many rows this process has.
        negatives: how many negatives.
        device: where its embeddings are.

    Raises:
        UsageError: an option differs, or another process refuses its part.
    """
    if processes.size == 1:
        return None
    given = {name: forms.get(name, "none") for name in OPTIONS}
    codes = [zlib.crc32(text.encode()) for text in given.values()]
    accepted, *everyone = zip(*processes.gather_integers([1, items, negatives, *codes], device), strict=True)
    if not all(accepted):
        refusing = [rank for rank, yes in enumerate(accepted) if not yes]
        said = processes.gather_strings("")[refusing[0]]
        raise UsageError(f"call: refused by process {refusing[0]}: {said}", kind="refused")
    of_items, of_negatives, *by_option = everyone
    for name, theirs in zip(OPTIONS, by_option, strict=True):
        if len(set(theirs)) > 1:
            texts = processes.gather_strings(given[name])
            other = next(rank for rank, text in enumerate(texts) if text != texts[0])
            raise UsageError(
                f"{name}: must have one form on all processes of a call, got {texts[0]} on process 0 "
                f"and {texts[other]} on process {other}.",
                kind="processes_differ",
            )
    return Sizes(of_items, of_negatives)


def refuse(views: Sequence[object], error: Exception) -> None:
    """Take part in the agreement with an error of this process, so that the other processes raise too.

    Args:
        views: of the call; the device of the first tensor among them is that of the agreement.
        error: what this process raises.
    """
    processes = world()
    if processes.size > 1:
        processes.gather_integers([0] * (3 + len(OPTIONS)), _device(views))
        processes.gather_strings(str(error))


def _device(views: Sequence[object]) -> torch.device:
    """Return the device of the first tensor, or that of the processes' collectives where there is none."""
    of_views = [view.device for view in views if isinstance(view, Tensor)]
    return of_views[0] if of_views else world().device
