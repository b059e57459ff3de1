"""Install the built wheel in clean environments, with the core dependencies alone, and run the core's tests there.

An environment for each Python that this machine has of those that the package allows, and in each for the lowest and
the newest torch that it allows. What fails to install is told, not skipped. `make wheel` builds and runs it; it takes
some minutes and gigabytes for each environment, which is deleted when its tests are done.

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
"""What needs nothing but the core, pytest and hypothesis."""
TOOLS = ("pytest", "hypothesis")
SECONDS = 1800


def result(python: str) -> bool:
    """Whether this machine has a Python that starts."""
    if shutil.which(f"python{python}") is None:
        return False
    return subprocess.run([f"python{python}", "-c", ""], capture_output=True, check=False).returncode == 0


def lowest_torch() -> list[str]:
    """Return the lowest torch that the package allows, with a NumPy of its time."""
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    bound = next(match[1] for line in dependencies if (match := re.fullmatch(r"torch>=([\d.]+)", line)))
    return [f"torch=={bound}.*", "numpy<2.4"]


def try_wheel(wheel: Path, python: str, torch: str, tests: list[str]) -> str:
    """Return what came of a wheel in an environment of its own, in a line."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        subprocess.run([f"python{python}", "-m", "venv", place / "venv"], check=True, timeout=SECONDS)
        program = place / "venv" / "bin" / "python"
        requirements = [str(wheel.resolve()), *(lowest_torch() if torch == "lowest" else []), *TOOLS]
        installed = run(place, program, "-m", "pip", "install", "--quiet", *requirements)
        if installed.returncode:
            return f"cannot be installed: {installed.stderr.strip().splitlines()[-1]}"
        shutil.copytree(ROOT / "tests", place / "tests")  # and not the sources beside them
        shutil.copy(ROOT / "pyproject.toml", place)
        text = run(place, program, "-m", "contraport", "doctor")
        done = run(place, program, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
        return f"{text.stdout.splitlines()[0]}; doctor {text.returncode}; {done.stdout.strip().splitlines()[-1]}"


def run(folder: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    """Return what a command did in a folder, with no packages but those of its own environment."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PYTHONNOUSERSITE": "1"}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=SECONDS, check=False)


def main() -> int:
    """Print a line for each environment; the exit status is 1 if one fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--python", nargs="+", default=[python for python in PYTHONS if result(python)])
    parser.add_argument("--torch", nargs="+", choices=("lowest", "newest"), default=["lowest", "newest"])
    parser.add_argument("--tests", nargs="+", default=list(TESTS))
    options = parser.parse_args()
    wrong = False
    for python in options.python:
        for torch in options.torch:
            text = try_wheel(options.wheel, python, torch, options.tests)
            wrong |= "failed" in text or "error" in text or "cannot" in text or "doctor 0" not in text
            print(f"Python {python}, {torch} torch: {text}", flush=True)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
