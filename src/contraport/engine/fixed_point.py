"""The balanced plan at convergence, with its exact gradient from two vectors.

At the fixed point f = log a - log sum_j exp(S_ij + g_j), g = log b - log sum_i exp(S_ij + f_i), the gradient does not
need the way there: the cotangents of the two equations solve a linear system,

    u + P diag(1/b) v = f_bar,      v + P^T diag(1/a) u = g_bar,

of which v is eliminated (a Schur complement, symmetric after scaling by the root of a) and u is found by conjugate
gradients, each step two weighted sums over the pairs. The system is singular along the constant that f may gain and g
lose; that component is taken out. For a loss whose slopes are those of a target with the marginals (a, b), as in
inverse optimal transport, the right-hand side vanishes, no step is made, and the gradient in S is plan less target.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from contraport.engine.passes import Passes, Term, differentiably

MOST_GRADIENT_STEPS = 500
"""Conjugate gradient steps after which the gradient is taken as it is, with a warning."""


@torch.no_grad()
def solve(
    passes: Passes, log_marginals: tuple[Tensor, Tensor], tolerance: float, iterations: int
) -> tuple[Tensor, Tensor]:
    """Return the potentials of the balanced plan, f (N,) and g (M,), without a gradient.

    Args:
        passes: over the pairs.
        log_marginals: log a, (N,), and log b, (M,), of equal total mass.
        tolerance: stop once the masses of the rows are off by less than this in all.
        iterations: the most that are made; a warning says so if they do not suffice.
    """
    log_a, log_b = log_marginals

    def towards(log_marginal: Tensor, log_sum: Tensor | None) -> Tensor:
        assert log_sum is not None
        return log_marginal - log_sum.masked_fill(log_sum == -torch.inf, 0)

    f = towards(log_a, passes.log_sum_exp(torch.zeros_like(log_b), None)[0])
    for _ in range(iterations):
        g = towards(log_b, passes.log_sum_exp(None, f)[1])
        following = towards(log_a, passes.log_sum_exp(g, None)[0])
        # The next f is log a - log sum_j K e^g, so that f and it tell the row masses of the plan (f, g).
        error = (torch.exp(log_a + f - following) - log_a.exp()).abs().sum()
        if error < tolerance:
            return f, g
        reached, f = f, following
    warnings.warn(
        f"after {iterations} Sinkhorn iterations the row masses are off by {error:.3g}, more than the tolerance "
        f"{tolerance:.3g}; raise iterations or the temperature.",
        stacklevel=5,
    )
    return reached, g


class Converged(torch.autograd.Function):
    """The identity on potentials at convergence, with the gradient of the fixed point.

    Its arguments are the passes, f, g, log a, log b and the inputs of the log-kernel.
    """

    @staticmethod
    def forward(
        ctx: Any, passes: Passes, f: Tensor, g: Tensor, log_a: Tensor, log_b: Tensor, *inputs: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        f, g = f.clone(), g.clone()
        ctx.passes = passes
        ctx.save_for_backward(f, g, log_a, log_b)
        return f, g

    @staticmethod
    def backward(ctx: Any, f_bar: Tensor, g_bar: Tensor) -> tuple[Tensor | None, ...]:
        find = _written_down if torch.is_grad_enabled() else _by_passes
        f, g, log_a, log_b = ctx.saved_tensors
        u, v, gradients = find(ctx.passes, (f, g), (log_a, log_b), (f_bar, g_bar), ctx.needs_input_grad[5:])
        return (None, None, None, u, v, *gradients)


Gradient = tuple[Tensor, Tensor, list[Tensor | None]]
"""The gradient in log a, in log b and in the inputs of the log-kernel."""


def _by_passes(
    passes: Passes,
    potentials: tuple[Tensor, Tensor],
    log_marginals: tuple[Tensor, Tensor],
    seeds: tuple[Tensor, Tensor],
    wanted: Sequence[bool],
) -> Gradient:
    (f, g), (log_a, log_b), (f_bar, g_bar) = potentials, log_marginals, seeds

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
    gradients: list[Tensor | None] = [None for _ in wanted]
    if any(wanted):
        gradients = passes.gradient([from_rows(-u), from_columns(-v)], wanted)
    return u, v, gradients


def _written_down(
    passes: Passes,
    potentials: tuple[Tensor, Tensor],
    log_marginals: tuple[Tensor, Tensor],
    seeds: tuple[Tensor, Tensor],
    wanted: Sequence[bool],
) -> Gradient:
    """The same by plain operations on the whole matrix, for autograd to differentiate.

    f and g are outputs of `Converged`, so that what changes them comes back to this gradient.
    """
    (f, g), (log_a, log_b), (f_bar, g_bar) = potentials, log_marginals, seeds
    s = passes.geometry.dense()
    plan, a, b = torch.exp(s + f[:, None] + g), log_a.exp(), log_b.exp()
    by_column, by_row = plan / b, plan / a[:, None]
    # On the constant, where the complement vanishes, the outer product takes its place.
    complement = torch.eye(len(a), dtype=a.dtype, device=a.device) - by_column @ by_row.T + a[:, None] / a.sum()
    u = torch.linalg.solve(complement, f_bar - by_column @ g_bar)
    v = g_bar - by_row.T @ u

    def log_kernel(*inputs: Tensor) -> list[Tensor]:
        return [passes.geometry_on(inputs).dense()]

    return u, v, differentiably(log_kernel, passes.inputs(), [-(by_row * u[:, None] + by_column * v)], wanted)


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
