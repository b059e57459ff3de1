"""Runs of version 0.1.0 (commit fd55ee8), with checkpoints written by Lightning: resuming, evaluation, embedding.

`fd55ee8/` contains two runs that were stopped within their third epoch, one that finished, and in `expected.json` the
results of that version: the losses of uninterrupted runs, and features and metrics of their models.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from contraport import embed, evaluate, train
from contraport._utils.files import checksum_path
from contraport.evaluation.loaded_run import iter_intermediate_model_copies
from contraport.runs import Run, as_run_folder
from tests.errors import raises_usage_error

SAVED = Path(__file__).parent / "fd55ee8"
CLOSE = {"rel": 1e-4, "abs": 1e-4}
"""Tolerance for the rounding of other processors."""


@pytest.fixture
def expected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    shutil.copytree(SAVED, tmp_path / "saved")
    monkeypatch.chdir(tmp_path / "saved")
    result: dict[str, Any] = json.loads(Path("expected.json").read_text())
    return result


def embed_run(run: str) -> np.ndarray:
    embed(run, out="features.npz", trust_remote_code=True, progress=False)
    with np.load("features.npz") as file:
        features: np.ndarray = file["features"]
    return features


@pytest.mark.parametrize("name", ["queue", "audit"])
def test_stopped_run_is_resumed_within_its_epoch(expected: dict[str, Any], name: str) -> None:
    before = len(Run(name).metrics_rows())
    run = train(resume=True, out=name, trust_remote_code=True, progress=False)
    rows = run.metrics_rows()
    assert before < len(rows)
    assert [row["step"] for row in rows] == expected[name]["steps"]
    batches = run.config()["grad_accum_steps"]  # that version divided the logged loss by this number
    losses = [batches * loss for loss in expected[name]["losses"][before:]]
    # Approximate, since that version drew orders and views from other random streams.
    assert [row["loss"] for row in rows[before:]] == pytest.approx(losses, rel=0.3)
    assert embed_run(name)[:5].shape == np.shape(expected[name]["features"])


def test_finished_run_is_evaluated_embedded_and_extended(expected: dict[str, Any]) -> None:
    metrics = expected["finished"]["evaluation"]
    rows = evaluate("finished", trust_remote_code=True, progress=False, metrics=list(metrics))["rows"]
    assert {name: rows["trained"][name] for name in metrics} == pytest.approx(metrics, **CLOSE)
    assert embed_run("finished")[:5] == pytest.approx(np.array(expected["finished"]["features"]), **CLOSE)
    run = train(resume=True, out="finished", epochs=4, trust_remote_code=True, progress=False)
    assert run.metrics_rows()[-1]["epoch"] == 4


def test_checkpoint_has_the_weights_of_the_model(expected: dict[str, Any]) -> None:
    run = Run("finished")
    model = run.model(trust_remote_code=True)
    ((_, intermediate),) = iter_intermediate_model_copies(
        as_run_folder(run), model, {3: as_run_folder(run).last_checkpoint}
    )
    for name, value in model.state_dict().items():
        assert np.array_equal(intermediate.state_dict()[name], value), name


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"loops": {"fit_loop": {}}}, id="no position"),
        pytest.param({"global_step": "4"}, id="a step in words"),
        pytest.param({"state_dict": {}}, id="no weights"),
        pytest.param({"optimizer_states": []}, id="no optimizer"),
        pytest.param({"optimizer_states": [3]}, id="a number for an optimizer"),
        pytest.param({"callbacks": {"Meter": 3}}, id="a number for a clock"),
    ],
)
def test_rejects_a_corrupt_checkpoint(expected: dict[str, Any], change: dict[str, Any]) -> None:
    path = as_run_folder("queue").last_checkpoint
    torch.save(torch.load(path, weights_only=True) | change, path)
    checksum_path(path).unlink()
    with raises_usage_error("*", "last.ckpt", "overwrite=True"):
        train(resume=True, out="queue", trust_remote_code=True, progress=False)
