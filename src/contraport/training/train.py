"""The command `train`: builds a training from its settings and runs it in a folder."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from contraport._utils.formatting import describe_item_shape, pluralize
from contraport._utils.locks import lock_folder
from contraport._version import __version__
from contraport.auditing.pairs.pair_filter import max_audited_batch_size
from contraport.catalog.recipes import get_recipe_settings
from contraport.data import Dataset
from contraport.data.data_loader import StreamLoader
from contraport.data.image_cache import cache_decoded_images, has_encoded_images
from contraport.data.perturbations import with_partners
from contraport.data.split_record import SplitRecord
from contraport.data.streams import Stream
from contraport.data.views.custom_transforms import CustomTransform
from contraport.distributed import broadcast_object, is_main_process, propagate_errors, torchrun_process_group, world
from contraport.encoders.lora import merge_lora
from contraport.errors import check
from contraport.runs import Run, default_path
from contraport.training.callbacks import open_loggers
from contraport.training.components import (
    Components,
    EvalContextFactory,
    build,
    build_batches,
    build_dataset,
    build_held_out_dataset,
    build_online_eval,
    check_components,
    feature_cache_blocker,
    fitted,
    load_initial_weights,
    normalize_freeze,
    num_cached_draws,
    steps_to_epochs,
)
from contraport.training.config import TRAIN, Settings
from contraport.training.dry_run import dry_run
from contraport.training.fit import fit
from contraport.training.frozen_features import use_cached_features
from contraport.training.loop import Position
from contraport.training.preflight import preflight, suggest_batch_size
from contraport.training.resolve import resolve_settings
from contraport.training.restore import create_or_resume_run, rollback_on_failure
from contraport.training.run_logging import console_logging, first_process_logging, run_logging
from contraport.training.threads import choose_threads, thread_limit

log = logging.getLogger("contraport.training")


@TRAIN.with_signature
def train(given: dict[str, Any]) -> Run:
    """Train an encoder without labels and return its run folder, which with `dry_run` is not made.

    Raises:
        UsageError: a wrong argument; nothing was written or lost.
        FloatingPointError: the loss or its gradient was not finite; `nonfinite.json` tells where, and
            `contraport.training.replay` computes the step again.
        KeyboardInterrupt: Ctrl-C or SIGTERM; the message says how to go on.

    >>> import tempfile
    >>> import numpy as np
    >>> from contraport.data import from_arrays
    >>> vectors = from_arrays(np.random.default_rng(0).normal(size=(64, 8)))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = train(data=vectors, epochs=1, batch_size=32, out=f"{folder}/run", progress=False)
    ...     [row["step"] for row in run.metrics()]
    [2]
    """
    with torchrun_process_group(given.get("device", "auto")), first_process_logging():
        with propagate_errors():
            settings = resolve_settings(given)
            compared = check_components(settings)
            goes_on = Run(settings.out) if settings.resume and settings.out else None
            begun = load_initial_weights(settings, goes_on)
            settings = fitted(settings, begun)
            dataset = build_dataset(settings)
            given_freeze = settings.freeze
            settings = normalize_freeze(settings, dataset)
            settings, notes = _of_size(settings, dataset, chosen="batch_size" in given)
            settings = steps_to_epochs(settings, dataset, chosen="epochs" in given)
            built = build(settings, begun, dataset, compared=compared, run=goes_on)._replace(notes=notes)
            monitored = build_online_eval(settings, built, dataset)
            settings = settings.derive(threads=choose_threads(settings, built))
            path = settings.out or default_path(built.dataset.name, settings.method)
            run = Run(path, settings.own_encoder)
            if settings.dry_run:
                _dry_run(settings, built, run, given)
                return run
            if not settings.resume:
                run.check_free(overwrite=settings.overwrite)
            record = SplitRecord.of(dataset, build_held_out_dataset(settings))
        with propagate_errors():
            _check_same_items(dataset, record)
        with _locked(run), rollback_on_failure(run):
            with propagate_errors():
                kept = settings.derive(freeze=given_freeze)  # so that the same can be given to go on
                done = create_or_resume_run(run, kept, record) if is_main_process() else Position()
                if is_main_process() and done.step == 0:
                    run.save_initial(merge_lora(built.pipeline.model), drawn=begun is None)
                if built.partners is not None and is_main_process():
                    run.save_partners(built.partners.numpy())
            _fit(settings, built, run, broadcast_object(done), monitored, given)
    return run


@contextmanager
def _locked(run: Run) -> Iterator[None]:
    """Keep other processes out of the run's folder; of several processes of this training the first locks it."""
    with ExitStack() as lock:
        with propagate_errors():
            if is_main_process():
                lock.enter_context(lock_folder(run.path, "train"))
        yield


