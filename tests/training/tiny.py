"""Small encoder of the run folders stored with the tests; their configuration contains this module path."""

from __future__ import annotations

from torch import Tensor, nn


class Tiny(nn.Module):
    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(shape[0], 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 6))
        self.num_features = 6

    def forward(self, inputs: Tensor) -> Tensor:
        features: Tensor = self.layers(inputs)
        return features
