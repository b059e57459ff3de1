"""Inputs of a call, read into one form and checked: views of items, and facts about the items.

Items may lack a view, and two views may show different items: either is a mark per item and view, and rows that are
marked as absent are never read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from contraport.distributed import Processes
from contraport.errors import UsageError, check, check_all_values, describe_value
from contraport.objectives.process_agreement import Sizes

Attributes = Mapping[str, Tensor]
"""Attributes of the items of a batch: ``labels``, ``domains``, ``ids``, ``weights``, ``features``, (n, ...) each."""

NON_ITEM_OPTIONS = ("present", "negatives", "negative_ids", "shared_negatives")
"""Options of a call that are none of each item alone."""


class CallInputs(NamedTuple):
    """Views of some items, and what is known of the items.

    Attributes:
        views: (n, d) each; zeros where an item lacks the view.
        attributes: of the items, (n, ...) each.
        present: which items have which views, (n, views) Booleans; None where all have all.
        apart: of how many items the first view shows some, where two views show different ones; else None.
    """

    views: tuple[Tensor, ...]
    attributes: dict[str, Tensor]
    present: Tensor | None = None
    apart: int | None = None

    def gathered(self, processes: Processes, sizes: Sizes | None) -> CallInputs:
        """Return the items of all processes, in the order of their ranks.

        Args:
            processes: whose items.
            sizes: how many each has; None with one process.

        Raises:
            UsageError: the weights of all are zero.
        """
        call = self
        if sizes is not None:
            views = processes.gather(torch.stack(self.views, 1), sizes.items).unbind(1)
            attributes = {name: processes.gather(value, sizes.items) for name, value in self.attributes.items()}
            present = None if self.present is None else processes.gather(self.present, sizes.items)
            call = CallInputs(tuple(views), attributes, present, self.apart)
        weights = call.attributes.get("weights")
        if weights is not None:
            check_values("weights", weights, (weights > 0).any(), "numbers that are not all zero")
        return call


class Negatives(NamedTuple):
    """Further columns, of all processes.

    Attributes:
        embeddings: (k, d).
        ids: which item each shows, (k,), where that is known.
        owners: of which item of the batch each is a negative, (k,); None where each is one of all items.
    """

    embeddings: Tensor
    ids: Tensor | None = None
    owners: Tensor | None = None


class LocalNegatives(NamedTuple):
    """Further columns that this process brings.

    Attributes:
        embeddings: (k, d), or of each item its own, (n, k, d).
        ids: (k,) or (n, k), where they are known.
        shared: whether every process brings the same.
    """

    embeddings: Tensor
    ids: Tensor | None
    shared: bool

    def gathered(self, call: CallInputs, processes: Processes, sizes: Sizes | None) -> Negatives:
        """Return those of all processes.

        Args:
            call: that of all processes.
            processes: who brings some.
            sizes: how many each brings; None with one process.
        """
        if self.shared:
            return Negatives(processes.as_replicated(self.embeddings), self.ids)
        counts = None if sizes is None else sizes.negatives
        embeddings = processes.gather(self.embeddings, counts)
        ids = None if self.ids is None else processes.gather(self.ids, counts)
        if embeddings.ndim == 2:
            return Negatives(embeddings, ids)
        owners = torch.arange(len(embeddings), device=embeddings.device)
        if call.apart is not None and call.present is not None:
            owners = call.present[:, 0].nonzero()[:, 0]
        owners = owners.repeat_interleave(embeddings.shape[1])
        return Negatives(embeddings.flatten(0, 1), None if ids is None else ids.flatten(), owners)


def views_of(given: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the views that a call was given: as they are, or those of one tensor, (n, views, d).

    A tensor that stands for two views becomes two: rows and columns of one tensor are taken for the same embeddings,
    of which none is compared with itself.
    """
    if len(given) == 1 and isinstance(given[0], Tensor) and given[0].ndim == 3:
        return given[0].unbind(1)
    views = list(given)
    for place, view in enumerate(given):
        for other in given[:place]:
            if view is other and isinstance(view, Tensor):
                views[place] = view.view_as(view)
    return tuple(views)


