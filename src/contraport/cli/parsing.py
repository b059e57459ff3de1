"""Parser of command lines and YAML files, built from declared options."""

from __future__ import annotations

import argparse
import inspect
import itertools
import json
import re
import shlex
import shutil
import textwrap
from collections.abc import Collection, Mapping, Sequence
from os import PathLike
from types import NoneType, UnionType
from typing import Any, Literal, NoReturn, Union, cast, get_args, get_origin

import yaml
from jsonargparse import ArgumentParser, DefaultHelpFormatter, Namespace, set_loader

from contraport._utils.formatting import lower_first_letter
from contraport._utils.spec_parser import parse_number_or_text
from contraport.cli.docs import wrap_markdown
from contraport.errors import (
    UsageError,
    check,
    one_line_reason,
    rename_argument,
    suggest_names,
    unknown_name_error,
    unreadable_error,
)
from contraport.options import Command, Option, describe_type, replace_deprecated_options, warn_renamed

_YAML_PARSER_MODE = "yaml-1.2"  # name under which jsonargparse knows the YAML loader below
_SCALAR_TYPES = (int, float, bool, str)  # of a single word on a command line


def parse_command_line(command: Command[...], argv: Sequence[str], *, prog: str) -> dict[str, Any] | None:
    """Return the options set by a command line and its ``--config`` file.

    Options that were not passed are absent from the result. ``--help``, ``--help_all`` and ``--print_config`` print and
    return None. They include the settings that follow from the given options, such as those of a recipe. The help lists
    options under the headings of their groups; the short help has the common options and the given ones.

    Raises:
        UsageError: an unknown option or key (the message offers the nearest), or a value of the wrong type.
    """
    parser = _build_parser(command, prog, command.options_by_name)
    argv = [parser.to_current_underscore_flag(word) for word in argv]
    informative = [
        argument for argument in argv if argument.startswith(("--print_config", "--help")) or argument == "-h"
    ]
    short = bool(command.short_help_options and {"-h", "--help"} & {*informative})
    try:
        resolved: dict[str, Any] = {}
        if informative and command.resolve_options is not None:
            resolved = command.resolve_options(
                _parse_options(parser, [argument for argument in argv if argument not in informative])
            )
        if short:
            parser = _build_parser(command, prog, {*command.short_help_options, *resolved})
        parser.set_defaults(resolved)
        return _parse_options(parser, argv, with_defaults=bool(informative))
    except SystemExit:  # argparse has printed what was requested
        return None


def _parse_options(parser: _Parser, argv: Sequence[str], *, with_defaults: bool = False) -> dict[str, Any]:
    """Parse command-line words into a dict of options, optionally including defaults."""
    parser.command_line_words = [*argv]
    options: dict[str, Any] = parser.parse_args(parser.merge_nested_flags(argv), defaults=with_defaults).as_dict()
    options.pop("config", None)
    return options


class _NoAliasYaml12NumbersLoader(yaml.SafeLoader):
    """YAML 1.2 loader that reads 1e-3 as a number and rejects aliases.

    A value such as 1:0.1 is text. Aliases are rejected: a few lines of nested aliases can expand to more than the
    memory holds.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, pattern) for tag, pattern in rules if not tag.endswith((":int", ":float", ":timestamp"))]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose a YAML node, or raise an error for an alias."""
        if self.check_event(yaml.AliasEvent):
            event = self.get_event()
            raise yaml.composer.ComposerError(None, None, f"the alias *{event.anchor} is not read", event.start_mark)
        return super().compose_node(parent, index)


def _load_yaml(text: str) -> Any:
    """Load YAML text, with every error raised as `yaml.YAMLError`."""
    try:
        return yaml.load(text, _NoAliasYaml12NumbersLoader)
    except (ValueError, RecursionError, yaml.MarkedYAMLError) as error:  # numbers too long, brackets too deep
        raise yaml.YAMLError(one_line_reason(error)) from error


for _kind, _pattern in {  # numbers of YAML 1.2, by tag
    "int": r"[-+]?(0|[1-9][0-9]*)",
    "float": r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
}.items():
    _NoAliasYaml12NumbersLoader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_kind}", re.compile(f"^({_pattern})$"), [*"-+0123456789."]
    )
