from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor, nn

import contraport
from contraport.data import Dataset, from_arrays
from contraport.runs import Run, as_run_folder
from contraport.training import train
from tests.errors import raises_usage_error

from .conftest import StubObjective

FILES = {
    "config.yaml",
    "metrics.jsonl",
    "split.npz",
    "train.log",
    "checkpoints/last.ckpt",
    "checkpoints/last.ckpt.sha256",
    "model/config.json",
    "model/model.safetensors",
    "model/model.safetensors.sha256",
    "model/training.json",
}
ROW = {
    "step",
    "epoch",
    "seconds",
    "loss",
    "lr",
    "temperature",
    "plan_mass",
    "mi_bound",
    "images_per_second",
    "data_wait",
}


def list_files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def get_model_state(run: Run) -> dict[str, Tensor]:
    return run.model().state_dict()


def are_equal_states(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_run_folder_has_its_documented_files(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = train(**settings)
    assert list_files(run.path) - {"model/README.md"} == FILES
    assert [path.name for path in tmp_path.iterdir()] == ["run"]  # nothing is written outside of the run folder
    assert run.model().config["encoder"] == ["mlp"]


def test_out_is_named_after_data_and_objective(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = train(**{**settings, "out": None, "epochs": 1}, objective="gca-uot")
    assert run.path == Path("runs/vectors-gca-uot")


def test_config_contains_the_arguments(settings: dict[str, Any]) -> None:
    run = train(**settings, objective="gca-ince", objective_settings={"iterations": 3}, temperature=0.2)
    config = yaml.safe_load(as_run_folder(run).config_path.read_text())
    assert config["data"] == "<vectors>"
    assert config["objective_settings"] == {"iterations": 3}
    assert config["temperature"] == 0.2
    assert config["seed"] == 0
    assert not config.keys() & {"out", "resume", "overwrite", "progress"}


def test_metrics_are_means_over_the_steps_of_a_row(settings: dict[str, Any]) -> None:
    settings["epochs"] = 3
    all_rows = train(**settings, log_every=1).metrics_rows()
    assert [row["step"] for row in all_rows] == [1, 2, 3, 4, 5, 6]
    assert [row["epoch"] for row in all_rows] == [1, 1, 2, 2, 3, 3]
    assert all(row.keys() == ROW and 0 <= row["data_wait"] <= 1 and row["images_per_second"] > 0 for row in all_rows)
    assert all(row["temperature"] == 0.5 for row in all_rows)
    coarse = train(**settings, overwrite=True).metrics_rows()
    assert [row["step"] for row in coarse] == [2, 4, 6]
    assert coarse[0]["loss"] == pytest.approx((all_rows[0]["loss"] + all_rows[1]["loss"]) / 2)
    assert sorted(row["seconds"] for row in coarse) == [row["seconds"] for row in coarse]


def test_loss_decreases(settings: dict[str, Any]) -> None:
    rows = train(**{**settings, "epochs": 12}).metrics_rows()
    assert rows[-1]["loss"] < rows[0]["loss"] - 0.1


def test_training_is_determined_by_the_seed(settings: dict[str, Any]) -> None:
    out = settings.pop("out")
    first = train(**settings, out=out / "a")
    torch.manual_seed(123)
    second = train(**settings, out=out / "b")
    third = train(**settings, out=out / "c", seed=1)
    assert are_equal_states(get_model_state(first), get_model_state(second))
    assert not are_equal_states(get_model_state(first), get_model_state(third))


def test_global_random_state_is_unchanged(settings: dict[str, Any]) -> None:
    before = torch.get_rng_state()
    train(**settings)
    assert torch.equal(torch.get_rng_state(), before)


def test_custom_objective_learns_its_temperature(settings: dict[str, Any]) -> None:
    objective = StubObjective()
    run = train(**settings, objective=objective, lr=0.01)
    learned = float(objective.temperature.detach())
    assert learned != 0.5
    assert run.metrics_rows()[-1]["temperature"] == pytest.approx(learned, abs=0.05)
    assert run.config()["objective"] == "<StubObjective>"


@pytest.mark.parametrize("grad_accum_steps", [1, 2])
@pytest.mark.parametrize(
    ("objective", "temperature_schedule"),
    [(contraport.sigmoid(temperature=0.07), None), (contraport.nt_xent(0.07), None), ("gca-uot", "0.5:0.1")],
    ids=["learned", "fixed", "scheduled"],
)
def test_logged_temperature_is_that_of_the_step(
    settings: dict[str, Any],
    objective: nn.Module | str,
    temperature_schedule: str | None,
    grad_accum_steps: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used_temperatures: list[float] = []
    forward = contraport.Objective.forward

    def forward_and_record(self: contraport.Objective, *views: Tensor, **arguments: Tensor | None) -> Tensor:
        value = forward(self, *views, **arguments)
        used_temperatures.append(self.temperature)
        return value

    monkeypatch.setattr(contraport.Objective, "forward", forward_and_record)
    run = train(
        **settings,
        objective=objective,
        temperature=temperature_schedule,
        log_every=1,
        lr=0.1,
        grad_accum_steps=grad_accum_steps,
    )
    logged = [row["temperature"] for row in run.metrics_rows()]
    assert logged == used_temperatures[-len(logged) * grad_accum_steps :: grad_accum_steps]
    assert (len(set(logged)) == 1) == (temperature_schedule is None and objective.temperature == 0.07)


def test_objective_gets_the_labels_it_requires(settings: dict[str, Any]) -> None:
    class LabelRecordingObjective(nn.Module):
        seen: Tensor | None = None

        def forward(self, z0: Tensor, z1: Tensor, labels: Tensor | None = None) -> Tensor:
            self.seen = labels
            return (z0 - z1).square().mean()

    objective = LabelRecordingObjective()
    run = train(**{**settings, "epochs": 1}, objective=objective)
    assert objective.seen is not None
    assert objective.seen.shape == (32,)
    assert run.metrics_rows()[-1]["temperature"] is None


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": "sgd", "lr_scheduler": "constant"},
        {"optimizer": "lars", "lr_scheduler": "linear", "warmup_epochs": 0},
        {"optimizer": "nadam", "lr": 1e-3, "warmup_epochs": 0.5},
        {"amp": True},
        {"augment": "strong", "device": "cpu", "projection": 16},
        {"augment": "noise:0.2", "projection_layers": 1},
        {"augment": "mixup:0.9", "projection_layers": 3},
    ],
)
def test_trains_with_options(settings: dict[str, Any], options: dict[str, Any]) -> None:
    rows = train(**settings, **options).metrics_rows()
    assert np.isfinite([row["loss"] for row in rows]).all()


@pytest.mark.parametrize(("layers", "width"), [(0, 256), (1, 128), (2, 128), (3, 128)])
def test_number_of_projection_layers(settings: dict[str, Any], layers: int, width: int) -> None:
    run = train(**settings, projection_layers=layers)
    tower = run.model().tower(0)
    assert sum(isinstance(part, nn.Linear) for part in tower.projector.modules()) == layers
    assert tower.projection_width == width
    assert run.settings().projection_layers == layers


def test_projection_has_two_layers_by_default(settings: dict[str, Any], tmp_path: Path) -> None:
    two_layers = train(**settings | {"out": tmp_path / "said"}, projection_layers=2)
    assert are_equal_states(get_model_state(two_layers), get_model_state(train(**settings)))


@pytest.mark.parametrize(
    ("options", "candidates"),
    [
        ({}, 63),
        ({"objective": "info-nce"}, 32),
        ({"negatives": "queue", "queue_size": 16, "objective": "info-nce"}, None),
        ({"target": "pairs"}, 63),
        ({"target": "labels"}, 0),
        ({"objective": "gca-ince"}, 0),
        ({"constraint": "balanced:iterations=2"}, 0),
        ({"recipe": "predictive"}, 0),
        ({"recipe": "swav", "prototypes": 5}, 0),
    ],
)
def test_logged_bound_of_mutual_information(
    settings: dict[str, Any], options: dict[str, Any], candidates: int | None
) -> None:
    for row in train(**settings, **options).metrics_rows():
        if candidates == 0:
            assert row["mi_bound"] is None
        elif candidates is None:
            assert math.log(32) - 1e-6 < row["mi_bound"] + row["loss"] <= math.log(32 + 16) + 1e-6
        else:
            assert row["mi_bound"] == pytest.approx(math.log(candidates) - row["loss"], abs=1e-6)


def test_worker_process_does_not_change_the_training(images: Dataset, tmp_path: Path) -> None:
    without_worker = train(data=images, batch_size=16, epochs=1, out=tmp_path / "a", progress=False)
    with_worker = train(data=images, batch_size=16, epochs=1, out=tmp_path / "b", progress=False, num_workers=1)
    assert without_worker.model().config["encoder"] == ["small-cnn"]
    assert are_equal_states(
        get_model_state(without_worker), get_model_state(with_worker)
    )  # a worker process changes nothing


def test_trains_on_paired_views(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    data = from_arrays((random.normal(size=(40, 5)), random.normal(size=(40, 5))))
    assert train(data=data, batch_size=20, epochs=1, out=tmp_path / "run", progress=False).metrics_rows()


def test_keep_every_saves_checkpoints_of_epochs(settings: dict[str, Any]) -> None:
    run = train(**{**settings, "epochs": 5}, keep_every=2)
    checkpoint_names = ["epoch-0002.ckpt", "epoch-0004.ckpt", "last.ckpt"]
    assert {path.name for path in as_run_folder(run).checkpoints.iterdir()} == {
        *checkpoint_names,
        *(f"{name}.sha256" for name in checkpoint_names),
    }
    torch.load(as_run_folder(run).checkpoints / "last.ckpt", weights_only=True)


def test_overwrite_replaces_a_run(settings: dict[str, Any]) -> None:
    first = train(**settings)
    as_run_folder(first).evaluation_path.write_text(json.dumps({"rows": {}}))
    second = train(**{**settings, "epochs": 1}, overwrite=True)
    assert len(second.metrics_rows()) == 1
    assert not as_run_folder(second).evaluation_path.exists()


def test_progress_and_summary_go_to_the_standard_error(
    settings: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(**{**settings, "progress": True})
    output = capsys.readouterr()
    assert output.out == ""
    assert "waiting for data" in " ".join(output.err.split())
    assert "items/s" in as_run_folder(run).log_path.read_text()
    assert "Lightning" not in output.err + as_run_folder(run).log_path.read_text()


def test_without_progress_nothing_is_printed(settings: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    train(**settings)
    assert capsys.readouterr() == ("", "")


def test_unreadable_files_are_logged(settings: dict[str, Any]) -> None:
    settings["data"].unreadable_files = ("broken.png",)
    assert "unreadable files: broken.png" in as_run_folder(train(**settings)).log_path.read_text()


@pytest.mark.parametrize(("items", "size"), [(40, 40), (140, 32), (600, 128), (1_100, 256)])
def test_default_batch_size_is_at_most_a_quarter_of_few_items(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, items: int, size: int
) -> None:
    vectors = from_arrays(np.random.default_rng(0).normal(size=(items, 4)))
    run = train(data=vectors, epochs=1, out=tmp_path / "run", progress=False)
    assert run.config()["batch_size"] == size
    assert run.metrics_rows()[-1]["step"] == items // size
    assert (f"batch_size: {size}, reduced from 256" in caplog.text) == (size < 256)
    run = train(resume=True, epochs=2, data=vectors, out=tmp_path / "run", progress=False)
    assert run.metrics_rows()[-1]["step"] == 2 * (items // size)


def test_rejects_a_single_item(tmp_path: Path) -> None:
    with raises_usage_error("data.few_items", "got 1"):
        train(data=np.ones((1, 4)), epochs=1, out=tmp_path / "run", progress=False)


def test_warns_of_cmc_nce_without_a_bank(settings: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    train(**settings | {"objective": "cmc-nce"})
    assert "cmc-nce contrasts with the rest of the batch only" in caplog.text
    caplog.clear()
    train(**settings | {"objective": "cmc-nce", "negatives": "bank", "overwrite": True})
    assert "the rest of the batch only" not in caplog.text


def test_explicit_batch_size_is_not_reduced(tmp_path: Path) -> None:
    vectors = from_arrays(np.random.default_rng(0).normal(size=(140, 4)))
    run = train(data=vectors, epochs=1, batch_size=140, out=tmp_path / "run", progress=False)
    assert run.metrics_rows()[-1]["step"] == 1
    with raises_usage_error("batch_size.few_items", 140, 256):
        train(data=vectors, epochs=1, batch_size=256, out=tmp_path / "other", progress=False)
