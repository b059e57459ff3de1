"""Cache of arrays: keys match arrays under concurrent writers, full disks, reserved space, locks."""

from __future__ import annotations

import errno
import json
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contraport._utils import locks
from contraport._utils.array_cache import arrays_to_fill_and_cache, find_cached_arrays, load_or_build_arrays
from contraport._utils.files import preallocate_memmap
from contraport._utils.locks import LOCK_FILE
from tests.errors import raises_usage_error


def cache_key(seed: int) -> dict[str, Any]:
    return {"seed": seed, "shapes": [[3]], "dtype": "float32"}


def test_key_file_matches_its_arrays_with_concurrent_writers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), arrays_to_fill_and_cache(tmp_path, cache_key(1)) as (first_arrays,):  # noqa: PT012
        first_arrays[:] = 1
        with arrays_to_fill_and_cache(tmp_path, cache_key(2)) as (second_arrays,):  # as a concurrent process
            second_arrays[:] = 2
        monkeypatch.setattr("contraport._utils.array_cache.write_json", interrupt)
    arrays = find_cached_arrays(tmp_path, cache_key(2))
    assert arrays is None or (arrays[0] == 2).all()


def failing_fallocate(code: int) -> Any:
    def fallocate(*args: object) -> None:
        raise OSError(code, os.strerror(code))

    return fallocate


def test_full_disk_is_reported_before_computation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without reserved space a write to a full disk kills the process with SIGBUS."""
    monkeypatch.setattr(os, "posix_fallocate", failing_fallocate(errno.ENOSPC), raising=False)
    with raises_usage_error("features.not_writable", tmp_path / "kept", "No space left", "MB"):
        load_or_build_arrays(
            tmp_path / "kept", cache_key(1), lambda arrays: pytest.fail("filled"),
            description="features", argument="features", log=logging.getLogger("test"),
        )  # fmt: skip
    assert list(tmp_path.iterdir()) == []


def size_on_disk(path: Path) -> int:
    return 512 * getattr(path.stat(), "st_blocks", 0)


@pytest.mark.parametrize("system", ["own", "without fallocate", "file system without"])
def test_disk_space_of_array_is_reserved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str) -> None:
    if system == "without fallocate":
        monkeypatch.delattr(os, "posix_fallocate", raising=False)
    elif system == "file system without":
        monkeypatch.setattr(os, "posix_fallocate", failing_fallocate(errno.EOPNOTSUPP), raising=False)
    path = tmp_path / "array.npy"
    array = preallocate_memmap(path, (3, 2**18), "float32")
    (tmp_path / "zeros").write_bytes(bytes(array.nbytes))
    if size_on_disk(tmp_path / "zeros") >= array.nbytes:  # not on a file system with compression
        assert size_on_disk(path) >= array.nbytes, "expected a file that is not sparse"
    array[1] = 7
    array.flush()
    assert np.array_equal(np.load(path).mean(1), [0, 7, 0])


def test_second_process_waits_and_loads_arrays_of_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise arrays of both processes could be mixed in the folder."""
    calls = list[str]()

    def finish_first_process(seconds: float) -> None:
        calls.append("waited")
        with arrays_to_fill_and_cache(tmp_path, cache_key(1)) as (cached,):
            cached[:] = 1
        (tmp_path / LOCK_FILE).unlink()

    tmp_path.joinpath(LOCK_FILE).write_text(json.dumps(locks._build_process_record()))
    monkeypatch.setattr(locks.time, "sleep", finish_first_process)
    (array,) = load_or_build_arrays(
        tmp_path, cache_key(1), lambda arrays: calls.append("made"),
        description="features", argument="features", log=logging.getLogger("test"),
    )  # fmt: skip
    assert calls == ["waited"]
    assert array.tolist() == [1, 1, 1]
