"""Transport costs as divergences: `TargetCost` attracts positives, `ContrastiveEnergy` also repels other pairs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from contraport.engine import Geometry
from contraport.errors import check_integer
from contraport.objectives.constraints import Constraint, Rows
from contraport.objectives.divergences.divergence import Divergence, replace_zeros_by_one, require_negatives
from contraport.objectives.plan import BlockResult, Plan
from contraport.objectives.repr_mixin import ReprMixin


@dataclass(frozen=True, repr=False)
class TargetCost(ReprMixin, Divergence):
    """Transport cost of the target plan, <t, C>: the mean cost of the positives, without repulsion.

    Args:
        power: of the cost, <t, C^power>, a positive integer.

    Raises:
        UsageError: the power is not a positive integer.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Rows(), cp.Pairs(), cp.TargetCost())
    >>> round(loss(torch.eye(3), torch.eye(3).roll(1, 0)).item(), 4)
    1.0
    """

    depends_on_constraint: ClassVar[bool] = False
    repels: ClassVar[bool] = False
    has_temperature_gradient: ClassVar[bool] = False

    power: int = 1

    def __post_init__(self) -> None:
        check_integer("power", self.power)

    def __call__(self, result: BlockResult) -> Tensor:
        kernel = result.plan.log_kernel_without_link
        if self.power == 1:
            return -kernel.unit * result.target.row_inner_products(kernel)
        return target_weighted_cost_sums(result, lambda t: (-kernel.unit * t) ** self.power)


def target_weighted_cost_sums(result: BlockResult, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the target-weighted sum of a function of the cost in each row, sum_j t_ij function(T_ij), (N,).

    t is the target plan, T minus the cost in units of the kernel.
    """
    plan = result.plan
    bare = Plan(Geometry(plan.log_kernel_without_link), torch.zeros_like(plan.f), torch.zeros_like(plan.g))
    return result.target.row_expectation(bare, function)


@dataclass(frozen=True, repr=False)
class ContrastiveEnergy(ReprMixin, Divergence):
    """Contrastive energy (alpha-CL): transport cost of the target plan minus that of the solved plan.

    It is <t, C> - <P, C>.

    It is the encoder's side of a min-max game, in which the plan chooses the weights of the negatives.

    Args:
        detach: detach the plan. With `Rows` the gradient is then temperature times that of KL.
        paired: attract each row in proportion to the sum of its weights, sum_ij P_ij (C_i+ - C_ij), where that differs
            from the target's; C_i+ is the cost of the positive of row i.
        phi: a differentiable function of a tensor: with ``paired``, the weights of row i add up to
            xi phi'(xi) / temperature, with xi = sum_j exp((C_i+ - C_ij) / temperature). With the plan of `Rows`,
            detached, the gradient is that of phi(xi).

    Raises:
        UsageError: in the call, a single item in a layout that excludes the positives.

    Source: Tian (2022), Understanding deep contrastive learning via coordinate-wise optimization, eq. 3-5, theorem 1.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Rows(), cp.Pairs(), cp.ContrastiveEnergy())
    >>> round(loss(torch.eye(3), torch.eye(3)).item(), 4)
    -0.4239
    """

    detach: bool = True
    paired: bool = False
    phi: Callable[[Tensor], Tensor] | None = None

    def constraint_conflict(self, constraint: Constraint) -> str | None:
        if self.phi is not None and not isinstance(constraint, Rows):
            return f"phi of ContrastiveEnergy requires the constraint Rows, got {constraint!r}."
        return None

    @property
    def has_temperature_gradient(self) -> bool:
        """Whether the temperature has a gradient; it has one only through the plan, unless the plan is detached."""
        return not self.detach

    def __call__(self, result: BlockResult) -> Tensor:
        """Return the energy of each row, (N,); 0 for rows without compared pairs."""
        pattern = result.block.pattern
        if pattern.compares_positives:
            return self._difference(result)
        require_negatives(result)
        if pattern.has_no_empty_rows:
            return self._difference(result)
        empty = pattern.compared_pairs().row_counts(result.plan.f) == 0
        return self._difference(result).masked_fill(empty, 0)

    def _difference(self, result: BlockResult) -> Tensor:
        attraction, plan = TargetCost()(result), result.plan
        pull = attraction
        if self.paired:
            share = torch.exp(plan.log_row_mass() - plan.log_row_marginal)
            pull = (share.detach() if self.detach else share) * attraction
        difference = pull - plan.row_cost(detach_plan=self.detach)
        if self.phi is None:
            return difference
        distance = attraction / replace_zeros_by_one(result.target.row_mass())
        temperature = plan.log_kernel_without_link.temperature
        xi = torch.exp(distance / temperature + plan.log_row_marginal - plan.f)
        # A vector-Jacobian product, so that phi may be any function and the gradient of its slope exists.
        slope: Tensor = torch.func.vjp(self.phi, xi)[1](torch.ones_like(xi))[0]
        mass = xi * slope / temperature
        return (mass.detach() if self.detach else mass) * difference
