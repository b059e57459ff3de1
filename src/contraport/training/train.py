"""Command `train`, which trains an encoder in a run folder."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from contraport._utils.formatting import describe_item_shape, format_keyword_or_flag, format_options, pluralize
from contraport._utils.locks import lock_folder
from contraport._utils.progress import make_console_without_markup
from contraport.auditing.pairs.mismatch_dropping_callback import max_audited_batch_size
from contraport.data import Dataset
from contraport.data.image_cache import cache_decoded_images
from contraport.data.mismatches_and_corruptions import replace_views_after_first
from contraport.data.split_digests import SplitDigests
from contraport.data.streams import Stream
from contraport.distributed import (
    broadcast_object,
    current_processes,
    is_main_process,
    stop_all_on_error,
    torchrun_process_group,
)
from contraport.encoders.lora import with_merged_lora
from contraport.encoders.model import optional_values_per_view
from contraport.errors import check
from contraport.options import has_object_placeholder
from contraport.runs import Run, WritableRun, default_run_path
from contraport.training.callbacks.early_stopping import list_scheduled_metrics
from contraport.training.callbacks.loggers import Logger, open_loggers
from contraport.training.command_options import TRAIN_COMMAND_SPEC
from contraport.training.components.assembly import (
    TrainingComponents,
    build_components,
    check_settings_valid_and_available,
)
from contraport.training.components.data_builder import (
    build_batch_loader,
    build_dataset,
    count_draws_to_cache,
    load_test_set_or_none,
    with_epochs_from_steps,
)
from contraport.training.components.model_builder import load_initial_weights, with_defaults_from_weights
from contraport.training.components.step_builder import build_objective
from contraport.training.config import RECORDED_OPTIONS_BY_NAME, Settings
from contraport.training.dry_run import train_timed_steps
from contraport.training.epoch_end_training_metrics import EpochEndMetrics
from contraport.training.feature_cache import with_cached_features
from contraport.training.loop import Position
from contraport.training.resumable_fit import run_training_loop
from contraport.training.run_logging import console_logging, first_process_logging, run_logging
from contraport.training.settings_and_run_folder import (
    create_run_folder,
    reset_to_last_checkpoint,
    resolve_settings,
    restore_backup_on_failure_before_checkpoint,
)
from contraport.training.start_warnings import (
    log_split_and_schedule,
    log_start_warnings,
    log_training_description,
    suggest_batch_size,
)
from contraport.training.thread_count import configured_or_fastest_thread_count, temporary_thread_count

log = logging.getLogger("contraport.training")


@TRAIN_COMMAND_SPEC.with_option_parameters
def train(arguments: dict[str, Any]) -> Run:
    """Train an encoder without labels, and return the run.

    With `dry_run` the run folder is not created.

    Raises:
        UsageError: an invalid argument; nothing was written.
        FloatingPointError: the loss or its gradient was not finite; `nonfinite.json` has the step, and
            `contraport.training.load_failed_step` loads it.
        KeyboardInterrupt: Ctrl-C or SIGTERM; the message has the command to resume.

    >>> import tempfile
    >>> import numpy as np
    >>> from contraport.data import from_arrays
    >>> vectors = from_arrays(np.random.default_rng(0).normal(size=(64, 8)))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = train(data=vectors, epochs=1, batch_size=32, out=f"{folder}/run", progress=False)
    ...     [row["step"] for row in run.metrics_rows()]
    [2]
    """
    run = train_from_options(arguments)
    return Run(run.path, run.encoder)


def train_from_options(explicit_options: dict[str, Any], *, parent_command: str = "") -> WritableRun:
    """Train with the options that the user gave, and return the run folder.

    Commands that include a training run use it too. As a part of another command, `parent_command`, it suggests neither
    other options nor a next command.
    """
    with torchrun_process_group(explicit_options.get("device", "auto")), first_process_logging():
        with stop_all_on_error():
            settings = resolve_settings(explicit_options)
            objective = build_objective(settings)
            check_settings_valid_and_available(settings, objective)
            resumed = WritableRun(settings.out) if settings.resume and settings.out else None
            initial_weights = load_initial_weights(settings, resumed)
            settings = with_defaults_from_weights(settings, initial_weights)
            dataset = build_dataset(settings)
            explicit_freeze = settings.freeze
            if isinstance(settings.freeze, Mapping):  # features can be cached only if it freezes all encoders
                by_view = optional_values_per_view("freeze", settings.freeze, dataset.view_names, dataset.shapes)
                settings = settings.replace_unchecked(freeze=all(by_view) or settings.freeze)
                settings.check_cached_encoders_frozen()
            settings, notes = reduce_default_batch_size(
                settings, dataset, has_explicit_batch_size="batch_size" in explicit_options
            )
            settings = with_epochs_from_steps(settings, dataset, has_explicit_epochs="epochs" in explicit_options)
            components = build_components(settings, initial_weights, dataset, objective=objective, run=resumed)
            components = components._replace(adjustment_notes=notes)
            has_online_metrics = len(list_scheduled_metrics(settings)) > 0
            epoch_end_metrics = EpochEndMetrics(settings, components, dataset) if has_online_metrics else None
            settings = settings.replace_unchecked(threads=configured_or_fastest_thread_count(settings, components))
            path = settings.out or default_run_path(components.dataset.name, settings.recipe_or_objective_name)
            # A folder cannot store an encoder that is a module of the user.
            is_module = has_object_placeholder(RECORDED_OPTIONS_BY_NAME["encoder"].serialize(settings.encoder))
            run = WritableRun(path, settings.encoder if is_module else None, parent_command=parent_command)
            if settings.dry_run:
                _log_dry_run_estimate(settings, components, run, explicit_options)
                return run
            if not settings.resume:
                run.check_accepts_new_run(overwrite=settings.overwrite)
            digests = SplitDigests.from_datasets_unless_stream(dataset, load_test_set_or_none(settings))
        with stop_all_on_error():
            _check_data_equal_across_processes(dataset, digests)
        with _lock_run(run), restore_backup_on_failure_before_checkpoint(run):
            with stop_all_on_error():
                recorded = settings.replace_unchecked(freeze=explicit_freeze)  # as it may be given again on resume
                start = Position()
                if is_main_process() and settings.resume:
                    start = reset_to_last_checkpoint(run, recorded, digests)
                elif is_main_process():
                    create_run_folder(run, recorded, digests)
                if is_main_process() and start.step == 0:
                    run.save_initial_model(
                        with_merged_lora(components.module.model), configs_only=initial_weights is None
                    )
                if components.mismatched_partners is not None and is_main_process():
                    run.save_arrays(run.mismatched_path, {"partners": components.mismatched_partners.numpy()})
            _fit_and_save_model(settings, components, run, broadcast_object(start), epoch_end_metrics, explicit_options)
    return run


@contextmanager
def _lock_run(run: WritableRun) -> Iterator[None]:
    """Context manager that locks a run folder against other training commands."""
    with ExitStack() as lock:
        with stop_all_on_error():
            if is_main_process():
                lock.enter_context(lock_folder(run.path, "train"))
        yield


def _check_data_equal_across_processes(dataset: Dataset, digests: SplitDigests | None) -> None:
    """Raise `UsageError` if this process's items differ from those of the first process."""
    own = None if digests is None else digests.train_fingerprint
    items, first = broadcast_object((len(dataset), own))
    message = (
        f"data: must be equal in all processes; {dataset.name!r} has {len(dataset):,} items in process "
        f"{current_processes().rank}, {items:,} in the first, or items differ."
    )
    check(first == own, message, "differs_between_processes")


