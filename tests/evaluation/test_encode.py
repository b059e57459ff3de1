from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch
from PIL import Image
from tests.errors import raises_usage_error
from tests.evaluation.builders import make_run

import contraport
from contraport.encoders import Model
from contraport.runs import Run


def draw_images(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 255, (count, 8, 8, 3)).astype(np.uint8)


def embed_in_data_order(run: Run, data: Any, **options: Any) -> np.ndarray:
    """Embed all items with `contraport.embed`, and return the features in the order of the data."""
    embedded = contraport.embed(run, data=data, out=None, progress=False, **options)
    return embedded.features[np.argsort(embedded.source_rows)]


SERIES = np.random.default_rng(0).normal(size=(9, 2, 30)).astype(np.float32)
TEXTS = [f"{number} red bags" for number in range(9)]


@pytest.mark.parametrize(
    ("encoder", "shape", "items"),
    [
        ("mlp", (2,), SERIES[:, :, 0]),
        ("mlp", (2,), torch.from_numpy(SERIES[:, :, 1])),
        ("mlp", (2,), pyarrow.table({"a": SERIES[:, 0, 0], "b": SERIES[:, 1, 0]})),
        ("small-tcn", (2, 30), SERIES),
        ("small-cnn", (3, 8, 8), draw_images(9)),
        ("small-cnn", (3, 8, 8), [Image.fromarray(image) for image in draw_images(9)]),
        ("small-text", (), TEXTS),
    ],
    ids=["vectors", "tensor", "frame", "series", "images", "pil", "texts"],
)
def test_encode_equals_embed_bit_for_bit(tmp_path: Path, encoder: str, shape: tuple[int, ...], items: Any) -> None:
    torch.manual_seed(0)
    run = make_run(tmp_path / "run", Model(encoder, [shape]))
    loaded = contraport.load(run.path)
    encoded = loaded.encode(items, progress=False)
    assert encoded.dtype == np.float32
    assert np.array_equal(encoded, embed_in_data_order(run, items))
    assert np.array_equal(loaded.encode(items[:1], progress=False, batch_size=1), encoded[:1])
    assert np.array_equal(loaded.encode(items, dims=5, progress=False), encoded[:, :5])
    unit = loaded.encode(items, normalize=True, progress=False)
    np.testing.assert_allclose(unit, encoded / np.linalg.norm(encoded, axis=1, keepdims=True), rtol=1e-5)


def test_encodes_image_files_in_order(tmp_path: Path) -> None:
    torch.manual_seed(0)
    loaded = contraport.load(make_run(tmp_path / "run", Model("small-cnn", [(3, 8, 8)])))
    images, files = draw_images(4)[[2, 0, 3, 0]], [tmp_path / f"{name}.png" for name in "dabc"]
    for image, file in zip(images, files, strict=True):
        Image.fromarray(image).save(file)
    assert np.array_equal(loaded.encode(files, progress=False), loaded.encode(images, progress=False))
    files[2].write_bytes(b"no image")
    with raises_usage_error("items.unreadable", 3, 4, "item 2", files[2]):
        loaded.encode(files, progress=False)
    files[3].unlink()
    with raises_usage_error("items.no_readable_image", files[3]) as caught:
        loaded.encode([files[3]], progress=False)
    assert "split" not in str(caught.value)


def test_error_for_a_single_item_suggests_a_list(tmp_path: Path) -> None:
    images = contraport.load(make_run(tmp_path / "images", Model("small-cnn", [(3, 8, 8)])))
    numbers = contraport.load(make_run(tmp_path / "numbers", Model("mlp", [(2,)])))
    one = draw_images(1)[0]
    assert images.encode([one], progress=False).shape == images.encode([Image.fromarray(one)], progress=False).shape
    for run, item, code in [
        (images, Image.fromarray(one), "items.single_item"),
        (images, "a.png", "items.not_in_memory"),
        (images, tmp_path / "a.png", "items.not_in_memory"),
        (images, one, "items.*"),
        (images, torch.from_numpy(one).permute(2, 0, 1), "items.*"),
        (numbers, np.ones(2, dtype=np.float32), "items.*"),
    ]:
        with raises_usage_error(code, "encode([item])"):
            run.encode(item, progress=False)
    with raises_usage_error("items.shape") as caught:
        numbers.encode(np.ones((4, 3)), progress=False)
    assert "encode([item])" not in str(caught.value)


