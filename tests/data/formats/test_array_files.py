import io
import tracemalloc
import zipfile

import numpy as np
import pytest
import torch
from tests.errors import raises_usage_error

from contraport._utils import files
from contraport.data import array_datasets, load, stores
from contraport.data.split_digests import fingerprint_dataset


def save(folder, **arrays):
    np.savez(folder / "data.npz", **arrays)
    return folder / "data.npz"


def test_an_npz_file_holds_out_a_fifth_of_each_class(tmp_path):
    path = save(tmp_path, x=np.arange(40.0).reshape(20, 2), labels=np.repeat(["a", "b"], 10))
    train, test = load(path), load(str(path), "test")
    assert (len(train), len(test)) == (16, 4)
    assert test.labels.tolist() == [0, 0, 1, 1]
    rows = torch.cat([train.store.views[0], test.store.views[0]])[:, 0]
    assert sorted(rows.tolist()) == list(range(0, 40, 2))
    assert torch.equal(load(path, "test").store.views[0], test.store.views[0])


def test_an_npz_file_holds_out_a_fifth_of_each_class_in_each_domain(tmp_path):
    labels, domains = np.repeat([0, 0, 1, 1], 10), np.repeat([0, 1, 0, 1], 10)
    test = load(save(tmp_path, x=np.arange(80.0).reshape(40, 2), labels=labels, domains=domains), "test")
    assert (2 * test.labels + test.domains).bincount().tolist() == [2, 2, 2, 2]


def test_npz_has_its_own_test_split_and_several_views(tmp_path):
    path = save(
        tmp_path,
        view0=np.ones((6, 2)), view1=np.ones((6, 8, 8), np.uint8), y=[5, 7, 5, 7, 5, 7], domains=[0, 0, 0, 1, 1, 1],
        view0_test=np.zeros((3, 2)), view1_test=np.zeros((3, 8, 8), np.uint8), y_test=[9, 9, 5], domains_test=[2, 2, 2],
    )  # fmt: skip
    train, test = load(path), load(path, "test")
    assert train.shapes == test.shapes == ((2,), (1, 8, 8))
    assert (len(train), len(test)) == (6, 3)
    assert train.class_names == test.class_names == ("5", "7", "9")
    assert test.labels.tolist() == [2, 2, 0]
    assert test.domains.tolist() == [2, 2, 2]


def test_npz_has_weights_of_items(tmp_path):
    path = save(tmp_path, x=np.arange(20.0)[:, None], weights=np.arange(20))
    train, test = load(path), load(path, "test")
    assert torch.equal(train.weights, train.store.views[0][:, 0])
    assert torch.equal(test.weights, test.store.views[0][:, 0])
    path = save(tmp_path, x=np.ones((3, 2)), weights=[1.0, 2, 3], x_test=np.ones((2, 2)), weights_test=[4, 5.5])
    assert (load(path).weights.tolist(), load(path, "test").weights.tolist()) == ([1, 2, 3], [4, 5.5])


