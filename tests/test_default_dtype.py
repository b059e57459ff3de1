"""`torch.set_default_dtype(torch.float64)`: commands run, and audits and maps equal those in single precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import contraport
from contraport.data import from_arrays
from contraport.estimators import TSNE

ITEMS = 120
QUICK: dict[str, Any] = {"epochs": 2, "batch_size": 20, "projection": 8, "device": "cpu", "progress": False}


@contextmanager
def double_precision() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def views(number: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(0)
    hidden = random.normal(size=(ITEMS, 4))
    return tuple(hidden @ random.normal(size=(4, 6 + width)) for width in range(number))


@pytest.mark.parametrize(
    ("number", "settings"),
    [
        (2, {"audit": True}),
        (3, {"audit": True}),
        (2, {"negatives": "bank"}),
        (2, {"negatives": "queue", "momentum": 0.9}),
        (2, {"online_metrics": ["knn"]}),
    ],
    ids=str,
)
def test_trains(tmp_path: Path, number: int, settings: dict[str, Any]) -> None:
    data = from_arrays(views(number), labels=np.arange(ITEMS) % 3)
    with double_precision():
        run = contraport.train(data=data, objective="info-nce", out=tmp_path / "run", **QUICK, **settings)
    assert np.isfinite(run.metrics_rows()[-1]["loss"])


def test_evaluates(tmp_path: Path) -> None:
    labels = np.arange(ITEMS) % 3
    centered = [view + 9 * np.eye(3, view.shape[1])[labels] for view in views(2)]
    np.savez(tmp_path / "data.npz", view0=centered[0], view1=centered[1], labels=labels)
    with double_precision():
        contraport.train(data=tmp_path / "data.npz", objective="info-nce", out=tmp_path / "run", **QUICK)
        result = contraport.evaluate(tmp_path / "run", metrics=["knn", "recall@1"], progress=False)
    assert result["rows"]["raw"]["knn"] > 0.9


def test_audits_as_in_single_precision() -> None:
    options: dict[str, Any] = {"data": views(2), "method": "frozen", "device": "cpu", "progress": False}
    expected = contraport.audit(**options)
    with double_precision():
        result = contraport.audit(**options)
    np.testing.assert_allclose(result.scores, expected.scores, atol=1e-4)


def test_maps_as_in_single_precision() -> None:
    expected = TSNE(perplexity=10, random_state=0).fit(views(1)[0])
    with double_precision():
        result = TSNE(perplexity=10, random_state=0).fit(views(1)[0])
    assert result.kl_divergence_ == pytest.approx(expected.kl_divergence_, rel=0.02)
