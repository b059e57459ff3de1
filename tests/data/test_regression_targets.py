"""Regression targets, such as ages: files, columns and evaluation."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.errors import raises_usage_error
from tests.evaluation.builders import build_vector_model, make_run

from contraport.data import from_arrays, load
from contraport.evaluation import evaluate

RANDOM = np.random.default_rng(0)
ROWS = RANDOM.normal(size=(80, 6))
AGES = 40 + 10 * ROWS[:, 0] + RANDOM.normal(size=80)


def write(path):
    if path.suffix == ".npz":
        np.savez(path, x=ROWS, numbers=AGES)
    else:
        lines = [",".join(map(str, [*row, age])) for row, age in zip(ROWS, AGES, strict=True)]
        path.write_text("\n".join(["a,b,c,d,e,f,target", *lines]))
    return path


@pytest.mark.parametrize("name", ["data.npz", "data.csv"])
def test_regression_targets_follow_their_items(tmp_path, name):
    path = write(tmp_path / name)
    train, test = load(path, "train"), load(path, "test")
    assert (len(train), len(test), train.labels) == (64, 16, None)
    for split in (train, test):
        rows = split.__getitems__(list(range(len(split)))).views[0].numpy()
        places = [int(np.abs(ROWS - row).sum(axis=1).argmin()) for row in rows]
        assert np.allclose(split.regression_targets, AGES[places])


def test_integer_column_is_a_regression_target_if_requested(tmp_path):
    (tmp_path / "data.csv").write_text("\n".join(["a,b,age", *(f"{i}.5,{i}.1,{i % 7}" for i in range(30))]))
    dataset = load(tmp_path / "data.csv", columns={"numbers": "age"})
    assert (dataset.shapes, dataset.labels) == (((2,),), None)
    assert set(dataset.regression_targets.tolist()) == set(range(7))


@pytest.mark.parametrize(
    ("numbers", "code_and_values"),
    [
        (np.ones(3), ("numbers.shape", "(3,)")),
        (np.ones((5, 2)), ("numbers.shape", "(5, 2)")),
        ([1, 2, np.nan, 4, 5], ("numbers.not_finite", "5")),
        (["a"] * 5, ("numbers.shape",)),
    ],
)
def test_rejects_invalid_numbers(numbers, code_and_values):
    with raises_usage_error(*code_and_values):
        from_arrays(np.ones((5, 2)), numbers=numbers)


def test_rejects_a_column_of_several_numbers_per_item(tmp_path):
    cells = pa.table({"a": np.arange(30.0), "b": np.arange(30.0), "age": [[1.0, 2.0]] * 30})
    pq.write_table(cells, tmp_path / "data.parquet")
    with raises_usage_error("data.shape", "age", "(30, 2)"):
        load(tmp_path / "data.parquet", columns={"numbers": "age"})


def test_regression_targets_are_evaluated_without_classes(tmp_path):
    run = make_run(tmp_path / "run", build_vector_model(), data=str(write(tmp_path / "data.npz")))
    result = evaluate(run, progress=False)
    assert result["rows"]["raw"]["regression"] > 0.95
    assert set(result["intervals"]["raw"]["regression"]) == {"low", "high"}
    assert "linear_probe" not in result["rows"]["raw"]
