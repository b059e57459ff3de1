"""What `evaluate` and `embed` begin with: data in the size that the model takes, and a device."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset as AnyDataset

from contraport.data import Dataset
from contraport.data.streams import check_no_stream
from contraport.encoders import Model, kind_of, view_called
from contraport.errors import UsageError, check
from contraport.evaluation.shards import this_process
from contraport.options import is_object
from contraport.training.build import build_dataset
from contraport.verbs.evaluate import EvaluateOptions
from contraport.verbs.train import KEPT, Settings
from contraport.wording import written_as

log = logging.getLogger("contraport.evaluation")


def load_splits(settings: Settings, model: Model, asked: EvaluateOptions) -> tuple[Dataset, Dataset]:
    """Return the training and the test items that were asked for; a class and a domain is the same number in both.

    Raises:
        UsageError: they cannot be loaded, are a stream, do not fit together, or there are fewer than two test items.
    """
    check(
        not isinstance(asked.data, AnyDataset),
        "data: a Dataset is one split; pass the pair (train, test), or a name, folder or file that has both.",
    )
    data: Any = asked.data
    if isinstance(data, tuple):
        check(len(data) == 2, f"data: expected a pair (train, test), got {len(data)}.")
    is_pair = isinstance(data, tuple)  # of data that are a split each
    train_data, test_data = data if is_pair else (data, data)
    train = load_asked(settings, model, train_data, "train", asked.columns, asked.root, undivided=is_pair)
    if asked.test_data is None:
        test = load_asked(settings, model, test_data, "test", asked.columns, asked.root, undivided=is_pair)
    else:
        test = load_asked(settings, model, asked.test_data, "test", asked.columns, asked.root)
    check_no_stream(train)
    check_no_stream(test)
    check(
        train.shapes == test.shapes,
        f"data: expected splits of equal shapes, {train.name!r} has {train.shapes}, {test.name!r} {test.shapes}.",
    )
    train, test = _with_all_views(train), _with_all_views(test)
    check(len(test) > 1, f"data: expected two test items or more, {test.name!r} has {len(test)}.")
    return train, test.named_as(train)


def _with_all_views(dataset: Dataset) -> Dataset:
    """Return the items that have all their views, and say how many have not."""
    complete = dataset.complete()
    if len(complete) < len(dataset):
        lacking = len(dataset) - len(complete)
        log.warning("%d of %d %s items lack a view and are left out.", lacking, len(dataset), dataset.split)
    return complete


def are_same_items(one: Dataset, other: Dataset) -> bool:
    """Return whether two datasets are, by all that is known without reading them, the same items in the same order."""
    same = (one.name, one.split, len(one), one.shapes) == (other.name, other.split, len(other), other.shapes)
    if not same or not torch.equal(one.rows, other.rows) or (one.labels is None) != (other.labels is None):
        return False
    return one.labels is None or other.labels is None or torch.equal(one.labels, other.labels)


def data_told(settings: Settings, test: Dataset, asked: EvaluateOptions) -> str:
    """Return what the test items are called: the name of the data, and how these are worsened or dealt to domains.

    So are those that a run was trained on; others are looked at as they are.
    """
    data = asked.data[-1] if isinstance(asked.data, tuple) else asked.data
    data = data if asked.test_data is None else asked.test_data
    told = {"corrupt": settings.corrupt, "domains": settings.domains} if are_its_own(settings, data) else {}
    return ", ".join([test.name, *(f"{name} {value}" for name, value in told.items() if value is not None)])


def are_its_own(settings: Settings, data: object) -> bool:
    """Return whether the data that were asked for, or nothing, are those that a run was trained on."""
    return data is None or (isinstance(data, str | Path) and str(data) == settings.data)


def load_asked(
    settings: Settings,
    model: Model,
    data: str | Path | AnyDataset[Any] | None,
    split: str,
    columns: dict[str, Any] | None,
    root: str | Path | None,
    *,
    undivided: bool = False,
) -> Dataset:
    """Load what was asked for, or else what the run was trained on, in the size that the model takes.

    Undivided, data of which a share would be held out are taken whole: someone has split them before.

    Raises:
        UsageError: the data cannot be loaded, or nothing was asked for and the run's folder does not hold its own.
    """
    asked = replace(settings, root=root or settings.root, image_size=image_size_of(model))
    if are_its_own(settings, data):
        if settings.data is None:
            raise UsageError(
                f"data: the run's config.yaml does not say on what it was trained; pass {written_as(data=...)}."
            )
        check(
            not is_object(settings.data),
            f"data: the run was trained on the object {settings.data}, which is not in its folder; pass "
            f"{written_as(data=...)}.",
        )
        own = settings.weights if settings.weighs_by_column else None  # a column of weights is none of features
        return build_dataset(replace(asked, columns=columns or settings.columns, weights=own), split)
    if columns is None and KEPT["data"].written(data) == settings.data:  # a data frame after a data frame
        columns = settings.columns
    other = replace(asked, data=data, columns=columns, weights=None, test_fraction=None, **_OF_ITS_DATA)
    dataset = build_dataset(other, split)
    if undivided and dataset.held_out and not isinstance(data, AnyDataset):
        dataset = build_dataset(replace(other, test_fraction=0), "train")
        return dataset.only(torch.arange(len(dataset)), split)
    return dataset


_OF_ITS_DATA: dict[str, Any] = {
    "validation": None,
    "items": None,
    "test_items": None,
    "given_views": (),
    "imbalance": None,
    "corrupt": None,
    "domains": None,
}
"""What a training asks of its own data alone: other data are looked at as they are."""


def view_in(dataset: Dataset, model: Model, called: object) -> int:
    """Return the number that a view of a model has in some data: by its name, its number, or its kind.

    Raises:
        UsageError: the data have no such view.
    """
    number = model.view(called)
    names, shapes = dataset.view_names, dataset.shapes
    if model.view_names[number] in names:
        return names.index(model.view_names[number])
    if len(names) in (1, len(model.shapes)):
        return number if len(names) > 1 else 0
    return view_called("view", kind_of(model.shapes[number]), names, shapes)


def image_size_of(model: Model) -> int | None:
    """Return the side of the square images that the model takes, or none where it takes none."""
    sizes = {shape[1:] for shape in model.shapes if len(shape) == 3}
    sides = {side for size in sizes for side in size}
    return sides.pop() if len(sides) == 1 else None


def open_device(name: str) -> torch.device:
    """Return the device of a name; "auto" is this process's GPU where there is one.

    Raises:
        UsageError: it cannot be computed on.
    """
    if name == "auto":
        return torch.device("cuda", this_process().local) if torch.cuda.is_available() else torch.device("cpu")
    try:
        there = torch.empty(0, device=name)
        there.cpu()  # "meta" has shapes but no numbers
        return there.device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UsageError(f"device: {name!r} cannot be used here: {str(error).splitlines()[0]}") from error
