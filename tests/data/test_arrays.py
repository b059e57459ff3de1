import io
import zipfile

import numpy as np
import pytest
import torch

from contraport.data import from_arrays, load
from contraport.errors import UsageError


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((5, 28, 28), (1, 28, 28)),
        ((5, 28, 28, 1), (1, 28, 28)),
        ((5, 32, 32, 3), (3, 32, 32)),
        ((5, 3, 32, 32), (3, 32, 32)),
        ((5, 13, 64, 64), (13, 64, 64)),
        ((5, 64, 64, 13), (13, 64, 64)),
        ((5, 4, 4, 4), (4, 4, 4)),
    ],
)
def test_the_smaller_outer_axis_of_an_image_holds_the_channels(shape, expected):
    assert from_arrays(np.zeros(shape, np.uint8)).shapes == (expected,)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_floats_are_series_and_images_in_units_of_one(kind):
    values = np.random.default_rng(0).random((5, 32, 32, 3)).astype(kind)
    dataset = from_arrays([values[..., 0], values])
    assert dataset.shapes == ((32, 32), (3, 32, 32))
    batch = dataset.__getitems__([3])
    assert [view.dtype for view in batch.views] == [torch.float32, torch.float32]
    assert np.array_equal(batch.views[1].numpy(), values[[3]].transpose(0, 3, 1, 2).astype(np.float32))
    with pytest.raises(UsageError, match=r"views\[0\]: expected float images in \[0, 1\], got values"):
        from_arrays(values + kind(1))


def test_pixels_keep_their_places():
    pixels = np.random.default_rng(0).integers(0, 256, (4, 6, 7, 3), dtype=np.uint8)
    view = from_arrays(pixels).__getitems__([2, 0]).views[0]
    assert np.array_equal(view.numpy(), pixels[[2, 0]].transpose(0, 3, 1, 2))


def test_a_later_change_of_the_array_does_not_reach_the_dataset():
    vectors = np.zeros((3, 2), np.float32)
    dataset = from_arrays(vectors)
    vectors[:] = 7
    assert dataset[0].views[0].sum() == 0


def test_views_may_be_of_different_kinds_and_torch_or_numpy():
    dataset = from_arrays([torch.zeros(4, 3, 8, 8, dtype=torch.uint8), np.ones((4, 5))], domains=["a", "b", "b", "a"])
    batch = dataset.__getitems__([1, 3])
    assert [view.dtype for view in batch.views] == [torch.uint8, torch.float32]
    assert batch.domains.tolist() == [1, 0]
    assert batch.labels is None


def test_labels_become_numbers_in_order_of_their_names():
    dataset = from_arrays(np.ones((3, 2)), labels=[50, -1, 50])
    assert dataset.labels.tolist() == [1, 0, 1]
    assert dataset.class_names == ("-1", "50")


@pytest.mark.parametrize(
    ("views", "labels", "message"),
    [
        ([], None, "at least one"),
        (np.zeros(5), None, "rows of items"),
        (np.zeros((0, 3)), None, "rows of items"),
        (np.zeros((5, 8, 8), int), None, "float series"),
        (np.zeros((5, 2, 2, 2, 2), np.uint8), None, "images, uint8 or float"),
        (np.full((5, 2), np.nan), None, "5 of 5 rows, first in row 0"),
        (np.array([[0.0, 1.0], [0.0, np.inf]]), None, "1 of 2 rows, first in row 1"),
        (np.full((5, 2), 1e300), None, "infinity"),
        (np.ones((5, 2), complex), None, "real numbers"),
        (np.array([["a"]]), None, "real numbers"),
        (np.array([[object()]]), None, "Python objects"),
        ([np.ones((5, 2)), np.ones((4, 2))], None, "equal numbers of rows"),
        ([[[1, 2], [3]]], None, "expected an array"),
        (np.ones((5, 2)), np.ones(5), "integer or string"),
        (np.ones((5, 2)), np.ones((5, 1), int), "integer or string"),
        (np.ones((5, 2)), [0, 1], "one for each of 5 items"),
    ],
)
def test_what_is_no_data_is_refused(views, labels, message):
    with pytest.raises(UsageError, match=message):
        from_arrays(views, labels)


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


