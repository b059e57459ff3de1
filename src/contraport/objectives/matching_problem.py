"""Matching problem of a batch, gathered from the inputs of all processes.

A call has views and attributes of items; a layout makes blocks of the views; a target gives the target plan of a block.
Constraints and divergences play no part here; the kernel only does if the batch's own plan weights its items.

Collectives block until every process takes part: if one process gave weights and another none, they would wait forever
or mistake one tensor for another. So every process first sends the form of each option and whether it rejected its
own inputs, as a few numbers; then all continue, or all raise. With one process, nothing is sent.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from contraport.distributed import Processes, current_processes
from contraport.engine import Kernel, communication_dtype, current_exchange
from contraport.errors import UsageError, check, check_positive, type_and_shape
from contraport.objectives.inputs import (
    NON_ITEM_OPTION_NAMES,
    CallInputs,
    ExtraNegatives,
    as_masked_vector_sets,
    check_views,
    parse_call_inputs,
    parse_extra_negatives,
    unstack_and_unalias_views,
)
from contraport.objectives.layouts import Block, Layout, LayoutTraits
from contraport.objectives.targets import Matrix, PairList, Target, TargetPlan
from contraport.objectives.targets.feature_targets import select_row_and_column_features
from contraport.objectives.transport_assignments_and_weights import WeightsFromPlan

OPTION_NAMES_COMPARED_BEFORE_GATHER = (
    "views", "target", "weights", "labels", "domains", "ids", "column_weights", "features", "negatives",
    "negative_ids", "shared_negatives", "present", "temperature",
)  # fmt: skip
"""Options whose types and shapes processes compare before they gather, in this order."""


class BlockWithTargetPlan(NamedTuple):
    """Block of compared pairs, with its target plan and row weights.

    Attributes:
        block: Compared pairs, (N, M).
        target: Target plan.
        row_weights: Weight of each row in the loss, (N,), 0 for rows without target mass; None is 1 throughout.
    """

    block: Block
    target: TargetPlan
    row_weights: Tensor | None


@dataclass(frozen=True, eq=False)
class MatchingProblem:
    """Inputs of a loss for one batch, with its layout and target.

    Attributes:
        layout: Layout, which selects the compared pairs.
        traits: Traits of the layout.
        target: Target of the call: the rule that gives the target plan of a block.
        inputs: Views and attributes of the items.
        negatives: Additional negatives, or None.
        non_item_columns: Embeddings of columns that are not items, such as prototypes: none or one tensor.
        similarities: Similarity matrix in place of embeddings, or None.
        temperature: Temperature of the kernel in this call; None is the kernel's own.
        weights_from_plan: Weights of the items by the plan of the batch, or None.
    """

    layout: Layout
    traits: LayoutTraits
    target: Target
    inputs: CallInputs
    negatives: ExtraNegatives | None
    non_item_columns: tuple[Tensor, ...]
    similarities: Tensor | None
    temperature: float | Tensor | None
    weights_from_plan: WeightsFromPlan | None

    def gather_items_of_all_processes(self, kernel: Kernel) -> MatchingProblem:
        """Return the matching problem over the items of all processes, which are gathered.

        Raises:
            UsageError: processes give different options, or one of them rejected its inputs.
        """
        processes, columns, weights_from_plan = current_processes(), self.non_item_columns, self.weights_from_plan
        item_counts = negative_counts = None
        vectors_per_item, ring = 0, False
        if processes.size > 1:
            item_counts, negative_counts, vectors_per_item = _gather_sizes_and_check_options(processes, self)
            ring = current_exchange() == "ring"
            if ring:
                _check_ring_support(self)
        if columns:
            columns, target = (processes.with_averaged_gradient(columns[0]),), self.target.with_gathered_rows()
        else:
            target = self.target.gather_across_processes(processes, self.inputs)
        # Only now do the processes send tensors: shapes that differ would block a collective or mix up tensors.
        inputs = self.inputs.gather(processes, item_counts, with_views=not ring, min_vectors_per_item=vectors_per_item)
        if weights_from_plan is not None:
            good = self.traits.compares_items and not columns and self.similarities is None
            good = good and inputs.present is None
            check(good, "weights: 'plan' requires embeddings of all views of the items.", "conflict")
            weights, own = weights_from_plan(inputs.views, kernel), inputs.attributes.get("weights")
            weights = weights if own is None else weights * own.to(weights.dtype)
            inputs = inputs._replace(attributes=inputs.attributes | {"weights": weights})
        negatives, temperature = self.negatives, self.temperature
        if negatives is not None:
            negatives = negatives.gather(inputs, processes, negative_counts, vectors_per_item)
        if isinstance(temperature, Tensor):
            temperature = processes.with_averaged_gradient(temperature)
        return replace(
            self, target=target, inputs=inputs, negatives=negatives, non_item_columns=columns, temperature=temperature
        )

    @property
    def max_vector_set_size_or_zero(self) -> int:
        """Largest number of vectors per item, or 0 if items are single vectors."""
        if self.inputs.views[0].ndim == 2:
            return 0
        negatives = () if self.negatives is None else (self.negatives.embeddings,)
        return max(int(z.shape[-2]) for z in (*self.inputs.views, *negatives))

    def list_blocks_without_absent_items(self) -> list[Block]:
        """Return the blocks of compared pairs, without rows and columns of missing views."""
        inputs = self.inputs
        blocks = self.layout(*inputs.views, *self.non_item_columns)
        own_present = inputs.present
        if own_present is not None and inputs.ring_item_counts is not None:
            own_present = own_present.split(list(inputs.ring_item_counts))[current_processes().rank]
        if own_present is not None:
            blocks = self._remove_absent_rows_and_columns(blocks, own_present)
        if inputs.ring_item_counts is not None:
            # The blocks of this process have the embeddings; the pattern is that of the items of all processes.
            size = sum(inputs.ring_item_counts)
            whole = self.layout.arrange_like_embeddings(*(view.new_zeros(size, 1) for view in inputs.views))
            if inputs.present is not None:
                whole = self._remove_absent_rows_and_columns(whole, inputs.present)
            blocks = [
                replace(block, x=own.x, y=own.y, ring_item_counts=inputs.ring_item_counts)
                for block, own in zip(whole, blocks, strict=True)
            ]
        if inputs.present is not None:
            blocks = [block for block in blocks if min(block.shape) > 0]
        if self.similarities is not None:
            blocks = [
                replace(block, similarities=block.without_absent_views(self.similarities, "similarities"))
                for block in blocks
            ]
        return blocks

    def _remove_absent_rows_and_columns(self, blocks: list[Block], present: Tensor) -> list[Block]:
        """Remove the rows and columns of missing views from blocks of pairs."""
        # The layout is applied to the marks themselves, which places each mark like its embedding.
        marks_by_block = self.layout.arrange_like_embeddings(*present.to(torch.float32).T[:, :, None])
        remaining = []
        for block, marks in zip(blocks, marks_by_block, strict=True):
            rows = marks.x[:, 0].nonzero()[:, 0]
            columns = rows if block.x is block.y else marks.y[:, 0].nonzero()[:, 0]
            remaining.append(block.select_rows_and_columns(rows, columns))
        return remaining

    def build_directions(self, block: Block) -> list[BlockWithTargetPlan]:
        """Build the block and target plan of each direction, rows to columns and back."""
        attributes, target, negatives = self.inputs.attributes, self.target, self.negatives
        weights, ids = attributes.get("weights"), attributes.get("ids")
        if ids is not None:
            block = replace(block, pattern=block.pattern.mask_duplicates(ids))
        sides = [(block, target)]
        if block.pattern.bidirectional:
            sides.append((block.T, target.for_transposed_block()))
        unweighted = weights is None and target.fills_all_rows
        unweighted = unweighted and not (target.positives_from_views and block.pattern.selected_indices is not None)
        directions = []
        for k, (side, rule) in enumerate(sides):
            if self.traits.requires_features_argument:
                side = self.layout.with_mask_by_features(
                    side, select_row_and_column_features(attributes, side, transposed=k > 0)
                )
            target_plan = rule(side, attributes)
            row_weights = None
            if not unweighted:
                # Proportional to the weights of the items, such that the weighted target mass is 1.
                mass = target_plan.row_mass()
                nonempty = mass > 0
                row_weights = nonempty.to(mass.dtype)
                if weights is not None:
                    row_weights = weights.to(mass.dtype)[side.pattern.row_items] * nonempty
                total = mass.sum() if weights is None else row_weights @ mass
                row_weights = row_weights / total.masked_fill(total == 0, 1)
            if negatives is not None:
                # A block may compare the first coordinates only.
                embeddings = self.layout.pad_negatives_like_views(negatives.embeddings)[..., : side.x.shape[-1]]
                both_ids = None if negatives.ids is None else (attributes["ids"], negatives.ids)
                side = side.append_negative_columns(embeddings, both_ids, negatives.only_item_per_negative)
                target_plan = target_plan.append_columns(len(embeddings))
            directions.append(BlockWithTargetPlan(side, target_plan, row_weights))
        return directions


def build_local_problem(
    layout: Layout, target: Target, views: tuple[Tensor, ...], options: Mapping[str, Any], *, sets: bool = False
) -> MatchingProblem:
    """Check the arguments of a loss, and build the matching problem of this process.

    Args:
        layout: which pairs are compared.
        target: rule of the target plan, unless the call has its own.
        views: of the call.
        options: keyword arguments of the call: attributes of the items, negatives, ``target``, ``similarities``,
            ``present``, ``masks``, ``temperature``.
        sets: whether the kernel compares sets of vectors.
    """
    options, traits, weights_from_plan = dict(options), layout.traits, None
    own_target, similarities = options.pop("target", None), options.pop("similarities", None)
    temperature, weights = options.pop("temperature", None), options.get("weights")
    columns: tuple[Tensor, ...] = ()
    masks = options.pop("masks", None)
    if masks is not None and not sets:
        raise UsageError("masks: require a kernel of sets of vectors, such as LateInteraction.", kind="conflict")
    if sets and not traits.compares_items:
        raise UsageError(f"kernel: sets of vectors cannot be compared by {layout!r}.", kind="conflict")
    if isinstance(temperature, Tensor):
        shape = tuple(temperature.shape)
        good = temperature.numel() == 1
        check(good, f"temperature: must be a number or a tensor of one element, got shape {shape}.", "shape")
        temperature = temperature.reshape(())
    elif temperature is not None:
        check_positive("temperature", temperature)
    if isinstance(weights, str | WeightsFromPlan):
        good = not isinstance(weights, str) or weights == "plan"
        check(good, f"weights: must be one number per item, or 'plan', got {weights!r}.", "unknown")
        weights_from_plan = WeightsFromPlan() if isinstance(weights, str) else weights
        options["weights"] = weights_from_plan.batch_item_weights
    target = target if own_target is None else convert_matrix_or_pairs_to_target(own_target)
    if traits.shared_columns:
        views = as_masked_vector_sets(views, masks) if sets else views
        check_views(views, last_is_shared_columns=True, sets=sets)
        for name, value in {"present": options.pop("present", None), "similarities": similarities}.items():
            check(value is None, f"{name}: cannot be combined with shared columns, which are not items.", "conflict")
        columns, views = views[-1:], views[:-1]
    else:
        if similarities is not None:
            views = _build_zero_views(layout, views, options, similarities)
        views = unstack_and_unalias_views(views)
        views = as_masked_vector_sets(views, masks) if sets else views
    inputs = parse_call_inputs(views, options, options.get("present"), sets=sets)
    if not traits.shared_columns:
        matched = len(inputs.views) > 1 and inputs.num_first_view_items is None
        if not matched and target.positives_from_views and traits.views_are_positives:
            raise _single_or_unpaired_views_error(target, inputs)
        target.check_inputs(inputs)
    if not traits.compares_items:
        _reject_per_item_inputs(layout, target, inputs, options)
    negatives = parse_extra_negatives(inputs, options)
    if "column_weights" in inputs.attributes:
        good = negatives is None and not columns
        check(good, "column_weights: cannot be combined with columns that are not items.", "conflict")
    return MatchingProblem(
        layout, traits, target, inputs, negatives, columns, similarities, temperature, weights_from_plan
    )


def _check_ring_support(problem: MatchingProblem) -> None:
    """Raise `UsageError` for options that a ring exchange does not support."""
    refused = {
        "negatives: cannot be": problem.negatives is not None,
        "weights: 'plan' cannot be": problem.weights_from_plan is not None,
        f"layout: {problem.layout!r} cannot be": bool(problem.non_item_columns) or not problem.traits.compares_items,
        "kernel: kernels of sets of vectors cannot be": problem.max_vector_set_size_or_zero > 0,
    }
    for subject, is_used in refused.items():
        check(not is_used, f"{subject} combined with exchange 'ring'; use 'gather'.", "exchange")


def convert_matrix_or_pairs_to_target(target: object) -> Target:
    """Convert a matrix or a list of pairs to a `Target`."""
    if isinstance(target, Tensor | np.ndarray):
        return Matrix(torch.as_tensor(target))
    if isinstance(target, list):
        return PairList(target)
    if not isinstance(target, Target):
        got = type_and_shape(target) if hasattr(target, "shape") else repr(target)
        expected = "a Target, such as contraport.Domains(alpha=0.1), a matrix or a list of pairs"
        raise UsageError(f"target: must be {expected}, got {got}.", kind="type")
    return target


def describe_type_and_row_shape(value: object) -> str:
    """Describe a value's type and, for a tensor, the shape of its rows.

    >>> [describe_type_and_row_shape(value) for value in (torch.zeros(5, 3), None, 0.5)]
    ['torch.float32 (n, 3)', 'none', 'float']
    """
    if isinstance(value, Tensor):
        trailing = "".join(f", {size}" for size in value.shape[1:])
        return f"{value.dtype} (n{trailing})" if value.ndim else f"{value.dtype} ()"
    return "none" if value is None else type(value).__name__


def _type_and_row_shape_by_input(problem: MatchingProblem) -> dict[str, str]:
    """Describe each input's type and per-item shape, which all processes must share."""
    inputs, negatives, ndim = problem.inputs, problem.negatives, problem.inputs.views[0].ndim

    def first_vectors(items: Tensor) -> Tensor:  # of each set, as processes may have sets of different sizes
        return items if ndim == 2 else items[..., :1, :]

    view = first_vectors(inputs.views[0])
    different = "" if inputs.num_first_view_items is None else " of different items"
    shared = f" beside {tuple(problem.non_item_columns[0].shape)}" if problem.non_item_columns else ""
    forms = {name: describe_type_and_row_shape(value) for name, value in inputs.attributes.items()}
    ring = ", around a ring" if current_exchange() == "ring" else ""
    # Machines differ in the precisions that they multiply, and a gather of two types would block or mix up bytes.
    dtype = communication_dtype(view)
    sent = "" if dtype == view.dtype else f", sent in {dtype}"
    forms["views"] = f"{len(inputs.views)} views {describe_type_and_row_shape(view)}{different}{shared}{ring}{sent}"
    forms |= {
        "target": problem.target.description_equal_on_all_processes,
        "present": describe_type_and_row_shape(inputs.present),
    }
    forms["temperature"] = describe_type_and_row_shape(problem.temperature)
    if (weights := problem.weights_from_plan) is not None:
        plan = f"plan of strength {weights.strength:g}, {weights.iterations} iterations"
        forms["weights"] = plan if "weights" not in forms else f"{plan}, and {forms['weights']}"
    if negatives is not None:
        forms |= {"negatives": describe_type_and_row_shape(first_vectors(negatives.embeddings))}
        forms |= {"negative_ids": describe_type_and_row_shape(negatives.ids)}
        forms["shared_negatives"] = repr(negatives.same_on_all_processes)
    return forms


