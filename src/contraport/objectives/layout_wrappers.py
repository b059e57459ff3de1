"""Layouts that wrap another layout, and change its embeddings, blocks or masks."""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from contraport.engine import SimilarityExclusion, normalize
from contraport.errors import check, check_finite, check_integer, check_nonempty_sequence, check_positive, check_type
from contraport.objectives.layouts import Block, Layout, LayoutTraits
from contraport.options import accept_deprecated_keywords, keep_deprecated_attributes

__all__ = [
    "CoordinatePairs",
    "GuidedNegatives",
    "LeadingCoordinates",
    "NestedCoordinates",
    "RotatedFirstView",
]  # fmt: skip


class LayoutWrapper(Layout, ABC):
    """Base class of layouts that modify another layout.

    Attributes:
        layout: The layout that is modified.
    """

    layout: Layout

    def __post_init__(self) -> None:
        super().__post_init__()
        check_type("layout", self.layout, Layout, "Cross()")

    def __call__(self, *views: Tensor) -> list[Block]:
        return self.layout(*views)

    def arrange_like_embeddings(self, *values: Tensor) -> list[Block]:
        return self.layout.arrange_like_embeddings(*values)

    @property
    def traits(self) -> LayoutTraits:
        return self.layout.traits

    def with_mask_by_features(self, block: Block, item_features: tuple[Tensor, Tensor]) -> Block:
        return self.layout.with_mask_by_features(block, item_features)

    def pad_negatives_like_views(self, negatives: Tensor) -> Tensor:
        return self.layout.pad_negatives_like_views(negatives)


@dataclass(frozen=True, repr=False)
class LeadingCoordinates(LayoutWrapper):
    """Layout that compares only the first coordinates of each embedding (DirectCLR).

    Args:
        dimensions: number of coordinates, at least 1.
        layout: the other layout.

    Raises:
        UsageError: dimensions is not positive or, in the call, above the embedding dimension.

    >>> import torch, contraport as cp
    >>> (block,) = cp.LeadingCoordinates(2, cp.Cross())(torch.zeros(3, 5), torch.zeros(3, 5))
    >>> block.x.shape
    torch.Size([3, 2])
    """

    dimensions: int
    layout: Layout

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("dimensions", self.dimensions)

    def __call__(self, *views: Tensor) -> list[Block]:
        d = views[0].shape[-1]
        check(self.dimensions <= d, f"dimensions: must be at most {d}, the embedding dimension, got {self.dimensions}.")
        return self.layout(*(z[..., : self.dimensions] for z in views))


@dataclass(frozen=True, repr=False)
class NestedCoordinates(LayoutWrapper):
    """Layout that compares embedding prefixes of several sizes (Matryoshka).

    The blocks of the other layout are built for each number of coordinates; the objective is their weighted sum. See
    `matryoshka`.

    Args:
        dims: numbers of first coordinates, at least 1 and all different.
        layout: the other layout.
        weights: weight of each number of coordinates, positive; default: 1 each.

    Raises:
        UsageError: dims or weights are invalid or, in the call, dims are above the embedding dimension.

    Source: Kusupati et al. (2022), Matryoshka representation learning, eq. 1.

    >>> import torch, contraport as cp
    >>> [block.x.shape[1] for block in cp.NestedCoordinates((4, 2), cp.Cross())(torch.zeros(3, 5), torch.zeros(3, 5))]
    [4, 2]
    """

    dims: Sequence[int]
    layout: Layout
    weights: Sequence[float] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_nonempty_sequence("dims", self.dims, "a list of numbers of coordinates")
        object.__setattr__(self, "dims", tuple(self.dims))  # a layout can be hashed
        for size in self.dims:
            check_integer("dims", size)
        check(len(set(self.dims)) == len(self.dims), f"dims: must be different numbers, got {self.dims}.", "repeated")
        if self.weights is not None:
            expected = f"{len(self.dims)} numbers, one for each of dims"
            check_nonempty_sequence("weights", self.weights, expected)
            check(len(self.weights) == len(self.dims), f"weights: must be {expected}, got {self.weights}.", "number")
            object.__setattr__(self, "weights", tuple(self.weights))
            for weight in self.weights:
                check_positive("weights", weight)

    def __call__(self, *views: Tensor) -> list[Block]:
        d = views[0].shape[-1]
        message = f"dims: must be at most {d}, the embedding dimension, got {max(self.dims)}."
        check(max(self.dims) <= d, message, "range")
        return self._flatten_weighted_blocks([self.layout(*(z[..., :size] for z in views)) for size in self.dims])

    def arrange_like_embeddings(self, *values: Tensor) -> list[Block]:
        return self._flatten_weighted_blocks([self.layout.arrange_like_embeddings(*values)] * len(self.dims))

    def _flatten_weighted_blocks(self, blocks_by_size: list[list[Block]]) -> list[Block]:
        """List the blocks of pairs for all prefix sizes of the embeddings, with their weights."""
        weights = self.weights or (1.0,) * len(self.dims)
        return [
            replace(block, pattern=block.pattern.with_scaled_weight(weight))
            for blocks, weight in zip(blocks_by_size, weights, strict=True)
            for block in blocks
        ]


