"""Loading of train and test splits for evaluation and embedding."""

from __future__ import annotations

import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils.data import Dataset as AnyDataset

from contraport._utils.formatting import format_keyword_or_flag, format_options
from contraport.data import Dataset
from contraport.data.split_digests import SplitDigests
from contraport.data.streams import check_no_stream
from contraport.embedding import check_column_names_match_model
from contraport.encoders import Model, kind_from_shape, resolve_view_index
from contraport.errors import UsageError, check
from contraport.evaluation.command_options import EvaluateOptions
from contraport.options import has_object_placeholder
from contraport.runs import WritableRun
from contraport.training.components.data_builder import build_dataset
from contraport.training.config import RECORDED_OPTIONS_BY_NAME, Settings

log = logging.getLogger("contraport.evaluation")


class Splits(NamedTuple):
    """Training and test datasets of an evaluation.

    Attributes:
        train: items that probes are trained on.
        test: items that metrics are computed on; the encoder was not trained on any of them.
        data_notes: notes about the data for readers of the results, such as test items that were left out.
    """

    train: Dataset
    test: Dataset
    data_notes: tuple[str, ...] = ()


def load_evaluation_datasets(run: WritableRun, settings: Settings, model: Model, options: EvaluateOptions) -> Splits:
    """Load the training and test datasets of an evaluation.

    A class or domain has the same index in both.

    Raises:
        UsageError: the data cannot be loaded, are a stream, or the splits do not fit together; the run's own data have
            changed; or fewer than two test items are left that the run was not trained on.
    """
    message = "data: must have two splits, got one Dataset. Pass the pair (train, test), or a name, folder or file."
    check(not isinstance(options.data, AnyDataset), message, "one_split")
    data: Any = options.data
    is_pair = isinstance(data, tuple)  # each element is a whole split
    if is_pair:
        check(len(data) == 2, f"data: must be a pair (train, test), got {len(data)} elements.", "pair")
    loader = SplitLoader(settings, model, options.columns, options.root)
    if is_pair or options.test_data is not None:
        train_data, test_data = data if is_pair else (data, None)
        train = loader.load(train_data, "train", whole=is_pair)
        test = loader.load(test_data if options.test_data is None else options.test_data, "test", whole=True)
        check_no_stream(train)
        check_no_stream(test)
        record = run.find_split_digests()
        splits = (
            Splits(train, test)
            if record is None
            else _build_splits_noting_trained_items(record, train, test, drop_trained_items=True)
        )
    else:
        splits = load_splits(run, loader, data)
    train, test, notes = splits
    message = f"data: splits must have equal shapes; {train.name!r} has {train.shapes}, {test.name!r} {test.shapes}."
    check(train.shapes == test.shapes, message, "shape")
    train, test = _drop_incomplete_items(train), _drop_incomplete_items(test)
    remedy = (
        f"pass {format_keyword_or_flag('test_data')}, or train with a larger {format_keyword_or_flag('test_fraction')}"
    )
    message = f"data: must have at least 2 test items; {test.name!r} has {len(test)}; {remedy}."
    check(len(test) > 1, message, "test_items")
    return Splits(train, test.align_codes_with(train), notes)


def load_splits(run: WritableRun, loader: SplitLoader, data: Any, *, drop_trained_items: bool = True) -> Splits:
    """Load the train and test splits, without test items that the run was trained on.

    If the data are the items of the run, under whatever name and options, the splits are those of its training.
    Otherwise they are drawn anew.

    If `drop_trained_items` is false, they are kept and counted in a note.

    Raises:
        UsageError: the data cannot be loaded, or the run's own data have changed.
    """
    train, test = loader.load(data, "train"), loader.load(data, "test")
    check_no_stream(train)
    check_no_stream(test)
    record, is_own = run.find_split_digests(), is_training_data(loader.training_settings, data)
    if record is None:
        # A run of an earlier version: it may have been trained on copies of test items.
        has_copies = train.view_content_ids_if_repeated is not None or test.view_content_ids_if_repeated is not None
        check(
            not (is_own and train.num_random_test_items is not None and has_copies),
            f"run: {run.path} was trained by an earlier version, which could put copies of an item into both splits, "
            f"and {train.name!r} has copies. Train it again, or pass unseen items as "
            f"{format_keyword_or_flag('test_data')}.",
            "copies",
        )
        return Splits(train, test)
    if len(record.train_digests) == 0 or record.matches_splits(train, test):
        return Splits(train, test)
    parts = [loader.load(data, "train", whole=True, ignore_subset_settings=True)]
    if train.num_random_test_items is None:
        parts.append(loader.load(data, "test", ignore_subset_settings=True))
    recovered = record.find_splits(parts)
    is_subset = any(getattr(loader.training_settings, name) for name in _SUBSET_SETTINGS)
    if recovered is not None and (recovered.num_other_items == 0 or is_subset):
        return Splits(recovered.train, recovered.test)
    remedy = format_keyword_or_flag("test_data")
    remedy = f"pass unseen items as {remedy}" if drop_trained_items else "pass the new state as a copy in another place"
    message = f"data: {train.name!r} changed since {run.path} was trained on it, so its test items are not known."
    check(not is_own, f"{message} Restore it, or {remedy}.", "changed")
    return _build_splits_noting_trained_items(record, train, test, drop_trained_items=drop_trained_items)


