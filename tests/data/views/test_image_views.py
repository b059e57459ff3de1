from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contraport.data.views.image_views import (
    LARGE_IMAGE_STRENGTH_BY_NAME,
    SMALL_IMAGE_STRENGTH_BY_NAME,
    ImageAugmentation,
    split_lightness_and_color,
)
from contraport.data.views.random_draws import RandomDraws

NOTHING = replace(
    SMALL_IMAGE_STRENGTH_BY_NAME["standard"], crop_area=(1, 1), max_aspect_ratio=1, max_degrees=0, max_shift=0,
    brightness=0, contrast=0, saturation=0, hue=0, gray_probability=0, blur_probability=0, max_noise_std=0,
    max_erased_fraction=0,
)  # fmt: skip


def transform_images(images, seed=0, *, size=None, flips=False, **settings):
    torch.manual_seed(seed)
    transform = ImageAugmentation(replace(NOTHING, **settings), size or tuple(images.shape[2:]), flips=flips)
    return transform(images, RandomDraws(len(images), None))


def pictures(channels=3, side=24, count=200, low=0.0, high=1.0):
    generator = torch.Generator().manual_seed(1)
    return low + (high - low) * torch.rand(count, channels, side, side + 1, generator=generator)


def test_zero_strength_keeps_the_image():
    images = pictures(count=4)
    assert torch.allclose(transform_images(images), images, atol=1e-4)


@settings(deadline=None, max_examples=25)
@given(
    st.sampled_from([*SMALL_IMAGE_STRENGTH_BY_NAME.values(), *LARGE_IMAGE_STRENGTH_BY_NAME.values()]),
    st.integers(1, 3),
    st.integers(1, 5),
    st.tuples(st.integers(1, 40), st.integers(1, 40)),
    st.tuples(st.integers(1, 40), st.integers(1, 40)),
)
def test_views_have_the_requested_size_and_range(strength, count, channels, shape, size):
    images = torch.rand(count, channels, *shape)
    views = ImageAugmentation(strength, size, flips=True)(images, RandomDraws(len(images), None))
    assert views.shape == (count, channels, *size)
    assert 0 <= views.min() <= views.max() <= 1


def test_flips_half_of_the_images():
    images = pictures()
    views = transform_images(images, flips=True)
    turned = (views - images.flip(3)).abs().amax(dim=(1, 2, 3)) < 1e-4
    unchanged = (views - images).abs().amax(dim=(1, 2, 3)) < 1e-4
    assert (turned ^ unchanged).all()
    assert turned.float().mean() == pytest.approx(0.5, abs=0.12)


def test_a_crop_of_a_ramp_keeps_its_area():
    across = torch.linspace(0, 1, 41).expand(200, 1, 41, 41)
    down = across.transpose(2, 3)
    ramps = torch.cat([across, down], dim=1)
    views = transform_images(ramps, crop_area=(0.25, 0.25), max_aspect_ratio=1)
    width = views[:, 0, 0, -1] - views[:, 0, 0, 0]
    height = views[:, 1, -1, 0] - views[:, 1, 0, 0]
    assert torch.allclose(width, torch.tensor(0.5), atol=0.02)
    assert torch.allclose(height, torch.tensor(0.5), atol=0.02)
    left = views[:, 0, 0, 0]
    assert left.min() < 0.05
    assert 0.45 < left.max() < 0.53  # crops are anywhere within the image


def test_brightness_is_one_factor_per_image_of_mean_one():
    images = pictures(low=0.2, high=0.6)
    factors = transform_images(images, brightness=0.5) / images
    assert torch.allclose(factors, factors[:, :1, :1, :1], rtol=1e-3)
    assert 0.5 <= factors.min() < 0.55
    assert 1.45 < factors.max() <= 1.501
    assert factors.mean() == pytest.approx(1, abs=0.06)


def test_contrast_keeps_the_mean():
    images = pictures(low=0.4, high=0.6)
    views = transform_images(images, contrast=0.5)
    assert torch.allclose(views.mean(dim=(1, 2, 3)), images.mean(dim=(1, 2, 3)), atol=1e-4)
    ratio = views.std(dim=(1, 2, 3)) / images.std(dim=(1, 2, 3))
    assert 0.5 <= ratio.min() < 0.55
    assert 1.45 < ratio.max() <= 1.501


