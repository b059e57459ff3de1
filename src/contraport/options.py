"""What an option is: a field of a dataclass, with the check of its values, its help, and how long a value holds."""

from __future__ import annotations

import functools
import inspect
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, ParamSpec, Self, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from contraport.errors import UsageError, bound, check, check_integer, check_positive, unknown_name_error

P = ParamSpec("P")
T = TypeVar("T")

Check = Callable[[str, Any], None]
"""Raises `UsageError` for a value of an option, which it is told the name of."""

Holds = Literal["run", "machine", "call"]
"""How long a value holds: as long as the run; until it goes on, maybe on another machine; or for one call."""

MAX_COUNT = 2**31 - 1


def plain(value: Any) -> Any:
    """Return what `config.yaml` writes for a value; of an object, its name in angle brackets."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if value is None or isinstance(value, str | int | float):
        return value
    return name_of(value) if isinstance(value, Path) else f"<{name_of(value)}>"


def is_object_placeholder(value: Any) -> bool:
    """Return whether what `config.yaml` says stands for an object, or a list with one, which it does not hold."""
    if isinstance(value, list | Mapping):
        return any(map(is_object_placeholder, value.values() if isinstance(value, Mapping) else value))
    return isinstance(value, str) and value.startswith("<") and value.endswith(">")


def name_of(value: Any) -> str:
    """Return what a name or an object is called in messages and paths."""
    return str(value) if isinstance(value, str | Path) else str(getattr(value, "name", type(value).__name__))


@dataclass(frozen=True)
class Option:
    """What is known of an option.

    Attributes:
        name: what it is called.
        kind: the types of its values; `Any` among them stands for objects that only a program can give.
        default: what holds where nothing is given; `inspect.Parameter.empty` where something must be.
        leads: whether a call in Python may give it without its name.
        help: what it does.
        group: what it belongs to.
        check: what its values are checked by, beside their type.
        written: returns what `config.yaml` writes for a value.
        holds: how long a value does.
        grows: whether it may become more when a run goes on.
        flag: whether a command gives it by its name although a call need not.
        exists: raises where what a value names, such as a run, is missing. The command does so too: this is for a call
            that lacks another option, of which the first mistake is told.
    """

    name: str
    kind: Any
    default: Any
    leads: bool
    help: str
    group: str
    check: Check | None
    written: Callable[[Any], Any]
    holds: Holds
    grows: bool
    flag: bool = False
    exists: Check | None = None

    @property
    def required(self) -> bool:
        """Whether something must be given."""
        return self.default is inspect.Parameter.empty

    @property
    def positional(self) -> bool:
        """Whether a command gives it without its name."""
        return self.leads and not self.flag

    def judge(self, value: Any) -> None:
        """Raise `UsageError` unless the value is one of the option's."""
        if value is None and fits(None, self.kind):
            return
        if self.check is not None:
            self.check(self.name, value)
        elif not fits(value, self.kind):
            raise UsageError(f"{self.name}: expected {describe_type(self.kind)}, got {value!r}.")


def option(
    default: T,
    help: str,
    *,
    check: Check | None = None,
    written: Callable[[Any], Any] = plain,
    holds: Holds = "run",
    grows: bool = False,
    group: str | None = None,
) -> T:
    """Return a field of a dataclass of options; a group is that of the options after it too."""
    return field(
        default=default, metadata=known(help, check=check, written=written, holds=holds, grows=grows, group=group)
    )


def known(
    help: str,
    *,
    check: Check | None = None,
    written: Callable[[Any], Any] = plain,
    holds: Holds = "run",
    grows: bool = False,
    group: str | None = None,
    flag: bool = False,
    exists: Check | None = None,
) -> dict[str, Any]:
    """Return what is known of an option: the metadata of its field, where it is one that must be given.

    >>> @dataclass(frozen=True, kw_only=True)
    ... class Walk:
    ...     way: str = field(kw_only=False, metadata=known("where to."))
    >>> get_options(Walk)["way"].required, get_options(Walk)["way"].positional
    (True, True)
    """
    return {
        "help": help,
        "check": check,
        "written": written,
        "holds": holds,
        "grows": grows,
        "group": group,
        "flag": flag,
        "exists": exists,
    }


