"""Matching problem of a call: blocks of compared pairs and target plans, from the inputs of all processes.

A call has views and attributes of items; a layout makes blocks of the views; a target gives the target plan of a block.
Constraints and divergences play no part here; the kernel only does if the batch's own plan weights its items.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from contraport.distributed import Processes, current_processes
from contraport.engine import Kernel
from contraport.errors import UsageError, check, check_positive, describe_value
from contraport.objectives.inputs import (
    NON_ITEM_OPTIONS,
    CallInputs,
    Negatives,
    UngatheredNegatives,
    check_views,
    read_inputs,
    read_negatives,
    unpack_views,
)
from contraport.objectives.layouts import Block, Layout, LayoutTraits
from contraport.objectives.plan_weights import PlanWeights, resolve_plan_weights
from contraport.objectives.process_agreement import agree_on_row_counts, describe_form, report_failure
from contraport.objectives.targets import Matrix, PairList, Target, TargetPlan
from contraport.objectives.targets.feature_targets import select_call_features


class Direction(NamedTuple):
    """One direction of a block, rows to columns or columns to rows, with its target plan.

    Attributes:
        block: Compared pairs, (N, M).
        target: Target plan of the direction.
        row_weights: Weight of each row in the loss, (N,), 0 for rows without target mass; None is 1 throughout.
    """

    block: Block
    target: TargetPlan
    row_weights: Tensor | None

    def with_weighted_target(self) -> Direction:
        """Move the row weights into the target plan; for solved plans, which have these weights as marginals."""
        if self.row_weights is None:
            return self
        return Direction(self.block, self.target.scale_rows(self.row_weights), None)


@dataclass(frozen=True, eq=False)
class MatchingProblem:
    """Matching problem of one call: its inputs under a layout and a target.

    Attributes:
        layout: Layout, which selects the compared pairs.
        target: Target of the call: the rule that gives the target plan of a block.
        inputs: Views and attributes of the items of all processes.
        negatives: Additional negatives of all processes, or None.
        column_embeddings: Embeddings of columns that are not items, such as prototypes.
        similarities: Similarity matrix in place of embeddings, or None.
        temperature: Temperature of the kernel in this call; None is the kernel's own.
        pairs_require_features: Whether the choice of compared pairs depends on features of the items.
        directions_share_pairs: Whether both directions of a block compare the same pairs.
        is_unweighted_view_matching: Whether positives are the views of an item, and all items weigh the same.
    """

    layout: Layout
    target: Target
    inputs: CallInputs
    negatives: Negatives | None
    column_embeddings: tuple[Tensor, ...] = ()
    similarities: Tensor | None = None
    temperature: float | Tensor | None = None
    pairs_require_features: bool = False
    directions_share_pairs: bool = True
    is_unweighted_view_matching: bool = True

    def blocks(self) -> list[Block]:
        """Return the blocks of the layout, without the rows and columns of absent views."""
        inputs = self.inputs
        blocks = self.layout(*inputs.views, *self.column_embeddings)
        if inputs.present is not None:
            # The layout is applied to the marks themselves: it puts each mark where it puts the embedding.
            marks = inputs.present.to(inputs.views[0].dtype).T[:, :, None]
            marked = self.layout(*(mark.expand_as(z) for mark, z in zip(marks, inputs.views, strict=True)))
            blocks = [_select_present(block, marks) for block, marks in zip(blocks, marked, strict=True)]
            blocks = [block for block in blocks if min(block.shape) > 0]
        if self.similarities is not None:
            blocks = [replace(block, similarities=_select_similarities(self.similarities, block)) for block in blocks]
        return blocks

    def directions(self, block: Block) -> list[Direction]:
        """Return the directions of a block: rows to columns, and columns to rows if the layout compares both."""
        attributes, target = self.inputs.attributes, self.target
        weights = attributes.get("weights")
        if "ids" in attributes:
            block = replace(block, pattern=block.pattern.without_duplicates(attributes["ids"]))
        sides = [(block, target)]
        if block.pattern.reciprocal:
            sides.append((block.T, target.transpose()))
        unweighted = weights is None and target.fills_all_rows
        unweighted = unweighted and not (target.positives_from_views and block.pattern.selected_indices is not None)
        directions = []
        for k, (side, rule) in enumerate(sides):
            if self.pairs_require_features:
                side = self.layout.mask_by_features(side, select_call_features(attributes, side, backward=k > 0))
            target_plan = rule(side, attributes)
            row_weights = None if unweighted else _row_weights(side, target_plan, weights)
            directions.append(Direction(side, target_plan, row_weights))
        if self.negatives is not None:
            directions = [self._append_negatives(direction, self.negatives) for direction in directions]
        return directions

    def _append_negatives(self, direction: Direction, negatives: Negatives) -> Direction:
        embeddings = self.layout.transform_negatives(negatives.embeddings)
        ids = None if negatives.ids is None else (self.inputs.attributes["ids"], negatives.ids)
        block = direction.block.append_columns(embeddings, ids, negatives.owners)
        return Direction(block, direction.target.append_columns(len(embeddings)), direction.row_weights)


def build_problem(
    layout: Layout, kernel: Kernel, target: Target, views: tuple[Tensor, ...], options: Mapping[str, Any]
) -> MatchingProblem:
    """Build the matching problem of a call: check the inputs and gather those of all processes.

    Args:
        layout: which pairs are compared.
        kernel: of the plan that weights the items, for ``weights="plan"``.
        target: rule of the target plan, unless the call has its own.
        views: of the call.
        options: keyword arguments of the call: attributes of the items, negatives, ``target``, ``similarities``,
            ``present``, ``temperature``.

    Raises:
        UsageError: shapes or types do not fit, options exclude each other, or processes give different options.
    """
    processes, traits = current_processes(), layout.traits
    columns: tuple[Tensor, ...] = ()
    try:
        # An error on this process must not leave the others waiting in a collective: it is reported, then raised.
        local = _read_local_call(layout, traits, target, views, options, processes)
    except Exception as error:
        report_failure(views, error)
        raise
    inputs, negatives, target, plan_weights, temperature = local
    sizes = None
    if processes.size > 1:
        shared = f" beside {tuple(views[-1].shape)}" if traits.shared_columns else ""
        rows = 0 if negatives is None else len(negatives.embeddings)
        sizes = agree_on_row_counts(
            processes, local.describe_options(shared), len(inputs.views[0]), rows, inputs.views[0].device
        )
    if traits.shared_columns:
        columns, target = (processes.as_replicated(views[-1]),), target.gather_rows()
    else:
        target = target.gather_items(processes, inputs)
    # Only now do the processes send tensors: shapes that differ would block a collective or mix up tensors.
    inputs = inputs.gather(processes, sizes)
    similarities = options.get("similarities")
    if plan_weights is not None:
        good = traits.compares_items and not columns and similarities is None and inputs.present is None
        check(good, "weights: 'plan' requires embeddings of all views of the items.", "conflict")
        weights = plan_weights(inputs.views, kernel)
        own = inputs.attributes.get("weights")
        weights = weights if own is None else weights * own.to(weights.dtype)
        inputs = inputs._replace(attributes=inputs.attributes | {"weights": weights})
    return MatchingProblem(
        layout,
        target,
        inputs,
        None if negatives is None else negatives.gather(inputs, processes, sizes),
        columns,
        similarities,
        processes.as_replicated(temperature) if isinstance(temperature, Tensor) else temperature,
        traits.requires_features,
        negatives is None and not traits.requires_features and "column_weights" not in inputs.attributes,
        target.positives_from_views and not inputs.attributes.keys() & {"weights", "column_weights"},
    )


class _LocalCall(NamedTuple):
    """Checked inputs of a call on this process, before they are gathered."""

    inputs: CallInputs
    negatives: UngatheredNegatives | None
    target: Target
    plan_weights: PlanWeights | None
    temperature: float | Tensor | None

    def describe_options(self, shared: str) -> dict[str, str]:
        """Describe the type and shape of each option, on which the processes must agree.

        Args:
            shared: form of the shared columns, behind that of the views.
        """
        inputs, negatives = self.inputs, self.negatives
        different = "" if inputs.num_first_items is None else " of different items"
        forms = {name: describe_form(value) for name, value in inputs.attributes.items()}
        forms["views"] = f"{len(inputs.views)} views {describe_form(inputs.views[0])}{different}{shared}"
        forms |= {"target": self.target.kind, "present": describe_form(inputs.present)}
        forms["temperature"] = describe_form(self.temperature)
        if self.plan_weights is not None:
            plan = f"plan of strength {self.plan_weights.strength:g}, {self.plan_weights.iterations} iterations"
            forms["weights"] = plan if "weights" not in forms else f"{plan}, and {forms['weights']}"
        if negatives is not None:
            forms |= {"negatives": describe_form(negatives.embeddings), "negative_ids": describe_form(negatives.ids)}
            forms["shared_negatives"] = repr(negatives.same_on_all_processes)
        return forms


def _read_local_call(
    layout: Layout,
    traits: LayoutTraits,
    target: Target,
    views: tuple[Tensor, ...],
    options: Mapping[str, Any],
    processes: Processes,
) -> _LocalCall:
    """Check the inputs of a call on this process; see `build_problem`."""
    options, plan_weights = dict(options), None
    own_target, similarities = options.pop("target", None), options.pop("similarities", None)
    temperature = options.pop("temperature", None)
    temperature = None if temperature is None else _check_temperature(temperature)
    if options.get("weights") is not None:
        plan_weights = resolve_plan_weights(options["weights"])
        options["weights"] = options["weights"] if plan_weights is None else plan_weights.item_weights
    target = target if own_target is None else convert_target(own_target)
    if traits.shared_columns:
        check_views(views, shared_columns=True)
        for name, value in {"present": options.pop("present", None), "similarities": similarities}.items():
            check(value is None, f"{name}: cannot be combined with shared columns, which are not items.", "conflict")
        inputs = read_inputs(views[:-1], options, None)
    else:
        if similarities is not None:
            views = _build_placeholder_views(layout, views, options, similarities, processes)
        inputs = read_inputs(unpack_views(views), options, options.get("present"))
        matched = len(inputs.views) > 1 and inputs.num_first_items is None
        if not matched and target.positives_from_views and traits.views_are_positives:
            raise _unmatched_views_error(target, inputs)
        target.check_inputs(inputs)
    if not traits.compares_items:
        _reject_item_options(layout, target, inputs, options)
    negatives = read_negatives(inputs, options)
    if "column_weights" in inputs.attributes:
        good = negatives is None and not traits.shared_columns
        check(good, "column_weights: cannot be combined with columns that are not items.", "conflict")
    return _LocalCall(inputs, negatives, target, plan_weights, temperature)


def _check_temperature(value: Any) -> float | Tensor:
    if not isinstance(value, Tensor):
        check_positive("temperature", value)
        number: float = value
        return number
    shape = tuple(value.shape)
    check(value.numel() == 1, f"temperature: must be a number or a tensor of one element, got shape {shape}.", "shape")
    return value.reshape(())


def convert_target(target: object) -> Target:
    """Convert a target given as a matrix or a list of pairs to a `Target`; a `Target` is returned unchanged.

    Raises:
        UsageError: it is none of these.
    """
    if isinstance(target, Tensor | np.ndarray):
        return Matrix(torch.as_tensor(target))
    if isinstance(target, list):
        return PairList(target)
    if not isinstance(target, Target):
        got = describe_value(target) if hasattr(target, "shape") else repr(target)
        raise UsageError(
            f"target: must be a Target, such as contraport.Domains(alpha=0.1), a matrix or a list of pairs, got {got}.",
            kind="type",
        )
    return target


def _build_placeholder_views(
    layout: Layout, views: tuple[Tensor, ...], options: Mapping[str, Any], similarities: Any, processes: Processes
) -> tuple[Tensor, ...]:
    """Build zero embeddings in place of views, with the row counts that a similarity matrix implies."""
    check(not views, "similarities: cannot be combined with embeddings.", "conflict")
    matrix = isinstance(similarities, Tensor) and similarities.ndim == 2 and similarities.is_floating_point()
    got = describe_value(similarities)
    check(matrix, f"similarities: must be a floating-point tensor, rows by columns, got {got}.", "shape")
    alone = processes.size == 1
    check(
        alone, "similarities: cannot be shared by several processes; give embeddings or use local_batch().", "processes"
    )
    good = options.get("negatives") is None
    check(good, "negatives: cannot be combined with similarities; append their columns to the matrix.", "conflict")
    sizes = [
        len(value)
        for name, value in options.items()
        if name not in NON_ITEM_OPTIONS and value is not None and not isinstance(value, tuple)
    ]
    n, m = similarities.shape
    view_sizes = layout.view_sizes((n, m), sizes[0] if sizes else None)
    return tuple(similarities.detach().new_zeros(size, 1) for size in view_sizes)


def _unmatched_views_error(target: Target, inputs: CallInputs) -> UsageError:
    """Build the error for views that a target cannot match: a single one, or views of different items."""
    remedy = "or give target=, such as Labels() with labels="
    if inputs.num_first_items is None:
        message = f"views: must be two or more, got one. {target!r} matches the views of an item; {remedy}."
        return UsageError(message, kind="missing")
    n, m = inputs.num_first_items, len(inputs.views[0]) - inputs.num_first_items
    message = f"views: must have equal numbers of rows, got {n} and {m}. {target!r} pairs row i with row i; {remedy}."
    return UsageError(message, kind="shape")


def _reject_item_options(layout: Layout, target: Target, inputs: CallInputs, options: Mapping[str, Any]) -> None:
    """Raise `UsageError` for options or targets that refer to items, if the layout compares coordinates."""
    message = (
        f"target: must match the views, as Pairs() does, for {layout!r}, which compares coordinates, got {target!r}."
    )
    check(target.positives_from_views, message, "conflict")
    for name in ("ids", "weights", "column_weights", "present", "negatives"):
        used = name in inputs.attributes or options.get(name) is not None
        check(not used, f"{name}: not accepted by {layout!r}, which compares coordinates.", "conflict")
    good = inputs.num_first_items is None
    check(good, f"views: must show the same items for {layout!r}, which compares coordinates.", "different_items")


def _row_weights(block: Block, target: TargetPlan, weights: Tensor | None) -> Tensor:
    """Return the weight of each row, (N,), such that the weighted sum of per-row values is their weighted mean.

    Rows without target mass get 0; the others share the mass.
    """
    mass = target.row_mass()
    nonempty = mass > 0
    row_weights = nonempty.to(mass.dtype)
    if weights is not None:
        row_weights = weights.to(mass.dtype)[block.pattern.row_items] * nonempty
    total = mass.sum() if weights is None else row_weights @ mass
    return row_weights / total.masked_fill(total == 0, 1)


def _select_present(block: Block, marks: Block) -> Block:
    """Return the block without the rows and columns of absent views."""
    rows = marks.x[:, 0].nonzero()[:, 0]
    return block.select_rows_and_columns(rows, rows if block.x is block.y else marks.y[:, 0].nonzero()[:, 0])


def _select_similarities(similarities: Tensor, block: Block) -> Tensor:
    """Return the similarity matrix without the rows and columns of absent views."""
    if tuple(similarities.shape) == block.shape or block.pattern.selected_indices is None:
        return similarities
    rows, columns = block.pattern.selected_indices
    return similarities[rows][:, columns]
