"""Assembles all components of a training run from its settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, cast

from torch import Tensor, nn

from contraport.auditing.pairs.mismatch_dropping_callback import AuditCallback, MismatchDroppingCallback
from contraport.auditing.pairs.synthetic_mismatches import DatasetWithDecoysPastEnd, add_decoys, check_auditable_dataset
from contraport.auditing.pairs.view_audit_callback import ViewAuditCallback
from contraport.data import BatchOrder, Dataset
from contraport.data.data_loader import ClosableDataLoader, StreamLoader
from contraport.data.mismatches_and_corruptions import replace_views_after_first
from contraport.data.streams import Stream
from contraport.embedding import LoaderConfig
from contraport.encoders import InitialWeights
from contraport.errors import check, check_existing_file, import_optional
from contraport.objectives import Loss, Objective
from contraport.objectives.loss_schedules import parse_constraint_schedule, parse_sample_weight_schedule
from contraport.runs import WritableRun
from contraport.training.callbacks.negative_miner import NegativeMiner
from contraport.training.components.data_builder import (
    build_batch_loader,
    build_dataset,
    count_optimizer_steps_per_epoch,
    feature_cache_unsupported_reason,
    load_or_draw_mismatched_partners,
)
from contraport.training.components.step_builder import build_objective, build_training_module
from contraport.training.config import Settings
from contraport.training.data_parallelism import check_strategy_and_exchange, resolve_available_device
from contraport.training.optimization import check_optimizer_and_required_lr
from contraport.training.step.batch_embedding import check_min_items_per_chunk
from contraport.training.step.target_parser import parse_target_spec
from contraport.training.step.training_module import TrainingModule


class TrainingComponents(NamedTuple):
    """Components of a training run, such as data and training module.

    Attributes:
        steps_per_epoch: number of optimizer steps per epoch.
        audit_callback: filter of the online audit, which drops suspected mismatches; None without `audit`.
        negative_miner: miner of hard negatives; None without mined negatives.
        adjustment_notes: notes on adjusted settings, for the log.
        mismatched_partners: partner of each item if pairs were mismatched on purpose, (n,); None otherwise.
    """

    dataset: Dataset
    batches: ClosableDataLoader | StreamLoader
    module: TrainingModule
    steps_per_epoch: int
    audit_callback: MismatchDroppingCallback[Any] | None = None
    negative_miner: NegativeMiner | None = None
    adjustment_notes: tuple[str, ...] = ()
    mismatched_partners: Tensor | None = None


def build_components(
    settings: Settings,
    initial_weights: InitialWeights | None = None,
    dataset: Dataset | None = None,
    *,
    objective: nn.Module | None = None,
    run: WritableRun | None = None,
) -> TrainingComponents:
    """Build all components of a training run from its settings.

    Torch's global random state does not change.

    Args:
        settings: settings of the training run.
        initial_weights: initial weights of the encoders, see `load_initial_weights`.
        dataset: the training items; default: built from the settings.
        objective: the objective, see `build_objective`; default: built from the settings.
        run: the existing run, if any; its folder has mismatched partners and the architecture of transformers encoders.

    Raises:
        UsageError: settings that do not fit the data or one another.
    """
    objective = build_objective(settings) if objective is None else objective
    dataset = build_dataset(settings) if dataset is None else dataset
    is_stream = isinstance(dataset, Stream)
    requires_ids = isinstance(objective, Loss) and objective.requires_ids
    check(not (is_stream and requires_ids), f"objective: not supported for streams, such as {dataset.name}.", "stream")
    limit = f"{len(dataset)}, the number of items of {dataset.name!r}"
    message = f"batch_size: must be at most {limit}, got {settings.batch_size}."
    check(is_stream or settings.batch_size <= len(dataset), message, "few_items")
    if settings.cache_chunk is not None:
        check_min_items_per_chunk(settings.batch_size, settings.cache_chunk)
    if settings.freezes_all_encoders_throughout and (reason := feature_cache_unsupported_reason(settings)) is not None:
        for argument, value in (("frozen_draws", settings.frozen_draws or None), ("features", settings.features)):
            check(value is None, f"{argument}: {reason}; got {value}.", "no_cache")
    partners = load_or_draw_mismatched_partners(settings, dataset, run)
    if partners is not None:
        dataset = replace_views_after_first(dataset, partners)
    if settings.audit:
        check_auditable_dataset(dataset, data=settings.data, declared_roles=settings.columns)
        dataset = add_decoys(dataset, seed=settings.seed)
    epoch = count_optimizer_steps_per_epoch(settings, dataset)
    loader_config, spec = LoaderConfig(num_workers=settings.num_workers), settings.mined_negatives_spec
    miner = None if spec is None else NegativeMiner(spec, dataset, seed=settings.seed, loader_config=loader_config)
    module = build_training_module(
        settings,
        dataset,
        objective,
        steps_per_epoch=epoch,
        initial_weights=initial_weights,
        architecture_folder=None if run is None else run.initial_path,
        mined_layout=None if miner is None else miner.layout,
    )
    batches = build_batch_loader(settings, dataset, module.views, num_workers=settings.num_workers)
    audit_callback = None
    if isinstance(dataset, DatasetWithDecoysPastEnd):
        order = cast(BatchOrder, batches.batch_sampler)
        kind: type[MismatchDroppingCallback[Any]] = AuditCallback if len(dataset.shapes) == 2 else ViewAuditCallback
        audit_callback = kind(dataset, module, order, epochs=settings.epochs, loader_config=loader_config)
    if miner is not None:
        miner.send_negatives_to_loader(batches)
    return TrainingComponents(dataset, batches, module, epoch, audit_callback, miner, mismatched_partners=partners)


def check_settings_valid_and_available(settings: Settings, built_objective: nn.Module | None) -> None:
    """Raise `UsageError` if a setting is invalid or unsupported by this machine.

    No data are read. `built_objective` is that of the settings, see `build_objective`.
    """
    if settings.constraint is not None:
        parse_constraint_schedule(settings.constraint, 1)
        has_effect = not isinstance(built_objective, Objective) or built_objective.depends_on_constraint
        message = f"constraint: has no effect on this objective, which uses the kernel only; got {settings.constraint}."
        check(has_effect, message, "no_effect")
    if settings.target is not None:
        parse_target_spec(settings.target)
    if settings.teacher is not None and not Path(settings.teacher).is_dir():
        message = f"teacher: there is no file or folder {settings.teacher!r}."
        check(Path(settings.teacher).exists(), message, "not_found")
        check_existing_file("teacher", settings.teacher)
    if settings.mined_negatives_spec is not None and settings.mined_negatives_spec.file is not None:
        check_existing_file("negatives: file", settings.mined_negatives_spec.file)
    if settings.sample_weight_source == "plan":
        parse_sample_weight_schedule(str(settings.sample_weight), 1)
    if settings.sample_weight_source == "file":
        check_existing_file("sample_weight", str(settings.sample_weight))
    resolve_available_device(settings.device)
    if settings.lora is not None:
        import_optional("peft", "peft", "lora: this option")
    check_optimizer_and_required_lr(settings.optimizer, settings.lr)
    check_strategy_and_exchange(settings)
    for logger in settings.logger:
        import_optional(logger, "loggers", f"logger: {logger!r}")
