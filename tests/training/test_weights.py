"""Sample weights from a column, a file or the plan."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from contraport import KL, Balanced, Gibbs, Joint, Objective, Pairs, WeightsFromPlan, nt_xent
from contraport.data import from_arrays
from contraport.evaluation import evaluate
from contraport.runs import Run
from contraport.training import load_failed_step, train
from contraport.training.components.assembly import build_components
from contraport.training.config import Settings
from tests.errors import raises_usage_error

from .conftest import StubObjective
from .test_train import are_equal_states, get_model_state


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Options with a table that has a column of weights; a fifth of its rows is held out."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    rows = np.column_stack([random.normal(size=(80, 4)), random.integers(1, 5, 80), np.arange(80) % 4])
    kinds = ["%.6f"] * 4 + ["%d"] * 2
    np.savetxt("data.csv", rows, fmt=kinds, delimiter=",", header="a,b,c,d,worth,label", comments="")
    return {"data": "data.csv", "batch_size": 16, "encoder": "mlp", "epochs": 2, "progress": False}


def compute_loss_and_projections(settings: dict[str, Any]) -> tuple[float, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the loss of a batch, the projections of its two unaugmented views, and its weights."""
    components = build_components(Settings(**settings, augment="none"))
    batch = components.dataset.__getitems__([5, 60, 0, 33])
    model = components.module.model
    with torch.no_grad():
        (z,) = model.project(model.encode([torch.cat([batch.views[0]] * 2)]))
        loss = float(components.module(batch, 0))
    assert batch.weights is not None
    return loss, *z.chunk(2), batch.weights


def test_loss_is_weighted_by_a_column(options: dict[str, Any]) -> None:
    loss, z0, z1, weights = compute_loss_and_projections({**options, "sample_weight": "worth"})
    assert loss == pytest.approx(float(nt_xent()(z0, z1, weights=weights)), rel=1e-5)
    by_row = nt_xent()(z0, z1, reduction="none")
    expected = (by_row * weights.repeat(2)).sum() / (2 * weights.sum())
    assert loss == pytest.approx(float(expected), rel=1e-5)


def test_weights_are_the_marginals_of_a_plan(options: dict[str, Any]) -> None:
    training_options = {"sample_weight": "worth", "constraint": "balanced:marginals=weights,iterations=4"}
    loss, z0, z1, weights = compute_loss_and_projections({**options, **training_options})
    objective = Objective(Joint(), Gibbs("cosine", 0.5), Balanced(4, marginals="weights"), Pairs(), KL())
    assert loss == pytest.approx(float(objective(z0, z1, weights=weights)), rel=1e-5)
    mass = objective.plan(z0, z1, weights=weights).sum(0)
    torch.testing.assert_close(mass, weights.repeat(2) / weights.sum() / 2, rtol=1e-5, atol=0)


def test_weights_of_a_file_equal_weights_of_a_column(options: dict[str, Any]) -> None:
    column = build_components(Settings(**options, sample_weight="worth"))
    assert column.dataset.weights is not None
    assert column.dataset.shapes == ((4,),)
    np.save("worth.npy", column.dataset.weights.numpy())
    by_file = build_components(
        Settings(**options, sample_weight="worth.npy", columns={"views": [["a", "b", "c", "d"]]})
    )
    batch = column.dataset.__getitems__(list(range(10)))
    with torch.no_grad():
        losses = [float(components.module(batch, 3)) for components in (column, by_file)]
    assert losses[0] == losses[1]
    assert torch.equal(column.dataset.weights, by_file.dataset.weights)


