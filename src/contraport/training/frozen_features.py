"""A training whose encoder is frozen, on features: random views of each item are encoded once, and then drawn from."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from contraport._utils.array_cache import load_or_build_arrays, total_bytes
from contraport._utils.progress import ProgressBars
from contraport._version import __version__
from contraport.data import Dataset, Views, loader
from contraport.data.image_cache import dataset_digest
from contraport.embedding import LoaderConfig, check_finite, evaluation_mode, fixed_seed
from contraport.encoders import Model
from contraport.training.components import Components, num_cached_draws
from contraport.training.config import Settings
from contraport.training.parallel import resolve_device
from contraport.training.step.feature_cache import CachedFeatures

log = logging.getLogger("contraport.training")

_ADDRESS = re.compile(r"0x[0-9a-f]+", re.IGNORECASE)


def use_cached_features(built: Components, settings: Settings, folder: Path) -> Components:
    """Return the same training on features of its items, which are taken from a folder, or made and put there.

    The features of an item are those of random views that the seed of the training draws; of views that nothing
    changes at random there is one draw.

    Args:
        built: the training, whose encoder is frozen.
        settings: of it.
        folder: where the features are kept.

    Raises:
        UsageError: a feature is not finite, or the folder cannot be written to.
    """
    views = built.pipeline.views
    draws = 1 if views.augment == "none" else num_cached_draws(settings)
    made_of = _made_of(built, settings, views, draws)
    arrays = load_or_build_arrays(
        folder,
        made_of,
        lambda files: _fill(files, built, settings, views, folder, made_of),
        what="the features of the frozen encoder",
        argument="features",
        log=log,
    )
    dataset = built.dataset.with_store(CachedFeatures(arrays))
    batches = loader(
        dataset, settings.batch_size, shuffle=True, seed=settings.seed, num_workers=0, drop_last=True, shared=True
    )
    built.pipeline.encoded = True
    return built._replace(dataset=dataset, batches=batches)


def _fill(
    files: Sequence[np.ndarray],
    built: Components,
    settings: Settings,
    views: Views,
    folder: Path,
    made_of: Mapping[str, Any],
) -> None:
    model, shapes = built.pipeline.model, made_of["shapes"]
    log.info(
        "encoding %d random views of each item once, into %s: %.1f MB",
        made_of["draws"] * len(shapes),
        folder,
        total_bytes(made_of) / 1e6,
    )
    reader = LoaderConfig(
        256, resolve_device(settings.device), settings.num_workers, ProgressBars(shown=settings.progress)
    )
    model.to(reader.device)
    views.to(reader.device)
    with fixed_seed(settings.seed, reader.device), evaluation_mode(model):
        for draw in range(made_of["draws"]):
            first = 0
            for part in _encoded(model, views, built.dataset, reader, f"features, draw {draw + 1}"):
                check_finite(part)
                for file, features in zip(files, part.split([shape[-1] for shape in shapes], dim=1), strict=True):
                    file[first : first + len(part), draw] = features.numpy()
                first += len(part)


def _encoded(model: Model, views: Views, dataset: Dataset, reader: LoaderConfig, told: str) -> Iterator[Tensor]:
    """Yield the features of a random draw of all views, side by side, of some items after the other."""

    def encode(*given: Tensor) -> Tensor:
        return torch.cat(model.encode(given), dim=1)

    return (part for part, _ in reader.iterate_batches(encode, model, views, dataset, told))


def _made_of(built: Components, settings: Settings, views: Views, draws: int) -> dict[str, Any]:
    """Return what features are made of, as JSON has it: as long as it is the same, they are."""
    model, items = built.pipeline.model, len(built.dataset)
    widths = [model.tower(view).num_features for view in range(len(views.shapes))]
    return {
        "version": __version__,
        "data": dataset_digest(built.dataset),
        "networks": [_described(encoder) for encoder in model.encoders],
        "weights": _digest_of_weights(model),
        "views": [views.augment, [list(shape) for shape in views.shapes]],
        "draws": draws,
        "seed": None if views.augment == "none" else settings.seed,
        "shapes": [[items, draws, width] for width in widths],
        "dtype": "float32",
    }


def _described(encoder: nn.Module) -> str:
    """Return a digest of what an encoder is made of beside its weights, which are the same under another activation."""
    return hashlib.sha256(_ADDRESS.sub("", repr(encoder)).encode()).hexdigest()


def _digest_of_weights(model: Model) -> str:
    """Return a digest of all that an item passes on its way to its features."""
    digest = hashlib.sha256()
    for number, encoder in enumerate(model.encoders):
        tower = model.tower(number)
        for name, value in (*encoder.state_dict().items(), ("mean", tower.mean), ("std", tower.std)):
            digest.update(f"{number} {name} {tuple(value.shape)} {value.dtype}".encode())
            digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
