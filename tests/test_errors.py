"""Usage errors: argument, code and notes, also after pickling, in worker processes and in all subclasses."""

from __future__ import annotations

import math
import multiprocessing
import pickle
import re
from concurrent.futures import ProcessPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

import contraport
from contraport.cli import main
from contraport.data.streams import StreamReadError
from contraport.errors import (
    MAX_LISTED_NAMES,
    FolderInUseError,
    UsageError,
    add_hint_if_missing,
    check_integer,
    check_positive,
    format_value,
    hint_on_error,
    rename_argument,
    suggest_names,
    type_and_shape,
    unknown_name_error,
)
from tests import TIMEOUT
from tests.errors import raises_usage_error


@pytest.mark.parametrize(
    ("message", "kind", "argument", "code"),
    [
        ("batch_size: must be at least 1, got 0.", "invalid", "batch_size", "batch_size.invalid"),
        ("out: /tmp/a exists.", "exists", "out", "out.exists"),
        ("report needs the package 'jinja2'.", "missing_package", None, "missing_package"),
    ],
)
def test_argument_and_code_come_from_message_and_kind(message: str, kind: str, argument: str | None, code: str) -> None:
    error = UsageError(message, kind=kind)
    assert (error.argument, error.code, str(error)) == (argument, code, message)


@pytest.mark.parametrize("error_class", [UsageError, FolderInUseError, StreamReadError])
def test_code_and_notes_survive_pickling(error_class: type[UsageError]) -> None:
    error = error_class("out: is in use.", kind="in_use")
    add_hint_if_missing(error, "contraport docs training")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is error_class
    assert (copy.code, copy.argument, str(copy)) == ("out.in_use", "out", "out: is in use.")
    assert copy.__notes__ == ["More: contraport docs training"]


@pytest.mark.parametrize("value", [True, Fraction(1, 2), "1", None, math.nan, 1e39, 1e-300, 0, np.float32])
def test_positive_numbers_are_those_of_single_precision(value: object) -> None:
    with raises_usage_error("lr.invalid"):
        check_positive("lr", value)


def test_a_class_of_arrays_is_not_described_as_an_array() -> None:
    assert type_and_shape(Tensor) == "the class Tensor"
    assert format_value(np.ndarray) == "<class 'numpy.ndarray'>"


def test_code_survives_a_worker_process() -> None:
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool, pytest.raises(UsageError) as caught:
        pool.submit(check_integer, "epochs", 0).result(timeout=TIMEOUT)
    assert caught.value.code == "epochs.invalid"


@pytest.mark.parametrize("code", ["features.not_finite", "features.shape"])
def test_errors_name_the_argument_of_the_caller(code: str) -> None:
    with raises_usage_error(code.replace("features", "rows"), "rows: is wrong"), rename_argument("rows", "features"):
        raise UsageError("features: is wrong", kind=code.partition(".")[2])
    with raises_usage_error("device.invalid"), rename_argument("rows", "features"):
        raise UsageError("device: is wrong")


@pytest.mark.parametrize(
    ("command", "options"),
    [
        (contraport.cluster, {"k": 2, "out": "c.csv"}),
        (contraport.cluster, {"k": 2, "page": "c.html"}),
        (contraport.neighbors, {"query": 0, "page": "new/c.html"}),
        (contraport.duplicates, {"page": "c.html"}),
        (contraport.map, {"out": "map", "perplexity": 2}),
        (contraport.map, {"out": "empty", "perplexity": 2}),
        (contraport.inverse_ot, {"out": "cost"}),
        (contraport.mine, {"data": np.eye(5), "out": "mined.npy"}),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_rejects_output_in_a_folder_that_is_not_writable(
    command: Any, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a patched `os.access`, as root may write to any folder."""
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.access", lambda path, mode: not Path(path).is_relative_to(tmp_path))
    with raises_usage_error("*.not_writable", tmp_path):
        command(np.eye(5) if command is not contraport.mine else "rows.npy", **options)


def test_innermost_hint_is_kept() -> None:
    with pytest.raises(UsageError) as caught, hint_on_error("outer"), hint_on_error("inner"):
        raise unknown_name_error("objective", "gca-uott", ["nt-xent", "gca-uot"])
    assert caught.value.__notes__ == ["More: inner"]
    assert caught.value.code == "objective.unknown"


def test_suggests_only_similar_names() -> None:
    assert "did you mean" not in str(unknown_name_error("objective", "foo", ["moco", "gca-uot"]))
    assert "did you mean 'gca-uot'" in str(unknown_name_error("objective", "gca", ["moco", "gca-uot"]))


@pytest.mark.parametrize(
    ("name", "valid", "nearest"),
    [
        ("temp", ["steps", "temperature"], "temperature"),
        ("tau", ["target", "temperature"], "temperature"),
        ("learning-rate", ["learn", "lr"], "lr"),
        ("temperatrue", ["temperature", "temperature_schedule"], "temperature"),
        ("tau", ["teacher"], None),
    ],
)
def test_suggests_a_synonym_or_a_longer_name_before_similar_letters(
    name: str, valid: list[str], nearest: str | None
) -> None:
    assert suggest_names(name, valid) == ([] if nearest is None else [nearest])
    assert suggest_names("dims", ["dimensions", "matryoshka", "projection"], 2) == ["matryoshka", "projection"]


def test_lists_the_nearest_of_many_names() -> None:
    names = [f"name{number}" for number in range(30)]
    message = str(unknown_name_error("data", "name33", names))
    assert sum(name in re.split(r"\W+", message) for name in names) == MAX_LISTED_NAMES


def test_lists_none_of_many_names_if_none_is_similar() -> None:
    names = [f"name{number}" for number in range(30)]
    error = unknown_name_error("data", "xyz", names, list_command="contraport list data")
    assert error.code == "data.unknown"
    assert "see `contraport list data`" in str(error)
    assert not any(name in str(error) for name in names)
    assert "see" not in str(unknown_name_error("data", "xyz", names))


@pytest.mark.parametrize(
    ("words", "option", "hint"),
    [
        (["docs", "qqqq"], "page", "see `contraport docs`"),
        (["qqqq"], "command", "see `contraport --help`"),
        (["train", "--objective", "qqqq"], "objective", "see `contraport list objectives`"),
        (["train", "--recipe", "qqqq"], "recipe", "see `contraport list recipes`"),
        (["train", "--data", "qqqq"], "data", "see `contraport list data`"),
        (["compare", "--suite", "qqqq"], "suite", "see `contraport list suites`"),
        (["compare", "--data", "digits", "--objectives", "qqqq"], "objectives", "contraport list objectives"),
        (["compare", "--data", "digits", "--metrics", "qqqq"], "metrics", "see `contraport list metrics`"),
    ],
)
def test_error_of_a_dissimilar_name_names_the_list_command(
    words: list[str], option: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"contraport: {option}: ")
    assert hint in printed
    assert "similar:" not in printed


def test_unknown_keyword_of_an_objective_names_the_known_ones() -> None:
    with pytest.raises(TypeError, match=r"'tau'.*temperature"):
        contraport.nt_xent(tau=1)
    with pytest.raises(TypeError, match="did you mean 'temperature'"):
        contraport.nt_xent(temperatur=1)
