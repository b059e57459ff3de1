"""Parsers of options that perturb data: mismatched pairs, corruptions, domains and class imbalance."""

from __future__ import annotations

import math
from typing import NamedTuple

from contraport.errors import check, unknown_name_error

CORRUPTIONS = ("noise", "blur", "brightness", "contrast", "occlusion", "jpeg")
"""Image corruptions; noise also applies to vectors and time series."""

SEVERITIES = (1, 2, 3, 4, 5)

DOMAINS = {
    "rotate": ("upright", "quarter", "half", "three-quarters"),
    "style": ("plain", "edges", "posterised", "inverted"),
}
"""Domains of each kind: rotations of images, or rendering styles."""

_CLASS = "class"


class Mismatch(NamedTuple):
    """Parsed option for mismatched pairs.

    Attributes:
        share: Share of all pairs that are mismatched on purpose.
        within_class: Whether partners are exchanged within a class, which is harder to detect.
    """

    share: float
    within_class: bool = False


class Corruption(NamedTuple):
    """Parsed corruption of items: a kind with a severity from 1 to 5."""

    kind: str
    severity: int


class DomainSpec(NamedTuple):
    """Parsed option for domains: the kind, and the domain held out for testing, if any."""

    name: str
    left_out: str | None = None


def parse_mismatch(value: object) -> Mismatch:
    """Parse an option for mismatched pairs: a share such as 0.2, or 0.2:class to exchange partners within a class.

    Raises:
        UsageError: the value is not a share.

    >>> parse_mismatch(0.2), parse_mismatch("0.4:class")
    (Mismatch(share=0.2, within_class=False), Mismatch(share=0.4, within_class=True))
    """
    text, _, among = str(value).partition(":")
    expected = f"mismatch: must be a share from 0 to 1, such as 0.2 or 0.2:{_CLASS}, got {value!r}."
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    check(0 <= share <= 1 and among in ("", _CLASS) and not isinstance(value, bool), expected)
    return Mismatch(share, among == _CLASS)


def parse_imbalance(value: object) -> float:
    """Parse the ratio of the sizes of the largest and the smallest class, such as 100.

    Raises:
        UsageError: the value is not a number >= 1.

    >>> parse_imbalance("50")
    50.0
    """
    try:
        ratio = math.nan if isinstance(value, bool) else float(str(value))
    except ValueError:
        ratio = math.nan
    check(1 <= ratio < math.inf, f"imbalance: must be a finite number >= 1, such as 100, got {value!r}.")
    return ratio


def parse_corruption(text: object) -> Corruption:
    """Parse one corruption, KIND or KIND:SEVERITY; the default severity is 3.

    Raises:
        UsageError: unknown kind or severity.

    >>> parse_corruption("blur:2")
    Corruption(kind='blur', severity=2)
    """
    kind, _, level = str(text).partition(":")
    if kind not in CORRUPTIONS:
        raise unknown_name_error("corrupt", kind, CORRUPTIONS)
    check(
        level in ("", *map(str, SEVERITIES)),
        f"corrupt: must have a severity from {SEVERITIES[0]} to {SEVERITIES[-1]}, as in {kind}:3, got {text!r}.",
        "severity",
    )
    return Corruption(kind, int(level or 3))


def parse_corruptions(text: object) -> tuple[Corruption, ...]:
    """Parse a list of corruptions separated by commas, in order of application.

    Raises:
        UsageError: unknown kind or severity, or a repeated kind.

    >>> [one.kind for one in parse_corruptions("noise:3,blur:2")]
    ['noise', 'blur']
    """
    corruptions = tuple(map(parse_corruption, str(text).split(",")))
    kinds = {one.kind for one in corruptions}
    check(len(kinds) == len(corruptions), f"corrupt: must name each kind once, got {text!r}.", "duplicate")
    return corruptions


def parse_domains(text: object) -> DomainSpec:
    """Parse the option `domains`: ``rotate`` or ``style``; ``style:edges`` holds out the domain ``edges``.

    Raises:
        UsageError: unknown kind or domain.

    >>> parse_domains("style:edges")
    DomainSpec(name='style', left_out='edges')
    """
    name, _, left_out = str(text).partition(":")
    if name not in DOMAINS:
        raise unknown_name_error("domains", name, DOMAINS)
    if left_out and left_out not in DOMAINS[name]:
        raise unknown_name_error(f"domains: {name}", left_out, DOMAINS[name])
    return DomainSpec(name, left_out or None)
