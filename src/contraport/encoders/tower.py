"""Standardization, encoder and projector of one view."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contraport._utils.text_bytes import is_text_batch
from contraport.encoders.builtin_networks import Projector
from contraport.encoders.factory import Shape, build_encoder
from contraport.errors import UsageError, check
from contraport.options import keep_deprecated_attributes

CONCATENATED_REPRESENTATION: Final = "concatenate"  # option `representation`: the features of the views, concatenated
PROJECTION_REPRESENTATION: Final = "projection"  # the output of the projector
BOTH_REPRESENTATION: Final = "both"  # both, each normalized

RepresentationName: TypeAlias = Literal["concatenate", "projection", "both"]
"""Part of a tower's output that is the representation of its view, one of the three names above."""


@keep_deprecated_attributes(represent_features="to_representation")
class Tower(nn.Module):
    """Standardization and encoder of one view, with an optional projector.

    Args:
        encoder: a name or a module, as in `build_encoder`; `shape` and `low_resolution` likewise.
        projection: output features of the projector, the input of the loss; 0: no projector.
        mean: subtracted from each channel (images in units of [0, 1], time series) or feature (vectors); empty for
            texts.
        std: divisor of each channel or feature.
        layers: linear layers of the projector.

    Shape: images uint8 or float in [0, 1] ``(b, C, H, W)``, vectors ``(b, d)``, time series ``(b, C, T)`` or texts as
    UTF-8 bytes ``(b, bytes)``, to ``(b, num_features)``.

    Raises:
        UsageError: the encoder is unknown, or mean or std does not fit the shape.

    >>> tower = Tower("small-tcn", (6, 100), 32, mean=[0.0] * 6, std=[1.0] * 6)
    >>> h = tower(torch.zeros(5, 6, 100))
    >>> h.shape, tower.projector(h).shape
    (torch.Size([5, 128]), torch.Size([5, 32]))
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        encoder: str | nn.Module,
        shape: Shape,
        projection: int,
        mean: Sequence[float],
        std: Sequence[float],
        layers: int = 2,
        low_resolution: bool = True,
    ) -> None:
        super().__init__()
        self.encoder = build_encoder(encoder, shape, low_resolution=low_resolution)
        self.num_features = int(self.encoder.num_features)  # type: ignore[arg-type]
        self.projector = (
            Projector(self.num_features, self.num_features, projection, layers) if projection > 0 else nn.Identity()
        )
        self.projection_width = projection or self.num_features
        self._register_channel_statistic("mean", mean, shape)
        self._register_channel_statistic("std", std, shape)
        check(bool((self.std > 0).all()), "std: must be positive.")

    def _register_channel_statistic(self, name: str, values: Sequence[float], shape: Shape) -> None:
        """Register one number per channel or feature as a buffer."""
        numbers, size = torch.tensor([float(value) for value in values]), shape[0] if shape else 0
        good = len(numbers) == size and bool(numbers.isfinite().all())
        check(good, f"{name}: must be {size} finite numbers, one per channel or feature, got {len(numbers)}.", "shape")
        self.register_buffer(name, numbers.view(-1, *[1] * (len(shape) - 1)))

    def standardize(self, items: Tensor) -> Tensor:
        """Standardize raw items to zero mean and unit variance, except texts."""
        if is_text_batch(items):
            return items
        if items.dtype == torch.uint8:
            items = items / 255.0
        return (items - self.mean) / self.std

    def representation_size(self, part: RepresentationName) -> int:
        """Return the length of `part`: features, projection, or both concatenated."""
        projected = self.projection_width
        sizes = {PROJECTION_REPRESENTATION: projected, BOTH_REPRESENTATION: self.num_features + projected}
        return sizes.get(part, self.num_features)

    def to_representation(self, features: Tensor, part: RepresentationName) -> Tensor:
        """Return the features, the projection, or both concatenated, as the tower is set up."""
        if part == PROJECTION_REPRESENTATION:
            projected: Tensor = self.projector(features)
            return projected
        if part == BOTH_REPRESENTATION:
            return torch.cat([F.normalize(features, dim=-1), F.normalize(self.projector(features), dim=-1)], dim=-1)
        return features

    def forward(self, items: Tensor, *, pooled: bool = True) -> Tensor:
        """Return encoder features of raw items, before the projector, ``(b, F)``.

        With ``pooled=False``, return those of each patch or word, ``(b, t, F)``. Vectors are tokens, patches or time
        steps; those of zeros are padding.
        """
        standardized = self.standardize(items)
        if pooled:
            return cast(Tensor, self.encoder(standardized))
        function = getattr(self.encoder, "forward_tokens", None) or getattr(self.encoder, "forward_features", None)
        name = type(self.encoder).__name__
        if function is None:
            message = (
                f"encoder: must return the vectors of an item for a kernel of sets; {name} has no method "
                "forward_features, from items (b, ...) to (b, vectors, features)."
            )
            raise UsageError(message, kind="no_vectors")
        vectors = function(standardized)
        if vectors.ndim == 4:  # feature maps of timm's convolutional networks
            vectors = vectors.flatten(2).transpose(1, 2)
        vectors = vectors[:, getattr(self.encoder, "num_prefix_tokens", 0) :]  # class tokens
        good = vectors.ndim == 3 and vectors.shape[2] == self.num_features
        message = f"encoder: must return vectors (b, t, {self.num_features}), got {tuple(vectors.shape)} of {name}."
        check(good, message, "vectors_shape")
        return cast(Tensor, vectors)
