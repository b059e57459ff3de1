"""Encoders that were trained before, where they are found: on the hub, in a file, in a folder or in an own run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import timm
from huggingface_hub import snapshot_download
from huggingface_hub.constants import HF_HUB_CACHE
from torch import nn

from contraport._utils.text_tensors import TEXT_SHAPE
from contraport.catalog.encoders import ENCODERS
from contraport.encoders.build import custom_code_names, is_module_description
from contraport.encoders.initial import InitialWeights, together
from contraport.encoders.model import CONFIG_FILE, WEIGHTS_FILE, Encoders, Model
from contraport.encoders.state_dicts import State, read_state_dict
from contraport.encoders.text_transformer import TextTransformer, build_text_transformer
from contraport.errors import UsageError, check, check_regular_file, hint_on_error, one_line_reason, unreadable_error

_TIMM_FILES = (WEIGHTS_FILE, "pytorch_model.bin")
_STEM = "conv1.weight"
_LOW_RESOLUTION_KERNEL = 3


def pretrained(encoder: Encoders) -> InitialWeights:
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
    called = dict(encoder) if isinstance(encoder, Mapping) else names
    return together(parts, called, source=", ".join(map(str, theirs)), argument="encoder")


def _is_theirs(encoder: object) -> bool:
    return isinstance(encoder, str) and encoder not in ENCODERS and not custom_code_names(encoder)


@hint_on_error("contraport docs troubleshooting weights-cannot-be-downloaded")
def _pretrained(encoder: Any) -> InitialWeights:
    check(
        _is_theirs(encoder),
        f"pretrained: expected an encoder of timm's or transformers' by name, such as resnet18, got {encoder!r}.",
    )
    return _pretrained_by_timm(encoder) if timm.is_model(encoder) else _pretrained_of_texts(encoder, encoder)


def _pretrained_of_texts(name: str, source: str) -> InitialWeights:
    """Return the weights of a model of transformers, of a folder or of the hub."""
    return InitialWeights(source, name, [dict(build_text_transformer(name, TEXT_SHAPE, pretrained=True).state_dict())])


def _pretrained_by_timm(name: str) -> InitialWeights:
    known = _timm_config(name)
    hub = known.get("hf_hub_id")
    check(bool(hub), f"pretrained: timm has no weights of {name!r} on the hub; init takes a file or a folder of them.")
    try:
        folder = Path(snapshot_download(str(hub), allow_patterns=[CONFIG_FILE, *_TIMM_FILES]))
    except Exception as error:  # no network, no such model, no permission: each has an error of its own
        raise UsageError(
            f"pretrained: the weights of {name!r} were looked for on the Hugging Face hub ({hub}) and in what was "
            f"downloaded before ({HF_HUB_CACHE}), and are in neither: {one_line_reason(error)} "
            "--init takes a file or a folder."
        ) from error
    return _of_timm_folder(folder, _read_config(folder), name, str(hub))


def initial(where: str | Path, encoder: Encoders, *, trust: bool = False, view: str | None = None) -> InitialWeights:
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
    config = _read_config(folder)
    if "model_type" in config:
        check(
            encoder is None or str(encoder) == str(path),
            f"init: {path} has one encoder of texts, and the encoder is to be {encoder!r}; leave it out, or give "
            "the folder to its view alone, as in --init.text.",
        )
        return _pretrained_of_texts(str(path), str(path))
    if "architecture" in config:
        return _of_timm_folder(folder, config, encoder, str(path))
    return _of_model(folder, config, encoder, str(path), trust=trust, view=view)


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / CONFIG_FILE).read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise unreadable_error(f"init: {folder / CONFIG_FILE}", "JSON", error) from error
    check(isinstance(config, dict), f"init: expected a mapping in {folder / CONFIG_FILE}.")
    return dict(config)


def _of_model(
    folder: Path, config: Mapping[str, Any], encoder: Encoders, source: str, *, trust: bool, view: str | None
) -> InitialWeights:
    names = config.get("encoder")
    kept = names if isinstance(names, list) else [names]
    own = any(map(is_module_description, kept))
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
    return InitialWeights(
        source,
        None if own else [str(one) for one in kept],
        [dict(tower.encoder.state_dict()) for tower in towers],
        [(tower.mean.flatten().tolist(), tower.std.flatten().tolist()) for tower in towers],
        sides.pop() if len(sides) == 1 else None,
        model.low_resolution,
        folders=[
            Path(model.encoder_sources[number]) if isinstance(tower.encoder, TextTransformer) else None
            for number, tower in zip(numbers, towers, strict=True)
        ],
    )


def _of_timm_folder(folder: Path, config: Mapping[str, Any], encoder: Encoders, source: str) -> InitialWeights:
    name = str(config["architecture"])
    check(timm.is_model(name), f"init: {source} has the architecture {name!r}, which this timm does not know.")
    asked = [one.partition(".")[0] if isinstance(one, str) else one for one in _listed(encoder, 1)]
    _check_same(asked, [name], source)
    files = [folder / file for file in _TIMM_FILES if (folder / file).is_file()]
    check(len(files) > 0, f"init: {folder} has neither {' nor '.join(_TIMM_FILES)}.")
    own = config.get("pretrained_cfg")
    return _of_timm(
        name, read_state_dict(files[0]), _timm_config(name) | (own if isinstance(own, dict) else {}), source
    )


def _of_file(path: Path, encoder: Encoders) -> InitialWeights:
    check_regular_file("init", path)
    check(
        encoder is None or isinstance(encoder, str | nn.Module),
        f"init: {path} is a file of one encoder; expected one, got {encoder!r}.",
    )
    state = read_state_dict(path)
    if isinstance(encoder, str) and timm.is_model(encoder):
        return _of_timm(encoder, state, _timm_config(encoder), str(path))
    return InitialWeights(str(path), encoder if isinstance(encoder, str) else None, [state])


def _of_timm(name: str, state: State, config: Mapping[str, Any], source: str) -> InitialWeights:
    size = config.get("input_size")
    mean, std = (list(config[key]) if config.get(key) else None for key in ("mean", "std"))
    stem = state.get(_STEM)
    return InitialWeights(
        source,
        name,
        [state],
        [None if mean is None or std is None else (mean, std)],
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
