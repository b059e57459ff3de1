"""Tables in files: `.csv` with a line of names, `.jsonl` with an object in each line, and `.parquet`."""

from __future__ import annotations

import csv
import json
import os
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from contraport._utils.files import atomic_write
from contraport.data.dataset import Dataset
from contraport.data.formats.arrow import TableRows, dataset_from_rows, explode_text_lists, resolve_roles
from contraport.data.formats.column_roles import DOMAIN_NAMES, KEY_NAMES, LABEL_NAMES
from contraport.data.formats.columns import holds_strings, holds_texts, is_number_text
from contraport.data.formats.format import data_format
from contraport.errors import UsageError, check, unreadable_error

_LARGEST_BLOCK = 2**31 - 1
_LONGEST_HEADING = 100_000


_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_NAMING = ("labels", "domains", "keys", "sequence")
_NAMED = {
    name: role
    for role, names in zip(_NAMING[:3], (LABEL_NAMES, DOMAIN_NAMES, KEY_NAMES), strict=True)
    for name in names
}
"""What columns of names are for, and what they are called that are for it unless it is said."""

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

    `contraport.data.formats.column_roles.infer_roles` says what its columns are for. Without a column of splits
    `test_fraction` of each class is held out, a fifth by default. Columns may name image files, relative to the table's
    folder; those that cannot be read are left out, logged, and listed in ``skipped``.

    Raises:
        UsageError: the file is corrupt, or a column or its values are not what they should be.
    """
    rows = TableRows(read_table(path, columns))
    return dataset_from_rows(
        rows, split, path=Path(path), columns=columns, image_size=image_size, test_fraction=test_fraction
    )


def read_table(path: str | Path, columns: Mapping[str, Any] | None = None) -> pa.Table:
    """Return the table in a file.

    Args:
        path: the file.
        columns: what its columns are for; see `resolve_roles`. Of `.csv`, where all is text, those of names (of
        classes,
            domains, sequences and rows) are texts unless they are whole numbers as one writes them: 007 is no 7.

    Raises:
        UsageError: it is corrupt, or has no names of columns.
    """
    file = Path(path)
    try:
        table = _read_csv(file, columns or {}) if file.suffix == ".csv" else _READERS[file.suffix](file)
        table.validate(full=True)  # Arrow itself follows corrupt offsets out of the memory that it has
    except UsageError:
        raise
    except Exception as error:  # on hostile bytes the parsers raise whatever they like
        raise unreadable_error(f"data: {path}", file.suffix, error) from error
    return table


def write_table(table: pa.Table, path: Path) -> None:
    """Write a table to a `.csv`, `.jsonl` or `.parquet` file, whole or not at all."""
    with atomic_write(path) as temporary:
        if path.suffix == ".csv":
            with temporary.open("w", encoding="utf-8", newline="") as file:
                rows = csv.writer(file, lineterminator="\n")
                rows.writerow(table.schema.names)
                rows.writerows(zip(*(column.to_pylist() for column in table.columns), strict=True))
        elif path.suffix == ".parquet":
            pa.parquet.write_table(table, temporary)
        else:
            lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in table.to_pylist())
            temporary.write_text("".join(lines), encoding="utf-8")


def explode_texts(table: pa.Table, columns: Mapping[str, Any] | None, where: str) -> tuple[pa.Table, np.ndarray]:
    """Return a table with a row for each text where a column holds lists of them, and of which row each is.

    Args:
        table: with all rows.
        columns: what its columns are for; see `resolve_roles`.
        where: what messages call it.
    """
    rows, sources = explode_text_lists(TableRows(table), resolve_roles(TableRows(table), columns, where).views)
    return rows.read(), sources


def rewrite_rows(
    table: pa.Table,
    written: pa.Table,
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
        written: the same as it stands in its file, which is changed: of `.csv`, texts.
        columns: what its columns are for; see `resolve_roles`.
        where: what messages call it.
        view: the number of the view.
        partners: the row whose view each row gets, int64 ``(rows,)``.
        kept: which rows stay, Booleans ``(rows,)``.
        here: where it was; names of files are relative to that.
        there: where it will be.
    """
    roles = resolve_roles(TableRows(table), columns, where)
    check(roles.sequence is None, f"data: {where}: expected an item in each row, got sequences of rows.")
    for name in roles.views[view]:
        place = written.schema.get_field_index(name)
        written = written.set_column(place, written.schema.field(place), written.column(name).take(pa.array(partners)))
    for name in {name for names in roles.views for name in names}:
        if holds_strings(table.schema.field(name)) and not holds_texts(table, name):
            place = written.schema.get_field_index(name)
            files = [name and os.path.relpath(here.parent / name, there.parent) for name in written[name].to_pylist()]
            written = written.set_column(place, name, pa.array(files, pa.string()))
    return written.filter(pa.array(kept))


