"""Embedding of batches in chunks, and of items with missing views."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from contraport import distributed
from contraport.data import LocalBatchOffset
from contraport.errors import check
from contraport.objectives.inputs import zero_pad_vector_sets

ViewsToEmbeddings = Callable[[Sequence[Tensor]], tuple[Tensor, ...]]
"""Function from the views of items, ``(b, ...)`` each, to embeddings ``(b, ...)``: one or more per view, in order."""


def check_min_items_per_chunk(num_items: int, chunk_size: int) -> None:
    """Raise `UsageError` if chunks of a batch would have too few items."""
    _, processes = distributed.current_processes()
    count, least = math.ceil(num_items / chunk_size), max(2, processes)
    check(
        num_items // least >= count,
        f"cache_chunk: each chunk must have at least {least} items, one per process; {chunk_size} gives {count} chunks "
        f"of {num_items} items. Increase it.",
        "small_chunks",
    )


def embed_in_chunks(
    embed: ViewsToEmbeddings,
    network: nn.Module,
    views: Sequence[Tensor],
    chunk_size: int,
    local_part: LocalBatchOffset | None = None,
) -> tuple[Tensor, ...]:
    """Embed a batch in chunks of at most `chunk_size` items (GradCache).

    Only the activations of one chunk are in memory at a time. Only outputs are stored. The backward pass recomputes
    each chunk, with the same random numbers, so that the gradient is exactly that of the whole batch. Layers over the
    batch, such as batch norm, process one chunk at a time; their running statistics are updated in the first pass only.
    Items are dealt to the chunks by their position in the batch, so that each process has a part of every chunk, and
    chunks do not depend on the number of processes.

    Args:
        embed: the function, item by item except for layers over the batch.
        network: the modules that it uses, whose buffers do not change in the second pass.
        views: views of the batch, ``(b, ...)`` each.
        chunk_size: maximum number of items per chunk; chunk sizes differ by at most one.
        local_part: part of a batch that this process holds; default: all of it.

    Source: Gao, Zhang, Han and Callan (2021), Scaling deep contrastive learning batch size under memory limited setup.

    >>> layer = nn.Linear(3, 2)
    >>> embed_in_chunks(lambda views: (layer(views[0]),), layer, [torch.zeros(5, 3)], chunk_size=2)[0].shape
    torch.Size([5, 2])
    """

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _restored_buffers(network)  # of the first pass, and of the recomputation

    start, total = (0, len(views[0])) if local_part is None else (local_part.start, local_part.global_batch_size)
    count = math.ceil(total / chunk_size)
    chunks = [slice((number - start) % count, None, count) for number in range(count)]
    pieces = [
        checkpoint(embed, [view[chunk] for view in views], use_reentrant=False, context_fn=contexts) for chunk in chunks
    ]
    positions = torch.arange(len(views[0]), device=views[0].device)
    inverse = torch.cat([positions[chunk] for chunk in chunks]).argsort()  # undoes the dealing
    return tuple(torch.cat(zero_pad_vector_sets(parts))[inverse] for parts in zip(*pieces, strict=True))


@contextmanager
def _restored_buffers(network: nn.Module) -> Iterator[None]:
    """Context manager that restores the buffers of a network on exit."""
    originals = [(module, dict(module.named_buffers(recurse=False))) for module in network.modules()]
    for module, buffers in originals:
        for name, buffer in buffers.items():
            setattr(module, name, buffer.clone())
    try:
        yield
    finally:
        for module, buffers in originals:
            for name, buffer in buffers.items():
                setattr(module, name, buffer)


def embed_or_zero_and_update_mask(embed: ViewsToEmbeddings, views_and_mask: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return embeddings, zero where a view is missing, and the mask of embedded views.

    Nothing is imputed. The last input is a mask ``(b, views)`` of the views that items have. Outputs are those of
    `embed` for items that have the view, zeros for the others. The last output is the mask in effect: without views
    that fewer than two items of all processes have, as batch norm needs a variance.

    >>> views = torch.tensor([[1.0], [torch.nan], [3.0]]), torch.ones(3, 1)
    >>> mask = torch.tensor([[True, True], [False, True], [True, True]])
    >>> twice, _, _ = embed_or_zero_and_update_mask(lambda views: [2 * v for v in views], [*views, mask])
    >>> twice.flatten().tolist()
    [2.0, 0.0, 6.0]
    """
    *views, present = views_and_mask
    # Counted over all processes: each must drop the same views, or they would wait for different collectives.
    counts = present.sum(0)
    distributed.current_processes().all_reduce_(counts)
    present = present & (counts >= 2)
    rows = [column.nonzero()[:, 0] for column in present.T]
    outputs = embed([view[positions] for view, positions in zip(views, rows, strict=True)])
    whole = [
        output.new_zeros(len(present), *output.shape[1:]).index_copy(0, rows[number % len(views)], output)
        for number, output in enumerate(outputs)
    ]
    return *whole, present
