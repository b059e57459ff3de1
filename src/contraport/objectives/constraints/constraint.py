"""What a constraint is: a set of allowed plans; it turns compared pairs into the allowed plan nearest their kernel."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor

from contraport.engine import Geometry, constant
from contraport.objectives.answer import Answer
from contraport.objectives.plan import Plan


class Constraint(Answer, ABC):
    """An allowed set; marginals are uniform and the total mass 1 unless said otherwise.

    Attributes:
        differentiable: whether its plan has a gradient.
        has_zeros: whether its plan has exact zeros, on which a logarithm is infinite.
    """

    differentiable: ClassVar[bool] = True
    has_zeros: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, geometry: Geometry, *, reciprocal: bool = False) -> list[Plan]:
        """Return the plan of the rows with the columns and, if reciprocal, that of the columns with the rows."""


def uniform_marginals(geometry: Geometry) -> tuple[Tensor, Tensor]:
    """Return log a, (N,), and log b, (M,)."""
    like, (n, m) = geometry.log_kernel.inputs[0], geometry.shape
    return constant(n, -math.log(n), like), constant(m, -math.log(m), like)
