"""Parser of option values with settings, such as ``balanced:iterations=5``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

from contraport.errors import UsageError, check, check_name

T = TypeVar("T")


class NameWithSettings(NamedTuple):
    """Parsed option value, split into a name and its settings."""

    name: str
    settings: dict[str, int | float | str]


def parse_spec(
    argument: str,
    text: object,
    setting_names_by_name: Mapping[str, Iterable[str]],
    *,
    unnamed_setting_by_name: Mapping[str, str] | None = None,
) -> NameWithSettings:
    """Parse a name with settings, such as ``balanced:iterations=5``.

    The forms are ``"name"``, ``"name:value"`` and ``"name:setting=value,setting=value"``.

    Args:
        argument: name of the argument, for errors.
        text: the spec.
        setting_names_by_name: names of the settings of each valid name.
        unnamed_setting_by_name: by name, the setting whose value may come first without ``setting=``.

    Raises:
        UsageError: a name is unknown, a setting is given twice, or the text after the colon is not a setting.

    >>> parse_spec("constraint", "balanced:iterations=5", {"rows": (), "balanced": ("iterations", "tolerance")})
    NameWithSettings(name='balanced', settings={'iterations': 5})
    >>> parse_spec("augment", "noise:0.2", {"noise": ("strength",)}, unnamed_setting_by_name={"noise": "strength"})
    NameWithSettings(name='noise', settings={'strength': 0.2})
    """
    name, _, rest = str(text).partition(":")
    check_name(argument, name, setting_names_by_name)
    names, first = list(setting_names_by_name[name]), (unnamed_setting_by_name or {}).get(name)
    settings: dict[str, int | float | str] = {}
    for position, part in enumerate(split_at_outer_commas(rest)):
        key, equals, value = part.partition("=")
        if not equals and position == 0 and first is not None:
            key, value = first, part
        else:
            form = f"{name}:setting=value" if names else f"{name}, which has no settings"
            check(bool(equals), f"{argument}: must be {form}, got {text!r}.", "bad_setting")
        check_name(f"{argument}: setting of {name}", key, names)
        check(key not in settings, f"{argument}: must set {key} once, got {text!r}.", "duplicate_setting")
        settings[key] = parse_number_or_text(strip_quotes(value))
    return NameWithSettings(name, settings)


def build_from_spec(
    argument: str, spec: str, classes: Mapping[str, Callable[..., T]], *, defaults: Mapping[str, object] | None = None
) -> T:
    """Build an object from the class name and arguments in a spec.

    Args:
        argument: name of the argument, for errors.
        spec: name and arguments, such as ``"balanced:iterations=5"``; true and false are Booleans, (.1,.2) is a tuple.
        classes: the classes by name.
        defaults: values of parameters that the spec leaves out, for the classes that have them.

    Raises:
        UsageError: an unknown name or parameter; or an error of the class, which then begins with the argument.

    >>> build_from_spec("number", "complex:real=2", {"complex": complex}, defaults={"imag": 1, "sign": -1})
    (2+1j)
    """
    parameters = {name: list(inspect.signature(one).parameters) for name, one in classes.items()}
    for name, one in classes.items():  # deprecated names are accepted, but not listed
        parameters[name] += [old for old in getattr(one, "deprecated_keywords", ()) if f"{old}=" in spec]
    name, settings = parse_spec(argument, spec, parameters)
    options = {key: value for key, value in (defaults or {}).items() if key in parameters[name]}
    options |= {key: parse_setting_value(value) for key, value in settings.items()}
    try:
        return classes[name](**options)
    except UsageError as error:  # the class names its parameter; add the option
        raise UsageError(f"{argument}: {error} Full value: {spec!r}.", kind=error.code.rpartition(".")[2]) from error


def split_at_outer_commas(text: str) -> list[str]:
    """Split a text at commas outside quotes, parentheses and brackets.

    >>> split_at_outer_commas("gca-ince:target='domains:alpha=0.5,beta=0',info-nce")
    ["gca-ince:target='domains:alpha=0.5,beta=0'", 'info-nce']
    >>> split_at_outer_commas("gca-uot:marginal_weight=(.1,.2),q=0.5")
    ['gca-uot:marginal_weight=(.1,.2)', 'q=0.5']
    """
    return _PART_BETWEEN_OUTER_COMMAS.findall(text)


def strip_quotes(text: str) -> str:
    """Remove the quotes around a value."""
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


# A comma within quotes, parentheses or brackets separates nothing; an opening one that is never closed is a character.
_PART_BETWEEN_OUTER_COMMAS = re.compile(r"""(?:'[^']*'|"[^"]*"|\([^()]*\)|\[[^\[\]]*\]|[^,])+""")


def parse_number_or_text(value: str) -> int | float | str:
    """Convert a string to an int or a float if possible."""
    for number_type in (int, float):
        try:
            return number_type(value)
        except ValueError:
            continue
    return value


def parse_setting_value(value: T) -> T | bool | int | float | str | tuple[int | float, ...]:
    """Convert a string to a number, Boolean or tuple if possible.

    >>> parse_setting_value("0.1"), parse_setting_value("true"), parse_setting_value("(.1, 2)")
    (0.1, True, (0.1, 2))
    """
    if not isinstance(value, str):
        return value
    if value in ("true", "false"):
        return value == "true"
    if value[:1] + value[-1:] not in ("()", "[]"):
        return parse_number_or_text(value)
    parts = [parse_number_or_text(part.strip()) for part in value[1:-1].split(",")]
    numbers = tuple(part for part in parts if not isinstance(part, str))
    return numbers if len(numbers) == len(parts) else value
