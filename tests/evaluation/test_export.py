from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.errors import raises_usage_error
from torch import Tensor, nn

import contraport
from contraport._utils.text_bytes import texts_to_tensor
from contraport.encoders import Model
from contraport.evaluation import model_export
from contraport.runs import WritableRun, as_run_folder

FORMATS = ("onnx", "torch-export", "torchscript", "safetensors")


def build_model(
    shapes: Sequence[tuple[int, ...]], encoder: str | None = None, representation: str = "concatenate"
) -> Model:
    """Build a model with nontrivial standardization and running statistics."""
    torch.manual_seed(0)
    moments = [[[value + number for number in range(shape[0])] for shape in shapes] for value in (0.5, 2.0)]
    model = Model(encoder, shapes, 16, *moments, representation=representation)
    for _ in range(3):
        model.project(model.encode([torch.randn(16, *shape) for shape in shapes]))
    return model.eval()


def load_exported(path: Path, format: str) -> Callable[..., Tensor]:
    """Load an exported file without contraport's exporter."""
    if format == "safetensors":
        return Model.from_pretrained(path)
    if format == "torch-export":
        with path.open("rb") as file:
            return torch.export.load(file).module()
    if format == "torchscript":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            return torch.jit.load(str(path))
    session = pytest.importorskip("onnxruntime").InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(*views: Tensor) -> Tensor:
        names = [node.name for node in session.get_inputs()]
        return torch.from_numpy(session.run(None, dict(zip(names, map(np.asarray, views), strict=True)))[0])

    return run


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    ("shapes", "encoder"),
    [
        ([(1, 8, 8)], None),
        ([(4,), (2, 9), (3, 12, 12)], None),
        ([(3, 32, 32)], "test_vit"),
        ([(3, 32, 32)], "resnet10t"),
        ([(3, 32, 32)], "gradients"),
    ],
    ids=["image", "three towers", "vit", "resnet", "gradients"],
)
def test_exported_model_computes_the_same_features(
    tmp_path: Path, format: str, shapes: list[tuple[int, ...]], encoder: str | None
) -> None:
    model = build_model(shapes, encoder)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.train()
    path = contraport.export(model, format=format, out=tmp_path / "exported")
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert list(tmp_path.iterdir()) == [path]
    exported = load_exported(path, format)
    model.eval()
    for items in (1, 7, 64):
        views = [torch.rand(items, *shape) for shape in shapes]
        with torch.no_grad():
            expected = model(*views)
            assert exported(*views).shape == (items, model.num_features)
            assert torch.allclose(exported(*views), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("format", ["onnx", "torch-export", "torchscript"])
def test_exported_inputs_are_the_represented_views(tmp_path: Path, format: str) -> None:
    model = build_model([(4,), (7,)], representation="1")
    views = torch.rand(6, 4), torch.rand(6, 7)
    exported = load_exported(contraport.export(model, format=format, out=tmp_path / "model"), format)
    with torch.no_grad():
        assert torch.allclose(exported(views[1]), model(*views), atol=1e-5)


def test_onnx_file_names_its_inputs_and_contains_its_weights(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    path = contraport.export(build_model([(4,), (2, 9)]), out=tmp_path / "model.onnx")
    graph = onnx.load(path).graph
    onnx.checker.check_model(path)
    assert [node.name for node in graph.input] == ["view0", "view1"]
    assert [node.name for node in graph.output] == ["features"]
    assert all(not weight.external_data for weight in graph.initializer)


def test_exports_a_run(tmp_path: Path) -> None:
    run = WritableRun.create(tmp_path / "run", {"data": "digits"})
    model = build_model([(4,)])
    model.save_pretrained(as_run_folder(run).model_path)
    for source in (run, run.path, str(run.path)):
        out = contraport.export(source, format="torchscript", out=tmp_path / "model.pt", overwrite=True)
        with torch.no_grad():
            assert torch.allclose(
                load_exported(out, "torchscript")(torch.ones(2, 4)), model(torch.ones(2, 4)), atol=1e-6
            )
    with raises_usage_error("run.*"):
        contraport.export(tmp_path / "absent", out=tmp_path / "model.onnx")


@pytest.mark.parametrize("format", FORMATS)
def test_existing_output_requires_overwrite(tmp_path: Path, format: str) -> None:
    out, model = tmp_path / "model", build_model([(4,)])
    contraport.export(model, format=format, out=out)
    with raises_usage_error("out.exists", "overwrite=True"):
        contraport.export(model, format=format, out=out)
    contraport.export(build_model([(5,)]), format=format, out=out, overwrite=True)
    assert load_exported(out, format)(torch.zeros(1, 5)).shape == (1, 256)
    assert list(tmp_path.iterdir()) == [out]


def test_export_replaces_no_other_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["Bert"]}')
    (tmp_path / "model.safetensors").write_bytes(b"mine")
    with raises_usage_error("out.not_a_model", tmp_path):
        contraport.export(build_model([(4,)]), format="safetensors", out=tmp_path, overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    assert (tmp_path / "model.safetensors").read_bytes() == b"mine"


def test_export_rejects_wrong_arguments(tmp_path: Path) -> None:
    model = build_model([(4,)])
    with raises_usage_error("format.unknown", "onx", "onnx"):
        contraport.export(model, format="onx", out=tmp_path / "model")  # type: ignore[arg-type]
    with raises_usage_error("out.not_a_folder", __file__):
        contraport.export(model, out=Path(__file__) / "model.onnx")
    with raises_usage_error("out.type", "file"):
        contraport.export(model, format="onnx", out=tmp_path, overwrite=True)
    with raises_usage_error("out.unknown_suffix", "model.foo", ".onnx"):
        contraport.export(model, out=tmp_path / "model.foo")
    (tmp_path / "file").write_text("mine")
    with raises_usage_error("out.type", "folder"):
        contraport.export(model, format="safetensors", out=tmp_path / "file", overwrite=True)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("encoder", ["small-text", "weighted-ngrams"])
def test_torchscript_of_texts_accepts_any_number_of_texts(encoder: str, tmp_path: Path) -> None:
    model = Model(encoder, [()]).eval()
    file = contraport.export(model, format="torchscript", out=tmp_path / "texts.pt")
    texts = texts_to_tensor(["a red bag", "", "größer als 日本語"])
    with torch.no_grad():
        assert torch.allclose(load_exported(file, "torchscript")(texts), model(texts), atol=1e-6)


def test_torch_export_rejects_texts(tmp_path: Path) -> None:
    with raises_usage_error("format.text"):
        contraport.export(Model("small-text", [()]), format="torch-export", out=tmp_path / "texts.pt2")
    assert not list(tmp_path.iterdir())


def test_error_names_the_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with raises_usage_error("*", "onnxruntime", "contraport[export]"):
        contraport.export(build_model([(4,)]), out=tmp_path / "model.onnx")


class RandomNetwork(nn.Module):
    def forward(self, items: Tensor) -> Tensor:
        return items + torch.rand_like(items)


class FailingNetwork(nn.Module):
    def forward(self, items: Tensor) -> Tensor:
        raise RuntimeError("on the way\nthrough the network")


@pytest.mark.parametrize(
    ("network", "format", "kind", "cause"),
    [
        (RandomNetwork(), "torchscript", "changed_features", ""),
        (RandomNetwork(), "onnx", "changed_features", ""),
        (FailingNetwork(), "torchscript", "not_exportable", "RuntimeError: on the way"),
        (FailingNetwork(), "onnx", "not_exportable", ""),
        (FailingNetwork(), "torch-export", "not_exportable", "RuntimeError: on the way"),
    ],
)
def test_rejects_networks_that_cannot_be_exported(
    tmp_path: Path, network: nn.Module, format: str, kind: str, cause: str
) -> None:
    model = build_model([(4,)])
    model.tower(0).encoder = network
    with raises_usage_error(f"format.{kind}", format, cause) as caught:
        contraport.export(model, format=format, out=tmp_path / "model")
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_failed_export_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = contraport.export(build_model([(4,)]), format="torchscript", out=tmp_path / "model.pt")
    before = out.read_bytes()
    monkeypatch.setattr(model_export, "MAX_RELATIVE_DIFFERENCE", -1.0)
    with raises_usage_error("format.changed_features"):
        contraport.export(build_model([(4,)]), format="torchscript", out=out, overwrite=True)
    assert out.read_bytes() == before
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize(("name", "format"), [("a.pt2", "torch-export"), ("a.pt", "torchscript")])
def test_suffix_selects_the_format(tmp_path, name, format):
    model = build_model([(4,)])
    items = torch.randn(3, 4)
    features = load_exported(contraport.export(model, out=tmp_path / name), format)(items)
    torch.testing.assert_close(features, model.eval()(items).detach(), atol=1e-5, rtol=0)


def test_rejects_a_suffix_of_another_format(tmp_path):
    with raises_usage_error("out.suffix", "a.pt2", "torch-export", "onnx"):
        contraport.export(build_model([(4,)]), format="onnx", out=tmp_path / "a.pt2")
    assert list(tmp_path.iterdir()) == []
