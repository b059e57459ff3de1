"""Factory of built-in, timm, transformers and user encoders by name."""

from __future__ import annotations

import copy
import hashlib
import importlib
import inspect
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from contraport._utils.files import read_json_or_none
from contraport._utils.formatting import describe_items_of_shape, format_options
from contraport._utils.lazy_imports import LazyModule, import_object
from contraport._utils.text_bytes import TEXT_SHAPE
from contraport.catalog.encoders import ANY_TIMM_LABEL, CUSTOM_ENCODER_LABEL, ENCODERS
from contraport.encoders.builtin_networks import default_encoder_name
from contraport.encoders.transformers_text_encoder import build_transformers_text_encoder
from contraport.errors import UsageError, check, hint_on_error, suggest_names, unknown_name_error

if TYPE_CHECKING:
    import timm
    from timm.models import ResNet
else:
    timm = LazyModule("timm")

Shape = tuple[int, ...]
"""Shape of one item of a view, without the batch dimension."""


def list_import_path_encoders(encoder: object) -> list[str]:
    """Return the encoder names that are import paths, such as ``their_nets:Net``.

    >>> list_import_path_encoders(["mlp", "their_nets:Net"])
    ['their_nets:Net']
    """
    values = list(encoder.values()) if isinstance(encoder, Mapping) else encoder
    names = values if isinstance(values, list | tuple) else [encoder]
    return [name for name in names if isinstance(name, str) and ":" in name]


@hint_on_error("contraport docs own-encoder trust-in-run-folders")
def check_saved_encoder_trusted(saved_encoder: object, config_path: str, *, trust_remote_code: bool) -> None:
    """Raise `UsageError` if a saved encoder would import code that is not trusted."""
    code = ", ".join(map(repr, list_import_path_encoders(saved_encoder)))
    remedy = f"Inspect it, and pass {format_options(trust_remote_code=True)} to run it."
    check(trust_remote_code or not code, f"encoder: {config_path} names code to run: {code}. {remedy}", "untrusted")


def serialize_encoder(encoder: object) -> Any:
    """Convert an encoder to its name or description for a saved configuration.

    >>> serialize_encoder(["mlp", nn.Linear(3, 2)])
    ['mlp', '<Linear of 8 weights, ...>']
    """
    if isinstance(encoder, Mapping):
        return {str(view): serialize_encoder(each) for view, each in encoder.items()}
    if isinstance(encoder, list | tuple):
        return [serialize_encoder(each) for each in encoder]
    if not isinstance(encoder, nn.Module):
        return encoder
    state = {name: tuple(value.shape) for name, value in encoder.state_dict().items()}
    parts = [(name, type(part).__name__) for name, part in encoder.named_modules()]
    weights = sum(parameter.numel() for parameter in encoder.parameters())
    digest = hashlib.sha256(repr((state, parts)).encode()).hexdigest()[:12]
    return f"<{type(encoder).__name__} of {weights:,} weights, {digest}>"


def is_user_module_placeholder(stored_name: object) -> bool:
    """Return whether a stored encoder name stands for a user's own module."""
    return isinstance(stored_name, str) and stored_name.startswith("<")


