import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contraport.runs import default_run_path


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ("digits", "digits"),
        ("stl10-unlabeled", "stl10-unlabeled"),
        ("photos/", "photos"),
        ("../tables/two sensors.v2.csv", "two-sensors.v2"),
        ("shards/train-{000..009}.tar", "train-000-009"),
        ("{train,extra}-{0..3}.tar", "train-extra-0-3"),
        ("{a,b}/shards-*.tar", "shards"),
        ("größe.npz", "größe"),
        ("{...}.tar", "data"),
        ("/", "data"),
    ],
)
def test_run_is_named_after_its_data(data: str, name: str) -> None:
    assert default_run_path(data, "nt-xent") == Path("runs", f"{name}-nt-xent")


def test_run_name_keeps_the_dots_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "photos-1.5").mkdir()
    monkeypatch.chdir(tmp_path / "photos-1.5")
    for data in (".", "../photos-1.5", str(tmp_path / "photos-1.5")):
        assert default_run_path(data, "moco") == Path("runs/photos-1.5-moco")


@given(st.text(string.printable, min_size=1).filter(lambda data: "\0" not in data))
def test_run_name_needs_no_shell_quotes(data: str) -> None:
    runs, name = default_run_path(data, "moco").parts
    assert runs == "runs"
    assert set(name) <= set(string.ascii_letters + string.digits + "_.-")
    assert name.endswith("-moco")
    assert ".." not in name
    assert "--" not in name
    assert not name.startswith((".", "-"))
