"""The passes over all pairs, as what every backend carries out and every operation is made of.

Everything in contraport that costs O(N M) is one of these, over a geometry S = log K with its masks:

1. ``log_sum_exp``: log sum_j exp(S_ij + q_j) and log sum_i exp(S_ij + p_i);
2. ``weighted_sum``: sum_j exp(S_ij + A_i + B_j) v_j and sum_i exp(S_ij + A_i + B_j) u_i;
3. ``gradient``: the gradient of sum_ij W_ij S_ij for W = sum over terms of exp(S_ij + A_i + B_j) (u_i or v_j), given
   back on the inputs of the log-kernel.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from contraport.distributed import Processes
from contraport.engine.geometry import Geometry


class Term(NamedTuple):
    """One term of the gradient's weight, exp(S_ij + A_i + B_j) times u_i (axis ``"rows"``) or v_j (``"columns"``)."""

    log_rows: Tensor
    log_columns: Tensor
    axis: str
    weight: Tensor


class Passes(ABC):
    """The passes over one geometry, however they are carried out.

    They are made for one operation and keep what it was begun with, its processes too: its gradient is found the same
    way, wherever and whenever backward runs.

    Args:
        geometry: the pairs.
        processes: who shares the work.
    """

    def __init__(self, geometry: Geometry, processes: Processes) -> None:
        self.geometry = geometry
        self.log_kernel = geometry.log_kernel
        self.symmetric = geometry.symmetric
        self.processes = processes

    @abstractmethod
    def log_sum_exp(self, over_columns: Tensor | None, over_rows: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """Return log sum_j exp(S_ij + q_j), (N,), and log sum_i exp(S_ij + p_i), (M,), in one pass.

        Args:
            over_columns: q, (M,), or None where the first is not wanted.
            over_rows: p, (N,), or None where the second is not wanted.
        """

    @abstractmethod
    def weighted_sum(self, terms: Sequence[Term]) -> list[Tensor]:
        """Return for each term, at most one on each axis, the sum of its weight over its own axis, in one pass.

        A term on ``"rows"`` gives sum_i exp(S_ij + A_i + B_j) u_i, (M,); on ``"columns"`` the sum over j, (N,).
        """

    @abstractmethod
    def gradient(self, terms: Sequence[Term], wanted: Sequence[bool], *, held: bool = False) -> list[Tensor | None]:
        """Return the gradient of sum_ij W_ij S_ij on each wanted input of the log-kernel, W the sum of the terms.

        Where W is held it is that of sum_ij W_ij T_ij, S without its link.
        """

    def inputs(self) -> tuple[Tensor | None, ...]:
        """Return the log-kernel's inputs, each tensor once, as `torch.compile` wants it; its gradient is that of both
        sides.
        """
        inputs = self.log_kernel.inputs
        return (inputs[0], None, inputs[2], None) if self.symmetric else inputs

    def geometry_on(self, inputs: Sequence[Tensor | None]) -> Geometry:
        """Return the same pairs on other inputs of the log-kernel, given as `inputs` gives them."""
        whole = [inputs[0], inputs[0], inputs[2], inputs[2]] if self.symmetric else inputs
        log_kernel = self.log_kernel.with_inputs([v for v in whole if v is not None])
        return replace(self.geometry, log_kernel=log_kernel)

    def _contributed(self, gradients: list[Tensor | None]) -> list[Tensor | None]:
        """Return what this process sends back: its part of the gradient, times the number of processes.

        What belongs to no row or column, as a learned cost's own parameters, is the same on every process and gets the
        whole of it.
        """
        if self.symmetric:
            gradients = [gradients[0], None, gradients[2], None]
        own = len(gradients) - self.log_kernel.parameters
        self.processes.add_up(*gradients[own:])
        if self.processes.size > 1:
            for value in gradients[:own]:
                if value is not None:
                    value *= self.processes.size
        return gradients


def differentiably(
    function: Callable[..., Sequence[Tensor]],
    inputs: Sequence[Tensor | None],
    seeds: Sequence[Tensor | None],
    wanted: Sequence[bool],
    *,
    again: bool = True,
) -> list[Tensor | None]:
    """Return the gradient on the wanted inputs of a function of plain operations.

    Args:
        function: of the inputs.
        inputs: may depend on one another; None where there is none.
        seeds: what the outputs are multiplied by; None where it is zero.
        wanted: which inputs.
        again: whether the gradient is itself differentiable.
    """
    # Each input is taken by another name: what it owes to another input is not the function's.
    named = [None if v is None else (v.view_as(v) if again else v.detach().requires_grad_()) for v in inputs]
    with torch.enable_grad():
        outputs = function(*named)
    seeded = [(output, seed) for output, seed in zip(outputs, seeds, strict=True) if seed is not None]
    asked = [v for v, want in zip(named, wanted, strict=True) if want and v is not None]
    if not (seeded and asked):
        return [None] * len(inputs)
    values, cotangents = zip(*seeded, strict=True)
    found = iter(torch.autograd.grad(values, asked, cotangents, create_graph=again, allow_unused=True))
    return [next(found) if want and v is not None else None for v, want in zip(named, wanted, strict=True)]
