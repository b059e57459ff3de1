"""The columns of a table: what their types can hold, and their values as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from contraport._utils.formatting import format_options
from contraport._utils.text_tensors import check_nonempty_texts
from contraport.data.decoding import SUFFIXES
from contraport.errors import UsageError, check


def holds_images(field: pa.Field) -> bool:
    """Return whether a column is of a type that holds encoded images: bytes, or Hugging Face's bytes or path."""
    kind = _value_type(field.type)
    in_struct = pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0 and kind.get_field_index("path") >= 0
    return bool(in_struct or pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def holds_lists(field: pa.Field) -> bool:
    """Return whether a column is of a type that holds lists, and so an array in each row."""
    return _is_list(_value_type(field.type))


def holds_strings(field: pa.Field) -> bool:
    """Return whether a column is of a type that holds strings: texts, or names of files."""
    return _is_text(_value_type(field.type))


def read_categories(table: pa.Table, name: str, where: str) -> np.ndarray:
    """Return a column of integers or texts, one for each row, as an array.

    Raises:
        UsageError: a row without a value, or a column of another kind.
    """
    column = _plain(table.column(name))
    _check_whole(column, name, "a value", where)
    if _is_text(column.type):
        values = np.array(column.to_pylist(), dtype=np.str_)
        check(
            bool((values != "").all()),
            f"{_at(where, name)}: expected a value, got nothing in row {_first(values == '')}.",
        )
        return values
    kinds = (pa.types.is_integer, pa.types.is_boolean)
    check(
        any(is_kind(column.type) for is_kind in kinds),
        f"{_at(where, name)}: expected integers or text, got {column.type}.",
    )
    return np.asarray(column.to_numpy())


def read_numbers(table: pa.Table, names: Sequence[str], where: str) -> np.ndarray:
    """Return the columns of one view as an array with a row for each item.

    Several columns of numbers are the features of a vector, ``(n, d)``; one column of lists is ``(n, d)``, of lists of
    lists ``(n, C, T)``, and so on.

    Raises:
        UsageError: text among the numbers, values that are missing or not finite, or lists of unequal lengths.
    """
    columns = [_plain(table.column(name)) for name in names]
    if len(columns) == 1 and _is_list(columns[0].type):
        return _nested(columns[0], names[0], where)
    return np.stack([_numbers(column, name, where) for column, name in zip(columns, names, strict=True)], axis=1)


def group_sequences(
    table: pa.Table, sequence: str, views: Sequence[Sequence[str]], facts: Sequence[str], where: str
) -> tuple[pa.Table, np.ndarray]:
    """Return a table with a row for each sequence of rows, and the row in which each begins.

    Args:
        table: its rows are frames, those of one sequence in their order.
        sequence: the column whose values are equal in the rows of one sequence.
        views: the columns of each view. Of the result the first of them holds the series, lists (d, T) of its d numbers
            over the T frames.
        facts: the columns of which each sequence is to have one value.
        where: what messages call the table.

    Raises:
        UsageError: sequences of unequal lengths, or of several values of a fact; views that are no numbers.

    >>> table = pa.table({"clip": ["a", "b", "a", "b"], "x": [1, 2, 3, 4], "z": [5, 6, 7, 8], "y": [0, 1, 0, 1]})
    >>> group_sequences(table, "clip", [["x", "z"]], ["y"], "table.csv")[0].to_pylist()
    [{'x': [[1.0, 3.0], [5.0, 7.0]], 'y': 0}, {'x': [[2.0, 4.0], [6.0, 8.0]], 'y': 1}]
    """
    values = read_categories(table, sequence, where)
    _, first, groups, lengths = np.unique(values, return_index=True, return_inverse=True, return_counts=True)
    short, long = lengths.argmin(), lengths.argmax()
    check(
        lengths[short] == lengths[long],
        f"{_at(where, sequence)}: expected sequences of one length, got {lengths[long]} rows with "
        f"{values[first[long]]} and {lengths[short]} with {values[first[short]]}.",
    )
    by_start = first.argsort()  # in the order in which they begin
    frames = groups.argsort(kind="stable").reshape(len(first), -1)[by_start]
    columns: dict[str, Any] = {}
    for names in views:
        numbers = read_numbers(table, names, where)
        check(numbers.ndim == 2, f"{_at(where, names[0])}: expected numbers in the rows of a sequence, got arrays.")
        series = numbers[frames].transpose(0, 2, 1)
        lists = pa.FixedSizeListArray.from_arrays(pa.array(series.ravel()), series.shape[2])
        columns[names[0]] = pa.FixedSizeListArray.from_arrays(lists, series.shape[1])
    for name in facts:
        column = _plain(table.column(name))
        codes = np.unique(column.to_numpy(), return_inverse=True)[1][frames]
        unequal = (codes != codes[:, :1]).any(1)
        several = values[frames[unequal.argmax(), 0]]
        check(not unequal.any(), f"{_at(where, name)}: expected one value in a sequence, got several with {several}.")
        columns[name] = column.take(pa.array(frames[:, 0]))
    return pa.table(columns), frames[:, 0]


def find_empty_rows(table: pa.Table) -> np.ndarray:
    """Return in which rows all columns of a table have nothing: no value, NaN or an empty text.

    >>> find_empty_rows(pa.table({"x": [1.0, None, float("nan")], "y": [None, None, 2.0]})).tolist()
    [False, True, False]
    """
    empty = np.ones(len(table), dtype=np.bool_)
    for name in table.column_names:
        column = _plain(table.column(name))
        nothing = pc.is_null(column, nan_is_null=pa.types.is_floating(column.type))
        if _is_text(column.type):
            nothing = pc.or_(nothing, pc.equal(pc.utf8_trim_whitespace(pc.fill_null(column, "")), ""))
        empty &= nothing.to_numpy()
    return empty


def holds_texts(table: pa.Table, name: str) -> bool:
    """Return whether a column of strings holds texts: neither names of image files nor numbers, among which is a text.

    Nor are numbers with a comma texts, or names with a space behind them: what reads the column tells of these.

    >>> holds_texts(pa.table({"x": ["a red bag", "2.5"]}), "x"), holds_texts(pa.table({"x": ["2.5", "cat"]}), "x")
    (True, False)
    """
    first = _first_string(table, name).strip()
    return PurePath(first).suffix.lower() not in SUFFIXES and not is_number_text(first.replace(",", ".", 1))


def _first_string(table: pa.Table, name: str) -> str:
    column = _plain(table.column(name))
    return next((value.as_py() for value in column if value.as_py()), "")


def holds_lists_of_texts(field: pa.Field) -> bool:
    """Return whether a column is of a type that holds lists of strings, such as several captions in each row."""
    kind = _value_type(field.type)
    return _is_list(kind) and _is_text(_value_type(kind.value_type))


def explode_text_column(table: pa.Table, name: str) -> tuple[pa.Table, np.ndarray]:
    """Return a row for each text of a column of lists, and of which row of the table each is; an empty list has one.

    >>> table = pa.table({"image": ["a.png", "b.png"], "captions": [["a bag", "a red bag"], []]})
    >>> again, rows = explode_text_column(table, "captions")
    >>> again.to_pydict(), rows.tolist()
    ({'image': ['a.png', 'a.png', 'b.png'], 'captions': ['a bag', 'a red bag', '']}, [0, 0, 1])
    """
    lists = [texts or [""] for texts in _plain(table.column(name)).to_pylist()]
    rows = np.repeat(np.arange(len(lists)), [len(texts) for texts in lists])
    flat = pa.array([text for texts in lists for text in texts], pa.string())
    return table.take(pa.array(rows)).set_column(table.schema.get_field_index(name), name, flat), rows


def read_texts(table: pa.Table, name: str, where: str) -> list[str]:
    """Return a column of strings as texts.

    Raises:
        UsageError: a row without one.
    """
    texts = ["" if text is None else text for text in _plain(table.column(name)).to_pylist()]
    check_nonempty_texts(_at(where, name), texts)
    return texts


def read_file_names(table: pa.Table, name: str, where: str) -> list[str]:
    """Return a column of text as names of image files.

    Raises:
        UsageError: a row without a name, or text that names no image by its suffix.
    """
    column = _plain(table.column(name))
    _check_whole(column, name, "the name of an image file", where)
    files: list[str] = column.to_pylist()
    wrong = [row for row, file in enumerate(files) if PurePath(file).suffix.lower() not in SUFFIXES]
    if wrong:
        row = next((row for row in wrong if not is_number_text(files[row])), wrong[0])
        raise UsageError(
            f"{_at(where, name)}: expected numbers, lists of numbers or names of image files, got the text "
            f"{files[row]!r} in row {row}; {format_options(columns={'labels': name})} says that it tells "
            f"the class of each "
            f"row, {format_options(columns={'keys': name})} what each row is called, "
            f"{format_options(columns={'views': ...})} "
            "which columns are the views."
        )
    return files


def _numbers(column: pa.ChunkedArray, name: str, where: str) -> np.ndarray:
    _check_whole(column, name, "a number", where)
    if _is_text(column.type):
        values = column.to_pylist()
        row = next((row for row, value in enumerate(values) if not is_number_text(value)), 0)
        raise UsageError(f"{_at(where, name)}: expected numbers, got the text {values[row]!r} in row {row}.")
    check(_is_numeric(column.type), f"{_at(where, name)}: expected numbers, got {column.type}.")
    numbers = np.asarray(pc.cast(column, pa.float64(), safe=False).to_numpy())
    _check_finite(numbers, 1, name, where)
    return numbers


def _nested(column: pa.ChunkedArray, name: str, where: str) -> np.ndarray:
    """Return a column of lists, of lists of lists and so on, as one array."""
    values = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    shape = [len(values)]
    while _is_list(values.type):
        lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False)
        if (lengths != lengths[0]).any() or lengths[0] == 0:
            row = _first(lengths != lengths[0]) * shape[0] // len(lengths)
            found = sorted(set(lengths.tolist()))[:5]
            raise UsageError(f"{_at(where, name)}: expected lists of one length, got lengths {found}, see row {row}.")
        shape.append(int(lengths[0]))
        values = _storage(values.flatten())
    check(_is_numeric(values.type), f"{_at(where, name)}: expected lists of numbers, got lists of {values.type}.")
    per_row = len(values) // shape[0]
    if values.null_count:
        row = _first(values.is_null().to_numpy(zero_copy_only=False)) // per_row
        raise UsageError(f"{_at(where, name)}: expected a number in each place, got nothing in row {row}.")
    numbers = np.asarray(values.to_numpy(zero_copy_only=False))
    _check_finite(numbers, per_row, name, where)
    return numbers.reshape(shape)