def test_an_npz_file_may_bring_its_own_test_split_and_several_views(tmp_path):
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


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"labels": [1, 2]}, "expected an array 'x'"),
        ({"x": np.ones((4, 2)), "lables": [1, 2]}, "did you mean 'labels'"),
        ({"x": np.ones((4, 2)), "view0": np.ones((4, 2))}, "either 'x' or"),
        ({"view0": np.ones((4, 2)), "view2": np.ones((4, 2))}, "without a gap"),
        ({"x": np.ones((4, 2)), "y": [1] * 4, "labels": [1] * 4}, "got both"),
        ({"x": np.ones((4, 2)), "labels": [1] * 3}, "equal numbers of rows"),
        ({"x": np.float64(3)}, "row for each item"),
        ({"x": np.ones((4, 2)), "x_test": np.ones((4, 3))}, "both splits"),
        ({"x": np.ones((4, 2)), "labels": [1] * 4, "x_test": np.ones((4, 2))}, "both splits"),
        ({"x_test": np.ones((4, 2))}, "expected an array 'x'"),
        ({"x": np.full((4, 2), np.nan)}, "data.npz: views"),
        ({"x": np.array([object()])}, "plain arrays"),
    ],
)
def test_an_npz_file_that_is_no_data_is_refused(tmp_path, arrays, message):
    with pytest.raises(UsageError, match=message) as caught:
        load(save(tmp_path, **arrays))
    assert "\n" not in str(caught.value)


def truncated() -> bytes:
    whole = io.BytesIO()
    np.savez(whole, x=np.random.default_rng(0).random((100, 10)))
    return whole.getvalue()[:3000]


def flipped_bytes() -> bytes:
    whole = io.BytesIO()
    np.savez_compressed(whole, x=np.random.default_rng(0).random((100, 10)))
    content = bytearray(whole.getvalue())
    content[200:230] = bytes(30)
    return bytes(content)


def not_an_array() -> bytes:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        archive.writestr("x.npy", "nothing")
    return whole.getvalue()


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04", truncated(), flipped_bytes(), not_an_array()])
def test_a_corrupt_npz_file_is_refused(tmp_path, content):
    (tmp_path / "data.npz").write_bytes(content)
    with pytest.raises(UsageError, match=r"data\.npz"):
        load(tmp_path / "data.npz")


def test_an_npy_file_by_another_name_is_refused(tmp_path):
    with open(tmp_path / "data.npz", "wb") as file:
        np.save(file, np.ones(3))
    with pytest.raises(UsageError, match="cannot be read"):
        load(tmp_path / "data.npz")


def test_too_few_rows_to_hold_some_out(tmp_path):
    with pytest.raises(UsageError, match="no item in its test split"):
        load(save(tmp_path, x=np.ones((2, 2))), "test")


@pytest.mark.parametrize(("array", "shape"), [(np.ones((10, 3)), (3,)), (np.ones((10, 2, 7), np.float32), (2, 7))])
def test_an_npy_file_is_one_view_of_which_a_fifth_is_held_out(tmp_path, array, shape):
    np.save(tmp_path / "data.npy", array)
    train, test = load(tmp_path / "data.npy"), load(tmp_path / "data.npy", "test")
    assert (len(train), len(test), train.shapes, train.labels) == (8, 2, (shape,), None)


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04"])
def test_a_corrupt_npy_file_is_refused(tmp_path, content):
    (tmp_path / "data.npy").write_bytes(content)
    with pytest.raises(UsageError, match=r"data\.npy"):
        load(tmp_path / "data.npy")


def test_an_npy_file_of_objects_is_not_unpickled(tmp_path):
    np.save(tmp_path / "data.npy", np.array([object()]))
    with pytest.raises(UsageError, match=r"cannot be read as an \.npy array"):
        load(tmp_path / "data.npy")
