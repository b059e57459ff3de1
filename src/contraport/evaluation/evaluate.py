"""Evaluation of a trained encoder and its baselines on held-out items."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from contraport._utils.files import atomic_write, write_json, write_npz
from contraport._utils.formatting import format_options
from contraport._utils.locks import lock_folder
from contraport._utils.progress import BeginStep
from contraport._utils.text_bytes import TEXT_SHAPE
from contraport.data import Dataset
from contraport.embedding import RawInputEncoder
from contraport.encoders import Model
from contraport.encoders.builtin_networks import WeightedNgramCountEncoder
from contraport.errors import UsageError, check, translate_write_errors
from contraport.evaluation.command_options import (
    EVALUATE_COMMAND_SPEC,
    EvaluateOptions,
    SeveralRunsEvaluateOptions,
    SingleRunEvaluateOptions,
)
from contraport.evaluation.evaluation_results import Evaluation, EvaluationsByRunPath
from contraport.evaluation.loaded_run import LoadedRun, find_checkpoints_by_epoch, iter_intermediate_model_copies
from contraport.evaluation.notes_and_verdict import (
    ResultByMetric,
    build_data_and_model_notes,
    build_few_shot_notes,
    build_no_computable_metric_error,
    build_sampled_metric_notes,
    build_skipped_metric_notes,
    build_unseen_class_notes,
    build_worsened_geometry_notes,
    build_zero_width_interval_notes,
    find_verdict_text,
)
from contraport.evaluation.report_arrays import (
    ArraysByName,
    collect_test_figure_arrays,
    collect_worst_pair_arrays,
    collect_worst_probe_error_arrays,
    compute_sample_plan_arrays,
)
from contraport.evaluation.split_loading import describe_test_data, have_same_items, is_training_data
from contraport.metrics import Metric, select_metrics
from contraport.metrics.embedding_geometry import MAX_PAIRWISE_METRIC_ITEMS
from contraport.metrics.eval_context import EvalContext
from contraport.metrics.intervals import (
    Array,
    Difference,
    MetricResult,
    draw_bootstrap_values,
    paired_bootstrap_difference,
    percentile_interval,
)
from contraport.metrics.probes import check_neighbor_count
from contraport.options import overload_by_options
from contraport.runs import Run, WritableRun, as_different_run_folders
from contraport.runs.run import check_run_folder
from contraport.seeding import fork_rng_locked_at_ends

ValueAndDrawsByMetric = Mapping[str, tuple[float, Array]]
"""Value and bootstrap draws of each metric of one encoder, by metric key."""


@overload_by_options(SingleRunEvaluateOptions, Evaluation, SeveralRunsEvaluateOptions, EvaluationsByRunPath)
@EVALUATE_COMMAND_SPEC.with_option_parameters
@fork_rng_locked_at_ends([])
def evaluate(arguments: dict[str, Any]) -> Evaluation | EvaluationsByRunPath:
    """Evaluate the frozen encoder of one run, or of several runs.

    For a sequence of runs, the results are returned by path. The caller's random state does not change.

    Raises:
        UsageError: a wrong argument, or a run that is corrupt or not trained to its end; nothing is written for it.
    """
    options = EvaluateOptions(**arguments)
    paths = [options.run] if isinstance(options.run, str | Path | Run) else options.run
    runs = as_different_run_folders("run", paths)
    evaluations: list[EvaluationToSave] = []
    with ExitStack() as locks:
        for run in runs:
            check_run_folder(run.path)
            # Not the lock of a training, which may go on meanwhile.
            locks.enter_context(lock_folder(run.path, "evaluate", argument="run", name=run.evaluation_lock_path.name))
        if options.checkpoints == "all":
            has_checkpoints = any(find_checkpoints_by_epoch(run, before_epoch=None) for run in runs)
            names = ", ".join(str(run.path) for run in runs)
            hint = f"Train with {format_options(keep_every=...)}."
            check(has_checkpoints, f"checkpoints: {names} has no intermediate checkpoints. {hint}", "missing")
        for run in runs:
            evaluations.append(_compute_evaluation_to_save(run, options))
            _check_model_unchanged_and_save(evaluations[-1])  # at once: the runs that follow may take long, or fail
        for one in evaluations if len(evaluations) > 1 else ():
            others = [
                other
                for other in evaluations
                if other is not one
                and other.result["data"] == one.result["data"]
                and have_same_items(one.test_dataset, other.test_dataset)
            ]
            # The intervals of a metric hold for all pairs of these runs at once.
            one.result["pairs_of_runs"] = pairs = math.comb(len(others) + 1, 2)
            for other in others:
                differences = _compute_differences_by_metric(
                    one.values_and_draws, other.values_and_draws, comparisons=pairs
                )
                records = {key: difference._asdict() for key, difference in differences.items()}
                one.result["differences"][str(other.run_folder.path)] = records
            _check_model_unchanged_and_save(one)
    if paths is not options.run:
        return evaluations[0].result
    return EvaluationsByRunPath({str(one.run_folder.path): one.result for one in evaluations})


class EvaluationToSave(NamedTuple):
    """Evaluation result of one run, and the contents of the files to save.

    Attributes:
        result: contents of `evaluation.json`.
        page_arrays: contents of `samples.npz`: 2-D points, cosines and losses of test items, for the report page.
        values_and_draws: value and bootstrap draws of each metric of the trained encoder, by metric key.
        item_values: contents of `items.npz`: values per test item, for metrics that are means over items; for a sample
            of the items also their positions, as ``KEY/positions``.
    """

    run_folder: WritableRun
    test_dataset: Dataset
    result: Evaluation
    page_arrays: ArraysByName
    values_and_draws: ValueAndDrawsByMetric
    item_values: ArraysByName


def _check_model_unchanged_and_save(one: EvaluationToSave) -> None:
    """Write the evaluation, or raise `UsageError` if the run's model changed meanwhile."""
    epochs = one.run_folder.saved_model_epoch()
    message = f"run: the model in {one.run_folder.path} changed during the evaluation. Evaluate it again."
    check(epochs == one.result["epochs"], message, "model_changed")
    # All files are written before the first is moved into place, so that a full disk leaves the old evaluation.
    with translate_write_errors("run", one.run_folder.path), ExitStack() as files:
        write_json(files.enter_context(atomic_write(one.run_folder.evaluation_path)), one.result)
        write_npz(files.enter_context(atomic_write(one.run_folder.items_path)), one.item_values)
        if one.page_arrays:
            write_npz(files.enter_context(atomic_write(one.run_folder.samples_path)), one.page_arrays)
        else:
            one.run_folder.samples_path.unlink(missing_ok=True)


