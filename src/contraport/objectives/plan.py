"""The plan of a call, as potentials over the compared pairs, and the outcome on which divergences are evaluated."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from contraport.engine import (
    OTHER_AXIS,
    Axis,
    CostWeightedLink,
    Geometry,
    LogKernel,
    SquaredKernelLink,
    log_size,
    log_sums,
    map_row_blocks,
    transport_cost,
)
from contraport.errors import check, describe_value, is_integer
from contraport.objectives.layouts import Block
from contraport.objectives.targets import TargetPlan


@dataclass(frozen=True, eq=False)
class Plan:
    """A plan P_ij = exp(log K_ij + f_i + g_j), differentiable in the embeddings.

    Attributes:
        geometry: the compared pairs, (N, M).
        f: potential of the rows, (N,).
        g: potential of the columns, (M,).
        cached_log_row_mass: log sum_j P_ij, (N,), where finding the plan has left it known.
        cached_log_column_mass: log sum_i P_ij, (M,), likewise.
        zero: the axes whose potential is zero.
        unit_mass: whether the total mass is 1 by construction.
        log_marginals: log a, (N,), and log b, (M,), what rows and columns were to carry; None is uniform.
        iterations: how many were made to find it, each a half step on rows and one on columns; None where none was.
    """

    geometry: Geometry
    f: Tensor
    g: Tensor
    cached_log_row_mass: Tensor | None = None
    cached_log_column_mass: Tensor | None = None
    zero: tuple[Axis, ...] = ()
    unit_mass: bool = False
    log_marginals: tuple[Tensor, Tensor] | None = None
    iterations: int | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(N, M)."""
        return self.geometry.shape

    @property
    def T(self) -> Plan:
        """The same plan with rows and columns exchanged."""
        return Plan(
            self.geometry.T,
            self.g,
            self.f,
            self.cached_log_column_mass,
            self.cached_log_row_mass,
            tuple(OTHER_AXIS[axis] for axis in self.zero),
            self.unit_mass,
            None if self.log_marginals is None else self.log_marginals[::-1],
            self.iterations,
        )

    def log_at(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return log P at the given entries: index tensors (k,) to a tensor (k,)."""
        return self.geometry.at(rows, columns) + self.f[rows] + self.g[columns]

    @property
    def log_row_marginal(self) -> Tensor:
        """Log a, (N,): what each row was to carry."""
        return self._wanted(0)

    @property
    def log_column_marginal(self) -> Tensor:
        """Log b, (M,): what each column was to carry."""
        return self._wanted(1)

    def _wanted(self, side: int) -> Tensor:
        if self.log_marginals is not None:
            return self.log_marginals[side]
        size = self.shape[side]
        return self.f.new_zeros(size) - log_size(size, self.f)

    def log_row_mass(self) -> Tensor:
        """Return log sum_j P_ij, (N,); one pass over the pairs unless known."""
        if self.cached_log_row_mass is not None:
            return self.cached_log_row_mass
        return self.f + log_sums(self.geometry, "rows", self.g)

    def log_column_mass(self) -> Tensor:
        """Return log sum_i P_ij, (M,); one pass over the pairs unless known."""
        if self.cached_log_column_mass is not None:
            return self.cached_log_column_mass
        return self.g + log_sums(self.geometry, "columns", self.f)

    def log_row_sums(self) -> Tensor:
        """Return log sum_j K_ij, (N,), of the kernel alone; one pass over the pairs unless known."""
        return self.log_row_mass() - self.f if "columns" in self.zero else log_sums(self.geometry, "rows")

    @torch.no_grad()
    def error(self) -> float:
        """Return by how much the masses of rows and columns are off from what they were to be, in all."""
        found = self.log_row_mass(), self.log_column_mass()
        wanted = self.log_row_marginal, self.log_column_marginal
        return sum(float((mass.exp() - mark.exp()).abs().sum()) for mass, mark in zip(found, wanted, strict=True))

    def relative_to_marginal(self) -> Plan:
        """Return P_ij / a_i, in which a row that carries what it was to carry has mass 1."""
        return Plan(self.geometry, self.f - self.log_row_marginal, self.g)

    def mass(self) -> Tensor:
        """Return the total mass, from the marginal that is known where one is."""
        known = self.cached_log_marginal
        return (self.log_row_mass() if known is None else known).exp().sum()

    @property
    def cached_log_marginal(self) -> Tensor | None:
        """The logarithm of the mass of each row, or else of each column, where finding the plan has left it known."""
        return self.cached_log_row_mass if self.cached_log_row_mass is not None else self.cached_log_column_mass

    def row_inner_log(self, target: TargetPlan) -> Tensor:
        """Return sum_j target_ij log P_ij, (N,), without a pass over the pairs; masks aside, where no target has
        mass.
        """
        f = None if "rows" in self.zero else self.f
        g = None if "columns" in self.zero else self.g
        return target.row_log(self.geometry.log_kernel, f, g)

    def row_square_mass(self) -> Tensor:
        """Return sum_j P_ij^2, (N,); one pass over the pairs."""
        link = self.geometry.log_kernel.link
        squared = (
            self.geometry.with_link(None, scale=2.0)
            if link is None
            else self.geometry.with_link(SquaredKernelLink(link))
        )
        return torch.exp(2 * self.f + log_sums(squared, "rows", 2 * self.g))

    @property
    def cost_kernel(self) -> LogKernel:
        """The log-kernel without its link, T = -C / unit."""
        return self.geometry.log_kernel.with_link(None)

    def row_cost(self, *, held: bool) -> Tensor:
        """Return sum_j P_ij C_ij, (N,); one pass over the pairs, and another for a cost that is no distance.

        Args:
            held: whether P is held fixed, so that the gradient is that of the cost alone.
        """
        kernel = self.cost_kernel
        if held:
            return transport_cost(self.geometry, self.f, self.g)
        # The sum is one of logarithms: a cost that may be negative is raised first, by what is then taken off.
        level = 0.0 if kernel.cost_is_distance else _level(kernel)
        weighted = self.geometry.with_link(CostWeightedLink(self.geometry.log_kernel.link, level))
        raised = torch.exp(self.f + log_sums(weighted, "rows", self.g))
        return kernel.unit * (raised if kernel.cost_is_distance else raised - level * self.log_row_mass().exp())

    def restrict(self, rows: slice) -> Plan:
        """Return the plan on some of its rows."""
        return Plan(self.geometry.restrict(rows), self.f[rows], self.g)

    def apply(self, values: Tensor) -> Tensor:
        """Return sum_j P_ij v_j: values (M, ...) to (N, ...), in the memory of a block of rows; differentiable.

        Raises:
            UsageError: the values are no tensor with a row for each column.
        """
        good = isinstance(values, Tensor) and values.shape[:1] == self.shape[1:]
        check(
            good,
            f"values: expected a tensor ({self.shape[1]}, ...), a row for each column, got {describe_value(values)}.",
        )
        flat = values.reshape(len(values), -1).to(self.f.dtype)
        parts = map_row_blocks(lambda rows: self.restrict(rows).dense() @ flat, self.shape)
        return torch.cat(parts).reshape(self.shape[0], *values.shape[1:])

    def barycentric(self, values: Tensor) -> Tensor:
        """Return where each row is sent, the mean of the columns' values under its shares: (M, ...) to (N, ...).

        Source: Peyré and Cuturi (2019), remark 4.11, for the values y themselves: the barycentric projection.
        """
        carried, mass = self.apply(values), self.log_row_mass().exp()
        return carried / torch.where(mass > 0, mass, 1).reshape(-1, *[1] * (carried.ndim - 1))

    def top(self, k: int) -> Tensor:
        """Return the k heaviest entries of each row as a sparse tensor, (N, M) with N k entries, differentiable in
        them.

        Raises:
            UsageError: k is not between 1 and M.
        """
        n, m = self.shape
        check(is_integer(k) and 1 <= k <= m, f"k: expected a number from 1 to {m}, the number of columns, got {k!r}.")
        with torch.no_grad():
            found = map_row_blocks(lambda rows: self.restrict(rows).log_dense().topk(k, 1).indices, self.shape)
        columns = torch.cat(found).flatten()
        rows = torch.arange(n, device=columns.device).repeat_interleave(k)
        entries = self.log_at(rows, columns).exp()
        return torch.sparse_coo_tensor(torch.stack([rows, columns]), entries, (n, m), check_invariants=False)

    def log_dense(self) -> Tensor:
        """Return log P as an (N, M) tensor."""
        return self.geometry.dense() + self.f[:, None] + self.g

    def dense(self) -> Tensor:
        """Return P as an (N, M) tensor, to look at."""
        return self.log_dense().exp()


@dataclass(frozen=True, eq=False)
class BlockResult:
    """One direction of one block, on which divergences and penalties are evaluated.

    Attributes:
        block: the compared pairs, (N, M).
        target: the plan that is wanted.
        plan: the plan that came out.
        importance: the factor of each row, (N,), 0 for those that want nothing, under which the mass of the target is
            1; None where it is 1 throughout.
        ids: identity of each item, (n,), where it is known.
    """

    block: Block
    target: TargetPlan
    plan: Plan
    importance: Tensor | None = None
    ids: Tensor | None = None

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum of what a divergence gives for the rows, (N,), weighted; what is no sum stays as it is."""
        if values.ndim == 0:
            return values
        return values.sum() if self.importance is None else self.importance @ values

    def by_row(self, values: Tensor, term: object) -> Tensor:
        """Return what a divergence gives for the rows, (N,), weighted so that its mean is their sum.

        Raises:
            UsageError: the divergence, ``term``, has no value for each row.
        """
        check(values.ndim > 0, f"reduction: {term!r} is no sum over rows, so that no row has a value; expected 'mean'.")
        values = len(values) * values
        return values if self.importance is None else self.importance * values


@torch.no_grad()
def _level(kernel: LogKernel) -> Tensor:
    """Return a number, ``()``, well above every T: by no less than the largest of them all."""
    largest = torch.stack(map_row_blocks(lambda rows: kernel.restrict(rows).dense().abs().amax(), kernel.shape)).amax()
    return 2 * largest + (largest == 0)


def kl(log_mass: Tensor, log_wanted: Tensor) -> Tensor:
    """Return the generalised KL of masses from those that were wanted, both by their logarithms, (N,)."""
    mass = log_mass.exp()
    present = mass > 0
    ratio = torch.where(present, log_mass, log_wanted) - log_wanted
    return (mass * (ratio - 1)).sum() + log_wanted.exp().sum()
