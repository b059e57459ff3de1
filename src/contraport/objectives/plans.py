"""Plans: which plans are allowed. A plan turns compared pairs into the allowed coupling nearest to their kernel."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from contraport.engine import (
    Axis,
    Geometry,
    LogKernel,
    LogOf,
    MatrixLogKernel,
    Step,
    converge,
    held_sums,
    log_sums,
    positive_part,
    scale,
)
from contraport.errors import check, check_positive, require, unknown_name
from contraport.objectives.coupling import Coupling
from contraport.objectives.part import Part
from contraport.objectives.targets import TargetPlan

_OTHER: dict[Axis, Axis] = {"rows": "columns", "columns": "rows"}


class Plan(Part, ABC):
    """An allowed set; marginals are uniform and the total mass 1 unless said otherwise."""

    differentiable = True

    @abstractmethod
    def __call__(self, geometry: Geometry, *, reciprocal: bool = False) -> list[Coupling]:
        """Return the coupling of the rows with the columns and, if reciprocal, that of the columns with the rows."""


class Scaling(Plan):
    """An allowed set whose coupling is reached from the kernel by half steps.

    A subclass says which half steps, and how much each is damped.
    """

    @abstractmethod
    def half_steps(self) -> tuple[Axis, ...]:
        """Return the axis of each half step, in order; each reads the potential of the one before."""

    def damping(self, axis: Axis, temperature: float | Tensor) -> float | Tensor | None:
        """Return how far a half step on an axis goes towards its marginal, in (0, 1); None is all the way."""
        return None

    def __call__(self, geometry: Geometry, *, reciprocal: bool = False) -> list[Coupling]:
        """Return the coupling of each direction.

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
        dampings = [self.damping(axis, temperature) for axis in axes]
        potentials = scale(geometry, steps, _uniform_marginals(geometry), _per_step(dampings, like, len(directions)))
        return [
            _coupling(seen, axes, potentials[c :: len(directions)], dampings[-1]) for c, seen in enumerate(directions)
        ]


def _per_step(dampings: Sequence[float | Tensor | None], like: Tensor, directions: int) -> Tensor | None:
    """Return the damping of each half step of all directions, (steps,), or None where there is none at all."""
    if all(damping is None for damping in dampings):
        return None
    known = [1.0 if damping is None else damping for damping in dampings]
    damping = torch.stack([torch.as_tensor(value, dtype=like.dtype, device=like.device) for value in known])
    return damping.repeat_interleave(directions)


def _coupling(
    geometry: Geometry, axes: tuple[Axis, ...], potentials: list[Tensor], last_damping: float | Tensor | None
) -> Coupling:
    """Return the coupling at the end of a chain of half steps; the mass of its last axis needs no further pass."""
    marginals = dict(zip(_OTHER, _uniform_marginals(geometry), strict=True))
    latest = {axis: torch.zeros_like(marginal) for axis, marginal in marginals.items()}
    latest |= dict(zip(axes, potentials, strict=True))
    log_mass = marginals[axes[-1]]
    if last_damping is not None:
        # With p = damping (log m - L), the mass exp(p + L) is m exp(p (1 - 1/damping)).
        log_mass = log_mass + latest[axes[-1]] * (1 - 1 / last_damping)
    known = {axes[-1]: log_mass}
    return Coupling(geometry, latest["rows"], latest["columns"], known.get("rows"), known.get("columns"))


def _uniform_marginals(geometry: Geometry) -> tuple[Tensor, Tensor]:
    """Return log a, (N,), and log b, (M,)."""
    like = geometry.log_kernel.inputs[0].detach()
    n, m = geometry.shape
    return like.new_full((n,), -math.log(n)), like.new_full((m,), -math.log(m))