set_loader(_YAML_PARSER_MODE, _load_yaml, (yaml.YAMLError,))


class _Parser(ArgumentParser):
    """Argument parser that raises `UsageError` with a message of one line.

    Attributes:
        options_by_name: Declared options of the command, by name.
        new_name_by_deprecated_name: Current option name by deprecated name.
        command_line_types: Type of each option, restricted to values that can be written on a command line.
        stray_argument_option: Option that a stray argument is most likely meant for, if any.
        command_line_words: Arguments of the command line.
    """

    options_by_name: Mapping[str, Option]
    new_name_by_deprecated_name: dict[str, str]
    command_line_types: dict[str, Any]
    stray_argument_option: str | None
    command_line_words: list[str]

    def parse_path(self, path: str | PathLike[str], *args: Any, **kwargs: Any) -> Namespace:
        """Parse the options in a YAML file, or raise `UsageError` if it is not UTF-8."""
        try:
            with rename_argument(f"config: {path}", "config"):
                options: Namespace = super().parse_path(path, *args, **kwargs)
                return options
        except UnicodeDecodeError as error:
            raise unreadable_error(f"config: {path}", "text in UTF-8", error) from error

    def parse_string(self, content: str, *args: Any, **kwargs: Any) -> Any:
        """Parse YAML text, replacing deprecated names and wrapping single values in lists.

        Overrides a method of jsonargparse.
        """
        try:
            values = _load_yaml(content)
        except yaml.YAMLError:  # reported below
            values = None
        if isinstance(values, dict):
            resolved = replace_deprecated_options(self.options_by_name, values)
            for name, value in resolved.items():
                if str(name).partition(".")[0] not in self.command_line_types:
                    raise unknown_name_error("config", str(name), self.command_line_types)
                if get_origin(self.command_line_types.get(name)) is list and isinstance(value, _SCALAR_TYPES):
                    resolved[name] = [value]
            if resolved != values:
                content = yaml.safe_dump(resolved, sort_keys=False, allow_unicode=True)
        return super().parse_string(content, *args, **kwargs)

    def to_current_underscore_flag(self, word: str) -> str:
        """Replace dashes in a flag by underscores, and a deprecated name by the current one."""
        match = re.match(r"--([\w-]+)", word)
        if match is None:
            return word
        name = match[1].replace("-", "_")
        if name in self.new_name_by_deprecated_name:
            warn_renamed(name, self.new_name_by_deprecated_name[name])
            name = self.new_name_by_deprecated_name[name]
        elif f"--{name}" not in self._option_string_actions:
            return word  # reported as it was written
        return f"--{name}{word[match.end() :]}"

    def merge_nested_flags(self, words: Sequence[str]) -> list[str]:
        """Merge flags of nested keys, such as ``--train.columns.views VALUE``, by parent key.

        jsonargparse nests keys to a depth of one only.
        """
        joined: list[str] = []
        values_by_flag: dict[str, dict[str, Any]] = {}
        remaining = iter(words)
        for word in remaining:
            match = re.fullmatch(r"(--(\w+)\.\w+)\.([^=]+)(?:=(.*))?", word, re.DOTALL)
            if (
                match is None
                or match[2] not in self.options_by_name
                or not self.options_by_name[match[2]].contains_options
            ):
                joined.append(word)
                continue
            text = next(remaining, None) if match[4] is None else match[4]
            check(text is not None, f"{word.removeprefix('--')}: requires a value, got none.", "missing")
            if match[1] not in values_by_flag:
                joined.append(match[1])  # its value is inserted below
            try:
                value = _load_yaml(str(text))
            except yaml.YAMLError:  # such as *.png
                value = text
            values_by_flag.setdefault(match[1], {})[match[3]] = value
        for flag, values in values_by_flag.items():
            is_whole = joined.count(flag) > 1 or any(word.startswith(f"{flag}=") for word in joined)
            check(not is_whole, f"{flag[2:]}: pass it as a whole or by its keys, got both.", "conflict")
            joined[joined.index(flag)] = f"{flag}={json.dumps(values, ensure_ascii=False)}"
        return joined

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise an error of argparse or jsonargparse as a `UsageError`."""
        if ex is not None and isinstance(ex.__cause__, UsageError):  # of `parse_string`
            raise ex.__cause__
        raise self._to_usage_error(" ".join(message.split())) from ex

    def _to_usage_error(self, message: str) -> UsageError:
        """Convert an error message of argparse or jsonargparse to a `UsageError`."""
        if match := re.match(r"unrecognized arguments: (-\S+)", message):
            return self._build_unknown_flag_error(match[1].split("=")[0])
        if match := re.match(r"unrecognized arguments: (.+)", message):
            return self._build_stray_word_error(
                max((word for word in self.command_line_words if match[1].startswith(word)), key=len)
            )
        if match := re.match(r"argument \S*?(\w+): expected .* argument", message):
            return UsageError(f"{match[1]}: requires a value, got none.", kind="missing")
        if match := re.match(r"argument \S*?(\w+): ignored explicit argument (.*)", message):
            return UsageError(f"{match[1]}: takes no value, got {match[2]}.")
        if match := re.match(r"the following arguments are required: (?:--)?(\w+)", message):
            first_sentence = self.options_by_name[match[1]].help.split(". ")[0].removesuffix(".")
            meaning = lower_first_letter(first_sentence)
            return UsageError(f"{match[1]}: required, not given ({meaning}).", kind="missing")
        if match := re.match(r"Unexpected config: ?(.*)", message):
            return UsageError(f"config: must have keys with values, got {textwrap.shorten(match[1], 60)!r}.")
        if match := re.match(r'(?:Problems parsing config|Parser key "config"): (.*)', message):
            problem = match[1].replace("File does not exist:", "there is no file")
            problem = problem.replace("Path is not a file:", "must be a file, got the folder")
            return UsageError(f"config: {problem}")
        message = re.sub(r"""(key "(\w+)".*)NestedArg\(key='(.*?)', val='?(.*?)'?\)""", r"\1--\2.\3 \4", message)
        if match := re.match(r'Parser key "(\w+)\S*"( element \d+)?: .*(?:Got|Given) value: ?(.*)', message):
            option_type = self.command_line_types[match[1]]
            if match[2] is not None and get_origin(option_type) is list:
                (option_type,) = get_args(option_type)
            accepts_keys = any(get_origin(part) is dict for part in (option_type, *get_args(option_type)))
            alternative = f" (or --{match[1]}.KEY VALUE)" if accepts_keys else ""
            expected = describe_type(option_type)
            if accepts_keys and (example := re.search(r"`(\{.+?\})`", self.options_by_name[match[1]].help)):
                expected = expected.replace('{"key": "value"}', example[1])
            return UsageError(f"{match[1]}: must be {expected}{alternative}, got {match[3]!r}.")
        if match := re.match(r'Parser key "(\w+)\S*": (.*)', message):
            return UsageError(f"{match[1]}: {match[2]}")
        return UsageError(message)

    def _build_unknown_flag_error(self, flag: str) -> UsageError:
        """Build the error for an unknown flag, with a suggestion."""
        positionals = [one.dest for one in self._actions if not one.option_strings]
        if (name := flag.removeprefix("--")) in positionals:
            usage = " ".join([self.prog, *map(str.upper, positionals)])
            return UsageError(f"{name}: must be passed without {flag}: {usage}.", kind="positional")
        flags = [
            one
            for one in ("config", "print_config", "help", "help_all", *self.command_line_types)
            if one not in positionals
        ]
        phrase = re.compile(rf"\b{re.escape(name.replace('_', ' '))}\b", re.IGNORECASE)
        flag_options = [one for one in self.options_by_name.values() if not one.is_cli_positional]
        described = [one.name for one in flag_options if phrase.search(one.help)]
        if described and not suggest_names(name, flags):
            nearest = min(described, key=len)  # such as --k, "Number of clusters.", for --clusters
            return UsageError(f"option: unknown name {flag!r}; did you mean '--{nearest}'?", kind="unknown")
        return unknown_name_error("option", flag, [f"--{one}" for one in flags])

    def _build_stray_word_error(self, word: str) -> UsageError:
        """Build the error for an argument that belongs to no option."""
        before = self.command_line_words[: self.command_line_words.index(word)]
        start = max((place for place, one in enumerate(before) if one.startswith("--")), default=0)
        flag, _, value = before[start].partition("=") if before else ("", "", "")
        if flag.startswith("--") and "." in flag:  # --columns.views 'ear_*' 'eye_*'
            rest = itertools.takewhile(lambda one: not one.startswith("--"), self.command_line_words[start + 1 :])
            listed = shlex.quote(json.dumps([*filter(None, [value]), *rest], ensure_ascii=False))
            message = f"unexpected argument {word!r}: {flag} takes one value; write a list as {listed}."
        elif self.stray_argument_option is not None and flag == f"--{self.stray_argument_option}":
            hint = "; put the arrays of several views into one .npz" if self.stray_argument_option == "data" else ""
            message = f"unexpected argument {word!r}: --{self.stray_argument_option} takes one value{hint}."
        else:
            option = self.stray_argument_option
            passed = {one.partition("=")[0] for one in self.command_line_words}
            example = f", such as --{option} {word}" if option and f"--{option}" not in passed else ""
            message = f"unexpected argument {word!r}: expected options, which start with '--'{example}."
        return UsageError(message, kind="unexpected_argument")


class _WholeWordHelpFormatter(argparse.RawDescriptionHelpFormatter, DefaultHelpFormatter):
    """Help formatter that adds defaults, and does not break names or example lines."""

    def _get_help_string(self, action: argparse.Action) -> str:
        """Return the help text of an option with its default."""
        text = (action.help or "").replace("``", "`")
        default = action.default
        if action.required and action.option_strings:
            return f"{text} (required)"
        if default is None or default is False or default in ((), argparse.SUPPRESS):
            return text
        return f"{text} (default: {' '.join(default) if isinstance(default, tuple) else '%(default)s'})"

    def _split_lines(self, text: str, width: int) -> list[str]:
        """Wrap a help text into lines without breaking words."""
        return textwrap.wrap(" ".join(text.split()), width, break_long_words=False, break_on_hyphens=False)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """Return the flag of an option with its value, such as ``--epochs EPOCHS``."""
        if not action.option_strings or action.dest == "help":
            return super()._format_action_invocation(action)
        values = "" if _is_print_config_flag(action) else self._format_args(action, action.dest.upper())
        return f"{action.option_strings[0]} {values}".rstrip()


def _is_print_config_flag(action: argparse.Action) -> bool:
    """Return whether an action is the flag `--print_config`, recognized by its metavar."""
    return action.metavar == "\b[=flags]"


def _build_parser(command: Command[...], prog: str, shown: Collection[str]) -> _Parser:
    """Build a command's parser, whose help lists only the options in `shown`."""
    options = command.options_by_name
    types = {
        name: list[str]
        if option.is_cli_positional and any(get_origin(part) is Sequence for part in get_args(option.type))
        else _reduce_type_hint(option.type)
        for name, option in options.items()
    }
    positional = [
        (name.upper() if option.required else f"[{name.upper()}]") + " ..." * (get_origin(types[name]) is list)
        for name, option in options.items()
        if option.is_cli_positional
    ]
    examples = "\n  ".join(["examples:", *command.examples]) if command.examples else ""
    documentation = f"documentation: contraport docs {command.docs_page}" if command.docs_page else ""
    description = f"{command.summary}\n\n{inspect.cleandoc(command.details)}".strip()
    if num_hidden := len(options) - len(shown):
        description += f"\n\n{num_hidden} more options: {prog} --help_all"
    parser = _Parser(
        prog=prog,
        usage=" ".join([prog, *positional, "[options]"]),
        description=wrap_markdown(description, shutil.get_terminal_size().columns - 2),
        epilog="\n\n".join(filter(None, [examples, documentation])) or None,
        formatter_class=_WholeWordHelpFormatter,
        allow_abbrev=False,
        parser_mode=_YAML_PARSER_MODE,
    )
    parser.options_by_name = options
    parser.new_name_by_deprecated_name = {
        option.deprecated_name: name for name, option in options.items() if option.deprecated_name
    }
    parser.command_line_types = types
    flags = [name for name, option in options.items() if not option.is_cli_positional]
    parser.stray_argument_option = next((name for name in flags if options[name].required or name == "data"), None)
    headings = dict.fromkeys(option.group or "options" for option in options.values() if not option.is_cli_positional)
    groups: dict[str, Any] = {heading: parser.add_argument_group(heading) for heading in headings}
    # Without headings, the command's own options come first, then those of its bases, then those of other modules.
    order: dict[str, int] = {}
    for rank, base in enumerate(cast(type, command.options_class).__mro__):
        is_own = base.__module__ == cast(type, command.options_class).__module__
        for name in vars(base).get("__annotations__", {}):
            order.setdefault(name, rank if is_own else 1_000)
    for name, option in sorted(options.items(), key=lambda item: 0 if item[1].group else order[item[0]]):
        target = parser if option.is_cli_positional else groups[option.group or "options"]
        _add_option(target, option, parser.command_line_types[name], shown=name in shown)
    _add_common_options(parser, command, help_shows_all=len(shown) == len(options))
    return parser


