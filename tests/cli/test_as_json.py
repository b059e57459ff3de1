from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from contraport.catalog import OBJECTIVES

from .conftest import Outcome


def test_a_list(command) -> None:
    found: Outcome = command("list", "objectives", "--json")
    rows = json.loads(found.out)
    assert [row["name"] for row in rows] == list(OBJECTIVES)
    assert all(row["summary"] for row in rows)


def test_an_evaluation_and_neighbors(command, data: str) -> None:
    quick = ("--batch_size", "20", "--epochs", "1", "--progress", "false")
    assert command("train", "--data", data, "--out", "run", *quick).status == 0
    result = json.loads(command("evaluate", "run", "--progress=false", "--json").out)["run"]
    assert result["rows"]["trained"]["knn"] <= 1
    assert command("embed", "run", "--out", "features.npz", "--progress=false").status == 0
    found = json.loads(command("neighbors", "features.npz", "--query", "3", "--top", "2", "--json").out)
    assert [sorted(near) for near in found] == [["class_name", "name", "position", "similarity"]] * 2


def test_a_verb_without_a_table_has_none(command) -> None:
    assert "unknown name '--json'" in command("train", "--json").err


def test_who_reads_may_have_enough(tmp_path: Path) -> None:
    line = f"{sys.executable} -m contraport list objectives | head -n 1"
    done = subprocess.run(line, shell=True, capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False)
    assert (len(done.stdout.splitlines()), done.stderr) == (1, "")
