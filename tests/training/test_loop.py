"""Training loop compared with explicit loops."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from contraport.data import Batch, BatchOrder, Dataset, LocalBatchOffset, build_loader, from_arrays
from contraport.errors import UsageError
from contraport.runs import Run
from contraport.training import train
from contraport.training.callbacks.finite_guard import FiniteGuard
from contraport.training.loop import Callback, Loop, Position
from contraport.training.optimization import build_lr_schedule
from tests.errors import raises_usage_error

from .conftest import StubObjective
from .test_train import are_equal_states, get_model_state

ITEMS, BATCH = 21, 4  # 5 batches per epoch


class SquaredErrorModule(nn.Module):
    """Training module whose loss has a large gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 3))
        self.steps: list[tuple[int, int]] = []
        self.after: list[int] = []

    def forward(self, batch: Batch, step: int, part: int = 0, offset: LocalBatchOffset | None = None) -> Tensor:
        self.steps.append((step, part))
        return 10 * (batch.views[0] @ self.weight).square().mean()

    def after_step(self, step: int) -> None:
        self.after.append(step)


@pytest.fixture
def data() -> Dataset:
    return from_arrays(np.random.default_rng(0).normal(size=(ITEMS, 3)).astype(np.float32))


def run_loop(
    data: Dataset, epochs: int, *callbacks: Callback, start: Position | None = None, **options: Any
) -> SquaredErrorModule:
    module = SquaredErrorModule()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    schedule = build_lr_schedule(optimizer, lr_scheduler="constant", steps=1, warmup_steps=0)
    batches = build_loader(data, BATCH, shuffle=True, drop_last=True)
    Loop(module, batches, optimizer, schedule, epochs=epochs, start=start, callbacks=callbacks, **options).run()
    return module


def run_explicit_loop(data: Dataset, epochs: int, *, grad_accum_steps: int = 1, clip: float | None = None) -> Tensor:
    weight = torch.linspace(-1, 1, 3).requires_grad_()
    batches = build_loader(data, BATCH, shuffle=True, drop_last=True)
    for epoch in range(epochs):
        cast(BatchOrder, batches.batch_sampler).set_epoch(epoch)
        views = [batch.views[0] for batch in batches]
        for first in range(0, len(views), grad_accum_steps):
            losses = [
                10 * (view @ weight).square().mean() / grad_accum_steps
                for view in views[first : first + grad_accum_steps]
            ]
            (gradient,) = torch.autograd.grad(torch.stack(losses).sum(), weight)
            if clip is not None:
                gradient = gradient * min(1.0, clip / float(gradient.norm()))
            weight = (weight - 0.01 * gradient).detach().requires_grad_()
    return weight.detach()


@pytest.mark.parametrize("grad_accum_steps", [1, 2, 5])
@pytest.mark.parametrize("clip", [None, 1.0, 1e6])
def test_loop_equals_explicit_steps(data: Dataset, grad_accum_steps: int, clip: float | None) -> None:
    module = run_loop(data, 3, FiniteGuard(), grad_accum_steps=grad_accum_steps, gradient_clip=clip)
    expected = run_explicit_loop(data, 3, grad_accum_steps=grad_accum_steps, clip=clip)
    torch.testing.assert_close(module.weight.detach(), expected, rtol=1e-5, atol=1e-6)


def test_steps_and_micro_batches_are_numbered(data: Dataset) -> None:
    module = run_loop(data, 2, grad_accum_steps=2)
    steps_of_an_epoch = [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]
    assert module.steps == [*steps_of_an_epoch, *((step + 3, part) for step, part in steps_of_an_epoch)]
    assert module.after == [0, 1, 2, 3, 4, 5]


class Recorder(Callback):
    """Callback that records its calls with the progress of the loop."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, int, int]] = []

    def _note(self, name: str, loop: Loop) -> None:
        self.calls.append((name, loop.completed_epochs, loop.completed_batches, loop.step))

    def on_start(self, loop: Loop) -> None:
        self._note("start", loop)

    def after_backward(self, loop: Loop, batch: Batch, loss: Tensor) -> None:
        assert not loss.requires_grad
        self._note("backward", loop)

    def before_optimizer_step(self, loop: Loop) -> None:
        self._note("step", loop)

    def after_batch(self, loop: Loop) -> None:
        self._note("last batch" if loop.is_last_batch else "batch", loop)

    def after_epoch(self, loop: Loop) -> None:
        self._note("epoch", loop)

    def on_end(self, loop: Loop) -> None:
        self._note("end", loop)


def test_callbacks_are_called_at_their_points(data: Dataset) -> None:
    recorder = Recorder()
    run_loop(data, 1, recorder, grad_accum_steps=3, start=Position(completed_epochs=0, completed_batches=2, step=1))
    assert recorder.calls == [
        ("start", 0, 2, 1),
        ("backward", 0, 2, 1),
        ("batch", 0, 3, 1),
        ("backward", 0, 3, 1),
        ("batch", 0, 4, 1),
        ("backward", 0, 4, 1),
        ("step", 0, 4, 1),
        ("last batch", 0, 5, 2),
        ("epoch", 1, 0, 2),
        ("end", 1, 0, 2),
    ]


def test_exception_is_passed_to_callbacks(data: Dataset) -> None:
    class Failing(Callback):
        error: BaseException | None = None

        def before_optimizer_step(self, loop: Loop) -> None:
            if loop.step == 2:
                raise UsageError("enough")

        def on_exception(self, loop: Loop, error: BaseException) -> None:
            self.error = error

    failing = Failing()
    with raises_usage_error("*", "enough") as caught:
        run_loop(data, 1, failing)
    assert failing.error is caught.value


def test_gradients_are_clipped(settings: dict[str, Any]) -> None:
    settings.update(optimizer="sgd", weight_decay=0.0)
    out = settings.pop("out")
    unclipped = train(**settings, out=out / "plain", objective=StubObjective())
    loosely_clipped = train(**settings, out=out / "loose", objective=StubObjective(), gradient_clip=1e9)
    tightly_clipped = train(**settings, out=out / "tight", objective=StubObjective(), gradient_clip=1e-9)
    longer = train(**{**settings, "epochs": 4}, out=out / "longer", objective=StubObjective(), gradient_clip=1e-9)
    assert are_equal_states(get_model_state(unclipped), get_model_state(loosely_clipped))

    def max_difference(one: Run, other: Run) -> float:
        pairs = zip(one.model().parameters(), other.model().parameters(), strict=True)
        return max(float((value - other_value).detach().abs().max()) for value, other_value in pairs)

    assert max_difference(tightly_clipped, longer) < 1e-6 < 1e-3 < max_difference(tightly_clipped, unclipped)
    assert tightly_clipped.config()["gradient_clip"] == 1e-9
    with raises_usage_error("gradient_clip.invalid"):
        train(**settings, out=out / "wrong", gradient_clip=0.0)


def test_logged_loss_is_the_mean_over_the_batches_of_a_step(settings: dict[str, Any]) -> None:
    losses: list[float] = []

    class RecordingObjective(StubObjective):
        def forward(self, z0: Tensor, z1: Tensor) -> Tensor:
            loss = super().forward(z0, z1)
            losses.append(float(loss.detach()))
            return loss

    run = train(**{**settings, "batch_size": 10, "log_every": 1}, objective=RecordingObjective(), grad_accum_steps=2)
    result = losses[-14:]  # earlier calls test which arguments the objective accepts
    expected = [np.mean(result[first : first + 2]) for first in (0, 2, 4)] + [result[6]]
    assert [row["loss"] for row in run.metrics_rows()][:4] == pytest.approx(expected)
