"""Selection of views by name, number or kind, for encoders and the representation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.errors import raises_usage_error

from contraport.data import from_arrays
from contraport.encoders import Model
from contraport.options import has_object_placeholder
from contraport.training.components.step_builder import build_objective, build_training_module
from contraport.training.config import Settings

SHAPES = [(1, 8, 8), (3,), (6, 20)]
NAMES = ["photo", "tags", "voice"]


def build_model(**settings: object) -> Model:
    return Model(shapes=SHAPES, view_names=NAMES, **settings)


def test_encoders_by_name_and_by_kind() -> None:
    assert build_model(encoder={"image": "mlp"}).config["encoder"] == ["mlp", "mlp", "small-tcn"]
    assert build_model(encoder={"photo": "mlp", "2": "mlp"}).config["encoder"] == ["mlp", "mlp", "mlp"]
    assert build_model(encoder={}).config["encoder"] == ["small-cnn", "mlp", "small-tcn"]


@pytest.mark.parametrize(
    ("encoder", "code"),
    [({"photos": "mlp"}, "encoder.unknown"), ({"photo": "mlp", "image": "mlp"}, "encoder.duplicate")],
)
def test_rejects_unknown_and_repeated_views(encoder: dict[str, str], code: str) -> None:
    with raises_usage_error(code, "'photo'"):
        build_model(encoder=encoder)


def test_rejects_kind_of_several_views() -> None:
    with raises_usage_error("encoder.ambiguous", "'vector'", ["a", "b"]):
        Model({"vector": "mlp"}, [(3,), (4,)], view_names=["a", "b"])


def test_representation_by_view_name() -> None:
    network = build_model(representation="tags")
    assert network.representation_views == (1,)
    views = tuple(torch.rand(2, *shape) for shape in SHAPES)
    assert torch.equal(network.eval()(*views), network.encode(views)[1])
    with raises_usage_error("representation.unknown", "'tag'", "'tags'"):
        build_model(representation="tag")


def test_view_names_are_saved(tmp_path) -> None:
    build_model(encoder={"photo": "mlp"}).save_pretrained(tmp_path / "saved")
    loaded = Model.from_pretrained(tmp_path / "saved")
    assert loaded.view_names == ("photo", "tags", "voice")
    custom = Model({"b": torch.nn.Linear(4, 2)}, [(3,), (4,)], view_names=["a", "b"])
    custom.save_pretrained(tmp_path / "custom")
    loaded = Model.from_pretrained(tmp_path / "custom", encoder={"b": torch.nn.Linear(4, 2)})
    assert all(torch.equal(*pair) for pair in zip(loaded.parameters(), custom.parameters(), strict=True))
    assert has_object_placeholder(Settings(encoder={"b": torch.nn.Linear(4, 2)}).to_config()["encoder"])


def test_training_uses_the_view_names_of_its_data() -> None:
    random = np.random.default_rng(0)
    views = {"left": random.normal(size=(20, 5)), "right": random.normal(size=(20, 7))}
    settings = Settings(encoder={"right": "tests.own_networks:Twice"}, recipe="clip", trust_remote_code=True)
    dataset = from_arrays(views)
    assert dataset.view_names == ("left", "right")
    with raises_usage_error("encoder.import_failed", "tests.own_networks"):
        build_training_module(settings, dataset, build_objective(settings), steps_per_epoch=1)
    module = build_training_module(
        Settings(representation="right"), dataset, build_objective(Settings()), steps_per_epoch=1
    )
    assert module.model.representation_views == (1,)
