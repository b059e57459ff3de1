"""Logistic divergences: SigLIP against open_clip, and noise contrastive estimation over several calls."""

import math

import pytest
import torch
import torch.nn.functional as F
from tests.errors import raises_usage_error

import contraport
from contraport.engine import LogSoftplus


def views(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, 6, 4, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("backend", ["dense", "streamed"])
def test_sigmoid_matches_open_clip(backend):
    siglip = pytest.importorskip("open_clip.loss").SigLipLoss()
    z = [view.clone().requires_grad_() for view in views()]
    scale, bias = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (10.0, -10.0))
    expected = siglip(F.normalize(z[0]), F.normalize(z[1]), scale, bias)
    loss = contraport.sigmoid().double()
    with contraport.engine.backend(backend):
        value = loss(*z)
    torch.testing.assert_close(value, expected, rtol=1e-7, atol=0)
    learned = [loss.kernel.log_temperature, loss.divergence.bias]
    gradients = [slope.squeeze() for slope in torch.autograd.grad(value, [*z, *learned])]
    *expected_gradients, by_scale, by_bias = torch.autograd.grad(expected, [*z, scale, bias])
    # The temperature is one over the scale, and its logarithm is learned.
    for a, b in zip(gradients, [*expected_gradients, -10 * by_scale, by_bias], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)


def test_sigmoid_learns_temperature_and_bias():
    loss = contraport.sigmoid(bias=-3.0)
    assert set(loss.state_dict()) == {"kernel.log_temperature", "divergence.bias"}
    assert len(list(loss.parameters())) == 2


def mean_kernel(z0, z1, negatives=None):
    y = z1 if negatives is None else torch.cat([z1, negatives])
    return (F.normalize(z0) @ F.normalize(y).T / 0.5).exp().mean().item()


def test_normalizer_is_a_moving_average_over_calls():
    loss = contraport.cmc_nce(temperature=0.5, momentum=0.8).double()
    batches = [views(seed) for seed in range(3)]
    expected = mean_kernel(*batches[0])
    loss(*batches[0])
    for batch in batches[1:]:
        expected = 0.8 * expected + 0.2 * mean_kernel(*batch)
        loss(*batch)
    torch.testing.assert_close(loss.divergence.log_normalizer.item(), math.log(expected))
    before = loss.state_dict()["divergence.log_normalizer"].clone()
    loss.terms(*batches[0])  # evaluation does not update it
    value = loss.eval()(*batches[1])
    assert loss.divergence.log_normalizer == before
    again = contraport.cmc_nce(temperature=0.5).double()
    again.load_state_dict(loss.state_dict())
    torch.testing.assert_close(again.eval()(*batches[1]), value, rtol=0, atol=0)
    fresh = contraport.cmc_nce(temperature=0.5).double()
    assert fresh(*batches[1]) != value


def test_noise_from_a_bank():
    z0, z1 = views()
    bank = torch.randn(50, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    loss = contraport.cmc_nce(temperature=0.5).double()
    value = loss(z0, z1, negatives=bank)
    z = mean_kernel(z0, z1, bank)
    odds = (F.normalize(z0) @ F.normalize(torch.cat([z1, bank])).T / 0.5).exp() / (55 * z)
    matched = F.pad(torch.eye(6, dtype=torch.bool), (0, 50))
    expected = -torch.where(matched, odds / (odds + 1), 1 / (odds + 1)).log().sum() / 6
    torch.testing.assert_close(value, expected)


def test_the_link_is_exact_at_both_ends():
    t = torch.tensor([-800.0, -100.0, -37.0, -20.0, -1.0, 0.0, 1.0, 30.0, 500.0], dtype=torch.float64)
    link = LogSoftplus()
    exact = [-800.0, -100.0, -37.0, *(math.log(math.log1p(math.exp(v))) for v in (-20, -1, 0, 1, 30)), math.log(500)]
    torch.testing.assert_close(link.value(t), torch.tensor(exact, dtype=torch.float64), rtol=1e-14, atol=1e-14)
    t = t.clone().requires_grad_()
    (slope,) = torch.autograd.grad(link.value(t).sum(), t)
    torch.testing.assert_close(link.derivative(t.detach()), slope, rtol=1e-13, atol=0)


@pytest.mark.parametrize(
    ("call", "code", "value"),
    [
        (lambda: contraport.cmc_nce(momentum=1.0), "momentum.invalid", ""),
        (lambda: contraport.cmc_nce()(torch.ones(1, 3), torch.ones(1, 3)), "z0.single_item", "1"),
        (
            lambda: contraport.Objective(
                contraport.Joint("both"),
                contraport.Gibbs(),
                contraport.Free(),
                contraport.Pairs(),
                contraport.Logistic(),
            )(*views()),
            "layout.conflict",
            "",
        ),
        (
            lambda: contraport.Objective(
                contraport.Joint(), contraport.StudentT(), contraport.Free(), contraport.Pairs(), contraport.Logistic()
            )(*views()),
            "kernel.conflict",
            "Gibbs",
        ),
    ],
)
def test_rejects_invalid_arguments(call, code, value):
    with raises_usage_error(code, value):
        call()
