"""Data and device of `evaluate` and `embed`: the splits of the run, in the size that the model takes."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils.data import Dataset as AnyDataset

from contraport._utils.formatting import format_options
from contraport.data import Dataset
from contraport.data.split_record import SplitRecord
from contraport.data.streams import check_no_stream
from contraport.encoders import Model, kind_from_shape, resolve_view
from contraport.errors import UsageError, check
from contraport.evaluation.config import EvaluateOptions
from contraport.evaluation.process_share import current_process
from contraport.options import is_object_placeholder
from contraport.runs import Run
from contraport.training.components import build_dataset
from contraport.training.config import KEPT, Settings

log = logging.getLogger("contraport.evaluation")


class Splits(NamedTuple):
    """The items that an encoder is judged on.

    Attributes:
        train: what probes learn from.
        test: what they are judged on; the encoder was trained on none of it.
        notes: what a reader of the results should know about them.
    """

    train: Dataset
    test: Dataset
    notes: tuple[str, ...] = ()


def load_splits(run: Run, settings: Settings, model: Model, asked: EvaluateOptions) -> Splits:
    """Return the training and the test items; a class and a domain is the same number in both.

    Raises:
        UsageError: they cannot be loaded, are a stream, do not fit together, are the run's own data and have changed,
            or there are fewer than two test items that the run was not trained on.
    """
    check(
        not isinstance(asked.data, AnyDataset),
        "data: a Dataset is one split; pass the pair (train, test), or a name, folder or file that has both.",
    )
    data: Any = asked.data
    if isinstance(data, tuple):
        check(len(data) == 2, f"data: expected a pair (train, test), got {len(data)}.")
    is_pair = isinstance(data, tuple)  # of data that are a split each
    reading = Reading(settings, model, asked.columns, asked.root)
    if is_pair or asked.test_data is not None:
        train_data, test_data = data if is_pair else (data, asked.test_data)
        train = reading.load(train_data, "train", undivided=is_pair)
        test = reading.load(
            test_data if asked.test_data is None else asked.test_data,
            "test",
            undivided=is_pair and asked.test_data is None,
        )
        check_no_stream(train)
        check_no_stream(test)
        record = run.split()
        splits = Splits(train, test) if record is None else _without_trained(record, train, test)
    else:
        splits = load_training_splits(run, reading, data)
    train, test, notes = splits
    check(
        train.shapes == test.shapes,
        f"data: expected splits of equal shapes, {train.name!r} has {train.shapes}, {test.name!r} {test.shapes}.",
    )
    train, test = _with_all_views(train), _with_all_views(test)
    check(len(test) > 1, f"data: expected two test items or more, {test.name!r} has {len(test)}.")
    return Splits(train, test.align_names(train), notes)


def load_training_splits(run: Run, reading: Reading, data: Any, *, leave_out: bool = True) -> Splits:
    """Return both splits of some data; items that the run was trained on are in no test split.

    Where the data hold all items of the run, as its own do under whatever name and options, the splits are those of its
    training. Else they are drawn anew.

    Args:
        run: the folder.
        reading: how data are loaded for it.
        data: what to load; None: the run's own.
        leave_out: whether test items that were trained on are left out, rather than only counted.

    Raises:
        UsageError: they cannot be loaded, or are the run's own data and have changed.
    """
    train, test = reading.load(data, "train"), reading.load(data, "test")
    check_no_stream(train)
    check_no_stream(test)
    record, is_own = run.split(), is_training_data(reading.settings, data)
    if record is None:
        _check_no_copies(run, train, test, is_own=is_own)
        return Splits(train, test)
    if len(record.train) == 0 or record.holds(train, test):
        return Splits(train, test)
    parts = [reading.load(data, "train", undivided=True, complete=True)]
    if train.held_out is None:
        parts.append(reading.load(data, "test", complete=True))
    divided = record.divide(parts)
    some = any(getattr(reading.settings, name) for name in _CHOOSING_ITEMS)
    good = not is_own or (divided is not None and (divided[2] == 0 or some))
    check(
        good,
        f"data: {train.name!r} has changed since {run.path} was trained on it, so its held-out items are not known; "
        "restore it, or give items that it has not seen as test_data (--test_data).",
    )
    if divided is not None:
        return Splits(*divided[:2])
    return _without_trained(record, train, test, leave_out=leave_out)


def _without_trained(record: SplitRecord, train: Dataset, test: Dataset, *, leave_out: bool = True) -> Splits:
    """Return the splits without the test items that the run was trained on.

    Raises:
        UsageError: it was trained on all of them.
    """
    trained_on = record.trained_on(test)
    number = int(trained_on.sum())
    if number == 0:
        return Splits(train, test)
    check(
        number < len(test) or not leave_out,
        f"data: the run was trained on all {number:,} test items of {test.name!r}; give items that it has not seen.",
    )
    told = f"The run was trained on {number:,} of {len(test):,} test items of {test.name!r}"
    note = f"{told}, which are left out." if leave_out else f"{told}."
    log.warning("%s", note)
    return Splits(train, test.only((~trained_on).nonzero()[:, 0]) if leave_out else test, (note,))


def _check_no_copies(run: Run, train: Dataset, test: Dataset, *, is_own: bool) -> None:
    """Raise `UsageError` where a run of an earlier version may have been trained on copies of test items."""
    drawn = train.held_out is not None
    copies = train.content_ids is not None or test.content_ids is not None
    check(
        not (is_own and drawn and copies),
        f"run: {run.path} was trained by an earlier version, which could put copies of an item into both splits, and "
        f"{train.name!r} has copies; train it again, or give items that it has not seen as test_data (--test_data).",
    )


def _with_all_views(dataset: Dataset) -> Dataset:
    """Return the items that have all their views, and say how many have not."""
    complete = dataset.complete()
    if len(complete) < len(dataset):
        lacking = len(dataset) - len(complete)
        log.warning("%d of %d %s items lack a view and are left out.", lacking, len(dataset), dataset.split)
    return complete


def are_same_items(one: Dataset, other: Dataset) -> bool:
    """Return whether two datasets are, by all that is known of them, the same items in the same order."""
    same = (one.name, one.split, len(one), one.shapes) == (other.name, other.split, len(other), other.shapes)
    if not same or not torch.equal(one.rows, other.rows) or (one.labels is None) != (other.labels is None):
        return False
    if one.digests is not None and other.digests is not None and not torch.equal(one.digests, other.digests):
        return False
    return one.labels is None or other.labels is None or torch.equal(one.labels, other.labels)


def describe_test_data(settings: Settings, test: Dataset, asked: EvaluateOptions) -> str:
    """Return what the test items are called: the name of the data, and how these are worsened or dealt to domains.

    So are those that a run was trained on; others are looked at as they are.
    """
    data = asked.data[-1] if isinstance(asked.data, tuple) else asked.data
    data = data if asked.test_data is None else asked.test_data
    told = {"corrupt": settings.corrupt, "domains": settings.domains} if is_training_data(settings, data) else {}
    return ", ".join([test.name, *(f"{name} {value}" for name, value in told.items() if value is not None)])


def is_training_data(settings: Settings, data: object) -> bool:
    """Return whether data, or None, are called as those that a run was trained on, or are the same file or folder."""
    if data is None:
        return True
    if not isinstance(data, str | Path) or settings.data is None:
        return False
    return str(data) == str(settings.data) or _is_same_file(Path(data), Path(settings.data))


def _is_same_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except (OSError, ValueError):  # one of them is no file: a name, a pattern, a URL
        return False


_CHOOSING_ITEMS = ("validation", "items", "test_items", "imbalance")
"""Settings that choose among the items of a source."""

_OF_ITS_DATA: dict[str, Any] = {
    **dict.fromkeys(_CHOOSING_ITEMS),
    "given_views": (),
    "corrupt": None,
    "domains": None,
}
"""Settings of a training that apply to its own data alone."""


@dataclass(frozen=True)
class Reading:
    """Loads data for an encoder: images in the size that it takes, columns as the run read them.

    Attributes:
        settings: those of the training.
        model: the encoder.
        columns: what the columns of a table are for; default: as in the training, of its own data.
        root: folder of named data; default: as in the training.
    """

    settings: Settings
    model: Model
    columns: dict[str, Any] | None = None
    root: str | Path | None = None

    def load(self, data: Any, split: str, *, undivided: bool = False, complete: bool = False) -> Dataset:
        """Return a split of some data, or of those that the run was trained on.

        Args:
            data: what to load; None: what the run was trained on.
            split: "train" or "test".
            undivided: whether data of which a share would be held out are taken whole.
            complete: whether settings that choose among the run's own items are passed over.

        Raises:
            UsageError: the data cannot be loaded, or none are given and the run's folder does not hold its own.
        """
        settings = self._settings(data)
        if complete:
            settings = settings.derive(validation=None, items=None, test_items=None, imbalance=None)
        dataset = build_dataset(settings, split)
        if undivided and dataset.held_out and not isinstance(data, AnyDataset):
            dataset = build_dataset(settings.derive(test_fraction=0), "train")
            return dataset.only(torch.arange(len(dataset)), split)
        return dataset

    def _settings(self, data: Any) -> Settings:
        """Return the settings of the training, with which these data are read."""
        settings, columns = self.settings, self.columns
        asked = settings.derive(root=self.root or settings.root, image_size=image_size_of(self.model))
        if is_training_data(settings, data):
            if settings.data is None:
                raise UsageError(
                    f"data: the run's config.yaml does not say on what it was trained; pass {format_options(data=...)}."
                )
            check(
                not is_object_placeholder(settings.data),
                f"data: the run was trained on the object {settings.data}, which is not in its folder; pass "
                f"{format_options(data=...)}.",
            )
            own = settings.weights if settings.has_column_weights else None  # a column of weights is none of features
            return asked.derive(columns=columns or settings.columns, weights=own)
        if columns is None and KEPT["data"].serialize(data) == settings.data:  # a data frame after a data frame
            columns = settings.columns
        return asked.derive(data=data, columns=columns, weights=None, test_fraction=None, **_OF_ITS_DATA)


def find_view(dataset: Dataset, model: Model, called: object) -> int:
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
    return resolve_view("view", kind_from_shape(model.shapes[number]), names, shapes)


def image_size_of(model: Model) -> int | None:
    """Return the side of the square images that the model takes, or none where it takes none."""
    sizes = {shape[1:] for shape in model.shapes if len(shape) == 3}
    sides = {side for size in sizes for side in size}
    return sides.pop() if len(sides) == 1 else None


def resolve_device(name: str) -> torch.device:
    """Return the device of a name; "auto" is this process's GPU where there is one.

    Raises:
        UsageError: it cannot be computed on.
    """
    if name == "auto":
        return torch.device("cuda", current_process().local) if torch.cuda.is_available() else torch.device("cpu")
    try:
        there = torch.empty(0, device=name)
        there.cpu()  # "meta" has shapes but no numbers
        return there.device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UsageError(f"device: {name!r} cannot be used here: {str(error).splitlines()[0]}") from error
