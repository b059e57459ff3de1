"""Decoding of images in files, archives and tables to square RGB tensors."""

from __future__ import annotations

import io
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median_low

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from contraport._utils.formatting import pluralize
from contraport.data.splits import PositionArray
from contraport.data.stores import ItemFilesOrBytes, Shape
from contraport.errors import UsageError, check, check_regular_file

IMAGE_SUFFIXES = frozenset((
    ".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".gif", ".webp", ".avif", ".heic", ".tif", ".tiff",
    ".pgm", ".ppm", ".pnm",
))  # fmt: skip
"""Suffixes of image files. Some need a plugin of Pillow; without it such files are reported as unreadable."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ImageFilePaths(ItemFilesOrBytes):
    """Encoded images in files, listed by path."""

    files: tuple[str, ...]  # strings need less memory than Path objects

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, position: int) -> Path:
        return Path(self.files[position])

    def subset(self, positions: PositionArray) -> ImageFilePaths:
        return ImageFilePaths(tuple(self.files[position] for position in positions.tolist()))

    def describe_item_location(self, position: int) -> str:
        return self.files[position]


def decode_images(images: ItemFilesOrBytes, positions: Sequence[int], shape: Shape) -> Tensor:
    """Decode images to a uint8 RGB tensor ``(b, *shape)``, resized and center-cropped.

    Raises:
        UsageError: an image cannot be decoded.
    """
    size, decoded = shape[-1], []
    for position in positions:
        try:
            with _open_image(images[position]) as image:
                image.draft("RGB", (size, size))  # JPEG: decodes at the smallest scale that is large enough
                decoded.append(to_square_tensor(image, size))
        except Exception as error:  # decoders raise anything on hostile bytes
            place = images.describe_item_location(position)
            if find_decoding_error_message(images, position) is None:  # which checks a PNG by its checksums alone
                message = f"data: {place} has pixels that cannot be decoded: {error}. Remove or repair it."
                raise UsageError(message, kind="corrupt_pixels") from error
            message = f"data: {place} was readable before and cannot be read now: {error}"
            raise UsageError(message, kind="unreadable") from error
    return torch.stack(decoded)


def log_undecodable_names_by_position(
    views: Sequence[tuple[ItemFilesOrBytes, PositionArray]], *, what: str
) -> dict[int, str]:
    """Return the names of undecodable images by position, and log them.

    Args:
        views: images of each view, and the positions to check.
        what: the images, as messages call them.

    Raises:
        UsageError: none of the images can be decoded.
    """
    failures: dict[int, tuple[str, str]] = {}
    with ThreadPoolExecutor() as pool:  # decoders release the interpreter's lock
        for images, positions in views:
            for first in range(0, len(positions), 1024):  # a pool starts all calls at once, so blocks bound the memory
                block = positions[first : first + 1024].tolist()
                errors = pool.map(partial(find_decoding_error_message, images), block)
                failures |= {
                    position: (images.describe_item_location(position), error)
                    for position, error in zip(block, errors, strict=True)
                    if error is not None
                }
    described = [f"{name} ({error})" for name, error in failures.values()]
    checked = len(np.unique(np.concatenate([positions for _, positions in views])))
    example = "".join(described[:1])
    message = f"data: none of {checked:,} {what} can be decoded, first {example}."
    if checked == 1:
        message = f"data: {example} cannot be read as an image."
    check(len(failures) < checked or not checked, message, "no_readable_image")
    if failures:
        shown = "; ".join(described[:5]) + ("; ..." if len(described) > 5 else "")
        # Without the split, so that a terminal shows once what several splits leave out.
        _log.warning("skipped %s that cannot be read: %s", pluralize(len(failures), "image"), shown)
    return {position: name for position, (name, _) in sorted(failures.items())}


def choose_image_size(images: ItemFilesOrBytes, positions: Sequence[int]) -> int:
    """Return the default size, a clipped median of the images' shorter sides."""
    step = -(-len(positions) // 200) or 1
    sides = []
    for position in positions[::step]:
        if find_decoding_error_message(images, position) is None:
            with _open_image(images[position]) as image:
                sides.append(min(image.size))
    return compute_clipped_median_size(sides)


def compute_clipped_median_size(sides: Sequence[int]) -> int:
    """Return the median of side lengths, clipped to the range of 8 to 64 pixels.

    >>> compute_clipped_median_size([6, 20, 30]), compute_clipped_median_size([400, 300])
    (20, 64)
    """
    return min(max(median_low(sides or [64]), 8), 64)


def find_decoding_error_message(images: ItemFilesOrBytes, position: int) -> str | None:
    """Return the reason why an image cannot be decoded, or None."""
    try:
        with _open_image(images[position]) as image:
            # Pixels of modes I and F are 32-bit integers and floats of any range.
            check(image.mode not in ("I", "F"), f"the range of pixels of mode {image.mode} is unknown")
            if image.format == "PNG":
                image.verify()  # checks the checksum of each chunk
            else:
                image.draft("RGB", (1, 1))  # JPEG: reads the whole file but decodes at an eighth of each side
                image.load()
    except UnidentifiedImageError:
        return "no image of a known format"
    except Exception as error:  # decoders raise anything on hostile bytes
        return getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
    return None


def _open_image(source: Path | bytes) -> Image.Image:
    """Open an image from a file or from encoded bytes, without decoding pixels."""
    if isinstance(source, Path):
        check_regular_file("data", source)
    return Image.open(io.BytesIO(source) if isinstance(source, bytes) else source)


def to_square_tensor(image: Image.Image, size: int) -> Tensor:
    """Convert an image to a uint8 RGB tensor ``(3, size, size)``, center-cropped."""
    square = ImageOps.fit(to_upright_rgb(image), (size, size), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(square)).permute(2, 0, 1).contiguous()


def to_upright_rgb(image: Image.Image) -> Image.Image:
    """Convert an image to upright 8-bit RGB, with transparent parts on white.

    Pillow's own conversion clips 16-bit pixels at 255, and shows whatever color is stored where an image is
    transparent: a black drawing on a transparent background would be all black.
    """
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if not image.has_transparency_data:
        return image.convert("RGB")
    rgba = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