def _compute_evaluation_to_save(run: WritableRun, options: EvaluateOptions) -> EvaluationToSave:
    """Evaluate the encoder of one run and its baselines without writing files."""
    started = time.perf_counter()
    metrics, loaded = select_metrics(options.metrics), LoadedRun.from_run(run, options)
    trained = loaded.build_context("trained", loaded.model)
    baselines = {} if options.alone else loaded.load_baselines_by_name()
    if options.classes:
        _check_zero_shot_classes(trained, options.classes, run)
    unmet = {metric.key: metric.find_unmet_requirement(trained) for metric in metrics}
    possible = [metric for metric in metrics if unmet[metric.key] is None]
    if not possible:  # the files of an earlier evaluation are kept
        raise build_no_computable_metric_error(build_skipped_metric_notes(metrics, unmet, {}, selected_by_name=True))
    if any(metric.key == "knn" for metric in possible):
        check_neighbor_count(options.neighbors, len(loaded.train))
    checkpoints = (
        find_checkpoints_by_epoch(run, before_epoch=loaded.trained_epochs) if options.checkpoints == "all" else {}
    )
    dims = tuple(options.dims) or loaded.training_settings.matryoshka_dims[1:]
    truncated = [trained.with_truncated_features(size) for size in dims]
    steps = (len(baselines) + 1 + len(truncated) + len(checkpoints)) * len(possible) + (not options.alone)
    results: dict[str, dict[str, MetricResult | float]] = {}
    plans: list[tuple[int, ArraysByName]] = []
    samples: ArraysByName = {}
    plan_note: str | None = None
    with loaded.loader_config.bars.open_step_bar(steps) as begin_step:
        # Each baseline's context is built when its turn comes, so that the features of one are in memory at a time.
        built = (loaded.build_context(name, encoder) for name, encoder in baselines.items())
        for context in chain(built, [trained], truncated):
            results[context.name] = _compute_possible_finite_results(context, possible, run, begin_step)
        for epoch, model in iter_intermediate_model_copies(run, loaded.model, checkpoints):
            context = loaded.build_context(f"epoch {epoch}", model)
            results[context.name] = _compute_possible_finite_results(context, possible, run, begin_step)
            if plan := loaded.compute_plan_arrays_at_epoch(model, epoch):
                plans.append((epoch, plan))
        if not options.alone:
            begin_step(f"{run.path.name}: samples for contraport report")
            samples, plan_note = _collect_page_arrays_and_plan_note(
                loaded, trained, plans, has_probe="linear_probe" in results["trained"]
            )
    draws = _values_and_draws_by_encoder(results)
    skipped = build_skipped_metric_notes(metrics, unmet, results["trained"], selected_by_name=len(options.metrics) > 0)
    evaluation = _build_evaluation(loaded, baselines, results, draws, skipped, plan_note, started=started)
    items: ArraysByName = {}
    for key, one in results["trained"].items():
        if isinstance(one, MetricResult) and one.is_mean_of_items:
            items[key] = one.item_values
            if one.positions is not None:
                items[f"{key}/positions"] = one.positions
    return EvaluationToSave(run, loaded.test, evaluation, samples, draws["trained"], items)