@dataclass(frozen=True, repr=False)
class Free(Plan):
    """Every nonnegative plan is allowed: P = diag(a) K, no normalisation at all."""

    def __call__(self, geometry: Geometry, *, reciprocal: bool = False) -> list[Coupling]:
        """Return the coupling of each direction."""
        directions = [geometry, geometry.T] if reciprocal else [geometry]
        return [
            Coupling(g, log_a, torch.zeros_like(log_b)) for g in directions for log_a, log_b in [_uniform_marginals(g)]
        ]


@dataclass(frozen=True, repr=False)
class Simplex(Plan):
    """The total mass is 1: P = K / sum K, the plan of t-SNE.

    Source: the set U(1) of inverse optimal transport.
    """

    def __call__(self, geometry: Geometry, *, reciprocal: bool = False) -> list[Coupling]:
        """Return the coupling of each direction."""
        _, log_b = _uniform_marginals(geometry)
        zeros = torch.zeros_like(log_b)
        by_row = log_sums(geometry, "rows", zeros)
        log_mass = by_row.logsumexp(0)
        coupling = Coupling(geometry, (-log_mass).expand_as(by_row), zeros, by_row - log_mass)
        return [coupling, coupling.T] if reciprocal else [coupling]


@dataclass(frozen=True, repr=False)
class Rows(Scaling):
    """Every row has mass 1/N: P = diag(a) softmax of the rows, the plan of InfoNCE and NT-Xent.

    Source: the set U(a) of inverse optimal transport; C1 of generalised contrastive alignment.
    """

    def half_steps(self) -> tuple[Axis, ...]:
        return ("rows",)


@dataclass(frozen=True, repr=False)
class Columns(Scaling):
    """Every column has mass 1/M: the mirror of `Rows`."""

    def half_steps(self) -> tuple[Axis, ...]:
        return ("columns",)


@dataclass(frozen=True, repr=False)
class Balanced(Scaling):
    """Rows and columns have mass 1/N and 1/M, approached by Sinkhorn iterations (rows, then columns, from zero).

    Args:
        iterations: pairs of half steps, at least 1; with a tolerance, the most that are made.
        tolerance: go on until the masses of the rows are off by less than this in all (the total is 1), and take the
            gradient of the plan at convergence; a warning says so if the iterations do not suffice. None runs all
            iterations and takes the gradient of just these.

    Raises:
        UsageError: iterations is not a positive integer, or the tolerance is not positive.

    Source: Cuturi (2013), algorithm 1, in the log domain.
    """

    iterations: int = 5
    tolerance: float | None = None

    def __post_init__(self) -> None:
        _check_iterations(self.iterations)
        if self.tolerance is not None:
            check_positive("tolerance", self.tolerance)

    def half_steps(self) -> tuple[Axis, ...]:
        return ("rows", "columns") * self.iterations

    def __call__(self, geometry: Geometry, *, reciprocal: bool = False) -> list[Coupling]:
        if self.tolerance is None:
            return super().__call__(geometry, reciprocal=reciprocal)
        log_a, log_b = _uniform_marginals(geometry)
        f, g = converge(geometry, (log_a, log_b), self.tolerance, self.iterations)
        coupling = Coupling(geometry, f, g, known_log_column_mass=log_b)
        return [coupling, coupling.T] if reciprocal else [coupling]


@dataclass(frozen=True, repr=False)
class Unbalanced(Scaling):
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

    def damping(self, axis: Axis, temperature: float | Tensor) -> float | Tensor | None:
        return 1 / (1 + temperature / self._relaxations()[axis])