@pytest.fixture
def captioned_run(tmp_path: Path) -> Run:
    torch.manual_seed(0)
    names, shapes = ("image", "caption"), [(3, 8, 8), ()]
    model = Model(shapes=shapes, encoder=["small-cnn", "small-text"], projection=8, view_names=names)
    return contraport.load(make_run(tmp_path / "run", model, data="<captioned>"))


def test_encodes_one_view_with_a_row_for_each_duplicate(captioned_run: Run) -> None:
    texts = [*TEXTS, TEXTS[0]]
    encoded = captioned_run.encode(texts, view="caption", progress=False)
    assert np.array_equal(encoded[:9], embed_in_data_order(captioned_run, TEXTS, view="caption"))
    assert np.array_equal(encoded[9], encoded[0])
    assert captioned_run.encode(draw_images(3), view="image", progress=False).shape == (3, 8)


def test_rejects_one_view_of_several_without_its_name(captioned_run: Run) -> None:
    for items in (TEXTS, draw_images(3), {"caption": TEXTS}):
        with raises_usage_error("items.views", "image and caption"):
            captioned_run.encode(items, progress=False)
    with raises_usage_error("view.unknown", "sound", "caption"):
        captioned_run.encode(TEXTS, view="sound", progress=False)


def test_encodes_all_views_by_position_or_name(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Model(shapes=[(4,), (4,)], view_names=["ear", "eye"])
    loaded = contraport.load(make_run(tmp_path / "run", model, augment=None))
    ear, eye = np.random.default_rng(0).normal(size=(2, 9, 4)).astype(np.float32)
    encoded = loaded.encode((ear, eye), progress=False)
    assert np.array_equal(encoded, embed_in_data_order(loaded, (ear, eye)))
    assert np.array_equal(loaded.encode({"eye": eye, "ear": ear}, progress=False), encoded)
    assert np.array_equal(embed_in_data_order(loaded, {"eye": eye, "ear": ear}), encoded)


def test_rejects_items_of_another_kind(tmp_path: Path) -> None:
    loaded = contraport.load(make_run(tmp_path / "run", Model("mlp", [(2,)])))
    with raises_usage_error("items.shape", "(2,)", "(3,)"):
        loaded.encode(np.ones((4, 3)), progress=False)
    for items in ("digits", Path("digits.npy")):
        with raises_usage_error("items.not_in_memory", "digits"):
            loaded.encode(items)
    with raises_usage_error("items.not_in_memory", "None"):
        loaded.encode(None)
    with raises_usage_error("batch_size.invalid", 0):
        loaded.encode(SERIES[:, :, 0], batch_size=0)


def test_model_is_loaded_once_until_its_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "run", Model("mlp", [(2,)]))
    calls, from_pretrained = [], Model.from_pretrained
    monkeypatch.setattr(
        Model, "from_pretrained", lambda *args, **options: calls.append(1) or from_pretrained(*args, **options)
    )
    loaded = contraport.load(run)
    first = loaded.encode(SERIES[:, :, 0], progress=False)
    assert np.array_equal(loaded.encode(SERIES[:, :, 0], progress=False), first)
    assert len(calls) == 1
    Model("mlp", [(2,)]).save_pretrained(run.path / "model")
    assert not np.array_equal(loaded.encode(SERIES[:, :, 0], progress=False), first)
    assert len(calls) == 2


def test_rejects_a_run_without_model(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", Model("mlp", [(2,)]))
    assert repr(contraport.load(run)).endswith("nt-xent on digits, 10 epochs, trained)")
    (run.path / "model").rename(tmp_path / "model")
    with raises_usage_error("run.missing_file", "model"):
        contraport.load(run)
    with raises_usage_error("run.not_found"):
        contraport.load(tmp_path / "none")


def test_color_views_are_made_of_images_in_memory(tmp_path: Path) -> None:
    torch.manual_seed(0)
    run = make_run(tmp_path / "run", Model(shapes=[(1, 8, 8), (2, 8, 8)]), data="<images>", views="color")
    images = draw_images(9)
    assert np.allclose(run.encode(images), embed_in_data_order(run, images), atol=1e-6)
