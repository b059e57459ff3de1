"""What objectives and sums of objectives have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from contraport.errors import UsageError, check, explained
from contraport.importing import imported
from contraport.notebook import html_table
from contraport.objectives.agreement import refused_by_all
from contraport.objectives.constraints import Constraint
from contraport.objectives.outcome import Outcome
from contraport.objectives.targets import Target
from contraport.objectives.weighting import ByPlan

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Known: TypeAlias = Any
"""What may be known in a call; see `Loss.forward`."""

Facts: TypeAlias = Tensor | np.ndarray | Sequence[Any]
"""What is known of each item: a tensor, an array or a list of numbers; of the items of two views, a pair of these."""


@dataclass(frozen=True)
class Origin:
    """Where a named objective comes from.

    Attributes:
        name: its name in the catalog.
        call: the call that made it, as it would be written.
        citation: the paper and its equation.
    """

    name: str
    call: str
    citation: str


class Loss(nn.Module, ABC):
    """What objectives and sums of objectives have in common: they are called on embeddings and can be looked into.

    Attributes:
        origin: the catalog's entry that made it, or None.
        tempered: whether its temperature may be another in a call; a recipe without one has its kernel's for good.
    """

    origin: Origin | None = None
    tempered: bool = True

    @abstractmethod
    def parts(self, *views: Tensor, **known: Known) -> dict[str, Tensor]:
        """Return the named parts of the value, their factors included; the loss is their sum."""

    @abstractmethod
    def outcomes(self, *views: Tensor, **known: Known) -> Iterator[Outcome]:
        """Yield what is compared, wanted and found, block by block and direction by direction."""

    @abstractmethod
    def answers(self) -> dict[str, str]:
        """Return the answer to each of the five questions, as it would be written."""

    @abstractmethod
    def constrain(self, constraint: Constraint) -> None:
        """Allow other plans from now on.

        Raises:
            UsageError: there is no single constraint to change, or the divergence does not go with this one.
        """

    @property
    @abstractmethod
    def temperature(self) -> float:
        """The temperature of the kernel; assign to it to change it between steps."""

    @temperature.setter
    @abstractmethod
    def temperature(self, value: float) -> None: ...

    @property
    @abstractmethod
    def takes_several(self) -> bool:
        """Whether it is called on any number of views, rather than on two."""

    @property
    @abstractmethod
    def has_core_view(self) -> bool:
        """Whether a training on more than two views calls it on the pairs that the first view is in alone."""

    @property
    @abstractmethod
    def of_items(self) -> bool:
        """Whether it compares items, rather than the coordinates of their embeddings."""

    @property
    @abstractmethod
    def tells_items_apart(self) -> bool:
        """Whether it pushes items apart, so that each batch must bring others."""

    @property
    @abstractmethod
    def by_item(self) -> bool:
        """Whether it keeps something of each item between calls, and needs ``ids``."""

    @property
    @abstractmethod
    def weighted(self) -> bool:
        """Whether weights of the items are the marginals of its plan, so that each call must bring them."""

    @property
    @abstractmethod
    def attracts_to_fixed(self) -> bool:
        """Whether all that it does is to draw embeddings to others, which are held fixed."""

    @abstractmethod
    def asks_features(self, target: Target | None = None) -> bool:
        """Return whether a call needs ``features=``, with another target in place of its own where one is given."""

    @abstractmethod
    def mismatch(self, target: Target) -> str | None:
        """Return why a call may not want this instead of what the objective does, or None where it may."""

    @property
    @abstractmethod
    def mass(self) -> float | None:
        """The mass of the plan of the last call, a mean over directions; None where no marginal tells it.

        Reading it waits for the device; no call does.
        """

    def information(self, value: float) -> float | None:
        """Return the lower bound of mutual information that a value of the last call gives, in nats; see `Objective`.

        It is None where the value is no InfoNCE. Reading it waits for the device; no call does.
        """
        return None

    def forward(
        self,
        *views: Tensor,
        labels: Facts | None = None,
        domains: Facts | None = None,
        ids: Facts | None = None,
        weights: Facts | ByPlan | str | None = None,
        column_weights: Facts | None = None,
        features: Facts | None = None,
        target: Tensor | np.ndarray | Target | list[Sequence[int]] | None = None,
        negatives: Tensor | None = None,
        negative_ids: Facts | None = None,
        shared_negatives: bool = False,
        present: Facts | None = None,
        similarities: Tensor | None = None,
        temperature: float | Tensor | None = None,
        reduction: str = "mean",
    ) -> Tensor:
        """Return the loss, a tensor without dimensions.

        Two views may show different items, n and m of them, where the target says which belong together: labels, a
        matrix, pairs. What is known of the items then comes as a pair, ``labels=(of z0, of z1)``; items of both with
        equal ``ids`` are one, and are not compared.

        Args:
            views: embeddings, (n, d) each, or of all views in one tensor, (n, views, d). A single view is compared with
                itself, self pairs left out, where the target is one of labels, say.
            labels: class of each item, (n,) integers, for targets that ask for it; or (n, classes) zeros and ones.
            domains: domain of each item, (n,) integers, likewise.
            ids: identity of each item, (n,) integers; items with equal ids are never each other's negatives.
            weights: importance of each item, (n,), nonnegative: the loss is the weighted mean of the rows' values; or
                ``"plan"``, how sure the batch's own balanced plan is of each item's pair, see `ByPlan`.
            column_weights: how much each item counts as a column, (n,), positive: the kernel is w_j K_ij, a reference
                measure. With w = 1/q, q_j how often item j is drawn, it is the log-q correction of sampled softmax,
                log K_ij - log q_j (Yi et al., 2019, Sampling-bias-corrected neural modeling).
            features: the items in another space, a teacher's, for targets and layouts that ask for it: (n, k), or (n,
                views, k) where each view has its own. They are held fixed.
            target: the plan that is wanted in this call, instead of the objective's own: a matrix as in `Matrix`, a
                list of pairs as in `Listed`, or a rule. It says nothing of negatives.
            negatives: embeddings of further columns, (k, d), to which nothing is matched: a queue, a memory bank; or of
                each item of the first view its own, (n, k, d), with which rows of other items are not compared. They
                stand beside the columns of every block and direction and are columns like the others: a plan with
                column marginals gives each of all columns the same mass, so that it keeps the share k / M of the mass
                away from what is wanted. Under `torch.distributed` each process brings its own, such as hard negatives
                of its items, as many as it likes; they are gathered.
            negative_ids: identity of each negative, (k,) or (n, k) integers, beside ``ids``: a negative is left out of
                the rows that show the same item.
            shared_negatives: every process brings the same negatives, a bank or a queue; they are not gathered.
            present: which items have which views, (n, views) Booleans. Rows of views that are absent are never read. An
                item whose other views are absent wants nothing, but is a negative of the others, and has its place in a
                plan.
            similarities: those of rows and columns, (N, M), instead of embeddings: cosines where the kernel's cost is
                made of them. In the joint layout they are (2n, 2n), view 0 before view 1.
            temperature: of the kernel in this call, a number or a tensor of one element, which gets its gradient: for a
                model that learns it, such as ``1 / logit_scale.exp()``. On a GPU nothing waits to look at it: one that
                is not positive gives NaN there.
            reduction: ``"mean"``, or ``"none"`` for the value of each row of the layout, (N,), of which the loss is the
                mean; a row counts both directions where there are two. Under `torch.distributed` they are those of all
                processes.

        Raises:
            UsageError: what is given does not fit, or not together.
        """
        # As a decorator it would share one compiled function, and the limit of its recompilations, with all others.
        with explained("contraport docs calls"):
            with refused_by_all(views):
                none = self.tempered or temperature is None
                check(none, "temperature: expected none, as this objective has none to choose.")
            known = {
                "labels": labels, "domains": domains, "ids": ids, "weights": weights, "column_weights": column_weights,
                "features": features, "target": target, "negatives": negatives, "negative_ids": negative_ids,
                "shared_negatives": shared_negatives or None, "present": present, "similarities": similarities,
                "temperature": temperature,
            }  # fmt: skip
            given = {name: value for name, value in known.items() if value is not None}
            values = list(self.parts(*views, **given, reduction=reduction).values())
            lengths = {tuple(value.shape) for value in values}
            if len(lengths) > 1:
                raise UsageError(f"reduction: expected 'mean', as parts have different numbers of rows, {lengths}.")
            return reduce(torch.add, values)

    def terms(self, *views: Tensor, **known: Known) -> dict[str, float]:
        """Return the named parts of the value as numbers, their factors included; the keywords are those of the
        call.
        """
        with torch.no_grad():
            return {name: value.item() for name, value in self.parts(*views, **known).items()}

    def plan(self, *views: Tensor, **known: Known) -> Tensor:
        """Return the plan that came out on the first block, (N, M), to look at; the keywords are those of the call."""
        with torch.no_grad():
            return next(self.outcomes(*views, **known)).plan.dense()

    def target_plan(self, *views: Tensor, **known: Known) -> Tensor:
        """Return the plan that is wanted on the first block, (N, M), to look at; the keywords are those of the call."""
        with torch.no_grad():
            return next(self.outcomes(*views, **known)).target.dense()

    def plot(self, *views: Tensor, **known: Known) -> Figure:
        """Draw the plan that came out on the first block beside the one that is wanted; the keywords are those of the
        call.

        Raises:
            UsageError: matplotlib is not installed; or as in the call.

        >>> import torch, contraport
        >>> contraport.info_nce(1.0).plot(torch.eye(4), torch.eye(4)).axes[0].get_title()
        'plan: 48% of its mass on target'
        """
        with torch.no_grad():
            outcome = next(self.outcomes(*views, **known))
            figure: Figure = imported("contraport.plots:plan")(outcome.plan.dense(), outcome.target.dense())
        return figure

    def _repr_html_(self) -> str:
        """Return the answers to the five questions as a table, for a notebook."""
        if self.origin is None:
            return html_table(type(self).__name__, self.answers())
        return html_table(self.origin.call, self.answers(), f"Source: {self.origin.citation}")

    def explain(self) -> str:
        """Say the answers to the five questions, and where the objective comes from.

        >>> import contraport
        >>> print(contraport.gca_ince(iterations=3).explain())
        gca_ince(iterations=3)
        Which pairs are compared?                Joint()
        How alike are two embeddings?            Gibbs('cosine', 0.5)
        Which plans are allowed?                 Balanced(iterations=3)
        Which plan do we want?                   Pairs()
        How far is one from the other?           KL()
        Source: Chen, Lin, Liu, Xiao and Dyer (2024), Your contrastive learning problem is secretly a ...
        """
        lines = [f"{question:<40} {answer}" for question, answer in self.answers().items()]
        if self.origin is not None:
            lines = [self.origin.call, *lines, f"Source: {self.origin.citation}"]
        return "\n".join(lines)


def add_part(totals: dict[str, Tensor], name: str, value: Tensor) -> None:
    """Add a value to the part of that name."""
    if name in totals and totals[name].shape != value.shape:
        found = len(totals[name]), len(value)
        raise UsageError(f"reduction: expected 'mean', as directions have different numbers of rows, {found}.")
    totals[name] = totals[name] + value if name in totals else value
