"""Data from URLs of local files and of a file system in memory."""

from __future__ import annotations

import io
import logging
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.errors import raises_usage_error

from contraport._utils.progress import ProgressBars
from contraport.data import load
from contraport.data.sources import url_cache

fsspec = pytest.importorskip("fsspec")


def archive(items: range) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for number in items:
            image = io.BytesIO()
            Image.new("RGB", (9, 9), (number, 0, 0)).save(image, "PNG")
            for suffix, content in (("png", image.getvalue()), ("cls", str(number % 2).encode())):
                member = tarfile.TarInfo(f"{number:03d}.{suffix}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


@pytest.fixture
def bucket() -> Any:
    """In-memory folder with two shards, a table and a folder of images."""
    system = fsspec.filesystem("memory")
    system.store.clear()
    for shard in range(2):
        system.pipe(f"/bucket/train-{shard:03d}.tar", archive(range(10 * shard, 10 * shard + 10)))
    system.pipe("/bucket/table.csv", b"a,b,label\n" + b"".join(b"1,%d,x\n3,%d,y\n" % (row, row) for row in range(5)))
    for number in range(10):
        image = io.BytesIO()
        Image.new("RGB", (9, 9), (number, 0, 0)).save(image, "PNG")
        system.pipe(f"/bucket/photos/{'ab'[number % 2]}/{number}.png", image.getvalue())
    yield system
    system.store.clear()


def test_shards_tables_and_folders_are_fetched_once(
    bucket: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "contraport")
    dataset = load("memory://bucket/train-{000..001}.tar", root=tmp_path)
    assert (len(dataset), dataset.class_names) == (16, ("0", "1"))
    assert dataset.name == "memory://bucket/train-{000..001}.tar"
    reds = dataset.__getitems__(list(range(16))).views[0][:, 0, 0, 0]
    assert torch.equal(reds, dataset.source_rows.to(torch.uint8))
    assert load("memory://bucket/table.csv", root=tmp_path).shapes == ((2,),)
    assert load("memory://bucket/photos", root=tmp_path).class_names == ("a", "b")
    assert caplog.text.count("downloaded ") == 2 + 1 + 10
    before = [one.getMessage().partition(" to ")[0] for one in caplog.records if one.levelno == logging.WARNING]
    bucket_of = "of memory://bucket"
    assert before == [
        f"downloading 2 files {bucket_of}/train-{{000..001}}.tar",
        f"downloading 1 file {bucket_of}/table.csv",
        f"downloading 10 files {bucket_of}/photos",
    ]
    caplog.clear()
    load("memory://bucket/train-{000..001}.tar", "test", root=tmp_path)
    assert "downloaded" not in caplog.text
    bucket.pipe("/bucket/train-001.tar", archive(range(20, 30)))
    assert 29 in load("memory://bucket/train-{000..001}.tar", root=tmp_path).__getitems__(list(range(16))).views[0]
    assert "train-001.tar has changed" in caplog.text
    assert "train-000.tar has changed" not in caplog.text
    bucket.store.clear()
    with raises_usage_error("data.not_found", "memory://bucket/train-000.tar"):
        load("memory://bucket/train-{000..001}.tar", root=tmp_path)


def test_uses_the_cached_copy_of_an_unreachable_url(
    bucket: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    load("memory://bucket/table.csv", root=tmp_path)

    def cut(*args: Any) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(type(bucket), "isdir", cut)
    assert len(load("memory://bucket/table.csv", root=tmp_path)) == 8
    assert "memory://bucket/table.csv cannot be reached (no route)" in caplog.text
    with raises_usage_error("data.unreadable", "other.csv"):
        load("memory://bucket/other.csv", root=tmp_path)


def test_files_by_url(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.ones((10, 3)))
    assert load(f"file://{tmp_path}/rows.npy", root=tmp_path / "cache").shapes == ((3,),)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("nowhere://bucket/x.csv", ("data.unreadable", "x.csv")),
        ("memory://a{0..1}/x.csv", ("data.braces",)),
    ],
)
def test_rejects_unreachable_urls(url: str, expected: tuple[str, ...], tmp_path: Path) -> None:
    with raises_usage_error(*expected):
        load(url, root=tmp_path)


def test_rejects_paths_outside_of_the_folder(bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(bucket), "find", lambda _, path: [f"{path}/a/0.png", f"{path}/../0.png"])
    with raises_usage_error("data.outside_folder", "photos/../0.png"):
        load("memory://bucket/photos", root=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_removes_files_that_the_url_no_longer_has(
    bucket: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bucket.pipe("/bucket/photos/.hidden.json", b"{}")
    load("memory://bucket/photos", root=tmp_path)
    bucket.mv("/bucket/photos/a/0.png", "/bucket/photos/b/0.png")
    again = load("memory://bucket/photos", root=tmp_path, test_fraction=0)
    assert sorted(Path(key).parts[-2:] for key in again.keys)[4] == ("b", "0.png")
    assert (len(again), again.labels.bincount().tolist()) == (10, [4, 6])
    assert "removed 1 file" in caplog.text


def test_progress_of_downloads_counts_files_and_megabytes(
    bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages: list[tuple[int | None, list[str]]] = []

    class RecordedBars(ProgressBars):
        def __init__(self, *, shown: bool) -> None:
            super().__init__(shown=shown)
            self._shown = shown  # also without a terminal

        @contextmanager
        def open_step_bar(self, total: int | None, description: str = "") -> Iterator[Callable[[str], None]]:
            steps: list[str] = []
            messages.append((total, steps))
            yield steps.append

    monkeypatch.setattr(url_cache, "ProgressBars", RecordedBars)
    monkeypatch.setattr(url_cache, "BYTES_PER_MEGABYTE", 1_000)
    url = "memory://bucket/train-{000..001}.tar"
    load(url, root=tmp_path)
    size = len(archive(range(10)))
    assert size > 3_000
    of_files, *of_bytes = messages
    assert of_files == (2, [f"files of {url}"] * 2)
    assert of_bytes == [(size // 1_000, [f"MB of train-00{n}.tar"] * (size // 1_000)) for n in range(2)]
    load(url, root=tmp_path)
    assert len(messages) == 3, "expected no second download"
