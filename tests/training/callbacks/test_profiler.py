"""Profiles of training steps."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from contraport.runs import as_run_folder
from contraport.training import train
from contraport.training.loop import PROFILED_SECTION_NAMES

from ..test_train import are_equal_states, get_model_state


def test_writes_a_trace_and_a_table(settings: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    settings.update(batch_size=10, epochs=3)
    without_profile = train(**{**settings, "out": settings["out"].with_name("plain")})
    with caplog.at_level(logging.INFO, "contraport"):
        run = train(**settings, profile=True)
    events = json.loads((as_run_folder(run).profile_path / "trace.json").read_text())["traceEvents"]
    names = [event.get("name") for event in events]
    assert all(names.count(section) == 10 for section in PROFILED_SECTION_NAMES[1:])
    table = (as_run_folder(run).profile_path / "steps.txt").read_text()
    assert "Self CPU time total" in table
    shares = next(record.getMessage() for record in caplog.records if "CPU time of 10 steps" in record.getMessage())
    assert all(section in shares for section in PROFILED_SECTION_NAMES)
    assert are_equal_states(get_model_state(run), get_model_state(without_profile))
    assert "profile" not in run.config()
    train(**settings, overwrite=True)
    assert not as_run_folder(run).profile_path.exists()


def test_warns_of_a_training_without_enough_steps(settings: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "contraport"):
        run = train(**settings, profile=True)
    assert "profile: nothing was recorded" in caplog.text
    assert not as_run_folder(run).profile_path.exists()
