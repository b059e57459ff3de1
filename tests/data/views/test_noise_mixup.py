import pytest
import torch

from contraport.catalog.data_option_parsers import parse_augment
from contraport.data import from_arrays
from contraport.data.views.numeric_views import DEFAULT_MAX_MIXUP_WEIGHT, DEFAULT_NOISE_STD, Mixup, Noise
from contraport.data.views.random_draws import RandomDraws
from contraport.data.views.views import _build_transform


def apply(transform, items):
    torch.manual_seed(0)
    return transform(items, RandomDraws(len(items), None)) - items


def test_scaled_noise_is_in_units_of_each_features_deviation():
    std = torch.tensor([1.0, 100.0])
    moved = apply(Noise(std), torch.zeros(20_000, 2)) / std
    assert moved.mean(dim=0).abs().max() < 0.02
    assert torch.allclose(moved.T.cov(), DEFAULT_NOISE_STD**2 * torch.eye(2), atol=0.01)


@pytest.mark.parametrize("shape", [(1000, 4), (200, 3, 20), (50, 3, 8, 8)])
def test_noise_by_name_is_isotropic_or_scaled_by_feature(shape):
    """Both have the same mean distance; the deprecated name `noise` is that of scaled noise."""
    spread = torch.arange(1.0, shape[1] + 1).view(-1, *[1] * (len(shape) - 2))
    dataset = from_arrays((spread * torch.randn(shape, generator=torch.Generator().manual_seed(0))).numpy())
    items = torch.zeros(20_000 if len(shape) == 2 else 400, *shape[1:])
    deviations = {}
    for name in ("noise", "scaled-noise", "isotropic-noise"):
        transform = _build_transform(dataset, 0, parse_augment(f"{name}:0.2"))
        deviations[name] = apply(transform, items).transpose(0, 1).flatten(1).std(dim=1)
    own = torch.tensor(dataset.mean_and_std(0)[1])
    torch.testing.assert_close(deviations["scaled-noise"], 0.2 * own, rtol=0.05, atol=0)
    assert torch.equal(deviations["noise"], deviations["scaled-noise"])
    one = 0.2 * own.square().mean().sqrt()
    torch.testing.assert_close(deviations["isotropic-noise"], one.expand(shape[1]), rtol=0.05, atol=0)


def test_noise_on_a_dark_image_keeps_its_mean():
    assert apply(Noise(torch.ones(1, 1, 1)), torch.zeros(100, 1, 20, 20)).mean().abs() < 0.01


def test_mixup_moves_towards_another_item_by_at_most_half_the_way():
    items = torch.eye(50)
    moved = apply(Mixup(), items) + items
    assert torch.allclose(moved.sum(dim=1), torch.ones(50))
    assert (moved >= 0).all()
    assert ((moved > 0).sum(dim=1) <= 2).all()
    assert (moved.diagonal() >= 1 - DEFAULT_MAX_MIXUP_WEIGHT).all()
    assert moved.argmax(dim=1).tolist() == list(range(50))


def test_mixup_mixes_whole_items():
    shades = torch.rand(30, 1, 1, 1).expand(30, 3, 5, 6)
    moved = apply(Mixup(), shades) + shades
    assert torch.allclose(moved, moved[:, :1, :1, :1].expand_as(moved))


@pytest.mark.parametrize("shape", [(7,), (2, 9), (3, 8, 8)])
def test_mixup_of_one_item_keeps_it(shape):
    assert apply(Mixup(), torch.rand(1, *shape)).abs().max() < 1e-6


def test_noise_moves_an_item_as_far_as_mixup():
    items = torch.randn(20_000, 4)
    noise, mixup = (float(apply(transform, items).square().mean()) for transform in (Noise(torch.ones(4)), Mixup()))
    assert noise == pytest.approx(mixup, rel=0.05)


@pytest.mark.parametrize("strength", [0.1, 2.0])
def test_noise_has_the_given_strength(strength):
    moved = apply(Noise(torch.tensor(3.0), strength), torch.zeros(20_000, 2))
    assert float(moved.std()) == pytest.approx(3 * strength, rel=0.02)


def test_mixup_has_the_given_strength():
    moved = 1 - (apply(Mixup(0.9), torch.eye(500)) + torch.eye(500)).diagonal()
    assert moved.max() <= 0.9
    assert float(moved.mean()) == pytest.approx(0.45, abs=0.05)
