"""Features: in the plane, by their singular values, and by their nearest neighbours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from contraport.errors import check, import_optional
from contraport.metrics.embedding_geometry import entropy_rank
from contraport.metrics.embedding_geometry import spectrum as singular_values
from contraport.metrics.retrieval import nearest_neighbors
from contraport.plots.colors import BLUE, GREY, ORANGE, SERIES, class_colors
from contraport.plots.figure_setup import DASHES, add_legend_above, canvas, escape_dollars, ground, panels
from contraport.plots.label_placement import place_labels
from contraport.plots.plot_inputs import Array, Folder, Values, array, as_labels, by_name, is_folder, run, sampled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEAST = 1e-7
"""A singular value that is less of the largest is rounding, and not drawn."""

CLASSES_NAMED = 24
"""With more classes than this the colours have no names on the figure."""


def embedding(
    features: Values | Folder,
    labels: Values | None = None,
    *,
    class_names: Sequence[str] | None = None,
    width: float = 4.4,
) -> Figure:
    """Draw items in the plane, coloured by their class, with the name of each class where most of it is.

    Args:
        features: (n, 2) as they are, or (n, F), whose two principal components are drawn; or the folder of an evaluated
            run, which keeps its test items in the plane by t-SNE, with their labels.
        labels: class of each item, (n,), numbers or words; None draws all alike.
        class_names: name of each class, in the order of sorted labels.
        width: of the figure, in inches.

    Raises:
        UsageError: shapes do not fit, the run was not evaluated, or matplotlib is not installed.

    >>> figure = embedding(torch.randn(20, 5), torch.arange(20) % 2, class_names=["cat", "dog"])
    >>> [text.get_text() for text in figure.axes[0].texts]
    ['cat', 'dog']
    """
    how = ""
    if is_folder(features):
        check(labels is None, "labels: expected none beside a run, which has its own.")
        samples = sampled(features, "points")
        features, labels, how = samples["points"], samples.get("labels"), str(samples["projection"])
        if labels is not None and class_names is None and "class_names" in samples:
            class_names = [str(samples["class_names"][k]) for k in np.unique(labels)]
    points = array("features", features, 2)
    check(points.shape[1] >= 2, f"features: expected two of each item at least, got {points.shape[1]}.")
    if points.shape[1] > 2:
        points, how = _principal(points), "two principal components"
    classes = as_labels(labels, len(points))
    across, up = np.ptp(points, axis=0)
    figure, (ax,) = panels(1, width=width, ratio=float(np.clip(across / up if up else np.inf, 0.8, 1.6)))
    _scatter(ax, points, classes, class_names)
    ax.set(aspect="equal", xticks=[], yticks=[], xlabel=how)
    ax.spines[:].set_visible(False)
    return figure


def spectrum(
    features: Values | Folder | Sequence[Folder] | Mapping[str, Values | Folder], *, width: float = 5.0
) -> Figure:
    """Draw the singular values of centred features over the largest: how many directions they use; those below
    1e-7 are rounding, and not shown.

    Args:
        features: (n, F), n at least 2; several by name; or folders of evaluated runs, which keep the singular values.
        width: of the figure, in inches.

    Raises:
        UsageError: a shape does not fit, features are constant, a run has no spectrum, or matplotlib is not installed.

    >>> figure = spectrum({"full": torch.eye(5), "one direction": torch.eye(5)[:, :1] * torch.ones(5)})
    >>> [line.get_label() for line in figure.axes[0].get_lines()]
    ['full: effective rank 4.0', 'one direction: effective rank 1.0']
    """
    figure, (ax,) = panels(1, width=width, ratio=1.45)
    for position, (name, given) in enumerate(by_name(features).items()):
        values = _singular_values(given)
        rank, shares = entropy_rank(values), values / values[0]
        label = f"{name}: effective rank {rank:.1f}" if name else f"effective rank {rank:.1f}"
        ax.semilogy(
            range(1, len(values) + 1),
            shares.where(shares >= LEAST, torch.nan).numpy(),
            color=SERIES[position % len(SERIES)],
            linestyle=DASHES[position % len(DASHES)],
            label=escape_dollars(label),
        )
    ax.set(xlabel="direction", ylabel="singular value, of the largest")
    add_legend_above(figure, ax)
    return figure


def neighbors(
    features: Values | Folder,
    items: Values | None = None,
    labels: Values | None = None,
    *,
    queries: Sequence[int] | int = 6,
    count: int = 7,
    width: float | None = None,
) -> Figure:
    """Draw some items with their nearest others by the cosine, a strip each; a frame says which have the same label.

    Args:
        features: (n, F); or the folder of an evaluated run of images, which keeps the neighbours of its test items.
        items: what is drawn: images, (n, C, H, W) or (n, H, W), or vectors and series, (n, d), as lines.
        labels: class of each item, (n,): neighbours of the same are framed blue, others orange and dashed.
        queries: which items, or how many, evenly spaced.
        count: of the neighbours of each.
        width: of the figure, in inches; None is 0.55 a picture.

    Raises:
        UsageError: shapes do not fit, there are too few items, the run keeps no pictures, or matplotlib is not
            installed.

    >>> figure = neighbors(torch.randn(20, 4), torch.rand(20, 8, 8), queries=[3, 5], count=4)
    >>> len(figure.axes[0].images)
    10
    """
    if is_folder(features):
        check(items is None and labels is None, "items, labels: expected none beside a run, which has its own.")
        samples = sampled(features, "neighbors")
        message = f"run: {run(features).path} is not of images, so that it keeps none; pass features and items."
        check("thumbnails" in samples, message)
        near, shown, classes = samples["neighbors"], samples["thumbnails"], samples.get("labels")
        check(0 < count <= near.shape[1], f"count: expected 1 to {near.shape[1]}, got {count!r}.")
    else:
        rows = array("features", features, 2)
        check(0 < count < len(rows), f"count: expected 1 to {len(rows) - 1}, got {count!r}.")
        check(items is not None, "items: expected what is to be drawn of each item, got None.")
        shown = items.detach().cpu().numpy() if isinstance(items, torch.Tensor) else np.asarray(items)
        near, classes = nearest_neighbors(torch.from_numpy(rows), count).numpy(), as_labels(labels, len(rows))
    good = shown.ndim in (2, 3, 4) and len(shown) == len(near)
    check(good, f"items: expected {len(near)} images or vectors, got shape {shown.shape}.")
    asked = _queries(queries, len(near))
    wide = 0.55 * (count + 1.3) if width is None else width
    figure = canvas(wide, wide / (count + 1.3) * len(asked) + 0.3)
    ax = figure.add_subplot()
    for row, query in enumerate(asked):
        _draw_item(ax, shown[query], 0.0, row, None)
        for place, other in enumerate(near[query, :count]):
            same = None if classes is None else bool(classes[query] == classes[other])
            _draw_item(ax, shown[other], place + 1.3, row, same)
    ax.set(xlim=(-0.05, count + 1.35), ylim=(len(asked) + 0.05, -0.05), aspect="equal")
    framed = "" if classes is None else "; dashed: of another class"
    ax.set_title(f"an item and its nearest{framed}", loc="left", fontsize="medium")
    ax.axis("off")
    return figure


def _principal(features: Array) -> Array:
    """Return the two principal components of features, (n, 2)."""
    centred = torch.from_numpy(features - features.mean(0))
    _, vectors = torch.linalg.eigh(centred.T @ centred)
    components: Array = (centred @ vectors[:, -2:].flip(1)).numpy()
    return components


def _scatter(ax: Axes, points: Array, classes: Array | None, class_names: Sequence[str] | None) -> None:
    effects = import_optional("matplotlib.patheffects", "report", "A figure")
    size = float(np.clip(3000 / len(points), 4, 30))
    if classes is None:
        ax.scatter(points[:, 0], points[:, 1], s=size, color=BLUE, alpha=0.8, linewidth=0)
        return
    present = np.unique(classes)
    names = [str(label) for label in present] if class_names is None else list(class_names)
    check(len(names) == len(present), f"class_names: expected {len(present)}, as many as classes, got {len(names)}.")
    for label, color in zip(present, class_colors(len(present)), strict=True):
        of_class = points[classes == label]
        ax.scatter(of_class[:, 0], of_class[:, 1], s=size, color=color, alpha=0.8, linewidth=0)
    halo = [effects.withStroke(linewidth=3, foreground=ground(ax))]
    if len(present) > CLASSES_NAMED:
        return
    for name, (x, y) in zip(names, place_labels(points, classes), strict=True):
        ax.text(x, y, escape_dollars(name), ha="center", va="center", fontweight="bold", path_effects=halo)


def _singular_values(given: Any) -> torch.Tensor:
    """Return the singular values of features, or those that a run has kept."""
    if is_folder(given):
        values = torch.from_numpy(sampled(given, "spectrum")["spectrum"])
    else:
        rows = array("features", given, 2)
        check(len(rows) > 1, "features: expected two items or more, got one.")
        values = singular_values(torch.from_numpy(rows))
    check(float(values[0]) > 0, "features: expected some that differ, got the same of every item.")
    return values


def _queries(queries: Sequence[int] | int, items: int) -> list[int]:
    if isinstance(queries, int):
        check(0 < queries <= items, f"queries: expected 1 to {items}, got {queries}.")
        return [round(place) for place in np.linspace(0, items - 1, queries)]
    asked = [int(query) for query in queries]
    good = len(asked) > 0 and all(0 <= query < items for query in asked)
    check(good, f"queries: expected positions from 0 to {items - 1}, got {queries!r}.")
    return asked


def _draw_item(ax: Axes, item: Array, x: float, y: float, same: bool | None) -> None:
    """Draw an image or a line into the unit cell at a place, in a frame that says whether the label is the query's."""
    patches = import_optional("matplotlib.patches", "report", "A figure")
    left, right, top, bottom = x + 0.06, x + 0.94, y + 0.06, y + 0.94
    if item.ndim == 1:
        low, high = float(item.min()), float(item.max())
        heights = bottom - (item - low) / ((high - low) or 1) * (bottom - top)
        ax.plot(np.linspace(left, right, len(item)), heights, color=GREY, linewidth=0.8)
    else:
        picture = item if item.ndim == 2 else np.moveaxis(item, 0, -1) if len(item) == 3 else item.mean(0)
        white = 255 if item.dtype == np.uint8 else max(1.0, float(picture.max()))
        place = left, right, bottom, top
        ax.imshow(picture, cmap="gray", extent=place, interpolation="nearest", vmin=0, vmax=white)
    if same is not None:
        color, dash = (BLUE, "-") if same else (ORANGE, "--")
        frame = patches.Rectangle((left, top), 0.88, 0.88, fill=False, edgecolor=color, linestyle=dash, linewidth=1.6)
        ax.add_patch(frame)
