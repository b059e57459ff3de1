"""What a measure is: a row that says what it is called, what it needs and how it is written, and its function."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from contraport.errors import check, unknown_name
from contraport.formatting import written_as

if TYPE_CHECKING:
    from contraport.measures.intervals import ByItem, Finding
    from contraport.measures.subject import Subject

Better = Literal["higher", "lower", "neither"]

_NUMBER, _AT = "{}", "@"


class Need(NamedTuple):
    """What a subject must have for a measure.

    Attributes:
        met: returns what is true where it has it.
        otherwise: what is said where it has it not.
        rare: whether most data or runs have it not, so that it is said only where the measure was asked for by name.
    """

    met: Callable[[Subject], object]
    otherwise: str
    rare: bool = False


LABELS = Need(attrgetter("labelled"), "there are no labels")
CLASSES = Need(attrgetter("several_classes"), "the labels are of one class only")
NUMBERS = Need(attrgetter("numbered"), "there are no numbers to be told", rare=True)
DIFFERENT_NUMBERS = Need(lambda subject: len(subject.numbers[1].unique()) > 1, "all test items have one number")
DOMAINS = Need(lambda subject: subject.domains > 1, "there are not two domains", rare=True)
SEEN_DOMAINS = Need(attrgetter("domains_seen"), "the test items are of domains that no training item is of", rare=True)
SHARED_CLASSES = Need(
    lambda subject: subject.classes_beside_domains > 1, "domains have classes of their own", rare=True
)
IMAGES = Need(attrgetter("channels"), "the items are no images with pixels in [0, 1]", rare=True)
GREY_OR_RGB = Need(lambda subject: subject.channels <= {1, 3}, "JPEG has 1 or 3 channels", rare=True)
ONE_TOWER = Need(attrgetter("shares_tower"), "each view has an encoder of its own")
CHANGES = Need(
    lambda subject: subject.views.forgotten is None,
    "the random changes were an object, which no folder holds",
    rare=True,
)
COMPARABLE = Need(attrgetter("comparable"), "the views have embeddings of different sizes")
INFO_NCE = Need(lambda subject: subject.temperature is not None, "the objective is not InfoNCE", rare=True)
TEXTS = Need(
    attrgetter("names_classes"),
    "the run has no encoder of texts beside another one to compare with",
    rare=True,
)
WEIGHTS = Need(attrgetter("trainable"), "there are no weights to tune", rare=True)
SEVERAL_OF_A_CLASS = Need(lambda subject: subject.largest_class > 1, "no class has two test items")
AS_MANY_AS_CLASSES = Need(
    lambda subject: len(subject.test) >= subject.classes, "there are fewer test items than classes"
)
ENOUGH = Need(lambda subject: len(subject.test) > 10, "there are no more than 10 test items")


@dataclass(frozen=True)
class Measure:
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
            a `Finding`, which says how the items become a number; or one number, which then has no interval.
    """

    key: str
    title: str
    summary: str
    group: str
    better: Better
    unit: str
    pattern: str
    needs: tuple[Need, ...]
    numbers: tuple[int, ...]
    usual: bool
    function: Callable[..., ByItem | Finding | float]

    def __call__(self, subject: Subject) -> ByItem | Finding | float:
        """Return what the measure says of each test item, or of all at once."""
        return self.function(subject)

    def value(self, subject: Subject) -> float:
        """Return the measure of a subject as one number."""
        # Here, not above: the rows are known without numpy.
        from contraport.measures.intervals import finding_of

        said = finding_of(self(subject))
        return said if isinstance(said, float) else said.value

    def at(self, number: int) -> Measure:
        """Return the measure at a number: its row, and its function of a subject alone."""
        return replace(
            self,
            key=self.key.replace(_NUMBER, str(number)),
            title=self.title.replace(_NUMBER, str(number)),
            numbers=(),
            function=partial(self.function, number=number),
        )

    def each(self) -> tuple[Measure, ...]:
        """Return the measure at each of its numbers, or itself where it has none."""
        return tuple(map(self.at, self.numbers)) or (self,)

    def lacks(self, subject: Subject) -> Need | None:
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

        >>> from contraport.measures import measure_of
        >>> measure_of("tolerance").written(-0.0004), measure_of("tolerance").written(-0.004)
        ('0.000', '-0.004')
        """
        text = self.pattern.format(value)
        return text.lstrip("+-") if not set(text) & set("123456789") else text

    def is_worse(self, value: float, other: float) -> bool:
        """Return whether a value is worse than another, and is not written like it.

        >>> from contraport.measures import measure_of
        >>> measure_of("knn").is_worse(0.91, 0.95), measure_of("knn").is_worse(0.95001, 0.95004)
        (True, False)
        """
        worse = {"higher": value < other, "lower": value > other, "neither": False}
        return worse[self.better] and self.written(value) != self.written(other)


MEASURES: dict[str, Measure] = {}
"""All measures by their keys, in the order in which they are shown."""


def measure(
    title: str,
    *,
    group: str,
    better: Better,
    unit: str,
    pattern: str,
    needs: Sequence[Need] = (),
    numbers: Sequence[int] = (),
    usual: bool = True,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enter a function of a subject in the registry, under its own name; see `Measure` for the rest.

    The summary is the first sentence of its docstring. The title is the name as people read it: letters of either
    case, spaces or hyphens for underscores. A function that also takes a `number` has ``@{}`` behind its title; its key
    is its name, ``@`` and the number.

    >>> from contraport.measures import MEASURES, measure
    >>> @measure("Widest feature", group="geometry", better="neither", unit="squared", pattern="{:.2f}")
    ... def widest_feature(subject):
    ...     \"""Largest variance of a feature.\"""
    ...     return float(subject.test_x.var(dim=0).max())
    >>> MEASURES.pop("widest_feature").summary
    'Largest variance of a feature.'
    """

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        name = function.__name__
        check(name not in MEASURES, f"measure: there is a measure {name!r} already.")
        summary = (inspect.getdoc(function) or "").split("\n\n")[0].replace("\n", " ")
        check(bool(summary), f"measure: {name!r} has no docstring, which is what is shown of it.")
        key = f"{name}{_AT}{_NUMBER}" if numbers else name
        words = key.replace("_", " ").capitalize()
        check(_key_of(title) == key, f"measure: {name!r}: expected its name as the title, {words!r}, got {title!r}.")
        MEASURES[name] = Measure(
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


def measure_of(key: str) -> Measure | None:
    """Return the measure that a key of `evaluation.json` stands for, or none where there is none of that name.

    >>> from contraport.measures import measure_of
    >>> measure_of("knn").title, measure_of("typo")
    ('kNN', None)
    """
    name, _, number = key.partition(_AT)
    found = MEASURES.get(name)
    if found is None or bool(found.numbers) != bool(re.fullmatch("[1-9][0-9]{0,8}", number)):
        return None
    return found.at(int(number)) if found.numbers else found


def measures_of(rows: Iterable[Iterable[str]]) -> list[Measure]:
    """Return the measures that some keys stand for, in the order of the registry; keys of no measure are left out."""
    keys = {key for row in rows for key in row}
    return _in_order([found for key in keys if (found := measure_of(key)) is not None])


def _in_order(measures: Iterable[Measure]) -> list[Measure]:
    """Return measures in the order of the registry, and those of one function by their numbers."""
    order = {name: place for place, name in enumerate(MEASURES)}
    placed = []
    for one in measures:
        name, _, number = one.key.partition(_AT)
        placed.append((order[name], int(number or 0), one))
    return [one for _, _, one in sorted(placed, key=itemgetter(0, 1))]


def families(measures: Iterable[Measure]) -> dict[str, str]:
    """Return what measures are called by the names of their functions: those that differ in a number alone are one.

    >>> from contraport.measures import chosen, families
    >>> list(families(chosen(["knn", "recall", "noise"])).values())
    ['kNN', 'Recall@1, 5 and 10', 'Noise@1 to 5']
    """
    numbers: dict[str, list[str]] = {}
    for measure in measures:
        name, _, number = measure.key.partition(_AT)
        numbers.setdefault(name, []).append(number)
    return {name: MEASURES[name].title.replace(_NUMBER, _spoken(of)) for name, of in numbers.items()}


def _spoken(numbers: Sequence[str]) -> str:
    if len(numbers) > 3:
        return f"{numbers[0]} to {numbers[-1]}"
    return " and ".join(filter(None, (", ".join(numbers[:-1]), numbers[-1])))


def chosen(names: Sequence[str] = ()) -> list[Measure]:
    """Return the measures of some names: keys or titles, with or without their number, groups, or "all"; of none, the
    usual.

    Raises:
        UsageError: a name of no measure and no group.

    >>> from contraport.measures import chosen
    >>> [measure.key for measure in chosen(["uniformity", "knn"])]
    ['knn', 'uniformity']
    """
    groups = {row.group for row in MEASURES.values()}
    found: dict[str, Measure] = {}
    for name in names or [row for row, entry in MEASURES.items() if entry.usual]:
        asked = _key_of(name)
        one = measure_of(asked)
        if one is None and asked in MEASURES:  # without its number
            one = MEASURES[asked]
        rows = [one] if one else [row for row in MEASURES.values() if asked in (_key_of(row.group), "all")]
        if not rows:
            apart = [part.strip() for part in name.split(",")]
            check(
                len(apart) == 1, f"measures: expected one name each, as in {written_as(measures=apart)}, got {name!r}."
            )
            raise unknown_name("measures", name, {*MEASURES, *groups, "all"})
        found |= {single.key: single for row in rows for single in row.each()}
    return _in_order(found.values())
