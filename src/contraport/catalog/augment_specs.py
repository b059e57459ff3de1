"""Parser of augmentation options, such as ``strong`` or ``mixup:0.3``."""

from __future__ import annotations

import math
from typing import NamedTuple

from contraport._utils.spec_parser import parse_spec
from contraport.errors import check

AUGMENT_STRENGTHS = ("weak", "standard", "strong")
"""Strengths of the augmentations that suit the kind of data, in increasing order."""

SCALED_NOISE = ("scaled-noise", "noise")
"""Noise in units of each feature's standard deviation; ``noise`` is its earlier name, used by older runs."""

ISOTROPIC_NOISE = "isotropic-noise"
"""Noise of the same deviation in all features, in units of their mean standard deviation."""

MAX_STRENGTH = {ISOTROPIC_NOISE: math.inf, **dict.fromkeys(SCALED_NOISE, math.inf), "mixup": 1.0}
"""Largest strength of the augmentations that do not depend on the kind of data."""

AUGMENTS = ("none", *AUGMENT_STRENGTHS, *MAX_STRENGTH)
"""All names."""


class Augment(NamedTuple):
    """Parsed augmentation option: a name with an optional strength.

    Attributes:
        name: Name of the augmentation, one of `AUGMENTS`.
        strength: Strength of the augmentation; None for the default.
    """

    name: str
    strength: float | None = None


def parse_augment(text: object) -> Augment:
    """Parse an augmentation option: a name, or a name with a strength after a colon.

    Raises:
        UsageError: unknown name, a strength for an augmentation without one, or a strength out of range.

    >>> parse_augment("strong"), parse_augment("mixup:0.3")
    (Augment(name='strong', strength=None), Augment(name='mixup', strength=0.3))
    """
    valid = {name: ("strength",) if name in MAX_STRENGTH else () for name in AUGMENTS}
    name, settings = parse_spec("augment", text, valid, default_setting=dict.fromkeys(MAX_STRENGTH, "strength"))
    strength = settings.get("strength")
    if strength is None:
        check(":" not in str(text), f"augment: must be a name, noise:0.2 or mixup:0.5, got {text!r}.", "no_strength")
        return Augment(name)
    limit = MAX_STRENGTH[name]
    expected = "a positive number" if limit == math.inf else f"a number in (0, {limit:g}]"
    in_range = not isinstance(strength, str) and 0 < strength <= limit and strength < math.inf
    check(in_range, f"augment: the strength of {name} must be {expected}, got {text!r}.")
    return Augment(name, float(strength))
