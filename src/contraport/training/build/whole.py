"""A training built as a whole, and checked before any of it is."""

from __future__ import annotations

import math
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from contraport.data import BatchOrder, Dataset
from contraport.data.loading import Loader, StreamLoader
from contraport.data.streams import Stream
from contraport.embedding import Reader
from contraport.encoders import Initial
from contraport.encoders.adapters import check_adapts
from contraport.errors import check, check_file
from contraport.objectives import Objective
from contraport.objectives.schedules import parse_constraint
from contraport.objectives.weighting import parse_weights
from contraport.pairs import Decoyed, with_decoys
from contraport.runs import Run
from contraport.training.build.objective_parts import build_objective
from contraport.training.build.pipeline_parts import build_pipeline
from contraport.training.build.training_data import build_batches, build_dataset, check_stream, draws_kept, mismatched
from contraport.training.callbacks.loggers import check_loggers
from contraport.training.config import Settings
from contraport.training.optimization import check_optimizer
from contraport.training.parallel import check_strategy
from contraport.training.step.gradient_cache import check_chunks
from contraport.training.step.pair_filter import Auditor
from contraport.training.step.pipeline import Pipeline
from contraport.training.step.target_spec import read_target


class Built(NamedTuple):
    """What a training is made of.

    Attributes:
        dataset: what is trained on.
        batches: gives its items.
        pipeline: makes the loss of a batch.
        epoch: how many steps one has.
        auditor: judges the pairs between epochs, where that is asked for.
        notes: what there is to say of it before it begins.
        partners: which item each is paired with, where pairs were mismatched.
    """

    dataset: Dataset
    batches: Loader | StreamLoader
    pipeline: Pipeline
    epoch: int
    auditor: Auditor | None = None
    notes: tuple[str, ...] = ()
    partners: Tensor | None = None


def build(
    settings: Settings,
    begun: Initial | None = None,
    dataset: Dataset | None = None,
    *,
    compared: nn.Module | None = None,
    run: Run | None = None,
) -> Built:
    """Return what the settings say; torch's random state stays as it is.

    Args:
        settings: of the training.
        begun: the weights that the encoders begin with, as `build_initial` gives them.
        dataset: what is trained on; default: it is built too.
        compared: the objective, as `check_parts` returns it; default: it is built too.
        run: the one that goes on, if one does; its folder keeps what encoders of transformers are built of.

    Raises:
        UsageError: settings that do not fit the data or one another.
    """
    compared = build_objective(settings) if compared is None else compared
    dataset = build_dataset(settings) if dataset is None else dataset
    if isinstance(dataset, Stream):
        check_stream(settings, dataset, compared)
    dataset, partners = mismatched(settings, dataset, run)
    if settings.audit:
        dataset = with_decoys(dataset, seed=settings.seed)
    if settings.cache_chunk is not None:
        check_chunks(settings.batch_size, settings.cache_chunk)
    few = f"batch_size: expected at most the {len(dataset)} items of {dataset.name!r}, got {settings.batch_size}."
    check(isinstance(dataset, Stream) or settings.batch_size <= len(dataset), few)
    draws_kept(settings)
    epoch = settings.steps or math.ceil(len(dataset) // settings.batch_size / settings.accumulate)
    kept = None if run is None else run.initial_path
    pipeline = build_pipeline(settings, dataset, compared, epoch=epoch, begun=begun, kept=kept)
    batches, auditor = build_batches(settings, dataset, pipeline.views, workers=settings.workers), None
    if isinstance(dataset, Decoyed):
        order = cast(BatchOrder, batches.batch_sampler)
        auditor = Auditor(dataset, pipeline, order, epochs=settings.epochs, reader=Reader(workers=settings.workers))
    return Built(dataset, batches, pipeline, epoch, auditor, partners=partners)


def check_parts(settings: Settings) -> nn.Module | None:
    """Check what only the parts of a training can judge, and this machine, before any data are read.

    Returns:
        The objective, which is built for it, or None where nothing is compared.

    Raises:
        UsageError: one of them refuses its setting.
    """
    if settings.constraint is not None:
        parse_constraint(settings.constraint, 1)
    if settings.target is not None:
        read_target(settings.target)
    compared = build_objective(settings)
    seen = settings.constraint is None or not isinstance(compared, Objective) or compared.by_constraint
    told = "constraint: expected none, as the objective judges the kernel alone, whichever plans are allowed; got"
    check(seen, f"{told} {settings.constraint!r}.")
    if settings.teacher is not None:
        check_file("teacher", settings.teacher)
    if settings.weighs_by_plan:
        parse_weights(str(settings.weights), 1)
    if settings.weighs_by_file:
        check_file("weights", str(settings.weights))
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    check(there.get(settings.device, True), f"device: this machine has no {settings.device!r}.")
    if settings.lora is not None:
        check_adapts()
    check_optimizer(settings.opt, settings.lr)
    check_strategy(settings)
    check_loggers(settings.logger)
    draws_kept(settings)
    return compared
