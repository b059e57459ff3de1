"""Contrast of the colors with the background, and their distances under color blindness."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from contraport.plots.figure_setup import (
    MASS_SCALE_ON_DARK,
    MASS_SCALE_ON_LIGHT,
    SERIES_COLORS,
    class_colors,
)

# Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB.
COLOR_VISION = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def linear(color):
    encoded = np.array([int(color[k : k + 2], 16) for k in (1, 3, 5)]) / 255
    return np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)


def luminance(color):
    return linear(color) @ [0.2126, 0.7152, 0.0722]


def contrast(color, other):
    low, high = sorted((luminance(color), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def oklab(rgb):
    cones = [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566],
             [0.0883024619, 0.2817188376, 0.6299787005]]  # fmt: skip
    axes = [[0.2104542553, 0.793617785, -0.0040720468], [1.9779984951, -2.428592205, 0.4505937099],
            [0.0259040371, 0.7827717662, -0.808675766]]  # fmt: skip
    return np.array(axes) @ np.cbrt(np.array(cones) @ np.clip(rgb, 0, 1))


@pytest.mark.parametrize("color", SERIES_COLORS)
@pytest.mark.parametrize("background", ["#ffffff", "#fdfdfb", "#121417", "#000000"])
def test_series_contrast_with_light_and_dark_backgrounds(color, background):
    assert contrast(color, background) >= 3  # WCAG 2.2, 1.4.11


@pytest.mark.parametrize("vision", COLOR_VISION)
def test_series_differ_under_color_blindness(vision):
    colors = [oklab(np.array(COLOR_VISION[vision]) @ linear(color)) for color in SERIES_COLORS]
    distances = {
        pair: np.linalg.norm(colors[pair[0]] - colors[pair[1]]) for pair in combinations(range(len(SERIES_COLORS)), 2)
    }
    assert min(distances.values()) > 0.06
    assert min(far for pair, far in distances.items() if max(pair) < 4) > 0.075


@pytest.mark.parametrize(("scale", "background"), [(MASS_SCALE_ON_LIGHT, "#ffffff"), (MASS_SCALE_ON_DARK, "#121417")])
def test_contrast_of_the_mass_scale_increases(scale, background):
    assert (np.diff([contrast(color, background) for color in scale]) > 0).all()


def test_each_class_has_its_own_color():
    for classes in (2, 10, 11, 100):
        assert len(set(class_colors(classes))) == classes
