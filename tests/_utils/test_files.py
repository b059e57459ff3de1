"""Atomic writes, checksums and leftovers if the writing process is killed; mapped arrays."""

from __future__ import annotations

import gc
import hashlib
import os
import shutil
import subprocess
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import contraport
from contraport._utils import files
from contraport._utils.files import (
    atomic_write,
    check_checksum_if_present,
    checksum_path,
    delete_paths,
    list_leftovers,
    read_npy_array,
    read_npz_arrays,
    stage_files,
    write_checksum,
    write_text,
)
from contraport.feature_files import read_features
from contraport.training.step.target_parser import read_pairwise_matrix
from tests import TIMEOUT


def write_damaged_archive(path: Path, name: str) -> Path:
    """Write a file with the first bytes of a zip archive that is not an archive."""
    file = path / name
    file.write_bytes(b"PK\x03\x04" + bytes(100))
    return file


@pytest.mark.parametrize("name", ["a.npz", "a.npy"])
def test_damaged_archives_are_closed(tmp_path: Path, name: str) -> None:
    file = write_damaged_archive(tmp_path, name)
    readers: list[Callable[[Path], Any]] = [
        read_npz_arrays if name.endswith("z") else read_npy_array,
        read_features,
        lambda path: contraport.data.load(str(path), "train"),
        lambda path: read_pairwise_matrix(str(path), 3),
    ]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for read in readers:
            with pytest.raises((ValueError, zipfile.BadZipFile)):
                read(file)
        gc.collect()
    assert [str(one.message) for one in caught if issubclass(one.category, ResourceWarning)] == []


def test_npz_and_npy_are_not_confused(tmp_path: Path) -> None:
    np.savez(tmp_path / "many.npy.npz", x=np.ones(3))
    np.save(tmp_path / "one.npy", np.arange(3))
    assert read_npz_arrays(tmp_path / "many.npy.npz")["x"].tolist() == [1, 1, 1]
    assert read_npy_array(tmp_path / "one.npy").tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match=r"\.npz"):
        read_npy_array(tmp_path / "many.npy.npz")
    with pytest.raises(ValueError, match=r"\.npy"):
        read_npz_arrays(tmp_path / "one.npy")


class Killed(BaseException):
    """Simulated end of a process, without clean-up by handlers of exceptions."""


