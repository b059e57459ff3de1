"""The command line: each verb is the Python function of the same name."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from contraport._utils.formatting import use_flag_style
from contraport._utils.lazy import import_object
from contraport._version import __version__
from contraport.cli.commands import command_summaries, run_command
from contraport.errors import SelfTestError, UsageError, get_notes, out_of_memory_message

__all__ = ["main"]

_HELP = """usage: contraport VERB [options]

Contrastive learning as transport: train an encoder without labels, measure it, look at it.
{verbs}

`contraport VERB --help` tells the usual options of a verb and examples, `--help_all` all options; `contraport
--version` the version. `contraport --print_completion bash` (zsh, fish) prints what lets the shell complete them.

first steps:
  contraport demo
  contraport train --data digits --objective gca-uot --epochs 30 --out runs/digits
  contraport evaluate runs/digits
  contraport report runs/digits --out digits.html"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    0 is success, 2 a mistake of the user's (one line on the standard error, nothing written or lost), 1 a training that
    diverged, what did not fit in memory or a self-test that failed, 130 Ctrl-C.

    >>> main(["--version"])
    contraport 0.1.0
    0
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        with use_flag_style():
            _dispatch(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read, such as head, has enough; Python would complain once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except SelfTestError as error:
        return _fail(error, status=1)
    except (UsageError, OSError) as error:
        return _fail(error, status=2)
    except FloatingPointError as error:
        return _fail(error, status=1)
    except KeyboardInterrupt as error:
        return _fail(error, status=130)
    except (MemoryError, RuntimeError) as error:
        reason = out_of_memory_message(error)
        if reason is None:
            raise
        told = MemoryError(reason)
        told.add_note("More: contraport docs troubleshooting out-of-memory")
        return _fail(told, status=1)
    return 0


def _dispatch(arguments: list[str]) -> None:
    match arguments:
        case [] | ["-h" | "--help", *_]:
            print(_HELP.format(verbs=_verbs()))
        case ["--print_completion", *rest]:
            print(import_object("contraport.cli.completion:completion_script")(rest))
        case ["--complete", *words]:
            print(*import_object("contraport.cli.completion:complete")(words), sep="\n")
        case ["--version", *_]:
            print(f"contraport {__version__}")
        case [name, *rest]:
            run_command(name, rest)


def _verbs() -> str:
    """Return a line for each verb, under the headings of their groups."""
    known = command_summaries()
    width = max(len(name) for names in known.values() for name in names)
    lines: list[str] = []
    for heading, names in known.items():
        lines += ["", f"{heading}:", *(f"  {name:{width}}  {summary}" for name, summary in names.items())]
    return "\n".join(lines)


def _fail(error: BaseException, *, status: int) -> int:
    told = [" ".join(part.split()) for part in (str(error), *get_notes(error))]
    stop = "." if len(told) > 1 and told[0][-1:] not in ".:;?!" else ""  # what another library told may end without one
    message = " ".join([told[0] + stop, *told[1:]]).strip() or "stopped."
    print(f"contraport: {message}", file=sys.stderr)
    return status
