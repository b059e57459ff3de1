"""Size of the largest tensor that is allocated within a block of code."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LargestAllocation(TorchDispatchMode):
    """Context manager that records the size of the largest tensor that an operation of torch allocates.

    Attributes:
        nbytes: size of the largest tensor in bytes, apart from tensors that share memory with an argument.
    """

    nbytes = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = function(*args, **(kwargs or {}))
        existing = {
            tensor.untyped_storage().data_ptr() for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, Tensor)
        }
        for tensor in tree_leaves(results):
            if isinstance(tensor, Tensor) and tensor.untyped_storage().data_ptr() not in existing:
                self.nbytes = max(self.nbytes, tensor.untyped_storage().nbytes())
        return results