def test_weighted_run_is_resumed_and_evaluated(options: dict[str, Any]) -> None:
    training_options = {"sample_weight": "worth", "lr_scheduler": "constant", "warmup_epochs": 0}
    uninterrupted = train(**options, **training_options, out="whole")
    train(**options | {"epochs": 1}, **training_options, out="part")
    assert are_equal_states(
        get_model_state(train(resume=True, out="part", epochs=2, progress=False)), get_model_state(uninterrupted)
    )
    unweighted = train(
        **options,
        **training_options | {"sample_weight": None, "columns": {"views": [["a", "b", "c", "d"]]}},
        out="plain",
    )
    assert not are_equal_states(get_model_state(uninterrupted), get_model_state(unweighted))
    assert Run("part").config()["sample_weight"] == "worth"
    assert "linear_probe" in evaluate(uninterrupted, progress=False)["rows"]["trained"]


def test_run_weighted_by_a_file_is_evaluated_without_it(options: dict[str, Any]) -> None:
    np.save("worth.npy", np.linspace(1, 2, 64))
    training_options = {
        "sample_weight": "worth.npy",
        "constraint": "unbalanced:marginals=weights",
        "objective": "gca-uot",
    }
    run = train(**options, **training_options, out="run")
    Path("worth.npy").unlink()
    notes = evaluate(run, progress=False)["notes"]
    assert any("marginals" in note for note in notes)


def test_failed_step_is_replayed_with_its_weights(options: dict[str, Any]) -> None:
    with pytest.raises(FloatingPointError):
        train(**options, sample_weight="worth", lr=1e30, warmup_epochs=0, out="run")
    step = load_failed_step("run")
    assert step.batch.weights is not None
    weights = build_components(Run("run").settings()).dataset.weights
    assert weights is not None
    assert torch.equal(step.batch.weights, weights[step.batch.ids])


def test_batch_of_zero_weights_adds_nothing(options: dict[str, Any]) -> None:
    np.save("few.npy", np.eye(64)[7])
    components = build_components(Settings(**options, sample_weight="few.npy"))
    loss = components.module(components.dataset.__getitems__([0, 1, 2, 3]), 0)
    loss.backward()
    assert float(loss.detach()) == 0
    assert all(p.grad is not None and not p.grad.any() for p in components.module.model.parameters())
    assert train(**options, sample_weight="few.npy", out="run").metrics_rows()


@pytest.mark.parametrize(
    ("invalid_options", "code", "value"),
    [
        ({"sample_weight": "wroth"}, "*unknown", "worth"),
        ({"sample_weight": "none.npy"}, "sample_weight.*", "no file"),
        ({"sample_weight": "pipe.npy"}, "sample_weight.*", "pipe.npy"),
        ({"sample_weight": "junk.npy"}, "sample_weight.unreadable", "junk.npy"),
        ({"sample_weight": "long.npy"}, "sample_weight.*", "70"),
        ({"sample_weight": "plan:2"}, "strength.*", 2),
        ({"sample_weight": "plan", "objective": StubObjective()}, "sample_weight.no_plan", "StubObjective"),
        ({"sample_weight": "plan", "objective": "vic-reg"}, "sample_weight.conflict", "plan"),
        ({"sample_weight": "plan", "prototypes": 3}, "sample_weight.conflict", "plan"),
        ({"sample_weight": "square.npy"}, "sample_weight.*", "(64, 2"),
        ({"sample_weight": "negative.npy"}, "sample_weight.*", -1),
        ({"sample_weight": "nan.npy"}, "sample_weight.*", "nan.npy"),
        ({"sample_weight": "worth", "columns": {"weights": "worth"}}, "sample_weight.duplicate", "columns"),
        ({"sample_weight": "worth", "data": "digits"}, "sample_weight.*", "digits"),
        ({"sample_weight": "worth", "data": "photos"}, "sample_weight.*", "photos"),
        ({"sample_weight": "worth", "objective": StubObjective()}, "sample_weight.unsupported", "StubObjective"),
        (
            {"sample_weight": "worth", "predict": "l2", "projection": 0, "objective": None},
            "sample_weight.unsupported",
            "predict",
        ),
        ({"constraint": "balanced:marginals=weights"}, "constraint.no_weights", "add sample_weight"),
        (
            {"constraint": "balanced:marginals=weights", "sample_weight": "zero.npy"},
            "sample_weight.marginals",
            "Balanced",
        ),
        ({"sample_weight": 3}, "sample_weight.invalid", 3),
        ({"sample_weight": "resnet18.safetensors"}, "sample_weight.encoder_weights", "--init"),
    ],
)
def test_rejects_invalid_weights(
    options: dict[str, Any], invalid_options: dict[str, Any], code: str, value: object
) -> None:
    for name, values in {
        "long": np.ones(70), "square": np.ones((64, 2)), "negative": -np.ones(64), "nan": np.full(64, np.nan),
        "zero": np.arange(64),
    }.items():  # fmt: skip
        np.save(f"{name}.npy", values)
    Path("junk.npy").write_bytes(b"junk")
    os.mkfifo("pipe.npy")
    Path("photos").mkdir()
    Image.new("L", (8, 8)).save("photos/first.png")
    with raises_usage_error(code, value):
        train(**{**options, **invalid_options, "out": "run"})
    assert not Path("run").exists()


