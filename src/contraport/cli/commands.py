"""Registry of commands, and the functions that parse and run them.

The function of a command is imported after its arguments are parsed.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, cast, get_args

import contraport
from contraport._utils.lazy_imports import import_object
from contraport.errors import (
    UsageError,
    add_hint_if_missing,
    check,
    one_line_reason,
    translate_import_errors,
    unknown_name_error,
)
from contraport.options import TRAIN_AND_REPORT_EXTRAS, Command, CommandGroupName, Option

ENTRY_POINT_GROUP = "contraport.commands"
"""Name of the entry point group by which other packages add commands; each entry point locates a `Command`."""


def _builtin_commands_by_name() -> dict[str, Command[...]]:
    """Collect the commands of this package from its modules `*command_options`."""
    commands: dict[str, Command[...]] = {}
    for path in Path(contraport.__file__).parent.glob("*/*command_options.py*"):
        constants = vars(import_module(f"contraport.{path.parent.name}.{path.stem}"))
        for name, value in constants.items():
            if isinstance(value, Command):
                commands[name.removesuffix("_COMMAND_SPEC").lower().replace("_", "-")] = value
    return dict(sorted(commands.items()))


BUILTIN_COMMANDS: Mapping[str, Command[...]] = _builtin_commands_by_name()
"""Commands of this package, by name."""


def summaries_by_group() -> dict[str, dict[str, str]]:
    """Return the summaries of all commands, by group and name.

    Commands of other packages, which are not imported for this, have the name of their package as summary.
    """
    groups = {
        heading: {name: command.summary for name, command in BUILTIN_COMMANDS.items() if command.group == heading}
        for heading in get_args(CommandGroupName)
    }
    foreign = {name: f"(of the package {_package_name(point)})" for name, point in _plugins_by_name().items()}
    return groups | ({"of other packages": foreign} if foreign else {})


def get_command(name: str) -> Command[...]:
    """Return a command by name, imported if another package provides it.

    Raises:
        UsageError: there is no such command (the message offers the nearest name), or its package cannot be imported.
    """
    if name in BUILTIN_COMMANDS:
        return BUILTIN_COMMANDS[name]
    foreign = _plugins_by_name()
    if name not in foreign:
        flags = ["--help", "--version", "--print_completion"]
        names = flags if name.startswith("-") else [*BUILTIN_COMMANDS, *foreign]
        raise unknown_name_error("command", name, names, list_command="contraport --help")
    point = foreign[name]
    where = f"command: {name!r} of the package {_package_name(point)}"
    try:
        command: Any = point.load()
    except (Exception, SystemExit) as error:  # code of another package may raise anything
        message = f"{where} cannot be imported from {point.value}: {type(error).__name__}: {one_line_reason(error)}"
        raise UsageError(message, kind="import_failed") from error
    check(
        isinstance(command, Command),
        f"{where}: expected {point.value} to be a contraport.options.Command, got {type(command).__name__}.",
    )
    return cast(Command[...], command)


def run_command(name: str, argv: list[str]) -> None:
    """Parse the arguments of a command, run it and print its result.

    Raises:
        UsageError: an unknown argument, a wrong type or value, or a missing package.
    """
    command = get_command(name)
    hidden = command.options_by_name.keys() - {*(command.short_help_options or command.options_by_name)}
    try:
        options = _parse_arguments_or_print_help(command, name, argv)
    except UsageError as error:
        is_on_hidden = error.argument in hidden or any(f"'--{option}'" in str(error) for option in hidden)
        add_hint_if_missing(error, f"contraport {name} --help{'_all' if is_on_hidden else ''}")
        raise
    if options is None:
        return
    options = dict(options)
    as_json = options.pop("json", False)
    flags = {flag: options.pop(flag) for flag in command.printer_flags if flag in options}
    # With several processes, the first one reports for all.
    is_quiet = not options.get("progress", True) or os.environ.get("RANK", "0") != "0"
    needed = translate_import_errors(command.required_extra, name) if command.required_extra else nullcontext()
    with needed, _log_to_terminal(only_warnings=is_quiet):
        for message in _list_repeated_flag_warnings(argv):
            logging.getLogger("contraport").warning(message)
        result = import_object(command.function_path)(**options)
    if as_json:
        print(json.dumps(to_json_value(result), indent=2, ensure_ascii=False))
    elif command.printer_path:
        printer = import_object(command.printer_path)
        printer(result, options | flags) if command.printer_flags else printer(result)
    paths = [options[key] for key in ("out", "page") if isinstance(options.get(key), str | Path)]
    files = [str(path) for path in paths if Path(path).is_file() and str(path) != str(result)]
    if files and not as_json:
        print(f"{'file' if len(files) == 1 else 'files'}: {', '.join(files)}")
    if command.next_commands_path and not as_json and not is_quiet:
        # The standard output is the result alone.
        for number, line in enumerate(import_object(command.next_commands_path)(options, result)):
            print("next:" if number == 0 else "  or:", line, file=sys.stderr)
    if command.failure_check_path:
        import_object(command.failure_check_path)(result)


def to_json_value(value: Any) -> Any:
    """Convert a value to plain JSON types.

    Dataclasses and named tuples become dicts, if possible by their `json_output_fields`. Numbers that are not finite
    become None; tuples of names as keys are joined by "and".

    >>> import numpy as np
    >>> to_json_value({"scores": np.array([0.5, np.inf]), "folder": Path("runs/a")})
    {'scores': [0.5, None], 'folder': 'runs/a'}
    """
    if hasattr(value, "json_output_fields"):
        return to_json_value(value.json_output_fields())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: to_json_value(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if hasattr(value, "_asdict"):
        return to_json_value(value._asdict())
    if hasattr(value, "tolist"):  # arrays, tensors and their scalars
        return to_json_value(value.tolist())
    if isinstance(value, Mapping):
        return {
            " and ".join(name) if isinstance(name, tuple) else str(name): to_json_value(part)
            for name, part in value.items()
        }
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Iterable) and not isinstance(value, Path):
        return [to_json_value(part) for part in value]
    return str(value)


def _list_repeated_flag_warnings(argv: Sequence[str]) -> list[str]:
    """Return a warning for each repeated flag except `--config`.

    >>> _list_repeated_flag_warnings(["--data", "a.npy", "--seed=1", "--data=b.npy"])
    ['--data is passed 2 times; the last value is used']
    """
    counts = Counter(word.partition("=")[0] for word in argv if word.startswith("--"))
    repeated = {name: times for name, times in counts.items() if times > 1 and name != "--config"}
    return [f"{name} is passed {times} times; the last value is used" for name, times in repeated.items()]


@contextmanager
def _log_to_terminal(*, only_warnings: bool) -> Iterator[None]:
    """Context manager that prints log messages of the package to standard error.

    It prints nothing while the logger of the package has another handler.
    """
    handler = _PrintOnceHandler(logging.WARNING if only_warnings else logging.INFO)
    log = logging.getLogger("contraport")
    handler.addFilter(lambda _: log.handlers == [handler])  # another handler shows the messages in its own way
    level = log.level
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


class _PrintOnceHandler(logging.Handler):
    """Log handler that prints each line once to standard error."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self._printed: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record, unless its line was printed before."""
        line = self.format(record)
        if line not in self._printed:
            self._printed.add(line)
            print(line, file=sys.stderr)


