import numpy as np
import pytest
import torch
from tests.errors import raises_usage_error

import contraport.data
from contraport.data import from_arrays
from contraport.data.stores import CombinedViewsStore


def test_statistics_of_images_are_per_channel_in_units_of_one():
    pixels = np.random.default_rng(0).integers(0, 256, (1200, 3, 4, 5), dtype=np.uint8)
    mean, std = from_arrays(pixels).mean_and_std()
    assert mean == pytest.approx((pixels / 255).mean(axis=(0, 2, 3)))
    assert std == pytest.approx((pixels / 255).std(axis=(0, 2, 3)))


def test_statistics_of_vectors_survive_a_large_mean():
    vectors = np.random.default_rng(0).normal(1e4, 1.0, (3000, 2)).astype(np.float32)
    mean, std = from_arrays(vectors).mean_and_std()
    assert mean == pytest.approx(vectors.astype(float).mean(0))
    assert std == pytest.approx(vectors.astype(float).std(0), rel=1e-6)


def test_variation_by_rounding_counts_as_constant():
    rounding = np.finfo(np.float32).eps
    values = np.array([[1, 1, 0], [1 + rounding, 1 + 2 * rounding, 0]], dtype=np.float32)
    assert from_arrays(values).mean_and_std()[1] == pytest.approx([1, rounding, 1])


def test_small_units_are_not_constant():
    assert from_arrays(np.array([[1e-9], [3e-9]])).mean_and_std()[1] == pytest.approx([1e-9])


def test_a_dataset_item_is_fetched_as_a_batch_of_one():
    dataset = from_arrays(np.arange(6.0).reshape(3, 2), labels=[4, 5, 6])
    batch = dataset[-1]
    assert batch.views[0].tolist() == [[4.0, 5.0]]
    assert batch.ids.tolist() == [2]
    with pytest.raises(IndexError):
        dataset[3]


def test_a_fetch_does_not_share_memory():
    dataset = from_arrays(np.zeros((3, 2)))
    dataset.__getitems__([0, 1]).views[0].fill_(9)
    assert torch.equal(dataset[0].views[0], torch.zeros(1, 2))


def test_statistics_of_any_view_of_any_kind():
    rng = np.random.default_rng(0)
    series, images = rng.normal(3, 2, (700, 2, 9)), rng.random((700, 3, 4, 5))
    dataset = from_arrays((series, images, np.ones((700, 1))))
    for view, expected in enumerate((series.transpose(1, 0, 2).reshape(2, -1), images.swapaxes(0, 1).reshape(3, -1))):
        mean, std = dataset.mean_and_std(view)
        assert mean == pytest.approx(expected.mean(1), rel=1e-5)
        assert std == pytest.approx(expected.std(1), rel=1e-5)
    assert dataset.mean_and_std(2) == ([1.0], [1.0])
    with raises_usage_error("view.invalid", "3"):
        dataset.mean_and_std(3)


def test_joined_stores_give_the_views_of_each():
    left, right = from_arrays(np.arange(6.0).reshape(3, 2)), from_arrays(np.arange(3.0).reshape(3, 1))
    joined = left.with_store(CombinedViewsStore((left.store, right.store)))
    assert joined.shapes == ((2,), (1,))
    assert joined.is_in_memory
    assert [view.tolist() for view in joined[1].views] == [[[2, 3]], [[1]]]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("BatchShare", "LocalBatchOffset"),
        ("BatchOffset", "LocalBatchOffset"),
        ("own_share", "local_batch_offset"),
        ("local_share", "local_batch_offset"),
        ("OnBatches", "BatchTransform"),
        ("load_undivided", "load_split_or_all_items"),
        ("load_unsplit", "load_split_or_all_items"),
        ("load_without_random_split", "load_split_or_all_items"),
    ],
)
def test_deprecated_names_warn_and_still_work(old, new):
    with pytest.warns(FutureWarning, match=new):
        assert getattr(contraport.data, old) is getattr(contraport.data, new)


def test_deprecated_name_of_source_rows_warns_and_still_works():
    all_items = from_arrays(np.ones((3, 2)))
    with pytest.warns(FutureWarning, match="source_rows"):
        dataset = contraport.data.Dataset(all_items.store, all_items.name, "train", rows=torch.tensor([4, 5, 7]))
    with pytest.warns(FutureWarning, match="source_rows"):
        assert dataset.rows is dataset.source_rows
    assert dataset.source_rows.tolist() == [4, 5, 7]
    with raises_usage_error("rows.shape"):
        contraport.data.Dataset(all_items.store, all_items.name, "train", source_rows=torch.arange(2))


def test_repr_has_name_split_size_and_shapes():
    dataset = from_arrays({"ear": np.ones((3, 2)), "eye": np.ones((3, 1, 4, 4), np.uint8)})
    assert repr(dataset) == f"Dataset({dataset.name!r}, train: 3 items, ear (2,), eye (1, 4, 4))"
    coupling = contraport.data.from_coupling(np.ones((4, 2)), np.ones((4, 3)), np.tile(np.arange(4)[:, None], 2))
    assert f": {len(coupling)} pairs, " in repr(coupling)
