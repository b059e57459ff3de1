"""What the pages of results quote can be run again."""

import json
from pathlib import Path

import pytest

from contraport.comparison.grid_builder import build_grid

MEASURED = sorted((Path(__file__).parents[2] / "benchmarks" / "results" / "suites").glob("*.json"))


@pytest.mark.parametrize("path", MEASURED, ids=lambda path: path.stem)
def test_what_a_suite_was_asked_still_makes_the_rows_and_columns_that_it_found(path: Path) -> None:
    found = json.loads(path.read_text())
    grid = build_grid(found["asked"])
    assert [row.name for row in grid.rows] == found["rows"]
    assert [column.name for column in grid.columns] == found["columns"]
    assert {cell["column"] for cell in found["cells"]} <= set(found["columns"])
