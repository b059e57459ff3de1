"""Training with each recipe, and options that override a recipe."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from contraport.catalog import RECIPES, apply_recipe
from contraport.catalog.recipes import get_recipe_settings
from contraport.data import Dataset, build_loader, from_arrays
from contraport.embedding import embed_items_as_vectors
from contraport.encoders import Model
from contraport.metrics.probes import knn
from contraport.runs import as_run_folder
from contraport.training import train
from contraport.training.config import Settings
from tests.errors import raises_usage_error
from tests.training.step_builders import build_module

CLASSES = 6
RECIPES_FOR_TWO_VIEWS = ("clip", "siglip")
RECIPES_FOR_VECTOR_SETS = ("late-interaction",)
"""Recipes that compare all vectors of an item, such as the time steps of a series."""
RECIPES_WITH_FALLING_LOSS = (
    "simclr",
    "byol",
    "simsiam",
    "moco-v3",
    "cmc-nce",
    "siglip",
    "gca-uot",
    "align-uniform",
    "predictive",
)


def build_groups(seed: int) -> Dataset:
    """Build items of a few classes that differ in four coordinates, among forty noise coordinates of the same size."""
    random = np.random.default_rng(seed)
    centres = np.random.default_rng(0).normal(size=(CLASSES, 4))
    labels = random.integers(0, CLASSES, 240)
    signal = 3 * centres[labels] + 0.3 * random.normal(size=(240, 4))
    return from_arrays(np.hstack([signal, 2 * random.normal(size=(240, 40))]), labels=labels, name="groups")


def build_two_views(seed: int) -> Dataset:
    """Build the same items in two views with independent noise."""
    items = build_groups(seed)
    (view,) = items.__getitems__(list(range(len(items)))).views
    other = torch.randn(240, 10, generator=torch.Generator().manual_seed(seed))
    return from_arrays({"one": view, "two": torch.cat([view[:, :4], other], 1)}, labels=items.labels, name="groups")


def build_series(items: Dataset) -> Dataset:
    """Reshape the coordinates of the items to series of four channels."""
    (view,) = items.__getitems__(list(range(len(items)))).views
    return from_arrays(view.unflatten(1, (4, 11)), labels=items.labels, name="groups")


@pytest.fixture(scope="module")
def splits() -> tuple[Dataset, Dataset]:
    return build_groups(1), build_groups(2)


@pytest.fixture(scope="module")
def paired_splits() -> tuple[Dataset, Dataset]:
    return build_two_views(1), build_two_views(2)


def measure_accuracy(model: Model, splits: tuple[Dataset, Dataset]) -> float:
    train, test = (embed_items_as_vectors(model, split, progress=False) for split in splits)
    return knn(train, splits[0].labels, test, splits[1].labels)


def select_splits(
    recipe: str, splits: tuple[Dataset, Dataset], paired_splits: tuple[Dataset, Dataset]
) -> tuple[Dataset, Dataset]:
    """Return the training and test splits that a recipe accepts: images, pairs or series."""
    if recipe in RECIPES_FOR_TWO_VIEWS:
        return paired_splits
    train_split, test_split = splits
    return (build_series(train_split), build_series(test_split)) if recipe in RECIPES_FOR_VECTOR_SETS else splits


@pytest.mark.parametrize("name", RECIPES)
def test_trains_each_recipe(
    name: str, splits: tuple[Dataset, Dataset], paired_splits: tuple[Dataset, Dataset], tmp_path: Any
) -> None:
    splits = select_splits(name, splits, paired_splits)
    np.save(tmp_path / "teacher.npy", splits[0].__getitems__(list(range(240))).views[0][:, :4].flatten(1).numpy())
    run = train(
        data=splits[0],
        recipe=name,
        teacher=tmp_path / "teacher.npy" if name == "distillation" else None,
        epochs=10,
        batch_size=60,
        lr=2e-3,
        out=tmp_path / "run",
        log_every=1,
        progress=False,
    )
    rows = [row["loss"] for row in run.metrics_rows()]
    assert np.isfinite(rows).all()
    assert name not in RECIPES_WITH_FALLING_LOSS or np.mean(rows[-4:]) < np.mean(rows[:2])
    config = run.config()
    assert config["recipe"] == name
    assert {key: config[key] for key in RECIPES[name].settings} == RECIPES[name].settings
    assert measure_accuracy(run.model(), splits) > 2 / CLASSES  # twice the accuracy of chance
    assert RECIPES[name].summary.endswith(".")
    assert RECIPES[name].citation


def test_explicit_options_override_the_recipe(splits: tuple[Dataset, Dataset], tmp_path: Any, caplog: Any) -> None:
    with caplog.at_level(logging.INFO, "contraport"):
        run = train(
            data=splits[0], recipe="moco", momentum=0.5, queue_size=7, epochs=1, batch_size=60, out=tmp_path / "run",
            progress=False,
        )  # fmt: skip
    config = run.config()
    assert (config["momentum"], config["queue_size"], config["negatives"]) == (0.5, 7, "queue")
    assert "overridden: momentum" in caplog.text
    state = torch.load(as_run_folder(run).checkpoints / "last.ckpt", weights_only=True)["pipeline"]
    assert len(state["comparison.memory.embeddings"]) == 7


def test_run_is_named_after_its_recipe(splits: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for options, name in (({"recipe": "byol"}, "groups-byol"), ({"predict": "l1"}, "groups-predict-l1")):
        run = train(data=splits[0], epochs=1, batch_size=60, progress=False, **options)
        assert run.name == name


def test_recipe_settings_depend_on_the_chosen_objective() -> None:
    assert apply_recipe({"recipe": "moco", "negatives": "queue"})["temperature"] == 0.2
    other = apply_recipe({"recipe": "moco", "objective": "gca-uot"})
    assert "temperature" not in other
    assert "objective_settings" not in other
    merged = apply_recipe({"recipe": "moco", "objective_settings": {"shared_columns": False}})
    assert merged["objective_settings"] == {"symmetric": False, "shared_columns": False}
    assert apply_recipe({"predict": "l2"})["objective"] is None
    assert apply_recipe({"epochs": 3}) == {"epochs": 3}


@pytest.mark.parametrize("name", RECIPES)
def test_applying_a_recipe_is_idempotent(name: str) -> None:
    once = apply_recipe({"recipe": name})
    assert apply_recipe(once) == once
    teacher = "teacher.npy" if name == "distillation" else None
    settings = Settings(**once, teacher=teacher)
    assert all(getattr(settings, option) == value for option, value in get_recipe_settings(name).items())


def test_rejects_an_unknown_recipe() -> None:
    with raises_usage_error("recipe.unknown", "simclrr", "simclr"):
        apply_recipe({"recipe": "simclrr"})


@pytest.mark.parametrize("name", RECIPES_FOR_TWO_VIEWS)
def test_two_encoders_require_two_views(name: str, splits: tuple[Dataset, Dataset]) -> None:
    with raises_usage_error("shared_encoder.one_view"):
        build_module(splits[0], recipe=name)


@pytest.mark.parametrize("options", [{"recipe": "clip"}, {"shared_encoder": False}])
def test_two_encoders_for_a_table_of_one_view_suggest_its_views(options: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "sensors.csv"
    path.write_text("ear_0,ear_1,eye_0,eye_1\n" + "1,2,3,4\n" * 60)
    with raises_usage_error("data.views", "sensors.csv", next(iter(options)), "['ear_*', 'eye_*']") as caught:
        train(data=path, out=tmp_path / "run", progress=False, **options)
    assert caught.value.suggested_options == {"columns": {"views": ["ear_*", "eye_*"]}}


@pytest.mark.parametrize("name", RECIPES)
def test_every_parameter_of_a_recipe_has_a_gradient(
    name: str, splits: tuple[Dataset, Dataset], paired_splits: tuple[Dataset, Dataset], tmp_path: Any
) -> None:
    """Training in several processes requires it, since they wait for each gradient."""
    splits = select_splits(name, splits, paired_splits)
    np.save(tmp_path / "teacher.npy", splits[0].labels.numpy()[:, None] + np.arange(3.0))
    teacher = {"teacher": tmp_path / "teacher.npy"} if name == "distillation" else {}
    module = build_module(splits[0], recipe=name, **teacher)
    batch = next(iter(build_loader(splits[0], 16)))
    for step in range(2):
        module.zero_grad()
        module(batch, step).backward()
        module.after_step(step)
        without = [key for key, value in module.named_parameters() if value.requires_grad and value.grad is None]
        assert not without
