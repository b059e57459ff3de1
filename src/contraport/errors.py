"""One kind of error for a user's mistake, and the few sentences in which it is told.

A message names the argument, what came and what was expected, and a note beside it the command that explains more. The
command line prints both as one line and exits with status 2; from Python it is a ``ValueError``.
"""

from __future__ import annotations

import difflib
import errno
import importlib
import inspect
import numbers
import os
import re
import shutil
import stat
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, TypeGuard

from contraport._utils.formatting import format_options

MAX_LIST_CHARS = 500
"""Letters up to which all known names are told; of more the nearest few."""


class UsageError(ValueError):
    """A mistake in the input, with a message of the form ``argument: requirement, got value``.

    Args:
        message: the text; it begins with the name of the argument and a colon where one argument is at fault.
        kind: the kind of mistake, a stable name in snake case: ``"invalid"`` (type or value), ``"unknown"`` (a name
            that is not in a list), ``"missing"``, ``"conflict"`` (excluded by another option), ``"shape"``,
            ``"not_found"``, ``"unreadable"``, ``"not_writable"``, ``"exists"``, or a more specific one.

    Attributes:
        argument: name of the argument, or None if the message names none.
        code: ``argument.kind``, or ``kind`` without an argument. It stays the same when the message is reworded.

    >>> error = UsageError("batch_size: must be an integer >= 1, got 0.")
    >>> error.argument, error.code
    ('batch_size', 'batch_size.invalid')
    """

    def __init__(self, message: str, *, kind: str = "invalid") -> None:
        super().__init__(message)
        named = _ARGUMENT.match(message)
        self.argument = named[1] if named else None
        self.code = f"{self.argument}.{kind}" if self.argument else kind


_ARGUMENT = re.compile(r"([A-Za-z_]\w*): ")


@contextmanager
def explained(where: str) -> Iterator[None]:
    """Say of a mistake that the block tells, or of a loss that is not finite, which command explains more.

    It is a note of the error, which Python prints below the message and the command line behind it. What was said
    further in stays, as it knows better. As a decorator it holds for a function.

    >>> with explained("contraport docs data"):
    ...     raise UsageError("data: there is no file or folder 'a.csv'.")
    Traceback (most recent call last):
    contraport.errors.UsageError: data: there is no file or folder 'a.csv'.
    More: contraport docs data
    """
    try:
        yield
    except (UsageError, FloatingPointError) as error:
        explain(error, where)
        raise


def explain(error: UsageError | FloatingPointError, where: str) -> None:
    """Note below an error which command explains more, unless it has a note."""
    if not notes(error):
        error.add_note(f"More: {where}")


def notes(error: BaseException) -> Sequence[str]:
    """Return the notes of an error."""
    return getattr(error, "__notes__", ())


class MissingInputError(UsageError):
    """A loss needs a fact of the items that its call does not have.

    Attributes:
        fact: its name, such as labels.
    """

    def __init__(self, fact: str, message: str) -> None:
        super().__init__(message)
        self.fact = fact


class FolderInUseError(UsageError):
    """Another process is at work where this one would be."""


class SelfTestError(RuntimeError):
    """Something that was checked of this installation does not hold."""


# What torch says on the CPU and on GPUs; its own class for it is that of GPUs only.
_NO_MEMORY = re.compile("can't allocate memory|out of memory|Storage size calculation overflowed")


def out_of_memory_message(error: BaseException) -> str | None:
    """Return what is told of an error that says that memory ran out; of another one nothing.

    >>> out_of_memory_message(RuntimeError("CUDA out of memory. Tried to allocate 2 TiB."))
    'there is not enough memory (CUDA out of memory. Tried to allocate 2 TiB.); smaller batches, views or networks ...'
    >>> out_of_memory_message(RuntimeError("shapes do not fit")) is None
    True
    """
    if not (isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and _NO_MEMORY.search(str(error)))):
        return None
    why = str(error).splitlines()[0] if str(error) else "a MemoryError"
    return f"there is not enough memory ({why}); smaller batches, views or networks need less."


# What NumPy says of a write that was cut short, without a number of the error.
_PARTLY_WRITTEN = re.compile(r"\d+ requested and \d+ written")


