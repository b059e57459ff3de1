from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch

from contraport.runs import Run
from contraport.training import train

from .conftest import Pull
from .test_train import same, weights_of


@pytest.mark.parametrize("factor", [math.nan, math.inf])
def test_a_broken_loss_stops_before_the_weights_change(settings: dict[str, Any], factor: float) -> None:
    with pytest.raises(FloatingPointError, match=r"at step 3 \(epoch 2, seed 7\)"):
        train(**settings, seed=7, objective=Pull(at=3, factor=factor))
    run = Run(settings["out"])
    replay = json.loads((run.path / "nonfinite.json").read_text())
    assert (replay["step"], replay["epoch"], replay["seed"]) == (3, 2, 7)
    assert len(replay["ids"]) == 32
    state = torch.load(run.checkpoints / "last.ckpt", weights_only=True)
    assert state["global_step"] == 2
    assert all(torch.isfinite(value).all() for value in state["state_dict"].values())


def test_resuming_mends_it(settings: dict[str, Any]) -> None:
    whole = train(**{**settings, "out": settings["out"].with_name("whole")}, objective=Pull())
    with pytest.raises(FloatingPointError):
        train(**settings, objective=Pull(at=4, factor=math.nan))
    run = train(out=settings["out"], resume=True, data=settings["data"], objective=Pull(), progress=False)
    assert not (run.path / "nonfinite.json").exists()
    assert same(weights_of(run), weights_of(whole))
