"""Data from Python objects (arrays, data frames, lists, datasets) equal those from files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow as pa
import pytest
import torch
from PIL import Image
from tests.errors import raises_usage_error

from contraport import embed, train
from contraport._utils.text_bytes import tensor_to_texts
from contraport.data import load


def frame(items: int = 20) -> pandas.DataFrame:
    random = np.random.default_rng(0)
    return pandas.DataFrame(
        {"a": random.normal(size=items), "b": random.normal(size=items), "label": ["cat", "dog"] * (items // 2)},
        index=np.arange(items)[::-1],
    )


def as_polars(table: pandas.DataFrame) -> Any:
    polars = pytest.importorskip("polars")
    return polars.from_dict({name: table[name].to_list() for name in table})


@pytest.mark.parametrize(
    "kind", [lambda table: table, as_polars, lambda table: pa.Table.from_pandas(table, preserve_index=False)],
    ids=["pandas", "polars", "arrow"],
)  # fmt: skip
def test_a_data_frame_is_read_as_its_file(kind: Any, tmp_path: Path) -> None:
    table = frame()
    table.to_parquet(tmp_path / "table.parquet", index=False)
    for split in ("train", "test"):
        from_memory, from_file = load(kind(table), split), load(tmp_path / "table.parquet", split)
        assert from_memory.class_names == from_file.class_names == ("cat", "dog")
        assert torch.equal(from_memory.labels, from_file.labels)
        assert torch.equal(from_memory.__getitems__([1]).views[0], from_file.__getitems__([1]).views[0])
        assert from_memory.num_random_test_items == from_file.num_random_test_items == 4
    assert load(kind(table), columns={"views": ["a"]}).shapes == ((1,),)
    with raises_usage_error("columns.unknown", "c"):
        load(kind(table), columns={"views": ["c"]})


TEXTS = ["a red bag", "größer", *(f"text {number}" for number in range(8))]


def texts_of(dataset, view=0):
    return tensor_to_texts(dataset.__getitems__(list(range(len(dataset)))).views[view])


def test_list_of_texts_has_one_item_per_text() -> None:
    parts = [load(TEXTS, split) for split in ("train", "test")]
    assert [len(part) for part in parts] == [8, 2]
    for part in parts:
        assert part.shapes == ((),)
        assert texts_of(part) == [TEXTS[row] for row in part.source_rows]
    with raises_usage_error("data.empty_text", "1 of 2"):
        load(["a", ""])


@pytest.mark.parametrize(
    "kind", [lambda table: table, as_polars, lambda table: pa.Table.from_pandas(table, preserve_index=False)],
    ids=["pandas", "polars", "arrow"],
)  # fmt: skip
def test_columns_of_texts_in_a_data_frame_are_views(kind: Any) -> None:
    table = pandas.DataFrame({"question": TEXTS, "answer": TEXTS[::-1]})
    from_file = load(kind(table))
    assert (from_file.shapes, from_file.view_names) == (((), ()), ("question", "answer"))
    assert texts_of(from_file, 1) == [TEXTS[::-1][row] for row in from_file.source_rows]


def test_texts_of_hugging_face_are_views(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"question": TEXTS, "answer": ["", *TEXTS[1:]]})
    rows.save_to_disk(str(tmp_path / "hub"))
    parts = [load(tmp_path / "hub", split) for split in ("train", "test")]
    assert sum(0 if part.present is None else int((~part.present).sum()) for part in parts) == 1
    for part in parts:
        assert texts_of(part) == [TEXTS[row] for row in part.source_rows]


def test_a_dataset_of_hugging_face_is_read_as_its_folder(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"x": datasets.Sequence(datasets.Value("float32")), "label": datasets.ClassLabel(
        names=["cat", "dog"])})  # fmt: skip
    rows = datasets.Dataset.from_dict({"x": [[i, 1.0] for i in range(10)], "label": [0, 1] * 5}, features=features)
    rows.save_to_disk(str(tmp_path / "hub"))
    for split in ("train", "test"):
        from_memory, from_file = load(rows, split), load(tmp_path / "hub", split)
        assert from_memory.source_rows.tolist() == from_file.source_rows.tolist()
        assert from_memory.class_names == ("cat", "dog")
        assert from_memory.name == "Dataset"
    both = datasets.DatasetDict(train=rows, validation=rows.select(range(3)))
    assert (len(load(both)), len(load(both, "test"))) == (10, 3)
    with raises_usage_error("data.empty_text", "x"):
        load(datasets.Dataset.from_dict({"x": ["a", ""] * 5}))


def test_accepts_a_dict_of_arrays_and_a_single_array() -> None:
    images = np.random.default_rng(0).integers(0, 256, (10, 8, 8, 3), dtype=np.uint8)
    for data in (images, torch.from_numpy(images), list(images), {"x": images}):
        assert (len(load(data)), len(load(data, "test"))) == (8, 2)
        assert load(data).shapes == ((3, 8, 8),)
    several = load({"view0": images, "view1": np.ones((10, 5)), "labels": ["a", "b"] * 5})
    assert (several.shapes, several.class_names) == (((3, 8, 8), (5,)), ("a", "b"))


def test_tuples_are_views_and_lists_are_items() -> None:
    one, other = np.eye(30, 5, dtype=np.float32), np.eye(30, 7, dtype=np.float32)
    assert load((one, torch.from_numpy(other))).shapes == ((5,), (7,))
    assert load((one,)).shapes == ((5,),)
    assert len(load([one, one + 1, one + 2], test_fraction=0.34)) == 2
    with raises_usage_error("data.shape", "(30, 5)", "(30, 7)"):
        load([one, other])


def test_paths_and_pictures_are_images(tmp_path: Path) -> None:
    pictures = [Image.new("RGB", (20, 10 + number % 3), (number, 0, 0)) for number in range(10)]
    for number, picture in enumerate(pictures):
        picture.save(tmp_path / f"{number}.png")
    (tmp_path / "4.png").write_text("no image")
    files = [tmp_path / f"{number}.png" for number in range(10)]
    by_path, by_picture = load(files), load(pictures)
    assert by_path.shapes == by_picture.shapes == ((3, 11, 11),)
    assert by_picture.is_in_memory
    assert set(by_path.keys) < {str(file) for file in files}
    from_file = [row for split in ("train", "test") for row in load(files, split).source_rows.tolist()]
    assert sorted(from_file) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    for dataset in (by_path, by_picture):
        first = dataset.source_rows.tolist().index(7) if 7 in dataset.source_rows.tolist() else None
        if first is not None:
            assert int(dataset.__getitems__([first]).views[0][0, 0].max()) == 7
    assert load(pictures, image_size=6).shapes == ((3, 6, 6),)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ([], ("data.unknown_object",)),
        (3, ("data.unknown_object",)),
        (["a.png", 3], ("data.unknown_object",)),
        ({"q": np.ones((4, 2))}, ("data.unknown", "q")),
        (pandas.DataFrame({"x": [object(), object()]}), ("data.unreadable",)),
    ],
    ids=["empty", "number", "mixed", "key", "objects"],
)
def test_rejects_invalid_data(data: Any, expected: tuple[str, ...]) -> None:
    with raises_usage_error(*expected):
        load(data)


def test_data_frame_is_trained_on_and_embedded(tmp_path: Path) -> None:
    run = train(data=frame(), epochs=1, batch_size=8, out=tmp_path / "run", progress=False)
    assert run.config()["data"] == "<DataFrame>"
    with raises_usage_error("data.missing", "DataFrame"):
        embed(run, out=tmp_path / "a.npz", progress=False)
    written = embed(run, data=frame(), out=tmp_path / "a.npz", progress=False)
    assert sorted(np.load(written)["rows"].tolist()) == list(range(20))


@pytest.mark.parametrize("kind", ["uint16", "int16", "float32"])
def test_many_channels_and_16_bits_are_images(kind: str, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    level = np.array([100, 3000, 10, 20000, 500, 7, 900])
    scenes = (level * random.uniform(0.5, 1.5, (24, 12, 12, 7))).astype(kind)
    dataset = load(scenes)
    assert dataset.shapes == ((7, 12, 12),)
    view = dataset.__getitems__([0]).views[0]
    assert np.array_equal(view[0].numpy(), scenes[dataset.source_rows[0]].transpose(2, 0, 1).astype(np.float32))
    _, high = dataset.non_unit_channel_range()
    assert high == pytest.approx(1.5 * level, rel=0.1, abs=1)
    run = train(data=scenes, epochs=1, batch_size=8, out=tmp_path / "run", progress=False)
    mean = run.model().tower(0).mean.flatten().numpy()
    assert mean == pytest.approx(level, rel=0.1)
    assert load(np.zeros((10, 9, 9), np.uint16)).shapes == ((1, 9, 9),)


def test_random_views_do_not_depend_on_the_pixel_range() -> None:
    from contraport.data import Views, from_arrays

    pixels = np.random.default_rng(0).uniform(size=(16, 2, 12, 12)).astype(np.float32)
    pixels[0, :, 0, 0], pixels[0, :, 0, 1] = 0, 1
    scale, offset = np.array([1000, 10], np.float32)[:, None, None], np.array([-500, 3], np.float32)[:, None, None]
    results = []
    for images in (pixels, pixels * scale + offset):
        dataset = from_arrays(images)
        torch.manual_seed(0)
        results.append(Views(dataset)(dataset.__getitems__(list(range(16))).views)[0].numpy())
    assert results[1] == pytest.approx(results[0] * scale + offset, rel=1e-3, abs=1e-2)


def test_rejects_mixed_class_folders_with_a_hint(tmp_path: Path) -> None:
    for number, place in enumerate(("cats/0", "cats/1", "cats/2", "3", "4", "5")):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        Image.new("RGB", (9, 9), (number, 0, 0)).save(tmp_path / f"{place}.png")
    with raises_usage_error("data.mixed_folders", "6"):
        load(tmp_path)
    assert len(load(tmp_path, ignore_labels=True)) == 5
    assert load(tmp_path, ignore_labels=True).labels is None
    assert load("digits", ignore_labels=True).labels is None
    run = train(data=tmp_path, ignore_labels=True, epochs=1, batch_size=4, out=tmp_path / "run", progress=False)
    assert run.config()["ignore_labels"] is True
