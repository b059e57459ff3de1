"""Objectives: layout, kernel, constraint, target and divergence; sums of objectives."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from contraport.engine import Kernel, autocast_disabled
from contraport.errors import UsageError, check, check_finite, check_type, is_number, unknown_name_error
from contraport.objectives.constraints import Constraint, LogMarginals, PlanRequest, Rows
from contraport.objectives.divergences import KL, Divergence
from contraport.objectives.inputs import ITEM_OPTION_NAMES, unstack_and_unalias_views
from contraport.objectives.layout_wrappers import LeadingCoordinates, NestedCoordinates
from contraport.objectives.layouts import Block, Cross, Joint, Layout, PairPattern
from contraport.objectives.loss import CallOptionValue, Loss, add_terms
from contraport.objectives.matching_problem import (
    MatchingProblem,
    build_local_problem,
    convert_matrix_or_pairs_to_target,
    send_error_to_processes,
)
from contraport.objectives.plan import PlanWithTarget
from contraport.objectives.targets import Pairs, Target
from contraport.options import keep_deprecated_attributes

_TARGET_BY_ATTRIBUTE = {"labels": "Labels()", "domains": "Domains()", "features": "SoftNeighbors()"}
"""Example of a target that reads each attribute, for errors."""


class Objective(Loss):
    """Contrastive objective, a divergence between target and solved plan, plus penalties.

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

    constraint: Constraint

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
        check_type("layout", layout, Layout, "Joint()")
        check_type("kernel", kernel, Kernel, "Gibbs('cosine', 0.5)")
        check_type("divergence", divergence, Divergence, "KL()")
        penalties = {} if penalties is None else penalties
        if not isinstance(penalties, Mapping):
            raise UsageError(f"penalties: must map divergences to weights, got {penalties!r}.", kind="type")
        for penalty, factor in penalties.items():
            check_type("penalties", penalty, Divergence, "MarginalPenalty()")
            check_finite("penalties", factor)
        self.layout, self.kernel, self.divergence = layout, kernel, divergence
        self.target = convert_matrix_or_pairs_to_target(target)
        self.penalties = dict(penalties)
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
        self.takes_all_views, self.has_core_view = traits.takes_all_views, traits.has_core_view
        self.compares_items, self.stop_gradient = traits.compares_items, traits.stop_gradient
        self.has_negatives = traits.compares_items and any(term.repels for term in terms)
        self.depends_on_constraint = any(term.depends_on_constraint for term in terms)

    def set_constraint(self, constraint: Constraint) -> None:
        check_type("constraint", constraint, Constraint, "Rows()")
        terms = (self.divergence, *self.penalties)
        # A constraint without a gradient is for inspection only: no divergence is computed from its plan.
        for term in terms if constraint.differentiable else ():
            if (conflict := term.constraint_conflict_message(constraint)) is not None:
                raise UsageError(f"divergence: {conflict}", kind="constraint")
        if constraint.requires_ids and not isinstance(self.layout, Cross | Joint):
            message = f"layout: must be Cross or Joint for {constraint!r}, got {self.layout!r}."
            raise UsageError(message, kind="constraint")
        if "constraint" in self._modules and not isinstance(constraint, nn.Module):
            del self.constraint  # torch lets only a module replace a module
        self.constraint = constraint
        self.requires_ids = constraint.requires_ids or any(term.requires_ids for term in terms)

    def with_layout(self, layout: Layout) -> Objective:
        """Return an objective with another layout and the same other components."""
        return Objective(layout, self.kernel, self.constraint, self.target, self.divergence, self.penalties)

    @property
    def accepts_vector_sets(self) -> bool:
        return self.kernel.compares_sets

    @property
    def requires_weights(self) -> bool:
        return self.constraint.requires_weights

    def requires_features_argument(self, target: Target | None = None) -> bool:
        return self.layout.traits.requires_features_argument or (target or self.target).requires_features_argument

    def unread_item_options(self, target: Any = None) -> tuple[str, ...]:
        rule = self.target if target is None else target
        read = ["weights", *rule.read_attributes] if isinstance(rule, Target) else ["weights"]  # a matrix or pairs
        if self.layout.traits.requires_features_argument or getattr(rule, "requires_features_argument", False):
            read += ["features"]
        if any(term.repels for term in (self.divergence, *self.penalties)):
            read += ["ids", "column_weights"]
        if self.requires_ids or not getattr(rule, "positives_from_views", False):
            read += ["ids"]
        return tuple([name for name in ITEM_OPTION_NAMES if name not in read])

    def target_refusal_message(self, target: Target) -> str | None:
        """Return why the objective does not support a target, or None.

        A layout that excludes the positives from the compared pairs needs a target whose positives are views.
        """
        if target.positives_from_views or self.layout.traits.includes_positives:
            return None
        return f"excludes an item's views from the compared pairs, so that only these can be positives; got {target!r}"

    @property
    def last_plan_mass(self) -> float | None:
        """Mean mass of the plans in the last call, None if unknown.

        >>> import torch, contraport
        >>> loss = contraport.gca_uot(temperature=1.0)
        >>> _ = loss(torch.eye(2), torch.eye(2))
        >>> round(loss.last_plan_mass, 4)
        0.7573
        """
        log_masses = [log_mass for log_mass in self._log_masses if log_mass is not None]
        if not log_masses or len(log_masses) < len(self._log_masses):
            return None
        masses = [value.exp().sum().item() if isinstance(value, Tensor) else math.exp(value) for value in log_masses]
        return math.fsum(masses) / len(masses)

    @property
    def is_info_nce(self) -> bool:
        """True if the loss is InfoNCE, with positives among the candidates.

        >>> import contraport
        >>> contraport.nt_xent().is_info_nce, contraport.gca_ince().is_info_nce, contraport.dcl().is_info_nce
        (True, False, False)
        """
        traits = self.layout.traits
        classifies_views = traits.views_are_positives and traits.includes_positives and traits.compares_items
        if not classifies_views or traits.requires_features_argument or traits.shared_columns:
            return False
        return (self.constraint, self.target, self.divergence, self.penalties) == (Rows(), Pairs(), KL(), {})

    def mutual_information_bound(self, value: float | Tensor) -> float | None:
        """Return the lower bound on mutual information from a value of InfoNCE.

        It is None for other losses. `value` is the InfoNCE loss of the last call. The bound is log k minus the value. k
        is the number of candidates among which an item's other view was classified, itself included; if the value sums
        over pairs of views, the bound is that of their mean. It is in nats, and at most log k.

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
        good = is_number(value) or (isinstance(value, Tensor) and value.numel() == 1)
        check(good, f"value: must be a number, a value of the loss, got {value!r}.")
        patterns = self._unweighted_patterns
        if not (patterns and self.is_info_nce and all(pattern.one_positive_per_row for pattern in patterns)):
            return None
        bounds = []
        for pattern in patterns:
            log_candidates = float(pattern.compared_pairs().row_counts(torch.float64).log().mean())
            bounds.append(pattern.block_weight * log_candidates)
        return (math.fsum(bounds) - float(value)) / math.fsum(pattern.block_weight for pattern in patterns)

    @property
    def temperature(self) -> float:
        """Temperature of the kernel, which can be assigned between steps."""
        return self.kernel.temperature

    @temperature.setter
    def temperature(self, value: float) -> None:
        self.kernel.temperature = value

    def compute_terms_by_name(self, *views: Tensor, **options: CallOptionValue) -> dict[str, Tensor]:
        """Compute the divergence and the weighted penalties by name, as tensors.

        The divergence is 0 if nothing is left to compare, as no item has two views.
        """
        reduction = options.pop("reduction", "mean")
        problem = self._build_problem(views, options, str(reduction))  # as text: None is reserved for inspection
        totals: dict[str, Tensor] = {}
        log_masses: list[Tensor | float | None] = []
        patterns: list[PairPattern] = []
        has_weights = bool(problem.inputs.attributes.keys() & {"weights", "column_weights"})
        is_unweighted = problem.target.positives_from_views and not has_weights
        with autocast_disabled(problem.inputs.views[0]):
            for block in problem.list_blocks_without_absent_items():
                for result in self._solve_block(problem, block):
                    exact, row_weights = result.plan.exact_axis is not None, result.row_weights
                    log_mass = 0.0 if exact else result.plan.cached_log_row_or_column_mass
                    log_masses.append(log_mass.detach() if isinstance(log_mass, Tensor) else log_mass)
                    if is_unweighted and not torch.compiler.is_compiling():
                        patterns.append(result.block.pattern)
                    for term, factor in ((self.divergence, 1.0), *self.penalties.items()):
                        value, weight = term(result), factor * block.pattern.block_weight
                        if reduction == "none":
                            message = f"reduction: must be 'mean' for {term!r}, which is no sum over rows, got 'none'."
                            check(value.ndim > 0, message, "no_rows")
                            value = len(value) * value  # so that their mean is the loss
                            value = value if row_weights is None else row_weights * value
                        elif value.ndim > 0:
                            value = value.sum() if row_weights is None else row_weights @ value
                        name = type(term).__name__
                        totals[name] = add_terms(totals.get(name), value if weight == 1 else weight * value)
        # New lists: torch.compile would guard on the content of the old ones. Those of torch.func end with it.
        in_transform = not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()
        self._log_masses, self._unweighted_patterns = ([], []) if in_transform else (log_masses, patterns)
        if not totals:
            zero = torch.stack([view[:0].float().sum() for view in unstack_and_unalias_views(views)]).sum()
            totals[type(self.divergence).__name__] = zero
        return totals

    def iterate_plans_with_targets(self, *views: Tensor, **options: CallOptionValue) -> Iterator[PlanWithTarget]:
        problem = self._build_problem(views, options)
        # The context stays active between results: what the caller computes from them is not autocast either.
        with autocast_disabled(problem.inputs.views[0]):
            for block in problem.list_blocks_without_absent_items():
                yield from self._solve_block(problem, block)

    def _build_problem(
        self, views: tuple[Tensor, ...], options: Mapping[str, CallOptionValue], reduction_to_check: str | None = None
    ) -> MatchingProblem:
        """Check the arguments, and build the matching problem of a loss or of a plan.

        A reduction adds the checks of a loss.
        """
        try:
            if reduction_to_check is not None:
                self._check_loss_call(options, reduction_to_check)
            problem = build_local_problem(self.layout, self.target, views, options, sets=self.kernel.compares_sets)
            if problem.inputs.attributes:
                self._check_attributes_are_read(problem, in_loss=reduction_to_check is not None)
        except Exception as error:
            # An error on this process must not leave the others waiting in a collective: it is reported, then raised.
            send_error_to_processes(views, error)
            raise
        return problem.gather_items_of_all_processes(self.kernel)

    def _check_loss_call(self, options: Mapping[str, CallOptionValue], reduction: str) -> None:
        """Raise `UsageError` for arguments that are valid for a plan, but not for a loss."""
        terms = (self.divergence, *self.penalties)
        if reduction not in ("mean", "none"):
            raise unknown_name_error("reduction", reduction, ("mean", "none"))
        if options.get("negatives") is not None and not any(term.repels for term in terms):
            message = f"negatives: not accepted, as {self.divergence!r} pushes no embeddings apart; leave them out."
            raise UsageError(message, kind="conflict")
        for term in terms if options.get("column_weights") is not None else ():
            if term.repels and not term.supports_column_weights:
                raise UsageError(f"column_weights: not supported by {term!r}.", kind="conflict")
        if not self.constraint.differentiable:
            message = f"constraint: {self.constraint!r} has no gradient; inspect its plan with loss.plan(...)."
            raise UsageError(message, kind="not_differentiable")

    def _check_attributes_are_read(self, problem: MatchingProblem, *, in_loss: bool) -> None:
        """Raise `UsageError` for values per item, such as labels, that would be ignored.

        Ids and column weights are always accepted.
        """
        unread = self.unread_item_options(problem.target)
        for name in [name for name in problem.inputs.attributes if name in unread]:
            if (example := _TARGET_BY_ATTRIBUTE.get(name)) is not None:
                remedy = f"leave them out, or use a target that reads them, such as {example}"
                raise UsageError(f"{name}: not read by {problem.target!r}; {remedy}.", kind="unused")
            message = f"{name}: not accepted, as {self.divergence!r} pushes no embeddings apart; leave them out."
            check(not in_loss, message, "conflict")

    def _solve_block(self, problem: MatchingProblem, block: Block) -> list[PlanWithTarget]:
        """Solve a block's plan from rows to columns and, if bidirectional, back."""
        directions, attributes = problem.build_directions(block), problem.inputs.attributes
        forward, ids = directions[0].block, attributes.get("ids")
        marginals: LogMarginals | None = None
        if self.constraint.marginals == "weights":
            marginals = self._require_weights_as_log_marginals(attributes.get("weights"), forward)
        same_pairs = problem.negatives is None and not problem.traits.requires_features_argument
        if same_pairs and "column_weights" not in attributes:
            # Both directions in one solve: each pass over the pairs serves a half step of both.
            geometry = forward.build_geometry(self.kernel, problem.temperature)
            request = PlanRequest(marginals, bidirectional=len(directions) == 2, pattern=forward.pattern, ids=ids)
            plans = self.constraint(geometry, request)
        else:
            plans, column_weights = [], attributes.get("column_weights")
            for k, direction in enumerate(directions):
                side = direction.block
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
            results.append(PlanWithTarget(side, target, plan, row_weights, ids))
        return results

    def _require_weights_as_log_marginals(self, item_weights: Tensor | None, block: Block) -> LogMarginals:
        """Return the normalized item weights of rows and columns as log marginals.

        Raises:
            UsageError: a weight is missing or not positive, or a column has no item.
        """
        if item_weights is None or not bool((item_weights > 0).all()):
            message = f"weights: must be positive for each item, as they are the marginals of {self.constraint!r}."
            raise UsageError(message, kind="marginals")
        if block.pattern.num_extra_columns > 0:
            message = f"weights: cannot be the marginals of {self.constraint!r} for negatives or prototypes."
            raise UsageError(message, kind="columns")
        log_weights = item_weights.to(block.compute_dtype).log()
        log_a, log_b = (log_weights[items] for items in block.pattern.items)
        return log_a.log_softmax(0), log_b.log_softmax(0)

    def component_reprs_by_question(self) -> dict[str, str]:
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


