"""Towers for the views of an item, saved together as JSON and safetensors."""

from __future__ import annotations

import copy
import inspect
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, cast

import torch
from huggingface_hub import PyTorchModelHubMixin, snapshot_download
from safetensors import SafetensorError
from safetensors.torch import load_model
from torch import Tensor, nn

from contraport._utils.files import check_checksum, checksum_path, write_checksum
from contraport._utils.text_tensors import channel_count, concatenate_batches, item_shape
from contraport._version import __version__
from contraport.encoders.build import Shape, check_trusted, default_encoder, described, is_module_description
from contraport.encoders.text_transformer import TextTransformer
from contraport.encoders.tower import BOTH, CONCATENATE, PROJECTION, Tower
from contraport.encoders.view_names import resolve_view, values_per_view
from contraport.errors import UsageError, check, one_line_reason

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
Encoders = str | nn.Module | Sequence[str | nn.Module] | Mapping[str, str | nn.Module] | None
"""An encoder for each tower, one per tower, or those of some views by what these are called: a name or a module each;
or those that there are by default."""

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_MODEL_CARD = """---
{{ card_data }}
---

A contraport model. Load it with `contraport.encoders.Model.from_pretrained`.
"""


class Model(nn.Module, PyTorchModelHubMixin, library_name="contraport", model_card_template=_MODEL_CARD):
    """One tower that all views share, or one per view, which take raw items and standardise them inside.

    Args:
        encoder: a name or a module, as `build` takes it; or one per tower; or those of some views, by the name or the
            kind of each, as in ``{"image": "resnet18"}``; default: `default_encoder` of each tower's shape.
        shapes: of one item of each plain view, of which the representation is made: images ``(C, H, W)``, vectors
            ``(d,)``, time series ``(C, T)`` or texts ``()``.
        projection: number of features that the loss sees; 0: no projector, it sees the encoder's.
        mean: for each tower, the mean of each channel (images in units of [0, 1], time series) or feature (vectors), to
            be subtracted; default: 0.
        std: the same, to be divided by; default: 1.
        representation: "concatenate" the features of the views, or what the one view to take is called, such as "0"
            or its name; or "projection", those that the loss sees of the views, side by side; or "both", the features
            and the projection of each, which are divided by their lengths first.
        shared: one tower for all views, which then have one shape; a model of one view has one tower anyway.
        projection_layers: linear layers of the projector, 1, 2 or 3, where there is one.
        low_resolution: give a ResNet the stem for small images, as `build` says.
        view_names: what the views are called; default: ``view0``, ``view1`` and so on.
        kept: a folder in which `save_encoder_files` put what encoders of transformers are built of, which then need
        their own
            no more; or such a folder of each tower's, None of one that is built by its name.

    Attributes:
        towers: the `Tower` that is shared, or one per view.
        num_features: length of the representation.
        part: what the representation has of a view: "concatenate", what its encoder gives, "projection" or "both".
        encoder_sources: the encoder of each tower as it was built: a name, a folder or a module.

    Raises:
        UsageError: an unknown encoder, or settings that do not fit one another.

    >>> model = Model("small-cnn", shapes=[(1, 8, 8)]).eval()
    >>> model(torch.zeros(5, 1, 8, 8, dtype=torch.uint8)).shape
    torch.Size([5, 256])
    >>> two_sensors = Model(shapes=[(3,), (7,)], projection=32).eval()
    >>> views = torch.zeros(5, 3), torch.zeros(5, 7)
    >>> two_sensors(*views).shape, [z.shape[1] for z in two_sensors.project(two_sensors.encode(views))]
    (torch.Size([5, 512]), [32, 32])
    """

    def __init__(
        self,
        encoder: Encoders = None,
        shapes: Sequence[Sequence[int]] = ((1, 28, 28),),
        projection: int = 128,
        mean: Sequence[Sequence[float]] | None = None,
        std: Sequence[Sequence[float]] | None = None,
        representation: str = CONCATENATE,
        shared: bool = False,
        projection_layers: int = 2,
        low_resolution: bool = True,
        view_names: Sequence[str] | None = None,
        kept: Path | Sequence[Path | None] | None = None,
    ) -> None:
        super().__init__()
        self.shapes = _checked_shapes(shapes)
        self.view_names = _checked_names(view_names, len(self.shapes))
        good = isinstance(projection, int) and projection >= 0
        check(good, f"projection: expected a whole number of at least 0, got {projection!r}.")
        check(projection_layers in (1, 2, 3), f"projection_layers: expected 1, 2 or 3, got {projection_layers!r}.")
        check(isinstance(shared, bool), f"shared: expected true or false, got {shared!r}.")
        check(not shared or len(set(self.shapes)) == 1, f"shared: expected views of one shape, got {self.shapes}.")
        inputs = self.shapes[:1] if shared else self.shapes
        if encoder is None or isinstance(encoder, Mapping):
            chosen = values_per_view("encoder", encoder or {}, self.view_names[: len(inputs)], inputs)
            encoder = [
                default_encoder(shape) if one is None else one for one, shape in zip(chosen, inputs, strict=True)
            ]
        elif isinstance(encoder, str | nn.Module):
            encoder = [encoder] * len(inputs)
        self.encoder_sources = _built_from(list(_one_each("encoder", encoder, inputs)), kept)
        rows = (
            inputs,
            self.encoder_sources,
            _one_each("mean", [[0.0] * channel_count(shape) for shape in inputs] if mean is None else mean, inputs),
            _one_each("std", [[1.0] * channel_count(shape) for shape in inputs] if std is None else std, inputs),
        )
        self.towers = nn.ModuleList(
            Tower(
                name, shape, projection, mean=means, std=stds, layers=projection_layers, low_resolution=low_resolution
            )
            for shape, name, means, stds in zip(*rows, strict=True)
        )
        self.represented = self._represented(representation)
        self.part = representation if representation in (PROJECTION, BOTH) else CONCATENATE
        needs = f"representation: expected a projection of 1 feature or more for {representation!r}."
        check(projection > 0 or self.part == CONCATENATE, needs)
        self.low_resolution = low_resolution
        towers = [self.tower(view) for view in self.represented]
        self.num_features = sum(tower.width(self.part) for tower in towers)
        self.config: dict[str, Any] = {
            "encoder": described(list(encoder)),
            "shapes": [list(shape) for shape in self.shapes],
            "projection": projection,
            "mean": [self.tower(number).mean.flatten().tolist() for number in range(len(inputs))],
            "std": [self.tower(number).std.flatten().tolist() for number in range(len(inputs))],
            "representation": representation,
            "shared": shared,
            "projection_layers": projection_layers,
            "low_resolution": low_resolution,
            "view_names": list(self.view_names),
        }
        self._hub_mixin_config = self.config

    def view(self, called: object, argument: str = "view") -> int:
        """Return the number of the view that is called so: by its name, its number, or the kind that it alone is of.

        Raises:
            UsageError: no view is called so, or several are of the kind; the message names the argument.
        """
        return resolve_view(argument, called, self.view_names, self.shapes)

    def of_view(self, called: object) -> Model:
        """Return the model of one view alone, with the same tower: its representation is what the loss sees of it.

        There the views are comparable, so that one is found by another. Without a projection it is the encoder's.

        Raises:
            UsageError: no view is called so, or several are of the kind.

        >>> model = Model(shapes=[(3,), (7,)], projection=32, view_names=["ear", "eye"]).eval()
        >>> eye, items = model.of_view("eye"), torch.ones(5, 7)
        >>> eye(items).shape, eye.tower(0) is model.tower(1)
        (torch.Size([5, 32]), True)
        """
        view = self.view(called)
        shared, tower, kept = len(self.towers) == 1, self.tower(view), self.config
        number = 0 if shared else view
        one = copy.copy(self)
        one._modules = {**self._modules, "towers": nn.ModuleList([tower])}  # of this one alone, not of both
        one.shapes, one.view_names, one.represented = (self.shapes[view],), (self.view_names[view],), (0,)
        one.part = PROJECTION if kept["projection"] > 0 else CONCATENATE
        one.num_features = tower.width(one.part)
        each = {name: [kept[name][number]] for name in ("encoder", "mean", "std")}
        one.config = (
            kept
            | each
            | {
                "shapes": [list(self.shapes[view])],
                "shared": False,
                "representation": one.part,
                "view_names": [self.view_names[view]],
            }
        )
        one._hub_mixin_config = one.config
        return one

    def tower(self, view: int) -> Tower:
        """Return the tower that a view goes through."""
        tower = self.towers[view if len(self.towers) > 1 else 0]
        assert isinstance(tower, Tower)
        return tower

    @property
    def encoders(self) -> tuple[nn.Module, ...]:
        """The encoder of each tower."""
        return tuple(self.tower(number).encoder for number in range(len(self.towers)))

    def encode(self, views: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the features ``(b, F)`` of each view.

        A shared tower takes any number of views, those of equal shape in one pass, so that its normalisation layers see
        them together.

        Raises:
            UsageError: the number of views is not the number of towers, where they do not share one.
        """
        return self._each(views, [self.tower(view) for view in range(len(self.towers))])

    def project(self, features: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return what the loss sees, ``(b, projection)`` per view, of the features that `encode` gave."""
        return self._each(features, [self.tower(view).projector for view in range(len(self.towers))])

    def represent(self, features: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return what a representation has of each view, of the features that `encode` gave."""
        towers = [self.tower(view) for view in range(len(features))]
        return tuple(tower.represent(one, self.part) for tower, one in zip(towers, features, strict=True))

    def _represented(self, representation: str) -> tuple[int, ...]:
        """Return the numbers of the views that a representation is made of."""
        others = (CONCATENATE, PROJECTION, BOTH)
        if representation in others:
            return tuple(range(len(self.shapes)))
        return (resolve_view("representation", representation, self.view_names, self.shapes, others=others),)

    def _each(self, inputs: Sequence[Tensor], modules: Sequence[nn.Module]) -> tuple[Tensor, ...]:
        if len(modules) == 1:
            return _together(modules[0], inputs)
        check(len(inputs) == len(modules), f"views: expected {len(modules)}, one per tower, got {len(inputs)}.")
        return tuple(module(tensor) for module, tensor in zip(modules, inputs, strict=True))

    def forward(self, *views: Tensor) -> Tensor:
        """Return the representation ``(b, num_features)`` of raw items, given by their plain views.

        Raises:
            UsageError: the number of views is not that of `shapes`.
        """
        check(len(views) == len(self.shapes), f"views: expected {len(self.shapes)}, got {len(views)}.")
        towers = [self.tower(view) for view in self.represented]
        return _side_by_side(towers, [views[view] for view in self.represented], self.part)

    def _save_pretrained(self, save_directory: Path) -> None:
        """Write the weights, and a checksum beside them."""
        weights = save_directory / WEIGHTS_FILE
        checksum_path(weights).unlink(missing_ok=True)
        super()._save_pretrained(save_directory)
        self.save_encoder_files(save_directory)
        write_checksum(weights)
        weights.chmod(checksum_path(weights).stat().st_mode)  # safetensors 0.8 keeps what it writes to its owner alone

    def save_encoder_files(self, folder: Path) -> None:
        """Write what encoders of transformers are built of, but for their weights; nothing of others."""
        for number, encoder in enumerate(self.encoders):
            if isinstance(encoder, TextTransformer):
                encoder.keep(folder / _kept(number))

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        map_location: str = "cpu",
        trust: bool = False,
        encoder: Encoders = None,
        **download: Any,
    ) -> Self:
        """Return a saved model in evaluation mode.

        Only JSON and safetensors are read: no pickle is ever opened, and no code is run that the folder names.

        Args:
            pretrained_model_name_or_path: a folder that `save_pretrained` wrote, or ``user/name`` on the Hugging Face
                hub.
            map_location: the device.
            trust: import and run the encoder that the folder names as ``module:attribute``.
            encoder: the module that was trained, or one per tower, where it is one of your own: the folder holds its
                weights.
            download: options of ``huggingface_hub.snapshot_download``, such as ``revision``.

        Raises:
            UsageError: the folder or a file of it is missing, corrupt, or of another model, or names code to run.
        """
        folder = _local_folder(str(pretrained_model_name_or_path), download)
        config = _read_config(folder / CONFIG_FILE)
        _check_known(config, cls, folder / CONFIG_FILE)
        check_trusted(config.get("encoder"), f"{pretrained_model_name_or_path}/{CONFIG_FILE}", trust=trust)
        config["encoder"] = _given(encoder, config, f"{pretrained_model_name_or_path}/{CONFIG_FILE}")
        try:
            check_checksum(folder / WEIGHTS_FILE)
            model = cls(**config, kept=folder)
            missing, unknown = load_model(model, folder / WEIGHTS_FILE, strict=False)  # with weights that are tied
        except (OSError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
            raise UsageError(f"model: {folder} does not hold a model: {one_line_reason(error)}") from error
        _check_weights(sorted(missing), sorted(unknown), folder)
        return model.to(map_location).eval()


class FeatureExtractor(nn.Module):
    """A model as a function of some of its views: of items given by these, their features side by side.

    Args:
        model: whose towers are taken, not copied.
        views: their numbers; default: those that the representation is made of.
    """

    def __init__(self, model: Model, views: Sequence[int] | None = None) -> None:
        super().__init__()
        self.towers = nn.ModuleList(model.tower(view) for view in (model.represented if views is None else views))
        self.part = model.part

    def forward(self, *views: Tensor) -> Tensor:
        """Return the features, ``(b, F)``."""
        return _side_by_side(self.towers, views, self.part)


def _side_by_side(towers: Iterable[nn.Module], views: Sequence[Tensor], part: str) -> Tensor:
    """Return what a representation has of each view, by the tower that it goes through."""
    features = [(cast(Tower, tower), tower(view)) for tower, view in zip(towers, views, strict=True)]
    return torch.cat([tower.represent(one, part) for tower, one in features], dim=1)


def _kept(number: int) -> str:
    """Return the folder within that of a model that has what it takes to build an encoder of transformers."""
    return f"encoder{number}"


def _built_from(encoders: list[Any], kept: Path | Sequence[Path | None] | None) -> list[Any]:
    """Return encoders as they can be built here: those of transformers from what a folder keeps of them."""
    if kept is None:
        return encoders
    folders = [kept / _kept(number) for number in range(len(encoders))] if isinstance(kept, Path) else kept
    return [name if own is None or not own.is_dir() else str(own) for own, name in zip(folders, encoders, strict=True)]


def _given(encoder: Encoders, config: Mapping[str, Any], where: str) -> Any:
    """Return the encoders of a saved model: as they are kept by name, or those given, which must be the kept ones."""
    kept = config.get("encoder")
    names: list[Any] = kept if isinstance(kept, list) else [kept]
    own = [name for name in names if is_module_description(name)]
    if encoder is None:
        check(
            not own,
            f"encoder: {where} has the weights of a module of your own, {', '.join(own)}; pass it: "
            "Run(folder, encoder=module), or Model.from_pretrained(folder, encoder=module).",
        )
        return kept
    given: list[Any]
    if isinstance(encoder, Mapping):
        shapes = _checked_shapes(config.get("shapes") or ())[: len(names)]
        given = values_per_view("encoder", encoder, _checked_names(config.get("view_names"), len(shapes)), shapes)
        given = [name if one is None else one for name, one in zip(names, given, strict=True)]
    else:
        given = [encoder] * len(names) if isinstance(encoder, str | nn.Module) else list(encoder)
    told: list[Any] = described(given)
    same = bool(own) and told == names
    check(same, f"encoder: {where} is of {', '.join(map(str, names))}, got {', '.join(map(str, told))}.")
    return given


def _checked_shapes(shapes: Sequence[Sequence[int]]) -> tuple[Shape, ...]:
    message = f"shapes: expected the shape of each view, such as [(1, 28, 28)], got {shapes!r}."
    try:
        checked = tuple(tuple(int(side) for side in shape) for shape in shapes)
    except (TypeError, ValueError) as error:
        raise UsageError(message) from error
    check(len(checked) > 0 and all(len(shape) <= 3 for shape in checked), message)
    return checked


def _checked_names(names: Sequence[str] | None, views: int) -> tuple[str, ...]:
    if names is None:
        return tuple(f"view{view}" for view in range(views))
    good = len(names) == views == len(set(names)) and all(isinstance(name, str) and name for name in names)
    check(good, f"view_names: expected {views} different names, got {list(names)}.")
    return tuple(names)


def _one_each(name: str, values: Sequence[Any], inputs: Sequence[Shape]) -> Sequence[Any]:
    if isinstance(values, type):
        raise UsageError(f"{name}: expected a module, got the class itself; give {values.__name__}().")
    check(isinstance(values, Sequence), f"{name}: expected one per tower, got {values!r}.")
    check(len(values) == len(inputs), f"{name}: expected {len(inputs)}, one per tower, got {len(values)}.")
    return values


def _together(module: nn.Module, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return what a module gives for each input, where inputs of equal shape pass in one batch."""
    outputs: dict[int, Tensor] = {}
    for shape in dict.fromkeys(map(item_shape, inputs)):
        members = [number for number, tensor in enumerate(inputs) if item_shape(tensor) == shape]
        parts = module(concatenate_batches([inputs[number] for number in members])).split(
            [len(inputs[n]) for n in members]
        )
        outputs |= zip(members, parts, strict=True)
    return tuple(outputs[number] for number in range(len(inputs)))


def _local_folder(name: str, download: dict[str, Any]) -> Path:
    """Return the folder of a saved model, downloaded from the hub where the name is none of a folder."""
    if Path(name).is_dir():
        return Path(name)
    check(_HUB_NAME.fullmatch(name) is not None, f"model: there is no folder {name!r}.")
    try:
        return Path(
            snapshot_download(name, allow_patterns=[CONFIG_FILE, f"{WEIGHTS_FILE}*", f"{_kept(0)[:-1]}*/*"], **download)
        )
    except Exception as error:  # no network, no such model, no permission: each has an error of its own
        raise UsageError(
            f"model: there is no folder {name!r}, and the hub does not give it: {one_line_reason(error)}"
        ) from error


def _check_known(config: Mapping[str, Any], model: type, file: Path) -> None:
    """Raise `UsageError` unless this version knows all that a model says of itself."""
    known = set(inspect.signature(model).parameters) - {"kept"}
    unknown = sorted(config.keys() - known)
    check(
        not unknown,
        f"model: {file} has {', '.join(map(repr, unknown))}, which contraport {__version__} does not know; was it "
        f"written by another version? Known: {', '.join(sorted(known))}.",
    )


def _check_weights(missing: Sequence[str], unknown: Sequence[str], folder: Path) -> None:
    """Raise `UsageError` unless a file of weights had all that the model has, and no others."""
    parts = [f"{len(missing)} are missing ({missing[0]})"] if missing else []
    parts += [f"{len(unknown)} are not known ({unknown[0]})"] if unknown else []
    check(
        not parts,
        f"model: {folder / WEIGHTS_FILE} does not have the weights of what {CONFIG_FILE} beside it tells of: "
        f"{' and '.join(parts)}; is it of another model, or written by another version than contraport {__version__}?",
    )


def _read_config(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"model: {file} cannot be read: {one_line_reason(error)}") from error
    check(isinstance(config, dict), f"model: expected a mapping in {file}, got {type(config).__name__}.")
    return dict(config)
