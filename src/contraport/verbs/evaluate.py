"""What `contraport evaluate` is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from contraport.errors import check
from contraport.importing import imported
from contraport.options import known, one_of, option, whole
from contraport.verbs import EXTRA, LEARN, Verb
from contraport.verbs._of_run import OfEncoder, Run, is_run


def _names_of_measures(name: str, value: Sequence[str]) -> None:
    imported("contraport.measures:chosen")(value)


def _templates(name: str, value: Any) -> None:
    given = isinstance(value, list | tuple) and len(value) > 0
    good = given and all(isinstance(text, str) and text.count("{}") == 1 for text in value)
    check(good, f"{name}: expected texts with {{}} once in each, such as 'a photo of a {{}}.', got {value!r}.")


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(OfEncoder):
    """What `contraport.evaluate` is asked; see there for each."""

    run: Sequence[str | Path | Run] | str | Path | Run = field(
        kw_only=False, metadata=known("the run folder, or several, which are compared item by item.", exists=is_run)
    )
    data: str | Path | Any | None = option(
        None,
        "what to measure on: as in `contraport train`, or from Python a pair (train, test), each taken whole "
        "unless it has a test split of its own; default: the run's own.",
    )
    test_data: str | Path | Any | None = option(
        None,
        "what to judge on instead, such as the same classes under other conditions: its test split; default: that of "
        "`data`.",
    )
    measures: Sequence[str] = option(
        (),
        "names of measures, or of groups of them, or all (see `contraport list measures`); default: those that are "
        "usual.",
        check=_names_of_measures,
    )
    checkpoints: Literal["last", "all"] = option(
        "last",
        "last, or all: also the models that `keep_every` kept on the way, so that numbers are known epoch by epoch.",
        check=one_of("last", "all"),
    )
    alone: bool = option(
        False,
        "measure the trained encoder alone: neither what it began as nor the raw inputs, and nothing for the page to "
        "draw, which together take most of the time.",
    )
    neighbors: int = option(20, "how many vote in kNN.", check=whole(1))
    classes: Sequence[str] = option(
        (),
        "what the classes are called in a text, in the order of their numbers, for zero-shot classification by a run "
        "of texts and images, say; default: as the data call them.",
    )
    templates: Sequence[str] = option(
        ("a photo of a {}.",),
        "texts that name a class in the place of {}; of several the mean is taken.",
        check=_templates,
    )


VERB = Verb(
    EvaluateOptions,
    "contraport.evaluation:evaluate",
    "Measure a trained encoder on held-out items.",
    about="""
        Every number is about the representation, not the projection, beside the raw inputs and the same encoder before
        training: `untrained` where its weights were drawn, `given` where it began with weights. What the data do not
        allow (accuracies without labels, say) is told in `notes`, as is which epoch's model it is where the training
        was extended and has not ended.

        Every number has a bootstrap interval of 95 % over the test items, in `intervals`, and so has its
        difference from the other rows, and from other runs on the same test items, in `differences`; of
        more than two runs these hold for all pairs of runs at once (Bonferroni's correction). Nothing is fitted
        again, so that they say nothing of other training items or seeds. The result is also written to each
        run's `evaluation.json`, and what the page draws to its `samples.npz`; what a measure says of each test item,
        where the number is the mean of that, to `items.npz`.
    """,
    examples=(
        "contraport evaluate runs/photos",
        "contraport evaluate runs/a runs/b --measures accuracy robustness",
        "contraport evaluate runs/photos --checkpoints all --measures knn",
        'contraport evaluate runs/captioned --classes bag coat --templates "a {}" "a photo of a {}"',
    ),
    show="contraport.cli.console:print_evaluation",
    extra=EXTRA,
    group=LEARN,
    page="evaluating",
)
