"""The training loop against loops that are written out."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from contraport.data import Batch, BatchOffset, BatchOrder, Dataset, build_loader, from_arrays
from contraport.errors import UsageError
from contraport.runs import Run
from contraport.training import train
from contraport.training.callbacks.finite_guard import FiniteGuard
from contraport.training.loop import Callback, Loop, Position
from contraport.training.optimization import build_lr_schedule
from tests.errors import raises_usage_error

from .conftest import Pull
from .test_train import same, weights_of

ITEMS, BATCH = 21, 4  # 5 batches an epoch


class Squares(nn.Module):
    """A loss with a steep gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 3))
        self.steps: list[tuple[int, int]] = []
        self.after: list[int] = []

    def forward(self, batch: Batch, step: int, part: int = 0, offset: BatchOffset | None = None) -> Tensor:
        self.steps.append((step, part))
        return 10 * (batch.views[0] @ self.weight).square().mean()

    def after_step(self, step: int) -> None:
        self.after.append(step)


@pytest.fixture
def data() -> Dataset:
    return from_arrays(np.random.default_rng(0).normal(size=(ITEMS, 3)).astype(np.float32))


def looped(data: Dataset, epochs: int, *callbacks: Callback, start: Position | None = None, **more: Any) -> Squares:
    module = Squares()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    schedule = build_lr_schedule(optimizer, lr_scheduler="constant", steps=1, warmup_steps=0)
    batches = build_loader(data, BATCH, shuffle=True, drop_last=True)
    Loop(module, batches, optimizer, schedule, epochs=epochs, start=start, callbacks=callbacks, **more).run()
    return module


def written_out(data: Dataset, epochs: int, *, grad_accum_steps: int = 1, clip: float | None = None) -> Tensor:
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
    module = looped(data, 3, FiniteGuard(), grad_accum_steps=grad_accum_steps, gradient_clip=clip)
    expected = written_out(data, 3, grad_accum_steps=grad_accum_steps, clip=clip)
    torch.testing.assert_close(module.weight.detach(), expected, rtol=1e-5, atol=1e-6)


def test_a_step_and_its_parts_are_numbered(data: Dataset) -> None:
    module = looped(data, 2, grad_accum_steps=2)
    of_an_epoch = [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]
    assert module.steps == [*of_an_epoch, *((step + 3, part) for step, part in of_an_epoch)]
    assert module.after == [0, 1, 2, 3, 4, 5]


class Recorder(Callback):
    """Records when it is called, and the progress then."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, int, int]] = []

    def _note(self, name: str, loop: Loop) -> None:
        self.calls.append((name, loop.completed_epochs, loop.completed_batches, loop.step))

    def on_start(self, loop: Loop) -> None:
        self._note("start", loop)

    def after_backward(self, loop: Loop, batch: Batch, loss: Tensor) -> None:
        assert not loss.requires_grad
        self._note("backward", loop)

    def before_step(self, loop: Loop) -> None:
        self._note("step", loop)

    def after_batch(self, loop: Loop) -> None:
        self._note("last batch" if loop.is_last_batch else "batch", loop)

    def after_epoch(self, loop: Loop) -> None:
        self._note("epoch", loop)

    def on_end(self, loop: Loop) -> None:
        self._note("end", loop)


def test_callbacks_are_called_at_their_points(data: Dataset) -> None:
    recorder = Recorder()
    looped(data, 1, recorder, grad_accum_steps=3, start=Position(completed_epochs=0, completed_batches=2, step=1))
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


def test_reason_for_an_early_stop_is_returned(data: Dataset) -> None:
    class Failing(Callback):
        error: BaseException | None = None

        def before_step(self, loop: Loop) -> None:
            if loop.step == 2:
                raise UsageError("enough")

        def on_exception(self, loop: Loop, error: BaseException) -> None:
            self.error = error

    failing = Failing()
    with pytest.raises(UsageError, match="enough") as caught:
        looped(data, 1, failing)
    assert failing.error is caught.value


def test_a_run_clips_its_gradients(settings: dict[str, Any]) -> None:
    settings.update(optimizer="sgd", weight_decay=0.0)
    out = settings.pop("out")
    plain = train(**settings, out=out / "plain", objective=Pull())
    loose = train(**settings, out=out / "loose", objective=Pull(), gradient_clip=1e9)
    tight = train(**settings, out=out / "tight", objective=Pull(), gradient_clip=1e-9)
    longer = train(**{**settings, "epochs": 4}, out=out / "longer", objective=Pull(), gradient_clip=1e-9)
    assert same(weights_of(plain), weights_of(loose))

    def farthest(one: Run, other: Run) -> float:
        pairs = zip(one.model().parameters(), other.model().parameters(), strict=True)
        return max(float((value - theirs).detach().abs().max()) for value, theirs in pairs)

    assert farthest(tight, longer) < 1e-6 < 1e-3 < farthest(tight, plain)
    assert tight.config()["gradient_clip"] == 1e-9
    with raises_usage_error("gradient_clip.invalid"):
        train(**settings, out=out / "wrong", gradient_clip=0.0)


def test_the_loss_of_a_row_is_the_mean_over_the_batches_of_a_step(settings: dict[str, Any]) -> None:
    losses: list[float] = []

    class Watched(Pull):
        def forward(self, z0: Tensor, z1: Tensor) -> Tensor:
            loss = super().forward(z0, z1)
            losses.append(float(loss.detach()))
            return loss

    run = train(**{**settings, "batch_size": 10, "log_every": 1}, objective=Watched(), grad_accum_steps=2)
    result = losses[-14:]  # what came before was to see what the objective refuses
    expected = [np.mean(result[first : first + 2]) for first in (0, 2, 4)] + [result[6]]
    assert [row["loss"] for row in run.metrics_rows()][:4] == pytest.approx(expected)
