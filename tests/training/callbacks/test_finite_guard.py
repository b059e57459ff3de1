from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.errors import raises_usage_error
from torch import Tensor

from contraport.estimators import ContrastiveEncoder
from contraport.runs import Run, as_run_folder
from contraport.training import load_failed_step, resumable_fit, train
from contraport.training.callbacks import finite_guard
from contraport.training.step.training_module import TrainingModule

from ..conftest import StubObjective
from ..test_train import are_equal_states, get_model_state


@pytest.mark.parametrize("factor", [math.nan, math.inf])
def test_nonfinite_loss_stops_before_the_update(settings: dict[str, Any], factor: float) -> None:
    with pytest.raises(FloatingPointError, match=r"at step 3 \(epoch 2, seed 7\)"):
        train(**settings, seed=7, objective=StubObjective(at=3, factor=factor))
    run = Run(settings["out"])
    replay = json.loads((run.path / "nonfinite.json").read_text())
    assert (replay["step"], replay["epoch"], replay["seed"]) == (3, 2, 7)
    assert len(replay["ids"]) == 32
    state = torch.load(as_run_folder(run).checkpoints / "last.ckpt", weights_only=True)
    assert state["step"] == 2
    assert all(torch.isfinite(value).all() for value in state["pipeline"].values())