@pytest.mark.parametrize(
    ("arrays", "code_and_values"),
    [
        ({"x": np.ones((4, 2)), "weights": [1] * 3}, ("data.rows",)),
        ({"x": np.ones((4, 2)), "weights": [1, 2, -1, 0]}, ("data.invalid", "-1")),
        ({"x": np.ones((4, 2)), "weights": np.ones((4, 2))}, ("data.shape",)),
        ({"x": np.ones((4, 2)), "weights": list("abcd")}, ("data.shape",)),
        ({"x": np.ones((4, 2)), "weights": [1] * 4, "x_test": np.ones((4, 2))}, ("data.splits_differ",)),
        ({"labels": [1, 2]}, ("data.no_view", "x")),
        ({}, ("data.no_view", "x", "view0", "none")),
        ({"x": np.ones((4, 2)), "lables": [1, 2]}, ("data.unknown", "labels")),
        ({"x": np.ones((4, 2)), "view0": np.ones((4, 2))}, ("data.view_keys", "x")),
        ({"view0": np.ones((4, 2)), "view2": np.ones((4, 2))}, ("data.view_keys",)),
        ({"x": np.ones((4, 2)), "y": [1] * 4, "labels": [1] * 4}, ("data.conflict",)),
        ({"x": np.ones((4, 2)), "labels": [1] * 3}, ("data.rows",)),
        ({"x": np.float64(3)}, ("data.shape", "shape ()")),
        ({"x": np.arange(4.0)}, ("data.shape", "(4,)", "(4, 1)")),
        ({"view0": np.ones((4, 2)), "view1": np.full((4, 2), np.inf)}, ("data.not_finite", "data.npz: view1: ")),
        ({"a": np.ones((4, 2)), "b": np.full((4, 2), np.inf)}, ("data.not_finite", "data.npz: b: ")),
        ({"view0": np.ones((4, 2)), "view1": np.ones((3, 2))}, ("data.rows", "4 in view0, 3 in view1")),
        ({"x": np.ones((4, 2)), "x_test": np.ones((4, 3))}, ("data.splits_differ",)),
        ({"x": np.ones((4, 2)), "labels": [1] * 4, "x_test": np.ones((4, 2))}, ("data.splits_differ",)),
        ({"x_test": np.ones((4, 2))}, ("data.no_view", "x")),
        ({"x": np.full((4, 2), np.nan)}, ("data.not_finite", "data.npz")),
        ({"x": np.array([object()])}, ("data.unreadable", "it has pickled objects")),
        (
            {
                "features": np.ones((4, 2)),
                "rows": np.arange(4),
                "splits": np.array(["train"] * 4),
                "run": np.array("r"),
            },
            ("data.features_file", "FILE.npy"),
        ),
    ],
)
def test_rejects_npz_without_data_arrays(tmp_path, arrays, code_and_values):
    with raises_usage_error(*code_and_values) as caught:
        load(save(tmp_path, **arrays))
    assert "\n" not in str(caught.value)


def truncated() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, x=np.random.default_rng(0).random((100, 10)))
    return buffer.getvalue()[:3000]


def flipped_bytes() -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, x=np.random.default_rng(0).random((100, 10)))
    content = bytearray(buffer.getvalue())
    content[200:230] = bytes(30)
    return bytes(content)


def not_an_array() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("x.npy", "nothing")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "kind"),
    [(content, "unreadable") for content in (b"", b"hello", b"PK\x03\x04", truncated(), flipped_bytes())]
    + [(not_an_array(), "shape")],
)
def test_rejects_a_corrupt_npz_file(tmp_path, content, kind):
    (tmp_path / "data.npz").write_bytes(content)
    with raises_usage_error(f"data.{kind}", "data.npz"):
        load(tmp_path / "data.npz")


def test_rejects_an_npy_file_named_npz(tmp_path):
    with open(tmp_path / "data.npz", "wb") as file:
        np.save(file, np.ones(3))
    with raises_usage_error("data.unreadable"):
        load(tmp_path / "data.npz")


def test_rejects_too_few_rows_for_a_test_split(tmp_path):
    with raises_usage_error("data.empty"):
        load(save(tmp_path, x=np.ones((2, 2))), "test")


@pytest.mark.parametrize(
    ("array", "shape"), [(np.eye(10, 11), (11,)), (np.eye(10, 14, dtype=np.float32).reshape(10, 2, 7), (2, 7))]
)
def test_an_npy_file_is_one_view_with_a_fifth_held_out(tmp_path, array, shape):
    np.save(tmp_path / "data.npy", array)
    train, test = load(tmp_path / "data.npy"), load(tmp_path / "data.npy", "test")
    assert (len(train), len(test), train.shapes, train.labels) == (8, 2, (shape,), None)


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04"])
def test_rejects_a_corrupt_npy_file(tmp_path, content):
    (tmp_path / "data.npy").write_bytes(content)
    with raises_usage_error("data.unreadable", "data.npy"):
        load(tmp_path / "data.npy")


