"""Image corruptions: six kinds at five severities, from barely visible to barely recognizable.

After Hendrycks and Dietterich, "Benchmarking neural network robustness to common corruptions and perturbations" (ICLR
2019). Lengths are relative to the side of the image, so that small and large images are degraded alike.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torchvision.io import decode_jpeg, encode_jpeg
from torchvision.transforms.v2 import functional as transforms

from contraport.catalog.option_parsers import CORRUPTIONS, SEVERITIES
from contraport.errors import check

NOISE = (0.04, 0.08, 0.12, 0.18, 0.26)  # standard deviation, relative to the pixel range
_BLUR = (0.010, 0.020, 0.030, 0.045, 0.060)  # standard deviation, relative to the side
_BRIGHTNESS = (0.1, 0.2, 0.3, 0.4, 0.5)  # offset, relative to the pixel range
_CONTRAST = (0.7, 0.5, 0.35, 0.2, 0.1)  # remaining fraction of the distance from the mean
_OCCLUSION = (0.05, 0.1, 0.2, 0.3, 0.4)  # fraction of the area under a square of the mean gray
_JPEG = (50, 25, 15, 10, 5)  # quality


def corrupt(images: Tensor, kind: str, severity: int) -> Tensor:
    """Corrupt images `(b, C, H, W)`, uint8 or float in [0, 1]; returns floats in [0, 1].

    Random parts (noise, places of squares) are drawn from torch's generator on the device of the images.

    Raises:
        UsageError: an unknown kind or severity, or JPEG with other than 1 or 3 channels.

    >>> corrupt(torch.full((1, 1, 8, 8), 0.25), "brightness", 3).unique()
    tensor([0.5500])
    """
    check(kind in CORRUPTIONS, f"kind: must be one of {', '.join(CORRUPTIONS)}, got {kind!r}.", "unknown")
    check(severity in SEVERITIES, f"severity: must be an integer from 1 to {SEVERITIES[-1]}, got {severity!r}.")
    floats = images.float() / 255 if images.dtype == torch.uint8 else images.float()
    return _CORRUPT[kind](floats, severity - 1).clamp(0, 1)


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
    spans = []
    for length in (height, width):
        side = max(1, round(length * _OCCLUSION[level] ** 0.5))
        first = torch.randint(length - side + 1, (items, 1), device=images.device)
        places = torch.arange(length, device=images.device)
        spans.append((places >= first) & (places < first + side))
    square = spans[0][:, None, :, None] & spans[1][:, None, None, :]
    return images.where(~square, images.mean(dim=(1, 2, 3), keepdim=True))


def _jpeg(images: Tensor, level: int) -> Tensor:
    check(images.shape[1] in (1, 3), f"images: JPEG requires 1 or 3 channels, got {images.shape[1]}.", "channels")
    pixels = (images.clamp(0, 1) * 255).round().byte().cpu()
    compressed = encode_jpeg(list(pixels), quality=_JPEG[level])
    decompressed = torch.stack([decode_jpeg(image) for image in compressed])
    return decompressed.to(images.device).float() / 255


_CORRUPT: dict[str, Callable[[Tensor, int], Tensor]] = {
    "noise": _noise,
    "blur": _blur,
    "brightness": _brightness,
    "contrast": _contrast,
    "occlusion": _occlusion,
    "jpeg": _jpeg,
}
