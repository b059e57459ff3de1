"""Custom encoder modules: training of a copy, saved weights, evaluation, export, resuming."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import contraport
from contraport import embed, evaluate, export, train
from contraport.data import from_arrays
from contraport.encoders import Model
from contraport.estimators import ContrastiveEncoder
from contraport.runs import Run, as_run_folder
from contraport.training.components.model_builder import build_untrained_copy
from tests.errors import raises_usage_error

VECTORS = np.random.default_rng(0).normal(size=(64, 6)).astype(np.float32)
DATA = from_arrays(VECTORS, name="vectors")
UNSEEN = from_arrays(-VECTORS, name="vectors")


class Net(nn.Module):
    """Encoder with two tied layers, and its width as a property."""

    def __init__(self, width: int = 5, activation: type[nn.Module] = nn.ReLU) -> None:
        super().__init__()
        self.first, self.act, self.again = nn.Linear(6, width), activation(), nn.Linear(6, width)
        self.again.weight = self.first.weight

    @property
    def num_features(self) -> int:
        return int(self.first.out_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.first(x)) + self.again(x)


def train_quickly(out: Path, encoder: Any, **settings: Any) -> Run:
    options = {"data": DATA, "encoder": encoder, "out": out, "epochs": 1, "batch_size": 32, "lr": 0.05}
    return train(**options | settings, progress=False)


@pytest.fixture(scope="module")
def net() -> Net:
    torch.manual_seed(3)
    return Net()


@pytest.fixture(scope="module")
def run(net: Net, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train_quickly(tmp_path_factory.mktemp("own") / "run", net)


def test_training_copies_the_module(net: Net, run: Run) -> None:
    torch.manual_seed(3)
    assert torch.equal(net.first.weight, Net().first.weight)
    assert not torch.equal(run.model().tower(0).encoder.first.weight, net.first.weight)
    assert run.model().num_features == 5


def test_saved_weights_require_the_same_module(net: Net, run: Run, tmp_path: Path) -> None:
    (description,) = json.loads((as_run_folder(run).model_path / "config.json").read_text())["encoder"]
    assert description.startswith("<Net of 40 weights, ")
    assert run.config()["encoder"] == description
    again = Model.from_pretrained(as_run_folder(run).model_path, encoder=Net())
    assert torch.equal(again(torch.from_numpy(VECTORS)), run.model()(torch.from_numpy(VECTORS)))
    with raises_usage_error("encoder.missing_module", "config.json", "<Net of 40 "):
        Model.from_pretrained(as_run_folder(run).model_path)
    with raises_usage_error("encoder.missing_module", "Run(folder, encoder=module)"):
        embed(run.path, data=DATA, out=tmp_path / "x.npz", progress=False)
    for other in (Net(7), Net(activation=nn.Tanh), nn.Linear(6, 5), "mlp", [Net(), Net()]):
        with raises_usage_error("encoder.other_encoder", "config.json", "<Net of 40 weights, "):
            Run(run.path, encoder=other).model()
    named = Model("mlp", [(6,)])
    named.save_pretrained(tmp_path / "named")
    with raises_usage_error("encoder.other_encoder", "mlp", "<Net of 40"):
        Model.from_pretrained(tmp_path / "named", encoder=net)


def test_custom_encoder_is_evaluated_embedded_and_exported(net: Net, run: Run, tmp_path: Path) -> None:
    run_with_encoder = Run(run.path, encoder=net)
    untrained = build_untrained_copy(run_with_encoder.settings(), run_with_encoder.model(), run_with_encoder.encoder)
    assert torch.equal(untrained.tower(0).encoder.first.weight, net.first.weight)
    rows = [evaluate(one, data=(DATA, UNSEEN), progress=False)["rows"] for one in (run, run_with_encoder)]
    assert rows[0] == rows[1]
    features = np.load(embed(run_with_encoder, data=DATA, out=tmp_path / "f.npz", progress=False))["features"]
    path = export(run_with_encoder, format="safetensors", out=tmp_path / "exported")
    with torch.no_grad():
        exported = Model.from_pretrained(path, encoder=net)(torch.from_numpy(VECTORS)).numpy()
    np.testing.assert_allclose(features, exported, atol=1e-6)


def test_resume_with_a_custom_encoder_equals_an_uninterrupted_run(net: Net, tmp_path: Path) -> None:
    uninterrupted = train_quickly(tmp_path / "whole", net, epochs=2, lr_scheduler="constant")
    half = train_quickly(tmp_path / "half", net, lr_scheduler="constant", warmup_epochs=0.2)
    with raises_usage_error("encoder.object_required", "<Net of 40 weights"):
        train(resume=True, data=DATA, out=half.path, epochs=2, progress=False)
    with raises_usage_error("encoder.changed", "<Net of 40 weights", "<Net of 56 weights"):
        train(resume=True, data=DATA, encoder=Net(7), out=half.path, epochs=2, progress=False)
    resumed = train(resume=True, data=DATA, encoder=Net(), out=half.path, epochs=2, progress=False)
    for name, weights in uninterrupted.model().state_dict().items():
        assert torch.equal(weights, resumed.model().state_dict()[name]), name


def test_resume_hint_passes_the_encoder(run: Run, net: Net) -> None:
    text = f"contraport.train(resume=True, out={str(run.path)!r}, data=..., encoder=...)"
    assert run.resume_command.startswith(f"{text} in Python")
    steps = run.metrics_rows()
    call = text.replace("data=...", "data=DATA").replace("encoder=...", "encoder=net")
    resumed = eval(call, {"contraport": contraport, "DATA": DATA, "net": net})
    assert (resumed.path, resumed.metrics_rows()) == (run.path, steps)


def test_module_and_named_encoder_for_two_views(tmp_path: Path) -> None:
    data = from_arrays((VECTORS, VECTORS[:, :3]))
    encoders = [nn.Sequential(nn.Linear(6, 4)), "mlp"]
    model = train_quickly(tmp_path / "run", encoders, data=data).model()
    assert model.num_features == 4 + 256
    assert model.config["encoder"][1] == "mlp"
    with raises_usage_error("encoder.shape", "'Linear'", (3,)):
        train_quickly(tmp_path / "other", nn.Linear(6, 4), data=data)


def test_estimator_accepts_a_custom_encoder(net: Net) -> None:
    fitted = ContrastiveEncoder(encoder=net, epochs=1, random_state=0).fit(VECTORS)
    assert fitted.transform(VECTORS).shape == (64, 5)


def test_rejects_modules_that_are_not_encoders(tmp_path: Path) -> None:
    with raises_usage_error("encoder.uninitialized", "LazyLinear"):
        train_quickly(tmp_path / "run", nn.LazyLinear(3))
    with raises_usage_error("encoder.output_shape", "'Unflatten'", (2, 6, 1)):
        train_quickly(tmp_path / "run", nn.Unflatten(1, (6, 1)))
    with raises_usage_error("encoder.invalid", 3):
        Model([3], [(6,)])
