"""Conversion of the array-likes passed to estimators to tensors of finite numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from contraport.errors import UsageError, check


def as_tensor(argument: str, value: Any, dimensions: str = "(n, d)") -> Tensor:
    """Convert an array-like of finite numbers to a double-precision tensor.

    Args:
        argument: name of the argument, for errors.
        value: the numbers.
        dimensions: the expected shape, with a letter for each dimension; "..." stands for any number of them.

    Raises:
        UsageError: not numbers, none, NaN or infinity among them, or a wrong number of dimensions.

    >>> as_tensor("X", [[1, 2]])
    tensor([[1., 2.]], dtype=torch.float64)
    """
    try:
        # torch cannot share the memory of read-only arrays and of negative strides, so those are copied.
        array = value if isinstance(value, Tensor) else np.require(value, requirements=["C", "W"])
        tensor = torch.as_tensor(array).detach().double()
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"{argument}: must be numbers of shape {dimensions}, got {type(value).__name__}.", kind="not_numbers"
        ) from error
    least = dimensions.count(",") + 1 - dimensions.count("...")
    good = tensor.ndim >= least if "..." in dimensions else tensor.ndim == least
    check(good and tensor.numel() > 0, f"{argument}: must have shape {dimensions}, got {tuple(tensor.shape)}.", "shape")
    wrong = int((~torch.isfinite(tensor)).sum())
    check(wrong == 0, f"{argument}: must be finite, got NaN or infinity in {wrong} entries.", "not_finite")
    return tensor
