import json
import re
import sys
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch
from tests.disk import limit_file_size
from tests.errors import raises_usage_error
from tests.evaluation.builders import build_image_model, build_vector_model, build_vectors, build_views, make_run

import contraport
from contraport._utils.locks import lock_folder
from contraport.cli import main
from contraport.cli.result_printers import print_metrics_differences_and_verdict
from contraport.data import Views, from_arrays, load
from contraport.embedding import LoaderConfig
from contraport.encoders import Model
from contraport.errors import FolderInUseError
from contraport.evaluation import embed, evaluate
from contraport.evaluation.loaded_run import find_checkpoints_by_epoch, iter_intermediate_model_copies
from contraport.evaluation.notes_and_verdict import build_worsened_geometry_notes, find_verdict_text
from contraport.evaluation.report_arrays import collect_feature_plot_arrays, collect_test_figure_arrays
from contraport.metrics import collect_metrics_for_display
from contraport.metrics.eval_context import EvalContext
from contraport.metrics.intervals import Difference
from contraport.reporting.reported_run import load_runs
from contraport.reporting.verdict import compose_verdict_sentences
from contraport.runs import Run, WritableRun, as_run_folder


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, dict[str, Any]]:
    run = make_run(tmp_path_factory.mktemp("runs") / "digits", build_image_model())
    return run, evaluate(run.path, progress=False)


def test_evaluates_the_encoder_and_its_baselines(evaluated: tuple[Run, dict[str, Any]]) -> None:
    _, result = evaluated
    assert list(result["rows"]) == ["raw", "untrained", "trained"]
    for row in result["rows"].values():
        assert set(row) >= {"alignment", "uniformity", "effective_rank", "linear_probe", "knn", "recall@5", "nmi"}
        assert 0 < row["alignment"] < 4
        assert row["uniformity"] < 0
        assert row["linear_probe"] > 0.9
    assert result["rows"]["raw"]["knn"] > 0.95
    assert (result["data"], result["classes"], result["test_items"]) == ("digits", 10, 449)


@pytest.mark.parametrize("call", [1, 2, 3])
def test_full_disk_leaves_the_previous_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    """The three files always belong to one evaluation."""
    module, calls = sys.modules["contraport.evaluation.evaluate"], []

    def with_file_size_limit(write: Any) -> Any:
        def write_with_limit(*args: Any) -> None:
            calls.append(args)
            with limit_file_size(10 if len(calls) == call else 2**40):
                write(*args)

        return write_with_limit

    run = make_run(tmp_path / "run", build_vector_model())
    evaluate(run, data=(build_vectors(60, 3), build_vectors(30, 3)), neighbors=3, progress=False)
    before = {path: path.read_bytes() for path in run.path.iterdir() if path.is_file()}
    for name in ("write_json", "write_npz"):
        monkeypatch.setattr(module, name, with_file_size_limit(getattr(module, name)))
    with raises_usage_error("run.not_writable", run.path):
        evaluate(run, data=(build_vectors(90, 3), build_vectors(31, 3)), neighbors=3, progress=False)
    assert {path: path.read_bytes() for path in run.path.iterdir() if path.is_file()} == before
    assert len(calls) == call


def test_run_is_evaluated_by_one_process_at_a_time(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name, build_vector_model()) for name in "ab"]
    data = build_vectors(60, 3), build_vectors(30, 3)
    with (
        lock_folder(runs[1].path, "evaluate", name=as_run_folder(runs[1]).evaluation_lock_path.name),
        pytest.raises(FolderInUseError) as caught,
    ):
        evaluate(runs, data=data, neighbors=3, progress=False)
    assert str(runs[1].path) in str(caught.value)
    assert not any(as_run_folder(run).evaluation_path.exists() for run in runs)
    evaluate(runs, data=data, neighbors=3, progress=False)
    assert not any(as_run_folder(run).evaluation_lock_path.exists() for run in runs)


def test_untrained_encoder_equals_its_baseline(evaluated: tuple[Run, dict[str, Any]]) -> None:
    _, result = evaluated
    assert result["rows"]["trained"] == result["rows"]["untrained"]


def test_verdict_reports_a_worse_trained_encoder(tmp_path: Path) -> None:
    model = build_vector_model()
    rows = np.random.default_rng(0).normal(size=(90, 6)) + 2 * np.eye(6)[np.arange(90) % 3]
    data = tuple(from_arrays(rows[part], labels=np.arange(90)[part] % 3) for part in (slice(60), slice(60, None)))
    initial = evaluate(make_run(tmp_path / "drawn", model), data=data, progress=False)
    assert not [note for note in initial["notes"] if "untrained" in note]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.0)
    zeroed = evaluate(make_run(tmp_path / "spoilt", model), data=data, progress=False)
    verdict = "Use raw inputs for the linear probe and kNN: the trained encoder is significantly worse on the linear"
    assert verdict in zeroed["verdict"]


