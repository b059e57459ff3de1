"""Training with an online audit of pairs: excluded pairs, exact resuming, workers and processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from contraport.auditing.pairs.mismatch_dropping_callback import AuditCallback
from contraport.auditing.pairs.paired_features import PairedFeatures
from contraport.auditing.result import build_online_audit
from contraport.data import Dataset, from_arrays, load
from contraport.reporting.reported_run import load_runs
from contraport.runs import Run, as_run_folder
from contraport.training import train
from tests.errors import raises_usage_error
from tests.processes import Report, run_in_processes

from .conftest import StubObjective
from .test_train import are_equal_states, get_model_state

ITEMS, WRONG = 300, 90


def build_mismatched_views() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    hidden = random.normal(size=(ITEMS, 4))
    first, second = hidden @ random.normal(size=(4, 6)), hidden @ random.normal(size=(4, 9))
    second[:WRONG] = np.roll(second[:WRONG], 5, axis=0)
    return first, second


@pytest.fixture
def pairs() -> Dataset:
    return from_arrays(build_mismatched_views(), name="pairs")


def build_options(pairs: Dataset, out: Path) -> dict[str, Any]:
    return {"data": pairs, "audit": True, "batch_size": 50, "epochs": 6, "out": out, "progress": False}


@pytest.fixture
def audit_options(pairs: Dataset, tmp_path: Path) -> dict[str, Any]:
    return build_options(pairs, tmp_path / "run")


def test_trains_on_trusted_pairs_and_saves_the_scores(audit_options: dict[str, Any]) -> None:
    run = train(**audit_options)
    result = run.pair_scores()
    assert result["scores"].shape == result["kept"].shape == result["partners"].shape == (ITEMS,)
    assert int(result["epoch"]) == 6
    assert float(result["low"]) <= float(result["rate"]) <= float(result["high"])
    kept_wrong, kept_right = result["kept"][:WRONG].mean(), result["kept"][WRONG:].mean()
    assert kept_wrong < 0.5 < kept_right
    assert [row["step"] for row in run.metrics_rows()][-1] == 6 * (ITEMS // 50)  # as without an audit


def test_scores_are_joined_with_the_table_by_row_and_key(audit_options: dict[str, Any], tmp_path: Path) -> None:
    first, second = build_mismatched_views()
    names = ["id", *(f"a_{k}" for k in range(6)), *(f"b_{k}" for k in range(9))]
    rows = [
        ",".join([f"item {k}", *map(str, numbers)]) for k, numbers in enumerate(np.hstack([first, second]).tolist())
    ]
    (tmp_path / "pairs.csv").write_text("\n".join([",".join(names), *rows]))
    build_options = audit_options | {"data": tmp_path / "pairs.csv", "columns": {"views": ["a_*", "b_*"]}, "epochs": 3}
    run = train(**build_options)
    result, trained = run.pair_scores(), load(build_options["data"], "train", columns=build_options["columns"])
    assert len(result["rows"]) == len(trained) < ITEMS  # some rows are held out
    view = trained.__getitems__(list(range(len(trained)))).views[0]
    np.testing.assert_allclose(first[result["rows"]], view, rtol=1e-6)
    assert result["keys"].tolist() == [f"item {row}" for row in result["rows"]]
    wrong = result["rows"] < WRONG
    assert result["scores"][wrong].mean() < result["scores"][~wrong].mean()


def test_reads_scores_of_earlier_versions_without_rows(audit_options: dict[str, Any]) -> None:
    run = train(**audit_options | {"epochs": 1})
    older = {name: values for name, values in run.pair_scores().items() if name not in ("rows", "keys")}
    run_folder = as_run_folder(run)
    run_folder.save_arrays(run_folder.pairs_path, older)
    assert build_online_audit("pairs", run.pair_scores()).source_rows is None
    (reported,) = load_runs([run])
    assert set(reported.online_audit_arrays) == set(older)


def test_batch_size_is_limited_by_the_audit(audit_options: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    overrides = {"epochs": 1, "progress": True}
    train(**{**audit_options, **overrides, "batch_size": 200})
    assert "100 of 300 pairs with batches of 200; use batch_size=75" in read_console(capsys)
    del audit_options["batch_size"]
    run = train(**{**audit_options, **overrides, "overwrite": True})
    assert run.settings().batch_size == 75
    assert "batch_size: 75, reduced" in read_console(capsys)


def read_console(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().err.split())


def test_scores_use_raw_vectors(audit_options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """With an uninformative encoder, raw vectors find the mismatches unless they are too wide to be scored."""
    aurocs = []
    monkeypatch.setattr(
        AuditCallback,
        "encode_all_pairs",
        lambda audit_callback: PairedFeatures(torch.randn(2, ITEMS, 4).unbind()),
    )
    for widest in (1_024, 1):
        monkeypatch.setattr(
            "contraport.auditing.pairs.mismatch_dropping_callback.MAX_WIDTH_TO_SCORE_INPUT_VECTORS", widest
        )
        result = train(**{**audit_options, "epochs": 1, "overwrite": True}).pair_scores()
        aurocs.append(roc_auc_score(np.arange(ITEMS) >= WRONG, result["scores"]))
    assert aurocs[0] > 0.8 > 0.65 > aurocs[1]


STEP_BY_STEP: dict[str, Any] = {"checkpoint_minutes": 0, "log_every": 1}


@pytest.fixture(scope="module")
def uninterrupted_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("whole") / "run"
    return train(
        **build_options(from_arrays(build_mismatched_views(), name="pairs"), out),
        **STEP_BY_STEP,
        objective=StubObjective(),
    )


@pytest.mark.parametrize("at", [9, 25, *(pytest.param(step, marks=pytest.mark.slow) for step in (13, 24, 33))])
def test_resumed_run_equals_an_uninterrupted_one(
    audit_options: dict[str, Any], uninterrupted_run: Run, at: int
) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(**audit_options, **STEP_BY_STEP, objective=StubObjective(at, KeyboardInterrupt()))
    resumed = train(
        out=audit_options["out"], resume=True, data=audit_options["data"], objective=StubObjective(), progress=False
    )
    assert are_equal_states(get_model_state(resumed), get_model_state(uninterrupted_run))
    for name, values in uninterrupted_run.pair_scores().items():
        assert np.array_equal(resumed.pair_scores()[name], values), name


def test_workers_do_not_change_the_training(audit_options: dict[str, Any], tmp_path: Path) -> None:
    without_workers = train(**{**audit_options, "epochs": 2, "out": tmp_path / "alone"})
    with_worker = train(**{**audit_options, "epochs": 2, "num_workers": 1})
    assert are_equal_states(get_model_state(without_workers), get_model_state(with_worker))


def train_in_group(rank: int, report: Report, build_options: dict[str, Any]) -> None:
    train(**build_options)


def test_two_processes_equal_one(audit_options: dict[str, Any], tmp_path: Path) -> None:
    first, second = build_mismatched_views()
    np.savez(tmp_path / "pairs.npz", view0=first.astype(np.float32), view1=second.astype(np.float32))
    read_console: dict[str, Any] = {"batch_size": 50, "epochs": 3, "optimizer": "sgd", "encoder": "mlp", "seed": 3}
    read_console |= {"data": tmp_path / "pairs.npz", "audit": True, "device": "cpu", "progress": False}
    run_in_processes(train_in_group, 2, read_console | {"out": tmp_path / "two"})
    one = train(**read_console, out=tmp_path / "one")
    two = Run(tmp_path / "two")
    assert (one.pair_scores()["kept"] == two.pair_scores()["kept"]).all()
    np.testing.assert_allclose(one.pair_scores()["scores"], two.pair_scores()["scores"], atol=0.02)
    for one_weights, two_weights in zip(get_model_state(one).values(), get_model_state(two).values(), strict=True):
        torch.testing.assert_close(one_weights, two_weights, rtol=1e-3, atol=1e-4)


def test_rejects_data_that_are_not_pairs_before_writing(audit_options: dict[str, Any], tmp_path: Path) -> None:
    one_view = from_arrays(np.random.default_rng(0).normal(size=(60, 4)), name="single")
    with raises_usage_error("data.views", "single", 1):
        train(**{**audit_options, "data": one_view})
    with raises_usage_error("audit.target"):
        train(**{**audit_options, "target": "labels"})
    with raises_usage_error("audit.frozen", "freeze"):
        train(**{**audit_options, "pretrained": True, "encoder": "resnet18", "freeze": True})
    assert not audit_options["out"].exists()
    without_audit = train(**{**audit_options, "audit": False, "epochs": 1})
    with raises_usage_error("run.missing_file", "pairs.npz", "audit=True"):
        without_audit.pair_scores()
