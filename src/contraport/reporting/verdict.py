"""Verdict of the report, which compares runs and baselines in sentences."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from itertools import islice, permutations

from contraport._utils.formatting import join_names, lower_first_letter, pluralize
from contraport.auditing.pairs.noise_rate import is_rate_reliable
from contraport.metrics import Metric, combined_titles_by_name
from contraport.metrics.intervals import Difference
from contraport.metrics.registry import BASELINE_TITLES, MAX_VERDICT_METRICS, choose_headline_metrics
from contraport.reporting.html_page_parts import PageAssets, Section
from contraport.reporting.reported_run import ReportedRun
from contraport.reporting.sections.online_audit import NUM_LOWEST_PAIRS
from contraport.reporting.sections.results_and_settings import list_evaluated_metrics, setting_texts_by_name
from contraport.training.config import RECORDED_OPTIONS_BY_NAME

MAX_LISTED_IN_SENTENCE = 6  # maximum number of runs or settings that a sentence lists by name


def build_verdict_section(assets: PageAssets) -> Section | None:
    """Build the section of verdict sentences, or None if there are none."""
    sentences = compose_verdict_sentences(assets.runs)
    if compose_heading(assets.runs) is not None:
        sentences = sentences[1:]  # the first one is the heading of the page
    context = {"sentences": sentences, "has_intervals": any(run.metrics_by_encoder for run in assets.runs)}
    return Section("verdict", "Verdict", context) if sentences else None


def compose_verdict_sentences(runs: Sequence[ReportedRun]) -> list[str]:
    """Return verdict sentences on metrics, differing settings and items to inspect."""
    sentences = compose_comparison_sentences(runs)
    if len(runs) == 1:
        sentences[:0] = filter(None, [runs[0].evaluation.get("verdict")])
    else:
        sentences.append(_describe_differing_settings(runs))
    sentences += [_describe_mismatch_rate(run) for run in runs if run.online_audit_arrays]
    return sentences


def compose_heading(runs: Sequence[ReportedRun]) -> str | None:
    """Return the first sentence of the verdict, as the report's heading, or None."""
    verdict = runs[0].evaluation.get("verdict") if len(runs) == 1 else None
    return verdict or next(iter(compose_comparison_sentences(runs)), None)


def compose_comparison_sentences(runs: Sequence[ReportedRun]) -> list[str]:
    """Return sentences that compare runs with each other and with the baselines.

    Only runs that were evaluated on the same test items are compared.
    """
    sentences: list[str] = []
    evaluated = [run for run in runs if run.evaluation]
    test_sets = dict.fromkeys(run.test_set_and_size for run in evaluated)
    for data, items in test_sets:
        group = [run for run in evaluated if run.test_set_and_size == (data, items)]
        headlines = choose_verdict_metrics(group)
        if len(group) == 1:
            sentences += [_describe_run_against_baselines(metric, group[0]) for metric in headlines]
        else:
            against_baselines = [text for metric in headlines for text in _iter_baseline_sentences(metric, group)]
            first_gains = _find_gains_by_baseline_title(headlines[0], group).values() if headlines else ()
            is_baseline_unbeaten = any(max(gain.low for gain in gains.values()) <= 0 for gains in first_gains)
            if is_baseline_unbeaten:  # the page is headed by this, not by the best run
                sentences += [*against_baselines, *_iter_verdict_of_best_run(headlines[0], group)]
            sentences += [_describe_best_run_significance(metric, group) for metric in headlines]
            pairs = permutations(group, 2)
            if not all(one.find_stored_difference(other, m.key) for one, other in pairs for m in headlines):
                command = f"contraport evaluate {' '.join(shlex.quote(run.path) for run in group)}"
                sentences.append(f"For intervals of differences, evaluate them together: {command}")
            if len(group) == 2:
                sentences += filter(None, [_summarize_significant_differences(*group)])
            if (num_pairs := max(run.evaluation.get("pairs_of_runs", 0) for run in group)) > 1:
                sentences.append(f"The intervals between runs hold simultaneously for all {num_pairs} pairs.")
            if not is_baseline_unbeaten:
                sentences += against_baselines
        # Test items of a coupling are pairs, but its metrics are means over rows, which are fewer.
        in_percent = any(metric.is_shown_in_percent and metric.group != "links" for metric in headlines)
        if in_percent and items is not None and items < 2_000:
            of_data = f" of {data}" if len(test_sets) > 1 else ""
            sentences.append(f"1 of the {items:,} test items{of_data} = {100 / items:.2g} points.")
    if len({data for data, _ in test_sets}) > 1:
        sentences.append("Runs on different data are not compared.")
    for data in dict.fromkeys(data for data, _ in test_sets):
        sizes = [f"{items:,}" for name, items in test_sets if name == data and items is not None]
        if len(sizes) > 1:
            sentences.append(
                f"On {data} the numbers of test items differ ({join_names(sizes)}); only runs with equal numbers are "
                "compared."
            )
    return sentences