class _GatheredSizes(NamedTuple):
    """Numbers of items and negatives of each process, and the largest vector set's size."""

    item_counts: tuple[int, ...]
    negative_counts: tuple[int, ...]
    max_vector_set_size_or_zero: int


def _gather_sizes_and_check_options(processes: Processes, problem: MatchingProblem) -> _GatheredSizes:
    """Check that processes agree in their options, and gather their numbers of items.

    Raises:
        UsageError: processes give different options, or one of them rejected its inputs.
    """
    forms, views = _type_and_row_shape_by_input(problem), problem.inputs.views
    negatives = 0 if problem.negatives is None else len(problem.negatives.embeddings)
    complete = {name: forms.get(name, "none") for name in OPTION_NAMES_COMPARED_BEFORE_GATHER}
    # Checksums, not texts: one small gather of integers in the usual case; texts are only sent for an error.
    codes = [zlib.crc32(text.encode()) for text in complete.values()]
    gathered = processes.gather_integers(
        [1, len(views[0]), negatives, problem.max_vector_set_size_or_zero, *codes], views[0].device
    )
    accepted, item_counts, negative_counts, max_set_sizes, *codes_by_option = zip(*gathered, strict=True)
    if not all(accepted):
        rank = accepted.index(0)
        message = processes.gather_strings("")[rank]
        raise UsageError(f"call: rejected by process {rank}: {message}", kind="refused")
    for name, theirs in zip(OPTION_NAMES_COMPARED_BEFORE_GATHER, codes_by_option, strict=True):
        if len(set(theirs)) > 1:
            texts = processes.gather_strings(complete[name])
            other = next(rank for rank, text in enumerate(texts) if text != texts[0])
            raise UsageError(
                f"{name}: must have the same form on all processes of a call, got {texts[0]} on process 0 "
                f"and {texts[other]} on process {other}.",
                kind="processes_differ",
            )
    return _GatheredSizes(item_counts, negative_counts, max(max_set_sizes))


