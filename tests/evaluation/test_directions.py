"""Retrieval metrics per direction between views."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from tests.evaluation.builders import make_run

from contraport import evaluate
from contraport.data import Dataset, from_arrays
from contraport.encoders import Model
from contraport.evaluation.evaluation_results import retrieval_direction_rows
from contraport.metrics.retrieval_ranks import retrieval_ranks_by_view_pair

NAMES = ("photo", "audio", "tags")


def build_items(number: int) -> Dataset:
    random = np.random.default_rng(number)
    views = {name: random.normal(size=(number, 4 + place)) for place, name in enumerate(NAMES)}
    return from_arrays(views, name="three")


@pytest.fixture
def result(tmp_path: Path) -> dict:
    model = Model(shapes=[(4,), (5,), (6,)], projection=8, view_names=NAMES)
    run = make_run(tmp_path / "run", model, data="<three>", augment=None)
    return evaluate(run, data=(build_items(50), build_items(40)), metrics=["retrieval"], progress=False)


def test_metrics_are_means_of_reported_directions(result: dict) -> None:
    assert list(result["directions"]) == [f"{one} to {other}" for one, other in permutations(NAMES, 2)]
    for key in ("recall@1", "recall@10", "median_rank"):
        values = [actual[key] for actual in result["directions"].values()]
        assert result["rows"]["trained"][key] == pytest.approx(np.mean([one["value"] for one in values]))
        assert all(one["low"] <= one["value"] <= one["high"] for one in values)


def test_directions_are_printed(result: dict) -> None:
    rows = retrieval_direction_rows(result)
    assert [row["from to"] for row in rows] == list(result["directions"])
    recall = result["directions"]["tags to photo"]["recall@5"]["value"]
    assert next(row for row in rows if row["from to"] == "tags to photo")["Recall@5"] == f"{recall:.1%}"


def test_directions_use_projections_of_plain_views(tmp_path: Path) -> None:
    """The random augmentations of the training are not applied."""
    model = Model(shapes=[(4,), (5,), (6,)], projection=8, view_names=NAMES).eval()
    run = make_run(tmp_path / "run", model, data="<three>", augment="strong")
    actual = evaluate(run, data=(build_items(50), build_items(40)), metrics=["recall"], progress=False)
    views = build_items(40).__getitems__(list(range(40))).views
    expected = (retrieval_ranks_by_view_pair(*model.project(model.encode(views))) <= 5).mean(axis=0)
    recalls = [one["recall@5"]["value"] for one in actual["directions"].values()]
    assert recalls == pytest.approx(expected.tolist())


def test_random_views_have_no_direction(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", Model("mlp", [(4,)]))
    data = tuple(from_arrays(np.random.default_rng(seed).normal(size=(40, 4))) for seed in (0, 1))
    assert evaluate(run, data=data, metrics=["recall"], progress=False)["directions"] == {}
