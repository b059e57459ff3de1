import base64
import gzip
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.errors import raises_usage_error

from contraport._utils.files import write_json, write_npz
from contraport.errors import UsageError
from contraport.evaluation.evaluation_results import metric_rows_with_baselines
from contraport.evaluation.notes_and_verdict import find_verdict_text
from contraport.metrics import find_metric, select_metrics
from contraport.metrics.intervals import Difference
from contraport.reporting import report
from contraport.reporting.page import compose_title, render_report
from contraport.reporting.reported_run import load_runs
from contraport.reporting.sections.results_and_settings import build_metric_table_per_dataset, list_evaluated_metrics
from contraport.reporting.verdict import compose_verdict_sentences

HOSTILE_NAME = '<script>alert(1)</script><img src=x onerror="alert(2)">'


def tables(runs):
    loaded = load_runs(runs)
    return build_metric_table_per_dataset(loaded, list_evaluated_metrics(loaded))


class Tags(HTMLParser):
    """Parser that collects the tags and words of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


def html_without_plotly(path: Path) -> str:
    """Return the page without the embedded plotting library."""
    before, _, rest = path.read_text("utf-8").partition('const PACKED = "')
    packed, _, after = rest.partition('";')
    assert "Licensed under the MIT license" in gzip.decompress(base64.b64decode(packed)).decode()[:300]
    return before + after


def test_page_of_two_small_runs_is_below_a_mebibyte(make_run, tmp_path) -> None:
    assert report([make_run("a"), make_run("b")], out=tmp_path / "page.html").stat().st_size < 1 << 20


def words_of_page(path: Path) -> str:
    return " ".join(" ".join(Tags(html_without_plotly(path)).words).split())


def test_page_has_title_sections_and_baselines(make_run, tmp_path) -> None:
    path = report([make_run().path], out=tmp_path / "page.html")
    assert "small-cnn encoder trained on digits with nt-xent for 5 epochs." in words_of_page(path)
    text = words_of_page(path)
    for part in (
        "Verdict",
        "Results",
        "Training",
        "Map",
        "Nearest neighbors",
        "Confusion",
        "Plans",
        "Geometry",
        "Robustness",
        "Settings",
        "raw inputs",
        "untrained small-cnn",
        "92.0%",
    ):
        assert part in text


def headings_of_page(path: Path) -> tuple[str, str]:
    """Return the text of the first-order heading and of the line below it."""
    html = html_without_plotly(path)
    result = re.search(r"<h1[^>]*>(.*?)</h1>\s*(?:<p class=\"about\">(.*?)</p>)?", html, re.DOTALL)
    assert result is not None
    return " ".join(re.sub("<[^>]*>", "", result[1]).split()), result[2] or ""


def test_heading_is_the_verdict(make_run, tmp_path) -> None:
    runs = [make_run("one"), make_run("two", seed=1)]
    verdict = "Use the trained encoder: it is better."
    write_json(runs[0].evaluation_path, runs[0].evaluation() | {"verdict": verdict})
    for shown_runs in (runs[:1], runs[1:], runs):
        path = report(shown_runs, out=tmp_path / "page.html", overwrite=True)
        loaded = load_runs(shown_runs)
        first, *others = compose_verdict_sentences(loaded)
        assert headings_of_page(path) == (first, compose_title(loaded))
        assert words_of_page(path).count(first) == 1
        assert all(sentence in words_of_page(path) for sentence in others)
    assert headings_of_page(report(runs[:1], out=tmp_path / "page.html", overwrite=True))[0] == verdict


def test_runs_without_a_verdict_have_a_neutral_heading(make_run, tmp_path) -> None:
    runs = [make_run("one", evaluated=False), make_run("two", evaluated=False, epochs=7)]
    path = report(runs, out=tmp_path / "page.html")
    assert headings_of_page(path) == (compose_title(load_runs(runs)), "")
    assert "The runs differ in epochs" in words_of_page(path)


def test_title_names_encoders_data_and_objectives(make_run) -> None:
    runs = load_runs([make_run("a"), make_run("b", objective="gca-uot", epochs=1), make_run("c", objective="gca-ince")])
    assert compose_title(runs) == "3 small-cnn encoders trained on digits with nt-xent, gca-uot and gca-ince."
    unknown = [replace(run, encoder="default encoder") for run in runs[:1]]
    assert "encoder encoder" not in compose_title(unknown)
    assert compose_title(load_runs([make_run("f", encoder="mlp")])).startswith("mlp encoder trained on")
    mixed = load_runs([make_run("d", encoder="mlp", data="/home/me/photos"), make_run("e", epochs=5)])
    assert compose_title(mixed) == (
        "2 encoders (mlp and small-cnn) trained on photos and digits with nt-xent for 5 epochs."
    )


def test_title_of_frozen_encoders(make_run) -> None:
    runs = [make_run("a", freeze=True), make_run("b", freeze=True), make_run("c")]
    assert (
        compose_title(load_runs(runs[:1]))
        == "frozen small-cnn encoder with a trained head on digits with nt-xent for 5 epochs."
    )
    assert compose_title(load_runs(runs[:2])).startswith("2 frozen small-cnn encoders with a trained head on digits")
    assert compose_title(load_runs(runs)).startswith("3 small-cnn encoders trained on digits")


def test_run_with_initial_weights_is_compared_with_them(make_run, tmp_path) -> None:
    run = make_run(images=True)
    evaluation = run.evaluation()
    for part in ("rows", "differences", "intervals"):
        if "untrained" in evaluation.get(part, {}):
            evaluation[part] = {
                "given" if row == "untrained" else row: values for row, values in evaluation[part].items()
            }
    differences = {"given": {"knn": Difference(-0.1, -0.2, -0.05)}}
    evaluation["verdict"] = find_verdict_text(evaluation["rows"]["trained"], differences, num_test_items=50)
    write_json(run.evaluation_path, evaluation)
    (group,) = tables([run])
    assert [encoder.name for encoder in group.encoder_rows] == ["raw inputs", "small-cnn as given", "nt-xent"]
    shown_words = words_of_page(report([run], out=tmp_path / "page.html"))
    assert "significantly better than the encoder as it was given, by 1.0 points" in shown_words
    assert "Use the encoder as it was given for kNN" in shown_words
    assert "the encoder as it was given (dashed)" in shown_words
    assert "untrained" not in shown_words


def test_every_metric_is_on_the_page_and_in_the_console(make_run) -> None:
    run = make_run()
    evaluation = run.evaluation()
    measures = select_metrics(["all"])
    values = {measure.key: 0.101 + 0.007 * place for place, measure in enumerate(measures)}
    evaluation |= {"rows": {"trained": values}, "intervals": {"trained": {}}}
    write_json(run.evaluation_path, evaluation)
    html = render_report(load_runs([run]))
    options = {row["metric"]: row["trained"] for row in metric_rows_with_baselines(evaluation)}
    for measure in measures:
        written = measure.format(values[measure.key])
        assert options[measure.title] == written
        row = re.search(f'<th scope="row"[^>]*>{re.escape(measure.title)}\\b.*?</tr>', html, re.DOTALL)
        assert row is not None, measure.key
        assert f'<span class="value">{written}</span>' in row[0], measure.key


def test_page_needs_no_network(make_run, tmp_path) -> None:
    html = html_without_plotly(report([make_run("a"), make_run("b")], out=tmp_path / "page.html"))
    assert set(re.findall(r"https?://[^\"' <]*", html)) == {"http://www.w3.org/2000/svg"}, (
        "expected the namespace of SVG only"
    )
    sources = [attributes.get(key) for _, attributes in Tags(html).tags for key in ("src", "href") if key in attributes]
    assert all(source is not None and source.startswith("#") for source in sources)
    assert "default-src 'none'" in html


def test_names_are_escaped(make_run, tmp_path) -> None:
    run = make_run(
        "<b>bold&co<b>", data=HOSTILE_NAME, objective=HOSTILE_NAME, class_names=(HOSTILE_NAME, "</script>", "`${1}`")
    )
    html = html_without_plotly(report([run, make_run("plain")], out=tmp_path / "page.html"))
    plain = html_without_plotly(report([make_run("plain2"), make_run("plain3")], out=tmp_path / "plain.html"))
    assert Tags(html).count("script") == Tags(plain).count("script") == 1
    assert Tags(html).count("img") == Tags(html).count("b") - Tags(plain).count("b") == 0
    assert HOSTILE_NAME not in html
    assert HOSTILE_NAME in "".join(Tags(html).words)


def test_significantly_best_cells_are_marked_and_baselines_listed_once(make_run) -> None:
    (group,) = tables([make_run("alone")])
    best = [[cell.text for cell in encoder.cells if cell.is_significantly_best] for encoder in group.encoder_rows]
    assert best == [[], [], ["92.0%", "92.0%", "0.100", "−3.000"]]
    (group,) = tables([make_run("a"), make_run("b", seed=3)])
    assert [encoder.name for encoder in group.encoder_rows] == ["raw inputs", "untrained small-cnn", "a", "b"]
    assert not any(cell.is_significantly_best for encoder in group.encoder_rows for cell in encoder.cells)


def test_no_best_if_a_run_lacks_the_metric(make_run) -> None:
    runs = [make_run("a", seed=3), make_run("b")]
    values = runs[1].evaluation()
    del values["rows"]["trained"]["knn"]
    write_json(runs[1].evaluation_path, values)
    loaded = load_runs([runs[0]]), load_runs(runs)
    (alone,), (beside,) = (
        build_metric_table_per_dataset(runs_in_order, [find_metric("knn")]) for runs_in_order in loaded
    )
    assert alone.encoder_rows[-1].cells[0].is_significantly_best
    assert not any(cell.is_significantly_best for encoder in beside.encoder_rows for cell in encoder.cells)


def test_each_data_set_has_a_table_with_best_cells(make_run, tmp_path) -> None:
    runs = [make_run("a"), make_run("b", data="fashion-mnist", seed=2)]
    groups = tables(runs)
    assert [group.data_name for group in groups] == ["digits", "fashion-mnist"]
    assert all(any(cell.is_significantly_best for cell in group.encoder_rows[-1].cells) for group in groups)
    assert "fashion-mnist" in words_of_page(report(runs, out=tmp_path / "page.html"))


def test_baselines_with_equal_names_include_the_run(make_run) -> None:
    runs = [make_run("a"), make_run("b")]
    values = runs[1].evaluation()
    values["rows"]["untrained"]["knn"] = 0.5
    write_json(runs[1].evaluation_path, values)
    (group,) = tables(runs)
    names = [encoder.name for encoder in group.encoder_rows]
    assert names == ["raw inputs", "untrained small-cnn (for a)", "untrained small-cnn (for b)", "a", "b"]


def test_missing_parts_are_noted(make_run, tmp_path) -> None:
    runs = [
        make_run("unlabelled", labels=False),
        make_run("unevaluated", evaluated=False),
        make_run("fresh", evaluated=False, metrics=False),
        make_run("vectors", images=False),
    ]
    text = words_of_page(report(runs, out=tmp_path / "page.html"))
    assert "unlabelled: No labels, so no linear probe and no kNN." in text
    assert "unevaluated is not evaluated; run contraport evaluate" in text
    assert "fresh has no curves: no metrics are logged yet." in text
    assert "30 test items of digits, no labels" in text


def test_new_run_has_no_empty_sections(make_run, tmp_path) -> None:
    path = report([make_run("fresh", evaluated=False, metrics=False)], out=tmp_path / "page.html")
    headings = re.findall(r"<h2[^>]*>(.*?)</h2>", html_without_plotly(path))
    assert headings == ["Results", "Settings"]


def test_runs_of_one_name_are_shown_by_path(make_run, tmp_path) -> None:
    runs = load_runs([make_run("one/run"), make_run("two/run"), make_run("other")])
    assert [run.name for run in runs] == [str(runs[0].path), str(runs[1].path), "other"]


def test_colors_repeat_with_another_dash(make_run) -> None:
    runs = load_runs([make_run(f"run-{number}") for number in range(12)])
    assert len({(run.color, run.plotly_dash) for run in runs}) == 12


def test_rejects_invalid_arguments_and_writes_nothing(make_run, tmp_path) -> None:
    run = make_run()
    existing = tmp_path / "page.html"
    existing.write_text("mine")
    for runs, out, argument, value in (
        ([], "new.html", "runs", ""),
        ([run], "page.txt", "out", "'page.txt'"),
        ([run, run], "new.html", "runs", run.path),
        ([run], "page.html/page.html", "out", existing),
        ([run], "page.html", "out", "overwrite=True"),
        ([tmp_path], "new.html", "runs", tmp_path),
        ([tmp_path / "absent"], "new.html", "runs", tmp_path / "absent"),
    ):
        with pytest.raises(UsageError) as caught:
            report(runs, out=tmp_path / out)
        assert caught.value.argument == argument
        assert str(value) in str(caught.value)
    assert existing.read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "runs"]
    report([run], out=existing, overwrite=True)
    assert existing.stat().st_size > 500_000


def test_rejects_corrupt_run(make_run, tmp_path) -> None:
    run = make_run()
    run.samples_path.write_bytes(b"torn")
    with pytest.raises(UsageError) as caught:
        report([run], out=tmp_path / "page.html")
    assert "samples.npz" in str(caught.value)
    assert not (tmp_path / "page.html").exists()


def test_online_metric_is_a_curve(make_run, tmp_path) -> None:
    run = make_run()
    run.replace_metrics(
        row | ({"knn": 0.5 + row["step"] / 100} if row["step"] % 4 == 3 else {}) for row in run.metrics_rows()
    )
    assert "kNN over the training steps; last values: nt-xent: 69.0%." in words_of_page(
        report([run], out=tmp_path / "page.html")
    )


def change(name: str, value: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a change of one entry of a mapping, which is removed for None."""
    return lambda mapping: {key: one for key, one in {**mapping, name: value}.items() if one is not None}