def send_error_to_processes(views: Sequence[object], error: Exception) -> None:
    """Send this process's error to the others, so that they raise it."""
    processes = current_processes()
    if processes.size > 1:
        device = next((view.device for view in views if isinstance(view, Tensor)), processes.collective_device)
        processes.gather_integers([0] * (4 + len(OPTION_NAMES_COMPARED_BEFORE_GATHER)), device)
        processes.gather_strings(str(error))


def _build_zero_views(
    layout: Layout, views: tuple[Tensor, ...], options: Mapping[str, Any], similarities: Any
) -> tuple[Tensor, ...]:
    """Build views of zeros for a loss that is given similarities, not embeddings."""
    check(not views, "similarities: cannot be combined with embeddings.", "conflict")
    matrix = isinstance(similarities, Tensor) and similarities.ndim == 2 and similarities.is_floating_point()
    got = type_and_shape(similarities)
    check(matrix, f"similarities: must be a floating-point tensor, rows by columns, got {got}.", "shape")
    remedy = "give embeddings or use use_local_batch()"
    alone = current_processes().size == 1
    check(alone, f"similarities: cannot be shared by several processes; {remedy}.", "processes")
    good = options.get("negatives") is None
    check(good, "negatives: cannot be combined with similarities; append their columns to the matrix.", "conflict")
    sizes = [
        len(value)
        for name, value in options.items()
        if name not in NON_ITEM_OPTION_NAMES and value is not None and not isinstance(value, tuple)
    ]
    n, m = similarities.shape
    view_sizes = layout.infer_view_sizes((n, m), sizes[0] if sizes else None)
    return tuple(similarities.detach().new_zeros(size, 1) for size in view_sizes)


