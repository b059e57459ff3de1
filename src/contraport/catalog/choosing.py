"""What to use when: a row for each situation that people are in, and what was measured of it.

`contraport list objectives` tells of each objective where it is of use, and docs/choosing.md has the whole table, each
sentence with the claim behind it and the verdict that the measurements allow.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Evidence(NamedTuple):
    """A claim that was put to a test.

    Attributes:
        suite: the suite of `benchmarks/suites`.
        number: which of its claims, from 0.
    """

    suite: str
    number: int


class Advice(NamedTuple):
    """A sentence of the table.

    Attributes:
        use: the objectives that it is about.
        says: what to do, in a sentence.
        evidence: the claims that it rests on; none: nothing was measured.
    """

    use: tuple[str, ...]
    says: str
    evidence: tuple[Evidence, ...] = ()


class Situation(NamedTuple):
    """A row of the table.

    Attributes:
        name: what people have, or want.
        advice: what to do then, sentence by sentence.
    """

    name: str
    advice: tuple[Advice, ...]


def _on(suite: str, *numbers: int) -> tuple[Evidence, ...]:
    return tuple(Evidence(suite, number) for number in numbers)


SITUATIONS = (
    Situation(
        "pairs that belong together",
        (
            Advice(
                ("nt-xent", "info-nce"),
                "Begin with nt-xent, or with info-nce where each view has an encoder of its own, and choose the "
                "temperature.",
                _on("sensitivity", 0),
            ),
            Advice(
                ("gca-ince", "iot"),
                "A balanced plan (gca-ince, iot) is the same problem with both marginals held; it gained nothing here.",
                (*_on("gca", 0), *_on("constraint", 0), *_on("sensitivity", 1)),
            ),
            Advice(
                ("iot-uniform",),
                "A penalty for uneven plans spreads the embeddings: iot-uniform, with uniformity=1.",
                _on("constraint", 4),
            ),
            Advice(
                ("alpha-cl",),
                "Weigh the negatives (alpha-cl, by any rule) rather than not (quadratic).",
                _on("alpha", 0, 1),
            ),
        ),
    ),
    Situation(
        "pairs of which some are wrong",
        (
            Advice(
                (),
                "Where a fifth of the pairs or more may be wrong, and the data have two given views, leave out what "
                "`contraport train --audit` flags; with one in twenty wrong nothing was gained.",
                _on("beyond", 0, 1, 2, 8, 9, 10),
            ),
            Advice(
                (),
                "Weights by the batch's own plan (--weights plan) and soft targets (--target neighbors:k=5) are no "
                "match for leaving out.",
                (*_on("beyond", 5, 6, 14), *_on("mismatch", 0, 1)),
            ),
            Advice(
                (),
                "Where partners were exchanged within a class, look at what it flags before you trust it.",
                (*_on("beyond", 7, 15), *_on("mismatch", 2)),
            ),
            Advice(
                ("rince", "gca-uot"),
                "Where two views tell little of one another, rince and gca-uot do better than info-nce, whether pairs "
                "are wrong or not.",
                _on("beyond", 11, 12, 13),
            ),
            Advice(
                ("rince", "gca-rince", "gca-uot"),
                "Elsewhere losses that bear with wrong pairs, and plans that let mass go, were no surer way: try them "
                "where the audit cannot be, on data of one view.",
                (*_on("gca", 2, 3), *_on("beyond", 3, 4), *_on("sensitivity", 2)),
            ),
        ),
    ),
    Situation(
        "negatives that are alike",
        (
            Advice(
                ("debiased", "hard-negative"),
                "Correct for the share of negatives that are of one kind (debiased, hard-negative).",
                _on("needs", 1),
            ),
            Advice(("guided",), "Leave out those that a teacher finds too alike (guided)."),
            Advice(("x-clr",), "Or want what a teacher says of all of them (x-clr, --target soft:FILE)."),
        ),
    ),
    Situation(
        "classes or items that are rare",
        (
            Advice(
                ("gca-ince", "gca-uot"),
                "Give the items weights, and the plan these as its marginals (--weights with "
                "--constraint balanced:marginals=weights).",
            ),
        ),
    ),
    Situation(
        "several domains",
        (
            Advice(
                ("nt-xent",),
                "Say with --target domains:alpha=A,beta=B how much mass goes to other items of the domain, and of "
                "other domains. Mass between domains (beta) helped on one of two styles that were left out, and cost "
                "points where all styles were seen.",
                _on("domains", 0, 1),
            ),
        ),
    ),
    Situation(
        "more than two views",
        (
            Advice(
                ("cmc",),
                "Compare all of them (cmc), in all pairs or each with the first: six did better than two.",
                _on("multiview", 0, 1, 3),
            ),
            Advice(("mv-dhel",), "mv-dhel compares each item's views together, and items within a view."),
            Advice(
                (),
                "To predict one view from the other (--recipe predictive) needs no negatives, and did no worse.",
                _on("multiview", 2),
            ),
        ),
    ),
    Situation(
        "small batches",
        (
            Advice(
                ("dcl", "dhel", "sog-clr"),
                "Losses that leave the positive out of the negatives (dcl, dhel), or keep an average of each item "
                "(sog-clr), are made for them; with 32 items they could not be told from nt-xent.",
                _on("needs", 2),
            ),
            Advice(
                (),
                "Where there are few items, small batches do better than large ones for as many epochs.",
                _on("sensitivity", 3),
            ),
            Advice((), "Negatives can come from a queue (--negatives queue) or from larger batches (--cache_chunk)."),
            Advice(("byol", "barlow-twins", "vic-reg"), "Some need no negatives at all (byol, barlow-twins, vic-reg)."),
        ),
    ),
    Situation(
        "embeddings of few dimensions",
        (
            Advice(("t-simclr",), "In as few as four, use heavier tails (t-simclr).", _on("neighbour", 2)),
            Advice((), "In many, they could not be told from nt-xent.", _on("neighbour", 0, 1)),
        ),
    ),
    Situation(
        "labels",
        (Advice(("sup-con",), "Pull together all items of a class (sup-con, or --target labels).", _on("needs", 0)),),
    ),
    Situation(
        "texts, or texts and images",
        (
            Advice(
                ("info-nce", "sigmoid", "guided"),
                "Use what their trainers use, at a low temperature: info-nce, sigmoid where batches are large, guided "
                "where a teacher is at hand.",
            ),
        ),
    ),
)
"""All situations, in the order in which they are told."""


def advice() -> Iterator[tuple[Situation, Advice]]:
    """Yield each sentence with its situation."""
    for situation in SITUATIONS:
        for one in situation.advice:
            yield situation, one


def when_to_use(objective: str) -> str:
    """Return for which situations an objective is told, in a line; empty where it is told for none.

    >>> when_to_use("sup-con")
    'when to use it: labels'
    """
    names = dict.fromkeys(situation.name for situation, one in advice() if objective in one.use)
    return f"when to use it: {'; '.join(names)}" if names else ""
