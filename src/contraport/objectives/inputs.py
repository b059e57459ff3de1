"""Checks and conversion of the views, attributes and negatives passed to a loss.

Items may lack a view, and two views may show different items. Both are stored as one Boolean per item and view; rows of
absent views are never read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from contraport.distributed import Processes
from contraport.engine import communication_dtype
from contraport.errors import (
    UsageError,
    check,
    check_all_values,
    check_boolean,
    format_value,
    type_and_shape,
    unknown_name_error,
)

Attributes = Mapping[str, Tensor]
"""Attributes of the items of a batch: ``labels``, ``domains``, ``ids``, ``weights``, ``features``, (n, ...) each."""

ITEM_OPTION_NAMES = ("labels", "domains", "ids", "weights", "column_weights", "features")
"""Names of loss arguments that hold one value per item."""

NON_ITEM_OPTION_NAMES = ("present", "masks", "negatives", "negative_ids", "shared_negatives")
"""Names of loss arguments that do not hold one value per item."""


class CallInputs(NamedTuple):
    """View embeddings and item attributes, as passed to a loss.

    Attributes:
        views: Embeddings of the items, (n, d) or sets of vectors (n, t, d) for each view; zeros where an item lacks the
            view. In the ring exchange, of the items of this process only.
        attributes: Attributes of the items by name, such as labels, (n, ...) each.
        present: Whether each item has each view, (n, views) Booleans; None if all have all.
        num_first_view_items: Number of items that the first view shows, if two views show different items; else None.
        ring_item_counts: Number of items of each process in the ring exchange, where the views are those of this
            process only; else None.
    """

    views: tuple[Tensor, ...]
    attributes: dict[str, Tensor]
    present: Tensor | None = None
    num_first_view_items: int | None = None
    ring_item_counts: tuple[int, ...] | None = None

    def gather(
        self,
        processes: Processes,
        counts: tuple[int, ...] | None,
        *,
        with_views: bool = True,
        min_vectors_per_item: int = 0,
    ) -> CallInputs:
        """Gather the views and attributes of all processes, in rank order.

        Args:
            processes: the processes that share the batch.
            counts: number of items of each process; None for one process.
            with_views: gather the embeddings too, rather than only the attributes.
            min_vectors_per_item: number of vectors to which smaller sets are padded, the same on all processes.
        """
        inputs = self
        if counts is not None:
            views = self.views
            if with_views:
                # All views in one message, and vectors in the precision in which they will be multiplied.
                stacked = torch.stack(zero_pad_vector_sets(self.views, min_vectors_per_item), 1)
                dtype = communication_dtype(stacked) if stacked.ndim == 3 else stacked.dtype
                views = processes.gather(stacked.to(dtype), counts).to(stacked.dtype).unbind(1)
            attributes = {name: processes.gather(value, counts) for name, value in self.attributes.items()}
            present = None if self.present is None else processes.gather(self.present, counts)
            ring_item_counts = None if with_views else counts
            inputs = CallInputs(tuple(views), attributes, present, self.num_first_view_items, ring_item_counts)
        weights = inputs.attributes.get("weights")
        if weights is not None:
            check_values("weights", weights, (weights > 0).any(), "numbers that are not all zero")
        return inputs


class ExtraNegatives(NamedTuple):
    """Additional negatives, for the whole batch or for each item, with item ids.

    Attributes:
        embeddings: Embeddings of the negatives, (k, d), or sets of vectors, (k, t, d); before they are gathered also
            separate ones for each item, (n, k, d) or (n, k, t, d).
        ids: Item id of each negative, (k,) or (n, k); None if unknown.
        only_item_per_negative: The one item of the batch that each negative is compared with, (k,); None: all items.
        same_on_all_processes: Whether every process gives the same negatives.
    """

    embeddings: Tensor
    ids: Tensor | None = None
    only_item_per_negative: Tensor | None = None
    same_on_all_processes: bool = False

    def gather(
        self, inputs: CallInputs, processes: Processes, counts: tuple[int, ...] | None, min_vectors_per_item: int = 0
    ) -> ExtraNegatives:
        """Gather the additional negatives of all processes."""
        if self.same_on_all_processes:
            return ExtraNegatives(processes.with_averaged_gradient(self.embeddings), self.ids)
        embeddings = processes.gather(zero_pad_vector_sets([self.embeddings], min_vectors_per_item)[0], counts)
        ids = None if self.ids is None else processes.gather(self.ids, counts)
        if embeddings.ndim == inputs.views[0].ndim:
            return ExtraNegatives(embeddings, ids)
        only_item_per_negative = torch.arange(len(embeddings), device=embeddings.device)
        if inputs.num_first_view_items is not None and inputs.present is not None:
            only_item_per_negative = inputs.present[:, 0].nonzero()[:, 0]
        only_item_per_negative = only_item_per_negative.repeat_interleave(embeddings.shape[1])
        return ExtraNegatives(embeddings.flatten(0, 1), None if ids is None else ids.flatten(), only_item_per_negative)


def zero_pad_vector_sets(sets: Sequence[Tensor], min_size: int = 0) -> tuple[Tensor, ...]:
    """Zero-pad vector sets, (..., t, d), to a common t of at least `min_size`."""
    if sets[0].ndim == 2:
        return tuple(sets)
    size = max(min_size, *(z.shape[-2] for z in sets))
    return tuple(z if z.shape[-2] == size else F.pad(z, (0, 0, 0, size - z.shape[-2])) for z in sets)


def as_masked_vector_sets(views: Sequence[Tensor], masks: object) -> tuple[Tensor, ...]:
    """Return views as vector sets, (n, t, d), zero for vectors outside the mask.

    Args:
        views: (n, t, d) each, or (n, d), sets of one.
        masks: which vectors count, for each view: (n, t) Booleans, numbers of vectors (n,), or None for all; or None.
    """
    sets = tuple(z[:, None] if isinstance(z, Tensor) and z.ndim == 2 else z for z in views)
    if masks is None:
        return sets
    if not isinstance(masks, Sequence) or len(masks) != len(sets):
        got = type_and_shape(masks)
        raise UsageError(f"masks: must be one entry per view, {len(sets)}, got {got}.", kind="invalid")
    masked = []
    for view, mask in zip(sets, masks, strict=True):
        if mask is None or not isinstance(view, Tensor) or view.ndim != 3:
            masked.append(view)  # of another shape: rejected by the check of the views
            continue
        marks = to_numeric_tensor("masks", mask, view.device)
        n, t, _ = view.shape
        if marks.ndim == 1 and not marks.is_floating_point() and marks.dtype != torch.bool:
            check_values("masks", marks, (marks >= 0) & (marks <= t), f"numbers of vectors from 0 to {t}")
            marks = torch.arange(t, device=view.device) < marks[:, None]
        good = marks.dtype == torch.bool and marks.shape == (n, t)
        expected = f"Booleans, ({n}, {t}), or numbers of vectors, ({n},)"
        check(good, f"masks: must be {expected}, got {type_and_shape(marks)}.")
        masked.append(torch.where(marks[..., None], view, 0))
    return tuple(masked)


def unstack_and_unalias_views(views_or_stack: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Split stacked views, and give each view a tensor object of its own.

    The stacked tensor is (n, views, d) or (n, views, t, d). A tensor given as two views becomes two tensors: rows and
    columns of the same tensor would count as the same embeddings, without self pairs.
    """
    if len(views_or_stack) == 1 and isinstance(views_or_stack[0], Tensor) and views_or_stack[0].ndim in (3, 4):
        return views_or_stack[0].unbind(1)
    distinct = list(views_or_stack)
    for place, view in enumerate(views_or_stack):
        for other in views_or_stack[:place]:
            if view is other and isinstance(view, Tensor):
                distinct[place] = view.view_as(view)
    return tuple(distinct)


