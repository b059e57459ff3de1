"""Tables of the console: complete words in narrow terminals, names, groups and differences."""

from pathlib import Path

import numpy as np
import pytest

from contraport.cli.result_printers import (
    print_clusters,
    print_comparison,
    print_duplicate_groups,
    print_neighbors,
    print_table,
)
from contraport.comparison.comparison_result import Comparison
from contraport.comparison.statistics_and_verdicts import TableEntry
from contraport.evaluation.evaluation_results import (
    metric_rows_of_encoders,
    metric_rows_of_run_difference,
    metric_rows_with_baselines,
)
from contraport.metrics import METRICS
from contraport.metrics.intervals import Difference, Interval
from contraport.similarity_search.cluster import Cluster, Clusters
from contraport.similarity_search.duplicates import DuplicateGroup, DuplicatesResult
from contraport.similarity_search.neighbors import NearestItems, Neighbor


def test_no_word_is_cut_at_eighty_columns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    measures = [one for row in METRICS.values() for one in row.expand_default_numbers()]
    values = {measure.key: 0.987 for measure in measures}
    columns = dict.fromkeys(("raw pixels", "untrained encoder", "nt-xent", "gca-uot"), values)
    print_table("a title", metric_rows_of_encoders(columns))
    printed = capsys.readouterr().out
    assert "…" not in printed
    for measure in measures:
        assert all(word in printed for word in measure.title.split())
    assert max(map(len, printed.splitlines())) <= 80


@pytest.mark.parametrize("width", range(75, 90))
def test_headings_wrap_before_the_widest_column_is_cut(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    names = [f"photos/box/{number:03}.png" for number in (30, 33, 38)]
    print_table("clusters", [{"cluster": "0", "items": "40", "largest class": "box", "nearest": ", ".join(names)}])
    printed = capsys.readouterr().out
    assert all(name in printed for name in names)
    assert max(map(len, printed.splitlines())) <= width


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_long_names_are_not_cut(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    path = f"/data/{'x' * 90}/picture.png"
    print_table("the nearest", [{"similarity": "0.9", "item": path, "class": "a class of some words"}])
    printed = capsys.readouterr().out
    assert path in printed
    assert "a class of some words" in printed
    names = [f"/photos/holiday/2019/img_{number:04}.jpg" for number in range(4)]
    print_table("clusters", [{"cluster": "1", "largest class": "an old sneaker", "nearest": ", ".join(names)}])
    printed = capsys.readouterr().out
    assert all(name in printed for name in names)
    assert "an old sneaker" in printed
    if columns >= 80:
        assert max(map(len, printed.splitlines())) <= columns


def test_a_position_is_not_called_a_row_of_the_source(capsys: pytest.CaptureFixture[str]) -> None:
    result = NearestItems([Neighbor(3, "train row 41", 0.9, None)], "a red <bag>")
    print_neighbors(result)
    print_duplicate_groups([DuplicateGroup((3, 4), ("train row 41", "test row 3"))])
    printed = capsys.readouterr().out
    assert "similarity position item" in printed
    assert printed.startswith("nearest to 'a red <bag>'\n")
    assert "nearest to &#x27;a red &lt;bag&gt;&#x27;" in result._repr_html_()
    assert NearestItems([], "x")._repr_html_() == "no other items"
    assert "train row 41 (position 3)" in printed
    assert printed.count("row") == 3  # rows of the source only


def test_shows_the_first_items_of_the_largest_groups(capsys: pytest.CaptureFixture[str]) -> None:
    groups = [DuplicateGroup(tuple(range(size)), tuple(f"item {place}" for place in range(size))) for size in (317, 2)]
    print_duplicate_groups(DuplicatesResult([*groups, *[groups[1]] * 40], 400))
    lines = capsys.readouterr().out.splitlines()
    assert lines[5:8] == ["    item 4 (position 4)", "    ... and 312 more", "group 2: 2 items"]
    assert lines[-2] == "... and 22 more groups"
    assert "357 items" in lines[-1]
    assert "--out" in lines[-1]
    assert len(lines) == 7 + 19 * 3 + 2
    print_duplicate_groups(DuplicatesResult([groups[1]], 400))
    assert "--out" not in capsys.readouterr().out


def test_a_notebook_shows_clusters_as_the_console_does(capsys: pytest.CaptureFixture[str]) -> None:
    result = Clusters(np.array([0, 1, 0]), (Cluster(2, ("a <b>", "c"), "cat", 1), Cluster(1, ("d",), None)))
    print_clusters(result)
    printed = capsys.readouterr().out
    assert printed.startswith("2 clusters of 3 items\n")
    table = result._repr_html_()
    for text in ("2 clusters of 3 items", "largest class", "cat (1 of 2)", "a &lt;b&gt;; c", ">d<"):
        assert text in table


@pytest.mark.parametrize("before", ["untrained", "given"])
def test_a_baseline_without_values_has_no_column(before: str) -> None:
    rows = {"raw": {"recall@1": None}, before: {"recall@1": 0.0}, "trained": {"recall@1": 0.4}}
    for rows_by_encoder in (rows, {**rows, "raw": {}}, {key: rows[key] for key in (before, "trained")}):
        (row,) = metric_rows_with_baselines({"rows": rows_by_encoder, "intervals": {"trained": {}}})
        assert list(row) == ["metric", before, "trained", "(95% interval)"]


def test_differences_of_percentages_are_in_points() -> None:
    difference = {"value": 0.013, "low": -0.004, "high": 0.03}
    assert metric_rows_of_run_difference({"knn": difference, "nmi": difference}) == [
        {"metric": "kNN", "difference": "1.3 points", "95% interval": "-0.4 to 3.0"},
        {"metric": "NMI", "difference": "0.013", "95% interval": "-0.004 to 0.030"},
    ]


NAMES = ["[/x]1", "[red]x[/red]", ":cat:", "[link=file:///]y", "\\[z"]


def test_markup_in_names_is_printed_verbatim(capsys: pytest.CaptureFixture[str]) -> None:
    """Names may look like markup of the console."""
    print_table("names", [{"[b]name": name, "items": "1"} for name in NAMES])
    printed = capsys.readouterr().out
    for text in ("[b]name", *NAMES):
        assert f"{text} " in printed


def test_comparison_prints_the_differences_from_the_baseline(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    interval, difference = Interval(0.8, 0.9), Difference(-0.004, -0.015, 0.006)
    rows = {"base": None, "other": difference, "failed": None}
    entries = [
        TableEntry(row, "on", "knn", 2, 0.85, interval, row_difference, 1.0, None)
        for row, row_difference in rows.items()
    ]
    print_comparison(Comparison("", tmp_path, "base", list(rows), ["on"], entries))
    _, printed = capsys.readouterr().out.split("difference from base")
    table = [line.split() for line in printed.splitlines()]
    assert ["other", "−0.4", "points", "(−1.5", "to", "+0.6)"] in table
    assert ["failed", "—"] in table
    assert not any(words[:1] == ["base"] for words in table)
