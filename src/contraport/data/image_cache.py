"""Cache of decoded images in a memory-mapped file."""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from contraport._utils.array_cache import expected_array_bytes, find_cached_arrays, load_or_build_arrays
from contraport._version import __version__
from contraport.data.data_loader import build_loader
from contraport.data.dataset import Dataset
from contraport.data.image_decoding import decode_images
from contraport.data.stores import (
    ArrayStore,
    CombinedViewsStore,
    DecodingStore,
    Store,
    StoreWrapper,
    SubsetStore,
    combine_views,
)

MAX_ITEMS_FETCHED_FOR_DIGEST = 1_000
"""Maximum number of items that `digest_for_cache` fetches."""
DECODING_BATCH_SIZE = 256
"""Number of images that are decoded or digested at a time."""
MAX_FREE_DISK_FRACTION = 0.5
"""Maximum fraction of the free disk space that the cache may take."""

log = logging.getLogger("contraport.data")


def cache_decoded_images(dataset: Dataset, folder: Path, *, num_workers: int | None = None) -> Dataset:
    """Return a dataset of decoded images, cached in a folder.

    The cache is reused, and rebuilt if it was made from other data, another size or another version. The dataset is
    returned unchanged if it has no encoded images, or if the disk has less than twice the space needed. The log states
    either.

    Args:
        dataset: the items, to be read many times.
        folder: cache folder.
        num_workers: processes that decode; default: as in `build_loader`.

    Raises:
        UsageError: the folder cannot be written to.
    """
    encoded = _list_cacheable_image_stores(dataset.store)
    if not encoded:
        return dataset
    shapes = [[len(dataset), *store.shapes[0]] for store in encoded]
    cache_key = {"version": __version__, "data": digest_for_cache(dataset), "shapes": shapes, "dtype": "uint8"}
    size = expected_array_bytes(cache_key)
    if find_cached_arrays(folder, cache_key) is None:
        existing = next(place for place in (folder, *folder.absolute().parents) if place.is_dir())
        free = shutil.disk_usage(existing).free
        if size > MAX_FREE_DISK_FRACTION * free:
            message = "the decoded images would take %.1f GB of %.1f GB free: each epoch decodes the images again"
            log.warning(message, size / 1e9, free / 1e9)
            return dataset
    pixels = load_or_build_arrays(
        folder,
        cache_key,
        lambda arrays: _decode_into_cache(arrays, dataset, encoded, folder, num_workers),
        description="the decoded images",
        argument="decoded",
        log=log,
    )
    decoded = {id(store): ArrayStore((torch.from_numpy(array),)) for store, array in zip(encoded, pixels, strict=True)}
    return dataset.with_store(_replace_innermost_stores(dataset.store, decoded))


def _list_cacheable_image_stores(store: Store) -> list[DecodingStore]:
    """List the stores, nested ones included, whose decoded images can be cached."""
    if isinstance(store, CombinedViewsStore):
        return [image_store for part in store.stores for image_store in _list_cacheable_image_stores(part)]
    if isinstance(store, StoreWrapper) and not isinstance(store, SubsetStore):
        return _list_cacheable_image_stores(store.store)
    return [store] if isinstance(store, DecodingStore) and store.decode is decode_images else []


def _replace_innermost_stores(store: Store, replacement_by_id: dict[int, ArrayStore]) -> Store:
    """Return a nested store with its innermost stores replaced by cached arrays."""
    if isinstance(store, CombinedViewsStore):
        return combine_views([_replace_innermost_stores(part, replacement_by_id) for part in store.stores])
    if isinstance(store, StoreWrapper):
        return replace(store, store=_replace_innermost_stores(store.store, replacement_by_id))
    return replacement_by_id.get(id(store), store)


def _decode_into_cache(
    arrays: Sequence[np.ndarray], dataset: Dataset, encoded: Sequence[Store], folder: Path, num_workers: int | None
) -> None:
    """Decode all images into memory-mapped arrays, one array per image view."""
    size = sum(array.nbytes for array in arrays)
    log.info("decoding %s images once, into %s: %.1f MB", f"{len(dataset):,}", folder, size / 1e6)
    images = Dataset(CombinedViewsStore(tuple(encoded)), name=dataset.name, split=dataset.split)
    batches, first = build_loader(images, DECODING_BATCH_SIZE, num_workers=num_workers), 0
    try:
        for batch in batches:
            for array, view in zip(arrays, batch.views, strict=True):
                array[first : first + len(view)] = view.numpy()
            first += len(batch.ids)
    finally:
        batches.close()


def digest_for_cache(dataset: Dataset) -> str:
    """Return a cache key: a digest of the items and their synthetic corruption.

    It covers the content of all items, and the values of up to 1,000 items as they are fetched.
    """
    digest = hashlib.sha256(repr((len(dataset), dataset.shapes)).encode())
    digest.update(b"none" if dataset.view_content_digests is None else dataset.view_content_digests.numpy().tobytes())
    number = min(MAX_ITEMS_FETCHED_FOR_DIGEST, len(dataset))
    positions = torch.linspace(0, len(dataset) - 1, number, dtype=torch.float64).round().long()
    for block in positions.split(DECODING_BATCH_SIZE):
        for view in dataset.__getitems__(block.tolist()).views:  # not of the store alone: partners may be mismatched
            digest.update(view.contiguous().numpy().tobytes())
    return digest.hexdigest()
