"""Ring exchange, which sends each block and its gradient through all processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from contraport.distributed.collectives import Processes


class RingExchange:
    """Exchange in which each process gets the blocks of all ranks in turn.

    The own block comes first, then those of the next ranks. A process holds two blocks at a time: it computes with one
    while the next arrives and the present one is sent on. The sum of the gradients in a block follows it one hop later,
    as it is complete only when the process is done, and is sent home after the last hop.

    Args:
        processes: the processes of the ring.
        own_block: block of this process, a vector.
        block_sizes: number of entries in the block of each process.
        hops: number of blocks of other processes that a process receives.
        with_gradient: whether a gradient travels with each block.
    """

    def __init__(
        self,
        processes: Processes,
        own_block: Tensor,
        block_sizes: Sequence[int],
        hops: int,
        *,
        with_gradient: bool = False,
    ) -> None:
        self.processes, self.block_sizes, self.hops = processes, block_sizes, hops
        self.with_gradient = with_gradient
        self._block, self._outgoing = own_block, own_block
        # Gradients sum many terms, so they have at least single precision, whatever the type of the blocks.
        self._gradient_dtype = torch.promote_types(own_block.dtype, torch.float32)
        self._gradient: Tensor | None = None
        self._owner = processes.rank

    @property
    def gradient_accumulator(self) -> Tensor:
        """Tensor in which callers accumulate the gradient of the current block.

        It travels around the ring with the block. After the last block, it is the gradient of this process's block,
        summed over the processes that added to it. Created on first access, so that a process that adds nothing
        allocates no zeros.
        """
        if self._gradient is None:
            self._gradient = self._block.new_zeros(self.block_sizes[self._owner], dtype=self._gradient_dtype)
        return self._gradient

    def iterate_blocks(self) -> Iterator[tuple[int, Tensor]]:
        """Yield each block with its owner's rank.

        The block is a flat vector, valid until the next iteration.
        """
        rank, size = self.processes
        below, above = (rank - 1) % size, (rank + 1) % size
        own_gradient: Tensor | None = None
        for hop in range(self.hops + 1):
            self._owner = (rank + hop) % size
            transfers, following, received = [], None, None
            if hop < self.hops:
                following = self._block.new_empty(self.block_sizes[(self._owner + 1) % size])
                transfers.append((self._block, below, following, above))
            if self.with_gradient and hop > 1:
                # Send the gradient of the previous block onward; receive the one that belongs to the present block.
                received = self._block.new_empty(self.block_sizes[self._owner], dtype=self._gradient_dtype)
                transfers.append((self._outgoing, below, received, above))
            requests = _start_transfers(transfers)
            self._gradient = None
            yield self._owner, self._block
            for request in requests:
                request.wait()
            if self.with_gradient:
                if received is not None:
                    received = received if self._gradient is None else received.add_(self._gradient)
                    self._gradient = received
                if hop == 0:
                    own_gradient = self._gradient
                else:
                    self._outgoing = self.gradient_accumulator
            if following is not None:
                self._block = following
            del transfers, following, received  # frees the sent tensors before the next are allocated
        if self.with_gradient and self.hops > 0:
            home = self._block.new_empty(self.block_sizes[rank], dtype=self._gradient_dtype)
            transfer = (self._outgoing, (rank + self.hops) % size, home, (rank - self.hops) % size)
            for request in _start_transfers([transfer]):
                request.wait()
            own_gradient = home if own_gradient is None else own_gradient.add_(home)
        self._owner, self._gradient = rank, own_gradient


def _start_transfers(transfers: Sequence[tuple[Tensor, int, Tensor, int]]) -> list[dist.Work]:
    """Start sending and receiving tensors between ranks, skipping empty ones."""
    operations = []
    for sent, to, received, source in transfers:
        if sent.numel():
            operations.append(dist.P2POp(dist.isend, sent, to))
        if received.numel():
            operations.append(dist.P2POp(dist.irecv, received, source))
    # In one batch, as NCCL would otherwise wait for the receiver of each.
    return dist.batch_isend_irecv(operations) if operations else []
