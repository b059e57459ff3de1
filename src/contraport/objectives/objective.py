"""An objective: one answer to each of the five questions, and the loss that follows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from contraport._utils.html_repr import format_html_mapping
from contraport._utils.lazy import import_object
from contraport.engine import Kernel, without_autocast
from contraport.errors import UsageError, add_hint, check, unknown_name_error
from contraport.objectives.constraints import Constraint, Marginals, PlanRequest, Rows
from contraport.objectives.diagnostics import Diagnostics
from contraport.objectives.divergences import KL, Divergence
from contraport.objectives.inputs import Attributes, views_of
from contraport.objectives.layouts import Block, Layout
from contraport.objectives.plan import BlockResult, Plan
from contraport.objectives.plan_weights import PlanWeights
from contraport.objectives.problem import Direction, MatchingProblem, build_problem, resolve_target
from contraport.objectives.process_agreement import refuse
from contraport.objectives.targets import Pairs, Target

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CallOption: TypeAlias = Any
"""What may be known in a call; see `Loss.forward`."""

ItemValues: TypeAlias = Tensor | np.ndarray | Sequence[Any]
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
        multi_view: whether it is called on any number of views, rather than on two.
        has_core_view: whether a training on more than two views calls it on the pairs that the first view is in alone.
        compares_items: whether it compares items, rather than the coordinates of their embeddings.
        has_negatives: whether it pushes items apart, so that each batch must bring others.
        requires_ids: whether it keeps something of each item between calls, and needs ``ids``.
        stop_gradient: whether all that it does is to draw embeddings to others, which are held fixed.
    """

    origin: Origin | None = None
    accepts_temperature: bool = True
    multi_view: bool
    has_core_view: bool
    compares_items: bool
    has_negatives: bool
    requires_ids: bool
    stop_gradient: bool

    @abstractmethod
    def parts(self, *views: Tensor, **known: CallOption) -> dict[str, Tensor]:
        """Return the named parts of the value, their factors included; the loss is their sum."""

    @abstractmethod
    def block_results(self, *views: Tensor, **known: CallOption) -> Iterator[BlockResult]:
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

    @abstractmethod
    def requires_features(self, target: Target | None = None) -> bool:
        """Return whether a call needs ``features=``, with another target in place of its own where one is given."""

    @abstractmethod
    def mismatch(self, target: Target) -> str | None:
        """Return why a call may not want this instead of what the objective does, or None where it may."""

    @property
    @abstractmethod
    def requires_weights(self) -> bool:
        """Whether weights of the items are the marginals of its plan, so that each call must bring them."""

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
        labels: ItemValues | None = None,
        domains: ItemValues | None = None,
        ids: ItemValues | None = None,
        weights: ItemValues | PlanWeights | str | None = None,
        column_weights: ItemValues | None = None,
        features: ItemValues | None = None,
        target: Tensor | np.ndarray | Target | list[Sequence[int]] | None = None,
        negatives: Tensor | None = None,
        negative_ids: ItemValues | None = None,
        shared_negatives: bool = False,
        present: ItemValues | None = None,
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
                ``"plan"``, how sure the batch's own balanced plan is of each item's pair, see `PlanWeights`.
            column_weights: how much each item counts as a column, (n,), positive: the kernel is w_j K_ij, a reference
                measure. With w = 1/q, q_j how often item j is drawn, it is the log-q correction of sampled softmax,
                log K_ij - log q_j (Yi et al., 2019, Sampling-bias-corrected neural modeling).
            features: the items in another space, a teacher's, for targets and layouts that ask for it: (n, k), or (n,
                views, k) where each view has its own. They are held fixed.
            target: the plan that is wanted in this call, instead of the objective's own: a matrix as in `Matrix`, a
                list of pairs as in `PairList`, or a rule. It says nothing of negatives.
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
        known = {
            "labels": labels, "domains": domains, "ids": ids, "weights": weights, "column_weights": column_weights,
            "features": features, "target": target, "negatives": negatives, "negative_ids": negative_ids,
            "shared_negatives": shared_negatives or None, "present": present, "similarities": similarities,
            "temperature": temperature,
        }  # fmt: skip
        # As decorator, `hint_on_error` would share one compiled function, and the recompilation limit, with all.
        try:
            if temperature is not None and not self.accepts_temperature:
                message = "temperature: expected none, as this objective has none to choose."
                raise _refused(views, UsageError(message))
            total: Tensor | None = None
            for value in self.parts(*views, **known, reduction=reduction).values():
                if total is not None and total.shape != value.shape:
                    lengths = {tuple(total.shape), tuple(value.shape)}
                    raise UsageError(f"reduction: expected 'mean', as parts have different numbers of rows, {lengths}.")
                total = value if total is None else total + value
        except (UsageError, FloatingPointError) as error:
            add_hint(error, "contraport docs calls")
            raise
        assert total is not None
        return total

    def terms(self, *views: Tensor, **known: CallOption) -> dict[str, float]:
        """Return the named parts of the value as numbers, their factors included; the keywords are those of the
        call.
        """
        with torch.no_grad():
            return {name: value.item() for name, value in self.parts(*views, **known).items()}

    def plan(self, *views: Tensor, **known: CallOption) -> Tensor:
        """Return the plan that came out on the first block, (N, M), to look at; the keywords are those of the call."""
        with torch.no_grad():
            return next(self.block_results(*views, **known)).plan.dense()

    def target_plan(self, *views: Tensor, **known: CallOption) -> Tensor:
        """Return the plan that is wanted on the first block, (N, M), to look at; the keywords are those of the call."""
        with torch.no_grad():
            return next(self.block_results(*views, **known)).target.dense()

    def plot(self, *views: Tensor, **known: CallOption) -> Figure:
        """Draw the plan that came out on the first block beside the one that is wanted; the keywords are those of the
        call.

        Raises:
            UsageError: matplotlib is not installed; or as in the call.

        >>> import torch, contraport
        >>> contraport.info_nce(1.0).plot(torch.eye(4), torch.eye(4)).axes[0].get_title()
        'plan: 48% of its mass on target'
        """
        with torch.no_grad():
            outcome = next(self.block_results(*views, **known))
            figure: Figure = import_object("contraport.plots:plan")(outcome.plan.dense(), outcome.target.dense())
        return figure

    def _repr_html_(self) -> str:
        """Return the answers to the five questions as a table, for a notebook."""
        if self.origin is None:
            return format_html_mapping(type(self).__name__, self.answers())
        return format_html_mapping(self.origin.call, self.answers(), f"Source: {self.origin.citation}")

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


