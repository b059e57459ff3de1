"""`contraport demo`: two objectives on small digits, compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contraport.cli.config import DEMO, DemoOptions
from contraport.cli.console import print_table
from contraport.evaluation.evaluate import evaluate
from contraport.evaluation.result_tables import result_rows
from contraport.reporting import report
from contraport.training.train import train

OBJECTIVES = ("nt-xent", "gca-uot")

# What reaches its accuracy in a minute on two cores.
RECIPE: dict[str, Any] = {
    "data": "digits",
    "encoder": "small-cnn",
    "epochs": 30,
    "batch_size": 128,
    "lr": 2e-3,
    "temperature": 0.2,
}


@dataclass(frozen=True)
class DemoResult:
    """What `contraport.demo` found.

    Attributes:
        evaluations: what was measured of each run, by its objective, as `contraport.evaluate` tells it.
        seconds: how long each took to train, by its objective.
        page: the page that compares them.
    """

    evaluations: Mapping[str, Mapping[str, Any]]
    seconds: Mapping[str, float]
    page: Path


@DEMO.with_signature
def demo(given: dict[str, Any]) -> DemoResult:
    """Train an encoder on small digits with nt-xent and with gca-uot, and compare them on a page.

    Raises:
        UsageError: `out` holds something else under the name of a run.
    """
    asked = DemoOptions(**given)
    recipe = RECIPE | ({} if asked.epochs is None else {"epochs": asked.epochs})
    recipe["keep_every"] = max(1, recipe["epochs"] // 3)  # for the page: accuracy and plans on the way
    out = Path(asked.out)
    runs = [
        train(objective=name, seed=asked.seed, out=out / name, overwrite=True, progress=asked.progress, **recipe)
        for name in OBJECTIVES
    ]
    # Together: item by item, how they differ.
    measured = evaluate(runs, checkpoints="all", progress=asked.progress)
    return DemoResult(
        evaluations={run.name: measured[str(run.path)] for run in runs},
        seconds={run.name: run.metrics()[-1]["seconds"] for run in runs},
        page=report(runs, out=out / "report.html", overwrite=True),
    )


def print_demo_result(found: DemoResult) -> None:
    """Print what was measured of the two beside raw pixels and an untrained encoder, and where the page is."""
    rows = {name: evaluation["rows"] for name, evaluation in found.evaluations.items()}
    before = rows[OBJECTIVES[0]]
    columns = {"raw pixels": before["raw"], "untrained encoder": before["untrained"]}
    columns |= {name: measured["trained"] for name, measured in rows.items()}
    seconds = {"metric": "Training, s", "raw pixels": "-", "untrained encoder": "-"}
    seconds |= {name: f"{taken:.0f}" for name, taken in found.seconds.items()}
    print_table("digits: frozen features of held-out items", [*result_rows(columns), seconds])
    print(f"The page to look at: {found.page}")