def _check_same_items(dataset: Dataset, record: SplitRecord | None) -> None:
    """Raise `UsageError` where this process has other items than the first: their steps would not fit together."""
    own = None if record is None else record.fingerprint
    items, first = broadcast_object((len(dataset), own))
    told = f"data: process {world().rank} found other items than the first, {len(dataset):,} and {items:,} in number"
    check(first == own, f"{told}; expected the same {dataset.name!r} on each machine, readable everywhere.")


def _of_size(settings: Settings, dataset: Dataset, *, chosen: bool) -> tuple[Settings, tuple[str, ...]]:
    """Return the settings with a smaller batch where nobody chose one and the items are few, and say so."""
    items, size = len(dataset), settings.batch_size
    if isinstance(dataset, Stream):
        return settings, ()
    if settings.audit and items >= 2 and size > (most := max_audited_batch_size(items)):
        if chosen or settings.resume:
            left = max(0, items - size)
            told = f"the audit leaves out {left} of {items} pairs at most, as a batch has {size}; --batch_size {most}"
            return settings, (f"{told} lets it leave out more",)
        told = f"a batch has {most} of the {items} pairs, so that the audit can leave out most of them; --batch_size"
        return settings.derive(batch_size=most), (f"{told} says otherwise",)
    smaller = suggest_batch_size(items, size)
    if chosen or settings.resume or smaller == size or items < 2:
        return settings, ()
    told = f"a batch has {smaller} items, not the usual {size}, as there are only {items:,} items in all"
    return settings.derive(batch_size=smaller), (f"{told}; --batch_size changes it",)


def _where(own: CustomTransform, built: Components) -> str:
    """Say on what a change of the user's own acts, and where."""
    if own.on_batches:
        return "whole batches, where the model is"
    num_workers = 0 if isinstance(built.batches, StreamLoader) else built.batches.num_workers
    beside = f", in {pluralize(num_workers, 'process', 'processes')} beside this one" if num_workers else ""
    return f"each item by itself{beside}"


def _dry_run(settings: Settings, built: Components, run: Run, given: Mapping[str, Any]) -> None:
    check(world().size == 1, f"dry_run: expected one process, got {world().size}.")
    steps = settings.epochs * built.epoch
    with console_logging(progress=settings.progress):
        _introduce(run, settings, built)
        preflight(settings, built.dataset, built.pipeline, steps=steps, given=given)
        log.info("%s", dry_run(settings, built).summary(steps))


def _fit(
    settings: Settings,
    built: Components,
    run: Run,
    done: Position,
    monitored: EvalContextFactory | None,
    given: Mapping[str, Any],
) -> None:
    steps = settings.epochs * built.epoch
    with run_logging(run, progress=settings.progress) as console:
        _introduce(run, settings, built)
        preflight(settings, built.dataset, built.pipeline, steps=steps, given=given, path=run.path)
        if num_cached_draws(settings) > 0:
            built = use_cached_features(built, settings, Path(settings.features or run.features_path))
        elif settings.epochs > 1 and settings.decoded != "none":
            built = _with_decoded(built, settings, Path(settings.decoded or run.decoded_path))
        loggers = open_loggers(settings.logger, run, settings.kept(), step=done.step) if is_main_process() else []
        with thread_limit(settings.threads):
            meter = fit(
                built,
                run,
                settings,
                done=done,
                loggers=loggers,
                console=console,
                monitored=monitored,
            )
        with propagate_errors():
            if is_main_process():
                run.save_model(merge_lora(built.pipeline.model), epochs=settings.epochs)
        ended = f"nothing to do, as {pluralize(settings.epochs, 'epoch')} were done before; a larger --epochs goes on"
        log.info("%s; the model is in %s", meter.summary() if meter.steps else ended, run.model_path)


