"""Feature cache of frozen encoders, with several random views per item."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from contraport._utils.array_cache import expected_array_bytes, load_or_build_arrays
from contraport._utils.progress import ProgressBars
from contraport._version import __version__
from contraport.data.image_cache import digest_for_cache
from contraport.data.stores import ArrayStore
from contraport.embedding import LoaderConfig, check_finite_features, fixed_seed, inference_mode
from contraport.training.components.assembly import TrainingComponents
from contraport.training.components.data_builder import build_batch_loader, count_draws_to_cache
from contraport.training.config import Settings
from contraport.training.data_parallelism import resolve_available_device

log = logging.getLogger("contraport.training")


def with_cached_features(components: TrainingComponents, settings: Settings, folder: Path) -> TrainingComponents:
    """Return the run's components with training items replaced by cached features.

    The features are loaded from the cache folder, or computed and written to it.

    The training seed determines the random views. Without augmentation there is one view per item.
    """
    cache_key = _build_cache_key(components, settings)

    def fill(files: Sequence[np.ndarray]) -> None:
        number, megabytes = cache_key["draws"] * len(cache_key["shapes"]), expected_array_bytes(cache_key) / 1e6
        log.info("caching features of %d random views per item in %s: %.1f MB", number, folder, megabytes)
        model, views = components.module.model, components.module.views
        device, bars = resolve_available_device(settings.device), ProgressBars(shown=settings.progress)
        loader_config = LoaderConfig(256, device, settings.num_workers, bars)
        model.to(device)
        views.to(device)
        widths = [shape[-1] for shape in cache_key["shapes"]]
        with fixed_seed(settings.seed, device), inference_mode(model):
            for draw in range(cache_key["draws"]):
                first, title = 0, f"features, draw {draw + 1}"
                outputs = loader_config.iter_outputs_with_batches(
                    lambda *inputs: torch.cat(model.encode(inputs), dim=1), model, views, components.dataset, title
                )
                for part, _ in outputs:
                    check_finite_features(part, first_item=first)
                    for file, features in zip(files, part.split(widths, dim=1), strict=True):
                        file[first : first + len(part), draw] = features.numpy()
                    first += len(part)

    description = "the features of the frozen encoder"
    arrays = load_or_build_arrays(folder, cache_key, fill, description=description, argument="features", log=log)
    dataset = components.dataset.with_store(ArrayStore(tuple(map(torch.from_numpy, arrays))))
    batches = build_batch_loader(settings, dataset, components.module.views, num_workers=0)
    components.module.uses_cached_features = True
    return components._replace(dataset=dataset, batches=batches)


def _build_cache_key(components: TrainingComponents, settings: Settings) -> dict[str, Any]:
    """Return everything that determines the cached features, as JSON values."""
    model, views, items = components.module.model, components.module.views, len(components.dataset)
    draws = 1 if views.augment == "none" else count_draws_to_cache(settings)
    weights = hashlib.sha256()
    for number, encoder in enumerate(model.encoders):
        tower = model.tower(number)
        for name, value in (*encoder.state_dict().items(), ("mean", tower.mean), ("std", tower.std)):
            weights.update(f"{number} {name} {tuple(value.shape)} {value.dtype}".encode())
            weights.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    widths = [model.tower(view).num_features for view in range(len(views.shapes))]
    return {
        "version": __version__,
        "data": digest_for_cache(components.dataset),
        # The architecture includes what weights do not determine, such as activations; without addresses of objects,
        # which differ between processes.
        "networks": [
            hashlib.sha256(re.sub("0[xX][0-9a-fA-F]+", "", repr(each)).encode()).hexdigest() for each in model.encoders
        ],
        "weights": weights.hexdigest(),  # with the input normalization
        "views": [views.augment, [list(shape) for shape in views.shapes]],
        "draws": draws,
        "seed": None if views.augment == "none" else settings.seed,
        "shapes": [[items, draws, width] for width in widths],
        "dtype": "float32",
    }