def test_warns_once_about_a_zero_gradient(settings: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    train(**settings, objective=StubObjective(at=3, factor=0.0))
    assert [record.args for record in caplog.records if "gradient is zero" in record.getMessage()] == [(3,)]


class InfiniteGradientObjective(StubObjective):
    """Stub objective with a finite loss whose gradient at one step is infinite."""

    def forward(self, z0: Tensor, z1: Tensor) -> Tensor:
        loss = super().forward(z0, z1)
        if self.calls == self.at:
            loss.register_hook(lambda gradient: gradient * math.inf)
        return loss


@pytest.mark.parametrize("extra_options", [{}, {"gradient_clip": 1.0}], ids=["", "clipped"])
def test_nonfinite_gradient_stops_before_the_update(settings: dict[str, Any], extra_options: dict[str, Any]) -> None:
    objective = InfiniteGradientObjective(at=3)
    with pytest.raises(FloatingPointError, match=r"gradient norm (nan|inf) at step 3"):
        train(**settings, **extra_options, objective=objective)
    run = Run(settings["out"])
    saved = json.loads((run.path / "nonfinite.json").read_text())
    assert math.isfinite(float(saved["loss"]))
    assert not math.isfinite(float(saved["gradient_norm"]))
    state = torch.load(as_run_folder(run).nonfinite_checkpoint, weights_only=True)
    assert state["step"] == 2
    assert all(torch.isfinite(value).all() for value in state["pipeline"].values())
    objective.calls -= 1
    step = load_failed_step(run.path, data=settings["data"], objective=objective)
    step.loss().backward()
    gradients = [weights.grad for weights in step.module.parameters() if weights.grad is not None]
    assert not all(torch.isfinite(gradient).all() for gradient in gradients)


def test_estimator_stops_at_a_nonfinite_gradient() -> None:
    encoder = ContrastiveEncoder(InfiniteGradientObjective(at=3), epochs=5, random_state=0)
    with raises_usage_error("*", "after 2 steps") as caught:
        encoder.fit(np.random.default_rng(0).normal(size=(40, 5)))
    assert re.search(r"got loss \d.* and gradient norm (nan|inf)", str(caught.value))


@pytest.fixture
def delayed_check(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Check losses in intervals of many steps, as on a GPU."""
    monkeypatch.setattr(resumable_fit, "choose_finite_check_interval", lambda device, settings: 100)
    settings.update(batch_size=10, epochs=3, log_every=2)  # 7 steps per epoch


@pytest.mark.usefixtures("delayed_check")
@pytest.mark.parametrize("at", [3, 10, 14])
def test_delayed_check_finds_the_failing_step(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    forward = TrainingModule.forward

    def fail_at_step(self: TrainingModule, batch: Any, step: int, *position: Any) -> Tensor:
        loss = forward(self, batch, step, *position)
        return loss * math.nan if step + 1 == at else loss

    monkeypatch.setattr(TrainingModule, "forward", fail_at_step)
    with pytest.raises(FloatingPointError, match=rf"loss nan, .* at step {at} "):
        train(**settings)
    run = Run(settings["out"])
    state = torch.load(as_run_folder(run).nonfinite_checkpoint, weights_only=True)
    assert state["step"] == at - 1
    assert all(torch.isfinite(value).all() for value in state["pipeline"].values())
    assert load_failed_step(run.path, data=settings["data"]).loss().isnan()
    rows = run.metrics_rows() if as_run_folder(run).metrics_path.exists() else []
    assert [row["step"] for row in rows] == [step for step in (2, 4, 6, 7, 9, 11, 13) if step < at]
    assert all(math.isfinite(row["loss"]) for row in rows)


@pytest.mark.usefixtures("delayed_check")
def test_loss_is_checked_each_step_before_the_first_checkpoint(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    read_counts: list[int] = []
    before_optimizer_step, to_floats = finite_guard.PeriodicFiniteGuard.before_optimizer_step, finite_guard.to_floats

    def count_and_convert(tensors: list[Tensor]) -> list[float]:
        read_counts[-1] += len(tensors) // 2  # loss and gradient norm of each step
        return to_floats(tensors)

    def count_and_check(guard: finite_guard.PeriodicFiniteGuard, loop: Any) -> None:
        read_counts.append(0)
        before_optimizer_step(guard, loop)

    monkeypatch.setattr(finite_guard, "to_floats", count_and_convert)
    monkeypatch.setattr(finite_guard.PeriodicFiniteGuard, "before_optimizer_step", count_and_check)
    train(**settings)
    assert read_counts == [*[1] * 7, *[0] * 6, 7, *[0] * 6, 7]  # each step of the first epoch, then each checkpoint


@pytest.mark.usefixtures("delayed_check")
@pytest.mark.parametrize(
    "extra_options", [{}, {"checkpoint_minutes": 0}], ids=["found at the end of the epoch", "found when saving"]
)
def test_step_that_is_finite_on_replay_continues(settings: dict[str, Any], extra_options: dict[str, Any]) -> None:
    uninterrupted = train(**{**settings, "out": settings["out"].with_name("whole")}, objective=StubObjective())
    run = train(**settings, **extra_options, objective=StubObjective(at=10, factor=math.nan))
    assert are_equal_states(get_model_state(run), get_model_state(uninterrupted))
    assert [(row["step"], row["loss"]) for row in run.metrics_rows()] == [
        (r["step"], r["loss"]) for r in uninterrupted.metrics_rows()
    ]


@pytest.mark.parametrize("grad_accum_steps", [1, 2])
def test_failed_step_can_be_replayed(settings: dict[str, Any], grad_accum_steps: int) -> None:
    objective = StubObjective(at=4, factor=math.nan)
    with pytest.raises(FloatingPointError, match=r"contraport\.training\.load_failed_step"):
        train(**settings, objective=objective, grad_accum_steps=grad_accum_steps)
    objective.calls -= 1
    step = load_failed_step(settings["out"], data=settings["data"], objective=objective)
    assert step.loss().isnan()
    assert (step.step, step.micro_batch) == ((3, 0) if grad_accum_steps == 1 else (1, 1))
    positions = step.batch.ids
    assert torch.equal(step.batch.views[0], settings["data"].store.fetch_views(positions)[0])
    assert torch.equal(step.batch.labels, settings["data"].labels[positions])


def test_replayed_loss_equals_the_loss_of_the_step(settings: dict[str, Any]) -> None:
    losses: list[float] = []

    class FailingObjective(StubObjective):
        def forward(self, z0: Tensor, z1: Tensor) -> Tensor:
            loss = super().forward(z0, z1)
            losses.append(float(loss.detach()))
            return loss if len(losses) != 3 else loss * math.inf

    objective = FailingObjective()
    with pytest.raises(FloatingPointError):
        train(**settings, objective=objective, temperature=None)
    assert (
        float(load_failed_step(settings["out"], data=settings["data"], objective=objective).loss().detach())
        == losses[2]
    )


def test_replay_reads_data_with_the_same_options(settings: dict[str, Any], tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(60, 5))
    np.savetxt(tmp_path / "data.csv", rows, delimiter=",", header="a1,a2,b1,b2,b3", comments="")
    objective = StubObjective(at=2, factor=math.nan)
    read_counts = {
        "data": tmp_path / "data.csv",
        "columns": {"views": ["a*", "b*"]},
        "test_fraction": 0.4,
        "batch_size": 12,
    }
    with pytest.raises(FloatingPointError):
        train(**{**settings, **read_counts}, objective=objective)
    objective.calls -= 1
    step = load_failed_step(settings["out"], objective=objective)
    assert step.loss().isnan()
    assert [view.shape for view in step.batch.views] == [(12, 2), (12, 3)]


def test_rejects_steps_that_cannot_be_replayed(settings: dict[str, Any]) -> None:
    run = train(**settings)
    with raises_usage_error("run.missing_file", "nonfinite.npz"):
        load_failed_step(run.path, data=settings["data"])
    with pytest.raises(FloatingPointError):
        train(**settings, overwrite=True, objective=StubObjective(at=1, factor=math.nan))
    with raises_usage_error("*object_required", "data", "objective"):
        load_failed_step(run.path)


def test_resume_after_a_failed_step_equals_an_uninterrupted_run(settings: dict[str, Any]) -> None:
    uninterrupted = train(**{**settings, "out": settings["out"].with_name("whole")}, objective=StubObjective())
    with pytest.raises(FloatingPointError):
        train(**settings, objective=StubObjective(at=4, factor=math.nan))
    run = train(out=settings["out"], resume=True, data=settings["data"], objective=StubObjective(), progress=False)
    assert not list(run.path.rglob("nonfinite*"))
    assert are_equal_states(get_model_state(run), get_model_state(uninterrupted))


def test_nonfinite_loss_is_reported_for_prototypes(settings: dict[str, Any]) -> None:
    with pytest.raises(FloatingPointError, match="loss nan"):
        train(**settings, recipe="swav", optimizer="sgd", lr=1e30, lr_scheduler="constant")
