"""Training on a CUDA device (-m gpu): comparison with the CPU, resuming, mixed precision, evaluation, embedding."""

import json

import numpy as np
import pytest
import torch

import contraport
from contraport.encoders import Model

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """File of small images of three classes that a few epochs can separate."""
    rng = np.random.default_rng(0)
    labels = np.arange(384) % 3
    images = rng.integers(0, 80, (384, 16, 16), dtype=np.uint8)
    for item, label in enumerate(labels):
        images[item, 5 * label : 5 * label + 5] += 150
    path = tmp_path_factory.mktemp("data") / "pictures.npz"
    np.savez(path, x=images, y=labels)
    return path


def train(data, out, **options):
    settings = {
        "encoder": "small-cnn",
        "epochs": 2,
        "batch_size": 64,
        "seed": 3,
        "lr_scheduler": "constant",
        "device": "cuda",
        "progress": False,
    }
    return contraport.train(data=str(data), out=str(out), **settings | options)


def read_losses(out):
    return [json.loads(line).get("loss") for line in (out / "metrics.jsonl").read_text().splitlines()]


def test_results_are_close_to_those_of_a_cpu(data, tmp_path):
    for device in ("cpu", "cuda"):
        train(data, tmp_path / device, device=device, augment="none", epochs=1)
    torch.testing.assert_close(read_losses(tmp_path / "cuda"), read_losses(tmp_path / "cpu"), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("options", [{}, {"amp": True}, {"objective": "gca-uot"}, {"recipe": "moco"}], ids=str)
def test_trains_and_resumes_on_a_device(data, tmp_path, options):
    train(data, tmp_path / "whole", epochs=4, **options)
    train(data, tmp_path / "parts", epochs=2, **options)
    contraport.train(out=str(tmp_path / "parts"), resume=True, epochs=4, progress=False)
    uninterrupted, resumed = read_losses(tmp_path / "whole"), read_losses(tmp_path / "parts")
    assert uninterrupted[-1] < uninterrupted[0] or options.get("recipe") == "moco"
    torch.testing.assert_close(resumed, uninterrupted, rtol=5e-2, atol=5e-2)


def test_evaluate_embed_and_load_the_model(data, tmp_path):
    train(data, tmp_path / "run")
    contraport.evaluate(str(tmp_path / "run"), device="cuda")
    contraport.embed(str(tmp_path / "run"), out=str(tmp_path / "features.npz"), device="cuda")
    result = np.load(tmp_path / "features.npz")
    model = Model.from_pretrained(tmp_path / "run" / "model")
    assert len(result["features"]) == 384
    assert model is not None


def test_frozen_encoder_and_audit(data, tmp_path):
    train(data, tmp_path / "first")
    train(data, tmp_path / "frozen", init=str(tmp_path / "first"), freeze=True)
    rng = np.random.default_rng(1)
    hidden = rng.normal(size=(400, 4))
    views = [hidden @ rng.normal(size=(4, 8)) + 0.1 * rng.normal(size=(400, 8)) for _ in range(2)]
    path = tmp_path / "pairs.npz"
    np.savez(path, view0=views[0].astype(np.float32), view1=views[1].astype(np.float32))
    train(path, tmp_path / "audited", encoder="mlp", audit=True, epochs=8)
