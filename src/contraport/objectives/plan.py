"""Transport plans, alone or together with their target plans."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from contraport.engine import (
    OTHER_AXIS,
    AxisName,
    Geometry,
    LinkPlusLogCost,
    LinkTimesTwo,
    LogKernel,
    MatrixLogKernel,
    autocast_disabled,
    checkpoint_row_blocks,
    column_log_sums,
    fixed_plan_row_costs,
    row_log_sums,
    traceable_log,
)
from contraport.errors import UsageError, check, is_integer, type_and_shape
from contraport.objectives.layouts import Block
from contraport.objectives.targets import TargetPlan
from contraport.options import keep_deprecated_attributes


@keep_deprecated_attributes(
    log_kernel_row_sums="kernel_log_row_sums",
    row_square_mass="row_squared_norm",
    cached_log_mass="cached_log_row_or_column_mass",
)
@dataclass(frozen=True, eq=False)
class Plan:
    """Differentiable transport plan P_ij = exp(log K_ij + f_i + g_j).

    Masses, norms and costs take one pass over the pairs unless the solver has computed them.

    Attributes:
        geometry: Compared pairs, (N, M), with log K; of the kernel unless `cost_geometry` is given.
        row_potential: Log potential of each row, (N,); None is zero.
        column_potential: Log potential of each column, (M,); None is zero.
        cached_log_row_mass: Log mass of each row, (N,), if the solver computed it; else None.
        cached_log_column_mass: Log mass of each column, (M,), if the solver computed it; else None.
        exact_axis: Axis whose masses are its prescribed marginals by construction; None if there is none.
        has_unit_mass: Whether the total mass is 1 by construction.
        log_marginals: Prescribed marginals log a, (N,), and log b, (M,); None is uniform.
        iterations: Number of Sinkhorn iterations, each a half-step on rows and one on columns; None without any.
        cost_geometry: Compared pairs under the kernel, for a plan whose entries are not exponentials of the cost.
    """

    geometry: Geometry
    row_potential: Tensor | None
    column_potential: Tensor | None
    cached_log_row_mass: Tensor | None = None
    cached_log_column_mass: Tensor | None = None
    exact_axis: AxisName | None = None
    has_unit_mass: bool = False
    log_marginals: tuple[Tensor, Tensor] | None = None
    iterations: int | None = None
    cost_geometry: Geometry | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and number of columns, (N, M)."""
        return self.geometry.shape

    @property
    def kernel_geometry(self) -> Geometry:
        """Log-kernel of the embeddings, with masks of the excluded pairs, (N, M)."""
        return self.geometry if self.cost_geometry is None else self.cost_geometry

    @property
    def T(self) -> Plan:
        """Transposed plan, with rows and columns exchanged."""
        return Plan(
            self.geometry.T,
            self.column_potential,
            self.row_potential,
            self.cached_log_column_mass,
            self.cached_log_row_mass,
            None if self.exact_axis is None else OTHER_AXIS[self.exact_axis],
            self.has_unit_mass,
            None if self.log_marginals is None else self.log_marginals[::-1],
            self.iterations,
            None if self.cost_geometry is None else self.cost_geometry.T,
        )

    # Zeros are created when they are read, as most losses never do.
    @property
    def f(self) -> Tensor:
        """Log potential f_i of each row, (N,)."""
        return self._zero_potential(0) if self.row_potential is None else self.row_potential

    @property
    def g(self) -> Tensor:
        """Log potential g_j of each column, (M,)."""
        return self._zero_potential(1) if self.column_potential is None else self.column_potential

    def _zero_potential(self, side: int) -> Tensor:
        """Return zero potentials of the rows (side 0) or columns (side 1)."""
        return self.geometry.log_kernel.inputs[0].new_zeros(self.shape[side])

    def log_at(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return log P, (k,), at k given row and column indices."""
        for name, places in (("rows", rows), ("columns", columns)):
            if not isinstance(places, Tensor) or places.ndim != 1 or places.dtype not in (torch.int32, torch.int64):
                raise UsageError(f"{name}: must be integers, (k,), got {type_and_shape(places)}.", kind="type")
        if rows.shape != columns.shape:
            raise UsageError(f"columns: must be as many as rows, {len(rows)}, got {len(columns)}.", kind="shape")
        return self.geometry.gather_log_kernel(rows, columns) + self.f[rows] + self.g[columns]

    @property
    def log_prescribed_row_marginal(self) -> Tensor:
        """Log of the prescribed row marginal (N,), which is uniform by default."""
        return self._log_prescribed_marginal(0)

    @property
    def log_prescribed_column_marginal(self) -> Tensor:
        """Log of the prescribed column marginal (M,), which is uniform by default."""
        return self._log_prescribed_marginal(1)

    def _log_prescribed_marginal(self, side: int) -> Tensor:
        """Return the log of the prescribed row (side 0) or column (side 1) marginal."""
        if self.log_marginals is not None:
            return self.log_marginals[side]
        zeros = self._zero_potential(side)
        return zeros - traceable_log(len(zeros), zeros)

    def log_row_mass(self) -> Tensor:
        """Return the log mass of each row, log sum_j P_ij, (N,)."""
        if self.exact_axis == "rows":
            return self.log_prescribed_row_marginal
        if self.cached_log_row_mass is not None:
            return self.cached_log_row_mass
        return self.f + row_log_sums(self.geometry, self.g)

    def log_column_mass(self) -> Tensor:
        """Return the log mass of each column, log sum_i P_ij, (M,)."""
        if self.exact_axis == "columns":
            return self.log_prescribed_column_marginal
        if self.cached_log_column_mass is not None:
            return self.cached_log_column_mass
        return self.g + column_log_sums(self.geometry, self.f)

    def kernel_log_row_sums(self) -> Tensor:
        """Return the log row sums of the kernel, log sum_j K_ij, (N,)."""
        if self.column_potential is None and self.cost_geometry is None:
            return self.log_row_mass() - self.f
        return row_log_sums(self.kernel_geometry)

    @torch.no_grad()
    def marginal_error(self) -> float:
        """Return the L1 distance of row and column masses from the prescribed marginals."""
        masses = self.log_row_mass(), self.log_column_mass()
        targets = self.log_prescribed_row_marginal, self.log_prescribed_column_marginal
        return sum(float((mass.exp() - target.exp()).abs().sum()) for mass, target in zip(masses, targets, strict=True))

    def mass(self) -> Tensor:
        """Return the total mass of the plan, a scalar tensor."""
        cached = self.log_column_mass() if self.exact_axis == "columns" else self.cached_log_row_or_column_mass
        return (self.log_row_mass() if cached is None else cached).exp().sum()

    @property
    def cached_log_row_or_column_mass(self) -> Tensor | None:
        """Cached log row masses, else cached log column masses, else None."""
        return self.cached_log_row_mass if self.cached_log_row_mass is not None else self.cached_log_column_mass

    def row_squared_norm(self) -> Tensor:
        """Return the squared Euclidean norm of each row, sum_j P_ij^2, (N,)."""
        link = self.geometry.log_kernel.link
        # Without a link, a factor of 2 squares the kernel, which the passes take for free.
        if link is None:
            squared = self.geometry.with_link(None, factor=2.0)
        else:
            squared = self.geometry.with_link(LinkTimesTwo(link))
        return torch.exp(2 * self.f + row_log_sums(squared, 2 * self.g))

    @property
    def log_kernel_without_link(self) -> LogKernel:
        """Log-kernel before the link function: the negative cost over the temperature."""
        return self.kernel_geometry.log_kernel.with_link(None)

    def row_cost(self, *, detach_plan: bool) -> Tensor:
        """Return the transport cost of each row, sum_j P_ij C_ij, (N,).

        It takes one pass over the pairs, and another for a cost that is not a distance.

        Args:
            detach_plan: hold P fixed, so that the gradient is that of the cost alone.
        """
        kernel = self.log_kernel_without_link
        if self.cost_geometry is not None:

            def dense_rows(rows: slice) -> Tensor:
                plan = self.take_rows(rows).dense()
                return plan.detach() if detach_plan else plan

            return _row_costs_by_blocks(dense_rows, kernel)
        if detach_plan:
            return fixed_plan_row_costs(self.geometry, self.f, self.g)
        # The pass sums logarithms: a cost that may be negative is shifted to be positive, and shifted back afterwards.
        shift: float | Tensor = 0.0
        if not kernel.cost_is_distance:
            with torch.no_grad():
                largest = checkpoint_row_blocks(
                    lambda rows: kernel.take_rows(rows).dense().abs().amax(1), *kernel.shape
                ).amax()
                shift = 2 * largest + (largest == 0)
        weighted = self.geometry.with_link(LinkPlusLogCost(self.geometry.log_kernel.link, shift))
        shifted = torch.exp(self.f + row_log_sums(weighted, self.g))
        return kernel.cost_unit * (shifted if kernel.cost_is_distance else shifted - shift * self.log_row_mass().exp())

    def take_rows(self, rows: slice) -> Plan:
        """Return the plan restricted to some of its rows."""
        return Plan(self.geometry.take_rows(rows), self.f[rows], self.column_potential)

    def apply(self, values: Tensor) -> Tensor:
        """Multiply the plan by values v, (M, ...): sum_j P_ij v_j.

        The product is differentiable, and takes the memory of a block of rows.

        Raises:
            UsageError: the values are not a tensor with one row per column of the plan.
        """
        good = isinstance(values, Tensor) and values.shape[:1] == self.shape[1:] and not values.is_complex()
        good = good and values.layout == torch.strided and values.device == self.f.device
        expected = f"a tensor ({self.shape[1]}, ...) on {self.f.device}, one row per column of the plan"
        check(good, f"values: must be {expected}, got {type_and_shape(values)}.", "shape")
        flat = values.reshape(len(values), -1).to(self.f.dtype)
        products = checkpoint_row_blocks(lambda rows: self.take_rows(rows).dense() @ flat, *self.shape)
        return products.reshape(self.shape[0], *values.shape[1:])

    def barycentric(self, values: Tensor) -> Tensor:
        """Return the barycentric projection, each row's plan-weighted mean of column values.

        Source: Peyré and Cuturi (2019), remark 4.11.
        """
        sums, mass = self.apply(values), self.log_row_mass().exp()
        return sums / torch.where(mass > 0, mass, 1).reshape(-1, *[1] * (sums.ndim - 1))

    def top(self, k: int) -> Tensor:
        """Return each row's k largest entries as a sparse (N, M) tensor.

        Its values are differentiable.

        Raises:
            UsageError: k is not between 1 and M.
        """
        n, m = self.shape
        check(is_integer(k) and 1 <= k <= m, f"k: must be an integer from 1 to {m}, the number of columns, got {k!r}.")

        def largest_entries(rows: slice) -> Tensor:
            log_plan = self.take_rows(rows).log_dense()
            # On a CPU topk sorts pairs of value and index, which takes many times as long as a maximum.
            return log_plan.argmax(1, keepdim=True) if k == 1 else log_plan.topk(k, 1).indices

        with torch.no_grad():
            largest = checkpoint_row_blocks(largest_entries, *self.shape)
        columns = largest.flatten()
        rows = torch.arange(n, device=columns.device).repeat_interleave(k)
        entries = self.log_at(rows, columns).exp()
        return torch.sparse_coo_tensor(torch.stack([rows, columns]), entries, (n, m), check_invariants=False)

    @torch.no_grad()
    def effective_partners(self) -> Tensor:
        """Return each row's effective number of partners, (N,), exp of its entropy.

        The number is 1 if a row's mass is on one column, and k if it is spread evenly over k columns; rows without mass
        give 1. It depends neither on the unit of the cost nor on the mass of the row, and takes the memory of a block
        of rows.

        Source: Hill (1973), Diversity and evenness: a unifying notation and its consequences, order 1.
        """

        def entropies(rows: slice) -> Tensor:
            log_plan = self.take_rows(rows).log_dense()
            log_mass = log_plan.logsumexp(1, keepdim=True)
            log_shares = (log_plan - log_mass.masked_fill(log_mass == -torch.inf, 0)).double()
            entropy: Tensor = torch.special.entr(log_shares.exp()).sum(1)
            return entropy

        return checkpoint_row_blocks(entropies, *self.shape).exp().to(self.f)

    @torch.no_grad()
    def sharpness(self) -> float:
        """Return the plan's sharpness, from 0 (uniform rows) to 1 (one-hot rows).

        The sharpness is 1 - H / log M, where H is the mean entropy of the rows' shares, weighted by their mass; 1 for a
        single column.
        """
        mass, columns = self.log_row_mass().exp(), self.shape[1]
        if columns == 1:
            return 1.0
        return 1 - float((mass / mass.sum()) @ self.effective_partners().log()) / math.log(columns)

    @torch.no_grad()
    def round_to_marginals(self) -> RoundedPlan:
        """Round the plan to one that meets both prescribed marginals.

        It takes O(N + M) memory, and the result has no gradient. Rows and then columns with too much mass are scaled
        down, and the missing mass is added as a product of two vectors. The L1 distance from the plan is at most twice
        its `marginal_error`, so that the transport cost grows by at most that times the largest cost.

        Raises:
            UsageError: the prescribed marginals have different totals.

        Source: Altschuler, Weed and Rigollet (2017), Near-linear time approximation algorithms for optimal transport
        via Sinkhorn iteration, algorithm 2 and lemma 7.
        """
        a, b = self.log_prescribed_row_marginal, self.log_prescribed_column_marginal
        totals = float(a.exp().sum()), float(b.exp().sum())
        close = abs(totals[0] - totals[1]) <= 1e-4 * totals[0]
        check(close, f"plan: marginals must have equal totals, got {totals[0]:.6g} and {totals[1]:.6g}.", "total")
        f = self.f + (a - self.f - row_log_sums(self.geometry, self.g)).clamp(max=0)
        g = self.g + (b - self.g - column_log_sums(self.geometry, f)).clamp(max=0)
        scaled = Plan(self.geometry, f, g, log_marginals=(a, b))
        # Differences of nearly equal masses: below 0 they are rounding errors.
        missing_rows = (a.exp() - scaled.log_row_mass().exp()).clamp_min(0)
        missing_columns = (b.exp() - scaled.log_column_mass().exp()).clamp_min(0)
        total = missing_columns.sum()
        shares = missing_columns / torch.where(total > 0, total, 1)
        return RoundedPlan(scaled, missing_rows, shares, self.log_kernel_without_link)

    def log_dense(self) -> Tensor:
        """Return log P as an (N, M) tensor."""
        return self.geometry.dense() + self.f[:, None] + self.g

    def dense(self) -> Tensor:
        """Return P as an (N, M) tensor, for inspection."""
        return self.log_dense().exp()


@dataclass(frozen=True, eq=False, kw_only=True)
class DensePlan(Plan):
    """Plan held as a matrix of masses, with its dual potentials.

    Attributes:
        masses: Plan P, (N, M); ``geometry`` is that of log P.
        dual_potentials: Potentials f, (N,), and g, (M,), in units of the cost.
    """

    masses: Tensor
    dual_potentials: tuple[Tensor, Tensor]

    @classmethod
    def from_masses(
        cls,
        masses: Tensor,
        cost_geometry: Geometry,
        log_marginals: tuple[Tensor, Tensor] | None,
        dual_potentials: tuple[Tensor, Tensor],
    ) -> Self:
        """Build the plan from masses, without gradient where they are zero."""
        present = masses > 0
        log_masses = torch.where(present, torch.where(present, masses, 1).log(), -torch.inf)
        return cls(
            geometry=Geometry(MatrixLogKernel(log_masses.to(cost_geometry.log_kernel.inputs[0].dtype))),
            row_potential=None,
            column_potential=None,
            log_marginals=log_marginals,
            cost_geometry=cost_geometry,
            masses=masses,
            dual_potentials=dual_potentials,
        )

    @property
    def T(self) -> Self:
        marginals = None if self.log_marginals is None else self.log_marginals[::-1]
        return self.from_masses(self.masses.T, self.kernel_geometry.T, marginals, self.dual_potentials[::-1])

    def row_cost(self, *, detach_plan: bool) -> Tensor:
        plan, kernel = self.masses.detach() if detach_plan else self.masses, self.log_kernel_without_link
        with autocast_disabled(plan):
            costs: Tensor = -kernel.cost_unit * kernel.dense()
            return (plan.to(costs) * costs.masked_fill(plan == 0, 0)).sum(1)


@keep_deprecated_attributes(u="missing_row_mass", v="column_shares")
@dataclass(frozen=True, eq=False)
class RoundedPlan:
    """Plan corrected to meet both marginals up to floating-point errors, without gradient.

    P_ij = scaled_ij + missing_row_mass_i * column_shares_j.

    Attributes:
        scaled: Plan of which no row or column has more than its prescribed mass.
        missing_row_mass: Missing mass of each row, (N,).
        column_shares: Share of each column in the missing mass, (M,).
        log_kernel_without_link: Log-kernel from which the costs follow; see `Plan.log_kernel_without_link`.
    """

    scaled: Plan
    missing_row_mass: Tensor
    column_shares: Tensor
    log_kernel_without_link: LogKernel

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and number of columns, (N, M)."""
        return self.scaled.shape

    @torch.no_grad()
    def apply(self, values: Tensor) -> Tensor:
        """Multiply the plan by values v, (M, ...), as in `Plan.apply`."""
        product, shares = self.scaled.apply(values), self.column_shares
        added = torch.outer(self.missing_row_mass, shares @ values.reshape(len(values), -1).to(shares))
        return product + added.reshape(product.shape)

    @torch.no_grad()
    def row_cost(self) -> Tensor:
        """Return the transport cost of each row, (N,)."""
        return _row_costs_by_blocks(
            lambda rows: (
                self.scaled.take_rows(rows).dense() + torch.outer(self.missing_row_mass[rows], self.column_shares)
            ),
            self.log_kernel_without_link,
        )

    @torch.no_grad()
    def dense(self) -> Tensor:
        """Return P as an (N, M) tensor, for inspection."""
        return self.scaled.dense() + torch.outer(self.missing_row_mass, self.column_shares)


@dataclass(frozen=True, eq=False)
class PlanWithTarget:
    """Solved plan and target plan of the same block of compared pairs.

    It is the input of divergences.

    Attributes:
        block: Compared pairs, (N, M).
        target: Target plan of the block.
        plan: Solved plan of the block.
        row_weights: Weight of each row in the loss, (N,), 0 for rows without target mass; None is 1 throughout.
        ids: Id of each item, (n,), or None.
    """

    block: Block
    target: TargetPlan
    plan: Plan
    row_weights: Tensor | None = None
    ids: Tensor | None = None


def _row_costs_by_blocks(dense_rows: Callable[[slice], Tensor], kernel: LogKernel) -> Tensor:
    """Return each row's transport cost, (N,).

    The costs are those of the kernel itself. Log P of a Tsallis plan has them too, but rounds them off where its
    threshold is large: below order 1 that grows as a power of the number of columns.
    """
    sums = checkpoint_row_blocks(lambda rows: (dense_rows(rows) * kernel.take_rows(rows).dense()).sum(1), *kernel.shape)
    return -kernel.cost_unit * sums


def generalized_kl_sum(log_mass: Tensor, log_target: Tensor) -> Tensor:
    """Return the generalized KL divergence of masses from targets, a scalar tensor."""
    mass = log_mass.exp()
    present = mass > 0
    ratio = torch.where(present, log_mass, log_target) - log_target
    return (mass * (ratio - 1)).sum() + log_target.exp().sum()
