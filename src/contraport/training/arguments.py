"""The arguments of a training: checked before anything is touched, kept in `config.yaml`, found again on resume."""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Literal, ParamSpec, Union, cast, get_args, get_origin, get_type_hints

import torch

from contraport.data import AUGMENTS
from contraport.distributed import together
from contraport.encoders import check_trusted, described
from contraport.errors import UsageError, check, check_positive, unknown_name
from contraport.objectives import Temperature
from contraport.objectives.schedules import parse_constraint
from contraport.runs import Run
from contraport.training.loop.loggers import check_loggers
from contraport.training.loop.optimization import SCHEDULES, check_optimizer
from contraport.training.step.momentum import Momentum

P = ParamSpec("P")

DEVICES = {"auto": "auto", "cpu": "cpu", "cuda": "gpu", "mps": "mps"}  # our name -> Lightning's

_OF_THE_CALL = {"out", "resume", "overwrite", "trust", "progress"}
_OF_THE_MACHINE = {"root", "workers", "device", "save_every", "logger"}


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """Check every argument of `contraport.train` that can be judged by itself.

    Raises:
        UsageError: the first one that is wrong.
    """
    given = {name: value for name, value in arguments.items() if value is not None}
    for name, least in _LEAST.items():
        if name in given:
            _check_count(name, given[name], least, _MOST.get(name, _MOST_COUNTED))
    if "lr" in given:
        check_positive("lr", given["lr"])
    for name, parse in _COURSES.items():
        if name in given:
            parse(given[name], 1)
    for name in ("weight_decay", "save_every"):
        _check_range(name, given[name], below=math.inf)
    if "warmup_epochs" in given:
        _check_range("warmup_epochs", given["warmup_epochs"], below=given["epochs"])
    for name, known in (("sched", SCHEDULES), ("augment", AUGMENTS), ("device", DEVICES)):
        if name in given and given[name] not in known:
            raise unknown_name(name, given[name], known)
    check(_has_device(given["device"]), f"device: this machine has no {given['device']!r}.")
    check_optimizer(given["opt"], given.get("lr"))
    check_loggers(given["logger"])
    if "predict" in given:
        own = [name for name in ("objective", "objective_settings", "temperature", "constraint") if given.get(name)]
        check(not own, f"{own[0] if own else ''}: predict compares nothing and has none; give one of the two.")
        check(given["projection"] == 0, f"projection: predict decodes features; expected 0, got {given['projection']}.")
    check(not (given["resume"] and given["overwrite"]), "resume: goes on with a run that overwrite would delete.")


def config_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `config.yaml` keeps: the arguments that say what the run is, as plain values.

    >>> config_of({"data": Path("photos"), "epochs": 3, "out": "runs/x", "objective": object()})
    {'data': 'photos', 'epochs': 3, 'objective': '<object>'}
    """
    plain = {name: _plain(value) for name, value in arguments.items() if name not in _OF_THE_CALL}
    return plain | {"encoder": described(arguments["encoder"])} if "encoder" in plain else plain


def name_of(value: Any) -> str:
    """Return what a name or an object is called in messages and paths."""
    return str(value) if isinstance(value, str | Path) else str(getattr(value, "name", type(value).__name__))


def resumable(function: Callable[P, Run]) -> Callable[P, Run]:
    """Let a call with ``resume=True`` take what it leaves out from the run's `config.yaml`, and refuse what differs."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Run:
        if kwargs.get("resume"):
            with together():
                continued = _continued(kwargs, function)
            return cast(Callable[..., Run], function)(*args, **continued)
        return function(*args, **kwargs)

    return call


def _continued(given: Mapping[str, Any], function: Callable[..., Any]) -> dict[str, Any]:
    known = inspect.signature(function).parameters.keys() - _OF_THE_CALL
    out = given.get("out")
    check(out is not None, "out: resume needs the folder of the run.")
    kept, kinds = Run(cast(str, out)).config(), get_type_hints(function)
    for name, value in kept.items():
        if name not in known:
            raise unknown_name(f"{out}/config.yaml", name, known)
        expected = kinds[name]
        check(
            _fits(value, expected), f"run: {out}/config.yaml is corrupt: {name} is {value!r}, no {_written(expected)}."
        )
        check(
            name in given or not any(map(_is_object, value if isinstance(value, list) else [value])),
            f"{name}: the run in {out} was given the object {value}; pass it again to go on.",
        )
    trust = given.get("trust", False) or "encoder" in given
    check_trusted(kept.get("encoder"), f"{out}/config.yaml", trust=trust)
    plain = config_of(given)
    for name in given.keys() & kept.keys() - _OF_THE_MACHINE:
        _check_agrees(name, plain[name], kept[name], out)
    return {**kept, **given}


def _check_agrees(name: str, value: Any, kept: Any, out: Any) -> None:
    if name == "epochs":
        _check_count(name, value, least=1)
        check(value >= kept, f"epochs: the run in {out} has {kept}, got {value}; on resume epochs may only grow.")
    else:
        check(value == kept, f"{name}: the run in {out} has {kept!r}, got {value!r}; on resume only epochs may change.")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, str | int | float):
        return value
    return name_of(value) if isinstance(value, Path) else f"<{name_of(value)}>"


def _fits(value: Any, kind: Any) -> bool:
    """Return whether a value of `config.yaml` can be an argument of a kind; an object stands there as its name."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if origin in (list, Sequence):
        return isinstance(value, list) and all(_fits(item, parts[0]) for item in value)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return value in parts if origin is Literal else isinstance(value, origin or kind)


def _written(kind: Any) -> str:
    return re.sub(r"[\w.]+\.", "", getattr(kind, "__name__", "") or str(kind))


def _is_object(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("<") and value.endswith(">")


_COURSES: dict[str, Callable[[Any, int], object]] = {
    "temperature": Temperature.parse,
    "momentum": Momentum.parse,
    "constraint": parse_constraint,
}

_LEAST = {
    "epochs": 1,
    "batch_size": 2,
    "cache_chunk": 2,
    "accumulate": 1,
    "queue_size": 1,
    "bank_negatives": 1,
    "prototypes": 2,
    "projection": 0,
    "image_size": 1,
    "log_every": 1,
    "keep_every": 1,
    "workers": 0,
    "seed": 0,
}

_MOST = {"seed": 2**64 - 1}  # what torch's generators take
_MOST_COUNTED = 2**31 - 1


def _has_device(device: str) -> bool:
    if device == "cuda":
        return torch.cuda.is_available()
    return device != "mps" or torch.backends.mps.is_available()


def _check_count(name: str, value: object, least: int, most: int = _MOST_COUNTED) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    check(whole and cast(int, value) >= least, f"{name}: expected a whole number from {least} on, got {value!r}.")
    check(cast(int, value) <= most, f"{name}: expected at most {most}, got {value!r}.")


def _check_range(name: str, value: object, *, below: float) -> None:
    good = isinstance(value, int | float) and 0 <= value < below
    limit = "a finite number" if below == math.inf else f"a number below {below}"
    if not good:
        raise UsageError(f"{name}: expected {limit}, 0 or more, got {value!r}.")
