"""Datasets from Arrow tables and Hugging Face datasets."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from torch import Tensor

from contraport._utils.formatting import format_options, join_names
from contraport._utils.text_bytes import check_nonblank_texts
from contraport.data.array_datasets import (
    as_number_per_item,
    as_view_tensor,
    as_weight_per_item,
    extremes_if_float32_rounds,
    factorize,
    warn_of_float32_rounding,
)
from contraport.data.dataset import Dataset
from contraport.data.formats import data_format
from contraport.data.formats.arrow_columns import (
    can_hold_image_bytes,
    is_list,
    is_string,
    is_text_by_first_value,
    merge_frames_with_first_frame_rows,
    read_category_values,
    read_image_file_names,
    read_numeric_columns,
    unwrap_column,
    unwrap_type,
)
from contraport.data.formats.column_roles import ColumnRoles, derive_view_names, infer_roles
from contraport.data.image_decoding import ImageFilePaths
from contraport.data.item_metadata import ItemFilesBytesOrStore, ItemMetadata
from contraport.data.splits import TEST_SPLIT_NAMES, PositionArray, get_test_and_unused_masks
from contraport.data.stores import ArrayStore, ItemFilesOrBytes, PackedTextStore, Shape, Store
from contraport.errors import UsageError, check, check_regular_file, import_optional, unreadable_error

_CONVERTED_BYTES_PER_BLOCK = 2**22
"""Number of bytes of a table that are converted to numbers at a time."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TableRows:
    """Selected rows and columns of a table, read on demand.

    Attributes:
        table: an Arrow table, or a `datasets.Dataset` in the format "arrow", whose rows are in files.
        indices: table index of each row; None for all rows of the table in order.
        exploded_texts: one-column table of single texts, in place of the table's column of text lists; or None.
    """

    table: Any
    indices: PositionArray | None = None
    exploded_texts: pa.Table | None = None

    @property
    def is_arrow_table(self) -> bool:
        """True for an Arrow table, False for a Hugging Face dataset."""
        return isinstance(self.table, pa.Table)

    @property
    def schema(self) -> pa.Schema:
        """Names and types of the columns of the source."""
        return self.table.schema if self.is_arrow_table else self.table.features.arrow_schema

    def __len__(self) -> int:
        return len(self.table) if self.indices is None else len(self.indices)

    def read(self, positions: PositionArray | None = None) -> pa.Table:
        """Return the rows at given positions, or all."""
        indices = positions
        if self.indices is not None:
            indices = self.indices if positions is None else self.indices[positions]
        if self.is_arrow_table:
            table = self.table if indices is None else self.table.take(pa.array(indices))
        else:
            table = self.table[:] if indices is None else self.table[indices.tolist()]
        if self.exploded_texts is None:
            return table
        name = self.exploded_texts.schema.names[0]
        texts = self.exploded_texts if positions is None else self.exploded_texts.take(pa.array(positions))
        return table.set_column(table.schema.get_field_index(name), name, texts.column(0))

    def known_empty_row_mask(self) -> np.ndarray:
        """Return the mask of rows known to be empty.

        Of the files that rows name, only text files are opened. In an empty row every column is missing, NaN or an
        empty text. Other columns in files would have to be read.

        >>> rows = TableRows(pa.table({"x": [1.0, None, float("nan")], "y": [None, None, 2.0]}))
        >>> rows.known_empty_row_mask().tolist()
        [False, True, False]
        """
        if not (self.is_arrow_table or is_single_string_column(self)):
            return np.zeros(len(self), dtype=np.bool_)
        table = self.table if self.is_arrow_table else self.table[:]
        empty = np.ones(len(table), dtype=np.bool_)
        for name in table.column_names:
            column = unwrap_column(table, name)
            missing = pc.is_null(column, nan_is_null=pa.types.is_floating(column.type))
            if is_string(table.schema.field(name).type):
                missing = pc.or_(missing, pc.equal(pc.utf8_trim_whitespace(pc.fill_null(column, "")), ""))
            empty &= missing.to_numpy()
        return empty if self.indices is None else empty[self.indices]

    def select_columns(self, names: Sequence[str]) -> TableRows:
        """Return the rows with only some of the columns."""
        if self.exploded_texts is not None and self.exploded_texts.schema.names == list(names):
            return TableRows(self.exploded_texts)
        source = self.table.select(names) if self.is_arrow_table else self.table.select_columns(list(names))
        return TableRows(source, self.indices)

    def subset(self, positions: PositionArray) -> TableRows:
        """Select rows by position, without reading their values."""
        indices = positions if self.indices is None else self.indices[positions]
        texts = None if self.exploded_texts is None else self.exploded_texts.take(pa.array(positions))
        return TableRows(self.table, indices, texts)

    def explode_with_source_rows(self, views: Sequence[Sequence[str]]) -> tuple[TableRows, PositionArray]:
        """Expand lists of texts to one row per text.

        Return the new rows, and the original row number of each. An empty list becomes one empty text.

        Args:
            views: columns of each view; at most one may hold lists of texts.

        >>> rows = TableRows(pa.table({"captions": [["a bag", "a red bag"], []], "y": [0, 1]}))
        >>> exploded, source_rows = rows.explode_with_source_rows([["captions"]])
        >>> exploded.read().to_pydict(), source_rows.tolist()
        ({'captions': ['a bag', 'a red bag', ''], 'y': [0, 0, 1]}, [0, 0, 1])
        """
        kinds = {names[0]: self.schema.field(names[0]).type for names in views if len(names) == 1}
        names = [name for name, kind in kinds.items() if is_list(kind) and is_string(unwrap_type(kind).value_type)]
        check(len(names) < 2, f"data: columns {names} hold lists of texts; at most one may.", "several_text_lists")
        if not names:
            return self, np.arange(len(self))
        column = unwrap_column(self.select_columns(names).read(), names[0])
        lists = [texts or [""] for texts in column.to_pylist()]
        source_rows = np.repeat(np.arange(len(lists)), [len(texts) for texts in lists])
        exploded = pa.array([text for texts in lists for text in texts], pa.string())
        return replace(self.subset(source_rows), exploded_texts=pa.table({names[0]: exploded})), source_rows


