"""Formatting of numbers, names, shapes and options for messages, logs and reprs."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import MISSING, fields
from typing import Any

_USES_FLAG_STYLE: ContextVar[bool] = ContextVar("use_flag_style", default=False)
"""True while messages show options as command-line flags instead of keyword arguments."""


@contextmanager
def use_flag_style() -> Iterator[None]:
    """Context manager that formats options as command-line flags in all messages."""
    token = _USES_FLAG_STYLE.set(True)
    try:
        yield
    finally:
        _USES_FLAG_STYLE.reset(token)


def is_flag_style_active() -> bool:
    """Return whether options are currently formatted as command-line flags."""
    return _USES_FLAG_STYLE.get()


def format_keyword_or_flag(option: str) -> str:
    """Format an option name as a keyword argument or command-line flag."""
    return f"--{option}" if is_flag_style_active() else option


def format_options(**options: Any) -> str:
    """Format options as Python keyword arguments or command-line flags.

    >>> format_options(overwrite=True), format_options(columns={"labels": "kind"})
    ('overwrite=True', "columns={'labels': 'kind'}")
    >>> with use_flag_style():
    ...     format_options(overwrite=True), format_options(columns={"labels": "kind"}), format_options(data=...)
    ('--overwrite', '--columns.labels kind', '--data ...')
    """
    if not is_flag_style_active():
        return ", ".join(f"{name}={_format_literal(value)}" for name, value in options.items())
    return " ".join(f"--{name}" if value is True else format_flags({name: value}) for name, value in options.items())


def format_flags(values: Mapping[str, Any]) -> str:
    """Format options as command-line flags, except those that are None.

    >>> settings = {"augment": "noise:0.2", "predictor": True, "objective_settings": {"q": 0.1}, "given_views": [0, 2]}
    >>> format_flags(settings)
    '--augment noise:0.2 --predictor true --objective_settings.q 0.1 --given_views 0 2'
    >>> print(format_flags({"columns": {"views": ["photo", "a b"]}}))
    --columns.views '["photo", "a b"]'
    """
    words: list[str] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            for key, part in value.items():
                nested = json.dumps(part, ensure_ascii=False) if isinstance(part, list | tuple | Mapping) else part
                words += [] if part is None else [f"--{name}.{key} {_quote_for_shell(nested)}"]
        else:
            values_of_flag = value if isinstance(value, list | tuple) else [value]
            quoted = [_quote_for_shell(one) for one in values_of_flag if one is not None]
            words += [" ".join([f"--{name}", *quoted])] if quoted else []
    return " ".join(words)


def format_flags_in_style(flags: str) -> str:
    """Rewrite command-line flags as keyword arguments, unless called from the command line.

    >>> format_flags_in_style("--objective iot --temperature 0.05 --freeze --init.image FILE")
    "objective='iot', temperature=0.05, freeze=True, init={'image': 'FILE'}"
    """
    if is_flag_style_active():
        return flags
    options: dict[str, Any] = {}
    for flag in flags.removeprefix("--").split(" --"):
        name, _, text = flag.partition(" ")
        value: Any = text or True
        with suppress(ValueError):
            value = json.loads(text)
        option, _, key = name.partition(".")
        options[option] = {**options.get(option, {}), key: value} if key else value
    return format_options(**options)


def _quote_for_shell(value: Any) -> str:
    """Quote a value for a shell, or write the placeholder ``...`` for `Ellipsis`."""
    return "..." if value is ... else shlex.quote(str(value).lower() if isinstance(value, bool) else str(value))


def _format_literal(value: Any) -> str:
    """Format a value as a Python literal, with `Ellipsis` as ``...``."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key!r}: {_format_literal(part)}' for key, part in value.items())}}}"
    return "..." if value is ... else repr(value)


