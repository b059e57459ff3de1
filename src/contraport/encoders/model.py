"""An encoder with its projector and its standardisation, saved as JSON and safetensors."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch
from huggingface_hub import PyTorchModelHubMixin, snapshot_download
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from contraport.encoders.build import build
from contraport.encoders.networks import Projector
from contraport.errors import UsageError, check

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_MODEL_CARD = """---
{{ card_data }}
---

A contraport model. Load it with `contraport.encoders.Model.from_pretrained`.
"""


class Model(nn.Module, PyTorchModelHubMixin, library_name="contraport", model_card_template=_MODEL_CARD):
    """An encoder and its projector, which take raw items and standardise them inside.

    Args:
        encoder: a name as `build` takes it.
        shape: of one item, ``(C, H, W)`` or ``(d,)``.
        projection: number of features that the loss sees.
        mean: of each channel (images, in units of [0, 1]) or feature (vectors), to be subtracted; default 0.
        std: the same, to be divided by; default 1.

    Shape: images uint8 or float in [0, 1] ``(b, C, H, W)``, or vectors ``(b, d)``, to ``(b, num_features)``.

    Raises:
        UsageError: an unknown encoder, or numbers that do not fit the shape.

    >>> model = Model("small-cnn", (1, 8, 8)).eval()
    >>> h = model(torch.zeros(5, 1, 8, 8, dtype=torch.uint8))
    >>> h.shape, model.project(h).shape
    (torch.Size([5, 256]), torch.Size([5, 128]))
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        encoder: str = "small-cnn",
        shape: Sequence[int] = (1, 28, 28),
        projection: int = 128,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        self.encoder = build(encoder, tuple(shape))
        self.num_features = int(self.encoder.num_features)  # type: ignore[arg-type]
        good = isinstance(projection, int) and projection > 0
        check(good, f"projection: expected a positive whole number, got {projection!r}.")
        self.projector = Projector(self.num_features, self.num_features, projection)
        self._register("mean", [0.0] * shape[0] if mean is None else mean, shape)
        self._register("std", [1.0] * shape[0] if std is None else std, shape)
        check(bool((self.std > 0).all()), "std: expected positive numbers.")
        self.config: dict[str, Any] = {
            "encoder": encoder,
            "shape": [int(side) for side in shape],
            "projection": projection,
            "mean": self.mean.flatten().tolist(),
            "std": self.std.flatten().tolist(),
        }
        self._hub_mixin_config = self.config

    def _register(self, name: str, values: Sequence[float], shape: Sequence[int]) -> None:
        numbers = torch.tensor([float(value) for value in values])
        check(
            len(numbers) == shape[0] and bool(numbers.isfinite().all()),
            f"{name}: expected {shape[0]} finite numbers, one per channel or feature, got {len(numbers)}.",
        )
        self.register_buffer(name, numbers.view(-1, *[1] * (len(shape) - 1)))

    def forward(self, items: Tensor) -> Tensor:
        """Return the representation of raw items, ``(b, num_features)``."""
        if items.dtype == torch.uint8:
            items = items / 255.0
        features: Tensor = self.encoder((items - self.mean) / self.std)
        return features

    def project(self, features: Tensor) -> Tensor:
        """Return what the loss sees, ``(b, projection)``, of representations ``(b, num_features)``."""
        projections: Tensor = self.projector(features)
        return projections

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str | Path, *, map_location: str = "cpu", **download: Any
    ) -> Self:
        """Return a saved model in evaluation mode.

        Only JSON and safetensors are read: no pickle is ever opened.

        Args:
            pretrained_model_name_or_path: a folder that `save_pretrained` wrote, or ``user/name`` on the Hugging Face
                hub.
            map_location: the device.
            download: options of ``huggingface_hub.snapshot_download``, such as ``revision``.

        Raises:
            UsageError: the folder or a file of it is missing, corrupt, or of another model.
        """
        folder = _local_folder(str(pretrained_model_name_or_path), download)
        config = _read_config(folder / CONFIG_FILE)
        check(
            folder == Path(pretrained_model_name_or_path) or ":" not in str(config.get("encoder")),
            f"model: {pretrained_model_name_or_path} names code to import, {config.get('encoder')!r}; "
            "look at it, and load it from a folder of yours.",
        )
        try:
            model = cls(**config)
            model.load_state_dict(load_file(folder / WEIGHTS_FILE), strict=True)
        except (OSError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
            raise UsageError(f"model: {folder} does not hold a model: {_one_line(error)}") from error
        return model.to(map_location).eval()


def _local_folder(name: str, download: dict[str, Any]) -> Path:
    """Return the folder of a saved model, downloaded from the hub where the name is none of a folder."""
    if Path(name).is_dir():
        return Path(name)
    check(_HUB_NAME.fullmatch(name) is not None, f"model: there is no folder {name!r}.")
    try:
        return Path(snapshot_download(name, allow_patterns=[CONFIG_FILE, WEIGHTS_FILE], **download))
    except Exception as error:  # no network, no such model, no permission: each has an error of its own
        raise UsageError(
            f"model: there is no folder {name!r}, and the hub does not give it: {_one_line(error)}"
        ) from error


def _read_config(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"model: {file} cannot be read: {error}") from error
    check(isinstance(config, dict), f"model: expected a mapping in {file}, got {type(config).__name__}.")
    return dict(config)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
