"""Neighboring windows of a time series as views of an item."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contraport.data import Dataset, from_arrays, load
from contraport.evaluation import evaluate
from contraport.training import train
from tests.errors import raises_usage_error


def build_waves(count: int, seed: int) -> Dataset:
    """Build noisy waves with random phases and three frequencies, which are the classes."""
    random = np.random.default_rng(seed)
    labels = np.arange(count) % 3
    times = np.arange(64) + random.uniform(0, 64, (count, 1))
    values = np.sin(times * np.array([0.2, 0.5, 1.1])[labels][:, None])
    return from_arrays((values + random.normal(0, 0.3, values.shape))[:, None].astype(np.float32), labels=labels)


def test_training_on_windows_separates_frequencies(tmp_path: Path) -> None:
    run = train(
        data=build_waves(192, 0), views="frames", epochs=10, batch_size=64, out=tmp_path / "run", progress=False
    )
    first, last = run.metrics_rows()[0], run.metrics_rows()[-1]
    assert last["loss"] < first["loss"]
    rows = evaluate(run, data=(build_waves(96, 1), build_waves(96, 2)), progress=False)["rows"]
    assert rows["trained"]["knn"] > 0.9


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (
            {"encoder": "mlp", "views": "frames"},
            "encoder.fixed_size",
        ),
        ({"views": "2+6"}, "views.*"),
    ],
)
def test_rejects_encoders_and_views_without_windows(tmp_path: Path, options: dict[str, Any], code: str) -> None:
    with raises_usage_error(code):
        train(data=build_waves(64, 0), batch_size=32, out=tmp_path / "run", progress=False, **options)
    assert not (tmp_path / "run").exists()


def test_encoder_of_fixed_size_rejects_small_crops(tmp_path: Path) -> None:
    with raises_usage_error("encoder.fixed_size"):
        train(data=load("digits"), encoder="mlp", views="2+2", out=tmp_path / "run", progress=False)
