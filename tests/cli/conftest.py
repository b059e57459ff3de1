from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image

from contraport._utils.formatting import use_flag_style
from contraport.cli import main
from contraport.cli.commands import run_command
from contraport.errors import UsageError


class Outcome(NamedTuple):
    """Exit status and output of a command."""

    status: int
    out: str
    err: str


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Outcome]:
    """Function that runs a command line in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*argv: str) -> Outcome:
        capsys.readouterr()
        status = main(argv)
        return Outcome(status, *capsys.readouterr())

    return run


@pytest.fixture
def error_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Function that runs a failing command line in an empty folder, and returns the code of its error."""
    monkeypatch.chdir(tmp_path)

    def run(name: str, *argv: str) -> str:
        with use_flag_style(), pytest.raises(UsageError) as caught:
            run_command(name, [*argv])
        return caught.value.code

    return run


@pytest.fixture
def data(tmp_path: Path) -> str:
    """An .npz file of 60 vectors of three classes."""
    random = np.random.default_rng(0)
    labels = np.arange(60) % 3
    np.savez(tmp_path / "data.npz", x=random.normal(size=(60, 5)) + labels[:, None], labels=labels)
    return "data.npz"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of twelve images, in two classes."""
    random = np.random.default_rng(0)
    for number in range(12):
        folder = tmp_path / "photos" / f"class{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 255, (8, 8, 3)).astype(np.uint8)).save(folder / f"{number}.png")
    return tmp_path / "photos"
