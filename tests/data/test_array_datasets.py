import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.errors import raises_usage_error

from contraport.data import from_arrays, load
from contraport.feature_files import as_features


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
    dataset = from_arrays((values[..., 0], values))
    assert dataset.shapes == ((32, 32), (3, 32, 32))
    batch = dataset.__getitems__([3])
    assert [view.dtype for view in batch.views] == [torch.float32, torch.float32]
    assert np.array_equal(batch.views[1].numpy(), values[[3]].transpose(0, 3, 1, 2).astype(np.float32))
    assert float(from_arrays(values + kind(1)).__getitems__([0]).views[0].max()) > 1  # unchanged


def test_pixels_keep_their_positions():
    pixels = np.random.default_rng(0).integers(0, 256, (4, 6, 7, 3), dtype=np.uint8)
    view = from_arrays(pixels).__getitems__([2, 0]).views[0]
    assert np.array_equal(view.numpy(), pixels[[2, 0]].transpose(0, 3, 1, 2))


def test_dataset_copies_its_array():
    vectors = np.zeros((3, 2), np.float32)
    dataset = from_arrays(vectors)
    vectors[:] = 7
    assert dataset[0].views[0].sum() == 0


def test_accepts_views_of_different_kinds_and_libraries():
    dataset = from_arrays((torch.zeros(4, 3, 8, 8, dtype=torch.uint8), np.ones((4, 5))), domains=["a", "b", "b", "a"])
    batch = dataset.__getitems__([1, 3])
    assert [view.dtype for view in batch.views] == [torch.uint8, torch.float32]
    assert batch.domains.tolist() == [1, 0]
    assert batch.labels is None


def test_a_list_is_items_and_a_dict_names_views():
    items = np.random.default_rng(0).normal(size=(5, 3, 20))
    assert from_arrays(list(items)).shapes == from_arrays([torch.tensor(item) for item in items]).shapes == ((3, 20),)
    assert from_arrays({"one": items, "other": items[:, 0]}).shapes == ((3, 20), (20,))


def test_labels_are_numbered_in_order_of_names():
    dataset = from_arrays(np.ones((3, 2)), labels=[50, -1, 50])
    assert dataset.labels.tolist() == [1, 0, 1]
    assert dataset.class_names == ("-1", "50")


@pytest.mark.parametrize(
    ("views", "labels", "code_and_values"),
    [
        ((), None, ("views.empty",)),
        ([], None, ("views.shape",)),
        ([np.ones((3, 20)), np.ones((3, 30))], None, ("views.shape", "(3, 20)", "(3, 30)")),
        ({"image": np.ones((5, 2)), "text": np.ones(5)}, None, ("views.shape", "['text']")),
        (np.zeros(5), None, ("views.shape",)),
        (np.zeros((0, 3)), None, ("views.shape",)),
        (np.zeros((5, 8, 8), int), None, ("views.shape",)),
        (np.zeros((5, 2, 2, 2, 2), np.uint8), None, ("views.shape",)),
        (np.full((5, 2), np.nan), None, ("views.not_finite", "0")),
        (np.array([[0.0, 1.0], [0.0, np.inf]]), None, ("views.not_finite", "2")),
        (np.full((5, 2), 1e300), None, ("views.overflow", "0")),
        (np.ones((5, 2), complex), None, ("views.not_numeric",)),
        (np.array([["a"]]), None, ("views.not_numeric",)),
        (np.array([[object()]]), None, ("views.not_numeric",)),
        (np.array([None, None]), None, ("views.not_numeric",)),
        ((np.array([None, None]), np.ones((2, 3))), None, ("views.not_numeric", "[0]")),
        ((np.ones((5, 2)), np.ones((4, 2))), None, ("views.rows",)),
        ((np.ones((5, 2)), 3.0), None, ("views.shape", "[1]")),
        ([[1, 2], [3]], None, ("views.shape", "(2,)", "(1,)")),
        (([[1, 2], [3]],), None, ("views.shape", "[0]")),
        (np.ones((5, 2)), np.ones(5), ("labels.not_categorical",)),
        (np.ones((5, 2)), np.ones((5, 1), int), ("labels.not_categorical",)),
        (np.ones((5, 2)), [0, 1], ("labels.shape", "5")),
    ],
)
def test_rejects_invalid_arrays(views, labels, code_and_values):
    with raises_usage_error(*code_and_values):
        from_arrays(views, labels)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float64])
