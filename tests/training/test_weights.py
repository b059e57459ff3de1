"""How much an item counts in a training: the weights of its data, in a column or a file of their own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from contraport import KL, Balanced, Gibbs, Joint, Objective, Pairs, PlanWeights, nt_xent
from contraport.data import from_arrays
from contraport.errors import UsageError
from contraport.evaluation import evaluate
from contraport.runs import Run
from contraport.training import replay, train
from contraport.training.components import build
from contraport.training.config import Settings

from .conftest import Pull
from .test_train import same, weights_of


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A table with a column of weights, of which a fifth is held out, and a file for the rest."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    rows = np.column_stack([random.normal(size=(80, 4)), random.integers(1, 5, 80), np.arange(80) % 4])
    kinds = ["%.6f"] * 4 + ["%d"] * 2
    np.savetxt("data.csv", rows, fmt=kinds, delimiter=",", header="a,b,c,d,worth,label", comments="")
    return {"data": "data.csv", "batch_size": 16, "encoder": "mlp", "epochs": 2, "progress": False}


def loss_and_embeddings(settings: dict[str, Any]) -> tuple[float, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The loss of a batch, the projections of its two plain views, and its weights."""
    built = build(Settings(**settings, augment="none"))
    batch = built.dataset.__getitems__([5, 60, 0, 33])
    model = built.pipeline.model
    with torch.no_grad():
        (z,) = model.project(model.encode([torch.cat([batch.views[0]] * 2)]))
        loss = float(built.pipeline(batch, 0))
    assert batch.weights is not None
    return loss, *z.chunk(2), batch.weights


def test_a_column_weighs_the_items(table: dict[str, Any]) -> None:
    loss, z0, z1, weights = loss_and_embeddings({**table, "sample_weight": "worth"})
    assert loss == pytest.approx(float(nt_xent()(z0, z1, weights=weights)), rel=1e-5)
    by_row = nt_xent()(z0, z1, reduction="none")
    expected = (by_row * weights.repeat(2)).sum() / (2 * weights.sum())
    assert loss == pytest.approx(float(expected), rel=1e-5)


def test_weights_are_the_marginals_of_a_plan(table: dict[str, Any]) -> None:
    chosen = {"sample_weight": "worth", "constraint": "balanced:marginals=weights,iterations=4"}
    loss, z0, z1, weights = loss_and_embeddings({**table, **chosen})
    objective = Objective(Joint(), Gibbs("cosine", 0.5), Balanced(4, marginals="weights"), Pairs(), KL())
    assert loss == pytest.approx(float(objective(z0, z1, weights=weights)), rel=1e-5)
    mass = objective.plan(z0, z1, weights=weights).sum(0)
    torch.testing.assert_close(mass, weights.repeat(2) / weights.sum() / 2, rtol=1e-5, atol=0)


def test_a_file_weighs_as_a_column_does(table: dict[str, Any]) -> None:
    column = build(Settings(**table, sample_weight="worth"))
    assert column.dataset.weights is not None
    assert column.dataset.shapes == ((4,),)
    np.save("worth.npy", column.dataset.weights.numpy())
    by_file = build(Settings(**table, sample_weight="worth.npy", columns={"views": [["a", "b", "c", "d"]]}))
    batch = column.dataset.__getitems__(list(range(10)))
    with torch.no_grad():
        losses = [float(built.pipeline(batch, 3)) for built in (column, by_file)]
    assert losses[0] == losses[1]
    assert torch.equal(column.dataset.weights, by_file.dataset.weights)


def test_a_weighted_run_goes_on_and_is_evaluated(table: dict[str, Any]) -> None:
    chosen = {"sample_weight": "worth", "lr_scheduler": "constant", "warmup_epochs": 0}
    whole = train(**table, **chosen, out="whole")
    train(**table | {"epochs": 1}, **chosen, out="part")
    assert same(weights_of(train(resume=True, out="part", epochs=2, progress=False)), weights_of(whole))
    plain = train(
        **table, **chosen | {"sample_weight": None, "columns": {"views": [["a", "b", "c", "d"]]}}, out="plain"
    )
    assert not same(weights_of(whole), weights_of(plain))
    assert Run("part").config()["sample_weight"] == "worth"
    assert "linear_probe" in evaluate(whole, progress=False)["rows"]["trained"]


