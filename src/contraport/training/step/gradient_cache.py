"""Gradient caching: the gradient of a big batch with the memory of a chunk of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from contraport import distributed
from contraport.data import Share
from contraport.errors import check
from contraport.training.step.missing_views import Embed


def check_chunk_size(items: int, size: int) -> None:
    """Raise `UsageError` unless each chunk of a batch has two items, as batch norm needs, and one of each process.

    >>> check_chunk_size(9, size=2)
    Traceback (most recent call last):
    contraport.errors.UsageError: cache_chunk: of 9 items in a batch 5 chunks are made, of which each needs 2 items ...
    """
    _, processes = distributed.world()
    count, least = _number_of_chunks(items, size), max(2, processes)
    check(
        items // least >= count,
        f"cache_chunk: of {items} items in a batch {count} chunks are made, of which each needs {least} items and one "
        f"of each process; got {size}, expected more.",
    )


def embed_in_chunks(
    embed: Embed, network: nn.Module, views: Sequence[Tensor], size: int, share: Share | None = None
) -> tuple[Tensor, ...]:
    """Return what `embed` gives for a batch, keeping the activations of at most `size` items at a time.

    Only what `embed` returns is kept; backward computes each chunk again, with the random numbers of the first time,
    so that the gradient is exactly that of the whole batch. Layers that look at the batch, such as batch norm, see one
    chunk at a time; their running statistics move in the first pass only. Items are dealt to the chunks in turn, by
    their place in the batch: each process has its part of every chunk, and chunks are the same however many share it.

    Args:
        embed: what is computed, item by item but for layers that look at the batch.
        network: the modules that it uses, whose buffers the second pass leaves as they are.
        views: of the batch, ``(b, ...)`` each.
        size: most items in a chunk; the chunks of a batch are equal but for one item.
        share: which items of a batch that processes share these are; default: they are all of it.

    Source: Gao, Zhang, Han and Callan (2021), Scaling deep contrastive learning batch size under memory limited setup.

    >>> layer = nn.Linear(3, 2)
    >>> embed_in_chunks(lambda views: (layer(views[0]),), layer, [torch.zeros(5, 3)], size=2)[0].shape
    torch.Size([5, 2])
    """

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _buffers_kept(network)

    start, total = (0, len(views[0])) if share is None else (share.start, share.total)
    count = _number_of_chunks(total, size)
    chunks = [slice((number - start) % count, None, count) for number in range(count)]
    pieces = [
        checkpoint(
            embed,
            [view[chunk] for view in views],
            use_reentrant=False,
            preserve_rng_state=True,
            context_fn=contexts,
        )
        for chunk in chunks
    ]
    places = torch.arange(len(views[0]), device=views[0].device)
    back = torch.cat([places[chunk] for chunk in chunks]).argsort()
    return tuple(torch.cat(parts)[back] for parts in zip(*pieces, strict=True))


def _number_of_chunks(items: int, size: int) -> int:
    return math.ceil(items / size)


@contextmanager
def _buffers_kept(network: nn.Module) -> Iterator[None]:
    """Let the modules move copies of their buffers, such as the running statistics of batch norm."""
    kept = [(module, dict(module.named_buffers(recurse=False))) for module in network.modules()]
    for module, buffers in kept:
        for name, buffer in buffers.items():
            setattr(module, name, buffer.clone())
    try:
        yield
    finally:
        for module, buffers in kept:
            for name, buffer in buffers.items():
                setattr(module, name, buffer)
