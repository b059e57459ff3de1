"""The largest tensor that is allocated within a block of code."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LargestAllocation(TorchDispatchMode):
    """Context manager that records the size of the largest tensor that an operation of torch allocates.

    Attributes:
        nbytes: size of the largest one, in bytes; memory that an argument of the operation has too does not count.
    """

    nbytes = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = function(*args, **(kwargs or {}))
        existing = {one.untyped_storage().data_ptr() for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)}
        for one in tree_leaves(results):
            if isinstance(one, Tensor) and one.untyped_storage().data_ptr() not in existing:
                self.nbytes = max(self.nbytes, one.untyped_storage().nbytes())
        return results
