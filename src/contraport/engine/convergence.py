"""The balanced plan at convergence, with its exact gradient from two vectors.

At the fixed point f = log a - log sum_j exp(S_ij + g_j), g = log b - log sum_i exp(S_ij + f_i), the gradient does not
need
the way there: the cotangents of the two equations solve a linear system,

    u + P diag(1/b) v = f_bar,      v + P^T diag(1/a) u = g_bar,

of which v is eliminated (a Schur complement, symmetric after scaling by the root of a) and u is found by conjugate
gradients, each step two weighted sums over the pairs. The system is singular along the constant that f may gain and g
lose; that component is taken out. For a loss whose slopes are those of a target with the marginals (a, b), as in
inverse optimal transport, the right-hand side vanishes, no step is made, and the gradient in S is plan less target.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from contraport.engine.geometry import Geometry
from contraport.engine.passes import Passes, Term
from contraport.engine.policies import passes_for
from contraport.engine.scaling import Step, scale

MOST_GRADIENT_STEPS = 500
"""Conjugate gradient steps after which the gradient is taken as it is, with a warning."""


def converge(
    geometry: Geometry, log_marginals: tuple[Tensor, Tensor], tolerance: float, iterations: int
) -> tuple[Tensor, Tensor]:
    """Return the potentials of the balanced plan, differentiable in the embeddings and the temperature.

    Args:
        geometry: the pairs, (N, M).
        log_marginals: log a, (N,), and log b, (M,), of equal total mass.
        tolerance: stop once the masses of the rows are off by less than this in all.
        iterations: the most that are made; a warning says so if they do not suffice.

    Returns:
        f, (N,), and g, (M,); the columns' masses are exact.

    Source: Luise et al. (2018), Differential properties of Sinkhorn approximation, theorem 3.
    """
    f, g, needed = _solve(geometry, log_marginals, tolerance, iterations)
    passes = passes_for(geometry)
    if passes is None:  # the oracle unrolls the way there
        steps = [Step("rows" if k % 2 == 0 else "columns", k - 1 if k else None) for k in range(2 * needed)]
        *_, f, g = scale(geometry, steps, log_marginals)
        return f, g
    inputs = passes.log_kernel.inputs
    given = (inputs[0], None, inputs[2], None) if passes.symmetric else inputs
    converged: tuple[Tensor, Tensor] = _Converged.apply(passes, f, g, *log_marginals, *given)
    return converged


@torch.no_grad()
def _solve(
    geometry: Geometry, log_marginals: tuple[Tensor, Tensor], tolerance: float, iterations: int
) -> tuple[Tensor, Tensor, int]:
    """Return the potentials and the number of iterations that they took."""
    log_a, log_b = log_marginals
    g = torch.zeros_like(log_b)
    (f,) = scale(geometry, [Step("rows", 0)], log_marginals, given=[g])
    for iteration in range(1, iterations + 1):
        g, following = scale(geometry, [Step("columns", 0), Step("rows", 1)], log_marginals, given=[f])
        # The next f is log a - log sum_j K e^g, so that f and it tell the row masses of the plan (f, g).
        error = (torch.exp(log_a + f - following) - log_a.exp()).abs().sum()
        if error < tolerance:
            return f, g, iteration
        f = following
    warnings.warn(
        f"after {iterations} Sinkhorn iterations the row masses are off by {error:.3g}, more than the tolerance "
        f"{tolerance:.3g}; raise iterations or the temperature.",
        stacklevel=4,
    )
    return f, g, iterations


class _Converged(torch.autograd.Function):
    """The identity on potentials at convergence, with the gradient of the fixed point."""

    @staticmethod
    def forward(
        ctx: Any, passes: Passes, f: Tensor, g: Tensor, log_a: Tensor, log_b: Tensor, *inputs: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        ctx.passes = passes
        ctx.save_for_backward(f, g, log_a, log_b)
        return f.clone(), g.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, f_bar: Tensor, g_bar: Tensor) -> tuple[Tensor | None, ...]:
        passes: Passes = ctx.passes
        f, g, log_a, log_b = ctx.saved_tensors

        def from_rows(u: Tensor) -> Term:
            return Term(f - log_a, g, "rows", u)

        def from_columns(v: Tensor) -> Term:
            return Term(f, g - log_b, "columns", v)

        def spread(term: Term) -> Tensor:
            return passes.weighted_sum([term])[0]

        root: Tensor = (log_a / 2).exp()
        constant = root / root.norm()

        def complement(y: Tensor) -> Tensor:
            return y - spread(from_columns(spread(from_rows(root * y)))) / root

        right = (f_bar - spread(from_columns(g_bar))) / root
        size = (f_bar / root).norm() + (g_bar / (log_b / 2).exp()).norm()
        u = root * _conjugate_gradients(complement, right - (constant @ right) * constant, size)
        v = g_bar - spread(from_rows(u))
        wanted = ctx.needs_input_grad[5:]
        gradients: list[Tensor | None] = [None for _ in wanted]
        if any(wanted):
            gradients = passes.gradient([from_rows(-u), from_columns(-v)], wanted)
        return (None, None, None, u, v, *gradients)


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
            f"the gradient of the converged plan has a residual of {float(square.sqrt()):.3g} after {steps} steps of "
            "conjugate gradients; raise the temperature.",
            stacklevel=2,
        )
    return solution
