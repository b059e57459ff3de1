"""Help, lists and input errors do not import torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from contraport.cli.commands import BUILTIN_COMMANDS
from contraport.cli.config import LIST_NAMES
from tests import TIMEOUT

HEAVY = {
    "torch", "torchvision", "timm", "sklearn", "scipy", "kornia", "torchmetrics", "matplotlib",
    "pyarrow", "safetensors", "huggingface_hub",
}  # fmt: skip

CODE = """
import sys
from contraport.cli import main
status = main(sys.argv[1:])
print(*sys.modules, file=sys.stderr)
sys.exit(status)
"""


def command(argv: str, folder: Path) -> tuple[subprocess.CompletedProcess[str], set[str]]:
    """Run a command line by itself, and return its result and the heavy packages that it imported."""
    line = [sys.executable, "-c", CODE, *argv.split()]
    done = subprocess.run(line, capture_output=True, text=True, cwd=folder, timeout=TIMEOUT, check=False)
    *lines, modules = done.stderr.splitlines()
    done.stderr = "\n".join(lines)
    return done, HEAVY & set(modules.split())


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
    done, imported = command(argv, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
    assert not imported


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        ("trian", "'train'"),
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
    done, imported = command(argv, tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert part in done.stderr
    assert done.stderr.count("\n") == 0
    assert not imported
