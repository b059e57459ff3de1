"""Datasets from the rows of an Arrow table in memory or of a Hugging Face dataset in files."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from contraport._utils.formatting import format_options, join_names
from contraport.data.arrays import as_view_tensor, factorize, parse_numbers, parse_weights
from contraport.data.dataset import Dataset
from contraport.data.formats.column_roles import ColumnRoles, infer_roles, name_views
from contraport.data.formats.columns import (
    explode_text_column,
    find_empty_rows,
    group_sequences,
    holds_images,
    holds_lists_of_texts,
    holds_strings,
    holds_texts,
    read_categories,
    read_file_names,
    read_number_columns,
    read_texts,
)
from contraport.data.image_decoding import ImageFiles
from contraport.data.item_metadata import ItemMetadata, View
from contraport.data.splits import Masks, Positions, split_masks
from contraport.data.stores import ArrayStore, Shape, Store, TextStoreBuilder, UndecodedItems
from contraport.errors import UsageError, check

MAX_CLASSES = 100
"""A text column with at most this many distinct values, each ten times or more on average, is taken for labels."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TableRows:
    """Table of named columns, in memory or in files, whose rows are read as Arrow tables.

    Attributes:
        source: an Arrow table in memory, or a `datasets.Dataset` in the format "arrow", whose rows stay in files.
    """

    source: Any

    @property
    def is_in_memory(self) -> bool:
        """True if the whole table is in memory."""
        return isinstance(self.source, pa.Table)

    @property
    def schema(self) -> pa.Schema:
        """Names and types of the columns."""
        return self.source.schema if self.is_in_memory else self.source.features.arrow_schema

    def __len__(self) -> int:
        return len(self.source)

    def read(self, positions: list[int] | None = None) -> pa.Table:
        """Return the rows at some positions, or all."""
        if self.is_in_memory:
            return self.source if positions is None else self.source.take(positions)
        return self.source[:] if positions is None else self.source[positions]

    def select_columns(self, names: Sequence[str]) -> TableRows:
        """Return the table restricted to some of its columns."""
        return TableRows(self.source.select(names) if self.is_in_memory else self.source.select_columns(list(names)))

    def take(self, positions: Positions) -> TableRows:
        """Return the table restricted to the rows at some positions."""
        return TableRows(self.source.take(pa.array(positions)) if self.is_in_memory else self.source.select(positions))


@dataclass(frozen=True)
class NumberColumnStore(Store):
    """Store of one view of numbers in table columns, read and checked at each fetch."""

    rows: TableRows
    names: tuple[str, ...]
    where: str
    shape: Shape

    @property
    def shapes(self) -> tuple[Shape, ...]:
        return (self.shape,)

    def __len__(self) -> int:
        return len(self.rows)

    def fetch(self, positions: Tensor) -> tuple[Tensor, ...]:
        return (_read_view(self.rows, self.names, self.where, positions.tolist()),)


@dataclass(frozen=True)
class ImageColumn(UndecodedItems):
    """Encoded images in a table column: bytes, or Hugging Face's struct of bytes and file path."""

    rows: TableRows
    column: str
    folder: Path
    where: str

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, position: int) -> Path | bytes:
        value = self.rows.read([position]).column(self.column)[0].as_py()
        if isinstance(value, dict):
            value = value["bytes"] if value["bytes"] is not None else value["path"]
        check(value is not None, "no image in this row")
        return value if isinstance(value, bytes) else self.folder / value

    def take(self, positions: Positions) -> ImageColumn:
        return replace(self, rows=self.rows.take(positions))

    def item_name(self, position: int) -> str:
        return f"{self.where}, column {self.column!r}, row {position}"

    def source_files(self) -> Sequence[str]:
        """Return the path of the table's file, or of all files in its folder if the table is a folder."""
        below = sorted(str(file) for file in Path(self.where).rglob("*") if file.is_file())
        return below or [self.where]


