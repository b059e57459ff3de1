"""Leaks between training and test items, detected by content."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from tests.errors import raises_usage_error

import contraport
from contraport.auditing.pairs.synthetic_mismatches import (
    add_decoys,
    draw_groups_of_exchanging_sets,
    exchange_partners_across_sets,
)
from contraport.catalog.data_option_parsers import parse_mismatch
from contraport.data import Dataset, from_arrays, from_coupling, load
from contraport.data.mismatches_and_corruptions import draw_mismatched_partners
from contraport.evaluation import evaluate
from contraport.evaluation.command_options import EvaluateOptions
from contraport.evaluation.embed import embed
from contraport.evaluation.loaded_run import LoadedRun
from contraport.runs import Run, as_run_folder
from contraport.training.components.step_builder import resolve_target_text

ROWS, FEATURES = 120, 4


def write_table(path: Path, rows: np.ndarray, labels: np.ndarray) -> Path:
    names = ",".join(f"x{number}" for number in range(FEATURES))
    lines = [
        ",".join([*(f"{value:.6f}" for value in row), str(label)]) for row, label in zip(rows, labels, strict=True)
    ]
    path.write_text("\n".join([f"{names},kind", *lines]) + "\n")
    return path


@pytest.fixture(scope="module")
def numbers() -> tuple[np.ndarray, np.ndarray]:
    return np.random.default_rng(0).normal(size=(ROWS, FEATURES)), np.arange(ROWS) % 3


@pytest.fixture
def trained_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, numbers: tuple[np.ndarray, np.ndarray]) -> Run:
    monkeypatch.chdir(tmp_path)
    write_table(Path("g.csv"), *numbers)
    return train("g.csv", columns={"labels": "kind"}, test_fraction=0.5)


def train(data: Any, **settings: Any) -> Run:
    options = {"epochs": 1, "batch_size": 16, "encoder": "mlp", "progress": False, "out": "run", "seed": 0} | settings
    return contraport.train(data, **options)


def load_run(run: Run, **options: Any) -> LoadedRun:
    return LoadedRun.from_run(as_run_folder(run), EvaluateOptions(run=run, progress=False, **options))


def count_shared_items(one: Dataset, other: Dataset) -> int:
    """Count the items of one dataset that share the content of a view with an item of the other."""
    assert one.view_content_digests is not None
    assert other.view_content_digests is not None
    pairs = zip(one.view_content_digests.unbind(1), other.view_content_digests.unbind(1), strict=True)
    return int(torch.stack([torch.isin(*pair) for pair in pairs]).any(dim=0).sum())


def assert_split_of_the_run(loaded: LoadedRun) -> None:
    held_out = load("g.csv", "test", columns={"labels": "kind"}, test_fraction=0.5)
    assert loaded.test.view_content_digests is not None
    assert held_out.view_content_digests is not None
    assert sorted(loaded.test.view_content_digests[:, 0].tolist()) == sorted(
        held_out.view_content_digests[:, 0].tolist()
    )
    assert count_shared_items(loaded.test, loaded.train) == 0
    assert loaded.data_notes == ()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"columns": {"labels": "kind", "views": ["x*"]}},
        {"columns": {"domains": "kind"}},
        {"data": "./g.csv"},
        {"data": "copy.csv", "columns": {"labels": "kind"}},
        {"data": "g.csv", "columns": {"domains": "kind"}},
    ],
)
def test_held_out_items_are_those_of_the_run(trained_run: Run, options: dict[str, Any]) -> None:
    Path("copy.csv").write_text(Path("g.csv").read_text())
    assert_split_of_the_run(load_run(trained_run, **options))


def test_split_is_recognized_by_an_absolute_path(trained_run: Run) -> None:
    assert_split_of_the_run(load_run(trained_run, data=Path("g.csv").absolute()))


def test_rejects_changed_data_of_the_run(trained_run: Run, numbers: tuple[np.ndarray, np.ndarray]) -> None:
    more = np.random.default_rng(1).normal(size=(7, FEATURES))
    write_table(Path("g.csv"), np.concatenate([more, numbers[0]]), np.concatenate([np.zeros(7, dtype=int), numbers[1]]))
    with raises_usage_error("data.changed"):
        load_run(trained_run)
    with raises_usage_error("data.changed"):
        embed(trained_run, out="features.npz", split="test", progress=False)
    write_table(Path("g.csv"), numbers[0][7:], numbers[1][7:])
    with raises_usage_error("data.changed"):
        load_run(trained_run)


def test_embed_keeps_new_items_of_other_data_with_all_items_of_the_run(
    trained_run: Run, numbers: tuple[np.ndarray, np.ndarray]
) -> None:
    more = np.random.default_rng(1).normal(size=(7, FEATURES))
    write_table(Path("h.csv"), np.concatenate([more, numbers[0]]), np.concatenate([np.zeros(7, dtype=int), numbers[1]]))
    columns = {"labels": "kind"}
    features = embed(trained_run, data="h.csv", columns=columns, out=None, split="all", progress=False)
    assert len(features.features) == 7 + ROWS


def test_leaves_out_trained_items_of_other_data(trained_run: Run, numbers: tuple[np.ndarray, np.ndarray]) -> None:
    more = np.random.default_rng(1).normal(size=(60, FEATURES))
    write_table(Path("other.csv"), np.concatenate([more, numbers[0][:60]]), np.arange(120) % 3)
    run_items = load("g.csv", columns={"labels": "kind"}, test_fraction=0.5)
    loaded = load_run(trained_run, data="other.csv", columns={"labels": "kind"})
    assert count_shared_items(loaded.test, run_items) == 0
    assert len(loaded.data_notes) == 1
    assert (
        loaded.data_notes[0]
        in evaluate(trained_run, data="other.csv", columns={"labels": "kind"}, progress=False)["notes"]
    )
    loaded = load_run(trained_run, test_data=(rows := from_arrays(more[:20], labels=np.arange(20) % 3, split="test")))
    assert len(loaded.test) == len(rows)
    with raises_usage_error("data.trained_on"):
        load_run(trained_run, test_data=run_items)


def test_embed_uses_the_split_of_the_run(trained_run: Run) -> None:
    held_out = load("g.csv", "test", columns={"labels": "kind"}, test_fraction=0.5)
    out = embed(trained_run, data="./g.csv", out="features.npz", split="test", progress=False)
    assert sorted(np.load(out)["rows"].tolist()) == held_out.source_rows.tolist()


@pytest.mark.parametrize("settings", [{"validation": 0.25}, {"max_items": 40}, {"max_items": 40, "test_items": 20}])
def test_subsets_of_the_items_keep_their_split(trained_run: Run, settings: dict[str, Any]) -> None:
    own = {"columns": {"labels": "kind"}, "test_fraction": 0.5, "batch_size": 8}
    run = train("g.csv", out="subset", **own, **settings)
    loaded_plain, moved = load_run(run), load_run(run, columns={"domains": "kind"})
    for loaded in (loaded_plain, moved):
        assert count_shared_items(loaded.test, loaded.train) == 0
        assert int(as_run_folder(run).find_split_digests().training_overlap_mask(loaded.test).sum()) == 0
    assert moved.test.source_rows.tolist() == loaded_plain.test.source_rows.tolist()


def test_rejects_a_run_without_split_record_if_its_data_have_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, numbers: tuple[np.ndarray, np.ndarray]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_table(Path("g.csv"), np.repeat(numbers[0][:60], 2, axis=0), np.repeat(numbers[1][:60], 2))
    run = train("g.csv", columns={"labels": "kind"})
    as_run_folder(run).split_path.unlink()
    with raises_usage_error("run.copies"):
        load_run(run)


def test_runs_without_split_record_are_evaluated(trained_run: Run) -> None:
    as_run_folder(trained_run).split_path.unlink()
    assert_split_of_the_run(load_run(trained_run))


def test_resume_rejects_a_changed_item(trained_run: Run, numbers: tuple[np.ndarray, np.ndarray]) -> None:
    rows = numbers[0].copy()
    position = int(load("g.csv", columns={"labels": "kind"}, test_fraction=0.5).source_rows[7])
    rows[position, 0] += 1
    write_table(Path("g.csv"), rows, numbers[1])
    with raises_usage_error("data.*"):
        contraport.train(resume=True, out="run", epochs=2, progress=False)


# Several rows of one item, in each format


IMAGES, CAPTIONS = 30, 3


def encode_png(number: int) -> bytes:
    pixels, file = np.random.default_rng(number).integers(0, 255, (8, 8), dtype=np.uint8), io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def list_captions() -> list[tuple[int, str]]:
    return [(image, f"picture {image} seen {caption}") for image in range(IMAGES) for caption in range(CAPTIONS)]


def write_parquet_of_bytes(folder: Path) -> Any:
    rows = list_captions()
    columns = {"image": [encode_png(image) for image, _ in rows], "caption": [text for _, text in rows]}
    pq.write_table(pa.table(columns), folder / "bytes.parquet")
    return folder / "bytes.parquet"


def write_parquet_of_dicts(folder: Path) -> Any:
    rows = list_captions()
    images = [{"bytes": encode_png(image), "path": f"{row}.png"} for row, (image, _) in enumerate(rows)]
    pq.write_table(pa.table({"image": images, "caption": [text for _, text in rows]}), folder / "dicts.parquet")
    return folder / "dicts.parquet"


def write_tar(folder: Path) -> Any:
    with tarfile.open(folder / "all.tar", "w") as tar:
        for row, (image, text) in enumerate(list_captions()):
            for suffix, content in (("png", encode_png(image)), ("txt", text.encode())):
                info = tarfile.TarInfo(f"{row:04}.{suffix}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return folder / "all.tar"


def write_npz(folder: Path) -> Any:
    images = np.stack([np.asarray(Image.open(io.BytesIO(encode_png(image)))) for image, _ in list_captions()])
    texts = np.array([text for _, text in list_captions()])
    np.savez(folder / "all.npz", image=images, caption=texts)
    return folder / "all.npz"


def write_csv_with_path_spellings(folder: Path) -> Any:
    (folder / "images").mkdir()
    lines = []
    for image, text in list_captions():
        (folder / "images" / f"{image}.png").write_bytes(encode_png(image))
        spelled = (f"images/{image}.png", f"./images/{image}.png", f"images/../images/{image}.png")
        lines.append(f"{spelled[int(text[-1])]},{text}")
    (folder / "all.csv").write_text("\n".join(["image,caption", *lines]) + "\n")
    return folder / "all.csv"


def write_query_pairs(folder: Path) -> Any:
    lines = [f"what is {query},it is the answer {query} of {number}" for query in range(30) for number in range(3)]
    (folder / "pairs.csv").write_text("\n".join(["query,answer", *lines]) + "\n")
    return folder / "pairs.csv"


def write_copied_photos(folder: Path) -> Any:
    (folder / "photos").mkdir()
    for image in range(IMAGES):
        for copy in range(CAPTIONS):
            (folder / "photos" / f"{copy}-{image}.png").write_bytes(encode_png(image))
    return folder / "photos"


FORMATS: list[Callable[[Path], Any]] = [
    write_parquet_of_bytes,
    write_parquet_of_dicts,
    write_tar,
    write_npz,
    write_csv_with_path_spellings,
    write_query_pairs,
    write_copied_photos,
]


@pytest.mark.parametrize("write_data", FORMATS)
def test_copies_stay_in_one_split(tmp_path: Path, write_data: Callable[[Path], Any]) -> None:
    data = write_data(tmp_path)
    parts = [
        load(data, split, image_size=8 if write_data not in (write_query_pairs, write_npz) else None)
        for split in ("train", "test")
    ]
    assert [len(part) for part in parts] == [72, 18]
    assert count_shared_items(*parts) == 0
    for part in parts:
        assert part.view_content_ids_if_repeated is not None


@pytest.mark.parametrize("write_data", FORMATS)
def test_copies_are_no_negatives_in_training(tmp_path: Path, write_data: Callable[[Path], Any]) -> None:
    """In training no copy is a negative of another; evaluation of the run keeps training and test items apart."""
    sizes = {} if write_data in (write_query_pairs, write_npz) else {"image_size": 8}
    run = train(write_data(tmp_path), out=tmp_path / "run", batch_size=24, encoder=None, objective="info-nce", **sizes)
    loaded = load_run(run)
    assert count_shared_items(loaded.test, loaded.train) == 0
    batch_target = resolve_target_text(run.settings(), loaded.train, contraport.info_nce(), 2)
    assert batch_target == "shown"


def test_captions_that_name_a_class_do_not_connect_all_items(tmp_path: Path) -> None:
    data = {"image": np.random.default_rng(0).normal(size=(60, 4)), "caption": [f"a {i % 3}" for i in range(60)]}
    parts = [load(data, split) for split in ("train", "test")]
    assert [len(part) for part in parts] == [48, 12]


def build_pairs_with_copies() -> Dataset:
    random = np.random.default_rng(0)
    return from_arrays((np.repeat(random.normal(size=(100, 4)), 5, axis=0), random.normal(size=(500, 4))))


def test_decoys_mismatches_and_exchanges_differ_in_content() -> None:
    dataset = build_pairs_with_copies()
    ids = dataset.view_content_ids_if_repeated
    assert ids is not None
    decoys = add_decoys(dataset, seed=0).decoy_pairs
    assert len(decoys.first) == 100
    assert not (ids[decoys.first] == ids[decoys.second]).any()
    partners = draw_mismatched_partners(dataset, parse_mismatch(0.4), seed=0)
    moved = (partners != torch.arange(500)).nonzero()[:, 0]
    assert len(moved) == 200
    assert not (ids[moved] == ids[partners[moved]]).any()
    groups = draw_groups_of_exchanging_sets(dataset, seed=0)
    exchange = exchange_partners_across_sets(groups)
    assert not (ids == ids[exchange]).any()
    for couple in groups:
        assert all(len(ids[group, 0].unique()) == 1 for group in couple)


def test_decoys_and_mismatches_of_a_coupling_are_no_true_pairs() -> None:
    """Rows have several partners, so an exchange between items without a common row or column can be a true pair."""
    pairs = np.argwhere(np.random.default_rng(0).random((200, 12)) < 0.3)
    dataset = from_coupling(np.arange(200.0)[:, None], np.arange(12.0)[:, None], pairs, test_fraction=0)
    true_pairs, (rows, columns) = set(map(tuple, pairs.tolist())), pairs.T
    decoys = add_decoys(dataset, seed=0).decoy_pairs
    assert len(decoys.first) > 50
    assert true_pairs.isdisjoint(zip(rows[decoys.first].tolist(), columns[decoys.second].tolist(), strict=True))
    partners = draw_mismatched_partners(dataset, parse_mismatch(0.2), seed=0).numpy()
    moved = np.flatnonzero(partners != np.arange(len(pairs)))
    assert len(moved) > 50
    assert true_pairs.isdisjoint(zip(rows[moved].tolist(), columns[partners[moved]].tolist(), strict=True))


def test_exchanges_differ_in_a_view_that_many_items_share() -> None:
    vectors = np.random.default_rng(0).normal(size=(90, 4))
    dataset = from_arrays({"vector": vectors, "caption": [f"a {item % 3}" for item in range(90)]})
    ids = dataset.view_content_ids_if_repeated
    assert ids is not None
    assert not (ids == ids[exchange_partners_across_sets(draw_groups_of_exchanging_sets(dataset, seed=0))]).any()


@pytest.mark.parametrize("arrays", [{"train": np.arange(3)}, {"train": np.ones((2, 2)), "test": np.arange(2)}])
def test_rejects_a_corrupt_split_record(trained_run: Run, arrays: dict[str, np.ndarray]) -> None:
    np.savez(as_run_folder(trained_run).split_path, **arrays)
    with raises_usage_error("*", "split.npz"):
        load_run(trained_run)


@pytest.mark.parametrize("share", [0.05, 0.1, 0.2, 0.4])
def test_decoys_are_drawn_independently_of_mismatches(share: float) -> None:
    """The share of mismatched items among the decoys equals that among all items, up to chance."""
    random = np.random.default_rng(0)
    dataset = from_arrays((random.normal(size=(1_600, 2)), random.normal(size=(1_600, 2))))
    partners = draw_mismatched_partners(dataset, parse_mismatch(share), seed=0)
    mismatched = partners != torch.arange(1_600)
    decoys = add_decoys(dataset, seed=0).decoy_pairs.first
    assert abs(float(mismatched[decoys].float().mean()) - share) < 4 * (share * (1 - share) / len(decoys)) ** 0.5
