"""`contraport doctor`, which reports versions and hardware and runs self-tests."""

from __future__ import annotations

import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import contraport
from contraport.cli.utility_command_options import DOCTOR_COMMAND_SPEC, DoctorOptions
from contraport.engine import backend
from contraport.engine.backends.cuda import HAS_TRITON
from contraport.errors import SelfTestError, check, one_line_reason
from contraport.seeding import torch_generator

MAX_RELATIVE_ERROR = 1e-3
"""Maximum accepted error against double precision: of a loss, and of a gradient relative to its largest entry."""


@dataclass(frozen=True)
class SelfTestResult:
    """Result of one self-test, with the error message as `failure` if it failed."""

    name: str
    failure: str | None
    seconds: float


@dataclass(frozen=True)
class Diagnosis:
    """Versions, hardware and self-test results that `contraport.doctor` returns.

    Attributes:
        versions: Versions of contraport, Python, torch and numpy.
        machine: Hardware properties, such as the number of CPUs and the GPUs, by name.
        extra_versions: Version of each package by extra; None for a missing package.
    """

    versions: Mapping[str, str]
    machine: Mapping[str, str]
    extra_versions: Mapping[str, Mapping[str, str | None]]
    checks: tuple[SelfTestResult, ...]

    @property
    def passed(self) -> bool:
        """True if all self-tests passed."""
        return all(check.failure is None for check in self.checks)


@DOCTOR_COMMAND_SPEC.with_option_parameters
def doctor(arguments: dict[str, Any]) -> Diagnosis:
    """Collect the installed versions and the hardware, and run self-tests.

    Raises:
        UsageError: an invalid option.

    >>> diagnosis = contraport.doctor(test=False)
    >>> diagnosis.passed, diagnosis.versions["contraport"] == contraport.__version__
    (True, True)
    """
    options = DoctorOptions(**arguments)
    versions = {"contraport": contraport.__version__, "Python": platform.python_version()}
    versions |= {name: version(name) for name in ("torch", "numpy")}
    extras = _package_versions_by_extra()
    checks = list[SelfTestResult]()
    tests = list(_iter_self_tests(extras)) if options.test else []
    for number, (name, test) in enumerate(tests, start=1):
        if options.progress:  # without a progress bar, which needs an extra
            print(f"self-test {number} of {len(tests)}: {name}", file=sys.stderr, flush=True)
        checks.append(_run_self_test(name, test))
    return Diagnosis(versions, _machine_properties_by_name(), extras, tuple(checks))


def print_diagnosis(diagnosis: Diagnosis) -> None:
    """Print the result of `contraport doctor`, one line per property and self-test."""
    print(", ".join(f"{name} {number}" for name, number in diagnosis.versions.items()))
    for name, value in diagnosis.machine.items():
        print(f"{name}: {value}")
    for extra, packages in diagnosis.extra_versions.items():
        missing = [name for name, number in packages.items() if number is None]
        installed = ", ".join(f"{name} {number}" for name, number in packages.items() if number is not None)
        missing_text = f"; not installed: {', '.join(missing)}" if missing else ""
        print(f"extra {extra}: {installed or 'nothing'}{missing_text}")
    for one in diagnosis.checks:
        print(f"{'failed' if one.failure else 'passed'}: {one.name}, {one.seconds:.1f} s", one.failure or "", sep="  ")


def check_diagnosis(diagnosis: Diagnosis) -> None:
    """Raise `SelfTestError` if a self-test failed."""
    if not diagnosis.passed:
        failed = [one.name for one in diagnosis.checks if one.failure]
        raise SelfTestError(f"{len(failed)} of {len(diagnosis.checks)} checks failed: {', '.join(failed)}.")


def _machine_properties_by_name() -> dict[str, str]:
    """Return a description of each property of the machine, such as "processor"."""
    devices = ["cpu", *(f"cuda:{k} {torch.cuda.get_device_name(k)}" for k in range(torch.cuda.device_count()))]
    devices += ["mps"] if torch.backends.mps.is_available() else []
    groups = ("gloo", "nccl", "mpi")
    available = [name for name in groups if dist.is_available() and getattr(dist, f"is_{name}_available")()]
    return {
        "system": f"{platform.platform()}, {platform.machine()}",
        "processor": f"{len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()} cores, "
        f"threads: {torch.get_num_threads()}, {torch.backends.cpu.get_cpu_capability()}",
        "devices": ", ".join(devices),
        "backends": ", ".join(_list_engine_backends("cuda" if torch.cuda.is_available() else "cpu")),
        "Triton": "installed" if HAS_TRITON else "not installed",
        "process groups": ", ".join(available) or "none",
    }


