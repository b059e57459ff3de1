"""Tables of evaluation results."""

from __future__ import annotations

from typing import Any

import pytest

from contraport.evaluation.evaluation_results import metric_rows_with_baselines, metric_tables_by_title


def build_result(**rows: dict[str, float | None]) -> dict[str, Any]:
    interval = {"knn": {"low": 0.85, "high": 0.95}}
    by_encoder = {name.replace("_", " "): row for name, row in rows.items()}
    return {"data": "digits", "rows": by_encoder, "intervals": {"trained": interval}, "directions": {}}


def test_empty_baseline_has_no_column() -> None:
    rows = metric_rows_with_baselines(
        build_result(
            raw={"knn": None}, untrained={"knn": 0.5}, trained={"knn": 0.9, "uniformity": -2.0}, epoch_1={"knn": 0.7}
        )
    )
    assert rows == [
        {"metric": "kNN", "untrained": "50.0%", "trained": "90.0%", "(95% interval)": "85.0% to 95.0%"},
        {"metric": "Uniformity", "untrained": "-", "trained": "-2.000", "(95% interval)": "-"},
    ]


@pytest.mark.parametrize(
    ("num_epochs", "expected_epochs"),
    [
        (0, []),
        (1, [1]),
        (5, [1, 2, 3, 4, 5]),
        (6, [1, 2, 3, 5, 6]),
        (9, [1, 3, 5, 7, 9]),
        (200, [1, 51, 101, 150, 200]),
    ],
)
def test_columns_are_evenly_spaced_epochs(num_epochs: int, expected_epochs: list[int]) -> None:
    epoch_rows = {f"epoch {epoch}": {"knn": epoch / 1000} for epoch in range(1, num_epochs + 1)}
    tables = metric_tables_by_title(build_result(raw={"knn": 0.1}, trained={"knn": 0.9}, **epoch_rows))
    title = "checkpoints by epoch"
    if not num_epochs:
        assert title not in tables
    else:
        epoch_columns = {f"epoch {epoch}": f"{epoch / 10:.1f}%" for epoch in expected_epochs}
        assert tables[title] == [{"metric": "kNN", **epoch_columns, "trained": "90.0%"}]
