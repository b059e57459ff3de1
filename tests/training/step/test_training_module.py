"""Whole training steps: determinism, gradients, chunks, checkpoints and processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.errors import raises_usage_error
from tests.processes import run_in_processes
from tests.training.step_builders import (
    KINDS,
    build_batches,
    build_data,
    build_module,
    compare_steps,
    compare_weights,
    get_gradients,
    take_steps,
)
from torch import Tensor, nn

from contraport.data import from_arrays
from contraport.runs import as_run_folder
from contraport.training import train


def assert_equal(state: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    """Compare bit for bit; averages without values are NaN."""
    torch.testing.assert_close(state, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("kind", KINDS)
def test_step_is_determined_by_seed_step_and_state(kind: str) -> None:
    dataset = build_data()
    batches = build_batches(dataset, 6)
    uninterrupted = build_module(dataset, **KINDS[kind])
    take_steps(uninterrupted, batches[:3])
    torch.manual_seed(99)
    other = build_module(dataset, **KINDS[kind])
    other.load_state_dict(uninterrupted.state_dict())
    torch.manual_seed(7)
    assert take_steps(uninterrupted, batches[3:], first=3) == take_steps(other, batches[3:], first=3)
    assert_equal(uninterrupted.state_dict(), other.state_dict())


def test_cpu_step_seeds_no_other_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeding unused devices records a stack trace for each, a seventh of the time of a small training."""
    dataset = build_data()
    batches = build_batches(dataset, 2)
    expected = take_steps(build_module(dataset, **KINDS["in-batch"]), batches)
    module = build_module(dataset, **KINDS["in-batch"])
    with monkeypatch.context() as patched:
        patched.setattr(torch, "manual_seed", lambda seed: pytest.fail("every device was seeded"))
        losses = take_steps(module, batches)
    assert losses == expected


@pytest.mark.parametrize("kind", KINDS)
def test_every_trainable_weight_has_a_gradient(kind: str) -> None:
    dataset = build_data()
    module = build_module(dataset, **KINDS[kind])
    module(build_batches(dataset, 1)[0], 0).backward()
    without_gradient = [name for name, p in module.named_parameters() if p.requires_grad and p.grad is None]
    assert all("projector" in name for name in without_gradient if kind == "predictive")
    assert kind == "predictive" or not without_gradient


def test_byol_target_has_no_gradient_and_moves_after_the_step() -> None:
    dataset = build_data()
    module = build_module(dataset, recipe="byol", momentum=0.9)
    assert module.momentum_encoder is not None
    before = [p.clone() for p in module.momentum_encoder.parameters()]
    take_steps(module, build_batches(dataset, 1))
    assert all(p.grad is None for p in module.momentum_encoder.parameters())
    pairs = zip(before, module.momentum_encoder.parameters(), module.model.parameters(), strict=True)
    for old, new, student in pairs:
        torch.testing.assert_close(new, 0.9 * old + 0.1 * student)


def test_simsiam_stops_the_gradient_of_keys() -> None:
    """The keys of a predictor have no gradient, unlike in the symmetric loss."""
    dataset = build_data()
    module = build_module(dataset, recipe="simsiam")
    batch = build_batches(dataset, 1)[0]
    embedded = module._embed_batch(batch, module.views(batch.views), None)
    assert not any(key.requires_grad for key in embedded.key_projections)
    assert all(query.requires_grad for query in embedded.queries)


def test_keys_are_large_crops() -> None:
    images = from_arrays(np.random.default_rng(0).integers(0, 255, (40, 12, 12)).astype(np.uint8))
    module = build_module(images, recipe="swav", views="2+3", prototypes=4)
    batch = images.__getitems__(list(range(8)))
    embedded = module._embed_batch(batch, module.views(batch.views), None)
    assert (len(embedded.queries), len(embedded.key_projections)) == (5, 2)
    assert module(batch, 0).isfinite()


@pytest.mark.parametrize("kind", ["in-batch", "queue", "bank", "byol", "swav", "predictive"])
def test_paired_views_have_separate_towers(kind: str) -> None:
    dataset = build_data(views=3)
    options = dict(KINDS[kind])
    module = build_module(dataset, **options, augment="weak")
    assert len(module.model.towers) == 3
    losses = take_steps(module, build_batches(dataset, 4))
    assert np.isfinite(losses).all()
    assert module.model(*module.views.make_unaugmented(build_batches(dataset, 1)[0].views)).shape == (8, 3 * 256)