def is_single_string_column(rows: TableRows) -> bool:
    """Return whether a table has a single column, which holds strings."""
    return len(rows.schema.names) == 1 and is_string(rows.schema.field(0).type)


@dataclass(frozen=True)
class SingleViewNumericColumnsStore(Store):
    """Store of one numeric view, read from table columns at each fetch."""

    rows: TableRows
    column_names: tuple[str, ...]
    table_name: str
    shape: Shape

    @property
    def shapes(self) -> tuple[Shape, ...]:
        return (self.shape,)

    def __len__(self) -> int:
        return len(self.rows)

    def fetch_views(self, positions: Tensor) -> tuple[Tensor, ...]:
        return (_numbers_to_view_tensor(self.rows.read(positions.numpy()), self.column_names, self.table_name),)


@dataclass(frozen=True)
class ImageColumn(ItemFilesOrBytes):
    """Encoded images in a table column, as bytes or {bytes, path} structs."""

    rows: TableRows
    column: str
    folder: Path
    table_name: str

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, position: int) -> Path | bytes:
        # One row of the table: `read` would copy all rows if the table has several chunks.
        table, indices = self.rows.table, self.rows.indices
        index = position if indices is None else int(indices[position])
        row = table.slice(index, 1) if self.rows.is_arrow_table else table[index]
        value = row.column(self.column)[0].as_py()
        if isinstance(value, dict):
            value = value["bytes"] if value["bytes"] is not None else value["path"]
        check(value is not None, "no image in this row")
        return value if isinstance(value, bytes) else self.folder / value

    def subset(self, positions: PositionArray) -> ImageColumn:
        return replace(self, rows=self.rows.subset(positions))

    def describe_item_location(self, position: int) -> str:
        return f"{self.table_name}, column {self.column!r}, row {position}"


