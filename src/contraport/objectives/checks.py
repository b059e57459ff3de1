"""Checks of tensors of numbers, which under `torch.compile` are assertions of the graph."""

from __future__ import annotations

import torch
from torch import Tensor

from contraport.errors import check_each


def check_values(argument: str, values: Tensor, good: Tensor, expected: str) -> None:
    """Raise `UsageError` unless all values are good, see `check_each`; under `torch.compile` the graph asserts it.

    No number can be read while a graph is traced: a compiled call raises the assertion as it runs.
    """
    if torch.compiler.is_compiling():
        torch._assert_async(good.all(), f"{argument}: expected {expected}.")
    else:
        check_each(argument, values, good, expected)
