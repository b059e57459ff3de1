"""What comes in from outside as arrays, checked."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from contraport.errors import UsageError, check


def as_tensor(argument: str, value: Any, dimensions: str = "(n, d)") -> Tensor:
    """Return finite numbers, an array or anything that becomes one, as a tensor in double precision.

    Args:
        argument: its name, for the message.
        value: the numbers.
        dimensions: the expected shape in words, as many letters as dimensions; "..." stands for any number more.

    Raises:
        UsageError: they are not numbers, of another number of dimensions, none at all, or not all finite.

    >>> as_tensor("X", [[1, 2]])
    tensor([[1., 2.]], dtype=torch.float64)
    """
    try:
        # A tensor shares memory neither with an array that cannot be written to nor with one that runs backwards.
        array = value if isinstance(value, Tensor) else np.require(value, requirements=["C", "W"])
        tensor = torch.as_tensor(array).detach().double()
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"{argument}: expected numbers of shape {dimensions}, got {type(value).__name__}.") from error
    least = dimensions.count(",") + 1 - dimensions.count("...")
    fits = tensor.ndim >= least if "..." in dimensions else tensor.ndim == least
    check(fits and tensor.numel() > 0, f"{argument}: expected shape {dimensions}, got {tuple(tensor.shape)}.")
    wrong = int((~torch.isfinite(tensor)).sum())
    check(wrong == 0, f"{argument}: expected finite numbers, got {wrong} that are NaN or infinite.")
    return tensor


def non_numeric_columns(X: Any) -> list[str]:
    """Return the names of the columns of a table that are not numbers, such as those of texts.

    >>> import pandas
    >>> non_numeric_columns(pandas.DataFrame({"age": [1, 2], "name": ["Eva", "Ida"]}))
    ["'name' ('Eva')"]
    """
    found = []
    for name in getattr(X, "columns", ()):
        column = np.asarray(X[name], dtype=object)
        wrong = [value for value in column.ravel() if not _is_number(value)]
        if wrong:
            found.append(f"{name!r} ({wrong[0]!r})")
    return found


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True
