"""What a backend is: the passes over all pairs, and the differentiable operations that are made of them.

A gradient of a gradient (``create_graph=True``) is taken by plain autograd on the whole (N, M) matrix, whatever the
backend: exact, in O(N M) memory for each half step.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from contraport.engine.fixed_point import Converged, solve
from contraport.engine.geometry import Geometry
from contraport.engine.half_steps import HalfSteps, Scaled, Slack
from contraport.engine.passes import Passes, Term, differentiably


class Backend(Passes):
    """The passes over one geometry, and what is made of them.

    Attributes:
        summary: how it works, in a line.
    """

    summary: ClassVar[str]

    @abstractmethod
    def scale(
        self,
        chain: HalfSteps,
        log_marginals: tuple[Tensor, Tensor],
        slack: Slack,
        given: Sequence[Tensor],
    ) -> list[Tensor]:
        """Return the potential of each half step; see `contraport.engine.scale`."""

    @abstractmethod
    def held_sums(self, f: Tensor, g: Tensor) -> Tensor:
        """Return the held sums of the rows; see `contraport.engine.held_sums`."""

    def converge(
        self, log_marginals: tuple[Tensor, Tensor], slack: Slack, tolerance: float, iterations: int
    ) -> tuple[Tensor, Tensor, int]:
        """Return the potentials at convergence and the number of iterations; see `contraport.engine.converge`."""
        *reached, made = solve(self, log_marginals, slack, tolerance, iterations)
        f, g = Converged.apply(self, *reached, *log_marginals, *slack.tensors(), *self.inputs())
        return f, g, made


class Collapsing(Backend):
    """Operations whose gradient is collapsed into one pass, for backends that never hold the matrix as a whole."""

    @abstractmethod
    def sums_of_t(self, f: Tensor, g: Tensor) -> Tensor:
        """Return sum_j exp(S_ij + f_i + g_j) T_ij, (N,), in one pass."""

    def scale(
        self,
        chain: HalfSteps,
        log_marginals: tuple[Tensor, Tensor],
        slack: Slack,
        given: Sequence[Tensor],
    ) -> list[Tensor]:
        return list(Scaled.apply(self, chain, *log_marginals, *slack.tensors(), *given, *self.inputs()))

    def held_sums(self, f: Tensor, g: Tensor) -> Tensor:
        sums: Tensor = _HeldSums.apply(self, f, g, *self.inputs())
        return sums


def held_sums_written_down(geometry: Geometry, f: Tensor, g: Tensor) -> Tensor:
    """Return the held sums by their definition, for autograd to differentiate."""
    plan = torch.exp(geometry.dense() + f[:, None] + g).detach()
    return (plan * geometry.log_kernel.with_link(None).dense()).sum(1)


class _HeldSums(torch.autograd.Function):
    """Sums that are linear in T."""

    @staticmethod
    def forward(ctx: Any, backend: Collapsing, f: Tensor, g: Tensor, *inputs: Tensor | None) -> Tensor:
        ctx.backend = backend
        ctx.save_for_backward(f, g)
        return backend.sums_of_t(f, g)

    @staticmethod
    def backward(ctx: Any, seed: Tensor) -> tuple[Tensor | None, ...]:
        (f, g), backend, wanted = ctx.saved_tensors, ctx.backend, ctx.needs_input_grad[3:]
        if torch.is_grad_enabled():

            def written_down(*inputs: Tensor) -> list[Tensor]:
                return [held_sums_written_down(backend.geometry_on(inputs), f, g)]

            return (None, None, None, *differentiably(written_down, backend.inputs(), [seed], wanted))
        return (None, None, None, *backend.gradient([Term(f, g, "rows", seed)], wanted, held=True))
