"""What a text says that is a name with settings after a colon, as the command line has it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from contraport.errors import check, unknown_name_error


class Named(NamedTuple):
    """A name and its settings.

    Attributes:
        name: what was chosen.
        settings: the values that were given, by name: numbers where they can be read as such, else texts.
    """

    name: str
    settings: dict[str, int | float | str]


def parse_spec(
    argument: str,
    text: object,
    known: Mapping[str, Iterable[str]],
    *,
    alone: Mapping[str, str] | None = None,
) -> Named:
    """Read ``"name"``, ``"name:value"`` or ``"name:setting=value,setting=value"``.

    Args:
        argument: what messages call it.
        text: what came.
        known: the names, each with those of its settings.
        alone: of some names, the setting whose value may stand first without its name.

    Raises:
        UsageError: a name is unknown, a setting is given twice, or what stands after the colon is no setting.

    >>> parse_spec("constraint", "balanced:iterations=5", {"rows": (), "balanced": ("iterations", "tolerance")})
    Named(name='balanced', settings={'iterations': 5})
    >>> parse_spec("augment", "noise:0.2", {"none": (), "noise": ("strength",)}, alone={"noise": "strength"})
    Named(name='noise', settings={'strength': 0.2})
    """
    name, _, rest = str(text).partition(":")
    if name not in known:
        raise unknown_name_error(argument, name, known)
    names, first = list(known[name]), (alone or {}).get(name)
    settings: dict[str, int | float | str] = {}
    for place, part in enumerate(split_at_commas(rest)):
        key, equals, value = part.partition("=")
        if not equals and place == 0 and first is not None:
            key, value = first, part
        else:
            form = f"{name}:setting=value" if names else f"{name}, which has no settings"
            check(bool(equals), f"{argument}: expected {form}, got {text!r}.")
        if key not in names:
            raise unknown_name_error(f"{argument}: setting of {name}", key, names)
        check(key not in settings, f"{argument}: expected {key} once, got {text!r}.")
        settings[key] = parse_number_or_text(strip_quotes(value))
    return Named(name, settings)


def split_at_commas(text: str) -> list[str]:
    """Return what stands between the commas of a text; quoted commas separate nothing, and empty parts are left out.

    >>> split_at_commas("gca-ince:target='domains:alpha=0.5,beta=0',info-nce")
    ["gca-ince:target='domains:alpha=0.5,beta=0'", 'info-nce']
    """
    return _PART.findall(text)


def strip_quotes(text: str) -> str:
    """Return a value without the quotes around it.

    >>> strip_quotes("'noise:3,blur:2'"), strip_quotes("0.5")
    ('noise:3,blur:2', '0.5')
    """
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


_PART = re.compile(r"""(?:'[^']*'|"[^"]*"|[^,])+""")


def parse_number_or_text(value: str) -> int | float | str:
    """Return the number that a text is, or the text."""
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value
