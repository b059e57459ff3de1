"""Test sets of a few items, and labels that allow little: what cannot be measured is said, and the rest is measured."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
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
def test_metrics_that_need_more_items_are_noted(
    tmp_path: Path, train: dict[str, Any], test: dict[str, Any], missing: str | None
) -> None:
    run = make_run(tmp_path / "run", build_vector_model())
    result = evaluate(run, data=(from_arrays(ROWS, **train), from_arrays(ROWS[:3], **test)), progress=False)
    assert missing is None or f"Not measured, as {missing}" in result["notes"]
    numbers = json.loads(run.evaluation_path.read_text("utf-8"), parse_constant=pytest.fail)
    assert numbers["rows"]["trained"]["uniformity"] == result["rows"]["trained"]["uniformity"]


def test_domains_without_shared_classes_are_noted_if_requested(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", build_vector_model())
    own = from_arrays(ROWS, labels=np.arange(60) // 30, domains=np.arange(60) // 30)
    result = evaluate(run, data=(own, own), metrics=["domains"], progress=False)
    assert set(result["rows"]["trained"]) == {"domain_probe"}
    assert "Not measured, as domains share fewer than two classes: Unseen domain." in result["notes"]


def test_unseen_domains_are_not_probed(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", build_vector_model())
    rest = from_arrays(ROWS, labels=np.arange(60) % 2, domains=np.arange(60) // 30)
    left_out = from_arrays(ROWS, labels=np.arange(60) % 2, domains=np.full(60, 2))
    result = evaluate(run, data=(rest, left_out), metrics=["domain_probe", "linear_probe"], progress=False)
    assert set(result["rows"]["trained"]) == {"linear_probe"}
    text = "Not measured, as training and test items share no domain: Domain probe."
    assert text in result["notes"]


@pytest.mark.parametrize("objective", ["vic-reg", "barlow-twins"])
def test_coordinate_objectives_have_no_plan(tmp_path: Path, objective: str) -> None:
    """Nor where it has as many coordinates as there are items, and would look like one of items."""
    run = make_run(tmp_path / "run", build_vector_model(), objective=objective)
    result = evaluate(run, data=(build_vectors(40, 2), build_vectors(32, 2)), metrics=["uniformity"], progress=False)
    assert "No plan is drawn: the objective compares coordinates, not items." in result["notes"]
    assert "plan" not in run.page_arrays()


def test_elements_of_a_pair_are_whole_splits(tmp_path: Path) -> None:
    """They are the training and the test items already: no share of them is held out once more."""
    run = make_run(tmp_path / "run", build_vector_model())
    result = evaluate(run, data=({"x": ROWS[:40]}, {"x": ROWS[40:]}), metrics=["uniformity"], progress=False)
    assert (result["train_items"], result["test_items"]) == (40, 20)


def test_two_test_items_are_enough(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", build_vector_model())
    result = evaluate(run, data=(build_vectors(40, 2), build_vectors(2, 2)), progress=False)
    assert {"linear_probe", "knn", "recall@1", "alignment"} <= set(result["rows"]["trained"])
