"""Options: one declaration gives the keyword, the flag, the check and the help; deprecated names still work."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from contraport._utils.formatting import use_flag_style
from contraport.cli.parsing import parse
from contraport.command import Command
from contraport.options import int_in_range, option
from contraport.training.config import Settings
from tests.errors import raises_usage_error


@dataclass(frozen=True, kw_only=True)
class ExtendedSettings(Settings):
    patience: int | None = option(
        None, "Epochs without improvement.", check=int_in_range(2), group="early stopping", formerly="wait"
    )


COMMAND = Command(ExtendedSettings, "nowhere:learn", "Learn.")


@COMMAND.with_signature
def learn(options: dict[str, Any]) -> ExtendedSettings:
    """Learn.

    Raises:
        UsageError: an invalid setting.
    """
    return ExtendedSettings(**options)


def test_new_option_is_a_keyword() -> None:
    assert learn(patience=3, epochs=2) == ExtendedSettings(patience=3, epochs=2)
    assert "    patience: Epochs without improvement.\n\nRaises:" in (inspect.getdoc(learn) or "")


def test_new_option_is_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse(COMMAND, ["--patience", "3"], prog="learn") == {"patience": 3}
    with raises_usage_error("patience.invalid", "much"):
        parse(COMMAND, ["--patience", "much"], prog="learn")
    assert parse(COMMAND, ["--help"], prog="learn") is None
    assert "early stopping: --patience PATIENCE Epochs without improvement." in " ".join(
        capsys.readouterr().out.split()
    )


def test_new_option_checks_its_values() -> None:
    with raises_usage_error("patience.invalid", 1):
        learn(patience=1)


def test_deprecated_keyword_works_with_one_warning() -> None:
    with pytest.warns(FutureWarning, match=r"wait.*patience") as caught:
        assert learn(wait=3).patience == 3  # type: ignore[call-arg]
    assert [Path(warning.filename).name for warning in caught] == ["test_options.py"]
    with raises_usage_error("patience.conflict", "wait"):
        learn(wait=3, patience=4)  # type: ignore[call-arg]


@pytest.mark.parametrize("words", [["--wait", "3"], ["--wait=3"], ["--config", "old.yaml"]])
def test_deprecated_flag_and_config_entry_work_with_one_line(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("old.yaml").write_text("wait: 3\nmomentum: 0.99:1:cosine\n")
    with use_flag_style():
        options = parse(COMMAND, words, prog="learn")
    assert options is not None
    assert options["patience"] == 3
    assert options.get("momentum", "0.99:1:cosine") == "0.99:1:cosine"
    (record,) = caplog.records
    assert "--wait" in record.getMessage()
    assert "--patience" in record.getMessage()