def build_encoder(name: str | nn.Module, shape: Shape, *, low_resolution: bool = True) -> nn.Module:
    """Build a randomly initialized encoder by name, or copy a user's module.

    The result has an attribute ``num_features``.

    Args:
        name: a module, which is copied; a built-in encoder (``small-cnn``, ``mlp``, ``small-tcn``, ``small-text``,
            ``gradients``); a timm model; for texts the name or folder of a transformers model; or ``module:attribute``
            of an importable callable that takes the shape of an item and returns an ``nn.Module``, which maps
            ``(b, *shape)``, texts ``(b, bytes)``, to ``(b, num_features)``.
        shape: of one item: image ``(C, H, W)``, vector ``(d,)``, time series ``(C, T)`` or text ``()``.
        low_resolution: give a timm ResNet the stem for small images (stride 1, no pooling) if they have at most 64
            pixels a side. Weights trained without this stem do not fit.

    Raises:
        UsageError: the name is unknown, an import fails, or the encoder does not accept items of this shape.

    >>> build_encoder("small-cnn", (1, 8, 8)).num_features
    256
    """
    shape = tuple(int(side) for side in shape)
    good = len(shape) <= 3 and all(side > 0 for side in shape)
    check(good, f"shape: must be (C, H, W), (d,), (C, T), all positive, or (), got {shape}.")
    check(isinstance(name, str | nn.Module), f"encoder: must be a name or a module, got {name!r}.")
    if isinstance(name, nn.Module):
        lazy = any(is_lazy(value) for value in [*name.parameters(), *name.buffers()])
        message = f"encoder: {type(name).__name__} has uninitialized parameters; pass a batch through it first."
        check(not lazy, message, "uninitialized")
        encoder, name, own = copy.deepcopy(name), type(name).__name__, True
    elif name in ENCODERS:
        built_in: nn.Module = import_object(ENCODERS[name].network_class_path)(shape)
        return built_in
    else:
        own = ":" in name
        if own:
            encoder = _build_from_import_path(name, shape)
        elif shape == TEXT_SHAPE:
            message = f"encoder: {name!r} takes images, got texts; use {default_encoder_name(shape)!r}."
            check(not timm.is_model(name) or Path(name).exists(), message, "shape")
            encoder = build_transformers_text_encoder(name)
        else:
            encoder = _build_timm(name, shape, low_resolution=low_resolution)
    features = _count_features(encoder, name, shape)
    if own:  # not for timm: it declares the width before pooling, and some of its models have a wider head behind it
        declared = getattr(encoder, "num_features", features)
        check(
            declared == features, f"encoder: {name!r} declares {declared} features but returns {features}.", "features"
        )
    if getattr(encoder, "num_features", None) != features:
        encoder.num_features = features  # type: ignore[assignment]
    return encoder


def create_placeholder_items(num_items: int, shape: Shape) -> torch.Tensor:
    """Create zeros or empty texts for trial calls of encoders."""
    is_text = tuple(shape) == TEXT_SHAPE
    return torch.zeros(num_items, 1, dtype=torch.uint8) if is_text else torch.zeros(num_items, *shape)


def _count_features(encoder: nn.Module, name: str, shape: Shape) -> int:
    """Count the features of an encoder by a forward pass."""
    training = encoder.training
    try:
        with torch.no_grad():
            output = encoder.eval()(create_placeholder_items(2, shape))
    except (Exception, SystemExit) as error:  # third-party code may raise anything
        raise _shape_error(name, shape, error) from error
    finally:
        encoder.train(training)
    good = isinstance(output, torch.Tensor) and output.ndim == 2 and len(output) == 2
    result = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
    check(good, f"encoder: {name!r} must return (b, features), got {result} for a batch of 2.", "output_shape")
    return int(output.shape[1])