def choose_verdict_metrics(runs: Sequence[ReportedRun]) -> list[Metric]:
    """Choose the metrics of the verdict from those that all runs have.

    If the data have several views, one metric of cross-view retrieval is added to accuracies, as the training
    optimizes it.
    """
    metrics = [m for m in list_evaluated_metrics(runs) if all(run.metric_value(m.key) is not None for run in runs)]
    chosen = choose_headline_metrics(metrics)
    directions = [way for run in runs for way in run.evaluation.get("directions", {}).values()]
    if len(directions) < len(runs) or not any(metric.group == "accuracy" for metric in chosen):
        return chosen
    in_all = (m for m in metrics if m.better_direction != "neither" and all(m.key in way for way in directions))
    return [*chosen, *islice(in_all, 1)]


def _describe_best_run_significance(metric: Metric, runs: Sequence[ReportedRun]) -> str:
    """Return a sentence on whether the best run is significantly better than others."""
    best, *others = ranked = _sort_best_first(metric, runs)
    name = metric.title_with_definite_article
    leads = {
        run.name: lead for run in others if (lead := _find_difference_positive_if_better(metric, best, run)) is not None
    }
    if len(leads) < len(others):
        value, end = _format_metric_value(best, metric), "; differences between runs have no intervals yet."
        level = [run.name for run in ranked if _format_metric_value(run, metric) == value]
        return f"Of the runs, {join_names(level)} {'is' if len(level) == 1 else 'are'} best on {name}, {value}{end}"
    if len(others) == 1:
        ((other, lead),) = leads.items()
        size = metric.format_difference(lead)
        high, low = (_format_metric_value(run, metric) for run in ranked)
        if lead.is_significant:
            return f"{best.name} is better than {other} on {name}, {high} against {low}: by {size}."
        return f"{best.name} and {other} do not differ significantly on {name}, {high} and {low}: {size}."
    level = [run for run, lead in leads.items() if not lead.is_significant]
    behind = [run for run, lead in leads.items() if lead.is_significant]
    if not level:
        size = metric.format_difference(leads[others[0].name])
        return f"{best.name} is the best on {name}, ahead of the next by {size}."
    if not behind:
        return f"On {name} none of the {len(runs)} runs differs significantly from the best, {best.name}."
    rest = join_names(behind) if len(behind) <= MAX_LISTED_IN_SENTENCE else f"{len(behind)} others"
    return f"On {name} {join_names([best.name, *level])} do not differ significantly; {best.name} is ahead of {rest}."


def _iter_verdict_of_best_run(metric: Metric, runs: Sequence[ReportedRun]) -> Iterator[str]:
    """Yield the stored verdict of the best run in a metric, with its number of steps."""
    best = _sort_best_first(metric, runs)[0]
    if verdict := best.evaluation.get("verdict"):
        steps = f" ({pluralize(best.metrics_rows[-1]['step'], 'step')})" if best.metrics_rows else ""
        yield f"For {best.name}, the best run{steps}: {verdict}"


