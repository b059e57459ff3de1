import copy
import json
import os
import pickle
import re

import pytest
import safetensors.torch
import torch
from safetensors.torch import load_file, save_file
from tests.errors import raises_usage_error

from contraport._version import __version__
from contraport.encoders import Model, model
from contraport.errors import UsageError


@pytest.fixture
def saved_model(tmp_path):
    torch.manual_seed(0)
    network = Model("small-cnn", [(1, 8, 8)], projection=16, mean=[[0.3]], std=[[0.4]])
    network(torch.rand(8, 1, 8, 8))  # changes the running statistics
    network.eval().save_pretrained(tmp_path / "model")
    return network, tmp_path / "model"


def test_model_standardizes_its_inputs():
    network = Model("small-cnn", [(2, 8, 8)], mean=[[0.5, 0.2]], std=[[2.0, 0.1]]).eval()
    without_statistics = Model("small-cnn", [(2, 8, 8)]).eval()
    without_statistics.tower(0).encoder.load_state_dict(network.tower(0).encoder.state_dict())
    items = torch.rand(3, 2, 8, 8)
    expected = without_statistics(
        (items - torch.tensor([0.5, 0.2]).view(2, 1, 1)) / torch.tensor([2.0, 0.1]).view(2, 1, 1)
    )
    assert torch.allclose(network(items), expected, atol=1e-5)


def test_bytes_and_floats_of_an_image_give_equal_features():
    network = Model(shapes=[(1, 8, 8)]).eval()
    pixels = torch.randint(0, 256, (3, 1, 8, 8), dtype=torch.uint8)
    assert torch.equal(network(pixels), network(pixels / 255.0))


def test_shapes_of_features_and_projections():
    network = Model("mlp", [(5,)], projection=4, mean=[[1.0] * 5], std=[[2.0] * 5]).eval()
    features = network(torch.rand(3, 5))
    assert features.shape == (3, network.num_features)
    assert network.project([features])[0].shape == (3, 4)


def test_shared_tower_normalizes_views_of_equal_shape_together():
    torch.manual_seed(0)
    network = Model(shapes=[(1, 8, 8)])
    views = [torch.rand(6, 1, side, side) for side in (8, 8, 5, 5)]
    projections = network.project(network.encode(views))
    assert [tuple(z.shape) for z in projections] == [(6, 128)] * 4
    tower = copy.deepcopy(network.tower(0))
    large, small = tower(torch.cat(views[:2])), tower(torch.cat(views[2:]))
    expected = tower.projector(torch.cat([large, small]))
    assert torch.allclose(torch.cat(projections), expected, atol=1e-5)


def test_shared_tower_concatenates_features_of_its_views():
    network = Model(shapes=[(5,), (5,)], shared=True).eval()
    views = torch.rand(3, 5), torch.rand(3, 5)
    assert len(network.towers) == 1
    assert network.num_features == 2 * network.tower(1).num_features
    assert torch.allclose(network(*views), torch.cat(network.encode(views), dim=1), atol=1e-6)


def test_each_view_has_its_own_tower():
    shapes = [(1, 8, 8), (6, 20), (4,)]
    network = Model(shapes=shapes, projection=16).eval()
    assert network.config["encoder"] == ["small-cnn", "small-tcn", "mlp"]
    views = [torch.rand(3, *shape) for shape in shapes]
    features = network.encode(views)
    assert [tuple(h.shape) for h in features] == [(3, tower.num_features) for tower in network.towers]
    assert [tuple(z.shape) for z in network.project(features)] == [(3, 16)] * 3
    assert torch.equal(network(*views), torch.cat(features, dim=1))
    assert network.num_features == network(*views).shape[1]


def test_representation_of_one_view():
    torch.manual_seed(0)
    network = Model(shapes=[(4,), (7,)], representation="1").eval()
    views = torch.rand(3, 4), torch.rand(3, 7)
    assert torch.equal(network(*views), network.encode(views)[1])
    assert network.num_features == network.tower(1).num_features


@pytest.mark.parametrize("shapes", [[(4,)], [(4,), (7,)]], ids=["one", "two"])
def test_representation_of_features_and_projection(shapes, tmp_path):
    torch.manual_seed(0)
    network = Model(shapes=shapes, projection=16, representation="both").eval()
    views = [torch.rand(3, *shape) for shape in shapes]
    features = network.encode(views)
    parts = [part for h, z in zip(features, network.project(features), strict=True) for part in (h, z)]
    expected = torch.cat([part / part.norm(dim=1, keepdim=True) for part in parts], dim=1)
    assert torch.allclose(network(*views), expected, atol=1e-6)
    assert torch.allclose(torch.cat(network.to_chosen_representations(features), dim=1), expected, atol=1e-6)
    assert network.num_features == expected.shape[1]
    network.save_pretrained(tmp_path)
    assert torch.equal(Model.from_pretrained(tmp_path)(*views), network(*views))


