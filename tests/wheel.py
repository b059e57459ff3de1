"""Install the built wheel with the core dependencies in clean environments, and run the tests of the core there.

One environment for each installed Python that the package supports, with the lowest and with the newest torch that it
supports. A failed installation is reported, not skipped. `make wheel` builds and runs it; each environment takes some
minutes and gigabytes, and is deleted after its tests.

    python tests/wheel.py dist/*.whl [--python 3.12 ...] [--torch lowest newest] [--tests tests/objectives ...]
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
TESTS = (
    "tests/engine/test_fixed_point.py",
    "tests/engine/test_similarity_mask.py",
    "tests/objectives/test_column_weights.py",
    "tests/objectives/test_formulas.py",
    "tests/objectives/test_inputs.py",
    "tests/objectives/test_loss_schedules.py",
)
"""Tests that need only the core, pytest and hypothesis."""
TOOLS = ("pytest", "hypothesis")
SECONDS = 1800


def is_python_available(python: str) -> bool:
    """Return whether this machine has a Python of a version that starts."""
    if shutil.which(f"python{python}") is None:
        return False
    return subprocess.run([f"python{python}", "-c", ""], capture_output=True, check=False).returncode == 0


def lowest_torch() -> list[str]:
    """Return the lowest torch that the package allows, with a NumPy of its time."""
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    bound = next(match[1] for line in dependencies if (match := re.fullmatch(r"torch>=([\d.]+)", line)))
    return [f"torch=={bound}.*", "numpy<2.4"]


def try_wheel(wheel: Path, python: str, torch: str, tests: list[str]) -> str:
    """Return the results of a wheel in its own environment, as one line."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        subprocess.run([f"python{python}", "-m", "venv", place / "venv"], check=True, timeout=SECONDS)
        program = place / "venv" / "bin" / "python"
        requirements = [str(wheel.resolve()), *(lowest_torch() if torch == "lowest" else []), *TOOLS]
        installed = run(place, program, "-m", "pip", "install", "--quiet", *requirements)
        if installed.returncode:
            return f"cannot be installed: {installed.stderr.strip().splitlines()[-1]}"
        shutil.copytree(ROOT / "tests", place / "tests")  # without the sources
        shutil.copy(ROOT / "pyproject.toml", place)
        output = run(place, program, "-m", "contraport", "doctor")
        completed = run(place, program, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
        return (
            f"{output.stdout.splitlines()[0]}; doctor {output.returncode}; {completed.stdout.strip().splitlines()[-1]}"
        )


def run(folder: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, with the packages of its own environment only."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PYTHONNOUSERSITE": "1"}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=SECONDS, check=False)


def main() -> int:
    """Print a line for each environment; the exit status is 1 if one fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--python", nargs="+", default=[python for python in PYTHONS if is_python_available(python)])
    parser.add_argument("--torch", nargs="+", choices=("lowest", "newest"), default=["lowest", "newest"])
    parser.add_argument("--tests", nargs="+", default=list(TESTS))
    options = parser.parse_args()
    failed = False
    for python in options.python:
        for torch in options.torch:
            output = try_wheel(options.wheel, python, torch, options.tests)
            failed |= "failed" in output or "error" in output or "cannot" in output or "doctor 0" not in output
            print(f"Python {python}, {torch} torch: {output}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
