"""The two encoders of our own and the projector: small networks that train on a processor."""

from __future__ import annotations

import math

from torch import Tensor, nn

from contraport.errors import check

MLP_FEATURES = 256
MLP_HIDDEN = 512
CNN_WIDTHS = (32, 64, 128, 256)
CNN_LARGEST_SIDES = (16, 8, 4, 4)
CNN_FEATURES = CNN_WIDTHS[-1]


class Projector(nn.Sequential):
    """The head of SimCLR between representation and loss: linear, batch norm, ReLU, linear.

    Shape: ``(b, in_features)`` to ``(b, out_features)``.

    >>> import torch
    >>> Projector(256, 256, 128)(torch.zeros(4, 256)).shape
    torch.Size([4, 128])
    """

    def __init__(self, in_features: int, hidden_features: int, out_features: int) -> None:
        super().__init__(
            nn.Linear(in_features, hidden_features, bias=False),
            nn.BatchNorm1d(hidden_features),
            nn.ReLU(inplace=True),
            nn.Linear(hidden_features, out_features),
        )


class MLP(nn.Module):
    """Two hidden layers over a vector, or over the pixels of an image."""

    num_features = MLP_FEATURES

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), *_dense(math.prod(shape), MLP_HIDDEN), *_dense(MLP_HIDDEN, MLP_HIDDEN),
            nn.Linear(MLP_HIDDEN, MLP_FEATURES),
        )  # fmt: skip

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the representation, ``(b, num_features)``."""
        features: Tensor = self.layers(inputs)
        return features


class SmallCNN(nn.Module):
    """A few stages of 3 x 3 convolutions over a small image, then the mean over its pixels.

    The first stages halve the resolution only while it is above 16 and then 8 pixels, so that tiny images keep theirs.
    """

    num_features = CNN_FEATURES

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        check(len(shape) == 3, f"encoder: 'small-cnn' takes images, got items of shape {shape}; use 'mlp' for vectors.")
        side, layers, channels = min(shape[1:]), list[nn.Module](), shape[0]
        for width, largest in zip(CNN_WIDTHS, CNN_LARGEST_SIDES, strict=True):
            stride = 1 if side <= largest else 2
            layers += _convolution(channels, width, stride=stride)
            side, channels = -(-side // stride), width
        self.layers = nn.Sequential(*layers)

    def forward(self, images: Tensor) -> Tensor:
        """Return the representation, ``(b, num_features)``."""
        pixels: Tensor = self.layers(images)
        return pixels.mean(dim=(2, 3))


def _dense(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Linear(inputs, outputs, bias=False), nn.BatchNorm1d(outputs), nn.ReLU(inplace=True)]


def _convolution(inputs: int, outputs: int, *, stride: int) -> list[nn.Module]:
    layer = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
    return [layer, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
