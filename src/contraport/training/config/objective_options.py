"""Options of the objective, its target, negatives and prototypes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contraport._utils.formatting import format_keyword_or_flag, format_options
from contraport.catalog.data_option_parsers import MINED_NEGATIVES_KEYWORD, MinedNegativesSpec, parse_mined_negatives
from contraport.errors import UsageError, check, check_positive
from contraport.options import BaseOptions, int_in_range, one_of, option
from contraport.schedules import (
    is_learned_temperature,
    parse_learned_temperature_start,
    parse_momentum_schedule,
    parse_temperature_schedule,
)

PROTOTYPES_FROM_TEACHER = "teacher"
"""Value of the option `prototypes` for distillation: the prototypes are a queue of the teacher's features."""


def _check_temperature(name: str, value: Any) -> None:
    """Raise `UsageError` unless a value is a valid temperature option."""
    if is_learned_temperature(value):
        parse_learned_temperature_start(value)
    else:
        parse_temperature_schedule(value, steps=1)


def parse_matryoshka_weights(value: Any) -> dict[int, float]:
    """Parse `matryoshka` into a loss weight per embedding size, largest size first.

    Raises:
        UsageError: it does not list different integers >= 1, with positive weights if any.

    >>> parse_matryoshka_weights("64:0.5,128"), parse_matryoshka_weights([128, 64])
    ({128: 1.0, 64: 0.5}, {128: 1.0, 64: 1.0})
    """
    message = f"matryoshka: must be different integers >= 1, such as 128,64,32 or 128:1,32:0.5, got {value!r}."
    weights: dict[int, float] = {}
    parts = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else ()
    for part in parts:
        size_text, colon, weight = str(part).partition(":")
        try:
            size, factor = int(size_text), float(weight) if colon else 1.0
        except ValueError as error:
            raise UsageError(message) from error
        check(size >= 1 and size not in weights, message)
        check_positive("matryoshka: weight", factor)
        weights[size] = factor
    check(len(weights) > 0, message)
    return dict(sorted(weights.items(), reverse=True))


def _check_negatives(name: str, value: Any) -> None:
    """Raise `UsageError` unless the option `negatives` has a valid value."""
    if str(value).partition(":")[0] == MINED_NEGATIVES_KEYWORD:
        parse_mined_negatives(value)
    else:
        one_of("in-batch", "queue", "bank", MINED_NEGATIVES_KEYWORD)(name, value)


def _check_at_least_2_or_teacher(name: str, value: Any) -> None:
    """Raise `UsageError` unless a value is an integer >= 2 or "teacher"."""
    if value != PROTOTYPES_FROM_TEACHER:
        message = f"{name}: must be an integer >= 2, or {PROTOTYPES_FROM_TEACHER!r}, got {value!r}."
        check(not isinstance(value, str), message)
        int_in_range(2)(name, value)


