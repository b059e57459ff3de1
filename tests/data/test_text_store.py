import numpy as np
import pytest
import torch
from tests.errors import raises_usage_error

from contraport._utils.text_bytes import tensor_to_texts
from contraport.data import from_arrays
from contraport.data.stores import PackedTextStore

TEXTS = ["a red bag", "größer", "", "日本語 🙂", "x" * 300]


def test_batches_of_texts_are_padded_to_the_longest():
    store = PackedTextStore.from_texts(TEXTS)
    (got,) = store.fetch_views(torch.tensor([3, 0, 2, 3]))
    assert tensor_to_texts(got) == [TEXTS[place] for place in (3, 0, 2, 3)]
    assert got.shape == (4, len(TEXTS[3].encode()))
    assert store.fetch_views(torch.tensor([2]))[0].shape == (1, 1)


def test_texts_are_views_beside_others():
    dataset = from_arrays({"caption": TEXTS[:2], "vector": np.ones((2, 3))}, labels=["b", "c"])
    assert dataset.shapes == ((), (3,))
    batch = dataset.__getitems__([1, 0])
    assert tensor_to_texts(batch.views[0]) == TEXTS[1::-1]
    assert dataset.mean_and_std(0) == ([], [])


def test_empty_text_of_several_views_is_missing():
    dataset = from_arrays((["a", " ", None], np.array(["b", "c", "d"])))
    assert dataset.present.tolist() == [[True, True], [False, True], [False, True]]


@pytest.mark.parametrize(
    ("views", "code_and_values"),
    [
        (["a", ""], ("views.empty_text", "1 of 2")),
        (["a", 3], ("views.mixed", "row 1")),
        ((["a"], ["b", "c"]), ("views.rows", "[1, 2]")),
        (["a\0"], ("views.null_character", "row 0")),
    ],
    ids=["empty", "mixed", "unequal", "null"],
)
def test_rejects_invalid_texts(views, code_and_values):
    with raises_usage_error(*code_and_values):
        from_arrays(views)
