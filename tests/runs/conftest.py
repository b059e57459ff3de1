from pathlib import Path

import pytest

from contraport.runs import WritableRun


@pytest.fixture
def run(tmp_path: Path) -> WritableRun:
    return WritableRun.create(tmp_path / "runs" / "first", {"data": "digits", "epochs": 3})
