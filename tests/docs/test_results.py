"""Saved options of the results on pages."""

import json
from pathlib import Path

import pytest

from contraport.comparison.command_options import COMPARE_COMMAND_SPEC
from contraport.comparison.grid_builder import build_grid
from contraport.options import replace_deprecated_options

MEASURED = sorted((Path(__file__).parents[2] / "benchmarks" / "results" / "suites").glob("*.json"))


@pytest.mark.filterwarnings("ignore::FutureWarning")  # options have deprecated names
@pytest.mark.parametrize("path", MEASURED, ids=lambda path: path.stem)
def test_saved_options_of_a_suite_build_the_same_rows_and_columns(path: Path) -> None:
    result = json.loads(path.read_text())
    grid = build_grid(replace_deprecated_options(COMPARE_COMMAND_SPEC.options_by_name, result["asked"], warn=False))
    assert [row.name for row in grid.rows] == result["rows"]
    assert [column.name for column in grid.columns] == result["columns"]
    assert {cell["column"] for cell in result["cells"]} <= set(result["columns"])
