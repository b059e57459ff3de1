"""Page of a comparison: summary, panels, figure, tables, and the page in a browser."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from tests.accessible import accessibility_faults
from tests.browser import CHROMIUM, Browser

from contraport.comparison.comparison_result import Comparison
from contraport.comparison.page import (
    build_column_panels,
    plot_first_metric,
    render_comparison_page,
    save_figure_if_any_mean,
)
from contraport.comparison.statistics_and_verdicts import ClaimVerdict, TableEntry
from contraport.comparison.summary_sentences import summarize_first_metric
from contraport.metrics.intervals import Difference, Interval
from contraport.plots.figure_setup import SERIES_COLORS

ATTACK = "<img src=x onerror=\"document.title='owned'\">"
COLUMNS = ["digits, standard", "x" * 80]
ROWS = ["nt-xent", "gca-uot", ATTACK, "failed"]


def entry(row: str, column: str, measure: str) -> TableEntry:
    mean = None if row == "failed" else 0.9 + 0.01 * ROWS.index(row)
    interval = None if mean is None else Interval(mean - 0.01, mean + 0.01)
    difference = None if mean is None or row == "nt-xent" else Difference(mean - 0.9, mean - 0.915, mean - 0.885)
    why = "the loss is not finite" if mean is None else None
    return TableEntry(row, column, measure, 2 if mean else 0, mean, interval, difference, 1.5 if mean else None, why)


def comparison(folder: Path) -> Comparison:
    entries = [entry(row, column, key) for key in ("knn", "uniformity") for column in COLUMNS for row in ROWS]
    claim = ClaimVerdict(
        f"{ATTACK} is better", "held", "knn", {"gca-uot on digits, standard": Difference(0.01, 0.005, 0.015)}
    )
    trial = {"row": "gca-uot", "column": COLUMNS[0], "trial": 1, "settings": "relaxation 0.2", "value": "93.1"}
    return Comparison(
        title="Three objectives",
        folder=folder,
        baseline="nt-xent",
        rows=ROWS,
        columns=COLUMNS,
        entries=entries,
        claim_verdicts=[claim],
        reference_metrics={"raw inputs": {column: {"knn": 0.8, "uniformity": -1.0} for column in COLUMNS}},
        search_trials=[trial | {"chosen": True}],
        notes=["Two seeds."],
    )


def test_heading_is_the_summary_of_a_single_column(tmp_path: Path) -> None:
    several = comparison(tmp_path)
    column = several.columns[0]
    single = replace(several, columns=[column], entries=[one for one in several.entries if one.column_name == column])
    (summary,) = single.column_summaries
    first_sentence = summarize_first_metric(single, column)
    assert summary.startswith(first_sentence)
    assert "Of 2 metrics" in summary.removeprefix(first_sentence)
    for rendered, heading, heading_sentence in ((single, first_sentence, first_sentence), (several, several.title, "")):
        html = render_comparison_page(rendered, [])
        (result,) = re.findall(r"<h1[^>]*>(.*?)</h1>", html, re.DOTALL)
        assert unescape(" ".join(re.sub("<[^>]*>", "", result).split())) == heading
        text = unescape(" ".join(re.sub("</?(span|li|p)[^>]*>", "", html).split()))
        rest = [sentence.removeprefix(heading_sentence).strip() for sentence in rendered.column_summaries]
        assert [text.count(sentence) for sentence in rest] == [1] * len(rest)
        assert rendered.title in text


def test_deprecated_names_of_a_comparison(tmp_path: Path) -> None:
    table = comparison(tmp_path)
    with pytest.warns(FutureWarning):
        assert (table.trials, table.verdicts, table.missing) == (table.search_trials, table.claim_verdicts, 0)
    with pytest.warns(FutureWarning, match="find_entry"):
        assert table.entry("nt-xent", COLUMNS[0], "knn").mean == 0.9
    with pytest.warns(FutureWarning, match="table_header_row"):
        assert table.headings == table.table_header_row
    metric = table.metrics[0]
    with pytest.warns(FutureWarning, match="rows_with_best_mean"):
        assert table.best_rows(COLUMNS[0], metric) == table.rows_with_best_mean(COLUMNS[0], metric)


def test_panels_span_all_intervals(tmp_path: Path) -> None:
    first, _ = build_column_panels(comparison(tmp_path))
    assert (first["heading"], first["low"], first["high"]) == (COLUMNS[0], "89.0%", "93.0%")
    assert [line["row"] for line in first["lines"]] == ROWS[:3], "expected no line for the failed row"
    assert [first["lines"][0][key] for key in ("start", "length", "mean")] == [0, 50, 25]
    assert [first["lines"][2][key] for key in ("start", "length")] == [50, 50]
    assert first["baseline"] == 25
    assert [line["is_significant"] for line in first["lines"]] == [False, False, True]
    nothing = Comparison("x", tmp_path, "a", ["a"], ["b"], [])
    assert build_column_panels(nothing) == []
    assert "<h2" in render_comparison_page(nothing, [])
    (alone,) = build_column_panels(Comparison("x", tmp_path, "a", ["a"], ["b"], [cell("a", "b", 0.9)]))
    assert [alone["lines"][0][key] for key in ("start", "length", "mean")] == [0, 0, 0]


def cell(row: str, column: str, mean: float | None, interval: Interval | None = None) -> TableEntry:
    return TableEntry(row, column, "knn", 1, mean, interval, None, None, None)


def test_figure_draws_each_mean_and_interval(tmp_path: Path) -> None:
    rows, columns = ["base", "more", "unsure", "failed"], [f"data, {place}" for place in range(5)]
    means_and_intervals = {
        "base": (0.9, Interval(0.88, 0.92)),
        "more": (0.95, Interval(0.94, 0.97)),
        "unsure": (0.8, None),
    }
    cells = [cell(row, column, *means_and_intervals.get(row, (None,))) for row in rows for column in columns]
    figure = plot_first_metric(Comparison("", tmp_path, "base", rows, columns, cells))
    assert [panel.get_visible() for panel in figure.axes] == [True] * 5 + [False] * 3
    assert figure.axes[0].get_ylim() == (3.5, -0.5), "expected the first row at the top"
    drawn = [(*line.get_xdata(), *line.get_ydata(), line.get_color()) for line in figure.axes[4].lines]
    base, other = SERIES_COLORS[1], SERIES_COLORS[0]
    for result, expected in zip(
        drawn,
        [
            (88, 92, 0, 0, base),
            (90, 0, base),
            (90, 90, 0, 1, base),  # across all rows
            (94, 97, 1, 1, other),
            (95, 1, other),
            (80, 80, 2, 2, other),
            (80, 2, other),
        ],
        strict=True,
    ):
        assert result[:-1] == pytest.approx(expected[:-1])
        assert result[-1] == expected[-1]
    save_figure_if_any_mean(
        Comparison("", tmp_path, "failed", rows[3:], columns[:1], cells[15:16]), tmp_path / "plot.png"
    )
    assert not (tmp_path / "plot.png").exists(), "expected no figure without means"


def test_page_tables_mark_the_best_row(tmp_path: Path) -> None:
    """Metrics where higher is better, where lower is better, and without direction."""
    means = {"knn": (0.9, 0.7, 0.8), "uniformity": (-2.0, -1.0, -3.0), "tolerance": (0.1, 0.2, 0.3)}
    worse = Difference(-0.2, -0.3, -0.1)
    entries = [
        TableEntry(row, "data, standard", measure, 2, mean, None, worse if row == "b" else None, 1.0, None)
        for measure, means_by_row in means.items()
        for row, mean in zip("abc", means_by_row, strict=True)
    ]
    html = render_comparison_page(Comparison("", tmp_path, "a", list("abc"), ["data, standard"], entries), [])
    rows = re.findall(r'<tr[^>]*><th scope="row">(\w).*?</tr>', html.replace("\n", " "))
    best_rows = [name for name, row in zip(rows, re.findall(r"<tr[^>]*><th scope=\"row\">.*?</tr>", html), strict=True)
              if 'class="best"' in row]  # fmt: skip
    assert rows == [*"abc", *"abc", *"abc"]
    assert best_rows == ["a", "c"], "expected marks for kNN and uniformity only"
    assert html.count("▼</span>") == 3, "expected a mark of row b in each table"
    assert "Bold: the best mean of the objectives in a column" in html


def test_page_tables_show_training_seconds(tmp_path: Path) -> None:
    html = render_comparison_page(comparison(tmp_path), [])
    assert html.count("<td>1.5</td>") == 6


def test_figure_shows_full_names(tmp_path: Path) -> None:
    rows = [
        "info-nce",
        "gca-uot:relaxation=0.2,temperature=0.1,iterations=5,marginals=weights, batch_size 256",
        "$x^{$",
    ]
    columns = ["digits, standard", f"{'a-long-name-of-data-' * 4}.npz, strong+mismatched:0.2"]
    cells = [
        TableEntry(row, column, "knn", 2, 0.9, Interval(0.8, 1.0), None, 1.0, None)
        for row in rows
        for column in columns
    ]
    figure = plot_first_metric(Comparison("", tmp_path, rows[0], rows, columns, cells))
    figure.savefig(tmp_path / "plot.png")
    names = [*figure.axes[0].get_yticklabels(), *(panel.title for panel in figure.axes)]
    messages = [name.get_text().replace("\n", "").replace(" ", "").replace("\\$", "$") for name in names]
    assert messages == [name.replace(" ", "") for name in (*rows, *columns)]
    places = [name.get_window_extent() for name in names]
    assert all(place.x0 >= 0 and place.x1 <= figure.bbox.width and place.y1 <= figure.bbox.height for place in places)
    assert not any(one.overlaps(other) for one, other in itertools.combinations(places, 2))


def test_page_shows_units(tmp_path: Path) -> None:
    heads = [
        re.sub("<[^>]*>", "", head)
        for head in re.findall("<h3>(.*?)</h3>", render_comparison_page(comparison(tmp_path), []))
    ]
    assert [head.replace("&nbsp;", " ") for head in heads if head.startswith(("kNN", "Uni"))] == [
        "kNN, % ↑",
        "Uniformity, logarithm ↓",
    ]


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium or google-chrome on PATH")
def test_page_is_accessible_on_a_phone(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(
        render_comparison_page(comparison(tmp_path), ["contraport train --data digits"]), "utf-8"
    )
    with Browser(tmp_path / "profile", width=390, height=800) as browser:
        browser.open(tmp_path / "page.html")
        assert browser.messages == []
        assert browser.evaluate("document.title") == "Three objectives"
        assert browser.evaluate("document.documentElement.scrollWidth") == 390
        hints = "[...document.querySelectorAll('.scroll')].every((box) => box.previousElementSibling.hidden ==="
        assert browser.evaluate(f"{hints} (box.scrollWidth <= box.clientWidth))")
        browser.resize(1200, 900)
        assert accessibility_faults(browser) == []
