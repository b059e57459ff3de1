"""Runs killed by SIGKILL at random times: after resuming they equal uninterrupted runs bit for bit."""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from contraport.data import Dataset, from_arrays
from contraport.runs import Run, as_run_folder
from contraport.training import train
from tests import TIMEOUT
from tests.errors import raises_usage_error
from tests.processes import FORKS

from .test_train import are_equal_states, get_model_state

ITEMS, BATCH, EPOCHS = 300, 32, 5  # 9 steps per epoch, which drop one item in 25
SETTINGS: dict[str, Any] = {
    "batch_size": BATCH,
    "epochs": EPOCHS,
    "projection": 16,
    "log_every": 4,
    "checkpoint_minutes": 0.0005,  # 30 ms: after most steps, but not all
    "device": "cpu",
    "progress": False,
}
IN_BATCH: dict[str, Any] = {"objective": "nt-xent"}
QUEUE: dict[str, Any] = {"objective": "info-nce", "negatives": "queue", "queue_size": 50, "momentum": "0.9:1:cosine"}


def build_vectors() -> Dataset:
    return from_arrays(np.random.default_rng(0).normal(size=(ITEMS, 6)), name="vectors")


def start_training(out: Path, settings: dict[str, Any]) -> ForkServerProcess:
    """Start a training in another process, or resume it if the run exists."""
    resume = (out / "config.yaml").exists()
    options: dict[str, Any] = {"resume": True, "progress": False} if resume else {**SETTINGS, **settings}
    process = FORKS.Process(target=train, kwargs={"data": build_vectors(), "out": out, **options})
    process.start()
    return process


def test_lock_ends_with_its_process(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    process = start_training(run.path, {**IN_BATCH, "epochs": 1_000_000})
    resume_options = {"out": run.path, "data": build_vectors(), "resume": True, "progress": False}
    try:
        end = time.monotonic() + TIMEOUT
        while not (as_run_folder(run).checkpoints / "last.ckpt").exists():
            assert process.is_alive()
            assert time.monotonic() < end
            time.sleep(0.02)
        for number in (None, signal.SIGSTOP):  # a stopped process still holds its lock
            if number is not None:
                os.kill(cast(int, process.pid), number)
            with raises_usage_error("out.in_use", "contraport train", process.pid):
                train(**resume_options)
    finally:
        process.kill()
    process.join()
    assert as_run_folder(run).lock_path.exists()
    train(**{**resume_options, **SETTINGS, **IN_BATCH, "resume": False, "overwrite": True, "epochs": 1})
    assert as_run_folder(run).model_path.exists()
    assert not as_run_folder(run).lock_path.exists()


def list_rows(run: Run) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in ("step", "epoch", "loss", "lr", "temperature")) for row in run.metrics_rows()]


def kill_until_complete(out: Path, settings: dict[str, Any], seed: int) -> int:
    """Start and kill the training until it completes, a little later each time; return the number of kills."""
    random_times = random.Random(seed)
    for kills in itertools.count():
        process = start_training(out, settings)
        wait = None if kills == 30 else 0.15 + random_times.uniform(0, 0.25) * (1 + kills / 3)
        process.join(wait)
        if process.exitcode is not None:
            assert process.exitcode == 0
            return kills
        process.kill()
        process.join()
    raise AssertionError


@pytest.mark.parametrize(
    ("settings", "seed"),
    [
        pytest.param(IN_BATCH, 0, id="in-batch"),
        pytest.param(QUEUE, 1, id="queue", marks=pytest.mark.slow),
        *(
            pytest.param(settings, seed, marks=pytest.mark.slow)
            for settings in (IN_BATCH, QUEUE)
            for seed in range(2, 8)
        ),
    ],
)
def test_killed_and_resumed_run_equals_an_uninterrupted_one(
    tmp_path: Path, settings: dict[str, Any], seed: int
) -> None:
    uninterrupted_process = start_training(tmp_path / "whole", settings)
    uninterrupted_process.join()
    assert uninterrupted_process.exitcode == 0
    assert kill_until_complete(tmp_path / "killed", settings, seed) > 0
    uninterrupted, killed = Run(tmp_path / "whole"), Run(tmp_path / "killed")
    assert are_equal_states(get_model_state(killed), get_model_state(uninterrupted))
    assert list_rows(killed) == list_rows(uninterrupted)
    ends = [
        torch.load(as_run_folder(run).checkpoints / "last.ckpt", weights_only=True) for run in (killed, uninterrupted)
    ]
    assert are_equal_states(*(end["pipeline"] for end in ends))  # includes the queue and the momentum weights
    assert ends[0]["step"] == EPOCHS * (ITEMS // BATCH)
