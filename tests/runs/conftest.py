from pathlib import Path

import pytest

from contraport.runs import RunFolder


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "runs" / "first", {"data": "digits", "epochs": 3})
