"""Objectives: losses composed of a layout, a kernel, a constraint, a target and a divergence."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from contraport._utils.html_repr import format_html_mapping
from contraport._utils.lazy_imports import import_object
from contraport.engine import Kernel, without_autocast
from contraport.errors import UsageError, add_hint, check, unknown_name_error
from contraport.objectives.constraints import Constraint, Marginals, PlanRequest, Rows
from contraport.objectives.divergences import KL, Divergence
from contraport.objectives.inputs import unpack_views
from contraport.objectives.layouts import Block, Layout, PairPattern
from contraport.objectives.plan import BlockResult
from contraport.objectives.problem import MatchingProblem, build_problem, convert_target, read_call, report_failure
from contraport.objectives.targets import Pairs, Target
from contraport.objectives.transport import PlanWeights
from contraport.options import warn_renamed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CallOption: TypeAlias = Any
"""Keyword argument of a call; see `Loss.forward`."""

PerItem: TypeAlias = Tensor | np.ndarray | Sequence[Any]
"""One value per item: a tensor, an array or a list of numbers; for two views of different items, a pair of these."""


@dataclass(frozen=True)
class CatalogOrigin:
    """Catalog entry from which an objective was built: name, call and citation.

    Attributes:
        name: Name of the objective in the catalog.
        call: Python call that built the objective, as text.
        citation: Paper and equation that define the objective.
    """

    name: str
    call: str
    citation: str


class Loss(nn.Module, ABC):
    """Base class of losses: modules called on embeddings, whose plans and targets can be inspected.

    Attributes:
        catalog_origin: Catalog entry from which the loss was built, or None.
        accepts_temperature: Whether a call may set the temperature; recipes without one fix that of their kernel.
        multi_view: Whether training passes all views at once, rather than two at a time.
        has_core_view: Whether training on several views compares the first (the core view) with each other view only.
        compares_items: Whether items are compared with items, rather than coordinates with coordinates.
        has_negatives: Whether the loss pushes items apart, so that a batch needs several items.
        requires_ids: Whether the loss keeps a state for each item, so that a call needs ``ids=``.
        stop_gradient: Whether the columns are detached, as the targets of a momentum encoder are.
    """

    catalog_origin: CatalogOrigin | None = None
    accepts_temperature: bool = True
    multi_view: bool
    has_core_view: bool
    compares_items: bool
    has_negatives: bool
    requires_ids: bool
    stop_gradient: bool

    @abstractmethod
    def compute_terms(self, *views: Tensor, **options: CallOption) -> dict[str, Tensor]:
        """Compute the weighted terms of the loss by name, as tensors; the loss is the sum of these terms."""

    @abstractmethod
    def solve_blocks(self, *views: Tensor, **options: CallOption) -> Iterator[BlockResult]:
        """Solve the blocks: yield the compared pairs, target plan and solved plan of each direction of each block."""

    @abstractmethod
    def describe_components(self) -> dict[str, str]:
        """Return descriptions of layout, kernel, constraint, target and divergence, keyed by the question of each."""

    @abstractmethod
    def set_constraint(self, constraint: Constraint) -> None:
        """Set the constraint of the loss, in place of the present one.

        Raises:
            UsageError: there is no single constraint, or the divergence does not support this one.
        """

    @property
    @abstractmethod
    def temperature(self) -> float:
        """Temperature of the kernel; assign to it to change it between steps."""

    @temperature.setter
    @abstractmethod
    def temperature(self, value: float) -> None: ...

    @abstractmethod
    def requires_features(self, target: Target | None = None) -> bool:
        """Return whether a call needs ``features=``, for a given target or, without one, for the loss's own."""

    @abstractmethod
    def target_conflict(self, target: Target) -> str | None:
        """Return the reason why a call cannot have a given target, or None if it can."""

    @property
    @abstractmethod
    def requires_weights(self) -> bool:
        """Whether the weights of the items are the marginals of the plan, so that a call needs ``weights=``."""

    @property
    @abstractmethod
    def mass(self) -> float | None:
        """Mass of the plan of the last call, averaged over directions; None if no marginal is cached.

        Reading it synchronizes with the device; a call does not.
        """

    def mutual_information_bound(self, value: float) -> float | None:
        """Return the lower bound on mutual information, in nats, from a loss value of the last call; None without one.

        Only InfoNCE has a bound, see `Objective`. Reading it synchronizes with the device; a call does not.
        """
        return None

    def information(self, value: float) -> float | None:
        """Deprecated name of `mutual_information_bound`."""
        warn_renamed("information", "mutual_information_bound", stacklevel=3)
        return self.mutual_information_bound(value)

    def forward(
        self,
        *views: Tensor,
        labels: PerItem | None = None,
        domains: PerItem | None = None,
        ids: PerItem | None = None,
        weights: PerItem | PlanWeights | str | None = None,
        column_weights: PerItem | None = None,
        features: PerItem | None = None,
        target: Tensor | np.ndarray | Target | list[Sequence[int]] | None = None,
        negatives: Tensor | None = None,
        negative_ids: PerItem | None = None,
        shared_negatives: bool = False,
        present: PerItem | None = None,
        similarities: Tensor | None = None,
        temperature: float | Tensor | None = None,
        reduction: str = "mean",
    ) -> Tensor:
        """Return the loss, a scalar tensor.

        Two views may show different items, n and m of them, if the target defines the positives: labels, a matrix or
        pairs. Attributes of the items are then pairs, ``labels=(of z0, of z1)``; items with equal ``ids`` are the same
        item and are not compared.

        Args:
            views: embeddings, (n, d) each, or all views in one tensor, (n, views, d). A single view is compared with
                itself, without self pairs, for targets such as labels.
            labels: class of each item, (n,) integers, for targets that need it; or (n, classes) zeros and ones.
            domains: domain of each item, (n,) integers, likewise.
            ids: id of each item, (n,) integers; items with equal ids are never negatives of each other.
            weights: weight of each item, (n,), nonnegative: the loss is the weighted mean of the rows' values; or
                ``"plan"``, the confidence of the batch's own balanced plan in each item's pair, see `PlanWeights`.
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
            similarities: similarity matrix of rows and columns, (N, M), in place of embeddings: cosines, if the
                kernel's cost is a function of them. In the joint layout it is (2n, 2n), view 0 before view 1.
            temperature: of the kernel in this call, a number or a tensor of one element, which gets its gradient: for
                models that learn it, such as ``1 / logit_scale.exp()``. On a GPU its sign is not checked, which would
                synchronize: a temperature that is not positive gives NaN there.
            reduction: ``"mean"``, or ``"none"`` for the value of each row of the layout, (N,), whose mean is the loss;
                a row includes both directions if there are two. Under `torch.distributed` these are the rows of all
                processes.

        Raises:
            UsageError: an argument has the wrong type, shape or value, or excludes another.
        """
        options = {
            "labels": labels, "domains": domains, "ids": ids, "weights": weights, "column_weights": column_weights,
            "features": features, "target": target, "negatives": negatives, "negative_ids": negative_ids,
            "shared_negatives": shared_negatives or None, "present": present, "similarities": similarities,
            "temperature": temperature,
        }  # fmt: skip
        # Not a decorator: all objectives would share one compiled function, and its limit of recompilations.
        try:
            if temperature is not None and not self.accepts_temperature:
                error = UsageError("temperature: not accepted, as this objective has a fixed one.", kind="conflict")
                report_failure(views, error)
                raise error
            total: Tensor | None = None
            for value in self.compute_terms(*views, **options, reduction=reduction).values():
                if total is not None and total.shape != value.shape:
                    sizes = {tuple(total.shape), tuple(value.shape)}
                    message = f"reduction: must be 'mean', as the terms have different numbers of rows, {sizes}."
                    raise UsageError(message, kind="rows_differ")
                total = value if total is None else total + value
        except (UsageError, FloatingPointError) as failure:
            add_hint(failure, "contraport docs calls")
            raise
        assert total is not None
        return total

    def terms(self, *views: Tensor, **options: CallOption) -> dict[str, float]:
        """Return the weighted terms of the loss by name, as numbers; views and options as in a call."""
        with torch.no_grad():
            return {name: value.item() for name, value in self.compute_terms(*views, **options).items()}

    def plan(self, *views: Tensor, **options: CallOption) -> Tensor:
        """Return the solved plan of the first block as a matrix, (N, M); views and options as in a call."""
        with torch.no_grad():
            return next(self.solve_blocks(*views, **options)).plan.dense()

    def target_plan(self, *views: Tensor, **options: CallOption) -> Tensor:
        """Return the target plan of the first block as a matrix, (N, M); views and options as in a call."""
        with torch.no_grad():
            return next(self.solve_blocks(*views, **options)).target.dense()

    def plot(self, *views: Tensor, **options: CallOption) -> Figure:
        """Plot the solved plan beside the target plan, both of the first block; views and options as in a call.

        Raises:
            UsageError: matplotlib is not installed; or as in the call.

        >>> import torch, contraport
        >>> contraport.info_nce(1.0).plot(torch.eye(4), torch.eye(4)).axes[0].get_title()
        'plan: 48% of its mass on target'
        """
        with torch.no_grad():
            result = next(self.solve_blocks(*views, **options))
            figure: Figure = import_object("contraport.plots:plan")(result.plan.dense(), result.target.dense())
        return figure

    def _repr_html_(self) -> str:
        """Return the components of the loss as an HTML table, for a notebook."""
        if self.catalog_origin is None:
            return format_html_mapping(type(self).__name__, self.describe_components())
        return format_html_mapping(
            self.catalog_origin.call, self.describe_components(), f"Source: {self.catalog_origin.citation}"
        )

    def explain(self) -> str:
        """Describe the loss as text: each component with the question that it answers, and the citation.

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
        lines = [f"{question:<40} {answer}" for question, answer in self.describe_components().items()]
        if self.catalog_origin is not None:
            lines = [self.catalog_origin.call, *lines, f"Source: {self.catalog_origin.citation}"]
        return "\n".join(lines)


class Objective(Loss):
    """Contrastive objective: divergence of the solved plan from the target plan, plus weighted penalties.

    Call it on the embeddings of two views, (n, d) each, of any floating-point type; it returns a scalar tensor.
    Computations run in single precision at least, whatever autocast is set to. Under `torch.distributed` each process
    calls it on its own items; all get the loss of the whole batch, and the average of their gradients is its gradient
    (see `contraport.distributed`).

    Args:
        layout: which pairs are compared.
        kernel: similarity of two embeddings.
        constraint: which plans are allowed.
        target: target plan.
        divergence: difference of the two plans.
        penalties: additional terms with their weights.

    Raises:
        UsageError: the parts do not fit together; in the call, an argument has the wrong type or shape.

    Attributes:
        depends_on_constraint: Whether the value depends on the constraint, rather than on the kernel alone.

    Source: contrastive learning as inverse optimal transport (Shi et al., 2023, eq. 7) and as generalized contrastive
    alignment (Chen et al., 2024, eq. 3).

    >>> import torch
    >>> from contraport import KL, Balanced, Gibbs, Joint, Objective, Pairs
    >>> loss = Objective(Joint(), Gibbs("cosine", 0.5), Balanced(iterations=5), Pairs(), KL())
    >>> z0, z1 = torch.eye(4), torch.eye(4)
    >>> loss(z0, z1)
    tensor(0.5944)
    """

    def __init__(
        self,
        layout: Layout,
        kernel: Kernel,
        constraint: Constraint,
        target: Target,
        divergence: Divergence,
        penalties: Mapping[Divergence, float] | None = None,
    ) -> None:
        super().__init__()
        self.layout, self.kernel, self.divergence = layout, kernel, divergence
        self.target = convert_target(target)
        self.penalties = dict(penalties or {})
        terms, traits = (divergence, *self.penalties), layout.traits
        learnable = any(term.has_temperature_gradient for term in terms)
        message = f"temperature: must be a number, as {divergence!r} has no gradient in it, got a learned one."
        check(learnable or not kernel.learns_temperature, message, "not_learnable")
        self.set_constraint(constraint)
        # Of the last call: log masses of the rows or columns of each direction, or 0.0, the log of a total mass that is
        # 1 by construction, or None if the solver computed neither; and the pattern of each direction, if the call had
        # no weights and no target.
        self._log_masses: list[Tensor | float | None] = []
        self._unweighted_patterns: list[PairPattern] = []
        self.multi_view, self.has_core_view = traits.multi_view, traits.has_core_view
        self.compares_items, self.stop_gradient = traits.compares_items, traits.stop_gradient
        self.has_negatives = traits.compares_items and any(term.repels for term in terms)
        self.requires_ids = any(term.requires_ids for term in terms)
        self.depends_on_constraint = any(term.depends_on_constraint for term in terms)

    def set_constraint(self, constraint: Constraint) -> None:
        """Set the constraint, in place of the present one.

        Raises:
            UsageError: the divergence does not support the constraint.
        """
        # A constraint without a gradient is for inspection only: no divergence is computed from its plan.
        for term in (self.divergence, *self.penalties) if constraint.differentiable else ():
            if (conflict := term.constraint_conflict(constraint)) is not None:
                raise UsageError(f"divergence: {conflict}", kind="constraint")
        self.constraint = constraint

    @property
    def requires_weights(self) -> bool:
        return self.constraint.requires_weights

    def requires_features(self, target: Target | None = None) -> bool:
        return self.layout.traits.requires_features or (target or self.target).requires_features

    def target_conflict(self, target: Target) -> str | None:
        """Return the reason why a call cannot have a target, or None; without positives compared, only `Pairs` fits."""
        if target.positives_from_views or self.layout.traits.includes_positives:
            return None
        return f"excludes an item's views from the compared pairs, so that only these can be positives; got {target!r}"

    @property
    def mass(self) -> float | None:
        """Mass of the plan of the last call, averaged over directions; None if no marginal is cached.

        >>> import torch, contraport
        >>> loss = contraport.gca_uot(temperature=1.0)
        >>> _ = loss(torch.eye(2), torch.eye(2))
        >>> round(loss.mass, 4)
        0.7573
        """
        known = [log_mass for log_mass in self._log_masses if log_mass is not None]
        if not known or len(known) < len(self._log_masses):
            return None
        masses = [value.exp().sum().item() if isinstance(value, Tensor) else math.exp(value) for value in known]
        return math.fsum(masses) / len(masses)

    @property
    def is_info_nce(self) -> bool:
        """Whether the value is InfoNCE: the cross-entropy of classifying an item's other view among all candidates.

        >>> import contraport
        >>> contraport.nt_xent().is_info_nce, contraport.gca_ince().is_info_nce, contraport.dcl().is_info_nce
        (True, False, False)
        """
        traits = self.layout.traits
        classifies_views = traits.views_are_positives and traits.includes_positives and traits.compares_items
        if not classifies_views or traits.requires_features or traits.shared_columns:
            return False
        return (self.constraint, self.target, self.divergence, self.penalties) == (Rows(), Pairs(), KL(), {})

    def mutual_information_bound(self, value: float) -> float | None:
        """Return the InfoNCE lower bound on mutual information for a value of the last call: log k minus the loss.

        k is the number of candidates among which an item's other view was classified, itself included; if the value
        sums over pairs of views, the bound is that of their mean. It is in nats, and at most log k.

        Returns:
            The bound; None if the value is not an InfoNCE (see `is_info_nce`), or the call had weights, a target or a
            reference measure of its own, several positives per row, or items that lack a view.

        Source: van den Oord, Li and Vinyals (2018), Representation learning with contrastive predictive coding, eq. 5;
        Tian, Krishnan and Isola (2020), Contrastive multiview coding, eq. 4.

        >>> import math, torch, contraport
        >>> loss = contraport.info_nce(temperature=0.1)
        >>> value = loss(torch.eye(8), torch.eye(8)).item()
        >>> round(loss.mutual_information_bound(value), 3), round(math.log(8), 3)
        (2.079, 2.079)
        """
        patterns = self._unweighted_patterns
        if not (patterns and self.is_info_nce and all(pattern.one_positive_per_row for pattern in patterns)):
            return None
        bounds = []
        for pattern in patterns:
            like = torch.empty(0, dtype=torch.float64, device=pattern.row_items.device)
            log_candidates = float(pattern.compared_pairs().row_counts(like).log().mean())
            bounds.append(pattern.block_weight * log_candidates)
        return (math.fsum(bounds) - value) / math.fsum(pattern.block_weight for pattern in patterns)

    @property
    def temperature(self) -> float:
        """Temperature of the kernel; assign to it to change it between steps."""
        return self.kernel.temperature

    @temperature.setter
    def temperature(self, value: float) -> None:
        self.kernel.temperature = value

    def compute_terms(self, *views: Tensor, **options: CallOption) -> dict[str, Tensor]:
        """Compute the divergence and the weighted penalties by name, as tensors; see `forward` for the options.

        The divergence is 0 if nothing is left to compare, as no item has two views.
        """
        reduction = options.pop("reduction", "mean")
        problem = self._build_problem(views, options, reduction)
        totals: dict[str, Tensor] = {}
        log_masses: list[Tensor | float | None] = []
        patterns: list[PairPattern] = []
        with without_autocast(problem.inputs.views[0]):
            for block in problem.blocks():
                for result in self._solve(problem, block):
                    exact = result.plan.exact_axis is not None
                    log_mass = 0.0 if exact else result.plan.cached_log_marginal
                    log_masses.append(log_mass.detach() if isinstance(log_mass, Tensor) else log_mass)
                    if problem.is_unweighted_view_matching and not torch.compiler.is_compiling():
                        patterns.append(result.block.pattern)
                    for term, factor in ((self.divergence, 1.0), *self.penalties.items()):
                        values = term(result)
                        if reduction == "none":
                            value = result.scale_row_values(values, term)
                        else:
                            value = result.sum_row_values(values)
                        weight = factor * block.pattern.block_weight
                        add_to_term(totals, type(term).__name__, value if weight == 1 else weight * value)
        # New lists: torch.compile would guard on the content of the old ones, and recompile at the second call.
        self._log_masses, self._unweighted_patterns = log_masses, patterns
        if not totals:
            zero = torch.stack([view[:0].float().sum() for view in unpack_views(views)]).sum()
            totals[type(self.divergence).__name__] = zero
        return totals

    def solve_blocks(self, *views: Tensor, **options: CallOption) -> Iterator[BlockResult]:
        problem = self._build_problem(views, options)
        # The context stays active between results: what the caller computes from them is not autocast either.
        with without_autocast(problem.inputs.views[0]):
            for block in problem.blocks():
                yield from self._solve(problem, block)

    def _build_problem(
        self, views: tuple[Tensor, ...], options: Mapping[str, CallOption], reduction: object = None
    ) -> MatchingProblem:
        """Check a call, and build its matching problem; without a reduction, plans are only inspected."""
        try:
            if reduction is not None:
                self._check_options(options, reduction)
            call = read_call(self.layout, self.target, views, options)
        except Exception as error:
            # An error on this process must not leave the others waiting in a collective: it is reported, then raised.
            report_failure(views, error)
            raise
        return build_problem(call, self.kernel)

    def _check_options(self, options: Mapping[str, CallOption], reduction: object) -> None:
        """Raise `UsageError` for options of a call that the divergence or a penalty does not support."""
        terms = (self.divergence, *self.penalties)
        if reduction not in ("mean", "none"):
            raise unknown_name_error("reduction", reduction, ("mean", "none"))
        if options.get("negatives") is not None and not any(term.repels for term in terms):
            raise UsageError(f"negatives: not accepted, as {self.divergence!r} has no repulsion.", kind="conflict")
        for term in terms if options.get("column_weights") is not None else ():
            if term.repels and not term.supports_column_weights:
                raise UsageError(f"column_weights: not supported by {term!r}.", kind="conflict")
        if not self.constraint.differentiable:
            message = f"constraint: {self.constraint!r} has no gradient; inspect its plan with loss.plan(...)."
            raise UsageError(message, kind="not_differentiable")

    def _solve(self, problem: MatchingProblem, block: Block) -> list[BlockResult]:
        """Solve the plan of each direction of a block, and return it with the target plan."""
        directions, attributes = problem.directions(block), problem.inputs.attributes
        marginals: Marginals | None = None
        if self.constraint.marginals == "weights":
            marginals = self._marginals(directions[0].block, attributes.get("weights"))
        if problem.directions_share_pairs:
            # Both directions in one solve: each pass over the pairs serves a half step of both.
            geometry = directions[0].block.build_geometry(self.kernel, problem.temperature)
            plans = self.constraint(geometry, PlanRequest(marginals, bidirectional=len(directions) == 2))
        else:
            plans, column_weights = [], attributes.get("column_weights")
            for k, (side, _, _) in enumerate(directions):
                geometry = side.build_geometry(self.kernel, problem.temperature)
                log_column_weights = None
                if column_weights is not None:
                    log_column_weights = column_weights.to(side.compute_dtype).log()[side.pattern.column_items]
                masses = marginals if marginals is None or k == 0 else marginals[::-1]
                plans += self.constraint(geometry, PlanRequest(masses, log_column_weights=log_column_weights))
        results = []
        for (side, target, row_weights), plan in zip(directions, plans, strict=True):
            if marginals is not None and row_weights is not None:
                # The solved plan has the weights as marginals: they move into the target plan.
                target, row_weights = target.scale_rows(row_weights), None
            results.append(BlockResult(side, target, plan, row_weights, attributes.get("ids")))
        return results

    def _marginals(self, block: Block, weights: Tensor | None) -> Marginals:
        """Return the weights of the items as log marginals of the rows and columns of a block."""
        if weights is None or not bool((weights > 0).all()):
            message = f"weights: must be positive for each item, as they are the marginals of {self.constraint!r}."
            raise UsageError(message, kind="marginals")
        if block.pattern.num_extra_columns > 0:
            message = f"weights: cannot be the marginals of {self.constraint!r} for negatives or prototypes."
            raise UsageError(message, kind="columns")
        log_a, log_b = block.pattern.expand_attribute(weights.to(block.compute_dtype).log())
        return log_a.log_softmax(0), log_b.log_softmax(0)

    def describe_components(self) -> dict[str, str]:
        questions = {
            "Which pairs are compared?": self.layout,
            "How alike are two embeddings?": self.kernel,
            "Which plans are allowed?": self.constraint,
            "Which plan do we want?": self.target,
            "How far is one from the other?": self.divergence,
        }
        answers = {question: repr(answer) for question, answer in questions.items()}
        return answers | {f"Penalty, times {factor:g}": repr(penalty) for penalty, factor in self.penalties.items()}

    def __repr__(self) -> str:
        penalties = f", penalties={self.penalties!r}" if self.penalties else ""
        return (
            f"Objective(layout={self.layout!r}, kernel={self.kernel!r}, constraint={self.constraint!r}, "
            f"target={self.target!r}, divergence={self.divergence!r}{penalties})"
        )


def add_to_term(totals: dict[str, Tensor], name: str, value: Tensor) -> None:
    """Add a value to the term with a given name."""
    if name in totals and totals[name].shape != value.shape:
        sizes = len(totals[name]), len(value)
        message = f"reduction: must be 'mean', as the directions have different numbers of rows, {sizes}."
        raise UsageError(message, kind="rows_differ")
    totals[name] = totals[name] + value if name in totals else value
