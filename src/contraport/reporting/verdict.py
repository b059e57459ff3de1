"""The verdict: what the numbers of the runs allow to be said in words, and no more than their intervals allow."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from itertools import permutations

from contraport._utils.formatting import join_names
from contraport.metrics import Metric, family_titles
from contraport.metrics.intervals import Difference
from contraport.metrics.registry import BASELINES
from contraport.reporting.numbers import measured, settings
from contraport.reporting.report_run import ReportRun
from contraport.training.config import KEPT

HEADLINES = 2
"""On how many measures runs are judged in words; the table has the others."""

MOST_NAMED = 6
"""Of so many settings that differ the verdict gives the values."""

FEW_TEST_ITEMS = 2_000
"""Below so many test items it is said what one of them is worth."""

_GROUPS = ("accuracy", "retrieval", "clustering")


def verdict(runs: Sequence[ReportRun]) -> list[str]:
    """Return what can be said of the runs, a sentence each, those first that tell runs apart."""
    told = compare_evaluations(runs)
    if len(runs) > 1:
        told += _what_differs(runs)
    told += [_of_pairs(run) for run in runs if run.pairs is not None]
    if any("mistaken" in (run.samples or {}) for run in runs):
        told.append("Look first at the test items that the probe mistakes most surely: they are under its mistakes.")
    return told


def compare_evaluations(runs: Sequence[ReportRun]) -> list[str]:
    """Return which runs and baselines are better and which worse, a sentence each, by the runs' evaluations."""
    told: list[str] = []
    evaluated = [run for run in runs if run.evaluation is not None]
    evaluated_on = dict.fromkeys(run.evaluated_on for run in evaluated)
    for data, items in evaluated_on:
        of_data = [run for run in evaluated if run.evaluated_on == (data, items)]
        headlines = _headlines(of_data)
        if len(of_data) == 1:
            told += [_alone(measure, of_data[0]) for measure in headlines]
        else:
            told += [_between(measure, of_data) for measure in headlines]
            told += _measured_apart(of_data, headlines)
            told += _over_all(of_data)
            told += _at_once(of_data)
            told += [sentence for measure in headlines for sentence in _beside_baselines(measure, of_data)]
        told += _worth_of_an_item(items, f" of {data}" if len(evaluated_on) > 1 else "", headlines)
    return told + _judged_apart(evaluated_on)


def _judged_apart(evaluated_on: Iterable[tuple[str, int | None]]) -> list[str]:
    """Say of which data runs were judged on different numbers of test items, so that these runs are not compared."""
    sizes: dict[str, list[int]] = {}
    for data, items in evaluated_on:
        sizes.setdefault(data, []).extend([] if items is None else [items])
    return [
        f"On {data} the runs were judged on {join_names([f'{size:,}' for size in of])} test items: those of different "
        "numbers are not compared."
        for data, of in sizes.items()
        if len(of) > 1
    ]


def _headlines(runs: Sequence[ReportRun]) -> list[Metric]:
    """Return the measures to judge by: accuracies where there are labels, else retrieval, else clusters.

    Where the data give several views, one of retrieval comes beside accuracies, as this is what was trained for.
    """
    known = [measure for measure in measured(runs) if measure.better != "neither"]
    for group in _GROUPS:
        of_group = [m for m in known if m.group == group and all(_value(run, m.key) is not None for run in runs)]
        if of_group:
            return of_group[:HEADLINES] + (_of_views(runs, known) if group == "accuracy" else [])
    return []


def _of_views(runs: Sequence[ReportRun], known: Sequence[Metric]) -> list[Metric]:
    """Return the first measure of retrieval that all of some runs have from one given view to another."""
    ways = [way for run in runs for way in (run.evaluation or {}).get("directions", {}).values()]
    return [measure for measure in known if len(ways) >= len(runs) and all(measure.key in way for way in ways)][:1]


