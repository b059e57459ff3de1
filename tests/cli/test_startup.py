"""Help, lists and input errors do not import torch; light commands import no package that they do not use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from contraport.cli.commands import BUILTIN_COMMANDS
from contraport.cli.utility_command_options import LIST_NAMES
from tests import TIMEOUT

HEAVY = {
    "torch", "torchvision", "timm", "sklearn", "scipy", "kornia", "torchmetrics", "matplotlib",
    "pyarrow", "safetensors", "huggingface_hub",
}  # fmt: skip

SLOW = {
    "torch._dynamo", "torch._inductor", "torchvision", "timm", "sklearn", "scipy.stats", "scipy.optimize", "kornia",
    "matplotlib", "pandas", "sympy", "triton", "transformers", "datasets",
}  # fmt: skip
"""Slow packages and modules that a search among given vectors does not need."""

CODE = """
import sys
from contraport.cli import main
status = main(sys.argv[1:])
print(*sys.modules, file=sys.stderr)
sys.exit(status)
"""


def run_command(
    argv: str, folder: Path, modules_of_interest: set[str] = HEAVY
) -> tuple[subprocess.CompletedProcess[str], set[str]]:
    """Run a command line in its own process, and return its result and which of some modules it imported."""
    line = [sys.executable, "-c", CODE, *argv.split()]
    completed = subprocess.run(line, capture_output=True, text=True, cwd=folder, timeout=TIMEOUT, check=False)
    *lines, modules = completed.stderr.splitlines()
    completed.stderr = "\n".join(lines)
    return completed, modules_of_interest & set(modules.split())


@pytest.mark.parametrize(
    "argv",
    [
        "--help",
        "--version",
        *(f"{verb} --help" for verb in BUILTIN_COMMANDS),
        *(f"list {what}" for what in LIST_NAMES),
        "train --recipe moco --help",
        "train --recipe byol --momentum 0.9 --print_config",
    ],
)
def test_help_and_lists_do_not_import_torch(argv: str, tmp_path: Path) -> None:
    completed, imported = run_command(argv, tmp_path)
    assert (completed.returncode, completed.stderr) == (0, "")
    assert completed.stdout
    assert not imported


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        ("trian", "'train'"),
        ("--versoin", "'--version'"),
        *((f"{verb} --confg x", "'--config'") for verb in BUILTIN_COMMANDS),
        ("list objective", "'objectives'"),
        ("train --epochs many", "epochs: "),
        ("train --epochs 0", "epochs: "),
        ("train --negatives bag", "bank, in-batch, mined, queue"),
        ("train --recipe mocco", "'moco'"),
        ("train --objective gca-uott", "'gca-uot'"),
        ("train --temperature 0.5:0", "temperature: "),
        ("train --momentum 1", "momentum: "),
        ("train --config missing.yaml", "missing.yaml"),
        ("evaluate", "run: "),
        ("evaluate run --neighbors 0", "neighbors: "),
        ("evaluate run --metrics geometri", "'geometry'"),
        ("embed run --out x.npz --split tset", "'test'"),
        ("export run --out x --format onx", "'onnx'"),
        ("demo --epochs 0", "epochs: "),
    ],
)
def test_errors_do_not_import_torch(argv: str, part: str, tmp_path: Path) -> None:
    completed, imported = run_command(argv, tmp_path)
    assert (completed.returncode, completed.stdout) == (2, "")
    assert part in completed.stderr
    assert completed.stderr.count("\n") == 0
    assert not imported


@pytest.mark.parametrize(
    "argv",
    ["neighbors vectors.npy --query 0 --device cpu", "duplicates vectors.npy --device cpu", "list metrics"],
)
def test_light_commands_import_no_slow_package_that_they_do_not_use(argv: str, tmp_path: Path) -> None:
    np.save(tmp_path / "vectors.npy", np.eye(6, dtype=np.float32))
    completed, imported = run_command(argv, tmp_path, SLOW)
    assert completed.returncode == 0, completed.stderr
    assert not imported


def test_functions_of_commands_import_slow_packages_at_use() -> None:
    paths = [
        run_command.function_path for name, run_command in BUILTIN_COMMANDS.items() if name not in ("inverse-ot", "map")
    ]
    code = "import sys; from contraport._utils.lazy_imports import import_object\n"
    code += f"for path in {paths}: import_object(path)\nprint(*sys.modules)"
    completed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT, check=True
    )
    assert not SLOW & set(completed.stdout.split())
