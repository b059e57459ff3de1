"""Tables of evaluation results."""

from __future__ import annotations

from typing import Any

import pytest

from contraport.evaluation.result_tables import metric_rows_by_baseline, metric_rows_by_sampled_epoch


def result(**rows: dict[str, float | None]) -> dict[str, Any]:
    ends = {"knn": {"low": 0.85, "high": 0.95}}
    return {"rows": {name.replace("_", " "): row for name, row in rows.items()}, "intervals": {"trained": ends}}


def test_empty_baseline_has_no_column() -> None:
    rows = metric_rows_by_baseline(
        result(
            raw={"knn": None}, untrained={"knn": 0.5}, trained={"knn": 0.9, "uniformity": -2.0}, epoch_1={"knn": 0.7}
        )
    )
    assert rows == [
        {"metric": "kNN", "untrained": "50.0%", "trained": "90.0%", "95% interval": "85.0% to 95.0%"},
        {"metric": "Uniformity", "untrained": "-", "trained": "-2.000", "95% interval": "-"},
    ]


@pytest.mark.parametrize(
    ("kept", "shown"),
    [
        (0, []),
        (1, [1]),
        (5, [1, 2, 3, 4, 5]),
        (6, [1, 2, 3, 5, 6]),
        (9, [1, 3, 5, 7, 9]),
        (200, [1, 51, 101, 150, 200]),
    ],
)
def test_intermediate_models_are_thinned_evenly(kept: int, shown: list[int]) -> None:
    known = {f"epoch {epoch}": {"knn": epoch / 1000} for epoch in range(1, kept + 1)}
    rows = metric_rows_by_sampled_epoch({"rows": {"raw": {"knn": 0.1}, "trained": {"knn": 0.9}, **known}})
    if not kept:
        assert rows == []
    else:
        options = {f"epoch {epoch}": f"{epoch / 10:.1f}%" for epoch in shown}
        assert rows == [{"metric": "kNN", **options, "trained": "90.0%"}]
