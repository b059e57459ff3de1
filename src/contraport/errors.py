"""`UsageError` for mistakes in user input, and checks that raise it.

A message names the argument, the requirement and the value. A note names the command that explains more. The command
line prints both as one line and exits with status 2; in Python the error is a ``ValueError``.
"""

from __future__ import annotations

import difflib
import errno
import functools
import importlib
import inspect
import math
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
from typing import Any, ParamSpec, TypeGuard

from contraport._utils.formatting import format_options

P = ParamSpec("P")

MAX_LISTED_NAMES = 10
"""Maximum number of valid names in a message; of a longer list only the most similar names are shown."""


class UsageError(ValueError):
    """Error in user input, with a message ``argument: requirement, got value``.

    Args:
        message: the text; it begins with the name of the argument and a colon where one argument is at fault.
        kind: the kind of mistake, a stable name in snake case: ``"invalid"`` (type or value), ``"unknown"`` (a name
            that is not in a list), ``"missing"``, ``"conflict"`` (excluded by another option), ``"shape"``,
            ``"not_found"``, ``"unreadable"``, ``"not_writable"``, ``"exists"``, or a more specific one.
        suggested_options: options that, added to the same call, may mend it.

    Attributes:
        argument: Name of the wrong argument; None if the message names none.
        code: Stable error code, ``argument.kind``, or ``kind`` without an argument; independent of the wording.
        suggested_options: Options that may mend the call, by name; the command line prints the whole command.

    >>> error = UsageError("batch_size: must be an integer >= 1, got 0.")
    >>> error.argument, error.code
    ('batch_size', 'batch_size.invalid')
    """

    def __init__(
        self, message: str, *, kind: str = "invalid", suggested_options: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.suggested_options = dict(suggested_options or {})
        named = re.match(r"([A-Za-z_][\w.]*)(?:\[[^\]]*\])?: ", message)  # `views[0]: ...` is of `views`
        self.argument = named[1] if named else None
        self.code = f"{self.argument}.{kind}" if self.argument else kind


@contextmanager
def hint_on_error(help_command: str) -> Iterator[None]:
    """Context manager and decorator that adds the note "More: HELP_COMMAND" to errors.

    Python prints the note below the message, the command line behind it. A note of an inner block stays, as it is more
    specific.
    """
    try:
        yield
    except (UsageError, FloatingPointError) as error:
        add_hint_if_missing(error, help_command)
        raise


def add_hint_if_missing(error: UsageError | FloatingPointError, help_command: str) -> None:
    """Add a note with a help command to an error without notes."""
    if not getattr(error, "__notes__", ()):
        error.add_note(f"More: {help_command}")


@contextmanager
def rename_argument(new: str, *old: str) -> Iterator[None]:
    """Context manager that renames the argument in `UsageError` messages.

    >>> with rename_argument("rows", "features", "data"):
    ...     raise UsageError("features: must be finite, got NaN.", kind="not_finite")
    Traceback (most recent call last):
    contraport.errors.UsageError: rows: must be finite, got NaN.
    """
    try:
        yield
    except UsageError as error:
        if error.argument not in old:
            raise
        message, kind = str(error).removeprefix(error.argument), error.code.removeprefix(f"{error.argument}.")
        raise UsageError(f"{new}{message}", kind=kind) from error


class FolderInUseError(UsageError):
    """Error for a folder that another process is writing to."""


class SelfTestError(RuntimeError):
    """Error for a failed self-test of this installation."""


def message_if_out_of_memory(error: BaseException) -> str | None:
    """Return a message for an out-of-memory error, or None for other errors.

    >>> message_if_out_of_memory(RuntimeError("CUDA out of memory. Tried to allocate 2 TiB."))
    'there is not enough memory (CUDA out of memory. Tried to allocate 2 TiB.); smaller batches, views or networks ...'
    >>> message_if_out_of_memory(RuntimeError("shapes do not fit")) is None
    True
    """
    # Messages of torch on CPU and GPU; only the GPU has an exception class of its own.
    pattern = "can't allocate memory|out of memory|Storage size calculation overflowed"
    is_of_torch = isinstance(error, RuntimeError) and re.search(pattern, str(error))
    if not isinstance(error, MemoryError) and not is_of_torch:
        return None
    cause = str(error).splitlines()[0] if str(error) else "a MemoryError"
    return f"there is not enough memory ({cause}); smaller batches, views or networks need less."


@contextmanager
def translate_write_errors(argument: str, path: Path, remedy: Callable[[], str] = str) -> Iterator[None]:
    """Context manager that converts an `OSError` to a `UsageError` about a path.

    For a full disk, the message states the free space.

    Args:
        argument: name of the option that gives the path.
        path: file or folder that the block writes to.
        remedy: returns a text to append to the message; called only if the block failed.

    >>> with translate_write_errors("out", Path("a.npz")):
    ...     raise OSError(errno.EACCES, "Permission denied")
    Traceback (most recent call last):
    contraport.errors.UsageError: out: a.npz cannot be written to: Permission denied.
    """
    try:
        yield
    except OSError as error:
        # NumPy's error for a write that was cut short has no errno.
        partly = re.match(r"\d+ requested and \d+ written", str(error)) is not None
        cause = "only a part of it was written" if partly else error.strerror or str(error)
        if partly or error.errno == errno.ENOSPC:
            folder = next(parent for parent in (path, *path.absolute().parents) if parent.is_dir())
            cause = f"{cause}; {shutil.disk_usage(folder).free / 1e6:,.1f} MB of its disk are free"
        raise UsageError(f"{argument}: {path} cannot be written to: {cause}.{remedy()}", kind="not_writable") from error


def unknown_name_error(
    argument: str, name: object, valid_names: Iterable[str], noun: str = "name", *, list_command: str = ""
) -> UsageError:
    """Build the error for an unknown name, with valid or similar names.

    Args:
        argument: name of the option.
        name: the unknown name.
        valid_names: the known names.
        noun: noun for the name in the message.
        list_command: command that lists the valid names; it is named in the message, or in a note if one is similar.

    >>> str(unknown_name_error("objective", "gca-uott", ["nt-xent", "gca-uot"]))
    "objective: unknown name 'gca-uott'; did you mean 'gca-uot'? Known: gca-uot, nt-xent."
    >>> str(unknown_name_error("page", "x", map(str, range(20)), list_command="contraport docs"))
    "page: unknown name 'x'. None of the 20 known names is similar; see `contraport docs`."
    """
    names = {one.lstrip("-"): one for one in sorted(valid_names)}  # the dashes of flags do not make names similar
    similar = [names[one] for one in suggest_names(str(name).lstrip("-"), names, MAX_LISTED_NAMES)]
    parts = [f"; did you mean {similar[0]!r}?" if similar else "."]
    if len(names) <= MAX_LISTED_NAMES:
        parts.append(f"Known: {', '.join(names.values()) or 'none'}.")
    elif not similar:
        parts.append(
            f"None of the {len(names)} known names is similar{f'; see `{list_command}`' if list_command else ''}."
        )
    elif len(similar) > 1:
        parts.append(f"Also similar: {', '.join(similar[1:])}.")
    error = UsageError(f"{argument}: unknown {noun} {format_value(name)}{' '.join(parts)}", kind="unknown")
    if list_command and similar:
        add_hint_if_missing(error, list_command)
    return error


_NAMES_BY_SYNONYM = {
    "bs": "batch_size",
    "dim": "projection",
    "dims": "matryoshka projection",
    "fit": "train",
    "gpu": "device",
    "learning_rate": "lr",
    "n_clusters": "k",
    "tau": "temperature",
    "wd": "weight_decay",
}
"""Names of this package, separated by spaces, for other names of the field that have few letters in common with it."""


def suggest_names(name: str, valid_names: Iterable[str], max_names: int = 1, cutoff: float = 0.6) -> list[str]:
    """List the valid names that were most likely meant by a name.

    A synonym of the field comes first, then names that begin with the given one, then names of similar letters.

    >>> suggest_names("temp", ["steps", "temperature"]), suggest_names("tau", ["target", "temperature"])
    (['temperature'], ['temperature'])
    """
    names = list(valid_names)
    synonyms = [one for one in names if one in _NAMES_BY_SYNONYM.get(name.replace("-", "_"), "").split()]
    longer = sorted((one for one in names if len(name) > 2 and one.startswith(name)), key=len)
    similar = difflib.get_close_matches(name, names, n=len(names), cutoff=cutoff) if names else []
    return list(dict.fromkeys([*synonyms, *longer, *similar]))[:max_names]


def bind_suggesting_keywords(
    name: str, signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> inspect.BoundArguments:
    """Bind arguments to a signature, suggesting similar keywords for unknown ones."""
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        parameters = list(signature.parameters)
        unexpected = next((key for key in kwargs if key not in parameters), None)
        similar = suggest_names(unexpected, parameters) if unexpected else []
        hint = f"; did you mean {similar[0]!r}?" if similar else ""
        if unexpected and not similar and len(parameters) <= MAX_LISTED_NAMES:
            hint = f"; expected {', '.join(parameters) or 'none'}"
        raise TypeError(f"{name}() {error}{hint}") from None


def suggest_keywords(init: Callable[P, None]) -> Callable[P, None]:
    """Decorate an `__init__` to suggest a similar keyword for an unknown one.

    The signature, which scikit-learn reads to find the parameters of an estimator, stays that of the method.

    >>> class Box:
    ...     @suggest_keywords
    ...     def __init__(self, *, width: int = 1) -> None: ...
    >>> Box(widht=3)
    Traceback (most recent call last):
    TypeError: Box() got an unexpected keyword argument 'widht'; did you mean 'width'?
    """
    signature = inspect.signature(init)

    @functools.wraps(init)
    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        bind_suggesting_keywords(type(args[0]).__name__, signature, args, kwargs)
        init(*args, **kwargs)

    return call


def unreadable_error(error_prefix: str, expected_content: str, error: Exception) -> UsageError:
    """Build the error for a file that cannot be read.

    >>> str(unreadable_error("data: x.npy", ".npy", ValueError("bad\\n  magic")))
    'data: x.npy cannot be read as .npy: bad magic'
    """
    return UsageError(
        f"{error_prefix} cannot be read as {expected_content}: {one_line_reason(error)}", kind="unreadable"
    )


@contextmanager
def translate_read_errors(error_prefix: str, expected_content: str) -> Iterator[None]:
    """Context manager that turns errors in reading a file into a `UsageError`.

    Readers raise errors of any class on hostile bytes. A `UsageError` passes unchanged.

    >>> with translate_read_errors("data: x.npy", ".npy"):
    ...     raise ValueError("bad magic")
    Traceback (most recent call last):
    contraport.errors.UsageError: data: x.npy cannot be read as .npy: bad magic
    """
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        raise unreadable_error(error_prefix, expected_content, error) from error


def one_line_reason(error: BaseException) -> str:
    """Return an error's message on one line, without NumPy's or torch's advice to unpickle.

    >>> one_line_reason(ValueError("bad\\n  magic")), one_line_reason(IndexError())
    ('bad magic', 'IndexError')
    >>> one_line_reason(ValueError("This file contains pickled (object) data"))
    'it is damaged, or holds pickled objects, which are never read, as they may run code'
    """
    if mark := getattr(error, "problem_mark", None):  # of YAML
        return f"line {mark.line + 1}, column {mark.column + 1}: {getattr(error, 'problem', '')}"
    if re.search("^Object arrays|Python objects in dtype", str(error)):
        return "it has pickled objects, which are never read, as they may run code; save numbers or texts instead"
    # Messages about pickled objects advise to load them without protection.
    if re.search("allow_pickle|weights.only|unpickl|pickled|pickle file", str(error), re.IGNORECASE):
        return "it is damaged, or holds pickled objects, which are never read, as they may run code"
    message = str(error).replace(". in row", " in row")  # of pyarrow's errors
    message = re.sub(r"(JSON parse error: .* in row \d+)$", r"\1 (from 0)", message)
    message = re.sub(r"(Expected \d+ columns, got \d+): (.*)", r"\1 in the row '\2'", message)
    return textwrap.shorten(message, 300, placeholder=" ...") or type(error).__name__


def check(condition: bool, message: str, kind: str = "invalid") -> None:
    """Raise `UsageError` with `message` and `kind` unless `condition` is true."""
    if not condition:
        raise UsageError(message, kind=kind)


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a real number other than a bool.

    A `fractions.Fraction` does not count.

    >>> is_number(0.5), is_number(True), is_number("0.5")
    (True, False, False)
    """
    is_fraction = isinstance(value, numbers.Rational) and not isinstance(value, numbers.Integral)  # torch has none
    is_real = isinstance(value, numbers.Real)
    return is_real and not isinstance(value, bool) and not is_fraction


def is_integer(value: object) -> TypeGuard[int]:
    """Return whether a value is an integer other than a bool.

    >>> is_integer(2), is_integer(2.0), is_integer(True)
    (True, False, False)
    """
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


MAX_SINGLE_PRECISION = 3.4e38
"""Largest size of a number that counts as finite; the reciprocal is the smallest one that counts as positive."""


def fits_float32_or_int64(value: Any) -> TypeGuard[float]:
    """Return whether a value is a number in float32 range or an int64."""
    is_whole = isinstance(value, numbers.Integral)
    limit: Any = 2**63 if is_whole else MAX_SINGLE_PRECISION
    is_real = is_whole or (isinstance(value, numbers.Real) and not isinstance(value, numbers.Rational))
    return is_real and not isinstance(value, bool) and bool(-limit < value < limit)


def check_integer(argument: str, value: object, least: int = 1, most: int | None = None) -> None:
    """Raise `UsageError` unless a value is an integer within bounds."""
    if not is_integer(value) or not least <= value < 2**64 or (most is not None and value > most):
        bounds = f">= {least}" if most is None else f"from {least} to {most}"
        raise _usage_error_for_value(argument, f"an integer {bounds}", value)


def check_positive(argument: str, number: object, *, allow_infinity: bool = False) -> None:
    """Raise `UsageError` unless a value is a positive, finite number."""
    is_infinite = allow_infinity and is_number(number) and number == math.inf
    if not is_infinite and not (fits_float32_or_int64(number) and number > 1 / MAX_SINGLE_PRECISION):
        expected = "a positive number" if allow_infinity else "a positive finite number"
        raise _usage_error_for_value(argument, expected, number)


def check_nonnegative(argument: str, number: object) -> None:
    """Raise `UsageError` unless a value is a finite number >= 0."""
    if not fits_float32_or_int64(number) or number < 0:
        raise _usage_error_for_value(argument, "a finite number >= 0", number)


def check_finite(argument: str, number: object) -> None:
    """Raise `UsageError` unless a value is a finite number."""
    if not fits_float32_or_int64(number):
        raise _usage_error_for_value(argument, "a finite number", number)


def check_boolean(argument: str, value: object) -> None:
    """Raise `UsageError` unless a value is True or False."""
    if not isinstance(value, bool):
        raise _usage_error_for_value(argument, "True or False", value)


def _usage_error_for_value(argument: str, expected: str, value: object, kind: str = "invalid") -> UsageError:
    """Build the error for a wrong value, ``ARGUMENT: must be EXPECTED, got VALUE.``"""
    return UsageError(f"{argument}: must be {expected}, got {format_value(value)}.", kind=kind)


def check_name(argument: str, value: object, valid_names: Iterable[str], *, list_command: str = "") -> None:
    """Raise `UsageError` unless a value is one of the valid names."""
    if not isinstance(value, str) or value not in valid_names:
        raise unknown_name_error(argument, value, valid_names, list_command=list_command)


def check_type(argument: str, value: object, expected_class: Any, example: str) -> None:
    """Raise `UsageError` unless a value is an instance of `expected_class`."""
    if not isinstance(value, expected_class) or isinstance(value, type):
        raise _usage_error_for_value(argument, f"of type {expected_class.__name__}, such as {example}", value, "type")


def check_nonempty_sequence(argument: str, value: Any, expected: str) -> None:
    """Raise `UsageError` unless a value is a nonempty list, tuple or array."""
    is_sequence = hasattr(value, "__getitem__") and not isinstance(value, str | bytes | Mapping | type)
    size = len(value) if is_sequence and getattr(value, "ndim", 1) > 0 else None
    if not size:
        raise _usage_error_for_value(argument, expected, value, "type" if size is None else "missing")


def format_value(value: object) -> str:
    """Return a value's shortened repr, or an array's dtype and shape.

    >>> import torch
    >>> format_value(0.5), format_value(torch.ones(2, 3)), format_value([0] * 1000)[-9:]
    ('0.5', 'torch.float32 of shape (2, 3)', '0, 0, ...')
    """
    if _is_array(value) and not is_number(value):
        return type_and_shape(value)
    return textwrap.shorten(repr(value), 200, placeholder=" ...")


def type_and_shape(value: Any) -> str:
    """Return an array's dtype and shape, or another value's type.

    >>> import torch
    >>> type_and_shape(torch.ones(2, 3)), type_and_shape([1])
    ('torch.float32 of shape (2, 3)', 'list')
    """
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"{value.dtype} of shape {tuple(value.shape)}" if _is_array(value) else type(value).__name__


def _is_array(value: object) -> bool:
    """Return whether a value is a tensor or an array."""
    return hasattr(value, "dtype") and hasattr(value, "shape") and not isinstance(value, type)


def check_all_values(argument: str, values: Any, valid_mask: Any, expected: str) -> None:
    """Raise `UsageError` with the first invalid value of an array, if any.

    Args:
        argument: name of the values.
        values: the tensor or array.
        valid_mask: Booleans of the same shape, true for valid values.
        expected: description of a valid value.

    >>> import torch
    >>> weights = torch.tensor([1.0, -2.0])
    >>> check_all_values("weights", weights, weights >= 0, "nonnegative numbers")
    Traceback (most recent call last):
    contraport.errors.UsageError: weights: must be nonnegative numbers, got -2.
    """
    if not bool(valid_mask.all()):  # the one synchronization with a GPU if all are valid
        raise UsageError(f"{argument}: must be {expected}, got {values[~valid_mask].reshape(-1)[0].item():.9g}.")


def check_output_file(argument: str, path: Path, *, overwrite: bool) -> None:
    """Raise `UsageError` if an output file exists or cannot be written."""
    check(not path.is_dir(), f"{argument}: must be a file, got the folder {path}.", "is_folder")
    replaceable = overwrite or not path.exists()
    check(replaceable, f"{argument}: {path} exists; pass {format_options(overwrite=True)} to replace it.", "exists")
    check_writable(argument, path)


def check_new_or_empty_folder(argument: str, folder: Path) -> None:
    """Raise `UsageError` unless a folder can be written to, and is new or empty."""
    is_free = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    check(is_free, f"{argument}: must be a new or an empty folder, got {folder}. Choose another.", "exists")
    is_folder_name = folder.suffix not in (".csv", ".html", ".npz", ".parquet", ".pdf", ".png", ".svg")
    check(is_folder_name, f"{argument}: must be a folder, which gets several files; got {folder}.", "suffix")
    check_writable(argument, folder / "file")


def check_writable(argument: str, path: Path) -> None:
    """Raise `UsageError` unless the nearest existing folder above a path is writable."""
    nearest = next(parent for parent in path.absolute().parents if parent.exists())
    check(nearest.is_dir(), f"{argument}: {nearest} is a file, not a folder.", "not_a_folder")
    writable = os.access(nearest, os.W_OK | os.X_OK)
    check(writable, f"{argument}: the folder {nearest} cannot be written to. Choose another.", "not_writable")


def check_regular_file(argument: str, path: str | Path) -> None:
    """Raise `UsageError` unless a path is a regular file.

    Reading a pipe or device may never end.

    Raises:
        OSError: the path does not exist.
    """
    mode = os.stat(path).st_mode
    if stat.S_ISREG(mode):
        return
    check(not stat.S_ISDIR(mode), f"{argument}: must be a file, got the folder {path}.", "is_folder")
    raise UsageError(f"{argument}: must be a regular file, got {path} (a pipe, device or socket).", kind="not_a_file")


def check_existing_file(argument: str, path: str | Path) -> None:
    """Raise `UsageError` unless a path is an existing regular file."""
    check(os.path.exists(path), f"{argument}: there is no file {str(path)!r}.", "not_found")
    check_regular_file(argument, path)


@contextmanager
def translate_import_errors(extra: str, purpose: str) -> Iterator[None]:
    """Context manager whose import errors name the optional extra to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package in ("", "contraport"):
            raise
        raise _missing_package_error(package, extra, purpose) from error


def import_optional(module: str, extra: str, purpose: str) -> ModuleType:
    """Import an optional module, or raise an error naming the extra to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise _missing_package_error(module.split(".")[0], extra, purpose) from error


def _missing_package_error(package: str, extra: str, purpose: str) -> UsageError:
    """Build the error that names the extra to install for a missing package."""
    message = f"{purpose} needs the package {package!r}: pip install 'contraport[{extra}]'."
    return UsageError(message, kind="missing_package")
