"""Views are called by their names, numbers or kinds: for encoders, for what represents an item."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from contraport.data import from_arrays
from contraport.encoders import Model
from contraport.errors import UsageError
from contraport.options import is_object_placeholder
from contraport.training.components import build_objective, build_pipeline
from contraport.training.config import Settings

SHAPES = [(1, 8, 8), (3,), (6, 20)]
NAMES = ["photo", "tags", "voice"]


def model(**settings: object) -> Model:
    return Model(shapes=SHAPES, view_names=NAMES, **settings)


def test_encoders_by_name_and_by_kind() -> None:
    """What is not named is the default of its kind."""
    assert model(encoder={"image": "mlp"}).config["encoder"] == ["mlp", "mlp", "small-tcn"]
    assert model(encoder={"photo": "mlp", "2": "mlp"}).config["encoder"] == ["mlp", "mlp", "mlp"]
    assert model(encoder={}).config["encoder"] == ["small-cnn", "mlp", "small-tcn"]


@pytest.mark.parametrize(
    ("encoder", "told"),
    [
        ({"photos": "mlp"}, "encoder: unknown name 'photos'; did you mean 'photo'"),
        ({"photo": "mlp", "image": "mlp"}, "encoder: the view 'photo' is named twice"),
    ],
)
def test_a_wrong_name_is_told(encoder: dict[str, str], told: str) -> None:
    with pytest.raises(UsageError, match=f"^{told}"):
        model(encoder=encoder)


def test_a_kind_of_several_views_is_no_name() -> None:
    with pytest.raises(UsageError, match=r"^encoder: 2 views are of kind 'vector'; expected one of \['a', 'b'\]"):
        Model({"vector": "mlp"}, [(3,), (4,)], view_names=["a", "b"])


def test_a_representation_by_name() -> None:
    one = model(representation="tags")
    assert one.represented == (1,)
    views = tuple(torch.rand(2, *shape) for shape in SHAPES)
    assert torch.equal(one.eval()(*views), one.encode(views)[1])
    with pytest.raises(UsageError, match=r"^representation: unknown name 'tag'; did you mean 'tags'"):
        model(representation="tag")


def test_names_are_kept(tmp_path) -> None:
    model(encoder={"photo": "mlp"}).save_pretrained(tmp_path / "saved")
    again = Model.from_pretrained(tmp_path / "saved")
    assert again.view_names == ("photo", "tags", "voice")
    own = Model({"b": torch.nn.Linear(4, 2)}, [(3,), (4,)], view_names=["a", "b"])
    own.save_pretrained(tmp_path / "own")
    again = Model.from_pretrained(tmp_path / "own", encoder={"b": torch.nn.Linear(4, 2)})
    assert all(torch.equal(*pair) for pair in zip(again.parameters(), own.parameters(), strict=True))
    assert is_object_placeholder(Settings(encoder={"b": torch.nn.Linear(4, 2)}).kept()["encoder"])


def test_a_training_goes_by_the_names_of_its_data() -> None:
    random = np.random.default_rng(0)
    views = {"left": random.normal(size=(20, 5)), "right": random.normal(size=(20, 7))}
    settings = Settings(encoder={"right": "tests.own_networks:Twice"}, recipe="clip", trust=True)
    dataset = from_arrays(views)
    assert dataset.view_names == ("left", "right")
    with pytest.raises(UsageError, match=r"^encoder: importing 'tests.own_networks' failed"):
        build_pipeline(settings, dataset, build_objective(settings), epoch=1)
    made = build_pipeline(Settings(representation="right"), dataset, build_objective(Settings()), epoch=1)
    assert made.model.represented == (1,)
