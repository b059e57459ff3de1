"""What `contraport list` lists."""

from __future__ import annotations

import pytest

from contraport.cli import main
from contraport.comparison.suites import list_suites


def test_suites_are_listed_by_their_names_and_titles(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "suites"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if not line.startswith(" ")] == list(list_suites())
    assert lines[1:3] == ["    Which negatives to weigh, and how (Tian, 2022)", "    data: fashion-mnist"]
