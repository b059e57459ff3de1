from pathlib import Path

import pytest

from contraport.runs import Run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(tmp_path / "runs" / "first", {"data": "digits", "epochs": 3})