class SettingsWithNotes(NamedTuple):
    """Training settings, with notes on automatic adjustments."""

    settings: Settings
    notes: tuple[str, ...] = ()


def reduce_default_batch_size(
    settings: Settings, dataset: Dataset, *, has_explicit_batch_size: bool
) -> SettingsWithNotes:
    """Reduce the default batch size for a small dataset, and describe the change."""
    items, size = len(dataset), settings.batch_size
    if isinstance(dataset, Stream):
        return SettingsWithNotes(settings)
    shapes = " and ".join(map(describe_item_shape, dataset.shapes))
    message = f"data: must have >= 2 training items, got {pluralize(items, 'item')} of {shapes} in {dataset.name!r}."
    check(has_explicit_batch_size or items >= 2, message, "few_items")
    if settings.audit and items >= 2 and size > (most := max_audited_batch_size(items)):
        if has_explicit_batch_size or settings.resume:
            dropped = max(0, items - size)
            note = f"audit: can drop at most {dropped} of {items} pairs with batches of {size}; "
            note += f"use {format_options(batch_size=most)}"
            return SettingsWithNotes(settings, (note,))
        note = f"batch_size: {most}, reduced from {size}: the audit keeps at least a batch, and can drop "
        note += f"{items - most} of {items} pairs"
        return SettingsWithNotes(settings.replace_unchecked(batch_size=most), (note,))
    smaller = suggest_batch_size(items, size)
    if has_explicit_batch_size or settings.resume or smaller == size or items < 2:
        return SettingsWithNotes(settings)
    noun = "pairs" if dataset.items_are_entity_pairs else "items"
    note = f"batch_size: {smaller}, reduced from {size} for {items:,} {noun}"
    return SettingsWithNotes(settings.replace_unchecked(batch_size=smaller), (note,))


