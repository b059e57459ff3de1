"""A training built as a whole, and checked before any of it is."""

from __future__ import annotations

import math
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from contraport.auditing.pairs import DecoyDataset, add_decoys
from contraport.auditing.pairs.pair_filter import PairFilter
from contraport.data import BatchOrder, Dataset
from contraport.data.data_loader import Loader, StreamLoader
from contraport.data.streams import Stream
from contraport.embedding import LoaderConfig
from contraport.encoders import InitialWeights
from contraport.encoders.lora import check_peft_installed
from contraport.errors import check, check_existing_file
from contraport.objectives import Objective
from contraport.objectives.loss_schedules import parse_constraint
from contraport.objectives.plan_weights import parse_plan_weights
from contraport.runs import Run
from contraport.training.callbacks.loggers import check_loggers
from contraport.training.components.data_builder import (
    build_batches,
    build_dataset,
    check_stream,
    mismatched,
    num_cached_draws,
)
from contraport.training.components.objective_builder import build_objective
from contraport.training.components.step_builder import build_pipeline
from contraport.training.config import Settings
from contraport.training.optimization import check_optimizer
from contraport.training.parallel import check_strategy
from contraport.training.step.gradient_cache import check_chunk_size
from contraport.training.step.target_spec import parse_target_spec
from contraport.training.step.training_module import TrainingModule


class Components(NamedTuple):
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
    pipeline: TrainingModule
    epoch: int
    auditor: PairFilter | None = None
    notes: tuple[str, ...] = ()
    partners: Tensor | None = None


def build(
    settings: Settings,
    begun: InitialWeights | None = None,
    dataset: Dataset | None = None,
    *,
    compared: nn.Module | None = None,
    run: Run | None = None,
) -> Components:
    """Return what the settings say; torch's random state stays as it is.

    Args:
        settings: of the training.
        begun: the weights that the encoders begin with, as `load_initial_weights` gives them.
        dataset: what is trained on; default: it is built too.
        compared: the objective, as `check_components` returns it; default: it is built too.
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
        dataset = add_decoys(dataset, seed=settings.seed)
    if settings.cache_chunk is not None:
        check_chunk_size(settings.batch_size, settings.cache_chunk)
    few = f"batch_size: expected at most the {len(dataset)} items of {dataset.name!r}, got {settings.batch_size}."
    check(isinstance(dataset, Stream) or settings.batch_size <= len(dataset), few)
    num_cached_draws(settings)
    epoch = settings.steps or math.ceil(len(dataset) // settings.batch_size / settings.grad_accum_steps)
    kept = None if run is None else run.initial_path
    pipeline = build_pipeline(settings, dataset, compared, epoch=epoch, begun=begun, kept=kept)
    batches, auditor = build_batches(settings, dataset, pipeline.views, num_workers=settings.num_workers), None
    if isinstance(dataset, DecoyDataset):
        order = cast(BatchOrder, batches.batch_sampler)
        auditor = PairFilter(
            dataset, pipeline, order, epochs=settings.epochs, reader=LoaderConfig(num_workers=settings.num_workers)
        )
    return Components(dataset, batches, pipeline, epoch, auditor, partners=partners)


def check_components(settings: Settings) -> nn.Module | None:
    """Check what only the parts of a training can judge, and this machine, before any data are read.

    Returns:
        The objective, which is built for it, or None where nothing is compared.

    Raises:
        UsageError: one of them refuses its setting.
    """
    if settings.constraint is not None:
        parse_constraint(settings.constraint, 1)
    if settings.target is not None:
        parse_target_spec(settings.target)
    compared = build_objective(settings)
    seen = settings.constraint is None or not isinstance(compared, Objective) or compared.depends_on_constraint
    told = "constraint: expected none, as the objective judges the kernel alone, whichever plans are allowed; got"
    check(seen, f"{told} {settings.constraint!r}.")
    if settings.teacher is not None:
        check_existing_file("teacher", settings.teacher)
    if settings.has_plan_weights:
        parse_plan_weights(str(settings.sample_weight), 1)
    if settings.has_file_weights:
        check_existing_file("sample_weight", str(settings.sample_weight))
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    check(there.get(settings.device, True), f"device: this machine has no {settings.device!r}.")
    if settings.lora is not None:
        check_peft_installed()
    check_optimizer(settings.optimizer, settings.lr)
    check_strategy(settings)
    check_loggers(settings.logger)
    num_cached_draws(settings)
    return compared
