"""Encoded images, wherever they lie: which can be decoded, how large they are, and their pixels as a square."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from statistics import median_low
from typing import Protocol

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from contraport.data.digests import digest_encoded
from contraport.data.splits import Positions
from contraport.errors import UsageError, check, check_regular_file

SUFFIXES = frozenset((
    ".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".gif", ".webp", ".avif", ".heic", ".tif", ".tiff",
    ".pgm", ".ppm", ".pnm",
))  # fmt: skip
"""Those of images, also of such that Pillow reads by a plugin alone: without it they are told as unreadable."""
SMALLEST_SIZE, LARGEST_SIZE = 8, 64
_MEASURED_IMAGES = 200
_NAMED_IMAGES = 5
_CHECKED_TOGETHER = 1024
_UNBOUNDED_MODES = ("I", "F")

_log = logging.getLogger(__name__)


class EncodedImages(Protocol):
    """Images in a format such as PNG or JPEG, by position."""

    def __len__(self) -> int: ...

    def __getitem__(self, position: int) -> Path | bytes:
        """Return the file of an image, or its content."""

    def take(self, positions: Positions) -> EncodedImages:
        """Return the images at some positions."""

    def name(self, position: int) -> str:
        """Return what messages call an image."""

    def source_files(self) -> Sequence[str]:
        """Return the files whose content they are."""


@dataclass(frozen=True)
class ImageFiles:
    """Images in files; their paths are text because that is all that grows with the data."""

    files: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, position: int) -> Path:
        return Path(self.files[position])

    def take(self, positions: Positions) -> ImageFiles:
        """Return the images at some positions."""
        return ImageFiles(tuple(self.files[position] for position in positions.tolist()))

    def name(self, position: int) -> str:
        """Return the path of an image."""
        return self.files[position]

    def source_files(self) -> Sequence[str]:
        """Return the files whose content they are."""
        return self.files


@dataclass(frozen=True)
class ImageStore:
    """Encoded images as one view; a fetch decodes them, resizes the shorter side and crops the centre, as RGB."""

    images: EncodedImages
    size: int
    in_memory: bool = False

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shape of one item of each view."""
        return ((3, self.size, self.size),)

    @cached_property
    def digests(self) -> Tensor:
        """Digests of the encoded images, int64 ``(n, 1)``; all of them are read once."""
        return digest_encoded(self.images, range(len(self.images)))[:, None]

    def __len__(self) -> int:
        return len(self.images)

    def fetch(self, positions: Tensor) -> tuple[Tensor, ...]:
        """Return the images at some positions, stacked."""
        return (torch.stack([_pixels(self.images, position, self.size) for position in positions.tolist()]),)


def unreadable(views: Sequence[tuple[EncodedImages, Positions]], *, what: str) -> dict[int, str]:
    """Return which positions have an image that cannot be decoded in any view, with its name.

    The log says how many, and why the first.

    Args:
        views: of each the images, and the positions of those that are looked at.
        what: what messages call these.

    Raises:
        UsageError: none of them can be decoded.
    """
    reasons: dict[int, tuple[str, str]] = {}
    with ThreadPoolExecutor() as pool:  # decoders release the interpreter's lock
        for images, positions in views:
            for first in range(0, len(positions), _CHECKED_TOGETHER):
                together = positions[first : first + _CHECKED_TOGETHER].tolist()
                found = pool.map(partial(decoding_error, images), together)
                for position, reason in zip(together, found, strict=True):
                    if reason is not None:
                        reasons[position] = (images.name(position), reason)
    described = [f"{name} ({reason})" for name, reason in reasons.values()]
    looked_at = len(np.unique(np.concatenate([positions for _, positions in views])))
    check(len(reasons) < looked_at, f"data: none of {looked_at:,} {what} can be read, first {described[:1]}.")
    if reasons:
        shown = "; ".join(described[:_NAMED_IMAGES]) + ("; ..." if len(described) > _NAMED_IMAGES else "")
        told = f"{len(reasons)} of {looked_at:,} {what}"
        _log.warning("%s cannot be read and %s left out: %s", told, "is" if len(reasons) == 1 else "are", shown)
    return {position: name for position, (name, _) in sorted(reasons.items())}


def default_image_size(images: EncodedImages, positions: Sequence[int]) -> int:
    """Return the median shorter side of evenly spread images, kept within bounds that train on a small machine."""
    step = -(-len(positions) // _MEASURED_IMAGES)
    return median_size(list(_shorter_sides(images, positions[::step])))


def median_size(sides: Sequence[int]) -> int:
    """Return the median of shorter sides of images, kept within the same bounds.

    >>> median_size([6, 20, 30]), median_size([400, 300])
    (20, 64)
    """
    return min(max(median_low(sides or [LARGEST_SIZE]), SMALLEST_SIZE), LARGEST_SIZE)


def square_pixels(image: Image.Image, size: int) -> Tensor:
    """Return the centre of an upright image, resized, as uint8 RGB, ``(3, size, size)``."""
    square = ImageOps.fit(to_rgb(image), (size, size), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(square)).permute(2, 0, 1).contiguous()


def _shorter_sides(images: EncodedImages, positions: Sequence[int]) -> Iterator[int]:
    for position in positions:
        if decoding_error(images, position) is None:
            with _open(images[position]) as image:
                yield min(image.size)


def _open(source: Path | bytes) -> Image.Image:
    if isinstance(source, Path):
        check_regular_file("data", source)
    return Image.open(io.BytesIO(source) if isinstance(source, bytes) else source)


def decoding_error(images: EncodedImages, position: int) -> str | None:
    """Return why an image cannot be decoded, or None; far cheaper than decoding where the format allows."""
    try:
        with _open(images[position]) as image:
            check(image.mode not in _UNBOUNDED_MODES, f"pixels of mode {image.mode} have no known range")
            if image.format == "PNG":
                image.verify()  # the checksum of each chunk
            else:
                image.draft("RGB", (1, 1))  # JPEG: reads all of the file but transforms an eighth of each side
                image.load()
    except Exception as error:  # on hostile bytes the decoders raise whatever they like
        return f"{type(error).__name__}: {error}"
    return None


def _pixels(images: EncodedImages, position: int, size: int) -> Tensor:
    try:
        with _open(images[position]) as image:
            image.draft("RGB", (size, size))
            return square_pixels(ImageOps.exif_transpose(image), size)
    except Exception as error:  # as above
        raise UsageError(f"data: {images.name(position)} could be read before and cannot be now: {error}") from error


def to_rgb(image: Image.Image) -> Image.Image:
    """Return an image as RGB of 8 bits, where its transparent parts are white, as on paper.

    Pillow's own conversion cuts bright pixels of 16 bits off at 255, and shows whatever colour lies hidden where an
    image is transparent: a drawing in black on nothing would be all black.
    """
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if not image.has_transparency_data:
        return image.convert("RGB")
    above = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", above.size, "white"), above).convert("RGB")
