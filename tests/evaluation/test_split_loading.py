"""Loading of the items of an evaluation: data of the run with its settings, other data unchanged."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from tests.errors import raises_usage_error
from tests.evaluation.builders import build_vector_model, build_vectors, make_run

import contraport
from contraport.data import Dataset, from_arrays, from_stream, load
from contraport.encoders import Model
from contraport.evaluation import evaluate, split_loading
from contraport.evaluation.command_options import EvaluateOptions
from contraport.evaluation.split_loading import (
    describe_test_data,
    find_model_image_size,
    have_same_items,
)
from contraport.runs import Run

OPTIONS: dict[str, Any] = {"metrics": ["uniformity"], "alone": True, "progress": False}


def write_arrays(path: Path, items: int, views: int = 1) -> str:
    random = np.random.default_rng(items)
    options = {f"view{view}": random.normal(size=(items, 6)).astype(np.float32) for view in range(views)}
    np.savez(path, **options, labels=np.arange(items) % 3)
    return str(path)


@pytest.mark.parametrize(
    ("own_settings", "items"),
    [
        ({"test_fraction": 0.5}, (30, 30)),
        ({"validation": 0.5}, (24, 24)),
        ({"max_items": 20}, (20, 12)),
        ({"max_items": 20, "test_items": 6}, (20, 6)),
        ({"imbalance": 4.0}, (28, 12)),
        ({"given_views": [1]}, (48, 12)),
    ],
    ids=lambda own_settings: " ".join(own_settings) if isinstance(own_settings, dict) else "",
)
def test_settings_of_own_data_do_not_apply_to_other_data(
    tmp_path: Path, own_settings: dict[str, Any], items: tuple[int, int]
) -> None:
    views = 2 if "given_views" in own_settings else 1
    run = make_run(
        tmp_path / "run", build_vector_model(), data=write_arrays(tmp_path / "own.npz", 60, views), **own_settings
    )
    result = evaluate(run, **OPTIONS)
    assert (result["train_items"], result["test_items"]) == items
    result = evaluate(run, data=write_arrays(tmp_path / "other.npz", 90), **OPTIONS)
    assert (result["train_items"], result["test_items"]) == (72, 18)
    result = evaluate(run, test_data=write_arrays(tmp_path / "test.npz", 75), **OPTIONS)
    assert (result["train_items"], result["test_items"]) == (items[0], 75)


def test_loaded_splits_are_used_unchanged(tmp_path: Path) -> None:
    path = write_arrays(tmp_path / "data.npz", 60)
    run = make_run(tmp_path / "run", build_vector_model())
    result = evaluate(run, data=(load(path, "train"), load(path, "test")), **OPTIONS)
    assert (result["train_items"], result["test_items"]) == (48, 12)


def test_columns_option_overrides_the_columns_of_the_run(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(60, 3))
    lines = [f"{a},{b},{c},{row % 2},{row % 3}" for row, (a, b, c) in enumerate(rows)]
    (tmp_path / "table.csv").write_text("\n".join(["a,b,c,kind,sort", *lines]))
    columns = {"views": [["a", "b", "c"]], "labels": "kind"}
    run = make_run(tmp_path / "run", Model("mlp", [(3,)]), data=str(tmp_path / "table.csv"), columns=columns)
    assert evaluate(run, **OPTIONS)["classes"] == 2
    assert evaluate(run, columns={**columns, "labels": "sort"}, **OPTIONS)["classes"] == 3


def test_root_option_overrides_the_root_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    roots: list[Any] = []
    monkeypatch.setattr(
        split_loading, "build_dataset", lambda settings, split: roots.append(settings.root) or build_vectors(9, None)
    )
    run = make_run(tmp_path / "run", build_vector_model(), root="own")
    for root in (None, "given"):
        evaluate(run, root=root, **OPTIONS)
    assert roots == ["own", "own", "given", "given"]


def test_rejects_a_single_test_item(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", build_vector_model())
    with raises_usage_error("data.test_items", 1):
        evaluate(run, data=(build_vectors(40, 2), build_vectors(1, None)), **OPTIONS)


def test_rejects_streams(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", build_vector_model())
    stream = from_stream(np.ones((20, 6), dtype=np.float32), name="numbers")
    for options in ({"data": (stream, build_vectors(40, 2))}, {"data": (build_vectors(40, 2), stream)}):
        with raises_usage_error("*", "numbers"):
            evaluate(run, **options, **OPTIONS)
    with raises_usage_error("*", "numbers"):
        evaluate(run, data=(build_vectors(40, 2),) * 2, test_data=stream, **OPTIONS)


def test_same_items_have_equal_rows_and_labels() -> None:
    x = np.ones((4, 2))

    def items(labels: list[int] | None) -> Dataset:
        return from_arrays(x, labels=labels)

    one = items([0, 1, 0, 1])
    assert have_same_items(one, items([0, 1, 0, 1]))
    assert have_same_items(items(None), items(None))
    assert not have_same_items(one, items([0, 1, 1, 1]))
    assert not have_same_items(one, items(None))
    assert not have_same_items(items(None), one)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "arrays, corrupt blur:2"),
        ({"data": "digits"}, "arrays, corrupt blur:2"),
        ({"data": "other.npz"}, "arrays"),
        ({"data": ("digits", "other.npz")}, "arrays"),
        ({"data": ("other.npz", "digits")}, "arrays, corrupt blur:2"),
        ({"test_data": "other.npz"}, "arrays"),
        ({"data": "other.npz", "test_data": "digits"}, "arrays, corrupt blur:2"),
    ],
)
def test_description_of_test_data_of_the_run_names_their_corruption(
    tmp_path: Path, options: dict[str, Any], expected: str
) -> None:
    settings = make_run(tmp_path / "run", build_vector_model(), corrupt="blur:2").settings()
    assert describe_test_data(settings, build_vectors(4, None), EvaluateOptions(run="run", **options)) == expected


def test_image_size_of_square_inputs() -> None:
    def find_size(*shapes: tuple[int, ...]) -> int | None:
        return find_model_image_size(Model(shapes=shapes, shared=False))

    assert find_size((1, 8, 8)) == find_size((1, 8, 8), (6,)) == 8
    assert find_size((6,)) is find_size((1, 8, 12)) is find_size((1, 8, 8), (1, 12, 12)) is None


@pytest.fixture(scope="module")
def table_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("columns")
    values = np.random.default_rng(0).normal(size=(40, 5)).round(3)
    table = pandas.DataFrame(values, columns=["ear_0", "ear_1", "ear_2", "eye_0", "eye_1"])
    table.to_csv(folder / "own.csv", index=False)
    views = {"views": ["ear_*", "eye_*"]}
    return contraport.train(
        data=str(folder / "own.csv"), columns=views, out=folder / "run", epochs=1, batch_size=16, device="cpu",
        progress=False,
    )  # fmt: skip


def test_columns_of_a_table_are_matched_by_name(table_run: Run) -> None:
    own = pandas.read_csv(str(table_run.settings().data))
    file = table_run.path.parent / "reversed.csv"
    turned = own[own.columns[::-1]]
    turned.to_csv(file, index=False)
    embedded, same = (
        contraport.embed(table_run, data=data, columns={"views": ["ear_*", "eye_*"]}, out=None, progress=False)
        for data in (None, str(file))
    )
    np.testing.assert_array_equal(same.features, embedded.features)
    np.testing.assert_array_equal(same.splits, embedded.splits)  # found by the content of the items
    options = {"view": "ear", "progress": False}
    ears = ["ear_2", "ear_0", "ear_1"]
    np.testing.assert_array_equal(
        table_run.encode(own[ears], **options), table_run.encode(own[sorted(ears)], **options)
    )
    columns = {"columns": {"views": ["ear_*", "eye_*"]}, **OPTIONS}
    assert evaluate(table_run, data=str(file), **columns)["rows"] == evaluate(table_run, **OPTIONS)["rows"]


def test_rejects_other_columns_than_those_of_the_training(table_run: Run) -> None:
    own = pandas.read_csv(str(table_run.settings().data))
    other = own.rename(columns={"ear_1": "ear_9"})
    views = {"columns": {"views": ["ear_*", "eye_*"]}}
    with raises_usage_error("data.column_names", "ear", ["ear_9"], ["ear_1"]):
        contraport.embed(table_run, data=other, out=None, progress=False, **views)
    with raises_usage_error("data.column_names", "ear", ["ear_9"], ["ear_1"]):
        evaluate(table_run, test_data=other, **views, **OPTIONS)
    with raises_usage_error("items.column_names", "ear", ["ear_9"], ["ear_1"]):
        table_run.encode(other[["ear_0", "ear_9", "ear_2"]], view="ear", progress=False)
    renamed = own.rename(columns=lambda name: name.replace("ear", "arm").replace("eye", "leg"))
    with raises_usage_error("data.column_names", "eye", ["leg_0", "leg_1"], ["eye_0", "eye_1"]):
        contraport.embed(
            table_run, data=renamed, view="eye", out=None, progress=False, columns={"views": ["arm_*", "leg_*"]}
        )


def test_models_without_names_of_columns_take_any(table_run: Run, tmp_path: Path) -> None:
    config = table_run.path / "model" / "config.json"
    values = json.loads(config.read_text())
    assert values.pop("column_names") == [["ear_0", "ear_1", "ear_2"], ["eye_0", "eye_1"]]
    shutil.copytree(table_run.path, tmp_path / "older")
    (tmp_path / "older" / "model" / "config.json").write_text(json.dumps(values))
    own = pandas.read_csv(str(table_run.settings().data))
    eyes = own[["eye_0", "eye_1"]].to_numpy()
    encoded = Run(tmp_path / "older").encode(pandas.DataFrame(eyes, columns=["a", "b"]), view="eye", progress=False)
    np.testing.assert_array_equal(encoded, table_run.encode(eyes, view="eye", progress=False))
