"""Initial weights from files, folders, runs and the hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from huggingface_hub.constants import HF_HUB_CACHE
from safetensors.torch import save_file
from tests.errors import raises_usage_error
from timm.layers import resample_abs_pos_embed
from torch import nn

from contraport.encoders import Model, load_pretrained_weights, read_initial_weights

SHAPE = (3, 32, 32)


def build_timm_model(name: str = "resnet18", **settings: Any) -> nn.Module:
    torch.manual_seed(7)
    model: nn.Module = timm.create_model(name, **settings)
    return model


def assert_loaded(model: Model, encoder: nn.Module) -> None:
    actual, expected = model.tower(0).encoder.state_dict(), encoder.state_dict()
    assert actual
    assert all(torch.equal(value, expected[name]) for name, value in actual.items())


def write_timm_folder(path: Path, encoder: nn.Module, name: str, **config: Any) -> Path:
    path.mkdir()
    save_file(encoder.state_dict(), path / "model.safetensors")
    (path / "config.json").write_text(json.dumps({"architecture": name, "pretrained_cfg": config}))
    return path


@pytest.mark.parametrize("nested", [None, "state_dict", "model"])
@pytest.mark.parametrize("prefix", ["", "module.", "pipeline.model.towers.0.encoder."])
def test_reads_weights_behind_any_prefix(tmp_path: Path, nested: str | None, prefix: str) -> None:
    encoder = build_timm_model()
    state = {prefix + name: value for name, value in encoder.state_dict().items()}
    torch.save({nested: state, "epoch": 3} if nested else state, tmp_path / "weights.pt")
    weights = read_initial_weights(tmp_path / "weights.pt", "resnet18")
    model = Model("resnet18", [SHAPE], low_resolution=weights.any_has_low_resolution_stem)
    weights.load_into(model)
    assert_loaded(model, encoder)
    assert not weights.any_has_low_resolution_stem
    assert weights.common_image_size == 224


def test_reads_safetensors_of_a_built_in_encoder(tmp_path: Path) -> None:
    torch.manual_seed(3)
    source = Model("small-cnn", [(1, 8, 8)])
    save_file(source.tower(0).encoder.state_dict(), tmp_path / "cnn.safetensors")
    weights = read_initial_weights(tmp_path / "cnn.safetensors", "small-cnn")
    model = Model("small-cnn", [(1, 8, 8)])
    weights.load_into(model)
    assert_loaded(model, source.tower(0).encoder)
    assert weights.resolve_input_statistics([([0.5], [2.0])]) == [([0.5], [2.0])]


def test_timm_folder_has_name_image_size_and_statistics(tmp_path: Path) -> None:
    encoder = build_timm_model(num_classes=0)
    folder = write_timm_folder(
        tmp_path / "timm", encoder, "resnet18", input_size=[3, 96, 96], mean=[0.1, 0.2, 0.3], std=[0.4, 0.5, 0.6]
    )
    weights = read_initial_weights(folder, None)
    assert (weights.encoder_names, weights.common_image_size) == ("resnet18", 96)
    assert weights.resolve_input_statistics([([0.0] * 3, [1.0] * 3)]) == [([0.1, 0.2, 0.3], [0.4, 0.5, 0.6])]
    assert weights.resolve_input_statistics([([0.0], [1.0])]) == [([0.0], [1.0])]
    model = Model("resnet18", [SHAPE], low_resolution=weights.any_has_low_resolution_stem)
    weights.load_into(model)
    assert_loaded(model, encoder)


def test_weights_of_three_channels_are_summed_for_one(tmp_path: Path) -> None:
    encoder = build_timm_model()
    torch.save(encoder.state_dict(), tmp_path / "weights.pt")
    model = Model("resnet18", [(1, 32, 32)], low_resolution=False)
    read_initial_weights(tmp_path / "weights.pt", "resnet18").load_into(model)
    grey = torch.rand(2, 1, 32, 32)
    with torch.no_grad():
        expected = encoder.eval().forward_features(grey.expand(-1, 3, -1, -1)).mean((2, 3))
        torch.testing.assert_close(model.eval().tower(0).encoder(grey), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "deit_tiny_distilled_patch16_224"])
def test_position_embeddings_are_resampled_as_in_timm(tmp_path: Path, name: str) -> None:
    encoder = build_timm_model(name, depth=1, img_size=48)
    save_file(encoder.state_dict(), tmp_path / "vit.safetensors")
    model = Model(build_timm_model(name, depth=1, img_size=32, num_classes=0), [SHAPE])
    read_initial_weights(tmp_path / "vit.safetensors", model.tower(0).encoder).load_into(model)
    resampled, source = model.tower(0).encoder.state_dict(), encoder.state_dict()
    prefix = source["pos_embed"].shape[1] - 9
    expected = resample_abs_pos_embed(source["pos_embed"], [2, 2], num_prefix_tokens=prefix)
    torch.testing.assert_close(resampled["pos_embed"], expected)
    assert all(torch.equal(value, source[key]) for key, value in resampled.items() if key != "pos_embed")
    other = Model(build_timm_model(name, depth=1, img_size=24, patch_size=8, num_classes=0), [(3, 24, 24)])
    with raises_usage_error("init.architecture", "patch_embed.proj.weight"):  # only position embeddings are resampled
        read_initial_weights(tmp_path / "vit.safetensors", None).load_into(other)


def test_weights_of_a_run_have_encoder_stem_and_statistics(tmp_path: Path) -> None:
    torch.manual_seed(0)
    source = Model("resnet18", [SHAPE], mean=[[0.3] * 3], std=[[0.2] * 3])
    source.save_pretrained(tmp_path / "run" / "model")
    weights = read_initial_weights(tmp_path / "run", None)
    assert (weights.encoder_names, weights.common_image_size, weights.any_has_low_resolution_stem) == (
        ["resnet18"],
        32,
        True,
    )
    ((mean, std),) = weights.resolve_input_statistics([([0.0] * 3, [1.0] * 3)])
    assert mean == pytest.approx([0.3] * 3)
    assert std == pytest.approx([0.2] * 3)
    model = Model("resnet18", [SHAPE])
    weights.load_into(model)
    assert_loaded(model, source.tower(0).encoder)


def test_rejects_weights_of_another_architecture(tmp_path: Path) -> None:
    torch.save(build_timm_model("resnet18").state_dict(), tmp_path / "weights.pt")
    file = tmp_path / "weights.pt"
    with raises_usage_error("init.architecture", "resnet50", "missing"):
        read_initial_weights(file, "resnet50").load_into(Model("resnet50", [SHAPE], low_resolution=False))
    with raises_usage_error("init.architecture", "resnet18", "conv1.weight", "7, 7", "3, 3"):
        read_initial_weights(file, "resnet18").load_into(Model("resnet18", [SHAPE]))
    with raises_usage_error("init.architecture", "resnet10t") as caught:
        read_initial_weights(file, "resnet10t").load_into(Model("resnet10t", [SHAPE], low_resolution=False))
    torch.save(
        {name.replace(".", "/"): value for name, value in build_timm_model().state_dict().items()},
        tmp_path / "named.pt",
    )
    with raises_usage_error("init.no_names_match", "resnet18"):
        read_initial_weights(tmp_path / "named.pt", "resnet18").load_into(
            Model("resnet18", [SHAPE], low_resolution=False)
        )
    assert "\n" not in str(caught.value)
    with raises_usage_error("init.no_names_match", "SmallCNN", "encoder='resnet18'"):
        read_initial_weights(file, None).load_into(Model("small-cnn", [SHAPE]))
    both = {f"{part}.{name}": value for part in "qk" for name, value in build_timm_model().state_dict().items()}
    torch.save(both, tmp_path / "both.pt")
    with raises_usage_error("init.ambiguous", "k., q."):
        read_initial_weights(tmp_path / "both.pt", "resnet18").load_into(
            Model("resnet18", [SHAPE], low_resolution=False)
        )
    folder = write_timm_folder(tmp_path / "timm", build_timm_model(num_classes=0), "resnet18")
    with raises_usage_error("init.other_encoder", "resnet18", "resnet34"):
        read_initial_weights(folder, "resnet34")
    Model("mlp", [(4,)]).save_pretrained(tmp_path / "model")
    with raises_usage_error("init.other_encoder", "mlp", "small-cnn"):
        read_initial_weights(tmp_path / "model", "small-cnn")


def test_rejects_files_without_weights(tmp_path: Path) -> None:
    with raises_usage_error("init.not_found", "'nowhere'"):
        read_initial_weights("nowhere", None)
    (tmp_path / "empty").mkdir()
    with raises_usage_error("init.no_model", "config.json"):
        read_initial_weights(tmp_path / "empty", None)
    (tmp_path / "text.pt").write_text("no weights")
    with raises_usage_error("init.unreadable", "text.pt"):
        read_initial_weights(tmp_path / "text.pt", None)
    torch.save({"epoch": 3}, tmp_path / "nothing.pt")
    with raises_usage_error("init.empty", "nothing.pt"):
        read_initial_weights(tmp_path / "nothing.pt", None)
    torch.save(build_timm_model().eval(), tmp_path / "module.pt")
    with raises_usage_error("init.unreadable", "torch.save(module.state_dict()"):
        read_initial_weights(tmp_path / "module.pt", "resnet18")


def test_folder_runs_no_code_unless_trusted(tmp_path: Path) -> None:
    Model("mlp", [(4,)]).save_pretrained(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps(config | {"encoder": ["their_nets:Net"]}))
    for encoder in (None, "mlp"):
        with raises_usage_error("encoder.untrusted", "their_nets:Net"):
            read_initial_weights(tmp_path / "model", encoder)


def test_reads_weights_from_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, requests = build_timm_model(num_classes=0), list[str]()

    def download(name: str, **options: Any) -> str:
        requests.append(name)
        return str(write_timm_folder(tmp_path / "snapshot", encoder, "resnet18", input_size=[3, 64, 64]))

    monkeypatch.setitem(read_initial_weights.__globals__, "snapshot_download", download)
    weights = load_pretrained_weights("resnet18")
    assert requests[0].startswith("timm/resnet18.")
    assert weights.common_image_size == 64
    model = Model("resnet18", [SHAPE], low_resolution=weights.any_has_low_resolution_stem)
    weights.load_into(model)
    assert_loaded(model, encoder)


def test_failed_download_names_the_cache_and_alternatives(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(name: str, **options: Any) -> str:
        raise OSError("no network\nat all")

    monkeypatch.setitem(read_initial_weights.__globals__, "snapshot_download", download)
    values = ("timm/resnet18.", HF_HUB_CACHE, "no network at all", "init='FOLDER'", "encoder='lite0'")
    with raises_usage_error("pretrained.not_loaded", *values) as caught:
        load_pretrained_weights("resnet18")
    assert "\n" not in str(caught.value)
    for encoder in ("small-cnn", None, nn.Linear(2, 2)):
        with raises_usage_error("pretrained.no_weights", "resnet18"):
            load_pretrained_weights(encoder)


def test_projection_as_the_representation(tmp_path: Path) -> None:
    model = Model("mlp", [(4,), (5,)], projection=8, representation="projection").eval()
    views = torch.randn(3, 4), torch.randn(3, 5)
    assert model.num_features == 16
    torch.testing.assert_close(model(*views), torch.cat(model.project(model.encode(views)), dim=1))
    model.save_pretrained(tmp_path / "model")
    assert torch.equal(Model.from_pretrained(tmp_path / "model")(*views), model(*views))
    with raises_usage_error("representation.no_projection", "projection"):
        Model("mlp", [(4,)], projection=0, representation="projection")