def parse_call_inputs(
    views: tuple[Tensor, ...], options: Mapping[str, Any], present: Any, *, sets: bool = False
) -> CallInputs:
    """Check and convert the views and item attributes passed to a loss.

    Args:
        views: embeddings, (n, d) each, or sets of vectors, (n, t, d); two views may have different
            numbers of rows, and are then of different items.
        options: attributes of the items by name, one value per item, beside `NON_ITEM_OPTION_NAMES`; if two views
            are of different items, a pair, of the first and the second view.
        present: which items have which views, (n, views) Booleans, or None.
        sets: whether items are sets of vectors.
    """
    raw_attributes = {}
    for name in sorted(options):  # processes gather attributes in one order, whatever the order of their keywords
        if name in ITEM_OPTION_NAMES:
            if options[name] is not None:
                raw_attributes[name] = options[name]
        elif name not in NON_ITEM_OPTION_NAMES:
            raise unknown_name_error(
                "call", name, (*ITEM_OPTION_NAMES, *NON_ITEM_OPTION_NAMES, "target", "temperature"), "option"
            )
    if _has_different_items(views, raw_attributes):
        check(present is None, "present: cannot be combined with views of different items.", "conflict")
        return _build_inputs_of_different_items(views, raw_attributes, sets)
    check_views(views, sets=sets)
    n, device, attributes = views[0].shape[0], views[0].device, {}
    for name, value in raw_attributes.items():
        attributes[name] = _parse_attribute(name, value, n, device)
    views = _to_common_dtype(views)
    if present is None:
        return CallInputs(views, attributes)
    marks, shape = to_numeric_tensor("present", present, device), (n, len(views))
    good = marks.dtype == torch.bool and marks.shape == shape
    check(good, f"present: must be Booleans, one per item and view, {shape}, got {type_and_shape(marks)}.")
    masks = (marks[:, v].view(-1, *[1] * (z.ndim - 1)) for v, z in enumerate(views))
    views = tuple(torch.where(keep, z, 0) for keep, z in zip(masks, views, strict=True))
    return CallInputs(views, attributes, marks)


