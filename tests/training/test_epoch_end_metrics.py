"""Online metrics: logged values, and no effect on the training."""

import numpy as np
import pytest
import torch

import contraport
from contraport.data import Views, from_arrays
from contraport.embedding import LoaderConfig
from contraport.metrics import METRICS
from contraport.metrics import fine_tuning as tuning
from contraport.metrics.eval_context import EvalContext
from contraport.runs import as_run_folder
from contraport.seeding import torch_generator
from contraport.training.callbacks.progress_display import format_metrics_row
from contraport.training.components.assembly import build_components
from contraport.training.config import Settings
from contraport.training.epoch_end_training_metrics import EpochEndMetrics
from tests.errors import raises_usage_error

LABELS = [0, 1] * 15
ALL = ("knn", "linear_probe:every=2", "geometry", "retrieval", "fine_tuning:every=3")


def build_images(labels: bool = True):
    random = np.random.default_rng(0)
    images = random.integers(0, 90, size=(120, 8, 8), dtype=np.uint8)
    images[np.arange(120), np.arange(120) % 4] += 100
    return from_arrays(images, labels=np.arange(120) % 4 if labels else None)


def train(out, data=None, **options):
    settings = {"encoder": "small-cnn", "epochs": 4, "batch_size": 40, "progress": False, "keep_every": 2, **options}
    return contraport.train(data=data or build_images(), out=out, **settings)


def collect_checkpoint_state(run):
    return torch.load(as_run_folder(run).last_checkpoint, weights_only=True)


def are_equal(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(are_equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(are_equal, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


@pytest.mark.parametrize("recipe", [{}, {"recipe": "moco", "queue_size": 80}], ids=["simclr", "moco"])
def test_online_metrics_do_not_change_the_training(tmp_path, recipe, monkeypatch) -> None:
    monkeypatch.setattr(tuning, "MIN_EPOCHS", 1)
    monkeypatch.setattr(tuning, "MIN_STEPS", 2)
    torch.manual_seed(7)
    without_metrics = train(tmp_path / "without", **recipe)
    expected = torch.rand(1)
    torch.manual_seed(7)
    with_metrics = train(tmp_path / "with", online_metrics=ALL, **recipe)
    assert torch.equal(torch.rand(1), expected)
    first, second = collect_checkpoint_state(without_metrics), collect_checkpoint_state(with_metrics)
    for part in ("pipeline", "optimizer", "schedule", "step"):
        assert are_equal(first[part], second[part]), part
    rows = [
        [{key: row[key] for key in ("step", "loss", "lr")} for row in run.metrics_rows()]
        for run in (without_metrics, with_metrics)
    ]
    assert rows[0] == rows[1]


def test_rows_have_metrics_at_their_steps(tmp_path) -> None:
    run = train(tmp_path / "run", online_metrics=["knn:every=2", "uniformity"], log_every=2)
    options = {(row["epoch"], row["step"]): {"knn", "uniformity"} & row.keys() for row in run.metrics_rows()}
    assert {place: keys for place, keys in options.items() if keys} == {
        (1, 3): {"uniformity"},
        (2, 6): {"knn", "uniformity"},
        (3, 9): {"uniformity"},
        (4, 12): {"knn", "uniformity"},
    }
    assert all(0 <= row["knn"] <= 1 for row in run.metrics_rows() if "knn" in row)


def test_resumed_metrics_equal_uninterrupted_ones(tmp_path) -> None:
    uninterrupted = train(tmp_path / "whole", online_metrics=["knn"], lr_scheduler="constant", epochs=4)
    train(tmp_path / "parts", online_metrics=["knn"], lr_scheduler="constant", epochs=2)
    resumed = train(tmp_path / "parts", resume=True, epochs=4)
    assert [row["knn"] for row in resumed.metrics_rows()] == [row["knn"] for row in uninterrupted.metrics_rows()]


def test_items_without_a_view_are_left_out(tmp_path) -> None:
    random = np.random.default_rng(0)
    first, second = random.normal(size=(90, 4)), random.normal(size=(90, 5))
    second[::3] = np.nan
    data = from_arrays((first, second), labels=np.arange(90) % 2)
    settings = Settings(data=data, batch_size=30, online_metrics=["knn"])
    context = EpochEndMetrics(settings, build_components(settings), data).build_training_subset_context(
        torch.device("cpu")
    )
    assert (len(context.train), len(context.test)) == (30, 30)
    assert (
        train(tmp_path / "run", data, encoder=None, batch_size=30, online_metrics=["knn"]).metrics_rows()[-1]["knn"]
        <= 1
    )


@pytest.mark.parametrize("views", [1, 2])
def test_mismatched_pairs_are_evaluated_unchanged(views: int) -> None:
    random = np.random.default_rng(0)
    data = from_arrays(tuple(random.normal(size=(90, 4)) for _ in range(views)), labels=np.arange(90) % 2)
    settings = Settings(data=data, batch_size=30, online_metrics=["knn"], mismatch=1.0)
    context = EpochEndMetrics(settings, build_components(settings), data).build_training_subset_context(
        torch.device("cpu")
    )
    permutation = torch.randperm(90, generator=torch_generator("training.monitor"))
    expected = data.__getitems__(permutation[1::2].tolist()).views
    assert are_equal(context.test.__getitems__(list(range(45))).views, expected)
    assert len(context.test.shapes) == views


def test_last_metrics_equal_those_of_the_model(tmp_path) -> None:
    run = train(tmp_path / "run", online_metrics=["effective_rank"])
    permutation = torch.randperm(120, generator=torch_generator("training.monitor"))
    batch = build_images().__getitems__(permutation[1::2].tolist())
    context = from_arrays(batch.views[0].numpy(), labels=batch.labels)
    eval_context = EvalContext(run.model(), build_images(), context, Views(build_images()), LoaderConfig())
    assert run.metrics_rows()[-1]["effective_rank"] == pytest.approx(
        METRICS["effective_rank"](eval_context).value, rel=1e-6
    )


@pytest.mark.parametrize(
    ("options", "code", "value"),
    [
        ({"online_metrics": ["kn"]}, "*unknown", "knn"),
        (
            {"online_metrics": ["knn:often"]},
            "online_metrics.*",
            "knn:often",
        ),
        ({"online_metrics": ["knn:every=0"]}, "online_metrics.*", "knn"),
        ({"online_metrics": ["knn"], "data": build_images(labels=False)}, "online_metrics.unavailable", "kNN"),
        (
            {
                "online_metrics": ["knn"],
                "batch_size": 10,
                "data": from_arrays(np.eye(30), labels=[0, 1] * 15),
                "encoder": None,
            },
            "neighbors.*",
            15,
        ),
    ],
)
def test_rejects_unavailable_metrics_before_writing(tmp_path, options, code, value) -> None:
    with raises_usage_error(code, value):
        train(tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_progress_bar_shows_the_last_metrics() -> None:
    row = {"loss": 1.5, "temperature": None, "plan_mass": None, "images_per_second": 10.0, "data_wait": 0.0}
    assert "kNN 91.2%" in format_metrics_row(row, {"knn": 0.912})
    assert "kNN" not in format_metrics_row(row, {})