@dataclass(frozen=True, repr=False)
class RotatedFirstView(LayoutWrapper):
    """Layout that rotates the first view's embeddings by 45 degrees (AnglE).

    An embedding is read as d / 2 complex numbers, whose real parts are its first and whose imaginary parts are its last
    coordinates; if d is odd, a zero is appended. The first view is multiplied by exp(-i pi / 4).

    Args:
        layout: the other layout.

    Source: Li and Li (2023), AnglE-optimized text embeddings; their similarity |Re + Im| of x / y is this cosine times
    the square root of 2, in absolute value.

    >>> import torch, contraport as cp
    >>> (block,) = cp.RotatedFirstView(cp.Cross())(torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.0]]))
    >>> block.x
    tensor([[ 0.7071, -0.7071]])
    """

    layout: Layout

    def __call__(self, *views: Tensor) -> list[Block]:
        first, *others = map(_pad_to_even_dimension, views)
        # Sums of half-precision coordinates would lose digits.
        real, imaginary = first.to(torch.promote_types(first.dtype, torch.float32)).chunk(2, dim=-1)
        return self.layout(torch.cat([real + imaginary, imaginary - real], dim=-1) / math.sqrt(2), *others)

    def pad_negatives_like_views(self, negatives: Tensor) -> Tensor:
        return self.layout.pad_negatives_like_views(_pad_to_even_dimension(negatives))


def _pad_to_even_dimension(z: Tensor) -> Tensor:
    """Append a zero coordinate to embeddings of odd dimension."""
    return F.pad(z, (0, z.shape[-1] % 2))


