"""Weights that an encoder begins with instead of random ones: those of another library, of a file, or of an own run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import timm
import torch
from huggingface_hub import snapshot_download
from huggingface_hub.constants import HF_HUB_CACHE
from safetensors import SafetensorError
from safetensors.torch import load_file
from timm.models import adapt_input_conv
from torch import Tensor, nn

from contraport.catalog.encoders import ENCODERS
from contraport.encoders.build import Shape, code_named, is_described
from contraport.encoders.model import CONFIG_FILE, WEIGHTS_FILE, Encoders, Model
from contraport.encoders.tokenized import build_tokenized
from contraport.encoders.view_names import each_view
from contraport.errors import UsageError, cannot_read, check, check_regular, explained, reason
from contraport.files import check_checksum
from contraport.texts import TEXT

State: TypeAlias = dict[str, Tensor]
"""The weights of an encoder by name."""

_TIMM_FILES = (WEIGHTS_FILE, "pytorch_model.bin")
_NESTED = ("state_dict", "model_state_dict", "model")
_STEM = "conv1.weight"
_LOW_RESOLUTION_KERNEL = 3


@dataclass(frozen=True)
class Initial:
    """Encoders that were trained before, and what they were trained to see.

    Attributes:
        source: what messages call it.
        encoder: the names of the encoders, one per tower, or one that is taken for each, or those of some views by what
            these are called; None: the source has none.
        states: the weights of each, or one for all; None where they are drawn.
        mean: what each was standardised by, or one for all; None: by what its data have.
        std: the same, to be divided by.
        image_size: side in pixels of the images that they saw; None: they saw none, or the source does not say.
        low_resolution: whether a ResNet has the stem for small images.
        argument: what messages call what names the views.
    """

    source: str
    encoder: str | list[Any] | Mapping[str, Any] | None
    states: Sequence[State | None]
    mean: Sequence[list[float] | None] = (None,)
    std: Sequence[list[float] | None] = (None,)
    image_size: int | None = None
    low_resolution: bool = False
    argument: str = "encoder"

    def give(self, model: Model) -> list[bool]:
        """Put the weights into the encoders of a model, and return which of its towers have some.

        Raises:
            UsageError: they are of another architecture.
        """
        places = self._places(len(model.towers), model.view_names, model.shapes)
        states = [None if place is None else self.states[place] for place in places]
        for number, (place, state) in enumerate(zip(places, states, strict=True)):
            if state is not None:
                _load(model.tower(number).encoder, state, self._named(place or 0), self.source)
        return [state is not None for state in states]

    def statistics(
        self, given: Sequence[tuple[list[float], list[float]]], names: Sequence[str] = (), shapes: Sequence[Shape] = ()
    ) -> list[tuple[list[float], list[float]]]:
        """Return what each tower standardises by: what the encoders were trained with, or else what is given.

        Args:
            given: the mean and the standard deviation of what each tower takes.
            names: of the views, where it is by these that encoders were asked for.
            shapes: of one item of each.
        """
        chosen = []
        for (mean, std), place in zip(given, self._places(len(given), names, shapes), strict=True):
            own_mean, own_std = (
                None if place is None else values[place if len(values) > 1 else 0] for values in (self.mean, self.std)
            )
            known = own_mean is not None and own_std is not None and len(own_mean) == len(mean)
            chosen.append((own_mean, own_std) if known and own_mean and own_std else (mean, std))
        return chosen

    def _places(self, towers: int, names: Sequence[str], shapes: Sequence[Shape]) -> list[int | None]:
        """Return which of the encoders each tower has, None for one that has none of them."""
        if isinstance(self.encoder, Mapping):
            numbered = {called: place for place, called in enumerate(self.encoder)}
            return each_view(self.argument, numbered, names, shapes)[:towers]
        there = len(self.states)
        check(there in (1, towers), f"init: {self.source} has {there} encoders; expected {towers}, one a view.")
        return [number if there > 1 else 0 for number in range(towers)]

    def _named(self, place: int) -> str:
        if isinstance(self.encoder, Mapping):
            return str(list(self.encoder.values())[place])
        names = [self.encoder] if isinstance(self.encoder, str) or self.encoder is None else self.encoder
        return str(names[place if len(names) > 1 else 0])


def of_views(parts: Mapping[str, Initial]) -> Initial:
    """Return the encoders of some views, one of each, as one.

    Args:
        parts: by what the views are called.
    """
    sizes = {part.image_size for part in parts.values() if part.image_size is not None}
    return Initial(
        ", ".join(dict.fromkeys(part.source for part in parts.values())),
        {view: part.encoder[0] if isinstance(part.encoder, list) else part.encoder for view, part in parts.items()},
        [part.states[0] for part in parts.values()],
        [part.mean[0] for part in parts.values()],
        [part.std[0] for part in parts.values()],
        sizes.pop() if len(sizes) == 1 else None,
        any(part.low_resolution for part in parts.values()),
        "init",
    )


def pretrained(encoder: Encoders) -> Initial:
    """Return the weights that timm or transformers has of encoders, from the hub or from what was downloaded before.

    Args:
        encoder: the name of one; or a list of one per tower, or those of some views by what these are called, of which
            those that are our own or the caller's are left as they are drawn.

    Raises:
        UsageError: no encoder is one of theirs, there are no weights of it, or they cannot be had.
    """
    if encoder is None or isinstance(encoder, str | nn.Module):
        return _pretrained(encoder)
    names = list(encoder.values()) if isinstance(encoder, Mapping) else list(encoder)
    theirs = [name for name in names if _is_theirs(name)]
    check(len(theirs) > 0, f"pretrained: expected an encoder of timm's or transformers', got {names}.")
    parts = [_pretrained(name) if name in theirs else None for name in names]
    sizes = {part.image_size for part in parts if part is not None and part.image_size is not None}
    return Initial(
        ", ".join(map(str, theirs)),
        dict(encoder) if isinstance(encoder, Mapping) else names,
        [None if part is None else part.states[0] for part in parts],
        [None if part is None else part.mean[0] for part in parts],
        [None if part is None else part.std[0] for part in parts],
        sizes.pop() if len(sizes) == 1 else None,
        any(part is not None and part.low_resolution for part in parts),
    )


def _is_theirs(encoder: object) -> bool:
    return isinstance(encoder, str) and encoder not in ENCODERS and not code_named(encoder)


@explained("contraport docs troubleshooting weights-cannot-be-downloaded")
def _pretrained(encoder: Any) -> Initial:
    check(
        _is_theirs(encoder),
        f"pretrained: expected an encoder of timm's or transformers' by name, such as resnet18, got {encoder!r}.",
    )
    return _pretrained_by_timm(encoder) if timm.is_model(encoder) else _pretrained_of_texts(encoder, encoder)


def _pretrained_of_texts(name: str, source: str) -> Initial:
    """Return the weights of a model of transformers, of a folder or of the hub."""
    return Initial(source, name, [dict(build_tokenized(name, TEXT, pretrained=True).state_dict())])


def _pretrained_by_timm(name: str) -> Initial:
    known = _timm_config(name)
    hub = known.get("hf_hub_id")
    check(bool(hub), f"pretrained: timm has no weights of {name!r} on the hub; init takes a file or a folder of them.")
    try:
        folder = Path(snapshot_download(str(hub), allow_patterns=[CONFIG_FILE, *_TIMM_FILES]))
    except Exception as error:  # no network, no such model, no permission: each has an error of its own
        raise UsageError(
            f"pretrained: the weights of {name!r} were looked for on the Hugging Face hub ({hub}) and in what was "
            f"downloaded before ({HF_HUB_CACHE}), and are in neither: {reason(error)} --init takes a file or a folder."
        ) from error
    return _of_timm_folder(folder, name, str(hub))


def initial(where: str | Path, encoder: Encoders, *, trust: bool = False, view: str | None = None) -> Initial:
    """Return the encoders that a file or a folder has.

    Args:
        where: a file of weights, ``.safetensors``, ``.pt``, ``.pth``, ``.bin`` or ``.ckpt``, by the encoder's own names
            or all of them behind one prefix, a classifier aside; a folder of timm's, of transformers or one that
            `Model.save_pretrained` wrote; or a run folder. Nothing is unpickled.
        encoder: the encoder that was asked for; None: what the folder has.
        trust: import and run the encoder that a folder names as ``module:attribute``.
        view: the one that the encoder is for; of a folder with several encoders it has that of the view which is called
            so there; default: all views.

    Raises:
        UsageError: there is no such file or folder, it cannot be read, or it has other encoders.
    """
    path = Path(where)
    check(path.exists(), f"init: there is no file or folder {str(where)!r}.")
    if not path.is_dir():
        return _of_file(path, encoder)
    inner = path / "model"
    folder = inner if (inner / CONFIG_FILE).is_file() else path
    check(
        (folder / CONFIG_FILE).is_file(),
        f"init: {path} is no run with a trained model, and no folder of a model: it has no {CONFIG_FILE}.",
    )
    try:
        config = json.loads((folder / CONFIG_FILE).read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise cannot_read(f"init: {folder / CONFIG_FILE}", "JSON", error) from error
    check(isinstance(config, dict), f"init: expected a mapping in {folder / CONFIG_FILE}.")
    if "model_type" in config:
        check(
            encoder is None or str(encoder) == str(path),
            f"init: {path} has one encoder of texts, and the encoder is to be {encoder!r}; leave it out, or give "
            "the folder to its view alone, as in --init.text.",
        )
        return _pretrained_of_texts(str(path), str(path))
    if "architecture" in config:
        return _of_timm_folder(folder, encoder, str(path))
    return _of_model(folder, config, encoder, str(path), trust=trust, view=view)


def _of_model(
    folder: Path, config: Mapping[str, Any], encoder: Encoders, source: str, *, trust: bool, view: str | None
) -> Initial:
    names = config.get("encoder")
    kept = names if isinstance(names, list) else [names]
    own = any(map(is_described, kept))
    alone = view is not None and len(kept) > 1
    given = {view: encoder} if alone and view is not None and isinstance(encoder, nn.Module) else encoder
    asked = _listed(encoder, len(kept))
    # What the caller names too was judged as the caller's.
    model = Model.from_pretrained(folder, trust=trust or asked == kept, encoder=given if own else None)
    numbers = [model.view(view, f"init: {source}")] if alone else range(len(kept))
    towers, shapes = [model.tower(number) for number in numbers], model.shapes
    kept = [kept[number] for number in numbers]
    if alone:
        shapes, asked = (shapes[numbers[0]],), asked[:1]
    if not own:
        _check_same(asked, kept, source)
    sides = {side for shape in shapes if len(shape) == 3 for side in shape[1:]}
    return Initial(
        source,
        None if own else [str(one) for one in kept],
        [dict(tower.encoder.state_dict()) for tower in towers],
        [tower.mean.flatten().tolist() for tower in towers],
        [tower.std.flatten().tolist() for tower in towers],
        sides.pop() if len(sides) == 1 else None,
        model.low_resolution,
    )


def _of_timm_folder(folder: Path, encoder: Encoders, source: str) -> Initial:
    config = json.loads((folder / CONFIG_FILE).read_text("utf-8"))
    name = str(config["architecture"])
    check(timm.is_model(name), f"init: {source} has the architecture {name!r}, which this timm does not know.")
    asked = [one.partition(".")[0] if isinstance(one, str) else one for one in _listed(encoder, 1)]
    _check_same(asked, [name], source)
    files = [folder / file for file in _TIMM_FILES if (folder / file).is_file()]
    check(len(files) > 0, f"init: {folder} has neither {' nor '.join(_TIMM_FILES)}.")
    own = config.get("pretrained_cfg")
    return _of_timm(name, _read_state(files[0]), _timm_config(name) | (own if isinstance(own, dict) else {}), source)


def _of_file(path: Path, encoder: Encoders) -> Initial:
    check_regular("init", path)
    check(
        encoder is None or isinstance(encoder, str | nn.Module),
        f"init: {path} is a file of one encoder; expected one, got {encoder!r}.",
    )
    state = _read_state(path)
    if isinstance(encoder, str) and timm.is_model(encoder):
        return _of_timm(encoder, state, _timm_config(encoder), str(path))
    return Initial(str(path), encoder if isinstance(encoder, str) else None, [state])


def _of_timm(name: str, state: State, config: Mapping[str, Any], source: str) -> Initial:
    size = config.get("input_size")
    mean, std = (list(config[key]) if config.get(key) else None for key in ("mean", "std"))
    stem = state.get(_STEM)
    return Initial(
        source,
        name,
        [state],
        [mean],
        [std],
        int(size[-1]) if size else None,
        stem is not None and stem.shape[-1] == _LOW_RESOLUTION_KERNEL,
    )


def _timm_config(name: str) -> dict[str, Any]:
    config = timm.get_pretrained_cfg(name)
    return {} if config is None else dict(config.to_dict())


def _listed(encoder: Encoders, towers: int) -> list[Any]:
    """Return what was asked for each of some towers."""
    if isinstance(encoder, Mapping):  # which of the towers they are of is known only with the data
        return [None] * towers
    return [encoder] * towers if encoder is None or isinstance(encoder, str | nn.Module) else list(encoder)


def _check_same(asked: Sequence[Any], kept: Sequence[Any], source: str) -> None:
    same = all(one is None for one in asked) or list(asked) == list(kept)
    check(
        same,
        f"init: {source} has weights of {', '.join(map(str, kept))}, and the encoder is to be "
        f"{', '.join(str(one) if isinstance(one, str) else type(one).__name__ for one in asked)}; leave "
        "it out, or give weights of its own.",
    )


def _read_state(path: Path) -> State:
    read: Callable[[Path], Any] = load_file if path.suffix == ".safetensors" else _unpickled_nothing
    try:
        check_checksum(path)
        state = read(path)
        for name in _NESTED:
            if isinstance(state, Mapping) and isinstance(state.get(name), Mapping):
                state = state[name]
    except (Exception, SafetensorError) as error:  # on hostile bytes readers raise whatever they like
        raise cannot_read(f"init: {path}", "weights by name", error) from error
    good = isinstance(state, Mapping) and len(state) > 0
    state = {name: value for name, value in state.items() if isinstance(value, Tensor)} if good else {}
    check(len(state) > 0, f"init: expected weights by name in {path}, found none.")
    return state


def _unpickled_nothing(path: Path) -> Any:
    return torch.load(path, map_location="cpu", weights_only=True)


def _load(encoder: nn.Module, state: State, name: str, source: str) -> None:
    """Put weights into an encoder, all of it.

    Raises:
        UsageError: they are not of its architecture.
    """
    own = encoder.state_dict()
    found = _without_prefix(state, own, source)
    heads = _classifiers(encoder)
    found = {key: value for key, value in found.items() if not key.startswith(heads)} if heads else found
    found = _with_channels(encoder, found, own)
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
    called = type(encoder).__name__ if name == "None" else repr(name)
    if len(missing) == len(own):
        told.append(
            "no name fits, so they are another architecture's or another library's, whose names are to be changed"
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
