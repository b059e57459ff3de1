"""Networks of a step: momentum encoder, predictor, and frozen encoders."""

from __future__ import annotations

import math

import pytest
import torch
from tests.errors import raises_usage_error
from torch import nn

from contraport.encoders import Model
from contraport.schedules import parse_momentum_schedule
from contraport.training.step.momentum_and_predictor import MomentumEncoder, Predictor
from contraport.training.step.training_module import EncoderFreezer


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    return Model("mlp", [(5,)], projection=8)


def test_momentum_schedule_equals_that_of_byol() -> None:
    momentum = parse_momentum_schedule("0.996:1:cosine", steps=200)
    for step in (0, 17, 100, 199, 200, 10_000):
        expected = 1 - (1 - 0.996) * (math.cos(math.pi * min(step, 200) / 200) + 1) / 2
        assert momentum.value(step) == pytest.approx(expected, abs=1e-12)


def test_constant_momentum_is_constant() -> None:
    assert [parse_momentum_schedule(0.9, 10).value(step) for step in (0, 5, 50)] == [0.9] * 3


@pytest.mark.parametrize("text", [1, 1.0, -0.1, "0.9:1.1", "nan", "1:0.5", math.nan])
def test_rejects_momentum_out_of_range(text: float | str) -> None:
    with raises_usage_error("momentum.invalid"):
        parse_momentum_schedule(text, 10)


def test_momentum_encoder_averages_weights(model: Model) -> None:
    momentum_encoder = MomentumEncoder(model, parse_momentum_schedule("0.5:0.9:linear", steps=4))
    expected = [parameter.detach().double() for parameter in momentum_encoder.parameters()]
    for step in range(6):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))
        share = min(0.5 + 0.1 * step, 0.9)
        expected = [share * w + (1 - share) * p.double() for w, p in zip(expected, model.parameters(), strict=True)]
        momentum_encoder.update(model, step)
    for result, value in zip(momentum_encoder.parameters(), expected, strict=True):
        torch.testing.assert_close(result.double(), value, rtol=1e-5, atol=1e-5)


def test_momentum_encoder_has_no_gradient_and_is_not_saved_in_the_model(model: Model) -> None:
    momentum_encoder = MomentumEncoder(model, parse_momentum_schedule(0.9, 1))
    assert not any(parameter.requires_grad for parameter in momentum_encoder.parameters())
    (key,) = momentum_encoder([torch.randn(4, 5)])
    assert not key.requires_grad
    data_pointers = {parameter.data_ptr() for parameter in momentum_encoder.parameters()}
    assert data_pointers.isdisjoint(parameter.data_ptr() for parameter in model.parameters())


def test_momentum_encoder_has_its_own_statistics(model: Model) -> None:
    momentum_encoder = MomentumEncoder(model, parse_momentum_schedule(0.9, 1))
    before = {name: value.clone() for name, value in model.named_buffers()}
    momentum_encoder([torch.randn(4, 5)])
    assert all(torch.equal(before[name], value) for name, value in model.named_buffers())
    assert any(not torch.equal(before[name], value) for name, value in momentum_encoder.model.named_buffers())


def test_each_tower_has_its_own_predictor() -> None:
    projections = [torch.randn(6, 8), torch.randn(6, 4)]
    assert [z.shape for z in Predictor([8, 4])(projections)] == [(6, 8), (6, 4)]
    shared = Predictor([8])([projections[0], projections[0]])
    assert torch.equal(shared[0], shared[1])


def test_freezes_batch_norm_that_replaced_another() -> None:
    """Several processes on GPUs replace batch norm after the components are built."""
    encoder = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    freezer = EncoderFreezer([], None, lora_encoders=[encoder])
    assert not encoder[1].training
    encoder[1] = nn.SyncBatchNorm(3)
    freezer.freeze_or_unfreeze(0)
    assert not encoder[1].training
    assert encoder[0].training
