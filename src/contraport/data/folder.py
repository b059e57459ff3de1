"""A folder of images: classes from its subfolders, pixels decoded when they are asked for."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median_low
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from contraport.data.dataset import Dataset
from contraport.data.splits import split_positions
from contraport.errors import UsageError, check

HELD_OUT_EVERY = 5
SMALLEST_SIZE, LARGEST_SIZE = 8, 64
_MEASURED_FILES = 200
_NAMED_FILES = 5
_SUFFIXES = frozenset((".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm", ".pnm"))
_UNBOUNDED_MODES = ("I", "F")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FileStore:
    """Images in files; a fetch decodes them, resizes the shorter side to `size` and crops the centre, as RGB."""

    files: tuple[Path, ...]
    size: int
    in_memory: bool = False

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shape of one item of each view."""
        return ((3, self.size, self.size),)

    def __len__(self) -> int:
        return len(self.files)

    def fetch(self, positions: Tensor) -> tuple[Tensor, ...]:
        """Return the images at some positions, stacked."""
        return (torch.stack([_pixels(self.files[position], self.size) for position in positions.tolist()]),)


class _Item(NamedTuple):
    file: Path
    label: str  # "" where the images lie in no class folder


def load_folder(folder: Path, split: str, image_size: int | None = None) -> Dataset:
    """Return one split of a folder of images.

    ``folder/class/*.png`` is labelled, ``folder/*.png`` is not. Either may lie below ``train/`` and ``test/`` (or
    ``val/``); without these a fifth of each class is held out. Hidden files, and files that are no images by their
    suffix, are not looked at. Images that cannot be read are left out, logged, and listed in ``skipped``.

    Args:
        folder: the folder.
        split: "train" or "test".
        image_size: side of the square that images become, in pixels; default: the median shorter side of the training
            images, kept between 8 and 64.

    Raises:
        UsageError: no image in the folder, none of them readable, or a layout that can be read in two ways.
    """
    train_folder = folder / "train" if (folder / "train").is_dir() else folder
    test_folder = next((folder / name for name in ("test", "val") if (folder / name).is_dir()), None)
    check(
        train_folder != folder or test_folder is None,
        f"data: expected a folder train/ beside {test_folder}, found none.",
    )
    train = _items(train_folder)
    test = _items(test_folder) if test_folder else []
    names = sorted({item.label for item in train + test})
    check(names == [""] or "" not in names, f"data: {folder} has images both in class folders and outside of them.")
    if test_folder:
        chosen = train if split == "train" else test
    else:
        labels = np.array([item.label for item in train])
        chosen = [train[position] for position in split_positions(labels, split, every=HELD_OUT_EVERY)]
        check(len(chosen) > 0, f"data: {len(train)} images in {folder} are too few to hold some out.")
    readable, skipped = _readable(chosen)
    return Dataset(
        FileStore(tuple(item.file for item in readable), image_size or _common_size(train)),
        name=str(folder),
        split=split,
        labels=None if names == [""] else torch.tensor([names.index(item.label) for item in readable]),
        class_names=None if names == [""] else tuple(names),
        flips=True,
        skipped=skipped,
    )


def _items(folder: Path) -> list[_Item]:
    """Return the images below a folder with the folder that names their class, in order of their paths."""
    files: list[Path] = []
    for parent, children, names in os.walk(folder):
        children[:] = [child for child in children if not child.startswith(".")]
        shown = (Path(parent, name) for name in names if not name.startswith("."))
        files += [file for file in shown if file.suffix.lower() in _SUFFIXES]
    check(len(files) > 0, f"data: expected images ({' '.join(sorted(_SUFFIXES))}) in {folder}, found none.")
    relative = sorted(file.relative_to(folder) for file in files)
    return [_Item(folder / file, file.parts[0] if len(file.parts) > 1 else "") for file in relative]


def _readable(items: list[_Item]) -> tuple[list[_Item], tuple[str, ...]]:
    """Return the items that can be decoded, and the names of the files that cannot; the log says why."""
    with ThreadPoolExecutor() as pool:  # decoders release the interpreter's lock
        reasons = list(pool.map(lambda item: _unreadable(item.file), items))
    good = [item for item, reason in zip(items, reasons, strict=True) if reason is None]
    bad = [f"{item.file} ({reason})" for item, reason in zip(items, reasons, strict=True) if reason is not None]
    check(len(good) > 0, f"data: none of the {len(items)} images can be read, first {bad[:1]}.")
    if bad:
        shown = "; ".join(bad[:_NAMED_FILES]) + ("; ..." if len(bad) > _NAMED_FILES else "")
        _log.warning("%d of %d images cannot be read and are left out: %s", len(bad), len(items), shown)
    return good, tuple(str(item.file) for item, reason in zip(items, reasons, strict=True) if reason is not None)


def _unreadable(file: Path) -> str | None:
    """Return why a file cannot be decoded, or None; far cheaper than decoding where the format allows."""
    try:
        with Image.open(file) as image:
            check(image.mode not in _UNBOUNDED_MODES, f"pixels of mode {image.mode} have no known range")
            if image.format == "PNG":
                image.verify()  # the checksum of each chunk
            else:
                image.draft("RGB", (1, 1))  # JPEG: reads all of the file but transforms an eighth of each side
                image.load()
    except Exception as error:  # on hostile bytes the decoders raise whatever they like
        return f"{type(error).__name__}: {error}"
    return None


def _common_size(items: list[_Item]) -> int:
    """Return the median shorter side of evenly spread images, kept within bounds that train on a small machine."""
    step = -(-len(items) // _MEASURED_FILES)
    sides = list(_shorter_sides(item.file for item in items[::step]))
    return min(max(median_low(sides or [LARGEST_SIZE]), SMALLEST_SIZE), LARGEST_SIZE)


def _shorter_sides(files: Iterable[Path]) -> Iterable[int]:
    for file in files:
        if _unreadable(file) is None:
            with Image.open(file) as image:
                yield min(image.size)


def _pixels(file: Path, size: int) -> Tensor:
    """Return the image as uint8 RGB, ``(3, size, size)``."""
    try:
        with Image.open(file) as image:
            image.draft("RGB", (size, size))
            upright = _eight_bits(ImageOps.exif_transpose(image)).convert("RGB")
        square = ImageOps.fit(upright, (size, size), Image.Resampling.BILINEAR)
    except (OSError, SyntaxError, ValueError) as error:
        raise UsageError(f"data: {file} could be read before and cannot be now: {error}") from error
    return torch.from_numpy(np.array(square)).permute(2, 0, 1).contiguous()


def _eight_bits(image: Image.Image) -> Image.Image:
    """Return a 16-bit grey image with 8 bits; Pillow itself would cut bright pixels off at 255."""
    return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)) if image.mode.startswith("I;16") else image
