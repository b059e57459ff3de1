"""Command line of contraport, whose commands call Python functions of the same names."""

from __future__ import annotations

import atexit
import json
import os
import shlex
import sys
from collections.abc import Sequence
from typing import NoReturn

from contraport._utils.formatting import format_flags, use_flag_style
from contraport._utils.lazy_imports import import_object
from contraport._version import __version__
from contraport.cli.commands import run_command, summaries_by_group
from contraport.errors import SelfTestError, UsageError, message_if_out_of_memory

__all__ = ["entry_point", "main"]

_MAIN_HELP_TEMPLATE = """usage: contraport COMMAND [options]

Contrastive learning as optimal transport: train encoders without labels, evaluate and use them.
{commands}

options:
  contraport COMMAND --help          common options and examples
  contraport COMMAND --help_all      all options, if --help omits some
  contraport --version               version
  contraport --print_completion SHELL   shell completion script for bash, zsh or fish

first steps:
  contraport demo
  contraport train --data digits --objective gca-uot --epochs 30 --out runs/digits
  contraport evaluate runs/digits
  contraport report runs/digits --out digits.html"""
"""Text of `contraport --help`, with a field for the list of commands."""


def entry_point() -> NoReturn:
    """Run the command line and exit with its status.

    Under torchrun the interpreter is not torn down: a thread of torch that still waits for the interpreter lock would
    abort the process, and torchrun would report a finished run as failed.
    """
    status = main()
    if "TORCHELASTIC_RUN_ID" in os.environ:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line of contraport and return the exit status.

    0: success. 1: the training diverged, memory ran out, or a self-test failed. 2: invalid input; nothing is written or
    lost. 130: Ctrl-C. An error is one line on the standard error, and another with the command that may mend it if
    there is one; with ``--json`` also an object on the standard output, with its message, `code` and `argument`.

    >>> main(["--version"])
    contraport 0.1.0
    0
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    also_as_json = "--json" in arguments
    try:
        with use_flag_style():
            _dispatch(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as head, has closed the pipe; Python would report it again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except UsageError as error:
        _print_error(error, error.code, error.argument, also_as_json=also_as_json)
        if error.suggested_options:
            flags = format_flags(error.suggested_options)
            print(f"try: {shlex.join(['contraport', *arguments])} {flags}", file=sys.stderr)
        return 2
    except SelfTestError as error:
        _print_error(error, "self_test", also_as_json=False)  # the result has been printed
        return 1
    except OSError as error:
        _print_error(error, "os_error", also_as_json=also_as_json)
        return 2
    except FloatingPointError as error:
        _print_error(error, "not_finite", also_as_json=also_as_json)
        return 1
    except KeyboardInterrupt as error:
        _print_error(error, "interrupted", also_as_json=also_as_json)
        return 130
    except (MemoryError, RuntimeError) as error:
        message = message_if_out_of_memory(error)
        if message is None:
            raise
        hinted = MemoryError(message)
        hinted.add_note("More: contraport docs troubleshooting out-of-memory")
        _print_error(hinted, "out_of_memory", also_as_json=also_as_json)
        return 1
    return 0


def _dispatch(arguments: list[str]) -> None:
    """Run the named command, or print help, version or completion."""
    match arguments:
        case [] | ["-h" | "--help", *_]:
            print(_MAIN_HELP_TEMPLATE.format(commands=_format_commands()))
        case ["--print_completion", *rest]:
            print(import_object("contraport.cli.completion:completion_script")(rest))
        case ["--complete", *words]:
            print(*import_object("contraport.cli.completion:list_completions")(words), sep="\n")
        case ["--version", *_]:
            print(f"contraport {__version__}")
        case [name, *rest]:
            run_command(name, rest)


def _format_commands() -> str:
    """Format the commands under their headings, one per line."""
    groups = summaries_by_group()
    width = max(len(name) for names in groups.values() for name in names)
    lines: list[str] = []
    for heading, names in groups.items():
        lines += ["", f"{heading}:", *(f"  {name:{width}}  {summary}" for name, summary in names.items())]
    return "\n".join(lines)


def _print_error(error: BaseException, code: str, argument: str | None = None, *, also_as_json: bool) -> None:
    """Print an error with its notes on standard error, optionally also as JSON."""
    message, *notes = [" ".join(part.split()) for part in (str(error), *getattr(error, "__notes__", ()))]
    if also_as_json:
        print(json.dumps({"error": {"message": message, "code": code, "argument": argument}}, ensure_ascii=False))
    if notes and message[-1:] not in ".:;?!":  # messages of other libraries may end without a period
        message += "."
    print(f"contraport: {' '.join([message, *notes]).strip() or 'stopped.'}", file=sys.stderr)
