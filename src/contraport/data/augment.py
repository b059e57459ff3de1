"""Random views of a batch, made by batched tensor operations for any number of channels.

All of geometry (crop, flip, rotation, shift) is one affine map per image and so one resampling; all of colour
(brightness, contrast, saturation, hue, grey) is one linear map per image and so one product. That is why these are
written here: on two cores two views of 512 images of 1 x 28 x 28 take 10 ms with noise and erasing, where kornia's
modules for crop, affine map, flip, brightness and contrast alone took 35 ms. The blur is kornia's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from kornia.filters import gaussian_blur2d
from torch import Tensor, nn

from contraport.data.dataset import Dataset
from contraport.errors import check, unknown_name

LARGEST_SMALL_SIDE = 32
SMALLEST_BLURRED_SIDE = 32
BLUR_SIGMA = (0.1, 2.0)


@dataclass(frozen=True)
class ImageStrength:
    """How far the views of an image may differ: ranges and chances of the random transforms."""

    area: float  # smallest share of the image that a crop keeps
    aspect: float  # largest ratio of a crop's sides
    degrees: float  # largest rotation
    shift: float  # largest translation beyond the crop, as a share of the side
    brightness: float  # largest relative change
    contrast: float  # largest relative change
    saturation: float  # largest relative change; like hue and grey only where there are 3 channels
    hue: float  # largest turn, as a share of the colour circle
    grey: float  # chance of losing all colour
    blur: float  # chance; only where the shorter side is large enough
    noise: float  # largest standard deviation, in units of [0, 1]
    erased: float  # largest share of each side that an erased rectangle takes


@dataclass(frozen=True)
class VectorStrength:
    """How far the views of a vector may differ: ranges and chances of the random transforms."""

    noise: float  # standard deviation, in units of each feature's own
    masked: float  # chance of each feature to be replaced by its mean
    scaling: float  # largest relative change of the whole vector's distance from the mean


_SMALL = ImageStrength(
    area=0.7, aspect=4 / 3, degrees=15, shift=0.05, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1, grey=0.2,
    blur=0.2, noise=0.05, erased=0.2,
)  # fmt: skip
_LARGE = ImageStrength(
    area=0.2, aspect=4 / 3, degrees=0, shift=0, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1, grey=0.2,
    blur=0.5, noise=0, erased=0,
)  # fmt: skip

SMALL_IMAGES = {
    "weak": replace(_SMALL, area=0.85, degrees=8, brightness=0.2, contrast=0.2, saturation=0.2, hue=0.05, erased=0),
    "standard": _SMALL,
    "strong": replace(_SMALL, area=0.4, shift=0.1, brightness=0.6, contrast=0.6, noise=0.1, erased=0.4),
}
LARGE_IMAGES = {
    "weak": replace(_LARGE, area=0.5, brightness=0.2, contrast=0.2, saturation=0.2, hue=0.05, blur=0),
    "standard": _LARGE,
    "strong": replace(_LARGE, area=0.08, brightness=0.8, contrast=0.8, saturation=0.8, hue=0.2),
}
VECTORS = {
    "weak": VectorStrength(noise=0.1, masked=0.1, scaling=0.1),
    "standard": VectorStrength(noise=0.3, masked=0.2, scaling=0.2),
    "strong": VectorStrength(noise=0.6, masked=0.4, scaling=0.4),
}

STRENGTHS = tuple(VECTORS)
"""How far views may differ, from little to much."""


class Augment(nn.Module):
    """Make random views of a batch.

    Data of one view get `views` random ones. Data of several given views keep those, as floats and unchanged: their
    differences are the data's own.

    Args:
        dataset: the data, whose shapes, statistics and permission to flip decide on the transforms.
        strength: "weak", "standard" or "strong".
        views: how many views to make; default: 2, or as many as are given.

    Shape: views ``(b, C, H, W)`` uint8 or float in [0, 1], or ``(b, d)`` float, to a tuple of float views of the same
    shape. The random numbers are torch's own, so `torch.manual_seed` fixes them.

    Raises:
        UsageError: an unknown strength, or a number of views other than the given one.

    >>> from contraport.data import load
    >>> digits = load("digits")
    >>> view0, view1 = Augment(digits)(digits.__getitems__([0, 1, 2]).views)
    >>> view0.shape, view0.dtype, bool((view0 != view1).any())
    (torch.Size([3, 1, 8, 8]), torch.float32, True)
    """

    def __init__(self, dataset: Dataset, *, strength: str = "standard", views: int | None = None) -> None:
        super().__init__()
        if strength not in SMALL_IMAGES:
            raise unknown_name("strength", strength, SMALL_IMAGES)
        given = len(dataset.shapes)
        self.views = views if views is not None else max(2, given)
        check(self.views >= 1, f"views: expected at least 1, got {views}.")
        check(given in (1, self.views), f"views: expected the {given} that {dataset.name!r} gives, got {views}.")
        self.transform: nn.Module | None = None
        if given == 1 and dataset.is_image:
            small = min(dataset.shapes[0][1:]) <= LARGEST_SMALL_SIDE
            self.transform = _ImageTransform((SMALL_IMAGES if small else LARGE_IMAGES)[strength], flips=dataset.flips)
        elif given == 1:
            self.transform = _VectorTransform(VECTORS[strength], *dataset.statistics())

    @torch.no_grad()
    def forward(self, views: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the float views of a batch."""
        floats = tuple(view / 255.0 if view.dtype == torch.uint8 else view for view in views)
        if self.transform is None:
            return floats
        return tuple(self.transform(floats[0]) for _ in range(self.views))


