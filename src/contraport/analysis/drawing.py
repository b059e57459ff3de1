"""What the figures share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from contraport.errors import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, PURPLE, GREY = "#3066be", "#e07a1f", "#2a9d6f", "#8a4fbf", "#8a8f98"
COLORS = (BLUE, ORANGE, GREEN, PURPLE, "#c8374a", GREY)


def panels(count: int, height: float = 3.2) -> tuple[Figure, list[Axes]]:
    """Return a figure with a row of axes, each as wide as it is high; nothing global is touched.

    Raises:
        UsageError: matplotlib is not installed.
    """
    figures = require("matplotlib.figure", "report", "A figure")
    figure = figures.Figure(figsize=(1.25 * height * count, height), layout="constrained")
    axes = [figure.add_subplot(1, count, k + 1) for k in range(count)]
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
    return figure, axes


def heatmap(ax: Axes, matrix: Tensor, *, signed: bool = False, **settings: Any) -> None:
    """Draw a matrix with its scale; a signed one with white at zero."""
    if signed:
        settings |= {"cmap": "RdBu_r", "vmax": float(matrix.abs().max()), "vmin": -float(matrix.abs().max())}
    image = ax.imshow(matrix.numpy(), **{"cmap": "Blues", "interpolation": "nearest"} | settings)
    ax.figure.colorbar(image, ax=ax, fraction=0.046)
    ax.set(xticks=[], yticks=[])
