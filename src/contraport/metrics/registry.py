"""What a measure is: a row that says what it is called, what it needs and how it is written, and its function."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from contraport._utils.formatting import format_options
from contraport.errors import check, unknown_name_error

if TYPE_CHECKING:
    from contraport.metrics.eval_context import EvalContext
    from contraport.metrics.intervals import ItemValues, MetricResult

Better = Literal["higher", "lower", "neither"]

_NUMBER, _AT = "{}", "@"


class Requirement(NamedTuple):
    """What a subject must have for a measure.

    Attributes:
        met: returns what is true where it has it.
        otherwise: what is said where it has it not.
        rare: whether most data or runs have it not, so that it is said only where the measure was asked for by name.
    """

    met: Callable[[EvalContext], object]
    otherwise: str
    rare: bool = False


LABELS = Requirement(attrgetter("labelled"), "there are no labels")
CLASSES = Requirement(attrgetter("has_several_classes"), "the labels are of one class only")
NUMBERS = Requirement(attrgetter("numbered"), "there are no numbers to be told", rare=True)
DIFFERENT_NUMBERS = Requirement(lambda subject: len(subject.numbers[1].unique()) > 1, "all test items have one number")
DOMAINS = Requirement(lambda subject: subject.domains > 1, "there are not two domains", rare=True)
SEEN_DOMAINS = Requirement(
    attrgetter("shares_domains"), "the test items are of domains that no training item is of", rare=True
)
SHARED_CLASSES = Requirement(
    lambda subject: subject.min_classes_without_a_domain > 1, "domains have classes of their own", rare=True
)
IMAGES = Requirement(attrgetter("channels"), "the items are no images with pixels in [0, 1]", rare=True)
GREY_OR_RGB = Requirement(lambda subject: subject.channels <= {1, 3}, "JPEG has 1 or 3 channels", rare=True)
ONE_TOWER = Requirement(attrgetter("has_shared_encoder"), "each view has an encoder of its own")
CHANGES = Requirement(
    lambda subject: subject.views.forgotten is None,
    "the random changes were an object, which no folder holds",
    rare=True,
)
COMPARABLE = Requirement(attrgetter("comparable"), "the views have embeddings of different sizes")
INFO_NCE = Requirement(lambda subject: subject.temperature is not None, "the objective is not InfoNCE", rare=True)
TEXTS = Requirement(
    attrgetter("supports_zero_shot"),
    "the run has no encoder of texts beside another one to compare with",
    rare=True,
)
WEIGHTS = Requirement(attrgetter("trainable"), "there are no weights to tune", rare=True)
SEVERAL_OF_A_CLASS = Requirement(lambda subject: subject.largest_class > 1, "no class has two test items")
AS_MANY_AS_CLASSES = Requirement(
    lambda subject: len(subject.test) >= subject.classes, "there are fewer test items than classes"
)
ENOUGH = Requirement(lambda subject: len(subject.test) > 10, "there are no more than 10 test items")


@dataclass(frozen=True)
class Metric:
    """A row of the registry.

    Attributes:
        key: what it is called in `evaluation.json` and by ``--measures``; with ``{}`` where a number stands.
        title: how the key is written where people read it: Linear probe, Recall@1.
        summary: what it says, in a sentence.
        group: what it belongs to; the name of a group stands for all of it.
        better: which direction is better.
        unit: what its values count.
        pattern: how a value is written.
        needs: what the subject must have; else it is left out, and the first that is missing is told.
        numbers: which numbers are measured unless others are asked for; none where the key has none.
        usual: whether it is measured where nothing is asked for.
        function: what measures, of a subject (and the number): a value for each test item, of which the mean is taken;
            a `MetricResult`, which says how the items become a number; or one number, which then has no interval.
    """

    key: str
    title: str
    summary: str
    group: str
    better: Better
    unit: str
    pattern: str
    needs: tuple[Requirement, ...]
    numbers: tuple[int, ...]
    usual: bool
    function: Callable[..., ItemValues | MetricResult | float]

    def __call__(self, subject: EvalContext) -> ItemValues | MetricResult | float:
        """Return what the measure says of each test item, or of all at once."""
        return self.function(subject)

    def value(self, subject: EvalContext) -> float:
        """Return the measure of a subject as one number."""
        # Here, not above: the rows are known without numpy.
        from contraport.metrics.intervals import as_metric_result

        said = as_metric_result(self(subject))
        return said if isinstance(said, float) else said.value

    def at(self, number: int) -> Metric:
        """Return the measure at a number: its row, and its function of a subject alone."""
        return replace(
            self,
            key=self.key.replace(_NUMBER, str(number)),
            title=self.title.replace(_NUMBER, str(number)),
            numbers=(),
            function=partial(self.function, number=number),
        )

    def each(self) -> tuple[Metric, ...]:
        """Return the measure at each of its numbers, or itself where it has none."""
        return tuple(map(self.at, self.numbers)) or (self,)

    def lacks(self, subject: EvalContext) -> Requirement | None:
        """Return what the subject lacks for this measure, if it lacks something."""
        for need in self.needs:
            if not need.met(subject):
                return need
        return None

    @property
    def in_percent(self) -> bool:
        """Whether its values are written in per cent, and differences of them are points."""
        return self.pattern.endswith("%}")

    def written(self, value: float) -> str:
        """Return a value as it is written, without the sign of one that is written as zero.

        >>> from contraport.metrics import metric_by_key
        >>> metric_by_key("tolerance").written(-0.0004), metric_by_key("tolerance").written(-0.004)
        ('0.000', '-0.004')
        """
        text = self.pattern.format(value)
        return text.lstrip("+-") if not set(text) & set("123456789") else text

    def is_worse(self, value: float, other: float) -> bool:
        """Return whether a value is worse than another, and is not written like it.

        >>> from contraport.metrics import metric_by_key
        >>> metric_by_key("knn").is_worse(0.91, 0.95), metric_by_key("knn").is_worse(0.95001, 0.95004)
        (True, False)
        """
        worse = {"higher": value < other, "lower": value > other, "neither": False}
        return worse[self.better] and self.written(value) != self.written(other)


METRICS: dict[str, Metric] = {}
"""All measures by their keys, in the order in which they are shown."""


def measure(
    title: str,
    *,
    group: str,
    better: Better,
    unit: str,
    pattern: str,
    needs: Sequence[Requirement] = (),
    numbers: Sequence[int] = (),
    usual: bool = True,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enter a function of a subject in the registry, under its own name; see `Metric` for the rest.

    The summary is the first sentence of its docstring. The title is the name as people read it: letters of either
    case, spaces or hyphens for underscores. A function that also takes a `number` has ``@{}`` behind its title; its key
    is its name, ``@`` and the number.

    >>> from contraport.metrics import METRICS, measure
    >>> @measure("Widest feature", group="geometry", better="neither", unit="squared", pattern="{:.2f}")
    ... def widest_feature(subject):
    ...     \"""Largest variance of a feature.\"""
    ...     return float(subject.test_x.var(dim=0).max())
    >>> METRICS.pop("widest_feature").summary
    'Largest variance of a feature.'
    """

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        name = function.__name__
        check(name not in METRICS, f"measure: there is a measure {name!r} already.")
        summary = (inspect.getdoc(function) or "").split("\n\n")[0].replace("\n", " ")
        check(bool(summary), f"measure: {name!r} has no docstring, which is what is shown of it.")
        key = f"{name}{_AT}{_NUMBER}" if numbers else name
        words = key.replace("_", " ").capitalize()
        check(_key_of(title) == key, f"measure: {name!r}: expected its name as the title, {words!r}, got {title!r}.")
        METRICS[name] = Metric(
            key=key,
            title=title,
            summary=summary,
            group=group,
            better=better,
            unit=unit,
            pattern=pattern,
            needs=tuple(needs),
            numbers=tuple(numbers),
            usual=usual,
            function=function,
        )
        return function

    return enter