def _build_timm(name: str, shape: Shape, *, low_resolution: bool) -> nn.Module:
    """Build a timm model without its classifier, randomly initialized."""
    if not timm.is_model(name):
        got = describe_items_of_shape(shape)
        message = f"encoder: {name!r} takes texts, got {got}. For texts only: {format_options(encoder={'text': ...})}."
        config = read_json_or_none(Path(name, "config.json"))
        is_transformers_folder = isinstance(config, dict) and "model_type" in config
        check(not is_transformers_folder, message, "shape")
        is_missing_path = name.startswith(("/", "./", "../", "~")) and not Path(name).exists()
        check(not is_missing_path, f"encoder: there is no file or folder {name!r}.", "unknown")
        near = suggest_names(name, timm.list_models(), 3)
        unknown = unknown_name_error("encoder", name, [*ENCODERS, *near])
        raise UsageError(f"{unknown} Also valid: {ANY_TIMM_LABEL}, or your own {CUSTOM_ENCODER_LABEL}.", kind="unknown")
    message = (
        f"encoder: {name!r} takes images, got {describe_items_of_shape(shape)}; use {default_encoder_name(shape)!r}."
    )
    check(len(shape) == 3, message, "shape")
    channels, *size = shape
    create = partial(timm.create_model, name, pretrained=False, num_classes=0, in_chans=channels)
    try:
        model = create(img_size=tuple(size))
    except TypeError:  # there is no other way to learn whether a timm model has the argument img_size
        model = create()
    except Exception as error:  # the families of models raise different errors for a size that they do not support
        raise _shape_error(name, shape, error) from error
    if low_resolution and isinstance(model, timm.models.ResNet) and max(size) <= 64:
        _replace_stem_for_small_images(model)
    return model


def _replace_stem_for_small_images(model: ResNet) -> None:
    """Replace a ResNet's stem by one of stride 1 without pooling."""
    stem: nn.Module = model.conv1
    if isinstance(stem, nn.Conv2d):
        small = nn.Conv2d(stem.in_channels, stem.out_channels, 3, 1, 1, bias=False)
        nn.init.kaiming_normal_(small.weight, mode="fan_out", nonlinearity="relu")
        model.add_module("conv1", small)
    else:  # a deep stem already has 3 x 3 kernels
        first = next(layer for layer in stem.modules() if isinstance(layer, nn.Conv2d))
        first.stride = (1, 1)
    model.add_module("maxpool", nn.Identity())


def _build_from_import_path(name: str, shape: Shape) -> nn.Module:
    """Build an encoder by importing and calling ``module:attribute``."""
    module_name, _, attribute = name.partition(":")
    check(bool(module_name), f"encoder: must be {CUSTOM_ENCODER_LABEL}, got {name!r}.")
    _check_encoder_not_stdlib(module_name, name)
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # third-party code may raise anything
        message = f"encoder: importing {module_name!r} failed: {_format_error(error)}"
        raise UsageError(message, kind="import_failed") from error
    if not hasattr(module, attribute):
        public = [member for member in vars(module) if not member.startswith("_")]
        raise unknown_name_error(f"encoder: {name!r}: attribute", attribute, public)
    factory = getattr(module, attribute)
    # Checked again after the import, as a module may re-export a function of the standard library.
    for part in (module.__name__, factory.__module__ if inspect.isroutine(factory) or inspect.isclass(factory) else ""):
        _check_encoder_not_stdlib(part or "", name)
    check(callable(factory), f"encoder: {name!r} must be callable, got {type(factory).__name__}.", "not_callable")
    try:
        encoder = factory(shape)
    except (Exception, SystemExit) as error:  # third-party code may raise anything
        message = f"encoder: {name!r} failed for shape {shape}: {_format_error(error)}"
        raise UsageError(message, kind="call_failed") from error
    message = f"encoder: {name!r} must return an nn.Module, got {type(encoder).__name__}."
    check(isinstance(encoder, nn.Module), message, "not_a_module")
    return encoder  # type: ignore[no-any-return]


def _check_encoder_not_stdlib(module: str, name: str) -> None:
    """Raise `UsageError` if a custom encoder would be imported from the standard library."""
    message = f"encoder: {name!r} belongs to Python's standard library; name your own {CUSTOM_ENCODER_LABEL}."
    check(module.partition(".")[0] not in sys.stdlib_module_names, message, "stdlib")


def _shape_error(name: str, shape: Shape, error: BaseException) -> UsageError:
    """Build the error for an encoder that rejects an item shape."""
    return UsageError(
        f"encoder: {name!r} does not accept {describe_items_of_shape(shape)}: {_format_error(error)}", kind="shape"
    )


def _format_error(error: BaseException) -> str:
    """Return the type and the message of an error as one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
