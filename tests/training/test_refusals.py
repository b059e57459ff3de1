from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from contraport.data import Dataset, from_arrays
from contraport.errors import UsageError
from contraport.training import train


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"data": None}, "data: expected"),
        ({"data": "digitz"}, "did you mean 'digits'"),
        ({"data": "no/such/folder"}, "no/such/folder"),
        ({"objective": "gca-uott"}, "did you mean 'gca-uot'"),
        ({"objective_settings": {"iteration": 3}}, "'iteration'"),
        ({"objective": nn.Identity(), "temperature": 0.1}, "temperature: belongs to a named objective"),
        ({"objective": nn.Identity(), "objective_settings": {"x": 1}}, "objective_settings: belong"),
        ({"temperature": 0.1, "objective_settings": {"temperature": 0.2}}, "temperature: given twice"),
        ({"temperature": -0.1}, "temperature: expected a positive"),
        ({"temperature": math.nan}, "temperature: expected a positive"),
        ({"encoder": "resnet81"}, "encoder: unknown name 'resnet81'"),
        ({"encoder": "small-cnn"}, "use 'mlp' for vectors"),
        ({"projection": 0}, "projection: expected a whole number from 1 on, got 0"),
        ({"epochs": 0}, "epochs: expected a whole number from 1 on, got 0"),
        ({"epochs": 1.5}, "epochs: expected a whole number"),
        ({"epochs": True}, "epochs: expected a whole number"),
        ({"batch_size": 1}, "batch_size: expected a whole number from 2 on, got 1"),
        ({"batch_size": 71}, "batch_size: expected at most the 70 items of 'vectors', got 71"),
        ({"opt": "adamq"}, "did you mean 'adam"),
        ({"opt": "nadam"}, "lr: has no default"),
        ({"lr": 0}, "lr: expected a positive"),
        ({"weight_decay": -1}, "weight_decay: expected a finite number, 0 or more"),
        ({"sched": "cosin"}, "did you mean 'cosine'"),
        ({"warmup_epochs": 2}, "warmup_epochs: expected a number below 2"),
        ({"augment": "stronger"}, "did you mean 'strong'"),
        ({"image_size": 0}, "image_size"),
        ({"image_size": 16}, "has vectors, not images"),
        ({"workers": -1}, "workers: expected"),
        ({"device": "cdua"}, "did you mean 'cuda'"),
        ({"seed": -1}, "seed: expected"),
        ({"log_every": 0}, "log_every: expected"),
        ({"keep_every": 0}, "keep_every: expected"),
        ({"resume": True, "overwrite": True}, "no such folder"),
        ({"resume": True, "out": None}, "out: resume needs"),
    ],
)
def test_a_wrong_argument_is_named_and_nothing_is_written(
    settings: dict[str, Any], wrong: dict[str, Any], message: str
) -> None:
    out: Path = settings["out"]
    with pytest.raises(UsageError) as raised:
        train(**{**settings, **wrong})
    assert message in str(raised.value)
    assert not out.exists()


def test_views_of_different_shapes(settings: dict[str, Any]) -> None:
    settings["data"] = from_arrays([np.ones((40, 5)), np.ones((40, 7))])
    with pytest.raises(UsageError, match="different shapes"):
        train(**settings)


def test_a_device_that_is_not_there(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(UsageError, match="this machine has no 'cuda'"):
        train(**settings, device="cuda")


def test_a_folder_that_is_not_empty_is_left_alone(settings: dict[str, Any]) -> None:
    out: Path = settings["out"]
    train(**settings)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(UsageError, match=r"not empty.*--overwrite"):
        train(**settings)
    with pytest.raises(UsageError, match="temperature"):
        train(**settings, overwrite=True, temperature=-1)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_overwrite_deletes_nothing_but_runs(settings: dict[str, Any], vectors: Dataset) -> None:
    out: Path = settings["out"]
    out.mkdir()
    (out / "thesis.tex").write_text("ten years")
    with pytest.raises(UsageError, match="no run"):
        train(**settings, overwrite=True)
    assert [path.name for path in out.iterdir()] == ["thesis.tex"]
