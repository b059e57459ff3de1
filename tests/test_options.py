"""An option is one entry: its keyword, its place on the command line, its check and its help follow."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import pytest

from contraport.cli.parsing import parse
from contraport.command import Command
from contraport.errors import UsageError
from contraport.options import int_in_range, option
from contraport.training.config import Settings


@dataclass(frozen=True, kw_only=True)
class Added(Settings):
    patience: int | None = option(None, "epochs without a gain.", check=int_in_range(2), group="when to stop")


VERB = Command(Added, "nowhere:learn", "Learn.")


@VERB.with_signature
def learn(given: dict[str, Any]) -> Added:
    """Learn.

    Raises:
        UsageError: a wrong setting.
    """
    return Added(**given)


def test_a_new_option_is_a_keyword() -> None:
    assert learn(patience=3, epochs=2) == Added(patience=3, epochs=2)
    assert "    patience: epochs without a gain.\n\nRaises:" in (inspect.getdoc(learn) or "")


def test_a_new_option_is_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse(VERB, ["--patience", "3"], prog="learn") == {"patience": 3}
    with pytest.raises(UsageError, match="patience: expected a whole number, got 'much'"):
        parse(VERB, ["--patience", "much"], prog="learn")
    assert parse(VERB, ["--help"], prog="learn") is None
    assert "when to stop: --patience PATIENCE epochs without a gain." in " ".join(capsys.readouterr().out.split())


def test_a_new_option_judges_its_values() -> None:
    with pytest.raises(UsageError, match="patience: expected a whole number from 2 on, got 1"):
        learn(patience=1)
