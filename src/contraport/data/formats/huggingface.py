"""Format of Hugging Face datasets on disk, read memory-mapped."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc

from contraport.data.dataset import Dataset
from contraport.data.formats import data_format
from contraport.data.formats.arrow import TableRows, dataset_from_rows
from contraport.data.splits import TEST_NAMES
from contraport.errors import check, check_regular_file, import_optional, unreadable_error

_MARKERS = ("dataset_dict.json", "dataset_info.json", "state.json")

_log = logging.getLogger(__name__)


def is_huggingface_folder(folder: str) -> bool:
    """Return whether a folder was written by `datasets.Dataset.save_to_disk` or `DatasetDict.save_to_disk`."""
    return any(Path(folder, name).is_file() for name in _MARKERS)


@data_format(
    "a dataset of Hugging Face",
    recognizes=is_huggingface_folder,
    options=["image_size", "columns", "test_fraction"],
)
def load_huggingface_folder(folder: str, split: str, **options: Any) -> Dataset:
    """Load one split of a folder written by `save_to_disk`; the options are those of `dataset_from_huggingface`.

    Raises:
        UsageError: the package `datasets` is missing, the folder is corrupt, or a column is invalid.
    """
    datasets = import_optional("datasets", "data", f"data: {folder}, a folder of Hugging Face,")
    try:
        _validate(Path(folder))
        loaded = datasets.load_from_disk(folder)
    except Exception as error:  # parsers raise anything on hostile files
        raise unreadable_error(f"data: {folder}", "a dataset of Hugging Face", error) from error
    return dataset_from_huggingface(loaded, split, Path(folder), **options)


def dataset_from_huggingface(
    loaded: Any,
    split: str,
    path: Path,
    *,
    image_size: int | None = None,
    columns: Mapping[str, Any] | None = None,
    test_fraction: float | None = None,
) -> Dataset:
    """Build one split of a `datasets.Dataset` or `DatasetDict`.

    A `DatasetDict` has splits of its own, ``train`` and ``test`` (or ``validation``). Of a `Dataset`, `test_fraction`
    of each class is held out, by default 0.2. A `ClassLabel` keeps its names.

    Args:
        loaded: the dataset.
        split: "train" or "test".
        path: name of the data in messages; names of image files are relative to it.
        image_size: side of the square images, in pixels.
        columns: roles of the columns; see `contraport.data.formats.column_roles.infer_roles`.
        test_fraction: fraction of each class to hold out if there is one split only.

    Raises:
        UsageError: a column is invalid.
    """
    datasets = import_optional("datasets", "data", f"data: {path}, of Hugging Face,")
    train, test = _select_splits(loaded, str(path)) if isinstance(loaded, datasets.DatasetDict) else (loaded, None)
    whole = train if test is None else datasets.concatenate_datasets([train, test])
    names = {name: tuple(kind.names) for name, kind in whole.features.items() if isinstance(kind, datasets.ClassLabel)}
    return dataset_from_rows(
        TableRows(whole.with_format("arrow")),
        split,
        path=path,
        columns=columns,
        image_size=image_size,
        test_fraction=test_fraction,
        is_test=None if test is None else np.arange(len(whole)) >= len(train),
        class_names=names,
    )


def _validate(folder: Path) -> None:
    """Raise `UsageError` unless the tables of a folder are intact; Arrow would read outside its memory if they are not.

    Only offsets and texts are read, so this is cheap for images and numbers.
    """
    for file in _table_files(folder):
        check_regular_file("data", file)
        with pa.memory_map(str(file)) as source, pa.ipc.open_stream(source) as batches:
            for batch in batches:
                batch.validate(full=True)


def _table_files(folder: Path) -> Iterator[Path]:
    """Yield the files with the rows of all splits."""
    if (folder / "dataset_dict.json").is_file():
        for split in _read_json(folder / "dataset_dict.json")["splits"]:
            yield from _table_files(_inside(folder, split))
    else:
        check_regular_file("data", folder / "dataset_info.json")
        for file in _read_json(folder / "state.json")["_data_files"]:
            yield _inside(folder, file["filename"])


def _read_json(file: Path) -> Any:
    check_regular_file("data", file)
    return json.loads(file.read_text("utf-8"))


def _inside(folder: Path, name: str) -> Path:
    check(Path(name).name == name, f"{name!r} must be a name within {folder}.")
    return folder / name


def _select_splits(loaded: Mapping[str, Any], folder: str) -> tuple[Any, Any]:
    check("train" in loaded, f"data: {folder} must have a split 'train', got {sorted(loaded)}.", "no_train_split")
    found = [name for name in TEST_NAMES if name in loaded]
    unused = sorted(set(loaded) - {"train", *found[:1]})
    if unused:
        _log.info("%s: the splits %s are not used", folder, unused)
    if found:
        same = loaded["train"].features == loaded[found[0]].features
        message = f"data: {folder} must have the same columns in the splits 'train' and {found[0]!r}."
        check(same, message, "splits_differ")
    return loaded["train"], loaded[found[0]] if found else None
