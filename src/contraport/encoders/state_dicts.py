"""Weights by name: read from a file, and put into an encoder that has the same."""

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
"""The weights of an encoder by name."""

_NESTED = ("state_dict", "model_state_dict", "model")
_POSITIONS = "pos_embed"


def read_state_dict(path: Path) -> State:
    """Return the weights of a file, behind whatever a library nests them in; nothing is unpickled.

    Raises:
        UsageError: it cannot be read, or holds no weights by name.
    """
    read: Callable[[Path], Any] = load_file if path.suffix == ".safetensors" else _unpickled_nothing
    try:
        check_checksum(path)
        state = read(path)
        for name in _NESTED:
            if isinstance(state, Mapping) and isinstance(state.get(name), Mapping):
                state = state[name]
    except (Exception, SafetensorError) as error:  # on hostile bytes readers raise whatever they like
        told = unreadable_error(f"init: {path}", "weights by name", error)
        by_name = "" if read is load_file else "; expected what torch.save(module.state_dict(), FILE) writes."
        raise UsageError(f"{told}{by_name}") from error
    good = isinstance(state, Mapping) and len(state) > 0
    state = {name: value for name, value in state.items() if isinstance(value, Tensor)} if good else {}
    check(len(state) > 0, f"init: expected weights by name in {path}, found none.")
    return state


def _unpickled_nothing(path: Path) -> Any:
    return torch.load(path, map_location="cpu", weights_only=True)


def load_weights(encoder: nn.Module, state: State, name: str | None, source: str) -> None:
    """Put weights into an encoder, all of it.

    Args:
        encoder: takes them.
        state: the weights, by the encoder's own names or all behind one prefix; those of a classifier are left out,
            and those of the positions in images of another size are resampled, as timm does it.
        name: what messages call the encoder; None: by its class.
        source: what they call where the weights are from.

    Raises:
        UsageError: they are not of its architecture.
    """
    own = encoder.state_dict()
    found = _without_prefix(state, own, source)
    heads = _classifiers(encoder)
    found = {key: value for key, value in found.items() if not key.startswith(heads)} if heads else found
    found = _with_positions(encoder, _with_channels(encoder, found, own), own)
    missing, others = own.keys() - found.keys(), found.keys() - own.keys()
    shaped = [key for key in own.keys() & found.keys() if own[key].shape != found[key].shape]
    told = [
        *([f"it lacks {len(missing)} of {len(own)}, such as {min(missing)}"] if missing else []),
        *([f"has {len(others)} others, such as {min(others)}"] if others else []),
        *(
            [
                f"{len(shaped)} are of other shapes, such as {min(shaped)}, {tuple(found[min(shaped)].shape)} for "
                f"{tuple(own[min(shaped)].shape)}"
            ]
            if shaped
            else []
        ),
    ]
    called = type(encoder).__name__ if name is None else repr(name)
    if len(missing) == len(own):
        told.append(
            "no name fits, so they are another architecture's, which encoder is to name (--encoder resnet18), or "
            "another library's, whose names are to be changed"
        )
    check(not told, f"init: {source} does not have the weights of the encoder {called}: {'; '.join(told)}.")
    encoder.load_state_dict(found)


def _without_prefix(state: State, own: State, source: str) -> State:
    """Return the weights behind the one prefix that all of the encoder's have in a file."""
    first = next(iter(own), "")
    prefixes = {key.removesuffix(first) for key in state if first and (key == first or key.endswith(f".{first}"))}
    whole = sorted(prefix for prefix in prefixes if all(prefix + key in state for key in own))
    check(len(whole) < 2, f"init: {source} has several networks of its architecture: {', '.join(whole)}; expected one.")
    prefix = whole[0] if whole else min(prefixes, key=len, default="")
    return {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}


def _classifiers(encoder: nn.Module) -> tuple[str, ...]:
    """Return how the names of the weights begin that timm's encoder has as a classifier only."""
    named = (getattr(encoder, "pretrained_cfg", None) or {}).get("classifier") or ()
    return tuple(f"{name}." for name in ([named] if isinstance(named, str) else named))


def _with_channels(encoder: nn.Module, found: State, own: State) -> State:
    """Return weights of three channels as those of the encoder's number, as timm adapts them."""
    named = (getattr(encoder, "pretrained_cfg", None) or {}).get("first_conv") or ()
    adapted = dict(found)
    for name in [named] if isinstance(named, str) else named:
        key = f"{name}.weight"
        channels = own[key].shape[1] if key in own else 3
        if channels != 3 and key in found and found[key].ndim == 4 and found[key].shape[1] == 3:
            adapted[key] = adapt_input_conv(channels, found[key])
    return adapted


def _with_positions(encoder: nn.Module, found: State, own: State) -> State:
    """Return weights of the positions in images of another size as those of the encoder's, as timm resamples them."""
    resampled = getattr(sys.modules[type(encoder).__module__], "checkpoint_filter_fn", None)
    others = [key for key in own if key in found and own[key].shape != found[key].shape]
    if resampled is None or not others or not all(key.endswith(_POSITIONS) for key in others):
        return found
    return dict(resampled(found, encoder))
