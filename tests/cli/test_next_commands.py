"""Proposed commands in errors and results: each runs as printed."""

from __future__ import annotations

import csv
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.cli.conftest import Outcome

Command = Callable[..., Outcome]

FEW_STEPS = ("--epochs", "2", "--device", "cpu", "--progress", "false")


def write_table(path: Path, columns: Sequence[str], *, rows: int = 120, wrong: int = 0) -> str:
    """Write a table of numbers; the second half of its columns depends on the first, except in `wrong` rows."""
    random, half = np.random.default_rng(0), len(columns) // 2
    first = random.normal(size=(rows, half))
    second = first @ random.normal(size=(half, len(columns) - half))
    second[:wrong] = np.roll(second[:wrong], wrong // 2, axis=0)
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
    failed = command(*words, "--data", data, *FEW_STEPS)
    assert failed.status == 2
    (proposed,) = printed_commands(failed.err, "try: ")
    assert proposed[: len(words)] == list(words)
    assert command(*proposed).status == 0
    assert (tmp_path / "out").exists()


def test_no_command_is_proposed_for_ambiguous_columns(command: Command, tmp_path: Path) -> None:
    for columns in (["height"], [f"{letter}{number}" for number, letter in enumerate("abcdefghijklmnopqrstuvwxyz")]):
        failed = command("audit", "--data", write_table(tmp_path / "table.csv", columns))
        assert failed.status == 2
        assert "try: " not in failed.err


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


def test_advice_suggests_views_only_for_columns_that_may_be_views(command: Command, tmp_path: Path) -> None:
    advice = command("advise", write_table(tmp_path / "pairs.csv", NO_GROUPS))
    assert len(printed_commands(advice.out, "contraport")) == 1


def run_all(command: Command, outcome: Outcome, *added: str, at_most: int = 2) -> list[Outcome]:
    """Run the proposed commands of an outcome one after the other, and return their outcomes."""
    assert outcome.status == 0, outcome.err
    proposed = printed_commands(outcome.err, "next: ", "  or: ")
    assert 1 <= len(proposed) <= at_most
    outcomes = [command(*words, *(added if words[0] == "train" else ())) for words in proposed]
    for words, after in zip(proposed, outcomes, strict=True):
        assert after.status == 0, (words, after.err)
    return outcomes


QUICK = ("--epochs", "1", "--device", "cpu")


def write_pairs(folder: Path, kind: str) -> tuple[str, ...]:
    """Write 300 pairs of a kind, a fifth of them wrong, and return the options that load them."""
    random = np.random.default_rng(0)
    first = random.normal(size=(300, 4)).astype(np.float32)
    second = np.vstack([first[59::-1], first[60:]])[:, ::-1]
    if kind == "numbers":
        data = write_table(folder / "my pairs.csv", GROUPS, rows=300, wrong=60)
        return "--data", data, "--columns.views", '["left_*", "right_*"]'
    if kind == "texts":
        words = ["".join(random.choice(list("abcdefghijklmno"), size=12)) for _ in range(300)]
        lines = [
            f'{{"one": "{one}", "two": "{two}"}}' for one, two in zip(words, words[59::-1] + words[60:], strict=True)
        ]
        (folder / "texts.jsonl").write_text("\n".join(lines))
        return "--data", "texts.jsonl"
    if kind in ("arrays", "three views"):
        np.savez(folder / "views.npz", ear=first, eye=first + 0.1, hand=second)
        return "--data", "views.npz", *(() if kind == "three views" else ("--given_views", "ear", "hand"))
    (folder / "shop").mkdir()
    for name, letter, vectors in (("rows", "u", first), ("columns", "i", second)):
        table = [["id", "x", "y", "z", "w"], *([f"{letter}{row}", *vectors[row].round(3)] for row in range(300))]
        with (folder / "shop" / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows(table)
    (folder / "shop" / "pairs.csv").write_text("\n".join(["row,column", *(f"u{row},i{row}" for row in range(300))]))
    return "--data", "shop"


FAST_AUDITS = {
    "numbers": ("--method", "frozen"),
    "texts": ("--method", "crossfit", "--folds", "2", "--rounds", "1", "--encoder", "short-ngrams", *QUICK),
    "arrays": ("--method", "frozen"),
    "three views": ("--method", "frozen"),
    "coupling": ("--method", "frozen"),
}


@pytest.mark.parametrize("kind", ["numbers", "arrays", "three views", "coupling"])
def test_commands_after_an_audit_run_as_printed(command: Command, tmp_path: Path, kind: str) -> None:
    audited = command("audit", *write_pairs(tmp_path, kind), "--out", "audits/first", *FAST_AUDITS[kind])
    run_all(command, audited, *QUICK)
    train, _ = printed_commands(audited.err, "next: ", "  or: ")
    assert "--audit" in train
    assert list((tmp_path / "audits" / "first").glob("dropped*"))


def test_commands_after_an_audit_without_a_folder_run_as_printed(command: Command, tmp_path: Path) -> None:
    run_all(command, command("audit", *write_pairs(tmp_path, "numbers"), *FAST_AUDITS["numbers"]), *QUICK)
    assert (tmp_path / "audits" / "my-pairs" / "dropped.csv").exists()


@pytest.mark.parametrize(
    ("kind", "exports"),
    [
        ("numbers", ["--drop", "--weigh"]),
        ("texts", ["--repair"]),
        ("arrays", ["--drop", "--weigh"]),
        ("three views", ["--drop"]),
        ("coupling", ["--drop", "--weigh"]),
    ],
)
def test_commands_after_an_audit_train_on_the_cleaned_files(
    command: Command, tmp_path: Path, kind: str, exports: list[str]
) -> None:
    audited = command("audit", *write_pairs(tmp_path, kind), "--out", "audits/first", *exports, *FAST_AUDITS[kind])
    run_all(command, audited, *QUICK)
    proposed = printed_commands(audited.err, "next: ", "  or: ")
    assert [any("audits/first/" in word for word in words) for words in proposed] == [True] * len(exports)


def test_command_trains_on_all_pairs_if_the_mismatch_rate_is_unknown(command: Command, tmp_path: Path) -> None:
    np.savez(
        tmp_path / "views.npz", **{name: np.random.default_rng(k).normal(size=(60, 3)) for k, name in enumerate("ab")}
    )
    audited = command(
        "audit", "--data", "views.npz", "--method", "frozen", "--rounds", "1", "--out", "audits/first", "--drop"
    )
    run_all(command, audited, *QUICK)
    (train,) = printed_commands(audited.err, "next: ")
    assert train[:3] == ["train", "--data", "views.npz"]
    assert "--audit" not in train


def test_commands_after_a_training_and_an_evaluation_run_as_printed(command: Command, tmp_path: Path) -> None:
    data = write_pairs(tmp_path, "numbers")
    trained = command("train", *data, "--audit", "--out", "runs/the first", *QUICK)
    (evaluated,) = run_all(command, trained)
    run_all(command, evaluated)
    run_all(command, command("evaluate", "runs/the first"))
    assert len(list(tmp_path.glob("report*.html"))) == 2, "expected a new page for each report"
    run_all(command, command("train", *data, "--test_fraction", "0", "--out", "runs/all", *QUICK))
    assert (tmp_path / "all.npz").exists()


def test_commands_after_embed_and_map_run_as_printed(command: Command, tmp_path: Path) -> None:
    command("train", *write_pairs(tmp_path, "numbers"), "--out", "runs/it", *QUICK)
    embedded = command("embed", "runs/it", "--out", "my features.npz")
    assert embedded.out == "my features.npz\n", "expected only the path"
    run_all(command, embedded)
    (mapped,) = run_all(command, command("map", "my features.npz", "--iterations", "20"))
    run_all(command, mapped)


def test_command_after_mine_runs_as_printed(command: Command, tmp_path: Path) -> None:
    data = write_pairs(tmp_path, "numbers")
    command("train", *data, "--seed", "3", "--out", "runs/it", *QUICK)
    run_all(command, command("mine", "runs/it", "--k", "2", "--out", "of run.npy"))
    np.save("features.npy", np.random.default_rng(0).standard_normal((240, 4)))  # of the training items
    run_all(command, command("mine", "features.npy", *data, "--k", "2", "--out", "of features.npy"), "--epochs", "1")
    table = command("mine", "runs/it", "--k", "2", "--out", "triplets.csv")
    assert table.status == 0
    assert "next: " not in table.err


@pytest.mark.parametrize("kind", ["texts", "captions"])
def test_search_is_proposed_first_after_embedding_a_view(command: Command, tmp_path: Path, kind: str) -> None:
    view = "one" if kind == "texts" else "number"
    data = write_pairs(tmp_path, "texts") if kind == "texts" else ("--data", write_captioned(tmp_path))
    assert command("train", *data, "--out", "runs/it", *QUICK).status == 0
    all_views = command("embed", "runs/it", "--out", "whole.npz")
    assert [words[0] for words in printed_commands(all_views.err, "next: ", "  or: ")] == ["duplicates", "neighbors"]
    run_all(command, embedded := command("embed", "runs/it", "--view", view, "--out", "of one.npz"), at_most=3)
    (first,) = printed_commands(embedded.err, "next: ")
    assert first[:2] == ["search", "of one.npz"]
    assert ("--query_view" in first) == (kind == "texts")
    texts = command("embed", "runs/it", "--view", "caption", "--out", "texts.npz") if kind == "captions" else None
    assert texts is None or "contraport search" not in texts.err, "expected no search without another view of texts"


def write_captioned(folder: Path) -> str:
    """Write a table with a column of image files and a column of captions."""
    for row, pixels in enumerate(np.random.default_rng(0).integers(0, 255, (60, 8, 8, 3)).astype(np.uint8)):
        Image.fromarray(pixels).save(folder / f"{row}.png")
    lines = ["number,caption", *(f"{row}.png,item {row} of the shop" for row in range(60))]
    (folder / "captioned.csv").write_text("\n".join(lines))
    return "captioned.csv"


def test_no_command_without_progress_or_with_json(command: Command, tmp_path: Path) -> None:
    command("train", *write_pairs(tmp_path, "numbers"), "--out", "runs/it", *QUICK)
    for added in (["--progress", "false"], ["--json"]):
        assert "next: " not in command("embed", "runs/it", "--out", "features.npz", "--overwrite", *added).err
