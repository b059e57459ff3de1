import pytest
import torch

from contraport.data.views.numeric_views import SERIES_STRENGTH_BY_NAME, SeriesAugmentation, SeriesStrength
from contraport.data.views.random_draws import RandomDraws

MEAN, STD = torch.tensor([[0.0], [100.0]]), torch.tensor([[1.0], [1000.0]])


def view(series, mean=MEAN, std=STD, **settings):
    torch.manual_seed(0)
    strength = SeriesStrength(
        **{"min_crop_fraction": 1, "noise_std": 0, "max_scaling": 0, "max_masked_fraction": 0} | settings
    )
    return SeriesAugmentation(strength, mean, std)(series, RandomDraws(len(series), None))


def series(count=300, length=50):
    return MEAN + STD * torch.randn(count, 2, length, generator=torch.Generator().manual_seed(0))


def test_zero_strength_keeps_the_series():
    assert ((view(series()) - series()) / STD).abs().max() < 1e-3


def test_a_crop_in_time_is_resampled_to_the_same_length():
    clock = torch.linspace(0, 1, 101).expand(300, 1, 101)
    cropped = view(clock, torch.zeros(1, 1), torch.ones(1, 1), min_crop_fraction=0.4)[:, 0]
    speed = cropped[:, 1:].diff(dim=1)[:, 5:-5]
    assert torch.allclose(speed, speed[:, :1].expand_as(speed), atol=1e-4)
    lengths = (cropped[:, -1] - cropped[:, 0]).sort().values
    assert 0.38 < lengths[0] < 0.43
    assert 0.95 < lengths[-1] <= 1
    assert cropped.min() >= 0
    assert cropped.max() <= 1


def test_a_crop_takes_all_channels_at_the_same_time():
    clock = torch.linspace(0, 1, 30).expand(40, 3, 30)
    transformed = view(clock, torch.zeros(3, 1), torch.ones(3, 1), min_crop_fraction=0.4)
    assert torch.equal(transformed, transformed[:, :1].expand_as(transformed))


def test_a_span_of_all_channels_is_masked_by_their_means():
    transformed = view(series(), max_masked_fraction=0.5)
    masked = ((transformed - series()) / STD).abs() > 1e-2
    for item in range(300):
        places = masked[item].any(dim=0).nonzero().flatten()
        if len(places):
            span = transformed[item, :, places.min() : places.max() + 1]
            assert torch.allclose(span, MEAN.expand_as(span))
            assert span.shape[1] <= 26
    assert masked.float().mean() == pytest.approx(0.25, abs=0.03)


def test_scaling_is_one_factor_per_channel():
    factors = (view(series(), max_scaling=0.5) - MEAN) / (series() - MEAN)
    middle = factors.median(dim=2).values
    assert 0.49 < middle.min() < 0.55
    assert 1.45 < middle.max() < 1.51
    assert torch.corrcoef(middle.T)[0, 1].abs() < 0.2


def test_noise_is_in_units_of_each_channel():
    deviation = (view(series(), noise_std=0.3) - series()).std(dim=(0, 2)) / STD[:, 0]
    assert deviation.tolist() == pytest.approx([0.3, 0.3], rel=0.05)


@pytest.mark.parametrize("strength", SERIES_STRENGTH_BY_NAME.values())
@pytest.mark.parametrize("length", [1, 2, 50])
def test_the_mean_of_the_data_is_kept_at_any_length(strength, length):
    raw = series(3000, length)
    torch.manual_seed(0)
    transformed = SeriesAugmentation(strength, MEAN, STD)(raw, RandomDraws(len(raw), None))
    assert transformed.shape == raw.shape
    assert ((transformed - raw).mean(dim=(0, 2)) / STD[:, 0]).abs().max() < 0.06
