"""Declaration of options and commands for Python and the command line.

Options are dataclass fields with a type, default, check and help text. A command is declared in the `command_options`
module of the package that implements it. The command line lists, explains and parses it from this declaration alone,
and the Python function of the same name takes its options as keywords. So a `command_options` module imports nothing
heavy: what a command needs is imported when it runs.
"""

from __future__ import annotations

import copy
import functools
import inspect
import logging
import sys
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Any,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    Self,
    TypeAlias,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

from contraport._utils.formatting import format_keyword_or_flag, is_flag_style_active
from contraport.errors import (
    UsageError,
    bind_suggesting_keywords,
    check,
    check_integer,
    check_name,
    hint_on_error,
    is_integer,
    is_number,
)

P = ParamSpec("P")
Q = ParamSpec("Q")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
U_co = TypeVar("U_co", covariant=True)
CallableT = TypeVar("CallableT", bound=Callable[..., Any])

OptionCheck = Callable[[str, Any], None]
"""Function of an option's name and value that raises `UsageError` if the value is invalid."""

REMOVAL_VERSION = "0.3"  # version in which deprecated names are removed


def to_config_value(value: Any) -> Any:
    """Convert an option value to data that `config.yaml` can hold.

    An object becomes its name, such as ``<Adam>``.
    """
    if isinstance(value, Mapping):
        return {str(key): to_config_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_config_value(item) for item in value]
    if value is None or isinstance(value, str | int | float):
        return value
    return str(value) if isinstance(value, Path) else f"<{getattr(value, 'name', type(value).__name__)}>"


