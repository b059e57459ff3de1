"""Metrics registered outside the package."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests import TIMEOUT
from tests.errors import raises_usage_error
from tests.evaluation.builders import build_vector_model, build_vectors, make_run

from contraport import metrics
from contraport._utils.formatting import use_flag_style
from contraport.cli.listing import list_names, print_names
from contraport.evaluation import evaluate
from contraport.evaluation.evaluation_results import metric_rows_of_encoders
from contraport.metrics import METRICS, find_metric, register_metric, select_metrics
from contraport.metrics.builtin_metrics import REQUIRES_LABELS
from contraport.reporting import report


@pytest.fixture
def near_metric():
    @register_metric(
        "Near@{}",
        group="geometry",
        better="higher",
        unit="share of test items",
        value_format="{:.0%}",
        requires=(REQUIRES_LABELS,),
        numbers=(1, 1000),
        default=False,
    )
    def near(context, number):
        """Share of items closer to the mean than a number."""
        features = context.test_features
        return torch.cdist(features, features.mean(dim=0, keepdim=True)).flatten().numpy() < number

    yield "near"
    del METRICS["near"]


def test_registered_metric_works_in_evaluate_report_and_list(near_metric, tmp_path: Path, capsys) -> None:
    run = make_run(tmp_path / "run", build_vector_model(), data="<vectors>")
    data = (build_vectors(60, 3), build_vectors(40, 3))
    rows = evaluate(run, data=data, metrics=["near", "uniformity"], progress=False)["rows"]
    assert all(set(row) == {"near@1", "near@1000", "uniformity"} for row in rows.values())
    assert rows["trained"]["near@1000"] == 1
    assert {"metric": "Near@1000", "trained": "100%"}.items() <= metric_rows_of_encoders(rows)[-1].items()
    assert "Near@1000" in report([run], out=tmp_path / "page.html").read_text()
    print_names(list_names("metrics"))
    assert "\nnear@k " in capsys.readouterr().out
    assert evaluate(run, data=data, metrics=["near@7"], progress=False)["rows"]["raw"].keys() == {"near@7"}


@pytest.mark.parametrize("nan_items", [0, slice(None)])
def test_metric_with_nan_is_left_out_with_a_note(nan_items, tmp_path: Path) -> None:
    @register_metric(
        "Broken", group="geometry", better="higher", unit="share of test items", value_format="{:.0%}", default=False
    )
    def broken(context):
        """NaN for some items."""
        actual = torch.ones(len(context.test_features))
        actual[nan_items] = torch.nan
        return actual.numpy()

    try:
        run = make_run(tmp_path / "run", build_vector_model(), data="<vectors>")
        data = (build_vectors(60, 3), build_vectors(40, 3))
        result = evaluate(run, data=data, metrics=["broken", "uniformity"], progress=False)
        assert all(set(row) == {"uniformity"} for row in result["rows"].values())
        assert result["not_measured"] == ["Left out, as a value was NaN or infinite: Broken."]
        assert set(result["not_measured"]) <= set(result["notes"])
        assert "a value was NaN or infinite: Broken." in report([run], out=tmp_path / "page.html").read_text()
    finally:
        del METRICS["broken"]


def test_metric_with_unmet_requirement_is_left_out_with_a_note(near_metric, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", build_vector_model(), data="<vectors>")
    data, metrics = (build_vectors(60, None), build_vectors(40, None)), ["near@2", "uniformity"]
    result = evaluate(run, data=data, metrics=metrics, progress=False)
    assert all(row.keys() == {"uniformity"} for row in result["rows"].values())
    assert "Not measured, as there are no labels: Near@2." in result["notes"]


def test_names_titles_and_groups_select_metrics(near_metric) -> None:
    keys = [row.key for row in select_metrics(["near@3", "uniformity", "near"])]
    assert keys == ["uniformity", "near@1", "near@3", "near@1000"]
    assert all(row.is_default for row in select_metrics())
    assert {row.group for row in select_metrics(["geometry"])} == {"geometry"}
    assert {row.key for row in select_metrics(["all"])} >= {"knn", "near@1000"}
    typos = {"near@": "number", "near@0": "number", "near@x": "number", "knn@3": "unknown", "kn": "unknown"}
    for typo, kind in typos.items():
        assert find_metric(typo) is None
        with raises_usage_error(f"metrics.{kind}", typo):
            select_metrics([typo])
    with raises_usage_error("metrics.unknown", "'recall@7'"):
        select_metrics(["recal@7"])
    with raises_usage_error("metrics.comma", "metrics=['knn', 'recall@1']"):
        select_metrics(["knn, recall@1"])
    with use_flag_style(), raises_usage_error("metrics.comma", "--metrics knn recall@1"):
        select_metrics(["knn, recall@1"])


def test_title_selects_the_same_metric_as_its_key() -> None:
    for row in select_metrics(["all"]):
        assert row.title.lower().replace(" ", "_").replace("-", "_") == row.key
        assert [one.key for one in select_metrics([row.title])] == [row.key]
    assert [row.title for row in select_metrics(["retrieval"])][:3] == ["Recall@1", "Recall@5", "Recall@10"]
    assert select_metrics(["Zero-shot"]) == select_metrics(["zero_shot"])


def test_registration_rejects_incomplete_entries() -> None:
    def undocumented(context):
        return 0.0

    common = {"group": "geometry", "better": "higher", "unit": "", "value_format": "{}"}
    with raises_usage_error("function.docstring", "Mine"):
        register_metric("Mine", **common)(undocumented)
    undocumented.__doc__ = "Nothing."
    with raises_usage_error("title.number", "Mine"):
        register_metric("Mine", numbers=(1, 2), **common)(undocumented)
    with raises_usage_error("title.number", "Mine@{}"):
        register_metric("Mine@{}", **common)(undocumented)
    with raises_usage_error("title.exists", "knn"):
        register_metric("kNN", **common)(undocumented)


def test_deprecated_names_of_a_metric() -> None:
    with pytest.warns(FutureWarning, match="register_metric"):
        assert metrics.metric is register_metric
    with pytest.warns(FutureWarning, match="find_metric"):
        assert metrics.metric_by_key is find_metric
    with pytest.warns(FutureWarning, match="better_direction"):
        assert find_metric("uniformity").better == "lower"
    with pytest.warns(FutureWarning, match="value_format"):
        assert find_metric("knn").pattern == "{:.1%}"
    with pytest.warns(FutureWarning, match="value_format"):
        register_metric("Mine", group="geometry", better="higher", unit="", pattern="{}")


def test_registry_does_not_import_torch() -> None:
    code = "import sys; from contraport.metrics import find_metric; assert find_metric('knn')\n"
    code += "assert not {'torch', 'numpy', 'sklearn'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=TIMEOUT)
