"""Compiled encoders and activation checkpointing, compared with plain training."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import timm
import torch

from contraport.data import Dataset, from_arrays
from contraport.training import train
from contraport.training.components.assembly import build_components
from contraport.training.config import Settings
from tests.compiling import requires_compiler
from tests.errors import raises_usage_error

from .test_train import are_equal_states, get_model_state


@pytest.mark.parametrize(
    "backend", ["aot_eager", pytest.param("inductor", marks=[pytest.mark.slow, requires_compiler])]
)
def test_compiled_training_equals_eager_training(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    compiled = Mock(side_effect=partial(torch.compile, backend=backend))
    monkeypatch.setattr("torch.compile", compiled)
    settings.update(
        recipe="moco", queue_size=32, log_every=1, optimizer="sgd", lr_scheduler="constant", warmup_epochs=0
    )
    eager = train(**{**settings, "out": tmp_path / "plain"})
    compiled_run = train(**{**settings, "out": tmp_path / "whole"}, compile=True)
    assert compiled.called
    losses = [[row["loss"] for row in run.metrics_rows()] for run in (eager, compiled_run)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert get_model_state(compiled_run).keys() == get_model_state(eager).keys()
    resumed = train(**{**settings, "epochs": 1}, compile=True)
    train(out=resumed.path, resume=True, epochs=2, data=settings["data"], progress=False)
    assert are_equal_states(get_model_state(resumed), get_model_state(compiled_run))  # a resumed run is compiled too


@pytest.fixture
def images() -> Dataset:
    return from_arrays(np.random.default_rng(0).integers(0, 255, (12, 3, 32, 32)).astype(np.uint8), name="pictures")


def build_vit() -> torch.nn.Module:
    torch.manual_seed(0)
    network: torch.nn.Module = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, depth=2, embed_dim=24, num_heads=2, num_classes=0
    )
    return network


class SavedNumberCounter:
    """Hook that counts the numbers saved for the gradient."""

    def __init__(self) -> None:
        self.numbers = 0

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        self.numbers += value.numel()
        return value


def test_activation_checkpointing_gives_the_same_gradient(images: Dataset) -> None:
    gradients, saved_numbers = [], []
    batch = images.__getitems__(list(range(8)))
    for checkpointing in (False, True):
        settings = Settings(data=images, batch_size=8, encoder=build_vit(), activation_checkpointing=checkpointing)
        module = build_components(settings).module
        counter = SavedNumberCounter()
        with torch.autograd.graph.saved_tensors_hooks(counter, lambda value: value):
            loss = module(batch, 0)
        loss.backward()
        saved_numbers.append(counter.numbers)
        gradients.append({name: weights.grad for name, weights in module.named_parameters()})
    assert saved_numbers[1] < 0.6 * saved_numbers[0]
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, msg=name)


@pytest.mark.parametrize(
    ("encoder", "code"),
    [
        ("mlp", "activation_checkpointing.unsupported"),
        ("resnet10t", "activation_checkpointing.batch_norm"),
    ],
)
def test_rejects_activation_checkpointing_of_unsupported_encoders(images: Dataset, encoder: str, code: str) -> None:
    with raises_usage_error(code):
        build_components(Settings(data=images, batch_size=8, encoder=encoder, activation_checkpointing=True))
