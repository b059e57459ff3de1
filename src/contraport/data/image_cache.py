"""Images decoded once: as squares in a file that is mapped to memory, so that later epochs read bytes."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from contraport._utils.array_cache import load_or_build_arrays, open_arrays, total_bytes
from contraport._version import __version__
from contraport.data.data_loader import loader
from contraport.data.dataset import Dataset
from contraport.data.decoding import ImageStore
from contraport.data.stores import MultiViewStore, Store, join_stores

SAMPLED = 1_000
"""Of data in files so many items are read to tell whether they are still the same, beside the names of all."""

TOGETHER = 256
LARGEST_SHARE = 0.5
"""At most so much of the free space of the disk is taken."""

log = logging.getLogger("contraport.data")


@dataclass(frozen=True)
class DecodedImages:
    """Images as one view, ``(n, 3, size, size)`` uint8, read from their file when they are fetched."""

    pixels: np.ndarray
    in_memory: bool = True
    digests: None = None  # those of the encoded images stand, which the dataset has

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shape of one item of each view."""
        return (self.pixels.shape[1:],)

    def __len__(self) -> int:
        return len(self.pixels)

    def fetch(self, positions: Tensor) -> tuple[Tensor, ...]:
        """Return the images at some positions, stacked."""
        return (torch.from_numpy(self.pixels[positions.numpy()]),)


def has_encoded_images(dataset: Dataset) -> bool:
    """Return whether items have views that are decoded whenever they are fetched."""
    return any(isinstance(store, ImageStore) for store in _stores(dataset))


def cache_decoded_images(dataset: Dataset, folder: Path, *, num_workers: int | None = None) -> Dataset:
    """Return the same items with their images decoded, taken from a folder, or decoded and put there.

    They are made again where the folder has those of other data, of another size or version, and the log says so.
    Where the disk has not twice the space, or no view is an encoded image, the data are returned as they are; the log
    says that too.

    Args:
        dataset: what is to be read often.
        folder: where the images are kept, and `contraport._utils.array_cache` says how.
        num_workers: processes that decode; default: as `loader` has it.

    Raises:
        UsageError: the folder cannot be written to.
    """
    stores = _stores(dataset)
    encoded = [store for store in stores if isinstance(store, ImageStore)]
    if not encoded:
        return dataset
    shapes = [[len(dataset), *store.shapes[0]] for store in encoded]
    made_of = {"version": __version__, "data": dataset_digest(dataset), "shapes": shapes, "dtype": "uint8"}
    if open_arrays(folder, made_of)[0] is None and not _is_room(folder, total_bytes(made_of)):
        return dataset
    pixels = load_or_build_arrays(
        folder,
        made_of,
        lambda arrays: _fill(arrays, dataset, encoded, folder, num_workers),
        what="the decoded images",
        argument="decoded",
        log=log,
    )
    kept = iter(pixels)
    replaced = tuple(DecodedImages(next(kept)) if isinstance(store, ImageStore) else store for store in stores)
    return dataset.with_store(join_stores(replaced))


def _is_room(folder: Path, size: int) -> bool:
    """Return whether decoded images leave enough of the disk free; where they do not, the log says so."""
    there = next(place for place in (folder, *folder.absolute().parents) if place.is_dir())
    free = shutil.disk_usage(there).free
    if size <= LARGEST_SHARE * free:
        return True
    log.warning(
        "decoded, the images take %.1f GB, and %.1f GB are free: each epoch decodes them anew", size / 1e9, free / 1e9
    )
    return False


def _fill(
    arrays: Sequence[np.ndarray], dataset: Dataset, encoded: Sequence[ImageStore], folder: Path, num_workers: int | None
) -> None:
    size = sum(array.nbytes for array in arrays)
    log.info("decoding %s images once, into %s: %.1f MB", f"{len(dataset):,}", folder, size / 1e6)
    images = Dataset(MultiViewStore(tuple(encoded)), name=dataset.name, split=dataset.split)
    batches, first = loader(images, TOGETHER, num_workers=num_workers), 0
    try:
        for batch in batches:
            for array, view in zip(arrays, batch.views, strict=True):
                array[first : first + len(view)] = view.numpy()
            first += len(batch.ids)
    finally:
        batches.close()


def _stores(dataset: Dataset) -> tuple[Store, ...]:
    return dataset.store.stores if isinstance(dataset.store, MultiViewStore) else (dataset.store,)


def dataset_digest(dataset: Dataset) -> str:
    """Return a digest of items: of all in memory; else of some, and of their names and the state of their files."""
    digest = hashlib.sha256(repr((len(dataset), dataset.shapes)).encode())
    if dataset.in_memory:
        read = torch.arange(len(dataset))
    else:
        read = torch.linspace(0, len(dataset) - 1, min(SAMPLED, len(dataset)), dtype=torch.float64).round().long()
        for key in dataset.keys or ():
            digest.update(f"{key} ".encode())
        for file in dict.fromkeys(_read_from(dataset.store)):
            digest.update(f"{file} {_state_of_file(file)}".encode())
    for positions in read.split(256):
        for view in dataset.store.fetch(positions):
            digest.update(view.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _read_from(store: Any) -> Iterator[str]:
    """Yield the files that a store reads when items are fetched, as far as they are known."""
    for below in getattr(store, "stores", ()):
        yield from _read_from(below)
    for name in ("store", "images", "members"):
        if (below := getattr(store, name, None)) is not None:
            yield from below.source_files() if hasattr(below, "source_files") else _read_from(below)


def _state_of_file(path: str) -> tuple[int, int] | None:
    """Return the size and the time of a file, None where there is none."""
    try:
        state = os.stat(path)
    except OSError:
        return None
    return state.st_size, state.st_mtime_ns
