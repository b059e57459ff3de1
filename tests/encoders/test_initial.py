"""Weights to begin with, all written by the tests themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.layers import resample_abs_pos_embed
from torch import nn

from contraport.encoders import Model, initial, pretrained
from contraport.errors import UsageError

SHAPE = (3, 32, 32)


def trained(name: str = "resnet18", **settings: Any) -> nn.Module:
    torch.manual_seed(7)
    model: nn.Module = timm.create_model(name, **settings)
    return model


def assert_given(model: Model, encoder: nn.Module) -> None:
    own, theirs = model.tower(0).encoder.state_dict(), encoder.state_dict()
    assert own
    assert all(torch.equal(value, theirs[name]) for name, value in own.items())


def timm_folder(path: Path, encoder: nn.Module, name: str, **config: Any) -> Path:
    path.mkdir()
    save_file(encoder.state_dict(), path / "model.safetensors")
    (path / "config.json").write_text(json.dumps({"architecture": name, "pretrained_cfg": config}))
    return path


@pytest.mark.parametrize("nested", [None, "state_dict", "model"])
@pytest.mark.parametrize("prefix", ["", "module.", "pipeline.model.towers.0.encoder."])
def test_a_file_gives_its_weights_behind_any_one_prefix(tmp_path: Path, nested: str | None, prefix: str) -> None:
    encoder = trained()
    state = {prefix + name: value for name, value in encoder.state_dict().items()}
    torch.save({nested: state, "epoch": 3} if nested else state, tmp_path / "weights.pt")
    begun = initial(tmp_path / "weights.pt", "resnet18")
    model = Model("resnet18", [SHAPE], low_resolution=begun.low_resolution)
    begun.give(model)
    assert_given(model, encoder)
    assert not begun.low_resolution
    assert begun.image_size == 224


def test_safetensors_of_an_encoder_of_ours(tmp_path: Path) -> None:
    torch.manual_seed(3)
    source = Model("small-cnn", [(1, 8, 8)])
    save_file(source.tower(0).encoder.state_dict(), tmp_path / "cnn.safetensors")
    begun = initial(tmp_path / "cnn.safetensors", "small-cnn")
    model = Model("small-cnn", [(1, 8, 8)])
    begun.give(model)
    assert_given(model, source.tower(0).encoder)
    assert begun.statistics([([0.5], [2.0])]) == [([0.5], [2.0])]


def test_a_folder_of_timms_says_what_it_is_and_what_it_saw(tmp_path: Path) -> None:
    encoder = trained(num_classes=0)
    folder = timm_folder(
        tmp_path / "timm", encoder, "resnet18", input_size=[3, 96, 96], mean=[0.1, 0.2, 0.3], std=[0.4, 0.5, 0.6]
    )
    begun = initial(folder, None)
    assert (begun.encoder, begun.image_size) == ("resnet18", 96)
    assert begun.statistics([([0.0] * 3, [1.0] * 3)]) == [([0.1, 0.2, 0.3], [0.4, 0.5, 0.6])]
    assert begun.statistics([([0.0], [1.0])]) == [([0.0], [1.0])]
    model = Model("resnet18", [SHAPE], low_resolution=begun.low_resolution)
    begun.give(model)
    assert_given(model, encoder)


def test_weights_of_three_channels_are_summed_for_one(tmp_path: Path) -> None:
    encoder = trained()
    torch.save(encoder.state_dict(), tmp_path / "weights.pt")
    model = Model("resnet18", [(1, 32, 32)], low_resolution=False)
    initial(tmp_path / "weights.pt", "resnet18").give(model)
    grey = torch.rand(2, 1, 32, 32)
    with torch.no_grad():
        expected = encoder.eval().forward_features(grey.expand(-1, 3, -1, -1)).mean((2, 3))
        torch.testing.assert_close(model.eval().tower(0).encoder(grey), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "deit_tiny_distilled_patch16_224"])
def test_positions_of_other_images_are_resampled_as_timm_does(tmp_path: Path, name: str) -> None:
    encoder = trained(name, depth=1, img_size=48)
    save_file(encoder.state_dict(), tmp_path / "vit.safetensors")
    model = Model(trained(name, depth=1, img_size=32, num_classes=0), [SHAPE])
    initial(tmp_path / "vit.safetensors", model.tower(0).encoder).give(model)
    own, theirs = model.tower(0).encoder.state_dict(), encoder.state_dict()
    prefix = theirs["pos_embed"].shape[1] - 9
    expected = resample_abs_pos_embed(theirs["pos_embed"], [2, 2], num_prefix_tokens=prefix)
    torch.testing.assert_close(own["pos_embed"], expected)
    assert all(torch.equal(value, theirs[key]) for key, value in own.items() if key != "pos_embed")
    other = Model(trained(name, depth=1, img_size=24, patch_size=8, num_classes=0), [(3, 24, 24)])
    with pytest.raises(UsageError, match=r"such as patch_embed.proj.weight"):  # no other weight is made to fit
        initial(tmp_path / "vit.safetensors", None).give(other)


def test_a_run_gives_encoder_stem_and_standardisation(tmp_path: Path) -> None:
    torch.manual_seed(0)
    source = Model("resnet18", [SHAPE], mean=[[0.3] * 3], std=[[0.2] * 3])
    source.save_pretrained(tmp_path / "run" / "model")
    begun = initial(tmp_path / "run", None)
    assert (begun.encoder, begun.image_size, begun.low_resolution) == (["resnet18"], 32, True)
    ((mean, std),) = begun.statistics([([0.0] * 3, [1.0] * 3)])
    assert mean == pytest.approx([0.3] * 3)
    assert std == pytest.approx([0.2] * 3)
    model = Model("resnet18", [SHAPE])
    begun.give(model)
    assert_given(model, source.tower(0).encoder)


def test_one_line_says_what_does_not_fit(tmp_path: Path) -> None:
    torch.save(trained("resnet18").state_dict(), tmp_path / "weights.pt")
    file = tmp_path / "weights.pt"
    with pytest.raises(
        UsageError, match=r"init: .*does not have the weights of the encoder 'resnet50': it lacks \d+ of"
    ):
        initial(file, "resnet50").give(Model("resnet50", [SHAPE], low_resolution=False))
    with pytest.raises(
        UsageError, match=r"encoder 'resnet18': 1 are of other shapes, such as conv1.weight, .*7, 7.* 3, 3"
    ):
        initial(file, "resnet18").give(Model("resnet18", [SHAPE]))
    with pytest.raises(UsageError, match="of the encoder 'resnet10t'") as told:
        initial(file, "resnet10t").give(Model("resnet10t", [SHAPE], low_resolution=False))
    torch.save({name.replace(".", "/"): value for name, value in trained().state_dict().items()}, tmp_path / "named.pt")
    with pytest.raises(UsageError, match=r"of the encoder 'resnet18': .* no name fits, so they are another"):
        initial(tmp_path / "named.pt", "resnet18").give(Model("resnet18", [SHAPE], low_resolution=False))
    assert "\n" not in str(told.value)
    with pytest.raises(UsageError, match=r"encoder SmallCNN: .* another architecture's, which encoder is to name"):
        initial(file, None).give(Model("small-cnn", [SHAPE]))
    both = {f"{part}.{name}": value for part in "qk" for name, value in trained().state_dict().items()}
    torch.save(both, tmp_path / "both.pt")
    with pytest.raises(UsageError, match=r"several networks of its architecture: k\., q\.; expected one"):
        initial(tmp_path / "both.pt", "resnet18").give(Model("resnet18", [SHAPE], low_resolution=False))
    folder = timm_folder(tmp_path / "timm", trained(num_classes=0), "resnet18")
    with pytest.raises(UsageError, match="has weights of resnet18, and the encoder is to be resnet34"):
        initial(folder, "resnet34")
    Model("mlp", [(4,)]).save_pretrained(tmp_path / "model")
    with pytest.raises(UsageError, match="has weights of mlp, and the encoder is to be small-cnn"):
        initial(tmp_path / "model", "small-cnn")


def test_what_is_no_weights_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="init: there is no file or folder 'nowhere'"):
        initial("nowhere", None)
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        UsageError, match=r"no run with a trained model, and no folder of a model: it has no config.json"
    ):
        initial(tmp_path / "empty", None)
    (tmp_path / "text.pt").write_text("no weights")
    with pytest.raises(UsageError, match=r"text.pt cannot be read as weights by name"):
        initial(tmp_path / "text.pt", None)
    torch.save({"epoch": 3}, tmp_path / "nothing.pt")
    with pytest.raises(UsageError, match="expected weights by name"):
        initial(tmp_path / "nothing.pt", None)
    torch.save(trained().eval(), tmp_path / "module.pt")
    with pytest.raises(UsageError, match=r"pickled objects, which are never read.* torch.save\(module.state_dict\(\)"):
        initial(tmp_path / "module.pt", "resnet18")


def test_a_folder_runs_no_code_unless_trusted(tmp_path: Path) -> None:
    Model("mlp", [(4,)]).save_pretrained(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps(config | {"encoder": ["their_nets:Net"]}))
    for encoder in (None, "mlp"):
        with pytest.raises(UsageError, match="names code to run"):
            initial(tmp_path / "model", encoder)


def test_weights_of_the_hub_are_those_of_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, asked = trained(num_classes=0), list[str]()

    def download(name: str, **options: Any) -> str:
        asked.append(name)
        return str(timm_folder(tmp_path / "snapshot", encoder, "resnet18", input_size=[3, 64, 64]))

    monkeypatch.setitem(initial.__globals__, "snapshot_download", download)
    begun = pretrained("resnet18")
    assert asked[0].startswith("timm/resnet18.")
    assert begun.image_size == 64
    model = Model("resnet18", [SHAPE], low_resolution=begun.low_resolution)
    begun.give(model)
    assert_given(model, encoder)


def test_where_weights_were_looked_for_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(name: str, **options: Any) -> str:
        raise OSError("no network\nat all")

    monkeypatch.setitem(initial.__globals__, "snapshot_download", download)
    with pytest.raises(
        UsageError, match=r"'resnet18' were looked for on the Hugging Face hub \(timm/resnet18\."
    ) as told:
        pretrained("resnet18")
    assert "downloaded before (" in str(told.value)
    assert "no network at all" in str(told.value)
    assert "\n" not in str(told.value)
    for encoder in ("small-cnn", None, nn.Linear(2, 2)):
        with pytest.raises(UsageError, match="pretrained: expected an encoder of timm's or transformers' by name"):
            pretrained(encoder)


def test_the_projection_as_the_representation(tmp_path: Path) -> None:
    model = Model("mlp", [(4,), (5,)], projection=8, representation="projection").eval()
    views = torch.randn(3, 4), torch.randn(3, 5)
    assert model.num_features == 16
    torch.testing.assert_close(model(*views), torch.cat(model.project(model.encode(views)), dim=1))
    model.save_pretrained(tmp_path / "model")
    assert torch.equal(Model.from_pretrained(tmp_path / "model")(*views), model(*views))
    with pytest.raises(UsageError, match="representation: expected a projection of 1 feature or more"):
        Model("mlp", [(4,)], projection=0, representation="projection")