def dataset_from_rows(
    rows: TableRows,
    split: str,
    *,
    path: Path,
    columns: Mapping[str, Any] | None,
    image_size: int | None,
    test_fraction: float | None = None,
    is_test: Masks | None = None,
    class_names: Mapping[str, tuple[str, ...]] | None = None,
) -> Dataset:
    """Build the dataset of one split from the rows of a table.

    Args:
        rows: rows of all splits.
        split: "train" or "test".
        path: file or folder of the table; names of image files are relative to its folder.
        columns: roles of columns that their names do not imply; see `infer_roles`.
        image_size: side of the square images, in pixels.
        test_fraction: fraction of each class to hold out; default: 0.2.
        is_test: which rows are the test split; default: by the column of splits, or else a fraction is held out.
        class_names: names of the integers in some columns.

    Raises:
        UsageError: a column or its values are invalid; the message names both.
    """
    where = str(path)
    check(len(rows) > 0, f"data: {where} has no row.", "empty")
    roles = resolve_roles(rows, columns, where)
    row_keys = _read_keys(rows, roles.keys or roles.sequence, columns or {}, where)
    view_names = name_views(roles.views)
    rows, source_rows = explode_text_lists(rows, roles.views)
    if roles.sequence is not None:
        message = f"columns: {where}: sequence: requires a column of splits instead of split files."
        check(is_test is None, message, "conflict")
        constant = [name for name in (roles.labels, roles.numbers, roles.domains, roles.split, roles.weights) if name]
        table, source_rows = group_sequences(rows.read(), roles.sequence, roles.views, constant, where)
        rows, roles = TableRows(table), replace(roles, views=tuple((names[0],) for names in roles.views))
    if roles.split is not None and is_test is None:
        names = read_categories(rows.select_columns([roles.split]).read(), roles.split, where)
        is_test, neither = split_masks(names, f"{where}: column {roles.split!r}")
        rows, is_test = rows.take(np.flatnonzero(~neither)), None if is_test is None else is_test[~neither]
        source_rows = source_rows[~neither]
    labels, label_names = _read_codes(rows, roles.labels, class_names or {}, where)
    domains, domain_names = _read_codes(rows, roles.domains, class_names or {}, where)
    view_rows = [rows.select_columns(names) for names in roles.views]
    present = _find_present(view_rows) if len(view_rows) > 1 else None
    if present is not None:
        view_rows = [_fill(part, mask, where) for part, mask in zip(view_rows, present.T, strict=True)]
    folder = path if path.is_dir() else path.parent
    views = [
        _view(part, names, folder, where, texts=names[0] not in roles.maybe_files)
        for part, names in zip(view_rows, roles.views, strict=True)
    ]
    files = _file_keys(views, present, source_rows, where)
    message = f"columns: {where}: keys: must not be given, as image files are named by their paths."
    check(files is None or (columns or {}).get("keys") is None, message, "conflict")
    items = ItemMetadata(
        where,
        len(rows),
        labels=labels,
        class_names=label_names,
        domains=domains,
        domain_names=domain_names,
        is_test=is_test,
        test_fraction=test_fraction,
        present=present,
        weights=_read_per_item(parse_weights, rows, roles.weights, where),
        regression_targets=_read_per_item(parse_numbers, rows, roles.numbers, where),
        source_rows=source_rows,
        keys=row_keys[source_rows].tolist() if files is None and row_keys is not None else files,
    )
    return items.build_dataset(split, views, image_size=image_size, view_names=view_names)


def resolve_roles(rows: TableRows, columns: Mapping[str, Any] | None, where: str) -> ColumnRoles:
    """Determine the role of each column: by `infer_roles`, except for text columns with few distinct values.

    Such a column is no view unless its name or the user declares it a text; it holds the labels if it is the only one
    and no other column does.

    Raises:
        UsageError: as `infer_roles`, or several columns may hold the labels.
    """
    roles = infer_roles(rows.schema, columns, where)
    counts = {name: _count_few(rows, name) for name in roles.undeclared_texts} if len(roles.views) > 1 else {}
    few = {name: count for name, count in counts.items() if count}
    if not few:
        return roles
    names, numbers = list(few), join_names([f"{count:,}" for count in few.values()])
    views = tuple(view for view in roles.views if view[0] not in few)
    subject = f"column {names[0]!r} has" if len(few) == 1 else f"columns {names} have"
    message = f"{where}: {subject} {numbers} distinct values in {len(rows):,} rows"
    if len(few) == 1 and roles.labels is None and "labels" not in (columns or {}):
        every = format_options(columns={"views": [name for view in roles.views for name in view]})
        _log.info("%s, and is taken as the labels; %s makes it a view", message, every)
        return replace(roles, views=views, labels=names[0], undeclared_texts=())
    others = [view[0] for view in views] or names
    as_labels = "" if roles.labels else f"the classes by {format_options(columns={'labels': names[0]})}, or "
    as_views = f"the views by {format_options(columns={'views': others})}"
    message = f"data: {message}, too few for texts to learn from; set {as_labels}{as_views}."
    raise UsageError(message, kind="ambiguous_columns")


