"""Images made worse: six corruptions, each at five severities, from hardly visible to hardly recognisable.

After Hendrycks and Dietterich, "Benchmarking neural network robustness to common corruptions and perturbations" (ICLR
2019); lengths are relative to the side of the image, so that small images are spoilt as large ones are.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torchvision.io import decode_jpeg, encode_jpeg
from torchvision.transforms.v2 import functional as transforms

from contraport.catalog.perturbation_specs import CORRUPTIONS, SEVERITIES
from contraport.errors import check

NOISE = (0.04, 0.08, 0.12, 0.18, 0.26)  # standard deviation, of the range of the pixels
_BLUR = (0.010, 0.020, 0.030, 0.045, 0.060)  # standard deviation, of the side
_BRIGHTNESS = (0.1, 0.2, 0.3, 0.4, 0.5)  # what is added, of the range
_CONTRAST = (0.7, 0.5, 0.35, 0.2, 0.1)  # what is left of the distance from the mean
_OCCLUSION = (0.05, 0.1, 0.2, 0.3, 0.4)  # share of the area under a square of the mean grey
_JPEG = (50, 25, 15, 10, 5)  # quality


def corrupt(images: Tensor, kind: str, severity: int) -> Tensor:
    """Return images `(b, C, H, W)`, uint8 or float in [0, 1], as floats in [0, 1], corrupted.

    What is random (noise, the places of squares) is drawn by torch's generator of the images' device.

    Raises:
        UsageError: an unknown kind or severity, or JPEG of other than 1 or 3 channels.

    >>> corrupt(torch.full((1, 1, 8, 8), 0.25), "brightness", 3).unique()
    tensor([0.5500])
    """
    check(kind in CORRUPTIONS, f"kind: expected one of {', '.join(CORRUPTIONS)}, got {kind!r}.")
    check(severity in SEVERITIES, f"severity: expected a whole number from 1 to {SEVERITIES[-1]}, got {severity!r}.")
    floats = images.float() / 255 if images.dtype == torch.uint8 else images.float()
    return _CHANGES[kind](floats, severity - 1).clamp(0, 1)


def _noise(images: Tensor, level: int) -> Tensor:
    return images + NOISE[level] * torch.randn_like(images)


def _blur(images: Tensor, level: int) -> Tensor:
    sigma = _BLUR[level] * min(images.shape[2:])
    reach = max(1, round(3 * sigma))
    sizes = [max(1, min(2 * reach + 1, 2 * (side // 2) - 1)) for side in (images.shape[3], images.shape[2])]
    blurred: Tensor = transforms.gaussian_blur(images, sizes, [sigma, sigma])
    return blurred


def _brightness(images: Tensor, level: int) -> Tensor:
    return images + _BRIGHTNESS[level]


def _contrast(images: Tensor, level: int) -> Tensor:
    mean = images.mean(dim=(1, 2, 3), keepdim=True)
    return mean + _CONTRAST[level] * (images - mean)


def _occlusion(images: Tensor, level: int) -> Tensor:
    items, _, height, width = images.shape
    sides = [max(1, round(side * _OCCLUSION[level] ** 0.5)) for side in (height, width)]
    hidden = []
    for side, length in zip(sides, (height, width), strict=True):
        first = torch.randint(length - side + 1, (items, 1), device=images.device)
        places = torch.arange(length, device=images.device)
        hidden.append((places >= first) & (places < first + side))
    square = hidden[0][:, None, :, None] & hidden[1][:, None, None, :]
    return images.where(~square, images.mean(dim=(1, 2, 3), keepdim=True))


def _jpeg(images: Tensor, level: int) -> Tensor:
    check(images.shape[1] in (1, 3), f"images: JPEG has 1 or 3 channels, got {images.shape[1]}.")
    pixels = (images.clamp(0, 1) * 255).round().byte().cpu()
    encoded = encode_jpeg(list(pixels), quality=_JPEG[level])
    decoded = torch.stack([decode_jpeg(image) for image in encoded])
    return decoded.to(images.device).float() / 255


_CHANGES: dict[str, Callable[[Tensor, int], Tensor]] = {
    "noise": _noise,
    "blur": _blur,
    "brightness": _brightness,
    "contrast": _contrast,
    "occlusion": _occlusion,
    "jpeg": _jpeg,
}
"""By their names in the catalog, what makes images worse, at a level from 0."""