def _build_splits_noting_trained_items(
    record: SplitDigests, train: Dataset, test: Dataset, *, drop_trained_items: bool
) -> Splits:
    """Build the splits, with a note on test items seen in training.

    With `drop_trained_items`, these items are left out of the test split.
    """
    trained_on = record.training_overlap_mask(test)
    number = int(trained_on.sum())
    if number == 0:
        return Splits(train, test)
    message = f"data: the run was trained on all {number:,} test items of {test.name!r}. Pass unseen items."
    check(number < len(test) or not drop_trained_items, message, "trained_on")
    fact = f"The run was trained on {number:,} of {len(test):,} test items of {test.name!r}"
    note = f"{fact}; they are left out." if drop_trained_items else f"{fact}."
    log.warning("%s", note)
    return Splits(train, test.subset((~trained_on).nonzero()[:, 0]) if drop_trained_items else test, (note,))


def _drop_incomplete_items(dataset: Dataset) -> Dataset:
    """Drop the items that lack a view, and log how many were dropped."""
    complete = dataset.drop_incomplete()
    if len(complete) < len(dataset):
        missing = len(dataset) - len(complete)
        log.warning("%d of %d %s items lack a view and are left out.", missing, len(dataset), dataset.split)
    return complete


def have_same_items(first: Dataset, second: Dataset) -> bool:
    """Return whether two datasets have equal items in equal order."""
    if any(getattr(first, name) != getattr(second, name) for name in ("name", "split", "shapes")):
        return False
    if not torch.equal(first.source_rows, second.source_rows) or (first.labels is None) != (second.labels is None):
        return False
    if (
        first.view_content_digests is not None
        and second.view_content_digests is not None
        and not torch.equal(first.view_content_digests, second.view_content_digests)
    ):
        return False
    return first.labels is None or second.labels is None or torch.equal(first.labels, second.labels)


def describe_test_data(settings: Settings, test: Dataset, options: EvaluateOptions) -> str:
    """Describe the test data by name, corruption and domains."""
    data = options.data[-1] if isinstance(options.data, tuple) else options.data
    data = data if options.test_data is None else options.test_data
    changes = {"corrupt": settings.corrupt, "domains": settings.domains} if is_training_data(settings, data) else {}
    return ", ".join([test.name, *(f"{name} {value}" for name, value in changes.items() if value is not None)])


def is_training_data(settings: Settings, data_or_none: object) -> bool:
    """Return whether the option `data` refers to the run's training data."""
    if data_or_none is None:
        return True
    if not isinstance(data_or_none, str | Path) or settings.data is None:
        return False
    if str(data_or_none) == str(settings.data):
        return True
    try:
        return Path(data_or_none).samefile(settings.data)
    except (OSError, ValueError):  # one of them is not a file but a name, a pattern or a URL
        return False


_SUBSET_SETTINGS = ("validation", "max_items", "test_items", "imbalance")
"""Settings that select a subset of the items of a source."""