def _between(measure: Metric, runs: Sequence[ReportRun]) -> str:
    ranked = sorted(runs, key=lambda run: _value(run, measure.key) or 0.0, reverse=measure.better == "higher")
    best, others = ranked[0], ranked[1:]
    apart = {run.name: best.difference(run, measure.key) for run in others}
    if any(found is None for found in apart.values()):
        end = "highest" if measure.better == "higher" else "lowest"
        return f"{best.name} has the {end} value on {_name(measure)}, {_written(best, measure)}; how sure is not known."
    known = {name: found for name, found in apart.items() if found is not None}
    if len(others) == 1:
        ((name, found),) = known.items()
        size = _size(measure, found)
        more, less = (_written(run, measure) for run in ranked)
        if found.is_significant:
            return f"{best.name} is better than {name} on {_name(measure)}, {more} against {less}: by {size}."
        return f"{best.name} and {name} cannot be told apart on {_name(measure)}, {more} and {less}: {size}."
    level = [name for name, found in known.items() if not found.is_significant]
    behind = [name for name, found in known.items() if found.is_significant]
    if not level:
        ahead = _size(measure, known[others[0].name])
        return f"{best.name} is the best on {_name(measure)}, ahead of the next by {ahead}."
    if not behind:
        return f"On {_name(measure)} none of the {len(runs)} runs can be told from the best, {best.name}."
    others_behind = join_names(behind) if len(behind) <= MOST_NAMED else f"{len(behind)} others"
    beside = [run for run in others if run.name in level]
    all_ahead = all(
        (gain := _gain(measure, run, other)) is not None and gain.low > 0
        for run in beside
        for other in others
        if other.name in behind
    )
    ahead = "they are" if all_ahead else f"{best.name} is"
    return (
        f"On {_name(measure)} {join_names([best.name, *level])} cannot be told apart; {ahead} ahead of {others_behind}."
    )


def _measured_apart(runs: Sequence[ReportRun], headlines: Sequence[Metric]) -> list[str]:
    """Return how runs are measured on the same items, where they were not."""
    pairs = permutations(runs, 2)
    together = all(one.difference(other, measure.key) for one, other in pairs for measure in headlines)
    paths = " ".join(shlex.quote(run.path) for run in runs)
    return [] if together else [f"To know how sure that is, measure all together: contraport evaluate {paths}"]


def _over_all(runs: Sequence[ReportRun]) -> list[str]:
    """Return on how many measures each of two runs is surely better; those that differ in a number alone are one."""
    if len(runs) != 2:
        return []
    one, other = runs
    gains = {
        measure: gain
        for measure in measured(runs)
        if measure.better != "neither" and (gain := _gain(measure, one, other)) is not None
    }
    names = family_titles(gains)
    if len(names) <= HEADLINES:
        return []
    apart: dict[str, set[bool]] = {name: set() for name in names}  # of each which signs its sure gains have
    for measure, gain in gains.items():
        if gain.is_significant:
            apart[measure.key.partition("@")[0]].add(gain.value > 0)
    better = {
        run: [_spoken(names[name]) for name in names if apart[name] == {sign}]
        for run, sign in ((one.name, True), (other.name, False))
    }
    if not any(better.values()):
        return [f"On none of {len(names)} kinds of measures is one of the two surely better."]
    parts = [
        f"{run} is surely better on {len(of)} ({join_names(of)})" if of else f"{run} on none"
        for run, of in sorted(better.items(), key=lambda part: -len(part[1]))
    ]
    return [f"Of {len(names)} kinds of measures {parts[0]}, {parts[1]}."]


def _at_once(runs: Sequence[ReportRun]) -> list[str]:
    """Say for how many pairs of runs the intervals hold together, where there is more than one."""
    pairs = max((run.evaluation or {}).get("pairs_of_runs", 0) for run in runs)
    return [f"What is sure between runs is so for all {pairs} pairs of them at once."] if pairs > 1 else []


def _alone(measure: Metric, run: ReportRun) -> str:
    """Return what one run reaches, and whether that is surely better than the baselines."""
    gains = {title: gain for key, title in BASELINES.items() if (gain := _gain(measure, run, key)) is not None}
    better = [f"than {title}, by {_size(measure, gain, signed=True)}" for title, gain in gains.items() if gain.low > 0]
    worse = [
        f"than {title}, by {_size(measure, _turned(gain), signed=True)}"
        for title, gain in gains.items()
        if gain.high < 0
    ]
    unsure = [
        f"{title}, {_size(measure, gain, signed=True)}" for title, gain in gains.items() if not gain.is_significant
    ]
    parts = [f"surely better {', and '.join(better)}"] if better else []
    parts += [f"surely worse {', and '.join(worse)}"] if worse else []
    parts += [f"not surely different from {', nor from '.join(unsure)}"] if unsure else []
    reached = f"{run.name} has {_written(run, measure)} on {_name(measure)}"
    return f"{': '.join([reached, *(['; '.join(parts)] if parts else [])])}."


