"""Tables in files: `.csv` with a line of names, `.jsonl` with an object in each line, and `.parquet`."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from contraport.data.dataset import Dataset
from contraport.data.formats.arrow import TableRows, dataset_of_rows, one_text_each
from contraport.data.formats.columns import holds_strings, holds_texts, tells_number
from contraport.data.formats.format import data_format
from contraport.data.formats.roles import assign_roles
from contraport.errors import UsageError, cannot_read, check
from contraport.files import replacing

_LARGEST_BLOCK = 2**31 - 1
_LONGEST_HEADING = 100_000


SUFFIXES = (".csv", ".jsonl", ".parquet")


@data_format("a table", suffixes=SUFFIXES, takes=["image_size", "columns", "test_fraction"])
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
    rows = TableRows(read_table(path))
    return dataset_of_rows(
        rows, split, path=Path(path), columns=columns, image_size=image_size, test_fraction=test_fraction
    )


def read_table(path: str | Path) -> pa.Table:
    """Return the table in a file.

    Raises:
        UsageError: it is corrupt, or has no names of columns.
    """
    file = Path(path)
    try:
        table = _READERS[file.suffix](file)
        table.validate(full=True)  # Arrow itself follows corrupt offsets out of the memory that it has
    except UsageError:
        raise
    except Exception as error:  # on hostile bytes the parsers raise whatever they like
        raise cannot_read(f"data: {path}", file.suffix, error) from error
    return table


def write_table(table: pa.Table, path: Path) -> None:
    """Write a table to a `.csv`, `.jsonl` or `.parquet` file, whole or not at all."""
    with replacing(path) as temporary:
        if path.suffix == ".csv":
            pa.csv.write_csv(table, temporary)
        elif path.suffix == ".parquet":
            pa.parquet.write_table(table, temporary)
        else:
            lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in table.to_pylist())
            temporary.write_text("".join(lines), encoding="utf-8")


def a_text_each(table: pa.Table, columns: Mapping[str, Any] | None, where: str) -> tuple[pa.Table, np.ndarray]:
    """Return a table with a row for each text where a column holds lists of them, and of which row each is.

    Args:
        table: with all rows.
        columns: what its columns are for; see `assign_roles`.
        where: what messages call it.
    """
    rows, sources = one_text_each(TableRows(table), assign_roles(table.schema, columns, where).views)
    return rows.read(), sources


def rearranged(
    table: pa.Table,
    columns: Mapping[str, Any] | None,
    where: str,
    *,
    view: int,
    partners: np.ndarray,
    kept: np.ndarray,
    here: Path,
    there: Path,
) -> pa.Table:
    """Return a table with some of its rows, in which a view is that of other rows.

    Args:
        table: with all rows.
        columns: what its columns are for; see `assign_roles`.
        where: what messages call it.
        view: the number of the view.
        partners: the row whose view each row gets, int64 ``(rows,)``.
        kept: which rows stay, Booleans ``(rows,)``.
        here: where it was; names of files are relative to that.
        there: where it will be.
    """
    roles = assign_roles(table.schema, columns, where)
    check(roles.sequence is None, f"data: {where}: expected an item in each row, got sequences of rows.")
    for name in roles.views[view]:
        place = table.schema.get_field_index(name)
        table = table.set_column(place, table.schema.field(place), table.column(name).take(pa.array(partners)))
    for name in {name for names in roles.views for name in names}:
        if holds_strings(table.schema.field(name)) and not holds_texts(table, name):
            place = table.schema.get_field_index(name)
            files = [name and os.path.relpath(here.parent / name, there.parent) for name in table[name].to_pylist()]
            table = table.set_column(place, name, pa.array(files, pa.string()))
    return table.filter(pa.array(kept))


def with_numbers(table: pa.Table, name: str, numbers: np.ndarray) -> pa.Table:
    """Return a table with a further column, which takes the place of one of that name."""
    rest = table.drop_columns([name]) if name in table.schema.names else table
    return rest.append_column(name, pa.array(numbers))


def _read_csv(path: Path) -> pa.Table:
    size = path.stat().st_size
    check(size > 0, f"data: {path} is empty.")
    with path.open("rb") as file:
        heading = file.readline(_LONGEST_HEADING)
    # Else a row would be one text, which can be learned from as any other.
    commas = b"," in heading or not (b";" in heading or b"\t" in heading)
    got = repr(heading.decode("utf-8", "replace").rstrip("\r\n"))
    check(
        commas,
        f"data: {path}: expected commas between columns, got the first line {textwrap.shorten(got, 60)}; save it with "
        "commas, or read it with pandas and pass the data frame.",
    )
    one_block = pa.csv.ReadOptions(block_size=min(size + 1, _LARGEST_BLOCK))  # types are guessed from the first block
    table = pa.csv.read_csv(path, read_options=one_block)
    headed = not all(tells_number(name) for name in table.schema.names)
    check(headed, f"data: {path}: expected the names of the columns in the first line, got {table.schema.names[:5]}.")
    return table


def _read_json_lines(path: Path) -> pa.Table:
    size = path.stat().st_size
    check(size > 0, f"data: {path} is empty.")
    return pa.json.read_json(path, read_options=pa.json.ReadOptions(block_size=min(size + 1, _LARGEST_BLOCK)))


def _read_parquet(path: Path) -> pa.Table:
    return pa.parquet.read_table(path, partitioning=None)


_READERS = {".csv": _read_csv, ".jsonl": _read_json_lines, ".parquet": _read_parquet}