def add_number_column(table: pa.Table, name: str, numbers: np.ndarray) -> pa.Table:
    """Return a table with a further column, which takes the place of one of that name."""
    rest = table.drop_columns([name]) if name in table.schema.names else table
    return rest.append_column(name, pa.array(numbers))


def read_csv_as_text(path: Path) -> pa.Table:
    """Return the table in a `.csv` file, each cell the text that stands there."""
    return _parsed(path, dict.fromkeys(_parsed(path, {}).schema.names, pa.string()))


def _read_csv(path: Path, columns: Mapping[str, Any]) -> pa.Table:
    size = path.stat().st_size
    check(size > 0, f"data: {path} is empty.")
    with path.open("rb") as file:
        heading = file.readline(_LONGEST_HEADING)
    check(not heading.startswith(_UTF16), f"data: {path}: expected text of UTF-8, got UTF-16; save it as UTF-8.")
    # Else a row would be one text, which can be learned from as any other.
    commas = b"," in heading or not (b";" in heading or b"\t" in heading)
    got = repr(heading.decode("utf-8", "replace").rstrip("\r\n"))
    check(
        commas,
        f"data: {path}: expected commas between columns, got the first line {textwrap.shorten(got, 60)}; save it with "
        "commas, or read it with pandas and pass the data frame.",
    )
    table = _parsed(path, {})
    headed = not all(is_number_text(name) for name in table.schema.names)
    check(headed, f"data: {path}: expected the names of the columns in the first line, got {table.schema.names[:5]}.")
    foreign = next((field.name for field in table.schema if pa.types.is_binary(field.type)), None)
    told = f"data: {path}: column {foreign!r}: expected text of UTF-8, got other bytes; save the file as UTF-8."
    check(foreign is None, told)
    return _with_names(table, path, columns)


def _parsed(path: Path, types: Mapping[str, pa.DataType]) -> pa.Table:
    """Return the table in a `.csv` file; of columns whose types are given, these alone."""
    whole = min(path.stat().st_size + 1, _LARGEST_BLOCK)  # types are guessed from the first block
    return pa.csv.read_csv(
        path,
        read_options=pa.csv.ReadOptions(block_size=whole),
        convert_options=pa.csv.ConvertOptions(column_types=dict(types), include_columns=list(types)),
    )


def _with_names(table: pa.Table, path: Path, columns: Mapping[str, Any]) -> pa.Table:
    """Return a table whose columns of names are the texts in the file, unless these are no more than their values."""
    roles = {name: role for role, name in columns.items() if isinstance(name, str)}
    called = {name: roles.get(name, _NAMED.get(name.lower())) for name in table.schema.names}
    names = [name for name, role in called.items() if role in _NAMING]
    guessed = [name for name in names if not holds_strings(table.schema.field(name))]
    if not guessed or len(set(table.schema.names)) < len(table.schema.names):  # those of one name are told elsewhere
        return table
    texts = _parsed(path, dict.fromkeys(guessed, pa.string()))
    for name in guessed:
        kind, written = table.schema.field(name).type, pc.utf8_trim_whitespace(texts.column(name))
        if pa.types.is_integer(kind):
            as_texts = pc.fill_null(pc.cast(table.column(name), pa.string()), written)
            stays = bool(pc.all(pc.equal(as_texts, written)).as_py())
        else:  # numbers may be what is to be told of the items, and truth values are two classes in any writing
            numbers = pa.types.is_floating(kind) and called[name] == "labels"
            stays = numbers or pa.types.is_boolean(kind) or pa.types.is_null(kind)
        if not stays:
            table = table.set_column(table.schema.get_field_index(name), name, written)
    return table


def _read_json_lines(path: Path) -> pa.Table:
    size = path.stat().st_size
    check(size > 0, f"data: {path} is empty.")
    options = pa.json.ReadOptions(block_size=min(size + 1, _LARGEST_BLOCK))
    table = pa.json.read_json(path, read_options=options)
    dated = [field.name for field in table.schema if pa.types.is_timestamp(field.type)]
    if not dated:
        return table
    texts = pa.schema([(name, pa.string()) for name in dated])  # what stands there: JSON has no other dates
    return pa.json.read_json(path, read_options=options, parse_options=pa.json.ParseOptions(explicit_schema=texts))


def _read_parquet(path: Path) -> pa.Table:
    return pa.parquet.read_table(path, partitioning=None)


_READERS = {".jsonl": _read_json_lines, ".parquet": _read_parquet}