def test_tensors_of_a_network_are_arrays_too(kind):
    tensor = torch.linspace(0, 1, 60).view(20, 3).to(kind).requires_grad_()
    expected = tensor.detach().float()
    assert torch.equal(from_arrays(tensor)[0].views[0], expected[:1])
    assert torch.equal(load(tensor, test_fraction=0)[0].views[0], expected[:1])
    assert torch.equal(load(list(tensor.unbind()), test_fraction=0)[0].views[0], expected[:1])
    assert np.array_equal(as_features(tensor).features.astype(np.float32), expected.numpy())


@pytest.mark.parametrize(
    ("values", "code_and_values"),
    [
        (np.ma.masked_greater(np.arange(12.0).reshape(4, 3), 9), ("masked", "2 of 12")),
        (torch.eye(4).to_sparse(), ("invalid", "Tensor")),
    ],
    ids=["masked", "sparse"],
)
def test_rejects_masked_and_sparse_arrays(values, code_and_values):
    kind, value = code_and_values
    for read, argument in ((from_arrays, "views"), (load, "data"), (as_features, "features")):
        with raises_usage_error(f"{argument}.{kind}", value):
            read(values)


def test_missing_views_are_nan_rows_or_masked():
    x, y = np.arange(8.0).reshape(4, 2), np.full((4, 3, 3), 7, np.uint8)
    x[1] = np.nan
    dataset = from_arrays((x, y))
    assert dataset.present.tolist() == [[True, True], [False, True], [True, True], [True, True]]
    assert np.isnan(x[1]).all()  # the array of the caller is not modified
    assert dataset.__getitems__([1, 0]).present.tolist() == [[False, True], [True, True]]
    assert dataset.__getitems__([1]).views[0].isfinite().all()
    with_mask = from_arrays({"x": x, "y": y}, present=[[True, True], [False, True], [True, False], [True, True]])
    assert with_mask.present.tolist() == [[True, True], [False, True], [True, False], [True, True]]
    assert from_arrays((x, y), present=[[True, True]] * 1 + [[False, True]] + [[True, True]] * 2).present.sum() == 7
    assert from_arrays((y, y)).present is None


@pytest.mark.parametrize(
    ("views", "present", "code_and_values"),
    [
        ((np.full((2, 2), np.nan), np.ones((2, 2))), None, ("data.view_without_item", [0])),
        (
            (np.ones((2, 2)), np.ones((2, 2))),
            [[True, True]],
            ("present.shape", (2, 2), "(1, 2)"),
        ),
        ((np.ones((2, 2)), np.ones((2, 2))), [[1, 1], [1, 0]], ("present.shape", "int64")),
        ((np.array([[1.0, np.nan], [1, 1]]), np.ones((2, 2))), None, ("views.not_finite", "1 of 2")),
        ((np.ones((2, 2)), np.ones((2, 2))), [[True, True], [False, False]], ("data.item_without_view", [1])),
        (np.array([[1.0], [np.nan]]), None, ("views.not_finite", "1 of 2")),
    ],
)
def test_rejects_masks_of_wrong_shape(views, present, code_and_values):
    with raises_usage_error(*code_and_values):
        from_arrays(views, present=present)


@pytest.mark.parametrize("values", [["b", "a", "b"], [2, 1, 2]])
def test_accepts_classes_of_object_arrays(values):
    dataset = from_arrays(np.ones((3, 2)), labels=np.array(values, dtype=object))
    assert (dataset.labels.tolist(), dataset.class_names) == ([1, 0, 1], tuple(map(str, sorted(set(values)))))


@pytest.mark.parametrize("values", [["b", None, "b"], ["b", 1, "a"], [1, float("nan"), 2]])
def test_rejects_invalid_classes_of_object_arrays(values):
    with raises_usage_error("labels.not_categorical", "1"):
        from_arrays(np.ones((3, 2)), labels=np.array(values, dtype=object))


def test_warns_of_numbers_that_float32_does_not_distinguish(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    random = np.random.default_rng(0)
    seconds = 1.7e9 + random.integers(0, 120, 40)
    columns = {"age": random.normal(size=40), "time": seconds, "offset": 1e6 + random.normal(size=40)}
    columns |= {"far": 1e5 + random.normal(size=40), "day": seconds * 1e3, "constant": np.full(40, 0.1) + 1e-17}
    array = np.stack(list(columns.values()), axis=1)
    path = tmp_path / "table.csv"
    np.savetxt(path, array, delimiter=",", header=",".join(columns), comments="", fmt="%.17g")
    for split in ("train", "test"):
        load(path, split)
    from_arrays(array, name="array")
    from_arrays(array.astype(np.float32), name="singles")
    from_arrays(array - array.min(0), name="shifted")
    warnings = [record.args[:3] for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == [
        (str(path), "3 columns", ["time", "offset", "day"]),
        ("array", "3 columns", [1, 2, 4]),
    ]
