"""Loss with a memory bank for training with the library `lightly`.

Objectives without a memory bank need no adapter.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import contraport as cp
from contraport.distributed import gather
from contraport.engine import normalize
from contraport.errors import check, check_boolean, check_type, is_integer, type_and_shape
from contraport.options import accept_deprecated_keywords, keep_deprecated_attributes


@keep_deprecated_attributes(size="num_stored_keys")
class MemoryBankLoss(nn.Module):
    """Loss that uses a memory bank of earlier keys as negatives (MoCo).

    The bank is part of the module's state, holds the keys of all processes, and starts empty. It receives the keys of
    each call whose queries have a gradient, after the loss is computed, unless one is NaN or infinite.

    Args:
        memory_bank_size: number of keys, first in, first out, and their dimension: ``(4096, 128)``.
        objective: called on queries and keys, with ``negatives=``; default: ``info_nce(temperature=0.5,
            symmetric=False)``.
        in_batch_negatives: whether the other keys of the batch are negatives too; in lightly and MoCo, only the bank.

    Attributes:
        bank: normalized keys, (keys, dimension); a ring buffer.
        written: number of keys that were ever added, a scalar; the next key replaces the oldest.

    Raises:
        UsageError: the size is not a pair of positive integers, or the objective is of another type; in the call,
            shapes differ from one another or from the bank's dimension.

    Source: He et al. (2020), Momentum contrast (MoCo), section 3.2.

    >>> import torch
    >>> loss = MemoryBankLoss((4, 2))
    >>> query, key = torch.eye(2, requires_grad=True), torch.eye(2)
    >>> loss(query, key).item(), loss.num_stored_keys
    (0.0, 2)
    >>> round(loss(query, key).item(), 4)
    0.7586
    """

    bank: Tensor
    written: Tensor

    @accept_deprecated_keywords(others="in_batch_negatives")
    def __init__(
        self,
        memory_bank_size: tuple[int, int],
        objective: cp.objectives.Loss | None = None,
        *,
        in_batch_negatives: bool = False,
    ) -> None:
        super().__init__()
        pair = isinstance(memory_bank_size, tuple | list) and len(memory_bank_size) == 2
        good = pair and all(is_integer(number) and number >= 1 for number in memory_bank_size)
        check(good, f"memory_bank_size: must be a pair of integers, (keys, dimension), got {memory_bank_size!r}.")
        check_boolean("in_batch_negatives", in_batch_negatives)
        if objective is not None:
            check_type("objective", objective, cp.objectives.Loss, "info_nce()")
        self.objective = cp.info_nce(temperature=0.5, symmetric=False) if objective is None else objective
        self.in_batch_negatives = in_batch_negatives
        self.register_buffer("bank", torch.zeros(*memory_bank_size))
        self.register_buffer("written", torch.zeros((), dtype=torch.long))

    @property
    def num_stored_keys(self) -> int:
        """Number of keys that the bank holds now."""
        return min(int(self.written), len(self.bank))

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Return the loss of queries and keys, (n, d), and store the keys."""
        dimension = self.bank.shape[1]
        for name, view in (("query", query), ("key", key)):
            good = isinstance(view, Tensor) and view.ndim == 2 and view.shape[1] == dimension
            expected = f"a tensor (n, {dimension}), as the memory bank"
            check(good, f"{name}: must be {expected}, got {type_and_shape(view)}.", "shape")
        options: dict[str, Tensor | bool] = {}
        if self.num_stored_keys > 0:
            options = {"negatives": self.bank[: self.num_stored_keys].clone(), "shared_negatives": True}
        if not self.in_batch_negatives:
            options["ids"] = torch.zeros(len(query), dtype=torch.long)  # items with equal ids are not negatives
        loss: Tensor = self.objective(query, key, **options)
        if query.requires_grad:
            with torch.no_grad():
                keys = gather(key.detach())
                if bool(keys.isfinite().all()):  # otherwise the losses of the next steps would be NaN too
                    dtype = torch.promote_types(keys.dtype, self.bank.dtype)
                    keys = normalize(keys.to(dtype))[-len(self.bank) :].to(self.bank)
                    slots = torch.arange(len(keys), device=keys.device) + self.written
                    self.bank[slots % len(self.bank)] = keys
                    self.written += len(keys)
        return loss
