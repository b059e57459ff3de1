import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from tests.disk import limit_file_size
from tests.errors import raises_usage_error
from tests.evaluation.builders import build_image_model, build_vector_model, build_vectors, build_views, make_run
from tests.processes import Report, run_in_processes
from torch.utils.data import IterableDataset

from contraport.data import from_stream, load
from contraport.data.stores import DecodingStore
from contraport.encoders import Model
from contraport.evaluation import embed
from contraport.feature_files import read_features


def test_embeds_the_representation_of_one_view(tmp_path: Path) -> None:
    data = build_views(9, (4,), (7,))
    torch.manual_seed(0)
    model = Model(shapes=data.shapes, representation="1").eval()
    run = make_run(tmp_path / "run", model, augment=None)
    features = np.load(embed(run, data=data, out=tmp_path / "views.npz", progress=False))["features"]
    with torch.no_grad():
        expected = model.tower(1)(data.__getitems__(list(range(9))).views[1])
    assert np.allclose(features, expected, atol=1e-5)


def test_embed_returns_the_features_without_out(tmp_path: Path) -> None:
    data, run = build_vectors(30, 3), make_run(tmp_path / "run", build_vector_model())
    written = read_features(embed(run, data=data, out=tmp_path / "vectors.npz", progress=False))
    files = set(tmp_path.rglob("*"))
    returned = embed(run, data=data, out=None, progress=False)
    assert set(tmp_path.rglob("*")) == files
    assert returned.data_name == written.data_name
    for name in ("features", "source_rows", "splits", "labels"):
        assert np.array_equal(getattr(returned, name), getattr(written, name))
    with raises_usage_error(code="shard_items.no_out"):
        embed(run, data=data, out=None, shard_items=3, progress=False)


def test_npz_contains_every_item_of_both_splits(tmp_path: Path) -> None:
    model = build_image_model()
    run = make_run(tmp_path / "run", model)
    out = embed(run.path, out=tmp_path / "digits.npz", progress=False)
    with np.load(out, allow_pickle=False) as arrays:
        assert arrays["features"].shape == (1797, model.num_features)
        assert arrays["labels"].shape == arrays["rows"].shape == (1797,)
        assert arrays["class_names"].tolist() == list("0123456789")
        test = arrays["splits"] == "test"
        assert sorted(arrays["rows"].tolist()) == list(range(1797))
        assert arrays["rows"][test].tolist() == load("digits", "test").source_rows.tolist()
        assert str(arrays["run"]) == str(run.path)
        items = load("digits", "test").__getitems__([5]).views[0]
        with torch.no_grad():
            assert np.allclose(arrays["features"][test][5], model.eval()(items)[0], atol=1e-4)


def test_parquet_has_a_column_per_feature(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", build_vector_model())
    out = embed(run, data=build_vectors(30, 3), out=tmp_path / "vectors.parquet", progress=False)
    table = pq.read_table(out)
    width = build_vector_model().num_features
    assert table.column_names == [f"f{number}" for number in range(width)] + ["row", "split", "label", "class_name"]
    assert table.num_rows == 30
    assert table["row"].to_pylist() == list(range(30))
    assert table["label"].to_pylist() == [position % 3 for position in range(30)]


@pytest.mark.parametrize("batch", [1, 7, 100])
def test_features_in_parquet_are_read_in_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int) -> None:
    values = np.random.default_rng(0).normal(size=(30, 12)).astype(np.float32)
    columns = {f"f{number}": values[:, number] for number in reversed(range(12))}
    table = pa.table(columns | {"row": np.arange(30)[::-1], "split": ["train", "test"] * 15, "other": ["x"] * 30})
    pq.write_table(table, tmp_path / "features.parquet")
    monkeypatch.setattr("contraport.feature_files._ROW_GROUP_BYTES", 4 * 12 * batch)
    result = read_features(tmp_path / "features.parquet")
    assert result.features.dtype == np.float32
    assert np.array_equal(result.features, values)
    assert result.source_rows.tolist() == list(range(30))[::-1]
    assert result.splits.tolist() == ["train", "test"] * 15
    assert result.keys is None


