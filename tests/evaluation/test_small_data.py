"""Evaluation of small test sets and degenerate labels: notes on the metrics that are left out."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.errors import raises_usage_error
from tests.evaluation.builders import build_vector_model, build_vectors, make_run

from contraport.data import from_arrays
from contraport.evaluation import evaluate

ROWS = np.random.default_rng(0).normal(size=(60, 6)).astype(np.float32)


@pytest.mark.parametrize(
    ("train", "test", "missing"),
    [
        ({"labels": np.arange(60) % 3}, {"labels": [0, 1, 2]}, "no class has two test items: Tolerance."),
        ({"labels": np.arange(60) % 5}, {"labels": [0, 1, 1]}, "there are fewer test items than classes: NMI, ARI."),
        ({"labels": np.arange(60) % 3}, {"labels": [0, 0, 1]}, "there are only 10 test items or fewer: Hubness."),
        ({"numbers": ROWS[:, 0]}, {"numbers": [1.0, 1.0, 1.0]}, "all test items have the same number: Regression."),
        ({"numbers": ROWS[:, 0]}, {"numbers": [1.0, 1.0, 2.0]}, None),
        (
            {"labels": np.arange(60) // 30, "domains": np.arange(60) // 30},
            {"labels": [0, 1, 1], "domains": [0, 1, 1]},
            None,
        ),
    ],
)
def test_metrics_that_cannot_be_computed_are_noted(
    tmp_path: Path, train: dict[str, Any], test: dict[str, Any], missing: str | None
) -> None:
    run = make_run(tmp_path / "run", build_vector_model())
    result = evaluate(run, data=(from_arrays(ROWS, **train), from_arrays(ROWS[:3], **test)), progress=False)
    assert missing is None or f"Not measured, as {missing}" in result["notes"]
    saved = json.loads(run.evaluation_path.read_text("utf-8"), parse_constant=pytest.fail)
    assert saved["rows"]["trained"]["uniformity"] == result["rows"]["trained"]["uniformity"]


def test_domains_without_shared_classes_are_noted_if_requested(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", build_vector_model())
    data = from_arrays(ROWS, labels=np.arange(60) // 30, domains=np.arange(60) // 30)
    result = evaluate(run, data=(data, data), metrics=["domains"], progress=False)
    assert set(result["rows"]["trained"]) == {"domain_probe"}
    assert "Not measured, as domains share fewer than two classes: Unseen domain." in result["notes"]


def test_domain_probe_requires_shared_domains(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", build_vector_model())
    seen = from_arrays(ROWS, labels=np.arange(60) % 2, domains=np.arange(60) // 30)
    unseen = from_arrays(ROWS, labels=np.arange(60) % 2, domains=np.full(60, 2))
    result = evaluate(run, data=(seen, unseen), metrics=["domain_probe", "linear_probe"], progress=False)
    assert set(result["rows"]["trained"]) == {"linear_probe"}
    text = "Not measured, as training and test items share no domain: Domain probe."
    assert text in result["notes"]


@pytest.mark.parametrize("objective", ["vic-reg", "barlow-twins"])
def test_coordinate_objectives_have_no_plan(tmp_path: Path, objective: str) -> None:
    """A plan of as many coordinates as items would look like a plan of items."""
    run = make_run(tmp_path / "run", build_vector_model(), objective=objective)
    result = evaluate(run, data=(build_vectors(40, 2), build_vectors(32, 2)), metrics=["uniformity"], progress=False)
    assert "No plan is drawn: the objective compares coordinates, not items." in result["notes"]
    assert "plan" not in run.page_arrays()


def test_pair_of_data_is_used_as_training_and_test_items(tmp_path: Path) -> None:
    """The pair is already split into training and test items, so nothing more is held out."""
    run = make_run(tmp_path / "run", build_vector_model())
    result = evaluate(run, data=({"x": ROWS[:40]}, {"x": ROWS[40:]}), metrics=["uniformity"], progress=False)
    assert (result["train_items"], result["test_items"]) == (40, 20)


def test_two_test_items_are_enough(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", build_vector_model())
    result = evaluate(run, data=(build_vectors(40, 2), build_vectors(2, 2)), progress=False)
    assert {"linear_probe", "knn", "recall@1", "alignment"} <= set(result["rows"]["trained"])


def test_rejects_metrics_that_cannot_be_computed_and_keeps_the_earlier_evaluation(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", build_vector_model())
    data = (from_arrays(ROWS), from_arrays(ROWS[:20]))
    evaluate(run, data=data, progress=False)
    before = run.evaluation_path.read_bytes()
    with raises_usage_error("metrics.none_computed", "there are no labels"):
        evaluate(run, data=data, metrics=["knn"], progress=False)
    assert run.evaluation_path.read_bytes() == before
