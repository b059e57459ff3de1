"""A parser for the command line and the YAML file of any function: its signature, types and docstring say all."""

from __future__ import annotations

import argparse
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

import docstring_parser
import yaml
from jsonargparse import ArgumentParser, DefaultHelpFormatter, set_loader

from contraport.errors import UsageError, cannot_read, unknown_name
from contraport.runs.options import Option, in_words

_MODE = "yaml-1.2"
_SHOWN = 60
_SCALARS = (int, float, bool, str)


def parse(
    function: Callable[..., Any],
    argv: Sequence[str],
    *,
    prog: str,
    examples: Iterable[str],
    resolve: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None,
) -> dict[str, Any] | None:
    """Return the keyword arguments that a command line, and the file of its ``--config``, give for a function.

    What is not given is left out, so the function's own defaults hold. None is returned where ``--help`` or
    ``--print_config`` was asked for, and printed. Both show what `resolve` says to follow from what is given, as a
    recipe's settings do. In the help, options stand under the headings of their groups, where the function has
    `options` that say so.

    Raises:
        UsageError: an unknown option or key (the nearest is offered), or a value of the wrong type.
    """
    parser = _parser(function, prog, examples)
    asked = [argument for argument in argv if argument.startswith(("--print_config", "--help")) or argument == "-h"]
    try:
        if asked and resolve is not None:
            given = _given(parser, [argument for argument in argv if argument not in asked])
            parser.set_defaults(resolve(given))
        return _given(parser, argv, complete=bool(asked))
    except SystemExit:
        return None


def _given(parser: ArgumentParser, argv: Sequence[str], *, complete: bool = False) -> dict[str, Any]:
    given: dict[str, Any] = parser.parse_args(list(argv), defaults=complete).as_dict()
    given.pop("config", None)
    return given


class _Loader(yaml.SafeLoader):
    """YAML with the numbers of its version 1.2: there 1:0.1 is text, not a number to the base of 60, and 1e-3 one.

    Aliases are refused: a few lines of them stand for more than fits in memory.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, pattern) for tag, pattern in rules if not tag.endswith((":int", ":float", ":timestamp"))]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.get_event()
            raise yaml.composer.ComposerError(None, None, f"the alias *{event.anchor} is not read", event.start_mark)
        return super().compose_node(parent, index)


def _load(text: str) -> Any:
    try:
        return yaml.load(text, _Loader)
    except (ValueError, RecursionError) as error:  # of a number of thousands of digits, and of brackets in brackets
        raise yaml.YAMLError(str(error)) from error


_NUMBERS = {
    "int": r"[-+]?(0|[1-9][0-9]*)",
    "float": r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
}
for _kind, _pattern in _NUMBERS.items():
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(f"^({_pattern})$"), [*"-+0123456789."])
set_loader(_MODE, _load, (yaml.YAMLError,))


class _Parser(ArgumentParser):
    """A parser whose errors are a `UsageError` of one line.

    Attributes:
        kinds: the type of each of the function's parameters.
    """

    kinds: dict[str, Any]

    def parse_path(self, path: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().parse_path(path, *args, **kwargs)
        except UnicodeDecodeError as error:
            raise cannot_read(f"config: {path}", "text in UTF-8", error) from error

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        raise self._plain_error(" ".join(message.split())) from ex

    def _plain_error(self, message: str) -> UsageError:
        if match := re.match(r"unrecognized arguments: (-\S+)", message):
            options = [f"--{name}" for name in ("config", "print_config", "help", *self.kinds)]
            return unknown_name("option", match[1].split("=")[0], options)
        if match := re.match(r"unrecognized arguments: (\S+)", message):
            return UsageError(f"unexpected argument {match[1]!r}: expected options, which start with '--'.")
        if match := re.match(r"Option '(\S+)' is not accepted", message):
            return unknown_name("config: key", match[1], self.kinds)
        if match := re.match(r"Unexpected config: ?(.*)", message):
            return UsageError(f"config: expected keys with values, got {textwrap.shorten(match[1], _SHOWN)!r}.")
        if match := re.match(r'(?:Problems parsing config|Parser key "config"): (.*)', message):
            return UsageError(f"config: {match[1]}")
        if match := re.match(r'Parser key "(\w+)\S*": .*(?:Got|Given) value: (.*)', message):
            return UsageError(f"{match[1]}: expected {in_words(self.kinds[match[1]])}, got {match[2]!r}.")
        if match := re.match(r'Parser key "(\w+)\S*": (.*)', message):
            return UsageError(f"{match[1]}: {match[2]}")
        return UsageError(message)


class _HelpFormatter(argparse.RawDescriptionHelpFormatter, DefaultHelpFormatter):
    """Keeps the lines of the examples, and tells a default unless the help does."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        told = action.default is None or action.default is False or action.default in ((), argparse.SUPPRESS)
        return text if told else f"{text} (default: %(default)s)"