@pytest.mark.parametrize("change", [{"saturation": 0.5}, {"hue": 0.2}, {"gray_probability": 0.5}])
def test_color_jitter_keeps_the_mean_and_changes_three_channels_only(change):
    images = pictures(low=0.4, high=0.6)
    views = transform_images(images, **change)
    assert torch.allclose(views.mean(dim=1), images.mean(dim=1), atol=1e-4)
    assert (views - images).abs().max() > 0.01
    for channels in (1, 2, 4):
        other = pictures(channels)
        assert torch.allclose(transform_images(other, **change), other, atol=1e-4)


def test_hue_keeps_saturation():
    images = pictures(low=0.4, high=0.6)
    views = transform_images(images, hue=0.5)
    before, after = (x - x.mean(dim=1, keepdim=True) for x in (images, views))
    assert torch.allclose(before.norm(dim=1), after.norm(dim=1), atol=1e-3)


def test_grayscale_removes_color_with_its_probability():
    views = transform_images(pictures(), gray_probability=0.3)
    grey = (views - views.mean(dim=1, keepdim=True)).abs().amax(dim=(1, 2, 3)) < 1e-3
    assert grey.float().mean() == pytest.approx(0.3, abs=0.1)


def test_blur_smooths_the_chosen_images_and_keeps_their_mean():
    images = pictures(side=48, count=64)
    views = transform_images(images, blur_probability=0.5)
    ratio = views.std(dim=(1, 2, 3)) / images.std(dim=(1, 2, 3))
    assert (ratio < 0.99).float().mean() == pytest.approx(0.45, abs=0.15)
    assert torch.allclose(views.mean(dim=(1, 2, 3)), images.mean(dim=(1, 2, 3)), atol=0.02)


def test_noise_has_no_bias_and_at_most_its_deviation():
    images = torch.full((200, 2, 20, 20), 0.5)
    change = transform_images(images, max_noise_std=0.1) - images
    deviation = change.std(dim=(1, 2, 3))
    assert change.mean() == pytest.approx(0, abs=0.002)
    assert deviation.min() < 0.01
    assert 0.09 < deviation.max() < 0.11
    assert deviation.mean() == pytest.approx(0.05, abs=0.01)


def test_erases_one_rectangle_with_the_mean_of_the_image():
    images = pictures(count=50)
    views = transform_images(images, max_erased_fraction=0.6)
    for image, view in zip(images, views, strict=True):
        erased = ((view - image).abs() > 1e-3).any(dim=0)
        rows, columns = erased.any(dim=1).nonzero(), erased.any(dim=0).nonzero()
        if len(rows) == 0:
            continue
        box = view[:, rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
        assert torch.allclose(box, image.mean(dim=(1, 2))[:, None, None].expand_as(box), atol=1e-3)
        assert box[0].numel() <= 0.36 * image[0].numel() + 2 * sum(image.shape[1:])


def test_strengths_are_ordered_from_weak_to_strong():
    for strengths in (SMALL_IMAGE_STRENGTH_BY_NAME, LARGE_IMAGE_STRENGTH_BY_NAME):
        weak, standard, strong = (strengths[name] for name in ("weak", "standard", "strong"))
        assert weak.crop_area[0] > standard.crop_area[0] > strong.crop_area[0]
        assert weak.brightness < standard.brightness < strong.brightness
        assert strong.max_erased_fraction > 2 * standard.max_erased_fraction
        assert weak.max_erased_fraction == weak.gray_probability == 0


def cie_lab(rgb):
    """Return CIE Lab of sRGB by CIE 15 and IEC 61966-2-1 for white D65, in float64."""
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    to_xyz = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
    xyz = linear @ np.transpose(to_xyz) / np.sum(to_xyz, axis=1)
    x, y, z = np.moveaxis(np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29), -1, 0)
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=-1)


def test_lab_matches_its_definition():
    rgb = np.random.default_rng(0).random((16, 16, 3))
    parts = split_lightness_and_color(torch.from_numpy(rgb).float().permute(2, 0, 1)[None])
    converted = torch.cat(parts, dim=1)[0].permute(1, 2, 0).numpy()
    assert np.abs(converted * [100, 110, 110] - cie_lab(rgb)).max() < 0.05


def test_lab_channels_are_scaled_to_about_one():
    levels = torch.linspace(0, 1, 9)
    cube = torch.cartesian_prod(levels, levels, levels).T.view(1, 3, 27, 27)
    lightness, colors = split_lightness_and_color(cube)
    assert lightness.min() == pytest.approx(0, abs=1e-4)
    assert lightness.max() == pytest.approx(1, abs=1e-4)
    assert colors.abs().max() < 1
