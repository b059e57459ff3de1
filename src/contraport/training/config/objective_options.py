"""Options of the comparison: objective, target, negatives, momentum, prototypes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contraport.errors import check
from contraport.options import Options, int_in_range, one_of, option
from contraport.schedules import is_learned_temperature, parse_learned_temperature, parse_momentum, parse_temperature


def _temperature(name: str, value: Any) -> None:
    if is_learned_temperature(value):
        parse_learned_temperature(value)
    else:
        parse_temperature(value, steps=1)


def _momentum(name: str, value: Any) -> None:
    parse_momentum(value, steps=1)


@dataclass(frozen=True, kw_only=True)
class ObjectiveSettings(Options):
    """By which objective embeddings are compared, and with which others."""

    objective: str | Any | None = option(
        "nt-xent",
        "a name (see `contraport list objectives`), or a module that is called with the projections of two views. Of "
        "more than two views an objective for two takes the mean over all pairs, unless it takes all, as cmc does.",
        group="objective",
    )
    objective_settings: dict[str, Any] | None = option(
        None, 'further settings of a named objective, such as ``{"iterations": 5}``.'
    )
    temperature: float | str | None = option(
        None,
        "of a named objective, or its course over the training: start:end or start:end:shape, the shape cosine "
        "(default) or linear, such as 0.5:0.1:cosine; or learn, from the objective's own on, or from another "
        "number, as in learn:0.07; default: the objective's own.",
        check=_temperature,
    )
    constraint: str | None = option(
        None,
        "which plans are allowed: free, simplex, rows, columns, balanced:iterations=5, unbalanced:relaxation=0.2 or "
        "tsallis:order=2, with their settings; or a course, tighten:every=N, from rows only to balanced by 1, 2, 4 "
        "and 8 iterations, each for N epochs, or relax:every=N, the reverse; default: the objective's own.",
    )
    target: str | None = option(
        None,
        "which plan is wanted, instead of the objective's own: pairs, the views of an item; labels; "
        "domains:alpha=0.1,beta=0, an item's views, and with these weights other items of its domain and of others; "
        "neighbors:k=5, the nearest embeddings by the first views as given, or by features=FILE; soft:FILE, by how "
        "alike the rows of a file are (temperature=0.1), such as a teacher's features; matrix:FILE, by a matrix "
        "between the items, .npy or scipy's sparse .npz; shown, the views of an item and of those that show the same, "
        "as an image with several captions does, which is the default of pairs of which some do. A file of features is "
        "an .npy with a row for each training item, or an .npz that `contraport embed` wrote.",
    )
    teacher: str | Path | None = option(
        None,
        "features of the training items that another model has found, for objectives that ask for them, as guided and "
        "x-clr do: an .npy with a row for each training item, (items, k) or (items, views, k), or an .npz that "
        "`contraport embed` wrote.",
    )
    negatives: str = option(
        "in-batch",
        "what a query is compared with besides the batch: nothing (in-batch), the embeddings of earlier batches "
        "(queue), or some of a bank that keeps one for every item, the positive too (bank). Each view is then compared "
        "with each other in turn, and the mean is taken.",
        check=one_of("in-batch", "queue", "bank"),
        group="what embeddings are compared with",
    )
    queue_size: int | None = option(
        None,
        "how many embeddings of each view the queue keeps; default: as many as there are items, at most 65536.",
        check=int_in_range(1),
    )
    bank_negatives: int | None = option(
        None,
        "how many are drawn from the bank at each step; default: as many as there are items, at most 4096.",
        check=int_in_range(1),
    )
    momentum: float | str | None = option(
        None,
        "how much of itself a second, slow network keeps at each step; it gives the embeddings that the others are "
        "compared with. A number below 1, such as 0.99, or a course, such as 0.99:1:cosine; the fewer steps, the "
        "smaller; default: no second network.",
        check=_momentum,
    )
    predictor: bool = option(
        False,
        "put a head on the projections that predicts the other view's embedding, which is then held fixed.",
    )
    prototypes: int | None = option(
        None,
        "compare with so many learned vectors instead: predict to which of them another view is assigned.",
        check=int_in_range(2),
    )
    predict: str | None = option(
        None,
        "l1 or l2: compare nothing, and decode each view from each other with this error.",
        check=one_of("l1", "l2"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_negatives()
        self._check_predict()

    def _check_negatives(self) -> None:
        needs = "expected nothing, as it belongs to negatives"
        check(
            self.queue_size is None or self.negatives == "queue", f"queue_size: {needs}='queue', got {self.queue_size}."
        )
        check(
            self.bank_negatives is None or self.negatives == "bank",
            f"bank_negatives: {needs}='bank', got {self.bank_negatives}.",
        )
        check(
            self.prototypes is None or self.target is None,
            f"target: prototypes want what items are assigned to; expected nothing, got {self.target!r}.",
        )
        check(
            self.prototypes is None or self.teacher is None,
            f"teacher: prototypes ask for none; expected nothing, got {str(self.teacher)!r}.",
        )
        check(
            self.prototypes is None or self.negatives == "in-batch",
            "prototypes: stand in the place of negatives; expected negatives='in-batch' with them, got "
            f"{self.negatives!r}.",
        )

    def _check_predict(self) -> None:
        if self.predict is None:
            return
        own = [
            name
            for name in ("objective", "objective_settings", "temperature", "constraint", "target", "teacher")
            if getattr(self, name)
        ]
        check(not own, f"{own[0] if own else ''}: predict compares nothing and has none; give one of the two.")
        alone = self.negatives == "in-batch" and self.momentum is None and not self.predictor
        check(
            alone and self.prototypes is None,
            "predict: compares nothing; expected neither negatives, momentum, predictor nor prototypes with it.",
        )
