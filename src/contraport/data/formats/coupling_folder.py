"""Format of a coupling folder: tables of row items, column items, and their pairs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from contraport.data.coupling_datasets import from_coupling
from contraport.data.dataset import Dataset
from contraport.data.formats import data_format
from contraport.data.formats.arrow_columns import read_category_values
from contraport.data.formats.arrow_datasets import TableRows, infer_roles_from_rows
from contraport.data.formats.image_or_text_files import list_relative_paths
from contraport.data.formats.tables import TABLE_SUFFIXES, load_table, read_table
from contraport.data.image_decoding import IMAGE_SUFFIXES
from contraport.data.splits import get_test_and_unused_masks
from contraport.errors import UsageError, check

TABLE_NAMES = ("rows", "columns", "pairs")
"""Names of the three tables of a coupling, without the suffixes of their files."""


def _list_files_with_suffixes(folder: str, stem: str, suffixes: Sequence[str]) -> list[Path]:
    """List the files in a folder with the name `stem` and one of the suffixes."""
    return [path for suffix in suffixes if (path := Path(folder) / f"{stem}{suffix}").is_file()]


def looks_like_coupling_folder(folder: str) -> bool:
    """Return whether a folder has at least two of the tables `rows`, `columns` and `pairs`.

    A folder of images with two tables is a coupling only if one of the tables names image files.
    """
    if not Path(folder).is_dir():
        return False
    tables = [files for name in TABLE_NAMES if (files := _list_files_with_suffixes(folder, name, TABLE_SUFFIXES))]
    if len(tables) in (0, 1, len(TABLE_NAMES)):
        return len(tables) == len(TABLE_NAMES)
    has_images = len(list_relative_paths(Path(folder), IMAGE_SUFFIXES)) > 0
    first_rows = [row for files in tables for file in files for row in read_table(file).slice(0, 1).to_pylist()]
    values = [value for row in first_rows for value in row.values() if isinstance(value, str)]
    return not has_images or any(Path(value).suffix.lower() in IMAGE_SUFFIXES for value in values)


def get_table_files(folder: str) -> dict[str, Path]:
    """Return the file of each table in a coupling folder, by table name."""
    files = {}
    for table_name in TABLE_NAMES:
        tables = _list_files_with_suffixes(folder, table_name, TABLE_SUFFIXES)
        message = f"data: {folder} is a coupling without a table {table_name!r} ({', '.join(TABLE_SUFFIXES)})."
        if not tables and list_relative_paths(Path(folder), IMAGE_SUFFIXES):
            message += " If its images are the data, move its tables to another folder."
        check(len(tables) > 0, message, "no_table")
        names = ", ".join(file.name for file in tables)
        check(len(tables) == 1, f"data: {folder} must have one table {table_name!r}, got {names}.", "tables")
        files[table_name] = tables[0]
    return files


def _get_key_positions(table_name: str, side: Dataset, pair_keys: list[Any], files: dict[str, Path]) -> np.ndarray:
    """Return the row index of each pair's key in a table, int64 ``(pairs,)``."""
    file = files[table_name]
    check(side.keys is not None, f"data: {file} must have a column id, or another role of keys.", "no_keys")
    places: dict[str, int] = {}
    for position, key in enumerate(side.keys or ()):
        first = places.setdefault(key, position)
        message = f"data: {file}: keys must be distinct, got {key!r} in rows {first} and {position}."
        check(first == position, message, "repeats")
    keys = list(map(str, pair_keys))
    missing = [position for position, key in enumerate(keys) if key not in places]
    if missing:
        message = f"data: {files['pairs']}: {len(missing):,} of {len(keys):,} pairs name {table_name} that do not "
        message += f"exist in {file}, the first {keys[missing[0]]!r} in row {missing[0]}."
        raise UsageError(message, kind="unknown_key")
    return np.array([places[key] for key in keys], dtype=np.int64)


@data_format("a coupling", recognizes=looks_like_coupling_folder, options=["image_size", "test_fraction"])
def load_pairs_of_row_and_column_tables(
    folder: str, split: str, image_size: int | None = None, test_fraction: float | None = None
) -> Dataset:
    """Load one split of the pairs in a folder of row, column and pair tables.

    The tables `rows`, `columns` and `pairs` are `.csv`, `.jsonl` or `.parquet` files. Those of rows and columns have a
    column of keys (such as ``id``) and one view. The table of pairs has the columns ``row`` and ``column`` with these
    keys, and optionally ``weight`` and ``split``. See `from_coupling`.
    """
    files = get_table_files(folder)
    sides = {}
    for table_name in TABLE_NAMES[:2]:
        side = load_table(str(files[table_name]), "train", image_size=image_size, test_fraction=0)
        if side.is_first_view_image:  # named by the column of keys, instead of by their paths
            keyed = read_table(files[table_name])
            name = infer_roles_from_rows(TableRows(keyed), None, str(files[table_name])).column_by_role["keys"]
            if name is not None:
                keys = read_category_values(keyed, name, str(files[table_name])).astype(np.str_)
                side.keys = keys[side.source_rows].tolist()
        sides[table_name] = side
    table = read_table(str(files["pairs"]))
    check(table.num_rows > 0, f"data: {files['pairs']} has no pairs.", "empty")
    for column in ("row", "column"):
        message = f"data: {files['pairs']} must have a column {column!r}, got {table.column_names}."
        check(column in table.column_names, message, "missing_column")
    places = [
        _get_key_positions(table_name, sides[table_name], table.column(column).to_pylist(), files)
        for table_name, column in (("rows", "row"), ("columns", "column"))
    ]
    pairs = np.stack(places, axis=1)
    weights = table.column("weight").to_numpy() if "weight" in table.column_names else None
    is_test = None
    if "split" in table.column_names:
        splits = np.array(table.column("split").to_pylist(), dtype=str)
        is_test, left_out = get_test_and_unused_masks(splits, str(files["pairs"]), loaded_split=split)
        is_used = ~left_out
        pairs, weights = pairs[is_used], None if weights is None else weights[is_used]
        is_test = None if is_test is None else is_test[is_used]
    return from_coupling(
        sides["rows"],
        sides["columns"],
        pairs,
        weights,
        name=folder,
        split=split,
        test_fraction=test_fraction,
        is_test=is_test,
    )
