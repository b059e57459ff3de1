"""From the settings of a training to its data: items, the random views of them, and batches."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from contraport import distributed
from contraport.catalog.perturbation_specs import parse_corruptions, parse_domains, parse_imbalance, parse_mismatch
from contraport.data import Dataset, Views, load, loader
from contraport.data.arrays import weights_of
from contraport.data.data_loader import Loader, StreamLoader
from contraport.data.formats.array_files import read_npy
from contraport.data.perturbations import (
    assign_domains,
    class_weights,
    corrupted,
    imbalanced,
    mismatched_partners,
    with_partners,
)
from contraport.data.sources.load import is_stream
from contraport.data.splits import Positions, split_positions
from contraport.data.streams import Stream
from contraport.data.views.custom_transforms import Changed, parse_custom_transform
from contraport.data.views.views import COLOUR
from contraport.encoders.view_names import values_per_view
from contraport.errors import UsageError, check
from contraport.objectives import Loss
from contraport.options import is_object_placeholder
from contraport.runs import Run
from contraport.training.config import Settings

log = logging.getLogger("contraport.training")

DRAWS = 4
"""How many random views of each kind and item are kept, unless it is said."""


def steps_to_epochs(settings: Settings, dataset: Dataset, *, chosen: bool) -> Settings:
    """Return the settings with as many epochs as give the steps; of a stream, steps are those of an epoch.

    Args:
        settings: of the training.
        dataset: what is trained on.
        chosen: whether the epochs were given.

    Raises:
        UsageError: a stream without steps, or both steps and epochs of what is no stream.
    """
    if isinstance(dataset, Stream):
        check(settings.steps is not None, "steps: nobody knows how many items a stream has; expected --steps.")
        return settings if chosen or settings.resume else replace(settings, epochs=1)
    if settings.steps is None:
        return settings
    check(not chosen, f"steps: epochs say how long to train, too; expected one of the two, got {settings.steps}.")
    epoch = max(1, math.ceil(len(dataset) // settings.batch_size / settings.grad_accum_steps))
    return replace(settings, epochs=math.ceil(settings.steps / epoch), steps=None)


def check_stream(settings: Settings, stream: Stream, compared: nn.Module | None) -> None:
    """Raise `UsageError` for what needs to know all items, which nobody does of a stream."""
    needs = {
        "negatives": settings.negatives == "bank",
        "target": settings.target is not None and not settings.target.startswith(("pairs", "labels")),
        "teacher": settings.teacher is not None,
        "audit": settings.audit,
        "mismatch": settings.mismatch is not None,
        "objective": isinstance(compared, Loss) and compared.requires_ids,
    }
    wrong = next((name for name, asked in needs.items() if asked), None)
    check(wrong is None, f"{wrong}: needs to know each item, and {stream.name} is a stream.")
    check(
        not settings.num_workers,
        f"num_workers: {stream.name} is a stream, which is read as it comes; got {settings.num_workers}.",
    )


def normalize_freeze(settings: Settings, dataset: Dataset) -> Settings:
    """Return the settings with `freeze` of all views where it names each, so that their features can be kept.

    Raises:
        UsageError: it names a view that is not there, or features are to be kept and some view's encoder learns.
    """
    if isinstance(settings.freeze, Mapping):
        if all(values_per_view("freeze", settings.freeze, dataset.view_names, dataset.shapes)):
            return settings.derive(freeze=True)
        settings.check_kept("freeze of all views with it")
    return settings


def num_cached_draws(settings: Settings) -> int:
    """Return how many random views of each kind and item are kept, 0 where none is.

    Raises:
        UsageError: some are to be kept, and cannot.
    """
    if not settings.freezes_all:
        return 0
    hindered = feature_cache_blocker(settings)
    for argument, given, expected in (
        ("frozen_draws", settings.frozen_draws or None, "0"),
        ("features", settings.features, "none"),
    ):
        check(hindered is None or given is None, f"{argument}: {hindered}; expected {expected}, got {given}.")
    if settings.frozen_draws is None:
        return DRAWS if hindered is None else 0
    return settings.frozen_draws


def feature_cache_blocker(settings: Settings) -> str | None:
    """Return why the features of a frozen encoder cannot be kept, and each step encodes its views; None: they can."""
    if (processes := distributed.world().size) > 1:
        return f"one process keeps features, and there are {processes}"
    if (own := parse_custom_transform(settings.augment)) is not None:
        return f"features are kept by the name of a change, and {own.name} is none"
    if isinstance(settings.data, Stream) or is_stream(settings.data):
        return "features are kept of items whose number is known, and that of a stream is not"
    return None


def build_dataset(settings: Settings, split: str = "train") -> Dataset:
    """Return a split of the data that the settings say.

    Raises:
        UsageError: there are no such data, or they cannot be read as the settings say.
    """
    if settings.data is None:
        raise UsageError("data: expected a name, a folder, a file or a Dataset, got nothing.")
    columns, weights = settings.columns, settings.sample_weight
    if settings.has_column_weights:
        check("weights" not in (columns or {}), "sample_weight: given twice, by itself and in columns.")
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
        _check_as_it_comes(settings, dataset)
    if settings.has_file_weights and dataset.split == "train":
        given = weights_of(f"sample_weight: {weights}", read_npy("sample_weight", str(weights)))
        if len(given) > len(dataset) and len(given) > int(dataset.rows.max()):
            given = given[dataset.rows]  # there is one for each row of the source, those of other splits too
        dataset = dataset.with_weights(given)
    if settings.validation is not None:
        dataset = dataset.only(
            torch.from_numpy(_held_out(dataset, settings.validation, split, purpose="data.validation")), split
        )
    most = settings.max_items if split == "train" or settings.test_items is None else settings.test_items
    if most is not None and most < len(dataset):
        dataset = dataset.only(torch.from_numpy(_held_out(dataset, most / len(dataset), "test", purpose="data.items")))
    return _version(settings, dataset)


def build_held_out_dataset(settings: Settings) -> Dataset | None:
    """Return the items that a training holds out, or None where nothing is held out or known."""
    one_split = isinstance(settings.data, torch.utils.data.Dataset) or is_stream(settings.data)
    if one_split or settings.test_fraction == 0:
        return None
    try:
        return build_dataset(settings, "test")
    except UsageError as error:  # a training does not need them
        log.info("no held-out items are recorded: %s", error)
        return None


def _held_out(dataset: Dataset, share: float, split: str, *, purpose: str) -> Positions:
    """Return the positions of one split of some data of which a share of each class is held out."""
    classes = np.zeros(len(dataset), dtype=np.int64) if dataset.labels is None else dataset.labels.numpy()
    return split_positions(classes, split, fraction=share, purpose=purpose)


def _check_as_it_comes(settings: Settings, stream: Stream) -> None:
    """Raise `UsageError` for what would choose among the items of a stream, or change them."""
    asked = ("sample_weight", "validation", "max_items", "test_items", "imbalance", "given_views", "domains", "corrupt")
    wrong = [
        name
        for name in asked
        if getattr(settings, name) and not (name == "sample_weight" and settings.has_plan_weights)
    ]
    told = f"{stream.name} is a stream, whose items are taken as they come; expected nothing."
    check(not wrong, f"{', '.join(wrong)}: {told}")


def _version(settings: Settings, dataset: Dataset) -> Dataset:
    """Return the items as the settings say that they are to be seen; only training items are left out or weighed."""
    if settings.imbalance is not None and dataset.split == "train":
        dataset = imbalanced(dataset, parse_imbalance(settings.imbalance))
    if settings.given_views:
        dataset = dataset.of_views(settings.given_views, "given_views")
    if settings.domains is not None:
        dataset = assign_domains(dataset, parse_domains(settings.domains))
    if settings.corrupt is not None:
        dataset = corrupted(dataset, *parse_corruptions(settings.corrupt))
    if settings.has_class_weights and dataset.split == "train":
        dataset = dataset.with_weights(class_weights(dataset))
    return dataset


def mismatched(settings: Settings, dataset: Dataset, run: Run | None = None) -> tuple[Dataset, Tensor | None]:
    """Return the training pairs, of which `mismatch` makes some wrong, and the partner of each, if it does.

    A run that goes on keeps the partners that it began with.
    """
    mismatch = None if settings.mismatch is None else parse_mismatch(settings.mismatch)
    if mismatch is None or mismatch.share == 0:
        return dataset, None
    frozen = settings.freezes_all and len(dataset.shapes) == 1
    told = (
        f"mismatch: {settings.freeze_source} keeps features of each item by itself; "
        f"expected no mismatch of random views."
    )
    check(not frozen, told)
    if run is not None and run.mismatched_path.exists():
        partners = torch.from_numpy(run.partners())
    else:
        partners = mismatched_partners(dataset, mismatch, seed=settings.seed)
    return with_partners(dataset, partners), partners


def build_views(settings: Settings, dataset: Dataset) -> Views:
    """Return what makes the random views of some data.

    Raises:
        UsageError: the data have no such views.
    """
    if isinstance(settings.augment, str) and is_object_placeholder(
        settings.augment
    ):  # a folder tells of it, and does not hold it
        views = Views(dataset, augment="none", views=settings.views)
        views.forgotten = settings.augment
        return views
    return Views(dataset, augment=settings.augment, views=settings.views)


def build_plain_views(settings: Settings, dataset: Dataset) -> Views:
    """Return what makes the plain views of some data, of which nothing is changed at random.

    Raises:
        UsageError: the data have no such views.
    """
    return Views(dataset, augment="none", views=settings.views if settings.views == COLOUR else None)


def build_batches(
    settings: Settings, dataset: Dataset, views: Views, *, num_workers: int | None
) -> Loader | StreamLoader:
    """Return the batches of a training; where views are made item by item, batches bring them."""
    if views.on_items and not isinstance(dataset, Stream):
        assert views.own is not None
        dataset = Changed(dataset, views.own, number=views.number, seed=settings.seed)
    return loader(
        dataset,
        settings.batch_size,
        shuffle=True,
        seed=settings.seed,
        num_workers=num_workers,
        drop_last=True,
        shared=True,
        batches=None if settings.steps is None else settings.steps * settings.grad_accum_steps,
    )
