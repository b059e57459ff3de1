"""Commands that an error or a result proposes: each runs as it is printed."""

from __future__ import annotations

import csv
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import Outcome

Command = Callable[..., Outcome]

FEW_STEPS = ("--epochs", "2", "--device", "cpu", "--progress", "false")


def write_table(path: Path, columns: Sequence[str], *, rows: int = 120) -> str:
    """Write a table of numbers; the second half of its columns depends on the first."""
    random, half = np.random.default_rng(0), len(columns) // 2
    first = random.normal(size=(rows, half))
    second = first @ random.normal(size=(half, len(columns) - half))
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([list(columns), *np.hstack([first, second]).round(3).tolist()])
    return path.name


def printed_commands(text: str, *starts: str) -> list[list[str]]:
    """Return the words after `contraport` of the commands in lines that begin with one of `starts`."""
    lines = [
        line.removeprefix(start.removesuffix("contraport"))
        for line in text.splitlines()
        for start in starts
        if line.startswith(start)
    ]
    words = [shlex.split(line) for line in lines]
    assert all(word[0] == "contraport" for word in words)
    return [word[1:] for word in words]


GROUPS = ["left_0", "left_1", "right_0", "right_1", "right_2"]
NO_GROUPS = ["height", "width", "age of it", "depth"]


@pytest.mark.parametrize("columns", [GROUPS, NO_GROUPS])
@pytest.mark.parametrize(
    "words", [("audit", "--out", "out"), ("train", "--audit", "--out", "out", "--batch_size", "16")]
)
def test_error_about_a_table_of_numbers_has_the_whole_command(
    command: Command, tmp_path: Path, columns: list[str], words: tuple[str, ...]
) -> None:
    data = write_table(tmp_path / "my pairs.csv", columns)
    refused = command(*words, "--data", data, *FEW_STEPS)
    assert refused.status == 2
    (proposed,) = printed_commands(refused.err, "try: ")
    assert proposed[: len(words)] == list(words)
    assert command(*proposed).status == 0
    assert (tmp_path / "out").exists()


def test_no_command_where_none_can_be_proposed(command: Command, tmp_path: Path) -> None:
    for columns in (["height"], [f"{letter}{number}" for number, letter in enumerate("abcdefghijklmnopqrstuvwxyz")]):
        refused = command("audit", "--data", write_table(tmp_path / "table.csv", columns))
        assert refused.status == 2
        assert "try: " not in refused.err


@pytest.mark.parametrize(("columns", "wrong_pairs"), [(GROUPS, False), (GROUPS, True), (NO_GROUPS, True)])
def test_advice_about_a_table_of_numbers_has_the_whole_command(
    command: Command, tmp_path: Path, columns: list[str], wrong_pairs: bool
) -> None:
    data = write_table(tmp_path / "pairs.csv", columns)
    advice = command("advise", data, "--wrong_pairs", str(wrong_pairs).lower())
    one_view, several_views = printed_commands(advice.out, "contraport")
    for words in (one_view, several_views):
        assert command(*words, *FEW_STEPS, "--overwrite").status == 0
    assert ("--audit" in several_views) == wrong_pairs


def test_advice_mentions_no_views_where_nothing_points_to_them(command: Command, tmp_path: Path) -> None:
    advice = command("advise", write_table(tmp_path / "pairs.csv", NO_GROUPS))
    assert len(printed_commands(advice.out, "contraport")) == 1
