"""Loading of data from a name, path, URL or object."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from PIL import Image
from torch import Tensor

from contraport._utils.formatting import describe_item_shape, join_names
from contraport._utils.lazy_imports import import_object
from contraport._utils.text_bytes import check_nonblank_texts
from contraport.catalog import DATASETS
from contraport.data.array_datasets import as_array, check_equal_shapes
from contraport.data.dataset import Dataset
from contraport.data.formats import FORMATS, find_format
from contraport.data.formats.array_files import dataset_from_arrays
from contraport.data.formats.arrow_datasets import TableRows, dataset_from_huggingface, dataset_from_rows
from contraport.data.formats.column_roles import check_no_columns
from contraport.data.image_decoding import IMAGE_SUFFIXES, ImageFilePaths, compute_clipped_median_size, to_square_tensor
from contraport.data.item_metadata import ItemFilesBytesOrStore, ItemMetadata
from contraport.data.sources.benchmark_data import get_download_folder
from contraport.data.sources.torch_datasets_and_streams import from_stream, from_torch, is_stream, resize_if_images
from contraport.data.sources.url_cache import download_if_new_or_changed, is_remote
from contraport.data.stores import ArrayStore, PackedTextStore, TransformedStore
from contraport.errors import (
    UsageError,
    check,
    hint_on_error,
    translate_read_errors,
    unknown_name_error,
    unreadable_error,
)


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
    """Load one split of data from a name, path, URL or object.

    Args:
        data: a name of `contraport.catalog.list_datasets`; a folder of images, of webdataset shards or of a Hugging
            Face dataset; the path of an ``.npz``, ``.npy``, ``.csv``, ``.jsonl``, ``.parquet``, ``.txt`` or ``.tar``
            file, the last also with braces as in ``train-{000..003}.tar``. A name takes precedence over a folder of
            the same name; write ``./digits`` for the folder. A URL of one of these is downloaded once by fsspec. An
            object is handled by `from_object`, `from_torch` or `from_stream`; a `Dataset` is returned for any split.
        split: "train" or "test".
        root: folder of named data, in the layout of torchvision or of the package that contains them.
        image_size: side of the square images, in pixels; default: their own, and for encoded images the median shorter
            side, between 8 and 64.
        columns: roles of the columns of a table that their names do not imply: ``"views"``, a list with a column, a
            pattern such as ``"audio_*"`` or a list of columns for each view; ``"labels"``, ``"numbers"``,
            ``"domains"``, ``"split"``, ``"weights"`` and ``"keys"``, a column each; and ``"sequence"``, the column
            whose equal values mark the rows that are the frames of one time series, in order.
        test_fraction: fraction of each class (of each domain) to hold out if the data have no test split; 0 holds out
            none; default: 0.2.
        ignore_labels: whether to drop classes that the data define, such as folders.

    Raises:
        UsageError: an unknown name, a missing or unreadable file or folder, or an invalid argument.

    >>> len(load("digits", "train")), len(load("digits", "test"))
    (1348, 449)
    """
    check(split in ("train", "test"), f"split: must be 'train' or 'test', got {split!r}.")
    good = test_fraction is None or (isinstance(test_fraction, int | float) and 0 <= test_fraction < 1)
    check(good, f"test_fraction: must be at least 0 (holds out none) and below 1, got {test_fraction!r}.")
    good = image_size is None or (isinstance(image_size, int) and 0 < image_size <= 2**14)
    check(good, f"image_size: must be an integer from 1 to {2**14} (pixels), got {image_size!r}.")
    options: dict[str, Any] = {"image_size": image_size, "columns": columns, "test_fraction": test_fraction}
    if isinstance(data, str | Path):
        folder = None if root is None else Path(root)
        dataset = _load_name_path_or_url(str(data), split, folder, ignore_labels=ignore_labels, **options)
    elif isinstance(data, torch.utils.data.Dataset) or is_stream(data):
        kind = "stream" if is_stream(data) else "dataset"
        check(test_fraction is None, f"test_fraction: must not be given for a {kind}, got {test_fraction}.", "conflict")
        check_no_columns(columns, f"a {kind}")
        if kind == "stream":
            message = "data: a stream has no test split; give another dataset, or data with a test split."
            check(split == "train", message, "no_test_split")
            source: Any = data
            return from_stream(source, image_size=image_size, labels=not ignore_labels)
        dataset = data if isinstance(data, Dataset) else from_torch(data, split=split, image_size=image_size)
    else:
        dataset = from_object(data, split, **options)
    if ignore_labels and dataset.labels is not None:
        dataset = dataset.replace_fields(labels=None, class_names=None)
    if image_size is None:
        return dataset
    images = [shape for shape in dataset.shapes if len(shape) == 3]
    # The argument at fault is the data: pretrained weights imply an image size that the user did not pass.
    items = join_names([describe_item_shape(shape) for shape in dataset.shapes])
    message = f"data: must have images, as the encoder or image_size sets {image_size} x {image_size} pixels; an item "
    check(len(images) > 0, f"{message}of {dataset.name!r} is {items}.", "not_images")
    square = (image_size, image_size)
    if all(shape[1:] == square for shape in images):
        return dataset
    shapes = tuple((shape[0], *square) if len(shape) == 3 else shape for shape in dataset.shapes)
    return dataset.with_store(TransformedStore(dataset.store, partial(_resize_images, size=image_size), shapes))


def _resize_images(views: tuple[Tensor, ...], _positions: Tensor, *, size: int) -> tuple[Tensor, ...]:
    """Resize image views to squares."""
    return tuple(resize_if_images(view, size) for view in views)


def load_split_or_all_items(data: Any, split: str = "train", **options: Any) -> Dataset:
    """Load a dataset split, or all items if the source defines none.

    A dataset is a single split and is returned unchanged. The arguments are those of `load`, except `test_fraction`.

    >>> len(load([f"text {i}" for i in range(10)])), len(load_split_or_all_items([f"text {i}" for i in range(10)]))
    (8, 10)
    """
    if isinstance(data, list) and split == "train":  # the source defines no splits
        return load(data, split, test_fraction=0, **options)
    dataset = load(data, split, **options)
    if isinstance(data, torch.utils.data.Dataset) or not dataset.num_random_test_items:
        return dataset
    del dataset  # before all items are loaded
    return load(data, "train", test_fraction=0, **options)


def _load_name_path_or_url(data: str, split: str, root: Path | None, **options: Any) -> Dataset:
    """Load one split of named data, or of a path or URL."""
    if is_remote(data):
        local_copy = download_if_new_or_changed(data, get_download_folder(root) / "remote")
        dataset = _load_name_path_or_url(local_copy, split, root, **options)
        dataset.name = data  # messages name the URL, not the local copy
        return dataset
    source, path = DATASETS.get(data), Path(data)
    if source is not None:
        check_no_columns(options["columns"], repr(data))
        message = f"test_fraction: must not be given, as the test split of {data!r} is fixed; got "
        check(options["test_fraction"] is None, f"{message}{options['test_fraction']}.", "conflict")
        named: Dataset = import_object(source.reader_path)(split, root)
        return named
    special = path.exists() and not (path.is_file() or path.is_dir())
    check(not special, f"data: must be a folder or a regular file, got {data!r}, which is neither.", "not_regular")
    try:
        if (data_format := find_format(data)) is not None:
            if "columns" not in data_format.options:
                check_no_columns(options["columns"], repr(data))
            return data_format.read(data, split, **{name: options[name] for name in data_format.options})
    except PermissionError as error:
        raise unreadable_error(f"data: {data}", "data", error) from error
    suffixes = [suffix for entry in FORMATS.values() for suffix in entry.suffixes]
    message = f"data: must be a folder of images or a file with suffix {', '.join(suffixes)}, got {data!r}."
    check(not path.is_file(), message, "unknown_format")
    if path.suffix in suffixes or len(path.parts) > 1 or data.endswith(("/", os.sep)):
        raise UsageError(f"data: there is no file or folder {data!r}.", kind="not_found")
    unknown = unknown_name_error("data", data, DATASETS, list_command="contraport list data")
    raise UsageError(f"{unknown} There is no file or folder of that name either.", kind="unknown")


def from_object(
    data: Any,
    split: str = "train",
    *,
    image_size: int | None = None,
    columns: Mapping[str, Any] | None = None,
    test_fraction: float | None = None,
) -> Dataset:
    """Build the dataset of one split from an object in memory.

    The other arguments are those of `load`. The object is

    - a ``datasets.Dataset`` or ``DatasetDict``, like a Hugging Face folder;
    - a data frame of pandas or polars, or an Arrow table, like a table in a file;
    - an array or tensor, one view; a list of arrays of one shape, one item each; a tuple of arrays, one view each; or
      a dict of arrays by the keys of an ``.npz``, or by the names of several views;
    - a list of texts, of paths of images, or of PIL images.

    Raises:
        UsageError: another kind of object, or as the reader of its kind.

    >>> import pandas
    >>> frame = pandas.DataFrame({"height": range(10), "width": range(10), "label": ["cat", "dog"] * 5})
    >>> from_object(frame, "test").labels.tolist(), from_object(frame).shapes
    ([0, 1], ((2,),))
    """
    # The library of a table object, found by the names of its types, so that it is not imported.
    names = ("datasets.Dataset", "datasets.DatasetDict", "pandas.DataFrame", "polars.DataFrame", "pyarrow.Table")
    kinds = [(kind.__module__.partition(".")[0], kind.__name__) for kind in type(data).__mro__]
    library = next((module for module, name in kinds if f"{module}.{name}" in names), None)
    path = Path(type(data).__name__)
    options: dict[str, Any] = {"image_size": image_size, "columns": columns, "test_fraction": test_fraction}
    if library == "datasets":
        return dataset_from_huggingface(data, split, path, **options)
    if library is not None:
        table = data
        if library != "pyarrow":
            with translate_read_errors("data: the data frame", "a table of numbers, lists, texts or bytes"):
                table = data.to_arrow() if library == "polars" else pa.Table.from_pandas(data, preserve_index=False)
        return dataset_from_rows(TableRows(table), split, path=path, **options)
    check_no_columns(columns, f"a {type(data).__name__}")
    if isinstance(data, np.ndarray | Tensor):
        data = {"x": data}
    elif isinstance(data, tuple) and data and all(isinstance(view, np.ndarray | Tensor) for view in data):
        data = {f"view{place}": view for place, view in enumerate(data)} if len(data) > 1 else {"x": data[0]}
    if isinstance(data, Mapping):
        return dataset_from_arrays({str(key): array for key, array in data.items()}, "arrays", split, test_fraction)
    if isinstance(data, list | tuple) and len(data) > 0:
        return _build_dataset_from_items(data, split, image_size, test_fraction)
    kind = f"{'an empty ' if isinstance(data, list | tuple) else ''}{type(data).__name__}"
    raise UsageError(
        "data: must be a name, a path, a Dataset of contraport, torch or Hugging Face, a data frame, arrays, or a list "
        f"of texts, paths or images, got {kind}.",
        kind="unknown_object",
    )


def _build_dataset_from_items(
    items: Sequence[Any], split: str, image_size: int | None, test_fraction: float | None
) -> Dataset:
    """Build one split from a list of paths, images, texts or arrays."""
    view: ItemFilesBytesOrStore | None = None
    metadata = ItemMetadata("images", len(items), test_fraction=test_fraction)
    if all(isinstance(item, str) for item in items) and Path(items[0]).suffix.lower() not in IMAGE_SUFFIXES:
        check_nonblank_texts("data", items)
        metadata, view = replace(metadata, data_name="texts"), PackedTextStore.from_texts(items, "data")
    elif all(isinstance(item, str | Path) for item in items):
        files = tuple(map(str, items))
        metadata, view = replace(metadata, data_name="files", keys=files), ImageFilePaths(files)
    elif all(isinstance(item, Image.Image) for item in items):
        side = image_size or compute_clipped_median_size([min(image.size) for image in items])
        view = ArrayStore((torch.stack([to_square_tensor(image, side) for image in items]),))
    if view is not None:
        return metadata.build_split_dataset(split, [view], image_size=image_size)
    odd = next((item for item in items if not isinstance(item, np.ndarray | Tensor)), None)
    got = type(odd).__name__
    message = f"data: must be a list of texts, of paths, of PIL images or of arrays, got an item of type {got}."
    check(odd is None, message, "unknown_object")
    check_equal_shapes("data", items)
    stacked = np.stack([as_array("data", item) for item in items])
    return dataset_from_arrays({"x": stacked}, "arrays", split, test_fraction)
