"""Transport costs: attraction, and the game of attraction against weighted repulsion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from contraport.engine import Geometry
from contraport.errors import check_integer
from contraport.objectives.constraints import Constraint, Rows
from contraport.objectives.divergences.divergence import Divergence, require_negatives
from contraport.objectives.plan import BlockResult, Plan
from contraport.objectives.repr_mixin import ReprMixin


@dataclass(frozen=True, repr=False)
class Cost(ReprMixin, Divergence):
    """The transport cost of the target, <t, C>: how far apart the wanted pairs are; attraction without repulsion.

    Args:
        power: of the cost, <t, C^power>, a whole number.

    Raises:
        UsageError: the power is not a positive whole number.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Rows(), cp.Pairs(), cp.Cost())
    >>> round(loss(torch.eye(3), torch.eye(3).roll(1, 0)).item(), 4)
    1.0
    """

    depends_on_constraint: ClassVar[bool] = False
    repels: ClassVar[bool] = False
    has_temperature_gradient: ClassVar[bool] = False

    power: int = 1

    def __post_init__(self) -> None:
        check_integer("power", self.power)

    def __call__(self, outcome: BlockResult) -> Tensor:
        """Return the cost of each row."""
        cost_kernel = outcome.plan.cost_kernel
        if self.power == 1:
            return -cost_kernel.unit * outcome.target.row_inner_products(cost_kernel)
        return by_cost(outcome, lambda t: (-cost_kernel.unit * t) ** self.power)


def by_cost(outcome: BlockResult, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Return sum_j t_ij function(T_ij), (N,), t the target and T minus the cost in units of the kernel."""
    plan = outcome.plan
    bare = Plan(Geometry(plan.cost_kernel), torch.zeros_like(plan.f), torch.zeros_like(plan.g))
    return outcome.target.row_expectation(bare, function)


@dataclass(frozen=True, repr=False)
class Energy(ReprMixin, Divergence):
    """The transport cost of the target less that of the plan, <t, C> - <P, C>: attraction against weighted repulsion.

    It is minus the energy of the min-max game: the plan has chosen the pair weights, the encoder now plays against
    them.

    Args:
        detach: hold the plan fixed. With `Rows` the gradient is then temperature times that of KL.
        paired: attract each row as much as its weights add up to, sum_ij P_ij (C_i+ - C_ij), where they add up to other
            than the target's; C_i+ is the cost of what row i wants.
        phi: a differentiable function of a tensor: the weights of row i, paired, add up to xi phi'(xi) / temperature,
            with xi = sum_j exp((C_i+ - C_ij) / temperature). With the plan held, that of `Rows`, the gradient is that
            of phi(xi).

    Raises:
        UsageError: in the call, where the layout keeps the positives out and there is nothing else to compare with (one
            item).

    Source: Tian (2022), Understanding deep contrastive learning via coordinate-wise optimization, eq. 3-5, theorem 1.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Rows(), cp.Pairs(), cp.Energy())
    >>> round(loss(torch.eye(3), torch.eye(3)).item(), 4)
    -0.4239
    """

    detach: bool = True
    paired: bool = False
    phi: Callable[[Tensor], Tensor] | None = None

    def mismatch(self, constraint: Constraint) -> str | None:
        if self.phi is not None and not isinstance(constraint, Rows):
            return f"phi belongs to the constraint Rows, got {constraint!r}."
        return None

    @property
    def has_temperature_gradient(self) -> bool:
        """Whether it has a gradient in the temperature, which the plan alone knows."""
        return not self.detach

    def __call__(self, outcome: BlockResult) -> Tensor:
        """Return the difference of each row; a row whose weights have nothing to lie on adds nothing."""
        pattern = outcome.block.pattern
        if pattern.compares_positives:
            return self._difference(outcome)
        require_negatives(outcome)
        if pattern.no_empty_rows:
            return self._difference(outcome)
        alone = pattern.compared().counts(outcome.plan.f) == 0
        return self._difference(outcome).masked_fill(alone, 0)

    def _difference(self, outcome: BlockResult) -> Tensor:
        attraction, plan = Cost()(outcome), outcome.plan
        pull = attraction
        if self.paired:
            share = torch.exp(plan.log_row_mass() - plan.log_row_marginal)
            pull = (share.detach() if self.detach else share) * attraction
        difference = pull - plan.row_cost(held=self.detach)
        if self.phi is None:
            return difference
        wanted = outcome.target.row_mass()
        distance = attraction / torch.where(wanted > 0, wanted, 1)
        temperature = plan.cost_kernel.temperature
        log_xi = distance / temperature + plan.log_row_marginal - plan.f
        mass = self._mass(log_xi.exp()) / temperature
        return (mass.detach() if self.detach else mass) * difference

    def _mass(self, xi: Tensor) -> Tensor:
        """Return xi phi'(xi)."""
        assert self.phi is not None
        slope: Tensor = torch.func.vjp(self.phi, xi)[1](torch.ones_like(xi))[0]
        return xi * slope