class _ImageTransform(nn.Module):
    def __init__(self, strength: ImageStrength, *, flips: bool) -> None:
        super().__init__()
        self.strength = strength
        self.flips = flips

    def forward(self, images: Tensor) -> Tensor:
        """Return one random view of each image."""
        images = _recolour(_warp(images, self.strength, flips=self.flips), self.strength)
        if min(images.shape[2:]) >= SMALLEST_BLURRED_SIDE:
            images = _blur(images, self.strength)
        if self.strength.noise:
            images = images + _uniform(images, 0, self.strength.noise) * torch.randn_like(images)
        if self.strength.erased:
            images = _erase(images, self.strength)
        return images.clamp(0, 1)


class _VectorTransform(nn.Module):
    mean: Tensor
    std: Tensor

    def __init__(self, strength: VectorStrength, mean: list[float], std: list[float]) -> None:
        super().__init__()
        self.strength = strength
        self.register_buffer("mean", torch.tensor(mean), persistent=False)
        self.register_buffer("std", torch.tensor(std), persistent=False)

    def forward(self, vectors: Tensor) -> Tensor:
        """Return one random view of each vector."""
        scale = _uniform(vectors, 1 - self.strength.scaling, 1 + self.strength.scaling)
        kept = torch.rand_like(vectors) >= self.strength.masked
        noise = self.strength.noise * self.std * torch.randn_like(vectors)
        return self.mean + (vectors - self.mean) * scale * kept + noise


def _warp(images: Tensor, strength: ImageStrength, *, flips: bool) -> Tensor:
    """Crop, flip, rotate and shift: one affine map from the view's coordinates to the image's, both in [-1, 1]."""
    area = _uniform(images, strength.area, 1).flatten()
    ratio = _uniform(images, -math.log(strength.aspect), math.log(strength.aspect)).flatten().exp()
    width, height = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
    angle = _uniform(images, -math.radians(strength.degrees), math.radians(strength.degrees)).flatten()
    across = (1 - width + 2 * strength.shift) * _uniform(images, -1, 1).flatten()
    down = (1 - height + 2 * strength.shift) * _uniform(images, -1, 1).flatten()
    mirror = _uniform(images, -1, 1).flatten().sign() if flips else torch.ones_like(area)
    cosine, sine = angle.cos(), angle.sin()
    maps = torch.stack([mirror * width * cosine, -height * sine, across, mirror * width * sine, height * cosine, down])
    grid = F.affine_grid(maps.T.reshape(-1, 2, 3), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)


def _recolour(images: Tensor, strength: ImageStrength) -> Tensor:
    """Change brightness and contrast, and of three channels also saturation and hue, by one linear map per image."""
    brightness = _uniform(images, 1 - strength.brightness, 1 + strength.brightness)
    contrast = _uniform(images, 1 - strength.contrast, 1 + strength.contrast)
    if images.shape[1] == 3:
        images = _turn_chroma(images, strength)
    middle = images.mean(dim=(1, 2, 3), keepdim=True)
    return brightness * (middle + contrast * (images - middle))


def _turn_chroma(images: Tensor, strength: ImageStrength) -> Tensor:
    """Scale (saturation, grey) and turn (hue) the chroma plane of each RGB image; its grey axis stays."""
    saturation = _uniform(images, 1 - strength.saturation, 1 + strength.saturation)[..., 0]
    saturation = saturation * (torch.rand_like(saturation) >= strength.grey)
    angle = 2 * math.pi * strength.hue * _uniform(images, -1, 1)[..., 0]
    grey_axis = images.new_full((3, 3), 1 / 3)
    plane = torch.eye(3, device=images.device) - grey_axis
    quarter_turn = images.new_tensor([[0, -1, 1], [1, 0, -1], [-1, 1, 0]]) / math.sqrt(3)
    maps = grey_axis + saturation * (angle.cos() * plane + angle.sin() * quarter_turn)
    return torch.bmm(maps, images.flatten(2)).view_as(images)


def _blur(images: Tensor, strength: ImageStrength) -> Tensor:
    chosen = torch.rand(len(images), device=images.device) < strength.blur
    if not chosen.any():
        return images
    size = max(3, min(images.shape[2:]) // 10 | 1)
    sigma = _uniform(images[chosen], *BLUR_SIGMA).view(-1, 1).expand(-1, 2)
    blurred = images.clone()
    blurred[chosen] = gaussian_blur2d(images[chosen], (size, size), sigma)
    return blurred


def _erase(images: Tensor, strength: ImageStrength) -> Tensor:
    """Fill a random rectangle of each image with the image's mean."""
    inside = []
    for axis in (2, 3):
        side = _uniform(images, 0, strength.erased)
        start = (1 - side) * _uniform(images, 0, 1)
        pixels = (torch.arange(images.shape[axis], device=images.device) + 0.5) / images.shape[axis]
        pixels = pixels.view(-1, 1) if axis == 2 else pixels.view(1, -1)
        inside.append((pixels >= start) & (pixels < start + side))
    return torch.where(inside[0] & inside[1], images.mean(dim=(2, 3), keepdim=True), images)


def _uniform(images: Tensor, low: float, high: float) -> Tensor:
    """Return one random number for each item, in a shape that broadcasts over the item."""
    shape = (len(images),) + (1,) * (images.ndim - 1)
    return low + (high - low) * torch.rand(shape, device=images.device)