def numpy_numbers_to_python(value: Any) -> Any:
    """Convert NumPy numbers to Python numbers, including those in nested containers."""
    if type(value) is dict:
        return {key: numpy_numbers_to_python(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(numpy_numbers_to_python, value))
    if is_integer(value):
        return int(value)
    return float(value) if is_number(value) else value


@dataclass(frozen=True)
class Option:
    """Declaration of one option, with type, default, check and help.

    Attributes:
        name: Keyword in Python, and flag without dashes on the command line.
        type: Type annotation; `Any` in a union stands for objects that only Python code can pass.
        default: Default value; `inspect.Parameter.empty` for a required option.
        is_python_positional: Whether Python calls may pass the option by position.
        help: Help text: one sentence on what the option does.
        group: Heading of the option in the help of a command.
        check: Function that raises for an invalid value; replaces the check of the type.
        serialize: Function that converts a value to what `config.yaml` stores.
        lifetime: How long a value holds: for the whole run, one machine (it may change on resume), or one call.
        may_increase_on_resume: Whether the value may be increased when a run is resumed.
        is_cli_flag: Whether the option is a flag on the command line although it is positional in Python.
        deprecated_name: Old name that is still accepted, with a warning; empty for none.
        contains_options: Whether the value is a dictionary of options, whose own keys have flags too, such as
            ``--train.columns.views``.
    """

    name: str
    type: Any
    default: Any
    is_python_positional: bool
    help: str
    group: str = ""
    check: OptionCheck | None = None
    serialize: Callable[[Any], Any] = to_config_value
    lifetime: Literal["run", "machine", "call"] = "run"
    may_increase_on_resume: bool = False
    is_cli_flag: bool = False
    deprecated_name: str = ""
    contains_options: bool = False

    @property
    def required(self) -> bool:
        """True if the option has no default."""
        return self.default is inspect.Parameter.empty

    @property
    def is_cli_positional(self) -> bool:
        """True if the command line takes the option by position."""
        return self.is_python_positional and not self.is_cli_flag

    def numpy_numbers_to_python(self, value: Any) -> Any:
        """Convert NumPy numbers in a value for storage in `config.yaml`."""
        if value is None or type(value) in (str, int, float, bool):
            return value
        accepts_objects = self.type is Any or Any in get_args(self.type)  # whose contents are not options
        is_container = isinstance(value, list | tuple | dict)
        return value if accepts_objects and is_container else numpy_numbers_to_python(value)

    def check_value(self, value: Any) -> None:
        """Raise `UsageError` if a value is invalid for this option."""
        if value is None and matches_type(None, self.type):
            return
        if isinstance(value, str) and not value and Path in get_args(self.type):  # Path("") is the current folder
            raise UsageError(f"{self.name}: must not be empty, got an empty text.", kind="empty")
        if self.check is not None:
            self.check(self.name, value)
        elif not matches_type(value, self.type):
            raise UsageError(f"{self.name}: must be {describe_type(self.type)}, got {value!r}.")

    def check_may_replace_on_resume(self, value: Any, recorded: Any, file: Path) -> None:
        """Raise `UsageError` if a value may not replace the recorded one on resume."""
        if self.may_increase_on_resume:
            self.check_value(value)
            good = value >= recorded
            check(good, f"{self.name}: must be at least {recorded}, as in {file}, got {value}.", "decreased")
        elif self.lifetime == "run":
            value = self.serialize(value)
            expected = f"left out: {file} has its default" if recorded is None else f"{recorded!r}, as in {file}"
            check(value == recorded, f"{self.name}: must be {expected}, got {value!r}.", "changed")


def has_object_placeholder(value: Any) -> bool:
    """Return whether a `config.yaml` value contains a placeholder ``<name>`` for an object."""
    if isinstance(value, list | Mapping):
        return any(map(has_object_placeholder, value.values() if isinstance(value, Mapping) else value))
    return isinstance(value, str) and value.startswith("<") and value.endswith(">")


def merge_resumed_options(
    options: Mapping[str, Option], recorded: Mapping[str, Any], explicit_options: Mapping[str, Any], file: Path
) -> dict[str, Any]:
    """Merge a run's recorded options with those given at resumption, which take precedence.

    Raises:
        UsageError: a recorded option is unknown, a recorded object is not passed again, or an explicit option differs
            from the recorded one although it holds for the whole run.

    >>> @dataclass(frozen=True, kw_only=True)
    ... class Walk:
    ...     steps: int = option(1, "Number of steps.")
    ...     shoes: str = option("", "Shoes.", lifetime="machine")
    >>> recorded = {"steps": 3, "shoes": "old"}
    >>> merge_resumed_options(get_declared_options(Walk), recorded, {"shoes": "new"}, Path("config.yaml"))
    {'steps': 3, 'shoes': 'new'}
    """
    for name, value in recorded.items():
        check_name(str(file), name, options)
        message = f"{name}: {file} names the object {value}; pass it again to resume."
        check(name in explicit_options or not has_object_placeholder(value), message, "object_required")
    for name in options.keys() & explicit_options.keys() & recorded.keys():
        options[name].check_may_replace_on_resume(explicit_options[name], recorded[name], file)
    return {**recorded, **explicit_options}


def option_metadata(help: str, **metadata: Any) -> dict[str, Any]:
    """Build the metadata that makes a dataclass field an option.

    Keywords set attributes of `Option`. Needed for a required option only, as a type checker takes a field from
    `option` for one with a default.

    >>> @dataclass(frozen=True, kw_only=True)
    ... class Walk:
    ...     way: str = field(kw_only=False, metadata=option_metadata("Where to."))
    >>> get_declared_options(Walk)["way"].required, get_declared_options(Walk)["way"].is_cli_positional
    (True, True)
    """
    return {"help": help, **metadata}


def option(default: T, help: str, **metadata: Any) -> T:
    """Declare an option as a dataclass field with a default.

    Keywords such as `check` set attributes of `Option`. A group also applies to the options after it.
    """
    return field(default=default, metadata=option_metadata(help, **metadata))


@functools.cache
def get_declared_options(options_class: type) -> Mapping[str, Option]:
    """Return the options of a dataclass by name, positional ones first."""
    types, group = get_type_hints(options_class), ""
    options: dict[str, Option] = {}
    for one in fields(options_class):
        group = one.metadata.get("group", group)
        default = inspect.Parameter.empty if one.default is MISSING else one.default
        metadata = {**one.metadata, "group": group}
        options[one.name] = Option(one.name, types[one.name], default, not one.kw_only, **metadata)
    return dict(sorted(options.items(), key=lambda item: not item[1].is_python_positional))


class BaseOptions:
    """Base class of option dataclasses, which validates values that differ from defaults.

    Numbers of NumPy become numbers of Python.
    """

    def __post_init__(self) -> None:
        for name, one in get_declared_options(cast(type, type(self))).items():
            value = getattr(self, name)
            if value is not one.default:  # the defaults themselves are validated once, by the tests
                vars(self)[name] = value = one.numpy_numbers_to_python(value)
                one.check_value(value)

    def replace_unchecked(self, **values: Any) -> Self:
        """Return a copy with some values replaced, without validation."""
        if unknown := values.keys() - get_declared_options(cast(type, type(self))).keys():
            raise TypeError(f"unknown options: {', '.join(unknown)}")
        derived = copy.copy(self)
        vars(derived).update(values)
        return derived


def replace_deprecated_options(
    options: Mapping[str, Option], values: Mapping[str, Any], *, warn: bool = True
) -> dict[str, Any]:
    """Replace deprecated option names by current names, with a warning.

    Raises:
        UsageError: an option is given under both names.
    """
    renamed = dict(values)
    for name, one in options.items():
        if one.deprecated_name and one.deprecated_name in renamed:
            check(name not in renamed, f"{name}: also given as {one.deprecated_name}, its deprecated name.", "conflict")
            renamed[name] = renamed.pop(one.deprecated_name)
            if warn:
                warn_renamed(one.deprecated_name, name)
    return renamed


def warn_renamed(old: str, new: str, *, stacklevel: int = 4) -> None:
    """Warn that a name is deprecated, in Python or on the command line."""
    old, new = format_keyword_or_flag(old), format_keyword_or_flag(new)
    message = f"{old} is deprecated and will be removed in version {REMOVAL_VERSION}; use {new}."
    if is_flag_style_active():
        logging.getLogger("contraport").warning("%s", message)
    else:
        warnings.warn(message, FutureWarning, stacklevel=stacklevel)


def accept_deprecated_keywords(**new_names: str) -> Callable[[CallableT], CallableT]:
    """Decorator that accepts deprecated keywords, given as ``old="new"``, with a warning.

    >>> @accept_deprecated_keywords(wide="width")
    ... @dataclass
    ... class Box:
    ...     width: int
    >>> with warnings.catch_warnings(action="ignore"):
    ...     Box(wide=3).width
    3
    """

    def decorate(target: Any) -> Any:
        if isinstance(target, type):
            constructor = "__new__" if issubclass(target, tuple) else "__init__"
            target.deprecated_keywords = tuple(new_names)  # type: ignore[attr-defined]
            setattr(target, constructor, decorate(getattr(target, constructor)))
            return target

        @functools.wraps(target)
        def call(*args: Any, **kwargs: Any) -> Any:
            for old, new in new_names.items():
                if old in kwargs and new not in kwargs:  # both: the call of the target fails by the unexpected `old`
                    warn_renamed(old, new, stacklevel=3)
                    kwargs[new] = kwargs.pop(old)
            return target(*args, **kwargs)

        return call

    return decorate


def keep_deprecated_attributes(**new_names: str) -> Callable[[type[T]], type[T]]:
    """Class decorator that keeps deprecated attributes, given as ``old="new"``.

    A subclass that overrides a deprecated name raises `UsageError`, as nothing would call its override.
    """

    def decorate(cls: Any) -> Any:
        def read(self: Any, old: str, new: str) -> Any:
            warn_renamed(f"{cls.__name__}.{old}", f"{cls.__name__}.{new}", stacklevel=3)
            return getattr(self, new)

        own_hook = vars(cls).get("__init_subclass__")

        def check_subclass(subclass: Any, /, **arguments: Any) -> None:
            if own_hook is None:
                super(cls, subclass).__init_subclass__(**arguments)
            else:
                own_hook.__func__(subclass, **arguments)
            for old, new in new_names.items():
                name = f"{subclass.__name__}.{old}"
                check(old not in vars(subclass), f"{name}: renamed in {cls.__name__}; rename it to {new}.", "renamed")

        cls.__init_subclass__ = classmethod(check_subclass)
        all_names = cls.__dir__  # torch.jit reads all that dir() lists, and would warn of names that nobody used
        cls.__dir__ = lambda self: [name for name in all_names(self) if name not in new_names]
        for old, new in new_names.items():
            setattr(cls, old, property(functools.partial(read, old=old, new=new)))
        return cls

    return decorate


def keep_deprecated_module_names(module: str, **new_names: str) -> Callable[[str], Any]:
    """Build a module's ``__getattr__`` that resolves deprecated names with a warning."""

    def read(old: str) -> Any:
        if old not in new_names:
            raise AttributeError(f"module {module!r} has no attribute {old!r}")
        warn_renamed(f"{module}.{old}", f"{module}.{new_names[old]}", stacklevel=3)
        return getattr(sys.modules[module], new_names[old])

    return read


def _add_args_section(docstring: str, details: str, options: Mapping[str, Option]) -> str:
    """Add `details` and an "Args:" section of all options to a docstring."""
    wrapper = textwrap.TextWrapper(
        116, initial_indent="    ", subsequent_indent="        ", break_long_words=False, break_on_hyphens=False
    )
    lines = [wrapper.fill(f"{name}: {one.help}") for name, one in options.items()]
    before, raises, after = docstring.partition("Raises:\n")
    inserted = f"{details}\n\nArgs:" if details else "Args:"
    return "\n".join([before + inserted, *lines, "", raises + after])


def int_in_range(least: int, most: int = 2**31 - 1) -> OptionCheck:
    """Return a check that a value is an integer in ``[least, most]``."""

    def validate(name: str, value: Any) -> None:
        if is_integer(value) and value > most:
            bounds = f"an integer from {least} to {most}"
            raise UsageError(f"{name}: must be {bounds}, got {value!r}.", kind="too_large")
        check_integer(name, value, least)

    return validate


def check_open_unit_interval(name: str, value: Any) -> None:
    """Raise `UsageError` unless a number is strictly between 0 and 1."""
    check(is_number(value) and 0 < value < 1, f"{name}: must be a number between 0 and 1, got {value!r}.")


def one_of(*names: str) -> OptionCheck:
    """Return a check that a value is one of `names`."""

    def validate(name: str, value: Any) -> None:
        check_name(name, value, names)

    return validate


def subset_of(*names: str) -> OptionCheck:
    """Return a check that every entry of a list is one of `names`."""
    check_one = one_of(*names)

    def validate(name: str, value: Any) -> None:
        check(matches_type(value, Sequence[str]), f"{name}: must be a list of names, got {value!r}.")
        for one in value:
            check_one(name, one)

    return validate


def matches_type(value: Any, annotation: Any, *, match_any: bool = True) -> bool:
    """Return whether a value matches a type annotation.

    Args:
        value: the value.
        annotation: a type, a union, `Any`, `Literal` or a list or sequence type.
        match_any: whether `Any` matches every value or none.

    >>> matches_type(3, float | None), matches_type(True, float), matches_type("ab", Sequence[str])
    (True, False, False)
    """
    for part in get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,):
        origin = get_origin(part)
        if part is Any:
            matches = match_any
        elif origin is Literal:
            matches = value in get_args(part)
        elif origin in (list, Sequence):
            (item_type,) = get_args(part)
            matches = isinstance(value, list | tuple) and all(
                matches_type(item, item_type, match_any=match_any) for item in value
            )
        elif part in (int, float):
            matches = isinstance(value, int | part) and not isinstance(value, bool)
        else:
            matches = isinstance(value, Mapping if origin is dict else origin or part)
        if matches:
            return True
    return False


