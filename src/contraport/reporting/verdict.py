"""Verdict of the report: sentences that the confidence intervals of the runs support."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from itertools import permutations

from contraport._utils.formatting import join_names
from contraport.metrics import Metric, titles_by_metric_name
from contraport.metrics.intervals import Difference
from contraport.metrics.registry import BASELINES
from contraport.reporting.metric_tables import compare_settings, evaluated_metrics
from contraport.reporting.page_builder import PageBuilder, Section
from contraport.reporting.report_run import ReportRun
from contraport.training.config import RECORDED_OPTIONS

NUM_HEADLINES = 2
"""Number of metrics on which runs are compared in words; the table has all of them."""

MAX_NAMED = 6
"""Number of runs or settings that a sentence lists."""

FEW_TEST_ITEMS = 2_000
"""Below this number of test items the verdict states the weight of one."""

_HEADLINE_GROUPS = ("accuracy", "retrieval", "clustering")


def build_verdict(builder: PageBuilder) -> Section | None:
    """Build the section of the verdict; None without a sentence."""
    sentences = write_verdict(builder.runs)
    return Section("verdict", "Verdict", {"sentences": sentences}) if sentences else None


def write_verdict(runs: Sequence[ReportRun]) -> list[str]:
    """Return the sentences of the verdict: comparisons first, then settings and items to inspect."""
    sentences = compare_evaluations(runs)
    if len(runs) > 1:
        sentences += _settings_that_differ(runs)
    sentences += [_mismatch_rate(run) for run in runs if run.pairs is not None]
    if any("mistaken" in (run.samples or {}) for run in runs):
        sentences.append("The most confident errors of the linear probe are listed under Confusion.")
    return sentences


def compare_evaluations(runs: Sequence[ReportRun]) -> list[str]:
    """Compare runs with each other and with the baselines; only runs on the same test items are compared."""
    sentences: list[str] = []
    evaluated = [run for run in runs if run.evaluation is not None]
    test_sets = dict.fromkeys(run.evaluated_on for run in evaluated)
    for data, items in test_sets:
        group = [run for run in evaluated if run.evaluated_on == (data, items)]
        headlines = _headline_metrics(group)
        if len(group) == 1:
            sentences += [_one_run(metric, group[0]) for metric in headlines]
        else:
            sentences += [_best_run(metric, group) for metric in headlines]
            sentences += _missing_intervals(group, headlines)
            sentences += _count_of_metrics(group)
            sentences += _simultaneous(group)
            sentences += [sentence for metric in headlines for sentence in _runs_against_baselines(metric, group)]
        sentences += _weight_of_an_item(items, f" of {data}" if len(test_sets) > 1 else "", headlines)
    return sentences + _different_test_sets(test_sets)


def _different_test_sets(test_sets: Iterable[tuple[str, int | None]]) -> list[str]:
    sizes: dict[str, list[int]] = {}
    for data, items in test_sets:
        sizes.setdefault(data, []).extend([] if items is None else [items])
    return [
        f"On {data} the numbers of test items differ ({join_names([f'{size:,}' for size in of])}); only runs with "
        "equal numbers are compared."
        for data, of in sizes.items()
        if len(of) > 1
    ]


def _headline_metrics(runs: Sequence[ReportRun]) -> list[Metric]:
    """Return metrics that all runs have: accuracies with labels, else retrieval, else clustering.

    If the data have several views, one metric of cross-view retrieval is added to accuracies, as the training
    optimizes it.
    """
    metrics = [metric for metric in evaluated_metrics(runs) if metric.better != "neither"]
    for group in _HEADLINE_GROUPS:
        in_group = [m for m in metrics if m.group == group and all(run.value(m.key) is not None for run in runs)]
        if in_group:
            directions = [way for run in runs for way in (run.evaluation or {}).get("directions", {}).values()]
            complete = len(directions) >= len(runs) and group == "accuracy"
            cross = [metric for metric in metrics if complete and all(metric.key in way for way in directions)]
            return in_group[:NUM_HEADLINES] + cross[:1]
    return []


def _best_run(metric: Metric, runs: Sequence[ReportRun]) -> str:
    """Name the best run and the runs that do not differ significantly from it."""
    ranked = sorted(runs, key=lambda run: run.value(metric.key) or 0.0, reverse=metric.better == "higher")
    best, others = ranked[0], ranked[1:]
    name = _in_sentence(metric)
    differences = {run.name: best.difference(run, metric.key) for run in others}
    known = {run: difference for run, difference in differences.items() if difference is not None}
    if len(known) < len(differences):
        end = "highest" if metric.better == "higher" else "lowest"
        return f"{best.name} has the {end} value on {name}, {_format_value(best, metric)}; no interval is known."
    if len(others) == 1:
        ((other, difference),) = known.items()
        size = _format_difference(metric, difference)
        high, low = (_format_value(run, metric) for run in ranked)
        if difference.is_significant:
            return f"{best.name} is better than {other} on {name}, {high} against {low}: by {size}."
        return f"{best.name} and {other} do not differ significantly on {name}, {high} and {low}: {size}."
    level = [run for run, difference in known.items() if not difference.is_significant]
    behind = [run for run, difference in known.items() if difference.is_significant]
    if not level:
        lead = _format_difference(metric, known[others[0].name])
        return f"{best.name} is the best on {name}, ahead of the next by {lead}."
    if not behind:
        return f"On {name} none of the {len(runs)} runs differs significantly from the best, {best.name}."
    rest = join_names(behind) if len(behind) <= MAX_NAMED else f"{len(behind)} others"
    all_ahead = all(
        (gain := _gain(metric, run, other)) is not None and gain.low > 0
        for run in others
        if run.name in level
        for other in others
        if other.name in behind
    )
    ahead = "they are" if all_ahead else f"{best.name} is"
    return f"On {name} {join_names([best.name, *level])} do not differ significantly; {ahead} ahead of {rest}."


def _missing_intervals(runs: Sequence[ReportRun], headlines: Sequence[Metric]) -> list[str]:
    """Return the command that evaluates runs together, if they were evaluated separately."""
    pairs = permutations(runs, 2)
    together = all(one.difference(other, metric.key) for one, other in pairs for metric in headlines)
    paths = " ".join(shlex.quote(run.path) for run in runs)
    return [] if together else [f"For intervals of differences, evaluate them together: contraport evaluate {paths}"]


def _count_of_metrics(runs: Sequence[ReportRun]) -> list[str]:
    """Count the metrics on which each of two runs is significantly better; Recall@1 and Recall@5 count once."""
    if len(runs) != 2:
        return []
    one, other = runs
    gains = {
        metric: gain
        for metric in evaluated_metrics(runs)
        if metric.better != "neither" and (gain := _gain(metric, one, other)) is not None
    }
    titles = titles_by_metric_name(gains)
    if len(titles) <= NUM_HEADLINES:
        return []
    # A family with significant gains of both signs counts for neither run.
    signs: dict[str, set[bool]] = {family: set() for family in titles}
    for metric, gain in gains.items():
        if gain.is_significant:
            signs[metric.key.partition("@")[0]].add(gain.value > 0)
    better = {
        run: [_lower_first(titles[family]) for family in titles if signs[family] == {sign}]
        for run, sign in ((one.name, True), (other.name, False))
    }
    if not any(better.values()):
        return [f"On none of {len(titles)} metrics is one of the two significantly better."]
    parts = [
        f"{run} is significantly better on {len(of)} ({join_names(of)})" if of else f"{run} on none"
        for run, of in sorted(better.items(), key=lambda part: -len(part[1]))
    ]
    return [f"Of {len(titles)} metrics {parts[0]}, {parts[1]}."]


def _simultaneous(runs: Sequence[ReportRun]) -> list[str]:
    pairs = max((run.evaluation or {}).get("pairs_of_runs", 0) for run in runs)
    return [f"The intervals between runs hold simultaneously for all {pairs} pairs."] if pairs > 1 else []


def _one_run(metric: Metric, run: ReportRun) -> str:
    """Compare one run with the baselines."""
    better, worse, neither = [], [], []
    for row, title in BASELINES.items():
        gain = _gain(metric, run, row)
        if gain is None:
            continue
        if gain.low > 0:
            better.append(f"than {title}, by {_format_gain(metric, gain)}")
        elif gain.high < 0:
            worse.append(f"than {title}, by {_format_gain(metric, _negate(gain))}")
        else:
            neither.append(f"{title}, {_format_gain(metric, gain)}")
    parts = [f"significantly better {', and '.join(better)}"] if better else []
    parts += [f"significantly worse {', and '.join(worse)}"] if worse else []
    parts += [f"not significantly different from {', nor from '.join(neither)}"] if neither else []
    value = f"{run.name} has {_format_value(run, metric)} on {_in_sentence(metric)}"
    return f"{value}: {'; '.join(parts)}." if parts else f"{value}."


def _runs_against_baselines(metric: Metric, runs: Sequence[ReportRun]) -> Iterator[str]:
    """Yield the baselines that all runs beat or lose to, that some beat, and that none does.

    Among the gains of several baselines the weakest statement is given: the smallest gain or loss of all, or the
    largest gain if none is significant.
    """
    every, none = ("Both runs are", "Neither run is") if len(runs) == 2 else ("All runs are", "No run is")
    name = _in_sentence(metric)
    better, worse, neither = [], [], []
    for row, title in BASELINES.items():
        gains = {run.name: gain for run in runs if (gain := _gain(metric, run, row)) is not None}
        if len(gains) < len(runs):
            continue
        behind = [gain for gain in gains.values() if gain.high < 0]
        not_ahead = [run for run, gain in gains.items() if not gain.low > 0]
        if not not_ahead:
            better.append((title, min(gains.values())))
        elif len(behind) == len(runs):
            worse.append((title, min(map(_negate, behind))))
        elif len(not_ahead) == len(runs) and not behind:
            neither.append((title, max(gains.values())))
        else:
            sizes = [f"{run} by {_format_gain(metric, gains[run])}" for run in not_ahead[:MAX_NAMED]]
            yield f"On {name} not all runs are significantly better than {title}: {'; '.join(sizes)}."
    for lead, kind, joint, end, entries in (
        (f"{every} significantly better", "smallest gain", " and ", min, better),
        (f"{every} significantly worse", "smallest loss", " and ", min, worse),
        (f"{none} significantly better", "largest gain", " or ", max, neither),
    ):
        if entries:
            titles = joint.join(title for title, _ in entries)
            size = _format_gain(metric, end(difference for _, difference in entries))
            yield f"{lead} than {titles} on {name}; the {kind} is {size}."


def _weight_of_an_item(items: int | None, of_data: str, headlines: Sequence[Metric]) -> list[str]:
    if items is None or items >= FEW_TEST_ITEMS or not any(metric.in_percent for metric in headlines):
        return []
    return [f"1 of the {items:,} test items{of_data} = {100 / items:.2g} points; smaller differences are noise."]


def _mismatch_rate(run: ReportRun) -> str:
    assert run.pairs is not None
    rate, low, high = (100 * float(run.pairs[name]) for name in ("rate", "low", "high"))
    return (
        f"An estimated {rate:.1f}% ({low:.1f} to {high:.1f}) of the {len(run.pairs['scores']):,} pairs of {run.name} "
        "are mismatched; the audit below lists the 10 with the lowest scores."
    )


def _settings_that_differ(runs: Sequence[ReportRun]) -> list[str]:
    # Options of the machine, such as the number of threads, are not a difference between methods.
    machine = {name for name, option in RECORDED_OPTIONS.items() if option.scope == "machine"}
    differing = [(key, values) for key, values, differs in compare_settings(runs) if differs and key not in machine]
    if not differing:
        return ["The runs have the same settings."]
    named = [f"{key} ({'; '.join(values)})" for key, values in differing[:MAX_NAMED]]
    further = len(differing) - len(named)
    return [f"The runs differ in {join_names(named)}{f', and in {further} further settings' if further else ''}."]


def _gain(metric: Metric, run: ReportRun, other: str | ReportRun) -> Difference | None:
    """Return the difference of a run from a baseline or another run, positive if the run is better."""
    difference = run.difference(other, metric.key)
    return difference if difference is None or metric.better == "higher" else _negate(difference)


def _negate(gain: Difference) -> Difference:
    return Difference(-gain.value, -gain.high, -gain.low)


def _format_difference(metric: Metric, difference: Difference) -> str:
    """Format the difference of the best run, positive for either direction of the metric."""
    return _format_gain(metric, difference if metric.better == "higher" else _negate(difference))


def _format_gain(metric: Metric, gain: Difference) -> str:
    """Format a gain with its interval, in percentage points for shares; ``z`` avoids a negative zero."""
    if metric.in_percent:
        return f"{100 * gain.value:z.1f} points ({100 * gain.low:z.1f} to {100 * gain.high:z.1f})".replace("-", "−")
    return f"{gain.value:z.3f} ({gain.low:z.3f} to {gain.high:z.3f})".replace("-", "−")


def _format_value(run: ReportRun, metric: Metric) -> str:
    value = run.value(metric.key)
    assert value is not None  # headline metrics were evaluated for every run
    return metric.format(value).replace("-", "−")


def _in_sentence(metric: Metric) -> str:
    """Return a metric's title within a sentence, such as "the linear probe", "kNN" or "recall@1"."""
    title = _lower_first(metric.title)
    return title if title == metric.title or title[-1].isdigit() else f"the {title}"


def _lower_first(title: str) -> str:
    """Lower the first letter of a title unless it is an acronym.

    >>> _lower_first("Linear probe"), _lower_first("kNN"), _lower_first("NMI")
    ('linear probe', 'kNN', 'NMI')
    """
    return f"{title[0].lower()}{title[1:]}" if title[1:2].islower() else title
