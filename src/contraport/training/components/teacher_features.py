"""Teacher features of items, read from a file or computed."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from contraport.data import Dataset, Views
from contraport.embedding import LoaderConfig, check_views_fit_model, extract_item_features
from contraport.encoders import Model, read_initial_weights
from contraport.encoders.initial_weights import EncoderWeights
from contraport.errors import check
from contraport.runs import Run, as_run_folder
from contraport.seeding import fork_rng_with_lock
from contraport.training.step.target_parser import read_teacher_features

log = logging.getLogger("contraport.training")


class _Teacher(NamedTuple):
    """Frozen teacher model, with the size to which its images are resized."""

    model: Model
    resized_image_size: int | None


def _load_teacher(folder: Path | Run, dataset: Dataset, *, trust_remote_code: bool) -> _Teacher:
    """Load a teacher from a run or model folder.

    An encoder of timm takes images of its own size, and any number of channels as if a training run started from it.
    """
    if isinstance(folder, Run) or (folder / "config.yaml").exists():
        return _Teacher(as_run_folder(folder).model(trust_remote_code=trust_remote_code), None)
    weights = read_initial_weights(folder, None, trust_remote_code=trust_remote_code)
    size = None if not dataset.is_first_view_image else weights.common_image_size
    shapes = [(*shape[:1], size, size) if size and len(shape) == 3 else shape for shape in dataset.shapes]
    views = Views(dataset, augment="none")
    is_one_encoder = isinstance(weights.encoders, EncoderWeights) or len(weights.encoders) == 1
    shared = len(set(shapes)) == 1 and len(shapes) > 1 and is_one_encoder
    statistics = views.compute_means_and_stds()[: 1 if shared else None]
    statistics = weights.resolve_input_statistics(statistics, dataset.view_names, shapes)
    if size is not None and isinstance(weights.encoders, EncoderWeights) and weights.encoders.input_statistics:
        # Gray images get the mean statistics of the colors, as their convolution gets the sum of the weights.
        means = [[sum(values) / len(values)] for values in weights.encoders.input_statistics]
        statistics = [(means[0], means[1]) if len(own[0]) == 1 else own for own in statistics]
    mean, std = ([values[which] for values in statistics] for which in (0, 1))
    weights_by_tower = weights.list_tower_weights(len(statistics), dataset.view_names, shapes)
    with fork_rng_with_lock([]):  # constructing a model draws weights before they are replaced
        model = Model(
            weights.encoder_names, shapes, 0, mean, std,
            shared=shared, low_resolution=weights.any_has_low_resolution_stem, view_names=dataset.view_names,
            encoder_folders=[one.transformers_folder for one in weights_by_tower],
        )  # fmt: skip
    weights.load_into(model)
    own = [shape for shape in dataset.shapes if len(shape) == 3]
    return _Teacher(model.eval(), size if any(shape[1:] != (size, size) for shape in own) else None)


def get_teacher_features(
    argument: str,
    source: str | Path | Run,
    dataset: Dataset,
    loader_config: LoaderConfig,
    *,
    views: int | None = None,
    trust_remote_code: bool = False,
) -> Tensor:
    """Return a teacher's features, ``(items, k)`` or ``(items, views, k)``.

    A folder's encoder embeds the views without augmentation: in its space of projections, if it has several views, else
    by its features.

    Args:
        argument: name of the option, for error messages.
        source: a folder of a run, of `Model.save_pretrained`, of timm or of transformers; or a file, see
            `read_teacher_features`.
        dataset: the items.
        loader_config: loads the items.
        views: number of views, if a file may have features per view.
        trust_remote_code: import and run the encoder that a folder names as ``module:attribute``.

    Raises:
        UsageError: the source cannot be read, or is for other items or views.
    """
    if not isinstance(source, Run) and not Path(source).is_dir():
        return read_teacher_features(argument, str(source), dataset, views=views)
    folder = source if isinstance(source, Run) else Path(source)
    if isinstance(folder, Path):
        has_model = any((folder / name).is_file() for name in ("config.yaml", "config.json", "model/config.json"))
        message = f"{argument}: {folder} must be a run folder or a model folder; it has no config.json."
        check(has_model, message, "no_model")
    model, size = _load_teacher(folder, dataset, trust_remote_code=trust_remote_code)
    dataset = dataset.order_columns_as(model.column_names)
    plain = Views(dataset, augment="none")
    if size is None:
        check_views_fit_model(model, dataset, plain)
    number = len(dataset.shapes)
    towers = [model.tower(view) for view in range(len(model.shapes))]
    widths = [tower.projection_width if number > 1 else tower.num_features for tower in towers]

    def embed(*inputs: Tensor) -> Tensor:
        features = model.encode(inputs)
        return torch.cat(model.project(features) if number > 1 else features, dim=1)

    def prepare(stored: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        standard = plain.make_unaugmented(stored)
        if size is None:
            return standard
        resize = partial(F.interpolate, size=(size, size), mode="bilinear", antialias=True)
        return tuple(resize(view) if view.ndim == 4 else view for view in standard)

    values = extract_item_features(model, dataset, plain, loader_config, "teacher", prepare=prepare, function=embed)
    message = f"{argument}: {source} must embed all views in one space, got features of sizes {widths}."
    check(values.shape[1] % number == 0 and len(set(widths)) == 1, message, "several_spaces")
    return values if number == 1 else values.unflatten(1, (number, -1))


def normalize_and_resize_by_svd(features: Tensor, width: int) -> Tensor:
    """Normalize features ``(n, k)`` and reduce them by truncated SVD, ``(n, width)``.

    They are not centered. Features per view, ``(n, views, k)``, are averaged first. Smaller features get coordinates of
    zero.

    >>> features = torch.tensor([[3.0, 0.0, 4.0], [0.0, 1.0, 0.0]])
    >>> reduced = normalize_and_resize_by_svd(features, 2)
    >>> torch.allclose(reduced @ reduced.T, torch.eye(2), atol=1e-6)
    True
    """
    unit = F.normalize(features if features.ndim == 2 else F.normalize(features, dim=2).mean(1), dim=1)
    if unit.shape[1] <= width:
        return F.pad(unit, (0, width - unit.shape[1]))
    # Not centered: the truncated singular value decomposition is the best approximation of the inner products.
    values, vectors = torch.linalg.eigh(unit.double().T @ unit.double())
    share = values[-width:].sum() / values.sum()
    log.info("The teacher's %d features are reduced to %d, with %.1f%% of the square.", len(values), width, 100 * share)
    reduced: Tensor = unit @ vectors[:, -width:].float()
    return reduced
