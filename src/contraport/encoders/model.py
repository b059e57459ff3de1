"""Model of all views, and lookup of views by name or kind."""

from __future__ import annotations

import copy
import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar, cast

import torch
from huggingface_hub import PyTorchModelHubMixin, snapshot_download
from safetensors import SafetensorError
from safetensors.torch import load_model
from torch import Tensor, nn

from contraport._utils.files import check_checksum_if_present, checksum_path, read_json_or_none, write_checksum
from contraport._utils.text_bytes import concatenate_batches, item_shape
from contraport._version import __version__
from contraport.encoders.builtin_networks import default_encoder_name
from contraport.encoders.factory import (
    Shape,
    check_saved_encoder_trusted,
    is_user_module_placeholder,
    serialize_encoder,
)
from contraport.encoders.tower import (
    BOTH_REPRESENTATION,
    CONCATENATED_REPRESENTATION,
    PROJECTION_REPRESENTATION,
    RepresentationName,
    Tower,
)
from contraport.encoders.transformers_text_encoder import TransformersTextEncoder
from contraport.errors import (
    UsageError,
    check,
    check_boolean,
    check_integer,
    is_integer,
    one_line_reason,
    translate_read_errors,
    unknown_name_error,
)
from contraport.options import accept_deprecated_keywords, keep_deprecated_attributes

CONFIG_FILE = "config.json"
"""Name of the configuration file in a model folder."""
WEIGHTS_FILE = "model.safetensors"
"""Name of the weights file in a model folder."""
ViewValueT = TypeVar("ViewValueT")
Encoders = str | nn.Module | Sequence[str | nn.Module] | Mapping[str, str | nn.Module] | None
"""Encoders as names or modules: one for all towers, one per tower, or a mapping from views; None: the defaults."""

_MODEL_CARD_TEMPLATE = """---
{{ card_data }}
---

A contraport model. Load it with `contraport.encoders.Model.from_pretrained`.
"""
"""Jinja template of the README file beside a saved model."""


