"""Training with `target` and `teacher`: loss, run folder, resuming, replay and evaluation."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from contraport import SimilarityMatrix, nt_xent, objective
from contraport.data import from_arrays
from contraport.evaluation import evaluate
from contraport.runs import Run, as_run_folder
from contraport.training import load_failed_step, train
from contraport.training.components.assembly import build_components
from contraport.training.config import Settings
from tests.errors import raises_usage_error

from .test_train import are_equal_states, get_model_state


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Options with a data file, of which a fifth is held out, beside files with features and a matrix of the rest."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    labels = np.arange(80) % 4
    x = random.normal(size=(80, 6)) + 3 * np.eye(6)[labels]
    np.savez("data.npz", x=x, labels=labels, domains=labels % 2)
    np.save("teacher.npy", random.normal(size=(64, 3)))
    np.save("matrix.npy", random.random((64, 64)))
    return {"data": "data.npz", "batch_size": 16, "encoder": "mlp", "epochs": 2, "progress": False}


@pytest.mark.parametrize("objective", ["nt-xent", "gca-uot", "iot-quadratic", "sigmoid", "t-simclr", "byol"])
@pytest.mark.parametrize(
    "target",
    ["labels", "domains:alpha=0.1,beta=0.01", "soft:teacher.npy", "neighbors:k=3", "matrix:matrix.npy"],
)
def test_any_objective_accepts_any_target(options: dict[str, Any], objective: str, target: str) -> None:
    extra_options = {"predictor": True} if objective == "byol" else {}
    module = build_components(Settings(**options, objective=objective, target=target, **extra_options)).module
    batch = build_components(Settings(**options)).dataset.__getitems__(list(range(8)))
    loss = module(batch, 0)
    loss.backward()
    assert math.isfinite(float(loss.detach()))


def test_loss_uses_the_target(options: dict[str, Any]) -> None:
    components = build_components(Settings(**options, target="matrix:matrix.npy", augment="none"))
    batch = components.dataset.__getitems__([5, 60, 0, 33])
    model = components.module.model
    with torch.no_grad():
        (z,) = model.project(model.encode([torch.cat([batch.views[0]] * 2)]))
        target = SimilarityMatrix(torch.from_numpy(np.load("matrix.npy")), batch.ids)
        expected = nt_xent()(*z.chunk(2), target=target)
        assert float(components.module(batch, 0)) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize(
    ("name", "settings", "shape"), [("x-clr", {}, (3,)), ("guided", {"margin": 0.3}, (3,)), ("guided", {}, (2, 3))]
)
def test_loss_uses_the_features_of_the_teacher(
    options: dict[str, Any], name: str, settings: dict[str, float], shape: tuple[int, ...]
) -> None:
    np.save("teacher.npy", np.random.default_rng(1).normal(size=(64, *shape)))
    training_options = {"objective": name, "objective_settings": settings, "teacher": "teacher.npy", "augment": "none"}
    components = build_components(Settings(**options, **training_options))
    rows = [5, 60, 0, 33]
    batch = components.dataset.__getitems__(rows)
    model = components.module.model
    teacher_features = torch.from_numpy(np.load("teacher.npy")[rows]).float()
    with torch.no_grad():
        (z,) = model.project(model.encode([torch.cat([batch.views[0]] * 2)]))
        expected, others = (
            float(objective(name, **settings)(*z.chunk(2), features=features))
            for features in (teacher_features, teacher_features.flip(0))
        )
        assert float(components.module(batch, 0)) == pytest.approx(expected, rel=1e-5)
    assert expected != pytest.approx(others, rel=1e-3)  # the features matter


def test_rejects_a_guided_objective_that_excludes_no_negatives(options: dict[str, Any]) -> None:
    with raises_usage_error("teacher.per_item", "margin"):
        train(**options, objective="guided", teacher="teacher.npy", out="run")


def test_rejects_features_of_other_items(options: dict[str, Any]) -> None:
    np.save("short.npy", np.ones((63, 3)))
    with raises_usage_error("teacher.shape", "short.npy", 64):
        train(**options, objective="x-clr", teacher="short.npy", out="run")


def test_resumes_with_its_teacher_and_evaluates_without(options: dict[str, Any]) -> None:
    training_options = {
        "objective": "x-clr",
        "teacher": Path("teacher.npy"),
        "lr_scheduler": "constant",
        "warmup_epochs": 0,
    }
    uninterrupted = train(**options, **training_options, out="whole")
    interrupted = train(**options | {"epochs": 1}, **training_options, out="part")
    resumed = train(resume=True, out="part", epochs=2, progress=False)
    assert interrupted.config()["teacher"] == "teacher.npy"
    assert are_equal_states(get_model_state(resumed), get_model_state(uninterrupted))
    result = evaluate(resumed, metrics=["knn"], progress=False)
    assert any("No plan of test items is drawn" in note and "features" in note for note in result["notes"])
    Path("teacher.npy").unlink()
    with raises_usage_error("teacher.*", "teacher.npy", "no file"):
        train(resume=True, out="part", epochs=3, progress=False)


def test_resumes_with_its_target(options: dict[str, Any]) -> None:
    training_options = {"target": "soft:teacher.npy,temperature=0.2", "lr_scheduler": "constant", "warmup_epochs": 0}
    uninterrupted = train(**options, **training_options, out="whole")
    interrupted = train(**options | {"epochs": 1}, **training_options, out="part")
    with raises_usage_error("target.changed", "soft:teacher"):
        train(resume=True, out="part", target="labels", progress=False)
    resumed = train(resume=True, out="part", epochs=2, progress=False)
    assert interrupted.config()["target"] == "soft:teacher.npy,temperature=0.2"
    assert are_equal_states(get_model_state(resumed), get_model_state(uninterrupted))
    assert not are_equal_states(
        get_model_state(resumed),
        get_model_state(train(**options, **training_options | {"target": "pairs"}, out="pairs")),
    )


def test_resume_rejects_a_missing_target_file(options: dict[str, Any]) -> None:
    train(**options, target="soft:teacher.npy", out="run")
    Path("teacher.npy").unlink()
    with raises_usage_error("target.*", "teacher.npy", "no file"):
        train(resume=True, out="run", epochs=3, progress=False)


def test_failed_step_is_replayed_with_its_target(options: dict[str, Any]) -> None:
    with pytest.raises(FloatingPointError):
        train(**options, target="matrix:matrix.npy", lr=1e30, warmup_epochs=0, out="run")
    step = load_failed_step("run")
    assert not step.loss().isfinite()
    assert step.module.comparison.target_of_batch(step.batch).matrix.shape == (64, 64)


def test_target_of_test_items_is_saved(options: dict[str, Any]) -> None:
    run = train(**options, target="labels", out="labels")
    evaluate(run, progress=False)
    labels = as_run_folder(run).page_arrays()["plan_labels"]
    both = np.concatenate([labels, labels])
    assert np.array_equal(
        as_run_folder(run).page_arrays()["target"] > 0, (both[:, None] == both) & ~np.eye(len(both), dtype=bool)
    )


def test_targets_of_training_items_are_not_saved_for_test_items(options: dict[str, Any]) -> None:
    run = train(**options, target="neighbors:k=3", out="neighbors")
    result = evaluate(run, progress=False)
    assert "plan" not in as_run_folder(run).page_arrays()
    assert any("target" in note for note in result["notes"])


@pytest.mark.parametrize("training_options", [{"target": "labels"}, {"objective": "sup-con"}])
def test_unlabeled_items_have_metrics_without_labels(options: dict[str, Any], training_options: dict[str, str]) -> None:
    run = train(**options, **training_options, out="run")
    random = np.random.default_rng(1)
    unlabeled = tuple(from_arrays(random.normal(size=(count, 6))) for count in (40, 30))
    result = evaluate(run, data=unlabeled, progress=False)
    assert "uniformity" in result["rows"]["trained"]
    assert "plan" not in as_run_folder(run).page_arrays()
    assert any("labels" in note for note in result["notes"])


def test_command_line_trains_with_labels_of_named_data(tmp_path: Path) -> None:
    from contraport.cli import main

    out = str(tmp_path / "run")
    arguments = ["--data", "digits", "--encoder", "mlp", "--epochs", "1", "--batch_size", "400", "--target", "labels"]
    assert main(["train", *arguments, "--out", out]) == 0
    assert Run(out).config()["target"] == "labels"
