"""Training of low-rank adapters (LoRA): saved models, checkpoints, resuming and export."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import contraport
from contraport.data import Dataset, from_arrays
from contraport.encoders import Model
from contraport.encoders.lora import with_merged_lora
from contraport.evaluation.loaded_run import find_checkpoints_by_epoch, iter_intermediate_model_copies
from contraport.runs import Run, as_run_folder
from contraport.training.callbacks.checkpoints import read_checkpoint
from contraport.training.components.assembly import build_components
from contraport.training.components.model_builder import load_initial_weights, with_defaults_from_weights
from tests.errors import raises_usage_error

State = dict[str, torch.Tensor]


@pytest.fixture
def pairs() -> Dataset:
    """Pairs of an image and a vector."""
    generator = np.random.default_rng(0)
    pixels, vectors = generator.integers(0, 255, (40, 1, 8, 8)).astype(np.uint8), generator.normal(size=(40, 5))
    return from_arrays({"photo": pixels, "sound": vectors.astype(np.float32)}, name="pairs")


@pytest.fixture
def initial_run(pairs: Dataset, tmp_path: Path) -> Run:
    """Run that provides initial weights; the encoder of photos has batch norm."""
    return contraport.train(data=pairs, epochs=1, batch_size=20, out=tmp_path / "begun", progress=False)


def train(pairs: Dataset, initial_run: Run, **options: Any) -> Run:
    out = initial_run.path.with_name("run")
    init = {"photo": initial_run.path, "sound": initial_run.path}
    settings = {"data": pairs, "init": init, "batch_size": 20, "epochs": 2, "out": out, "progress": False}
    return contraport.train(**(settings | options))


def list_encoder_states(model: Model) -> list[State]:
    return [dict(encoder.state_dict()) for encoder in model.encoders]


def list_changed_weights(one: State, other: State) -> list[str]:
    assert one.keys() == other.keys()
    return [name for name, value in one.items() if not torch.equal(value, other[name])]


@pytest.mark.parametrize(
    "extra_options", [{}, {"momentum": 0.9}, {"cache_chunk": 10}, {"encoder_lr_scale": 0.5}], ids=str
)
def test_model_weights_include_adapters(pairs: Dataset, initial_run: Run, extra_options: dict[str, Any]) -> None:
    pytest.importorskip("peft")
    run = train(pairs, initial_run, lora=2, **extra_options)
    photo, sound = (
        list_changed_weights(*both)
        for both in zip(list_encoder_states(initial_run.model()), list_encoder_states(run.model()), strict=True)
    )
    assert photo
    assert sound
    weights = run.model().encoders[0].state_dict()
    assert all(weights[name].ndim == 4 for name in photo)  # convolutions, but no batch norm
    saved = read_checkpoint(as_run_folder(run).last_checkpoint)["pipeline"]
    base = {name: value for name, value in saved.items() if name.startswith("model.") and "lora_" not in name}
    first = {f"model.{name}": value for name, value in initial_run.model().state_dict().items()}
    frozen_names = [name for name in base if ".encoder." in name]
    assert frozen_names
    assert all(torch.equal(base[name], first[name.replace(".base_layer", "")]) for name in frozen_names)
    initial = Model.from_pretrained(as_run_folder(run).initial_path)
    assert not list_changed_weights(list_encoder_states(initial)[0], list_encoder_states(initial_run.model())[0])


def test_adapters_by_view(pairs: Dataset, initial_run: Run) -> None:
    pytest.importorskip("peft")
    run = train(pairs, initial_run, lora={"sound": 3}, freeze={"photo": True})
    photo, sound = (
        list_changed_weights(*both)
        for both in zip(list_encoder_states(initial_run.model()), list_encoder_states(run.model()), strict=True)
    )
    assert not photo
    assert sound
    change = run.model().encoders[1].state_dict()[sound[0]] - initial_run.model().encoders[1].state_dict()[sound[0]]
    assert int(torch.linalg.matrix_rank(change, rtol=1e-4)) == 3


def test_resumed_run_equals_an_uninterrupted_one(pairs: Dataset, initial_run: Run, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    options = {"lora": 2, "lr_scheduler": "constant", "warmup_epochs": 0.0}
    uninterrupted = train(pairs, initial_run, **options, epochs=2, out=tmp_path / "whole", keep_every=1)
    train(pairs, initial_run, **options, epochs=1)
    resumed = contraport.train(data=pairs, epochs=2, resume=True, out=tmp_path / "run", progress=False)
    for one, other in zip(
        list_encoder_states(uninterrupted.model()), list_encoder_states(resumed.model()), strict=True
    ):
        assert not list_changed_weights(one, other)
    ((_, intermediate),) = iter_intermediate_model_copies(
        as_run_folder(uninterrupted),
        uninterrupted.model(),
        find_checkpoints_by_epoch(as_run_folder(uninterrupted), before_epoch=2),
    )
    assert list_changed_weights(list_encoder_states(intermediate)[0], list_encoder_states(initial_run.model())[0])
    assert list_changed_weights(list_encoder_states(intermediate)[0], list_encoder_states(uninterrupted.model())[0])


def test_saved_model_has_merged_adapters(pairs: Dataset, initial_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("peft")
    run = train(pairs, initial_run, lora=2)
    settings = run.settings(data=pairs)
    first = load_initial_weights(settings, as_run_folder(run))
    module = build_components(with_defaults_from_weights(settings, first), first).module
    weights = read_checkpoint(as_run_folder(run).last_checkpoint)["pipeline"]
    module.load_state_dict(weights)
    batch = pairs.__getitems__(range(10)).views
    with torch.no_grad():
        expected = module.model.eval()(*batch)
        torch.testing.assert_close(with_merged_lora(module.model)(*batch), expected, rtol=1e-4, atol=1e-4)
        monkeypatch.setitem(sys.modules, "peft", None)
        torch.testing.assert_close(run.model()(*batch), expected, rtol=1e-4, atol=1e-4)
    folder = contraport.export(run, format="safetensors", out=run.path.with_name("given"))
    assert not list_changed_weights(
        list_encoder_states(Model.from_pretrained(folder))[0], list_encoder_states(run.model())[0]
    )


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"lora": 2}, "lora.untrained"),
        ({"lora": 0, "init": "x"}, "lora.invalid"),
        ({"lora": {"photo": "a"}, "init": "x"}, "lora.photo.invalid"),
        ({"lora": 2, "init": "x", "freeze": True}, "lora.conflict"),
        ({"lora": 2, "init": "x", "freeze": {"photo": True}}, "lora.conflict"),
        ({"lora": 2, "init": "x", "freeze_epochs": 1}, "lora.conflict"),
    ],
    ids=str,
)
def test_rejects_conflicting_options(pairs: Dataset, tmp_path: Path, options: dict[str, Any], code: str) -> None:
    with raises_usage_error(code):
        contraport.train(data=pairs, out=tmp_path / "run", progress=False, **options)
    assert not (tmp_path / "run").exists()


def test_rejects_adapters_on_random_weights(pairs: Dataset, initial_run: Run) -> None:
    pytest.importorskip("peft")
    with raises_usage_error("lora.untrained_view", "sound"):
        train(pairs, initial_run, init={"photo": initial_run.path}, lora=2)


def test_missing_package_is_reported_before_writing(
    pairs: Dataset, initial_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with raises_usage_error("*", "contraport[peft]"):
        train(pairs, initial_run, lora=2)
    assert not (initial_run.path.parent / "run").exists()
