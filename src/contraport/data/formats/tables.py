"""Tables in files: `.csv` with a line of names, `.jsonl` with an object in each line, and `.parquet`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from contraport.data.dataset import Dataset
from contraport.data.formats.arrow import TableRows, dataset_of_rows
from contraport.data.formats.columns import is_number
from contraport.data.formats.format import data_format
from contraport.errors import UsageError, cannot_read, check

_LARGEST_BLOCK = 2**31 - 1


@data_format("a table", suffixes=[".csv", ".jsonl", ".parquet"], takes=["image_size", "columns", "test_fraction"])
def load_table(
    path: str,
    split: str,
    image_size: int | None = None,
    columns: Mapping[str, Any] | None = None,
    test_fraction: float | None = None,
) -> Dataset:
    """Return one split of a `.csv`, `.jsonl` or `.parquet` file.

    `contraport.data.formats.roles.assign_roles` says what its columns are for. Without a column of splits
    `test_fraction` of each class is held out, a fifth by default. Columns may name image files, relative to the table's
    folder; those that cannot be read are left out, logged, and listed in ``skipped``.

    Raises:
        UsageError: the file is corrupt, or a column or its values are not what they should be.
    """
    file = Path(path)
    try:
        table = _READERS[file.suffix](file)
        table.validate(full=True)  # Arrow itself follows corrupt offsets out of the memory that it has
    except UsageError:
        raise
    except Exception as error:  # on hostile bytes the parsers raise whatever they like
        raise cannot_read(f"data: {path}", file.suffix, error) from error
    return dataset_of_rows(
        TableRows(table), split, path=file, columns=columns, image_size=image_size, test_fraction=test_fraction
    )


def _read_csv(path: Path) -> pa.Table:
    size = path.stat().st_size
    check(size > 0, f"data: {path} is empty.")
    one_block = pa.csv.ReadOptions(block_size=min(size + 1, _LARGEST_BLOCK))  # types are guessed from the first block
    table = pa.csv.read_csv(path, read_options=one_block)
    headed = not all(is_number(name) for name in table.schema.names)
    check(headed, f"data: {path}: expected the names of the columns in the first line, got {table.schema.names[:5]}.")
    return table


def _read_json_lines(path: Path) -> pa.Table:
    size = path.stat().st_size
    check(size > 0, f"data: {path} is empty.")
    return pa.json.read_json(path, read_options=pa.json.ReadOptions(block_size=min(size + 1, _LARGEST_BLOCK)))


def _read_parquet(path: Path) -> pa.Table:
    return pa.parquet.read_table(path, partitioning=None)


_READERS = {".csv": _read_csv, ".jsonl": _read_json_lines, ".parquet": _read_parquet}