@dataclass(frozen=True, kw_only=True)
class ObjectiveSettings(BaseOptions):
    """Options of the objective: parts, schedules, target, and which embeddings it compares."""

    objective: str | Any | None = option(
        "nt-xent",
        "Objective: a name (see `contraport list objectives`), or in Python a module that is called with the "
        "projections of two views. `layout`, `kernel`, `constraint`, `target` and `divergence` replace parts of a "
        "named objective; start from `custom`, which is info-nce, or any other. With more than two views the loss is "
        "the mean over all pairs of views, unless the objective takes all views at once, as cmc does.",
        group="objective",
    )
    objective_settings: dict[str, Any] | None = option(
        None, 'Settings of a named objective, such as ``{"iterations": 5}``.'
    )
    temperature: float | str | None = option(
        None,
        "Temperature of the objective: a positive number; a schedule over the training, start:end or "
        "start:end:shape with shape cosine (the default) or linear, such as 0.5:0.1:cosine; or a learned temperature, "
        "learn or learn:START, such as learn:0.07; default: that of the objective.",
        check=_check_temperature,
    )
    constraint: str | None = option(
        None,
        "Constraint on the plan: free, simplex, rows, columns, balanced:iterations=5, unbalanced:relaxation=0.2, "
        "tsallis:order=2 or data-balanced:momentum=0.5 (balanced over the whole data, for small batches), each with "
        "its parameters. Or a schedule: tighten:every=N starts with rows and changes to balanced with 1, 2, 4 and 8 "
        "iterations, N epochs each; relax:every=N is the reverse; default: that of the objective.",
    )
    layout: str | None = option(
        None,
        "Layout, the pairs that are compared, in place of the objective's own: joint, cross (cross:symmetric=false), "
        "within-view, core-view or all-view-pairs; default: that of the objective.",
    )
    kernel: str | None = option(
        None,
        "Kernel in place of the objective's own: gibbs:cost=cosine (or chordal, dot, sqeuclidean, negative-cosine), "
        "student-t:df=5 or rational-quadratic, each with its parameters; or late-interaction:matching=max (or soft, "
        "transport), which compares an item by all its vectors: tokens, patches or time steps; default: that of the "
        "objective.",
    )
    divergence: str | None = option(
        None,
        "Divergence in place of the objective's own: kl, reverse-kl, rince:q=0.5, squared-l2, total-variation, "
        "hellinger, jensen-shannon, fenchel-young or target-cost; default: that of the objective.",
    )
    matryoshka: Sequence[int] | str | None = option(
        None,
        "Matryoshka training: apply the objective to several prefixes of the embeddings and add up the losses, so "
        "that each prefix can be used alone (`contraport embed --dims 32`). Prefix lengths, such as 128,64,32, or "
        "with weights of their losses, as in 128:1,32:0.5. The largest must be the size of the projection, or of the "
        "features if `projection` is 0; default: the whole embeddings only.",
        check=lambda _, value: parse_matryoshka_weights(value),
    )
    target: str | None = option(
        None,
        "Target plan, the pairs that belong together. pairs: views of the same item. labels: items of the same class. "
        "domains:alpha=0.1,beta=0: views of the same item; items of the same domain with weight alpha; items of other "
        "domains with weight beta. neighbors:k=5: nearest neighbors by the raw first views, or by features=FILE. "
        "soft:FILE: softmax of the similarities of the rows of FILE (temperature=0.1), such as a teacher's features. "
        "matrix:FILE: a matrix of weights between the items, .npy or scipy's sparse .npz. shown: views of items with "
        "equal content in one view, such as an image with several captions. A feature file is one written by "
        "`contraport embed`, matched by the row of each item in the data, or another .npy with one row per training "
        "item; default: the target of the objective; if that is pairs and some items share content, shown.",
    )
    teacher: str | Path | None = option(
        None,
        "Teacher for objectives that require one, such as guided and x-clr: a file with its features of the training "
        "items, written by `contraport embed` and matched by the row of each item in the data, or another .npy of "
        "shape (items, k) or (items, views, k); or a folder, of a run or of a model of timm or transformers, whose "
        "encoder computes them before the training.",
    )
    log_q: bool = option(
        False,
        "For a coupling of two sets: correct for the popularity of the columns. Batches contain a column in proportion "
        "to its number of training pairs, so as a negative it gets a weight of one over that number. Requires an "
        "objective in one direction (--objective_settings.symmetric false).",
    )
    negatives: str = option(
        "in-batch",
        "Source of negatives: in-batch; queue, which adds embeddings of earlier batches; bank, a memory bank with one "
        "embedding per item, which provides additional negatives and the positive; or mined, which adds to each item "
        "its k most similar wrong partners by the current encoder: mined:k=4,refresh=1,start=0,relative_margin=0.05, "
        "mined again every `refresh` epochs from epoch `start` on, with the settings of `contraport mine`. "
        "mined:FILE.npy reads the negatives from a file written by `contraport mine`. With queue, bank and mined the "
        "loss is the mean over all ordered pairs of views.",
        check=_check_negatives,
        group="negatives, momentum encoder, prototypes",
    )
    queue_size: int | None = option(
        None,
        "Number of embeddings per view in the queue; default: the number of items, at most 65536. With `--prototypes "
        "teacher`: number of the teacher's features in the queue; default: half the number of items, at most 8192.",
        check=int_in_range(1),
    )
    bank_negatives: int | None = option(
        None,
        "Number of negatives drawn from the bank per step; default: the number of items, at most 4096.",
        check=int_in_range(1),
    )
    momentum: float | str | None = option(
        None,
        "Momentum of a momentum encoder (an exponential moving average of the model), which computes the keys. A "
        "number below 1, such as 0.99, or a schedule, such as 0.99:1:cosine; use smaller values for fewer steps; "
        "default: no momentum encoder.",
        check=lambda _, value: parse_momentum_schedule(value, steps=1),
    )
    predictor: bool = option(
        False, "Add a prediction head (BYOL, SimSiam): it predicts the other view's embedding, which gets no gradient."
    )
    prototypes: int | str | None = option(
        None,
        "Number of learned prototypes (SwAV): each view predicts the prototype assignment of the other views. Or "
        "teacher: the prototypes are the teacher's features of the last queue_size items, and each view predicts the "
        "teacher's similarities of its item to them (distillation); default: no prototypes.",
        check=_check_at_least_2_or_teacher,
    )
    predict: str | None = option(
        None,
        "Predict each view from each other view in place of a contrastive objective, with the loss l1 or l2; default: "
        "no prediction.",
        check=one_of("l1", "l2"),
    )

    @property
    def matryoshka_dims(self) -> tuple[int, ...]:
        """Embedding sizes of Matryoshka training, largest first, empty if it is disabled."""
        return () if self.matryoshka is None else tuple(parse_matryoshka_weights(self.matryoshka))

    @property
    def mined_negatives_spec(self) -> MinedNegativesSpec | None:
        """Settings of mined negatives, or None if negatives are not mined."""
        is_mined = self.negatives.partition(":")[0] == MINED_NEGATIVES_KEYWORD
        return parse_mined_negatives(self.negatives) if is_mined else None

    def __post_init__(self) -> None:
        super().__post_init__()
        distills = self.prototypes == PROTOTYPES_FROM_TEACHER
        for name, kind in (("queue_size", "queue"), ("bank_negatives", "bank")):
            value = getattr(self, name)
            message = f"{name}: requires {format_options(negatives=kind)}, got {value} with {self.negatives!r}."
            is_used = self.negatives == kind or (name == "queue_size" and distills)
            check(value is None or is_used, message, "conflict")
        if self.prototypes is not None:
            # The target of the prototypes is computed: the assignment of the other views.
            check(self.target is None, "target: cannot be combined with prototypes.", "prototypes")
            message = "teacher: cannot be combined with learned prototypes; use prototypes='teacher'."
            check(self.teacher is None or distills, message, "prototypes")
            message = "teacher: required by prototypes of a teacher, not given. "
            message += f"Pass {format_keyword_or_flag('teacher')} with a folder or a file."
            check(self.teacher is not None or not distills, message, "missing")
            message = f"negatives: must be 'in-batch' with {format_options(prototypes=self.prototypes)}, "
            message += f"got {self.negatives!r}."
            check(self.negatives == "in-batch", message, "prototypes")
        if self.predict is not None:
            contrastive = (
                *("objective", "objective_settings", "temperature", "constraint", "layout", "kernel", "divergence"),
                *("matryoshka", "target", "teacher", "log_q"),
            )
            others = [name for name in (*contrastive, "momentum", "predictor", "prototypes") if getattr(self, name)]
            others += ["negatives"] * (self.negatives != "in-batch")
            if others:
                message = f"{others[0]}: cannot be combined with predict, which has no contrastive objective."
                raise UsageError(message, kind="predict")
