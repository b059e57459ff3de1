"""What the columns of a table are for: views, labels, numbers, domains, splits, weights and keys."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import pyarrow as pa

from contraport._utils.formatting import format_options
from contraport.data.formats.columns import holds_images, holds_lists, holds_strings
from contraport.errors import UsageError, check, unknown_name_error

ROLES = ("views", "labels", "numbers", "domains", "split", "weights", "sequence", "keys")
LABEL_NAMES = ("label", "labels", "y", "class", "target")
DOMAIN_NAMES = ("domain", "domains")
SPLIT_NAMES = ("split",)
KEY_NAMES = ("id",)
ROW_NAMES = ("", "id", "index", "unnamed: 0")
"""Columns that number the rows; they are no features."""
_INDEX = re.compile(r"__index_level_\d+__")
"""What pandas calls an index without a name where it writes it to a file."""

_log = logging.getLogger(__name__)

_TEXT = re.compile(
    r"(text|caption|sentence|title|headline|description|abstract|body|question|query|answer|passage|document|review|"
    r"comment|premise|hypothesis|summary)s?_?\d*",
    re.IGNORECASE,
)
_VIEW = re.compile(r"view(\d+)(?:[._].*)?", re.IGNORECASE)


@dataclass(frozen=True)
class Roles:
    """The columns of each view, and those of labels, numbers, domains, splits and weights where there are such.

    Where there is a column of sequences, rows with equal values are the frames of one item, a time series. One of keys
    says what the source calls each row.
    `doubtful` are columns of strings beside numbers: they may be names of files, but whether they are texts to learn
    from, or the names of something, only the caller knows. `unnamed` are other columns of strings that are views
    although neither their names nor the caller say so.
    """

    views: tuple[tuple[str, ...], ...]
    labels: str | None
    numbers: str | None
    domains: str | None
    split: str | None
    weights: str | None = None
    sequence: str | None = None
    keys: str | None = None
    doubtful: tuple[str, ...] = field(default=(), repr=False)
    unnamed: tuple[str, ...] = field(default=(), repr=False)


def infer_roles(schema: pa.Schema, columns: Mapping[str, Any] | None, where: str) -> Roles:
    """Return what each column of a table is for.

    By name, in any case: ``label``, ``labels``, ``y``, ``class`` or ``target`` holds the labels, or where its values
    are no integers and no text the numbers that are to be told of the items; ``domain`` or ``domains`` the domains,
    ``split`` the splits; ``id`` says what each row is called, ``index`` numbers the rows. Of the others, ``view0.x``,
    ``view0_y``, ``view1``, ... are views by their number; else each column of lists, images or texts is a view, and all
    columns of numbers together are one. Texts beside numbers are a view where they are called so: ``text``,
    ``caption``, ``title``, ...

    Args:
        schema: names and types of the columns.
        columns: what differs from that: ``"views"``, a list with, for each view, the name of a column, a pattern such
            as ``"audio_*"``, or a list of these; ``"labels"``, ``"numbers"``, ``"domains"`` and ``"split"``, the name
            of a column, or None for no such; ``"keys"`` likewise, what each row is called; ``"weights"`` and
            ``"sequence"``, the name of a column, which no name says by itself.
        where: what messages call the table.

    Raises:
        UsageError: an unknown role or column, a column in two roles, or no column that is a view.

    >>> schema = pa.schema([("x", pa.float32()), ("y", pa.int64()), ("site", pa.string()), ("z", pa.float32())])
    >>> roles = infer_roles(schema, {"domains": "site"}, "table.csv")
    >>> roles.views, roles.labels, roles.domains, roles.split
    ((('x', 'z'),), 'y', 'site', None)
    """
    given = dict(columns or {})
    names = list(schema.names)
    repeated = sorted({name for name in names if names.count(name) > 1})
    check(not repeated, f"data: {where}: expected different names of columns, got {repeated} more than once.")
    for role in given:
        if role not in ROLES:
            raise unknown_name_error("columns", role, ROLES)
    single = {
        role: _named(given[role], role, names, where) if role in given else _guess(role, known, names, where)
        for role, known in (
            ("labels", LABEL_NAMES),
            ("numbers", ()),
            ("domains", DOMAIN_NAMES),
            ("split", SPLIT_NAMES),
            ("weights", ()),
            ("sequence", ()),
            ("keys", KEY_NAMES),
        )
    }
    if single["labels"] and single["numbers"] is None and pa.types.is_floating(schema.field(single["labels"]).type):
        _log.info("%s: column %r holds numbers to be told of the items, and no classes", where, single["labels"])
        single |= {"labels": None, "numbers": single["labels"]}
    taken = [name for name in single.values() if name is not None]
    if given.get("views") is None:
        rest = [name for name in names if name not in taken and not _numbers_rows(schema, name)]
        views, doubtful, unnamed = _guess_views(schema, rest, where)
    else:
        doubtful = unnamed = ()
        views = _given_views(given["views"], names, where)
    used = taken + [name for view in views for name in view]
    twice = sorted({name for name in used if used.count(name) > 1})
    check(not twice, f"columns: {where}: expected each column in one role, got {twice} in two.")
    return Roles(tuple(views), **single, doubtful=doubtful, unnamed=unnamed)


def check_no_columns(columns: Mapping[str, Any] | None, where: str) -> None:
    """Raise `UsageError` where columns are named of data that have none; of weights, which a training is asked for by
    themselves, with what else they may be.
    """
    if columns is None:
        return
    told = f"columns: only tables have columns, got {format_options(columns=columns)} for {where}."
    if set(columns) == {"weights"}:
        told = (
            f"sample_weight: only tables have columns, got {columns['weights']!r} for {where}; expected a .npy file "
            "with one for each item, classes or plan:0.9."
        )
    raise UsageError(told)


def is_text_name(name: str) -> bool:
    """Return whether a name says that what it is of are texts.

    >>> is_text_name("Caption"), is_text_name("city")
    (True, False)
    """
    return _TEXT.fullmatch(name) is not None


def name_views(views: Sequence[Sequence[str]]) -> list[str]:
    """Return what views are called: a column by its own name, several by what theirs begin with, or by their number.

    >>> name_views([["photo"], ["audio_0", "audio_1"], ["x", "z"]])
    ['photo', 'audio', 'view2']
    """
    begun = [os.path.commonprefix(list(names)).rstrip("._-") if len(names) > 1 else names[0] for names in views]  # noqa: RUF071
    return [name if name and begun.count(name) == 1 else f"view{number}" for number, name in enumerate(begun)]


def _numbers_rows(schema: pa.Schema, name: str) -> bool:
    """Return whether a column numbers the rows, by its name or because it was the index of a data frame."""
    index = (schema.pandas_metadata or {}).get("index_columns", [])
    was_index = _INDEX.fullmatch(name) is not None or (name in index and not _stands_alone(schema.field(name)))
    return name.lower() in ROW_NAMES or was_index


def _named(name: Any, role: str, names: list[str], where: str) -> str | None:
    if name is None:
        return None
    if name not in names:
        raise unknown_name_error(f"columns: {role}: column of {where}", name, names)
    return str(name)


def _guess(role: str, known: Sequence[str], names: list[str], where: str) -> str | None:
    found = [name for name in names if name.lower() in known]
    check(
        len(found) < 2,
        f"data: {where}: expected one column of {role}, got {found}; {format_options(columns={role: ...})} says which.",
    )
    return found[0] if found else None


def _guess_views(
    schema: pa.Schema, rest: list[str], where: str
) -> tuple[list[tuple[str, ...]], tuple[str, ...], tuple[str, ...]]:
    """Return the columns of each view, those that are doubtful, and the other strings that no name calls texts."""
    check(len(rest) > 0, f"data: {where}: expected a column that is a view, got {schema.names}.")
    matches = {name: match for name in rest if (match := _VIEW.fullmatch(name))}
    if matches:
        check(
            len(matches) == len(rest),
            f"data: {where}: beside the columns of view0, view1, ... there are {sorted(set(rest) - set(matches))}; "
            f"{format_options(columns={'views': list(matches)})} takes these alone.",
        )
        numbers = sorted({int(match[1]) for match in matches.values()})
        check(
            numbers == list(range(len(numbers))),
            f"data: {where}: expected view0, view1, ... without a gap, got {numbers}.",
        )
        return [tuple(name for name in rest if int(matches[name][1]) == number) for number in numbers], (), ()
    alone = [name for name in rest if _stands_alone(schema.field(name))]
    together = tuple(name for name in rest if name not in alone)
    strings = [name for name in alone if holds_strings(schema.field(name))]
    for name in together:
        if alone and is_text_name(name):
            _log.warning("%s: column %r holds numbers, and is taken as these, as no text", where, name)
    uncalled = tuple(name for name in strings if not is_text_name(name))
    views = [(name,) for name in alone] + ([together] if together else [])
    return (views, uncalled, ()) if together else (views, (), uncalled)


def _stands_alone(field: pa.Field) -> bool:
    return holds_lists(field) or holds_images(field) or holds_strings(field)


def _given_views(views: Any, names: list[str], where: str) -> list[tuple[str, ...]]:
    good = isinstance(views, list | tuple) and len(views) > 0
    check(good, f"columns: views: expected a list with the column or columns of each view, got {views!r}.")
    return [_matching(view, names, where) for view in views]


def _matching(view: Any, names: list[str], where: str) -> tuple[str, ...]:
    """Return the columns that a name, a pattern or a list of these means."""
    if isinstance(view, list | tuple) and view:
        return tuple(name for part in view for name in _matching(part, names, where))
    check(isinstance(view, str), f"columns: views: expected names of columns, got {view!r}.")
    if view in names:
        return (view,)
    found = tuple(name for name in names if fnmatchcase(name, view))
    if not found:
        raise unknown_name_error(f"columns: views: column of {where}", view, names)
    return found