def dataset_from_rows(
    rows: TableRows,
    split: str,
    *,
    path: Path,
    columns: Mapping[str, Any] | None = None,
    image_size: int | None = None,
    test_fraction: float | None = None,
    is_test: NDArray[np.bool_] | None = None,
    class_names: Mapping[str, tuple[str, ...]] | None = None,
) -> Dataset:
    """Build the dataset of one split from the rows of a table.

    Args:
        rows: rows of all splits.
        split: "train" or "test".
        path: file or folder of the table, for messages; names of image files are relative to its folder.
        columns: roles of columns that their names do not imply; see `infer_roles`.
        image_size: side of the square images, in pixels.
        test_fraction: fraction of each class to hold out; default: 0.2.
        is_test: which rows are the test split; default: by the column of splits, or else a fraction is held out.
        class_names: names of the integers in some columns.

    Raises:
        UsageError: a column or its values are invalid; the message names both.
    """
    table_name = str(path)
    check(len(rows) > 0, f"data: {table_name} has no rows.", "empty")
    roles = infer_roles_from_rows(rows, columns, table_name)
    column_by_role = roles.column_by_role
    key_column = column_by_role["keys"] or column_by_role["sequence"]
    is_declared = key_column in (columns or {}).values()
    row_keys = _read_keys_unless_incomplete(rows, key_column, table_name, raise_if_incomplete=is_declared)
    view_names = derive_view_names(roles.views)
    views_of_columns = roles.views
    rows, source_rows = rows.explode_with_source_rows(roles.views)
    if (sequence := column_by_role["sequence"]) is not None:
        message = f"columns: {table_name}: sequence: requires a column of splits instead of split files."
        check(is_test is None, message, "conflict")
        constant = [name for role, name in column_by_role.items() if name and role not in ("sequence", "keys")]
        table, source_rows = merge_frames_with_first_frame_rows(
            rows.read(), sequence, roles.views, constant, table_name
        )
        rows, views_of_columns = TableRows(table), tuple((names[0],) for names in roles.views)
    if (column := column_by_role["split"]) is not None and is_test is None:
        names = read_category_values(rows.select_columns([column]).read(), column, table_name)
        is_test, neither = get_test_and_unused_masks(names, f"{table_name}: column {column!r}", loaded_split=split)
        rows, is_test = rows.subset(np.flatnonzero(~neither)), None if is_test is None else is_test[~neither]
        source_rows = source_rows[~neither]
    labels, label_names = _read_category_codes_and_names(rows, column_by_role["labels"], class_names or {}, table_name)
    domains, domain_names = _read_category_codes_and_names(
        rows, column_by_role["domains"], class_names or {}, table_name
    )
    view_rows = [rows.select_columns(names) for names in views_of_columns]
    present = None
    if len(view_rows) > 1:
        present = ~np.stack([part.known_empty_row_mask() for part in view_rows], axis=1)
        view_rows = [
            _fill_missing_rows_with_first(part, mask, table_name)
            for part, mask in zip(view_rows, present.T, strict=True)
        ]
        present = None if present.all() else present
    folder = path if path.is_dir() else path.parent
    views = [
        _build_view(part, names, folder, table_name, may_be_texts=names[0] not in roles.possible_file_columns)
        for part, names in zip(view_rows, views_of_columns, strict=True)
    ]
    files = _name_rows_by_image_path(views, present, source_rows, table_name)
    message = f"columns: {table_name}: keys: must not be given, as image files are named by their paths."
    check(files is None or (columns or {}).get("keys") is None, message, "conflict")
    items = ItemMetadata(
        table_name,
        len(rows),
        labels=labels,
        class_names=label_names,
        domains=domains,
        domain_names=domain_names,
        is_test=is_test,
        test_fraction=test_fraction,
        present=present,
        weights=_read_optional_number_per_item(as_weight_per_item, rows, column_by_role["weights"], table_name),
        regression_targets=_read_optional_number_per_item(
            as_number_per_item, rows, column_by_role["numbers"], table_name
        ),
        source_rows=source_rows,
        keys=row_keys[source_rows].tolist() if files is None and row_keys is not None else files,
    )
    dataset = items.build_split_dataset(split, views, image_size=image_size, view_names=view_names)
    # A column of lists, texts or images is a view by itself, whatever its name.
    dataset.column_names = tuple(
        names if len(shape) in (1, 2) and shape[0] == len(names) else ()
        for names, shape in zip(roles.views, dataset.shapes, strict=True)
    )
    return dataset