def test_projection_zero_returns_the_features():
    network = Model(shapes=[(4,)], projection=0)
    features = network.encode([torch.rand(3, 4)])
    assert all(z is h or torch.equal(z, h) for z, h in zip(network.project(features), features, strict=True))
    assert not list(network.tower(0).projector.parameters())
    assert network.tower(0).projection_width == network.tower(0).num_features


def test_model_with_several_towers_is_saved_and_loaded(tmp_path):
    settings = {"projection": 0, "mean": [[0.1], [0.2] * 6], "std": [[1.0], [2.0] * 6], "representation": "1"}
    network = Model(["mlp", "small-tcn"], [(1, 8, 8), (6, 9)], **settings).eval()
    network.save_pretrained(tmp_path)
    loaded = Model.from_pretrained(tmp_path)
    views = torch.rand(3, 1, 8, 8), torch.rand(3, 6, 9)
    assert torch.equal(loaded(*views), network(*views))
    assert loaded.config == network.config


@pytest.mark.skipif(os.name != "posix", reason="other systems have no such modes")
def test_weights_have_the_permissions_of_new_files(tmp_path, monkeypatch):
    def save_for_the_owner_only(tensors, filename, metadata=None):
        save_file(tensors, filename, metadata)
        os.chmod(filename, 0o600)

    save_file = safetensors.torch.save_file
    monkeypatch.setattr(safetensors.torch, "save_file", save_for_the_owner_only)
    Model(shapes=[(4,)]).save_pretrained(tmp_path)
    modes = {file.stat().st_mode for file in tmp_path.iterdir()}
    assert len(modes) == 1


def test_loaded_model_equals_the_saved_one(saved_model):
    network, folder = saved_model
    assert {"config.json", "model.safetensors"} <= {file.name for file in folder.iterdir()}
    loaded = Model.from_pretrained(folder)
    assert not loaded.training
    assert loaded.config == network.config == json.loads((folder / "config.json").read_text())
    items = torch.rand(3, 1, 8, 8)
    assert torch.equal(loaded.project([loaded(items)])[0], network.project([network(items)])[0])


def test_model_can_be_copied_and_rebuilt_from_its_config(saved_model):
    network, folder = saved_model
    items = torch.rand(3, 1, 8, 8)
    for loaded in (Model.from_pretrained(str(folder)), copy.deepcopy(network), Model(**network.config)):
        assert loaded.config == network.config
        assert loaded.eval()(items).shape == network(items).shape


def rewrite(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def truncate_weights(folder):
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])


def drop_weight(folder):
    weights = load_file(folder / "model.safetensors")
    weights.pop("towers.0.projector.3.bias")
    save_file(weights, folder / "model.safetensors")


@pytest.mark.parametrize(
    "damage_folder",
    [
        lambda folder: (folder / "config.json").unlink(),
        lambda folder: (folder / "config.json").write_text("{"),
        lambda folder: (folder / "config.json").write_bytes(b"\xff\xfe\x00"),
        lambda folder: (folder / "config.json").write_text("[1]"),
        lambda folder: (folder / "model.safetensors").unlink(),
        lambda folder: (folder / "model.safetensors").write_bytes(b""),
        truncate_weights,
        drop_weight,
        lambda folder: rewrite(folder, encoder="mlp"),
        lambda folder: rewrite(folder, encoder=["small-cnn", "mlp"]),
        lambda folder: rewrite(folder, encoder=3),
        lambda folder: rewrite(folder, encoder="small-cm"),
        lambda folder: rewrite(folder, encoder=[None]),
        lambda folder: rewrite(folder, shapes=[[3, 8, 8]]),
        lambda folder: rewrite(folder, shapes=[3, 8, 8]),
        lambda folder: rewrite(folder, shapes="none"),
        lambda folder: rewrite(folder, shapes=[]),
        lambda folder: rewrite(folder, shapes=[[]]),
        lambda folder: rewrite(folder, shapes=None),
        lambda folder: rewrite(folder, shared="yes"),
        lambda folder: rewrite(folder, representation=["0"]),
        lambda folder: rewrite(folder, mean=3),
        lambda folder: rewrite(folder, projection=-1),
        lambda folder: rewrite(folder, projection="many"),
        lambda folder: rewrite(folder, mean=[None]),
        lambda folder: rewrite(folder, colour="red"),
    ],
)
def test_rejects_damaged_folder(saved_model, damage_folder):
    _, folder = saved_model
    damage_folder(folder)
    with pytest.raises(UsageError) as caught:
        Model.from_pretrained(folder)
    assert re.match(r"(model|encoder)\.", caught.value.code)


@pytest.mark.parametrize("files", [[], ["config.yaml"], ["model.safetensors"]], ids=str)
def test_rejects_folder_without_a_model(files, tmp_path):
    for file in files:
        (tmp_path / file).write_text("")
    with raises_usage_error("model.no_model", tmp_path, "config.json"):
        Model.from_pretrained(tmp_path)


def rename_weight(folder):
    weights = load_file(folder / "model.safetensors")
    weights["towers.0.neck.bias"] = weights.pop("towers.0.projector.3.bias")
    save_file(weights, folder / "model.safetensors")
    (folder / "model.safetensors.sha256").unlink()


