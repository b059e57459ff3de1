"""Type checks of Arrow table columns, and conversion of their values to arrays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from contraport._utils.formatting import format_options
from contraport.data.image_decoding import IMAGE_SUFFIXES
from contraport.errors import UsageError, check


def can_hold_image_bytes(field: pa.Field) -> bool:
    """Return whether a column can hold encoded images, as bytes or {bytes, path} structs."""
    kind = unwrap_type(field.type)
    in_struct = pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0 and kind.get_field_index("path") >= 0
    return bool(in_struct or pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def is_list(kind: pa.DataType) -> bool:
    """Return whether an Arrow type is a list of fixed or variable length."""
    kind = unwrap_type(kind)
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def is_string(kind: pa.DataType) -> bool:
    """Return whether an Arrow type is a string type."""
    kind = unwrap_type(kind)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_text_by_first_value(table: pa.Table, string_column: str) -> bool:
    """Return whether the first string is neither an image file nor a number.

    Numbers with a decimal comma and names followed by a space are no texts either; reading the column reports them.

    >>> table = pa.table({"x": ["a red bag", "2.5"], "y": ["2.5", "cat"]})
    >>> is_text_by_first_value(table, "x"), is_text_by_first_value(table, "y")
    (True, False)
    """
    first = next((text for value in unwrap_column(table, string_column) if (text := value.as_py())), "").strip()
    return PurePath(first).suffix.lower() not in IMAGE_SUFFIXES and not is_number_text(first.replace(",", ".", 1))


def is_number_text(text: str) -> bool:
    """Return whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def read_category_values(table: pa.Table, name: str, table_name: str) -> np.ndarray:
    """Read a column of categories, one integer or text per row.

    Raises:
        UsageError: a row has no value, or the column is of another type.
    """
    column = unwrap_column(table, name)
    _check_no_nulls(column, name, "a value", table_name)
    if is_string(column.type):
        values = np.array(column.to_pylist(), dtype=np.str_)
        row = np.argmax(values == "")
        message = f"{_error_prefix(table_name, name)}: must have a value in each row, got an empty text in row {row}."
        check(bool((values != "").all()), message, "missing_value")
        return values
    good = pa.types.is_integer(column.type) or pa.types.is_boolean(column.type)
    check(good, f"{_error_prefix(table_name, name)}: must be integers or text, got {column.type}.", "not_categorical")
    return np.asarray(column.to_numpy())


def read_numeric_columns(table: pa.Table, names: Sequence[str], table_name: str) -> np.ndarray:
    """Read the numeric columns of one view as an array ``(n, ...)``.

    Several columns of numbers are the features of a vector, ``(n, d)``; one column of lists is ``(n, d)``, of lists of
    lists ``(n, C, T)``, and so on.

    Raises:
        UsageError: texts among the numbers, values that are missing or not finite, or lists of unequal lengths.
    """
    if len(names) == 1 and is_list(table.schema.field(names[0]).type):
        return _read_nested_list_column(unwrap_column(table, names[0]), _error_prefix(table_name, names[0]))
    features = []
    for name in names:
        column, error_prefix = unwrap_column(table, name), _error_prefix(table_name, name)
        _check_no_nulls(column, name, "a number", table_name)
        if is_string(column.type):
            values = column.to_pylist()
            row = next((row for row, value in enumerate(values) if not is_number_text(value)), 0)
            message = f"{error_prefix}: must be numbers, got the text {values[row]!r} in row {row}."
            raise UsageError(message, kind="not_numeric")
        check(_is_numeric(column.type), f"{error_prefix}: must be numbers, got {column.type}.", "not_numeric")
        numbers = np.asarray(pc.cast(column, pa.float64(), safe=False).to_numpy())
        if not (finite := np.isfinite(numbers)).all():
            row = int(np.argmin(finite))
            raise UsageError(f"{error_prefix}: must be finite, got {numbers[row]} in row {row}.", kind="not_finite")
        features.append(numbers)
    return np.stack(features, axis=1)


def _read_nested_list_column(column: pa.ChunkedArray, error_prefix: str) -> np.ndarray:
    """Read a column of lists, which may be nested, as one array.

    Error messages begin with `error_prefix`.
    """
    values = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    shape = [len(values)]
    while is_list(values.type):
        lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False)
        odd = lengths != lengths[0]
        if odd.any() or lengths[0] == 0:
            row = np.argmax(odd) * shape[0] // len(lengths)
            message = f"must have lists of one positive length, got lengths {sorted(set(lengths.tolist()))[:5]}"
            raise UsageError(f"{error_prefix}: {message}, see row {row}.", kind="list_lengths")
        shape.append(int(lengths[0]))
        values = values.flatten()
        values = values.storage if isinstance(values.type, pa.BaseExtensionType) else values
    message = f"{error_prefix}: must have lists of numbers, got lists of {values.type}."
    check(_is_numeric(values.type), message, "not_numeric")
    if values.null_count:
        row = np.argmax(values.is_null().to_numpy(zero_copy_only=False)) // (len(values) // shape[0])
        message = f"{error_prefix}: must have a number in each place, got nothing in row {row}."
        raise UsageError(message, kind="missing_value")
    return np.asarray(values.to_numpy(zero_copy_only=False)).reshape(shape)


