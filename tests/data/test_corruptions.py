import io

import numpy as np
import pytest
import torch
from PIL import Image
from tests.errors import raises_usage_error

from contraport.catalog.data_option_parsers import CORRUPTION_KINDS, CORRUPTION_SEVERITIES
from contraport.data.mismatches_and_corruptions import corrupt_images


def pictures(channels: int = 3, side: int = 32) -> torch.Tensor:
    """Return smooth pictures with an edge, uint8."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(6, channels, 4, 4, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, size=side, mode="bicubic").clamp(0, 0.8)
    return (smooth * 255).byte()


@pytest.mark.parametrize("kind", CORRUPTION_KINDS)
def test_distance_grows_with_severity(kind: str) -> None:
    images = pictures()
    distances = []
    for severity in CORRUPTION_SEVERITIES:
        torch.manual_seed(0)
        spoilt = corrupt_images(images, kind, severity)
        assert spoilt.shape == images.shape
        assert 0 <= spoilt.min() <= spoilt.max() <= 1
        distances.append(float((spoilt - images.float() / 255).square().mean()))
    assert distances == sorted(distances)
    assert 0 < distances[0] < distances[-1]


@pytest.mark.parametrize("kind", CORRUPTION_KINDS)
def test_bytes_and_floats_are_corrupted_equally(kind: str) -> None:
    images = pictures(channels=1, side=9)
    torch.manual_seed(0)
    of_bytes = corrupt_images(images, kind, 3)
    torch.manual_seed(0)
    assert torch.equal(of_bytes, corrupt_images(images.float() / 255, kind, 3))


@pytest.mark.parametrize("severity", CORRUPTION_SEVERITIES)
def test_severities_have_their_recorded_strength(severity: int) -> None:
    """Constant strengths keep results on `noise:3` and similar comparable with those of earlier versions."""
    flat = torch.full((2, 1, 100, 100), 0.5)
    torch.manual_seed(0)
    noise = corrupt_images(flat, "noise", severity) - flat
    expected = (
        torch.randn(20_000, generator=torch.Generator().manual_seed(1)) * (0.04, 0.08, 0.12, 0.18, 0.26)[severity - 1]
    )
    assert float(noise.std()) == pytest.approx(float(expected.clamp(-0.5, 0.5).std()), rel=0.03)
    dark = flat - 0.45
    assert corrupt_images(dark, "brightness", severity).unique().numpy() == pytest.approx([0.05 + severity / 10])
    images = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0)) * torch.tensor([0.2, 1.0]).view(
        2, 1, 1, 1
    )
    means = images.mean(dim=(1, 2, 3), keepdim=True)
    left = (0.7, 0.5, 0.35, 0.2, 0.1)[severity - 1]
    torch.testing.assert_close(corrupt_images(images, "contrast", severity), means + left * (images - means))


@pytest.mark.parametrize(("severity", "quality"), [(1, 50), (2, 25), (3, 15), (4, 10), (5, 5)])
def test_jpeg_equals_that_of_pillow(severity: int, quality: int) -> None:
    image, file = pictures()[0], io.BytesIO()
    Image.fromarray(image.permute(1, 2, 0).numpy()).save(file, "JPEG", quality=quality)
    expected = torch.from_numpy(np.asarray(Image.open(file)).copy()).permute(2, 0, 1) / 255
    assert (corrupt_images(image[None], "jpeg", severity)[0] - expected).abs().mean() < 0.005


def test_square_is_placed_anywhere_with_the_image_mean() -> None:
    torch.manual_seed(0)
    images = torch.tensor([0.2, 0.8]).view(2, 1, 1, 1).expand(2, 1, 4, 4).repeat(100, 1, 1, 1)
    images[:, :, 1:3] += 0.1
    spoilt = corrupt_images(images, "occlusion", 1)  # one of 4 x 4 pixels is hidden
    hidden = spoilt != images
    assert (hidden.sum(dim=(1, 2, 3)) == 1).all()
    assert hidden.any(dim=0).all()
    assert spoilt[hidden].view(100, 2).numpy() == pytest.approx(np.tile([0.25, 0.85], (100, 1)))


def test_a_square_hides_a_share_of_the_area() -> None:
    torch.manual_seed(0)
    hidden = corrupt_images(torch.zeros(4, 1, 50, 100).index_fill_(3, torch.arange(0, 100, 2), 1.0), "occlusion", 3)
    assert ((hidden == 0.5).float().mean(dim=(1, 2, 3)) - 0.2).abs().max() < 0.01


def test_an_image_of_one_line_is_blurred_along_it() -> None:
    step = torch.zeros(1, 1, 1, 100).index_fill_(3, torch.arange(50, 100), 1.0)
    assert torch.equal(corrupt_images(step, "blur", 5).sum(dim=3), torch.full((1, 1, 1), 50.0))


def test_rejects_jpeg_of_two_channels() -> None:
    with raises_usage_error("images.channels", "2"):
        corrupt_images(pictures(channels=2), "jpeg", 1)
