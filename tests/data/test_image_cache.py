"""Cache of decoded images: equal pixels, rebuilds for other or damaged data, full disks, digests."""

from __future__ import annotations

import logging
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.errors import raises_usage_error

from contraport import train
from contraport.catalog.data_option_parsers import CorruptionSpec, MismatchSpec
from contraport.data import Dataset, from_arrays, load
from contraport.data.image_cache import cache_decoded_images, digest_for_cache
from contraport.data.mismatches_and_corruptions import (
    corrupt_dataset_views,
    draw_mismatched_partners,
    replace_views_after_first,
)
from contraport.data.stores import SubsetStore
from contraport.runs import as_run_folder


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(20):
        pixels = np.random.default_rng(number).integers(0, 256, (9, 12, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:02d}.jpg")
    return folder


def test_cached_images_equal_decoded_images(photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "contraport")
    dataset = load(photos)
    cached = cache_decoded_images(dataset, tmp_path / "kept", num_workers=0)
    assert not dataset.is_in_memory
    assert cached.is_in_memory
    everything = list(range(len(dataset)))
    assert torch.equal(cached.__getitems__(everything).views[0], dataset.__getitems__(everything).views[0])
    assert (cached.keys, cached.shapes, cached.allows_flips) == (dataset.keys, dataset.shapes, dataset.allows_flips)
    assert "16 images" in caplog.text
    assert ": 0.0 MB" in caplog.text
    caplog.clear()
    cache_decoded_images(dataset, tmp_path / "kept")
    assert caplog.messages == [f"the decoded images are those in {tmp_path / 'kept'}"]


def test_cache_is_rebuilt_for_other_data_or_a_damaged_file(
    photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = tmp_path / "kept"
    cache_decoded_images(load(photos), cache, num_workers=0)
    cache_decoded_images(load(photos, image_size=8), cache, num_workers=0)
    assert "other data and shapes" in caplog.text
    caplog.clear()
    damaged_image = load(photos, image_size=8).keys[0]
    Image.new("RGB", (9, 9), (255, 0, 0)).save(damaged_image)
    os.utime(damaged_image, ns=(1, 1))
    again = cache_decoded_images(load(photos, image_size=8), cache, num_workers=0)
    assert "other data" in caplog.text
    assert again.__getitems__([0]).views[0][0, 0].min() > 200
    caplog.clear()
    (cache / "view0.npy").write_bytes(b"nothing")
    cache_decoded_images(load(photos, image_size=8), cache, num_workers=0)
    assert "damaged" in caplog.text


def test_full_disk_disables_the_cache_and_a_file_in_its_place_is_rejected(
    photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with raises_usage_error("decoded.not_a_folder"):
        cache_decoded_images(load(photos), tmp_path / "file")
    monkeypatch.setattr("contraport.data.image_cache.MAX_FREE_DISK_FRACTION", 1e-12)
    dataset = load(photos)
    assert cache_decoded_images(dataset, tmp_path / "kept") is dataset
    assert "each epoch" in caplog.text


def test_training_is_the_same_with_and_without_cache(photos: Path, tmp_path: Path) -> None:
    options = {"data": photos, "epochs": 2, "batch_size": 8, "num_workers": 0, "progress": False}
    with_them = train(**options, out=tmp_path / "with")
    without = train(**options, decoded="none", out=tmp_path / "without")
    assert sorted(path.name for path in as_run_folder(with_them).decoded_path.iterdir()) == [
        "made_of.json",
        "view0.npy",
    ]
    assert not as_run_folder(without).decoded_path.exists()
    one, other = with_them.model().state_dict(), without.model().state_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)
    train(**options | {"epochs": 1}, out=tmp_path / "with", overwrite=True)
    assert not as_run_folder(with_them).decoded_path.exists()


@pytest.mark.parametrize("kind", ["shard", "second column"])
def test_cache_is_rebuilt_if_an_unnamed_source_file_changed(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("contraport.data.image_cache.MAX_ITEMS_FETCHED_FOR_DIGEST", 1)

    def written(value: int) -> Dataset:
        for number in range(3):
            Image.new("L", (8, 8), 9).save(tmp_path / f"{number}.png")
            Image.new("L", (8, 8), value if number == 1 else 7).save(tmp_path / f"other{number}.png")
        if kind == "shard":
            with tarfile.open(tmp_path / "all.tar", "w") as tar:
                for number in range(3):
                    tar.add(tmp_path / f"other{number}.png", f"{number}.png")
            os.utime(tmp_path / "all.tar", ns=(value, value))
            return load(tmp_path / "all.tar", test_fraction=0)
        os.utime(tmp_path / "other1.png", ns=(value, value))
        (tmp_path / "all.csv").write_text("one,other\n" + "".join(f"{i}.png,other{i}.png\n" for i in range(3)))
        for number in range(3):
            os.utime(tmp_path / f"{number}.png", ns=(1, 1))
        return load(tmp_path / "all.csv", test_fraction=0)

    for value in (50, 90):
        cached = cache_decoded_images(written(value), tmp_path / "kept", num_workers=0)
        assert cached.__getitems__([1]).views[-1].unique().tolist() == [value]


def test_images_of_mismatched_and_corrupted_data_are_cached(photos: Path, tmp_path: Path) -> None:
    files = sorted(path.name for path in photos.iterdir())
    pairs = zip(files[:10], files[10:], strict=True)
    (photos / "pairs.csv").write_text("\n".join(["left,right", *map(",".join, pairs)]))
    dataset = load(photos / "pairs.csv", test_fraction=0)
    mismatched = replace_views_after_first(dataset, torch.arange(9, -1, -1))
    everything = list(range(len(dataset)))
    for name, changed in (
        ("mismatched", mismatched),
        ("corrupted", corrupt_dataset_views(mismatched, CorruptionSpec("noise", 1))),
    ):
        cached = cache_decoded_images(changed, tmp_path / name, num_workers=0)
        assert not changed.is_in_memory
        assert cached.is_in_memory
        for one, other in zip(
            cached.__getitems__(everything).views, changed.__getitems__(everything).views, strict=True
        ):
            assert torch.equal(one, other)
    assert not torch.equal(mismatched.__getitems__([0]).views[1], dataset.__getitems__([0]).views[1])
    subset = Dataset(SubsetStore(dataset.store, torch.tensor([3, 1])), name="subset", split="train")
    assert cache_decoded_images(subset, tmp_path / "subset", num_workers=0) is subset


@pytest.mark.parametrize("views", [1, 2])
def test_digest_differs_by_mismatch_and_corruption(views: int) -> None:
    items = np.random.default_rng(0).random((views, 50, 4), dtype=np.float32)

    def build() -> Dataset:
        dataset = from_arrays(tuple(items))
        assert dataset.view_content_digests is not None  # computed before the change, as for the split of a run
        return dataset

    changed = [corrupt_dataset_views(build(), CorruptionSpec("noise", severity)) for severity in (1, 2)]
    for seed in range(2):
        partners = draw_mismatched_partners(build(), MismatchSpec(0.5, False), seed=seed)
        changed.append(replace_views_after_first(build(), partners))
    digests = [digest_for_cache(dataset) for dataset in (build(), *changed)]
    assert len(set(digests)) == 5
    assert digest_for_cache(build()) == digests[0]
