"""Views of the rows of an Arrow table, in memory or behind a reader that fetches rows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from contraport._utils.formatting import format_options, join_names
from contraport.data.arrays import ArrayStore, as_view_tensor, factorize, parse_numbers, weights_of
from contraport.data.dataset import Dataset
from contraport.data.decoding import ImageFiles
from contraport.data.digests import digest_fetched
from contraport.data.formats.column_roles import Roles, infer_roles, name_views
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
    read_numbers,
    read_texts,
)
from contraport.data.source_items import Items, View
from contraport.data.splits import Marks, Positions, split_masks
from contraport.data.text_store import Texts
from contraport.errors import UsageError, check

_log = logging.getLogger(__name__)


class ArrowRows(Protocol):
    """Rows of named columns, fetched as Arrow tables."""

    @property
    def schema(self) -> pa.Schema:
        """The names and types of the columns."""

    @property
    def in_memory(self) -> bool:
        """Whether the whole table lies in memory."""

    def __len__(self) -> int: ...

    def read(self, positions: list[int] | None = None) -> pa.Table:
        """Return the rows at some positions, or all."""

    def select(self, names: list[str]) -> ArrowRows:
        """Return some of the columns."""

    def take(self, positions: Positions) -> ArrowRows:
        """Return some of the rows."""


@dataclass(frozen=True)
class TableRows:
    """Rows of a table in memory."""

    table: pa.Table
    in_memory: bool = True

    @property
    def schema(self) -> pa.Schema:
        """The names and types of the columns."""
        return self.table.schema

    def __len__(self) -> int:
        return len(self.table)

    def read(self, positions: list[int] | None = None) -> pa.Table:
        """Return the rows at some positions, or all."""
        return self.table if positions is None else self.table.take(positions)

    def select(self, names: list[str]) -> TableRows:
        """Return some of the columns."""
        return TableRows(self.table.select(names))

    def take(self, positions: Positions) -> TableRows:
        """Return some of the rows."""
        return TableRows(self.table.take(pa.array(positions)))


@dataclass(frozen=True)
class NumberColumnStore:
    """Numbers in rows as one view, read and checked when they are fetched."""

    rows: ArrowRows
    names: tuple[str, ...]
    where: str
    shapes: tuple[tuple[int, ...], ...]
    in_memory: bool = False

    @cached_property
    def digests(self) -> Tensor:
        """Digests of the rows, int64 ``(n, 1)``; all of them are read once."""
        return digest_fetched(self)

    def __len__(self) -> int:
        return len(self.rows)

    def fetch(self, positions: Tensor) -> tuple[Tensor, ...]:
        """Return the views at some positions, stacked."""
        return (_read_view(self.rows, self.names, self.where, positions.tolist()),)


@dataclass(frozen=True)
class ImageColumn:
    """Encoded images in a column: their bytes, or bytes or the path of a file as Hugging Face stores them."""

    rows: ArrowRows
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
        """Return the images at some positions."""
        return ImageColumn(self.rows.take(positions), self.column, self.folder, self.where)

    def name(self, position: int) -> str:
        """Return the column and the row of an image."""
        return f"{self.where}, column {self.column!r}, row {position}"

    def source_files(self) -> Sequence[str]:
        """Return the files whose content they are: that of the table, or all in its folder."""
        below = sorted(str(file) for file in Path(self.where).rglob("*") if file.is_file())
        return below or [self.where]


def dataset_from_rows(
    rows: ArrowRows,
    split: str,
    *,
    path: Path,
    columns: Mapping[str, Any] | None,
    image_size: int | None,
    test_fraction: float | None = None,
    is_test: Marks | None = None,
    class_names: Mapping[str, tuple[str, ...]] | None = None,
) -> Dataset:
    """Return one split of a table.

    Args:
        rows: the rows of all splits.
        split: "train" or "test".
        path: the file or folder of the table; names of image files are relative to its folder.
        columns: what the columns are for where their names do not say it; see `infer_roles`.
        image_size: side of the square that images become, in pixels.
        test_fraction: share of each class to hold out; default: a fifth.
        is_test: which rows are the test split's; default: what the column of splits says, else some are held out.
        class_names: for columns whose integers have names, these names.

    Raises:
        UsageError: a column or its values are not what they should be; the message names both.
    """
    where = str(path)
    check(len(rows) > 0, f"data: {where} has no row.")
    roles = resolve_roles(rows, columns, where)
    keys = _keys(rows, roles.keys or roles.sequence, columns or {}, where)
    rows, in_source = explode_text_lists(rows, roles.views)
    called = name_views(roles.views)
    if roles.sequence is not None:
        check(is_test is None, f"columns: {where}: sequence: expected a column of splits, as files of their own have.")
        facts = [name for name in (roles.labels, roles.numbers, roles.domains, roles.split, roles.weights) if name]
        table, in_source = group_sequences(rows.read(), roles.sequence, roles.views, facts, where)
        rows, roles = TableRows(table), replace(roles, views=tuple((names[0],) for names in roles.views))
    if roles.split is not None and is_test is None:
        names = read_categories(rows.select([roles.split]).read(), roles.split, where)
        is_test, neither = split_masks(names, f"{where}: column {roles.split!r}")
        rows, is_test = rows.take(np.flatnonzero(~neither)), None if is_test is None else is_test[~neither]
        in_source = in_source[~neither]
    labels, label_names = _codes(rows, roles.labels, class_names or {}, where)
    domains, domain_names = _codes(rows, roles.domains, class_names or {}, where)
    numbers = _one_each(parse_numbers, rows, roles.numbers, where)
    folder = path if path.is_dir() else path.parent
    columns_of = [rows.select(list(names)) for names in roles.views]
    present = _present(columns_of) if len(columns_of) > 1 else None
    if present is not None:
        columns_of = [_filled(chosen, marks, where) for chosen, marks in zip(columns_of, present.T, strict=True)]
    weights = _one_each(weights_of, rows, roles.weights, where)
    known = (labels, label_names, domains, domain_names)
    views = [
        _view(chosen, names, folder, where, doubtful=names[0] in roles.doubtful)
        for chosen, names in zip(columns_of, roles.views, strict=True)
    ]
    files = _files(views, present, in_source, where)
    asked = (columns or {}).get("keys")
    check(
        asked is None or files is None,
        f"columns: {where}: keys: expected none, as image files are known by their names.",
    )
    named = files if files is not None or keys is None else keys[in_source].tolist()
    items = Items(
        where, len(rows), *known, is_test, test_fraction, present, weights, numbers, rows=in_source, keys=named
    )
    return items.dataset(split, views, image_size=image_size, view_names=called)


FEW_VALUES = 100
"""A column of names of classes has at most so many different ones, and each as a rule ten times or more."""


def resolve_roles(rows: ArrowRows, columns: Mapping[str, Any] | None, where: str) -> Roles:
    """Return what each column of a table is for: by `infer_roles`, but for strings of few distinct values.

    Where neither its name nor the caller says that such a column is a text to learn from, it is no view: it holds the
    labels, if it is the only one and no other column does.

    Raises:
        UsageError: besides what `infer_roles` raises, several columns may hold the labels.
    """
    roles = infer_roles(rows.schema, columns, where)
    few = {} if len(roles.views) < 2 else {name: _few_values(rows, name) for name in roles.unnamed}
    few = {name: values for name, values in few.items() if values}
    if not few:
        return roles
    names, counts = list(few), join_names([f"{values:,}" for values in few.values()])
    views = tuple(view for view in roles.views if view[0] not in few)
    have = f"column {names[0]!r} has" if len(few) == 1 else f"columns {names} have"
    told = f"{where}: {have} {counts} distinct values in {len(rows):,} rows"
    if len(few) == 1 and roles.labels is None and "labels" not in (columns or {}):
        every = format_options(columns={"views": [name for view in roles.views for name in view]})
        _log.info("%s, and is taken as the labels; %s makes it a view", told, every)
        return replace(roles, views=views, labels=names[0], unnamed=())
    others = [view[0] for view in views] or names
    labels = (
        f"{format_options(columns={'labels': names[0]})} makes it the class of each row, " if not roles.labels else ""
    )
    raise UsageError(
        f"data: {told}, few for texts to learn from: {labels}{format_options(columns={'views': others})} says which "
        "columns are the views."
    )


def _few_values(rows: ArrowRows, name: str) -> int:
    """Return how many distinct texts a column holds, where these are few; 0 where they are many, or no texts."""
    table = rows.select([name]).read()
    if not holds_texts(table, name):
        return 0
    distinct = len(set(table.column(name).to_pylist()) - {None, ""})
    return distinct if distinct <= min(FEW_VALUES, len(rows) // 10) else 0


def _files(views: Sequence[View], present: np.ndarray | None, in_source: Positions, where: str) -> Sequence[str] | None:
    """Return the first image file that each row has, or else its number; None where no view is of files."""
    of_files = [(number, view.files) for number, view in enumerate(views) if isinstance(view, ImageFiles)]
    if not of_files or present is None:
        return of_files[0][1] if of_files else None
    names = np.array([f"{where}, row {row}" for row in in_source.tolist()], dtype=np.object_)
    for number, files in reversed(of_files):
        names = np.where(present[:, number], np.array(files, dtype=np.object_), names)
    own: list[str] = names.tolist()
    return own


def _keys(rows: ArrowRows, name: str | None, columns: Mapping[str, Any], where: str) -> np.ndarray | None:
    """Return what each row is called; nothing where no column says it, or not of all rows and nobody asked for it."""
    if name is None:
        return None
    try:
        return read_categories(rows.select([name]).read(), name, where).astype(np.str_)
    except UsageError as error:
        if name in columns.values():
            raise
        _log.info("%s: rows are known by their numbers, as they have not all a name: %s", where, error)
        return None


def explode_text_lists(rows: ArrowRows, views: Sequence[Sequence[str]]) -> tuple[ArrowRows, Positions]:
    """Return rows of which each has one text where a column holds lists of them, and from which row each comes."""
    listed = [names[0] for names in views if len(names) == 1 and holds_lists_of_texts(rows.schema.field(names[0]))]
    if not listed:
        return rows, np.arange(len(rows))
    (name, *others) = listed
    check(not others, f"data: columns {listed} hold lists of texts; expected one such column.")
    table, parents = explode_text_column(rows.read(), name)
    return TableRows(table), parents


def _present(columns: Sequence[ArrowRows]) -> np.ndarray | None:
    """Return which rows have which views, ``(n, views)``; None where all have all.

    Of what is not in memory only strings are looked at.
    """
    marks = [
        ~find_empty_rows(chosen.read())
        if chosen.in_memory or _are_strings(chosen)
        else np.ones(len(chosen), dtype=np.bool_)
        for chosen in columns
    ]
    present = np.stack(marks, axis=1)
    return None if present.all() else present


def _are_strings(rows: ArrowRows) -> bool:
    return len(rows.schema.names) == 1 and holds_strings(rows.schema.field(0))


def _filled(rows: ArrowRows, present: np.ndarray, where: str) -> ArrowRows:
    """Return the rows, the first that has the view in place of each that lacks it: nobody will look at these."""
    there = np.flatnonzero(present)
    check(len(there) > 0, f"data: {where}: columns {rows.schema.names}: expected values, got empty cells throughout.")
    return rows.take(np.where(present, np.arange(len(present)), there[0]))


def _codes(
    rows: ArrowRows, name: str | None, class_names: Mapping[str, tuple[str, ...]], where: str
) -> tuple[np.ndarray | None, tuple[str, ...] | None]:
    if name is None:
        return None, None
    values = read_categories(rows.select([name]).read(), name, where)
    if name not in class_names:
        return factorize(f"data: {where}: column {name!r}", values)
    if (values == -1).all():  # how Hugging Face marks that nothing is labelled
        return None, None
    known = class_names[name]
    good = (values >= 0) & (values < len(known))
    check(
        bool(good.all()),
        f"data: {where}: column {name!r}: expected classes 0..{len(known) - 1}, got {values[~good][:1]}.",
    )
    return values.astype(np.int64), known


def _one_each(
    known: Callable[[str, np.ndarray], Tensor], rows: ArrowRows, name: str | None, where: str
) -> Tensor | None:
    """Return what `parse_numbers` or `weights_of` makes of a column; nothing of no column."""
    if name is None:
        return None
    values = read_numbers(rows.select([name]).read(), [name], where)
    return known(f"data: {where}: column {name!r}", values[:, 0] if values.shape[1:] == (1,) else values)


def _view(chosen: ArrowRows, names: tuple[str, ...], folder: Path, where: str, *, doubtful: bool) -> View:
    """Return a view of all rows, given its columns; texts are held in memory."""
    field = chosen.schema.field(names[0])
    if _are_strings(chosen):
        table = chosen.read()
        if not doubtful and holds_texts(table, names[0]):
            return Texts(read_texts(table, names[0], where), f"data: {where}: column {names[0]!r}")
        files = read_file_names(table, names[0], where)
        return ImageFiles(tuple(str(folder / file) for file in files))
    if len(names) == 1 and holds_images(field):
        return ImageColumn(chosen, names[0], folder, where)
    if chosen.in_memory:
        numbers = _read_view(chosen, names, where)
        return lambda positions: ArrayStore((numbers[torch.from_numpy(positions)],))
    shape = tuple(_read_view(chosen, names, where, [0]).shape[1:])
    return lambda positions: NumberColumnStore(chosen.take(positions), names, where, (shape,))


def _read_view(rows: ArrowRows, names: tuple[str, ...], where: str, positions: list[int] | None = None) -> Tensor:
    return as_view_tensor(f"data: {where}: columns {list(names)}", read_numbers(rows.read(positions), names, where))