@functools.cache
def get_options(kind: Callable[..., object]) -> Mapping[str, Option]:
    """Return what is known of the options that a dataclass has as its fields, by name; those that lead first."""
    kinds, group = get_type_hints(kind), ""
    options: dict[str, Option] = {}
    for one in fields(cast(type, kind)):
        group = one.metadata["group"] or group
        default = inspect.Parameter.empty if one.default is MISSING else one.default
        about = {**one.metadata, "group": group}
        options[one.name] = Option(one.name, kinds[one.name], default, not one.kw_only, **about)
    return dict(sorted(options.items(), key=lambda item: not item[1].leads))


class Options:
    """Base of a dataclass of options: checks each value that is not the option's default."""

    def __post_init__(self) -> None:
        for name, one in get_options(cast(Callable[..., object], type(self))).items():
            value = getattr(self, name)
            if value is not one.default:  # defaults are checked once, by the tests
                one.judge(value)

    def derive(self, **values: Any) -> Self:
        """Return a copy with other values, unchecked: for values that the library computes, not for a user's.

        >>> @dataclass(frozen=True, kw_only=True)
        ... class Walk(Options):
        ...     steps: int = option(1, "how many.", check=whole(1), group="the way")
        >>> Walk(steps=3).derive(steps=4)
        Walk(steps=4)
        """
        derived, kind = object.__new__(type(self)), cast(Callable[..., object], type(self))
        vars(derived).update({name: getattr(self, name) for name in get_options(kind)} | values)
        return derived


def with_signature_of(
    kind: Callable[P, object], about: str = ""
) -> Callable[[Callable[[dict[str, Any]], T]], Callable[P, T]]:
    """Give a function of a dict of options the options of a dataclass as keywords.

    Names, types and defaults are visible to type checkers and editors, and the docstring documents each option.

    Args:
        kind: the dataclass.
        about: text of the docstring before the options.

    >>> @dataclass(frozen=True, kw_only=True)
    ... class Walk:
    ...     steps: int = option(1, "how many.", group="the way")
    >>> @with_signature_of(Walk, "It takes a while.")
    ... def walk(given):
    ...     '''Go.
    ...
    ...     Raises:
    ...         UsageError: a wall.
    ...     '''
    ...     return given
    >>> walk(steps=3), inspect.signature(walk)
    ({'steps': 3}, <Signature (*, steps: int = 1)>)
    >>> print(walk.__doc__)
    Go.
    <BLANKLINE>
    It takes a while.
    <BLANKLINE>
    Args:
        steps: how many.
    <BLANKLINE>
    Raises:
        UsageError: a wall.
    """
    options = get_options(kind)
    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD if one.leads else inspect.Parameter.KEYWORD_ONLY,
            default=one.default,
            annotation=one.kind,
        )
        for name, one in options.items()
    ]

    def decorate(function: Callable[[dict[str, Any]], T]) -> Callable[P, T]:
        returned = get_type_hints(function).get("return", inspect.Signature.empty)
        signature = inspect.Signature(parameters, return_annotation=returned)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            return function(bound(function.__name__, signature, args, kwargs).arguments)

        told: Any = call
        told.__signature__ = signature
        told.__annotations__ = {name: one.kind for name, one in options.items()} | {"return": returned}
        told.__doc__ = _with_arguments(inspect.getdoc(function) or "", inspect.cleandoc(about), options)
        return call

    return decorate


