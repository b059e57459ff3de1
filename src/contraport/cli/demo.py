"""`contraport demo`, which trains two encoders on small digits and compares them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contraport.cli.result_printers import print_table
from contraport.cli.utility_command_options import DEMO_COMMAND_SPEC, DemoOptions
from contraport.evaluation.evaluate import evaluate
from contraport.evaluation.evaluation_results import metric_rows_of_encoders
from contraport.reporting import report
from contraport.runs import Run
from contraport.training.train import train

DEMO_OBJECTIVES = ("nt-xent", "gca-uot")  # names of the two that the demo compares

# Options of both training runs, which reach their final accuracy in a minute on two cores.
DEMO_TRAIN_OPTIONS: dict[str, Any] = {
    "data": "digits",
    "encoder": "small-cnn",
    "epochs": 30,
    "batch_size": 128,
    "lr": 2e-3,
    "temperature": 0.2,
}


@dataclass(frozen=True)
class DemoResult:
    """Evaluations, training times and report page that `contraport.demo` returns.

    Attributes:
        evaluations: Result of `contraport.evaluate`, by objective.
        training_seconds: Training time in seconds, by objective.
        page: Path of the HTML report that compares the runs.
    """

    evaluations: Mapping[str, Mapping[str, Any]]
    training_seconds: Mapping[str, float]
    page: Path


@DEMO_COMMAND_SPEC.with_option_parameters
def demo(arguments: dict[str, Any]) -> DemoResult:
    """Train two encoders on digits, with nt-xent and gca-uot, and compare them.

    Raises:
        UsageError: `out` contains other files under the name of a run.
    """
    options = DemoOptions(**arguments)
    recipe = DEMO_TRAIN_OPTIONS | ({} if options.epochs is None else {"epochs": options.epochs})
    recipe["keep_every"] = max(1, recipe["epochs"] // 3)  # for the accuracy and plans over epochs in the report
    out = Path(options.out)
    runs: list[Run] = []
    for name in DEMO_OBJECTIVES:
        settings = recipe | {"seed": options.seed, "progress": options.progress}
        try:
            runs.append(train(objective=name, out=out / name, overwrite=True, **settings))
        except KeyboardInterrupt as error:  # its message would resume this training alone
            raise KeyboardInterrupt("stopped; the same command starts over") from error
        recipe["threads"] = runs[0].settings().threads  # chosen by speed, which would differ between the runs
    # In one call, which also gives their paired differences.
    results = evaluate(runs, checkpoints="all", progress=options.progress)
    return DemoResult(
        evaluations={run.name: results[str(run.path)] for run in runs},
        training_seconds={run.name: run.metrics_rows()[-1]["seconds"] for run in runs},
        page=report(runs, out=out / "report.html", overwrite=True),
    )


def print_demo_result(result: DemoResult) -> None:
    """Print a table of metrics and the path of the report."""
    rows = {name: evaluation["rows"] for name, evaluation in result.evaluations.items()}
    before = rows[DEMO_OBJECTIVES[0]]
    columns = {"raw pixels": before["raw"], "untrained encoder": before["untrained"]}
    columns |= {name: measured["trained"] for name, measured in rows.items()}
    seconds = {"metric": "Training, s", "raw pixels": "-", "untrained encoder": "-"}
    seconds |= {name: f"{duration:.0f}" for name, duration in result.training_seconds.items()}
    print_table("digits: frozen features of held-out items", [*metric_rows_of_encoders(columns), seconds])
    print(f"report: {result.page}")
