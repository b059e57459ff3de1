"""One kind of error for a user's mistake, and the few sentences in which it is told.

A message names the argument, what came and what was expected. The command line prints it as one line and exits with
status 2; from Python it is a ``ValueError``.
"""

from __future__ import annotations

import difflib
import importlib
import os
import re
import stat
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType


class UsageError(ValueError):
    """A mistake that the user can mend: the message says which argument, what came and what was expected."""


def unknown_name(argument: str, name: object, known: Iterable[str]) -> UsageError:
    """Return the error for a name that is not in a list, with the nearest valid name.

    >>> str(unknown_name("objective", "gca-uott", ["nt-xent", "gca-uot"]))
    "objective: unknown name 'gca-uott'; did you mean 'gca-uot'? Known: gca-uot, nt-xent."
    """
    names = sorted(known)
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    return UsageError(f"{argument}: unknown name {name!r}{hint} Known: {', '.join(names)}.")


def cannot_read(where: str, kind: str, error: Exception) -> UsageError:
    """Return the error for content that its reader gave up on, with the reader's reason in one line.

    >>> str(cannot_read("data: x.npy", "an .npy array", ValueError("bad\\n  magic")))
    'data: x.npy cannot be read as an .npy array: bad magic'
    """
    return UsageError(f"{where} cannot be read as {kind}: {reason(error)}")


_UNSAFE = re.compile(r"allow_pickle|weights.only|unpickl|pickled|pickle file", re.IGNORECASE)


def reason(error: BaseException) -> str:
    """Return why a reader gave up, on one line, without the advice of some to read what may run code.

    >>> reason(ValueError("bad\\n  magic")), reason(IndexError())
    ('bad magic', 'IndexError')
    >>> reason(ValueError("Object arrays cannot be loaded when allow_pickle=False"))
    'it is damaged, or holds pickled objects, which are never read, as they may run code'
    """
    told = str(error)
    if _UNSAFE.search(told):
        return "it is damaged, or holds pickled objects, which are never read, as they may run code"
    return textwrap.shorten(told, 300, placeholder=" ...") or type(error).__name__


def check(condition: bool, message: str) -> None:
    """Raise `UsageError` with the message unless the condition holds."""
    if not condition:
        raise UsageError(message)


def check_positive(argument: str, value: float, *, allow_infinity: bool = False) -> None:
    """Raise `UsageError` unless the value is a positive (and finite) number.

    >>> check_positive("temperature", -1)
    Traceback (most recent call last):
    contraport.errors.UsageError: temperature: expected a positive finite number, got -1.
    """
    good = isinstance(value, int | float) and value > 0 and (allow_infinity or value != float("inf"))
    kind = "a positive number" if allow_infinity else "a positive finite number"
    check(good, f"{argument}: expected {kind}, got {value!r}.")


def check_regular(argument: str, path: str | Path) -> None:
    """Raise `UsageError` unless a path is a regular file, or a link to one: others may be waited on for ever.

    Raises:
        OSError: there is nothing at the path.

    >>> check_regular("data", "/dev/zero")
    Traceback (most recent call last):
    contraport.errors.UsageError: data: /dev/zero is no regular file (but a pipe, a device, ...), so it is not opened.
    """
    message = f"{argument}: {path} is no regular file (but a pipe, a device, ...), so it is not opened."
    check(stat.S_ISREG(os.stat(path).st_mode), message)


@contextmanager
def needing(extra: str, purpose: str) -> Iterator[None]:
    """Say of a package that the block imports and that is not installed which extra brings it.

    Raises:
        UsageError: a package is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package in ("", "contraport"):
            raise
        raise UsageError(f"{purpose} needs the package {package!r}: pip install 'contraport[{extra}]'.") from error


def require(module: str, extra: str, purpose: str) -> ModuleType:
    """Import an optional module, or say which extra brings it.

    Raises:
        UsageError: the module is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UsageError(
            f"{purpose} needs the package {module.split('.')[0]!r}: pip install 'contraport[{extra}]'."
        ) from error