def test_schedules_follow_the_steps() -> None:
    dataset = build_data()
    module = build_module(dataset, objective="nt-xent", temperature="0.5:0.05:linear", constraint="tighten:every=2")
    seen = []
    for step in (0, 8, 16, 99):
        module(build_batches(dataset, 1)[0], step)
        seen.append((round(module.objective.temperature, 4), repr(module.objective.constraint)))
    assert seen == [
        (0.5, "Rows()"),
        (round(0.5 * 0.1**0.4, 4), "Balanced(iterations=1)"),
        (round(0.5 * 0.1**0.8, 4), "Balanced(iterations=2)"),
        (0.05, "Balanced(iterations=8)"),
    ]


@pytest.mark.parametrize("kind", ["in-batch", "queue", "byol", "swav"])
def test_chunks_get_the_same_views(kind: str) -> None:
    """With one chunk for the whole batch, the step equals the plain step bit for bit."""
    dataset = build_data()
    without_chunks, with_one_chunk = (build_module(dataset, **KINDS[kind], cache_chunk=size) for size in (None, 8))
    batches = build_batches(dataset, 3)
    assert take_steps(without_chunks, batches) == take_steps(with_one_chunk, batches)
    for (name, a), b in zip(without_chunks.state_dict().items(), with_one_chunk.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


def test_encoder_receives_at_most_one_chunk() -> None:
    dataset, sizes = build_data(), []
    module = build_module(dataset, cache_chunk=3)
    module.model.encoders[0].register_forward_hook(lambda encoder, inputs, output: sizes.append(len(output)))
    module(build_batches(dataset, 1)[0], 0)
    assert sizes == [2 * 3, 2 * 3, 2 * 2]  # both views of each chunk of a batch of 8


def test_chunks_differ_only_by_batch_norm() -> None:
    dataset = build_data()
    results = []
    for size in (None, 3):
        module = build_module(dataset, recipe="moco-v3", cache_chunk=size)
        for part in module.modules():
            if isinstance(part, nn.BatchNorm1d):
                part.eval()
        module(build_batches(dataset, 1)[0], 0).backward()
        results.append(get_gradients(module))
    for name, value in results[0].items():
        torch.testing.assert_close(results[1][name], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["queue", "bank", "byol"])
def test_checkpoint_contains_the_state_after_its_step(kind: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {**KINDS[kind], "batch_size": 16, "epochs": 2, "progress": False, "projection": 8}
    uninterrupted = train(data=build_data(), out=tmp_path / "whole", **options)
    train(data=build_data(), out=tmp_path / "part", **options, keep_every=1)
    checkpoint = torch.load(tmp_path / "part" / "checkpoints" / "epoch-0001.ckpt", weights_only=True)
    for suffix in ("", ".sha256"):
        earlier = tmp_path / "part" / "checkpoints" / f"epoch-0001.ckpt{suffix}"
        earlier.replace(earlier.with_name(f"last.ckpt{suffix}"))
    steps = checkpoint["step"]
    if kind == "queue":
        assert checkpoint["pipeline"]["comparison.memory.written"] == 16 * steps
    if kind == "byol":
        names = [name for name in checkpoint["pipeline"] if name.startswith("momentum_encoder.model.")]
        assert len(names) > 5
    resumed = train(data=build_data(), out=tmp_path / "part", resume=True, progress=False)
    ends = [
        torch.load(as_run_folder(run).checkpoints / "last.ckpt", weights_only=True)["pipeline"]
        for run in (uninterrupted, resumed)
    ]
    assert_equal(*ends)


def test_accumulated_batches_have_different_views(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class RecordingObjective(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[Tensor] = []

        def forward(self, z0: Tensor, z1: Tensor) -> Tensor:
            self.seen.append(z0.detach())
            return (z0 - z1).square().mean()

    objective, same_item = RecordingObjective(), from_arrays(np.ones((48, 5)))
    with caplog.at_level("WARNING", "contraport"):
        run = train(
            data=same_item, objective=objective, batch_size=8, grad_accum_steps=4, epochs=1, lr=1e-9,
            out=tmp_path / "run", progress=False, projection=0, log_every=1,
        )  # fmt: skip
    assert "cache_chunk" in caplog.text
    assert [row["step"] for row in run.metrics_rows()] == [1, 2]  # six batches are two steps, the second of two batches
    assert len(objective.seen) == 6
    assert not torch.allclose(objective.seen[0], objective.seen[1], atol=1e-3)


@pytest.mark.parametrize("compare", [compare_steps, pytest.param(compare_weights, marks=pytest.mark.slow)])
def test_steps_of_two_processes_equal_one(compare: Callable[..., None]) -> None:
    assert not run_in_processes(compare, 2)


def test_learned_temperature_is_trained() -> None:
    dataset = build_data()
    module = build_module(dataset, objective="nt-xent", temperature="learn")
    take_steps(module, build_batches(dataset, 3))
    assert module.objective is not None
    assert module.objective.temperature != 0.5
    with raises_usage_error("temperature.*"):
        build_module(dataset, objective="alpha-cl", temperature="learn")