def test_an_npy_file_of_objects_is_not_unpickled(tmp_path):
    np.save(tmp_path / "data.npy", np.array([object()]))
    with raises_usage_error("data.unreadable"):
        load(tmp_path / "data.npy")


def test_views_have_the_names_of_their_own_keys(tmp_path):
    photo, sound = np.zeros((10, 8, 8), np.uint8), np.arange(30, dtype=np.float32).reshape(10, 3)
    options = {"photo": photo, "sound": sound, "labels": np.arange(10) % 2}
    np.savez(tmp_path / "pairs.npz", **options)
    for data in (options, tmp_path / "pairs.npz"):
        train, test = load(data, "train"), load(data, "test")
        assert train.view_names == ("photo", "sound")
        assert train.shapes == ((1, 8, 8), (3,))
        assert sorted([*train.source_rows.tolist(), *test.source_rows.tolist()]) == list(range(10))
        assert torch.equal(test.__getitems__([0]).views[1][0], torch.from_numpy(sound[test.source_rows[0]]))
    with_test_arrays = options | {"photo_test": photo[:4], "sound_test": sound[:4] + 1, "labels_test": np.zeros(4, int)}
    assert torch.equal(load(with_test_arrays, "test").__getitems__([2]).views[1][0], torch.from_numpy(sound[2] + 1))
    captioned = load({"image": photo, "caption": [f"number {row}" for row in range(10)]})
    assert (captioned.view_names, captioned.shapes) == (("image", "caption"), ((1, 8, 8), ()))
    with raises_usage_error("data.rows", "photo", "10", "sound"):
        load(options | {"sound": sound[1:]})
    with raises_usage_error("data.splits_differ"):
        load({key: value for key, value in with_test_arrays.items() if key != "photo_test"})
    with raises_usage_error("data.unknown", "photo"):
        load(options | {"x": photo})


@pytest.mark.parametrize("kind", [np.float32, np.uint8])
def test_an_npy_file_is_mapped_to_memory_and_not_changed(tmp_path, kind, monkeypatch):
    mapped, load_array = [], np.load

    def load_and_record(*arguments, **options):
        mapped.append(load_array(*arguments, **options))
        return mapped[-1]

    monkeypatch.setattr(np, "load", load_and_record)
    values = np.arange(60).reshape(20, 3) if kind == np.float32 else np.arange(320).reshape(20, 1, 4, 4) % 251
    np.save(tmp_path / "data.npy", values.astype(kind))
    train, test = load(tmp_path / "data.npy"), load(tmp_path / "data.npy", "test")
    for part, array in zip((train, test), mapped, strict=True):
        assert isinstance(array, np.memmap)
        assert np.may_share_memory(part.store.store.array, array)
    rows = torch.cat([part.store.fetch_views(torch.arange(len(part)))[0] for part in (train, test)])
    assert sorted(map(tuple, rows.flatten(1).tolist())) == sorted(map(tuple, values.reshape(20, -1).tolist()))
    train.store.fetch_views(torch.arange(3))[0].zero_()
    assert np.array_equal(load_array(tmp_path / "data.npy"), values)


def test_an_npy_file_of_doubles_is_converted_when_its_rows_are_fetched(tmp_path):
    np.save(tmp_path / "data.npy", np.arange(60.0).reshape(20, 3))
    dataset = load(tmp_path / "data.npy", test_fraction=0)
    assert dataset.store.store.array.dtype == np.float64
    fetched = dataset.store.fetch_views(torch.tensor([4, 1]))[0]
    assert (fetched.dtype, fetched.tolist()) == (torch.float32, [[12, 13, 14], [3, 4, 5]])


def test_dataset_copies_its_arrays(tmp_path):
    views = np.zeros((20, 3), np.float32), np.zeros((20, 2), np.float32)
    dataset = load(views, test_fraction=0)
    views[0][:] = 7
    assert dataset[0].views[0].sum() == 0


