"""Compiled encoders, and encoders that compute their activations twice, train what others do."""

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

from .test_train import same, weights_of


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
    plain = train(**{**settings, "out": tmp_path / "plain"})
    whole = train(**{**settings, "out": tmp_path / "whole"}, compile=True)
    assert compiled.called
    losses = [[row["loss"] for row in run.metrics_rows()] for run in (plain, whole)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert weights_of(whole).keys() == weights_of(plain).keys()
    parts = train(**{**settings, "epochs": 1}, compile=True)
    train(out=parts.path, resume=True, epochs=2, data=settings["data"], progress=False)
    assert same(weights_of(parts), weights_of(whole)), "a resumed run is compiled too"


@pytest.fixture
def pictures() -> Dataset:
    return from_arrays(np.random.default_rng(0).integers(0, 255, (12, 3, 32, 32)).astype(np.uint8), name="pictures")


def vit() -> torch.nn.Module:
    torch.manual_seed(0)
    network: torch.nn.Module = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, depth=2, embed_dim=24, num_heads=2, num_classes=0
    )
    return network


class Counted:
    """Counts the numbers that are kept for a gradient."""

    def __init__(self) -> None:
        self.numbers = 0

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        self.numbers += value.numel()
        return value


def test_activation_checkpointing_gives_the_same_gradient(pictures: Dataset) -> None:
    gradients, kept = [], []
    batch = pictures.__getitems__(list(range(8)))
    for twice in (False, True):
        settings = Settings(data=pictures, batch_size=8, encoder=vit(), activation_checkpointing=twice)
        module = build_components(settings).module
        counted = Counted()
        with torch.autograd.graph.saved_tensors_hooks(counted, lambda value: value):
            loss = module(batch, 0)
        loss.backward()
        kept.append(counted.numbers)
        gradients.append({name: weights.grad for name, weights in module.named_parameters()})
    assert kept[1] < 0.6 * kept[0]
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, msg=name)


@pytest.mark.parametrize(
    ("encoder", "code"),
    [
        ("mlp", "activation_checkpointing.unsupported"),
        ("resnet10t", "activation_checkpointing.batch_norm"),
    ],
)
def test_rejects_activation_checkpointing_of_unsupported_encoders(pictures: Dataset, encoder: str, code: str) -> None:
    with raises_usage_error(code):
        build_components(Settings(data=pictures, batch_size=8, encoder=encoder, activation_checkpointing=True))