def _log_dry_run_estimate(
    settings: Settings, components: TrainingComponents, run: WritableRun, explicit_options: Mapping[str, Any]
) -> None:
    """Log the time and memory estimated from a few steps."""
    check(current_processes().size == 1, f"dry_run: requires a single process, got {current_processes().size}.")
    with console_logging(shown=settings.progress):
        log_training_description(run, settings, components)
        log_split_and_schedule(settings, components)
        log_start_warnings(settings, components, explicit_options)
        steps = settings.epochs * components.steps_per_epoch
        log.info("%s", train_timed_steps(settings, components).format_estimate(steps))


def _fit_and_save_model(
    settings: Settings,
    components: TrainingComponents,
    run: WritableRun,
    start: Position,
    epoch_end_metrics: EpochEndMetrics | None,
    explicit_options: Mapping[str, Any],
) -> None:
    """Run the training loop, and save the trained model."""
    console = make_console_without_markup(stderr=True, quiet=not (settings.progress and is_main_process()))
    with run_logging(run, console):
        log_training_description(run, settings, components)
        log_split_and_schedule(settings, components)
        is_complete = start.completed_epochs >= settings.epochs
        if settings.resume and not is_complete:
            log.info("resume: from step %s%s", f"{start.step:,}", "" if start.step else ", as there is no checkpoint")
        if not run.parent_command and not is_complete:
            log_start_warnings(settings, components, explicit_options)
        if count_draws_to_cache(settings) > 0:
            components = with_cached_features(components, settings, Path(settings.features or run.features_path))
        elif settings.epochs > 1 and settings.decoded != "none":
            components = _with_decoded_image_cache(components, settings, Path(settings.decoded or run.decoded_path))
        loggers: list[Logger] = []
        with stop_all_on_error():
            if is_main_process():
                loggers = open_loggers(settings.logger, run, settings.to_config(), step=start.step)
        with temporary_thread_count(settings.threads):
            loop, metrics_writer = run_training_loop(
                components,
                run,
                settings,
                start=start,
                loggers=loggers,
                console=console,
                epoch_end_metrics=epoch_end_metrics,
            )
        epochs = loop.completed_epochs
        with stop_all_on_error():
            if is_main_process():
                run.save_model_and_delete_stale_evaluations(
                    with_merged_lora(components.module.model), epochs=epochs, planned_epochs=settings.epochs
                )
        larger_patience = "early_stopping with a larger patience continues it"
        remedy = larger_patience if loop.should_stop else f"increase {format_keyword_or_flag('epochs')} to continue it"
        complete = f"the run already has {pluralize(epochs, 'epoch')}; {remedy}"
        if run.parent_command:  # a longer training run is not what that command asks for
            complete = f"the finished training run of {pluralize(epochs, 'epoch')} is used"
        log.info(
            "%s; model: %s",
            metrics_writer.format_session_summary() if metrics_writer.session_steps else complete,
            run.model_path,
        )


def _with_decoded_image_cache(components: TrainingComponents, settings: Settings, folder: Path) -> TrainingComponents:
    """Return the training components, with decoded images from a cache where possible."""
    dataset = components.dataset
    if settings.audit:
        return components
    with stop_all_on_error():
        if is_main_process():
            dataset = cache_decoded_images(dataset, folder, num_workers=settings.num_workers)
    if not is_main_process():
        dataset = cache_decoded_images(dataset, folder)
    if dataset is components.dataset or not dataset.is_in_memory:
        return components
    if components.dataset.has_mismatched_partners and components.mismatched_partners is not None:
        dataset = replace_views_after_first(dataset, components.mismatched_partners)
    views = components.module.views
    num_workers = settings.num_workers if views.is_transform_applied_by_dataset else 0
    batches = build_batch_loader(settings, dataset, views, num_workers=num_workers)
    return components._replace(dataset=dataset, batches=batches)
