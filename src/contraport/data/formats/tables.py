"""Formats of tables in `.csv`, `.jsonl` and `.parquet` files."""

from __future__ import annotations

import codecs
import csv
import json
import mmap
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.ipc
import pyarrow.json
import pyarrow.parquet

from contraport._utils.files import atomic_write
from contraport._utils.formatting import format_options, pluralize
from contraport.data.dataset import Dataset
from contraport.data.formats import data_format
from contraport.data.formats.arrow_columns import is_number_text, is_string, is_text_by_first_value
from contraport.data.formats.arrow_datasets import TableRows, dataset_from_rows, infer_roles_from_rows
from contraport.data.formats.column_roles import COLUMN_NAMES_BY_ROLE, MAX_LISTED_COLUMNS, SuggestedViews, suggest_views
from contraport.errors import UsageError, check, translate_read_errors

TABLE_SUFFIXES = (".csv", ".jsonl", ".parquet")
"""Suffixes of files of tables."""

_MAX_BLOCK_BYTES = 2**31 - 1
"""Maximum size of a block that Arrow parses at a time."""
_PARQUET_BATCH_BYTES = 2**22
"""Approximate size of the batches in which a `.parquet` file is copied."""


@data_format("a table", suffixes=TABLE_SUFFIXES, options=["image_size", "columns", "test_fraction"])
def load_table(path: str, split: str, columns: Mapping[str, Any] | None = None, **options: Any) -> Dataset:
    """Load one split from a `.csv`, `.jsonl` or `.parquet` file.

    The options are those of `dataset_from_rows`. `contraport.data.formats.column_roles.infer_roles` describes the roles
    of its columns. Columns may name image files, relative to the folder of the table; those that cannot be decoded are
    left out, logged, and listed in ``unreadable_files``.
    """
    rows = TableRows(read_table(path, columns))
    return dataset_from_rows(rows, split, path=Path(path), columns=columns, **options)


def read_table(path: str | Path, csv_column_roles: Mapping[str, Any] | None = None) -> pa.Table:
    """Read the table in a file.

    Args:
        path: the file.
        csv_column_roles: roles of its columns; see `infer_roles_from_rows`. In `.csv`, where everything is text,
            columns of names (of classes, domains, sequences and rows) are texts unless all are integers in plain
            notation: 007 is not 7. Other formats store the types.

    Raises:
        UsageError: the file is corrupt, or has no header line.
    """
    file = Path(path)
    with translate_read_errors(f"data: {path}", file.suffix):
        if file.suffix == ".csv":
            table = _read_csv(file, csv_column_roles or {})
        else:
            table = _read_json_lines(file) if file.suffix == ".jsonl" else _copy_parquet_to_memory_map(file)
        table.validate(full=True)  # Arrow itself follows corrupt offsets out of its memory
    return table


def find_suggested_views(data: Any, declared_roles: Mapping[str, Any] | None) -> SuggestedViews | None:
    """Suggest how to divide the columns of a table into several views, or return None.

    None for other data, for a table of several views, for one whose view has one column, and for explicit views.
    """
    if (declared_roles or {}).get("views") is not None:
        return None
    if not isinstance(data, str | Path) or Path(data).suffix not in TABLE_SUFFIXES or not Path(data).is_file():
        return None
    views = infer_roles_from_rows(TableRows(read_table(data, declared_roles)), declared_roles, str(data)).views
    return suggest_views(views[0]) if len(views) == 1 < len(views[0]) else None


def check_several_views(dataset: Dataset, purpose: str, *, data: Any, declared_roles: Mapping[str, Any] | None) -> None:
    """Raise `UsageError` if a dataset has only one view.

    For a table of numbers the message suggests how to divide the columns into views.

    Args:
        dataset: the loaded data.
        purpose: what requires the views, such as "an audit".
        data: the source of the dataset, as the user passed it.
        declared_roles: roles of its columns.
    """
    views = len(dataset.shapes)
    if views > 1:
        return
    message = f"data: must have two or more views for {purpose}, got {pluralize(views, 'view')} in {dataset.name!r}."
    if (suggestion := find_suggested_views(data, declared_roles)) is None:
        raise UsageError(message, kind="views")
    number = len(suggestion.columns)
    message = f"{message[:-1]}, as its {number} columns of numbers are read as one. State the columns of each view"
    if number > MAX_LISTED_COLUMNS and not suggestion.is_evident:
        ends = [[half[0], "...", half[-1]] for half in suggestion.views]
        raise UsageError(f"{message}, as in {format_options(columns={'views': ends})}.", kind="views")
    example = {"columns": {"views": suggestion.views}}
    how = "by their prefixes" if suggestion.is_evident else "such as one half of them each"
    raise UsageError(f"{message}, {how}: {format_options(**example)}.", kind="views", suggested_options=example)


