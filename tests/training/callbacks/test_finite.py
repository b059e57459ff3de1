from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from contraport.errors import UsageError
from contraport.runs import Run
from contraport.training import replay, train

from ..conftest import Pull
from ..test_train import same, weights_of


@pytest.mark.parametrize("factor", [math.nan, math.inf])
def test_a_broken_loss_stops_before_the_weights_change(settings: dict[str, Any], factor: float) -> None:
    with pytest.raises(FloatingPointError, match=r"at step 3 \(epoch 2, seed 7\)"):
        train(**settings, seed=7, objective=Pull(at=3, factor=factor))
    run = Run(settings["out"])
    replay = json.loads((run.path / "nonfinite.json").read_text())
    assert (replay["step"], replay["epoch"], replay["seed"]) == (3, 2, 7)
    assert len(replay["ids"]) == 32
    state = torch.load(run.checkpoints / "last.ckpt", weights_only=True)
    assert state["step"] == 2
    assert all(torch.isfinite(value).all() for value in state["pipeline"].values())


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_step_can_be_replayed(settings: dict[str, Any], accumulate: int) -> None:
    objective = Pull(at=4, factor=math.nan)
    with pytest.raises(FloatingPointError, match=r"contraport\.training\.replay"):
        train(**settings, objective=objective, accumulate=accumulate)
    objective.calls -= 1
    step = replay(settings["out"], data=settings["data"], objective=objective)
    assert step.loss().isnan()
    assert (step.step, step.part) == ((3, 0) if accumulate == 1 else (1, 1))
    positions = step.batch.ids
    assert torch.equal(step.batch.views[0], settings["data"].store.fetch(positions)[0])
    assert torch.equal(step.batch.labels, settings["data"].labels[positions])


def test_a_replayed_loss_is_that_of_the_step(settings: dict[str, Any]) -> None:
    seen: list[float] = []

    class Watched(Pull):
        def forward(self, z0: Tensor, z1: Tensor) -> Tensor:
            loss = super().forward(z0, z1)
            seen.append(float(loss.detach()))
            return loss if len(seen) != 3 else loss * math.inf

    objective = Watched()
    with pytest.raises(FloatingPointError):
        train(**settings, objective=objective, temperature=None)
    assert float(replay(settings["out"], data=settings["data"], objective=objective).loss().detach()) == seen[2]


def test_what_the_data_were_read_as_is_replayed(settings: dict[str, Any], tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(60, 5))
    np.savetxt(tmp_path / "data.csv", rows, delimiter=",", header="a1,a2,b1,b2,b3", comments="")
    objective = Pull(at=2, factor=math.nan)
    read = {"data": tmp_path / "data.csv", "columns": {"views": ["a*", "b*"]}, "test_fraction": 0.4, "batch_size": 12}
    with pytest.raises(FloatingPointError):
        train(**{**settings, **read}, objective=objective)
    objective.calls -= 1
    step = replay(settings["out"], objective=objective)
    assert step.loss().isnan()
    assert [view.shape for view in step.batch.views] == [(12, 2), (12, 3)]


def test_what_cannot_be_replayed_is_told(settings: dict[str, Any]) -> None:
    run = train(**settings)
    with pytest.raises(UsageError, match=r"has no nonfinite\.npz: no step"):
        replay(run.path, data=settings["data"])
    with pytest.raises(FloatingPointError):
        train(**settings, overwrite=True, objective=Pull(at=1, factor=math.nan))
    with pytest.raises(UsageError, match="data, objective: the run was given an object; pass it again"):
        replay(run.path)


def test_resuming_mends_it(settings: dict[str, Any]) -> None:
    whole = train(**{**settings, "out": settings["out"].with_name("whole")}, objective=Pull())
    with pytest.raises(FloatingPointError):
        train(**settings, objective=Pull(at=4, factor=math.nan))
    run = train(out=settings["out"], resume=True, data=settings["data"], objective=Pull(), progress=False)
    assert not list(run.path.rglob("nonfinite*"))
    assert same(weights_of(run), weights_of(whole))


def test_a_part_that_refuses_such_embeddings_does_not_hide_it(settings: dict[str, Any]) -> None:
    with pytest.raises(FloatingPointError, match="the loss is nan"):
        train(**settings, recipe="swav", opt="sgd", lr=1e30, sched="constant")
