"""What a program holds that is no dataset of ours and none of torch: tables, arrays, lists of paths and of images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from PIL import Image
from torch import Tensor

from contraport._utils.text_tensors import check_nonempty_texts
from contraport.data.arrays import ArrayStore, as_array
from contraport.data.dataset import Dataset
from contraport.data.decoding import SUFFIXES, ImageFiles, median_size, square_pixels
from contraport.data.formats.array_files import dataset_from_arrays
from contraport.data.formats.arrow import TableRows, dataset_from_rows
from contraport.data.formats.column_roles import check_no_columns
from contraport.data.formats.huggingface import dataset_from_huggingface
from contraport.data.source_items import Items
from contraport.data.splits import Positions
from contraport.data.text_store import Texts
from contraport.errors import UsageError, check, unreadable_error


def from_object(
    data: Any,
    split: str = "train",
    *,
    image_size: int | None = None,
    columns: Mapping[str, Any] | None = None,
    test_fraction: float | None = None,
) -> Dataset:
    """Return one split of what a program holds.

    - a ``datasets.Dataset`` or ``DatasetDict``, as a folder of Hugging Face is read;
    - a data frame of pandas or polars, or an Arrow table, as a table in a file is read;
    - an array or tensor, one view; a list of arrays of one shape, an item each; a tuple of arrays, a view each; or a
      dict of arrays by the keys of an ``.npz``, or by the names of several views;
    - a list of texts, of paths of images, or of PIL images.

    Where it marks no test split, `test_fraction` of each class is held out, a fifth by default, as of a file.

    Args:
        data: one of these.
        split: "train" or "test".
        image_size: side of the square that images become; default: their median shorter side, between 8 and 64.
        columns: what the columns of a table are for; see `contraport.data.load`.
        test_fraction: share of each class to hold out.

    Raises:
        UsageError: another kind of object, or what the reader of its kind says.

    >>> import pandas
    >>> frame = pandas.DataFrame({"height": range(10), "width": range(10), "label": ["cat", "dog"] * 5})
    >>> from_object(frame, "test").labels.tolist(), from_object(frame).shapes
    ([0, 1], ((2,),))
    """
    kind = _library(data)
    if kind == "datasets":
        where = Path(type(data).__name__)
        return dataset_from_huggingface(
            data, split, where, image_size=image_size, columns=columns, test_fraction=test_fraction
        )
    if kind in _TABLES:
        rows = TableRows(_arrow(data, kind))
        where = Path(type(data).__name__)
        return dataset_from_rows(
            rows, split, path=where, columns=columns, image_size=image_size, test_fraction=test_fraction
        )
    check_no_columns(columns, f"a {type(data).__name__}")
    if isinstance(data, Mapping):
        return dataset_from_arrays(data, "arrays", split, test_fraction)
    if isinstance(data, np.ndarray | Tensor):
        return dataset_from_arrays({"x": data}, "arrays", split, test_fraction)
    if isinstance(data, tuple) and data and all(isinstance(view, np.ndarray | Tensor) for view in data):
        views = {f"view{place}": view for place, view in enumerate(data)}
        return dataset_from_arrays(views if len(data) > 1 else {"x": data[0]}, "arrays", split, test_fraction)
    if isinstance(data, list | tuple) and len(data) > 0:
        return _of_list(data, split, image_size, test_fraction)
    came = f"{'an empty ' if isinstance(data, list | tuple) else ''}{type(data).__name__}"
    raise UsageError(
        "data: expected a name, a path, a Dataset of ours, of torch or of Hugging Face, a data frame, arrays, or a "
        f"list of texts, paths or images, got {came}."
    )


_TABLES = ("pandas", "polars", "pyarrow")


def _library(data: Any) -> str | None:
    """Return which library of tables an object is of; none is imported for it."""
    for kind in type(data).__mro__:
        library = kind.__module__.partition(".")[0]
        if (library, kind.__name__) in {
            ("datasets", "Dataset"), ("datasets", "DatasetDict"), ("pandas", "DataFrame"), ("polars", "DataFrame"),
            ("pyarrow", "Table"),
        }:  # fmt: skip
            return library
    return None


def _arrow(frame: Any, library: str) -> pa.Table:
    try:
        if library == "pyarrow":
            return frame
        return frame.to_arrow() if library == "polars" else pa.Table.from_pandas(frame, preserve_index=False)
    except Exception as error:  # of columns of objects it raises as its parts do
        raise unreadable_error("data: the data frame", "a table of numbers, lists, texts or bytes", error) from error


def _of_list(data: Sequence[Any], split: str, size: int | None, test_fraction: float | None) -> Dataset:
    if all(isinstance(item, str) for item in data) and Path(data[0]).suffix.lower() not in SUFFIXES:
        check_nonempty_texts("data", data)
        items = Items("texts", len(data), test_fraction=test_fraction)
        return items.dataset(split, [Texts(data)], image_size=None)
    if all(isinstance(item, str | Path) for item in data):
        files = [str(item) for item in data]
        items = Items("files", len(files), keys=files, test_fraction=test_fraction)
        return items.dataset(split, [ImageFiles(tuple(files))], image_size=size)
    if all(isinstance(item, Image.Image) for item in data):
        items = Items("images", len(data), test_fraction=test_fraction)
        return items.dataset(
            split, [_Pictures(data, size or median_size([min(image.size) for image in data]))], image_size=size
        )
    odd = next((item for item in data if not isinstance(item, np.ndarray | Tensor)), None)
    check(
        odd is None,
        f"data: expected a list of texts, of paths, of PIL images or of arrays, got a {type(odd).__name__} in it.",
    )
    shapes = list(dict.fromkeys(tuple(item.shape) for item in data))
    check(
        len(shapes) == 1,
        f"data: expected a list of items of one shape, got {' and '.join(map(str, shapes[:2]))}; views are a tuple.",
    )
    return dataset_from_arrays(
        {"x": np.stack([as_array("data", item) for item in data])}, "arrays", split, test_fraction
    )


@dataclass(frozen=True)
class _Pictures:
    """Makes a store of PIL images, as squares of a size in memory."""

    images: Sequence[Image.Image]
    size: int

    def __call__(self, positions: Positions) -> ArrayStore:
        chosen = (self.images[position] for position in positions.tolist())
        return ArrayStore((torch.stack([square_pixels(image, self.size) for image in chosen]),))