def _add_common_options(parser: _Parser, command: Command[...], *, help_shows_all: bool) -> None:
    """Add options that every command has, such as `--config`, to a parser."""
    parser.add_argument(
        "--config",
        action="config",
        help="YAML file of these options; options after it override it." if help_shows_all else argparse.SUPPRESS,
    )
    help_all = "Show all options." if command.short_help_options else argparse.SUPPRESS  # the same as --help otherwise
    parser.add_argument("--help_all", action="help", help=help_all)
    if command.printer_path:
        parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="Print the result as JSON.")
        parser.command_line_types["json"] = bool
    for name, text in command.printer_flags.items():
        parser.add_argument(f"--{name}", action="store_true", default=argparse.SUPPRESS, help=text)
        parser.command_line_types[name] = bool
    for action in parser._actions:
        if action.dest == "help" and "-h" in action.option_strings:
            action.help = "Show this help." if help_shows_all else "Show the common options."
        elif _is_print_config_flag(action):
            action.help = "Print the resolved options as YAML, for --config." if help_shows_all else argparse.SUPPRESS
    general, groups = parser._optionals, cast(list[Any], parser._action_groups)
    general.title = "general"
    groups.sort(key=lambda group: group is general)


def _add_option(parser: Any, option: Option, option_type: Any, *, shown: bool) -> None:
    """Add an option to a parser or group, optionally hidden from its help."""
    settings: dict[str, Any] = {
        "type": option_type,
        "help": option.help.replace("%", "%%") if shown else argparse.SUPPRESS,
    }
    if get_origin(option_type) is list:
        settings.update(type=get_args(option_type)[0], nargs="+")
    if option_type is bool or bool in get_args(option_type):
        settings.update(nargs="?", const=True)
    if str in get_args(option_type) and {int, float} & {*get_args(option_type)}:
        settings.update(type=_convert_if_number_or_null)
    if option.is_cli_positional:
        if not option.required:
            settings.update(nargs="?", default=option.default)
        parser.add_argument(option.name, **settings)
    elif option.required:
        parser.add_argument(f"--{option.name}", required=True, **settings)
    else:
        parser.add_argument(f"--{option.name}", default=option.default, **settings)


def _convert_if_number_or_null(value: Any) -> Any:
    """Convert the text of a number or "null", and keep other values."""
    if value == "null" or not isinstance(value, str):
        return None if value == "null" else value
    return parse_number_or_text(value)


def _reduce_type_hint(hint: Any) -> Any:
    """Reduce a type annotation to the parts that a command line can express.

    For example ``str | Path | None`` becomes ``str | None``. The option itself checks the words of a Literal, as in
    Python.
    """
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return str
    if origin in (Union, UnionType):
        writable = [
            part
            for part in parts
            if part in (*_SCALAR_TYPES, NoneType) or get_origin(part) in (dict, list, Sequence, Literal)
        ]
        return Union[tuple(map(_reduce_type_hint, writable))]  # noqa: UP007
    return list[_reduce_type_hint(parts[0])] if origin in (list, Sequence) else hint  # type: ignore[misc]