@dataclass(frozen=True)
class SplitLoader:
    """Loader of train and test splits with the settings of a run.

    Attributes:
        model: encoder, whose image size the data are resized to.
        column_roles: roles of the columns of a table; None: as in the training, for the same data.
        data_root: folder of named datasets; None: as in the training.
    """

    training_settings: Settings
    model: Model
    column_roles: dict[str, Any] | None = None
    data_root: str | Path | None = None

    def load(self, data: Any, split: str, *, whole: bool = False, ignore_subset_settings: bool = False) -> Dataset:
        """Load the train or test split, with its views and their columns in the model's order.

        Args:
            data: the data; None: the run's own.
            split: "train" or "test".
            whole: load data without splits of their own as a whole, with no share held out.
            ignore_subset_settings: ignore settings that select a subset of the run's own items.

        Raises:
            UsageError: the data cannot be loaded, have other columns than the training, or are the run's own and not
                stored in its folder.
        """
        settings = self._adapt_training_settings_to_load(data)
        if ignore_subset_settings:
            settings = settings.replace_unchecked(**dict.fromkeys(_SUBSET_SETTINGS))
        dataset = build_dataset(settings, split)
        if whole and dataset.num_random_test_items and not isinstance(data, AnyDataset):
            dataset = build_dataset(settings.replace_unchecked(test_fraction=0), "train")
            dataset = dataset.subset(torch.arange(len(dataset)), split)
        names, expected = list(dataset.view_names), list(self.model.view_names)
        if names != expected and len({*names}) == len(names) and {*names} == {*expected}:
            dataset = dataset.select_views([names.index(name) for name in expected])
        dataset = dataset.order_columns_as(self.model.column_names)
        if len(names) == len(expected):
            check_column_names_match_model(self.model, dataset)
        return dataset

    def _adapt_training_settings_to_load(self, data: Any) -> Settings:
        """Return the training settings, adapted to load the given data."""
        settings, columns = self.training_settings, self.column_roles
        adapted = settings.replace_unchecked(
            root=self.data_root or settings.root, image_size=find_model_image_size(self.model)
        )
        if is_training_data(settings, data):
            hint = f"Pass {format_options(data=...)}."
            check(settings.data is not None, f"data: the run's config.yaml has no entry 'data'. {hint}", "missing")
            message = f"data: the run was trained on the object {settings.data}, which is not in its folder. {hint}"
            check(not has_object_placeholder(settings.data), message, "missing")
            # A column of sample weights must be read as such, or it would count as a feature.
            weights = settings.sample_weight if settings.sample_weight_source == "column" else None
            return adapted.replace_unchecked(columns=columns or settings.columns, sample_weight=weights)
        # The same name is another data frame with the same roles.
        if columns is None and RECORDED_OPTIONS_BY_NAME["data"].serialize(data) == settings.data:
            columns = settings.columns
        # The other settings of data hold for the training data only.
        unset = dict.fromkeys((*_SUBSET_SETTINGS, "sample_weight", "test_fraction", "corrupt", "domains"))
        return adapted.replace_unchecked(data=data, columns=columns, given_views=(), **unset)


def resolve_dataset_view_index(dataset: Dataset, model: Model, model_view: object) -> int:
    """Return the index of the dataset's view that the model's given view encodes."""
    number = model.view_index(model_view)
    names, shapes = dataset.view_names, dataset.shapes
    if model.view_names[number] in names:
        return names.index(model.view_names[number])
    if len(names) in (1, len(model.shapes)):
        return number if len(names) > 1 else 0
    return resolve_view_index("view", kind_from_shape(model.shapes[number]), names, shapes)


def find_model_image_size(model: Model) -> int | None:
    """Return the side length of the model's square images, or None."""
    sides = {side for shape in model.shapes if len(shape) == 3 for side in shape[1:]}
    return sides.pop() if len(sides) == 1 else None


def resolve_device(name: str) -> torch.device:
    """Convert a device name to a device, where "auto" prefers the GPU.

    Raises:
        UsageError: the device cannot be used.
    """
    if name == "auto":
        local_rank = int(os.environ.get("LOCAL_RANK", 0))
        return torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    try:
        probe = torch.empty(0, device=name)
        probe.cpu()  # fails for "meta", which has shapes but no values
        return probe.device
    except (TypeError, RuntimeError, AssertionError) as error:
        reason = re.sub("Expected one of .*", "torch has no such device", str(error).splitlines()[0]).removesuffix(".")
        message = f"device: {name!r} is not available on this machine ({reason}); use auto or cpu."
        raise UsageError(message) from error
