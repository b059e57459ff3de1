"""Export of cleaned data after an audit: dropped, repaired and weighted pairs, and training on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import torch
from PIL import Image
from tests.errors import raises_usage_error

import contraport
from contraport.auditing import Audit
from contraport.auditing.export_clean import write_clean_data
from contraport.data import from_coupling, load
from contraport.data.array_datasets import from_arrays

ITEMS = 60
WRONG, PARTNERS = [3, 10, 4], [7, -1, 3]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    torch.set_num_threads(1)


def build_audit(wrong: list[int] = WRONG) -> Audit:
    """Build an audit of 60 pairs that flags 3, 10 and 4: 3 gets the partner of 7, 4 that of 3, and 10 none."""
    scores, partners = np.ones(ITEMS), np.full(ITEMS, -1)
    scores[wrong], partners[wrong] = [-3, -2, -1], PARTNERS
    return Audit("x", "frozen", "neighbors", scores, np.zeros(5), 3 / ITEMS, (0, 1), partners, scores)


def write_table(folder: Path, suffix: str) -> Path:
    """Write a table of 61 rows; the sixth belongs to the test split."""
    rows = np.arange(ITEMS + 1)
    columns: dict[str, np.ndarray] = {"view0.a": rows * 1.0, "view1.a": rows * 10.0, "view1.b": -rows * 1.0}
    columns["split"] = np.where(rows == 5, "test", "train")
    arrow_table = pyarrow.table({name: pyarrow.array(values) for name, values in columns.items()})
    path = folder / f"pairs{suffix}"
    if suffix == ".csv":
        pyarrow.csv.write_csv(arrow_table, path)
    elif suffix == ".parquet":
        pyarrow.parquet.write_table(arrow_table, path)
    else:
        path.write_text("".join(f"{row!r}\n".replace("'", '"') for row in arrow_table.to_pylist()))
    return path


def write_and_load(mode: str, data: Path, tmp_path: Path) -> tuple[Path, dict[str, np.ndarray]]:
    dataset = load(data)
    path = write_clean_data(build_audit(), mode, tmp_path, data=data, dataset=dataset, repaired_view=1, columns=None)
    reloaded = load(path, columns={"weights": "audit_weight"} if mode == "weigh" and path.suffix != ".npz" else None)
    first, second = reloaded.store.fetch_views(torch.arange(len(reloaded)))
    weights = np.ones(len(reloaded)) if reloaded.weights is None else reloaded.weights.numpy()
    return path, {"first": first[:, 0].numpy(), "second": second[:, 0].numpy(), "weights": weights}


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_tables_keep_their_format(tmp_path: Path, suffix: str) -> None:
    data, out = write_table(tmp_path, suffix), tmp_path / "out"
    out.mkdir()
    rows = np.delete(np.arange(ITEMS + 1), 5)  # rows of the audited pairs
    path, dropped = write_and_load("drop", data, out)
    assert path.name == f"dropped{suffix}"
    assert dropped["first"].tolist() == np.delete(rows, WRONG).tolist()
    assert (dropped["second"] == 10 * dropped["first"]).all()
    _, repaired = write_and_load("repair", data, out)
    assert repaired["first"].tolist() == np.delete(rows, 10).tolist()
    expected = 10 * rows
    expected[[3, 4]] = 10 * rows[[7, 3]]
    assert repaired["second"].tolist() == np.delete(expected, 10).tolist()
    _, weighed = write_and_load("weigh", data, out)
    assert np.flatnonzero(weighed["weights"] == 0).tolist() == sorted(WRONG)
    assert load(out / f"dropped{suffix}", "test").store.fetch_views(torch.tensor([0]))[0].tolist() == [[5.0]]


def test_npz_keeps_its_test_split(tmp_path: Path) -> None:
    rows = np.arange(ITEMS)[:, None] * 1.0
    arrays = {"view0": rows, "view1": 10 * rows, "weights": np.full(ITEMS, 2.0)}
    np.savez(tmp_path / "pairs.npz", **arrays, **{f"{name}_test": array[:4] for name, array in arrays.items()})
    _, repaired = write_and_load("repair", tmp_path / "pairs.npz", tmp_path)
    assert repaired["second"][:5].tolist() == [0, 10, 20, 70, 30]
    path, weighed = write_and_load("weigh", tmp_path / "pairs.npz", tmp_path)
    assert np.flatnonzero(weighed["weights"] == 0).tolist() == sorted(WRONG)
    assert weighed["weights"].max() == 2
    assert len(load(path, "test")) == 4


def test_npz_keeps_its_view_names(tmp_path: Path) -> None:
    rows = np.arange(ITEMS)[:, None] * 1.0
    np.savez(tmp_path / "pairs.npz", ear=rows, eye=10 * rows)
    dataset = load(tmp_path / "pairs.npz", test_fraction=0)
    options: dict[str, Any] = {"data": tmp_path / "pairs.npz", "dataset": dataset, "repaired_view": 1, "columns": None}
    for mode, expected in (("drop", ITEMS - 3), ("repair", ITEMS - 1), ("weigh", ITEMS)):
        with np.load(write_clean_data(build_audit(), mode, tmp_path, **options)) as file:
            assert (len(file["ear"]), len(file["eye"])) == (expected, expected)
            assert mode != "repair" or file["eye"][:5, 0].tolist() == [0, 10, 20, 70, 30]
            assert ("weights" in file) == (mode == "weigh")


def test_unaudited_training_rows_are_left_out(tmp_path: Path) -> None:
    """The audited pairs start at row 5 of the source; flagged pairs are identified by their row in the source."""
    values = np.arange(ITEMS + 5)[:, None] * 1.0
    np.savez(tmp_path / "pairs.npz", ear=values, eye=10 * values, ear_test=values[:3], eye_test=values[:3])
    dataset = load(tmp_path / "pairs.npz").subset(torch.arange(5, ITEMS + 5))
    options: dict[str, Any] = {"dataset": dataset, "repaired_view": 1, "columns": None}
    wrong = [row + 5 for row in WRONG]
    with np.load(write_clean_data(build_audit(), "drop", tmp_path, data=tmp_path / "pairs.npz", **options)) as file:
        assert file["ear"][:, 0].tolist() == np.delete(np.arange(ITEMS + 5.0), [*range(5), *wrong]).tolist()
        assert len(file["ear_test"]) == 3
    with np.load(write_clean_data(build_audit(), "repair", tmp_path, data=tmp_path / "pairs.npz", **options)) as file:
        assert file["eye"][2:5, 0].tolist() == [70, 120, 80]  # rows 8 and 9 get the partners of 12 and 8
    weighed = write_clean_data(build_audit(), "weigh", tmp_path, data=tmp_path / "pairs.npz", **options)
    assert load(weighed, "test").weights.tolist() == [1, 1, 1]  # test items are not audited
    assert np.flatnonzero(load(weighed).weights == 0).tolist() == [*range(5), *sorted(wrong)]
    weights = np.load(write_clean_data(build_audit(), "weigh", tmp_path, data="no file", **options))
    assert (len(weights), np.flatnonzero(weights == 0).tolist()) == (ITEMS + 5, sorted(wrong))


def test_rows_with_unreadable_images_are_left_out(tmp_path: Path) -> None:
    """Of rows 0 to 62, the image of row 5 is broken, that of row 7 missing, and row 9 belongs to the test split."""
    lines = ["image,x,split"]
    for row in range(ITEMS + 3):
        Image.new("RGB", (8, 8), (row, 0, 0)).save(tmp_path / f"{row}.png")
        lines.append(f"{row}.png,{row}.5,{'Test' if row == 9 else 'train'}")
    (tmp_path / "5.png").write_bytes(b"no image")
    (tmp_path / "7.png").unlink()
    data, out = tmp_path / "pairs.csv", tmp_path / "out"
    data.write_text("\n".join(lines))
    out.mkdir()
    audited = np.delete(np.arange(ITEMS + 3), [5, 7, 9])
    options: dict[str, Any] = {"data": data, "dataset": load(data), "repaired_view": 1, "columns": None}
    for mode, left_out in (("drop", [5, 7, *audited[WRONG]]), ("repair", [5, 7, audited[10]])):
        lines = write_clean_data(build_audit(), mode, out, **options).read_text().splitlines()[1:]
        expected = np.delete(np.arange(ITEMS + 3), left_out).tolist()
        assert [int(Path(line.split(",")[0]).stem) for line in lines] == expected
    lines = write_clean_data(build_audit(), "weigh", out, **options).read_text().splitlines()[1:]
    unweighted = [row for row, line in enumerate(lines) if float(line.split(",")[3]) == 0]
    assert unweighted == sorted([5, 7, *audited[WRONG]])


@pytest.mark.parametrize("suffix", [".jsonl", ".npz"])
def test_items_that_lack_a_view_are_left_out(tmp_path: Path, suffix: str, caplog: pytest.LogCaptureFixture) -> None:
    """Rows 2 and 129 lack their second view."""
    random = np.random.default_rng(0)
    hidden = random.normal(size=(130, 3))
    first, second = hidden @ random.normal(size=(3, 4)), hidden @ random.normal(size=(3, 4))
    second[:20] = np.roll(second[:20], 3, axis=0)
    second[[2, 129]] = np.nan
    data, out = tmp_path / f"pairs{suffix}", tmp_path / "audit"
    if suffix == ".npz":
        np.savez(data, view0=first, view1=second, view0_test=first[:3], view1_test=second[3:6])
    else:
        names = [f"view{view}.{column}" for view in range(2) for column in range(4)]
        cells = [[None if np.isnan(x) else x for x in row] for row in np.hstack([first, second]).tolist()]
        data.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in cells))
    result = contraport.audit(data=data, method="frozen", out=out, drop=True, weigh=True, progress=False)
    assert f"2 of 130 items of {str(data)!r}" in caplog.text
    assert "2, 129" in caplog.text
    rows = np.delete(np.arange(130), [2, 129])
    assert result.source_rows.tolist() == rows.tolist()
    flagged = rows[result.flagged()]
    assert len({*flagged.tolist()} & {*range(20)}) > 10
    dropped = load(out / f"dropped{suffix}", test_fraction=None if suffix == ".npz" else 0)
    kept = np.delete(np.arange(130), [2, 129, *flagged])
    assert np.allclose(dropped.store.fetch_views(torch.arange(len(dropped)))[1].numpy(), second[kept])
    weights = {"weights": "audit_weight"} if suffix == ".jsonl" else None
    weighed = load(out / f"weighed{suffix}", columns=weights, test_fraction=None if suffix == ".npz" else 0)
    assert np.flatnonzero(weighed.weights).tolist() == kept.tolist()
    (command,) = contraport.audit(data=data, method="frozen", progress=False).next_commands
    assert command.startswith("contraport audit")


def test_each_text_of_a_list_is_its_own_pair(tmp_path: Path) -> None:
    """20 images with 3 captions each: a flagged caption is dropped without its image and its other captions."""
    data = tmp_path / "captions.jsonl"
    rows = [{"image": [row * 1.0, 1.0], "captions": [f"text {3 * row + one}" for one in range(3)]} for row in range(20)]
    data.write_text("".join(f"{row!r}\n".replace("'", '"') for row in rows))
    dataset = load(data, test_fraction=0)
    texts = {}
    for mode in ("drop", "repair", "weigh"):
        path = write_clean_data(
            build_audit(), mode, tmp_path, data=data, dataset=dataset, repaired_view=1, columns=None
        )
        texts[mode] = [json.loads(line) for line in path.read_text().splitlines()]
    captions = {mode: [row["captions"] for row in entries] for mode, entries in texts.items()}
    assert captions["drop"] == [f"text {row}" for row in range(ITEMS) if row not in WRONG]
    repaired = {3: "text 7", 4: "text 3"}
    assert captions["repair"] == [repaired.get(row, f"text {row}") for row in range(ITEMS) if row != 10]
    assert [row["image"][0] for row in texts["drop"]] == [row // 3 for row in range(ITEMS) if row not in WRONG]
    assert [row for row, entry in enumerate(texts["weigh"]) if entry["audit_weight"] == 0] == sorted(WRONG)


def test_datasets_become_an_npz_or_a_weights_file(tmp_path: Path) -> None:
    texts = [f"text {row}" for row in range(ITEMS)]
    images = np.random.default_rng(0).integers(0, 255, (ITEMS, 4, 4, 3), dtype=np.uint8)
    dataset = from_arrays({"photo": images, "caption": texts}, labels=["cat", "dog"] * (ITEMS // 2))
    options: dict[str, Any] = {"data": "x", "dataset": dataset, "repaired_view": 1, "columns": None}
    assert np.load(write_clean_data(build_audit(), "weigh", tmp_path, **options)).sum() == ITEMS - 3
    repaired = load(write_clean_data(build_audit(), "repair", tmp_path, **options), test_fraction=1e-12)
    assert repaired.class_names == ("cat", "dog")
    with np.load(tmp_path / "repaired.npz") as file:
        assert file["view1"][:5].tolist() == ["text 0", "text 1", "text 2", "text 7", "text 3"]
        assert (file["view0"] == np.delete(np.moveaxis(images, 3, 1), 10, 0)).all()


def test_image_size_of_a_cleaned_folder_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for row in range(ITEMS):
        Image.new("RGB", (100, 90), (row, 0, 0)).save(tmp_path / f"{row:02d}.jpg")
        (tmp_path / f"{row:02d}.txt").write_text(f"number {row}")
    dataset = load(tmp_path, test_fraction=0)
    options: dict[str, Any] = {"data": tmp_path, "dataset": dataset, "repaired_view": 1, "columns": None}
    with np.load(write_clean_data(build_audit(), "drop", tmp_path, **options)) as file:
        assert file["view0"].shape == (ITEMS - 3, 3, 64, 64)
    assert "64 x 64" in caplog.text
    assert "pairs.csv" in caplog.text


def test_relative_file_names_stay_valid(tmp_path: Path) -> None:
    from PIL import Image

    (tmp_path / "photos").mkdir()
    lines = ["view0,view1"]
    for row in range(ITEMS):
        Image.new("RGB", (8, 8), (row, 0, 0)).save(tmp_path / "photos" / f"{row}.png")
        lines.append(f"photos/{row}.png,photos/{row}.png")
    (tmp_path / "pairs.csv").write_text("\n".join(lines))
    out = tmp_path / "audits" / "a"
    out.mkdir(parents=True)
    data = tmp_path / "pairs.csv"
    dataset = load(data, test_fraction=1e-12)
    path = write_clean_data(build_audit(), "repair", out, data=data, dataset=dataset, repaired_view=1, columns=None)
    first, second = load(path, test_fraction=1e-12).store.fetch_views(torch.arange(5))
    assert [view[:, 0, 0, 0].tolist() for view in (first, second)] == [[0, 1, 2, 3, 4], [0, 1, 2, 7, 3]]


def test_training_reads_the_cleaned_data(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    hidden = random.normal(size=(200, 3))
    wrong = np.arange(200) < 40
    second = np.where(wrong[:, None], np.roll(hidden, 7, 0), hidden)
    np.savez(tmp_path / "pairs.npz", view0=hidden, view1=second)
    out = tmp_path / "out"
    contraport.audit(
        data=tmp_path / "pairs.npz", method="frozen", out=out, drop=True, repair=True, weigh=True, progress=False
    )
    assert {"dropped.npz", "repaired.npz", "weighed.npz"} <= {path.name for path in out.iterdir()}
    quick: dict[str, Any] = {"epochs": 1, "batch_size": 32, "objective": "info-nce", "progress": False}
    run = contraport.train(data=out / "weighed.npz", out=tmp_path / "run", **quick)
    assert run.metrics_rows()
    with raises_usage_error("drop.missing_out"):
        contraport.audit(data=tmp_path / "pairs.npz", method="frozen", drop=True)


def test_unchanged_csv_cells_are_copied_verbatim(tmp_path: Path) -> None:
    rows = [f'{row:03d},{row}.50,"a, ""b""",{row % 7 - 3}.0,{row}' for row in range(ITEMS)]
    data = tmp_path / "pairs.csv"
    data.write_text("\n".join(["id,view0,note,view1,label", *rows]) + "\n")
    columns = {"views": ["view0", "view1"]}
    dataset = load(data, columns=columns, test_fraction=0)
    path = write_clean_data(
        build_audit(), "drop", tmp_path, data=data, dataset=dataset, repaired_view=1, columns=columns
    )
    expected = [row for number, row in enumerate(rows) if number not in WRONG]
    assert path.read_text().splitlines()[1:] == expected