class Objective(Loss):
    """The divergence of the allowed plan, taken over the compared pairs, from the plan that is wanted.

    Under `torch.distributed` each process calls it on its own items; all get the loss of the whole batch, and the
    average of their gradients is the gradient of that (see `contraport.distributed`).

    Call it on the embeddings of two views, each (n, d) and of any floating point type; it returns a tensor without
    dimensions. Everything inside is in single precision at least, whatever autocast says.

    Args:
        layout: which pairs are compared.
        kernel: how alike two embeddings are.
        constraint: which plans are allowed.
        target: which plan is wanted.
        divergence: how far one is from the other.
        penalties: what is added, each with its factor.

    Attributes:
        depends_on_constraint: whether its value depends on which plans are allowed, rather than on the kernel alone.

    Raises:
        UsageError: the parts do not go together; in the call, views or attributes whose shape or type does not fit.

    Source: the framing of contrastive learning as inverse optimal transport (Shi et al., 2023, eq. 7) and generalised
    contrastive alignment (Chen et al., 2024, eq. 3).

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
        self.target = resolve_target(target)
        self.penalties = dict(penalties or {})
        has_temperature_gradient = any(term.has_temperature_gradient for term in (divergence, *self.penalties))
        check(
            has_temperature_gradient or not kernel.learns_temperature,
            f"temperature: {divergence!r} gives it no gradient; expected a number.",
        )
        self.constrain(constraint)
        self._last = Diagnostics()
        terms, traits = (divergence, *self.penalties), layout.traits
        self.multi_view, self.has_core_view = traits.multi_view, traits.core
        self.compares_items, self.stop_gradient = traits.compares_items, traits.stop_gradient
        self.has_negatives = traits.compares_items and any(term.repels for term in terms)
        self.requires_ids = any(term.requires_ids for term in terms)
        self.depends_on_constraint = any(term.depends_on_constraint for term in terms)

    def constrain(self, constraint: Constraint) -> None:
        """Allow other plans from now on.

        Raises:
            UsageError: the divergence does not go with the constraint.
        """
        # A constraint without a gradient is to look at, and no divergence is taken from its plan.
        for term in (self.divergence, *self.penalties) if constraint.differentiable else ():
            if (mismatch := term.mismatch(constraint)) is not None:
                raise UsageError(f"divergence: {mismatch}")
        self.constraint = constraint

    @property
    def requires_weights(self) -> bool:
        """Whether weights of the items are the marginals of its plan, so that each call must bring them."""
        return self.constraint.requires_weights

    def requires_features(self, target: Target | None = None) -> bool:
        """Return whether its layout or the target needs ``features=`` of the call."""
        return self.layout.traits.requires_features or (target or self.target).requires_features

    def mismatch(self, target: Target) -> str | None:
        """Return that an item's views alone can be wanted, where nothing else is among what they are compared with."""
        if target.positives_from_views or self.layout.traits.compares_positives:
            return None
        return (
            "keeps an item's views out of what they are compared with, so that it is these that are wanted; expected "
            f"pairs, or nothing, got {target!r}"
        )

    @property
    def mass(self) -> float | None:
        """The mass of the plan of the last call, a mean over directions; None where no marginal tells it.

        >>> import torch, contraport
        >>> loss = contraport.gca_uot(temperature=1.0)
        >>> _ = loss(torch.eye(2), torch.eye(2))
        >>> round(loss.mass, 4)
        0.7573
        """
        return self._last.mass()

    @property
    def is_info_nce(self) -> bool:
        """Whether its value is InfoNCE: the cross-entropy of telling an item's other view among all that is compared.

        >>> import contraport
        >>> contraport.nt_xent().is_info_nce, contraport.gca_ince().is_info_nce, contraport.dcl().is_info_nce
        (True, False, False)
        """
        traits, answers = self.layout.traits, (self.constraint, self.target, self.divergence, self.penalties)
        among = (
            traits.views_are_positives
            and traits.compares_positives
            and traits.compares_items
            and not traits.requires_features
        )
        return among and not traits.shared_columns and answers == (Rows(), Pairs(), KL(), {})

    def information(self, value: float) -> float | None:
        """Return the lower bound of mutual information that a value of the last call gives: log k less the loss.

        k is the number of candidates from which an item's other view was told, itself among them; where the value adds
        up pairs of views, the bound is that of their mean. It is in nats, and at most log k.

        Returns:
            The bound; None where the value is no InfoNCE (see `is_info_nce`), or the call had weights or a target or
            reference measure of its own, more than one positive of a row, or items that lack a view.

        Source: van den Oord, Li and Vinyals (2018), Representation learning with contrastive predictive coding, eq. 5;
        Tian, Krishnan and Isola (2020), Contrastive multiview coding, eq. 4.

        >>> import math, torch, contraport
        >>> loss = contraport.info_nce(temperature=0.1)
        >>> value = loss(torch.eye(8), torch.eye(8)).item()
        >>> round(loss.information(value), 3), round(math.log(8), 3)
        (2.079, 2.079)
        """
        return self._last.information(value) if self.is_info_nce else None

    @property
    def temperature(self) -> float:
        """The temperature of the kernel; assign to it to change it between steps."""
        return self.kernel.temperature

    @temperature.setter
    def temperature(self, value: float) -> None:
        self.kernel.temperature = value

    def parts(self, *views: Tensor, **known: CallOption) -> dict[str, Tensor]:
        """Return the divergence and each penalty, factors included; see `forward` for the keywords.

        Where nothing is left to compare, as no view is there twice, they are 0.
        """
        by_row, terms = known.pop("reduction", "mean"), [(self.divergence, 1.0), *self.penalties.items()]
        self._check_call(views, known, by_row)
        rule = known.get("target")
        plain = rule is None or (isinstance(rule, Target) and rule.positives_from_views)
        plain = plain and known.get("weights") is None and known.get("column_weights") is None
        totals: dict[str, Tensor] = {}
        # A new value: torch.compile would guard what is in the old one, and compile the second call once more.
        self._last = last = Diagnostics()
        for outcome in self.block_results(*views, **known):
            pattern, log_mass = outcome.block.pattern, outcome.plan.cached_log_marginal
            last.log_masses.append(log_mass.detach() if log_mass is not None and log_mass.requires_grad else log_mass)
            if plain and not torch.compiler.is_compiling():
                last.patterns.append(pattern)
            for term, factor in terms:
                values = term(outcome)
                value = outcome.by_row(values, term) if by_row == "none" else outcome.sum(values)
                weight = factor * pattern.weight
                add_part(totals, type(term).__name__, value if weight == 1 else weight * value)
        if not totals:
            nothing = torch.stack([view[:0].float().sum() for view in views_of(views)]).sum()
            totals[type(self.divergence).__name__] = nothing
        return totals

    def _check_call(self, views: tuple[Tensor, ...], known: Mapping[str, CallOption], reduction: object) -> None:
        """Check that the divergence and the penalties accept the options of a call."""
        terms = (self.divergence, *self.penalties)
        if reduction not in ("mean", "none"):
            raise _refused(views, unknown_name_error("reduction", reduction, ("mean", "none")))
        if known.get("negatives") is not None and not any(term.repels for term in terms):
            message = f"negatives: the divergence {self.divergence!r} pushes nothing apart."
            raise _refused(views, UsageError(message))
        for term in terms if known.get("column_weights") is not None else ():
            if term.repels and not term.supports_column_weights:
                raise _refused(views, UsageError(f"column_weights: {term!r} knows none; expected none."))
        if not self.constraint.differentiable:
            raise UsageError(f"constraint: {self.constraint!r} has no gradient; use it in plan(...), to look at.")

    def block_results(self, *views: Tensor, **known: CallOption) -> Iterator[BlockResult]:
        """Yield what is compared, wanted and found, block by block and direction by direction."""
        problem = build_problem(self.layout, self.kernel, self.target, views, known)
        weighted, attributes = self.constraint.marginals == "weights", problem.call.attributes
        if problem.negatives is not None and weighted:
            raise UsageError(f"negatives: {self.constraint!r} gives columns the weights of items, and these show none.")
        with without_autocast(problem.call.views[0]):
            for block in problem.blocks():
                directions = problem.directions(block)
                marginals = self._marginals(directions[0].block, attributes.get("weights")) if weighted else None
                plans = self._plans(problem, directions, marginals)
                for direction, plan in zip(directions, plans, strict=True):
                    one, target, importance = direction if marginals is None else direction.with_weighted_target()
                    yield BlockResult(one, target, plan, importance, attributes.get("ids"))

    def _plans(
        self, problem: MatchingProblem, directions: Sequence[Direction], marginals: Marginals | None
    ) -> list[Plan]:
        """Return the plan of each direction: both at once where they compare the same pairs."""
        if problem.mirrors:
            geometry = directions[0].block.geometry(self.kernel, problem.temperature)
            return self.constraint(geometry, PlanRequest(marginals, reciprocal=len(directions) == 2))
        masses = (None, None) if marginals is None else (marginals, marginals[::-1])
        return [
            plan
            for (block, *_), mass in zip(directions, masses, strict=False)
            for plan in self.constraint(
                block.geometry(self.kernel, problem.temperature),
                PlanRequest(mass, log_weights=_log_column_weights(block, problem.call.attributes)),
            )
        ]

    def _marginals(self, block: Block, weights: Tensor | None) -> Marginals:
        """Return the marginals of the rows and columns of a block: the weights of their items."""
        if weights is None or not bool((weights > 0).all()):
            raise UsageError(f"weights: {self.constraint!r} expects a positive weight of each item in the call.")
        if block.pattern.strangers > 0:
            raise UsageError(f"weights: {self.constraint!r} expects columns of items; prototypes have no weight.")
        log_a, log_b = block.pattern.spread(weights.to(block.precision).log())
        return log_a.log_softmax(0), log_b.log_softmax(0)

    def answers(self) -> dict[str, str]:
        """Return the answer to each of the five questions, as it would be written."""
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


def _log_column_weights(block: Block, attributes: Attributes) -> Tensor | None:
    """Return log w of the columns of one direction, (M,), or None where they have no weights."""
    weights = attributes.get("column_weights")
    if weights is None:
        return None
    return weights.to(block.precision).log()[block.pattern.column_items]


def _refused(views: tuple[Tensor, ...], error: UsageError) -> UsageError:
    """Return an error of this process after the others know of it; see `refuse`."""
    refuse(views, error)
    return error


def add_part(totals: dict[str, Tensor], name: str, value: Tensor) -> None:
    """Add a value to the part of that name."""
    if name in totals and totals[name].shape != value.shape:
        found = len(totals[name]), len(value)
        raise UsageError(f"reduction: expected 'mean', as directions have different numbers of rows, {found}.")
    totals[name] = totals[name] + value if name in totals else value
