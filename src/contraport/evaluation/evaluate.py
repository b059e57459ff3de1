"""`evaluate`: what a trained encoder is worth, beside what it began as and beside its inputs."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from contraport._utils.files import atomic_write, write_arrays, write_json
from contraport._utils.formatting import join_names
from contraport._utils.locks import lock_folder
from contraport._utils.progress import StepCallback
from contraport._version import __version__
from contraport.data import Dataset
from contraport.embedding import RawInputs
from contraport.encoders import Model
from contraport.errors import UsageError, check, report_write_errors
from contraport.evaluation.config import EVALUATE, EvaluateOptions
from contraport.evaluation.epoch_checkpoints import check_kept, epoch_checkpoint_files, load_epoch_models
from contraport.evaluation.evaluation import Evaluation, Evaluations
from contraport.evaluation.evaluator import Evaluator
from contraport.evaluation.mistaken import worst_error_samples
from contraport.evaluation.page_samples import Arrays, collect_samples
from contraport.evaluation.plan_samples import plans, stack_plans
from contraport.evaluation.split_loading import are_same_items, describe_test_data, is_training_data
from contraport.evaluation.unanimous import unanimous
from contraport.evaluation.worsened import worsened
from contraport.evaluation.worst import worst_pair_samples
from contraport.metrics import Metric, chosen, families, metrics_of_rows
from contraport.metrics.embedding_geometry import UNIFORMITY_ITEMS
from contraport.metrics.eval_context import EvalContext
from contraport.metrics.intervals import (
    Difference,
    ItemValues,
    MetricResult,
    as_metric_result,
    paired_bootstrap_difference,
    percentile_interval,
    resampled,
)
from contraport.metrics.probes import check_neighbors
from contraport.metrics.registry import CLASSES, Requirement
from contraport.runs import Run
from contraport.training.config import KEPT

CLASSES_NAMED = 5

Numbers = Mapping[str, tuple[float, ItemValues]]
"""By measure, a number, and what it becomes as the items are drawn again."""


@EVALUATE.with_signature
@torch.random.fork_rng(devices=[])
def evaluate(given: dict[str, Any]) -> Evaluation | Evaluations:
    """Return what the frozen encoder of a run is worth; of several runs in a sequence, what each is, by its path.

    The caller's random state stays as it is.

    Raises:
        UsageError: a wrong argument, or a run that is corrupt or not trained to its end; of it nothing was written.
    """
    asked = EvaluateOptions(**given)
    several = [asked.run] if isinstance(asked.run, str | Path | Run) else asked.run
    check(len(several) > 0, "run: expected one run folder or more, got none.")
    runs = [run if isinstance(run, Run) else Run(run) for run in several]
    folders = Counter(run.path.resolve() for run in runs)
    repeated = dict.fromkeys(str(run.path) for run in runs if folders[run.path.resolve()] > 1)
    check(not repeated, f"run: expected each once, got {', '.join(repeated)} more often.")
    judged: list[RunEvaluation] = []
    with ExitStack() as locks:
        for run in runs:
            run.check_is_run()
            lock = run.evaluation_lock_path.name  # not that of a training, which may go on meanwhile
            locks.enter_context(lock_folder(run.path, "evaluate", argument="run", name=lock))
        if asked.checkpoints == "all":
            check_kept(runs)
        for run in runs:
            judged.append(_judge(run, asked))
            _write(judged[-1])  # what comes after may take long, and fail
        for one in judged if len(judged) > 1 else ():
            found, one.result["pairs_of_runs"] = _between_runs(one, judged)
            one.result["differences"] |= found
            _write(one)
    results = Evaluations({str(one.run.path): one.result for one in judged})
    return judged[0].result if isinstance(asked.run, str | Path | Run) else results


class RunEvaluation(NamedTuple):
    """What was measured of one run.

    Attributes:
        run: its folder.
        test: the test items.
        result: what `evaluation.json` is to hold.
        samples: what `samples.npz` is to hold.
        numbers: of the trained encoder, by measure, the number, and what it becomes as the items are drawn again.
        items: by measure, what it says of each test item, where the number is the mean of that.
    """

    run: Run
    test: Dataset
    result: Evaluation
    samples: Arrays
    numbers: dict[str, tuple[float, ItemValues]]
    items: Arrays


def _write(one: RunEvaluation) -> None:
    now = one.run.model_epochs()
    check(now == one.result["epochs"], f"run: {one.run.path} got another model meanwhile; evaluate it again.")
    with (
        report_write_errors("run", one.run.path),
        ExitStack() as files,
    ):  # all are written before one takes its place, the last first
        write_json(files.enter_context(atomic_write(one.run.evaluation_path)), one.result)
        write_arrays(files.enter_context(atomic_write(one.run.items_path)), one.items)
        if one.samples:
            write_arrays(files.enter_context(atomic_write(one.run.samples_path)), one.samples)
        else:
            one.run.samples_path.unlink(missing_ok=True)


def _judge(run: Run, asked: EvaluateOptions) -> RunEvaluation:
    started = time.perf_counter()
    measures, bench = chosen(asked.measures), Evaluator.of(run, asked)
    trained, baselines = bench.subject("trained", bench.model), bench.baselines()
    if asked.classes:
        _check_classes(trained, asked.classes, run)
    needs = {measure.key: measure.lacks(trained) for measure in measures}
    possible = [measure for measure in measures if needs[measure.key] is None]
    if any(measure.key == "knn" for measure in possible):
        check_neighbors(asked.neighbors, len(bench.train))
    kept = epoch_checkpoint_files(run, before=bench.epochs) if asked.checkpoints == "all" else {}
    steps = (len(baselines) + 1 + len(kept)) * len(possible) + (not asked.alone)
    found: dict[str, dict[str, MetricResult | float]] = {}
    planned: list[tuple[int, Arrays]] = []
    samples: Arrays = {}
    undrawn: list[str] = []
    with bench.reader.bars.steps(steps) as step:
        for name, encoder in baselines.items():
            found[name] = _measured(bench.subject(name, encoder), possible, run, step)
        found["trained"] = _measured(trained, possible, run, step)
        for epoch, then in load_epoch_models(run, bench.model, kept):
            found[f"epoch {epoch}"] = _measured(bench.subject(f"epoch {epoch}", then), possible, run, step)
            planned += bench.plans_of(then, epoch)
        if not asked.alone:
            step(f"{run.path.name}: what the page draws")
            samples, undrawn = _drawn(bench, trained, planned, probed="linear_probe" in found["trained"])
    rows = {
        name: {key: one.value if isinstance(one, MetricResult) else one for key, one in of.items()}
        for name, of in found.items()
    }
    numbers = _numbers(found)
    differences = {name: _differences(numbers["trained"], numbers[name]) for name in baselines}
    not_measured = [
        *_not_measured(measures, needs, by_name=len(asked.measures) > 0),
        *_no_numbers(possible, found["trained"]),
    ]
    notes = [
        *not_measured,
        *_caveats(bench, baselines, found["trained"]),
        *unanimous(found["trained"]),
        *worsened(rows, differences),
        *undrawn,
    ]
    result = {
        "data": describe_test_data(bench.settings, bench.test, asked),
        "epochs": bench.epochs,
        "train_items": len(bench.train),
        "test_items": len(bench.test),
        "uniformity_items": min(len(bench.test), UNIFORMITY_ITEMS),
        "classes": len(bench.train.class_names) if bench.train.class_names is not None else None,
        "neighbors": asked.neighbors,
        "seconds": round(time.perf_counter() - started, 3),
        "notes": notes,
        "not_measured": not_measured,
        "rows": rows,
        "intervals": {
            name: {key: percentile_interval(draws)._asdict() for key, (_, draws) in of.items()}
            for name, of in numbers.items()
        },
        "differences": {name: _plain(of) for name, of in differences.items()},
        "pairs_of_runs": 0,
        "directions": _directions(found["trained"]),
    }
    items = {key: of.items for key, of in found["trained"].items() if isinstance(of, MetricResult) and of.is_mean}
    return RunEvaluation(run, bench.test, Evaluation(result), samples, numbers["trained"], items)


def _drawn(
    bench: Evaluator, trained: EvalContext, planned: Sequence[tuple[int, Arrays]], *, probed: bool
) -> tuple[Arrays, list[str]]:
    """Return what the page draws, and why it draws no plan where it does not."""
    samples = collect_samples(trained, probed=probed) | (worst_error_samples(trained) if probed else {})
    if is_training_data(bench.settings, bench.asked.data):  # the pairs are those of the training
        samples |= worst_pair_samples(bench.run, bench.train)
    if isinstance(bench.objective, str):
        return samples, [bench.objective]
    try:
        samples |= plans(bench.model, bench.objective, bench.test, bench.views, bench.reader)
    except UsageError as error:  # it asks for labels, say
        return samples, [f"No plan of test items is drawn, as they lack what the objective asks for: {error}"]
    if planned and bench.epochs is not None:
        samples |= stack_plans([*planned, (bench.epochs, samples)])
    return samples, []


def _caveats(
    bench: Evaluator, baselines: Mapping[str, Model | RawInputs], found: Mapping[str, MetricResult | float]
) -> list[str]:
    """Return what is to be known of the model, the raw inputs and the classes before the numbers are read."""
    caveat, raw = bench.run.caveat(), baselines.get("raw")
    told = [*bench.notes, *([] if caveat is None else [caveat])]
    if bench.asked.checkpoints == "all" and not epoch_checkpoint_files(bench.run, before=None):
        told.append(f"{bench.run.path} kept no model on its way: it has the numbers of its last one alone.")
    unknown = sorted(bench.run.config().keys() - KEPT.keys())
    if unknown:
        names = ", ".join(map(repr, unknown))
        told.append(
            f"{bench.run.config_path} has {names}, which contraport {__version__} does not know and passes over: "
            "another version trained the run."
        )
    if isinstance(raw, RawInputs) and raw.side is not None:
        told.append(f"Raw inputs: the images shrunk to {raw.side} × {raw.side} pixels.")
    learns = any(CLASSES in measure.needs and measure.group != "clustering" for measure in metrics_of_rows([found]))
    return told + (_strange_classes(bench) if learns else [])


def _strange_classes(bench: Evaluator) -> list[str]:
    """Say how many test items are of classes that no training item has, which a probe can only get wrong."""
    if bench.train.labels is None or bench.test.labels is None:
        return []
    strange = bench.test.labels[~torch.isin(bench.test.labels, bench.train.labels)]
    if len(strange) == 0:
        return []
    names = bench.test.class_names
    classes = [str(label) if names is None else names[label] for label in strange.unique().tolist()]
    shown = join_names(classes[:CLASSES_NAMED]) + (" and others" if len(classes) > CLASSES_NAMED else "")
    which = (
        "All test items" if len(strange) == len(bench.test) else f"{len(strange):,} of {len(bench.test):,} test items"
    )
    return [f"{which} are of classes that no training item has ({shown}): a probe and kNN are wrong on each of them."]


def _measured(
    subject: EvalContext, measures: Sequence[Metric], run: Run, step: StepCallback
) -> dict[str, MetricResult | float]:
    """Return what each measure says that the subject allows, and show which is at work; what is no number is none."""
    found = {}
    for measure in measures:
        step(f"{run.path.name}, {subject.name}: {measure.title}")
        if measure.lacks(subject) is None:
            said = as_metric_result(measure(subject))
            if np.isfinite(said.items if isinstance(said, MetricResult) else said).all():
                found[measure.key] = said
    return found


def _numbers(found: Mapping[str, Mapping[str, MetricResult | float]]) -> dict[str, dict[str, tuple[float, ItemValues]]]:
    """Return the numbers that are of test items, encoder by encoder, under the same draws of these for all."""
    by_item = {
        (name, key): finding
        for name, of in found.items()
        for key, finding in of.items()
        if isinstance(finding, MetricResult)
    }
    numbers: dict[str, dict[str, tuple[float, ItemValues]]] = {name: {} for name in found}
    for (name, key), draws in resampled(by_item).items():
        numbers[name][key] = by_item[name, key].value, draws
    return numbers


def _check_classes(subject: EvalContext, classes: Sequence[str], run: Run) -> None:
    """Raise `UsageError` unless the names are those of the classes, and the run can compare texts with items."""
    known = subject.test.class_names
    check(known is not None, f"classes: {subject.test.name!r} has no labels to judge by, got {list(classes)}.")
    names = ", ".join(subject.test.view_names)
    check(
        subject.supports_zero_shot,
        f"classes: {run.path} was trained on {names}; expected a run of texts and of something that they describe.",
    )
    expected = f"classes: expected {len(known or ())} names, in the order of {', '.join((known or ())[:3])}, ..."
    check(len(classes) == len(known or ()), f"{expected}, got {len(classes)}.")


def _directions(found: Mapping[str, MetricResult | float]) -> dict[str, dict[str, dict[str, float]]]:
    """Return the numbers that are means over directions, from view to view, direction by direction."""
    parts = {
        (part, key): one
        for key, finding in found.items()
        if isinstance(finding, MetricResult)
        for part, one in finding.by_part().items()
    }
    told: dict[str, dict[str, dict[str, float]]] = {}
    for (part, key), draws in resampled(parts).items():
        told.setdefault(part, {})[key] = {"value": parts[part, key].value, **percentile_interval(draws)._asdict()}
    return told


def _plain(differences: Mapping[str, Difference]) -> dict[str, dict[str, float]]:
    return {key: difference._asdict() for key, difference in differences.items()}


def _differences(numbers: Numbers, others: Numbers, *, comparisons: int = 1) -> dict[str, Difference]:
    """Return how much larger each number is than another encoder's, item by item the same."""
    return {
        key: paired_bootstrap_difference(numbers[key], others[key], comparisons=comparisons)
        for key in numbers
        if key in others
    }