def _sort_best_first(metric: Metric, runs: Sequence[ReportedRun]) -> list[ReportedRun]:
    """Sort runs by a metric, the best first."""
    sign = -1 if metric.better_direction == "higher" else 1
    return sorted(runs, key=lambda run: sign * (run.metric_value(metric.key) or 0.0))


def _summarize_significant_differences(one: ReportedRun, other: ReportedRun) -> str | None:
    """Return a sentence on how many metrics significantly favor each of two runs.

    Metrics that differ only in k count as one. None if the headline metrics are all that both runs have.
    """
    gains = {
        metric: gain
        for metric in list_evaluated_metrics([one, other])
        if metric.better_direction != "neither"
        and (gain := _find_difference_positive_if_better(metric, one, other)) is not None
    }
    families = {metric: metric.key.partition("@")[0] for metric in gains}
    count = len({*families.values()})
    if count <= MAX_VERDICT_METRICS:  # the sentences on the headline metrics cover them
        return None
    signs: dict[str, set[bool]] = {family: set() for family in families.values()}
    for metric, gain in gains.items():
        if gain.is_significant:
            signs[families[metric]].add(gain.value > 0)
    # A family with significant gains of both signs counts for neither run.
    better = {
        run: combined_titles_by_name(
            metric for metric, gain in gains.items() if gain.is_significant and signs[families[metric]] == {sign}
        )
        for run, sign in ((one.name, True), (other.name, False))
    }
    if not any(better.values()):
        return f"On none of {count} metrics is one of the two significantly better."
    lists = {run: "; ".join(map(lower_first_letter, titles.values())) for run, titles in better.items()}
    parts = [
        f"{run} is significantly better on {len(titles)} ({lists[run]})" if titles else f"{run} on none"
        for run, titles in sorted(better.items(), key=lambda part: -len(part[1]))
    ]
    return f"Of {count} metrics {parts[0]}, {parts[1]}."


def _describe_run_against_baselines(metric: Metric, run: ReportedRun) -> str:
    """Return a sentence that compares one run with the baselines in a metric."""
    better, worse, neither = [], [], []
    for row, title in BASELINE_TITLES.items():
        gain = _find_difference_positive_if_better(metric, run, row)
        if gain is None:
            continue
        if gain.low > 0:
            better.append(f"than {title}, by {metric.format_difference(gain)}")
        elif gain.high < 0:
            worse.append(f"than {title}, by {metric.format_difference(-gain)}")
        else:
            neither.append(f"{title}, {metric.format_difference(gain, signed=True)}")
    parts = [f"significantly better {', and '.join(better)}"] if better else []
    parts += [f"significantly worse {', and '.join(worse)}"] if worse else []
    parts += [f"not significantly different from {', nor from '.join(neither)}"] if neither else []
    value = f"{run.name} has {_format_metric_value(run, metric)} on {metric.title_with_definite_article}"
    return f"{value}: {'; '.join(parts)}." if parts else f"{value}."


