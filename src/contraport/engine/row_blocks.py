"""Row blocks: what has no form for the passes is computed some rows at a time, and again for its gradient."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.utils.checkpoint import checkpoint

from contraport.engine.autograd import is_in_torch_func

BLOCK_ENTRIES = 1 << 20
"""How many pairs are held at a time."""


def map_row_blocks(function: Callable[[slice], Tensor], shape: tuple[int, int]) -> list[Tensor]:
    """Return what a function makes of each block of rows; differentiable, in the memory of one block (within
    `torch.func`, of all).

    Args:
        function: maps a range of rows to a tensor, and may hold up to as many numbers as it has pairs.
        shape: (N, M), the number of rows and of columns.

    >>> import torch
    >>> torch.cat(map_row_blocks(lambda rows: torch.arange(5)[rows], (5, BLOCK_ENTRIES // 2))).tolist()
    [0, 1, 2, 3, 4]
    """
    n, m = shape
    height = max(1, BLOCK_ENTRIES // m)
    blocks = [slice(top, min(top + height, n)) for top in range(0, n, height)]
    if len(blocks) == 1 or is_in_torch_func():
        return [function(rows) for rows in blocks]
    return [checkpoint(function, rows, use_reentrant=False, preserve_rng_state=False) for rows in blocks]
