"""`contraport demo`: two objectives on small digits, compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from contraport.cli.console import print_table, result_rows
from contraport.evaluation import evaluate
from contraport.reporting import report
from contraport.training import train
from contraport.verbs.demo import VERB, DemoOptions

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


@VERB.keywords
def demo(given: dict[str, Any]) -> Path:
    """Train an encoder on small digits with nt-xent and with gca-uot, and return the page that compares them.

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
    results = [measured[str(run.path)] for run in runs]
    columns = {"raw pixels": results[0]["rows"]["raw"], "untrained encoder": results[0]["rows"]["untrained"]}
    columns |= {run.name: result["rows"]["trained"] for run, result in zip(runs, results, strict=True)}
    seconds = {"measure": "Training, s", "raw pixels": "-", "untrained encoder": "-"}
    seconds |= {run.name: f"{run.metrics()[-1]['seconds']:.0f}" for run in runs}
    print_table("digits: frozen features of held-out items", [*result_rows(columns), seconds])
    page = report(runs, out=out / "report.html", overwrite=True)
    print(f"The page to look at: {page}")
    return page
