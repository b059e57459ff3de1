"""The verdict: what the numbers of the runs allow to be said in words, and no more than their intervals allow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from contraport.measures import Measure
from contraport.measures.intervals import Difference
from contraport.reporting.numbers import listed, measured, settings
from contraport.reporting.shown import Shown

HEADLINES = 2
"""On how many measures runs are judged in words; the table has the others."""

MOST_NAMED = 6
"""Of so many settings that differ the verdict gives the values."""

FEW_ITEMS = 2_000
"""Below so many test items it is said what one of them is worth."""

_BASELINES = {"untrained": "the untrained encoder", "raw": "raw inputs"}
_GROUPS = ("accuracy", "retrieval", "clustering")


def verdict(runs: Sequence[Shown]) -> list[str]:
    """Return what can be said of the runs, a sentence each, those first that tell runs apart."""
    told: list[str] = []
    for data in dict.fromkeys(run.data for run in runs):
        of_data = [run for run in runs if run.data == data and run.evaluation is not None]
        if not of_data:
            continue
        headlines = _headlines(of_data)
        told += [_between(measure, of_data) for measure in headlines if len(of_data) > 1]
        told += [sentence for measure in headlines for sentence in _beside_baselines(measure, of_data)]
        told += _worth_of_an_item(of_data, headlines)
    told += [_of_pairs(run) for run in runs if run.pairs is not None]
    if len(runs) > 1:
        told += _what_differs(runs)
    return told


def _headlines(runs: Sequence[Shown]) -> list[Measure]:
    """Return the measures to judge by: accuracies where there are labels, else retrieval, else clusters."""
    known = [measure for measure in measured(runs) if measure.better != "neither"]
    for group in _GROUPS:
        of_group = [m for m in known if m.group == group and all(_value(run, m.key) is not None for run in runs)]
        if of_group:
            return of_group[:HEADLINES]
    return []


def _between(measure: Measure, runs: Sequence[Shown]) -> str:
    ranked = sorted(runs, key=lambda run: _value(run, measure.key) or 0.0, reverse=measure.better == "higher")
    best, others = ranked[0], ranked[1:]
    apart = {run.name: best.difference(run.path, measure.key) for run in others}
    if any(found is None for found in apart.values()):
        paths = " ".join(run.path for run in runs)
        end = "highest" if measure.better == "higher" else "lowest"
        return (
            f"{best.name} has the {end} value on {_name(measure)}; how sure that is tells "
            f"`contraport evaluate {paths}`, which measures all on the same items."
        )
    known = {name: found for name, found in apart.items() if found is not None}
    if len(others) == 1:
        ((name, found),) = known.items()
        size = _size(measure, found)
        if found.is_sure:
            return f"{best.name} is better than {name} on {_name(measure)}, by {size}."
        return f"{best.name} and {name} cannot be told apart on {_name(measure)}: {size}."
    level = [name for name, found in known.items() if not found.is_sure]
    behind = [name for name, found in known.items() if found.is_sure]
    if not level:
        ahead = _size(measure, known[others[0].name])
        return f"{best.name} is the best on {_name(measure)}, ahead of the next by {ahead}."
    if not behind:
        return f"On {_name(measure)} none of the {len(runs)} runs can be told from the best, {best.name}."
    others_behind = listed(behind) if len(behind) <= MOST_NAMED else f"{len(behind)} others"
    return f"On {_name(measure)} {listed([best.name, *level])} cannot be told apart; they are ahead of {others_behind}."


def _beside_baselines(measure: Measure, runs: Sequence[Shown]) -> Iterator[str]:
    """Yield by which baselines the runs are not surely better, and by which all are."""
    ahead: list[str] = []
    behind: list[str] = []
    for key, title in _BASELINES.items():
        gains = {run.name: gain for run in runs if (gain := _gain(measure, run, key)) is not None}
        if len(gains) < len(runs):
            continue
        short = {name: gain for name, gain in gains.items() if not gain.low > 0}
        if not short:
            ahead.append(title)
            continue
        sizes = [_size(measure, gain, signed=True) for gain in short.values()]
        if len(runs) > 1:
            sizes = [f"{name} {size}" for name, size in zip(short, sizes, strict=True)]
        behind.append(f"{title}: {'; '.join(sizes[:MOST_NAMED])}")
    if behind:
        yield f"Not surely better on {_name(measure)} than {', nor than '.join(behind)}."
    if ahead:
        who = runs[0].name if len(runs) == 1 else "Both runs" if len(runs) == 2 else f"All {len(runs)} runs"
        beat = "is surely better" if len(runs) == 1 else "are surely better"
        yield f"{who} {beat} than {listed(ahead)} on {_name(measure)}."


def _gain(measure: Measure, run: Shown, baseline: str) -> Difference | None:
    """Return by how much a run is better than a baseline."""
    found = run.difference(baseline, measure.key)
    if found is None or measure.better == "higher":
        return found
    return Difference(-found.value, -found.high, -found.low)


def _worth_of_an_item(runs: Sequence[Shown], headlines: Sequence[Measure]) -> list[str]:
    evaluation = runs[0].evaluation or {}
    items = evaluation.get("test_items", FEW_ITEMS)
    shares = any(measure.unit.startswith("share") for measure in headlines)
    if items >= FEW_ITEMS or not shares:
        return []
    return [f"One of the {items:,} test items is worth {100 / items:.2g} points: look at nothing smaller."]


def _of_pairs(run: Shown) -> str:
    assert run.pairs is not None
    rate, low, high = (100 * float(run.pairs[name]) for name in ("rate", "low", "high"))
    pairs = len(run.pairs["scores"])
    return (
        f"Of the {pairs:,} pairs of {run.name} {rate:.1f}% ({low:.1f} to {high:.1f}) seem wrong: see the audit below."
    )


def _what_differs(runs: Sequence[Shown]) -> list[str]:
    differing = [(key, values) for key, values, differs in settings(runs) if differs]
    if not differing:
        return ["The runs have the same settings."]
    named = [f"{key} ({'; '.join(values)})" for key, values in differing[:MOST_NAMED]]
    further = len(differing) - len(named)
    return [f"They differ in {listed(named)}{f', and in {further} further settings' if further else ''}."]


def _size(measure: Measure, found: Difference, *, signed: bool = False) -> str:
    """Write a difference with its interval: in points where the measure is a share."""
    value, low, high = found if signed or measure.better == "higher" else (-found.value, -found.high, -found.low)
    if measure.unit.startswith("share"):
        return f"{100 * value:.1f} points ({100 * low:.1f} to {100 * high:.1f})".replace("-", "−")
    return f"{value:.3f} ({low:.3f} to {high:.3f})".replace("-", "−")


def _name(measure: Measure) -> str:
    title = measure.title
    return f"the {title[0].lower()}{title[1:]}" if title[1:2].islower() and title != "kNN" else title


def _value(run: Shown, key: str) -> float | None:
    value = (run.evaluation or {}).get("rows", {}).get("trained", {}).get(key)
    return None if value is None else float(value)