@dataclass(frozen=True, eq=False, kw_only=True)
class QuadraticCoupling(Coupling):
    """A plan of the quadratic regulariser, P_ij = share [theta_ij - t_i]_+.

    Attributes:
        logits: the pairs under theta, without a link.
        threshold: t, (N,), with its own gradient.
        share: the mass that a threshold serves: 1/N where each row has its own, else 1.
        per_row: whether each row has its own threshold.
    """

    logits: Geometry
    threshold: Tensor
    share: float
    per_row: bool

    @property
    def cost_kernel(self) -> LogKernel:
        return self.logits.log_kernel

    def row_cost(self, *, held: bool) -> Tensor:
        # theta = [theta - t] + t, and t stays at 0 where nothing is compared.
        served = self.share if self.per_row else self.log_row_mass().exp()
        if held:
            plan = self.logits.reshape(positive_part(), row_bias=-self.threshold.detach())
            total = held_sums(plan, self.f, self.g) + (self.threshold * served).detach()
        else:
            total = self.share * self._squares(self.threshold) + self.threshold * served
        return -self.cost_kernel.unit * total

    def row_inner_logits(self, target: TargetPlan) -> Tensor:
        """Return sum_j target_ij theta_ij, (N,)."""
        return target.row_inner(self.logits.log_kernel)

    def conjugate(self) -> Tensor:
        """Return Omega*(theta) for each threshold: (N,) per row, else ().

        The threshold is not held: its own slope is 0, but not the slope of its slope.
        """
        by_row = self._squares(self.threshold) / 2
        return by_row + self.threshold if self.per_row else by_row.sum() + self.threshold[0]

    def _squares(self, threshold: Tensor) -> Tensor:
        """Return sum_j [theta_ij - t_i]_+^2, (N,)."""
        squares = self.logits.reshape(positive_part(2), row_bias=-threshold)
        return log_sums(squares, "rows", torch.zeros_like(self.g)).exp()


@dataclass(frozen=True, repr=False)
class Quadratic(Plan):
    """The plan under the quadratic regulariser, with exact zeros: sparsemax in place of softmax.

    Its divergence is `FenchelYoung`; KL is infinite on its zeros.

    Args:
        constraint: ``"rows"``, every row has mass 1/N, or ``"simplex"``, the total mass is 1.
        conditional: with ``"rows"``, regularise the shares of a row, P_i N = sparsemax(-C_i / temperature), rather than
            its masses, P_i N = sparsemax(-C_i N / temperature).

    Raises:
        UsageError: another constraint; conditional without rows.

    Source: the regulariser G of inverse optimal transport for contrastive learning; Martins and Astudillo (2016).
    """

    constraint: str = "rows"
    conditional: bool = False

    def __post_init__(self) -> None:
        if self.constraint not in ("rows", "simplex"):
            raise unknown_name("constraint", self.constraint, ("rows", "simplex"))
        check(self.constraint == "rows" or not self.conditional, "conditional: belongs to the constraint 'rows'.")

    def __call__(self, geometry: Geometry, *, reciprocal: bool = False) -> list[Coupling]:
        """Return the coupling of each direction."""
        return [self._solve(g) for g in ([geometry, geometry.T] if reciprocal else [geometry])]

    def _solve(self, geometry: Geometry) -> QuadraticCoupling:
        n, m = geometry.shape
        per_row = self.constraint == "rows"
        share = 1 / n if per_row else 1.0
        logits = geometry.reshape(None, scale=1.0 if self.conditional else 1 / share)
        zeros = logits.log_kernel.inputs[0].detach().new_zeros(m)
        with torch.no_grad():
            log_sum = self._pool(log_sums(logits, "rows", zeros), log=True)
            # Below the largest logit less 1, where the sum is still at least 1; a row without pairs stays at 0.
            threshold = (log_sum - math.log(m if per_row else n * m) - 1).masked_fill(log_sum == -torch.inf, 0)
            # Logits are sums of terms of this size, and no more certain than their rounding.
            size = threshold.abs().amax() + sum(v.abs().amax() for v in logits.log_kernel.biases() or ())
            for _ in range(_NEWTON_STEPS):
                step = self._newton(logits, threshold, zeros)
                threshold = threshold + step.clamp_min(0)  # below it only by rounding
                if step.amax() <= 64 * torch.finfo(step.dtype).eps * size:
                    break
            else:
                check(False, f"plan: the thresholds of Quadratic did not settle in {_NEWTON_STEPS} steps.")
        # One more step, differentiated, carries the threshold's own gradient.
        threshold = threshold + self._newton(logits, threshold, zeros)
        plan = logits.reshape(positive_part(), row_bias=-threshold)
        return QuadraticCoupling(
            geometry=plan,
            f=torch.full_like(threshold, math.log(share)),
            g=zeros,
            logits=logits,
            threshold=threshold,
            share=share,
            per_row=per_row,
        )

    def _newton(self, logits: Geometry, threshold: Tensor, zeros: Tensor) -> Tensor:
        """Return the step towards sum [theta - t]_+ = 1, a convex function: from below it never overshoots."""
        above = self._pool(log_sums(logits.reshape(positive_part(), row_bias=-threshold), "rows", zeros).exp())
        with torch.no_grad():
            support = LogOf(lambda t: (t > 0).to(t.dtype))
            count = self._pool(log_sums(logits.reshape(support, row_bias=-threshold), "rows", zeros).exp())
        return torch.where(count > 0, above - 1, 0) / count.clamp_min(1)

    def _pool(self, by_row: Tensor, *, log: bool = False) -> Tensor:
        """Return what the rows sum to over the set that shares a threshold."""
        if self.constraint == "rows":
            return by_row
        return (by_row.logsumexp(0) if log else by_row.sum()).expand_as(by_row)


