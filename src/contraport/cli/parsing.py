"""A parser for the command line and the YAML file of a verb: its options say all."""

from __future__ import annotations

import argparse
import inspect
import itertools
import re
import shutil
import textwrap
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NoReturn, Union, cast, get_args, get_origin

import yaml
from jsonargparse import ArgumentParser, DefaultHelpFormatter, set_loader

from contraport.command import Command
from contraport.errors import UsageError, unknown_name_error, unreadable_error
from contraport.options import Option, describe_type, replace_deprecated_names, warn_renamed

_MODE = "yaml-1.2"
_SHOWN = 60
_SCALARS = (int, float, bool, str)


def parse(verb: Command[...], argv: Sequence[str], *, prog: str) -> dict[str, Any] | None:
    """Return the options that a command line, and the file of its ``--config``, give for a verb.

    What is not given is left out, so the verb's own defaults hold. None is returned where ``--help``, ``--help_all`` or
    ``--print_config`` was asked for, and printed. All show what follows from what is given, as a recipe's settings do.
    In the help, options stand under the headings of their groups; the short one has the usual ones and what is given.

    Raises:
        UsageError: an unknown option or key (the nearest is offered), or a value of the wrong type.
    """
    parser = _parser(verb, prog, verb.options)
    argv = [parser.replace_deprecated_flag(word) for word in argv]
    asked = [argument for argument in argv if argument.startswith(("--print_config", "--help")) or argument == "-h"]
    short = bool(verb.common_options and {"-h", "--help"} & {*asked})
    try:
        given: dict[str, Any] = {}
        if asked and verb.resolve is not None:
            given = verb.resolve(_given(parser, [argument for argument in argv if argument not in asked]))
        if short:
            parser = _parser(verb, prog, {*verb.common_options, *given})
        parser.set_defaults(given)
        return _given(parser, argv, complete=bool(asked))
    except SystemExit:
        return None


