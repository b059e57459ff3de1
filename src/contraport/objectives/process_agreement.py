"""Agreement of all processes on the options of a call, before their inputs are gathered.

With one process, nothing is sent.

Collectives block until every process takes part: if one process gave weights and another none, they would wait forever
or mistake one tensor for another. So every process first sends the form of each option and whether it rejected its
own inputs, as a few numbers; then all continue, or all raise.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from contraport.distributed import Processes, current_processes
from contraport.errors import UsageError

OPTIONS = (
    "views", "target", "weights", "labels", "domains", "ids", "column_weights", "features", "negatives",
    "negative_ids", "shared_negatives", "present", "temperature",
)  # fmt: skip
"""Options of a call, in the order in which processes compare them."""


class RowCounts(NamedTuple):
    """Number of items and of negatives on each process, in the order of ranks.

    Attributes:
        items_per_process: Number of items on each process.
        negatives_per_process: Number of additional negatives on each process.
    """

    items_per_process: tuple[int, ...]
    negatives_per_process: tuple[int, ...]


def describe_form(value: object) -> str:
    """Describe the form of an option as text: for a tensor, its dtype and its shape without the number of rows.

    >>> describe_form(torch.zeros(5, 3)), describe_form(None), describe_form(0.5)
    ('torch.float32 (n, 3)', 'none', 'float')
    """
    if isinstance(value, Tensor):
        trailing = "".join(f", {size}" for size in value.shape[1:])
        return f"{value.dtype} (n{trailing})" if value.ndim else f"{value.dtype} ()"
    return "none" if value is None else type(value).__name__


def agree_on_row_counts(
    processes: Processes, forms: Mapping[str, str], items: int, negatives: int, device: torch.device
) -> RowCounts | None:
    """Check that all processes give the same options, and return their row counts; None with one process.

    Args:
        processes: the processes that take part.
        forms: of the options on this process, by name; missing ones are not given.
        items: number of rows of the views.
        negatives: number of negatives.
        device: of the embeddings.

    Raises:
        UsageError: an option differs, or another process rejected its inputs.
    """
    if processes.size == 1:
        return None
    complete = {name: forms.get(name, "none") for name in OPTIONS}
    # Checksums, not texts: one small gather of integers in the usual case; texts are only sent for an error.
    codes = [zlib.crc32(text.encode()) for text in complete.values()]
    accepted, *columns = zip(*processes.gather_integers([1, items, negatives, *codes], device), strict=True)
    if not all(accepted):
        rank = accepted.index(0)
        message = processes.gather_strings("")[rank]
        raise UsageError(f"call: rejected by process {rank}: {message}", kind="refused")
    item_counts, negative_counts, *by_option = columns
    for name, theirs in zip(OPTIONS, by_option, strict=True):
        if len(set(theirs)) > 1:
            texts = processes.gather_strings(complete[name])
            other = next(rank for rank, text in enumerate(texts) if text != texts[0])
            raise UsageError(
                f"{name}: must have the same form on all processes of a call, got {texts[0]} on process 0 "
                f"and {texts[other]} on process {other}.",
                kind="processes_differ",
            )
    return RowCounts(item_counts, negative_counts)


def report_failure(views: Sequence[object], error: Exception) -> None:
    """Send the error of this process in place of its row counts, so that all other processes raise too.

    Args:
        views: of the call; the agreement runs on the device of the first tensor.
        error: the error that this process raises.
    """
    processes = current_processes()
    if processes.size > 1:
        device = next((view.device for view in views if isinstance(view, Tensor)), processes.device)
        processes.gather_integers([0] * (3 + len(OPTIONS)), device)
        processes.gather_strings(str(error))