@keep_deprecated_attributes(weighted_objectives="iterate_objectives_with_weights")
class SumLoss(Loss):
    """Weighted sum of objectives on the same views.

    Args:
        objectives: each objective with its weight; the temperature of the first is that of the sum.

    Raises:
        UsageError: there are no objectives, one is not an `Objective`, or a weight is not a finite number.

    >>> import contraport
    >>> SumLoss({contraport.nt_xent(): 1.0, contraport.gca_ince(): 0.5}).temperature
    0.5
    """

    def __init__(self, objectives: Mapping[Objective, float]) -> None:
        super().__init__()
        good = isinstance(objectives, Mapping)
        check(good, f"objectives: must map objectives to weights, got {objectives!r}.", "type")
        check(len(objectives) > 0, "objectives: must be at least one, got none.", "missing")
        for objective, factor in objectives.items():
            check_type("objectives", objective, Objective, "nt_xent()")
            check_finite("objectives", factor)
        self.objectives = nn.ModuleList(objectives)
        self.factors = tuple(objectives.values())
        self.takes_all_views = all(objective.takes_all_views for objective in objectives)
        self.has_core_view = all(objective.has_core_view for objective in objectives)
        self.compares_items = all(objective.compares_items for objective in objectives)
        self.has_negatives = any(objective.has_negatives for objective in objectives)
        self.requires_ids = any(objective.requires_ids for objective in objectives)
        self.stop_gradient = all(objective.stop_gradient for objective in objectives)

    def iterate_objectives_with_weights(self) -> Iterator[tuple[Objective, float]]:
        """Yield each objective with its weight."""
        for module, factor in zip(self.objectives, self.factors, strict=True):
            assert isinstance(module, Objective)
            yield module, factor

    @property
    def _first_objective(self) -> Objective:
        """First objective, whose temperature and plan are those of the sum."""
        return next(self.iterate_objectives_with_weights())[0]

    @property
    def temperature(self) -> float:
        """Temperature of the first objective, assignable between steps."""
        return self._first_objective.temperature

    @temperature.setter
    def temperature(self, of_first_objective: float) -> None:
        self._first_objective.temperature = of_first_objective

    @property
    def accepts_vector_sets(self) -> bool:
        return all(objective.accepts_vector_sets for objective, _ in self.iterate_objectives_with_weights())

    @property
    def requires_weights(self) -> bool:
        return any(objective.requires_weights for objective, _ in self.iterate_objectives_with_weights())

    def requires_features_argument(self, target: Target | None = None) -> bool:
        return any(one.requires_features_argument(target) for one, _ in self.iterate_objectives_with_weights())

    def unread_item_options(self, target: Any = None) -> tuple[str, ...]:
        first, *others = (one.unread_item_options(target) for one, _ in self.iterate_objectives_with_weights())
        return tuple([name for name in first if all(name in other for other in others)])

    def _select_options(self, objective: Objective, options: dict[str, CallOptionValue]) -> dict[str, CallOptionValue]:
        """Drop the options that only other objectives of the sum use."""
        target = options.get("target")
        own, common = objective.unread_item_options(target), self.unread_item_options(target)
        return {name: value for name, value in options.items() if name in common or name not in own}

    def target_refusal_message(self, target: Target) -> str:
        return f"is a sum of objectives, each with its own target, and accepts no other; got {target!r}"

    @property
    def last_plan_mass(self) -> float | None:
        """Mean mass of the first objective's plans in the last call, None if unknown."""
        return self._first_objective.last_plan_mass

    def compute_terms_by_name(self, *views: Tensor, **options: CallOptionValue) -> dict[str, Tensor]:
        totals: dict[str, Tensor] = {}
        for objective, factor in self.iterate_objectives_with_weights():
            for name, value in objective.compute_terms_by_name(
                *views, **self._select_options(objective, options)
            ).items():
                totals[name] = add_terms(totals.get(name), factor * value)
        return totals

    def iterate_plans_with_targets(self, *views: Tensor, **options: CallOptionValue) -> Iterator[PlanWithTarget]:
        for objective, _ in self.iterate_objectives_with_weights():
            yield from objective.iterate_plans_with_targets(*views, **self._select_options(objective, options))

    def component_reprs_by_question(self) -> dict[str, str]:
        return {
            f"{position}. {question}": answer
            for position, (objective, _) in enumerate(self.iterate_objectives_with_weights(), 1)
            for question, answer in objective.component_reprs_by_question().items()
        }

    def __repr__(self) -> str:
        terms = ", ".join(f"{objective!r}: {factor!r}" for objective, factor in self.iterate_objectives_with_weights())
        return f"SumLoss({{{terms}}})"


