"""The command that the log of a training proposes is that of the user with a change, and can be pasted."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import contraport
from contraport.cli.commands import find_command
from contraport.cli.parsing import parse
from contraport.training.preflight import format_changed_command, suggest_more_steps

from .conftest import Outcome

OWN = ("--target", "neighbors:k=3", "--views", "2", "--augment", "weak", "--lr", "0.002")
NESTED = ("--objective_settings.temperature", "0.3", "--online_metrics", "alignment", "uniformity")


def proposed(log: Path) -> list[str]:
    """The words of the one command in a log, as a shell would read them."""
    (found,) = re.findall(r"contraport (train .*?)(?:\. Pretrained|, or --init)", log.read_text())
    return shlex.split(found)


@pytest.fixture
def scans(tmp_path: Path) -> Path:
    """Images of one channel, as files of photos are not."""
    path = tmp_path / "my scans.npy"
    np.save(path, np.random.default_rng(0).integers(0, 255, (12, 8, 8)).astype(np.uint8))
    return path


def test_it_is_the_users_own_with_a_change(command: Callable[..., Outcome], scans: Path) -> None:
    small = ("--data", scans.name, "--batch_size", "4", "--epochs", "1", "--progress", "false", "--num_workers", "0")
    assert command("train", *small, *OWN, *NESTED, "--out", "run").status == 0
    _, *words = proposed(Path("run/train.log"))
    pasted = parse(find_command("train"), words, prog="contraport train")
    first = parse(find_command("train"), [*small, *OWN, *NESTED, "--out", "run"], prog="contraport train")
    assert pasted is not None
    assert first is not None
    changed = {name: value for name, value in pasted.items() if first.get(name) != value}
    assert changed == {"encoder": "gradients", "epochs": 500, "out": "run-gradients"}
    assert first.keys() <= pasted.keys()
    done = command("train", *words, "--epochs", "1")
    assert done.status == 0
    assert "--epochs" in done.err
    assert contraport.runs.Run("run-gradients").config()["target"] == "neighbors:k=3"


def test_of_photos_in_colour_it_takes_weights_that_others_trained(
    command: Callable[..., Outcome], photos: Path
) -> None:
    small = ("--data", "photos", "--batch_size", "4", "--epochs", "1", "--progress", "false", "--num_workers", "0")
    assert command("train", *small, *OWN, "--out", "run").status == 0
    _, *words = proposed(Path("run/train.log"))
    pasted, first = (parse(find_command("train"), given, prog="contraport train") for given in (words, [*small, *OWN]))
    assert pasted is not None
    assert first is not None
    changed = {name: value for name, value in pasted.items() if first.get(name) != value}
    weights = {"encoder": "resnet18", "pretrained": True, "freeze": True}
    assert changed == {**weights, "epochs": 500, "out": "run-resnet18"}


def test_without_a_folder_it_names_one_that_is_free(command: Callable[..., Outcome], photos: Path) -> None:
    small = ("--data", "photos", "--batch_size", "4", "--epochs", "1", "--progress", "false", "--num_workers", "0")
    assert command("train", *small).status == 0
    _, *words = proposed(Path("runs/photos-nt-xent/train.log"))
    assert words[-2:] == ["--out", "runs/photos-nt-xent-resnet18"]
    assert command("train", *small, "--overwrite").status == 0
    assert "--out" not in proposed(Path("runs/photos-nt-xent/train.log"))


def test_what_a_command_cannot_say_is_left_to_the_call() -> None:
    change: dict[str, Any] = {"encoder": "gradients", "epochs": 9}
    told = "--encoder gradients --epochs 9"
    assert format_changed_command({"data": object()}, change) == told
    assert format_changed_command({"data": "photos", "augment": lambda image: image}, change) == told
    assert (
        format_changed_command({"data": Path("photos"), "epochs": 3}, change)
        == f"contraport train --data photos {told[20:]} {told[:19]}"
    )


def test_steps_stay_steps_and_a_run_that_goes_on_keeps_its_batch() -> None:
    assert suggest_more_steps(320, 256, 10, {"steps": 10}) == ({"batch_size": 64, "steps": 1000}, 1000)
    assert suggest_more_steps(320, 256, 10, {"resume": True}) == ({"epochs": 1000}, 1000)
