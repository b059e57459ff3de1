"""From the settings of a training to its networks, and the weights that they begin with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from contraport._utils.text_tensors import blank_items, is_text_shape
from contraport.data import Views
from contraport.encoders import InitialWeights, Model, load_pretrained, read_initial_weights
from contraport.encoders.factory import custom_code_names
from contraport.encoders.initial_weights import combine_by_view
from contraport.encoders.lora import add_lora
from contraport.encoders.model import CONFIG_FILE, Encoders
from contraport.encoders.view_names import values_per_view
from contraport.errors import UsageError, check, one_line_reason
from contraport.runs import Run
from contraport.seeding import seed_global_generators
from contraport.training.config import Settings
from contraport.training.optimization import check_layers


@torch.random.fork_rng(devices=[])  # a model that is read has drawn weights first
def load_initial_weights(settings: Settings, run: Run | None = None) -> InitialWeights | None:
    """Return the weights that the encoders of a training begin with, or None where they are drawn.

    Torch's random state stays as it is.

    Args:
        settings: of the training.
        run: the one that goes on, if one does; its folder keeps what it began with.

    Raises:
        UsageError: they cannot be had, or are of other encoders than the settings say.
    """
    theirs, given = settings.pretrained, settings.init
    if not theirs and given is None:
        return None
    if run is not None and (run.initial_path / CONFIG_FILE).exists():
        return read_initial_weights(run.initial_path, settings.encoder, trust_remote_code=settings.trust_remote_code)
    if theirs is True:
        return load_pretrained(settings.encoder)
    if given is not None and not isinstance(given, Mapping):
        return read_initial_weights(given, settings.encoder, trust_remote_code=settings.trust_remote_code)
    parts = {view: load_pretrained(_asked(settings.encoder, view)) for view, wanted in (theirs or {}).items() if wanted}
    for view, where in (given or {}).items():
        parts[view] = read_initial_weights(
            where, _asked(settings.encoder, view), trust_remote_code=settings.trust_remote_code, view=view
        )
    return combine_by_view(parts) if parts else None


def _asked(encoder: Encoders, view: str) -> str | nn.Module | None:
    """Return the encoder that was asked for a view as it is called; None: none, or one by another of its names."""
    if isinstance(encoder, Mapping):
        return encoder.get(view)
    if encoder is None or isinstance(encoder, str | nn.Module):
        return encoder
    numbered = {str(number): one for number, one in enumerate(encoder)}
    check(
        view in numbered,
        f"init: the encoders are a list; expected views by their numbers, {', '.join(numbered)}, got {view!r}.",
    )
    return numbered[view]


def fitted(settings: Settings, begun: InitialWeights | None) -> Settings:
    """Return the settings with the encoders and the size of images of the weights to begin with, unless they say them.

    >>> begun = InitialWeights("runs/a", ["resnet18"], [{}], image_size=64)
    >>> fitted(Settings(image_size=32), begun).encoder, fitted(Settings(), begun).image_size
    (['resnet18'], 64)
    """
    if begun is None:
        return settings
    encoder, theirs = settings.encoder, begun.encoder
    if isinstance(theirs, Mapping):
        theirs = {view: name for view, name in theirs.items() if name is not None}
        encoder = theirs | dict(encoder) if isinstance(encoder, Mapping) else encoder
    encoder = theirs or None if encoder is None else encoder
    return replace(settings, encoder=encoder, image_size=settings.image_size or begun.image_size)


def build_untrained_model(settings: Settings, model: Model, encoder: Encoders = None) -> Model:
    """Return a model whose weights are drawn as those of a training that begins with none.

    Args:
        settings: of the training.
        model: what it ended with.
        encoder: the module that was given as encoder, or one per view, if some was.
    """
    given = {"encoder": model.encoder_sources if encoder is None else encoder}
    with seeded_weights(settings):
        return Model(**model.config | given)


@contextmanager
def seeded_weights(settings: Settings) -> Iterator[None]:
    """Draw weights by the seed of the training, on the CPU."""
    with torch.random.fork_rng(devices=[]):
        seed_global_generators(
            settings.seed
        )  # bare, which no other use is: the untrained weights of existing runs must not change
        yield


def build_model(settings: Settings, views: Views, begun: InitialWeights | None, kept: Path | None = None) -> Model:
    """Return the encoder of each view, or the one of all, with its projection.

    Args:
        settings: of the training.
        views: what the encoders take.
        begun: the weights that they begin with.
        kept: the folder with what those of transformers are built of, of a training that goes on.
    """
    check(
        settings.shared_encoder is not False or len(views.plain_shapes) > 1,
        "shared_encoder: false needs items of several views, such as an image and a caption, each with an encoder of "
        f"its own; these are of one, {views.plain_names[0]!r}. Random changes of one view share an encoder.",
    )
    one = _is_shared(settings, views)
    statistics = views.statistics()[: 1 if one else None]
    folders_by_tower: Path | list[Path | None] | None = kept
    if begun is not None:
        towers = len(statistics)
        statistics = begun.resolve_statistics(statistics, views.plain_names, views.plain_shapes)
        folders_by_tower = kept or begun.folders_by_tower(towers, views.plain_names, views.plain_shapes)
    mean, std = ([values[which] for values in statistics] for which in (0, 1))
    model = Model(
        settings.encoder,
        views.plain_shapes,
        settings.projected,
        mean,
        std,
        settings.represented(len(views.plain_shapes)),
        shared=one,
        projection_layers=settings.projection_layers or 2,
        low_resolution=begun is None or begun.low_resolution,
        view_names=views.plain_names,
        encoder_folders=folders_by_tower,
    )
    given = [False] * len(model.towers) if begun is None else begun.load_into(model)
    for argument in ("freeze", "lora"):
        _check_learned(argument, settings, model, given)
    adapted(model, settings)
    if settings.activation_checkpointing:
        checkpoint_activations(model)
    if settings.layer_decay is not None:
        for encoder in model.encoders:
            check_layers(encoder)
    return model


def checkpoint_activations(model: Model) -> None:
    """Let encoders of timm and transformers compute their activations a second time instead of keeping them.

    Raises:
        UsageError: no encoder can, or one has batch norm.
    """
    networks = [getattr(encoder, "network", encoder) for encoder in model.encoders]
    able = [each for each in networks if hasattr(each, "set_grad_checkpointing") or is_transformers_model(each)]
    kinds = ", ".join(sorted({type(network).__name__ for network in networks}))
    check(len(able) > 0, f"activation_checkpointing: requires an encoder of timm or transformers, got {kinds}.")
    for network in able:
        check(
            not any(isinstance(part, _BatchNorm) for part in network.modules()),
            f"activation_checkpointing: requires an encoder without batch norm, whose running statistics would count "
            f"each batch twice, got {type(network).__name__}; cache_chunk saves memory too.",
        )
        if is_transformers_model(network):
            network.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
        else:
            network.set_grad_checkpointing(True)  # type: ignore[operator]


def is_transformers_model(network: nn.Module) -> bool:
    """Return whether a network is a model of transformers that can compute its activations again."""
    return bool(getattr(network, "supports_gradient_checkpointing", False))


def compile_encoders(model: Model) -> None:
    """Compile the encoders in place; the names of their weights stay."""
    for encoder in model.encoders:
        # A model of transformers stands behind its tokenizer, which cannot be compiled.
        getattr(encoder, "network", encoder).compile()


def _is_shared(settings: Settings, views: Views) -> bool:
    """Return whether one encoder takes all views: unless it is said, random changes of one view, or texts alone.

    Texts of which encoders, or what becomes of these, are asked one by one have one each.
    """
    if settings.shared_encoder is not None:
        return settings.shared_encoder
    asked = (settings.encoder, settings.init, settings.pretrained, settings.freeze, settings.lora)
    one_by_one = any(isinstance(value, Mapping) or (isinstance(value, list) and len(value) > 1) for value in asked)
    return len(views.plain_shapes) == 1 or (all(map(is_text_shape, views.plain_shapes)) and not one_by_one)


def adapted(model: Model, settings: Settings) -> Model:
    """Return the model with the adapters that the settings ask for put beside the weights of its encoders.

    Raises:
        UsageError: an encoder has nothing to adapt, or the package that makes adapters is not installed.
    """
    for encoder, rank in zip(model.encoders, option_per_tower("lora", settings.lora, model), strict=True):
        if rank is not None:
            add_lora(encoder, rank)
    return model


def option_per_tower(argument: str, value: Any, model: Model) -> list[Any]:
    """Return what an option says for each tower: of some views by what they are called, or one value for all."""
    towers = len(model.towers)
    if isinstance(value, Mapping):
        return values_per_view(argument, value, model.view_names[:towers], model.shapes[:towers])
    return [value] * towers


def _check_learned(argument: str, settings: Settings, model: Model, given: Sequence[bool]) -> None:
    """Raise `UsageError` where what an option holds was drawn, and so would stay."""
    held = option_per_tower(argument, getattr(settings, argument), model)
    for number, (holds, trained) in enumerate(zip(held, given, strict=True)):
        encoder = model.encoder_sources[number]
        brought = isinstance(encoder, nn.Module) or bool(custom_code_names(encoder))
        brought = brought or next(model.tower(number).encoder.parameters(), None) is None  # which has nothing to learn
        check(
            not holds or trained or brought,
            f"{argument}: the encoder of the view {model.view_names[number]!r} was never trained, and would stay so; "
            f"expected weights for it (--init.{model.view_names[number]}), or {argument} of the other views alone.",
        )


def check_encodes(model: Model, views: Views) -> None:
    """Raise `UsageError` where views are of other shapes than the items, and the encoder does not take these."""
    plain = views.plain_shapes[0]
    for shape in dict.fromkeys(views.shapes) if len(model.towers) == 1 else ():
        if shape == plain:
            continue
        was_training = model.training
        try:
            with torch.no_grad():
                model.eval().encode([blank_items(1, shape)])
        except Exception as error:  # each network refuses in its own way
            told = f"the items are of shape {plain}, and some views of {shape}: {one_line_reason(error)}"
            raise UsageError(f"encoder: expected one that takes any size, as {told}") from error
        finally:
            model.train(was_training)


def projection_sizes(model: Model) -> list[int]:
    """Return how many numbers the projection of each view has."""
    return [model.tower(view).projection_width for view in range(len(model.towers))]