@keep_deprecated_attributes(
    represent_features="to_chosen_representations",
    save_encoder_files="save_transformers_configs",
    select_view="to_single_view",
    single_view="to_single_view",
    to_representations="to_chosen_representations",
)
class Model(nn.Module, PyTorchModelHubMixin, library_name="contraport", model_card_template=_MODEL_CARD_TEMPLATE):
    """Encoders and projectors for all views of an item.

    Each view has a tower of its own, or all views share one. It takes raw items and standardizes them inside.

    Args:
        encoder: name or module, as in `build_encoder`; or one per tower; or a mapping from view names or kinds, such as
            ``{"image": "resnet18"}``. Default: `default_encoder_name` for each tower's shape.
        shapes: of one item of each view: images ``(C, H, W)``, vectors ``(d,)``, time series ``(C, T)`` or texts
            ``()``.
        projection: output features of the projector, the input of the loss; 0: no projector.
        mean: for each tower, subtracted from each channel (images in units of [0, 1], time series) or feature
            (vectors). Default: 0.
        std: for each tower, divisor of each channel or feature. Default: 1.
        representation: "concatenate": features of all views side by side; a view name or number: those of one view;
            "projection": projections of all views; "both": features and projections, each divided by its length.
        shared: one tower for all views, which must have one shape.
        projection_layers: linear layers of the projector: 1, 2 or 3.
        low_resolution: give a timm ResNet the stem for small images, as in `build_encoder`.
        view_names: default: ``view0``, ``view1``, ...
        dims: number of first coordinates of each view's representation to use, as of a Matryoshka training; default:
            all.
        column_names: for each view made of columns of numbers of a table, their names in order, which the columns of
            other tables are matched with; empty for other views. Default: empty.
        encoder_folders: folder with the files of transformers encoders, which are then built from it; or one such
            folder per tower, None for an encoder that is built by its name.

    Attributes:
        towers: one `Tower` that all views share, or one per view.
        num_features: length of the representation.
        representation_part: part of each tower's output used as representation: "concatenate" (features),
            "projection" or "both".
        representation_views: indices of the views in the representation.
        encoder_sources: name, folder or module that each tower's encoder was built from.

    Raises:
        UsageError: an encoder is unknown, or settings contradict each other.

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
        representation: str = CONCATENATED_REPRESENTATION,
        shared: bool = False,
        projection_layers: int = 2,
        low_resolution: bool = True,
        view_names: Sequence[str] | None = None,
        dims: int | None = None,
        column_names: Sequence[Sequence[str]] | None = None,
        encoder_folders: Path | Sequence[Path | None] | None = None,
    ) -> None:
        super().__init__()
        self.shapes = _validate_shapes(shapes)
        self.view_names = _resolve_view_names(view_names, len(self.shapes))
        check_integer("projection", projection, 0)
        check(projection_layers in (1, 2, 3), f"projection_layers: must be 1, 2 or 3, got {projection_layers!r}.")
        check_boolean("shared", shared)
        good = not shared or len(set(self.shapes)) == 1
        check(good, f"shared: requires views of one shape, got {self.shapes}.", "shape")
        inputs = self.shapes[:1] if shared else self.shapes
        encoders = list_encoders_per_view(encoder, self.view_names[: len(inputs)], inputs)
        self.encoder_sources = _list_encoder_sources(encoders, encoder_folders)
        sizes = [shape[0] if shape else 0 for shape in inputs]  # texts have no mean and std
        means = [[0.0] * size for size in sizes] if mean is None else mean
        stds = [[1.0] * size for size in sizes] if std is None else std
        _check_one_per_tower("mean", means, len(inputs))
        _check_one_per_tower("std", stds, len(inputs))
        self.towers = nn.ModuleList(
            Tower(source, shape, projection, mean, std, projection_layers, low_resolution)
            for source, shape, mean, std in zip(self.encoder_sources, inputs, means, stds, strict=True)
        )
        parts = (CONCATENATED_REPRESENTATION, PROJECTION_REPRESENTATION, BOTH_REPRESENTATION)
        self.representation_views: tuple[int, ...] = tuple(range(len(self.shapes)))
        if representation not in parts:
            view = resolve_view_index("representation", representation, self.view_names, self.shapes, error_names=parts)
            self.representation_views = (view,)
        part = representation if representation in parts else CONCATENATED_REPRESENTATION
        self.representation_part = cast(RepresentationName, part)
        message = f"representation: {representation!r} requires projection >= 1, got {projection}."
        check(projection > 0 or self.representation_part == CONCATENATED_REPRESENTATION, message, "no_projection")
        self.low_resolution = low_resolution
        self.dims: int | None = None
        self.num_features = sum(self.untruncated_representation_sizes)
        self.config: dict[str, Any] = {
            "encoder": serialize_encoder(encoders),
            "shapes": [list(shape) for shape in self.shapes],
            "projection": int(projection),
            "mean": [self.tower(number).mean.flatten().tolist() for number in range(len(inputs))],
            "std": [self.tower(number).std.flatten().tolist() for number in range(len(inputs))],
            "representation": representation,
            "shared": shared,
            "projection_layers": projection_layers,
            "low_resolution": low_resolution,
            "view_names": list(self.view_names),
        }
        if any(column_names or ()):
            columns = [list(names) for names in column_names or ()]
            message = f"column_names: must be one list of names per view, got {columns} for {len(self.shapes)} views."
            check(len(columns) == len(self.shapes), message)
            self.config["column_names"] = columns
        if dims is not None:
            self._truncate_in_place(dims)
        self._hub_mixin_config = self.config

    @property
    def column_names(self) -> tuple[tuple[str, ...], ...]:
        """Names of each view's table columns, in the order used in training; empty if unknown."""
        return tuple(map(tuple, self.config.get("column_names", [()] * len(self.shapes))))

    @property
    def untruncated_representation_sizes(self) -> list[int]:
        """Length of each view's representation before truncation to `dims`."""
        return [self.tower(view).representation_size(self.representation_part) for view in self.representation_views]

    def truncate(self, dims: int) -> Model:
        """Return a copy whose representations have only the first `dims` coordinates.

        The copy shares the towers.

        Raises:
            UsageError: dims is not an integer from 1 to the length of the representation of a view, or the
                representation is "both", which has no first coordinates of its own.

        >>> model = Model(shapes=[(3,), (7,)], projection=32, representation="projection").eval()
        >>> model.truncate(8)(torch.zeros(5, 3), torch.zeros(5, 7)).shape
        torch.Size([5, 16])
        """
        truncated = copy.copy(self)
        truncated._truncate_in_place(dims)
        return truncated

    def _truncate_in_place(self, dims: int) -> None:
        """Make this model return only the first `dims` coordinates of each representation."""
        most, part = min(self.untruncated_representation_sizes), self.representation_part
        good = is_integer(dims) and 1 <= dims <= most
        check(good, f"dims: must be an integer from 1 to {most}, the length of the representation, got {dims!r}.")
        message = "dims: cannot be combined with a representation of features and projection."
        check(part != BOTH_REPRESENTATION, message, "both")
        self.dims = int(dims)
        self.num_features = self.dims * len(self.representation_views)
        self._hub_mixin_config = self.config = self.config | {"dims": self.dims}

    def view_index(self, view: object, argument: str = "view") -> int:
        """Return the index of a view, given its name, its index, or a kind of data that only this view has."""
        return resolve_view_index(argument, view, self.view_names, self.shapes)

    def to_single_view(self, view: object) -> Model:
        """Return a model of one view, which shares its weights with this one.

        It outputs projections if the tower has a projector. Projections of different views are comparable, so that one
        view retrieves another.

        >>> model = Model(shapes=[(3,), (7,)], projection=32, view_names=["ear", "eye"]).eval()
        >>> eye, items = model.to_single_view("eye"), torch.ones(5, 7)
        >>> eye(items).shape, eye.tower(0) is model.tower(1)
        (torch.Size([5, 32]), True)
        """
        index = self.view_index(view)
        tower, number = self.tower(index), 0 if len(self.towers) == 1 else index
        one = copy.copy(self)
        one._modules = {**self._modules, "towers": nn.ModuleList([tower])}  # a new dict, as the copy shares the old one
        one.shapes, one.view_names, one.representation_views = (self.shapes[index],), (self.view_names[index],), (0,)
        one.representation_part = (
            PROJECTION_REPRESENTATION if self.config["projection"] > 0 else CONCATENATED_REPRESENTATION
        )
        one.num_features = sum(one.untruncated_representation_sizes)
        one.config = self.config | {name: [self.config[name][number]] for name in ("encoder", "mean", "std")}
        one.config |= {"shapes": [list(self.shapes[index])], "view_names": [self.view_names[index]]}
        one.config |= {"shared": False, "representation": one.representation_part}
        if "column_names" in self.config:
            one.config["column_names"] = [list(self.column_names[index])]
        one._hub_mixin_config = one.config
        return one if self.dims is None else one.truncate(self.dims)

    def tower(self, view: int) -> Tower:
        """Return the module that standardizes, encodes and projects a view."""
        tower = self.towers[view if len(self.towers) > 1 else 0]
        assert isinstance(tower, Tower)
        return tower

    @property
    def encoders(self) -> tuple[nn.Module, ...]:
        """The encoder of each tower."""
        return tuple(self.tower(number).encoder for number in range(len(self.towers)))

    def encode(self, views: Sequence[Tensor], *, pooled: bool = True) -> tuple[Tensor, ...]:
        """Return the features of each view, ``(b, F)``.

        With ``pooled=False``, return those of each patch or word, ``(b, t, F)``. A shared tower takes any number of
        views. Views of equal shape pass in one batch, so that batch norm uses the statistics of all of them.
        """
        towers = [partial(self.tower(view), pooled=pooled) for view in range(len(self.towers))]
        return self._apply_shared_or_per_view(views, towers)

    def project(self, features: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return each view's projections, ``(b, projection)``, the input of the loss.

        Features of sets of vectors, ``(b, t, F)``, have projections ``(b, t, projection)``.
        """
        projections = self._apply_shared_or_per_view(
            features, [self.tower(view).projector for view in range(len(self.towers))]
        )
        return projections if self.dims is None else tuple(each[..., : self.dims] for each in projections)

    def to_chosen_representations(self, features: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Convert each view's features to the representation that the model returns."""
        towers = [self.tower(view) for view in range(len(features))]
        return tuple(
            tower.to_representation(each, self.representation_part)[..., : self.dims]
            for tower, each in zip(towers, features, strict=True)
        )

    def _apply_shared_or_per_view(
        self, inputs: Sequence[Tensor], modules: Sequence[Callable[[Tensor], Tensor]]
    ) -> tuple[Tensor, ...]:
        """Apply each module to its view, or one module to all views."""
        if len(modules) > 1:
            message = f"views: must be {len(modules)}, one per tower, got {len(inputs)}."
            check(len(inputs) == len(modules), message, "shape")
            return tuple(module(tensor) for module, tensor in zip(modules, inputs, strict=True))
        outputs: dict[int, Tensor] = {}
        for shape in dict.fromkeys(map(item_shape, inputs)):
            members = [number for number, tensor in enumerate(inputs) if item_shape(tensor) == shape]
            whole = modules[0](concatenate_batches([inputs[number] for number in members]))
            outputs |= zip(members, whole.split([len(inputs[number]) for number in members]), strict=True)
        return tuple(outputs[number] for number in range(len(inputs)))

    def forward(self, *views: Tensor) -> Tensor:
        """Return the representation ``(b, num_features)`` of items, given as a tensor per view."""
        check(len(views) == len(self.shapes), f"views: must be {len(self.shapes)}, got {len(views)}.", "shape")
        towers = [self.tower(view) for view in self.representation_views]
        inputs = [views[view] for view in self.representation_views]
        return _encode_and_concat(towers, inputs, self.representation_part, self.dims)

    def _save_pretrained(self, save_directory: Path) -> None:
        """Write the weights, and a checksum beside them."""
        weights = save_directory / WEIGHTS_FILE
        checksum_path(weights).unlink(missing_ok=True)
        super()._save_pretrained(save_directory)
        self.save_transformers_configs(save_directory)
        write_checksum(weights)
        # safetensors 0.8 writes files that only the owner can read.
        weights.chmod(checksum_path(weights).stat().st_mode)

    def save_transformers_configs(self, folder: Path) -> None:
        """Save the config and tokenizer of transformers encoders, without weights."""
        for number, encoder in enumerate(self.encoders):
            if isinstance(encoder, TransformersTextEncoder):
                encoder.save_config_and_tokenizer(folder / f"encoder{number}")

    @classmethod
    @accept_deprecated_keywords(trust="trust_remote_code")
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        map_location: str = "cpu",
        trust_remote_code: bool = False,
        encoder: Encoders = None,
        **download: Any,
    ) -> Self:
        """Load a saved model in evaluation mode.

        Only JSON and safetensors are read: nothing is unpickled, and no code that the folder names is run.

        Args:
            pretrained_model_name_or_path: folder written by `save_pretrained`, or ``user/name`` on the Hugging Face
                hub.
            map_location: device.
            trust_remote_code: import and run the encoder that the folder names as ``module:attribute``.
            encoder: module that was trained, or one per tower, if it was not built by name; the folder has its weights.
            download: options of ``huggingface_hub.snapshot_download``, such as ``revision``.

        Raises:
            UsageError: a file is missing, corrupt or of another model, or names code to run.
        """
        folder = _get_or_download_folder(str(pretrained_model_name_or_path), download)
        config = read_config(folder / CONFIG_FILE, "model")
        supported = set(inspect.signature(cls).parameters) - {"encoder_folders"}
        unknown = ", ".join(map(repr, sorted(config.keys() - supported)))
        message = (
            f"model: {folder / CONFIG_FILE} has {unknown}, unknown to contraport {__version__}; it may be from another "
            f"version. Known: {', '.join(sorted(supported))}."
        )
        check(not unknown, message, "unknown_keys")
        check_saved_encoder_trusted(
            config.get("encoder"), f"{pretrained_model_name_or_path}/{CONFIG_FILE}", trust_remote_code=trust_remote_code
        )
        config["encoder"] = _get_saved_names_or_user_modules(
            config, f"{pretrained_model_name_or_path}/{CONFIG_FILE}", encoder
        )
        try:
            check_checksum_if_present(folder / WEIGHTS_FILE)
            model = cls(**config, encoder_folders=folder)
            # safetensors' own loader: a state dict would lack the names of tied weights.
            missing, unexpected = load_model(model, folder / WEIGHTS_FILE, strict=False)
        except (OSError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
            reason = one_line_reason(error).removesuffix(".")
            message = f"model: {folder} holds no valid model: {reason}. Restore its files, or train again."
            raise UsageError(message, kind="unreadable") from error
        problems = [
            f"{len(names)} are {kind} ({min(names)})"
            for names, kind in ((missing, "missing"), (unexpected, "unexpected"))
            if names
        ]
        message = (
            f"model: {folder / WEIGHTS_FILE} does not fit {CONFIG_FILE}: {' and '.join(problems)}; it may be of "
            f"another model or another version than contraport {__version__}."
        )
        check(not problems, message, "other_weights")
        return model.to(map_location).eval()


class FeatureExtractor(nn.Module):
    """Module that returns a model's features of raw items, concatenated over views.

    It encodes some views, by default those of the representation. The towers are those of the model, not copies.
    """

    def __init__(self, model: Model, views: Sequence[int] | None = None) -> None:
        super().__init__()
        self.towers = nn.ModuleList(map(model.tower, model.representation_views if views is None else views))
        self.representation_part, self.dims = model.representation_part, model.dims

    def forward(self, *views: Tensor) -> Tensor:
        """Return the features, ``(b, F)``."""
        return _encode_and_concat(self.towers, views, self.representation_part, self.dims)


def _encode_and_concat(
    towers: Iterable[nn.Module], views: Sequence[Tensor], part: RepresentationName, dims_per_view: int | None
) -> Tensor:
    """Encode all views, truncate each to `dims_per_view`, and concatenate them."""
    features = [(cast(Tower, tower), tower(view)) for tower, view in zip(towers, views, strict=True)]
    outputs = [tower.to_representation(each, part) for tower, each in features]
    return torch.cat(outputs if dims_per_view is None else [output[:, :dims_per_view] for output in outputs], dim=1)


def _list_encoder_sources(
    encoders: list[str | nn.Module], folders: Path | Sequence[Path | None] | None
) -> list[str | nn.Module]:
    """Return the module, folder or name that each encoder is built from."""
    if folders is None:
        return encoders
    if isinstance(folders, Path):
        folders = [folders / f"encoder{number}" for number in range(len(encoders))]
    pairs = zip(folders, encoders, strict=True)
    return [
        name if isinstance(name, nn.Module) or folder is None or not folder.is_dir() else str(folder)
        for folder, name in pairs
    ]


def _get_saved_names_or_user_modules(config: Mapping[str, Any], config_path: str, user_modules: Encoders) -> Encoders:
    """Return the user's encoder modules if given, else the saved encoder names."""
    saved = config.get("encoder")
    names: list[Any] = saved if isinstance(saved, list) else [saved]
    own = [name for name in names if is_user_module_placeholder(name)]
    if user_modules is None:
        message = (
            f"encoder: {config_path} has the weights of your own module {', '.join(own)}. Pass it: Run(folder, "
            "encoder=module), or Model.from_pretrained(folder, encoder=module)."
        )
        check(not own, message, "missing_module")
        return saved
    modules: list[Any]
    if isinstance(user_modules, Mapping):
        shapes = _validate_shapes(config.get("shapes") or ())[: len(names)]
        modules = optional_values_per_view(
            "encoder", user_modules, _resolve_view_names(config.get("view_names"), len(shapes)), shapes
        )
        modules = [name if module is None else module for name, module in zip(names, modules, strict=True)]
    else:
        modules = [user_modules] * len(names) if isinstance(user_modules, str | nn.Module) else list(user_modules)
    descriptions: list[Any] = serialize_encoder(modules)
    message = (
        f"encoder: {config_path} must be given {', '.join(map(str, names))}, got {', '.join(map(str, descriptions))}."
    )
    check(bool(own) and descriptions == names, message, "other_encoder")
    return modules


def _validate_shapes(shapes: Sequence[Sequence[int]]) -> tuple[Shape, ...]:
    """Check given view shapes, and return them as tuples of integers."""
    message = f"shapes: must hold the shape of each view, such as [(1, 28, 28)], got {shapes!r}."
    try:
        checked = tuple(tuple(int(side) for side in shape) for shape in shapes)
    except (TypeError, ValueError) as error:
        raise UsageError(message) from error
    check(len(checked) > 0 and all(len(shape) <= 3 for shape in checked), message)
    return checked


def _resolve_view_names(names: Sequence[str] | None, num_views: int) -> tuple[str, ...]:
    """Return the view names, by default ``view0``, ``view1``, ..."""
    if names is None:
        return tuple(f"view{view}" for view in range(num_views))
    good = len(names) == num_views == len(set(names)) and all(isinstance(name, str) and name for name in names)
    check(good, f"view_names: must be {num_views} different names, got {list(names)}.")
    return tuple(names)


def kind_from_shape(shape: Shape) -> str:
    """Return the kind of items with a given shape: "text", "vector", "series" or "image".

    >>> kind_from_shape((3, 32, 32)), kind_from_shape((6, 100)), kind_from_shape((7,))
    ('image', 'series', 'vector')
    """
    return ("text", "vector", "series", "image")[len(shape)]


def resolve_view_index(
    argument: str, value: object, names: Sequence[str], shapes: Sequence[Shape], *, error_names: Sequence[str] = ()
) -> int:
    """Return the index of a view, given its name, its index, or a kind of data that only this view has.

    `error_names` are further values that only the error message lists as valid.

    Raises:
        UsageError: no view matches, or several are of the kind.

    >>> names, shapes = ("photo", "audio"), ((3, 32, 32), (1, 8000))
    >>> [resolve_view_index("view", value, names, shapes) for value in ("audio", "1", "image")]
    [1, 1, 0]
    """
    text, kinds = str(value), [kind_from_shape(shape) for shape in shapes]
    numbers = [str(number) for number in range(len(names))]
    for candidates in (list(names), numbers):
        if text in candidates:
            return candidates.index(text)
    matches = [name for name, kind in zip(names, kinds, strict=True) if kind == text]
    message = f"{argument}: {text!r} is the kind of {len(matches)} views; name one of {matches}."
    check(len(matches) < 2, message, "ambiguous")
    if not matches:
        raise unknown_name_error(argument, text, dict.fromkeys([*error_names, *names, *kinds, *numbers]))
    return kinds.index(text)


def optional_values_per_view(
    argument: str, values: Mapping[str, ViewValueT], view_names: Sequence[str], shapes: Sequence[Shape]
) -> list[ViewValueT | None]:
    """Return one value per view from a mapping, None for views without one.

    Raises:
        UsageError: a key matches no view, or two keys match the same view.

    >>> optional_values_per_view("encoder", {"image": "resnet18"}, ("photo", "audio"), ((3, 32, 32), (1, 8000)))
    ['resnet18', None]
    """
    result: list[ViewValueT | None] = [None] * len(view_names)
    for key, value in values.items():
        number = resolve_view_index(argument, key, view_names, shapes)
        message = f"{argument}: names the view {view_names[number]!r} twice, in {list(values)}."
        check(result[number] is None, message, "duplicate")
        result[number] = value
    return result


def list_encoders_per_view(
    encoder: Encoders, view_names: Sequence[str], shapes: Sequence[Shape]
) -> list[str | nn.Module]:
    """Resolve the option `encoder` to one name or module per view.

    >>> list_encoders_per_view({"image": "resnet18"}, ("photo", "audio"), ((3, 32, 32), (1, 8000)))
    ['resnet18', 'small-tcn']
    """
    if encoder is None or isinstance(encoder, Mapping):
        chosen = optional_values_per_view("encoder", encoder or {}, view_names, shapes)
        return [default_encoder_name(shape) if one is None else one for one, shape in zip(chosen, shapes, strict=True)]
    several = [encoder] * len(view_names) if isinstance(encoder, str | nn.Module) else encoder
    _check_one_per_tower("encoder", several, len(shapes))
    return list(several)


def _check_one_per_tower(argument: str, values: Sequence[Any], num_towers: int) -> None:
    """Raise `UsageError` unless an option has one value per tower."""
    if isinstance(values, type):
        raise UsageError(f"{argument}: must be a module, got the class; pass {values.__name__}().", kind="class")
    check(isinstance(values, Sequence), f"{argument}: must be one for all views or one per view, got {values!r}.")
    check(len(values) == num_towers, f"{argument}: must be {num_towers}, one per tower, got {len(values)}.", "shape")


def _get_or_download_folder(name: str, download_options: dict[str, Any]) -> Path:
    """Return the folder of a saved model, downloaded from the hub if necessary."""
    if (folder := Path(name)).is_dir():
        inner = folder / "model"
        is_run = not (folder / CONFIG_FILE).exists() and (inner / CONFIG_FILE).exists()
        check(not is_run, f"model: {folder} is a run folder; its model is {inner}.", "run_folder")
        message = f"model: must be a folder that save_pretrained wrote; {folder} has no {CONFIG_FILE}."
        check((folder / CONFIG_FILE).exists(), message, "no_model")
        return folder
    message = f"model: must be an existing folder or user/name on the hub, got {name!r}."
    check(re.fullmatch(r"[\w.-]+/[\w.-]+", name) is not None, message, "not_found")
    try:
        patterns = [CONFIG_FILE, f"{WEIGHTS_FILE}*", "encoder*/*"]
        return Path(snapshot_download(name, allow_patterns=patterns, **download_options))
    except Exception as error:  # no network, an unknown model and missing permission raise different errors
        message = f"model: {name!r} is neither a folder nor on the hub: {one_line_reason(error)}"
        raise UsageError(message, kind="not_loaded") from error


def is_model_folder(folder: Path) -> bool:
    """Return whether a folder holds the weights and configuration of a model."""
    config = read_json_or_none(folder / CONFIG_FILE)
    return isinstance(config, dict) and {"encoder", "shapes"} <= config.keys() and (folder / WEIGHTS_FILE).exists()


def read_config(file: Path, argument: str) -> dict[str, Any]:
    """Read the JSON object in a model's configuration file."""
    with translate_read_errors(f"{argument}: {file}", "JSON"):
        config = json.loads(file.read_text(encoding="utf-8"))
    check(isinstance(config, dict), f"{argument}: {file} must hold a JSON object.", "unreadable")
    return dict(config)