def _with_arguments(documentation: str, about: str, options: Mapping[str, Option]) -> str:
    """Put what is said beside it, and what each option does, before what a docstring says is raised."""
    filled = textwrap.TextWrapper(
        116, initial_indent="    ", subsequent_indent="        ", break_long_words=False, break_on_hyphens=False
    )
    told = [filled.fill(f"{name}: {one.help}") for name, one in options.items()]
    before, raises, after = documentation.partition("Raises:\n")
    said = f"{about}\n\n" if about else ""
    return "\n".join([f"{before}{said}Args:", *told, "", raises + after])


def whole(least: int, most: int = MAX_COUNT) -> Check:
    """Return a check for a whole number between two, both included."""

    def judge(name: str, value: Any) -> None:
        check_integer(name, value, least)
        if value > most:
            raise UsageError(f"{name}: expected at most {most}, got {value!r}.")

    return judge


def positive(name: str, value: Any) -> None:
    """Check that a value is a positive finite number."""
    check_positive(name, value)


def nonnegative_number(name: str, value: Any, *, below: float = math.inf) -> None:
    """Check that a value is a number from 0 on, finite or below another."""
    good = fits(value, float) and 0 <= value < below
    limit = "a finite number" if below == math.inf else f"a number below {below}"
    if not good:
        raise UsageError(f"{name}: expected {limit}, 0 or more, got {value!r}.")


def one_of(*known: str) -> Check:
    """Return a check for one of some names."""

    def judge(name: str, value: Any) -> None:
        if value not in known:
            raise unknown_name_error(name, value, known)

    return judge


def subset_of(*known: str) -> Check:
    """Return a check for a list of some names."""
    each = one_of(*known)

    def judge(name: str, value: Any) -> None:
        check(fits(value, Sequence[str]), f"{name}: expected a list of names, got {value!r}.")
        for one in value:
            each(name, one)

    return judge


def fits(value: Any, kind: Any, *, objects: bool = True) -> bool:
    """Return whether a value is of a type; a whole number is a number, and true and false are none.

    Args:
        value: what came.
        kind: the type, or several.
        objects: whether `Any` stands for every object, rather than for none.

    >>> fits(3, float | None), fits(True, float), fits("ab", Sequence[str]), fits(["a", "b"], Sequence[str])
    (True, False, False, True)
    """
    classes, of_bool, forms = _alternatives(kind)
    if isinstance(value, of_bool if isinstance(value, bool) else classes):
        return True
    return bool(forms) and any(_fits_form(value, form, objects=objects) for form in forms)


@functools.cache
def _alternatives(kind: Any) -> tuple[tuple[type, ...], tuple[type, ...], tuple[Any, ...]]:
    """Return the classes that a type allows, those of them that allow true and false, and its other alternatives.

    It is cached, as a run folder has some seventy options and most types are unions.
    """
    classes: list[type] = []
    of_bool: list[type] = []
    forms: list[Any] = []
    for part in get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,):
        origin = get_origin(part)
        if part is Any or origin in (list, Sequence, Literal):
            forms.append(part)
        elif part in (int, float):
            classes += [int, part]
        else:
            classes.append(Mapping if origin is dict else origin or part)
            of_bool.append(classes[-1])
    return tuple(classes), tuple(of_bool), tuple(forms)


def _fits_form(value: Any, form: Any, *, objects: bool) -> bool:
    """Return whether a value is of `Any`, a list of a type, or one of some literals."""
    if form is Any:
        return objects
    parts = get_args(form)
    if get_origin(form) is Literal:
        return value in parts
    return isinstance(value, list | tuple) and all(fits(item, parts[0], objects=objects) for item in value)


def describe_type(kind: Any) -> str:
    """Return in words what values of a type are.

    >>> describe_type(float | str | None)
    'a number or text'
    """
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(describe_type(part) for part in parts if part is not NoneType))
    if origin is Literal:
        return "one of " + ", ".join(map(str, parts))
    if origin in (list, Sequence):
        return "a list"
    if origin in (dict, Mapping):
        return 'keys with values, such as {"key": "value"}'
    return _WORDS.get(kind, getattr(kind, "__name__", str(kind)))


_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    Path: "a path",
    Any: "an object",
}