def _single_or_unpaired_views_error(target: Target, inputs: CallInputs) -> UsageError:
    """Build the error for a target that needs two views per item."""
    remedy, n = "or give target=, such as Labels() with labels=", inputs.num_first_view_items
    if n is None:
        message = f"views: must be two or more, got one, for {target!r}. Pass the other view too, {remedy}."
        return UsageError(message, kind="missing")
    got = f"{n} and {len(inputs.views[0]) - n}"
    message = f"views: must have equal numbers of rows, got {got}. {target!r} pairs row i with row i; {remedy}."
    return UsageError(message, kind="shape")


def _reject_per_item_inputs(layout: Layout, target: Target, inputs: CallInputs, options: Mapping[str, Any]) -> None:
    """Raise `UsageError` for per-item inputs if the layout compares embedding coordinates."""
    of = f"{layout!r}, which compares coordinates"
    good = target.positives_from_views
    check(good, f"target: must match the views, as Pairs() does, for {of}, got {target!r}.", "conflict")
    for name in ("ids", "weights", "column_weights", "present", "negatives"):
        used = name in inputs.attributes or options.get(name) is not None
        check(not used, f"{name}: not accepted by {of}.", "conflict")
    check(inputs.num_first_view_items is None, f"views: must show the same items for {of}.", "different_items")
