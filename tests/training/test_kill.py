"""kill -9 at any moment: what is resumed ends where the run that was left alone ends, bit for bit."""

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
from contraport.errors import UsageError
from contraport.runs import Run, as_run_folder
from contraport.training import train
from tests import TIMEOUT
from tests.processes import FORKS

from .test_train import same, weights_of

ITEMS, BATCH, EPOCHS = 300, 32, 5  # 9 steps an epoch, and an item in a dozen is left out
SETTINGS: dict[str, Any] = {
    "batch_size": BATCH,
    "epochs": EPOCHS,
    "projection": 16,
    "log_every": 4,
    "checkpoint_minutes": 0.0005,  # 30 ms, which is between most steps but not all
    "device": "cpu",
    "progress": False,
}
IN_BATCH: dict[str, Any] = {"objective": "nt-xent"}
QUEUE: dict[str, Any] = {"objective": "info-nce", "negatives": "queue", "queue_size": 50, "momentum": "0.9:1:cosine"}


def vectors() -> Dataset:
    return from_arrays(np.random.default_rng(0).normal(size=(ITEMS, 6)), name="vectors")


def start(out: Path, settings: dict[str, Any]) -> ForkServerProcess:
    """Train in another process, anew or where it was killed."""
    resume = (out / "config.yaml").exists()
    how: dict[str, Any] = {"resume": True, "progress": False} if resume else {**SETTINGS, **settings}
    process = FORKS.Process(target=train, kwargs={"data": vectors(), "out": out, **how})
    process.start()
    return process


def test_the_lock_of_a_process_ends_with_it(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    process = start(run.path, {**IN_BATCH, "epochs": 1_000_000})
    again = {"out": run.path, "data": vectors(), "resume": True, "progress": False}
    try:
        end = time.monotonic() + TIMEOUT
        while not (as_run_folder(run).checkpoints / "last.ckpt").exists():
            assert process.is_alive()
            assert time.monotonic() < end
            time.sleep(0.02)
        for number in (None, signal.SIGSTOP):  # asleep is not dead
            if number is not None:
                os.kill(cast(int, process.pid), number)
            with pytest.raises(
                UsageError, match=rf"in use by contraport train, process {process.pid} on .*; wait for its end, or stop"
            ):
                train(**again)
    finally:
        process.kill()
    process.join()
    assert as_run_folder(run).lock_path.exists()
    train(**{**again, **SETTINGS, **IN_BATCH, "resume": False, "overwrite": True, "epochs": 1})
    assert as_run_folder(run).model_path.exists()
    assert not as_run_folder(run).lock_path.exists()


def rows_of(run: Run) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in ("step", "epoch", "loss", "lr", "temperature")) for row in run.metrics_rows()]


def killed_and_resumed(out: Path, settings: dict[str, Any], seed: int) -> int:
    """Start and kill until the run is through, a little later each time; return how often it was killed."""
    moments = random.Random(seed)
    for kills in itertools.count():
        process = start(out, settings)
        wait = None if kills == 30 else 0.15 + moments.uniform(0, 0.25) * (1 + kills / 3)
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
def test_killed_and_resumed_runs_equal_uninterrupted_ones(tmp_path: Path, settings: dict[str, Any], seed: int) -> None:
    alone = start(tmp_path / "whole", settings)
    alone.join()
    assert alone.exitcode == 0
    assert killed_and_resumed(tmp_path / "killed", settings, seed) > 0
    left_alone, killed = Run(tmp_path / "whole"), Run(tmp_path / "killed")
    assert same(weights_of(killed), weights_of(left_alone))
    assert rows_of(killed) == rows_of(left_alone)
    ends = [torch.load(as_run_folder(run).checkpoints / "last.ckpt", weights_only=True) for run in (killed, left_alone)]
    assert same(*(end["pipeline"] for end in ends)), "the queue and the momentum weights too"
    assert ends[0]["step"] == EPOCHS * (ITEMS // BATCH)
