"""Every named way to spoil data or to vary them: known mismatches, corruptions, domains, rare classes."""

from __future__ import annotations

import math
from typing import NamedTuple

from contraport.errors import check, unknown_name_error

CORRUPTIONS = ("noise", "blur", "brightness", "contrast", "occlusion", "jpeg")
"""What makes images worse; noise alone does it to vectors and time series too."""

SEVERITIES = (1, 2, 3, 4, 5)

DOMAINS = {
    "rotate": ("upright", "quarter", "half", "three-quarters"),
    "style": ("plain", "edges", "posterised", "inverted"),
}
"""By name, the domains that images are dealt to: turned by so much, or drawn in another style."""

_CLASS = "class"


class Mismatch(NamedTuple):
    """How many pairs are shuffled.

    Attributes:
        share: of all pairs.
        likely: whether partners are exchanged within a class, where they are harder to tell.
    """

    share: float
    likely: bool = False


class Corruption(NamedTuple):
    """What makes items worse, and how much, from 1 to 5."""

    kind: str
    severity: int


class DomainSpec(NamedTuple):
    """Which domains there are, and which of them alone is the test split's, if one is."""

    name: str
    left_out: str | None = None


def parse_mismatch(value: object) -> Mismatch:
    """Return what a share of mismatched pairs says, such as 0.2, or 0.2:class for partners of the same class.

    Raises:
        UsageError: it is none.

    >>> parse_mismatch(0.2), parse_mismatch("0.4:class")
    (Mismatch(share=0.2, likely=False), Mismatch(share=0.4, likely=True))
    """
    text, _, among = str(value).partition(":")
    expected = f"mismatch: expected a share from 0 to 1, such as 0.2, or 0.2:{_CLASS}, got {value!r}."
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    check(0 <= share <= 1 and among in ("", _CLASS) and not isinstance(value, bool), expected)
    return Mismatch(share, among == _CLASS)


def parse_imbalance(value: object) -> float:
    """Return how many times as many items the largest class is to have as the smallest, such as 100.

    Raises:
        UsageError: it is no number of 1 or more.

    >>> parse_imbalance("50")
    50.0
    """
    try:
        ratio = math.nan if isinstance(value, bool) else float(str(value))
    except ValueError:
        ratio = math.nan
    check(1 <= ratio < math.inf, f"imbalance: expected a number of 1 or more, such as 100, got {value!r}.")
    return ratio


def parse_corruption(text: object) -> Corruption:
    """Return the corruption that a text names, KIND or KIND:SEVERITY, of severity 3 unless it says so.

    Raises:
        UsageError: an unknown kind or severity.

    >>> parse_corruption("blur:2")
    Corruption(kind='blur', severity=2)
    """
    kind, _, level = str(text).partition(":")
    if kind not in CORRUPTIONS:
        raise unknown_name_error("corrupt", kind, CORRUPTIONS)
    check(
        level in ("", *map(str, SEVERITIES)),
        f"corrupt: expected a severity from {SEVERITIES[0]} to {SEVERITIES[-1]}, as in {kind}:3, got {text!r}.",
    )
    return Corruption(kind, int(level or 3))


def parse_corruptions(text: object) -> tuple[Corruption, ...]:
    """Return the corruptions that a text names, separated by commas, in the order in which they are made.

    Raises:
        UsageError: an unknown kind or severity, or a kind more than once.

    >>> [one.kind for one in parse_corruptions("noise:3,blur:2")]
    ['noise', 'blur']
    """
    found = tuple(map(parse_corruption, str(text).split(",")))
    kinds = {one.kind for one in found}
    check(len(kinds) == len(found), f"corrupt: expected each kind once, got {text!r}.")
    return found


def parse_domains(text: object) -> DomainSpec:
    """Return the domains that a text names: rotate or style, or with one that is left out, as in style:edges.

    Raises:
        UsageError: an unknown name, or domain.

    >>> parse_domains("style:edges")
    DomainSpec(name='style', left_out='edges')
    """
    name, _, left_out = str(text).partition(":")
    if name not in DOMAINS:
        raise unknown_name_error("domains", name, DOMAINS)
    if left_out and left_out not in DOMAINS[name]:
        raise unknown_name_error(f"domains: {name}", left_out, DOMAINS[name])
    return DomainSpec(name, left_out or None)