def _check_finite(numbers: np.ndarray, per_row: int, name: str, where: str) -> None:
    finite = np.isfinite(numbers)
    if not finite.all():
        first = _first(~finite)
        raise UsageError(
            f"{_at(where, name)}: expected finite numbers, got {numbers[first]} in row {first // per_row}."
        )


def _check_whole(column: pa.ChunkedArray, name: str, expected: str, where: str) -> None:
    if column.null_count:
        first = _first(np.asarray(column.is_null().to_numpy()))
        raise UsageError(
            f"{_at(where, name)}: expected {expected} in each row, got nothing or NaN in {column.null_count} "
            f"of {len(column)} rows, first in row {first}: fill them in, or leave out these rows."
        )


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column without the dictionary or the extension type around its values."""
    if pa.types.is_dictionary(column.type):
        return _plain(column.cast(column.type.value_type))
    if pa.types.is_string_view(column.type):
        return column.cast(pa.large_string())
    if isinstance(column.type, pa.BaseExtensionType):
        return pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    return column


def _storage(values: pa.Array) -> pa.Array:
    return values.storage if isinstance(values.type, pa.BaseExtensionType) else values


def _value_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return kind.value_type
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_numeric(kind: pa.DataType) -> bool:
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
    return any(is_kind(kind) for is_kind in kinds)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_number_text(text: str) -> bool:
    """Return whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _first(found: np.ndarray) -> int:
    return int(np.argmax(found))


def _at(where: str, name: str) -> str:
    return f"data: {where}: column {name!r}"
