"""The passes over all pairs, as what every backend carries out and every operation is made of.

Everything in contraport that costs O(N M) is one of these, over a geometry S = log K with its masks:

1. ``log_sum_exp``: log sum_j exp(S_ij + q_j) and log sum_i exp(S_ij + p_i);
2. ``weighted_sum``: sum_j exp(S_ij + A_i + B_j) v_j and sum_i exp(S_ij + A_i + B_j) u_i;
3. ``gradient``: the gradient of sum_ij W_ij S_ij for W = sum over terms of exp(S_ij + A_i + B_j) (u_i or v_j), given
   back on the inputs of the log-kernel.

``sums_of_t`` is a weighted sum of T itself, which transport costs need.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

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
    """The passes over one geometry, in the form of a backend. They are made for one operation or its gradient.

    Args:
        geometry: the pairs.
        processes: who shares the work.
        saved: what `saved` returned after earlier passes over the same geometry.
        operands: the precision of embeddings in products, on the backend ``"cuda"``.

    Attributes:
        summary: how the backend works, in a line.
        by_autograd: whether operations are computed by their definition, in plain operations.
    """

    summary: ClassVar[str]
    by_autograd: ClassVar[bool] = False

    def __init__(
        self,
        geometry: Geometry,
        processes: Processes,
        saved: Sequence[Tensor] = (),
        operands: torch.dtype = torch.float32,
    ) -> None:
        self.geometry = geometry
        self.log_kernel = geometry.log_kernel
        self.symmetric = geometry.symmetric
        self.processes = processes

    def saved(self) -> list[Tensor]:
        """Return what the passes so far have computed and the gradient can use again."""
        return []

    @staticmethod
    def empty_saved(geometry: Geometry, processes: Processes) -> list[Tensor]:
        """Return uninitialized tensors like those of `saved`; the sizes may be symbols."""
        return []

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

    @abstractmethod
    def sums_of_t(self, f: Tensor, g: Tensor) -> Tensor:
        """Return sum_j exp(S_ij + f_i + g_j) T_ij, (N,), in one pass."""

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
) -> list[Tensor | None]:
    """Return the gradient on the wanted inputs of a function of plain operations, itself differentiable.

    Args:
        function: of the inputs.
        inputs: may depend on one another; None where there is none.
        seeds: what the outputs are multiplied by; None where it is zero.
        wanted: which inputs.
    """
    # Each input is taken by another name: what it owes to another input is not the function's.
    named = [None if v is None else v.view_as(v) for v in inputs]
    with torch.enable_grad():
        outputs = function(*named)
    seeded = [(output, seed) for output, seed in zip(outputs, seeds, strict=True) if seed is not None]
    asked = [v for v, want in zip(named, wanted, strict=True) if want and v is not None]
    if not (seeded and asked):
        return [None] * len(inputs)
    values, cotangents = zip(*seeded, strict=True)
    found = iter(torch.autograd.grad(values, asked, cotangents, create_graph=True, allow_unused=True))
    return [next(found) if want and v is not None else None for v, want in zip(named, wanted, strict=True)]
