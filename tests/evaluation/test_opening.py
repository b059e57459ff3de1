"""Which items are judged: the run's own as its training took them, and others as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.evaluation.making import make_run, vector_model, vectors

from contraport.data import Dataset, from_arrays, from_stream, load
from contraport.encoders import Model
from contraport.errors import UsageError
from contraport.evaluation import evaluate
from contraport.evaluation import split_loading as opening
from contraport.evaluation.config import EvaluateOptions
from contraport.evaluation.split_loading import are_same_items, describe_test_data, image_size_of

ASKED: dict[str, Any] = {"measures": ["uniformity"], "alone": True, "progress": False}


def arrays(path: Path, items: int, views: int = 1) -> str:
    random = np.random.default_rng(items)
    given = {f"view{view}": random.normal(size=(items, 6)).astype(np.float32) for view in range(views)}
    np.savez(path, **given, labels=np.arange(items) % 3)
    return str(path)


@pytest.mark.parametrize(
    ("own", "items"),
    [
        ({"test_fraction": 0.5}, (30, 30)),
        ({"validation": 0.5}, (24, 24)),
        ({"items": 20}, (20, 12)),
        ({"items": 20, "test_items": 6}, (20, 6)),
        ({"imbalance": 4.0}, (28, 12)),
        ({"given_views": [1]}, (48, 12)),
    ],
    ids=lambda own: " ".join(own) if isinstance(own, dict) else "",
)
def test_what_a_training_asks_of_its_own_data_is_not_asked_of_others(
    tmp_path: Path, own: dict[str, Any], items: tuple[int, int]
) -> None:
    views = 2 if "given_views" in own else 1
    run = make_run(tmp_path / "run", vector_model(), data=arrays(tmp_path / "own.npz", 60, views), **own)
    result = evaluate(run, **ASKED)
    assert (result["train_items"], result["test_items"]) == items
    result = evaluate(run, data=arrays(tmp_path / "other.npz", 90), **ASKED)
    assert (result["train_items"], result["test_items"]) == (72, 18)
    result = evaluate(run, test_data=arrays(tmp_path / "test.npz", 75), **ASKED)
    assert (result["train_items"], result["test_items"]) == (items[0], 15)


def test_splits_of_a_file_that_were_loaded_are_taken_as_they_are(tmp_path: Path) -> None:
    path = arrays(tmp_path / "data.npz", 60)
    run = make_run(tmp_path / "run", vector_model())
    result = evaluate(run, data=(load(path, "train"), load(path, "test")), **ASKED)
    assert (result["train_items"], result["test_items"]) == (48, 12)


def test_columns_that_are_given_come_before_those_of_the_training(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(60, 3))
    lines = [f"{a},{b},{c},{row % 2},{row % 3}" for row, (a, b, c) in enumerate(rows)]
    (tmp_path / "table.csv").write_text("\n".join(["a,b,c,kind,sort", *lines]))
    columns = {"views": [["a", "b", "c"]], "labels": "kind"}
    run = make_run(tmp_path / "run", Model("mlp", [(3,)]), data=str(tmp_path / "table.csv"), columns=columns)
    assert evaluate(run, **ASKED)["classes"] == 2
    assert evaluate(run, columns={**columns, "labels": "sort"}, **ASKED)["classes"] == 3


def test_the_folder_of_named_data_that_is_given_comes_before_that_of_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(
        opening, "build_dataset", lambda settings, split: asked.append(settings.root) or vectors(9, None)
    )
    run = make_run(tmp_path / "run", vector_model(), root="own")
    for root in (None, "given"):
        evaluate(run, root=root, **ASKED)
    assert asked == ["own", "own", "given", "given"]


def test_one_item_cannot_be_judged(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", vector_model())
    with pytest.raises(UsageError, match="data: expected two test items or more, 'arrays' has 1"):
        evaluate(run, data=(vectors(40, 2), vectors(1, None)), **ASKED)


def test_a_stream_is_not_judged_by_its_first_items(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", vector_model())
    stream = from_stream(np.ones((20, 6), dtype=np.float32), name="numbers")
    for given in ({"data": (stream, vectors(40, 2))}, {"data": (vectors(40, 2), stream)}):
        with pytest.raises(UsageError, match=r"data: numbers is a stream, .* expected data whose items are all there"):
            evaluate(run, **given, **ASKED)
    with pytest.raises(UsageError, match="data: numbers is a stream"):
        evaluate(run, data=(vectors(40, 2),) * 2, test_data=stream, **ASKED)


def test_items_are_the_same_by_their_rows_and_labels() -> None:
    x = np.ones((4, 2))

    def items(labels: list[int] | None) -> Dataset:
        return from_arrays(x, labels=labels)

    one = items([0, 1, 0, 1])
    assert are_same_items(one, items([0, 1, 0, 1]))
    assert are_same_items(items(None), items(None))
    assert not are_same_items(one, items([0, 1, 1, 1]))
    assert not are_same_items(one, items(None))
    assert not are_same_items(items(None), one)


@pytest.mark.parametrize(
    ("given", "told"),
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
def test_what_was_done_to_test_items_is_told_where_they_are_the_runs_own(
    tmp_path: Path, given: dict[str, Any], told: str
) -> None:
    settings = make_run(tmp_path / "run", vector_model(), corrupt="blur:2").settings()
    assert describe_test_data(settings, vectors(4, None), EvaluateOptions(run="run", **given)) == told


def test_images_are_made_square_where_the_model_takes_squares_of_one_size() -> None:
    def size(*shapes: tuple[int, ...]) -> int | None:
        return image_size_of(Model(shapes=shapes, shared=False))

    assert size((1, 8, 8)) == size((1, 8, 8), (6,)) == 8
    assert size((6,)) is size((1, 8, 12)) is size((1, 8, 8), (1, 12, 12)) is None