def _iter_baseline_sentences(metric: Metric, runs: Sequence[ReportedRun]) -> Iterator[str]:
    """Yield sentences that compare several runs with the baselines in a metric."""
    all_are, none_is = ("Both runs are", "neither run is") if len(runs) == 2 else ("All runs are", "no run is")
    name = metric.title_with_definite_article
    smallest_gains, best_gains, partly = dict[str, Difference](), dict[str, dict[str, Difference]](), []
    for title, gains in _find_gains_by_baseline_title(metric, runs).items():
        not_ahead = [run for run, gain in gains.items() if not gain.low > 0]
        if not not_ahead:
            smallest_gains[title] = min(gains.values())
        elif len(not_ahead) == len(runs):
            best_gains[title] = gains
        else:
            behind = [f"{run} by {metric.format_difference(gains[run])}" for run in not_ahead[:MAX_LISTED_IN_SENTENCE]]
            partly.append(f"On {name} not all runs are significantly better than {title}: {'; '.join(behind)}.")
    if best_gains:
        title, gains = max(best_gains.items(), key=lambda item: max(item[1].values()))
        top = [run for run, gain in gains.items() if gain.value > max(gains.values()).value - 1e-9]
        if max(gains.values()).value > 0:
            sizes = "; ".join(f"{run} by {metric.format_difference(gains[run])}" for run in top)
            nearest = f"the largest gain is over {title}: {sizes}"
        else:
            sizes = "; ".join(f"{run} at {metric.format_difference(gains[run], signed=True)}" for run in top)
            nearest = f"closest to {title}: {sizes}"
        yield f"On {name} {none_is} significantly better than {' or '.join(best_gains)}; {nearest}."
        for title, gains in best_gains.items():
            if worse := [run for run, gain in gains.items() if gain.high < 0]:
                yield f"Significantly worse than {title} on {name}: {join_names(worse)}."
    yield from partly
    if smallest_gains:
        size, titles = metric.format_difference(min(smallest_gains.values())), " and ".join(smallest_gains)
        yield f"{all_are} significantly better than {titles} on {name}; the smallest gain is {size}."


def _find_gains_by_baseline_title(metric: Metric, runs: Sequence[ReportedRun]) -> dict[str, dict[str, Difference]]:
    """Find the gains of the runs over each baseline that all of them have, by its title and by run."""
    gains_by_title = dict[str, dict[str, Difference]]()
    for row, title in BASELINE_TITLES.items():
        gains = {run.name: _find_difference_positive_if_better(metric, run, row) for run in runs}
        if (known := {run: gain for run, gain in gains.items() if gain is not None}).keys() == gains.keys():
            gains_by_title[title] = known
    return gains_by_title


def _describe_mismatch_rate(run: ReportedRun) -> str:
    """Return a sentence on the mismatch rate that an online audit estimated."""
    assert run.online_audit_arrays
    rate, low, high = (100 * float(run.online_audit_arrays[name]) for name in ("rate", "low", "high"))
    scores, mismatched = run.online_audit_arrays["scores"], run.online_audit_arrays["mismatched"]
    share = f"An estimated {rate:.1f}% ({low:.1f} to {high:.1f}) of"
    if not is_rate_reliable(scores, mismatched, low / 100):
        share = "The views share too little to estimate how many of"
    what = f"{share} the {len(scores):,} pairs of {run.name} are mismatched"
    return f"{what}; the audit below lists the {min(NUM_LOWEST_PAIRS, len(scores))} with the lowest scores."


def _describe_differing_settings(runs: Sequence[ReportedRun]) -> str:
    """Return a sentence on training settings that differ between runs."""
    # Options of the machine, such as the number of threads, are not a difference between methods.
    machine = {name for name, option in RECORDED_OPTIONS_BY_NAME.items() if option.lifetime == "machine"}
    texts_by_name = setting_texts_by_name(runs).items()
    differing = [(key, texts) for key, texts in texts_by_name if len(set(texts)) > 1 and key not in machine]
    if not differing:
        return "The runs have the same settings."
    named = [f"{key} ({'; '.join(values)})" for key, values in differing[:MAX_LISTED_IN_SENTENCE]]
    further = len(differing) - len(named)
    rest = pluralize(further, "further setting")
    return f"The runs differ in {join_names(named)}{f', and in {rest}' if further else ''}."


def _find_difference_positive_if_better(
    metric: Metric, run: ReportedRun, other: str | ReportedRun
) -> Difference | None:
    """Return a run's improvement over another run or baseline, or None if unknown."""
    difference = run.find_stored_difference(other, metric.key)
    return difference if difference is None or metric.better_direction == "higher" else -difference


def _format_metric_value(run: ReportedRun, metric: Metric) -> str:
    """Format a metric of the trained encoder with a proper minus sign."""
    value = run.metric_value(metric.key)
    assert value is not None  # headline metrics were evaluated for every run
    return metric.format(value).replace("-", "−")
