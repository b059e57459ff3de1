"""The plan at convergence, with its exact gradient from two vectors.

At the fixed point of the half steps f = F(log a - L(g)), g = G(log b - L'(f)), with L and L' the log-sums of rows and
columns and F and G the identity or with slack (see `Relaxation`), the gradient does not need the way there. With r and
c
the masses of the rows and columns of P, and s and t the slopes of F and G (1 without slack), the cotangents of the
two equations solve a linear system,

    u / s + P diag(1/c) v = f_bar,      v / t + P^T diag(1/r) u = g_bar,

of which v is eliminated (a Schur complement, symmetric after scaling by the root of s/r) and u is found by conjugate
gradients, each step two weighted sums over the pairs. Without slack the system is singular along the constant that f
may gain and g lose; that component is taken out. For a loss whose slopes are those of a target with the marginals (a,
b), as in inverse optimal transport, the right-hand side vanishes, no step is made, and the gradient in S is plan less
target.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from contraport._utils.formatting import pluralize
from contraport.engine.custom_op import Operation
from contraport.engine.geometry import Geometry
from contraport.engine.half_steps import Axis, Relaxation, log_sum_exp
from contraport.engine.passes import Passes, Term, differentiably
from contraport.engine.pytree import Structure, unflatten

MOST_GRADIENT_STEPS = 500
"""Conjugate gradient steps after which the gradient is taken as it is, with a warning."""


class Solution(NamedTuple):
    """The potentials at convergence.

    Attributes:
        f: (N,).
        g: (M,).
        log_row_sums: L(g), (N,), 0 where nothing is compared.
        log_column_sums: L'(f), (M,), likewise.
        iterations: how many were made.
    """

    f: Tensor
    g: Tensor
    log_row_sums: Tensor
    log_column_sums: Tensor
    iterations: int


def solve(
    passes: Passes, log_marginals: tuple[Tensor, Tensor], slack: Relaxation, tolerance: float, iterations: int
) -> Solution:
    """Return the plan in potentials, without a gradient.

    Args:
        passes: over the pairs.
        log_marginals: log a, (N,), and log b, (M,); of equal total mass where there is no slack.
        slack: of the half steps on rows and on columns.
        tolerance: stop once a further step would change the masses of the rows by less than this in all; without slack
            that is by how much they are off.
        iterations: the most that are made; a warning says so if they do not suffice.
    """
    log_a, log_b = log_marginals

    def sums(over_columns: Tensor | None, over_rows: Tensor | None) -> Tensor:
        by_row, by_column = passes.log_sum_exp(over_columns, over_rows)
        log_sum = by_row if over_rows is None else by_column
        assert log_sum is not None
        return log_sum.masked_fill(log_sum == -torch.inf, 0)

    start = torch.zeros_like(log_b) if slack.references is None else slack.references[1]
    f = slack.potential(0, "rows", log_a, sums(start, None))
    for made in range(1, iterations + 1):
        of_columns = sums(None, f)
        g = slack.potential(1, "columns", log_b, of_columns)
        of_rows = sums(g, None)
        following = slack.potential(0, "rows", log_a, of_rows)
        error = (torch.exp(f + of_rows) - torch.exp(following + of_rows)).abs().sum()
        if error < tolerance:
            return Solution(f, g, of_rows, of_columns, made)
        reached, f = Solution(f, g, of_rows, of_columns, made), following
    warnings.warn(
        f"after {pluralize(iterations, 'Sinkhorn iteration')} the row masses are off by more than the tolerance "
        f"{tolerance:.3g}; raise iterations or the temperature.",
        stacklevel=2,
    )
    return reached


@dataclass(frozen=True, eq=False)
class Converge(Operation):
    """The potentials at convergence, with the gradient of the fixed point; see `contraport.engine.solve_fixed_point`.

    Its outputs are f and g, the log-sums L(g) and L'(f), and the number of iterations, ``()``.
    """

    log_marginals: tuple[Tensor, Tensor]
    slack: Relaxation
    tolerance: float
    iterations: int

    @property
    def counts(self) -> tuple[int, int]:
        """Five outputs, of which the potentials are differentiable."""
        return 5, 2

    def run(self, passes: Passes) -> list[Tensor]:
        *reached, made = solve(passes, self.log_marginals, self.slack, self.tolerance, self.iterations)
        return [*reached, torch.tensor(made)]

    def empty(self) -> list[Tensor]:
        sides = 2 * self.log_marginals
        return [*(side.new_empty(side.shape) for side in sides), torch.empty((), dtype=torch.int64)]

    def sources(self) -> tuple[Tensor | None, ...]:
        return *self.log_marginals, *self.slack.tensors(), *self.geometry.log_kernel.inputs

    def gradient(
        self, passes: Passes, outputs: Sequence[Tensor], seeds: Sequence[Tensor | None], requires: Sequence[bool]
    ) -> list[Tensor | None]:
        return _by_passes(passes, self._point(outputs), self._filled(seeds), requires)

    def second_gradient(
        self,
        structure: Structure,
        tensors: Sequence[Tensor],
        outputs: Sequence[Tensor],
        seeds: Sequence[Tensor | None],
        requires: Sequence[bool],
    ) -> list[Tensor | None]:
        operation: Converge = unflatten(structure, tensors)
        point = operation._point(outputs)
        u, v, f, g = _solved_densely(operation.geometry, point, operation._filled(seeds))

        def equations(*named: Tensor) -> list[Tensor]:
            at: Converge = unflatten(structure, named)
            s = at.geometry.dense()
            log_sums = log_sum_exp(s + g, 0), log_sum_exp((s + f[:, None]).T, 0)
            sides: tuple[Axis, Axis] = ("rows", "columns")
            return [at.slack.potential(k, sides[k], at.log_marginals[k], log_sums[k]) for k in range(2)]

        return differentiably(equations, tensors, [u, v], requires)

    def _point(self, outputs: Sequence[Tensor]) -> _Point:
        f, g, of_rows, of_columns, *_ = outputs
        return _Point((f, g), (of_rows, of_columns), self.log_marginals, self.slack)

    def _filled(self, seeds: Sequence[Tensor | None]) -> tuple[Tensor, Tensor]:
        f_bar, g_bar = (
            torch.zeros_like(like) if seed is None else seed
            for seed, like in zip(seeds, self.log_marginals, strict=True)
        )
        return f_bar, g_bar


class _Point(NamedTuple):
    """Where the gradient is taken: potentials, their log-sums, and what they came from."""

    potentials: tuple[Tensor, Tensor]
    log_sums: tuple[Tensor, Tensor]
    log_marginals: tuple[Tensor, Tensor]
    slack: Relaxation

    def slope(self, k: int, axis: Axis) -> Tensor:
        """Return the slope of a half step, (N,) or (M,)."""
        return self.slack.slope(k, axis, self.log_marginals[k], self.log_sums[k])


def _by_passes(passes: Passes, at: _Point, seeds: tuple[Tensor, Tensor], wanted: Sequence[bool]) -> list[Tensor | None]:
    (f, g), (of_rows, of_columns), log_marginals, slack = at
    f_bar, g_bar = seeds

    def from_rows(u: Tensor) -> Term:
        return Term(-of_rows, g, "rows", u)

    def from_columns(v: Tensor) -> Term:
        return Term(f, -of_columns, "columns", v)

    def spread(term: Term) -> Tensor:
        return passes.weighted_sum([term])[0]

    s, t = at.slope(0, "rows"), at.slope(1, "columns")
    root_mass = ((f + of_rows) / 2).exp()
    scaling = s.sqrt() / root_mass
    lengthen = s.sqrt() * root_mass

    def complement(y: Tensor) -> Tensor:
        return y - scaling * spread(from_columns(t * spread(from_rows(lengthen * y))))

    right = scaling * (f_bar - spread(from_columns(t * g_bar)))
    if _strict(s, t):
        constant = root_mass / root_mass.norm()
        right = right - (constant @ right) * constant
    size = (f_bar * scaling).norm() + (g_bar / ((g + of_columns) / 2).exp()).norm()
    u = lengthen * _conjugate_gradients(complement, right, size)
    v = g_bar - spread(from_rows(u))
    outer: list[Tensor | None] = [
        torch.zeros_like(value) if want and value is not None else None
        for value, want in zip((*log_marginals, *slack.tensors()), wanted, strict=False)
    ]
    # u is past the slack of the rows; what is before it is needed for the slack's own gradient.
    before = u if slack == Relaxation() else f_bar - spread(from_columns(t * v))
    slack.adjoint(0, "rows", log_marginals, of_rows, before, outer)
    v = slack.adjoint(1, "columns", log_marginals, of_columns, v, outer)
    inputs = wanted[len(outer) :]
    gradients: list[Tensor | None] = [None for _ in inputs]
    if any(inputs):
        gradients = passes.gradient([from_rows(-u), from_columns(-v)], inputs)
    return [*outer, *gradients]


def _solved_densely(
    geometry: Geometry, at: _Point, seeds: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the cotangents u and v of the two equations, and f and g, by plain operations on the whole matrix.

    f and g are outputs of the operation, so that what changes them comes back to this gradient.
    """
    (f, g), *_ = at
    f_bar, g_bar = seeds
    s = geometry.dense()
    plan = torch.exp(s + f[:, None] + g)
    rows, columns = plan.sum(1), plan.sum(0)
    by_column = plan / torch.where(columns > 0, columns, 1)
    by_row = plan / torch.where(rows > 0, rows, 1)[:, None]
    slopes = at.slope(0, "rows"), at.slope(1, "columns")
    system = torch.eye(len(f), dtype=f.dtype, device=f.device) - (by_column * slopes[1]) @ (by_row.T * slopes[0])
    if _strict(*slopes):
        # On the constant, where the system vanishes, the outer product takes its place.
        system = system + rows[:, None] / rows.sum()
    u = torch.linalg.solve(system, f_bar - by_column @ (slopes[1] * g_bar))
    v = g_bar - by_row.T @ (slopes[0] * u)
    return u, v, f, g


def _strict(s: Tensor, t: Tensor) -> bool:
    """Return whether no half step has slack."""
    return bool((s == 1).all() and (t == 1).all())


def _conjugate_gradients(apply: Callable[[Tensor], Tensor], right: Tensor, size: Tensor) -> Tensor:
    """Solve for a symmetric positive semidefinite operator, to the rounding of numbers of the given size."""
    enough = (64 * torch.finfo(right.dtype).eps * size) ** 2
    solution, residual = torch.zeros_like(right), right.clone()
    direction, square = residual.clone(), residual @ residual
    steps = 0
    while square > enough and steps < MOST_GRADIENT_STEPS:
        image = apply(direction)
        length = square / (direction @ image)
        solution += length * direction
        residual -= length * image
        square, previous = residual @ residual, square
        direction = residual + (square / previous) * direction
        steps += 1
    if square > enough:
        warnings.warn(
            f"the gradient of the converged plan is not exact after {MOST_GRADIENT_STEPS} steps of conjugate "
            "gradients; raise the temperature.",
            stacklevel=2,
        )
    return solution
