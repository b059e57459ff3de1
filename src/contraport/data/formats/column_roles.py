"""Roles of the columns of a table, such as views, labels and keys."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import pyarrow as pa

from contraport._utils.formatting import format_options
from contraport.data.formats.arrow_columns import can_hold_image_bytes, is_list, is_string
from contraport.errors import UsageError, check, check_name, unknown_name_error

LABEL_COLUMN_NAMES = ("label", "labels", "y", "class", "target")
"""Names, in upper or lower case, of columns that are read as labels."""
DOMAIN_COLUMN_NAMES = ("domain", "domains")
"""Names, in upper or lower case, of columns that are read as domains."""
COLUMN_NAMES_BY_ROLE = {
    "labels": LABEL_COLUMN_NAMES, "numbers": (), "domains": DOMAIN_COLUMN_NAMES, "split": ("split",), "weights": (),
    "sequence": (), "keys": ("id",),
}  # fmt: skip
"""Column names that imply a role, in upper or lower case. Roles without such names must be declared."""
MAX_LISTED_COLUMNS = 20
"""Maximum number of columns that a message lists by name."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ColumnRoles:
    """Columns of each view, and of other roles such as labels and keys.

    Attributes:
        views: columns of each view.
        column_by_role: column of the classes ("labels"), regression targets ("numbers"), "domains", splits ("split"),
            training "weights", names of the rows ("keys"), and identifiers of the time series that a row is a frame of
            ("sequence"); None for a role without a column.
        possible_file_columns: string columns in a table that also has numeric columns: either file names, or texts to
            learn from.
        undeclared_text_columns: string columns used as views, although neither their names nor the user declare them as
            texts.
    """

    views: tuple[tuple[str, ...], ...]
    column_by_role: dict[str, str | None]
    possible_file_columns: tuple[str, ...] = ()
    undeclared_text_columns: tuple[str, ...] = ()


def infer_roles(schema: pa.Schema, declared_roles: Mapping[str, Any] | None, table_name: str) -> ColumnRoles:
    """Infer the role of each column from its name and type.

    By name, in any case: ``label``, ``labels``, ``y``, ``class`` or ``target`` holds the labels, or the regression
    targets if its values are floats; ``domain`` or ``domains`` the domains; ``split`` the splits; ``id`` the names of
    the rows; ``index`` numbers the rows. Of the others, ``view0.x``, ``view0_y``, ``view1``, ... are views by number;
    otherwise each column of lists, images or texts is a view, and all columns of numbers together are one. Texts beside
    numbers are a view if their name implies it: ``text``, ``caption``, ``title``, ...

    Args:
        schema: names and types of the columns.
        declared_roles: explicit roles: ``"views"``, a list with, for each view, the name of a column, a pattern such as
            ``"audio_*"``, or a list of these; every other role, the name of a column, or None for no such column.
        table_name: name of the table in messages.

    Raises:
        UsageError: an unknown role or column, a column in two roles, or no column for a view.

    >>> schema = pa.schema([("x", pa.float32()), ("y", pa.int64()), ("site", pa.string()), ("z", pa.float32())])
    >>> roles = infer_roles(schema, {"domains": "site"}, "table.csv")
    >>> roles.views, roles.column_by_role["labels"], roles.column_by_role["domains"], roles.column_by_role["split"]
    ((('x', 'z'),), 'y', 'site', None)
    """
    explicit = dict(declared_roles or {})
    names = list(schema.names)
    repeated = sorted({name for name in names if names.count(name) > 1})
    check(
        not repeated, f"data: {table_name}: must have distinct names of columns, got {repeated} repeatedly.", "columns"
    )
    for role in explicit:
        check_name("columns", role, ("views", *COLUMN_NAMES_BY_ROLE))
    column_by_role = {
        role: _find_role_column(role, role_names, explicit, names, table_name)
        for role, role_names in COLUMN_NAMES_BY_ROLE.items()
    }
    labels = column_by_role["labels"]
    if labels and column_by_role["numbers"] is None and pa.types.is_floating(schema.field(labels).type):
        _log.info("%s: column %r holds regression targets, not classes", table_name, labels)
        column_by_role |= {"labels": None, "numbers": labels}
    used = [name for name in column_by_role.values() if name is not None]
    if explicit.get("views") is None:
        unassigned = [name for name in names if name not in used and not _is_row_number_column(schema, name)]
        roles = _build_roles_with_inferred_views(schema, unassigned, column_by_role, table_name)
    else:
        value = explicit["views"]
        parts = [part for part in re.split(r"[,\s]+", value) if part] if isinstance(value, str) else []
        example = format_options(columns={"views": parts or ["audio_*", "image"]})
        for name in parts:
            _match_columns(name, names, table_name)
        message = "columns: views: must be a list with the column or columns of each view, such as "
        check(isinstance(value, list | tuple) and len(value) > 0, f"{message}{example}, got {value!r}.")
        roles = ColumnRoles(
            tuple(_match_columns(view, names, table_name) for view in explicit["views"]), column_by_role
        )
    used += [name for view in roles.views for name in view]
    twice = sorted({name for name in used if used.count(name) > 1})
    check(not twice, f"columns: {table_name}: each column may have one role, got {twice} in two.", "conflict")
    return roles


