"""The similarity heatmap: the cosines of items in the order of their classes, and their means over classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from contraport.errors import check
from contraport.plots.colors import GREY
from contraport.plots.figure_setup import heatmap, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLASSES_WRITTEN = 12
"""With more classes than this their mean cosines are drawn without numbers."""


@dataclass(frozen=True, eq=False)
class Similarity:
    """Cosines of all pairs of items.

    Attributes:
        cosines: (n, n), items in the order of their labels.
        labels: (n,), sorted.
        names: of the classes, in that order.
        means: (C, C), the mean cosine of two items of two classes, no item with itself; NaN for a class of one item.
        within: the mean over all pairs of two items of one class.
        between: the mean over all pairs of items of two classes.
    """

    cosines: Tensor
    labels: Tensor
    names: tuple[str, ...]
    means: Tensor
    within: float
    between: float

    def figure(self) -> Figure:
        """Draw the cosines, with lines between the classes, and their means over pairs of classes."""
        figure, (left, right) = panels(2, 3.5)
        sizes = self.labels.unique(return_counts=True)[1]
        ends = sizes.cumsum(0)
        heatmap(left, self.cosines, signed=True, vmin=-1, vmax=1)
        for end in ends[:-1].tolist():
            left.axhline(end - 0.5, color=GREY, linewidth=0.6)
            left.axvline(end - 0.5, color=GREY, linewidth=0.6)
        middles = (ends - sizes / 2 - 0.5).tolist()
        left.set(title=f"cosines: {self.within:.2f} within classes, {self.between:.2f} between")
        heatmap(right, self.means, signed=True, vmin=-1, vmax=1)
        right.set(title="means of two classes")
        for ax, places in ((left, middles), (right, range(len(self.names)))):
            ax.title.set_fontsize("medium")
            ax.set_yticks(list(places), self.names)
            ax.tick_params(length=0)
            ax.spines[:].set_visible(False)
        if len(self.names) <= CLASSES_WRITTEN:
            for (row, column), mean in np.ndenumerate(self.means.numpy()):
                ink = "white" if abs(mean) > 0.6 else "black"
                told = f"{round(mean, 1) + 0.0:.1f}".replace("-", "−")
                right.text(column, row, told, ha="center", va="center", color=ink, fontsize=7)
        return figure


def similarity(features: Tensor, labels: Tensor, names: Sequence[str] | None = None) -> Similarity:
    """Compare all items with all by the cosine of their features, class by class.

    Args:
        features: (n, F), n at least 2.
        labels: class of each item, (n,) integers.
        names: of the classes, in the order of their labels; None is the labels themselves.

    Raises:
        UsageError: shapes do not fit, no class has two items, there is one class only, or names are not one a class.

    Source: Hu et al. (2023), Your contrastive learning is secretly doing stochastic neighbor embedding, the similarity
    heatmap of features learned by SimCLR.

    >>> features = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.2], [0.2, 1.0]])
    >>> found = similarity(features, torch.tensor([0, 1, 0, 1]))
    >>> round(found.within, 3), round(found.between, 3), found.labels.tolist()
    (0.981, 0.194, [0, 0, 1, 1])
    """
    check(
        features.ndim == 2 and len(features) > 1, f"features: expected (n, F), n over 1, got {tuple(features.shape)}."
    )
    found = tuple(labels.shape)
    check(found == (len(features),), f"labels: expected one of each item, ({len(features)},), got shape {found}.")
    order = labels.argsort(stable=True)
    labels, z = labels[order], F.normalize(features.detach().double()[order], dim=1)
    classes, codes, sizes = labels.unique(return_inverse=True, return_counts=True)
    check(len(classes) > 1, "labels: expected two classes or more, got one.")
    check(
        bool((sizes > 1).any()), f"labels: expected two items of one class at least, got {len(z)} of as many classes."
    )
    named = tuple(str(label) for label in classes.tolist()) if names is None else tuple(names)
    check(len(named) == len(classes), f"names: expected {len(classes)}, as many as classes, got {len(named)}.")
    cosines = z @ z.T
    member = F.one_hot(codes).double()
    same = codes[:, None] == codes
    own = torch.diag(member.T @ cosines.diagonal())
    pairs = sizes[:, None] * sizes - torch.diag(sizes)
    means = (member.T @ cosines @ member - own) / pairs
    distinct = same & ~torch.eye(len(z), dtype=torch.bool)
    return Similarity(cosines, labels, named, means, float(cosines[distinct].mean()), float(cosines[~same].mean()))