def _build_evaluation(
    loaded: LoadedRun,
    baselines: Mapping[str, Model | RawInputEncoder],
    results: Mapping[str, ResultByMetric],
    draws: Mapping[str, ValueAndDrawsByMetric],
    skipped: list[str],
    plan_note: str | None,
    *,
    started: float,
) -> Evaluation:
    """Build the contents of `evaluation.json` from the results of all encoders."""
    options = loaded.evaluate_options
    rows = {
        name: {key: one.value if isinstance(one, MetricResult) else one for key, one in of.items()}
        for name, of in results.items()
    }
    differences = {name: _compute_differences_by_metric(draws["trained"], draws[name]) for name in baselines}
    notes = [
        *skipped,
        *build_data_and_model_notes(loaded, baselines.get("raw"), results["trained"]),
        *build_unseen_class_notes(loaded, results["trained"]),
        *build_few_shot_notes(results["trained"], loaded.train.labels),
        *build_sampled_metric_notes(results["trained"], num_test_items=len(loaded.test)),
        *build_zero_width_interval_notes(results["trained"]),
        *build_worsened_geometry_notes(rows, differences),
        *([] if plan_note is None else [plan_note]),
    ]
    class_names = loaded.train.class_names
    return Evaluation(
        {
            "data": describe_test_data(loaded.training_settings, loaded.test, options),
            "epochs": loaded.trained_epochs,
            "train_items": len(loaded.train),
            "test_items": len(loaded.test),
            "uniformity_items": min(len(loaded.test), MAX_PAIRWISE_METRIC_ITEMS),
            "classes": None if class_names is None else len(class_names),
            "neighbors": options.neighbors,
            "seconds": round(time.perf_counter() - started, 3),
            "verdict": find_verdict_text(
                rows["trained"],
                differences,
                num_test_items=len(loaded.test),
                is_encoder_frozen=loaded.training_settings.freezes_all_encoders_throughout,
                has_several_views=len(loaded.model.shapes) > 1,
                could_use_weighted_ngrams=all(shape == TEXT_SHAPE for shape in loaded.model.shapes)
                and not isinstance(loaded.model.encoders[0], WeightedNgramCountEncoder),
            ),
            "notes": notes,
            "not_measured": skipped,
            "rows": rows,
            "intervals": {
                name: {key: percentile_interval(values)._asdict() for key, (_, values) in of.items()}
                for name, of in draws.items()
            },
            "differences": {
                name: {key: difference._asdict() for key, difference in of.items()} for name, of in differences.items()
            },
            "pairs_of_runs": 0,
            "directions": _retrieval_metrics_by_direction(results["trained"]),
        }
    )