def read_inputs(views: tuple[Tensor, ...], facts: Mapping[str, Any], present: Any) -> CallInputs:
    """Return what is known of the items beside their views, checked.

    Args:
        views: embeddings, (n, d) each; two may differ in their rows, and then show different items.
        facts: of the items, one entry each, beside options that are none (see `NON_ITEM_OPTIONS`); where two views show
            different items, a pair, of the first and the second.
        present: which items have which views, (n, views) Booleans, or None.

    Raises:
        UsageError: shapes or types do not fit, or weights are negative or not finite.
    """
    given, attributes = {}, {}
    for name in sorted(facts):  # processes gather them in one order, whatever the order of their keywords
        if facts[name] is not None and name not in NON_ITEM_OPTIONS:
            given[name] = facts[name]
    if not _show_different_items(views, given):
        check_views(views)
        for name, value in given.items():
            attributes[name] = _fact(name, value, len(views[0]), views[0].device)
        if attributes:
            _check_weights(attributes)
        views = _in_one_precision(views)
        if present is None:
            return CallInputs(views, attributes)
        marks = _marks(present, views)
        shown = (torch.where(marks[:, v, None], view, 0) for v, view in enumerate(views))
        return CallInputs(tuple(shown), attributes, marks)
    check(present is None, "present: expected two views of the same items; these show different ones.")
    check(len(views) == 2, f"views: expected 2 where they show different items, got {len(views)}.")
    for v, view in enumerate(views):
        check_views([view], first=v)
    (n, d), (m, columns) = views[0].shape, views[1].shape
    check(columns == d, f"z1: expected {d} columns, got {columns}.")
    check(views[0].device == views[1].device, f"z1: is on {views[1].device}, but z0 is on {views[0].device}.")
    z0, z1 = _in_one_precision(views)
    for name, value in given.items():
        check(
            _is_pair(value),
            f"{name}: z0 and z1 show different items, {n} and {m}; expected a pair, ({name} of z0, {name} of z1).",
        )
        attributes[name] = torch.cat(
            [
                _fact(f"{name}[{v}]", part, size, z0.device)
                for v, (part, size) in enumerate(zip(value, (n, m), strict=True))
            ]
        )
    _check_weights(attributes)
    padded = torch.cat([z0, z0.new_zeros(m, d)]), torch.cat([z1.new_zeros(n, d), z1])
    first = torch.arange(n + m, device=z0.device) < n
    return CallInputs(padded, attributes, torch.stack([first, ~first], 1), n)


def read_negatives(call: CallInputs, known: Mapping[str, Any]) -> LocalNegatives | None:
    """Return the negatives that this process brings, checked.

    Args:
        call: that of this process alone.
        known: its keywords.

    Raises:
        UsageError: shapes do not fit, or one keyword needs another.
    """
    negatives, ids, shared = known.get("negatives"), known.get("negative_ids"), known.get("shared_negatives")
    if negatives is None:
        if ids is not None:
            raise UsageError("negative_ids: expected negatives= with them.")
        if shared:
            raise UsageError("shared_negatives: expected negatives= with it.")
        return None
    check(ids is None or "ids" in call.attributes, "negative_ids: expected ids= of the items with them.")
    rows = len(call.views[0]) if call.apart is None else call.apart
    ids = None if ids is None else as_numbers("negative_ids", ids)
    if ids is not None:
        _check_whole("negative_ids", ids)
    check_negatives(negatives, ids, call.views, rows)
    negatives = negatives.to(torch.promote_types(call.views[0].dtype, torch.float32))
    ids = None if ids is None else ids.to(negatives.device)
    own = negatives.ndim == 3
    check(not (own and shared), "shared_negatives: expected negatives (k, d) of all items with it, got (n, k, d).")
    return LocalNegatives(negatives, ids, bool(shared))


def check_views(views: Sequence[Tensor], *, shared_columns: bool = False, first: int = 0) -> None:
    """Raise `UsageError` unless the views are matching (n, d) tensors of floating point numbers, n and d at least 1.

    Args:
        views: the embeddings.
        shared_columns: whether the last view may have another number of rows.
        first: the number of the first of them among the views of the call.
    """
    if not views:
        raise UsageError("views: expected embeddings, got none.")
    for k, view in enumerate(views, first):
        if not isinstance(view, Tensor):
            raise UsageError(f"z{k}: expected a tensor, got {type(view).__name__}.")
        if view.layout != torch.strided:
            raise UsageError(f"z{k}: expected a dense tensor, got {view.layout}; use to_dense().")
        shared = shared_columns and k == first + len(views) - 1
        if view.ndim != 2 or view.shape[shared:] != views[0].shape[shared:]:
            expected = "(k, d), d that of z0" if shared else "(n, d), the same for all views"
            raise UsageError(f"z{k}: expected shape {expected}, got {[tuple(v.shape) for v in views]}.")
        if not view.is_floating_point() or view.device != views[0].device:
            _check_floating(f"z{k}", view, views[0])
        if view.numel() == 0:
            raise UsageError(f"z{k}: expected at least one item and one coordinate, got shape {tuple(view.shape)}.")


