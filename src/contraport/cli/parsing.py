"""A parser for the command line and the YAML file of a verb: its options say all."""

from __future__ import annotations

import argparse
import inspect
import re
import textwrap
from collections.abc import Sequence
from types import NoneType, UnionType
from typing import Any, Literal, NoReturn, Union, get_args, get_origin

import yaml
from jsonargparse import ArgumentParser, DefaultHelpFormatter, set_loader

from contraport.errors import UsageError, cannot_read, unknown_name
from contraport.options import Option, in_words
from contraport.verbs import Verb

_MODE = "yaml-1.2"
_SHOWN = 60
_SCALARS = (int, float, bool, str)


def parse(verb: Verb[...], argv: Sequence[str], *, prog: str) -> dict[str, Any] | None:
    """Return the options that a command line, and the file of its ``--config``, give for a verb.

    What is not given is left out, so the verb's own defaults hold. None is returned where ``--help`` or
    ``--print_config`` was asked for, and printed. Both show what follows from what is given, as a recipe's settings do.
    In the help, options stand under the headings of their groups.

    Raises:
        UsageError: an unknown option or key (the nearest is offered), or a value of the wrong type.
    """
    parser = _parser(verb, prog)
    asked = [argument for argument in argv if argument.startswith(("--print_config", "--help")) or argument == "-h"]
    try:
        if asked and verb.resolve is not None:
            given = _given(parser, [argument for argument in argv if argument not in asked])
            parser.set_defaults(verb.resolve(given))
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
        kinds: the type of each option, as far as words can give it.
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


def _parser(verb: Verb[...], prog: str) -> _Parser:
    options = verb.options
    positional = [name.upper() for name, option in options.items() if option.positional]
    parser = _Parser(
        prog=prog,
        usage=" ".join([prog, *positional, "[options]"]),
        description="\n\n".join(filter(None, (verb.summary, inspect.cleandoc(verb.about)))).replace("%", "%%"),
        epilog="\n  ".join(["examples:", *verb.examples]) if verb.examples else None,
        formatter_class=_HelpFormatter,
        allow_abbrev=False,
        parser_mode=_MODE,
    )
    parser.add_argument("--config", action="config", help="a YAML file of these options; later options win over it")
    parser.kinds = {name: _words_type(option) for name, option in options.items()}
    headings = dict.fromkeys(option.group for option in options.values() if option.group)
    groups: dict[str, Any] = {heading: parser.add_argument_group(heading) for heading in headings}
    for name, option in options.items():
        _add(groups.get(option.group, parser), option, parser.kinds[name])
    if verb.show:
        parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print the result as JSON.")
        parser.kinds["json"] = bool
    return parser


def _add(parser: Any, option: Option, kind: Any) -> None:
    settings: dict[str, Any] = {"type": kind, "help": option.help.replace("%", "%%")}
    if get_origin(kind) is list:
        settings.update(type=get_args(kind)[0], nargs="+")
    if kind is bool or bool in get_args(kind):
        settings.update(nargs="?", const=True)
    if str in get_args(kind) and {int, float} & {*get_args(kind)}:
        settings.update(type=_number_or_text)
    if option.positional:
        parser.add_argument(option.name, **settings)
    elif option.required:
        parser.add_argument(f"--{option.name}", required=True, **settings)
    else:
        parser.add_argument(f"--{option.name}", default=option.default, **settings)


def _number_or_text(value: Any) -> Any:
    """Return the number that a text is, or the text: jsonargparse would read 1:0.1 to the base of 60."""
    for kind in (int, float) if isinstance(value, str) else ():
        try:
            return kind(value)
        except ValueError:
            continue
    return None if value == "null" else value


def _words_type(option: Option) -> Any:
    """Return the type of what words give for an option; of one or several that stand first it is several."""
    if option.positional and any(get_origin(part) is Sequence for part in get_args(option.kind)):
        return list[str]
    return _shell_type(option.kind)


def _shell_type(hint: Any) -> Any:
    """Return the part of a type that words can give: of ``str | Path | Dataset | None``, ``str | None``.

    Which words a Literal takes is judged by the option itself, as from Python.
    """
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return str
    if origin in (Union, UnionType):
        return Union[tuple(_shell_type(part) for part in parts if _from_words(part))]  # noqa: UP007
    return list[_shell_type(parts[0])] if origin in (list, Sequence) else hint  # type: ignore[misc]


def _from_words(hint: Any) -> bool:
    return hint in (*_SCALARS, NoneType) or get_origin(hint) in (dict, list, Sequence, Literal)