def pluralize(number: int, thing: str, things: str | None = None) -> str:
    """Format a count with its noun in singular or plural.

    Args:
        number: the count.
        thing: singular noun.
        things: plural noun; default: the singular with an s.

    >>> pluralize(1, "batch", "batches"), pluralize(0, "epoch"), pluralize(60_000, "item")
    ('1 batch', '0 epochs', '60,000 items')
    """
    return f"{number:,} {thing if number == 1 else things or f'{thing}s'}"


def format_significant(number: float, digits: int = 2) -> str:
    """Format a number with a fixed number of significant digits.

    >>> format_significant(99.7), format_significant(0.0123), format_significant(38_147.3, 3)
    ('100', '0.012', '38,100')
    """
    return f"{float(f'{number:.{digits}g}'):,.15g}"


def format_percent(share: float) -> str:
    """Format a share as a percentage with two significant digits.

    >>> format_percent(0.1234), format_percent(0.0009)
    ('12%', '0.09%')
    """
    return f"{format_significant(100 * share)}%"


def lower_first_letter(title: str) -> str:
    """Lowercase the first letter of a title unless it begins an acronym.

    >>> lower_first_letter("Linear probe"), lower_first_letter("kNN"), lower_first_letter("NMI")
    ('linear probe', 'kNN', 'NMI')
    """
    return f"{title[0].lower()}{title[1:]}" if title[1:2].islower() else title


def to_file_name(text: str) -> str:
    """Convert a string to a file name, with special characters replaced by ``-``.

    >>> to_file_name("../right eye")
    'right-eye'
    """
    return re.sub(r"(?:[^\w.]|\.{2,})+", "-", text).strip("-.")


def equally_long_suffixes_by_path(paths: Iterable[str]) -> dict[str, str]:
    """Return each path's ending, with just enough parts to distinguish all paths.

    >>> equally_long_suffixes_by_path(["a/cats/1.png", "b/cats/1.png", "b/cats/2.png"])
    {'a/cats/1.png': 'a/cats/1.png', 'b/cats/1.png': 'b/cats/1.png', 'b/cats/2.png': 'b/cats/2.png'}
    """
    parts = {path: path.split("/") for path in paths}
    most = max(map(len, parts.values()), default=1)
    by_size = ({path: "/".join(of[-size:]) for path, of in parts.items()} for size in range(1, most + 1))
    return next(ends for ends in by_size if len(set(ends.values())) == len(ends))


def join_names(names: Iterable[str], conjunction: str = "and") -> str:
    """Join names with commas and a final "and" or another conjunction.

    >>> join_names(["a", "b", "c"]), join_names(["a"]), join_names(["a", "b"], "or")
    ('a, b and c', 'a', 'a or b')
    """
    *first, last = names
    return f"{', '.join(first)} {conjunction} {last}" if first else last


def describe_item_shape(shape: Sequence[int]) -> str:
    """Describe the shape of an item in words, such as "20 numbers".

    >>> describe_item_shape((3, 32, 32)), describe_item_shape((20,)), describe_item_shape(())
    ('3 x 32 x 32', '20 numbers', 'text')
    """
    return pluralize(shape[0], "number") if len(shape) == 1 else " x ".join(map(str, shape)) or "text"


def describe_items_of_shape(shape: Sequence[int]) -> str:
    """Describe items by their shape, for use in error messages.

    >>> describe_items_of_shape((3, 8, 8)), describe_items_of_shape(())
    ('items of shape (3, 8, 8)', 'texts')
    """
    return f"items of shape {tuple(shape)}" if len(shape) > 0 else "texts"


class NonDefaultsReprMixin:
    """Dataclass mixin whose repr shows only the settings that differ from their defaults."""

    def __repr__(self) -> str:
        instance: Any = self
        settings = [
            f"{field.name}={getattr(instance, field.name)!r}"
            for field in fields(instance)
            if field.repr and (field.default is MISSING or getattr(instance, field.name) != field.default)
        ]
        return f"{type(self).__name__}({', '.join(settings)})"
