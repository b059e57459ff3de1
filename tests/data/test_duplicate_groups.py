"""Content ids: images with several captions, captions of several images, and splits that keep them together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from contraport._utils.text_bytes import tensor_to_texts
from contraport.data import Dataset, from_arrays, load

IMAGES = 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    for number in range(IMAGES):
        Image.fromarray(random.integers(0, 255, (8, 8), dtype=np.uint8)).save(tmp_path / f"{number}.png")
    return tmp_path


def captions(dataset: Dataset) -> list[str]:
    return tensor_to_texts(dataset.store.fetch_views(torch.arange(len(dataset)))[1])


def check_content_ids(dataset: Dataset, images: list[str], texts: list[str]) -> None:
    """Check that content ids are equal for equal images and for equal texts."""
    assert dataset.view_content_ids_if_repeated is not None
    for column, names in zip(dataset.view_content_ids_if_repeated.T.numpy(), (images, texts), strict=True):
        assert ((column[:, None] == column) == (np.array(names)[:, None] == np.array(names))).all()


def write_captions(folder: Path, rows: list[tuple[str, str]]) -> str:
    file = folder / "captions.csv"
    file.write_text("image,caption\n" + "".join(f"{image},{caption}\n" for image, caption in rows))
    return str(file)


def test_rows_of_an_image_and_rows_of_a_caption(folder: Path) -> None:
    rows = [(f"{number}.png", text) for number in range(IMAGES) for text in (f"thing {number}", f"{number % 3} again")]
    dataset = load(write_captions(folder, rows), "train", image_size=8)
    assert dataset.view_names == ("image", "caption")
    check_content_ids(dataset, [Path(key).name for key in dataset.keys], captions(dataset))


def test_an_image_is_held_out_with_all_its_captions(folder: Path) -> None:
    rows = [(f"{number}.png", f"{text} {number}") for text in ("a", "b", "c") for number in range(IMAGES)]
    train, test = (load(write_captions(folder, rows), split, image_size=8) for split in ("train", "test"))
    assert len(train) == 48
    assert len(test) == 12
    assert not {*train.keys} & {*test.keys}


def test_distinct_items_form_no_groups(folder: Path) -> None:
    dataset = load(
        write_captions(folder, [(f"{number}.png", f"thing {number}") for number in range(IMAGES)]), image_size=8
    )
    assert dataset.view_content_ids_if_repeated is None
    assert dataset.drop_duplicates() is dataset


def test_a_column_of_lists_of_captions(folder: Path) -> None:
    """Each text becomes an item; images stored as bytes have ids by their row."""
    contents = [(folder / f"{number}.png").read_bytes() for number in range(IMAGES)]
    lists = [[f"thing {number}", "a thing", "it"][: 1 + number % 3] for number in range(IMAGES)]
    pq.write_table(pa.table({"photo": contents, "captions": lists}), folder / "all.parquet")
    dataset = load(str(folder / "all.parquet"), "train", image_size=8)
    expected = [(row, text) for row, texts in enumerate(lists) for text in texts]
    rows_of_split = [one for one in expected if one[0] in set(dataset.source_rows.tolist())]
    assert list(zip(dataset.source_rows.tolist(), captions(dataset), strict=True)) == rows_of_split
    check_content_ids(dataset, [str(row) for row, _ in rows_of_split], [text for _, text in rows_of_split])
    other = load(str(folder / "all.parquet"), "test", image_size=8)
    assert not {*dataset.source_rows.tolist()} & {*other.source_rows.tolist()}


def test_missing_views_share_no_content(folder: Path) -> None:
    rows = [(f"{number}.png", "" if number < 6 else f"thing {number}") for number in range(IMAGES)]
    dataset = load(write_captions(folder, rows), "train", image_size=8)
    assert dataset.present is not None
    assert dataset.view_content_ids_if_repeated is None


def test_repeated_images_are_one_group(folder: Path) -> None:
    rows = [(f"{number}.png", f"{text} {number}") for text in ("a", "b", "c") for number in range(IMAGES)]
    images = load(write_captions(folder, rows), "train", image_size=8).select_views([0]).drop_duplicates()
    assert len(images) == len(set(images.keys)) == 16
    assert images.source_rows.tolist() == sorted(images.source_rows.tolist())
    assert images.view_content_ids_if_repeated is None


def test_equal_texts_share_a_group() -> None:
    images = np.random.default_rng(0).integers(0, 255, (4, 8, 8), dtype=np.uint8)
    dataset = from_arrays({"image": images, "caption": ["a bag", "a coat", "a bag", ""]})
    assert dataset.view_content_ids_if_repeated is not None
    assert dataset.view_content_ids_if_repeated[:, 0].tolist() == [0, 1, 2, 3]
    assert dataset.view_content_ids_if_repeated[:, 1].tolist() == [0, 1, 0, -4]
    assert from_arrays((images, np.arange(4.0)[:, None])).view_content_ids_if_repeated is None