def _given(parser: _Parser, argv: Sequence[str], *, complete: bool = False) -> dict[str, Any]:
    parser.words = [*argv]
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
        options: the options of the command.
        deprecated: current name by deprecated name.
        kinds: the type of each option, as far as words can give it.
        helps: what each option is.
        places: the options that are given by their place.
        first: the option that a word without a name is most likely meant for, if there is one.
        words: the command line that is read.
    """

    options: Mapping[str, Option]
    deprecated: dict[str, str]
    kinds: dict[str, Any]
    helps: dict[str, str]
    places: list[Option]
    first: str | None
    words: list[str]

    def parse_path(self, path: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().parse_path(path, *args, **kwargs)
        except UnicodeDecodeError as error:
            raise unreadable_error(f"config: {path}", "text in UTF-8", error) from error
        except UsageError as error:
            raise self._one_of_several(str(path)) or error from error

    def parse_string(self, content: str, *args: Any, **kwargs: Any) -> Any:
        try:
            values = _load(content)
        except yaml.YAMLError:  # reported below
            values = None
        if isinstance(values, dict) and self.deprecated.keys() & values.keys():
            renamed = replace_deprecated_names(self.options, values)
            content = yaml.safe_dump(renamed, sort_keys=False, allow_unicode=True)
        return super().parse_string(content, *args, **kwargs)

    def replace_deprecated_flag(self, word: str) -> str:
        """Replace a deprecated option name in a word such as ``--name``, ``--name=value`` or ``--name.key``."""
        match = re.match(r"--(\w+)", word)
        if match is None or match[1] not in self.deprecated:
            return word
        warn_renamed(match[1], self.deprecated[match[1]])
        return f"--{self.deprecated[match[1]]}{word[match.end() :]}"

    def _one_of_several(self, path: str) -> UsageError | None:
        """Return the mistake of a file that gives one value for several: jsonargparse does not say of which option."""
        try:
            given = _load(Path(path).read_text("utf-8"))
        except (OSError, yaml.YAMLError):  # which is the mistake
            return None
        for name, value in given.items() if isinstance(given, dict) else ():
            kind = self.kinds.get(name)
            if get_origin(kind) is list and not isinstance(value, list) and value is not None:
                return UsageError(f"config: {name}: expected {describe_type(kind)}, in brackets, got {value!r}.")
        return None

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        raise self._plain_error(" ".join(message.split())) from ex

    def _plain_error(self, message: str) -> UsageError:
        if match := re.match(r"unrecognized arguments: (-\S+)", message):
            given, places = match[1].split("=")[0], [one.dest for one in self._actions if not one.option_strings]
            if given.removeprefix("--") in places:
                call = " ".join([self.prog, *map(str.upper, places)])
                return UsageError(f"{given.removeprefix('--')}: expected it by its place, without a name: {call}.")
            named = [name for name in self.kinds if name not in places]
            options = [f"--{name}" for name in ("config", "print_config", "help", "help_all", *named)]
            return unknown_name_error("option", given, options)
        if match := re.match(r"unrecognized arguments: (.+)", message):
            return self._stray(max((word for word in self.words if match[1].startswith(word)), key=len))
        if match := re.match(r"the following arguments are required: (?:--)?(\w+)", message):
            self._judge_places()
            return UsageError(f"required: {match[1]}, {self.helps[match[1]]}")
        if match := re.match(r"Option '(\S+)' is not accepted", message):
            return unknown_name_error("config: key", match[1], self.kinds)
        if match := re.match(r"Unexpected config: ?(.*)", message):
            return UsageError(f"config: expected keys with values, got {textwrap.shorten(match[1], _SHOWN)!r}.")
        if match := re.match(r'(?:Problems parsing config|Parser key "config"): (.*)', message):
            return UsageError(f"config: {match[1]}")
        if match := re.match(r'Parser key "(\w+)\S*"( element \d+)?: .*(?:Got|Given) value: (.*)', message):
            kind = self.kinds[match[1]]
            if match[2] is not None and get_origin(kind) is list:
                (kind,) = get_args(kind)
            takes_keys = any(get_origin(part) is dict for part in (kind, *get_args(kind)))
            or_one = f" (or --{match[1]}.KEY VALUE)" if takes_keys else ""
            return UsageError(f"{match[1]}: expected {describe_type(kind)}{or_one}, got {match[3]!r}.")
        if match := re.match(r'Parser key "(\w+)\S*": (.*)', message):
            return UsageError(f"{match[1]}: {match[2]}")
        return UsageError(message)

    def _judge_places(self) -> None:
        """Raise `UsageError` where what is given by its place, such as a run, is missing."""
        words = [*itertools.takewhile(lambda word: not word.startswith("-"), self.words)]
        if words and self.places:
            first = self.places[0]
            if first.check_exists is not None:
                first.check_exists(first.name, words if get_origin(self.kinds[first.name]) is list else words[0])

    def _stray(self, word: str) -> UsageError:
        """Return the mistake of a value that no option takes."""
        before = [one.partition("=")[0] for one in self.words[: self.words.index(word)] if one.startswith("--")]
        if self.first is not None and before[-1:] == [f"--{self.first}"]:
            several = "; arrays of several views are in one .npz, by their names" if self.first == "data" else ""
            return UsageError(f"unexpected argument {word!r}: --{self.first} takes one value{several}.")
        such = f", such as --{self.first} {word}" if self.first else ""
        return UsageError(f"unexpected argument {word!r}: expected options, which start with '--'{such}.")


class _HelpFormatter(argparse.RawDescriptionHelpFormatter, DefaultHelpFormatter):
    """Keeps the lines of the examples and names in one piece, and tells a default unless the help does."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = (action.help or "").replace("``", "`")
        default = action.default
        if default is None or default is False or default in ((), argparse.SUPPRESS):
            return text
        return f"{text} (default: {' '.join(default) if isinstance(default, tuple) else '%(default)s'})"

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_long_words=False, break_on_hyphens=False)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.dest == "help":
            return super()._format_action_invocation(action)
        values = "" if action.metavar == _FLAGS else self._format_args(action, action.dest.upper())
        return f"{action.option_strings[0]} {values}".rstrip()


_FLAGS = "\b[=flags]"
"""What jsonargparse shows behind `--print_config`."""


def _filled(text: str) -> str:
    """Return paragraphs, and the items of lists, in lines that the terminal has room for."""
    width = shutil.get_terminal_size().columns - 2
    parts = re.split(r"\n\n|\n(?=- )", text)
    filled = [
        textwrap.fill(
            " ".join(part.split()), width, subsequent_indent="  " * part.startswith("- "), break_on_hyphens=False
        )
        for part in parts
    ]
    return "".join(
        one if not place else ("\n" if parts[place - 1].startswith("- ") and one.startswith("- ") else "\n\n") + one
        for place, one in enumerate(filled)
    )


def _parser(verb: Command[...], prog: str, shown: Collection[str]) -> _Parser:
    options = verb.options
    positional = [
        name.upper() if option.required else f"[{name.upper()}]"
        for name, option in options.items()
        if option.cli_positional
    ]
    parser = _Parser(
        prog=prog,
        usage=" ".join([prog, *positional, "[options]"]),
        description=_filled("\n\n".join(filter(None, (verb.summary, inspect.cleandoc(verb.details))))),
        epilog="\n\n".join(_behind(verb, prog, hidden=len(options) - len(shown))) or None,
        formatter_class=_HelpFormatter,
        allow_abbrev=False,
        parser_mode=_MODE,
    )
    parser.options = options
    parser.deprecated = {option.formerly: name for name, option in options.items() if option.formerly}
    parser.kinds = {name: _words_type(option) for name, option in options.items()}
    parser.helps = {name: option.help for name, option in options.items()}
    parser.places = [option for option in options.values() if option.cli_positional]
    named = [name for name, option in options.items() if not option.cli_positional]
    parser.first = next((name for name in named if options[name].required or name == "data"), None)
    headings = dict.fromkeys(option.group or "options" for option in options.values() if not option.cli_positional)
    groups: dict[str, Any] = {heading: parser.add_argument_group(heading) for heading in headings}
    # What a verb shares with others stands behind its own, where no headings order them.
    own = vars(verb.options_class).get("__annotations__", {})
    for name, option in sorted(options.items(), key=lambda item: not item[1].group and item[0] not in own):
        where = parser if option.cli_positional else groups[option.group or "options"]
        _add(where, option, parser.kinds[name], shown=name in shown)
    _add_common(parser, verb, whole=len(shown) == len(options))
    return parser


def _behind(verb: Command[...], prog: str, *, hidden: int) -> list[str]:
    """Return what stands behind the options in the help."""
    examples = ["\n  ".join(["examples:", *verb.examples])] if verb.examples else []
    further = f"{hidden} more options: {prog} --help_all" if hidden else ""
    page = f"the page about it: contraport docs {verb.page}" if verb.page else ""
    return [*examples, *filter(None, ["\n".join(filter(None, [further, page]))])]


def _add_common(parser: _Parser, verb: Command[...], *, whole: bool) -> None:
    """Add what every verb takes, which stands behind its own options."""
    parser.add_argument(
        "--config",
        action="config",
        help="a YAML file of these options; later options win over it." if whole else _HIDDEN,
    )
    help_all = "tell all options." if verb.common_options else _HIDDEN  # there it is the same as --help
    parser.add_argument("--help_all", action="help", help=help_all)
    if verb.printer:
        parser.add_argument("--json", action="store_true", default=_HIDDEN, help="print the result as JSON.")
        parser.kinds["json"] = bool
    for action in parser._actions:
        if action.dest == "help" and "-h" in action.option_strings:
            action.help = "tell this." if whole else "tell the usual options."
        elif action.metavar == _FLAGS:
            action.help = "print all options as they would hold, for a file of --config." if whole else _HIDDEN
    besides, groups = parser._optionals, cast(list[Any], parser._action_groups)
    besides.title = "besides"
    groups.sort(key=lambda group: group is besides)


_HIDDEN = argparse.SUPPRESS


def _add(parser: Any, option: Option, kind: Any, *, shown: bool) -> None:
    settings: dict[str, Any] = {"type": kind, "help": option.help.replace("%", "%%") if shown else _HIDDEN}
    if get_origin(kind) is list:
        settings.update(type=get_args(kind)[0], nargs="+")
    if kind is bool or bool in get_args(kind):
        settings.update(nargs="?", const=True)
    if str in get_args(kind) and {int, float} & {*get_args(kind)}:
        settings.update(type=_number_or_text)
    if option.cli_positional:
        if not option.required:
            settings.update(nargs="?", default=option.default)
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
    if option.cli_positional and any(get_origin(part) is Sequence for part in get_args(option.type)):
        return list[str]
    return _shell_type(option.type)


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