@contextmanager
def writing(argument: str, path: Path, remedy: Callable[[], str] = str) -> Iterator[None]:
    """Report an `OSError` of the block as a `UsageError` that names the path and, of a full disk, the free space.

    Args:
        argument: the option that names the path.
        path: what the block writes to, a file or a folder.
        remedy: returns what is said behind the message; called where the block failed.

    >>> with writing("out", Path("a.npz")):
    ...     raise OSError(errno.EACCES, "Permission denied")
    Traceback (most recent call last):
    contraport.errors.UsageError: out: a.npz cannot be written to: [Errno 13] Permission denied.
    """
    try:
        yield
    except OSError as error:
        partly = _PARTLY_WRITTEN.match(str(error)) is not None
        told = "only a part of it was written" if partly else str(error)
        if partly or error.errno == errno.ENOSPC:
            there = next(place for place in (path, *path.absolute().parents) if place.is_dir())
            told = f"{told}; {shutil.disk_usage(there).free / 1e6:,.1f} MB of its disk are free"
        message = f"{argument}: {path} cannot be written to: {told}.{remedy()}"
        raise UsageError(message, kind="not_writable") from error


def unknown_name_error(argument: str, name: object, known: Iterable[str]) -> UsageError:
    """Return the error for a name that is not in a list, with the nearest valid name.

    >>> str(unknown_name_error("objective", "gca-uott", ["nt-xent", "gca-uot"]))
    "objective: unknown name 'gca-uott'; did you mean 'gca-uot'? Known: gca-uot, nt-xent."
    """
    names = sorted(known)
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    told = f"Known: {', '.join(names)}."
    if len(told) > MAX_LIST_CHARS:
        nearest = difflib.get_close_matches(str(name), names, n=8, cutoff=0)
        told = f"Known, {len(names)} in all: {', '.join(nearest)} ..."
    return UsageError(f"{argument}: unknown name {name!r}{hint} {told}", kind="unknown")


