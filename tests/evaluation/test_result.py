"""Contents of an evaluation besides the metrics: values per item, counts, plans, samples of pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from tests.evaluation.builders import build_vector_model, build_vectors, build_views, make_run

import contraport
from contraport.data import from_arrays
from contraport.encoders import Model
from contraport.evaluation import evaluate
from contraport.evaluation.command_options import EvaluateOptions
from contraport.evaluation.evaluation_results import Evaluation, EvaluationsByRunPath
from contraport.evaluation.loaded_run import LoadedRun
from contraport.metrics import eval_context, probes
from contraport.runs import Run, as_run_folder

DATA = (build_vectors(60, 3), build_vectors(40, 3))


def test_saved_item_values_are_those_of_the_trained_encoder(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", build_vector_model())
    metrics = ["linear_probe", "knn", "recall@1", "median_rank"]
    rows = evaluate(run, data=DATA, metrics=metrics, neighbors=5, progress=False)["rows"]
    items = as_run_folder(run).test_item_metric_values()
    assert set(items) == {"linear_probe", "knn", "recall@1"}  # a median is not a mean over items
    for key, item_values in items.items():
        assert len(item_values) == 40
        assert item_values.mean() == pytest.approx(rows["trained"][key])
    assert rows["trained"]["knn"] != rows["raw"]["knn"]
    # At most ten of the misclassified items are saved.
    assert len(as_run_folder(run).page_arrays()["mistaken"]) == 10 < 40 * (1 - rows["trained"]["linear_probe"])


def test_metrics_of_pairs_use_a_sample_of_many_test_items(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "run", build_vector_model())
    options = {"data": DATA, "metrics": ["linear_probe", "knn", "retrieval"], "neighbors": 5, "progress": False}
    evaluate(run, **options)
    without_samples = as_run_folder(run).test_item_metric_values()
    monkeypatch.setattr(eval_context, "MAX_PAIRS_WITHOUT_SAMPLING", 1_000)
    monkeypatch.setattr(eval_context, "NUM_SAMPLED_RETRIEVAL_TEST_ITEMS", 10)
    monkeypatch.setattr(probes, "NUM_SAMPLED_KNN_TEST_ITEMS", 20)
    result = evaluate(run, **options)
    items = as_run_folder(run).test_item_metric_values()
    for key, size in (("knn", 20), ("recall@5", 10)):
        positions = items[f"{key}/positions"]
        assert len(set(positions)) == size
        assert np.array_equal(items[key], without_samples[key][positions])
        assert result["rows"]["trained"][key] == pytest.approx(items[key].mean())
        assert result["intervals"]["trained"][key]["low"] < result["rows"]["trained"][key]
    assert np.array_equal(items["linear_probe"], without_samples["linear_probe"])
    assert set(items["recall@1/positions"]) <= set(items["knn/positions"])
    expected = "of the 40 test items: kNN on 20; Recall@1, 5 and 10, Median rank, Mutual information on 10."
    assert any(note.endswith(expected) for note in result["notes"]), result["notes"]


def test_result_has_counts_and_options(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", build_vector_model())
    result = evaluate(run, data=DATA, metrics=["knn", "uniformity"], neighbors=5, progress=False)
    assert (result["train_items"], result["test_items"], result["uniformity_items"]) == (60, 40, 40)
    assert (result["neighbors"], result["classes"]) == (5, 3)
    several_runs = evaluate([run], data=DATA, metrics=["uniformity"], progress=False)
    assert list(several_runs) == [str(run.path)]


def test_result_has_typed_attributes(tmp_path: Path) -> None:
    run, other = make_run(tmp_path / "run", build_vector_model()), make_run(tmp_path / "other", Model("mlp", [(6,)]))
    results = evaluate([run, other], data=DATA, metrics=["knn"], neighbors=5, progress=False)
    result = results[str(run.path)]
    knn, interval = result.metrics["knn"], result["intervals"]["trained"]["knn"]
    assert knn == (result["rows"]["trained"]["knn"], interval["low"], interval["high"])
    assert knn.low < knn.value < knn.high
    assert Evaluation(rows={"trained": {"link_hubness@10": 2.0}}).metrics["link_hubness@10"] == (2.0, None, None)
    assert result.baselines.keys() == {"raw", "untrained"}
    assert result.baselines["raw"]["knn"].value == result["rows"]["raw"]["knn"]
    assert result.differences.keys() == {"raw", "untrained", str(other.path)}
    difference = result.differences["raw"]["knn"]
    assert difference.value == pytest.approx(knn.value - result.baselines["raw"]["knn"].value)
    assert difference.is_significant == (difference.low > 0 or difference.high < 0)
    assert (result.verdict, result.notes) == (result["verdict"], result["notes"])
    loaded = run.evaluation()
    assert (loaded.metrics, loaded.differences, loaded.verdict) == (result.metrics, result.differences, result.verdict)


def test_neighbors_are_checked_only_for_knn(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", build_vector_model())
    result = evaluate(run, data=(build_vectors(12, 3), build_vectors(12, 3)), metrics=["uniformity"], progress=False)
    assert set(result["rows"]["trained"]) == {"uniformity"}


def test_context_uses_the_options(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", build_vector_model())
    options = {"neighbors": 7, "classes": ["a", "b", "c"], "templates": ["one {}", "two {}"]}
    loaded = LoadedRun.from_run(run, EvaluateOptions(run=run, data=DATA, progress=False, **options))
    context = loaded.build_context("trained", loaded.model)
    assert (context.neighbors, tuple(context.class_names), context.templates) == (
        7,
        ("a", "b", "c"),
        ("one {}", "two {}"),
    )


def test_verdict_on_random_labels_prefers_the_simplest_features(tmp_path: Path) -> None:
    result = evaluate(make_run(tmp_path / "run", build_vector_model()), data=DATA, metrics=["accuracy"], progress=False)
    assert "Use raw inputs for the linear probe and kNN: the trained encoder is not" in result["verdict"]


def test_plan_that_needs_labels_is_noted_once_without_labels(tmp_path: Path) -> None:
    options = {"objective": "sup-con", "batch_size": 20, "epochs": 2, "encoder": "mlp", "keep_every": 1}
    run = contraport.train(data=build_vectors(60, 3), out=tmp_path / "run", progress=False, **options)
    unlabelled = (build_vectors(60, None), build_vectors(40, None))
    notes = evaluate(run, data=unlabelled, metrics=["uniformity"], checkpoints="all", progress=False)["notes"]
    (message,) = [note for note in notes if "plan" in note]
    assert message.startswith("No plan of test items is drawn: the items lack what the objective needs. labels")
    assert not {"plan", "plans"} & as_run_folder(run).page_arrays().keys()


def test_epoch_plans_use_the_temperature_of_their_epoch(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", build_vector_model(), temperature="1:0.1", epochs=4)
    temperature_by_epoch = {1: 0.9, 2: 0.5, 4: 0.1}
    as_run_folder(run).replace_metrics(
        {"step": epoch, "epoch": epoch, "temperature": value} for epoch, value in temperature_by_epoch.items()
    )
    loaded = LoadedRun.from_run(run, EvaluateOptions(run=run, data=DATA, progress=False))
    peaks = [loaded.compute_plan_arrays_at_epoch(loaded.model, epoch)["plan"].max() for epoch in temperature_by_epoch]
    assert peaks[0] < peaks[1] < peaks[2]


@pytest.fixture
def audited_run(tmp_path: Path) -> tuple[Run, str]:
    """Run folder of a training with an audit, and its data file with two views."""
    path = str(tmp_path / "pairs.npz")
    data = build_views(60, (6,), (4,))
    views = data.__getitems__(list(range(60))).views
    np.savez(path, view0=views[0], view1=views[1])
    torch.manual_seed(0)
    model = Model(shapes=data.shapes, shared=False)
    run = make_run(tmp_path / "run", model, data=path, augment=None, test_fraction=0.25)
    as_run_folder(run).save_arrays(as_run_folder(run).pairs_path, {"scores": np.arange(45) / 45})
    return run, path


@pytest.mark.parametrize("data_kind", ["nothing", "its own", "others"])
def test_worst_pairs_require_the_training_data_of_the_run(audited_run: tuple[Run, str], data_kind: str) -> None:
    run, path = audited_run
    others = (build_views(45, (6,), (4,)), build_views(20, (6,), (4,)))  # as many as it was trained on
    data: Any = {"nothing": None, "its own": path, "others": others}[data_kind]
    evaluate(run, data=data, metrics=["uniformity"], progress=False)
    samples = as_run_folder(run).page_arrays()
    assert ("worst" in samples) == (data_kind != "others")
    if data_kind != "others":
        assert samples["worst"].tolist() == list(range(10))
        assert np.array_equal(samples["worst_better"], samples["worst_2"])  # no better partner is known


@pytest.mark.parametrize(
    ("options", "settings", "expected"),
    [
        ({"metrics": ["recall@1"]}, {"audit": True}, True),
        ({"metrics": ["uniformity"]}, {"audit": True}, False),
        ({"metrics": ["recall@1"]}, {"audit": False}, False),
        ({"metrics": ["recall@1"]}, {"audit": True, "mismatch": "0.2"}, False),
        (
            {"metrics": ["recall@1"], "data": (build_views(45, (6,), (4,)), build_views(20, (6,), (4,)))},
            {"audit": True},
            False,
        ),
    ],
    ids=["recall", "no recall", "no audit", "only training pairs are exchanged", "test pairs of the user"],
)
def test_note_that_held_out_pairs_may_be_mismatched_too(
    audited_run: tuple[Run, str], options: dict[str, Any], settings: dict[str, Any], expected: bool
) -> None:
    folder = as_run_folder(audited_run[0])
    folder.config_path.write_text(yaml.safe_dump(folder.config() | settings))
    result = evaluate(audited_run[0], progress=False, **options)
    assert any("held-out pairs may be wrong too" in note for note in result["notes"]) == expected


def test_domains_are_saved_and_passed_to_the_objective(tmp_path: Path) -> None:
    rows, names = np.random.default_rng(0).normal(size=(40, 6)), [f"site {number % 4}" for number in range(40)]
    data = from_arrays(rows, labels=np.arange(40) % 2, domains=names)
    run = make_run(tmp_path / "run", build_vector_model(), objective="info-nce", target="domains:alpha=0.5")
    evaluate(run, data=(data, data), metrics=["uniformity"], progress=False)
    samples = as_run_folder(run).page_arrays()
    assert [samples["domain_names"][domain] for domain in samples["domains"]] == [
        names[item] for item in samples["ids"]
    ]
    assert samples["losses"].shape == (40,)
    assert np.count_nonzero(samples["target"]) > 2 * len(
        samples["target"]
    )  # other items of the domain are positives too


def test_plan_views_are_saved_if_both_are_images(tmp_path: Path) -> None:
    for shapes, has_plan_views in (([(1, 8, 8), (6,)], False), ([(1, 8, 8), (1, 8, 8)], True)):
        train, test = (build_views(items, *shapes, integers=True) for items in (40, 20))
        torch.manual_seed(0)
        run = make_run(tmp_path / str(has_plan_views), Model(shapes=shapes, shared=False), augment=None)
        evaluate(run, data=(train, test), metrics=["uniformity"], progress=False)
        samples = as_run_folder(run).page_arrays()
        assert samples["plan_view_names"].tolist() == ["view0", "view1"]
        assert ({"plan_view_1", "plan_view_2"} <= samples.keys()) == has_plan_views


def test_repr_of_an_evaluation_includes_its_verdict() -> None:
    values = {"raw": {"knn": 0.5}, "trained": {"knn": 0.85}}
    evaluation = Evaluation(data="digits", rows=values, verdict="Better than raw inputs.", notes=["x" * 4000])
    expected = "Evaluation(digits; 2 encoders; Better than raw inputs; values: evaluation.to_rows())"
    assert str(evaluation) == repr(evaluation) == expected
    assert evaluation["rows"] == values
    by_run = EvaluationsByRunPath({"runs/a": evaluation})
    assert str(by_run) == f"EvaluationsByRunPath(\n  'runs/a': {expected}\n)"
    assert "verdict" not in repr(Evaluation(rows=values))
