"""Every named random change of an item: a strength of what suits the data, or one that knows nothing of them."""

from __future__ import annotations

import math
from typing import NamedTuple

from contraport._utils.spec import parse_spec
from contraport.errors import check

AUGMENT_STRENGTHS = ("weak", "standard", "strong")
"""How far the views may differ that suit the data, from little to much."""

SCALED_NOISE = ("scaled-noise", "noise")
"""Noise in units of each feature's own deviation; ``noise`` is its first name, by which older runs know it."""

ISOTROPIC_NOISE = "isotropic-noise"
"""Noise of one deviation in all directions, in units of the mean one of the features."""

LARGEST = {ISOTROPIC_NOISE: math.inf, **dict.fromkeys(SCALED_NOISE, math.inf), "mixup": 1.0}
"""Those that know nothing of the data have a strength of their own, positive, and at most this."""

AUGMENTS = ("none", *AUGMENT_STRENGTHS, *LARGEST)
"""The kinds of random change."""


class Augment(NamedTuple):
    """A random change.

    Attributes:
        name: its kind.
        strength: a number, where one was given.
    """

    name: str
    strength: float | None = None


def parse_augment(text: object) -> Augment:
    """Return the kind of random change that a name says, or a name with a strength after a colon.

    Raises:
        UsageError: an unknown name, a strength of one that has none, or a strength out of range.

    >>> parse_augment("strong"), parse_augment("mixup:0.3")
    (Augment(name='strong', strength=None), Augment(name='mixup', strength=0.3))
    """
    known = {name: ("strength",) if name in LARGEST else () for name in AUGMENTS}
    name, settings = parse_spec("augment", text, known, default_setting=dict.fromkeys(LARGEST, "strength"))
    strength = settings.get("strength")
    if strength is None:
        check(":" not in str(text), f"augment: expected a name, or noise:0.2 or mixup:0.5, got {text!r}.")
        return Augment(name)
    good = not isinstance(strength, str) and 0 < strength <= LARGEST[name] and strength < math.inf
    limit = "a positive number" if LARGEST[name] == math.inf else f"a number above 0, at most {LARGEST[name]:g},"
    check(good, f"augment: expected {limit} as the strength of {name}, got {text!r}.")
    return Augment(name, float(strength))