def _key_of(name: str) -> str:
    """Return the key that a name is in whatever writing, as of a title.

    >>> _key_of("Linear probe"), _key_of("Recall@1")
    ('linear_probe', 'recall@1')
    """
    return name.strip().lower().replace("-", "_").replace(" ", "_")


def metric_by_key(key: str) -> Metric | None:
    """Return the measure that a key of `evaluation.json` stands for, or none where there is none of that name.

    >>> from contraport.metrics import metric_by_key
    >>> metric_by_key("knn").title, metric_by_key("typo")
    ('kNN', None)
    """
    name, _, number = key.partition(_AT)
    found = METRICS.get(name)
    if found is None or bool(found.numbers) != bool(re.fullmatch("[1-9][0-9]{0,8}", number)):
        return None
    return found.at(int(number)) if found.numbers else found


def metrics_of_rows(rows: Iterable[Iterable[str]]) -> list[Metric]:
    """Return the measures that some keys stand for, in the order of the registry; keys of no measure are left out."""
    keys = {key for row in rows for key in row}
    return _in_order([found for key in keys if (found := metric_by_key(key)) is not None])


def _in_order(measures: Iterable[Metric]) -> list[Metric]:
    """Return measures in the order of the registry, and those of one function by their numbers."""
    order = {name: place for place, name in enumerate(METRICS)}
    placed = []
    for one in measures:
        name, _, number = one.key.partition(_AT)
        placed.append((order[name], int(number or 0), one))
    return [one for _, _, one in sorted(placed, key=itemgetter(0, 1))]


