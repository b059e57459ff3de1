"""Number of threads: chosen by timing, explicit, and kept by resumed runs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from contraport.data import Dataset
from contraport.training import thread_count, train
from contraport.training.components.assembly import build_components
from contraport.training.config import Settings
from contraport.training.thread_count import (
    configured_or_fastest_thread_count,
    measure_fastest_thread_count,
    temporary_thread_count,
)

from .conftest import StubObjective
from .test_train import are_equal_states, get_model_state


@pytest.fixture
def four_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set four threads in torch, without an explicit choice."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with temporary_thread_count(4):
        yield


def replace_timings(monkeypatch: pytest.MonkeyPatch, seconds: dict[int, float]) -> list[int]:
    """Replace timings by the seconds for each number of threads; return a list that records the numbers tried."""
    tried: list[int] = []

    def time_gradient(*args: Any, threads: int, **kwargs: Any) -> float:
        tried.append(threads)
        return seconds[threads]

    monkeypatch.setattr(thread_count, "measure_forward_backward_seconds", time_gradient)
    return tried


@pytest.mark.parametrize(
    ("seconds", "expected", "tried"),
    [
        pytest.param({1: 0.001, 2: 0.002, 4: 0.03}, 1, [1, 2, 4], id="a small network"),
        pytest.param({1: 0.001, 2: 0.00095, 4: 0.00095}, 1, [1, 2, 4], id="no gain worth a thread"),
        pytest.param({1: 0.08, 2: 0.05, 4: 0.03}, 4, [1, 2, 4], id="a gain of all"),
        pytest.param({1: 0.08, 2: 0.05, 4: 0.06}, 2, [1, 2, 4], id="a gain of some"),
        pytest.param({1: 3.0}, 4, [1], id="a large network"),
    ],
)
@pytest.mark.usefixtures("four_threads")
def test_selects_the_fewest_threads_with_fast_steps(
    vectors: Dataset, monkeypatch: pytest.MonkeyPatch, seconds: dict[int, float], expected: int, tried: list[int]
) -> None:
    settings = Settings(data=vectors, batch_size=32)
    result = replace_timings(monkeypatch, seconds)
    assert configured_or_fastest_thread_count(settings, build_components(settings)) == expected
    assert result == tried


@pytest.mark.usefixtures("four_threads")
def test_explicit_thread_count_is_used(vectors: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = replace_timings(monkeypatch, {})
    settings = Settings(data=vectors, batch_size=32)
    components = build_components(settings)
    assert configured_or_fastest_thread_count(replace(settings, threads=3), components) == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert configured_or_fastest_thread_count(settings, components) is None
    assert tried == []


@pytest.mark.usefixtures("four_threads")
def test_timing_does_not_change_the_training(vectors: Dataset) -> None:
    objective = StubObjective()
    settings = Settings(data=vectors, batch_size=32, objective=objective)
    components = build_components(settings)
    before = {name: value.clone() for name, value in components.module.state_dict().items()}
    calls, state = objective.calls, torch.get_rng_state()
    assert configured_or_fastest_thread_count(settings, components) in (1, 2, 4)
    assert are_equal_states(components.module.state_dict(), before)
    assert all(weights.grad is None for weights in components.module.parameters())
    assert (objective.calls, torch.get_num_threads()) == (calls, 4)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.usefixtures("four_threads")
def test_resumed_run_uses_the_recorded_thread_count(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    numbers: list[int] = []

    class ThreadRecordingObjective(StubObjective):
        def forward(self, *views: torch.Tensor) -> torch.Tensor:
            numbers.append(torch.get_num_threads())
            return super().forward(*views)

    replace_timings(monkeypatch, {1: 0.08, 2: 0.05, 4: 0.06})
    settings.update(lr_scheduler="constant", warmup_epochs=0)
    uninterrupted = train(**{**settings, "epochs": 3, "out": tmp_path / "whole"}, objective=ThreadRecordingObjective())
    with caplog.at_level(logging.INFO, "contraport"):
        run = train(**settings, objective=ThreadRecordingObjective())
    assert "CPU threads: 2 (threads)" in caplog.text
    assert run.config()["threads"] == 2
    monkeypatch.setattr(thread_count, "measure_fastest_thread_count", fail_if_timed)
    numbers.clear()
    train(
        out=run.path, resume=True, epochs=3, data=settings["data"], objective=ThreadRecordingObjective(), progress=False
    )
    assert numbers[-2:] == [2, 2]
    assert are_equal_states(get_model_state(run), get_model_state(uninterrupted))
    assert torch.get_num_threads() == 4
    train(
        out=run.path,
        resume=True,
        epochs=4,
        threads=1,
        data=settings["data"],
        objective=ThreadRecordingObjective(),
        progress=False,
    )
    assert numbers[-2:] == [1, 1]


def fail_if_timed(*args: Any, **kwargs: Any) -> int:
    raise AssertionError


def test_steps_are_timed_with_real_threads(vectors: Dataset) -> None:
    settings = Settings(data=vectors, batch_size=32)
    batch = vectors.__getitems__(list(range(32)))
    assert measure_fastest_thread_count(build_components(settings).module, batch, max_threads=2, amp=False) in (1, 2)