def check_no_columns(declared_roles: Mapping[str, Any] | None, data_name: str) -> None:
    """Raise `UsageError` if columns are given for data without columns.

    An error about the role weights alone names the option of training instead, which accepts other values too.
    """
    if declared_roles is None:
        return
    if set(declared_roles) == {"weights"}:
        message = f"sample_weight: only tables have columns, got {declared_roles['weights']!r} for {data_name}; use "
        raise UsageError(f"{message}a .npy file with one weight per item, classes or plan:0.9.", kind="no_columns")
    message = f"columns: only tables have columns, got {format_options(columns=declared_roles)} for {data_name}."
    raise UsageError(message, kind="no_columns")


def is_text_column_name(name: str) -> bool:
    """Return whether a column's name, such as ``caption``, suggests that it contains text.

    >>> is_text_column_name("Caption"), is_text_column_name("city")
    (True, False)
    """
    nouns = (
        "text|caption|sentence|title|headline|description|abstract|body|question|query|answer|passage|document|review|"
        "comment|premise|hypothesis|summary"
    )
    return re.fullmatch(rf"({nouns})s?_?\d*", name, re.IGNORECASE) is not None


def derive_view_names(views: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Derive a name for each view from the names of its columns.

    >>> derive_view_names([["photo"], ["audio_0", "audio_1"], ["x", "z"]])
    ('photo', 'audio', 'view2')
    """
    stems = [os.path.commonprefix(list(names)).rstrip("._-") if len(names) > 1 else names[0] for names in views]  # noqa: RUF071
    return tuple(stem if stem and stems.count(stem) == 1 else f"view{number}" for number, stem in enumerate(stems))


class SuggestedViews(NamedTuple):
    """Suggested division of the columns of one view into several views.

    Attributes:
        columns: names of all columns.
        views: pattern, name or names of the columns of each view, as in the role ``"views"``.
        is_evident: whether the names of the columns show it; otherwise the views are the two halves of the columns.
    """

    columns: tuple[str, ...]
    views: Sequence[str | list[str]]
    is_evident: bool


def suggest_views(columns: Sequence[str]) -> SuggestedViews:
    """Suggest how to divide columns into views by the prefixes of their names.

    Two groups of columns, or three or four of several columns each, are evident views. Columns without such prefixes
    are divided into two halves, which are not evident.

    >>> suggest_views(["left.height", "left.width", "age"])
    SuggestedViews(columns=('left.height', 'left.width', 'age'), views=['left.*', 'age'], is_evident=True)
    >>> suggest_views(["lidar_0", "lidar_1", "radar_0", "radar_1"]).views
    ['lidar_*', 'radar_*']
    >>> suggest_views(["height", "width", "age"])
    SuggestedViews(columns=('height', 'width', 'age'), views=['height', ['width', 'age']], is_evident=False)
    """
    for suffix in (r"\d+$", r"(?<=[._ -]).+"):  # a number, or any text after a separator
        groups: dict[str, list[str]] = {}
        for name in columns:
            groups.setdefault(re.sub(suffix, "", name), []).append(name)
        patterns = [f"{prefix}*" if len(group) > 1 else group[0] for prefix, group in groups.items()]
        sizes = sorted(map(len, groups.values()))
        has_groups = 2 <= len(groups) <= 4 and (sizes[0] > 1 or (len(groups) == 2 and sizes[1] > 1))
        if has_groups and all(sum(fnmatchcase(name, one) for one in patterns) == 1 for name in columns):
            return SuggestedViews(tuple(columns), patterns, is_evident=True)
    middle = len(columns) // 2
    halves = (list(columns[:middle]), list(columns[middle:]))
    return SuggestedViews(tuple(columns), [half if len(half) > 1 else half[0] for half in halves], is_evident=False)


def _is_row_number_column(schema: pa.Schema, name: str) -> bool:
    """Return whether a column, such as `id`, seems to contain only row numbers."""
    # Pandas writes an index without a name as "__index_level_0__".
    if name.lower() in ("", "id", "index", "unnamed: 0") or re.fullmatch(r"__index_level_\d+__", name):
        return True
    index = (schema.pandas_metadata or {}).get("index_columns", [])
    return name in index and not _is_separate_view(schema.field(name))


def _find_role_column(
    role: str, role_names: Sequence[str], explicit: Mapping[str, Any], names: list[str], table_name: str
) -> str | None:
    """Return the declared or inferred column with a role such as label, or None."""
    if role in explicit:
        name = explicit[role]
        if name is not None and name not in names:
            raise unknown_name_error(f"columns: {role}: {table_name}", name, names, noun="column")
        return None if name is None else str(name)
    matches = [name for name in names if name.lower() in role_names]
    message = (
        f"data: {table_name}: must have one column of {role}, got {matches}; choose one, such as by "
        f"{format_options(columns={role: (matches or names)[0]})}."
    )
    check(len(matches) < 2, message, "ambiguous_columns")
    return matches[0] if matches else None


def _build_roles_with_inferred_views(
    schema: pa.Schema, unassigned: list[str], column_by_role: dict[str, str | None], table_name: str
) -> ColumnRoles:
    """Build the column roles, with views inferred from columns without a role."""
    check(len(unassigned) > 0, f"data: {table_name}: must have a column for a view, got {schema.names}.", "no_view")
    pattern = re.compile(r"view(\d+)(?:[._].*)?", re.IGNORECASE)  # such as view0.x
    matches = {name: match for name in unassigned if (match := pattern.fullmatch(name))}
    if matches:
        others = sorted(set(unassigned) - set(matches))
        only = format_options(columns={"views": list(matches)})
        message = f"data: {table_name}: there are columns {others} beside view0, view1, ...; leave them out by {only}."
        check(not others, message, "ambiguous_columns")
        numbers = sorted({int(match[1]) for match in matches.values()})
        good = numbers == list(range(len(numbers)))
        check(good, f"data: {table_name}: must have view0, view1, ... without a gap, got {numbers}.", "view_keys")
        numbered = (tuple(name for name in unassigned if int(matches[name][1]) == number) for number in numbers)
        return ColumnRoles(tuple(numbered), column_by_role)
    alone = [name for name in unassigned if _is_separate_view(schema.field(name))]
    features = tuple(name for name in unassigned if name not in alone)
    for name in features:
        if alone and is_text_column_name(name):
            _log.warning("%s: column %r has numbers and is used as numbers, despite its name", table_name, name)
    undeclared = tuple(name for name in alone if is_string(schema.field(name).type) and not is_text_column_name(name))
    views = tuple((name,) for name in alone)
    if features:
        return ColumnRoles((*views, features), column_by_role, possible_file_columns=undeclared)
    return ColumnRoles(views, column_by_role, undeclared_text_columns=undeclared)


def _is_separate_view(column: pa.Field) -> bool:
    """Return whether a column forms its own view, as lists or texts do."""
    return is_list(column.type) or can_hold_image_bytes(column) or is_string(column.type)


def _match_columns(view: Any, names: list[str], table_name: str) -> tuple[str, ...]:
    """Return the names of the columns that match a name, pattern or list."""
    if isinstance(view, list | tuple) and view:
        return tuple(name for part in view for name in _match_columns(part, names, table_name))
    check(isinstance(view, str), f"columns: views: must be names of columns, got {view!r}.")
    if view in names:
        return (view,)
    matches = tuple(name for name in names if fnmatchcase(name, view))
    if not matches and any(sign in view for sign in "*?["):
        message = f"columns: views: no column of {table_name} matches {view!r}; its columns are "
        shown = names if len(names) <= MAX_LISTED_COLUMNS else [*names[: MAX_LISTED_COLUMNS - 2], "...", names[-1]]
        raise UsageError(f"{message}{', '.join(shown)}.", kind="unknown")
    if not matches:
        raise unknown_name_error(f"columns: views: {table_name}", view, names, noun="column")
    return matches