def _copy_parquet_to_memory_map(path: Path) -> pa.Table:
    """Copy a `.parquet` file to a memory-mapped temporary file, and return the table.

    It is copied block by block. So the rows can be read in any order, and the table is never in memory as a whole. The
    space of the file is freed with the table.
    """
    file = pa.parquet.ParquetFile(path, memory_map=True, pre_buffer=False)
    groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    size = sum(group.total_byte_size for group in groups)
    rows = max(1, _PARQUET_BATCH_BYTES * file.metadata.num_rows // max(size, 1))
    with tempfile.TemporaryFile() as temporary:
        with pa.ipc.new_stream(temporary, file.schema_arrow) as writer:
            for batch in file.iter_batches(batch_size=rows):
                writer.write_batch(batch)
        temporary.flush()
        mapped = mmap.mmap(temporary.fileno(), 0, access=mmap.ACCESS_READ)
    return pa.ipc.open_stream(pa.py_buffer(mapped)).read_all()


def write_table(table: pa.Table, path: Path) -> None:
    """Write a table to a `.csv`, `.jsonl` or `.parquet` file atomically."""
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


def select_rows_and_replace_view(
    parsed_table: pa.Table,
    unparsed_table: pa.Table,
    declared_roles: Mapping[str, Any] | None,
    table_name: str,
    *,
    view: int,
    partner_rows: np.ndarray,
    kept_row_mask: np.ndarray,
    old_path: Path,
    new_path: Path,
) -> pa.Table:
    """Select rows of a table, and fill one view's columns from other rows.

    Args:
        parsed_table: all rows.
        unparsed_table: the same rows as in the file, with texts for `.csv`; the result is made of these.
        declared_roles: roles of the columns; see `infer_roles_from_rows`.
        table_name: name of the table in messages.
        view: index of the view.
        partner_rows: row whose view each row gets, int64 ``(rows,)``.
        kept_row_mask: mask of the rows that remain, Booleans ``(rows,)``.
        old_path: current path of the table, to which names of files are relative.
        new_path: future path of the table.
    """
    roles = infer_roles_from_rows(TableRows(parsed_table), declared_roles, table_name)
    message = f"data: {table_name}: must have one item per row, got sequences of rows."
    check(roles.column_by_role["sequence"] is None, message, "sequences")
    for name in roles.views[view]:
        place = unparsed_table.schema.get_field_index(name)
        unparsed_table = unparsed_table.set_column(
            place, unparsed_table.schema.field(place), unparsed_table.column(name).take(pa.array(partner_rows))
        )
    for name in {name for names in roles.views for name in names}:
        if is_string(parsed_table.schema.field(name).type) and not is_text_by_first_value(parsed_table, name):
            place = unparsed_table.schema.get_field_index(name)
            files = [
                name and os.path.relpath(old_path.parent / name, new_path.parent)
                for name in unparsed_table[name].to_pylist()
            ]
            unparsed_table = unparsed_table.set_column(place, name, pa.array(files, pa.string()))
    return unparsed_table.filter(pa.array(kept_row_mask))


def set_number_column(table: pa.Table, name: str, numbers: np.ndarray) -> pa.Table:
    """Add or replace a column of numbers in a table."""
    rest = table.drop_columns([name]) if name in table.schema.names else table
    return rest.append_column(name, pa.array(numbers))


def read_csv_as_text(path: Path) -> pa.Table:
    """Read a `.csv` file without converting its cells from text."""
    return _parse_csv(path, only_text_columns=_parse_csv(path).schema.names)


def _read_csv(path: Path, declared_roles: Mapping[str, Any]) -> pa.Table:
    """Read a `.csv` file, keeping codes such as 007 as strings."""
    check(path.stat().st_size > 0, f"data: {path} is empty.", "empty")
    with path.open("rb") as file:
        header = file.readline(100_000)  # a file without line ends could be large
    is_utf16 = header.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    check(not is_utf16, f"data: {path} must be UTF-8, got UTF-16.", "encoding")
    # With other separators each row would be parsed as one text, which is valid data.
    commas = b"," in header or not (b";" in header or b"\t" in header)
    text = header.decode("utf-8", "replace").rstrip("\r\n")
    first_line = repr(text if len(text) <= 60 else f"{text[:57]}...")  # textwrap.shorten drops a line without spaces
    message = f"data: {path} must have commas between columns, got the first line {first_line}; save it with commas, "
    check(commas, message + "or read it with pandas and pass the data frame.", "separator")
    table = _parse_csv(path)
    names = table.schema.names
    message = f"data: {path} must have the names of the columns in the first line, got {names[:5]}."
    check(not all(is_number_text(name) for name in names), message, "no_header")
    binary = next((field.name for field in table.schema if pa.types.is_binary(field.type)), None)
    check(binary is None, f"data: {path}: column {binary!r}: must be UTF-8, got other bytes.", "encoding")
    return _restore_original_texts(table, path, declared_roles)


def _parse_csv(path: Path, *, only_text_columns: Sequence[str] | None = None) -> pa.Table:
    """Parse a `.csv` file: all columns with inferred types, or given columns as text."""
    # Types are inferred from the first block, so one block for all.
    block = min(path.stat().st_size + 1, _MAX_BLOCK_BYTES)
    types = dict.fromkeys(only_text_columns or (), pa.string())  # none: all columns, with types inferred
    chosen = pa.csv.ConvertOptions(column_types=types, include_columns=list(types))
    return pa.csv.read_csv(path, read_options=pa.csv.ReadOptions(block_size=block), convert_options=chosen)


def _restore_original_texts(table: pa.Table, path: Path, declared_roles: Mapping[str, Any]) -> pa.Table:
    """Restore strings such as 007 that were parsed as numbers."""
    explicit = {name: role for role, name in declared_roles.items() if isinstance(name, str)}
    implied = {name: role for role, names in COLUMN_NAMES_BY_ROLE.items() for name in names}
    roles = {name: explicit.get(name, implied.get(name.lower())) for name in table.schema.names}
    naming = [name for name, role in roles.items() if role in ("labels", "domains", "keys", "sequence")]
    parsed = [name for name in naming if not is_string(table.schema.field(name).type)]
    if not parsed or len(set(table.schema.names)) < len(table.schema.names):  # repeated names are reported elsewhere
        return table
    texts = _parse_csv(path, only_text_columns=parsed)
    for name in parsed:
        kind, text = table.schema.field(name).type, pc.utf8_trim_whitespace(texts.column(name))
        if pa.types.is_integer(kind):
            printed = pc.fill_null(pc.cast(table.column(name), pa.string()), text)
            lossless = bool(pc.all(pc.equal(printed, text)).as_py())
        else:  # floats may be regression targets, and Booleans are two classes in any notation
            numbers = pa.types.is_floating(kind) and roles[name] == "labels"
            lossless = numbers or pa.types.is_boolean(kind) or pa.types.is_null(kind)
        if not lossless:
            table = table.set_column(table.schema.get_field_index(name), name, text)
    return table


def _read_json_lines(path: Path) -> pa.Table:
    """Read a `.jsonl` file."""
    size = path.stat().st_size
    check(size > 0, f"data: {path} is empty.", "empty")
    options = pa.json.ReadOptions(block_size=min(size + 1, _MAX_BLOCK_BYTES))
    table = pa.json.read_json(path, read_options=options)
    dates = [field.name for field in table.schema if pa.types.is_timestamp(field.type)]
    if not dates:
        return table
    texts = pa.schema([(name, pa.string()) for name in dates])  # JSON has no dates, so the strings are kept
    return pa.json.read_json(path, read_options=options, parse_options=pa.json.ParseOptions(explicit_schema=texts))
