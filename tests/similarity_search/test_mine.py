"""`mine`: encoders, output files, audits and views."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from tests.errors import raises_usage_error

import contraport
from contraport.cli import main
from contraport.data import from_arrays, from_coupling
from contraport.feature_files import Features, write_features
from contraport.training import train


@pytest.fixture
def views() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(40, 2, 5)).astype(np.float32)


@pytest.fixture
def texts(tmp_path: Path, views: np.ndarray) -> Path:
    """Pairs of texts in a table, and a teacher's features of all of them."""
    path = tmp_path / "pairs.csv"
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["question", "answer"])
        rows.writerows((f"question {row}", f"answer {row}") for row in range(len(views)))
    np.save(tmp_path / "teacher.npy", views)
    return path


def nearest_wrong(views: np.ndarray, count: int) -> np.ndarray:
    unit = views / np.linalg.norm(views.astype(np.float64), axis=2, keepdims=True)
    scores = unit[:, 0] @ unit[:, 1].T
    np.fill_diagonal(scores, -np.inf)
    return np.argsort(-scores, axis=1)[:, :count]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_writes_triplets_of_texts(texts: Path, views: np.ndarray, suffix: str) -> None:
    out = texts.with_name(f"triplets{suffix}")
    mined = contraport.mine(texts.with_name("teacher.npy"), data=texts, k=2, out=out)
    wrong = nearest_wrong(views, 2)
    assert np.array_equal(mined.positions.numpy(), wrong)
    if suffix == ".csv":
        with out.open() as file:
            rows: list[dict[str, Any]] = list(csv.DictReader(file))
    elif suffix == ".jsonl":
        rows = [json.loads(line) for line in out.read_text().splitlines()]
    else:
        rows = pq.read_table(out).to_pylist()
    assert rows == [
        {"question": f"question {row}", "answer": f"answer {row}", "negative": f"answer {other}"}
        for row in range(40)
        for other in wrong[row]
    ]


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".parquet"])
def test_embedded_features_belong_to_their_rows(texts: Path, views: np.ndarray, suffix: str) -> None:
    rows = np.r_[5:40, 0:5]  # embed writes training items first
    splits = np.array(["train"] * 35 + ["test"] * 5)
    embedded = texts.with_name(f"embedded{suffix}")
    write_features(embedded, Features(views[rows, 0], rows, splits))
    mined = contraport.mine(embedded, data=texts, k=2, out=texts.with_name("triplets.csv"))
    wrong = nearest_wrong(np.stack([views[:, 0], views[:, 0]], axis=1), 2)
    assert np.array_equal(mined.positions.numpy(), wrong)


def test_writes_tuples_of_the_pairs_with_all_negatives(texts: Path) -> None:
    out = texts.with_name("tuples.parquet")
    arguments: dict[str, Any] = {"data": texts, "k": 3, "max_score": -0.1, "out": out, "layout": "n-tuple"}
    mined = contraport.mine(texts.with_name("teacher.npy"), **arguments)
    table = pq.read_table(out)
    assert table.schema.names == ["question", "answer", "negative_1", "negative_2", "negative_3"]
    complete = (mined.positions >= 0).all(1)
    assert len(table) == int(complete.sum())
    assert "negatives of 40 pairs" in str(mined)


def test_a_run_mines_for_its_training(views: np.ndarray, tmp_path: Path) -> None:
    data = tmp_path / "pairs.npz"
    np.savez(data, one=views[:, 0], two=views[:, 1])
    options: dict[str, Any] = {"objective": "info-nce", "epochs": 1, "batch_size": 16, "progress": False}
    run = train(data=data, out=tmp_path / "run", **options)
    out = tmp_path / "negatives.npy"
    mined = contraport.mine(run, k=3, out=out)
    assert mined.positions.shape == (32, 3)
    features = torch.stack([run.model().to_single_view(v)(torch.from_numpy(views[:, v])) for v in (0, 1)], 1).detach()
    rows = contraport.data.load(data).source_rows
    assert np.array_equal(mined.positions.numpy(), nearest_wrong(features[rows].numpy(), 3))
    again = train(data=data, out=tmp_path / "again", negatives=f"mined:{out}", **options)
    assert np.isfinite(again.metrics_rows()[-1]["loss"])
    reverse = contraport.mine(run.path, k=3, anchor="two", positive="one", out=tmp_path / "reverse.npy")
    assert np.array_equal(reverse.positions.numpy(), nearest_wrong(features[rows].flip(1).numpy(), 3))


def test_items_of_one_view_are_named_by_row(views: np.ndarray, tmp_path: Path) -> None:
    data = from_arrays(views[:, 0])
    np.save(tmp_path / "teacher.npy", views[:, 0])
    contraport.mine(tmp_path / "teacher.npy", data=data, k=1, out=tmp_path / "rows.csv")
    nearest = nearest_wrong(views[:, [0, 0]], 1)[:, 0]
    expected = "".join(f"{row},{row},{other}\n" for row, other in enumerate(nearest))
    assert (tmp_path / "rows.csv").read_text() == "anchor,positive,negative\n" + expected


