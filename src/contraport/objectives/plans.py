"""Plans: which plans are allowed. A plan turns compared pairs into the allowed coupling nearest to their kernel."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from contraport.engine import Axis, Geometry, Step, scale
from contraport.errors import check, check_positive
from contraport.objectives.coupling import Coupling

_OTHER: dict[Axis, Axis] = {"rows": "columns", "columns": "rows"}


class Plan(ABC):
    """An allowed set whose coupling is reached from the kernel by half steps; its marginals are uniform, its mass is 1.

    A subclass says which half steps, and how much each is damped.
    """

    @abstractmethod
    def half_steps(self) -> tuple[Axis, ...]:
        """Return the axis of each half step, in order; each reads the potential of the one before."""

    def damping(self, axis: Axis, temperature: float | Tensor) -> float | Tensor:
        """Return how far a half step on an axis goes towards its marginal, in (0, 1]."""
        return 1.0

    def __call__(self, geometry: Geometry, *, reciprocal: bool = False) -> list[Coupling]:
        """Return the coupling of the rows with the columns and, if reciprocal, that of the columns with the rows.

        Both directions run together, so that one pass over the pairs serves a half step of each.
        """
        axes = self.half_steps()
        like, temperature = geometry.log_kernel.inputs[0], geometry.log_kernel.temperature
        directions = [geometry, geometry.T] if reciprocal else [geometry]
        steps = [
            Step(axis if c == 0 else _OTHER[axis], (k - 1) * len(directions) + c if k else None)
            for k, axis in enumerate(axes)
            for c in range(len(directions))
        ]
        damping = [torch.as_tensor(self.damping(a, temperature), dtype=like.dtype, device=like.device) for a in axes]
        dampings = torch.stack(damping).repeat_interleave(len(directions))
        row_marginal, column_marginal = (_uniform(size, like) for size in geometry.shape)
        potentials = scale(geometry, steps, (row_marginal, column_marginal), dampings)
        return [
            _coupling(seen, axes, potentials[c :: len(directions)], damping[-1]) for c, seen in enumerate(directions)
        ]


def _coupling(geometry: Geometry, axes: tuple[Axis, ...], potentials: list[Tensor], last_damping: Tensor) -> Coupling:
    """Return the coupling at the end of a chain of half steps; the mass of its last axis needs no further pass."""
    like, (n, m) = potentials[0], geometry.shape
    latest = {"rows": like.new_zeros(n), "columns": like.new_zeros(m)} | dict(zip(axes, potentials, strict=True))
    last, size = axes[-1], n if axes[-1] == "rows" else m
    # With p = damping (log m - L), the mass exp(p + L) is m exp(p (1 - 1/damping)): m itself when nothing is damped.
    log_mass = _uniform(size, like) + latest[last] * (1 - 1 / last_damping)
    row_mass, column_mass = (log_mass, None) if last == "rows" else (None, log_mass)
    return Coupling(geometry, latest["rows"], latest["columns"], row_mass, column_mass)


def _uniform(size: int, like: Tensor) -> Tensor:
    return like.new_full((size,), -math.log(size))


@dataclass(frozen=True)
class Rows(Plan):
    """Every row has mass 1/N: P = diag(a) softmax of the rows, the plan of InfoNCE and NT-Xent.

    Source: the set U(a) of inverse optimal transport; C1 of generalised contrastive alignment.
    """

    def half_steps(self) -> tuple[Axis, ...]:
        return ("rows",)


@dataclass(frozen=True)
class Columns(Plan):
    """Every column has mass 1/M: the mirror of `Rows`."""

    def half_steps(self) -> tuple[Axis, ...]:
        return ("columns",)


@dataclass(frozen=True)
class Balanced(Plan):
    """Rows and columns have mass 1/N and 1/M, approached by Sinkhorn iterations (rows, then columns, from zero).

    Args:
        iterations: pairs of half steps, at least 1.

    Raises:
        UsageError: iterations is not a positive integer.

    Source: Cuturi (2013), algorithm 1, in the log domain.
    """

    iterations: int = 5

    def __post_init__(self) -> None:
        _check_iterations(self.iterations)

    def half_steps(self) -> tuple[Axis, ...]:
        return ("rows", "columns") * self.iterations


@dataclass(frozen=True)
class Unbalanced(Plan):
    """Rows and columns may miss their mass 1/N and 1/M at a price, so that pairs that fit nowhere are let go.

    The price is relaxation * KL(marginal | uniform), in units of the cost; relaxation = infinity is `Balanced`.

    Args:
        relaxation: the price for rows and columns, or a pair of prices, positive.
        iterations: pairs of half steps, at least 1.

    Raises:
        UsageError: a relaxation is not positive, or iterations is not a positive integer.

    Source: Chizat et al. (2018), the KL case: each half step is damped by relaxation / (relaxation + temperature).
    """

    relaxation: float | tuple[float, float] = 1.0
    iterations: int = 5

    def __post_init__(self) -> None:
        _check_iterations(self.iterations)
        for value in self._relaxations().values():
            check_positive("relaxation", value, allow_infinity=True)

    def _relaxations(self) -> dict[Axis, float]:
        rho = self.relaxation
        if not isinstance(rho, tuple | list):
            return {"rows": rho, "columns": rho}
        check(len(rho) == 2, f"relaxation: expected a number or one for rows and one for columns, got {rho!r}.")
        return {"rows": rho[0], "columns": rho[1]}

    def half_steps(self) -> tuple[Axis, ...]:
        return ("rows", "columns") * self.iterations

    def damping(self, axis: Axis, temperature: float | Tensor) -> float | Tensor:
        return 1 / (1 + temperature / self._relaxations()[axis])


def _check_iterations(iterations: int) -> None:
    good = isinstance(iterations, int) and not isinstance(iterations, bool) and iterations >= 1
    check(good, f"iterations: expected an integer of at least 1, got {iterations!r}.")
