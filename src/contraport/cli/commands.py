"""Finds and runs commands: the arguments are parsed first, and only then is the command imported."""

from __future__ import annotations

import logging
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, cast, get_args

from contraport._utils.lazy import import_object
from contraport.command import EXTRA, GROUPS, Command
from contraport.errors import UsageError, check, hint_on_error, one_line_reason, require_extra, unknown_name_error
from contraport.options import Option

ENTRY_POINT_GROUP = "contraport.commands"
"""The entry points by which other packages bring commands: the name of each, and where its `Command` is."""

COMMAND_LOCATIONS = {
    "audit": "contraport.auditing.config:AUDIT",
    "cluster": "contraport.searching.config:CLUSTER",
    "compare": "contraport.comparison.config:COMPARE",
    "demo": "contraport.cli.config:DEMO",
    "docs": "contraport.cli.config:DOCS",
    "doctor": "contraport.cli.config:DOCTOR",
    "duplicates": "contraport.searching.config:DUPLICATES",
    "embed": "contraport.evaluation.config:EMBED",
    "evaluate": "contraport.evaluation.config:EVALUATE",
    "export": "contraport.evaluation.config:EXPORT",
    "list": "contraport.cli.config:LIST",
    "neighbors": "contraport.searching.config:NEIGHBORS",
    "report": "contraport.reporting.config:REPORT",
    "search": "contraport.searching.config:SEARCH",
    "train": "contraport.training.config:TRAIN",
}
"""Modules that declare the commands of this package, each beside its implementation."""

BUILTIN_COMMANDS = tuple(COMMAND_LOCATIONS)
"""The names of the commands of this package."""


def command_summaries() -> dict[str, dict[str, str]]:
    """Return under the heading of each group the name of each verb, and what it does.

    Of those of other packages, which are not imported for it, which package it is of.
    """
    own = {name: find_command(name) for name in BUILTIN_COMMANDS}
    groups = {
        heading: {name: verb.summary for name, verb in own.items() if verb.group == heading} for heading in GROUPS
    }
    others = {name: f"(of the package {_package(point)})" for name, point in _others().items()}
    return groups | ({"of other packages": others} if others else {})


def find_command(name: str) -> Command[...]:
    """Return a verb by its name; one of another package is imported for it, which its help alone does not need.

    Raises:
        UsageError: there is no such verb (the nearest is offered), or its package cannot be imported.
    """
    if name in BUILTIN_COMMANDS:
        own: Command[...] = import_object(COMMAND_LOCATIONS[name])
        return own
    others = _others()
    if name not in others:
        raise unknown_name_error("verb", name, [*BUILTIN_COMMANDS, *others])
    point = others[name]
    try:
        verb: Any = point.load()
    except (Exception, SystemExit) as error:  # a stranger's code
        told = f"{type(error).__name__}: {one_line_reason(error)}"
        raise UsageError(
            f"verb: {name!r} of the package {_package(point)} cannot be imported from {point.value}: {told}"
        ) from error
    check(
        isinstance(verb, Command),
        f"verb: {name!r} of the package {_package(point)}: expected {point.value} to be a "
        f"contraport.command.Command, got {type(verb).__name__}.",
    )
    return cast(Command[...], verb)


def run_command(name: str, argv: list[str]) -> None:
    """Call the function of a verb with the arguments of a command line, and show its result.

    Raises:
        UsageError: an argument that the verb does not know, or of the wrong type, or a package that is missing.
    """
    verb = find_command(name)
    with hint_on_error(f"contraport {name} --help"):
        arguments = _arguments(verb, name, argv)
    if arguments is None:
        return
    arguments = dict(arguments)
    as_json = arguments.pop("json", False)
    show = "contraport.cli.json_output:print_json" if as_json else verb.printer
    with _needing(verb, name), _heard(quiet=not arguments.get("progress", True)):
        for told in _given_again(argv):
            logging.getLogger("contraport").warning(told)
        result = import_object(verb.function)(**arguments)
    if show:
        import_object(show)(result)
    if arguments.get("page") and Path in get_args(verb.options["page"].type) and not as_json:  # one that was written
        print(f"the page to look at: {arguments['page']}")
    if verb.failure_check:
        import_object(verb.failure_check)(result)


def _given_again(argv: Sequence[str]) -> list[str]:
    """Return of each option that a command line gives more than once that the last value holds; files may be several.

    >>> _given_again(["--data", "a.npy", "--seed=1", "--data=b.npy"])
    ['--data is given 2 times: the last one holds']
    """
    names = Counter(word.partition("=")[0] for word in argv if word.startswith("--"))
    again = {name: times for name, times in names.items() if times > 1 and name != "--config"}
    return [f"{name} is given {times} times: the last one holds" for name, times in again.items()]


@contextmanager
def _heard(*, quiet: bool) -> Iterator[None]:
    """Show on the terminal what the package logs, each line once; in silence, warnings alone.

    So do all processes but the first, where a launcher has started several.
    """
    quiet = quiet or os.environ.get("RANK", "0") != "0"
    log, handler = logging.getLogger("contraport"), _ToTerminal(logging.WARNING if quiet else logging.INFO)
    level = log.level
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


class _ToTerminal(logging.Handler):
    """Standard error, unless somebody else speaks, as a training does while it lasts."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self._shown: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        if logging.getLogger("contraport").handlers == [self] and line not in self._shown:
            self._shown.add(line)
            print(line, file=sys.stderr)


def _arguments(verb: Command[...], name: str, argv: list[str]) -> Mapping[str, Any] | None:
    """Return what a command line gives, or nothing where it asks for help, which is printed."""
    options = list(verb.options.values())
    if _plain(options, argv):  # this needs no parser's package
        arguments: Mapping[str, Any] | None = {option.name: word for option, word in zip(options, argv, strict=False)}
    else:
        with require_extra(verb.extra or EXTRA, name if verb.extra else f"{name} with options"):
            # Here, not above: `contraport --help` is quick, and needs none of the extras.
            from contraport.cli.parsing import parse
        arguments = parse(verb, argv, prog=f"contraport {name}")
    if arguments is not None:
        _judge(verb, arguments)
    return arguments


def _plain(options: Sequence[Option], words: Sequence[str]) -> bool:
    """Return whether words are nothing but values of options that need no name, and all that must be given is there."""
    named = words and not all(option.cli_positional for option in options)
    lacking = len(words) > len(options) or any(option.required for option in options[len(words) :])
    return not (named or lacking or any(word.startswith("-") for word in words))


def _judge(verb: Command[...], arguments: Mapping[str, Any]) -> None:
    """Raise `UsageError` for what can be known to be wrong before anything is imported; the verb judges again."""
    for name, value in arguments.items():
        if name in verb.options:
            verb.options[name].validate(value)
    if verb.resolve is not None:
        verb.resolve(arguments)


def _needing(verb: Command[...], name: str) -> AbstractContextManager[None]:
    return require_extra(verb.extra, name) if verb.extra else nullcontext()


def _others() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP) if point.name not in BUILTIN_COMMANDS}


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist else point.module