def _has_different_items(views: Sequence[Tensor], raw_attributes: Mapping[str, Any]) -> bool:
    """Return whether row i of one view and row i of the other are different items.

    Then their sizes differ, or values per item, such as labels, are given for each view.
    """
    for view in views:
        if not (isinstance(view, Tensor) and view.ndim in (2, 3)):
            return False
    different = len(views) == 2 and views[0].shape[0] != views[1].shape[0]
    return different or (len(views) > 0 and any(map(_is_pair_of_arrays, raw_attributes.values())))


def _is_pair_of_arrays(value: object) -> bool:
    """Return whether values per item, such as labels, are given for each view."""
    return isinstance(value, tuple) and len(value) == 2 and all(np.ndim(part) > 0 for part in value)


def _build_inputs_of_different_items(
    views: tuple[Tensor, ...], raw_attributes: Mapping[str, Any], sets: bool
) -> CallInputs:
    """Build the inputs of a loss from two views of different items, n and m of them."""
    check(len(views) == 2, f"views: must be 2 if they show different items, got {len(views)}.")
    for v, view in enumerate(views):
        check_views([view], first_number=v, sets=sets)
    (n, *_, d), (m, *_, columns) = views[0].shape, views[1].shape
    check(columns == d, f"z1: must have {d} columns as z0, got {columns}.", "shape")
    check(views[0].device == views[1].device, f"z1: is on {views[1].device}, but z0 is on {views[0].device}.", "device")
    z0, z1 = _to_common_dtype(views)
    attributes = {}
    for name, value in raw_attributes.items():
        expected = f"a pair, ({name} of z0, {name} of z1), as z0 and z1 show different items, {n} and {m}"
        check(_is_pair_of_arrays(value), f"{name}: must be {expected}.", "pair")
        sides = enumerate(zip(value, (n, m), strict=True))
        attributes[name] = torch.cat(
            [_parse_attribute(name, side, size, z0.device, f" of z{v}") for v, (side, size) in sides]
        )
    padded = torch.cat([z0, z0.new_zeros(m, *z0.shape[1:])]), torch.cat([z1.new_zeros(n, *z1.shape[1:]), z1])
    first = torch.arange(n + m, device=z0.device) < n
    return CallInputs(padded, attributes, torch.stack([first, ~first], 1), n)