@pytest.mark.parametrize(
    ("trained", "note"),
    [
        (
            {"alignment": 0.5, "uniformity": -2.0},
            "Alignment rose from 0.400 before training to 0.500: worse. "
            "Uniformity fell from −1.000 before training to −2.000: better.",
        ),
        (
            {"alignment": 0.5, "uniformity": -1.0},
            "Alignment rose from 0.400 before training to 0.500: worse.",
        ),
        ({"alignment": 0.3, "uniformity": -1.0}, None),
        ({"alignment": 0.40001, "uniformity": -1.0}, None),
    ],
)
def test_alignment_and_uniformity_share_a_note(trained: dict[str, float], note: str | None) -> None:
    baseline = {"alignment": 0.4, "uniformity": -1.0}
    text = build_worsened_geometry_notes({"raw": baseline, "untrained": baseline, "trained": trained})
    assert len(text) == (note is not None)
    assert note is None or text == [note]


def test_insignificant_tradeoff_is_not_noted() -> None:
    rows = {"untrained": {"alignment": 0.4}, "trained": {"alignment": 0.5}}
    assert build_worsened_geometry_notes(rows, {"untrained": {"alignment": Difference(0.1, -0.1, 0.3)}}) == []
    assert len(build_worsened_geometry_notes(rows, {"untrained": {"alignment": Difference(0.1, 0.05, 0.15)}})) == 1


BETTER, LEVEL, WORSE = Difference(0.1, 0.05, 0.15), Difference(0.1, -0.1, 0.3), Difference(-0.1, -0.15, -0.05)


@pytest.mark.parametrize(
    ("differences", "start"),
    [
        ({"raw": {"knn": BETTER}, "untrained": {"knn": BETTER}}, "Use the trained encoder"),
        ({"raw": {"knn": BETTER, "linear_probe": LEVEL}}, "Use the trained encoder"),
        ({"raw": {"knn": LEVEL}, "untrained": {"knn": BETTER}}, "Use raw inputs"),
        ({"raw": {"knn": BETTER}, "untrained": {"knn": LEVEL}}, "Use the untrained encoder"),
        (
            {"raw": {"knn": BETTER, "linear_probe": WORSE}, "untrained": {"knn": BETTER}},
            "Use raw inputs for the linear probe: ",
        ),
        (
            {"raw": {"knn": WORSE, "linear_probe": LEVEL}},
            "Use raw inputs for the linear probe and kNN: the trained encoder is not significantly better there, and "
            "significantly worse on kNN, by 10.0 points (5.0 to 15.0). ",
        ),
        ({"raw": {"knn": WORSE}, "given": {"knn": WORSE}}, "Use raw inputs"),
        ({"raw": {"knn": LEVEL}, "untrained": {"knn": LEVEL}}, "Use raw inputs"),
        ({"given": {"knn": WORSE}}, "Use the encoder as it was given"),
        ({"given": {"median_rank": WORSE}}, "Use the trained encoder"),  # a lower rank is better
        ({"raw": {"uniformity": WORSE}}, None),
        ({}, None),
    ],
)
def test_verdict_names_the_features_to_use(differences: dict[str, dict[str, Difference]], start: str | None) -> None:
    measured = {key for by_metric in differences.values() for key in by_metric}
    verdict = find_verdict_text(measured, differences, num_test_items=50)
    assert verdict is None if start is None else (verdict or "").startswith(start)
    few = find_verdict_text(measured, differences, num_test_items=12)
    assert few == (
        None if verdict is None else f"The test set is small (12 items): differences may be noise. {verdict}"
    )


@pytest.mark.parametrize("retrieval", [{"recall@1": BETTER}, {"median_rank": WORSE}, {"recall@1": LEVEL}, {}])
@pytest.mark.parametrize("knn", [LEVEL, WORSE])
def test_verdict_against_the_encoder_excepts_better_retrieval(
    retrieval: dict[str, Difference], knn: Difference
) -> None:
    differences = {"raw": {"knn": knn, **retrieval}, "untrained": {"knn": BETTER, **retrieval}}
    measured = {"knn", *retrieval}
    verdict = find_verdict_text(measured, differences, num_test_items=50, has_several_views=True) or ""
    single = find_verdict_text(measured, differences, num_test_items=50) or ""
    assert single.startswith("Use raw inputs")
    assert verdict.startswith(single)
    is_better = retrieval not in ({}, {"recall@1": LEVEL})
    assert ("Use the trained encoder for retrieval" in verdict) == is_better


def test_verdict_claims_no_better_retrieval_if_one_baseline_is_level() -> None:
    differences = {"raw": {"knn": LEVEL, "recall@1": BETTER}, "untrained": {"knn": BETTER, "recall@1": LEVEL}}
    verdict = find_verdict_text(["knn", "recall@1"], differences, num_test_items=50, has_several_views=True) or ""
    assert "for retrieval" not in verdict


def test_verdict_on_texts_names_the_encoder_that_starts_at_raw_counts() -> None:
    measured, differences = {"recall@1"}, {"raw": {"recall@1": WORSE}}
    texts, others = (
        find_verdict_text(measured, differences, num_test_items=50, could_use_weighted_ngrams=are_texts) or ""
        for are_texts in (True, False)
    )
    assert "encoder='weighted-ngrams'" in texts
    assert "weighted-ngrams" not in others


def test_verdict_on_a_frozen_encoder_leaves_out_its_learning_rate() -> None:
    measured, differences = {"knn"}, {"given": {"knn": WORSE}}
    trained, frozen = (
        find_verdict_text(measured, differences, num_test_items=50, is_encoder_frozen=is_frozen) or ""
        for is_frozen in (False, True)
    )
    assert "a smaller encoder_lr_scale" in trained
    assert "encoder_lr_scale" not in frozen
    assert "another augment" in frozen