def _with_decoded(built: Components, settings: Settings, folder: Path) -> Components:
    """Return the same training with its images decoded once; of several processes the first decodes them."""
    dataset = built.dataset
    if settings.audit or not has_encoded_images(dataset):
        return built
    with propagate_errors():
        if is_main_process():
            dataset = cache_decoded_images(dataset, folder, num_workers=settings.num_workers)
    if not is_main_process():
        dataset = cache_decoded_images(dataset, folder)
    if not dataset.in_memory:
        return built
    if built.dataset.paired and built.partners is not None:
        dataset = with_partners(dataset, built.partners)
    views = built.pipeline.views
    batches = build_batches(settings, dataset, views, num_workers=settings.num_workers if views.on_items else 0)
    return built._replace(dataset=dataset, batches=batches)


def replaced(settings: Settings) -> list[str]:
    """Return the names of the recipe's settings that a training does not follow."""
    return [name for name, value in get_recipe_settings(settings.recipe).items() if getattr(settings, name) != value]


def _lacking(dataset: Dataset) -> str | None:
    """Return how many items lack which views, such as images without captions, or None where all have all."""
    if dataset.present is None:
        return None
    numbers = (~dataset.present).sum(0).tolist()
    views = ", ".join(f"{number:,} {name}" for name, number in zip(dataset.view_names, numbers, strict=True) if number)
    items = int((~dataset.present.all(1)).sum())
    return f"{items:,} of {len(dataset):,} items lack a view ({views}); they take part with those that they have"


def _introduce(run: Run, settings: Settings, built: Components) -> None:
    dataset, model = built.dataset, built.pipeline.model
    shapes = " and ".join(map(describe_item_shape, model.shapes))
    if len(dataset.shapes) > 1:
        named = (
            f"{name} ({describe_item_shape(shape)})"
            for name, shape in zip(dataset.view_names, dataset.shapes, strict=True)
        )
        shapes = f"{len(dataset.shapes)} views: {', '.join(named)}"
    weights = sum(parameter.numel() for parameter in model.parameters())
    number = "a stream of items" if isinstance(dataset, Stream) else f"{len(dataset):,} items"
    log.info("%s: %s on %s, %s of %s", run.path, settings.method, dataset.name, number, shapes)
    if run.replaced.path.exists():
        log.info("the run that this one replaces is in %s until the first checkpoint", run.replaced.path)
    if settings.mismatch is not None:
        log.info("mismatch %s: who is paired with whom is in %s", settings.mismatch, run.mismatched_path)
    if others := replaced(settings):
        log.info("the recipe's own %s gave way to yours", ", ".join(others))
    if (own := built.pipeline.views.own) is not None:
        log.info("augment: %s changes %s", own.name, _where(own, built))
    if settings.freezes_all and settings.frozen_draws is None and (hindered := feature_cache_blocker(settings)):
        log.info("each step passes its views through the frozen encoder anew, which takes longer: %s", hindered)
    if (lacking := _lacking(dataset)) is not None:
        log.warning("%s", lacking)
    for note in built.notes:
        log.warning("%s", note)
    if settings.threads is not None:
        log.info("computed with %s; --threads changes it", pluralize(settings.threads, "thread"))
    if settings.grad_accum_steps > 1:
        log.warning(
            "grad_accum_steps: each of the %d batches of a step has its own negatives and its own plan; "
            "cache_chunk gives the gradient of one large batch.",
            settings.grad_accum_steps,
        )
    log.debug(
        "contraport %s, torch %s, %s weights, %s", __version__, torch.__version__, f"{weights:,}", settings.kept()
    )
    if dataset.skipped:
        log.debug("left out, as unreadable: %s", ", ".join(dataset.skipped))
