"""Common parts of matplotlib figures, such as colors, axes and legends.

Text color, background and font follow matplotlib's settings, so ``plt.style.use("dark_background")`` gives dark
figures. No global state is changed. HTML pages have the same colors of runs, classes and masses.
"""

from __future__ import annotations

import colorsys
import io
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from contraport.errors import check, format_value, import_optional, is_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#7f858d"
"""Main colors of the figures, as hex codes."""

SERIES_COLORS = (BLUE, ORANGE, GREEN, PURPLE, "#8f00ff", "#a64242", "#a966ff", "#8c5b7f", "#cc1fc5", "#cc1800")
"""Colors of runs and classes, legible on white and on black.

The first are from Okabe and Ito (2008), Color universal design; each further one maximizes the distance to those before
it under every kind of color blindness."""

MASS_SCALE_ON_LIGHT = ("#f3f5f8", "#d5e0ee", "#a6c3e2", "#6d9fd1", "#3a74b5", "#1b4a89", "#0a1f4d")
MASS_SCALE_ON_DARK = ("#16191d", "#16283f", "#1a3f6b", "#2a629f", "#5590cb", "#9cc3ea", "#f2f7fd")
"""Color ramps of transport masses on light and dark backgrounds, from zero (near the background) to the largest."""

MIN_WIDTH_INCHES, MAX_WIDTH_INCHES = 0.5, 200.0
"""Range of the width of a figure: matplotlib draws no image with a side of no pixel or more than 65,535 pixels."""

LINE_STYLES = ("-", "--", ":", "-.")  # line styles of matplotlib, by number of the line, like the colors


def class_colors(num_classes: int) -> list[str]:
    """Return hex colors for classes, with evenly spaced hues for many classes.

    >>> class_colors(2)
    ['#0072b2', '#d55e00']
    >>> len(set(class_colors(100)))
    100
    """
    if num_classes <= len(SERIES_COLORS):
        return list(SERIES_COLORS[:num_classes])
    hues = [colorsys.hls_to_rgb(k / num_classes, 0.44 + 0.14 * (k % 2), 0.62) for k in range(num_classes)]
    return ["#" + "".join(f"{round(255 * part):02x}" for part in hue) for hue in hues]


def create_figure(width: float, height: float) -> Figure:
    """Return an empty matplotlib figure, with its size given in inches."""
    figures = import_optional("matplotlib.figure", "report", "A figure")
    figure: Figure = figures.Figure(figsize=(width, height), layout="constrained")
    # Without pyplot, notebooks display a figure only if it has this method.
    figure._repr_png_ = partial(encode_png, figure)  # type: ignore[attr-defined]
    return figure


def encode_png(figure: Figure, **settings: Any) -> bytes:
    """Return a figure as PNG bytes; options are passed to ``Figure.savefig``."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", **settings)
    return buffer.getvalue()


def create_panels(
    count: int, row_height: float = 3.2, *, figure_width: float | None = None, ratio: float = 1.25
) -> tuple[Figure, list[Axes]]:
    """Return a figure with `count` axes, in one row if they fit.

    Args:
        count: number of axes.
        row_height: height of the row in inches, used if `figure_width` is None.
        figure_width: in inches; panels that do not fit in it wrap to further rows; 3.9 suits a phone.
        ratio: width of a panel over its height.
    """
    check_width(figure_width)
    # Panels narrower than 2.9 inches wrap to the next row.
    columns = count if figure_width is None else max(1, min(count, int(figure_width / 2.9)))
    rows = -(-count // columns)
    high = row_height if figure_width is None else figure_width / columns / ratio
    figure = create_figure(ratio * row_height * count if figure_width is None else figure_width, rows * high)
    axes = [figure.add_subplot(rows, columns, k + 1) for k in range(count)]
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
    return figure, axes


def check_width(width: float | None) -> None:
    """Raise `UsageError` unless a figure's width is None or in the allowed range of inches."""
    good = width is None or (is_number(width) and MIN_WIDTH_INCHES <= width <= MAX_WIDTH_INCHES)
    expected = f"inches, from {MIN_WIDTH_INCHES:g} to {MAX_WIDTH_INCHES:g}"
    check(good, f"width: must be a number of {expected}, got {format_value(width)}.")


def draw_heatmap(
    ax: Axes, matrix: Tensor | np.ndarray[Any, Any], *, signed: bool = False, **settings: Any
) -> AxesImage:
    """Draw a matrix as a heatmap with a color bar."""
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
    r"""Escape dollar signs, which matplotlib would take for formula delimiters.

    >>> escape_dollars("$x$")
    '\\$x\\$'
    """
    return name.replace("$", r"\$")


def escape_legend_label(name: str) -> str:
    r"""Escape a name so that matplotlib shows it in a legend.

    Matplotlib leaves labels that begin with an underscore out of the legend.

    >>> escape_legend_label("_plain$")
    ' _plain\\$'
    """
    return escape_dollars(f" {name}" if name.startswith("_") else name)


def mass_colormap(ax: Axes) -> Colormap:
    """Return the colormap of transport masses for the axes' light or dark background."""
    colors = import_optional("matplotlib.colors", "report", "A figure")
    dark = has_dark_background(ax)
    scale: Colormap = colors.LinearSegmentedColormap.from_list(
        "mass", MASS_SCALE_ON_DARK if dark else MASS_SCALE_ON_LIGHT
    )
    return scale.with_extremes(bad="#4b443a" if dark else "#d9d3c7")


def add_legend_above_panels(figure: Figure, ax: Axes) -> None:
    """Add the legend of `ax` above all panels, and make the figure taller to fit it."""
    handles, labels = ax.get_legend_handles_labels()
    if not handles:
        return
    width, height = figure.get_size_inches()
    # matplotlib measures text only when drawing, so the width of a label is estimated from its length.
    columns = max(1, int(width / (0.6 + 0.085 * max(map(len, labels)))))
    figure.set_size_inches(width, height + 0.22 * -(-len(labels) // columns))
    figure.legend(handles, labels, loc="outside upper left", frameon=False, ncols=columns)


def has_dark_background(ax: Axes) -> bool:
    """Return whether the background color of the axes is dark."""
    colors = import_optional("matplotlib.colors", "report", "A figure")
    red, green, blue, alpha = colors.to_rgba(ax.get_facecolor())
    return bool(alpha > 0 and 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.4)
