"""Figures of features: embedding map, singular values, and nearest neighbors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from contraport.errors import check, check_integer, check_nonempty_sequence, format_value, import_optional, is_integer
from contraport.metrics.embedding_geometry import centered_singular_values, effective_rank_from_spectrum
from contraport.metrics.retrieval_ranks import nearest_indices
from contraport.plots.figure_setup import (
    BLUE,
    GREY,
    LINE_STYLES,
    ORANGE,
    SERIES_COLORS,
    add_legend_above_panels,
    check_width,
    class_colors,
    create_figure,
    create_panels,
    escape_dollars,
    escape_legend_label,
    has_dark_background,
)
from contraport.plots.plot_inputs import (
    Array,
    RunSource,
    Values,
    as_plot_array,
    is_run_source,
    labels_to_numpy,
    load_evaluation_arrays,
    load_run,
    sources_by_name,
    to_numpy,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MIN_DRAWN_SINGULAR_VALUE_RATIO = 1e-7  # singular values below this ratio to the largest are rounding errors
MAX_NAMED_CLASSES = 24  # maximum number of classes whose names are written on the map


def embedding(
    features: Values | RunSource,
    labels: Values | None = None,
    *,
    class_names: Sequence[str] | None = None,
    width: float = 4.4,
) -> Figure:
    """Draw items as points in the plane, colored by class, with class names.

    Args:
        features: (n, 2), drawn as they are; (n, F), of which the first two principal components are drawn; or the
            folder of an evaluated run, which holds the t-SNE of its test items and their labels.
        labels: class of each item, (n,), numbers or strings; None: one color.
        class_names: name of each class, in the order of sorted labels.
        width: of the figure, in inches.

    Raises:
        UsageError: shapes do not match, the run was not evaluated, or matplotlib is not installed.

    >>> figure = embedding(torch.randn(20, 5), torch.arange(20) % 2, class_names=["cat", "dog"])
    >>> [text.get_text() for text in figure.axes[0].texts]
    ['cat', 'dog']
    """
    method = ""
    if is_run_source(features):
        check(labels is None, "labels: cannot be combined with a run, which has its own labels.", "conflict")
        samples = load_evaluation_arrays(features, "points")
        features, labels, method = samples["points"], samples.get("labels"), str(samples["projection"])
        if labels is not None and class_names is None and "class_names" in samples:
            class_names = [str(samples["class_names"][k]) for k in np.unique(labels)]
    if class_names is not None:
        check_nonempty_sequence("class_names", class_names, "a list of the names of all classes")
    points = as_plot_array("features", features, 2)
    check(points.shape[1] >= 2, f"features: must have at least two columns, got {points.shape[1]}.", "shape")
    if points.shape[1] > 2:
        # From the F x F covariance: the SVD of (n, F) features takes more memory and needs only two directions here.
        centered = torch.from_numpy(points - points.mean(0))
        _, vectors = torch.linalg.eigh(centered.T @ centered)
        points, method = (centered @ vectors[:, -2:].flip(1)).numpy(), "two principal components"
    classes = None if labels is None else labels_to_numpy(labels, len(points))
    x_range, y_range = np.ptp(points, axis=0)
    ratio = float(np.clip(x_range / y_range if y_range else np.inf, 0.8, 1.6))
    figure, (ax,) = create_panels(1, figure_width=width, ratio=ratio)
    _draw_points_and_class_names(ax, points, classes, class_names)
    ax.set(aspect="equal", xticks=[], yticks=[], xlabel=method)
    ax.spines[:].set_visible(False)
    return figure


def spectrum(
    features: Values | RunSource | Sequence[RunSource] | Mapping[str, Values | RunSource], *, width: float = 5.0
) -> Figure:
    """Draw the singular values of centered features, and the effective rank.

    The values are divided by the largest.

    Args:
        features: (n, F), n >= 2; several by name; or folders of evaluated runs, which hold the singular values.
        width: of the figure, in inches.

    Raises:
        UsageError: a shape does not fit, features are constant, a run has no spectrum, or matplotlib is not installed.

    >>> figure = spectrum({"full": torch.eye(5), "one direction": torch.eye(5)[:, :1] * torch.ones(5)})
    >>> [line.get_label() for line in figure.axes[0].get_lines()]
    ['full: effective rank 4.0', 'one direction: effective rank 1.0']
    """
    figure, (ax,) = create_panels(1, figure_width=width, ratio=1.45)
    for position, (name, source) in enumerate(sources_by_name(features).items()):
        if is_run_source(source):
            values = torch.from_numpy(load_evaluation_arrays(source, "spectrum")["spectrum"])
        else:
            rows = as_plot_array("features", source, 2)
            check(len(rows) > 1, "features: must have at least two items, got one.", "shape")
            values = centered_singular_values(torch.from_numpy(rows))
        check(float(values[0]) > 0, "features: must differ between items, got constant features.", "constant")
        rank, ratios = effective_rank_from_spectrum(values), values / values[0]
        label = f"{name}: effective rank {rank:.1f}" if name else f"effective rank {rank:.1f}"
        ax.semilogy(
            range(1, len(values) + 1),
            ratios.where(ratios >= MIN_DRAWN_SINGULAR_VALUE_RATIO, torch.nan).numpy(),
            color=SERIES_COLORS[position % len(SERIES_COLORS)],
            linestyle=LINE_STYLES[position % len(LINE_STYLES)],
            label=escape_legend_label(label),
        )
    ax.set(xlabel="direction", ylabel="singular value / largest")
    add_legend_above_panels(figure, ax)
    return figure


def nearest_items(
    features: Values | RunSource,
    items: Values | None = None,
    labels: Values | None = None,
    *,
    queries: Sequence[int] | int = 6,
    count: int = 7,
    width: float | None = None,
) -> Figure:
    """Draw query items, each in a row with its nearest neighbors.

    Neighbors are found by cosine similarity. Blue frames mark neighbors of the same class, orange dashed frames those
    of another class.

    Args:
        features: (n, F); or the folder of an evaluated run of images, which holds the neighbors of its test items.
        items: images (n, C, H, W) or (n, H, W), or vectors or series (n, d), which are drawn as lines.
        labels: class of each item, (n,): neighbors of the same class have a blue frame, others an orange dashed one.
        queries: positions of the items, or their number, evenly spaced.
        count: number of neighbors per item.
        width: of the figure, in inches; None: 0.55 per picture.

    Raises:
        UsageError: shapes do not match, there are too few items, the run has no images, or matplotlib is not installed.

    >>> figure = nearest_items(torch.randn(20, 4), torch.rand(20, 8, 8), queries=[3, 5], count=4)
    >>> len(figure.axes[0].images)
    10
    """
    if is_run_source(features):
        conflict = items is not None or labels is not None
        check(not conflict, "items, labels: cannot be combined with a run, which has its own.", "conflict")
        samples = load_evaluation_arrays(features, "neighbors")
        message = f"run: {load_run(features).path} has no images; pass features and items instead."
        check("thumbnails" in samples, message, "no_images")
        nearest, shown, classes = samples["neighbors"], samples["thumbnails"], samples.get("labels")
        check_integer("count", count, most=nearest.shape[1])
    else:
        rows = as_plot_array("features", features, 2)
        check(items is not None, "items: required to draw the neighbors of features, not given.", "missing")
        shown = to_numpy("items", items)
        good = shown.dtype.kind in "buif" and bool(np.isfinite(shown).all())
        check(good, f"items: must be finite numbers, got {format_value(items)}.", "not_numbers")
        check_integer("count", count, most=len(rows) - 1)
        nearest = nearest_indices(torch.from_numpy(rows), count).numpy()
        classes = None if labels is None else labels_to_numpy(labels, len(rows))
    has_shape = shown.ndim in (2, 3, 4) and len(shown) == len(nearest) and shown.size > 0
    check(has_shape, f"items: must be {len(nearest)} images or vectors, got shape {shown.shape}.", "shape")
    positions = _resolve_query_positions(queries, len(nearest))
    check_width(width)
    figure_width = 0.55 * (count + 1.3) if width is None else width
    figure = create_figure(figure_width, figure_width / (count + 1.3) * len(positions) + 0.3)
    ax = figure.add_subplot()
    # One white for all pictures, so that neighbors keep their relative brightness.
    white = 255.0 if shown.dtype == np.uint8 else max(1.0, float(shown.max()))
    for row, query in enumerate(positions):
        _draw_item_in_cell(ax, shown[query], 0.0, row, None, white)
        for place, other in enumerate(nearest[query, :count]):
            same = None if classes is None else bool(classes[query] == classes[other])
            _draw_item_in_cell(ax, shown[other], place + 1.3, row, same, white)
    ax.set(xlim=(-0.05, count + 1.35), ylim=(len(positions) + 0.05, -0.05), aspect="equal")
    frames = "" if classes is None else "; dashed: another class"
    ax.set_title(f"item and its nearest neighbors{frames}", loc="left", fontsize="medium")
    ax.axis("off")
    return figure


def _draw_points_and_class_names(
    ax: Axes, points: Array, classes: Array | None, class_names: Sequence[str] | None
) -> None:
    """Draw points (n, 2) colored by class, with class names unless too many."""
    effects = import_optional("matplotlib.patheffects", "report", "A figure")
    size = float(np.clip(3000 / len(points), 4, 30))
    if classes is None:
        ax.scatter(points[:, 0], points[:, 1], s=size, color=BLUE, alpha=0.8, linewidth=0)
        return
    present = np.unique(classes)
    names = [str(label) for label in present] if class_names is None else [str(name) for name in class_names]
    check(len(names) == len(present), f"class_names: must be {len(present)}, one per class, got {len(names)}.", "shape")
    for label, color in zip(present, class_colors(len(present)), strict=True):
        of_class = points[classes == label]
        ax.scatter(of_class[:, 0], of_class[:, 1], s=size, color=color, alpha=0.8, linewidth=0)
    if len(present) > MAX_NAMED_CLASSES:
        return
    # A halo in the background color keeps names legible on top of points.
    halo = [effects.withStroke(linewidth=3, foreground="black" if has_dark_background(ax) else "white")]
    for name, (x, y) in zip(names, class_name_positions(points, classes), strict=True):
        ax.text(x, y, escape_dollars(name), ha="center", va="center", fontweight="bold", path_effects=halo)


def _resolve_query_positions(queries: Sequence[int] | int, num_items: int) -> list[int]:
    """Return query positions, which are evenly spaced if `queries` is a number."""
    if is_integer(queries):
        check_integer("queries", queries, most=num_items)
        return [round(place) for place in np.linspace(0, num_items - 1, queries)]
    check_nonempty_sequence("queries", queries, "a number of items or a list of positions")
    positions = to_numpy("queries", queries)
    good = positions.ndim == 1 and positions.dtype.kind in "iu"
    good = good and bool(((positions >= 0) & (positions < num_items)).all())
    check(good, f"queries: must be positions from 0 to {num_items - 1}, got {format_value(queries)}.")
    return [int(position) for position in positions]


def _draw_item_in_cell(
    ax: Axes, item: Array, x: float, y: float, is_same_class: bool | None, white_level: float
) -> None:
    """Draw an image or vector in the unit cell at (x, y).

    Pixels are black at 0 and white at `white_level`. The frame is blue if `is_same_class` is true, orange and dashed if
    it is false; None: no frame.
    """
    patches = import_optional("matplotlib.patches", "report", "A figure")
    left, right, top, bottom = x + 0.06, x + 0.94, y + 0.06, y + 0.94
    if item.ndim == 1:
        low, high = float(item.min()), float(item.max())
        heights = bottom - (item - low) / ((high - low) or 1) * (bottom - top)
        ax.plot(np.linspace(left, right, len(item)), heights, color=GREY, linewidth=0.8)
    else:
        picture = item if item.ndim == 2 else np.moveaxis(item, 0, -1) if len(item) == 3 else item.mean(0)
        if picture.ndim == 3:  # matplotlib ignores the range of colors
            picture = np.clip(picture / white_level, 0, 1)
        place = left, right, bottom, top
        ax.imshow(picture, cmap="gray", extent=place, interpolation="nearest", vmin=0, vmax=white_level)
    if is_same_class is not None:
        color, dash = (BLUE, "-") if is_same_class else (ORANGE, "--")
        frame = patches.Rectangle((left, top), 0.88, 0.88, fill=False, edgecolor=color, linestyle=dash, linewidth=1.6)
        ax.add_patch(frame)


def class_name_positions(points: Array, labels: Array) -> Array:
    """Return where each class name is drawn, (classes, 2), in label order.

    The position is the class's point with the most neighbors of its own class minus those of others, among points where
    no other name stands. A centroid would lie between the parts of a class that is split in two.

    >>> points = np.array([[0.0, 0.0], [0.1, 0.0], [9.0, 9.0], [5.0, 9.0], [5.0, 9.1]])
    >>> class_name_positions(points, np.array([0, 0, 0, 1, 1])).tolist()
    [[0.0, 0.0], [5.0, 9.0]]
    """
    step = -(-len(points) // 1_500)  # each class is subsampled, as the distances of all points take O(n^2) memory
    classes = np.unique(labels)
    some = np.concatenate([np.flatnonzero(labels == label)[::step] for label in classes])
    points, labels = points[some], labels[some]
    span = float(np.ptp(points, axis=0).max()) or 1.0
    apart = np.abs(points[:, None] - points)
    near, own = (apart < 0.05 * span).all(axis=2), labels[:, None] == labels
    crowds = (near & own).sum(axis=1) - (near & ~own).sum(axis=1)
    name_size = span * np.array([0.17, 0.045])  # width and height of a class name; names closer than this overlap
    taken: list[int] = []
    for label in classes:
        best = np.flatnonzero(labels == label)
        # Stable, so that equal crowds give the same place on every platform.
        best = best[np.argsort(-crowds[best], kind="stable")]
        free = best[(apart[best][:, taken] > name_size).any(axis=2).all(axis=1)]
        taken.append(int(free[0] if len(free) else best[0]))
    positions: Array = points[taken]
    return positions
