"""Arrays that are kept in a folder: what is told of them is so, whoever else writes there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from contraport.kept import making, opened


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
        monkeypatch.setattr("contraport.kept.write_json", killed)
    found, _ = opened(tmp_path, made_of(2))
    assert found is None or (found[0] == 2).all()
