from pathlib import Path

import pytest
from tests.errors import raises_usage_error

from contraport.runs.run import is_nested_number_mapping, read_metrics_rows


@pytest.mark.parametrize(("value", "expected"), [(1, True), (0.5, True), (None, True), (True, False), ("1", False)])
def test_metric_values_are_numbers_or_none_but_no_booleans(value: object, expected: bool) -> None:
    assert is_nested_number_mapping({"loss": value}, depth=1) is expected


@pytest.mark.parametrize("row", ['{"step": 2, "loss": "low"}', '{"step": 2.5}', '{"loss": 1.0}', '{"step": true}'])
def test_rejects_rows_without_step_or_with_other_values(tmp_path: Path, row: str) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text(f'{{"step": 1, "loss": 0.5, "mi_bound": null}}\n{row}\n')
    with raises_usage_error("run.corrupt", "metrics.jsonl", "line 2"):
        read_metrics_rows(file)