def test_held_out_items_are_evaluated_and_embedded(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.random.default_rng(0).normal(size=(80, 6)), y=np.arange(80) % 2)
    data = str(tmp_path / "data.npz")
    run = make_run(tmp_path / "run", build_vector_model(), data=data, test_fraction=0.4)
    for batch in (None, data):
        result = evaluate(run, data=batch, neighbors=5, progress=False)
        assert (result["train_items"], result["test_items"]) == (48, 32)
    embed(run, out=tmp_path / "features.npz", progress=False)
    assert np.unique(np.load(tmp_path / "features.npz")["splits"], return_counts=True)[1].tolist() == [32, 48]


def test_evaluate_writes_what_it_returns(evaluated: tuple[Run, dict[str, Any]]) -> None:
    run, result = evaluated
    assert run.evaluation() == result
    assert json.loads(as_run_folder(run).evaluation_path.read_text("utf-8")) == result


def test_samples_contain_points_and_plans(evaluated: tuple[Run, dict[str, Any]]) -> None:
    run, _ = evaluated
    samples = as_run_folder(run).page_arrays()
    assert samples["points"].shape == (449, 2)
    assert samples["labels"].shape == (449,)
    assert samples["thumbnails"].shape == (449, 1, 8, 8)
    assert samples["thumbnails"].dtype == np.uint8
    assert samples["class_names"].tolist() == list("0123456789")
    assert samples["plan"].shape == samples["target"].shape == (64, 64)
    assert samples["plan"].sum() == pytest.approx(1, abs=1e-5)
    assert not samples["plan"].diagonal().any()
    assert (np.diff(samples["plan_labels"]) >= 0).all()
    for side in (1, 2):
        assert samples[f"plan_view_{side}"].shape == (32, 1, 8, 8)
    assert (samples["plan_view_1"] != samples["plan_view_2"]).any()


def test_samples_contain_cosines_and_confusion(evaluated: tuple[Run, dict[str, Any]]) -> None:
    run, result = evaluated
    samples = as_run_folder(run).page_arrays()
    confusion = samples["confusion"]
    assert np.trace(confusion) / 449 == pytest.approx(result["rows"]["trained"]["linear_probe"])
    assert np.array_equal(confusion.sum(axis=1), np.bincount(samples["labels"]))
    assert samples["cosines"].diagonal() == pytest.approx(np.ones(160), abs=1e-5)
    assert (np.diff(samples["cosine_labels"]) >= 0).all()
    assert samples["losses"].shape == (449,)
    assert np.isfinite(samples["losses"]).all()
    assert "suspicion" not in samples  # random views of one item always match


def test_samples_contain_the_most_confident_errors(tmp_path: Path) -> None:
    """Well separated items, of which two have wrong labels."""
    labels = np.arange(60) % 3
    x = (9 * np.eye(6)[labels] + np.random.default_rng(0).normal(size=(60, 6))).astype(np.float32)
    wrong = labels.copy()
    wrong[[4, 11]] = (labels[[4, 11]] + 1) % 3
    run = make_run(tmp_path / "run", build_vector_model())
    data = (from_arrays(x, labels=labels), from_arrays(x, labels=wrong))
    evaluate(run, data=data, metrics=["linear_probe"], progress=False)
    samples = as_run_folder(run).page_arrays()
    assert sorted(samples["mistaken"]) == [4, 11]
    assert np.array_equal(samples["mistaken_true"], wrong[samples["mistaken"]])
    assert np.array_equal(samples["mistaken_told"], labels[samples["mistaken"]])
    assert samples["mistaken_sure"][0] >= samples["mistaken_sure"][1] > 0.5
    assert samples["mistaken_0"].shape == (2, 6)
    assert samples["mistaken_views"].tolist() == ["view0"]
    assert "mistaken_keys" not in samples
    data[1].keys = [f"{place}.png" for place in range(60)]
    evaluate(run, data=data, metrics=["linear_probe"], progress=False)
    assert as_run_folder(run).page_arrays()["mistaken_keys"].tolist() == [
        f"{place}.png" for place in samples["mistaken"]
    ]
    evaluate(run, data=(data[0], data[0]), metrics=["linear_probe"], progress=False)
    assert "mistaken" not in as_run_folder(run).page_arrays()


