"""Builds the encoders and projection heads of a training run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from contraport._utils.formatting import format_options
from contraport._utils.text_bytes import TEXT_SHAPE
from contraport.catalog.recipes import get_recipe_settings
from contraport.data import Views
from contraport.encoders import InitialWeights, Model, load_pretrained_weights, read_initial_weights
from contraport.encoders.factory import create_placeholder_items, list_import_path_encoders
from contraport.encoders.initial_weights import combine_weights_by_view
from contraport.encoders.lora import inject_lora
from contraport.encoders.model import CONFIG_FILE, Encoders, optional_values_per_view
from contraport.errors import UsageError, check, one_line_reason
from contraport.runs import WritableRun
from contraport.seeding import fork_rng_with_lock, seed_torch_generators
from contraport.training.config import Settings


@fork_rng_with_lock([])  # constructing a model draws weights before they are replaced
def load_initial_weights(settings: Settings, resumed_run: WritableRun | None = None) -> InitialWeights | None:
    """Load the encoders' initial weights, or return None if they are drawn at random.

    Those of a resumed run are read from its folder. Torch's global random state does not change.
    """
    pretrained_views, init = settings.effective_pretrained, settings.init
    if not pretrained_views and init is None:
        return None
    if resumed_run is not None and (resumed_run.initial_path / CONFIG_FILE).exists():
        trust = settings.trust_remote_code
        return read_initial_weights(resumed_run.initial_path, settings.encoder, trust_remote_code=trust)
    if pretrained_views is True:
        return load_pretrained_weights(settings.encoder)
    if init is not None and not isinstance(init, Mapping):
        return read_initial_weights(init, settings.encoder, trust_remote_code=settings.trust_remote_code)
    encoder = settings.encoder
    used = [view for view, is_used in (pretrained_views or {}).items() if is_used]
    parts = {view: load_pretrained_weights(_find_encoder_for_view("pretrained", encoder, view)) for view in used}
    for view, source in (init or {}).items():
        parts[view] = read_initial_weights(
            source,
            _find_encoder_for_view("init", encoder, view),
            trust_remote_code=settings.trust_remote_code,
            view=view,
        )
    return combine_weights_by_view(parts) if parts else None


def _find_encoder_for_view(argument: str, encoder: Encoders, view: str) -> str | nn.Module | None:
    """Return the encoder specified for a view, or None."""
    if isinstance(encoder, Mapping):
        return encoder.get(view)
    if encoder is None or isinstance(encoder, str | nn.Module):
        return encoder
    numbered = {str(number): one for number, one in enumerate(encoder)}
    message = f"{argument}: views must be numbers with a list of encoders, {', '.join(numbered)}, got {view!r}."
    check(view in numbered, message, "view_number")
    return numbered[view]


def with_defaults_from_weights(settings: Settings, initial_weights: InitialWeights | None) -> Settings:
    """Fill in encoder and image size in the settings from the initial weights.

    >>> from contraport.encoders.initial_weights import EncoderWeights
    >>> weights = InitialWeights("runs/a", [EncoderWeights("resnet18", {}, training_image_size=64)])
    >>> settings = with_defaults_from_weights(Settings(image_size=32), weights)
    >>> settings.encoder, settings.image_size, with_defaults_from_weights(Settings(), weights).image_size
    (['resnet18'], 32, 64)
    """
    if initial_weights is None:
        return settings
    encoder, names = settings.encoder, initial_weights.encoder_names
    if isinstance(names, Mapping):
        encoder = {**names, **encoder} if isinstance(encoder, Mapping) else encoder
    encoder = names or None if encoder is None else encoder
    return replace(settings, encoder=encoder, image_size=settings.image_size or initial_weights.common_image_size)


def build_untrained_copy(settings: Settings, model: Model, custom_encoder: Encoders = None) -> Model:
    """Build a model of the same architecture with random weights.

    They are drawn from the training seed. `custom_encoder` is the module that was passed as encoder, or one per view.
    """
    with seeded_weight_initialization(settings.seed):
        return Model(**model.config | {"encoder": model.encoder_sources if custom_encoder is None else custom_encoder})


@contextmanager
def seeded_weight_initialization(seed: int) -> Iterator[None]:
    """Context manager in which random weights are drawn from the training seed."""
    with fork_rng_with_lock([]):
        # Without a purpose in the key: the untrained weights of existing runs must not change.
        seed_torch_generators(seed, "cpu")
        yield


def build_model(
    settings: Settings, views: Views, initial_weights: InitialWeights | None, architecture_folder: Path | None = None
) -> Model:
    """Build the encoders, one per view or shared, and the projection heads.

    `architecture_folder` has the tokenizers and architectures of the transformers encoders of a resumed run.
    """
    cause = f" (of recipe {settings.recipe})" if "shared_encoder" in get_recipe_settings(settings.recipe) else ""
    message = (
        f"shared_encoder: false{cause} requires items of several views, such as an image and a caption; got the "
        f"single view {views.unaugmented_names[0]!r}, whose random views share an encoder."
    )
    check(settings.shared_encoder is not False or len(views.unaugmented_shapes) > 1, message, "one_view")
    is_shared = _shares_encoder(settings, views)
    statistics = views.compute_means_and_stds()[: 1 if is_shared else None]
    architectures: Path | list[Path | None] | None = architecture_folder
    if initial_weights is not None:
        names, shapes = views.unaugmented_names, views.unaugmented_shapes
        weights_by_tower = initial_weights.list_tower_weights(len(statistics), names, shapes)
        statistics = initial_weights.resolve_input_statistics(statistics, names, shapes)
        architectures = architecture_folder or [weights.transformers_folder for weights in weights_by_tower]
    mean, std = ([values[which] for values in statistics] for which in (0, 1))
    model = Model(
        settings.encoder,
        views.unaugmented_shapes,
        settings.projection_size_or_zero,
        mean,
        std,
        settings.resolve_representation(len(views.unaugmented_shapes)),
        shared=is_shared,
        projection_layers=settings.projection_layers or 2,
        low_resolution=initial_weights is None or initial_weights.any_has_low_resolution_stem,
        view_names=views.unaugmented_names,
        column_names=views.unaugmented_column_names,
        encoder_folders=architectures,
    )
    pretrained_mask = [False] * len(model.towers) if initial_weights is None else initial_weights.load_into(model)
    _check_frozen_are_pretrained(settings, model, pretrained_mask)
    apply_lora(model, settings)
    if settings.activation_checkpointing:
        enable_activation_checkpointing(model)
    if settings.layer_decay is not None:
        for encoder in model.encoders:  # those of timm state the order of their layers
            message = f"layer_decay: requires a timm encoder, got {type(encoder).__name__}."
            check(hasattr(encoder, "group_matcher"), message)
    return model


def enable_activation_checkpointing(model: Model) -> None:
    """Enable activation checkpointing in encoders of timm and transformers.

    Raises:
        UsageError: no encoder supports it, or one has batch norm.
    """
    networks = [getattr(encoder, "network", encoder) for encoder in model.encoders]
    of_transformers = [network for network in networks if getattr(network, "supports_gradient_checkpointing", False)]
    of_timm = [each for each in networks if each not in of_transformers and hasattr(each, "set_grad_checkpointing")]
    kinds = ", ".join(sorted({type(network).__name__ for network in networks}))
    message = f"activation_checkpointing: requires an encoder of timm or transformers, got {kinds}."
    check(bool(of_transformers or of_timm), message, "unsupported")
    for network in (*of_transformers, *of_timm):
        # Recomputing the forward pass would update running statistics twice.
        message = (
            f"activation_checkpointing: requires an encoder without batch norm, got {type(network).__name__}. Use "
            "cache_chunk to save memory."
        )
        check(not any(isinstance(part, _BatchNorm) for part in network.modules()), message, "batch_norm")
    for network in of_transformers:
        network.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
    for network in of_timm:
        network.set_grad_checkpointing(True)  # type: ignore[operator]


def compile_encoders(encoders: Sequence[nn.Module]) -> None:
    """Compile encoders in place, without changing parameter names."""
    for encoder in encoders:
        # Of a transformers encoder only the network is compiled: its tokenizer cannot be.
        getattr(encoder, "network", encoder).compile()


def _shares_encoder(settings: Settings, views: Views) -> bool:
    """Return whether all views share one encoder.

    Default: for random views of one input, and for texts unless an option is given by view.
    """
    if settings.shared_encoder is not None:
        return settings.shared_encoder
    options = (settings.encoder, settings.init, settings.pretrained, settings.freeze, settings.lora)
    by_view = any(isinstance(value, Mapping) or (isinstance(value, list) and len(value) > 1) for value in options)
    return len(views.unaugmented_shapes) == 1 or (
        all(shape == TEXT_SHAPE for shape in views.unaugmented_shapes) and not by_view
    )


def apply_lora(model: Model, settings: Settings) -> None:
    """Add LoRA adapters to the encoders of a model, in place."""
    for encoder, rank in zip(model.encoders, resolve_option_per_tower("lora", settings.lora, model), strict=True):
        if rank is not None:
            inject_lora(encoder, rank)


def resolve_option_per_tower(argument: str, value: Any | Mapping[str, Any], model: Model) -> list[Any | None]:
    """Return an option's value for each tower, None where not given."""
    towers = len(model.towers)
    if isinstance(value, Mapping):
        return optional_values_per_view(argument, value, model.view_names[:towers], model.shapes[:towers])
    return [value] * towers