def _parser(function: Callable[..., Any], prog: str, examples: Iterable[str]) -> _Parser:
    documentation = docstring_parser.parse(inspect.getdoc(function) or "")
    parameters = inspect.signature(function).parameters
    positional = [name.upper() for name, parameter in parameters.items() if _is_positional(parameter)]
    parser = _Parser(
        prog=prog,
        usage=" ".join([prog, *positional, "[options]"]),
        description=_description(documentation),
        epilog="\n  ".join(["examples:", *examples]),
        formatter_class=_HelpFormatter,
        allow_abbrev=False,
        parser_mode=_MODE,
    )
    parser.add_argument("--config", action="config", help="a YAML file of these options; later options win over it")
    hints = get_type_hints(function)
    parser.kinds = {name: _shell_type(hints[name]) for name in parameters}
    meanings = {entry.arg_name: " ".join((entry.description or "").split()) for entry in documentation.params}
    options: Mapping[str, Option] = getattr(function, "options", {})
    headings = dict.fromkeys(option.group for option in options.values())
    groups: dict[str, Any] = {heading: parser.add_argument_group(heading) for heading in headings}
    for name, parameter in parameters.items():
        group = groups[options[name].group] if name in options else parser
        _add(group, parameter, parser.kinds[name], meanings.get(name, ""))
    return parser


def _add(parser: Any, parameter: inspect.Parameter, kind: Any, meaning: str) -> None:
    settings: dict[str, Any] = {"type": kind, "help": meaning.replace("%", "%%")}
    if get_origin(kind) is list:
        settings.update(type=get_args(kind)[0], nargs="+")
    if kind is bool:
        settings.update(nargs="?", const=True)
    if str in get_args(kind) and {int, float} & {*get_args(kind)}:
        settings.update(type=_number_or_text)
    if _is_positional(parameter):
        parser.add_argument(parameter.name, **settings)
    elif parameter.default is inspect.Parameter.empty:
        parser.add_argument(f"--{parameter.name}", required=True, **settings)
    else:
        parser.add_argument(f"--{parameter.name}", default=parameter.default, **settings)


def _is_positional(parameter: inspect.Parameter) -> bool:
    return parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD


def _description(documentation: docstring_parser.Docstring) -> str:
    return "\n\n".join(filter(None, (documentation.short_description, documentation.long_description)))


def _number_or_text(value: Any) -> Any:
    """Return the number that a text is, or the text: jsonargparse would read 1:0.1 to the base of 60."""
    for kind in (int, float) if isinstance(value, str) else ():
        try:
            return kind(value)
        except ValueError:
            continue
    return None if value == "null" else value


def _shell_type(hint: Any) -> Any:
    """Return the part of a type that words can give: of ``str | Path | Dataset | None``, ``str | None``."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return Union[tuple(_shell_type(part) for part in parts if _from_words(part))]  # noqa: UP007
    return list[_shell_type(parts[0])] if origin in (list, Sequence) else hint  # type: ignore[misc]


def _from_words(hint: Any) -> bool:
    return hint in (*_SCALARS, NoneType) or get_origin(hint) in (dict, list, Sequence, Literal)