@dataclass(frozen=True, repr=False)
class GuidedNegatives(LayoutWrapper):
    """Layout that masks the negatives a teacher finds too similar to the anchor (GISTEmbed).

    The call needs the teacher's ``features=``. The pair (i, j) is excluded if cos(t_i, t_j) > cos(t_i, t_i+) - margin;
    positives are never excluded; of several positives the least similar one counts. Additional columns
    (``negatives=``) have no features and stay. The mask is evaluated within a tile, in O((N + M) k) memory.

    Args:
        layout: the other layout.
        margin: in units of the cosine.

    Raises:
        UsageError: the margin is not a finite number, or the layout's columns are not items.

    Source: Solatorio (2024), GISTEmbed: guided in-sample selection of training negatives, section 3.

    >>> import torch, contraport as cp
    >>> layout = cp.GuidedNegatives(cp.Cross(), 0.5)
    >>> loss = cp.Objective(layout, cp.Gibbs("cosine", 1.0), cp.Rows(), cp.Pairs(), cp.KL())
    >>> loss.plan(torch.eye(3), torch.eye(3), features=torch.tensor([[1.0, 0], [1, 0.1], [0, 1]]))
    tensor([[0.2437, 0.0000, 0.0896],
            [0.0000, 0.2437, 0.0896],
            [0.0706, 0.0706, 0.1920]])
    """

    layout: Layout
    margin: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_finite("margin", self.margin)
        good = self.layout.traits.compares_items and not self.layout.traits.shared_columns
        check(good, f"layout: must compare items with items, got {self.layout!r}.")

    @property
    def traits(self) -> LayoutTraits:
        """Properties of the wrapped layout, extended to require teacher features.

        With margin <= 0, features of whole items, equal in all views, exclude nothing: no pair is more similar than an
        item with itself.
        """
        return self.layout.traits._replace(requires_features_argument=True, requires_view_features=self.margin <= 0)

    def with_mask_by_features(self, block: Block, item_features: tuple[Tensor, Tensor]) -> Block:
        """Exclude pairs whose features are more similar than the positive pair's."""
        block = super().with_mask_by_features(block, item_features)
        pattern = block.pattern
        x = normalize(item_features[0])
        y = x if item_features[0] is item_features[1] else normalize(item_features[1])
        rows, columns = pattern.positives
        similarities = torch.linalg.vecdot(x[rows], y[columns])
        limits = x.new_full((len(x),), torch.inf).scatter_reduce(0, rows, similarities, "amin") - self.margin
        mask = SimilarityExclusion((x, y), (limits, x.new_zeros(len(y))), pattern.items)
        return replace(block, pattern=replace(pattern, masks=(*pattern.masks, mask), has_no_empty_row_or_column=False))


@accept_deprecated_keywords(centred="centered", summed="sum_over_coordinates")
@keep_deprecated_attributes(summed="sum_over_coordinates")
@dataclass(frozen=True, repr=False)
class CoordinatePairs(LayoutWrapper):
    """Layout that compares coordinates by correlation (Barlow Twins, VICReg).

    Views (n, d) become d vectors of n numbers, whose inner products are covariances and whose cosines are correlations.
    The call takes no ``ids``, ``weights``, ``present`` or ``negatives``, which belong to items.

    Args:
        layout: the other layout.
        centered: subtract each coordinate's mean and divide by sqrt(n - 1), so that inner products are unbiased
            covariances; else divide by sqrt(n).
        sum_over_coordinates: sum over the coordinates rather than average.

    Raises:
        UsageError: in the call, a single item whose coordinates are to be centered.

    >>> import torch
    >>> from contraport.objectives import Cross
    >>> (block,) = CoordinatePairs(Cross())(torch.zeros(3, 2), torch.zeros(3, 2))
    >>> block.shape
    (2, 2)
    """

    layout: Layout
    centered: bool = True
    sum_over_coordinates: bool = False

    @property
    def traits(self) -> LayoutTraits:
        return self.layout.traits._replace(compares_items=False)

    def __call__(self, *views: Tensor) -> list[Block]:
        n, d = views[0].shape
        check(n > 1 or not self.centered, "z0: must have at least 2 items for covariances, got 1.", "single_item")
        wide = [z.to(torch.promote_types(z.dtype, torch.float32)) for z in views]
        scaled = [_center_columns(z) / (n - 1) ** 0.5 if self.centered else z / n**0.5 for z in wide]
        blocks = self.layout(*(z.T for z in scaled))
        if not self.sum_over_coordinates:
            return blocks
        return [replace(block, pattern=block.pattern.with_scaled_weight(d)) for block in blocks]


def _center_columns(z: Tensor) -> Tensor:
    """Subtract the mean of each column, which makes constant columns 0."""
    centered = z - z.mean(0)
    # Coordinates that vary by rounding only are 0 and have no gradient: their correlation would be noise.
    rounding = 8 * torch.finfo(z.dtype).eps * z.detach().abs().amax(0)
    return torch.where(centered.detach().abs().amax(0) <= rounding, 0, centered)
