"""Builds the dataset, random views and batches of a training run."""

from __future__ import annotations

import logging
import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from contraport import distributed
from contraport.catalog.data_option_parsers import (
    parse_corruptions,
    parse_domain_shift,
    parse_largest_to_smallest_class_ratio,
    parse_mismatch,
)
from contraport.data import Dataset, Views, build_loader, load
from contraport.data.array_datasets import as_weight_per_item
from contraport.data.data_loader import ClosableDataLoader, StreamLoader
from contraport.data.formats.array_files import read_npy
from contraport.data.mismatches_and_corruptions import (
    assign_shifted_domains,
    class_balanced_sample_weights,
    corrupt_dataset_views,
    draw_mismatched_partners,
    make_imbalanced,
)
from contraport.data.sources.torch_datasets_and_streams import is_stream
from contraport.data.splits import draw_stratified_split
from contraport.data.streams import Stream
from contraport.data.views.custom_transforms import DrawOnLoadDataset, wrap_transform_unless_name
from contraport.data.views.views import COLOR_SPLIT_VIEWS_NAMES
from contraport.encoders.model import resolve_view_index
from contraport.errors import UsageError, check
from contraport.objectives.loss_schedules import ConstantConstraintSchedule, parse_constraint_schedule
from contraport.options import has_object_placeholder
from contraport.runs import WritableRun
from contraport.training.config import Settings

log = logging.getLogger("contraport.training")


def with_epochs_from_steps(settings: Settings, dataset: Dataset, *, has_explicit_epochs: bool) -> Settings:
    """Return settings with `steps` converted to `epochs`, rounded up.

    For a stream, `steps` stays and is the length of an epoch. With `has_explicit_epochs` the user gave `epochs`.

    Raises:
        UsageError: a stream without steps, or both steps and epochs for other data.
    """
    if isinstance(dataset, Stream):
        check(settings.steps is not None, "steps: required for a stream of unknown length, not given.", "missing")
        return settings if has_explicit_epochs or settings.resume else replace(settings, epochs=1)
    if settings.steps is None:
        return settings
    check(not has_explicit_epochs, "steps: cannot be combined with epochs. Give one of the two.", "conflict")
    steps_per_epoch = max(1, count_optimizer_steps_per_epoch(replace(settings, steps=None), dataset))
    return replace(settings, steps=None, epochs=math.ceil(settings.steps / steps_per_epoch))