def test_plan_has_the_names_of_the_views(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", Model("mlp", [(6,), (6,)], shared=False), augment="none")
    data = contraport.data.load({"left": np.eye(40, 6, dtype=np.float32), "right": np.eye(40, 6, dtype=np.float32)})
    evaluate(run, data=(data, data), metrics=["recall"], progress=False)
    assert as_run_folder(run).page_arrays()["plan_view_names"].tolist() == ["left", "right"]


def test_saved_texts_are_truncated_as_shown() -> None:
    dataset = from_arrays(["größer", "x" * 1000, "a"])
    arrays = collect_feature_plot_arrays(dataset, torch.eye(3), torch.tensor([2, 1]))
    assert arrays["texts"].tolist() == ["a", "x" * 160]


def test_neighbors_of_a_sample_are_within_the_sample() -> None:
    features, chosen = torch.randn(20, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([19, 3, 7, 11, 2])
    arrays = collect_feature_plot_arrays(from_arrays(features, labels=np.arange(20) % 3), features, chosen)
    z = torch.nn.functional.normalize(features[chosen], dim=1)
    order = (z @ z.T).fill_diagonal_(-2).argsort(dim=1, descending=True)[:, :4]
    assert np.array_equal(arrays["neighbors"], order)
    assert arrays["ids"].tolist() == chosen.tolist()
    assert arrays["labels"].tolist() == [1, 0, 1, 2, 2]


def test_item_losses_average_to_the_loss() -> None:
    test, objective = build_vectors(30, 3), contraport.nt_xent(0.5)
    context = EvalContext(
        build_vector_model(), build_vectors(60, 3), test, Views(test), LoaderConfig(), objective=objective
    )
    losses = collect_test_figure_arrays(context, has_probe=False)["losses"]
    assert losses.shape == (30,)
    assert losses.mean() == pytest.approx(float(objective(*context.test_random_view_projector_outputs)), rel=1e-5)


def test_mismatched_pairs_have_a_high_suspicion(tmp_path: Path) -> None:
    """Items with a second view of another class share fewer neighbors."""
    labels = np.arange(90) % 3
    centres = 20 * np.eye(6)[labels]
    one, two = (centres + np.random.default_rng(seed).normal(size=(90, 6)) for seed in (0, 1))
    train = from_arrays((one, two), labels=labels)
    two[:6] = two[[1, 2, 0, 4, 5, 3]]
    shuffled = from_arrays((one, two), labels=labels)
    torch.manual_seed(0)
    run = make_run(tmp_path / "run", Model("mlp", [(6,), (6,)], shared=False), augment="none")
    evaluate(run, data=(train, shuffled), metrics=["uniformity"], progress=False)
    suspicion = as_run_folder(run).page_arrays()["suspicion"]
    assert suspicion.shape == (90,)
    assert suspicion[:6].mean() > suspicion[6:].mean() + 0.2
    assert "confusion" not in as_run_folder(run).page_arrays()  # requires a probe


def test_evaluate_changes_neither_model_nor_random_state(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", build_vector_model())
    before = (as_run_folder(run).model_path / "model.safetensors").read_bytes()
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    evaluate(run, data=(build_vectors(60, 3), build_vectors(40, 3)), progress=False)
    assert torch.equal(torch.rand(1), expected)
    assert (as_run_folder(run).model_path / "model.safetensors").read_bytes() == before


def test_evaluation_is_deterministic(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", build_vector_model())
    data = (build_vectors(60, 3), build_vectors(40, 3))
    first, second = (evaluate(run, data=data, progress=False)["rows"] for _ in range(2))
    assert first == second


@pytest.mark.parametrize("representation", ["concatenate", "1"])
def test_views_with_separate_encoders_are_evaluated(tmp_path: Path, representation: str) -> None:
    train, test = (build_views(items, (4,), (7,), (2, 9)) for items in (60, 30))
    torch.manual_seed(0)
    model = Model(shapes=train.shapes, representation=representation)
    run = make_run(tmp_path / "run", model, data="<views>", augment=None)
    result = evaluate(run, data=(train, test), neighbors=5, progress=False)
    assert set(result["rows"]["trained"]) >= {"uniformity", "effective_rank", "linear_probe", "knn", "recall@1"}
    assert "alignment" not in result["rows"]["trained"]
    assert result["rows"]["raw"]["linear_probe"] > 0.8
    assert result["notes"][0] == "Not measured, as each view has its own encoder: Alignment."
    assert as_run_folder(run).page_arrays()["plan"].shape == (60, 60)


@pytest.mark.parametrize(
    ("shapes", "settings"),
    [
        ([(2, 20)], {}),
        ([(5,), (5,)], {"shared": True}),
    ],
    ids=["time series", "given views of one encoder"],
)
def test_views_with_a_shared_encoder_are_evaluated(tmp_path: Path, shapes: Any, settings: dict[str, Any]) -> None:
    train, test = (build_views(items, *shapes) for items in (60, 30))
    torch.manual_seed(0)
    run = make_run(tmp_path / "run", Model(shapes=train.shapes, **settings), data="<views>", augment=None)
    rows = evaluate(run, data=(train, test), neighbors=5, progress=False)["rows"]
    assert all(0 < row["alignment"] < 4 for row in rows.values())
    assert rows["trained"]["linear_probe"] > 0.8


@pytest.mark.parametrize("views", ["color", "2+2"])
def test_views_derived_from_an_image_are_evaluated_and_embedded(tmp_path: Path, views: str) -> None:
    train, test = (build_views(items, (3, 16, 16), integers=True) for items in (40, 20))
    torch.manual_seed(0)
    model = Model(shapes=Views(train, views=views).unaugmented_shapes)
    run = make_run(tmp_path / "run", model, data="<images>", views=views)
    result = evaluate(run, data=(train, test), neighbors=5, progress=False)
    assert ("alignment" in result["rows"]["trained"]) == (views == "2+2")
    assert as_run_folder(run).page_arrays()["thumbnails"].shape == (20, 3, 16, 16)
    out = embed(run, data=test, out=tmp_path / "images.npz", progress=False)
    assert np.load(out)["features"].shape == (20, model.num_features)


def test_columns_are_those_of_the_run_unless_overridden(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    lines = [f"{a},{b},{c},{kind}" for (a, b, c), kind in zip(random.normal(size=(60, 3)), "xyz" * 20, strict=True)]
    (tmp_path / "sensors.csv").write_text("\n".join(["left,right,up,kind", *lines]))
    table, columns = str(tmp_path / "sensors.csv"), {"views": [["left", "up"], "right"], "labels": "kind"}
    torch.manual_seed(0)
    model = Model(shapes=[(2,), (1,)])
    run = make_run(tmp_path / "run", model, data=table, columns=columns, augment=None)
    assert evaluate(run, neighbors=3, progress=False)["rows"]["raw"].keys() >= {"knn"}
    own = np.load(embed(run, out=tmp_path / "own.npz", progress=False))["features"]
    given = np.load(embed(run, data=table, columns=columns, out=tmp_path / "given.npz", progress=False))["features"]
    assert own.shape == (60, 512)
    assert np.array_equal(own, given)


def test_data_frame_is_read_with_the_roles_of_training(tmp_path: Path) -> None:
    frame = pyarrow.table({name: np.random.default_rng(0).normal(size=60) for name in ("left", "right", "up")})
    columns = {"views": [["left", "up"], "right"]}
    run = make_run(tmp_path / "run", Model(shapes=[(2,), (1,)]), data="<Table>", columns=columns, augment=None)
    assert np.load(embed(run, data=frame, out=tmp_path / "own.npz", progress=False))["features"].shape == (60, 512)


def test_rejects_splits_of_different_shapes(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", build_vector_model())
    with raises_usage_error("data.shape", (6,), (7,)):
        evaluate(run, data=(build_views(30, (6,)), build_views(30, (7,))), progress=False)


@pytest.mark.parametrize(("classes", "note"), [(None, "there are no labels"), (1, "all labels are of one class")])
def test_missing_classes_skip_label_metrics_with_a_note(tmp_path: Path, classes: int | None, note: str) -> None:
    run = make_run(tmp_path / "run", build_vector_model())
    result = evaluate(run, data=(build_vectors(60, classes), build_vectors(40, classes)), progress=False)
    without = {"alignment", "uniformity", "effective_rank", "hubness", "mutual_information"}
    without |= {"recall@1", "recall@5", "recall@10", "median_rank"}
    measured = set(result["rows"]["trained"])
    assert measured == without | ({"tolerance"} if classes else set())
    (message,) = result["notes"]
    assert message.startswith(f"Not measured, as {note}: Linear probe, kNN, Calibration error, ")
    assert ("labels" in as_run_folder(run).page_arrays()) == (classes is not None)


def test_object_as_objective_has_no_plan_with_a_note(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", build_vector_model(), objective="<MyLoss>")
    result = evaluate(run, data=(build_vectors(60, 3), build_vectors(40, 3)), progress=False)
    assert "plan" not in as_run_folder(run).page_arrays()
    assert any("the objective was an object" in note for note in result["notes"])


@pytest.mark.parametrize(
    ("config", "note"),
    [
        ({"prototypes": 8}, "prototypes"),
        ({"objective": None, "predict": "l2", "projection": 0}, "compares no items"),
    ],
)
def test_runs_without_a_plan_have_a_note(tmp_path: Path, config: dict[str, Any], note: str) -> None:
    run = make_run(tmp_path / "run", build_vector_model(), **config)
    result = evaluate(run, data=(build_vectors(60, 3), build_vectors(40, 3)), progress=False)
    assert "plan" not in as_run_folder(run).page_arrays()
    assert any(note in one for one in result["notes"])
    alone = evaluate(
        run, data=(build_vectors(60, 3), build_vectors(40, 3)), metrics=["knn"], alone=True, progress=False
    )
    assert alone["notes"] == []  # `alone` collects no samples


def test_plan_uses_the_final_constraint_and_temperature(tmp_path: Path) -> None:
    settings = {"temperature": "1:0.3", "epochs": 9}
    plans = []
    for number, constraint in enumerate([None, "tighten:every=2", "tighten:every=9"]):
        run = make_run(tmp_path / str(number), build_vector_model(), constraint=constraint, **settings)
        evaluate(run, data=(build_vectors(60, 3), build_vectors(40, 3)), progress=False)
        plans.append(as_run_folder(run).page_arrays()["plan"] * 64)
    unconstrained, balanced, unreached = plans
    assert np.allclose(unconstrained, unreached)
    assert np.allclose(balanced.sum(axis=0), 1, atol=1e-2)
    assert not np.allclose(unconstrained.sum(axis=0), 1, atol=1e-2)


def test_plan_target_uses_labels(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", build_vector_model(), objective="sup-con")
    evaluate(run, data=(build_vectors(60, 3), build_vectors(40, 3)), progress=False)
    target, labels = (
        as_run_folder(run).page_arrays()["target"],
        np.tile(as_run_folder(run).page_arrays()["plan_labels"], 2),
    )
    assert np.array_equal(target > 0, (labels[:, None] == labels) & ~np.eye(len(labels), dtype=bool))


def test_rejects_more_neighbors_than_items_and_writes_nothing(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", build_vector_model())
    with raises_usage_error("neighbors.invalid", 12, 20):
        evaluate(run, data=(build_vectors(12, 3), build_vectors(12, 3)), progress=False)
    assert not as_run_folder(run).evaluation_path.exists()
    assert not as_run_folder(run).samples_path.exists()


def test_evaluate_rejects_wrong_arguments(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", build_vector_model(), data="<vectors>")
    with raises_usage_error("data.missing", "data="):
        evaluate(run, progress=False)
    with raises_usage_error("data.one_split"):
        evaluate(run, data=build_vectors(60, 3), progress=False)  # type: ignore[arg-type]
    for number in (1, 3):
        with raises_usage_error("data.pair", number):
            evaluate(run, data=(build_vectors(60, 3),) * number, progress=False)
    with raises_usage_error("data.shape", (6,), "digits"):
        evaluate(run, data="digits", progress=False)
    for device in ("abacus", "meta"):
        with raises_usage_error("device.invalid", device):
            evaluate(run, data=(build_vectors(60, 3), build_vectors(40, 3)), device=device, progress=False)
    with raises_usage_error("run.*"):
        evaluate(tmp_path / "absent", progress=False)
    with raises_usage_error("run.repeated", run.path):
        evaluate([run, tmp_path / "absent", tmp_path / "run" / ".." / "run"], progress=False)


def test_rejects_a_corrupt_model(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", build_vector_model())
    (as_run_folder(run).model_path / "model.safetensors").write_bytes(b"\x00" * 40)
    with raises_usage_error("*", as_run_folder(run).model_path):
        evaluate(run, data=(build_vectors(60, 3), build_vectors(40, 3)), progress=False)


def test_run_of_another_version_is_evaluated_with_a_note(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", build_vector_model(), objective="nt-xent-next", whirl=3)
    notes = evaluate(run, data=(build_vectors(60, 3), build_vectors(40, 3)), metrics=["knn"], progress=False)["notes"]
    assert "'whirl'" in notes[0]
    assert contraport.__version__ in notes[0]
    assert "the objective cannot be built" in notes[-1]
    same = make_run(tmp_path / "same", build_vector_model())
    notes = evaluate(same, data=(build_vectors(60, 3), build_vectors(40, 3)), metrics=["knn"], progress=False)["notes"]
    assert not any("does not know" in note or "cannot be built" in note for note in notes)


def train_run(path: Path, **options: Any) -> WritableRun:
    settings = {"batch_size": 20, "epochs": 3, "encoder": "mlp", "progress": False} | options
    return as_run_folder(contraport.train(data=build_vectors(60, 3), out=path, **settings))


def test_intermediate_models_are_evaluated_by_epoch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = train_run(tmp_path / "run", epochs=3, keep_every=1)
    data = (build_vectors(60, 3), build_vectors(40, 3))
    result = evaluate(run, data=data, checkpoints="all", metrics=["uniformity", "knn"], progress=False)
    assert list(result["rows"]) == ["raw", "untrained", "trained", "epoch 1", "epoch 2"]
    values = [result["rows"][name]["uniformity"] for name in ("untrained", "epoch 1", "epoch 2", "trained")]
    assert len(set(values)) == 4
    samples = as_run_folder(run).page_arrays()
    assert samples["plan_epochs"].tolist() == [1, 2, 3]
    assert np.array_equal(samples["plans"][-1], samples["plan"])
    assert not np.array_equal(samples["plans"][0], samples["plan"])
    shorter = train_run(tmp_path / "shorter", epochs=3)
    with raises_usage_error("checkpoints.missing", shorter.path):
        evaluate(shorter, data=data, checkpoints="all", progress=False)
    both = evaluate([shorter, run], data=data, checkpoints="all", metrics=["uniformity"], alone=True, progress=False)
    assert [list(result["rows"]) for result in both.values()] == [["trained"], ["trained", "epoch 1", "epoch 2"]]
    messages = [[note for note in result["notes"] if "intermediate" in note] for result in both.values()]
    assert messages == [[f"{shorter.path} has no intermediate checkpoints; only its last model was evaluated."], []]
    print_metrics_differences_and_verdict({str(run.path): result}, {})
    assert "epoch 1 epoch 2 trained" in capsys.readouterr().out
    (as_run_folder(run).checkpoints / "epoch-0001.ckpt").write_bytes(b"\x00" * 40)
    with raises_usage_error("*", "epoch-0001.ckpt"):
        evaluate(run, data=data, checkpoints="all", progress=False)


@pytest.mark.parametrize(("first", "affected"), [(3, "All test items"), (1, "13 of 40 test items"), (0, None)])
def test_classes_without_training_items_are_noted(tmp_path: Path, first: int, affected: str | None) -> None:
    train, test = build_vectors(60, 3), build_vectors(40, 3)
    moved = from_arrays(np.asarray(test.__getitems__(list(range(40))).views[0]), labels=test.labels.numpy() + first)
    run = make_run(tmp_path / "run", Model("mlp", [(6,)]))
    notes = evaluate(run, data=(train, moved), metrics=["knn"], alone=True, progress=False)["notes"]
    messages = [note for note in notes if "without training items" in note]
    assert len(messages) == (affected is not None)
    assert all(note.startswith(f"{affected} are of classes") for note in messages)
    options = {"metrics": ["uniformity", "nmi"], "alone": True, "progress": False}
    notes = evaluate(run, data=(train, moved), **options)["notes"]
    assert not [note for note in notes if "without training items" in note]  # they train no probe


def test_note_names_the_first_unseen_classes(tmp_path: Path) -> None:
    rows, run = np.random.default_rng(0).normal(size=(60, 6)), make_run(tmp_path / "run", build_vector_model())
    train, test = (
        from_arrays(rows, labels=[f"{prefix} {number % 10}" for number in range(60)]) for prefix in ("old", "new")
    )
    notes = evaluate(run, data=(train, test), metrics=["knn"], alone=True, progress=False)["notes"]
    assert [note for note in notes if "(new 0, new 1, new 2, new 3 and new 4 and others)" in note]


def test_downscaled_raw_inputs_are_noted(tmp_path: Path) -> None:
    torch.manual_seed(0)
    for side, is_downscaled in ((40, True), (16, False)):
        data = tuple(build_views(items, (3, side, side), integers=True) for items in (40, 20))
        run = make_run(tmp_path / str(side), Model("small-cnn", [(3, side, side)]))
        notes = evaluate(run, data=data, metrics=["knn"], neighbors=5, progress=False)["notes"]
        messages = ["Raw inputs: images downscaled to 36 × 36 pixels."] if is_downscaled else []
        assert [note for note in notes if note.startswith("Raw inputs")] == messages


def test_last_checkpoint_is_the_trained_model(tmp_path: Path) -> None:
    run = train_run(tmp_path / "run", epochs=2, keep_every=2)
    ((epoch, model),) = iter_intermediate_model_copies(
        run, run.model(), find_checkpoints_by_epoch(run, before_epoch=None)
    )
    assert epoch == 2
    expected = run.model().state_dict()
    assert all(torch.equal(expected[name], weight) for name, weight in model.state_dict().items())


def test_several_runs_have_paired_differences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(3)
    first, second = make_run(tmp_path / "a", Model("mlp", [(6,)])), make_run(tmp_path / "b", Model("mlp", [(6,)]))
    data = (build_vectors(60, 3), build_vectors(40, 3))
    results = evaluate([first.path, second.path], data=data, progress=False)
    alone = evaluate(second.path, data=data, progress=False)
    a, b = results.values()
    assert (alone["rows"], alone["intervals"]) == (b["rows"], b["intervals"])
    difference = b["differences"][str(first.path)]["alignment"]
    assert difference["value"] == pytest.approx(b["rows"]["trained"]["alignment"] - a["rows"]["trained"]["alignment"])
    assert difference["low"] < difference["value"] < difference["high"]
    assert a["differences"][str(second.path)]["alignment"]["value"] == pytest.approx(-difference["value"])
    assert set(a["differences"]) == {"raw", "untrained", str(second.path)}
    difference = b["differences"][str(first.path)]["uniformity"]
    assert difference["value"] == pytest.approx(b["rows"]["trained"]["uniformity"] - a["rows"]["trained"]["uniformity"])
    assert set(b["intervals"]["trained"]) == set(b["rows"]["trained"])
    html = results._repr_html_()
    assert html.count("<table>") == html.count("</table>") == 3
    text = b["rows"]["trained"]["effective_rank"]
    assert f"<td {html.partition('<td ')[2].partition('>')[0]}>{text:.1f}</td>" in alone._repr_html_()
    assert f"{second.path} minus {first.path}, paired by item" in html
    assert escape(alone["notes"][0]) in alone._repr_html_()
    print_metrics_differences_and_verdict(results, {})
    printed = capsys.readouterr().out
    assert f"{second.path} minus {first.path}, paired by item" in printed
    assert re.search(r"of \d+ metrics", printed, re.IGNORECASE)
    assert re.search(r"(Both runs are|neither run is|not all runs are) significantly better than", printed)
    with raises_usage_error("run.missing"):
        evaluate([], data=data)


def test_prints_the_metrics_of_the_verdict_unless_all_are_requested(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [make_run(tmp_path / name, Model("mlp", [(6,)])).path for name in "ab"]
    results = evaluate(paths, data=(build_vectors(60, 3), build_vectors(40, 3)), neighbors=5, progress=False)
    measured = collect_metrics_for_display([results[str(paths[0])]["rows"]["trained"]])
    tables = len(paths) + 1  # each run, and their difference

    def count_rows(**options: Any) -> dict[str, int]:
        print_metrics_differences_and_verdict(results, options)
        printed = capsys.readouterr().out.splitlines()
        expected = (
            [] if options else [f"{len(measured) - 2} more metrics: {path}/evaluation.json, or --all" for path in paths]
        )
        assert [line for line in printed if " more metrics: " in line] == expected
        firsts = [line for line in printed if "%" in line or re.search(r"\d\.\d", line)]
        return {m.key: sum(line.startswith(f"{m.title} ") for line in firsts) for m in measured}

    assert {key: rows for key, rows in count_rows().items() if rows} == {"linear_probe": tables, "knn": tables}
    for everything in (count_rows(all=True), count_rows(metrics=["all"])):
        assert all(rows >= len(paths) for rows in everything.values()), everything
    groups = [metric.group for metric in measured]
    assert groups == sorted(groups, key="geometry".__eq__)
    assert groups[-1] == "geometry"


def test_all_is_a_flag_of_the_command_line_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_run(tmp_path / "run", Model("mlp", [(6,)])).path
    passed: list[Any] = []
    monkeypatch.setattr("contraport.evaluation.evaluate", lambda **options: passed.append(options) or {})
    printer = "contraport.cli.result_printers.print_metrics_differences_and_verdict"
    monkeypatch.setattr(printer, lambda result, options: passed.append(options))
    assert main(["evaluate", str(path), "--all", "--progress=false"]) == 0
    assert main(["evaluate", str(path), "--progress=false"]) == 0
    called, printed, called_without, printed_without = passed
    assert "all" not in called
    assert called == called_without == printed_without
    assert printed == called | {"all": True}
    with pytest.raises(TypeError, match="all"):
        evaluate(path, all=True)  # type: ignore[call-arg]


def test_more_than_two_runs_get_bonferroni_intervals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(3)
    paths = [make_run(tmp_path / name, Model("mlp", [(6,)])).path for name in "abc"]
    options = {
        "data": (build_vectors(60, 3), build_vectors(40, 3)),
        "metrics": ["knn"],
        "neighbors": 5,
        "progress": False,
    }
    three, two = evaluate(paths, **options), evaluate(paths[:2], **options)
    assert [result["pairs_of_runs"] for result in (*three.values(), *two.values())] == [3, 3, 3, 1, 1]
    wide, narrow = (results[str(paths[1])]["differences"][str(paths[0])]["knn"] for results in (three, two))
    assert wide["value"] == narrow["value"]
    # Normal quantiles for a total level of 5 % over three comparisons, and over one.
    assert (wide["high"] - wide["low"]) / (narrow["high"] - narrow["low"]) == pytest.approx(2.394 / 1.960, rel=1e-3)
    alone = [results[str(paths[0])]["differences"]["untrained"] for results in (three, two)]
    assert alone[0] == alone[1]
    print_metrics_differences_and_verdict(three, {})
    assert "for all 3 pairs" in capsys.readouterr().out


def test_runs_on_differently_corrupted_items_are_not_compared(tmp_path: Path) -> None:
    options = {"encoder": "mlp", "epochs": 1, "max_items": 64, "batch_size": 32, "progress": False, "device": "cpu"}
    paths = []
    for own in ({}, {"corrupt": "noise:5"}, {"domains": "style"}):
        paths.append(tmp_path / "-".join(["run", *own]))
        contraport.train("digits", out=paths[-1], **options, **own)
    results = evaluate(paths, metrics=["knn"], progress=False)
    messages = ["digits", "digits, corrupt noise:5", "digits, domains style"]
    assert [result["data"] for result in results.values()] == messages
    assert all(set(result["differences"]) == {"raw", "untrained"} for result in results.values())
    sentences = compose_verdict_sentences(load_runs(paths))
    assert not any("better than run" in sentence or "is the best" in sentence for sentence in sentences)
    clean = (load("digits", "train"), load("digits", "test"))
    results = evaluate(paths, data=clean, metrics=["knn"], progress=False)
    assert {result["data"] for result in results.values()} == {"digits"}
    assert all(len(result["differences"]) == 4 for result in results.values())


def test_runs_on_different_items_are_not_compared(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 1)):
        random = np.random.default_rng(seed)
        np.savez(tmp_path / f"{name}.npz", x=random.normal(size=(60, 6)), y=np.arange(60) % 3)
    runs = [
        make_run(tmp_path / f"run-{name}", build_vector_model(), data=str(tmp_path / f"{name}.npz")) for name in "ab"
    ]
    results = evaluate(runs, neighbors=5, progress=False)
    assert all(set(result["differences"]) == {"raw", "untrained"} for result in results.values())


def test_different_rows_of_a_file_are_different_items(tmp_path: Path) -> None:
    """Of 100 rows, 20 are held out for testing; a quarter of the other 80, also 20, for validation."""
    np.savez(tmp_path / "data.npz", x=np.random.default_rng(0).normal(size=(100, 6)))
    own = {"a": {}, "b": {}, "c": {"validation": 0.25}}
    runs = [
        make_run(tmp_path / name, build_vector_model(), data=str(tmp_path / "data.npz"), **options)
        for name, options in own.items()
    ]
    results = evaluate(runs, metrics=["uniformity"], progress=False)
    assert [result["test_items"] for result in results.values()] == [20, 20, 20]
    assert [len(result["differences"]) for result in results.values()] == [3, 3, 2]


def test_intervals_contain_their_values(evaluated: tuple[Run, dict[str, Any]]) -> None:
    _, result = evaluated
    for name, row in result["rows"].items():
        ends = result["intervals"][name]
        assert set(row) - set(ends) <= {"uniformity", "tolerance", "effective_rank", "hubness", "nmi", "ari"}
        assert all(ends[key]["low"] <= row[key] <= ends[key]["high"] for key in ends)


def test_classes_are_matched_by_name(tmp_path: Path) -> None:
    """All test items are of "class 1", the only class of the test labels; it must not be matched with "class 0"."""
    rows = np.random.default_rng(0).normal(size=(90, 6)) + 9 * np.eye(6)[np.arange(90) % 3]
    train = from_arrays(rows, labels=[f"class {label}" for label in np.arange(90) % 3])
    test = from_arrays(rows[1::3], labels=["class 1"] * 30)
    run = make_run(tmp_path / "run", build_vector_model())
    assert evaluate(run, data=(train, test), neighbors=5, progress=False)["rows"]["raw"]["knn"] == 1


def test_test_data_replace_the_test_split(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", build_vector_model())
    options = {
        "data": (build_vectors(60, 3), build_vectors(40, 3)),
        "metrics": ["knn"],
        "neighbors": 5,
        "progress": False,
    }
    other = evaluate(run, test_data=build_vectors(50, 3), **options)
    assert (other["train_items"], other["test_items"]) == (60, 50)