@pytest.mark.parametrize(
    "damage",
    [
        change("points", np.zeros((3, 2), np.float32)),
        change("points", np.full((30, 2), np.nan, np.float32)),
        change("ids", np.arange(3)),
        change("labels", np.full(30, -1)),
        change("labels", None),
        change("neighbors", np.full((30, 3), 30)),
        change("cosine_labels", np.arange(2)),
        change("cosines", np.zeros((30, 2), np.float32)),
        change("target", np.zeros((2, 2), np.float32)),
        change("target", None),
        change("plan_items", np.array(0)),
        change("plan_items", None),
    ],
)
def test_rejects_arrays_that_do_not_fit_together(damage, make_run, tmp_path) -> None:
    run = make_run()
    write_npz(run.samples_path, damage(run.page_arrays()))
    with raises_usage_error("run.corrupt", "samples.npz"):
        report([run], out=tmp_path / "page.html")


@pytest.mark.parametrize(
    "damage",
    [
        change("intervals", {"trained": {"knn": {"low": 0.1}}}),
        change("intervals", {"trained": {"knn": {"low": 0.1, "high": None}}}),
        change("differences", {"raw": {"knn": {"low": 0.1, "high": 0.2}}}),
        change("differences", {"raw": {"knn": {"value": None, "low": 0.1, "high": 0.2}}}),
    ],
)
def test_rejects_evaluations_without_numbers(damage, make_run, tmp_path) -> None:
    run = make_run()
    write_json(run.evaluation_path, damage(run.evaluation()))
    with raises_usage_error("run.corrupt", "evaluation.json"):
        report([run], out=tmp_path / "page.html")