def parse_extra_negatives(inputs: CallInputs, options: Mapping[str, Any]) -> ExtraNegatives | None:
    """Check and convert the additional negatives passed to a loss, None if absent."""
    negatives, ids, shared = options.get("negatives"), options.get("negative_ids"), options.get("shared_negatives")
    if not (shared is None or isinstance(shared, bool)):
        check_boolean("shared_negatives", shared)
    if negatives is None:
        if ids is not None or shared:
            name = "shared_negatives" if ids is None else "negative_ids"
            raise UsageError(f"{name}: requires negatives=.", kind="missing")
        return None
    check(ids is None or "ids" in inputs.attributes, "negative_ids: requires ids= of the items.", "missing")
    z0, rows = inputs.views[0], inputs.num_first_view_items
    rows, d, ndim = len(z0) if rows is None else rows, z0.shape[-1], z0.ndim
    good = isinstance(negatives, Tensor) and negatives.ndim in (ndim, ndim + 1) and negatives.shape[-1] == d
    good = good and (negatives.ndim == ndim or len(negatives) == rows)
    form = f"{d}" if ndim == 2 else f"t, {d}"
    expected = f"a tensor (k, {form}), or ({rows}, k, {form}) for each item"
    check(good, f"negatives: must be {expected}, got {type_and_shape(negatives)}.", "shape")
    _check_floating_on_device("negatives", negatives, z0.device)
    if ids is not None:
        ids = to_numeric_tensor("negative_ids", ids, negatives.device)
        check(is_integer_tensor(ids), f"negative_ids: must be integers, got {ids.dtype}.", "type")
        size, shape = tuple(negatives.shape[: negatives.ndim - ndim + 1]), tuple(ids.shape)
        check(shape == size, f"negative_ids: must have one entry per negative, {size}, got {shape}.", "shape")
    good = negatives.ndim == ndim or not shared
    check(good, f"shared_negatives: requires negatives (k, {form}) of all items, got (n, k, {form}).", "conflict")
    negatives = negatives.to(torch.promote_types(z0.dtype, torch.float32))
    return ExtraNegatives(negatives, ids, same_on_all_processes=bool(shared))


def check_views(
    views: Sequence[Tensor], *, last_is_shared_columns: bool = False, first_number: int = 0, sets: bool = False
) -> None:
    """Raise `UsageError` unless the views are floating-point tensors of equal shape (n, d).

    Args:
        views: the embeddings; or sets of vectors, (n, t, d), of which views may have different numbers t.
        last_is_shared_columns: whether the last view is not one but prototypes or the like, with any number of rows.
        first_number: number of the first of these views in the call, for messages.
        sets: whether items are sets of vectors.
    """
    ndim = 3 if sets else 2
    if not views:
        raise UsageError("views: must be embeddings, got none.", kind="missing")
    for k, view in enumerate(views, first_number):
        if not isinstance(view, Tensor):
            raise UsageError(f"z{k}: must be a tensor, got {type(view).__name__}; use torch.as_tensor.", kind="type")
        if view.layout != torch.strided:
            raise UsageError(f"z{k}: must be a dense tensor, got {view.layout}; use to_dense().", kind="sparse")
        shared = last_is_shared_columns and k == first_number + len(views) - 1
        # Sets may differ in their number of vectors.
        agrees = view.ndim == ndim and view.shape[-1] == views[0].shape[-1]
        if not (agrees and (shared or view.shape[0] == views[0].shape[0])):
            form = f"({'k' if shared else 'n'}, {'t, d' if sets else 'd'})"
            first = f", with the {'d' if shared else 'n and d'} of z{first_number}, {tuple(views[0].shape)}"
            expected = form if k == first_number else f"{form}{first}"
            raise UsageError(f"z{k}: must have shape {expected}, got {tuple(view.shape)}.", kind="shape")
        if not view.is_floating_point() or view.dtype.itemsize < 2 or view.device != views[0].device:
            _check_floating_on_device(f"z{k}", view, views[0].device)
        if view.numel() == 0:
            got = tuple(view.shape)
            raise UsageError(f"z{k}: must have at least one item and one coordinate, got {got}.", kind="empty")