def _check_frozen_are_pretrained(settings: Settings, model: Model, pretrained_mask: Sequence[bool]) -> None:
    """Raise `UsageError` if `freeze` or `lora` would freeze an encoder with random weights."""
    for number, is_pretrained in enumerate(pretrained_mask):
        encoder, view = model.encoder_sources[number], model.view_names[number]
        may_be_trained = isinstance(encoder, nn.Module) or bool(list_import_path_encoders(encoder))
        has_weights = next(model.tower(number).encoder.parameters(), None) is not None
        for argument in ("freeze", "lora"):
            is_frozen = bool(resolve_option_per_tower(argument, getattr(settings, argument), model)[number])
            message = (
                f"{argument}: requires trained weights for the encoder of view {view!r}: add "
                f"{format_options(init={view: ...})}, or apply "
                f"{argument} to the other views only."
            )
            check(not is_frozen or is_pretrained or may_be_trained or not has_weights, message, "untrained_view")


def check_encoder_accepts_views(model: Model, views: Views) -> None:
    """Raise `UsageError` if the encoder does not support the random views' shapes."""
    plain = views.unaugmented_shapes[0]
    for shape in dict.fromkeys(views.shapes) if len(model.towers) == 1 else ():
        if shape == plain:
            continue
        was_training = model.training
        try:
            with torch.no_grad():
                model.eval().encode([create_placeholder_items(1, shape)])
        except Exception as error:  # networks raise arbitrary exceptions
            reason = one_line_reason(error)
            message = f"encoder: must support views of shape {shape} besides items of shape {plain}: {reason}"
            raise UsageError(message, kind="fixed_size") from error
        finally:
            model.train(was_training)
