"""Base class of objectives and their sums, with methods to inspect plans."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from contraport._utils.lazy_imports import import_object
from contraport._utils.notebook_tables import format_html_mapping
from contraport.errors import UsageError, add_hint_if_missing, check
from contraport.objectives.constraints import Constraint
from contraport.objectives.matching_problem import send_error_to_processes
from contraport.objectives.plan import PlanWithTarget
from contraport.objectives.targets import Target
from contraport.objectives.transport_assignments_and_weights import WeightsFromPlan
from contraport.options import keep_deprecated_attributes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CallOptionValue: TypeAlias = Any
"""Value of a keyword argument of `Loss.forward`."""

LABEL_OPTION_NAMES = ("labels", "domains")
"""Names of the values per item that data have whatever the loss."""

PerItemCallOption: TypeAlias = Tensor | np.ndarray | Sequence[Any]
"""Values per item as a tensor, array or list of numbers; for views of different items, a pair of these."""


@dataclass(frozen=True)
class CatalogOrigin:
    """Catalog name of an objective, the call that built it and the citation.

    Attributes:
        name: Name of the objective in the catalog.
        call: Python call that built the objective, as text.
        citation: Paper and equation that define the objective.
    """

    name: str
    call: str
    citation: str


@keep_deprecated_attributes(
    information="mutual_information_bound",
    parts="compute_terms_by_name",
    compute_terms="compute_terms_by_name",
    block_results="iterate_plans_with_targets",
    solve_blocks="iterate_plans_with_targets",
    iterate_block_results="iterate_plans_with_targets",
    constrain="set_constraint",
    describe_components="component_reprs_by_question",
    mass="last_plan_mass",
    last_mass="last_plan_mass",
    multi_view="takes_all_views",
    compares_sets="accepts_vector_sets",
    requires_features="requires_features_argument",
    target_conflict_message="target_refusal_message",
)
class Loss(nn.Module, ABC):
    """Base class of losses on embeddings, whose plans can be inspected.

    Attributes:
        catalog_origin: Catalog entry from which the loss was built, or None.
        accepts_temperature: Whether a call may set the temperature; some catalog losses fix it.
        takes_all_views: Whether training passes all views at once, rather than two at a time.
        has_core_view: Whether training on several views compares the first (the core view) with each other view only.
        compares_items: Whether items are compared with items, rather than coordinates with coordinates.
        has_negatives: Whether the loss pushes items apart, so that a batch needs several items.
        requires_ids: Whether the loss keeps a state for each item, so that a call needs ``ids=``.
        accepts_vector_sets: Whether items may be sets of vectors, (n, t, d).
        stop_gradient: Whether the columns are detached, as the targets of a momentum encoder are.
    """

    catalog_origin: CatalogOrigin | None = None
    accepts_temperature: bool = True
    takes_all_views: bool
    has_core_view: bool
    compares_items: bool
    has_negatives: bool
    requires_ids: bool
    stop_gradient: bool

    @property
    def accepts_vector_sets(self) -> bool:
        """True if items may be sets of vectors, (n, t, d) per view."""
        return False

    @abstractmethod
    def compute_terms_by_name(self, *views: Tensor, **options: CallOptionValue) -> dict[str, Tensor]:
        """Compute the weighted summands of the loss, such as divergence, by name."""

    @abstractmethod
    def iterate_plans_with_targets(self, *views: Tensor, **options: CallOptionValue) -> Iterator[PlanWithTarget]:
        """Yield the solved and target plan of each block and direction, with gradient."""

    @abstractmethod
    def component_reprs_by_question(self) -> dict[str, str]:
        """Describe each component, keyed by the question it answers, such as "which pairs?"."""

    def set_constraint(self, constraint: Constraint) -> None:
        """Replace the constraint of the loss.

        Raises:
            UsageError: there is no single constraint, or the divergence or the layout does not support this one.
        """
        raise UsageError(f"constraint: can only be replaced in a single objective, got {self!r}.", kind="sum")

    @property
    @abstractmethod
    def temperature(self) -> float:
        """Temperature of the kernel, which can be assigned between steps."""

    @temperature.setter
    @abstractmethod
    def temperature(self, value: float) -> None: ...

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """Register a parameter, or raise `UsageError` if its name is "temperature"."""
        message = "temperature: must be a number, got a parameter; build the loss with temperature='learn' or with it."
        check(name != "temperature", message)
        super().register_parameter(name, param)

    @abstractmethod
    def requires_features_argument(self, target: Target | None = None) -> bool:
        """Return whether a call with `target` requires the argument ``features=``."""

    def unread_item_options(self, target: Any = None) -> tuple[str, ...]:
        """Return the names of options per item, such as "labels", that the loss does not use."""
        return ()

    def without_unread_labels(self, options: dict[str, CallOptionValue]) -> dict[str, CallOptionValue]:
        """Return the options of a call, without labels and domains that the loss does not use."""
        unread = self.unread_item_options(options.get("target"))
        return {name: value for name, value in options.items() if name not in unread or name not in LABEL_OPTION_NAMES}

    @abstractmethod
    def target_refusal_message(self, target: Target) -> str | None:
        """Return why the loss does not support a target, or None."""

    @property
    @abstractmethod
    def requires_weights(self) -> bool:
        """True if the loss requires ``weights=`` as the marginals of the plan."""

    @property
    @abstractmethod
    def last_plan_mass(self) -> float | None:
        """Mean mass of the plans in the last call, None if unknown.

        Reading it synchronizes with the device; a call does not.
        """

    def mutual_information_bound(self, value: float | Tensor) -> float | None:
        """Return the lower bound on mutual information, in nats, or None.

        Only InfoNCE has a bound, see `Objective`. Reading it synchronizes with the device; a call does not.
        """
        return None

    def forward(
        self,
        *views: Tensor,
        labels: PerItemCallOption | None = None,
        domains: PerItemCallOption | None = None,
        ids: PerItemCallOption | None = None,
        weights: PerItemCallOption | WeightsFromPlan | str | None = None,
        column_weights: PerItemCallOption | None = None,
        features: PerItemCallOption | None = None,
        target: Tensor | np.ndarray | Target | list[Sequence[int]] | None = None,
        negatives: Tensor | None = None,
        negative_ids: PerItemCallOption | None = None,
        shared_negatives: bool = False,
        present: PerItemCallOption | None = None,
        masks: Sequence[Tensor | None] | None = None,
        similarities: Tensor | None = None,
        temperature: float | Tensor | None = None,
        reduction: Literal["mean", "none"] = "mean",
    ) -> Tensor:
        """Return the loss, a scalar, or the value of each row with ``reduction="none"``.

        Two views may show different items, n and m of them, if the target defines the positives: labels, a matrix or
        pairs. Attributes of the items are then pairs, ``labels=(of z0, of z1)``; items with equal ``ids`` are the same
        item and are not compared.

        Args:
            views: embeddings, (n, d) each, or all views in one tensor, (n, views, d). A single view is compared with
                itself, without self pairs, for targets such as labels.
            labels: class of each item, (n,) integers, for targets that need it; or (n, classes) zeros and ones.
            domains: domain of each item, (n,) integers, likewise.
            ids: id of each item, (n,) integers; items with equal ids are not compared with each other: they are never
                negatives, nor positives by a label that they share.
            weights: weight of each item, (n,), nonnegative: the loss is the weighted mean of the rows' values; or
                ``"plan"``, the confidence of the batch's own balanced plan in each item's pair, see `WeightsFromPlan`.
            column_weights: weight of each item as a column, (n,), positive: the kernel becomes w_j K_ij, a reference
                measure. With w = 1/q, q_j the sampling frequency of item j, it is the log-q correction of sampled
                softmax, log K_ij - log q_j (Yi et al., 2019, Sampling-bias-corrected neural modeling).
            features: the items in another space, a teacher's for example, for targets and layouts that need them:
                (n, k), or (n, views, k) if each view has its own. They are detached.
            target: target plan of this call, in place of the objective's own: a matrix as in `Matrix`, a list of pairs
                as in `PairList`, or a rule. It does not change the negatives.
            negatives: embeddings of additional columns without positives, (k, d), from a queue or a memory bank; or
                separate ones for each item of the first view, (n, k, d), which other rows are not compared with. They
                are appended to the columns of every block and direction, and count as other columns do: a plan with
                column marginals gives them the share k / M of the mass. Under `torch.distributed` each process gives
                its own, any number, such as hard negatives of its items; they are gathered.
            negative_ids: id of each negative, (k,) or (n, k) integers, with ``ids``: a row is not compared with
                negatives of its own item.
            shared_negatives: every process gives the same negatives, from a bank or a queue; they are not gathered.
            present: which items have which views, (n, views) Booleans. Rows of absent views are never read. An item
                without other views has no positive, but is a negative of others, and has its mass in the plan.
            masks: for a kernel of sets of vectors, such as `LateInteraction`: which vectors count, for each view (n, t)
                Booleans, or the number of vectors of each set, (n,) integers, or None for all. Views are then
                (n, t, d) each, and all views in one tensor (n, views, t, d); vectors of zeros count as padding.
            similarities: similarity matrix of rows and columns, (N, M), in place of embeddings: cosines, if the
                kernel's cost is a function of them. In the joint layout it is (2n, 2n), view 0 before view 1.
            temperature: of the kernel in this call, a number or a tensor of one element, which gets its gradient: for
                models that learn it, such as ``1 / logit_scale.exp()``. On a GPU its sign is not checked, which would
                synchronize: a temperature that is not positive gives NaN there.
            reduction: ``"mean"``, or ``"none"`` for the value of each row of the layout, (N,), whose mean is the loss;
                a row includes both directions if there are two. Under `torch.distributed` these are the rows of all
                processes.

        Raises:
            UsageError: an argument has the wrong type, shape or value, excludes another, or is not read.
        """
        options = {
            "labels": labels, "domains": domains, "ids": ids, "weights": weights, "column_weights": column_weights,
            "features": features, "target": target, "negatives": negatives, "negative_ids": negative_ids,
            "shared_negatives": shared_negatives, "present": present, "masks": masks,
            "similarities": similarities, "temperature": temperature,
        }  # fmt: skip
        # Not a decorator: all objectives would share one compiled function, and its limit of recompilations.
        try:
            if temperature is not None and not self.accepts_temperature:
                error = UsageError("temperature: not accepted, as this objective has a fixed one.", kind="conflict")
                send_error_to_processes(views, error)
                raise error
            total: Tensor | None = None
            for value in self.compute_terms_by_name(*views, **options, reduction=reduction).values():
                total = add_terms(total, value)
        except (UsageError, FloatingPointError) as failure:
            add_hint_if_missing(failure, "contraport docs calls")
            raise
        assert total is not None
        return total

    def terms(self, *views: Tensor, **options: CallOptionValue) -> dict[str, float]:
        """Return the weighted summands of the loss by name, as floats."""
        with torch.no_grad():
            return {name: value.item() for name, value in self.compute_terms_by_name(*views, **options).items()}

    def plan(self, *views: Tensor, **options: CallOptionValue) -> Tensor:
        """Return the solved plan, (N, M), of the first block of pairs, without gradient.

        For a term of a loss use the plans of `iterate_plans_with_targets`, which have one.

        >>> import torch, contraport
        >>> loss, z = contraport.info_nce(1.0), torch.eye(3, requires_grad=True)
        >>> loss.plan(z, torch.eye(3)).requires_grad
        False
        >>> [result.plan.dense().requires_grad for result in loss.iterate_plans_with_targets(z, torch.eye(3))]
        [True, True]
        """
        with torch.no_grad():
            return next(self.iterate_plans_with_targets(*views, **options)).plan.dense()

    def target_plan(self, *views: Tensor, **options: CallOptionValue) -> Tensor:
        """Return the target plan, (N, M), of the first block of pairs, without gradient."""
        with torch.no_grad():
            return next(self.iterate_plans_with_targets(*views, **options)).target.dense()

    def plot(self, *views: Tensor, **options: CallOptionValue) -> Figure:
        """Plot the solved and the target plan of the layout's first block of pairs.

        Raises:
            UsageError: matplotlib is not installed; or as in the call.

        >>> import torch, contraport
        >>> contraport.info_nce(1.0).plot(torch.eye(4), torch.eye(4)).axes[0].get_title()
        'plan: 48% of its mass on target'
        """
        with torch.no_grad():
            result = next(self.iterate_plans_with_targets(*views, **options))
            figure: Figure = import_object("contraport.plots:plan")(result.plan.dense(), result.target.dense())
        return figure

    def _repr_html_(self) -> str:
        """Return the components of the loss as an HTML table, for a notebook."""
        if self.catalog_origin is None:
            return format_html_mapping(type(self).__name__, self.component_reprs_by_question())
        return format_html_mapping(
            self.catalog_origin.call, self.component_reprs_by_question(), f"Source: {self.catalog_origin.citation}"
        )

    def explain(self) -> str:
        """Describe the loss as text, with its components and the paper to cite.

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
        lines = [f"{question:<40} {answer}" for question, answer in self.component_reprs_by_question().items()]
        if self.catalog_origin is not None:
            lines = [self.catalog_origin.call, *lines, f"Source: {self.catalog_origin.citation}"]
        return "\n".join(lines)


def add_terms(total: Tensor | None, value: Tensor) -> Tensor:
    """Add a value to a total, which may be None at first.

    Raises:
        UsageError: they are values of different numbers of rows.
    """
    if total is None:
        return value
    if total.shape != value.shape:
        message = f"reduction: must be 'mean', as terms have different numbers of rows, {len(total)} and {len(value)}."
        raise UsageError(message, kind="rows_differ")
    return total + value
