"""Hugging Face datasets on disk, memory-mapped."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc

from contraport.data.dataset import Dataset
from contraport.data.formats.arrow import dataset_from_rows
from contraport.data.formats.format import data_format
from contraport.data.splits import TEST_NAMES, Positions
from contraport.errors import check, check_regular_file, import_optional, unreadable_error

_MARKS = ("dataset_dict.json", "dataset_info.json", "state.json")

_log = logging.getLogger(__name__)


def is_huggingface_folder(folder: str) -> bool:
    """Return whether a folder was written by `datasets.Dataset.save_to_disk` or `DatasetDict.save_to_disk`."""
    return any(Path(folder, name).is_file() for name in _MARKS)


@dataclass(frozen=True)
class HuggingFaceRows:
    """Rows of a `datasets.Dataset` in the format "arrow"."""

    dataset: Any
    in_memory: bool = False

    @property
    def schema(self) -> pa.Schema:
        """The names and types of the columns."""
        return self.dataset.features.arrow_schema

    def __len__(self) -> int:
        return len(self.dataset)

    def read(self, positions: list[int] | None = None) -> pa.Table:
        """Return the rows at some positions, or all."""
        return self.dataset[:] if positions is None else self.dataset[positions]

    def select(self, names: list[str]) -> HuggingFaceRows:
        """Return some of the columns."""
        return HuggingFaceRows(self.dataset.select_columns(names))

    def take(self, positions: Positions) -> HuggingFaceRows:
        """Return some of the rows."""
        return HuggingFaceRows(self.dataset.select(positions))


@data_format(
    "a dataset of Hugging Face",
    recognizes=is_huggingface_folder,
    takes=["image_size", "columns", "test_fraction"],
)
def load_huggingface(
    folder: str,
    split: str,
    image_size: int | None = None,
    columns: Mapping[str, Any] | None = None,
    test_fraction: float | None = None,
) -> Dataset:
    """Return one split of a folder that `save_to_disk` wrote.

    A `DatasetDict` brings its splits, ``train`` and ``test`` (or ``validation``); of each class of a `Dataset`
    `test_fraction` is held out, a fifth by default.
    `contraport.data.formats.column_roles.infer_roles` says what the columns are for; a `ClassLabel` keeps its names.

    Raises:
        UsageError: the package `datasets` is missing, the folder is corrupt, or a column is not what it should be.
    """
    datasets = import_optional("datasets", "data", f"data: {folder}, a folder of Hugging Face,")
    try:
        _validate(Path(folder))
        loaded = datasets.load_from_disk(folder)
    except Exception as error:  # on hostile files it raises whatever its parsers do
        raise unreadable_error(f"data: {folder}", "a dataset of Hugging Face", error) from error
    return dataset_from_huggingface(
        loaded, split, Path(folder), image_size=image_size, columns=columns, test_fraction=test_fraction
    )


def dataset_from_huggingface(
    loaded: Any,
    split: str,
    path: Path,
    *,
    image_size: int | None = None,
    columns: Mapping[str, Any] | None = None,
    test_fraction: float | None = None,
) -> Dataset:
    """Return one split of a `datasets.Dataset` or `DatasetDict`; see `load_huggingface`.

    Args:
        loaded: the one or the other.
        split: "train" or "test".
        path: what messages call it; names of image files are relative to it.
        image_size: side of the square that images become, in pixels.
        columns: what the columns are for.
        test_fraction: share of each class to hold out where there is one split only.

    Raises:
        UsageError: a column is not what it should be.
    """
    datasets = import_optional("datasets", "data", f"data: {path}, of Hugging Face,")
    train, test = _splits(loaded, str(path)) if isinstance(loaded, datasets.DatasetDict) else (loaded, None)
    whole = train if test is None else datasets.concatenate_datasets([train, test])
    names = {name: tuple(kind.names) for name, kind in whole.features.items() if isinstance(kind, datasets.ClassLabel)}
    return dataset_from_rows(
        HuggingFaceRows(whole.with_format("arrow")),
        split,
        path=path,
        columns=columns,
        image_size=image_size,
        test_fraction=test_fraction,
        is_test=None if test is None else np.arange(len(whole)) >= len(train),
        class_names=names,
    )


def _validate(folder: Path) -> None:
    """Raise unless the tables of a folder are whole: Arrow itself follows corrupt offsets out of the memory it has.

    Only offsets and texts are read, so this takes little for images and numbers.
    """
    for file in _tables(folder):
        check_regular_file("data", file)
        with pa.memory_map(str(file)) as source, pa.ipc.open_stream(source) as batches:
            for batch in batches:
                batch.validate(full=True)


def _tables(folder: Path) -> Iterator[Path]:
    """Yield the files that hold the rows, of all splits."""
    if (folder / "dataset_dict.json").is_file():
        for split in _read_json(folder / "dataset_dict.json")["splits"]:
            yield from _tables(_inside(folder, split))
    else:
        check_regular_file("data", folder / "dataset_info.json")
        for file in _read_json(folder / "state.json")["_data_files"]:
            yield _inside(folder, file["filename"])


def _read_json(file: Path) -> Any:
    check_regular_file("data", file)
    return json.loads(file.read_text("utf-8"))


def _inside(folder: Path, name: str) -> Path:
    check(Path(name).name == name, f"expected a name within {folder}, got {name!r}.")
    return folder / name


def _splits(loaded: Mapping[str, Any], folder: str) -> tuple[Any, Any]:
    check("train" in loaded, f"data: {folder}: expected a split 'train', got {sorted(loaded)}.")
    found = [name for name in TEST_NAMES if name in loaded]
    left_out = sorted(set(loaded) - {"train", *found[:1]})
    if left_out:
        _log.info("%s: the splits %s are left out", folder, left_out)
    if found:
        same = loaded["train"].features == loaded[found[0]].features
        check(same, f"data: {folder}: expected the same columns in the splits 'train' and {found[0]!r}.")
    return loaded["train"], loaded[found[0]] if found else None
