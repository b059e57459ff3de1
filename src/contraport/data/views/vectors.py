"""Random views of vectors."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from contraport.data.views.random_draws import RandomDraws


@dataclass(frozen=True)
class VectorStrength:
    """Ranges and probabilities of the random changes of vectors."""

    noise: float  # standard deviation, relative to that of each feature
    masked: float  # probability that a feature is replaced by its mean
    scaling: float  # largest relative change of the distance from the mean


VECTORS = {
    "weak": VectorStrength(noise=0.1, masked=0.1, scaling=0.1),
    "standard": VectorStrength(noise=0.3, masked=0.2, scaling=0.2),
    "strong": VectorStrength(noise=0.6, masked=0.4, scaling=0.4),
}


class VectorTransform(nn.Module):
    """Scale, mask and jitter vectors (b, d) about the mean of the data, in units of its standard deviation."""

    mean: Tensor
    std: Tensor

    def __init__(self, strength: VectorStrength, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.strength = strength
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("std", std, persistent=False)

    def forward(self, vectors: Tensor, draws: RandomDraws) -> Tensor:
        """Return one random view of each vector."""
        features = vectors.shape[1]
        scale = draws.uniform(1 - self.strength.scaling, 1 + self.strength.scaling, 1)
        unmasked = draws.uniform(0, 1, features) >= self.strength.masked
        noise = self.strength.noise * self.std * draws.normal(features)
        return self.mean + (vectors - self.mean) * scale * unmasked + noise
