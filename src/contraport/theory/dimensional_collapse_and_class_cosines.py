"""Dimensional collapse of representations, and cosines within and between classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contraport.catalog.objectives import alpha_cl, direct_clr, nt_xent, quadratic
from contraport.engine import normalize
from contraport.errors import check, check_integer, check_nonempty_sequence, check_type, format_value, is_number
from contraport.metrics.embedding_geometry import centered_singular_values, effective_rank
from contraport.metrics.retrieval_ranks import check_labels, check_points
from contraport.objectives.loss import Loss
from contraport.options import keep_deprecated_attributes
from contraport.plots.figure_setup import GREY, SERIES_COLORS, create_panels, draw_heatmap
from contraport.seeding import derive_torch_seed, seed_torch_generators

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@keep_deprecated_attributes(spectra="relative_singular_values")
@dataclass(frozen=True, eq=False)
class CollapseComparison:
    """Singular values and effective ranks of representations learned by objectives.

    Attributes:
        relative_singular_values: singular values of the centered representation divided by the largest, (F,),
            descending, by objective; zeros if it is constant.
        effective_ranks: effective rank of the representation, 1 to F, by objective: exponential of the entropy of the
            singular values, normalized to a sum of 1.
    """

    relative_singular_values: Mapping[str, Tensor]
    effective_ranks: Mapping[str, float]

    def figure(self) -> Figure:
        """Draw the singular values and the effective ranks of all objectives."""
        figure, (left, right) = create_panels(2)
        for number, (name, values) in enumerate(self.relative_singular_values.items()):
            color = SERIES_COLORS[number % len(SERIES_COLORS)]
            left.semilogy(range(1, len(values) + 1), values.clamp_min(1e-8), color=color, label=name)
        left.set(title="singular values", xlabel="rank", ylabel="ratio to the largest")
        left.legend(frameon=False, fontsize="small")
        ranks = list(self.effective_ranks.items())[::-1]
        right.barh([name for name, _ in ranks], [rank for _, rank in ranks], color=SERIES_COLORS[: len(ranks)][::-1])
        right.set(title="effective rank")
        return figure


def compare_collapse(
    x: Tensor,
    objectives: Mapping[str, Loss] | None = None,
    *,
    features: int = 64,
    masked: float = 0.3,
    iterations: int = 200,
    seed: int = 0,
) -> CollapseComparison:
    """Compare the dimensional collapse of one encoder under several objectives.

    The encoder is trained without a projector. A view of an item is the item with a random part of its coordinates set
    to zero. The encoder's last block is residual. The untrained encoder is always part of the result.

    Args:
        x: the data, (n, d).
        objectives: by name; None: the quadratic loss, NT-Xent, alpha-CL with direct weights, and DirectCLR on the
            first quarter of the features, with temperature 0.5 where there is one.
        features: size F of the representation, at least 4.
        masked: share of the coordinates that are set to zero in a view, in [0, 1).
        iterations: steps of Adam, each over all items with fresh views.
        seed: of the initial weights, which are the same for all, and of the views.

    Raises:
        UsageError: a number is out of range, or all items are equal in single precision.

    Source: Jing, Vincent, LeCun and Tian (2022), Understanding dimensional collapse in contrastive self-supervised
    learning; the direct weights, Tian (2022).

    >>> result = compare_collapse(torch.randn(20, 6), features=4, iterations=1)
    >>> list(result.effective_ranks)
    ['untrained', 'quadratic', 'nt-xent', 'alpha-cl direct', 'direct-clr']
    """
    check_points("x", x, 2)
    check_integer("features", features, 4)
    check(is_number(masked) and 0 <= masked < 1, f"masked: must be in [0, 1), got {masked!r}.")
    check_integer("iterations", iterations, 0)
    x = x.detach().float()
    good = objectives is None or (isinstance(objectives, Mapping) and len(objectives) > 0)
    check(good, f"objectives: must map names to losses, got {format_value(objectives)}.", "type")
    objectives = objectives or {
        "quadratic": quadratic(),
        "nt-xent": nt_xent(0.5),
        "alpha-cl direct": alpha_cl(0.5, "direct"),
        "direct-clr": direct_clr(0.5, features // 4),
    }
    representations = {"untrained": _train_and_encode(x, nt_xent(), features, masked, 0, seed)}
    for name, objective in objectives.items():
        check_type("objectives", objective, Loss, "nt_xent()")
        representations[name] = _train_and_encode(x, objective, features, masked, iterations, seed)
    singular_values = {name: centered_singular_values(h) for name, h in representations.items()}
    largest = {name: float(values[0]) for name, values in singular_values.items()}
    check(largest["untrained"] > 0, "x: all items are equal, or their differences are too small.", "constant")
    return CollapseComparison(
        {name: values / (largest[name] or 1.0) for name, values in singular_values.items()},
        {name: effective_rank(h) for name, h in representations.items()},
    )


@torch.random.fork_rng(devices=[])
def _train_and_encode(
    x: Tensor, objective: Loss, num_features: int, masked_share: float, iterations: int, seed: int
) -> Tensor:
    """Train a residual encoder on masked views, and return the representation, (n, F)."""
    seed_torch_generators(derive_torch_seed("theory.collapse", seed), "cpu")
    first, second, third = (nn.Linear(size, num_features) for size in (x.shape[1], num_features, num_features))
    block = nn.Sequential(nn.ReLU(), second, nn.ReLU(), third)

    def encode(x: Tensor) -> Tensor:
        h: Tensor = first(x)
        return h.add(block(h))

    optimizer = torch.optim.Adam([*first.parameters(), *block.parameters()], 1e-3)
    for _ in range(iterations):
        views = [encode(x * (torch.rand_like(x) >= masked_share)) for _ in range(2)]
        optimizer.zero_grad()
        objective(*views).backward()
        optimizer.step()
    with torch.no_grad():
        return encode(x)


@keep_deprecated_attributes(names="class_names", means="class_mean_cosines")
@dataclass(frozen=True, eq=False)
class ItemCosinesByClass:
    """Cosines of all pairs of items, with the mean for each pair of classes.

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
        """Draw heatmaps of the cosines and of their means by class pair."""
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
        if len(self.class_names) <= 12:  # with more, numbers in the cells would overlap
            for (row, column), mean in np.ndenumerate(self.class_mean_cosines.numpy()):
                ink = "white" if abs(mean) > 0.6 else "black"
                text = f"{round(mean, 1) + 0.0:.1f}".replace("-", "−")
                right.text(column, row, text, ha="center", va="center", color=ink, fontsize=7)
        return figure


def compute_item_cosines_by_class(
    features: Tensor, labels: Tensor, names: Sequence[str] | None = None
) -> ItemCosinesByClass:
    """Compute cosines of all item pairs, with the mean for each pair of classes.

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
    >>> result = compute_item_cosines_by_class(features, torch.tensor([0, 1, 0, 1]))
    >>> round(result.within, 3), round(result.between, 3), result.labels.tolist()
    (0.981, 0.194, [0, 0, 1, 1])
    """
    check_points("features", features, 2)
    n = len(features)
    check_labels("labels", labels, n)
    order = labels.argsort(stable=True)
    labels, z = labels[order], normalize(features.detach().double()[order])
    classes, codes, sizes = labels.unique(return_inverse=True, return_counts=True)
    check(len(classes) > 1, "labels: must have two classes or more, got one.", "one_class")
    check(bool((sizes > 1).any()), f"labels: must have a class of two items, got {n} of as many classes.", "no_pairs")
    if names is not None:
        check_nonempty_sequence("names", names, "a list of the names of all classes")
    count = len(class_names := tuple(map(str, classes.tolist() if names is None else names)))
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
    return ItemCosinesByClass(cosines, labels, class_names, means, within, between)
