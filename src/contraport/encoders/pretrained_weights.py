"""Loading of trained encoder weights from the Hugging Face hub, a file, a folder or a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import timm
from huggingface_hub import snapshot_download
from huggingface_hub.constants import HF_HUB_CACHE
from torch import nn

from contraport._utils.text_bytes import TEXT_SHAPE
from contraport.catalog.encoders import ENCODERS
from contraport.encoders.factory import custom_code_names, is_user_module_description
from contraport.encoders.initial_weights import InitialWeights, combine_initial_weights
from contraport.encoders.model import CONFIG_FILE, WEIGHTS_FILE, Encoders, Model, read_config
from contraport.encoders.state_dicts import State, read_state_dict
from contraport.encoders.transformers_text_encoder import TransformersTextEncoder, build_transformers_text_encoder
from contraport.errors import UsageError, check, check_regular_file, hint_on_error, one_line_reason

_TIMM_FILES = (WEIGHTS_FILE, "pytorch_model.bin")
_STEM = "conv1.weight"
_LOW_RESOLUTION_KERNEL = 3


def load_pretrained(encoder: Encoders) -> InitialWeights:
    """Load the pretrained weights of timm or transformers encoders, from the hub or the download cache.

    Args:
        encoder: one name, one name per tower, or a mapping from views to names. Built-in and user encoders among
            several keep random weights.

    Raises:
        UsageError: no encoder is from timm or transformers, it has no weights, or they cannot be downloaded.
    """
    if encoder is None or isinstance(encoder, str | nn.Module):
        return _load_one(encoder)
    names = list(encoder.values()) if isinstance(encoder, Mapping) else list(encoder)
    external = [name for name in names if _is_external(name)]
    check(len(external) > 0, f"pretrained: must have a timm or transformers encoder, got {names}.", "no_weights")
    parts = [_load_one(name) if name in external else None for name in names]
    by_view = dict(encoder) if isinstance(encoder, Mapping) else names
    return combine_initial_weights(parts, by_view, source=", ".join(map(str, external)), option_name="encoder")


def _is_external(encoder: object) -> bool:
    """Return whether an encoder is from timm or transformers."""
    return isinstance(encoder, str) and encoder not in ENCODERS and not custom_code_names(encoder)


@hint_on_error("contraport docs troubleshooting weights-cannot-be-downloaded")
def _load_one(encoder: Any) -> InitialWeights:
    message = f"pretrained: must be a timm or transformers encoder by name, such as resnet18, got {encoder!r}."
    check(_is_external(encoder), message, "no_weights")
    return _load_timm(encoder) if timm.is_model(encoder) else _load_text(encoder, encoder)


def _load_text(name: str, source: str) -> InitialWeights:
    """Load a transformers model from a folder or the hub."""
    return InitialWeights(
        source, name, [dict(build_transformers_text_encoder(name, TEXT_SHAPE, pretrained=True).state_dict())]
    )


def _load_timm(name: str) -> InitialWeights:
    hub = _timm_config(name).get("hf_hub_id")
    check(
        bool(hub),
        f"pretrained: timm has no weights of {name!r} on the hub; pass a file or folder as init.",
        "no_weights",
    )
    try:
        folder = Path(snapshot_download(str(hub), allow_patterns=[CONFIG_FILE, *_TIMM_FILES]))
    except Exception as error:  # no network, an unknown model and missing permission raise different errors
        raise UsageError(
            f"pretrained: the weights of {name!r} are not on the Hugging Face hub ({hub}) or in the download cache "
            f"({HF_HUB_CACHE}): {one_line_reason(error)}. Pass a file or folder as init.",
            kind="not_loaded",
        ) from error
    return _read_timm_folder(folder, read_config(folder / CONFIG_FILE, "init"), name, str(hub))


def read_initial_weights(
    where: str | Path, encoder: Encoders, *, trust_remote_code: bool = False, view: str | None = None
) -> InitialWeights:
    """Read the weights of trained encoders from a file, a folder or a run.

    Args:
        where: a weights file (``.safetensors``, ``.pt``, ``.pth``, ``.bin``, ``.ckpt``) with the encoder's names,
            possibly behind one prefix and with a classifier; a folder of timm, of transformers or of
            `Model.save_pretrained`; or a run folder. Nothing is unpickled.
        encoder: the encoder to initialize; None: that of the folder.
        trust_remote_code: import and run the encoder that a folder names as ``module:attribute``.
        view: the view that the encoder is for; from a folder with several encoders, that of the view with this name is
            taken. Default: all views.

    Raises:
        UsageError: the file or folder is missing, cannot be read, or holds other encoders.
    """
    path = Path(where)
    check(path.exists(), f"init: must be an existing file or folder, got {str(where)!r}.", "not_found")
    if not path.is_dir():
        return _read_file(path, encoder)
    inner = path / "model"
    folder = inner if (inner / CONFIG_FILE).is_file() else path
    message = f"init: {path} must be a run with a trained model or a model folder; it has no {CONFIG_FILE}."
    check((folder / CONFIG_FILE).is_file(), message, "no_model")
    config = read_config(folder / CONFIG_FILE, "init")
    if "model_type" in config:
        message = (
            f"init: {path} has a text encoder, not {encoder!r}. Omit encoder, or set --init.text for its view alone."
        )
        check(encoder is None or str(encoder) == str(path), message, "other_encoder")
        return _load_text(str(path), str(path))
    if "architecture" in config:
        return _read_timm_folder(folder, config, encoder, str(path))
    return _read_model_folder(folder, config, encoder, str(path), trust_remote_code=trust_remote_code, view=view)


def _read_model_folder(
    folder: Path,
    config: Mapping[str, Any],
    encoder: Encoders,
    source: str,
    *,
    trust_remote_code: bool,
    view: str | None,
) -> InitialWeights:
    names = config.get("encoder")
    saved = names if isinstance(names, list) else [names]
    own = any(map(is_user_module_description, saved))
    one_view = view is not None and len(saved) > 1
    modules = {view: encoder} if one_view and view is not None and isinstance(encoder, nn.Module) else encoder
    requested = _per_tower(encoder, len(saved))
    # Code that the caller names, too, was already checked as an argument of the caller.
    trust_remote_code = trust_remote_code or requested == saved
    model = Model.from_pretrained(folder, trust_remote_code=trust_remote_code, encoder=modules if own else None)
    numbers = [model.view_index(view, f"init: {source}")] if one_view else range(len(saved))
    towers, shapes = [model.tower(number) for number in numbers], model.shapes
    saved = [saved[number] for number in numbers]
    if one_view:
        shapes, requested = (shapes[numbers[0]],), requested[:1]
    if not own:
        _check_same(requested, saved, source)
    sides = {side for shape in shapes if len(shape) == 3 for side in shape[1:]}
    return InitialWeights(
        source,
        None if own else [str(name) for name in saved],
        [dict(tower.encoder.state_dict()) for tower in towers],
        [(tower.mean.flatten().tolist(), tower.std.flatten().tolist()) for tower in towers],
        sides.pop() if len(sides) == 1 else None,
        model.low_resolution,
        config_folders=[
            Path(model.encoder_sources[number]) if isinstance(tower.encoder, TransformersTextEncoder) else None
            for number, tower in zip(numbers, towers, strict=True)
        ],
    )


def _read_timm_folder(folder: Path, config: Mapping[str, Any], encoder: Encoders, source: str) -> InitialWeights:
    name = str(config["architecture"])
    message = f"init: {source} has the architecture {name!r}, unknown to the installed timm."
    check(timm.is_model(name), message, "unknown_architecture")
    requested = [each.partition(".")[0] if isinstance(each, str) else each for each in _per_tower(encoder, 1)]
    _check_same(requested, [name], source)
    files = [folder / file for file in _TIMM_FILES if (folder / file).is_file()]
    check(len(files) > 0, f"init: {folder} must have {' or '.join(_TIMM_FILES)}.", "missing_file")
    own = config.get("pretrained_cfg")
    settings = _timm_config(name) | (own if isinstance(own, dict) else {})
    return _from_timm_state(name, read_state_dict(files[0]), settings, source)


def _read_file(path: Path, encoder: Encoders) -> InitialWeights:
    check_regular_file("init", path)
    single = encoder is None or isinstance(encoder, str | nn.Module)
    check(single, f"init: {path} holds one encoder, got {encoder!r}.", "several_encoders")
    state = read_state_dict(path)
    if isinstance(encoder, str) and timm.is_model(encoder):
        return _from_timm_state(encoder, state, _timm_config(encoder), str(path))
    return InitialWeights(str(path), encoder if isinstance(encoder, str) else None, [state])


def _from_timm_state(name: str, state: State, config: Mapping[str, Any], source: str) -> InitialWeights:
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


def _per_tower(encoder: Encoders, towers: int) -> list[Any]:
    """Return the encoder that the user named for each tower, or None if the user named none."""
    if isinstance(encoder, Mapping):  # the towers of the views are not known before the data are loaded
        return [None] * towers
    return [encoder] * towers if encoder is None or isinstance(encoder, str | nn.Module) else list(encoder)


def _check_same(requested: Sequence[Any], saved: Sequence[Any], source: str) -> None:
    same = all(encoder is None for encoder in requested) or list(requested) == list(saved)
    names = ", ".join(str(each) if isinstance(each, str) else type(each).__name__ for each in requested)
    message = (
        f"init: {source} has weights of {', '.join(map(str, saved))}, not {names}. Omit encoder, or pass its weights."
    )
    check(same, message, "other_encoder")