def test_weights_of_arrays_are_used() -> None:
    dataset = from_arrays(np.ones((3, 2)), weights=[1, 0, 2.5])
    assert dataset.weights is not None
    assert dataset.weights.tolist() == [1, 0, 2.5]
    assert dataset.replace_fields(weights=None).weights is None
    with raises_usage_error("weights.*", "(2,)"):
        from_arrays(np.ones((3, 2)), weights=[1, 2])


def test_plan_weights_multiply_the_weights_of_a_column(options: dict[str, Any]) -> None:
    components = build_components(
        Settings(**options, augment="none", columns={"weights": "worth"}, sample_weight="plan:0.7")
    )
    batch = components.dataset.__getitems__([5, 60, 0, 33])
    model = components.module.model
    with torch.no_grad():
        (z,) = model.project(model.encode([torch.cat([batch.views[0]] * 2)]))
        z0, z1 = z.chunk(2)
        for step, strength in ((0, 0.7), (9, 0.7)):
            loss = float(components.module(batch, step))
            expected = nt_xent()(z0, z1, weights=WeightsFromPlan(strength, batch_item_weights=batch.weights))
            assert loss == pytest.approx(float(expected), rel=1e-5)
    assert loss != pytest.approx(float(nt_xent()(z0, z1, weights=batch.weights)), rel=1e-4)


def test_plan_weighted_run_is_resumed_and_evaluated(options: dict[str, Any]) -> None:
    training_options = {"sample_weight": "plan:0.9", "negatives": "queue", "columns": {"views": [["a", "b", "c", "d"]]}}
    training_options |= {"lr_scheduler": "constant", "warmup_epochs": 0}
    uninterrupted = train(**options, **training_options, out="whole")
    train(**options | {"epochs": 1}, **training_options, out="part")
    assert are_equal_states(
        get_model_state(train(resume=True, out="part", epochs=2, progress=False)), get_model_state(uninterrupted)
    )
    assert not are_equal_states(
        get_model_state(train(**options, **training_options | {"sample_weight": None}, out="plain")),
        get_model_state(uninterrupted),
    )
    assert "linear_probe" in evaluate(uninterrupted, progress=False)["rows"]["trained"]


def test_file_may_have_a_weight_for_each_row_of_the_data(options: dict[str, Any]) -> None:
    dataset = build_components(Settings(**options, sample_weight="worth")).dataset
    assert dataset.weights is not None
    rows = np.zeros(80)
    rows[dataset.source_rows] = dataset.weights
    np.save("rows.npy", rows)
    by_row = build_components(
        Settings(**options, sample_weight="rows.npy", columns={"views": [["a", "b", "c", "d"]]})
    ).dataset
    assert by_row.weights is not None
    assert torch.equal(by_row.weights, dataset.weights)
