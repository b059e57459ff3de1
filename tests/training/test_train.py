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

from .conftest import Pull

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


def files_of(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def weights_of(run: Run) -> dict[str, Tensor]:
    return run.model().state_dict()


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_run_folder_has_its_documented_files(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = train(**settings)
    assert files_of(run.path) - {"model/README.md"} == FILES
    assert [path.name for path in tmp_path.iterdir()] == ["run"], "nothing is written outside of the run folder"
    assert run.model().config["encoder"] == ["mlp"]


def test_out_is_named_after_data_and_objective(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = train(**{**settings, "out": None, "epochs": 1}, objective="gca-uot")
    assert run.path == Path("runs/vectors-gca-uot")


def test_config_holds_the_arguments(settings: dict[str, Any]) -> None:
    run = train(**settings, objective="gca-ince", objective_settings={"iterations": 3}, temperature=0.2)
    config = yaml.safe_load(as_run_folder(run).config_path.read_text())
    assert config["data"] == "<vectors>"
    assert config["objective_settings"] == {"iterations": 3}
    assert config["temperature"] == 0.2
    assert config["seed"] == 0
    assert not config.keys() & {"out", "resume", "overwrite", "progress"}


def test_metrics_are_means_over_the_steps_of_a_row(settings: dict[str, Any]) -> None:
    settings["epochs"] = 3
    every = train(**settings, log_every=1).metrics_rows()
    assert [row["step"] for row in every] == [1, 2, 3, 4, 5, 6]
    assert [row["epoch"] for row in every] == [1, 1, 2, 2, 3, 3]
    assert all(row.keys() == ROW and 0 <= row["data_wait"] <= 1 and row["images_per_second"] > 0 for row in every)
    assert all(row["temperature"] == 0.5 for row in every)
    coarse = train(**settings, overwrite=True).metrics_rows()
    assert [row["step"] for row in coarse] == [2, 4, 6]
    assert coarse[0]["loss"] == pytest.approx((every[0]["loss"] + every[1]["loss"]) / 2)
    assert sorted(row["seconds"] for row in coarse) == [row["seconds"] for row in coarse]


def test_the_loss_falls(settings: dict[str, Any]) -> None:
    rows = train(**{**settings, "epochs": 12}).metrics_rows()
    assert rows[-1]["loss"] < rows[0]["loss"] - 0.1


def test_training_is_determined_by_the_seed(settings: dict[str, Any]) -> None:
    out = settings.pop("out")
    first = train(**settings, out=out / "a")
    torch.manual_seed(123)
    second = train(**settings, out=out / "b")
    third = train(**settings, out=out / "c", seed=1)
    assert same(weights_of(first), weights_of(second))
    assert not same(weights_of(first), weights_of(third))


def test_global_random_state_is_unchanged(settings: dict[str, Any]) -> None:
    before = torch.get_rng_state()
    train(**settings)
    assert torch.equal(torch.get_rng_state(), before)


def test_custom_objective_learns_its_temperature(settings: dict[str, Any]) -> None:
    objective = Pull()
    run = train(**settings, objective=objective, lr=0.01)
    learned = float(objective.temperature.detach())
    assert learned != 0.5
    assert run.metrics_rows()[-1]["temperature"] == pytest.approx(learned, abs=0.05)
    assert run.config()["objective"] == "<Pull>"


@pytest.mark.parametrize("grad_accum_steps", [1, 2])
@pytest.mark.parametrize(
    ("objective", "course"),
    [(contraport.sigmoid(temperature=0.07), None), (contraport.nt_xent(0.07), None), ("gca-uot", "0.5:0.1")],
    ids=["learned", "fixed", "scheduled"],
)
def test_the_temperature_that_is_logged_is_the_one_that_the_step_used(
    settings: dict[str, Any],
    objective: nn.Module | str,
    course: str | None,
    grad_accum_steps: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used: list[float] = []
    forward = contraport.Objective.forward

    def watched(self: contraport.Objective, *views: Tensor, **known: Tensor | None) -> Tensor:
        value = forward(self, *views, **known)
        used.append(self.temperature)
        return value

    monkeypatch.setattr(contraport.Objective, "forward", watched)
    run = train(
        **settings, objective=objective, temperature=course, log_every=1, lr=0.1, grad_accum_steps=grad_accum_steps
    )
    logged = [row["temperature"] for row in run.metrics_rows()]
    assert logged == used[-len(logged) * grad_accum_steps :: grad_accum_steps]
    assert (len(set(logged)) == 1) == (course is None and objective.temperature == 0.07)


def test_objective_gets_the_labels_it_requires(settings: dict[str, Any]) -> None:
    class Labelled(nn.Module):
        seen: Tensor | None = None

        def forward(self, z0: Tensor, z1: Tensor, labels: Tensor | None = None) -> Tensor:
            self.seen = labels
            return (z0 - z1).square().mean()

    objective = Labelled()
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
def test_options(settings: dict[str, Any], options: dict[str, Any]) -> None:
    rows = train(**settings, **options).metrics_rows()
    assert np.isfinite([row["loss"] for row in rows]).all()


@pytest.mark.parametrize(("layers", "width"), [(0, 256), (1, 128), (2, 128), (3, 128)])
def test_the_layers_of_the_projection(settings: dict[str, Any], layers: int, width: int) -> None:
    run = train(**settings, projection_layers=layers)
    tower = run.model().tower(0)
    assert sum(isinstance(part, nn.Linear) for part in tower.projector.modules()) == layers
    assert tower.projection_width == width
    assert run.settings().projection_layers == layers


def test_projection_has_two_layers_by_default(settings: dict[str, Any], tmp_path: Path) -> None:
    said = train(**settings | {"out": tmp_path / "said"}, projection_layers=2)
    assert same(weights_of(said), weights_of(train(**settings)))


@pytest.mark.parametrize(
    ("more", "candidates"),
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
def test_the_log_has_the_bound_of_mutual_information(
    settings: dict[str, Any], more: dict[str, Any], candidates: int | None
) -> None:
    for row in train(**settings, **more).metrics_rows():
        if candidates == 0:
            assert row["mi_bound"] is None
        elif candidates is None:
            assert math.log(32) - 1e-6 < row["mi_bound"] + row["loss"] <= math.log(32 + 16) + 1e-6
        else:
            assert row["mi_bound"] == pytest.approx(math.log(candidates) - row["loss"], abs=1e-6)


def test_images_and_workers(images: Dataset, tmp_path: Path) -> None:
    here = train(data=images, batch_size=16, epochs=1, out=tmp_path / "a", progress=False)
    there = train(data=images, batch_size=16, epochs=1, out=tmp_path / "b", progress=False, num_workers=1)
    assert here.model().config["encoder"] == ["small-cnn"]
    assert same(weights_of(here), weights_of(there)), "a worker process changes nothing"


def test_data_with_two_views_of_its_own(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    data = from_arrays((random.normal(size=(40, 5)), random.normal(size=(40, 5))))
    assert train(data=data, batch_size=20, epochs=1, out=tmp_path / "run", progress=False).metrics_rows()


def test_keep_every(settings: dict[str, Any]) -> None:
    run = train(**{**settings, "epochs": 5}, keep_every=2)
    kept = ["epoch-0002.ckpt", "epoch-0004.ckpt", "last.ckpt"]
    assert {path.name for path in as_run_folder(run).checkpoints.iterdir()} == {
        *kept,
        *(f"{name}.sha256" for name in kept),
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


def test_files_that_were_left_out_are_named_in_the_log(settings: dict[str, Any]) -> None:
    settings["data"].unreadable_files = ("broken.png",)
    assert "unreadable files: broken.png" in as_run_folder(train(**settings)).log_path.read_text()


@pytest.mark.parametrize(("items", "size"), [(40, 40), (140, 32), (600, 128), (1_100, 256)])
def test_a_batch_has_a_quarter_of_few_items_at_most(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, items: int, size: int
) -> None:
    vectors = from_arrays(np.random.default_rng(0).normal(size=(items, 4)))
    run = train(data=vectors, epochs=1, out=tmp_path / "run", progress=False)
    assert run.config()["batch_size"] == size
    assert run.metrics_rows()[-1]["step"] == items // size
    assert (f"batch_size: {size}, reduced from 256" in caplog.text) == (size < 256)
    run = train(resume=True, epochs=2, data=vectors, out=tmp_path / "run", progress=False)
    assert run.metrics_rows()[-1]["step"] == 2 * (items // size)


def test_one_item_is_too_few(tmp_path: Path) -> None:
    with raises_usage_error("data.few_items", "got 1"):
        train(data=np.ones((1, 4)), epochs=1, out=tmp_path / "run", progress=False)


def test_warns_of_cmc_nce_without_a_bank(settings: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    train(**settings | {"objective": "cmc-nce"})
    assert "cmc-nce contrasts with the rest of the batch only" in caplog.text
    caplog.clear()
    train(**settings | {"objective": "cmc-nce", "negatives": "bank", "overwrite": True})
    assert "the rest of the batch only" not in caplog.text


def test_explicit_batch_size_is_kept(tmp_path: Path) -> None:
    vectors = from_arrays(np.random.default_rng(0).normal(size=(140, 4)))
    run = train(data=vectors, epochs=1, batch_size=140, out=tmp_path / "run", progress=False)
    assert run.metrics_rows()[-1]["step"] == 1
    with raises_usage_error("batch_size.few_items", 140, 256):
        train(data=vectors, epochs=1, batch_size=256, out=tmp_path / "other", progress=False)
