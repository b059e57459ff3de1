"""The calling form of lightly's losses with a memory bank; without one they are called as our objectives are."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import contraport as cp
from contraport.distributed import gather
from contraport.errors import check


class MemoryBankLoss(nn.Module):
    """An objective of queries and keys with the keys of earlier calls as negatives: MoCo's.

    The bank belongs to the module's state, holds the keys of all processes, and is empty at first. It takes in the keys
    of a call whose queries have a gradient, once their loss is computed.

    Args:
        memory_bank_size: how many keys are kept, first in, first out, and of how many dimensions: ``(4096, 128)``.
        objective: what is called on queries and keys, with ``negatives=``; default: ``info_nce(temperature=0.5,
            symmetric=False)``.
        others: whether the other keys of the batch are negatives too; lightly and MoCo compare with the bank alone.

    Raises:
        UsageError: the size is no pair of positive whole numbers.

    Source: He et al. (2020), Momentum contrast (MoCo), section 3.2.

    >>> import torch
    >>> loss = MemoryBankLoss((4, 2))
    >>> query, key = torch.eye(2, requires_grad=True), torch.eye(2)
    >>> loss(query, key).item(), loss.size
    (0.0, 2)
    >>> round(loss(query, key).item(), 4)
    0.7586
    """

    bank: Tensor
    written: Tensor

    def __init__(
        self, memory_bank_size: tuple[int, int], objective: cp.objectives.Loss | None = None, *, others: bool = False
    ) -> None:
        super().__init__()
        pair = isinstance(memory_bank_size, tuple | list) and len(memory_bank_size) == 2
        good = pair and all(isinstance(number, int) and number >= 1 for number in memory_bank_size)
        check(good, f"memory_bank_size: expected a pair (keys, dimensions) of whole numbers, got {memory_bank_size!r}.")
        self.objective = cp.info_nce(temperature=0.5, symmetric=False) if objective is None else objective
        self.others = others
        self.register_buffer("bank", torch.zeros(*memory_bank_size))
        self.register_buffer("written", torch.zeros((), dtype=torch.long))

    @property
    def size(self) -> int:
        """How many keys the bank holds."""
        return min(int(self.written), len(self.bank))

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Return the loss of queries and keys, (n, d) each."""
        known: dict[str, Tensor | bool] = {}
        if self.size > 0:
            known = {"negatives": self.bank[: self.size].clone(), "shared_negatives": True}
        if not self.others:
            known["ids"] = torch.zeros(len(query), dtype=torch.long)  # equal ids are not compared with one another
        loss: Tensor = self.objective(query, key, **known)
        if query.requires_grad:
            self._keep(key)
        return loss

    @torch.no_grad()
    def _keep(self, key: Tensor) -> None:
        keys = F.normalize(gather(key.detach()).to(self.bank), dim=1)[-len(self.bank) :]
        places = torch.arange(len(keys), device=keys.device) + self.written
        self.bank[places % len(self.bank)] = keys
        self.written += len(keys)
