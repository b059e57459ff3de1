"""Recommended training commands: one per kind of data, accepted by `contraport train`."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import contraport
from contraport.catalog.recommendations import USE_CASES
from contraport.cli.commands import get_command
from contraport.cli.parsing import parse_command_line
from contraport.data import Dataset, from_arrays
from contraport.training.advise import CommandAdvice
from contraport.training.start_warnings import find_default_objective_warning
from tests.errors import raises_usage_error

rng = np.random.default_rng(0)
VECTORS = rng.normal(size=(40, 5)).astype("float32")
TEXTS = [f"text {number}" for number in range(40)]


def build_dataset(views: dict[str, object], **metadata: object) -> Dataset:
    return from_arrays(views, name="things", **metadata)


CASES = {
    "one view": (build_dataset({"a": VECTORS}), {}, "--objective nt-xent"),
    "two views": (build_dataset({"a": VECTORS, "b": VECTORS + 1}), {}, "--objective info-nce"),
    "three views": (build_dataset({"a": VECTORS, "b": VECTORS, "c": VECTORS}), {}, "--recipe cmc"),
    "texts": (build_dataset({"a": TEXTS}), {}, "--recipe simcse"),
    "pairs of texts": (build_dataset({"a": TEXTS, "b": TEXTS}), {}, "--temperature 0.05 --projection 0"),
    "text and vectors": (build_dataset({"a": VECTORS, "b": TEXTS}), {}, "--recipe clip"),
    "labels": (build_dataset({"a": VECTORS}, labels=[0, 1] * 20), {"use_labels": True}, "--objective sup-con"),
    "few dimensions": (build_dataset({"a": VECTORS}), {"dimensions": 2}, "--objective t-simclr --projection 2"),
    "wrong pairs": (build_dataset({"a": VECTORS, "b": VECTORS + 1}), {"wrong_pairs": True}, "--audit"),
    "wrong views": (
        build_dataset({"a": VECTORS, "b": VECTORS, "c": VECTORS}),
        {"wrong_pairs": True},
        "--recipe cmc --audit",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_command_fits_the_data_and_is_accepted(case: str) -> None:
    data, options, expected = CASES[case]
    advice = contraport.advise(data, **options)
    assert expected in advice.command
    words = shlex.split(advice.command)
    assert words[:2] == ["contraport", "train"]
    assert parse_command_line(get_command("train"), words[2:], prog="contraport train") is not None
    assert {reason.use_case for reason in advice.reasons} <= {case.name for case in USE_CASES}


def test_lists_alternatives_for_labels_and_domains() -> None:
    data = build_dataset({"a": VECTORS}, labels=[0] * 38 + [1] * 2, domains=[0, 1] * 20)
    options = [reason.options for reason in contraport.advise(data).alternatives]
    assert options == ["--objective sup-con", "--sample_weight classes", "--target domains:alpha=0.1,beta=0"]


@pytest.mark.parametrize(("installed", "encoder"), [(True, "lite0"), (False, "resnet18")])
def test_recommends_fixed_weights_for_few_photos(
    installed: bool, encoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("contraport.training.advise.are_lite0_weights_installed", lambda: installed)
    advice = contraport.advise(build_dataset({"a": np.zeros((40, 3, 8, 8), np.uint8)}))
    assert f"--encoder {encoder} " in advice.command
    assert "--freeze" in advice.command
    assert ("contraport[weights]" in str(advice)) != installed
    assert (
        parse_command_line(get_command("train"), shlex.split(advice.command)[2:], prog="contraport train") is not None
    )


@pytest.mark.parametrize(("items", "channels", "expected"), [(40, 1, True), (401, 1, False), (40, 2, False)])
def test_recommends_gradients_for_few_gray_images(items: int, channels: int, expected: bool) -> None:
    advice = contraport.advise(build_dataset({"a": np.zeros((items, channels, 8, 8), np.uint8)}))
    assert ("--encoder gradients --augment mixup" in advice.command) == expected
    assert (
        parse_command_line(get_command("train"), shlex.split(advice.command)[2:], prog="contraport train") is not None
    )


def test_lists_weighted_ngrams_for_pairs_of_texts() -> None:
    alternatives = contraport.advise(CASES["pairs of texts"][0]).alternatives
    assert [alternative.options for alternative in alternatives] == ["--encoder weighted-ngrams"]


def test_rejects_use_of_missing_labels() -> None:
    with raises_usage_error("use_labels.no_labels"):
        contraport.advise(build_dataset({"a": VECTORS}), use_labels=True)


@pytest.mark.parametrize(
    ("rows", "options", "code"), [(1, {}, "data.invalid"), (40, {"use_labels": True}, "use_labels.constant")]
)
def test_rejects_data_that_cannot_be_trained_on(rows: int, options: dict[str, bool], code: str) -> None:
    data = build_dataset({"a": VECTORS[:rows], "b": VECTORS[:rows] + 1}, labels=[0] * rows)
    with raises_usage_error(code):
        contraport.advise(data, **options)


def test_command_ignores_labels_of_folders_on_request(tmp_path: Path) -> None:
    for name in ("a/0", "b/1", "2"):  # the last image has no class folder
        file = tmp_path / "images" / f"{name}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (int(name[-1]), 0, 0)).save(file)
    with raises_usage_error("data.mixed_folders"):
        contraport.advise(tmp_path / "images")
    advice = contraport.advise(tmp_path / "images", ignore_labels=True)
    assert "--ignore_labels true" in advice.command


def test_does_not_suggest_labels_of_one_class() -> None:
    advice = contraport.advise(build_dataset({"a": VECTORS}, labels=[0] * 40))
    assert not [one for one in advice.alternatives if one.use_case == "labels"]


def test_command_line_prints_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    from contraport.cli import main

    assert main(["advise", "digits"]) == 0
    assert capsys.readouterr().out.startswith("contraport train --data digits --objective nt-xent")


def test_result_is_text() -> None:
    assert str(CommandAdvice("contraport train", ())).strip() == "contraport train"


@pytest.mark.parametrize(
    ("case", "options", "expected"),
    [("one view", {}, False), ("three views", {}, True), ("three views", {"recipe": "cmc"}, False)],
)
def test_training_suggests_an_objective_if_none_was_chosen(
    case: str, options: dict[str, object], expected: bool
) -> None:
    suggestion = find_default_objective_warning(CASES[case][0], options)
    assert (suggestion is not None and "recipe='cmc'" in suggestion) == expected


WAVES = np.sin(np.arange(48) * 0.3 + rng.uniform(0, 6, (80, 1))) + 0.2 * rng.normal(size=(80, 48))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (WAVES, True),
        (rng.normal(size=(80, 48)), False),
        (rng.normal(size=(80, 1)) + 0.2 * rng.normal(size=(80, 48)), False),  # correlated in any order
        (WAVES[:, rng.permutation(48)], False),
        (WAVES[:, None], False),
        (WAVES[:, :8], False),
        (np.ones((80, 48)), False),
    ],
    ids=["waves", "noise", "common factor", "shuffled columns", "recordings", "few columns", "constant"],
)
def test_advice_notes_that_columns_may_be_time_steps(values: np.ndarray, expected: bool) -> None:
    advice = contraport.advise(from_arrays(values))
    assert (advice.series_note is not None and "(n, 1, 48)" in advice.series_note) == expected
    assert (str(advice.series_note) in str(advice)) == expected


def test_training_notes_that_columns_may_be_time_steps(tmp_path: Path) -> None:
    run = contraport.train(data=from_arrays(WAVES), epochs=1, out=tmp_path / "run", progress=False)
    assert "(n, 1, 48)" in (run.path / "train.log").read_text()