def test_dates_in_json_lines_stay_unchanged(tmp_path: Path) -> None:
    rows = [{"when": "2020-01-01", "view0": row * 1.5, "view1": row * 2.0} for row in range(ITEMS)]
    data = tmp_path / "pairs.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = {"views": ["view0", "view1"]}
    dataset = load(data, columns=columns, test_fraction=0)
    path = write_clean_data(
        build_audit(), "drop", tmp_path, data=data, dataset=dataset, repaired_view=1, columns=columns
    )
    expected = [row for number, row in enumerate(rows) if number not in WRONG]
    assert [json.loads(line) for line in path.read_text().splitlines()] == expected


LINKS = np.array([(link % 20, (link + link // 20) % 10) for link in range(ITEMS)])


def write_coupling(folder: Path, suffix: str) -> Path:
    """Write a coupling of 20 numbers and 10 images: 60 training links, the fourth repeated, and one test link."""
    folder.mkdir()
    for column in range(10):
        Image.new("L", (8, 8), 20 * column).save(folder / f"{column}.png")
    pairs = np.concatenate([LINKS, LINKS[3:4], [[0, 9]]])
    tables: dict[str, dict[str, Any]] = {
        "rows": {"id": [f"r{row}" for row in range(20)], "size": np.arange(20.0)},
        "columns": {"id": np.arange(10), "image": [f"{column}.png" for column in range(10)]},
        "pairs": {"row": [f"r{row}" for row in pairs[:, 0]], "column": pairs[:, 1], "weight": np.arange(1, 63)},
    }
    tables["pairs"]["split"] = ["train"] * 61 + ["test"]
    for name, columns in tables.items():
        write = pyarrow.csv.write_csv if suffix == ".csv" else pyarrow.parquet.write_table
        write(pyarrow.table(columns), folder / f"{name}{suffix}")
    return folder


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("mode", ["drop", "repair", "weigh"])
def test_cleaned_coupling_is_a_coupling(tmp_path: Path, mode: str, suffix: str) -> None:
    data, out = write_coupling(tmp_path / "shop", suffix), tmp_path / "out" / "of"
    dataset = load(data)
    assert dataset.entity_ids is not None
    assert dataset.entity_ids.tolist() == LINKS.tolist()
    wrong = [3, ITEMS - 1, 4]
    path = write_clean_data(build_audit(wrong), mode, out, data=data, dataset=dataset, repaired_view=1, columns=None)
    links, weights = LINKS.copy(), np.arange(1.0, 61)
    weights[3] += 61
    if mode == "repair":
        links[[3, 4], 1] = LINKS[[7, 3], 1]
    if mode == "weigh":
        weights[wrong] = 0
    removed = {"drop": wrong, "repair": [ITEMS - 1], "weigh": []}[mode]
    cleaned = load(path)
    assert cleaned.entity_ids is not None
    assert cleaned.weights is not None
    assert cleaned.entity_ids.tolist() == np.delete(links, removed, axis=0).tolist()
    assert cleaned.weights.tolist() == np.delete(weights, removed).tolist()
    first, second = cleaned.store.fetch_views(torch.arange(len(cleaned)))
    assert first[:, 0].tolist() == cleaned.entity_ids[:, 0].tolist()
    assert (second[:, 0, 0, 0] == 20 * cleaned.entity_ids[:, 1]).all()
    held_out = load(path, "test").entity_ids
    assert held_out is not None
    assert held_out.tolist() == [[0, 9]]


def test_repair_of_the_first_view_replaces_rows_of_a_coupling(tmp_path: Path) -> None:
    data = write_coupling(tmp_path / "shop", ".csv")
    path = write_clean_data(
        build_audit(), "repair", tmp_path, data=data, dataset=load(data), repaired_view=0, columns=None
    )
    ids = load(path).entity_ids
    assert ids is not None
    assert ids[3:5].tolist() == [[7, LINKS[3, 1]], [3, LINKS[4, 1]]]


def test_training_reads_the_cleaned_coupling(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    values = random.normal(size=(300, 4))
    columns = random.permutation(300)
    columns[:60] = columns[:60][::-1]  # wrong links
    right = np.argsort(columns)
    folder = tmp_path / "shop"
    folder.mkdir()
    for name, numbers in (("rows", values), ("columns", values[right] @ random.normal(size=(4, 6)))):
        table = {"id": np.arange(300)} | {f"x{place}": column for place, column in enumerate(numbers.T)}
        pyarrow.parquet.write_table(pyarrow.table(table), folder / f"{name}.parquet")
    linked = columns.copy()
    linked[:60] = linked[random.permutation(60)]
    pyarrow.parquet.write_table(pyarrow.table({"row": np.arange(300), "column": linked}), folder / "pairs.parquet")
    result = contraport.audit(data=folder, method="frozen", drop=True, out=tmp_path / "audit", progress=False)
    (cleaned,) = result.clean_files
    assert (cleaned.name, str(cleaned) in result.next_commands[0]) == ("dropped", True)
    flagged = set(result.flagged().tolist())
    assert len(flagged & set(range(60))) > 30
    pairs = pyarrow.parquet.read_table(cleaned / "pairs.parquet")
    assert pairs["row"].to_pylist() == [row for row in range(300) if row not in flagged]
    run = contraport.train(data=cleaned, epochs=1, objective="info-nce", out=tmp_path / "run", progress=False)
    trained = contraport.evaluate(run, metrics=["links"], progress=False)
    assert trained["train_items"] + trained["test_items"] == len(pairs)


def test_rejects_drop_and_repair_of_a_coupling_in_memory(tmp_path: Path) -> None:
    data = from_coupling(np.random.default_rng(0).normal(size=(20, 3)), np.eye(10), LINKS, test_fraction=0)
    for form in ("drop", "repair"):
        with raises_usage_error(f"{form}.coupling"):
            contraport.audit(data=data, out=tmp_path / "audit", **{form: True})
    assert not (tmp_path / "audit").exists()