def test_items_of_a_coupling_are_named_by_the_keys_of_their_own_set(tmp_path: Path) -> None:
    rows, columns = np.eye(3, dtype=np.float32), np.eye(3, dtype=np.float32)
    columns[1] += 0.5
    sides = [from_arrays(side) for side in (rows, columns)]
    for side, letter in zip(sides, "rc", strict=True):
        side.keys = [f"{letter}{number}" for number in range(3)]
    coupling = from_coupling(*sides, [[0, 0], [1, 1], [2, 2], [0, 1]], test_fraction=0)
    np.save(tmp_path / "teacher.npy", np.stack([rows[[0, 1, 2, 0]], columns[[0, 1, 2, 1]]], axis=1))
    contraport.mine(tmp_path / "teacher.npy", data=coupling, k=1, out=tmp_path / "triplets.csv")
    lines = (tmp_path / "triplets.csv").read_text().splitlines()
    assert lines == ["row,column,negative", "r0,c0,c2", "r1,c1,c0", "r2,c2,c1", "r0,c1,c2"]


def test_audit_excludes_flagged_pairs_and_their_partners(texts: Path) -> None:
    folder = texts.with_name("audit")
    folder.mkdir()
    lines = ["id,score,fdr,flagged,partner,partner_score,row"]
    lines += [f"{row},0,0,{'true' if row == 4 else 'false'},{9 if row == 4 else -1},0,{row}" for row in range(40)]
    (folder / "pairs.csv").write_text("\n".join(lines) + "\n")
    arguments: dict[str, Any] = {"data": texts, "k": 39, "audit": folder, "out": texts.with_name("kept.csv")}
    positions = contraport.mine(texts.with_name("teacher.npy"), **arguments).positions
    assert bool((positions[4] == -1).all())
    assert int((positions[5] >= 0).sum()) == 39
    (folder / "pairs.csv").write_text("id\n1\n")
    with raises_usage_error("audit.unreadable"):
        contraport.mine(texts.with_name("teacher.npy"), **arguments | {"overwrite": True})


@pytest.mark.parametrize(("name", "layout"), [("negative", "triplet"), ("negative_1", "n-tuple")])
def test_rejects_a_view_with_the_name_of_a_column_of_negatives(texts: Path, name: str, layout: str) -> None:
    texts.write_text(texts.read_text().replace("question,answer", f"question,{name}"))
    arguments: dict[str, Any] = {"data": texts, "k": 1, "out": texts.with_name("out.csv"), "layout": layout}
    with raises_usage_error("data.name_conflict", name):
        contraport.mine(texts.with_name("teacher.npy"), **arguments)
    assert not arguments["out"].exists()


def test_command_prints_the_result(texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = texts.with_name("triplets.csv")
    arguments = ["mine", str(texts.with_name("teacher.npy")), "--data", str(texts), "--k", "2", "--out", str(out)]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("80 negatives of 40 pairs; mean cosine similarity")
    assert printed.endswith(f"file: {out}\n")
    assert main(arguments) == 2
    assert "--overwrite" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"out": "x.txt"}, "out.suffix"),
        ({"k": 0}, "k.invalid"),
        ({"k": 5, "range_min": 3, "range_max": 7}, "range_max.invalid"),
        ({"range_max": 0}, "range_max.invalid"),
        ({"relative_margin": "much"}, "relative_margin.invalid"),
        ({"sampling": "best"}, "sampling.*"),
        ({"data": None}, "data.missing"),
        ({"anchor": "nowhere"}, "anchor.*"),
        ({"anchor": 1, "positive": 1}, "positive.conflict"),
        ({"audit": "nowhere"}, "audit.not_found"),
        ({"encoder": "nowhere.npy"}, "encoder.*"),
    ],
    ids=str,
)
def test_rejects_invalid_arguments(texts: Path, changes: dict[str, Any], code: str) -> None:
    arguments = {"data": texts, "out": "x.csv", **changes}
    encoder = arguments.pop("encoder", texts.with_name("teacher.npy"))
    arguments["out"] = texts.with_name(arguments["out"])
    with raises_usage_error(code):
        contraport.mine(encoder, **arguments)


def test_rejects_features_of_other_items(texts: Path, views: np.ndarray) -> None:
    np.save(texts.with_name("teacher.npy"), views[:30])
    with raises_usage_error("encoder.shape"):
        contraport.mine(texts.with_name("teacher.npy"), data=texts, out=texts.with_name("x.csv"))


def test_positives_are_of_the_other_view_than_anchors(texts: Path, views: np.ndarray) -> None:
    out = texts.with_name("reverse.csv")
    mined = contraport.mine(texts.with_name("teacher.npy"), data=texts, k=2, anchor="answer", out=out)
    assert np.array_equal(mined.positions.numpy(), nearest_wrong(views[:, ::-1], 2))


def test_rejects_a_table_without_rows(texts: Path) -> None:
    teacher, out = texts.with_name("teacher.npy"), texts.with_name("none.csv")
    with raises_usage_error("k.no_negatives"):
        contraport.mine(teacher, data=texts, max_score=-2, out=out)
    with raises_usage_error("k.no_negatives"):
        contraport.mine(teacher, data=texts, k=50, layout="n-tuple", out=out)
    assert not out.exists()
    assert "(40 pairs have fewer than 50)" in str(contraport.mine(teacher, data=texts, k=50, out=out))


def test_names_a_missing_encoder(texts: Path) -> None:
    with raises_usage_error("encoder.not_found"):
        contraport.mine(texts.with_name("missing"), data=texts, out=texts.with_name("none.csv"))


def test_names_a_folder_without_an_encoder(texts: Path) -> None:
    with raises_usage_error("encoder.no_model"):
        contraport.mine(texts.parent, data=texts, out=texts.with_name("none.csv"))
