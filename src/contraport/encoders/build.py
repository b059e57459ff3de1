"""The one door to all encoders: ours, timm's, or your own."""

from __future__ import annotations

import copy
import difflib
import hashlib
import importlib
import inspect
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import timm
import torch
from timm.models import ResNet
from torch import nn
from torch.nn.parameter import is_lazy

from contraport._utils.formatting import describe_shape, format_options
from contraport._utils.lazy import import_object
from contraport._utils.text_tensors import blank_items, is_text_shape
from contraport.catalog.encoders import ENCODERS, OWN, TIMM
from contraport.encoders.text_transformer import build_text_transformer, is_transformers_folder
from contraport.errors import UsageError, check, hint_on_error, unknown_name_error

LARGEST_LOW_RESOLUTION = 64

Shape = tuple[int, ...]


_DEFAULTS = {0: "small-text", 1: "mlp", 2: "small-tcn", 3: "small-cnn"}


def default_encoder(shape: Shape) -> str:
    """Return the name of the encoder for items of a shape for which none was asked: one of our own.

    >>> default_encoder((6,)), default_encoder((6, 100)), default_encoder((1, 28, 28)), default_encoder(())
    ('mlp', 'small-tcn', 'small-cnn', 'small-text')
    """
    return _DEFAULTS[len(shape)]


def custom_code_names(encoder: object) -> list[str]:
    """Return which of the encoders that a file gives are code to import.

    >>> custom_code_names(["mlp", "their_nets:Net"])
    ['their_nets:Net']
    """
    several = list(encoder.values()) if isinstance(encoder, Mapping) else encoder
    names = several if isinstance(several, list | tuple) else [encoder]
    return [name for name in names if isinstance(name, str) and ":" in name]


@hint_on_error("contraport docs training folders-of-others")
def check_trusted(encoder: object, where: str, *, trust: bool) -> None:
    """Raise `UsageError` where the encoders that a file gives are code to import, unless it is trusted.

    >>> check_trusted(["mlp", "their_nets:Net"], "model/config.json", trust=False)
    Traceback (most recent call last):
    contraport.errors.UsageError: encoder: model/config.json names code to run, 'their_nets:Net', which may do...
    """
    code = custom_code_names(encoder)
    check(
        trust or not code,
        f"encoder: {where} names code to run, {', '.join(map(repr, code))}, which may do anything; look at it, and "
        f"if you trust it pass {format_options(trust=True)}.",
    )


def described(encoder: object) -> Any:
    """Return an encoder as a file names it: a name as it is, a module by its class and a digest of all but its weights.

    >>> described(["mlp", nn.Linear(3, 2)])
    ['mlp', '<Linear of 8 weights, ...>']
    """
    if isinstance(encoder, Mapping):
        return {str(view): described(one) for view, one in encoder.items()}
    if isinstance(encoder, list | tuple):
        return [described(one) for one in encoder]
    if not isinstance(encoder, nn.Module):
        return encoder
    state = {name: tuple(value.shape) for name, value in encoder.state_dict().items()}
    parts = [(name, type(part).__name__) for name, part in encoder.named_modules()]
    weights = sum(parameter.numel() for parameter in encoder.parameters())
    digest = hashlib.sha256(repr((state, parts)).encode()).hexdigest()[:12]
    return f"<{type(encoder).__name__} of {weights:,} weights, {digest}>"


def is_module_description(name: object) -> bool:
    """Return whether a name stands for a module that only its owner has."""
    return isinstance(name, str) and name.startswith("<")


def build(name: str | nn.Module, shape: Shape, *, low_resolution: bool = True) -> nn.Module:
    """Return an encoder with an attribute ``num_features``, untrained where it is built by its name.

    Args:
        name: a module, of which a copy is returned; ``small-cnn``, ``mlp``, ``small-tcn``, ``small-text``, a timm name,
            of texts the name or the folder of a model of transformers, or ``module:attribute`` of an importable
            callable that takes the shape of an item and returns an ``nn.Module``, mapping ``(b, *shape)``, texts
            ``(b, bytes)``, to ``(b, num_features)``.
        shape: of one item: an image ``(C, H, W)``, a vector ``(d,)``, a time series ``(C, T)`` or a text ``()``.
        low_resolution: give a ResNet of timm the stem for small images (a convolution of stride 1, no pooling) where
            they have at most 64 pixels a side; weights that were trained without it do not fit one that has it.

    Raises:
        UsageError: an unknown name, an import that fails, or an encoder that does not take items of this shape.

    >>> build("small-cnn", (1, 8, 8)).num_features
    256
    """
    shape = tuple(int(side) for side in shape)
    good = len(shape) in _DEFAULTS and all(side > 0 for side in shape)
    check(good, f"shape: expected (C, H, W), (d,), (C, T), all positive, or (), got {shape}.")
    check(isinstance(name, str | nn.Module), f"encoder: expected a name or a module, got {name!r}.")
    if isinstance(name, nn.Module):
        lazy = any(is_lazy(value) for value in [*name.parameters(), *name.buffers()])
        check(
            not lazy, f"encoder: {type(name).__name__} has weights without a shape yet; pass a batch through it first."
        )
        encoder, name, own = copy.deepcopy(name), type(name).__name__, True
    elif name in ENCODERS:
        ours: nn.Module = import_object(ENCODERS[name].network)(shape)
        return ours
    else:
        own = ":" in name
        if own:
            encoder = _own(name, shape)
        elif is_text_shape(shape):
            of_images = timm.is_model(name) and not Path(name).exists()
            check(not of_images, f"encoder: {name!r} takes images, got texts; use {default_encoder(shape)!r}.")
            encoder = build_text_transformer(name, shape)
        else:
            encoder = _from_timm(name, shape, low_resolution=low_resolution)
    features = _features(encoder, name, shape)
    if own:  # timm declares the width before pooling, which some of its models widen after
        declared = getattr(encoder, "num_features", features)
        check(declared == features, f"encoder: {name!r} declares {declared} features and returns {features}.")
    if getattr(encoder, "num_features", None) != features:
        encoder.num_features = features  # type: ignore[assignment]
    return encoder