def _beside_baselines(measure: Metric, runs: Sequence[ReportRun]) -> Iterator[str]:
    """Yield which baselines all of several runs surely beat, or lose to, which some beat, and which none does."""
    every, none = ("Both runs are", "Neither run is") if len(runs) == 2 else ("All runs are", "No run is")
    better, worse, neither = [], [], []
    for key, title in BASELINES.items():
        gains = {run.name: gain for run in runs if (gain := _gain(measure, run, key)) is not None}
        if len(gains) < len(runs):
            continue
        behind = [gain for gain in gains.values() if gain.high < 0]
        short = [name for name, gain in gains.items() if not gain.low > 0]
        if not short:
            better.append((title, min(gains.values())))
        elif len(behind) == len(runs):
            worse.append((title, min(map(_turned, behind))))
        elif len(short) == len(runs) and not behind:
            neither.append((title, max(gains.values())))
        else:
            sizes = [f"{name} by {_size(measure, gains[name], signed=True)}" for name in short[:MOST_NAMED]]
            yield f"On {_name(measure)} not all runs are surely better than {title}: {'; '.join(sizes)}."
    for lead, found, joint in (
        (f"{every} surely better than {{}} on {_name(measure)}; the smallest gain is {{}}.", better, " and "),
        (f"{every} surely worse than {{}} on {_name(measure)}; the smallest loss is {{}}.", worse, " and "),
        (f"{none} surely better than {{}} on {_name(measure)}; the largest gain is {{}}.", neither, " or "),
    ):
        if found:
            pick = max if found is neither else min
            size = _size(measure, pick(gain for _, gain in found), signed=True)
            yield lead.format(joint.join(title for title, _ in found), size)


def _turned(gain: Difference) -> Difference:
    """Return a loss that is so large as a gain was small."""
    return Difference(-gain.value, -gain.high, -gain.low)


def _gain(measure: Metric, run: ReportRun, other: str | ReportRun) -> Difference | None:
    """Return by how much a run is better than a baseline or another run."""
    found = run.difference(other, measure.key)
    if found is None or measure.better == "higher":
        return found
    return _turned(found)


def _worth_of_an_item(items: int | None, of_data: str, headlines: Sequence[Metric]) -> list[str]:
    if items is None or items >= FEW_TEST_ITEMS or not any(measure.in_percent for measure in headlines):
        return []
    return [f"One of the {items:,} test items{of_data} is worth {100 / items:.2g} points: look at nothing smaller."]


def _of_pairs(run: ReportRun) -> str:
    assert run.pairs is not None
    rate, low, high = (100 * float(run.pairs[name]) for name in ("rate", "low", "high"))
    pairs = len(run.pairs["scores"])
    return (
        f"Of the {pairs:,} pairs of {run.name} {rate:.1f}% ({low:.1f} to {high:.1f}) seem wrong: the ten to look at "
        "first are in the audit below."
    )


def _what_differs(runs: Sequence[ReportRun]) -> list[str]:
    machine = {name for name, option in KEPT.items() if option.scope == "machine"}  # such as the number of threads
    differing = [(key, values) for key, values, differs in settings(runs) if differs and key not in machine]
    if not differing:
        return ["The runs have the same settings."]
    named = [f"{key} ({'; '.join(values)})" for key, values in differing[:MOST_NAMED]]
    further = len(differing) - len(named)
    return [f"They differ in {join_names(named)}{f', and in {further} further settings' if further else ''}."]


def _size(measure: Metric, found: Difference, *, signed: bool = False) -> str:
    """Write a difference with its interval: in points where the measure is a share."""
    value, low, high = found if signed or measure.better == "higher" else (-found.value, -found.high, -found.low)
    if measure.in_percent:
        return f"{100 * value:z.1f} points ({100 * low:z.1f} to {100 * high:z.1f})".replace("-", "−")
    return f"{value:z.3f} ({low:z.3f} to {high:z.3f})".replace("-", "−")


def _name(measure: Metric) -> str:
    spoken = _spoken(measure.title)
    return spoken if spoken == measure.title or spoken[-1].isdigit() else f"the {spoken}"


def _spoken(title: str) -> str:
    """Return a title as it stands within a sentence.

    >>> _spoken("Linear probe"), _spoken("kNN"), _spoken("NMI")
    ('linear probe', 'kNN', 'NMI')
    """
    return f"{title[0].lower()}{title[1:]}" if title[1:2].islower() else title


def _written(run: ReportRun, measure: Metric) -> str:
    value = _value(run, measure.key)
    assert value is not None  # what is said of runs is said of a measure that they have
    return measure.format(value).replace("-", "−")


def _value(run: ReportRun, key: str) -> float | None:
    value = (run.evaluation or {}).get("rows", {}).get("trained", {}).get(key)
    return None if value is None else float(value)