def _between_runs(
    one: RunEvaluation, judged: Sequence[RunEvaluation]
) -> tuple[dict[str, dict[str, dict[str, float]]], int]:
    """Return how much larger the numbers of a run are than those of each other run on the same test items.

    The intervals of a measure hold for all pairs of these runs at once; how many pairs these are comes with them.
    """
    others = [
        other
        for other in judged
        if other is not one and one.result["data"] == other.result["data"] and are_same_items(one.test, other.test)
    ]
    pairs = math.comb(len(others) + 1, 2)
    found = {
        str(other.run.path): _plain(_differences(one.numbers, other.numbers, comparisons=pairs)) for other in others
    }
    return found, pairs


def _no_numbers(measures: Sequence[Metric], found: Mapping[str, Any]) -> list[str]:
    """Say which measures gave NaN or infinity, as one of somebody's own may."""
    lacking = [measure for measure in measures if measure.key not in found]
    return [f"Left out, as NaN or infinity came out: {', '.join(families(lacking).values())}."] if lacking else []


def _not_measured(measures: Sequence[Metric], needs: Mapping[str, Requirement | None], *, by_name: bool) -> list[str]:
    """Say which measures lack what they need, and what that is, a sentence for each need."""
    lacking: dict[str, list[Metric]] = {}
    for measure in measures:
        need = needs[measure.key]
        if need is not None and (by_name or not need.rare):
            lacking.setdefault(need.otherwise, []).append(measure)
    return [f"Not measured, as {reason}: {', '.join(families(of).values())}." for reason, of in lacking.items()]