def matryoshka(objective: Loss, dims: Sequence[int], weights: Sequence[float] | None = None) -> Loss:
    """Matryoshka loss, the sum of an objective over nested embeddings.

    The first coordinates can then be used alone. Each of `dims` is a number of first coordinates, compared by
    themselves: a kernel of cosines normalizes them anew. Parameters such as a learned temperature are shared by all;
    moving averages, as those of `sog_clr`, are separate.

    Args:
        objective: an objective of the catalog, an `Objective` or a `SumLoss`; it is not changed.
        dims: numbers of first coordinates, such as ``[256, 128, 64]``, in any order; at most the embedding dimension.
        weights: weight of each of `dims` in the sum, positive; default: 1 each.

    Raises:
        UsageError: the objective is a module of another kind, or dims or weights are invalid.

    Source: Kusupati et al. (2022), Matryoshka representation learning, eq. 1.

    >>> import torch, contraport
    >>> loss = contraport.matryoshka(contraport.info_nce(temperature=1.0), dims=[4, 2])
    >>> round(loss(torch.eye(4), torch.eye(4)).item(), 4)
    1.8086
    """
    good = isinstance(objective, Objective | SumLoss)
    check(good, f"objective: must be a contraport objective, got {type(objective).__name__}.", "type")
    NestedCoordinates(dims, Cross(), weights)  # checks dims and weights
    # The largest first: the plan that is shown is that of the first block.
    pairs = sorted(zip(dims, [1.0] * len(dims) if weights is None else weights, strict=True), reverse=True)
    sizes, shares = tuple(size for size, _ in pairs), tuple(share for _, share in pairs)
    parts = dict(objective.iterate_objectives_with_weights()) if isinstance(objective, SumLoss) else {objective: 1.0}
    nested: dict[Objective, float] = {}
    for part, factor in parts.items():
        assert isinstance(part, Objective)
        layout = NestedCoordinates(sizes, part.layout, shares)
        if not list(part.buffers()):
            nested[part.with_layout(layout)] = factor
            continue
        for size, share in zip(sizes, shares, strict=True):
            shared = {id(one): one for one in (part.kernel, *part.parameters())}
            nested[copy.deepcopy(part, shared).with_layout(LeadingCoordinates(size, part.layout))] = factor * share
    loss: Loss = SumLoss(nested) if isinstance(objective, SumLoss) or len(nested) > 1 else next(iter(nested))
    loss.accepts_temperature = objective.accepts_temperature
    if (origin := objective.catalog_origin) is not None:
        arguments = f"dims={list(dims)}" + ("" if weights is None else f", weights={list(weights)}")
        loss.catalog_origin = replace(origin, call=f"matryoshka({origin.call}, {arguments})")
    return loss
