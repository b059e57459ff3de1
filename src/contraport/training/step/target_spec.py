"""Parser of the option `target`, such as ``domains:alpha=0.1`` or ``soft:FILE``, into target plans."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from contraport._utils.spec_parser import parse_spec
from contraport.data import Batch, Dataset
from contraport.engine import Gibbs, Kernel
from contraport.errors import UsageError, check, check_existing_file, check_nonnegative, check_positive
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
from contraport.options import int_in_range
from contraport.training.step.item_arrays import read_pairwise_matrix, read_teacher_features, select_batch_rows

TargetOfBatch = Callable[[Batch], Target]
"""Returns the target plan of a batch."""

NEIGHBORS = 5
TEMPERATURE = 0.1


class _Kind(NamedTuple):
    """Kind of target plan that the option `target` can name.

    Attributes:
        parameters: names of the parameters of this kind of target.
        target_factory: function of parameters and training items that returns a function from batches to targets.
        positional_parameter: required parameter, which may be given without its name; None if there is none.
    """

    parameters: tuple[str, ...]
    target_factory: Callable[[dict[str, Any], Dataset], TargetOfBatch]
    positional_parameter: str | None = None


def build_target_function(text: str, dataset: Dataset) -> TargetOfBatch:
    """Build the function that returns the target plan of a batch.

    Args:
        text: ``"pairs"``, views of the same item. ``"labels"``, items of the same class.
            ``"domains:alpha=0.1,beta=0"``, views of the same item, with weight alpha items of the same domain, with
            weight beta those of other domains. ``"soft:FILE"``, in proportion to exp(cosine / temperature) of the
            features in a file (``temperature=0.1``). ``"neighbors:k=5"``, the k nearest neighbors in Euclidean distance
            of the raw first views, or of a file (``features=FILE``), among them the item's other views.
            ``"matrix:FILE"``, a nonnegative matrix between the items. ``"shown"``, views of items with equal content in
            one view, such as an image with several captions.
        dataset: the training items, in the order of the rows of a file.

    Features are ``(items, k)`` numbers in an ``.npy`` file, or those of the training items in an ``.npz`` that
    `contraport.embed` wrote. A matrix is ``(items, items)`` in an ``.npy``, or an ``.npz`` of `scipy.sparse.save_npz`.

    Raises:
        UsageError: an unknown name or parameter, a value out of range, a file that is missing, corrupt or of other
            items, or data without the required labels or domains.

    >>> from contraport.data import load
    >>> digits = load("digits")
    >>> build_target_function("labels", digits)(digits[0]), build_target_function("neighbors:k=3", digits)(digits[0])
    (Labels(), Neighbors(neighbors=3))
    """
    name, parameters = parse_target_spec(text)
    return _KINDS[name].target_factory(parameters, dataset)


def parse_target_spec(text: str) -> tuple[str, dict[str, Any]]:
    """Parse a target specification into its kind and parameters; values and the existence of files are checked.

    Raises:
        UsageError: as `build_target_function`, except for errors that depend on the items or the content of files.
    """
    name, parameters = _parse(text)
    required = _KINDS[name].positional_parameter
    check(required is None or required in parameters, f"target: must be {name}:FILE, got {text!r}.", "file_missing")
    for parameter, value in parameters.items():
        _CHECKS[parameter](f"target: {parameter}", value)
    return name, parameters


def _parse(text: str) -> tuple[str, dict[str, Any]]:
    parameters = {name: kind.parameters for name, kind in _KINDS.items()}
    leading = {
        name: kind.positional_parameter for name, kind in _KINDS.items() if kind.positional_parameter is not None
    }
    name, values = parse_spec("target", text, parameters, default_setting=leading)
    return name, dict(values)


def item_independent_target(text: str) -> Target | None:
    """Return the target of a specification if it does not depend on the training items, else None.

    >>> item_independent_target("domains:alpha=0.1"), item_independent_target("neighbors:k=3")
    (Domains(alpha=0.1), None)
    """
    name, parameters = _parse(text)
    return _RULES[name](**parameters) if name in _RULES else None


def _constant(name: str, attribute: str | None = None) -> Callable[[dict[str, Any], Dataset], TargetOfBatch]:
    """Return a builder of a target that is equal for all batches and requires the named attribute of the data."""

    def build_constant(parameters: dict[str, Any], dataset: Dataset) -> TargetOfBatch:
        has_attribute = attribute is None or getattr(dataset, attribute) is not None
        message = f"target: {name} requires data with {attribute}; {dataset.name!r} has none."
        check(has_attribute, message, "missing_data")
        return partial(_always, _RULES[name](**parameters))

    return build_constant


def _shown(parameters: dict[str, Any], dataset: Dataset) -> TargetOfBatch:
    numbers = dataset.content_ids
    if numbers is None:
        message = f"target: shown requires items with equal content; all items of {dataset.name!r} differ."
        raise UsageError(message, kind="missing_data")
    repeats = [column for column in numbers.unbind(1) if len(column.unique()) < len(column)]
    return partial(_shown_of, torch.stack(repeats, dim=1))


def _soft(parameters: dict[str, Any], dataset: Dataset) -> TargetOfBatch:
    features = read_teacher_features("target", str(parameters["file"]), len(dataset))
    return partial(_soft_of, features, Gibbs("cosine", parameters.get("temperature", TEMPERATURE)))


def _neighbors(parameters: dict[str, Any], dataset: Dataset) -> TargetOfBatch:
    file = parameters.get("features")
    features = None if file is None else read_teacher_features("target", str(file), len(dataset))
    complete = features is not None or dataset.present is None or bool(dataset.present[:, 0].all())
    message = f"target: neighbors requires features=FILE, as some items of {dataset.name!r} lack their first view."
    check(complete, message, "missing_views")
    return partial(_neighbors_of, features, parameters.get("k", NEIGHBORS))


def _matrix(parameters: dict[str, Any], dataset: Dataset) -> TargetOfBatch:
    return partial(_matrix_of, read_pairwise_matrix(str(parameters["file"]), len(dataset)))


# Functions at module level, not lambdas, so that a training module can be pickled.


def _always(rule: Target, batch: Batch) -> Target:
    return rule


def _shown_of(numbers: Tensor, batch: Batch) -> Target:
    return DuplicateGroups(select_batch_rows(numbers, batch))


def _soft_of(features: Tensor, kernel: Kernel, batch: Batch) -> Target:
    return SoftNeighbors(select_batch_rows(features, batch), kernel)


def _neighbors_of(features: Tensor | None, number: int, batch: Batch) -> Target:
    return Neighbors(_raw_vectors(batch) if features is None else select_batch_rows(features, batch), number)


def _matrix_of(matrix: Tensor, batch: Batch) -> Target:
    return SimilarityMatrix(matrix, batch.ids)


def _raw_vectors(batch: Batch) -> Tensor:
    """Return the raw first view of each item as a vector, (b, d)."""
    view = batch.views[0]
    return (view / 255.0 if view.dtype == torch.uint8 else view).flatten(1)


def _check_file(name: str, value: object) -> None:
    check_existing_file(name, str(value))


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
    "alpha": check_nonnegative,
    "beta": check_nonnegative,
    "file": _check_file,
    "features": _check_file,
    "k": int_in_range(1),
    "temperature": check_positive,
}
