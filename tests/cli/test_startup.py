"""What the command line says without running a verb, it says without what the verb needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from contraport.cli.commands import BUILTIN_COMMANDS, find_command

LISTS = get_args(find_command("list").options["what"].type)
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
    """Run a command line by itself, and return what it did and what it imported of what is heavy."""
    line = [sys.executable, "-c", CODE, *argv.split()]
    done = subprocess.run(line, capture_output=True, text=True, cwd=folder, timeout=60, check=False)
    *told, modules = done.stderr.splitlines()
    done.stderr = "\n".join(told)
    return done, HEAVY & set(modules.split())


@pytest.mark.parametrize(
    "argv",
    [
        "--help",
        "--version",
        *(f"{verb} --help" for verb in BUILTIN_COMMANDS),
        *(f"list {what}" for what in LISTS),
        "train --recipe moco --help",
        "train --recipe byol --momentum 0.9 --print_config",
    ],
)
def test_what_is_asked_is_told_without_torch(argv: str, tmp_path: Path) -> None:
    done, imported = command(argv, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
    assert not imported


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("trian", "verb: unknown name 'trian'; did you mean 'train'?"),
        *(
            (f"{verb} --confg x", "option: unknown name '--confg'; did you mean '--config'?")
            for verb in BUILTIN_COMMANDS
        ),
        ("list objective", "what: expected one of"),
        ("train --epochs many", "epochs: expected a whole number, got 'many'"),
        ("train --epochs 0", "epochs: expected a whole number from 1 on, got 0"),
        ("train --negatives bag", "negatives: unknown name 'bag'; did you mean 'bank'?"),
        ("train --recipe mocco", "recipe: unknown name 'mocco'; did you mean 'moco'?"),
        ("train --objective gca-uott", "objective: unknown name 'gca-uott'; did you mean 'gca-uot'?"),
        ("train --temperature 0.5:0", "temperature: expected a positive finite number, got 0.0"),
        ("train --momentum 1", "momentum: expected numbers from 0 to 1"),
        ("train --config missing.yaml", "missing.yaml"),
        ("evaluate", "required: run"),
        ("evaluate run --neighbors 0", "neighbors: expected a whole number from 1 on, got 0"),
        ("evaluate run --metrics geometri", "did you mean 'geometry'?"),
        ("embed run", "run: no such folder: run"),
        ("embed run --out x.npz --split tset", "split: unknown name 'tset'; did you mean 'test'?"),
        ("export run --out x --format onx", "format: unknown name 'onx'; did you mean 'onnx'?"),
        ("demo --epochs 0", "epochs: expected a whole number from 1 on, got 0"),
    ],
)
def test_a_mistake_is_told_without_torch(argv: str, message: str, tmp_path: Path) -> None:
    done, imported = command(argv, tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 0
    assert not imported
