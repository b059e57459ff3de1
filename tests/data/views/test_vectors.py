import pytest
import torch

from contraport.data.views.numeric_views import VECTOR_STRENGTH_BY_NAME, VectorAugmentation, VectorStrength
from contraport.data.views.random_draws import RandomDraws

MEAN, STD = torch.tensor([0.0, 100.0]), torch.tensor([1.0, 1000.0])


def view(vectors, mean=MEAN, std=STD, **settings):
    torch.manual_seed(0)
    strength = VectorStrength(**{"noise_std": 0, "mask_probability": 0, "max_scaling": 0} | settings)
    return VectorAugmentation(strength, mean, std)(vectors, RandomDraws(len(vectors), None))


def vectors(count=5000):
    return MEAN + STD * torch.randn(count, 2, generator=torch.Generator().manual_seed(0))


def test_zero_strength_keeps_the_vector():
    assert torch.allclose(view(vectors()), vectors(), rtol=1e-4)


def test_noise_is_in_units_of_each_feature():
    deviation = (view(vectors(), noise_std=0.3) - vectors()).std(dim=0) / STD
    assert deviation.tolist() == pytest.approx([0.3, 0.3], rel=0.05)


def test_masked_features_have_their_mean():
    transformed = view(vectors(), mask_probability=0.3)
    masked = transformed != vectors()
    assert masked.float().mean(dim=0).tolist() == pytest.approx([0.3, 0.3], abs=0.03)
    assert torch.equal(transformed[masked], MEAN.expand(5000, 2)[masked])


def test_scaling_is_one_factor_about_the_mean():
    factors = (view(vectors(), max_scaling=0.5) - MEAN) / (vectors() - MEAN)
    assert torch.allclose(factors[:, 0], factors[:, 1], rtol=1e-2)
    assert 0.49 < factors.min() < factors.max() < 1.51


@pytest.mark.parametrize("strength", VECTOR_STRENGTH_BY_NAME.values())
def test_the_mean_of_the_data_is_kept(strength):
    raw = vectors(20_000)
    torch.manual_seed(0)
    transformed = VectorAugmentation(strength, MEAN, STD)(raw, RandomDraws(len(raw), None))
    assert (((transformed - raw).mean(dim=0)) / STD).abs().max() < 0.03