def families(measures: Iterable[Metric]) -> dict[str, str]:
    """Return what measures are called by the names of their functions: those that differ in a number alone are one.

    >>> from contraport.metrics import chosen, families
    >>> list(families(chosen(["knn", "recall", "noise"])).values())
    ['kNN', 'Recall@1, 5 and 10', 'Noise@1 to 5']
    """
    numbers: dict[str, list[str]] = {}
    for measure in measures:
        name, _, number = measure.key.partition(_AT)
        numbers.setdefault(name, []).append(number)
    return {name: METRICS[name].title.replace(_NUMBER, _spoken(of)) for name, of in numbers.items()}


def _spoken(numbers: Sequence[str]) -> str:
    if len(numbers) > 3:
        return f"{numbers[0]} to {numbers[-1]}"
    return " and ".join(filter(None, (", ".join(numbers[:-1]), numbers[-1])))


def chosen(names: Sequence[str] = ()) -> list[Metric]:
    """Return the measures of some names: keys or titles, with or without their number, groups, or "all"; of none, the
    usual.

    Raises:
        UsageError: a name of no measure and no group.

    >>> from contraport.metrics import chosen
    >>> [measure.key for measure in chosen(["uniformity", "knn"])]
    ['knn', 'uniformity']
    """
    groups = {row.group for row in METRICS.values()}
    found: dict[str, Metric] = {}
    for name in names or [row for row, entry in METRICS.items() if entry.usual]:
        asked = _key_of(name)
        one = metric_by_key(asked)
        if one is None and asked in METRICS:  # without its number
            one = METRICS[asked]
        rows = [one] if one else [row for row in METRICS.values() if asked in (_key_of(row.group), "all")]
        if not rows:
            apart = [part.strip() for part in name.split(",")]
            check(
                len(apart) == 1,
                f"measures: expected one name each, as in {format_options(measures=apart)}, got {name!r}.",
            )
            raise unknown_name_error("measures", name, {*METRICS, *groups, "all"})
        found |= {single.key: single for row in rows for single in row.each()}
    return _in_order(found.values())
