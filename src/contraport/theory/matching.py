"""Matching drawn as lines: who is matched to whom where columns are bound, where they are not, and at a price."""

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
from contraport.plots.figure_setup import panels
from contraport.plots.plan_plots import draw_plan_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class MatchedPlan(NamedTuple):
    """A plan between two sets of embeddings, and how it uses the columns.

    Attributes:
        plan: (N, M).
        mass: in all; 1 where none was let go.
        partner_share: the share of the mass that is on partners, from 0 to 1.
        columns: the share of the mass that each column has, (M,).
        unevenness: the share of the mass that would have to move for all columns to have as much: half of the sum of
            ``|columns - 1/M|``, 0 where all are used alike, 1 - 1/M where one has everything.
        columns_used: the exponential of the entropy of ``columns``: M where all are used alike, 1 where one is.
    """

    plan: Tensor
    mass: float
    partner_share: float
    columns: Tensor
    unevenness: float
    columns_used: float


@dataclass(frozen=True, eq=False)
class Matching:
    """The same embeddings, matched under three constraints.

    Attributes:
        partners: (N, M), which row and column belong together.
        plans: by the name of the constraint: ``rows``, ``balanced``, ``unbalanced``.
    """

    partners: Tensor
    plans: Mapping[str, MatchedPlan]

    def figure(self) -> Figure:
        """Draw each plan as lines as strong as its mass, to partners in blue and to others in orange.

        A dot is as large as the mass that a row or a column has, and its ring as what it should have.
        """
        figure, axes = panels(len(self.plans), 3.6, ratio=0.85)
        for ax, (name, found) in zip(axes, self.plans.items(), strict=True):
            draw_plan_lines(ax, found.plan.numpy(), self.partners.numpy())
            told = f"{100 * found.partner_share:.0f} % on partners, uneven by {found.unevenness:.2f}"
            kept = "" if found.mass > 0.995 else f", {100 * found.mass:.0f} % of the mass kept"
            ax.set_title(f"{name}{kept}\n{told}", fontsize="medium")
        return figure


def matching(
    z0: Tensor,
    z1: Tensor,
    partners: Tensor | None = None,
    *,
    temperature: float = 0.1,
    relaxation: float = 0.1,
) -> Matching:
    """Match two sets of embeddings by their cosines: rows only, balanced, and unbalanced.

    Where only rows are bound each picks what it likes, and several may pick the same column, a hub. Balanced, every
    column must be picked as often as any other, so that a row whose choice is taken goes elsewhere. Unbalanced, rows
    and columns that fit nowhere are let go.

    Args:
        z0: embeddings, (N, d), of any length.
        z1: embeddings, (M, d).
        partners: which belong together, (N, M) Booleans; None is row i and column i.
        temperature: in units of the cosine distance.
        relaxation: the price of missing a mass, of `Unbalanced`, in the same units.

    Raises:
        UsageError: shapes do not fit, or a number is not positive.

    Source: the balanced matching of inverse optimal transport for contrastive learning, eq. 13-17 and the figure on it.

    >>> z0, z1 = torch.tensor([[1.0, 0.0], [0.8, 0.6]]), torch.tensor([[1.0, 0.1], [0.1, 1.0]])
    >>> found = matching(z0, z1).plans
    >>> [round(plan.unevenness, 3) for plan in found.values()]
    [0.428, 0.0, 0.324]
    """
    if partners is None:
        check(len(z0) == len(z1), f"partners: expected which of {len(z0)} rows and {len(z1)} columns belong together.")
        partners = torch.eye(len(z0), dtype=torch.bool)
    expected, got = (len(z0), len(z1)), tuple(partners.shape)
    check(got == expected, f"partners: expected shape {expected}, got {got}.")
    constraints: dict[str, SinkhornConstraint] = {
        "rows": Rows(),
        "balanced": Balanced(10_000, 1e-7),
        "unbalanced": Unbalanced(relaxation, 10_000, tolerance=1e-7),
    }
    z0, z1, kernel = z0.detach().double(), z1.detach().double(), Gibbs("cosine", temperature)
    plans = {name: transport(z0, z1, kernel, constraint).plan.dense() for name, constraint in constraints.items()}
    return Matching(partners, {name: _weighed(plan, partners) for name, plan in plans.items()})


def _weighed(plan: Tensor, partners: Tensor) -> MatchedPlan:
    mass = plan.sum()
    columns = plan.sum(0) / mass
    return MatchedPlan(
        plan,
        float(mass),
        float(plan[partners].sum() / mass),
        columns,
        float((columns - 1 / len(columns)).abs().sum() / 2),
        float(torch.special.entr(columns).sum().exp()),
    )
