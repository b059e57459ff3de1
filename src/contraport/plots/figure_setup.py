"""Common parts of matplotlib figures: figure and axes, heatmap, legend, and formatting.

Text color, background and font follow matplotlib's settings, so ``plt.style.use("dark_background")`` gives dark
figures. No global state is changed.
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

MIN_PANEL_WIDTH = 2.9
"""Inches: where panels would be narrower than this, they wrap to the next row."""

DASHES = ("-", "--", ":", "-.")
"""Line styles, which vary together with the colors."""


def create_figure(width: float, height: float) -> Figure:
    """Return an empty matplotlib figure, size in inches, that notebooks display.

    Raises:
        UsageError: matplotlib is not installed.
    """
    with require_extra("report", "A figure"):
        from contraport.plots.notebook_figure import NotebookFigure

        return NotebookFigure(figsize=(width, height), layout="constrained")


def create_panels(
    count: int, height: float = 3.2, *, width: float | None = None, ratio: float = 1.25
) -> tuple[Figure, list[Axes]]:
    """Return a figure with `count` axes in one row, or in several rows if a given width requires it.

    Args:
        count: number of axes.
        height: of the row, in inches, if `width` is None.
        width: of the figure, in inches; 3.9 suits a phone.
        ratio: width of a panel over its height.

    Raises:
        UsageError: matplotlib is not installed.
    """
    columns = count if width is None else max(1, min(count, int(width / MIN_PANEL_WIDTH)))
    rows = -(-count // columns)
    high = height if width is None else width / columns / ratio
    figure = create_figure(ratio * height * count if width is None else width, rows * high)
    axes = [figure.add_subplot(rows, columns, k + 1) for k in range(count)]
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
    return figure, axes


def draw_heatmap(
    ax: Axes, matrix: Tensor | np.ndarray[Any, Any], *, signed: bool = False, **settings: Any
) -> AxesImage:
    """Draw a matrix as a heatmap with a color bar; if `signed`, white is zero."""
    values = np.asarray(matrix)
    if signed:  # symmetric limits put white at zero
        extreme = float(np.abs(values).max())
        settings = {"cmap": "RdBu_r", "vmax": extreme, "vmin": -extreme, **settings}
    chosen: dict[str, Any] = {"cmap": mass_colormap(ax), "interpolation": "nearest"} | settings
    image = ax.imshow(values, **chosen)
    ax.figure.colorbar(image, ax=ax, fraction=0.046)
    ax.set(xticks=[], yticks=[])
    return image


def escape_dollars(name: str) -> str:
    r"""Escape dollar signs, which matplotlib would interpret as formulas.

    >>> escape_dollars("$x$")
    '\\$x\\$'
    """
    return name.replace("$", r"\$")


def build_percent_formatter() -> Formatter:
    """Build a matplotlib tick formatter that writes shares in percent with three significant digits."""
    from matplotlib.ticker import FuncFormatter

    return FuncFormatter(lambda share, _: f"{100 * share:.3g}%")


def nearest_black_or_white(ax: Axes) -> str:
    """Return "black" or "white", whichever is nearest to the background color of the axes."""
    return "black" if _is_dark(ax) else "white"


def mass_colormap(ax: Axes) -> Colormap:
    """Return the colormap of transport masses, light or dark like the background; NaN cells are gray."""
    colors = import_optional("matplotlib.colors", "report", "A figure")
    steps = MASS_ON_DARK if _is_dark(ax) else MASS_ON_LIGHT
    scale: Colormap = colors.LinearSegmentedColormap.from_list("mass", steps)
    return scale.with_extremes(bad="#4b443a" if _is_dark(ax) else "#d9d3c7")


def add_legend_above(figure: Figure, ax: Axes) -> None:
    """Add a legend above all panels of a figure, and make the figure higher by the height of the legend."""
    handles, labels = ax.get_legend_handles_labels()
    if not handles:
        return
    width, height = figure.get_size_inches()
    # matplotlib measures text only when drawing, so the width of a label is estimated from its length.
    columns = max(1, int(width / (0.6 + 0.085 * max(map(len, labels)))))
    figure.set_size_inches(width, height + 0.22 * -(-len(labels) // columns))
    figure.legend(handles, labels, loc="outside upper left", frameon=False, ncols=columns)


def _is_dark(ax: Axes) -> bool:
    colors = import_optional("matplotlib.colors", "report", "A figure")
    red, green, blue, alpha = colors.to_rgba(ax.get_facecolor())
    return bool(alpha > 0 and 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.4)