def describe_type(annotation: Any) -> str:
    """Describe a type annotation in words, without None, for messages.

    >>> describe_type(float | str | None)
    'a number or text'
    """
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(describe_type(part) for part in parts if part is not NoneType))
    if origin is Literal:
        return "one of " + ", ".join(map(str, parts))
    if origin in (list, Sequence):
        return "a list"
    if origin in (dict, Mapping):
        return 'keys with values, such as {"key": "value"}'
    return _DESCRIPTION_BY_TYPE.get(annotation, getattr(annotation, "__name__", str(annotation)))


_DESCRIPTION_BY_TYPE = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "text",
    Path: "a path",
    Any: "an object",
}
"""Words for a type in messages."""


CommandGroupName: TypeAlias = Literal["getting started", "train and evaluate", "use a trained encoder", "pairs"]
"""Heading of a command in `contraport --help`, in printed order."""

TRAIN_AND_REPORT_EXTRAS = "train,report"
"""Extras to install for the commands of contraport, as in ``pip install 'contraport[train,report]'``."""


@keep_deprecated_attributes(options="options_by_name")
@dataclass(frozen=True)
class Command(Generic[P]):
    """Declaration of a command, with options, function and help.

    Attributes:
        options_class: Dataclass of the options of the command.
        function_path: Location of the function, ``module:function``, imported when the command runs.
        summary: One sentence on what the command does.
        details: Further text for the help and the docstring of the function.
        examples: Example command lines for the help.
        printer_path: Location of the function that prints the result unless `--json` is passed; empty for none.
        failure_check_path: Location of a function that raises if the result is a failure, called after printing; empty
            for none.
        resolve_options: Function that adds options that follow from others, such as the settings of a recipe.
        required_extra: Extra of contraport that installs the required packages; empty for none.
        group: Heading of the command in `contraport --help`.
        short_help_options: Options shown by `--help`; all if empty. `--help_all` always shows all.
        docs_page: Documentation page about the command, as in `contraport docs PAGE`; empty for none.
        next_commands_path: Location of a function of the explicit options and the result that returns command lines to
            run next, printed after the result unless `--json` is passed; empty for none.
        printer_flags: Flags of the printer, such as `--all`, with their help. They change what the command line prints,
            not the result, so the function has no such keyword. A printer of a command with flags takes the explicit
            options as second argument, flags included.
    """

    options_class: Callable[P, object]
    function_path: str
    summary: str
    details: str = ""
    examples: tuple[str, ...] = ()
    printer_path: str = ""
    failure_check_path: str = ""
    resolve_options: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None
    required_extra: str = ""
    group: CommandGroupName | Literal[""] = ""
    short_help_options: tuple[str, ...] = ()
    docs_page: str = ""
    next_commands_path: str = ""
    printer_flags: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def options_by_name(self) -> Mapping[str, Option]:
        """Declared options of the command, by name."""
        return get_declared_options(cast(type, self.options_class))

    def with_option_parameters(self, function: Callable[[dict[str, Any]], T]) -> Callable[P, T]:
        """Decorator that replaces a function's options dict by keyword parameters.

        Names, types and defaults are visible to type checkers and editors, and the docstring documents each option.
        Errors get a note with the documentation page of the command.

        >>> @dataclass(frozen=True, kw_only=True)
        ... class Walk:
        ...     steps: int = option(1, "Number of steps.", group="the way")
        >>> @Command(Walk, "walks:walk", "Walk.", details="It takes a while.").with_option_parameters
        ... def walk(options):
        ...     '''Go.
        ...
        ...     Raises:
        ...         UsageError: a wall.
        ...     '''
        ...     return options
        >>> walk(steps=3), inspect.signature(walk)
        ({'steps': 3}, <Signature (*, steps: int = 1)>)
        >>> print(walk.__doc__)
        Go.
        <BLANKLINE>
        It takes a while.
        <BLANKLINE>
        Args:
            steps: Number of steps.
        <BLANKLINE>
        Raises:
            UsageError: a wall.
        """
        hinted = hint_on_error(f"contraport docs {self.docs_page}")(function) if self.docs_page else function
        options = self.options_by_name
        parameters = [
            inspect.Parameter(
                name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD if one.is_python_positional else inspect.Parameter.KEYWORD_ONLY,
                default=one.default,
                annotation=one.type,
            )
            for name, one in options.items()
        ]
        returned = get_type_hints(function).get("return", inspect.Signature.empty)
        signature = inspect.Signature(parameters, return_annotation=returned)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            arguments = replace_deprecated_options(options, kwargs)
            bound = bind_suggesting_keywords(function.__name__, signature, args, arguments).arguments
            return hinted({name: options[name].numpy_numbers_to_python(value) for name, value in bound.items()})

        described: Any = call
        described.__signature__ = signature
        described.__annotations__ = {name: one.type for name, one in options.items()} | {"return": returned}
        described.__doc__ = _add_args_section(inspect.getdoc(function) or "", inspect.cleandoc(self.details), options)
        return call


class OverloadedFunction(Protocol[P, T_co, Q, U_co]):
    """Type of an overloaded function: two signatures, each with its own result type."""

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T_co: ...
    @overload
    def __call__(self, *args: Q.args, **kwargs: Q.kwargs) -> U_co: ...


def overload_by_options(
    options: Callable[P, object], result: type[T_co], other_options: Callable[Q, object], other_result: type[U_co]
) -> Callable[[Callable[..., T_co | U_co]], OverloadedFunction[P, T_co, Q, U_co]]:
    """Decorator that gives a function two overloads, one for each options class."""

    def decorate(function: Callable[..., T_co | U_co]) -> OverloadedFunction[P, T_co, Q, U_co]:
        return cast(OverloadedFunction[P, T_co, Q, U_co], function)

    return decorate