def test_a_run_weighed_by_a_file_is_evaluated_without_it(table: dict[str, Any]) -> None:
    np.save("worth.npy", np.linspace(1, 2, 64))
    chosen = {"sample_weight": "worth.npy", "constraint": "unbalanced:marginals=weights", "objective": "gca-uot"}
    run = train(**table, **chosen, out="run")
    Path("worth.npy").unlink()
    notes = evaluate(run, progress=False)["notes"]
    assert any("marginals" in note for note in notes)


def test_a_step_is_replayed_with_its_weights(table: dict[str, Any]) -> None:
    with pytest.raises(FloatingPointError):
        train(**table, sample_weight="worth", lr=1e30, warmup_epochs=0, out="run")
    step = replay("run")
    assert step.batch.weights is not None
    known = build(Run("run").settings()).dataset.weights
    assert known is not None
    assert torch.equal(step.batch.weights, known[step.batch.ids])


def test_a_batch_of_which_nothing_counts_adds_nothing(table: dict[str, Any]) -> None:
    np.save("few.npy", np.eye(64)[7])
    built = build(Settings(**table, sample_weight="few.npy"))
    loss = built.pipeline(built.dataset.__getitems__([0, 1, 2, 3]), 0)
    loss.backward()
    assert float(loss.detach()) == 0
    assert all(p.grad is not None and not p.grad.any() for p in built.pipeline.model.parameters())
    assert train(**table, sample_weight="few.npy", out="run").metrics()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"sample_weight": "wroth"},
            "columns: weights: column of data.csv: unknown name 'wroth'; did you mean 'worth'",
        ),
        ({"sample_weight": "none.npy"}, "sample_weight: none.npy cannot be read as a file: .*No such file"),
        ({"sample_weight": "pipe.npy"}, "sample_weight: pipe.npy is no regular file"),
        ({"sample_weight": "junk.npy"}, "sample_weight: junk.npy cannot be read as an .npy array"),
        ({"sample_weight": "long.npy"}, r"weights: expected one for each of 64 items, got \(70,\)"),
        ({"sample_weight": "plan:2"}, "strength: expected a number from 0 to 1, got 2"),
        (
            {"sample_weight": "plan", "objective": Pull()},
            "sample_weight: an objective's plan tells them, and the objective is Pull",
        ),
        (
            {"sample_weight": "plan", "objective": "vic-reg"},
            "weights: a plan tells them of embeddings of all views",
        ),
        ({"sample_weight": "plan", "prototypes": 3}, "weights: a plan tells them of embeddings of all views"),
        (
            {"sample_weight": "square.npy"},
            r"sample_weight: square.npy: expected one number per item, got float64 of shape \(64, 2",
        ),
        ({"sample_weight": "negative.npy"}, "sample_weight: negative.npy: expected numbers from 0 on, got -1"),
        (
            {"sample_weight": "nan.npy"},
            "sample_weight: nan.npy: expected finite numbers, got NaN or infinity in 64 of 64 rows",
        ),
        (
            {"sample_weight": "worth", "columns": {"weights": "worth"}},
            "sample_weight: given twice, by itself and in columns",
        ),
        (
            {"sample_weight": "worth", "data": "digits"},
            "sample_weight: only tables have columns, got 'worth' for 'digits'; expected a .npy file",
        ),
        (
            {"sample_weight": "worth", "data": "photos"},
            "sample_weight: only tables have columns, got 'worth' for 'photos'",
        ),
        (
            {"sample_weight": "worth", "objective": Pull()},
            "sample_weight: the call of Pull has no keyword `weights` to take them",
        ),
        (
            {"sample_weight": "worth", "predict": "l2", "projection": 0, "objective": None},
            "sample_weight: nothing is compared",
        ),
        ({"constraint": "balanced:marginals=weights"}, "constraint: its marginals are weights, and the data have none"),
        (
            {"constraint": "balanced:marginals=weights", "sample_weight": "zero.npy"},
            "weights: Balanced.* expects a positive weight of each item",
        ),
        ({"sample_weight": 3}, "sample_weight: expected text or a path, got 3"),
        ({"sample_weight": "resnet18.safetensors"}, "sample_weight: how much each item counts .* given as init"),
    ],
)
def test_what_weighs_nothing_is_told(table: dict[str, Any], wrong: dict[str, Any], message: str) -> None:
    for name, values in {
        "long": np.ones(70), "square": np.ones((64, 2)), "negative": -np.ones(64), "nan": np.full(64, np.nan),
        "zero": np.arange(64),
    }.items():  # fmt: skip
        np.save(f"{name}.npy", values)
    Path("junk.npy").write_bytes(b"junk")
    os.mkfifo("pipe.npy")
    Path("photos").mkdir()
    Image.new("L", (8, 8)).save("photos/first.png")
    with pytest.raises(UsageError, match=message):
        train(**{**table, **wrong, "out": "run"})
    assert not Path("run").exists()


