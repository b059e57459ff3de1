"""Notes on an evaluation, and its verdict on which features to use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import torch

from contraport._utils.formatting import format_keyword_or_flag, format_options, join_names, pluralize
from contraport._version import __version__
from contraport.embedding import RawInputEncoder
from contraport.encoders import Model
from contraport.errors import UsageError
from contraport.evaluation.loaded_run import LoadedRun, find_checkpoints_by_epoch
from contraport.evaluation.split_loading import is_training_data
from contraport.metrics import Metric, Requirement, collect_metrics_for_display, combined_titles_by_name
from contraport.metrics.builtin_metrics import REQUIRES_TWO_CLASSES
from contraport.metrics.intervals import (
    CONFIDENCE_LEVEL,
    Difference,
    MetricResult,
    bootstrap_means,
    bootstrap_means_limited_to_0_1,
)
from contraport.metrics.registry import BASELINE_TITLES, INITIAL_ENCODER_BASELINE_TITLES, choose_headline_metrics
from contraport.training.config import RECORDED_OPTIONS_BY_NAME

ResultByMetric = Mapping[str, MetricResult | float]
"""Results of one encoder, by metric key."""

DifferencesByBaselineAndMetric = Mapping[str, Mapping[str, Difference]]
"""Differences of the trained encoder from a baseline, by baseline and metric key."""


def build_skipped_metric_notes(
    metrics: Sequence[Metric],
    unmet_requirements: Mapping[str, Requirement | None],
    results: ResultByMetric,
    *,
    selected_by_name: bool,
) -> list[str]:
    """Return notes about skipped metrics, one sentence for each reason.

    Requirements that are rarely met are reported only if the metrics were selected by name.
    """
    skipped: dict[str, list[Metric]] = {}
    for metric in metrics:
        requirement = unmet_requirements[metric.key]
        if requirement is not None and (selected_by_name or not requirement.is_rarely_met):
            skipped.setdefault(requirement.reason, []).append(metric)
    notes = [
        f"Not measured, as {reason}: {', '.join(combined_titles_by_name(of).values())}."
        for reason, of in skipped.items()
    ]
    # A metric added by a user may return NaN.
    not_finite = [metric for metric in metrics if unmet_requirements[metric.key] is None and metric.key not in results]
    if not_finite:
        notes.append(
            f"Left out, as a value was NaN or infinite: {', '.join(combined_titles_by_name(not_finite).values())}."
        )
    return notes


def build_no_computable_metric_error(reasons: Iterable[str], remark: str = "") -> UsageError:
    """Build the `UsageError` for an evaluation or comparison without any computable metric."""
    message = f"metrics: none can be computed. {' '.join(reasons)} Leave out {format_options(metrics=...)} for "
    return UsageError(f"{message}those that the data allow{remark}.", kind="none_computed")


def build_data_and_model_notes(
    loaded: LoadedRun, raw_baseline: Model | RawInputEncoder | None, results: ResultByMetric
) -> list[str]:
    """Return notes on limits of the data, the model and the audit."""
    run = loaded.run_folder
    notes = [*loaded.data_notes, *filter(None, [run.outdated_model_warning()])]
    if loaded.evaluate_options.checkpoints == "all" and not find_checkpoints_by_epoch(run, before_epoch=None):
        notes.append(f"{run.path} has no intermediate checkpoints; only its last model was evaluated.")
    if unknown := sorted(run.config().keys() - RECORDED_OPTIONS_BY_NAME.keys()):
        notes.append(
            f"{run.config_path} has the entries {', '.join(map(repr, unknown))}, which contraport {__version__} does "
            "not know and ignores. The run was trained by another version."
        )
    if isinstance(raw_baseline, RawInputEncoder) and (side := raw_baseline.downscaled_side) is not None:
        notes.append(f"Raw inputs: images downscaled to {side} × {side} pixels.")
    settings = loaded.training_settings
    is_of_own_data = is_training_data(settings, loaded.evaluate_options.data)
    has_unaudited_pairs = settings.audit and settings.mismatch is None and is_of_own_data
    if has_unaudited_pairs and any(metric.group == "retrieval" for metric in collect_metrics_for_display([results])):
        notes.append(
            "The audit left out training pairs only: held-out pairs may be wrong too, and then the recall of the right "
            "ones is higher than measured."
        )
    return notes


def build_unseen_class_notes(loaded: LoadedRun, results: ResultByMetric) -> list[str]:
    """Return a note if some test classes have no training items."""
    uses_labels = any(
        REQUIRES_TWO_CLASSES in metric.requirements and metric.group != "clustering"
        for metric in collect_metrics_for_display([results])
    )
    train, test = loaded.train, loaded.test
    if not uses_labels or train.labels is None or test.labels is None:
        return []
    unseen = test.labels[~torch.isin(test.labels, train.labels)]
    if len(unseen) == 0:
        return []
    names = test.class_names
    classes = [str(label) if names is None else names[label] for label in unseen.unique().tolist()]
    shown = join_names(classes[:5]) + (" and others" if len(classes) > 5 else "")
    which = "All test items" if len(unseen) == len(test) else f"{len(unseen):,} of {len(test):,} test items"
    return [f"{which} are of classes without training items ({shown}). The probe and kNN misclassify all of them."]


def build_few_shot_notes(results: ResultByMetric, train_labels: torch.Tensor | None) -> list[str]:
    """Return notes about few-shot accuracies with too few training items.

    >>> build_few_shot_notes({"few_shot@2": 0.5}, torch.tensor([0, 0, 1]))
    ['Few-shot@2: fewer than 2 training items in 1 of 2 classes; all of them are drawn.']
    """
    keys = [key for key in results if key.startswith("few_shot@")]
    if train_labels is None or not keys:
        return []
    sizes, notes = train_labels.unique(return_counts=True)[1], []
    for metric in collect_metrics_for_display([keys]):
        number = int(metric.key.removeprefix("few_shot@"))
        if short := int((sizes < number).sum()):
            few = f"fewer than {number:,} training items in {short:,} of {len(sizes):,} classes"
            notes.append(f"{metric.title}: {few}; all of them are drawn.")
    return notes


def build_sampled_metric_notes(results: ResultByMetric, *, num_test_items: int) -> list[str]:
    """Return a note that names the metrics computed on a sample of items.

    >>> build_sampled_metric_notes({"knn": MetricResult(np.ones(2), positions=np.array([5, 1]))}, num_test_items=6)
    ['On a random sample of the 6 test items: kNN on 2.']
    """
    sizes = {
        key: len(result.positions)
        for key, result in results.items()
        if isinstance(result, MetricResult) and result.positions is not None
    }
    parts = [
        f"{', '.join(combined_titles_by_name(collect_metrics_for_display([keys])).values())} on {size:,}"
        for size in sorted(set(sizes.values()), reverse=True)
        if (keys := [key for key in sizes if sizes[key] == size])
    ]
    return [f"On a random sample of the {num_test_items:,} test items: {'; '.join(parts)}."] if parts else []


def build_zero_width_interval_notes(results: ResultByMetric) -> list[str]:
    """Return notes on zero-width intervals, where all items score 0 or all score 1.

    The bootstrap draws from the test items, so if all n agree the interval has no width for any n. A share p of other
    items stays unseen among n with probability (1 - p)^n: at a level of 95% it may be about 3 / n (Clopper and
    Pearson, 1934, "The use of confidence or fiducial limits").

    >>> results = {"knn": MetricResult(np.ones(24)), "linear_probe": MetricResult(np.arange(24) % 2)}
    >>> print(*build_zero_width_interval_notes(results))
    kNN: all 24 test items have the same value, so the interval has no width. Of new items up to 12% may differ.
    """
    unanimous: dict[str, MetricResult] = {}
    for key, result in results.items():
        if isinstance(result, MetricResult) and result.statistic in (bootstrap_means, bootstrap_means_limited_to_0_1):
            values = result.item_values
            if np.isin(values, (0, 1)).all() and (values == values[:1]).all():
                unanimous[key] = result
    if not unanimous:
        return []
    items = min(len(result.item_values) for result in unanimous.values())
    unseen = 1 - (1 - CONFIDENCE_LEVEL) ** (1 / items)
    titles = join_names([metric.title for metric in collect_metrics_for_display([unanimous])])
    return [
        f"{titles}: all {items:,} test items have the same value, so the interval has no width. "
        f"Of new items up to {100 * unseen:.2g}% may differ."
    ]


def build_worsened_geometry_notes(
    values_by_encoder: Mapping[str, Mapping[str, float]],
    differences: DifferencesByBaselineAndMetric = MappingProxyType({}),
) -> list[str]:
    """Return a note if training worsened alignment or uniformity.

    Differences that are not significant are ignored.
    """
    baseline = next((name for name in INITIAL_ENCODER_BASELINE_TITLES if name in values_by_encoder), None)
    if baseline is None:
        return []
    after, before = values_by_encoder["trained"], values_by_encoder[baseline]
    intervals = differences.get(baseline, {})
    worse, better = [], []
    for metric in collect_metrics_for_display([after.keys() & before.keys() & {"alignment", "uniformity"}]):
        if metric.key in intervals and not intervals[metric.key].is_significant:
            continue
        value, other = after[metric.key], before[metric.key]
        change = f"{metric.title} {'rose' if value > other else 'fell'} from {metric.format(other)}"
        change = f"{change} before training to {metric.format(value)}".replace("-", "−")
        if metric.is_visibly_worse(value, other):
            worse.append(f"{change}: worse.")
        elif metric.is_visibly_worse(other, value):
            better.append(f"{change}: better.")
    return [" ".join([*worse, *better])] if worse else []


def find_verdict_text(
    metric_keys: Iterable[str],
    differences: DifferencesByBaselineAndMetric,
    *,
    num_test_items: int,
    is_encoder_frozen: bool = False,
    could_use_weighted_ngrams: bool = False,
    has_several_views: bool = False,
) -> str | None:
    """Return a sentence that recommends the trained encoder or a baseline.

    None if no metric compares them.

    Args:
        metric_keys: keys of the metrics of the trained encoder; the headline metrics among them decide.
        differences: differences of the trained encoder from each baseline, by metric key.
        num_test_items: number of test items; a verdict from few of them begins with a warning.
        is_encoder_frozen: whether training left all encoders unchanged.
        could_use_weighted_ngrams: whether all views are texts, but their encoder does not start at the word counts.
        has_several_views: whether items have several views. A verdict against the trained encoder then says so if it
            retrieves the other view better than all baselines.
    """
    augment, temperature, scale = map(format_keyword_or_flag, ("augment", "temperature", "encoder_lr_scale"))
    advice = {
        # Of a frozen encoder the learning rate has no effect.
        "given": f"Or try more epochs or another {augment}."
        if is_encoder_frozen
        else f"Or try more epochs, another {augment} or a smaller {scale}.",
        "untrained": f"Or try more epochs, another {augment} or another {temperature}.",
        "raw": f"Or try more epochs or {format_options(encoder='weighted-ngrams')}, which starts at the raw counts."
        if could_use_weighted_ngrams
        else "Or try more epochs or a larger encoder.",
    }
    metrics = collect_metrics_for_display([metric_keys])
    if has_several_views:
        retrieval_advice = _advise_if_retrieval_beats_all_baselines(metrics, differences)
        advice = {row: text + retrieval_advice for row, text in advice.items()}
    verdict = _find_verdict_without_size_warning(metrics, differences, advice)
    if verdict is None or num_test_items >= 50:  # one test item is then at most 2 points
        return verdict
    return f"The test set is small ({pluralize(num_test_items, 'item')}): differences may be noise. {verdict}"


def _find_verdict_without_size_warning(
    metrics: Sequence[Metric], differences: DifferencesByBaselineAndMetric, advice_by_baseline: Mapping[str, str]
) -> str | None:
    """Return the verdict, before any warning of a small test set is added.

    A verdict for a baseline ends with the advice for it.
    """
    headline = choose_headline_metrics(metrics)
    compared: dict[str, dict[Metric, Difference]] = {}
    for row in BASELINE_TITLES:
        own = differences.get(row, {})
        gains = {m: own[m.key] if m.better_direction == "higher" else -own[m.key] for m in headline if m.key in own}
        if gains:
            compared[row] = gains
    if not compared:
        return None
    for row, by_metric in reversed(compared.items()):  # raw inputs first: they need no encoder
        if worse := [metric for metric, gain in by_metric.items() if gain.high < 0]:
            # If it is better on none, the baseline is advised for all metrics, as it is where none is worse.
            advised = worse if [metric for metric, gain in by_metric.items() if gain.low > 0] else [*by_metric]
            titles = {metric: metric.title_with_definite_article for metric in advised}
            worst = worse[0].format_difference(-by_metric[worse[0]])
            where = f" on {titles[worse[0]]}" * (len(titles) > 1)
            difference = "" if advised == worse else "not significantly better there, and "
            return (
                f"Use {BASELINE_TITLES[row]} for {' and '.join(titles.values())}: the trained encoder is {difference}"
                f"significantly worse{where or ' there'}, by {worst}. {advice_by_baseline[row]}"
            )
    no_better = [row for row, by_metric in compared.items() if not any(gain.low > 0 for gain in by_metric.values())]
    if no_better:
        simplest = no_better[-1]
        measured = join_names([metric.title_with_definite_article for metric in compared[simplest]])
        return (
            f"Use {BASELINE_TITLES[simplest]} for {measured}: the trained encoder is not significantly better there. "
            f"{advice_by_baseline[simplest]}"
        )
    smallest = {row: max(by_metric.items(), key=lambda item: item[1].low) for row, by_metric in compared.items()}
    reasons = [
        f"than {BASELINE_TITLES[row]} on {metric.title_with_definite_article}, by {metric.format_difference(gain)}"
        for row, (metric, gain) in smallest.items()
    ]
    return f"Use the trained encoder: it is better {', and '.join(reasons)}."


def _advise_if_retrieval_beats_all_baselines(
    metrics: Sequence[Metric], differences: DifferencesByBaselineAndMetric
) -> str:
    """Return advice to use the encoder for retrieval, empty unless it beats all baselines."""
    keys = {key for by_metric in differences.values() for key in by_metric}
    metric = next((one for one in metrics if one.group == "retrieval" and one.key in keys), None)
    if metric is None:
        return ""
    gains = {row: by_metric[metric.key] for row, by_metric in differences.items() if metric.key in by_metric}
    if metric.better_direction == "lower":
        gains = {row: -gain for row, gain in gains.items()}
    row, smallest = min(gains.items(), key=lambda item: item[1].low)
    if smallest.low <= 0:
        return ""
    return (
        f" Use the trained encoder for retrieval of the other view: it is better than {BASELINE_TITLES[row]} on "
        f"{metric.title_with_definite_article}, by {metric.format_difference(smallest)}."
    )