def _count_few(rows: TableRows, name: str) -> int:
    """Return the number of distinct texts in a column, or 0 if it has many distinct ones or none."""
    table = rows.select_columns([name]).read()
    if not holds_texts(table, name):
        return 0
    distinct = len(set(table.column(name).to_pylist()) - {None, ""})
    return distinct if distinct <= min(MAX_CLASSES, len(rows) // 10) else 0


def _file_keys(
    views: Sequence[View], present: np.ndarray | None, source_rows: Positions, where: str
) -> Sequence[str] | None:
    """Return the name of the first image file of each row, or the row number; None if no view consists of files."""
    of_files = [(number, view.files) for number, view in enumerate(views) if isinstance(view, ImageFiles)]
    if not of_files or present is None:
        return of_files[0][1] if of_files else None
    names = np.array([f"{where}, row {row}" for row in source_rows.tolist()], dtype=np.object_)
    for number, files in reversed(of_files):
        names = np.where(present[:, number], np.array(files, dtype=np.object_), names)
    keys: list[str] = names.tolist()
    return keys


def _read_keys(rows: TableRows, name: str | None, columns: Mapping[str, Any], where: str) -> np.ndarray | None:
    """Return the key of each row; None without a key column, or if an inferred key column has empty cells."""
    if name is None:
        return None
    try:
        return read_categories(rows.select_columns([name]).read(), name, where).astype(np.str_)
    except UsageError as error:
        if name in columns.values():
            raise
        _log.info("%s: rows are identified by their numbers, as some have no name: %s", where, error)
        return None


def explode_text_lists(rows: TableRows, views: Sequence[Sequence[str]]) -> tuple[TableRows, Positions]:
    """Repeat rows with lists of texts so that each row has one text; return the new rows and their source rows."""
    names = [names[0] for names in views if len(names) == 1 and holds_lists_of_texts(rows.schema.field(names[0]))]
    if not names:
        return rows, np.arange(len(rows))
    check(len(names) == 1, f"data: columns {names} hold lists of texts; at most one may.", "several_text_lists")
    table, source_rows = explode_text_column(rows.read(), names[0])
    return TableRows(table), source_rows


def _find_present(views: Sequence[TableRows]) -> np.ndarray | None:
    """Return the mask of the views that each row has, ``(n, views)``; None if no view is missing.

    Of rows in files only strings are examined, as everything else would have to be read.
    """
    masks = [
        ~find_empty_rows(rows.read()) if rows.is_in_memory or _are_strings(rows) else np.ones(len(rows), dtype=np.bool_)
        for rows in views
    ]
    present = np.stack(masks, axis=1)
    return None if present.all() else present


def _are_strings(rows: TableRows) -> bool:
    return len(rows.schema.names) == 1 and holds_strings(rows.schema.field(0))


def _fill(rows: TableRows, present: np.ndarray, where: str) -> TableRows:
    """Fill rows that lack a view with the first row that has it; these placeholders are never used."""
    existing = np.flatnonzero(present)
    check(len(existing) > 0, f"data: {where}: columns {rows.schema.names} have empty cells only.", "empty_column")
    return rows.take(np.where(present, np.arange(len(present)), existing[0]))


def _read_codes(
    rows: TableRows, name: str | None, class_names: Mapping[str, tuple[str, ...]], where: str
) -> tuple[np.ndarray | None, tuple[str, ...] | None]:
    if name is None:
        return None, None
    values = read_categories(rows.select_columns([name]).read(), name, where)
    if name not in class_names:
        return factorize(f"data: {where}: column {name!r}", values)
    if (values == -1).all():  # Hugging Face's mark of unlabeled data
        return None, None
    names = class_names[name]
    good = (values >= 0) & (values < len(names))
    message = f"data: {where}: column {name!r}: must be classes 0..{len(names) - 1}, got {values[~good][:1]}."
    check(bool(good.all()), message, "class_range")
    return values.astype(np.int64), names


def _read_per_item(
    parse: Callable[[str, np.ndarray], Tensor], rows: TableRows, name: str | None, where: str
) -> Tensor | None:
    if name is None:
        return None
    values = read_number_columns(rows.select_columns([name]).read(), [name], where)
    return parse(f"data: {where}: column {name!r}", values[:, 0] if values.shape[1:] == (1,) else values)


def _view(rows: TableRows, names: tuple[str, ...], folder: Path, where: str, *, texts: bool) -> View:
    """Build a view of all rows from its columns; texts are held in memory."""
    if _are_strings(rows):
        table = rows.read()
        if texts and holds_texts(table, names[0]):
            return TextStoreBuilder(read_texts(table, names[0], where), f"data: {where}: column {names[0]!r}")
        files = read_file_names(table, names[0], where)
        return ImageFiles(tuple(str(folder / file) for file in files))
    if len(names) == 1 and holds_images(rows.schema.field(names[0])):
        return ImageColumn(rows, names[0], folder, where)
    if rows.is_in_memory:
        numbers = _read_view(rows, names, where)
        return lambda positions: ArrayStore((numbers[torch.from_numpy(positions)],))
    shape = tuple(_read_view(rows, names, where, [0]).shape[1:])
    return lambda positions: NumberColumnStore(rows.take(positions), names, where, shape)


def _read_view(rows: TableRows, names: tuple[str, ...], where: str, positions: list[int] | None = None) -> Tensor:
    return as_view_tensor(
        f"data: {where}: columns {list(names)}", read_number_columns(rows.read(positions), names, where)
    )
