"""The command line: each verb is the Python function of the same name."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence

from contraport._version import __version__
from contraport.cli.verbs import run_verb, summaries
from contraport.errors import CheckFailedError, UsageError
from contraport.importing import imported

__all__ = ["main"]

_HELP = """usage: contraport VERB [options]

Contrastive learning as transport: train an encoder without labels, measure it, look at it.

verbs:
{verbs}

`contraport VERB --help` tells the options of a verb, its defaults and examples; `contraport --version` the version.
`contraport --print_completion bash` (zsh, fish) prints what lets the shell complete verbs, options and names.

first steps:
  contraport demo
  contraport train --data fashion-mnist --objective gca-uot --epochs 3 --out runs/clothes
  contraport evaluate runs/clothes
  contraport report runs/clothes --out runs/clothes/report.html"""

# What torch says on the CPU and on GPUs; its own class for it is that of GPUs only.
_NO_MEMORY = re.compile("can't allocate memory|out of memory|Storage size calculation overflowed")


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
        _dispatch(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read, such as head, has enough; Python would complain once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except CheckFailedError as error:
        return _fail(error, status=1)
    except (UsageError, OSError) as error:
        return _fail(error, status=2)
    except FloatingPointError as error:
        return _fail(error, status=1)
    except KeyboardInterrupt as error:
        return _fail(error, status=130)
    except (MemoryError, RuntimeError) as error:
        if not (isinstance(error, MemoryError) or _NO_MEMORY.search(str(error))):
            raise
        reason = str(error).splitlines()[0] if str(error) else "a MemoryError"
        return _fail(f"there is not enough memory ({reason}); smaller batches, views or networks need less.", status=1)
    return 0


def _dispatch(arguments: list[str]) -> None:
    match arguments:
        case [] | ["-h" | "--help", *_]:
            known = summaries()
            width = max(map(len, known))
            lines = [f"  {name:{width}}  {summary}" for name, summary in known.items()]
            print(_HELP.format(verbs="\n".join(lines)))
        case ["--print_completion", *rest]:
            print(imported("contraport.cli.completion:script")(rest))
        case ["--complete", *words]:
            print(*imported("contraport.cli.completion:completions")(words), sep="\n")
        case ["--version", *_]:
            print(f"contraport {__version__}")
        case [name, *rest]:
            run_verb(name, rest)


def _fail(error: BaseException | str, *, status: int) -> int:
    message = " ".join(str(error).split()) or "stopped."
    print(f"contraport: {message}", file=sys.stderr)
    return status