def _features(encoder: nn.Module, name: str, shape: Shape) -> int:
    """Return the number of features, found by a dry run that changes neither weights nor buffers."""
    training = encoder.training
    try:
        with torch.no_grad():
            output = encoder.eval()(blank_items(2, shape))
    except (
        Exception,
        SystemExit,
    ) as error:  # a stranger's code: whatever it raises means that it cannot take the items
        raise UsageError(f"encoder: {name!r} does not take {describe_shape(shape)}: {_named(error)}") from error
    finally:
        encoder.train(training)
    good = isinstance(output, torch.Tensor) and output.ndim == 2 and len(output) == 2
    found = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
    check(good, f"encoder: {name!r} must return (b, features), got {found} for a batch of 2.")
    return int(output.shape[1])


def _from_timm(name: str, shape: Shape, *, low_resolution: bool) -> nn.Module:
    if not timm.is_model(name):
        check(
            not is_transformers_folder(Path(name)),
            f"encoder: {name!r} is a model of texts, got {describe_shape(shape)}; give it to the view of texts alone, "
            "as in --encoder.text or --init.text.",
        )
        near = difflib.get_close_matches(name, timm.list_models(), n=3)
        raise UsageError(f"{unknown_name_error('encoder', name, [*ENCODERS, *near])} Or {TIMM}, or your own {OWN}.")
    check(
        len(shape) == 3, f"encoder: {name!r} takes images, got {describe_shape(shape)}; use {default_encoder(shape)!r}."
    )
    channels, *size = shape
    create = partial(timm.create_model, name, pretrained=False, num_classes=0, in_chans=channels)
    try:
        model = create(img_size=tuple(size))
    except TypeError:  # timm does not say beforehand which of its models have an image size
        model = create()
    except Exception as error:  # each family of models tells in its own way that it cannot take the size
        raise UsageError(f"encoder: {name!r} does not take {describe_shape(shape)}: {_named(error)}") from error
    if low_resolution and isinstance(model, ResNet) and max(size) <= LARGEST_LOW_RESOLUTION:
        _keep_resolution(model)
    return model


def _keep_resolution(model: ResNet) -> None:
    """Give a ResNet the stem for small images: 3 x 3, stride 1, no pooling."""
    stem: nn.Module = model.conv1
    if isinstance(stem, nn.Conv2d):
        small = nn.Conv2d(stem.in_channels, stem.out_channels, 3, 1, 1, bias=False)
        nn.init.kaiming_normal_(small.weight, mode="fan_out", nonlinearity="relu")
        model.add_module("conv1", small)
    else:  # a deep stem is 3 x 3 already
        first = next(layer for layer in stem.modules() if isinstance(layer, nn.Conv2d))
        first.stride = (1, 1)
    model.add_module("maxpool", nn.Identity())


def _own(name: str, shape: Shape) -> nn.Module:
    module_name, _, attribute = name.partition(":")
    _check_not_pythons(module_name, name)
    module = _imported(module_name, name)
    factory = _attribute(module, attribute, name)
    for part in (module.__name__, factory.__module__ if inspect.isroutine(factory) or inspect.isclass(factory) else ""):
        _check_not_pythons(part or "", name)
    check(callable(factory), f"encoder: {name!r} is not callable: {type(factory).__name__}.")
    try:
        encoder = factory(shape)  # type: ignore[operator]
    except (Exception, SystemExit) as error:  # a stranger's code
        told = f"encoder: {name!r} failed as it was called with the shape of an item, {shape}"
        raise UsageError(f"{told}: {_named(error)}.") from error
    check(isinstance(encoder, nn.Module), f"encoder: {name!r} must return an nn.Module, got {type(encoder).__name__}.")
    return encoder  # type: ignore[no-any-return]


def _check_not_pythons(module: str, name: str) -> None:
    """Raise `UsageError` for what comes with Python, such as ``os:system``, by whatever way it is reached."""
    check(
        module.partition(".")[0] not in sys.stdlib_module_names,
        f"encoder: {name!r} belongs to Python itself, which has no encoders; expected {OWN} of your own.",
    )


def _imported(module: str, name: str) -> ModuleType:
    check(bool(module), f"encoder: expected {OWN}, got {name!r}.")
    try:
        return importlib.import_module(module)
    except (Exception, SystemExit) as error:  # a stranger's code
        raise UsageError(f"encoder: importing {module!r} failed: {_named(error)}") from error


def _attribute(module: ModuleType, attribute: str, name: str) -> object:
    if not hasattr(module, attribute):
        public = [known for known in vars(module) if not known.startswith("_")]
        raise unknown_name_error(f"encoder: {name!r}: attribute", attribute, public)
    return getattr(module, attribute)


def _named(error: BaseException) -> str:
    """Return an exception on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