def _collect_page_arrays_and_plan_note(
    loaded: LoadedRun, trained: EvalContext, plans: Sequence[tuple[int, ArraysByName]], *, has_probe: bool
) -> tuple[ArraysByName, str | None]:
    """Return the arrays for the report page, and a note if they include no plan."""
    samples = collect_test_figure_arrays(trained, has_probe=has_probe) | (
        collect_worst_probe_error_arrays(trained) if has_probe else {}
    )
    # Scored pairs are pairs of the training data.
    if is_training_data(loaded.training_settings, loaded.evaluate_options.data):
        samples |= collect_worst_pair_arrays(loaded.run_folder, loaded.train)
    if loaded.final_objective is None:
        return samples, loaded.no_plan_note
    try:
        samples |= compute_sample_plan_arrays(
            loaded.model, loaded.final_objective, loaded.test, loaded.views, loaded.loader_config
        )
    except UsageError as error:  # the objective needs labels, for example
        return samples, f"No plan of test items is drawn: the items lack what the objective needs. {error}"
    if plans and loaded.trained_epochs is not None:
        plans = [*plans, (loaded.trained_epochs, samples)]
        samples["plan_epochs"] = np.array([epoch for epoch, _ in plans])
        samples["plans"] = np.stack([arrays["plan"] for _, arrays in plans])
        samples["targets"] = np.stack([arrays["target"] for _, arrays in plans])
    return samples, None


def _compute_possible_finite_results(
    context: EvalContext, metrics: Sequence[Metric], run: WritableRun, begin_step: BeginStep
) -> dict[str, MetricResult | float]:
    """Compute the metrics whose requirements are met, and keep finite results."""
    results = {}
    for metric in metrics:
        begin_step(f"{run.path.name}, {context.name}: {metric.title}")
        # Those of the trained encoder were checked before.
        if context.name == "trained" or metric.find_unmet_requirement(context) is None:
            result = metric(context)
            if np.isfinite(result.item_values if isinstance(result, MetricResult) else result).all():
                results[metric.key] = result
    return results


def _values_and_draws_by_encoder(results: Mapping[str, ResultByMetric]) -> Mapping[str, ValueAndDrawsByMetric]:
    """Return the value and bootstrap draws of each metric, by encoder.

    Only metrics with values per item are included. All encoders share the resamples. The items of link metrics are the
    rows of a coupling, with resamples of their own.
    """
    by_place = {
        (name, key): result
        for name, of in results.items()
        for key, result in of.items()
        if isinstance(result, MetricResult)
    }
    draws: dict[str, dict[str, tuple[float, Array]]] = {name: {} for name in results}
    for size in {len(result.item_values) for result in by_place.values()}:
        of_size = {place: result for place, result in by_place.items() if len(result.item_values) == size}
        for (name, key), values in draw_bootstrap_values(of_size).items():
            draws[name][key] = by_place[name, key].value, values
    return draws


def _check_zero_shot_classes(context: EvalContext, classes: Sequence[str], run: WritableRun) -> None:
    """Raise `UsageError` unless the given class names allow zero-shot classification."""
    names = context.test.class_names
    check(names is not None, f"classes: need labels, but {context.test.name!r} has none.", "labels")
    views = ", ".join(context.test.view_names)
    message = f"classes: need a run of texts and another view, but {run.path} was trained on {views}."
    check(context.supports_zero_shot, message, "views")
    first = ", ".join((names or ())[:3])
    message = f"classes: must be {len(names or ())} names, in the order of {first}, ..., got {len(classes)}."
    check(len(classes) == len(names or ()), message, "number")


def _retrieval_metrics_by_direction(results: ResultByMetric) -> dict[str, dict[str, dict[str, float]]]:
    """Return retrieval metrics by direction between views, with confidence intervals."""
    parts = {
        (part, key): part_result
        for key, result in results.items()
        if isinstance(result, MetricResult)
        for part, part_result in result.results_by_column().items()
    }
    directions: dict[str, dict[str, dict[str, float]]] = {}
    for (part, key), values in draw_bootstrap_values(parts).items():
        entry = {"value": parts[part, key].value, **percentile_interval(values)._asdict()}
        directions.setdefault(part, {})[key] = entry
    return directions


def _compute_differences_by_metric(
    draws: ValueAndDrawsByMetric, others: ValueAndDrawsByMetric, *, comparisons: int = 1
) -> dict[str, Difference]:
    """Compute the paired difference of each metric between two encoders, by metric key."""
    shared = [key for key in draws if key in others]
    return {key: paired_bootstrap_difference(draws[key], others[key], comparisons=comparisons) for key in shared}
