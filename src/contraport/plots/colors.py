"""Colors of runs, classes and transport masses, common to matplotlib figures and HTML pages."""

from __future__ import annotations

import colorsys

BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#7f858d"

SERIES = (BLUE, ORANGE, GREEN, PURPLE, "#8f00ff", "#a64242", "#a966ff", "#8c5b7f", "#cc1fc5", "#cc1800")
"""Colors of runs and classes, legible on white and on black. The first are from Okabe and Ito (2008), Color universal
design; each further one maximizes the distance to those before it under every kind of color blindness."""

MASS_ON_LIGHT = ("#f3f5f8", "#d5e0ee", "#a6c3e2", "#6d9fd1", "#3a74b5", "#1b4a89", "#0a1f4d")
MASS_ON_DARK = ("#16191d", "#16283f", "#1a3f6b", "#2a629f", "#5590cb", "#9cc3ea", "#f2f7fd")
"""Color ramps of masses, from zero (near the background) to the largest."""


def class_colors(classes: int) -> list[str]:
    """Return one color per class, as hex codes: from `SERIES`, or evenly spaced hues for many classes.

    >>> class_colors(2)
    ['#0072b2', '#d55e00']
    >>> len(set(class_colors(100)))
    100
    """
    if classes <= len(SERIES):
        return list(SERIES[:classes])
    hues = [colorsys.hls_to_rgb(k / classes, 0.44 + 0.14 * (k % 2), 0.62) for k in range(classes)]
    return ["#" + "".join(f"{round(255 * part):02x}" for part in hue) for hue in hues]
