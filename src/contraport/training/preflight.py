"""Preflight of a training: logs its items and steps, and warns of too few to learn from."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from contraport._utils.formatting import format_flags, pluralize
from contraport._utils.text_tensors import is_text_shape
from contraport.catalog import DATASETS
from contraport.data import Dataset
from contraport.data.streams import Stream
from contraport.encoders.view_names import values_per_view
from contraport.options import is_object_placeholder, to_config_value
from contraport.training.config import Settings
from contraport.training.step.training_module import TrainingModule

FEW_STEPS = 200
"""With fewer steps an encoder has hardly left where it began."""

ENOUGH_STEPS = 1_000
"""So many are proposed where there are few."""

FEW_IMAGES = 5_000
"""Fewer items than these teach an encoder from nothing little that other items share."""

COLOURS = 3
"""Channels of a photo, as those are on which others trained; images of other numbers may be like none of these."""

LEAST_BATCH = 32
"""No smaller batch is proposed: an item is to be told from some others."""

_TRIED = 4
"""With so many items it is tried whether their views differ."""

log = logging.getLogger("contraport.training")


def preflight(
    settings: Settings,
    dataset: Dataset,
    pipeline: TrainingModule,
    *,
    steps: int,
    given: Mapping[str, Any],
    path: Path | None = None,
) -> None:
    """Log what will happen, and warn, with what to do, of too few steps or too small batches.

    Args:
        settings: of the training.
        dataset: what is trained on.
        pipeline: makes the loss of a batch.
        steps: of the whole training.
        given: what the call gave, which the command that is proposed begins with.
        path: the folder that the run has taken, if it has one.
    """
    if dataset.held_out:
        are = "is" if dataset.held_out == 1 else "are"
        log.info("%s more %s held out for evaluation (--test_fraction)", f"{dataset.held_out:,}", are)
    elif dataset.held_out is None and isinstance(settings.data, str | Path):
        log.info("evaluation is on the test split of the data")
    size, epochs = settings.batch_size, settings.epochs
    if isinstance(dataset, Stream):
        log.info("%s of %d items, as the stream gives them", pluralize(steps, "step"), size * settings.grad_accum_steps)
        return
    batches, left_out = divmod(len(dataset), size)
    summed = f", {settings.grad_accum_steps} to a step" if settings.grad_accum_steps > 1 else ""
    rest = f"; each epoch leaves out {pluralize(left_out, 'item')}, chosen anew" if left_out else ""
    taken = f"{pluralize(epochs, 'epoch')} of {pluralize(batches, 'batch', 'batches')} of {pluralize(size, 'item')}"
    log.info("%s: %s%s%s", pluralize(steps, "step"), taken, summed, rest)
    changes: dict[str, Any] = {}
    if steps < FEW_STEPS:
        changes, enough = proposal(len(dataset), size, epochs, given)
        told = f"{format_flags(changes)} makes {enough:,} steps"
        log.warning("few steps: %d; below about %d little is learned. %s", steps, FEW_STEPS, told)
    if not settings.resume and (advice := encoder_advice(settings, dataset, given, changes, path)):
        log.warning("%s", advice)
    if not settings.resume and (advice := text_advice(dataset, given)):
        log.warning("%s", advice)
    if doubt := pipeline.comparison.doubt(size):
        log.warning("%s", doubt)
    if views_are_identical(pipeline, dataset):
        log.warning(
            "the views of an item are the same: --augment none changes nothing, and the encoder, which has no dropout "
            "or is held, draws nothing; nothing is learned of what items share. --augment standard makes views that "
            "differ"
        )


@torch.random.fork_rng(devices=[])
@torch.no_grad()
def views_are_identical(pipeline: TrainingModule, dataset: Dataset) -> bool:
    """Return whether the random views of an item that is given as one have equal features at the first step."""
    views, model = pipeline.views, pipeline.model
    if views.augment != "none" or len(views.plain_shapes) > 1 or dataset.paired:
        return False
    items = dataset.__getitems__(list(range(min(len(dataset), _TRIED)))).views
    norms = [part for part in model.modules() if isinstance(part, _BatchNorm) and part.training]
    for norm in norms:  # whose statistics are those of the training alone
        norm.eval()
    first, *others = model.encode(views(items))
    for norm in norms:
        norm.train()
    return all(torch.equal(first, other) for other in others)


def proposal(
    items: int, batch_size: int, epochs: int, given: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], int]:
    """Return options that give enough steps, and how many: batches of a quarter of the items at most, epochs enough.

    A run that goes on keeps its batches, and who gave a number of steps is told one.

    >>> proposal(320, 256, 10)
    ({'batch_size': 64, 'epochs': 200}, 1000)
    """
    given = given or {}
    size = batch_size if given.get("resume") else suggest_batch_size(items, batch_size)
    batches = items // size
    enough = max(epochs, math.ceil(ENOUGH_STEPS / batches))
    smaller = {"batch_size": size} if size != batch_size else {}
    longer = {"steps": enough * batches} if given.get("steps") is not None else {"epochs": enough}
    return smaller | longer, enough * batches


def suggest_batch_size(items: int, most: int) -> int:
    """Return how many items a batch of few items has: the power of two in a quarter of them, but `LEAST_BATCH`.

    In larger batches few items make hardly any steps. Items that do not make two batches are one.

    >>> [suggest_batch_size(items, 256) for items in (48, 100, 200, 600, 9_000)]
    [48, 32, 32, 128, 256]
    """
    if items < 2 * LEAST_BATCH:
        return min(most, items)
    quarter: int = 2 ** ((items // 4).bit_length() - 1)
    return min(most, max(LEAST_BATCH, quarter))


def again(given: Mapping[str, Any], changes: Mapping[str, Any], path: Path | None = None) -> str:
    """Return the command of a call with some changes; the changes alone where a command cannot say the call.

    Args:
        given: what the call gave.
        changes: options in place of these or beside them.
        path: the folder that the call has taken, if it has one: the command names another.

    >>> print(again({"data": "my photos", "target": "labels"}, {"encoder": "gradients"}, Path("runs/a")))
    contraport train --data 'my photos' --target labels --encoder gradients --out runs/a-gradients
    """
    written = {name: to_config_value(value) for name, value in given.items()}
    if not written.get("data") or any(map(is_object_placeholder, written.values())):
        return format_flags(changes)
    if path is not None and not given.get("overwrite"):
        changes = {**changes, "out": f"{path}-{changes['encoder']}"}
    return f"contraport train {format_flags({**written, **changes})}"


def text_advice(dataset: Dataset, given: Mapping[str, Any]) -> str | None:
    """Return what suits pairs of texts better than the defaults; None for other data, or where a way was chosen."""
    chosen = given.keys() & {"objective", "objective_settings", "temperature", "recipe", "projection"}
    if chosen or len(dataset.shapes) < 2 or not all(map(is_text_shape, dataset.shapes)):
        return None
    way = format_flags(
        {"objective": "info-nce", "temperature": 0.05, "projection": 0}
    )  # docs/text.md has what each does
    return f"texts that belong together: as a rule more of their partners are found with {way}"


def _is_of_images(weights: Any, dataset: Dataset) -> bool:
    """Return whether the weights to begin with, of all views or by what these are called, are of one of images."""
    if not isinstance(weights, Mapping):
        return bool(weights)
    each = values_per_view("encoder", weights, dataset.view_names, dataset.shapes)
    return any(own and len(shape) == 3 for own, shape in zip(each, dataset.shapes, strict=True))


def encoder_advice(
    settings: Settings,
    dataset: Dataset,
    given: Mapping[str, Any],
    changes: Mapping[str, Any] | None = None,
    path: Path | None = None,
) -> str | None:
    """Return which encoder suits few images better, and why; None where there are many, or where it was chosen so.

    None for named data too: they are there to try things, and what is tried is as a rule not the encoder.

    Args:
        settings: of the training.
        dataset: what is trained on.
        given: what the call gave.
        changes: the options that give enough steps, where there are few.
        path: the folder that the run has taken, if it has one.
    """
    items = len(dataset)
    named = isinstance(settings.data, str) and settings.data in DATASETS
    if items >= FEW_IMAGES or not dataset.is_image or settings.freezes or named:
        return None
    if _is_of_images(settings.pretrained, dataset) or _is_of_images(settings.init, dataset):
        held = settings.freeze_epochs > 0 or settings.encoder_lr_scale < 1 or settings.lora is not None
        return (
            None
            if held
            else f"few images: {items:,}; by training on so few a pretrained encoder soon forgets what it knew: "
            "--freeze holds it fixed, --encoder_lr_scale 0.1 lets it learn slowly"
        )
    if not (settings.encoder is None or isinstance(settings.encoder, str)) or ":" in str(settings.encoder):
        return None  # which may bring weights
    few = f"few images: {items:,}, too few to train an encoder from scratch"
    if len(dataset.shapes) > 1:
        of = "" if len(set(dataset.shapes)) == 1 else ".image"  # views of other kinds keep their own encoders
        return (
            f"{few}; a pretrained one knows more: --encoder{of} resnet18 --pretrained{of} --freeze{of}, or "
            f"--init{of} with a file, a folder or a run"
        )
    # Views mixed with others teach which edges are an item's own; crops of few images cost neighbours, by
    # examples/photos.py. Other views that someone asked for, or their recipe, stay.
    mixed = {"augment": "mixup"} if settings.augment is None and settings.views is None else {}
    edges, trained = {"encoder": "gradients", **mixed}, {"encoder": "resnet18", "pretrained": True, "freeze": True}
    is_photo = dataset.shapes[0][0] == COLOURS
    command = again(given, {**(trained if is_photo else edges), **(changes or {})}, path)
    others = "--init with a file, a folder or a run"
    if is_photo:
        return (
            f"{few}; better is one that others trained, frozen: {command}, or {others}. Without such weights take "
            f"{format_flags(edges)}, which describes edges and hues and has nothing to learn but its projection"
        )
    return (
        f"{few}; better is one that describes edges and hues and has nothing to learn but its projection: {command}. "
        f"Weights that others trained may do better still: {format_flags(trained)}, or {others}"
    )