_NEWTON_STEPS = 200


@dataclass(frozen=True, repr=False)
class Exact(Plan):
    """The plan of least cost with both marginals and no regulariser (Kantorovich): for looking and evaluation.

    It is piecewise constant, so that no gradient comes from it. Needs SciPy.

    Raises:
        UsageError: SciPy is missing, or no plan avoids the masked pairs.
    """

    differentiable = False

    @torch.no_grad()
    def __call__(self, geometry: Geometry, *, reciprocal: bool = False) -> list[Coupling]:
        """Return the coupling of each direction."""
        optimize = require("scipy.optimize", "train", "The plan Exact")
        s = geometry.dense().double()
        n, m = s.shape
        cost = (-s).cpu().numpy()
        if n == m:
            try:
                rows, columns = optimize.linear_sum_assignment(cost)
            except ValueError as error:
                check(False, f"plan: no exact plan avoids the masked pairs ({error}).")
            plan = torch.zeros_like(s)
            plan[rows, columns] = 1 / n
        else:
            plan = torch.as_tensor(_transport(cost)).to(s)
        log_a, log_b = _uniform_marginals(geometry)
        matrix = plan.log().to(log_a)
        coupling = Coupling(Geometry(MatrixLogKernel(matrix)), torch.zeros_like(log_a), torch.zeros_like(log_b))
        return [coupling, coupling.T] if reciprocal else [coupling]


def _transport(cost: np.ndarray) -> np.ndarray:
    """Return the plan of least cost between uniform marginals, by linear programming; infinite cost forbids a pair."""
    optimize, sparse = (require(f"scipy.{part}", "train", "The plan Exact") for part in ("optimize", "sparse"))
    n, m = cost.shape
    rows, columns = np.isfinite(cost).nonzero()
    pairs = np.arange(len(rows))
    masses = sparse.vstack(
        [
            sparse.csr_matrix((np.ones(len(pairs)), (side, pairs)), (size, len(pairs)))
            for side, size in ((rows, n), (columns, m))
        ]
    )
    uniform = np.concatenate([np.full(n, 1 / n), np.full(m, 1 / m)])
    solution = optimize.linprog(cost[rows, columns], A_eq=masses, b_eq=uniform, method="highs")
    check(solution.status == 0, f"plan: no exact plan was found ({solution.message}).")
    plan = np.zeros_like(cost)
    plan[rows, columns] = solution.x
    return plan


def _check_iterations(iterations: int) -> None:
    good = isinstance(iterations, int) and not isinstance(iterations, bool) and iterations >= 1
    check(good, f"iterations: expected an integer of at least 1, got {iterations!r}.")