def _parse_arguments_or_print_help(command: Command[...], name: str, argv: list[str]) -> Mapping[str, Any] | None:
    """Parse the arguments of a command, or print its help and return None."""
    declared = list(command.options_by_name.values())
    options: Mapping[str, Any] | None
    if not _requires_parser_package(declared, argv):
        options = {option.name: word for option, word in zip(declared, argv, strict=False)}
    else:
        with translate_import_errors(
            command.required_extra or TRAIN_AND_REPORT_EXTRAS,
            name if command.required_extra else f"{name} with options",
        ):
            # Here, not above: `contraport --help` is fast and needs no optional package.
            from contraport.cli.parsing import parse_command_line
        options = parse_command_line(command, argv, prog=f"contraport {name}")
    if options is not None:  # checked before the imports of the command, which checks again
        for key, value in options.items():
            if key in command.options_by_name:
                command.options_by_name[key].check_value(value)
        if command.resolve_options is not None:
            command.resolve_options(options)
    return options


def _requires_parser_package(options: Sequence[Option], words: Sequence[str]) -> bool:
    """Return whether parsing a command line requires the optional parser package."""
    if any(word.startswith("-") for word in words) or len(words) > len(options):
        return True
    if words and not all(option.is_cli_positional for option in options):
        return True
    return any(option.required for option in options[len(words) :])


def _plugins_by_name() -> dict[str, EntryPoint]:
    """Return the entry points of commands of other packages, by command name."""
    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP) if point.name not in BUILTIN_COMMANDS}


def _package_name(point: EntryPoint) -> str:
    """Return the package of an entry point, or its module if unknown."""
    return point.dist.name if point.dist else point.module
