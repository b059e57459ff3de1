"""Matching of two sets of embeddings under three constraints: rows only, balanced and unbalanced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from contraport.engine import Gibbs
from contraport.errors import check
from contraport.objectives import Balanced, Rows, Unbalanced, transport
from contraport.objectives.constraints.sinkhorn import SinkhornConstraint
from contraport.options import keep_deprecated_attributes
from contraport.plots.figure_setup import create_panels
from contraport.plots.plan_plots import draw_bipartite_plan

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@keep_deprecated_attributes(
    partner_share="true_pair_share", columns="column_masses", columns_used="effective_num_columns"
)
class PlanSummary(NamedTuple):
    """Transport plan between two sets of embeddings, with statistics of its masses.

    Attributes:
        plan: transport plan, (N, M).
        mass: total mass of the plan; 1 if no mass was dropped.
        true_pair_share: share of the mass on pairs that belong together, 0 to 1.
        column_masses: share of the mass in each column, (M,).
        unevenness: total variation distance of `column_masses` from uniform, sum |column_masses - 1/M| / 2.
        effective_num_columns: exponential of the entropy of `column_masses`, 1 to M.
    """

    plan: Tensor
    mass: float
    true_pair_share: float
    column_masses: Tensor
    unevenness: float
    effective_num_columns: float


@keep_deprecated_attributes(partners="true_pairs", plans="plans_by_constraint")
@dataclass(frozen=True, eq=False)
class ConstraintComparison:
    """Transport plans between the same two sets of embeddings under three constraints.

    Attributes:
        true_pairs: (N, M), true where a row and a column belong together.
        plans_by_constraint: transport plans by the name of the constraint: ``rows``, ``balanced``, ``unbalanced``.
    """

    true_pairs: Tensor
    plans_by_constraint: Mapping[str, PlanSummary]

    def figure(self) -> Figure:
        """Draw each plan as lines whose width is the mass, blue to partners and orange to others.

        The area of a dot is the mass of a row or column, that of its ring the mass it should have.
        """
        figure, axes = create_panels(len(self.plans_by_constraint), 3.6, ratio=0.85)
        for ax, (name, one) in zip(axes, self.plans_by_constraint.items(), strict=True):
            draw_bipartite_plan(ax, one.plan.numpy(), self.true_pairs.numpy())
            mass = "" if one.mass > 0.995 else f", mass {one.mass:.2f}"
            ax.set_title(
                f"{name}{mass}\n{100 * one.true_pair_share:.0f}% on partners, unevenness {one.unevenness:.2f}",
                fontsize="medium",
            )
        return figure


def compare_constraints(
    z0: Tensor, z1: Tensor, partners: Tensor | None = None, *, temperature: float = 0.1, relaxation: float = 0.1
) -> ConstraintComparison:
    """Match two sets of embeddings by cosine under three constraints: rows only, balanced and unbalanced.

    With rows only, several rows may choose the same column, a hub. A balanced plan uses every column equally, so a row
    whose nearest column is taken moves to another one. An unbalanced plan drops mass that fits nowhere.

    Args:
        z0: embeddings, (N, d), of any length.
        z1: embeddings, (M, d), of any length.
        partners: which rows and columns belong together, (N, M) booleans; None: row i and column i.
        temperature: in units of the cosine distance.
        relaxation: price of a marginal deviation in `Unbalanced`, in units of the cosine distance.

    Raises:
        UsageError: shapes do not match, or a number is not positive.

    Source: the balanced matching of inverse optimal transport for contrastive learning, eq. 13-17 and its figure.

    >>> z0, z1 = torch.tensor([[1.0, 0.0], [0.8, 0.6]]), torch.tensor([[1.0, 0.1], [0.1, 1.0]])
    >>> plans = compare_constraints(z0, z1).plans_by_constraint
    >>> [round(plan.unevenness, 3) for plan in plans.values()]
    [0.428, 0.0, 0.324]
    """
    shape = (len(z0), len(z1))
    if partners is None:
        check(shape[0] == shape[1], f"partners: is required for {shape[0]} rows and {shape[1]} columns.", "missing")
        partners = torch.eye(len(z0), dtype=torch.bool)
    check(tuple(partners.shape) == shape, f"partners: must have shape {shape}, got {tuple(partners.shape)}.", "shape")
    constraints: dict[str, SinkhornConstraint] = {
        "rows": Rows(),
        "balanced": Balanced(10_000, 1e-7),
        "unbalanced": Unbalanced(relaxation, 10_000, tolerance=1e-7),
    }
    z0, z1, kernel = z0.detach().double(), z1.detach().double(), Gibbs("cosine", temperature)
    plans = {name: transport(z0, z1, kernel, constraint).plan.dense() for name, constraint in constraints.items()}
    return ConstraintComparison(partners, {name: _summarize(plan, partners) for name, plan in plans.items()})


def _summarize(plan: Tensor, partners: Tensor) -> PlanSummary:
    mass = plan.sum()
    columns = plan.sum(0) / mass
    return PlanSummary(
        plan,
        float(mass),
        float(plan[partners].sum() / mass),
        columns,
        float((columns - 1 / len(columns)).abs().sum() / 2),
        float(torch.special.entr(columns).sum().exp()),
    )