@pytest.mark.parametrize(
    ("change", "code", "values"),
    [
        (lambda folder: rewrite(folder, colour="red", angle=3), "model.unknown_keys", ["'angle', 'colour'", "encoder"]),
        (rename_weight, "model.other_weights", ["towers.0.projector.3.bias", "towers.0.neck.bias"]),
    ],
)
def test_rejects_model_of_another_version(saved_model, change, code, values):
    _, folder = saved_model
    change(folder)
    with raises_usage_error(code, __version__, *values) as error:
        Model.from_pretrained(folder)
    assert "\n" not in str(error.value)


def test_pickle_is_never_opened(saved_model, tmp_path):
    class CreatesFileOnUnpickling:
        def __reduce__(self):
            return (open, (str(tmp_path / "executed"), "w"))

    _, folder = saved_model
    for name in ("model.safetensors", "pytorch_model.bin"):
        (folder / name).write_bytes(pickle.dumps(CreatesFileOnUnpickling()))
    with raises_usage_error("model.unreadable", folder):
        Model.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    with raises_usage_error("model.unreadable", folder):
        Model.from_pretrained(folder)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("name", ["no/such/folder", "/no/such", "nothing"])
def test_rejects_missing_folder(name):
    with raises_usage_error("model.not_found", name):
        Model.from_pretrained(name)


def test_hub_model_is_loaded_unless_it_names_code(saved_model, monkeypatch):
    _, folder = saved_model
    requests = []
    monkeypatch.setattr(model, "snapshot_download", lambda name, **options: requests.append((name, options)) or folder)
    assert Model.from_pretrained("someone/model", revision="v1").config["projection"] == 16
    assert requests[0][0] == "someone/model"
    assert requests[0][1]["revision"] == "v1"
    rewrite(folder, encoder=["os:system"])
    with raises_usage_error("encoder.untrusted", "someone/model/config.json", "os:system"):
        Model.from_pretrained("someone/model")
    with raises_usage_error("model.unreadable", "os:system"):
        Model.from_pretrained("someone/model", trust_remote_code=True)


def test_rejects_unreachable_hub(monkeypatch):
    def fail(name, **options):
        raise ConnectionError("offline")

    monkeypatch.setattr(model, "snapshot_download", fail)
    with raises_usage_error("model.not_loaded", "offline"):
        Model.from_pretrained("someone/model")


@pytest.mark.parametrize(
    ("settings", "code", "value"),
    [
        ({"mean": [[0.1, 0.2]]}, "mean.shape", "finite"),
        ({"mean": [[0.1], [0.2]]}, "mean.shape", 2),
        ({"mean": 0.1}, "mean.invalid", 0.1),
        ({"std": [[0.0]]}, "std.invalid", "positive"),
        ({"std": [[float("nan")]]}, "std.shape", "finite"),
        ({"projection": -1}, "projection.invalid", -1),
        ({"projection": True}, "projection.invalid", True),
        ({"projection_layers": 0}, "projection_layers.invalid", 0),
        ({"projection_layers": 10**12}, "projection_layers.invalid", 10**12),
        ({"projection_layers": "2"}, "projection_layers.invalid", "'2'"),
        ({"encoder": ["mlp", "mlp"]}, "encoder.shape", 2),
        ({"encoder": torch.nn.Linear}, "encoder.class", "Linear()"),
        ({"encoder": 3}, "encoder.invalid", 3),
        ({"shapes": (1, 28, 28)}, "shapes.invalid", (1, 28, 28)),
        ({"shapes": [(1, 1, 1, 1)]}, "shapes.invalid", (1, 1, 1, 1)),
        ({"shapes": [(4,), (5,)], "shared": True}, "shared.shape", (5,)),
        ({"representation": "1"}, "representation.unknown", "'1'"),
        ({"representation": "concat"}, "representation.unknown", "concatenate"),
    ],
)
def test_rejects_invalid_settings(settings, code, value):
    with raises_usage_error(code, value):
        Model(**{"shapes": [(1, 8, 8)]} | settings)


def test_rejects_wrong_number_of_views():
    network = Model(shapes=[(4,), (5,)])
    with raises_usage_error("views.shape", 2, 1):
        network(torch.rand(2, 4))
    with raises_usage_error("views.shape", 2, 3):
        network.encode([torch.rand(2, 4)] * 3)


def test_deprecated_names_of_methods_still_work_with_a_warning():
    model = Model(shapes=[(3,), (5,)], projection=4)
    renamed = {
        (model, "single_view"): "to_single_view",
        (model, "select_view"): "to_single_view",
        (model, "save_encoder_files"): "save_transformers_configs",
        (model, "represent_features"): "to_chosen_representations",
        (model, "to_representations"): "to_chosen_representations",
        (model.tower(0), "represent_features"): "to_representation",
    }
    for (owner, old), new in renamed.items():
        with pytest.warns(FutureWarning, match=new):
            assert getattr(owner, old) == getattr(owner, new)
