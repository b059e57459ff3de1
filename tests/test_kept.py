"""Arrays that are kept in a folder: what is told of them is so, whoever else writes there."""

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
from contraport._utils.array_cache import load_or_build_arrays, making, opened
from contraport._utils.files import create_memmap
from contraport._utils.locks import LOCK
from contraport.errors import UsageError


def made_of(seed: int) -> dict[str, Any]:
    return {"seed": seed, "shapes": [[3]], "dtype": "float32"}


def test_arrays_of_one_process_are_not_taken_for_those_of_another_that_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*given: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), making(tmp_path, made_of(1)) as (ours,):  # noqa: PT012
        ours[:] = 1
        with making(tmp_path, made_of(2)) as (theirs,):  # as a process beside this one would
            theirs[:] = 2
        monkeypatch.setattr("contraport._utils.array_cache.write_json", killed)
    found, _ = opened(tmp_path, made_of(2))
    assert found is None or (found[0] == 2).all()


def refused(code: int) -> Any:
    def fallocate(*given: object) -> None:
        raise OSError(code, os.strerror(code))

    return fallocate


def test_a_full_disk_is_an_error_before_anything_is_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without reserved space the first page that finds the disk full ends the process by SIGBUS."""
    monkeypatch.setattr(os, "posix_fallocate", refused(errno.ENOSPC), raising=False)
    with pytest.raises(
        UsageError, match=r"features: .*kept cannot be written to: .*No space left .* MB of its disk are"
    ):
        load_or_build_arrays(
            tmp_path / "kept", made_of(1), lambda arrays: pytest.fail("filled"),
            what="features", argument="features", log=logging.getLogger("test"),
        )  # fmt: skip
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("system", ["own", "without fallocate", "file system without"])
def test_the_space_of_an_array_is_reserved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str) -> None:
    if system == "without fallocate":
        monkeypatch.delattr(os, "posix_fallocate", raising=False)
    elif system == "file system without":
        monkeypatch.setattr(os, "posix_fallocate", refused(errno.EOPNOTSUPP), raising=False)
    path = tmp_path / "array.npy"
    array = create_memmap(path, (3, 2**18), "float32")
    if hasattr(state := path.stat(), "st_blocks"):
        assert state.st_blocks * 512 >= array.nbytes, "the file is sparse"
    array[1] = 7
    array.flush()
    assert np.array_equal(np.load(path).mean(1), [0, 7, 0])


def test_a_second_process_waits_for_the_first_and_takes_what_it_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of the two, one of which replaced the other's, would be taken for those of one."""
    calls = list[str]()

    def first_ends(seconds: float) -> None:
        calls.append("waited")
        with making(tmp_path, made_of(1)) as (theirs,):
            theirs[:] = 1
        (tmp_path / LOCK).unlink()

    tmp_path.joinpath(LOCK).write_text(json.dumps(locks._this_process()))
    monkeypatch.setattr(locks.time, "sleep", first_ends)
    (array,) = load_or_build_arrays(
        tmp_path, made_of(1), lambda arrays: calls.append("made"),
        what="features", argument="features", log=logging.getLogger("test"),
    )  # fmt: skip
    assert calls == ["waited"]
    assert array.tolist() == [1, 1, 1]