def check_values(argument: str, values: Tensor, good: Tensor, expected: str) -> None:
    """Raise `UsageError` unless every value is valid, as given by the mask `good`.

    While `torch.compile` traces a graph no value can be read: the graph then asserts it at run time.
    """
    if torch.compiler.is_compiling():
        torch._assert_async(good.all(), f"{argument}: must be {expected}.")
    else:
        check_all_values(argument, values, good, expected)


def check_dense_and_not_meta(argument: str, value: Tensor, target_device: torch.device) -> None:
    """Raise `UsageError` for a sparse tensor or a tensor on the meta device."""
    if value.layout != torch.strided:
        raise UsageError(f"{argument}: must be a dense tensor, got {value.layout}; use to_dense().", kind="sparse")
    if value.device.type == "meta" and target_device.type != "meta":
        raise UsageError(f"{argument}: must have values, got a tensor on the device meta.", kind="device")


def to_numeric_tensor(argument: str, value: object, device: torch.device | None = None) -> Tensor:
    """Convert a tensor, an array or a list of numbers to a tensor."""
    if isinstance(value, Tensor):
        check(not value.is_complex(), f"{argument}: must be real numbers, got {value.dtype}.", "type")
        check_dense_and_not_meta(argument, value, device or torch.device("cpu"))
        return value if device is None else value.to(device)
    expected = f"{argument}: must be a tensor, an array or a list of numbers, one entry per item"
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise UsageError(f"{expected}, got lists of unequal lengths.", kind="type") from error
    good = array.ndim > 0 and array.dtype.kind in "biuf"
    check(good, f"{expected}, got {format_value(value)}.", "type")
    return torch.from_numpy(np.array(array)).to(device)


def _parse_attribute(name: str, value: object, size: int, device: torch.device, of_view: str = "") -> Tensor:
    """Return an attribute of `size` items as a tensor, after validation."""
    numbers = to_numeric_tensor(name, value, device)
    if name == "ids":
        check(is_integer_tensor(numbers), f"ids: must be integers, got {numbers.dtype}.", "type")
    features = name == "features"
    dimensions = (2, 3) if features else (1, 2 if name == "labels" else 1)
    fits = numbers.shape[:1] == (size,) and numbers.ndim in dimensions and numbers.numel() > 0
    # The message is only built for an error: while a graph is traced, it would specialize the graph to this size.
    if not (fits and (numbers.is_floating_point() or not features)):
        expected = f"one entry per item{of_view}, ({size},)"
        expected = f"floating-point numbers, ({size}, k) or ({size}, views, k)" if features else expected
        raise UsageError(f"{name}: must be a tensor with {expected}, got {tuple(numbers.shape)}.", kind="shape")
    if name in ("weights", "column_weights"):
        positive = name == "column_weights"
        good = (numbers > 0 if positive else numbers >= 0) & torch.isfinite(numbers)
        check_values(name, numbers, good, f"{'positive' if positive else 'nonnegative'} finite numbers")
    return numbers.detach() if features else numbers


def is_integer_tensor(value: object) -> bool:
    """Return whether a value is a tensor of integers, not Booleans."""
    if not isinstance(value, Tensor) or value.dtype == torch.bool:
        return False
    return not (value.is_floating_point() or value.is_complex())


def _to_common_dtype(views: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Convert all views to their promoted dtype."""
    dtype = views[0].dtype
    for view in views:
        if view.dtype != dtype:  # promote_types is an operation, which most calls do without
            dtype = torch.promote_types(dtype, view.dtype)
    return tuple([view.to(dtype) for view in views])


def _check_floating_on_device(argument: str, value: Tensor, device: torch.device) -> None:
    """Raise `UsageError` unless embeddings are floats (16 bits or more) on `device`."""
    if not value.is_floating_point() or value.dtype.itemsize < 2:
        message = f"{argument}: must be floating-point embeddings of at least 16 bits, got {value.dtype}."
        raise UsageError(message, kind="type")
    if value.device != device:
        raise UsageError(f"{argument}: is on {value.device}, but z0 is on {device}.", kind="device")