def test_a_mapped_npz_has_the_items_of_one_that_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(stores, "MAPPED_BLOCK_BYTES", 300)
    random = np.random.default_rng(0)
    views = {
        "half": random.normal(size=(40, 9)).astype(np.float16),
        "single": random.normal(size=(40, 9)).astype(np.float32),
        "double": random.normal(size=(40, 4, 3)),
        "swapped": random.normal(size=(40, 9)).astype(">f8"),
        "pixels": random.integers(0, 256, (40, 6, 6, 3), dtype=np.uint8),
        "scan": random.integers(0, 2**16, (40, 6, 6), dtype=np.uint16),
    }
    views["single"][[3, 8]] = views["double"][[8, 9]] = np.nan  # missing views
    views["half"][5] = views["half"][4]  # an item with repeated content
    path = save(tmp_path, **views, labels=random.integers(0, 2, 40))
    for split in ("train", "test"):
        monkeypatch.setattr(files, "MIN_MAPPED_BYTES", 2**30)
        read = load(path, split)
        monkeypatch.setattr(files, "MIN_MAPPED_BYTES", 1)
        mapped = load(path, split)
        assert not hasattr(mapped.store.stores[0], "views")
        assert fingerprint_dataset(mapped) == fingerprint_dataset(read)
        assert torch.equal(mapped.store.view_content_digests, read.store.view_content_digests)
        positions = torch.arange(len(read)).flip(0)
        for one, other in zip(mapped.store.fetch_views(positions), read.store.fetch_views(positions), strict=True):
            assert one.dtype == other.dtype
            assert torch.equal(one, other)
        assert mapped.select_views([2, 0]).shapes == ((4, 3), (9,))
        selected = mapped.select_views([5, 1]).store.fetch_views(positions)
        assert all(map(torch.equal, selected, read.select_views([5, 1]).store.fetch_views(positions)))


@pytest.mark.parametrize(("value", "code"), [(np.nan, "data.not_finite"), (1e300, "data.overflow")])
def test_rejects_nonfinite_values_in_a_mapped_array(tmp_path, monkeypatch, value, code):
    monkeypatch.setattr(files, "MIN_MAPPED_BYTES", 1)
    monkeypatch.setattr(stores, "MAPPED_BLOCK_BYTES", 100)
    values = np.ones((40, 9))
    values[31, 2] = values[35, 2] = value
    with raises_usage_error(code, "data.npz", "2 of 40", "row 31"):
        load(save(tmp_path, x=values))


def test_loading_a_mapped_npz_allocates_little_of_its_size(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MIN_MAPPED_BYTES", 2**16)
    for module in (stores, array_datasets):
        monkeypatch.setattr(module, "MAPPED_BLOCK_BYTES", 2**16)
    views = np.random.default_rng(0).normal(size=(2, 1_000, 1_000))  # 8 MB each
    path = save(tmp_path, view0=views[0], view1=views[1])
    tracemalloc.start()
    try:
        dataset = load(path)
        dataset.select_views([1]).store.fetch_views(torch.arange(10))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < views.nbytes / 4


def test_an_array_mapped_by_the_caller_is_not_copied(tmp_path):
    np.save(tmp_path / "first.npy", np.arange(60.0).reshape(20, 3))
    np.save(tmp_path / "second.npy", np.arange(40.0).reshape(20, 2))
    views = tuple(np.load(tmp_path / name, mmap_mode="r") for name in ("first.npy", "second.npy"))
    dataset = load(views, test_fraction=0.5)
    assert all(store.store.array is view for store, view in zip(dataset.store.stores, views, strict=True))
    changeable = np.load(tmp_path / "first.npy", mmap_mode="c")
    copied = load(changeable, test_fraction=0)
    changeable[:] = -1
    assert (copied[0].views[0] >= 0).all()