def read_image_file_names(table: pa.Table, name: str, table_name: str) -> list[str]:
    """Read a column of image file names.

    Raises:
        UsageError: a row has no name, or a text without the suffix of an image.
    """
    column = unwrap_column(table, name)
    _check_no_nulls(column, name, "the name of an image file", table_name)
    files: list[str] = column.to_pylist()
    wrong = [row for row, file in enumerate(files) if PurePath(file).suffix.lower() not in IMAGE_SUFFIXES]
    if wrong:
        row = next((row for row in wrong if not is_number_text(files[row])), wrong[0])
        message = f"must be numbers, lists of numbers or names of image files, got {files[row]!r} in row {row}"
        roles = {"classes": {"labels": name}, "names of rows": {"keys": name}, "a text": {"views": [name, "..."]}}
        hint = "declare " + ", ".join(f"{what} by {format_options(columns=columns)}" for what, columns in roles.items())
        raise UsageError(f"{_error_prefix(table_name, name)}: {message}; {hint}", kind="not_file_names")
    return files


def merge_frames_with_first_frame_rows(
    table: pa.Table,
    sequence_column: str,
    views: Sequence[Sequence[str]],
    constant_columns: Sequence[str],
    table_name: str,
) -> tuple[pa.Table, np.ndarray]:
    """Merge a sequence's frames, one per row, into one row; also return its first frame's row.

    Args:
        table: rows are frames, those of one sequence in order.
        sequence_column: column whose value is equal in the rows of one sequence.
        views: columns of each view; in the result the first holds a series as lists (d, T) of d numbers over T frames.
        constant_columns: columns that have one value per sequence.
        table_name: name of the table in messages.

    Raises:
        UsageError: sequences of unequal lengths, several values of a constant column, or views that are no numbers.

    >>> table = pa.table({"clip": ["a", "b", "a", "b"], "x": [1, 2, 3, 4], "z": [5, 6, 7, 8], "y": [0, 1, 0, 1]})
    >>> merge_frames_with_first_frame_rows(table, "clip", [["x", "z"]], ["y"], "table.csv")[0].to_pylist()
    [{'x': [[1.0, 3.0], [5.0, 7.0]], 'y': 0}, {'x': [[2.0, 4.0], [6.0, 8.0]], 'y': 1}]
    """
    values = read_category_values(table, sequence_column, table_name)
    _, first, groups, lengths = np.unique(values, return_index=True, return_inverse=True, return_counts=True)
    short, long = lengths.argmin(), lengths.argmax()
    message = f"must have sequences of one length, got {lengths[long]} rows with {values[first[long]]} and "
    message += f"{lengths[short]} with {values[first[short]]}."
    check(
        lengths[short] == lengths[long],
        f"{_error_prefix(table_name, sequence_column)}: {message}",
        "sequence_lengths",
    )
    by_start = first.argsort()  # in the order in which they begin
    frames = groups.argsort(kind="stable").reshape(len(first), -1)[by_start]
    columns: dict[str, Any] = {}
    for names in views:
        numbers = read_numeric_columns(table, names, table_name)
        message = f"{_error_prefix(table_name, names[0])}: must be numbers in the rows of a sequence, got arrays."
        check(numbers.ndim == 2, message, "sequence_of_arrays")
        series = numbers[frames].transpose(0, 2, 1)
        lists = pa.FixedSizeListArray.from_arrays(pa.array(series.ravel()), series.shape[2])
        columns[names[0]] = pa.FixedSizeListArray.from_arrays(lists, series.shape[1])
    for name in constant_columns:
        column = unwrap_column(table, name)
        codes = np.unique(column.to_numpy(), return_inverse=True)[1][frames]
        varies = (codes != codes[:, :1]).any(1)
        example = values[frames[varies.argmax(), 0]]
        message = f"{_error_prefix(table_name, name)}: must have one value per sequence, got several with {example}."
        check(not varies.any(), message, "sequence_values")
        columns[name] = column.take(pa.array(frames[:, 0]))
    return pa.table(columns), frames[:, 0]


def unwrap_column(table: pa.Table, name: str) -> pa.ChunkedArray:
    """Return a column of a table, with dictionary, extension and string view types decoded."""
    column = table.column(name)
    while True:
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        elif pa.types.is_string_view(column.type):
            column = column.cast(pa.large_string())
        elif isinstance(column.type, pa.BaseExtensionType):
            column = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
        else:
            return column


def _check_no_nulls(column: pa.ChunkedArray, name: str, expected: str, table_name: str) -> None:
    """Raise `UsageError` if a column has an empty cell."""
    if column.null_count:
        first = np.argmax(column.is_null().to_numpy())
        message = f"must have {expected} in each row, got nothing or NaN in {column.null_count} of {len(column)} rows, "
        message += f"first in row {first}; fill them in, or leave these rows out."
        raise UsageError(f"{_error_prefix(table_name, name)}: {message}", kind="missing_value")


def unwrap_type(kind: pa.DataType) -> pa.DataType:
    """Return the type inside a dictionary or extension type, or the type itself."""
    if pa.types.is_dictionary(kind):
        return kind.value_type
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _is_numeric(kind: pa.DataType) -> bool:
    """Return whether an Arrow type is an integer, float, Boolean or decimal type."""
    tests = pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal
    return any(test(kind) for test in tests)


def _error_prefix(table_name: str, name: str) -> str:
    """Return the beginning of an error message about a column."""
    return f"data: {table_name}: column {name!r}"