def test_arrays_bring_their_weights() -> None:
    dataset = from_arrays(np.ones((3, 2)), weights=[1, 0, 2.5])
    assert dataset.weights is not None
    assert dataset.weights.tolist() == [1, 0, 2.5]
    assert dataset.with_weights(None).weights is None
    with pytest.raises(UsageError, match=r"weights: expected one for each of 3 items, got \(2,\)"):
        from_arrays(np.ones((3, 2)), weights=[1, 2])


def test_the_plan_of_a_batch_weighs_its_items_times_the_column(table: dict[str, Any]) -> None:
    built = build(Settings(**table, augment="none", columns={"weights": "worth"}, sample_weight="plan:0.7"))
    batch = built.dataset.__getitems__([5, 60, 0, 33])
    model = built.pipeline.model
    with torch.no_grad():
        (z,) = model.project(model.encode([torch.cat([batch.views[0]] * 2)]))
        z0, z1 = z.chunk(2)
        for step, strength in ((0, 0.7), (9, 0.7)):
            loss = float(built.pipeline(batch, step))
            expected = nt_xent()(z0, z1, weights=PlanWeights(strength, given=batch.weights))
            assert loss == pytest.approx(float(expected), rel=1e-5)
    assert loss != pytest.approx(float(nt_xent()(z0, z1, weights=batch.weights)), rel=1e-4)


def test_a_run_weighed_by_plans_goes_on_and_is_evaluated(table: dict[str, Any]) -> None:
    chosen = {"sample_weight": "plan:0.9", "negatives": "queue", "columns": {"views": [["a", "b", "c", "d"]]}}
    chosen |= {"lr_scheduler": "constant", "warmup_epochs": 0}
    whole = train(**table, **chosen, out="whole")
    train(**table | {"epochs": 1}, **chosen, out="part")
    assert same(weights_of(train(resume=True, out="part", epochs=2, progress=False)), weights_of(whole))
    assert not same(weights_of(train(**table, **chosen | {"sample_weight": None}, out="plain")), weights_of(whole))
    assert "linear_probe" in evaluate(whole, progress=False)["rows"]["trained"]


def test_a_file_may_have_a_number_for_each_row_of_the_data(table: dict[str, Any]) -> None:
    dataset = build(Settings(**table, sample_weight="worth")).dataset
    assert dataset.weights is not None
    rows = np.zeros(80)
    rows[dataset.rows] = dataset.weights
    np.save("rows.npy", rows)
    by_row = build(Settings(**table, sample_weight="rows.npy", columns={"views": [["a", "b", "c", "d"]]})).dataset
    assert by_row.weights is not None
    assert torch.equal(by_row.weights, dataset.weights)