def infer_roles_from_rows(rows: TableRows, declared_roles: Mapping[str, Any] | None, table_name: str) -> ColumnRoles:
    """Infer the role of each column from its name, type and values.

    A text column with few distinct values is no view unless its name or the user declares it a text; it holds the
    labels if it is the only such column and no other column does.

    Raises:
        UsageError: as `infer_roles`, or several columns may hold the labels.
    """
    roles = infer_roles(rows.schema, declared_roles, table_name)
    undeclared = roles.undeclared_text_columns if len(roles.views) > 1 else ()
    few: dict[str, int] = {}
    for name in undeclared:
        table = rows.select_columns([name]).read()
        count = len(set(table.column(name).to_pylist()) - {None, ""}) if is_text_by_first_value(table, name) else 0
        if 0 < count <= min(100, len(rows) // 10):  # each class has ten rows on average
            few[name] = count
    if not few:
        return roles
    names, numbers = list(few), join_names([f"{count:,}" for count in few.values()])
    views = tuple(view for view in roles.views if view[0] not in few)
    subject = f"column {names[0]!r} has" if len(few) == 1 else f"columns {names} have"
    message = f"{table_name}: {subject} {numbers} distinct values in {len(rows):,} rows"
    if len(few) == 1 and roles.column_by_role["labels"] is None and "labels" not in (declared_roles or {}):
        every = format_options(columns={"views": [name for view in roles.views for name in view]})
        _log.info("%s, and is taken as the labels; %s makes it a view", message, every)
        return ColumnRoles(views, roles.column_by_role | {"labels": names[0]}, roles.possible_file_columns)
    others = [view[0] for view in views] or names
    as_labels = (
        "" if roles.column_by_role["labels"] else f"the classes by {format_options(columns={'labels': names[0]})}, or "
    )
    as_views = f"the views by {format_options(columns={'views': others})}"
    message = f"data: {message}, too few for texts to learn from; set {as_labels}{as_views}."
    raise UsageError(message, kind="ambiguous_columns")


def _name_rows_by_image_path(
    views: Sequence[ItemFilesBytesOrStore], present: np.ndarray | None, source_rows: PositionArray, table_name: str
) -> Sequence[str] | None:
    """Name each row by its image path, or by its place in the table.

    The result is None for a table without image files.
    """
    of_files = [(number, view.files) for number, view in enumerate(views) if isinstance(view, ImageFilePaths)]
    if not of_files or present is None:
        return of_files[0][1] if of_files else None
    names = np.array([f"{table_name}, row {row}" for row in source_rows.tolist()], dtype=np.object_)
    for number, files in reversed(of_files):
        names = np.where(present[:, number], np.array(files, dtype=np.object_), names)
    return cast(list[str], names.tolist())


def _read_keys_unless_incomplete(
    rows: TableRows, name: str | None, table_name: str, *, raise_if_incomplete: bool
) -> np.ndarray | None:
    """Return the key of each row, or None if a key is missing."""
    if name is None:
        return None
    try:
        return read_category_values(rows.select_columns([name]).read(), name, table_name).astype(np.str_)
    except UsageError as error:
        if raise_if_incomplete:
            raise
        _log.info("%s: rows are identified by their numbers, as some have no name: %s", table_name, error)
        return None


def _fill_missing_rows_with_first(rows: TableRows, present: np.ndarray, table_name: str) -> TableRows:
    """Replace rows that lack a view by the first row that has it."""
    if present.all():
        return rows
    existing = np.flatnonzero(present)
    check(len(existing) > 0, f"data: {table_name}: columns {rows.schema.names} have empty cells only.", "empty_column")
    return rows.subset(np.where(present, np.arange(len(present)), existing[0]))


def _read_category_codes_and_names(
    rows: TableRows, name: str | None, class_names: Mapping[str, tuple[str, ...]], table_name: str
) -> tuple[np.ndarray, tuple[str, ...]] | tuple[None, None]:
    """Return the codes and names of a category column, both None if it has no values."""
    if name is None:
        return None, None
    values = read_category_values(rows.select_columns([name]).read(), name, table_name)
    if name not in class_names:
        return factorize(f"data: {table_name}: column {name!r}", values)
    if (values == -1).all():  # Hugging Face's mark of unlabeled data
        return None, None
    names = class_names[name]
    good = (values >= 0) & (values < len(names))
    message = f"data: {table_name}: column {name!r}: must be classes 0..{len(names) - 1}, got {values[~good][:1]}."
    check(bool(good.all()), message, "class_range")
    return values.astype(np.int64), names


def _read_optional_number_per_item(
    parse: Callable[[str, np.ndarray], Tensor], rows: TableRows, name: str | None, table_name: str
) -> Tensor | None:
    """Return a numeric column ``(n,)``, or None if `name` is None."""
    if name is None:
        return None
    values = read_numeric_columns(rows.select_columns([name]).read(), [name], table_name)
    return parse(f"data: {table_name}: column {name!r}", values[:, 0] if values.shape[1:] == (1,) else values)


def _build_view(
    rows: TableRows, names: tuple[str, ...], folder: Path, table_name: str, *, may_be_texts: bool
) -> ItemFilesBytesOrStore:
    """Build one view from the columns of a table.

    Texts, and numbers of an Arrow table, are read into memory; other values are read when they are fetched.
    """
    if is_single_string_column(rows):
        table = rows.read()
        if may_be_texts and is_text_by_first_value(table, names[0]):
            contents = [text or "" for text in unwrap_column(table, names[0]).to_pylist()]
            check_nonblank_texts(f"data: {table_name}: column {names[0]!r}", contents)
            return PackedTextStore.from_texts(contents, f"data: {table_name}: column {names[0]!r}")
        return ImageFilePaths(tuple(str(folder / file) for file in read_image_file_names(table, names[0], table_name)))
    if len(names) == 1 and can_hold_image_bytes(rows.schema.field(names[0])):
        return ImageColumn(rows, names[0], folder, table_name)
    if rows.is_arrow_table:
        return ArrayStore((_read_numbers_in_blocks(rows, names, table_name),))
    first = _numbers_to_view_tensor(rows.read(np.zeros(1, dtype=np.int64)), names, table_name)
    return SingleViewNumericColumnsStore(rows, names, table_name, tuple(first.shape[1:]))


def _read_numbers_in_blocks(rows: TableRows, names: tuple[str, ...], table_name: str) -> Tensor:
    """Read numbers of an Arrow table in blocks, to bound the memory."""
    numbers: Tensor | None = None
    extremes = list[np.ndarray]()
    size = max(1, _CONVERTED_BYTES_PER_BLOCK * len(rows.table) // max(rows.table.nbytes, 1))
    for start in range(0, len(rows.table), size):
        block = rows.table.slice(start, size)
        places = np.arange(start, start + len(block))
        if rows.indices is not None:
            places = np.flatnonzero((start <= rows.indices) & (rows.indices < start + size))
            block = block.take(pa.array(rows.indices[places] - start))
        if len(places) == 0:
            continue
        try:
            values = read_numeric_columns(block, names, table_name)
            part = as_view_tensor(f"data: {table_name}", values)
            numbers = part.new_empty(len(rows), *part.shape[1:]) if numbers is None else numbers
            check(part.shape[1:] == numbers.shape[1:], "blocks must have equal shapes.")
        except UsageError:
            return _numbers_to_view_tensor(
                rows.read(), names, table_name
            )  # its message counts the rows of the whole table
        numbers[torch.from_numpy(places)] = part
        extremes += extremes_if_float32_rounds(values)
    warn_of_float32_rounding(table_name, extremes, names)
    assert numbers is not None
    return numbers


def _numbers_to_view_tensor(table: pa.Table, names: tuple[str, ...], table_name: str) -> Tensor:
    """Convert numeric table columns to the tensor of a view."""
    shown = f"column {names[0]!r}" if len(names) == 1 else f"columns {list(names)}"
    return as_view_tensor(f"data: {table_name}: {shown}", read_numeric_columns(table, names, table_name))


@data_format(
    "a dataset of Hugging Face",
    recognizes=lambda folder: any(
        Path(folder, name).is_file() for name in ("dataset_dict.json", "dataset_info.json", "state.json")
    ),
    options=["image_size", "columns", "test_fraction"],
)
def load_huggingface_folder(folder: str, split: str, **options: Any) -> Dataset:
    """Load one split from a folder written by `save_to_disk` of Hugging Face datasets.

    For the options see `dataset_from_rows`.
    """
    datasets = import_optional("datasets", "data", f"data: {folder}, a folder of Hugging Face,")
    try:
        for file in Path(folder).rglob("*"):
            if not file.is_dir():
                check_regular_file("data", file)
        loaded = datasets.load_from_disk(folder)
        for part in loaded.values() if isinstance(loaded, datasets.DatasetDict) else [loaded]:
            # Arrow follows corrupt offsets out of its memory. Images and numbers are not read here.
            part.data.validate(full=True)
    except Exception as error:  # parsers raise anything on hostile files
        raise unreadable_error(f"data: {folder}", "a dataset of Hugging Face", error) from error
    return dataset_from_huggingface(loaded, split, Path(folder), **options)


def dataset_from_huggingface(loaded: Any, split: str, path: Path, **options: Any) -> Dataset:
    """Build one split from a Hugging Face `Dataset` or `DatasetDict`.

    The options are those of `dataset_from_rows`. A `DatasetDict` has splits of its own, ``train`` and ``test`` (or
    ``validation``). A `ClassLabel` keeps its names.
    """
    datasets = import_optional("datasets", "data", f"data: {path}, of Hugging Face,")
    train, test = loaded, None
    if isinstance(loaded, datasets.DatasetDict):
        check("train" in loaded, f"data: {path} must have a split 'train', got {sorted(loaded)}.", "no_train_split")
        test_names = [name for name in TEST_SPLIT_NAMES if name in loaded]
        unused = sorted(set(loaded) - {"train", *test_names[:1]})
        if unused:
            _log.info("%s: the splits %s are not used", path, unused)
        train, test = loaded["train"], loaded[test_names[0]] if test_names else None
        message = f"data: {path} must have the same columns in the splits 'train' and {''.join(test_names[:1])!r}."
        check(test is None or train.features == test.features, message, "splits_differ")
    whole = train if test is None else datasets.concatenate_datasets([train, test])
    names = {name: tuple(kind.names) for name, kind in whole.features.items() if isinstance(kind, datasets.ClassLabel)}
    return dataset_from_rows(
        TableRows(whole.with_format("arrow")),
        split,
        path=path,
        is_test=None if test is None else np.arange(len(whole)) >= len(train),
        class_names=names,
        **options,
    )
