"""Parsers of options such as augmentations, corruptions and mined negatives."""

from __future__ import annotations

import math
from typing import NamedTuple

from contraport._utils.spec_parser import parse_spec
from contraport.errors import check, check_integer, check_name, is_integer, is_number, unknown_name_error

AUGMENT_LEVELS = ("weak", "standard", "strong")
"""Strengths of the default augmentations, in increasing order; what they do depends on the kind of data."""
FEATURE_SCALED_NOISE_NAMES = ("scaled-noise", "noise")
"""Names of the noise augmentation in units of each feature's deviation; ``noise`` is its name in older runs."""
ISOTROPIC_NOISE_NAME = "isotropic-noise"
"""Name of the noise augmentation in one unit for all features: the root mean square of the feature deviations."""
MAX_STRENGTH_BY_AUGMENT = {
    ISOTROPIC_NOISE_NAME: math.inf,
    **dict.fromkeys(FEATURE_SCALED_NOISE_NAMES, math.inf),
    "mixup": 1.0,
}
"""Largest strength of each augmentation that accepts a strength."""
AUGMENT_NAMES = ("none", *AUGMENT_LEVELS, *MAX_STRENGTH_BY_AUGMENT)
"""Names of all augmentations."""
CORRUPTION_KINDS = ("noise", "blur", "brightness", "contrast", "occlusion", "jpeg")
"""Kinds of corruptions of images; noise also applies to vectors and time series."""
CORRUPTION_SEVERITIES = (1, 2, 3, 4, 5)
"""Severities of a corruption, from the mildest to the strongest."""
DOMAINS_BY_SHIFT = {
    "rotate": ("upright", "quarter", "half", "three-quarters"),
    "style": ("plain", "edges", "posterised", "inverted"),
}
"""Names of the domains of each kind of domain shift: rotations of images, or rendering styles."""


class AugmentSpec(NamedTuple):
    """Name of an augmentation, and its strength or None for the default."""

    name: str
    strength: float | None = None


class MismatchSpec(NamedTuple):
    """Share of pairs to mismatch on purpose, optionally within classes only."""

    share: float
    within_class: bool = False


class CorruptionSpec(NamedTuple):
    """Kind of a corruption and its severity from 1 to 5."""

    kind: str
    severity: int


class DomainShiftSpec(NamedTuple):
    """Kind of domain shift (rotate or style), and the held-out domain, if any."""

    kind: str
    held_out: str | None = None


MINING_SAMPLINGS = ("top", "random")
"""Ways to choose hard negatives among the candidates: the most similar, or random ones."""


class MiningRule(NamedTuple):
    """Rule that selects hard negatives among the candidates most similar to an anchor.

    Attributes:
        k: number of negatives of an anchor.
        range_min: number of most similar negatives to skip.
        range_max: number of most similar negatives to consider; None: `range_min` plus k plus the number of positives,
            with ten times k if a margin or a maximum score excludes candidates.
        relative_margin: excludes candidates whose score is above ``p - margin * |p|``, where p is the lowest score of
            the anchor's positives; None: no such margin.
        absolute_margin: excludes candidates whose score is above ``p - margin``; None: no such margin.
        max_score: excludes candidates whose score is higher; None: no limit.
        min_score: excludes candidates whose score is lower; None: no limit.
        sampling: which of the considered negatives to take: the most similar (``"top"``), or ``"random"`` ones.
    """

    k: int = 5
    range_min: int = 0
    range_max: int | None = None
    relative_margin: float | None = None
    absolute_margin: float | None = None
    max_score: float | None = None
    min_score: float | None = None
    sampling: str = "top"

    def check_values(self, prefix: str = "") -> None:
        """Raise `UsageError` if a setting is invalid."""
        check_integer(f"{prefix}k", self.k)
        check_integer(f"{prefix}range_min", self.range_min, 0)
        if self.range_max is not None:
            message = f"{prefix}range_max: must be >= range_min + k = {self.range_min + self.k}, got {self.range_max}."
            check(is_integer(self.range_max) and self.range_min + self.k <= self.range_max < 2**64, message)
        for name in ("relative_margin", "absolute_margin", "max_score", "min_score"):
            value = getattr(self, name)
            message = f"{prefix}{name}: must be a finite number, got {value!r}."
            check(value is None or (is_number(value) and math.isfinite(value)), message)
        check_name(f"{prefix}sampling", self.sampling, MINING_SAMPLINGS)

    def resolve_range_max(self, num_positives: int) -> int:
        """Return how many of the most similar candidates to consider as negatives."""
        if self.range_max is not None:
            return self.range_max
        excludes = any(value is not None for value in (self.relative_margin, self.absolute_margin, self.max_score))
        return self.range_min + self.k * (10 if excludes else 1) + num_positives


class MinedNegativesSpec(NamedTuple):
    """Rule and schedule of hard-negative mining, or a file of negatives.

    Attributes:
        rule: Rule that selects the negatives.
        epochs_between_minings: Number of epochs from one mining to the next.
        epochs_before_mining: Number of epochs before the first mining, with random negatives.
        file: File with the positions of the negatives, as `contraport mine` writes it; None: mined in training.
    """

    rule: MiningRule = MiningRule()
    epochs_between_minings: int = 1
    epochs_before_mining: int = 0
    file: str | None = None


MINED_NEGATIVES_KEYWORD = "mined"
"""Value of the option `negatives` that stands for mined hard negatives; settings follow after a colon."""