def check_negatives(negatives: object, ids: Tensor | None, views: Sequence[Tensor], rows: int) -> None:
    """Raise `UsageError` unless the negatives are floating point numbers of a shape that fits, and ids fit them.

    Args:
        negatives: (k, d), or (n, k, d) for each of the items of the first view.
        ids: (k,), or (n, k), or None.
        views: what they stand beside.
        rows: how many items the first view has, n.
    """
    d = views[0].shape[1]
    got = f"shape {tuple(negatives.shape)}" if isinstance(negatives, Tensor) else type(negatives).__name__
    good = isinstance(negatives, Tensor) and negatives.ndim in (2, 3) and negatives.shape[-1] == d
    good = good and isinstance(negatives, Tensor) and (negatives.ndim == 2 or len(negatives) == rows)
    check(good, f"negatives: expected a tensor of shape (k, {d}), or ({rows}, k, {d}) for each item, got {got}.")
    assert isinstance(negatives, Tensor)
    _check_floating("negatives", negatives, views[0])
    if ids is not None:
        shape, given = tuple(negatives.shape[:-1]), tuple(ids.shape)
        check(given == shape, f"negative_ids: expected a tensor with one entry per negative, {shape}, got {given}.")


def check_values(argument: str, values: Tensor, good: Tensor, expected: str) -> None:
    """Raise `UsageError` unless all values are good, see `check_all_values`; under `torch.compile` the graph asserts
    it.

    No number can be read while a graph is traced: a compiled call raises the assertion as it runs.
    """
    if torch.compiler.is_compiling():
        torch._assert_async(good.all(), f"{argument}: expected {expected}.")
    else:
        check_all_values(argument, values, good, expected)


def as_numbers(name: str, value: object) -> Tensor:
    """Return a tensor, an array or a list of numbers as a tensor.

    Raises:
        UsageError: it is none of these.
    """
    if isinstance(value, Tensor):
        return value
    expected = f"{name}: expected a tensor, an array or a list of numbers, one entry per item"
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise UsageError(f"{expected}, got lists of unequal lengths.") from error
    check(array.ndim > 0 and array.dtype.kind in "biuf", f"{expected}, got {type(value).__name__} of {array.dtype}.")
    return torch.from_numpy(np.array(array))


def _show_different_items(views: Sequence[object], given: Mapping[str, Any]) -> bool:
    """Return whether two views show different items: other numbers of rows, or facts of each."""
    sizes = []
    for view in views:
        if not (isinstance(view, Tensor) and view.ndim == 2):
            return False
        sizes.append(view.shape[0])
    return (len(sizes) == 2 and sizes[0] != sizes[1]) or (len(sizes) > 0 and any(map(_is_pair, given.values())))


def _is_pair(value: object) -> bool:
    """Return whether facts are those of two views, rather than numbers in a tuple."""
    return isinstance(value, tuple) and len(value) == 2 and all(np.ndim(part) > 0 for part in value)


def _fact(name: str, value: object, size: int, device: torch.device) -> Tensor:
    numbers = as_numbers(name, value)
    check(not numbers.is_complex(), f"{name}: expected real numbers, got {numbers.dtype}.")
    if name.startswith("ids"):
        _check_whole(name, numbers)
    several, features = 2 if name.startswith("labels") else 1, name.startswith("features")
    fits = numbers.shape[:1] == (size,) and numbers.ndim in ((2, 3) if features else (1, several))
    if not (fits and (numbers.is_floating_point() or not features)):  # a message that is not used would fix the size
        expected = f"floating point numbers, ({size}, k) or ({size}, views, k)"
        expected = expected if features else f"a tensor with one entry per item, ({size},)"
        raise UsageError(f"{name}: expected {expected}, got {tuple(numbers.shape)}.")
    return numbers.detach().to(device) if features else numbers.to(device)


def _check_whole(name: str, numbers: Tensor) -> None:
    good = not (numbers.is_floating_point() or numbers.is_complex())
    check(good, f"{name}: expected integers, got {numbers.dtype}, of which equal ones may be a matter of rounding.")


def _check_weights(attributes: Attributes) -> None:
    reference = attributes.get("column_weights")
    if reference is not None:
        good = (reference > 0) & torch.isfinite(reference)
        check_values("column_weights", reference, good, "positive finite numbers")
    weights = attributes.get("weights")
    if weights is not None:
        check_values("weights", weights, (weights >= 0) & torch.isfinite(weights), "nonnegative finite numbers")


def _marks(present: object, views: Sequence[Tensor]) -> Tensor:
    marks, shape = as_numbers("present", present), (len(views[0]), len(views))
    good = marks.dtype == torch.bool and marks.shape == shape
    check(good, f"present: expected Booleans, one per item and view, {shape}, got {describe_value(marks)}.")
    return marks.to(views[0].device)


def _in_one_precision(views: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the views in the widest precision among them."""
    dtype = views[0].dtype
    for view in views:
        dtype = dtype if view.dtype == dtype else torch.promote_types(dtype, view.dtype)
    for view in views:
        if view.dtype != dtype:
            return tuple(each.to(dtype) for each in views)
    return views


def _check_floating(name: str, value: Tensor, first: Tensor) -> None:
    if not value.is_floating_point():
        raise UsageError(f"{name}: expected floating point embeddings, got {value.dtype}.")
    if value.device != first.device:
        raise UsageError(f"{name}: is on {value.device}, but z0 is on {first.device}.")