def test_embed_without_labels_has_no_label_column(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", build_vector_model())
    out = embed(run, data=build_vectors(30, None), out=tmp_path / "vectors.parquet", progress=False)
    assert pq.read_table(out).column_names[-2:] == ["row", "split"]


def test_rejects_a_wrong_suffix_and_an_existing_file(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", build_vector_model())
    data = build_vectors(30, 3)
    with raises_usage_error("out.suffix", ".npz, .npy or .parquet", "vectors.csv"):
        embed(run, data=data, out=tmp_path / "vectors.csv", progress=False)
    with raises_usage_error("out.*", __file__):
        embed(run, data=data, out=Path(__file__) / "vectors.npz", progress=False)
    with raises_usage_error("split.unknown", "half"):
        embed(run, data=data, split="half", out=tmp_path / "vectors.npz", progress=False)
    existing = tmp_path / "vectors.npz"
    existing.write_bytes(b"mine")
    with raises_usage_error("out.*", "overwrite=True"):
        embed(run, data=data, out=existing, progress=False)
    assert existing.read_bytes() == b"mine"
    embed(run, data=data, out=existing, overwrite=True, progress=False)
    assert np.load(existing)["features"].shape[0] == 30
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "vectors.npz"]


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_shards_of_several_processes_equal_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    run = make_run(tmp_path / "run", build_image_model())
    single_file = embed(run, out=tmp_path / f"whole{suffix}", progress=False)
    monkeypatch.setenv("WORLD_SIZE", "3")
    shards = []
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        shards.append(embed(run, out=tmp_path / f"digits{suffix}", batch_size=100, progress=False))
    assert [shard.name for shard in shards] == [f"digits.0000{rank}-of-00003{suffix}" for rank in range(3)]
    assert_same_rows(shards, single_file)


@pytest.mark.parametrize("suffix", [".npz", ".npy"])
def test_shards_of_an_earlier_embedding_are_rejected_or_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    run, out = make_run(tmp_path / "run", build_vector_model()), tmp_path / f"vectors{suffix}"

    def embed_in_two_processes(items: int, **options: Any) -> None:
        with monkeypatch.context() as patched:
            patched.setenv("WORLD_SIZE", "2")
            for rank in range(2):
                patched.setenv("RANK", str(rank))
                embed(run, data=build_vectors(items, None), out=out, progress=False, **options)

    def embed_in_shards(items: int, **options: Any) -> None:
        embed(run, data=build_vectors(items, None), out=out, shard_items=10, progress=False, **options)

    embed(run, data=build_vectors(20, None), out=out, progress=False)
    for write in (embed_in_two_processes, embed_in_shards):
        with raises_usage_error("out.*", out):
            write(30)
    embed_in_shards(30, overwrite=True)
    assert len(read_features(out)) == 30
    for write in (embed_in_two_processes, embed_in_shards):
        with raises_usage_error("out.*", "of-00003"):
            write(40)
    embed_in_two_processes(40, overwrite=True)
    assert len(read_features(out)) == 40
    assert len(list(tmp_path.glob("*00003*"))) == 0
    shutil.copy(tmp_path / f"vectors.00000-of-00002{suffix}", tmp_path / f"vectors.00000-of-00004{suffix}")
    with raises_usage_error("features.mixed_shards", 2, 4):
        read_features(out)


def assert_same_rows(shards: list[Path], single_file: Path) -> None:
    parts, expected = [read_columns(shard) for shard in shards], read_columns(single_file)
    assert all(part.keys() == expected.keys() for part in parts)
    for name, column in expected.items():
        column_of_shards = np.concatenate([part[name] for part in parts])
        assert (
            np.allclose(column_of_shards, column, atol=1e-4)
            if column.dtype.kind == "f"
            else (column_of_shards == column).all()
        )


def read_columns(path: Path) -> dict[str, Any]:
    if path.suffix == ".parquet":
        table = pq.read_table(path)
        return {name: table[name].to_numpy() for name in table.column_names}
    with np.load(path, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files if name not in ("class_names", "run", "data")}


def embed_in_group(rank: int, report: Report, run: Path, out: Path) -> None:
    embed(run, out=out, device="cpu", progress=False)


def test_two_processes_write_one_shard_each(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", build_image_model())
    out = tmp_path / "digits.npz"
    run_in_processes(embed_in_group, 2, run.path, out)
    embed(run, out=out, progress=False)
    assert_same_rows([tmp_path / f"digits.0000{rank}-of-00002.npz" for rank in range(2)], out)


def test_rejects_more_processes_than_items(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "run", build_vector_model())
    monkeypatch.setenv("WORLD_SIZE", "4")
    with raises_usage_error("data.too_few_items", 3, 4):
        embed(run, data=build_vectors(3, None), out=tmp_path / "vectors.npz", progress=False)
    with raises_usage_error("data.stream", 4):
        embed(run, data=from_stream(np.ones((30, 6), dtype=np.float32)), out=tmp_path / "vectors.npz", progress=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Folder of six photos, one of them unreadable."""
    generator = np.random.default_rng(0)
    for number in range(6):
        path = tmp_path / "photos" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 255, (8, 8, 3)).astype(np.uint8)).save(path)
    (tmp_path / "photos" / "a" / "2.png").write_bytes(b"no image")
    return tmp_path / "photos"


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".parquet"])
def test_rows_keep_keys_and_classes_if_a_file_is_skipped(tmp_path: Path, photos: Path, suffix: str) -> None:
    torch.manual_seed(0)
    model = Model("small-cnn", [(3, 8, 8)]).eval()
    run = make_run(tmp_path / "run", model, data=str(photos), test_fraction=0.4)
    result = read_features(embed(run, out=tmp_path / f"photos{suffix}", progress=False))
    files = sorted(str(path) for path in photos.rglob("*.png"))
    assert result.keys is not None
    assert len(result) == 5
    assert sorted(result.keys.tolist()) == [file for file in files if not file.endswith("2.png")]
    assert {"train", "test"} == set(result.splits.tolist())
    for position, key in enumerate(result.keys.tolist()):
        assert files[result.source_rows[position]] == key
        assert result.class_name_at(position) == Path(key).parent.name
        pixels = torch.from_numpy(np.array(Image.open(key))).permute(2, 0, 1)[None]
        with torch.no_grad():
            np.testing.assert_allclose(result.features[position], model(pixels)[0], atol=1e-4)
    assert result.run == str(run.path)


def test_rows_of_a_table_are_numbered_as_in_its_file(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0).normal(size=(9, 6))
    splits = ["train", "val", "test"] * 3
    lines = [",".join([*map(str, row), split]) for row, split in zip(numbers, splits, strict=True)]
    (tmp_path / "table.csv").write_text("\n".join(["a,b,c,d,e,f,split", *lines]))
    run = make_run(tmp_path / "run", build_vector_model())
    result = read_features(embed(run, data=tmp_path / "table.csv", out=tmp_path / "table.npz", progress=False))
    assert result.source_rows.tolist() == [0, 3, 6, 2, 5, 8]
    assert result.keys is None
    assert result.item_name(3) == "test row 2"


def test_each_file_is_decoded_once(tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []
    fetch = DecodingStore.fetch_views

    def fetch_and_count_views(store: DecodingStore, positions: torch.Tensor) -> tuple[torch.Tensor, ...]:
        decoded.extend(positions.tolist())
        return fetch(store, positions)

    run = make_run(tmp_path / "run", Model(shapes=[(3, 8, 8)]))
    data = load(photos, "train")
    monkeypatch.setattr(DecodingStore, "fetch_views", fetch_and_count_views)
    embed(run, data=data, out=tmp_path / "photos.npz", num_workers=0, progress=False)
    assert sorted(decoded) == list(range(len(data)))


class CaptionedPhotos(IterableDataset):
    """Stream of photos of two sizes, with captions and keys."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number in range(70):
            photo = Image.new("RGB", (8 + number % 2, 8), (number, 0, 0))
            yield {"__key__": f"sample{number}", "image": photo, "caption": f"number {number}"}


@pytest.mark.parametrize("view", ["image", "caption"])
def test_embeds_one_view_of_a_stream(tmp_path: Path, view: str) -> None:
    torch.manual_seed(0)
    names = ("image", "caption")
    model = Model(shapes=[(3, 8, 8), ()], encoder=["small-cnn", "small-text"], projection=8, view_names=names)
    run = make_run(tmp_path / "run", model.eval(), data="<CaptionedPhotos>", augment=None)
    path = embed(run, data=CaptionedPhotos(), view=view, out=tmp_path / "of.npz", batch_size=64, progress=False)
    result = read_features(path)
    views = load(CaptionedPhotos(), image_size=8).__getitems__(list(range(70))).views
    with torch.no_grad():
        expected = model.to_single_view(view)(views[names.index(view)])
    np.testing.assert_allclose(result.features, expected, atol=1e-5)
    assert result.view == view
    key_prefix = "sample" if view == "image" else "number "
    assert result.keys.tolist() == [f"{key_prefix}{number}" for number in range(70)]
    if view == "caption":  # texts can be embedded without images
        texts = [f"number {number}" for number in range(70)]
        texts_only = read_features(embed(run, data=texts, view=view, out=path, overwrite=True, progress=False))
        np.testing.assert_allclose(texts_only.features, result.features[texts_only.source_rows], atol=1e-5)
    with raises_usage_error("view.*"):
        embed(run, data=CaptionedPhotos(), view="sound", out=tmp_path / "none.npz", progress=False)


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".parquet"])
@pytest.mark.parametrize("function", ["_add_batch_to_buffer", "write_features"])
def test_full_disk_keeps_the_previous_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, function: str
) -> None:
    def call_with_file_size_limit(*args: Any, **kwargs: Any) -> None:
        with limit_file_size(10_000):
            original(*args, **kwargs)

    run = make_run(tmp_path / "run", build_vector_model())
    out = embed(run, data=build_vectors(30, 3), out=tmp_path / f"vectors{suffix}", progress=False)
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    original = getattr(sys.modules["contraport.evaluation.embed"], function)
    monkeypatch.setattr(sys.modules["contraport.evaluation.embed"], function, call_with_file_size_limit)
    with raises_usage_error("out.not_writable", "vectors"):
        embed(run, data=build_vectors(200, 3), out=out, overwrite=True, progress=False)
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before
