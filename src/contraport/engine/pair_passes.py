"""Sums over all pairs, in O(N M) time, that every backend implements.

Each pass works on a geometry, S = log K with its masks:

1. ``row_column_log_sums``: log sum_j exp(S_ij + q_j) and log sum_i exp(S_ij + p_i);
2. ``weighted_kernel_sums``: sum_j exp(S_ij + A_i + B_j) v_j and sum_i exp(S_ij + A_i + B_j) u_i;
3. ``input_grads``: the gradient of sum_ij W_ij S_ij in the inputs of the log-kernel, where W is a sum of terms
   exp(S_ij + A_i + B_j) (u_i or v_j);
4. ``plan_link_input_row_sums``: sum_j P_ij T_ij, the weighted sum of T itself that transport costs need.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from contraport.distributed import Processes
from contraport.engine.masked_geometry import Geometry

AxisName: TypeAlias = Literal["rows", "columns"]
"""Name of an axis of the matrix of pairs."""

OTHER_AXIS: dict[AxisName, AxisName] = {"rows": "columns", "columns": "rows"}
"""Columns for rows, and rows for columns."""

OptionalSums: TypeAlias = tuple[Tensor | None, Tensor | None]
"""Sums of the rows, (N,), and sums of the columns, (M,); None where they were not requested."""


class WeightTerm(NamedTuple):
    """Pair weights exp(log K_ij + A_i + B_j) times a row or column factor.

    Attributes:
        row_exponents: Exponents A of the rows, (N,).
        column_exponents: Exponents B of the columns, (M,).
        factor_axis: AxisName of the factor: ``"rows"`` for u, ``"columns"`` for v.
        factor: Factor u of each row, (N,), or v of each column, (M,).
    """

    row_exponents: Tensor
    column_exponents: Tensor
    factor_axis: AxisName
    factor: Tensor

    @property
    def T(self) -> WeightTerm:
        """Pair weights with rows and columns exchanged."""
        return WeightTerm(self.column_exponents, self.row_exponents, OTHER_AXIS[self.factor_axis], self.factor)


class PairPasses(ABC):
    """Base class of backends, which compute sums over all pairs.

    A backend overrides `prepare_passes` to compute what its passes share.

    Args:
        geometry: the pairs.
        processes: the processes that share the work.
        saved: the result of `computed_tensors_to_save` after earlier passes over the same geometry.
        operand_dtype: dtype of embeddings in matrix products, on devices where it is faster.

    Attributes:
        description: Description of the backend in one line, for `explain_backend`.
        uses_plain_autograd: Whether the backend runs operations as plain autograd on the whole matrix.
    """

    description: ClassVar[str]
    uses_plain_autograd: ClassVar[bool] = False

    def __init__(
        self,
        geometry: Geometry,
        processes: Processes,
        saved: Sequence[Tensor] = (),
        operand_dtype: torch.dtype = torch.float32,
    ) -> None:
        self.geometry, self.processes, self.saved = geometry, processes, tuple(saved)
        self.operand_dtype = operand_dtype
        self.log_kernel = geometry.log_kernel
        self.is_symmetric = geometry.is_symmetric
        self.prepare_passes()

    @abstractmethod
    def prepare_passes(self) -> None:
        """Compute once what several passes over the pairs use, and set it as attributes."""

    def computed_tensors_to_save(self) -> list[Tensor]:
        """Return the tensors that the gradient reuses, none by default."""
        return []

    @staticmethod
    def empty_saved_tensors_for_tracing(geometry: Geometry, processes: Processes) -> list[Tensor]:
        """Return uninitialized tensors shaped like those saved for backward, for tracing."""
        return []

    @abstractmethod
    def row_column_log_sums(self, column_potential: Tensor | None, row_potential: Tensor | None) -> OptionalSums:
        """Return the log-sum-exps of rows, (N,), and columns, (M,).

        Args:
            column_potential: potential, (M,), added in the log-sum of each row, or None to skip those of the rows.
            row_potential: potential, (N,), added in the log-sum of each column, or None to skip those of the columns.
        """

    @abstractmethod
    def weighted_kernel_sums(self, terms: Sequence[WeightTerm]) -> list[Tensor]:
        """Return weighted sums of the kernel over rows or columns, one for each term.

        A factor on ``"rows"`` gives sum_i exp(S_ij + A_i + B_j) u_i, (M,); one on ``"columns"`` the sum over j, (N,).
        At most one term may be on each axis.
        """

    @abstractmethod
    def input_grads(
        self, terms: Sequence[WeightTerm], needs_grad: Sequence[bool], *, without_link: bool = False
    ) -> list[Tensor | None]:
        """Return gradients of sum_ij W_ij log K_ij with respect to the log-kernel inputs.

        Args:
            terms: W is their sum, a constant.
            needs_grad: one flag per input of the log-kernel.
            without_link: return the gradient of sum_ij W_ij T_ij instead, T being S without its link.
        """

    @abstractmethod
    def plan_link_input_row_sums(self, row_potential: Tensor, column_potential: Tensor) -> Tensor:
        """Return each row's sum, (N,), of plan entries times the link function's inputs.

        They are sum_j P_ij T_ij, in one pass. The plan is P_ij = exp(S_ij + f_i + g_j) with the potentials f and g, and
        T is S without its link.
        """

    def _reduce_or_scale_gradients(self, gradients: list[Tensor | None]) -> list[Tensor | None]:
        """Sum gradients over processes, or scale them so that their average is the sum.

        Inputs that belong to no row or column (parameters of a learned cost) are replicated: their gradients are summed
        over the processes. Others are multiplied by the number of processes.
        """
        if self.is_symmetric:  # rows and columns are the same tensors, whose gradient stands in the slots of the rows
            gradients = [gradients[0], None, gradients[2], None]
        # The adjoint of the gather adds up all processes, and DistributedDataParallel then averages: hence the factor.
        sharded = len(gradients) - self.log_kernel.num_parameter_inputs
        self.processes.all_reduce_(*gradients[sharded:])
        if self.processes.size > 1:
            for value in gradients[:sharded]:
                if value is not None:
                    value *= self.processes.size
        return gradients
