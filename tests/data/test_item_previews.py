"""Thumbnails of images, series, vectors and texts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from contraport.data import from_arrays
from contraport.data.item_previews import MAX_TEXT_CHARACTERS, make_item_previews_per_view, shrink_to_uint8_nchw

ITEMS = 40
RANDOM = np.random.default_rng(0)
VIEWS: dict[str, Any] = {
    "photo": RANDOM.integers(0, 255, (ITEMS, 3, 20, 30), dtype=np.uint8),
    "sound": RANDOM.normal(size=(ITEMS, 9, 300)),
    "vector": RANDOM.normal(size=(ITEMS, 7)),
    "long": RANDOM.normal(size=(ITEMS, 500)),
    "text": ["x" * 2 * MAX_TEXT_CHARACTERS] * ITEMS,
}
EXPECTED = {
    "photo": ((3, 3, 10, 15), "uint8"),
    "sound": ((3, 6, 160), "int8"),
    "vector": ((3, 7), "int8"),
    "long": ((3, 96), "int8"),
}


@pytest.mark.parametrize("view", EXPECTED)
def test_each_kind_of_view_has_a_thumbnail(view: str) -> None:
    dataset = from_arrays((VIEWS[view], VIEWS["vector"]))
    first, second = make_item_previews_per_view(dataset, torch.tensor([5, 0, 5]), 15)
    assert (first.shape, str(first.dtype)) == EXPECTED[view]
    assert np.array_equal(first[0], first[2])
    assert not np.array_equal(first[0], first[1])
    assert second.shape == (3, 7)


def test_bars_are_hundredths_of_three_deviations() -> None:
    values = np.concatenate([np.full((ITEMS, 1), -1.0), np.full((ITEMS, 1), 1.0)]).astype(np.float32)
    (first, _) = make_item_previews_per_view(from_arrays((values, values)), torch.tensor([0, ITEMS]), 15)
    assert first.tolist() == [[-33], [33]]


def test_a_long_text_ends_in_dots() -> None:
    (first, _) = make_item_previews_per_view(from_arrays((VIEWS["text"], VIEWS["vector"])), torch.tensor([0]), 15)
    assert first[0] == "x" * MAX_TEXT_CHARACTERS + " …"


def test_small_images_are_unchanged() -> None:
    images = torch.from_numpy(VIEWS["photo"])
    assert np.array_equal(shrink_to_uint8_nchw(images, 30), VIEWS["photo"])