def parse_mined_negatives(text: str) -> MinedNegativesSpec:
    """Parse an option such as ``mined``, ``mined:k=8,refresh=2`` or ``mined:FILE.npy``.

    Raises:
        UsageError: unknown setting, a value out of range, or a file given with other settings.

    >>> parse_mined_negatives("mined:k=8,refresh=2").rule[:4]
    (8, 0, None, 0.05)
    """
    names = (*MiningRule._fields, "refresh", "start", "file")
    settings = dict(
        parse_spec(
            "negatives",
            text,
            {MINED_NEGATIVES_KEYWORD: names},
            unnamed_setting_by_name={MINED_NEGATIVES_KEYWORD: "file"},
        ).settings
    )
    if "file" in settings:
        check(len(settings) == 1, f"negatives: a file excludes other settings, got {text!r}.", "conflict")
        return MinedNegativesSpec(file=str(settings["file"]))
    refresh, start = (settings.pop(name, default) for name, default in (("refresh", 1), ("start", 0)))
    check_integer("negatives: refresh", refresh)
    check_integer("negatives: start", start, 0)
    has_limit = bool({"relative_margin", "absolute_margin", "max_score"} & settings.keys())
    defaults = {"k": 4} if has_limit else {"k": 4, "relative_margin": 0.05}
    rule = MiningRule(**defaults | settings)  # type: ignore[arg-type]  # checked below
    rule.check_values("negatives: ")
    return MinedNegativesSpec(rule, int(refresh), int(start))


def parse_augment(text: object) -> AugmentSpec:
    """Parse the name of an augmentation, optionally with ``:`` and a strength.

    Raises:
        UsageError: unknown name, a strength for an augmentation without one, or a strength out of range.

    >>> parse_augment("strong"), parse_augment("mixup:0.3")
    (AugmentSpec(name='strong', strength=None), AugmentSpec(name='mixup', strength=0.3))
    """
    valid = {name: ("strength",) if name in MAX_STRENGTH_BY_AUGMENT else () for name in AUGMENT_NAMES}
    name, settings = parse_spec(
        "augment", text, valid, unnamed_setting_by_name=dict.fromkeys(MAX_STRENGTH_BY_AUGMENT, "strength")
    )
    strength = settings.get("strength")
    if strength is None:
        check(":" not in str(text), f"augment: must be a name, noise:0.2 or mixup:0.5, got {text!r}.", "no_strength")
        return AugmentSpec(name)
    limit = MAX_STRENGTH_BY_AUGMENT[name]
    expected = "a positive number" if limit == math.inf else f"a number in (0, {limit:g}]"
    in_range = not isinstance(strength, str) and 0 < strength <= limit and strength < math.inf
    check(in_range, f"augment: the strength of {name} must be {expected}, got {text!r}.")
    return AugmentSpec(name, float(strength))


def parse_mismatch(value: object) -> MismatchSpec:
    """Parse a share of pairs to mismatch: ``0.2``, or ``0.2:class`` within classes.

    Raises:
        UsageError: the value is not a share.

    >>> parse_mismatch(0.2), parse_mismatch("0.4:class")
    (MismatchSpec(share=0.2, within_class=False), MismatchSpec(share=0.4, within_class=True))
    """
    text, _, among = str(value).partition(":")
    expected = f"mismatch: must be a share from 0 to 1, such as 0.2 or 0.2:class, got {value!r}."
    share = _float_or_nan(text)
    check(0 <= share <= 1 and among in ("", "class"), expected)
    return MismatchSpec(share, among == "class")


def parse_largest_to_smallest_class_ratio(value: object) -> float:
    """Parse the size of the largest class divided by that of the smallest.

    Raises:
        UsageError: the value is not a number >= 1.

    >>> parse_largest_to_smallest_class_ratio("50")
    50.0
    """
    ratio = _float_or_nan(value)
    check(1 <= ratio < math.inf, f"imbalance: must be a finite number >= 1, such as 100, got {value!r}.")
    return ratio


def parse_corruptions(text: object) -> tuple[CorruptionSpec, ...]:
    """Parse a list of corruptions in order of application, such as "noise,blur:2".

    The default severity is 3.

    Raises:
        UsageError: unknown kind or severity, or a repeated kind.

    >>> parse_corruptions("noise,blur:2")
    (CorruptionSpec(kind='noise', severity=3), CorruptionSpec(kind='blur', severity=2))
    """
    corruptions = []
    for part in str(text).split(","):
        kind, _, level = part.partition(":")
        check_name("corrupt", kind, CORRUPTION_KINDS)
        message = f"corrupt: must have a severity from 1 to {CORRUPTION_SEVERITIES[-1]}, as in {kind}:3, got {part!r}."
        check(level in ("", *map(str, CORRUPTION_SEVERITIES)), message, "severity")
        corruptions.append(CorruptionSpec(kind, int(level or 3)))
    kinds = {one.kind for one in corruptions}
    check(len(kinds) == len(corruptions), f"corrupt: must name each kind once, got {text!r}.", "duplicate")
    return tuple(corruptions)


def parse_domain_shift(text: object) -> DomainShiftSpec:
    """Parse a kind of domain shift, optionally with a held-out domain.

    ``style:edges`` holds out the domain ``edges``.

    Raises:
        UsageError: unknown kind or domain.

    >>> parse_domain_shift("style:edges")
    DomainShiftSpec(kind='style', held_out='edges')
    """
    kind, _, held_out = str(text).partition(":")
    check_name("domains", kind, DOMAINS_BY_SHIFT)
    if held_out and held_out not in DOMAINS_BY_SHIFT[kind]:
        raise unknown_name_error(f"domains: {kind}", held_out, DOMAINS_BY_SHIFT[kind])
    return DomainShiftSpec(kind, held_out or None)


def _float_or_nan(value: object) -> float:
    """Convert a value or text to a float, or NaN if invalid."""
    try:
        return float(str(value))
    except ValueError:
        return math.nan