def count_optimizer_steps_per_epoch(settings: Settings, dataset: Dataset) -> int:
    """Return the number of optimizer steps per epoch, without an incomplete last batch."""
    return settings.steps or math.ceil(len(dataset) // settings.batch_size / settings.grad_accum_steps)


def count_draws_to_cache(settings: Settings) -> int:
    """Return how many augmentations of each item to cache, 0 for none."""
    if not settings.freezes_all_encoders_throughout:
        return 0
    if settings.frozen_draws is None:
        return 4 if feature_cache_unsupported_reason(settings) is None else 0
    return settings.frozen_draws


def feature_cache_unsupported_reason(settings: Settings) -> str | None:
    """Return why frozen encoder features cannot be cached, or None if they can."""
    if (processes := distributed.current_processes().size) > 1:
        return f"the feature cache requires a single process, not {processes}"
    if (own := wrap_transform_unless_name(settings.augment)) is not None:
        return f"the feature cache requires a named augmentation, not {own.name}"
    if isinstance(settings.data, Stream) or is_stream(settings.data):
        return "the feature cache requires data of known length, not a stream"
    return None


def build_dataset(settings: Settings, split: str = "train") -> Dataset:
    """Load a split of the data, with the subset and perturbations that the settings define."""
    if settings.data is None:
        raise UsageError("data: required, not given. Pass a name, a folder or a file.", kind="missing")
    columns, weights = settings.columns, settings.sample_weight
    if settings.sample_weight_source == "column":
        check("weights" not in (columns or {}), "sample_weight: given twice, as an option and in columns.", "duplicate")
        columns = {**(columns or {}), "weights": str(weights)}
    dataset = load(
        settings.data,
        "train" if settings.validation is not None else split,
        root=settings.root,
        image_size=settings.image_size,
        columns=columns,
        test_fraction=settings.test_fraction,
        ignore_labels=settings.ignore_labels,
    )
    if isinstance(dataset, Stream):
        _check_stream_settings(settings, dataset)
    if settings.sample_weight_source == "file" and dataset.split == "train":
        values = as_weight_per_item(f"sample_weight: {weights}", read_npy("sample_weight", str(weights)))
        if len(values) > len(dataset) and len(values) > int(dataset.source_rows.max()):
            values = values[dataset.source_rows]  # one per row of the source, including other splits
        message = f"sample_weight: {weights} must have {len(dataset)} values, one per training item, got {len(values)}."
        check(values.shape == (len(dataset),), message, "shape")
        dataset = dataset.replace_fields(weights=values)
    if settings.validation is not None:
        positions = _draw_split_positions(dataset, settings.validation, split, purpose="data.validation")
        dataset = dataset.subset(positions, split)
    most = settings.max_items if split == "train" or settings.test_items is None else settings.test_items
    if most is not None and most < len(dataset):
        positions = _draw_split_positions(dataset, most / len(dataset), "test", purpose="data.items")
        dataset = dataset.subset(positions)
    if settings.imbalance is not None and dataset.split == "train":
        dataset = make_imbalanced(dataset, parse_largest_to_smallest_class_ratio(settings.imbalance))
    if settings.given_views:
        names, shapes = dataset.view_names, dataset.shapes
        views = [resolve_view_index("given_views", view, names, shapes) for view in settings.given_views]
        message = f"given_views: must name each view once, got {list(settings.given_views)}."
        check(len({*views}) == len(views), message, "duplicate")
        dataset = dataset.select_views(views, "given_views")
    if settings.domains is not None:
        dataset = assign_shifted_domains(dataset, parse_domain_shift(settings.domains))
    if settings.corrupt is not None:
        dataset = corrupt_dataset_views(dataset, *parse_corruptions(settings.corrupt))
    if settings.sample_weight_source == "classes" and dataset.split == "train":
        dataset = dataset.replace_fields(weights=class_balanced_sample_weights(dataset))
    return dataset


def load_test_set_or_none(settings: Settings) -> Dataset | None:
    """Load the test split, or return None if there is none."""
    one_split = isinstance(settings.data, torch.utils.data.Dataset) or is_stream(settings.data)
    if one_split or settings.test_fraction == 0:
        return None
    try:
        return build_dataset(settings, "test")
    except UsageError as error:  # only the record of the split depends on them
        log.info("held-out items: none; %s", str(error).removeprefix("data: "))
        return None


def _draw_split_positions(dataset: Dataset, test_fraction: float, split: str, *, purpose: str) -> Tensor:
    """Return the positions of one split of the items, drawn at random within classes."""
    classes = np.zeros(len(dataset), dtype=np.int64) if dataset.labels is None else dataset.labels.numpy()
    return torch.from_numpy(draw_stratified_split(classes, split, test_fraction=test_fraction, purpose=purpose))


def _check_stream_settings(settings: Settings, stream: Stream) -> None:
    """Raise `UsageError` for settings that streams do not support."""
    constraint = None if settings.constraint is None else parse_constraint_schedule(settings.constraint, 1)
    unsupported = {
        "sample_weight": settings.sample_weight_source not in (None, "plan"),
        "constraint": isinstance(constraint, ConstantConstraintSchedule) and constraint.constraint.requires_ids,
        "negatives": settings.negatives == "bank" or settings.mined_negatives_spec is not None,
        "target": settings.target is not None and not settings.target.startswith(("pairs", "labels")),
    }
    others = ("validation", "max_items", "test_items", "imbalance", "given_views", "domains", "corrupt")
    unsupported |= {name: getattr(settings, name) for name in (*others, "num_workers", "teacher", "audit", "mismatch")}
    wrong = next((name for name, is_used in unsupported.items() if is_used), None)
    check(wrong is None, f"{wrong}: not supported for streams, such as {stream.name}.", "stream")


def load_or_draw_mismatched_partners(
    settings: Settings, dataset: Dataset, resumed_run: WritableRun | None = None
) -> Tensor | None:
    """Return each item's mismatched partner, or None without simulated mismatches.

    Partners that `resumed_run` has stored are loaded. Those drawn here are not stored.
    """
    mismatch = None if settings.mismatch is None else parse_mismatch(settings.mismatch)
    if mismatch is None or mismatch.share == 0:
        return None
    frozen = settings.freezes_all_encoders_throughout and len(dataset.shapes) == 1
    # Features are cached per item, so that random views of two items cannot be paired.
    check(not frozen, f"mismatch: cannot be combined with {settings.freezing_cause} for random views.", "frozen")
    if resumed_run is not None and resumed_run.mismatched_path.exists():
        return torch.from_numpy(resumed_run.partners_after_mismatch())
    return draw_mismatched_partners(dataset, mismatch, seed=settings.seed)


def build_views(settings: Settings, dataset: Dataset) -> Views:
    """Build the module that makes random views of each batch."""
    # A placeholder stands for a callable in config.yaml.
    if isinstance(settings.augment, str) and has_object_placeholder(settings.augment):
        views = Views(dataset, augment="none", views=settings.views)
        views.missing_transform_name = settings.augment
        return views
    return Views(dataset, augment=settings.augment, views=settings.views)


def build_unaugmented_views(settings: Settings, dataset: Dataset) -> Views:
    """Build the module that makes views of each batch without augmentation."""
    return Views(dataset, augment="none", views=settings.views if settings.views in COLOR_SPLIT_VIEWS_NAMES else None)


def build_batch_loader(
    settings: Settings, dataset: Dataset, views: Views, *, num_workers: int | None
) -> ClosableDataLoader | StreamLoader:
    """Build the loader of the training batches."""
    if views.is_transform_applied_by_dataset and not isinstance(dataset, Stream):
        assert views.custom is not None
        dataset = DrawOnLoadDataset(dataset, views.custom, num_views=views.num_views_per_source, seed=settings.seed)
    return build_loader(
        dataset,
        settings.batch_size,
        shuffle=True,
        seed=settings.seed,
        num_workers=num_workers,
        drop_last=True,
        split_over_processes=True,
        batches_per_epoch=None if settings.steps is None else settings.steps * settings.grad_accum_steps,
    )
