"""What all matplotlib figures share: panels, a matrix with its scale, a legend, and the ground they stand on.

Ink, ground and font follow matplotlib's own settings, so that ``plt.style.use("dark_background")`` makes dark figures;
the colours of lines and points stand out from either ground. Nothing global is touched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from contraport.errors import import_optional, require_extra
from contraport.plots.colors import MASS_ON_DARK, MASS_ON_LIGHT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage
    from matplotlib.ticker import Formatter

NARROWEST = 2.9
"""Inches: panels of a figure of a given width stand below one another rather than be narrower than this."""

DASHES = ("-", "--", ":", "-.")
"""Lines differ in these beside their colours."""


def canvas(width: float, height: float) -> Figure:
    """Return an empty figure, in inches; a notebook shows it as a picture.

    Raises:
        UsageError: matplotlib is not installed.
    """
    with require_extra("report", "A figure"):
        from contraport.plots.notebook_figure import Picture

        return Picture(figsize=(width, height), layout="constrained")


def panels(
    count: int, height: float = 3.2, *, width: float | None = None, ratio: float = 1.25
) -> tuple[Figure, list[Axes]]:
    """Return a figure with some axes: in one row, or as the width lets them stand beside one another.

    Args:
        count: how many.
        height: of the row, in inches, where there is no width.
        width: of the figure, in inches; 3.9 suits a telephone.
        ratio: how wide a panel is over how high.

    Raises:
        UsageError: matplotlib is not installed.
    """
    columns = count if width is None else max(1, min(count, int(width / NARROWEST)))
    rows = -(-count // columns)
    high = height if width is None else width / columns / ratio
    figure = canvas(ratio * height * count if width is None else width, rows * high)
    axes = [figure.add_subplot(rows, columns, k + 1) for k in range(count)]
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
    return figure, axes


def heatmap(ax: Axes, matrix: Tensor | np.ndarray[Any, Any], *, signed: bool = False, **settings: Any) -> AxesImage:
    """Draw a matrix with its scale; a signed one with white at zero."""
    values = np.asarray(matrix)
    if signed:
        extreme = float(np.abs(values).max())
        settings = {"cmap": "RdBu_r", "vmax": extreme, "vmin": -extreme, **settings}
    chosen: dict[str, Any] = {"cmap": mass_colormap(ax), "interpolation": "nearest"} | settings
    image = ax.imshow(values, **chosen)
    ax.figure.colorbar(image, ax=ax, fraction=0.046)
    ax.set(xticks=[], yticks=[])
    return image


def escape_dollars(name: str) -> str:
    r"""Return a name as matplotlib shows it letter by letter, which takes what stands between dollars for a formula.

    >>> escape_dollars("$x$")
    '\\$x\\$'
    """
    return name.replace("$", r"\$")


def percent_formatter() -> Formatter:
    """Return how an axis of shares writes them: with a decimal where it needs one."""
    from matplotlib.ticker import FuncFormatter

    return FuncFormatter(lambda share, _: f"{100 * share:.3g}%")


def ground(ax: Axes) -> str:
    """Return the colour behind the axes, for halos and for ends of scales."""
    return "black" if _is_dark(ax) else "white"


def mass_colormap(ax: Axes) -> Colormap:
    """Return the colours from no mass to the most, for the ground of the axes; what is excluded is grey."""
    colors = import_optional("matplotlib.colors", "report", "A figure")
    steps = MASS_ON_DARK if _is_dark(ax) else MASS_ON_LIGHT
    scale: Colormap = colors.LinearSegmentedColormap.from_list("mass", steps)
    return scale.with_extremes(bad="#4b443a" if _is_dark(ax) else "#d9d3c7")


def add_legend_above(figure: Figure, ax: Axes) -> None:
    """Name the lines of the axes above all panels, in as many columns as there is room for, and add the height."""
    handles, labels = ax.get_legend_handles_labels()
    if not handles:
        return
    width, height = figure.get_size_inches()
    columns = max(1, int(width / (0.6 + 0.085 * max(map(len, labels)))))
    figure.set_size_inches(width, height + 0.22 * -(-len(labels) // columns))
    figure.legend(handles, labels, loc="outside upper left", frameon=False, ncols=columns)


def _is_dark(ax: Axes) -> bool:
    colors = import_optional("matplotlib.colors", "report", "A figure")
    red, green, blue, alpha = colors.to_rgba(ax.get_facecolor())
    return bool(alpha > 0 and 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.4)