def _package_versions_by_extra() -> dict[str, dict[str, str | None]]:
    """Return versions of optional packages by extra and name, None if missing."""
    extras: dict[str, dict[str, str | None]] = {}
    for line in requires("contraport") or ():
        match = re.match(r"([\w.-]+)(?:\[.*?\])?.*;.*extra == ['\"](\w+)['\"]", line)
        if match and match[1] != "contraport":
            try:
                installed = version(match[1])
            except PackageNotFoundError:
                installed = None
            extras.setdefault(match[2], {})[match[1]] = installed
    return extras


def _iter_self_tests(extras: Mapping[str, Mapping[str, str | None]]) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield each self-test that hardware and installed packages allow, with its name."""
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    for device in devices:
        for name in _list_engine_backends(device):
            yield f"losses on {device}, {name}", partial(_check_losses_of_backend, device, name)
    if all(extras.get("train", {"": None}).values()):
        yield "resumed training", _test_resumed_training


def _list_engine_backends(device: str) -> tuple[str, ...]:
    """Return the names of the engine's backends for cpu or cuda."""
    return ("dense", "stored", "streamed", *(["cuda"] if device == "cuda" and HAS_TRITON else []))


def _run_self_test(name: str, test: Callable[[], None]) -> SelfTestResult:
    """Run a self-test, and return its duration and any failure."""
    start, failure = time.perf_counter(), None
    try:
        test()
    except Exception as error:  # any error is a failed test
        failure = f"{type(error).__name__}: {one_line_reason(error)}"
    return SelfTestResult(name, failure, time.perf_counter() - start)


def _check_losses_of_backend(device: str, backend_name: str) -> None:
    """Check a backend's losses and gradients against a dense double-precision computation."""
    # Together they use every kind of kernel, constraint and divergence.
    for objective in ("nt-xent", "gca-ince", "gca-uot", "rince", "alpha-cl", "t-simclr", "pairwise"):
        value, gradient = _compute_loss_and_z0_gradient(objective, torch.float32, device, backend_name)
        exact, expected = _compute_loss_and_z0_gradient(objective, torch.float64, "cpu", "dense")
        computed, reference = float(value), float(exact)
        error = float((gradient.cpu().double() - expected).abs().max() / expected.abs().max())
        check(
            abs(computed - reference) <= MAX_RELATIVE_ERROR * max(1.0, abs(reference)) and error <= MAX_RELATIVE_ERROR,
            f"{objective}: the value is {computed:.6g}, expected {reference:.6g}, the gradient is off by {error:.1e}.",
        )


def _compute_loss_and_z0_gradient(
    objective: str, dtype: torch.dtype, device: str, backend_name: Any
) -> tuple[Tensor, Tensor]:
    """Compute the loss and gradient of fixed random embeddings with a given backend."""
    random = torch_generator("doctor.losses")
    z0, z1 = torch.randn(2, 300, 16, dtype=torch.float64, generator=random).to(device, dtype)
    z0.requires_grad_()
    with backend(backend_name):
        value = contraport.objective(objective).to(device, dtype)(z0, z1)
    return value.detach(), torch.autograd.grad(value, z0)[0]


def _test_resumed_training() -> None:
    """Check that resumed and uninterrupted training end with the same loss."""
    # Here, not above: the losses are tested without the extra that this needs.
    from contraport.runs import Run

    images = torch.rand(96, 1, 12, 12, generator=torch_generator("doctor.images"))
    common: dict[str, Any] = {
        "batch_size": 32,
        "lr_scheduler": "constant",
        "device": "cpu",
        "num_workers": 0,
        "progress": False,
    }
    with tempfile.TemporaryDirectory() as folder:
        whole, parts = Path(folder, "whole"), Path(folder, "parts")
        contraport.train(data=images, epochs=2, out=whole, **common)
        contraport.train(data=images, epochs=1, out=parts, **common)
        contraport.train(data=images, resume=True, epochs=2, out=parts, progress=False)
        ends = [[row["loss"] for row in Run(path).metrics_rows()][-1] for path in (whole, parts)]
    check(ends[0] == ends[1], f"the last loss is {ends[1]!r} and not {ends[0]!r}.")
