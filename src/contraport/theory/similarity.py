"""Similarity of items by class: heatmap of cosines, and mean cosines of classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from contraport.errors import check
from contraport.options import keep_deprecated_attributes
from contraport.plots.colors import GREY
from contraport.plots.figure_setup import create_panels, draw_heatmap

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_CLASSES_WITH_NUMBERS = 12
"""Above this number of classes the cells of the means have no numbers."""


@keep_deprecated_attributes(names="class_names", means="class_mean_cosines")
@dataclass(frozen=True, eq=False)
class ClassCosines:
    """Cosines of all pairs of items, and their means for each pair of classes.

    Attributes:
        cosines: cosine of each pair of items, (n, n), items sorted by label.
        labels: class of each item, (n,), sorted.
        class_names: names of the C classes, in the order of the labels.
        class_mean_cosines: mean cosine of two different items for each pair of classes, (C, C); NaN for a class of one.
        within: mean cosine of two different items of one class.
        between: mean cosine of two items of different classes.
    """

    cosines: Tensor
    labels: Tensor
    class_names: tuple[str, ...]
    class_mean_cosines: Tensor
    within: float
    between: float

    def figure(self) -> Figure:
        """Draw heatmaps of the cosines, with lines between the classes, and of the class means."""
        figure, (left, right) = create_panels(2, 3.5)
        sizes = self.labels.unique(return_counts=True)[1]
        ends = sizes.cumsum(0)
        draw_heatmap(left, self.cosines, signed=True, vmin=-1, vmax=1)
        for end in ends[:-1].tolist():
            left.axhline(end - 0.5, color=GREY, linewidth=0.6)
            left.axvline(end - 0.5, color=GREY, linewidth=0.6)
        middles = (ends - sizes / 2 - 0.5).tolist()
        left.set(title=f"cosines: {self.within:.2f} within classes, {self.between:.2f} between")
        draw_heatmap(right, self.class_mean_cosines, signed=True, vmin=-1, vmax=1)
        right.set(title="means by class")
        for ax, places in ((left, middles), (right, range(len(self.class_names)))):
            ax.title.set_fontsize("medium")
            ax.set_yticks(list(places), self.class_names)
            ax.tick_params(length=0)
            ax.spines[:].set_visible(False)
        if len(self.class_names) <= MAX_CLASSES_WITH_NUMBERS:
            for (row, column), mean in np.ndenumerate(self.class_mean_cosines.numpy()):
                ink = "white" if abs(mean) > 0.6 else "black"
                text = f"{round(mean, 1) + 0.0:.1f}".replace("-", "−")
                right.text(column, row, text, ha="center", va="center", color=ink, fontsize=7)
        return figure


def compute_class_cosines(features: Tensor, labels: Tensor, names: Sequence[str] | None = None) -> ClassCosines:
    """Compute cosines of all pairs of items and their means within and between classes.

    Args:
        features: (n, F), n >= 2.
        labels: class of each item, (n,) integers.
        names: of the classes, in the order of their labels; None: the labels.

    Raises:
        UsageError: shapes do not match, no class has two items, there is only one class, or the number of names is not
            the number of classes.

    Source: Hu et al. (2023), Your contrastive learning is secretly doing stochastic neighbor embedding, the similarity
    heatmap of features learned by SimCLR.

    >>> features = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.2], [0.2, 1.0]])
    >>> result = compute_class_cosines(features, torch.tensor([0, 1, 0, 1]))
    >>> round(result.within, 3), round(result.between, 3), result.labels.tolist()
    (0.981, 0.194, [0, 0, 1, 1])
    """
    shape, n = tuple(features.shape), len(features)
    check(features.ndim == 2 and n > 1, f"features: must have shape (n, F) with n >= 2, got {shape}.", "shape")
    check(tuple(labels.shape) == (n,), f"labels: must have shape ({n},), got {tuple(labels.shape)}.", "shape")
    order = labels.argsort(stable=True)
    labels, z = labels[order], F.normalize(features.detach().double()[order], dim=1)
    classes, codes, sizes = labels.unique(return_inverse=True, return_counts=True)
    check(len(classes) > 1, "labels: must have two classes or more, got one.", "one_class")
    check(bool((sizes > 1).any()), f"labels: must have a class of two items, got {n} of as many classes.", "no_pairs")
    class_names = tuple(map(str, classes.tolist() if names is None else names))
    count = len(class_names)
    check(count == len(classes), f"names: must be {len(classes)}, one per class, got {count}.", "shape")
    cosines = z @ z.T
    member = F.one_hot(codes).double()
    same = codes[:, None] == codes
    own = torch.diag(member.T @ cosines.diagonal())
    pairs = sizes[:, None] * sizes - torch.diag(sizes)
    # Self pairs are removed from sums and counts; a class of one item gives 0 / 0, NaN.
    means = (member.T @ cosines @ member - own) / pairs
    distinct = same & ~torch.eye(n, dtype=torch.bool)
    within, between = float(cosines[distinct].mean()), float(cosines[~same].mean())
    return ClassCosines(cosines, labels, class_names, means, within, between)