def kill_at_rename(call: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Raise `Killed` at all renames and deletions of files after the first `call` ones."""
    calls: list[str] = []
    real = {name: getattr(os, name) for name in ("replace", "unlink")}

    def build_counting_change(name: str) -> Callable[..., Any]:
        def change(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            if len(calls) > call:
                raise Killed
            return real[name](*args, **kwargs)

        return change

    for name in real:
        monkeypatch.setattr(os, name, build_counting_change(name))
    return calls


def write_checked(path: Path, text: str) -> None:
    with atomic_write(path, checksum=True) as temporary:
        temporary.write_text(text)


def write_folder(folder: Path, text: str) -> None:
    with stage_files(folder) as temporary:
        (temporary / "config.json").write_text("{}")
        (temporary / "weights").write_text(text)
        write_checksum(temporary / "weights")


def test_leftovers_are_temporary_files_and_staging_folders(tmp_path: Path) -> None:
    for name in ("weights", "config.json", "a.tar.gz"):
        with atomic_write(tmp_path / name, checksum=True) as temporary:
            temporary.write_text("half")
            assert list_leftovers(tmp_path) == [temporary]
    with stage_files(tmp_path / "model") as temporary:
        assert list_leftovers(tmp_path) == [temporary]
    assert list_leftovers(tmp_path) == []


def test_deletes_only_leftovers(tmp_path: Path) -> None:
    other_folders = {
        tmp_path / name
        for name in (".model-1", ".model-ab12xyz", f"model-{'0a' * 16}", f".model-{'0a' * 16}b", f".{'0a' * 16}")
    }
    for path in other_folders:
        path.mkdir()
    staged = ["model-ab12_xyz", f"model-{'0a' * 16}"]  # the first has the name of an earlier version
    leftovers = [tmp_path / f".{name}" for name in (*staged, f"last-{'1b' * 16}", f"last-{'1b' * 16}.ckpt")]
    for path in leftovers[:2]:
        path.mkdir()
    for path in (leftovers[0] / "weights", leftovers[1] / "weights", *leftovers[2:]):
        path.write_text("half")
    assert sorted(list_leftovers(tmp_path)) == sorted(leftovers)
    delete_paths(list_leftovers(tmp_path))
    assert {*tmp_path.iterdir()} == other_folders


def test_checksum_equals_that_of_sha256sum(tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    write_checked(path, "content")
    assert checksum_path(path).read_text() == f"{hashlib.sha256(b'content').hexdigest()}  last.ckpt\n"
    if shutil.which("sha256sum"):
        subprocess.run(["sha256sum", "--check", "last.ckpt.sha256"], cwd=tmp_path, check=True, timeout=TIMEOUT)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["last.ckpt", "last.ckpt.sha256"]


def test_detects_every_flipped_bit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_checked(path, "content")
    check_checksum_if_present(path)
    content = path.read_bytes()
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(ValueError, match=r"file\.sha256"):
            check_checksum_if_present(path)
    path.write_bytes(content[:-1])
    with pytest.raises(ValueError, match=r"file\.sha256"):
        check_checksum_if_present(path)
    path.write_bytes(content)
    for wrong in ("", "\n", "no digest", "\x00" * 64):
        checksum_path(path).write_text(wrong)
        with pytest.raises(ValueError, match=r"file\.sha256"):
            check_checksum_if_present(path)
    checksum_path(path).unlink()
    check_checksum_if_present(path)  # a file without a checksum


@pytest.mark.parametrize("write", [write_checked, write_folder])
def test_file_is_valid_whenever_the_writer_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path, str], None]
) -> None:
    result = set()
    place = tmp_path / "place"
    path = place / "weights" if write is write_folder else place
    write(place, "0")
    for call in range(40):
        before = path.read_text()
        with monkeypatch.context() as patch:
            kill_at_rename(call, patch)
            try:
                write(place, str(call + 1))
            except Killed:
                killed = True
            else:
                killed = False
        check_checksum_if_present(path)
        assert path.read_text() in (before, str(call + 1))
        result.add(path.read_text() == before)
        if not killed:
            break
    assert not killed
    assert result == {True, False}
    write(place, "end")
    assert len(checksum_path(path).read_text().splitlines()) == 1, "expected no checksum of earlier contents"
    check_checksum_if_present(path)


def test_file_is_flushed_before_it_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    replace, fsync = os.replace, os.fsync
    monkeypatch.setattr(files.os, "fsync", lambda number: order.append("fsync") or fsync(number))
    monkeypatch.setattr(files.os, "replace", lambda *paths: order.append("replace") or replace(*paths))
    write_text(tmp_path / "file", "text")
    assert order == ["fsync", "replace"]


def test_large_uncompressed_arrays_of_an_npz_are_mapped(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MIN_MAPPED_BYTES", 200)
    random = np.random.default_rng(0)
    arrays = {
        "view0": random.normal(size=(7, 5)).astype(np.float32),
        "odd name": random.normal(size=(7, 5, 3)),
        "pixels": random.integers(0, 256, (7, 6, 6, 3), dtype=np.uint8),
        "fortran": np.asfortranarray(random.normal(size=(7, 5))),
        "small": np.ones((2, 3)),
        "labels": np.arange(300),
        "texts": np.array(["a", "bc"] * 100),
    }
    np.savez(tmp_path / "data.npz", **arrays)
    read = read_npz_arrays(tmp_path / "data.npz", mapped=True)
    assert list(read) == list(arrays)
    for name, array in arrays.items():
        assert np.array_equal(read[name], array)
        assert isinstance(read[name], np.memmap) == (name in ("view0", "odd name", "pixels"))
    assert not any(isinstance(array, np.memmap) for array in read_npz_arrays(tmp_path / "data.npz").values())


def test_a_large_compressed_array_of_an_npz_is_read_with_advice(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(files, "MIN_MAPPED_BYTES", 200)
    np.savez_compressed(tmp_path / "data.npz", x=np.eye(20), y=np.eye(30))
    with caplog.at_level("INFO", logger="contraport.data"):
        for _ in range(2):
            assert type(read_npz_arrays(tmp_path / "data.npz", mapped=True)["x"]) is np.ndarray
    assert len(caplog.messages) == 1
    assert "np.savez" in caplog.messages[0]


def test_a_damaged_array_of_an_npz_is_not_mapped(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MIN_MAPPED_BYTES", 200)
    np.savez(tmp_path / "data.npz", x=np.eye(20))
    content = bytearray((tmp_path / "data.npz").read_bytes())
    content[1_000] ^= 1
    (tmp_path / "data.npz").write_bytes(content)
    with pytest.raises(zipfile.BadZipFile):
        read_npz_arrays(tmp_path / "data.npz", mapped=True)