def bound(
    name: str, signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> inspect.BoundArguments:
    """Return which argument of a function each value is, or say which one is none, with the nearest that is.

    Raises:
        TypeError: the values are not those of the signature.

    >>> bound("shorten", inspect.signature(lambda *, width=3: None), (), {"widht": 1})
    Traceback (most recent call last):
    TypeError: shorten() got an unexpected keyword argument 'widht'; did you mean 'width'?
    """
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        known = list(signature.parameters)
        wrong = next((one for one in kwargs if one not in known), "")
        near = difflib.get_close_matches(wrong, known, n=1)
        raise TypeError(f"{name}() {error}{f'; did you mean {near[0]!r}?' if near else ''}") from None


def unreadable_error(where: str, kind: str, error: Exception) -> UsageError:
    """Return the error for content that its reader gave up on, with the reader's reason in one line.

    >>> str(unreadable_error("data: x.npy", "an .npy array", ValueError("bad\\n  magic")))
    'data: x.npy cannot be read as an .npy array: bad magic'
    """
    return UsageError(f"{where} cannot be read as {kind}: {reason(error)}", kind="unreadable")


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


def check(condition: bool, message: str, kind: str = "invalid") -> None:
    """Raise `UsageError` with the message and kind unless the condition holds."""
    if not condition:
        raise UsageError(message, kind=kind)


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a number, of Python or NumPy.

    >>> is_number(0.5), is_number(True), is_number("0.5")
    (True, False, False)
    """
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def is_integer(value: object) -> TypeGuard[int]:
    """Return whether a value is a whole number, of Python or NumPy.

    >>> is_integer(2), is_integer(2.0), is_integer(True)
    (True, False, False)
    """
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def check_integer(argument: str, value: object, least: int = 1) -> None:
    """Raise `UsageError` unless the value is a whole number from the least on.

    >>> check_integer("iterations", 0)
    Traceback (most recent call last):
    contraport.errors.UsageError: iterations: expected a whole number from 1 on, got 0.
    """
    if not is_integer(value) or value < least:
        raise UsageError(f"{argument}: expected a whole number from {least} on, got {value!r}.")


def check_positive(argument: str, value: float, *, allow_infinity: bool = False) -> None:
    """Raise `UsageError` unless the value is a positive (and finite) number.

    >>> check_positive("temperature", -1)
    Traceback (most recent call last):
    contraport.errors.UsageError: temperature: expected a positive finite number, got -1.
    """
    good = is_number(value) and value > 0 and (allow_infinity or value != float("inf"))
    kind = "a positive number" if allow_infinity else "a positive finite number"
    check(good, f"{argument}: expected {kind}, got {value!r}.")


def check_nonnegative(argument: str, value: object) -> None:
    """Raise `UsageError` unless the value is a finite number from 0 on.

    >>> check_nonnegative("weight", float("nan"))
    Traceback (most recent call last):
    contraport.errors.UsageError: weight: expected a nonnegative finite number, got nan.
    """
    good = is_number(value) and 0 <= value < float("inf")
    check(good, f"{argument}: expected a nonnegative finite number, got {value!r}.")


def describe_value(value: Any) -> str:
    """Return what a value is, for a message: the type and shape of a tensor or an array, else its type.

    >>> import torch
    >>> describe_value(torch.ones(2, 3)), describe_value([1])
    ('torch.float32 of shape (2, 3)', 'list')
    """
    there = hasattr(value, "dtype") and hasattr(value, "shape")
    return f"{value.dtype} of shape {tuple(value.shape)}" if there else type(value).__name__


def check_all_values(argument: str, values: Any, good: Any, expected: str) -> None:
    """Raise `UsageError`, which tells the first wrong value, unless all of a tensor or an array are good.

    Args:
        argument: what the values are.
        values: the tensor or array.
        good: which of them are good, Booleans of the same shape.
        expected: what good ones are.

    >>> import torch
    >>> weights = torch.tensor([1.0, -2.0])
    >>> check_all_values("weights", weights, weights >= 0, "nonnegative numbers")
    Traceback (most recent call last):
    contraport.errors.UsageError: weights: expected nonnegative numbers, got -2.
    """
    if not bool(good.all()):  # nothing else is read where all are: on a GPU each look waits for it
        raise UsageError(f"{argument}: expected {expected}, got {values[~good].reshape(-1)[0].item():.9g}.")


def check_new_file(argument: str, path: Path, *, overwrite: bool) -> None:
    """Raise `UsageError` unless a file can be written at a path: in a folder that is there, over none that is to stay.

    >>> check_new_file("out", Path("/nowhere/report.html"), overwrite=False)
    Traceback (most recent call last):
    contraport.errors.UsageError: out: the folder /nowhere does not exist.
    """
    check(not path.is_dir(), f"{argument}: {path} is a folder; expected a file.")
    check(
        overwrite or not path.exists(),
        f"{argument}: {path} exists; pass {format_options(overwrite=True)} to replace it.",
    )
    check(path.absolute().parent.is_dir(), f"{argument}: the folder {path.parent} does not exist.")


def check_regular_file(argument: str, path: str | Path) -> None:
    """Raise `UsageError` unless a path is a regular file, or a link to one: others may be waited on for ever.

    Raises:
        OSError: there is nothing at the path.

    >>> check_regular_file("data", "/dev/zero")
    Traceback (most recent call last):
    contraport.errors.UsageError: data: /dev/zero is no regular file (but a pipe, a device, ...), so it is not opened.
    """
    mode = os.stat(path).st_mode
    if stat.S_ISREG(mode):
        return
    check(not stat.S_ISDIR(mode), f"{argument}: {path} is a folder, no file.")
    raise UsageError(f"{argument}: {path} is no regular file (but a pipe, a device, ...), so it is not opened.")


def check_existing_file(argument: str, path: str | Path) -> None:
    """Raise `UsageError` unless a path is a regular file, or a link to one.

    >>> check_existing_file("weights", "missing.npy")
    Traceback (most recent call last):
    contraport.errors.UsageError: weights: missing.npy cannot be read as a file: [Errno 2] No such file or directory...
    """
    try:
        check_regular_file(argument, path)
    except (OSError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        raise unreadable_error(f"{argument}: {path}", "a file", error) from error


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
