"""The one door to all data: a name, a folder, a file or a dataset."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as transforms

from contraport._utils.formatting import describe_item_shape, join_names
from contraport._utils.lazy import import_object
from contraport.catalog import DATASETS
from contraport.data.dataset import Dataset
from contraport.data.formats import find_format, suffixes
from contraport.data.formats.column_roles import check_no_columns
from contraport.data.sources.iterables import from_stream
from contraport.data.sources.objects import from_object
from contraport.data.sources.remote import fetched, is_remote
from contraport.data.sources.torch_datasets import from_torch
from contraport.data.sources.vision import download_folder
from contraport.data.splits import check_fraction, check_split
from contraport.data.stores import StoreWrapper
from contraport.errors import UsageError, check, hint_on_error, unknown_name_error

_LARGEST_IMAGE = 2**14


@hint_on_error("contraport docs data")
def load(
    data: str | Path | Dataset | torch.utils.data.Dataset[Any] | Any,
    split: str = "train",
    *,
    root: str | Path | None = None,
    image_size: int | None = None,
    columns: Mapping[str, Any] | None = None,
    test_fraction: float | None = None,
    ignore_labels: bool = False,
) -> Dataset:
    """Return one split of some data.

    Args:
        data: a name of `contraport.catalog.list_datasets`; a folder of images, of webdataset shards or of a Hugging
            Face dataset; the path of an ``.npz``, ``.npy``, ``.csv``, ``.jsonl``, ``.parquet`` or ``.tar`` file, the
            last also with braces as in ``train-{000..003}.tar``. A name wins over a folder of the same name; write
            ``./digits`` for the folder. Or a URL of one of these, which fsspec fetches once. Or what a program holds: a
            `Dataset`, which is returned whatever the split; a torch dataset, which is wrapped by `from_torch`; an
            iterable dataset or another stream, by `from_stream`; and what `contraport.data.sources.objects` says, a
            ``datasets.Dataset``, a data frame, arrays, or a list of texts, paths or PIL images.
        split: "train" or "test".
        root: folder of named data, as torchvision or the package that carries them lays it out.
        image_size: side of the square that images become, in pixels; default: their own, and for encoded images the
            median shorter side, kept between 8 and 64.
        columns: what the columns of a table are for where their names do not say it: ``"views"``, a list with a
            column, a pattern such as ``"audio_*"`` or a list of columns for each view; ``"labels"``,
            ``"numbers"``, ``"domains"``, ``"split"`` and ``"weights"``, a column each; and ``"sequence"``, the column
            whose values are equal in the rows that are the frames of one time series, in their order.
        test_fraction: share of each class (of each domain) that is held out as the test split, where the data have none
            of their own; 0 holds out none; default: a fifth.
        ignore_labels: whether classes that the data tell, such as folders, are left out.

    Raises:
        UsageError: an unknown name, a missing or unreadable file or folder, or a wrong split, size, column or share.

    >>> len(load("digits", "train")), len(load("digits", "test"))
    (1348, 449)
    """
    check_split(split)
    check_fraction(test_fraction)
    good = image_size is None or (isinstance(image_size, int) and 0 < image_size <= _LARGEST_IMAGE)
    check(good, f"image_size: expected a whole number of pixels from 1 to {_LARGEST_IMAGE}, got {image_size!r}.")
    if isinstance(data, str | Path):
        dataset = _load(str(data), split, root, image_size, columns, test_fraction, ignore_labels)
    elif is_stream(data):
        check(
            split == "train", "data: a stream has no test split; give another Dataset, or data of a split of its own."
        )
        check(test_fraction is None, f"test_fraction: of a stream nothing is held out, got {test_fraction}.")
        check_no_columns(columns, "a stream")
        source: Any = data
        return from_stream(source, image_size=image_size, labels=not ignore_labels)
    elif isinstance(data, Dataset | torch.utils.data.Dataset):
        check(test_fraction is None, f"test_fraction: a dataset is one split, got {test_fraction}.")
        check_no_columns(columns, "a dataset")
        dataset = data if isinstance(data, Dataset) else from_torch(data, split=split, image_size=image_size)
    else:
        dataset = from_object(data, split, image_size=image_size, columns=columns, test_fraction=test_fraction)
    if ignore_labels and dataset.labels is not None:
        dataset = dataset.without_labels()
    return dataset if image_size is None else _resized(dataset, image_size)


def load_unsplit(data: Any, split: str = "train", **how: Any) -> Dataset:
    """Return one split of data that have a test split of their own, and all items of data that have none.

    A dataset is one split already, and comes back as it is.

    Args:
        data: as `load` takes it.
        split: "train" or "test".
        **how: what else `load` takes, but `test_fraction`.

    Raises:
        UsageError: as `load`.

    >>> len(load([f"text {i}" for i in range(10)])), len(load_unsplit([f"text {i}" for i in range(10)]))
    (8, 10)
    """
    dataset = load(data, split, **how)
    is_split = isinstance(data, torch.utils.data.Dataset) or not dataset.held_out
    return dataset if is_split else load(data, "train", test_fraction=0, **how)


def is_stream(data: Any) -> bool:
    """Return whether items come of it one after the other, and in no other way."""
    if isinstance(data, torch.utils.data.Dataset):
        return isinstance(data, torch.utils.data.IterableDataset)
    return hasattr(data, "__iter__") and not hasattr(data, "__len__")


def _load(
    data: str,
    split: str,
    root: str | Path | None,
    image_size: int | None,
    columns: Mapping[str, Any] | None,
    test_fraction: float | None,
    ignore_labels: bool,
) -> Dataset:
    if is_remote(data):
        copy = fetched(data, download_folder(None if root is None else Path(root)) / "remote")
        dataset = _load(copy, split, root, image_size, columns, test_fraction, ignore_labels)
        dataset.name = data  # where the copy is says nothing to anyone
        return dataset
    path = Path(data)
    named = DATASETS.get(data)
    known = named is not None or path.is_file() or path.is_dir() or not path.exists()
    check(known, f"data: expected a folder or a regular file, got {data!r}, which is neither.")
    if named is not None:
        check_no_columns(columns, repr(data))
        check(test_fraction is None, f"test_fraction: the test split of {data!r} is fixed, got {test_fraction}.")
        own: Dataset = import_object(named.reader)(split, None if root is None else Path(root))
        return own
    found = find_format(data)
    if found is not None:
        wishes = {"image_size": image_size, "columns": columns, "test_fraction": test_fraction}
        return found.load(data, split, ignore_labels=ignore_labels, **wishes)
    read = suffixes()
    check(not path.is_file(), f"data: expected a folder of images or a file {', '.join(read)}, got {data!r}.")
    if path.suffix in read or len(path.parts) > 1 or data.endswith(("/", os.sep)):
        raise UsageError(f"data: there is no file or folder {data!r}.")
    raise UsageError(f"{unknown_name_error('data', data, DATASETS)} There is no file or folder of that name either.")


@dataclass(frozen=True)
class _ResizedStore(StoreWrapper):
    """Another store's views, of which the images are resized to a square when they are fetched."""

    size: int

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return tuple((shape[0], self.size, self.size) if len(shape) == 3 else shape for shape in self.store.shapes)

    def fetch(self, positions: Tensor) -> tuple[Tensor, ...]:
        return tuple(self._resized(view) for view in self.store.fetch(positions))

    def _resized(self, view: Tensor) -> Tensor:
        return transforms.resize(view, [self.size, self.size], antialias=True) if view.ndim == 4 else view


def _resized(dataset: Dataset, size: int) -> Dataset:
    images = [shape for shape in dataset.shapes if len(shape) == 3]
    # Of `data`, as weights that were trained on images bring a size that nobody gave.
    check(
        len(images) > 0,
        f"data: expected images, to be made {size} x {size} pixels (image_size), got {dataset.name!r}, which has no "
        f"images: an item of it is {join_names([describe_item_shape(shape) for shape in dataset.shapes])}.",
    )
    if all(shape[1:] == (size, size) for shape in images):
        return dataset
    return dataset.with_store(_ResizedStore(dataset.store, size))
