"""State dicts of encoders: read from a file, adapted and loaded into an encoder."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from timm.models import adapt_input_conv
from torch import Tensor, nn

from contraport._utils.files import check_checksum
from contraport.errors import UsageError, check, unreadable_error

State: TypeAlias = dict[str, Tensor]
"""Weights of an encoder by name."""

_NESTED = ("state_dict", "model_state_dict", "model")
_POSITIONS = "pos_embed"


def read_state_dict(path: Path) -> State:
    """Read a state dict from a file, also where it is nested under a key; nothing is unpickled.

    Raises:
        UsageError: the file cannot be read, or holds no weights by name.
    """
    read: Callable[[Path], Any] = load_file if path.suffix == ".safetensors" else _load_tensors
    try:
        check_checksum(path)
        state = read(path)
        for name in _NESTED:
            if isinstance(state, Mapping) and isinstance(state.get(name), Mapping):
                state = state[name]
    except (Exception, SafetensorError) as error:  # readers raise various errors on corrupt files
        message = unreadable_error(f"init: {path}", "weights by name", error)
        hint = "" if read is load_file else "; write it with torch.save(module.state_dict(), FILE)."
        raise UsageError(f"{message}{hint}", kind="unreadable") from error
    good = isinstance(state, Mapping) and len(state) > 0
    state = {name: value for name, value in state.items() if isinstance(value, Tensor)} if good else {}
    check(len(state) > 0, f"init: {path} has no weights by name.", "empty")
    return state


def _load_tensors(path: Path) -> Any:
    return torch.load(path, map_location="cpu", weights_only=True)


def load_weights(encoder: nn.Module, state: State, name: str | None, source: str) -> None:
    """Load all weights of an encoder from a state dict, adapted to its channels and image size.

    Args:
        encoder: changed in place.
        state: weights under the encoder's names, possibly behind one common prefix. A classifier's are dropped;
            position embeddings for another image size are resampled as in timm.
        name: of the encoder, for messages; None: its class.
        source: of the weights, for messages.

    Raises:
        UsageError: the weights are of another architecture.
    """
    own = encoder.state_dict()
    weights = _strip_prefix(state, own, source)
    heads = _classifier_prefixes(encoder)
    weights = {key: value for key, value in weights.items() if not key.startswith(heads)} if heads else weights
    weights = _resample_positions(encoder, _adapt_channels(encoder, weights, own), own)
    missing, unexpected = own.keys() - weights.keys(), weights.keys() - own.keys()
    mismatched = [key for key in own.keys() & weights.keys() if own[key].shape != weights[key].shape]
    problems = []
    if missing:
        problems.append(f"{len(missing)} of {len(own)} are missing, such as {min(missing)}")
    if unexpected:
        problems.append(f"{len(unexpected)} are unexpected, such as {min(unexpected)}")
    if mismatched:
        key = min(mismatched)
        shapes = f"{tuple(weights[key].shape)} instead of {tuple(own[key].shape)}"
        problems.append(f"{len(mismatched)} have another shape, such as {key}, {shapes}")
    kind = "architecture"
    if len(missing) == len(own):
        kind = "no_names_match"
        problems.append("no name matches: name their architecture (--encoder resnet18), or rename the weights")
    label = type(encoder).__name__ if name is None else repr(name)
    check(not problems, f"init: {source} does not fit the encoder {label}: {'; '.join(problems)}.", kind)
    encoder.load_state_dict(weights)


def _strip_prefix(state: State, own: State, source: str) -> State:
    """Remove the common prefix of an encoder's weights in a file, such as ``backbone.``."""
    first = next(iter(own), "")
    prefixes = {key.removesuffix(first) for key in state if first and (key == first or key.endswith(f".{first}"))}
    whole = sorted(prefix for prefix in prefixes if all(prefix + key in state for key in own))
    message = f"init: {source} has several networks of this architecture: {', '.join(whole)}; must have one."
    check(len(whole) < 2, message, "ambiguous")
    prefix = whole[0] if whole else min(prefixes, key=len, default="")
    return {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}


def _classifier_prefixes(encoder: nn.Module) -> tuple[str, ...]:
    """Return the name prefixes of a timm model's classifier."""
    named = (getattr(encoder, "pretrained_cfg", None) or {}).get("classifier") or ()
    return tuple(f"{name}." for name in ([named] if isinstance(named, str) else named))


def _adapt_channels(encoder: nn.Module, weights: State, own: State) -> State:
    """Convert a first convolution of three channels to the encoder's number of channels, as in timm."""
    named = (getattr(encoder, "pretrained_cfg", None) or {}).get("first_conv") or ()
    adapted = dict(weights)
    for name in [named] if isinstance(named, str) else named:
        key = f"{name}.weight"
        channels = own[key].shape[1] if key in own else 3
        if channels != 3 and key in weights and weights[key].ndim == 4 and weights[key].shape[1] == 3:
            adapted[key] = adapt_input_conv(channels, weights[key])
    return adapted


def _resample_positions(encoder: nn.Module, weights: State, own: State) -> State:
    """Resample position embeddings for another image size, with the resampling function of the timm model's module."""
    resample = getattr(sys.modules[type(encoder).__module__], "checkpoint_filter_fn", None)
    others = [key for key in own if key in weights and own[key].shape != weights[key].shape]
    # Only where nothing else differs: timm's filter would also reshape patch embeddings, which changes the model.
    if resample is None or not others or not all(key.endswith(_POSITIONS) for key in others):
        return weights
    return dict(resample(weights, encoder))
