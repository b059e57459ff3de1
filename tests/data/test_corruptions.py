import pytest
import torch

from contraport.catalog.versions import CORRUPTIONS, SEVERITIES
from contraport.data.corruptions import corrupt
from contraport.errors import UsageError


def pictures(channels: int = 3, side: int = 32) -> torch.Tensor:
    """Return smooth pictures with an edge, uint8."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(6, channels, 4, 4, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, size=side, mode="bicubic").clamp(0, 0.8)
    return (smooth * 255).byte()


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_more_severe_is_further_from_the_picture(kind: str) -> None:
    images = pictures()
    distances = []
    for severity in SEVERITIES:
        torch.manual_seed(0)
        spoilt = corrupt(images, kind, severity)
        assert spoilt.shape == images.shape
        assert 0 <= spoilt.min() <= spoilt.max() <= 1
        distances.append(float((spoilt - images.float() / 255).square().mean()))
    assert distances == sorted(distances)
    assert 0 < distances[0] < distances[-1]


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_bytes_and_floats_are_spoilt_alike(kind: str) -> None:
    images = pictures(channels=1, side=9)
    torch.manual_seed(0)
    of_bytes = corrupt(images, kind, 3)
    torch.manual_seed(0)
    assert torch.equal(of_bytes, corrupt(images.float() / 255, kind, 3))


def test_a_square_hides_a_share_of_the_area() -> None:
    torch.manual_seed(0)
    hidden = corrupt(torch.zeros(4, 1, 50, 100).index_fill_(3, torch.arange(0, 100, 2), 1.0), "occlusion", 3)
    assert ((hidden == 0.5).float().mean(dim=(1, 2, 3)) - 0.2).abs().max() < 0.01


def test_an_image_of_one_line_is_blurred_along_it() -> None:
    step = torch.zeros(1, 1, 1, 100).index_fill_(3, torch.arange(50, 100), 1.0)
    assert torch.equal(corrupt(step, "blur", 5).sum(dim=3), torch.full((1, 1, 1), 50.0))


def test_wrong_arguments_are_told() -> None:
    with pytest.raises(UsageError, match="kind: expected one of noise, blur"):
        corrupt(pictures(), "fog", 1)
    with pytest.raises(UsageError, match="severity: expected a whole number from 1 to 5, got 6"):
        corrupt(pictures(), "noise", 6)
    with pytest.raises(UsageError, match="JPEG has 1 or 3 channels, got 2"):
        corrupt(pictures(channels=2), "jpeg", 1)
