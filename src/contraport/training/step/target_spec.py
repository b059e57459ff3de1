"""Which plan a training wants of each batch, as the command line says it: a rule, or what files know of the items."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from contraport._utils.spec import parse_spec
from contraport.data import Batch, Dataset
from contraport.engine import Gibbs, Kernel
from contraport.errors import UsageError, check, check_existing_file, check_positive, unreadable_error
from contraport.objectives import (
    Domains,
    DuplicateGroups,
    Labels,
    Neighbors,
    Pairs,
    SimilarityMatrix,
    SoftNeighbors,
    Target,
)
from contraport.training.step.teacher import of_batch, read_teacher_features

TargetOfBatch = Callable[[Batch], Target]
"""Which plan is wanted of a batch."""

NEIGHBORS = 5
TEMPERATURE = 0.1
_CHECKED_AT_A_TIME = 2**22


class _Kind(NamedTuple):
    """A kind of target.

    Attributes:
        settings: the names of its settings.
        make: returns what is wanted, of its settings and the training items.
        alone: the setting that may stand first without its name, which must be given.
    """

    settings: tuple[str, ...]
    make: Callable[[dict[str, Any], Dataset], TargetOfBatch]
    alone: str | None = None


def build_target(text: str, dataset: Dataset) -> TargetOfBatch:
    """Return which plan is wanted of each batch.

    Args:
        text: ``"pairs"``, the views of an item; ``"labels"``, all items of a class; ``"domains:alpha=0.1,beta=0"``, an
            item's views and, with these weights, other items of its domain and of others. ``"soft:FILE"``, in
            proportion to exp(cosine / temperature) of the rows of a file of features (``temperature=0.1``);
            ``"neighbors:k=5"``, the k nearest embeddings by the Euclidean distance of the items' first views as they
            are given, or of a file (``features=FILE``), an item's own other view among them; ``"matrix:FILE"``, by a
            nonnegative matrix between the items; ``"shown"``, the views of an item and of those that show the same in
            one of their views, such as an image with several captions.
        dataset: the training items, in the order of the rows of a file.

    Features are ``(items, k)`` numbers in an ``.npy`` file, or those of the training items in an ``.npz`` that
    `contraport.embed` wrote. A matrix is ``(items, items)`` in an ``.npy``, or an ``.npz`` of `scipy.sparse.save_npz`.

    Raises:
        UsageError: an unknown name or setting, a value out of range, a file that is missing, corrupt or of other items,
            or data without the labels or domains that are asked for.

    >>> from contraport.data import load
    >>> digits = load("digits")
    >>> build_target("labels", digits)(digits[0]), build_target("neighbors:k=3", digits)(digits[0])
    (Labels(), Neighbors(neighbors=3))
    """
    name, settings = parse_target_spec(text)
    return _KINDS[name].make(settings, dataset)


def parse_target_spec(text: str) -> tuple[str, dict[str, Any]]:
    """Return the kind of a target and its settings, once these and its files are known to be there.

    Raises:
        UsageError: as in `build_target`, but for what only the items and the content of files tell.
    """
    name, settings = _parsed(text)
    needed = _KINDS[name].alone
    check(needed is None or needed in settings, f"target: expected {name}:FILE, got {text!r}.")
    for setting, value in settings.items():
        _CHECKS[setting](f"target: {setting}", value)
    return name, settings


def _parsed(text: str) -> tuple[str, dict[str, Any]]:
    known = {name: kind.settings for name, kind in _KINDS.items()}
    alone = {name: kind.alone for name, kind in _KINDS.items() if kind.alone is not None}
    name, settings = parse_spec("target", text, known, default_setting=alone)
    return name, dict(settings)


def constant_target(text: str) -> Target | None:
    """Return the rule that a text says for items that are not those of the training; None where it knows these alone.

    >>> constant_target("domains:alpha=0.1"), constant_target("neighbors:k=3")
    (Domains(alpha=0.1), None)
    """
    name, settings = _parsed(text)
    return _RULES[name](**settings) if name in _RULES else None


def _constant(name: str, known: str | None = None) -> Callable[[dict[str, Any], Dataset], TargetOfBatch]:
    """Return what makes a rule that is the same in every batch, for data of which something is known."""

    def make(settings: dict[str, Any], dataset: Dataset) -> TargetOfBatch:
        there = known is None or getattr(dataset, known) is not None
        check(there, f"target: {name} expects data with {known}; {dataset.name!r} has none.")
        return partial(_always, _RULES[name](**settings))

    return make


def _shown(settings: dict[str, Any], dataset: Dataset) -> TargetOfBatch:
    numbers = dataset.content_ids
    if numbers is None:
        raise UsageError(f"target: shown expects items that show the same; those of {dataset.name!r} all differ.")
    repeats = [column for column in numbers.unbind(1) if len(column.unique()) < len(column)]
    return partial(_shown_of, torch.stack(repeats, dim=1))


def _soft(settings: dict[str, Any], dataset: Dataset) -> TargetOfBatch:
    features = read_teacher_features("target", str(settings["file"]), len(dataset))
    kernel = Gibbs("cosine", settings.get("temperature", TEMPERATURE))
    return partial(_soft_of, features, kernel)


def _neighbors(settings: dict[str, Any], dataset: Dataset) -> TargetOfBatch:
    file = settings.get("features")
    features = None if file is None else read_teacher_features("target", str(file), len(dataset))
    given = features is not None or dataset.present is None or bool(dataset.present[:, 0].all())
    check(given, f"target: neighbors expects features=FILE, as some items of {dataset.name!r} lack their first view.")
    return partial(_neighbors_of, features, settings.get("k", NEIGHBORS))


def _matrix(settings: dict[str, Any], dataset: Dataset) -> TargetOfBatch:
    return partial(_alike_of, _read_matrix(str(settings["file"]), len(dataset)))


# What a training keeps are functions with a name, not lambdas, so that it can be pickled.


def _always(rule: Target, batch: Batch) -> Target:
    return rule


def _shown_of(numbers: Tensor, batch: Batch) -> Target:
    return DuplicateGroups(of_batch(numbers, batch))


def _soft_of(features: Tensor, kernel: Kernel, batch: Batch) -> Target:
    return SoftNeighbors(of_batch(features, batch), kernel)


def _neighbors_of(features: Tensor | None, number: int, batch: Batch) -> Target:
    return Neighbors(_given(batch) if features is None else of_batch(features, batch), number)


def _alike_of(matrix: Tensor, batch: Batch) -> Target:
    return SimilarityMatrix(matrix, batch.ids)


def _given(batch: Batch) -> Tensor:
    """Return the first given view of a batch as vectors, (b, d)."""
    view = batch.views[0]
    return (view / 255.0 if view.dtype == torch.uint8 else view).flatten(1)


def _read_matrix(file: str, items: int) -> Tensor:
    """Return what is wanted between all items, (items, items), dense and not read before it is used, or sparse."""
    try:
        if Path(file).suffix == ".npz":
            from scipy import sparse

            loaded = sparse.load_npz(file)
            if loaded.format in ("csr", "csc"):
                loaded.check_format(full_check=True)  # scipy itself follows corrupt offsets out of the memory it has
            elif loaded.format != "coo":
                raise ValueError(f"expected the form csr, csc or coo, got {loaded.format}")
            entries = sparse.coo_array(loaded)
            values, shape = np.asarray(entries.data), entries.shape
        else:
            values = np.load(file, mmap_mode="c", allow_pickle=False)
            shape = values.shape
    except Exception as error:  # on hostile bytes the parsers raise whatever they like
        raise unreadable_error(f"target: {file}", "an .npy array, or a sparse .npz of scipy,", error) from error
    check(
        shape == (items, items) and values.dtype.kind in "iufb",
        f"target: {file}: expected numbers between the {items} training items, ({items}, {items}), got {values.dtype} "
        f"of shape {shape}.",
    )
    some = False
    rows = max(1, _CHECKED_AT_A_TIME // items)
    for start in range(0, len(values), rows):
        part = values[start : start + rows]
        good = bool(np.isfinite(part).all() and (part >= 0).all())
        check(good, f"target: {file}: expected nonnegative finite numbers, got {part.min():g} to {part.max():g}.")
        some = some or bool(part.any())
    check(some, f"target: {file}: expected numbers that are not all zero.")
    if Path(file).suffix != ".npz":
        return torch.from_numpy(values)
    places = torch.from_numpy(np.stack([np.asarray(place, dtype=np.int64) for place in entries.coords]))
    return torch.sparse_coo_tensor(
        places, torch.from_numpy(values.astype(np.float32)), shape, check_invariants=True
    ).coalesce()


def _file(name: str, value: object) -> None:
    check_existing_file(name, str(value))


def _number(name: str, value: object) -> None:
    good = isinstance(value, int | float) and 0 <= value < float("inf")
    check(good, f"{name}: expected a finite number, 0 or more, got {value!r}.")


def _whole(name: str, value: object) -> None:
    check(isinstance(value, int) and value >= 1, f"{name}: expected a whole number from 1 on, got {value!r}.")


_RULES: Mapping[str, Callable[..., Target]] = {"pairs": Pairs, "labels": Labels, "domains": Domains}

_KINDS: Mapping[str, _Kind] = {
    "pairs": _Kind((), _constant("pairs")),
    "labels": _Kind((), _constant("labels", "labels")),
    "domains": _Kind(("alpha", "beta"), _constant("domains", "domains")),
    "shown": _Kind((), _shown),
    "soft": _Kind(("file", "temperature"), _soft, "file"),
    "neighbors": _Kind(("k", "features"), _neighbors),
    "matrix": _Kind(("file",), _matrix, "file"),
}

_CHECKS: Mapping[str, Callable[[str, Any], None]] = {
    "alpha": _number,
    "beta": _number,
    "file": _file,
    "features": _file,
    "k": _whole,
    "temperature": check_positive,
}
