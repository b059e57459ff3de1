"""The encoders of our own, the projector and the decoder: small networks that train on a processor."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contraport._utils.formatting import describe_shape
from contraport.errors import check, check_integer

MLP_FEATURES = 256
MLP_HIDDEN = 512
CNN_WIDTHS = (32, 64, 128, 256)
CNN_LARGEST_SIDES = (16, 8, 4, 4)
CNN_FEATURES = CNN_WIDTHS[-1]
GRADIENT_CELLS = 7
GRADIENT_DIRECTIONS = 9
GRADIENT_FLOOR = 0.02
"""Added to the length of a block, in units of the images' own deviation: what is fainter counts as plain."""

HUE_WEIGHT = 0.5
"""How much hues count: where they tell nothing little is lost so, and of what they tell as good as all is kept."""

TCN_FEATURES = 128
TCN_DILATIONS = (1, 2, 4, 8)

_INSTEAD_OF_IMAGES = "'mlp' for vectors, 'small-tcn' for time series and 'small-text' for texts"


class Projector(nn.Sequential):
    """The head between representation and loss: linear layers with batch norm and ReLU between them; SimCLR's has two.

    Args:
        in_features: of the representation.
        hidden_features: between the layers.
        out_features: of what the loss sees.
        layers: how many are linear, at least 1.

    Raises:
        UsageError: layers is no whole number from 1 on.

    Shape: ``(b, in_features)`` to ``(b, out_features)``.

    Source: Chen, Kornblith, Norouzi and Hinton (2020), A simple framework for contrastive learning (SimCLR), section
    4.2; three layers in Chen et al. (2020), Big self-supervised models (SimCLR v2).

    >>> import torch
    >>> Projector(256, 256, 128)(torch.zeros(4, 256)).shape
    torch.Size([4, 128])
    """

    def __init__(self, in_features: int, hidden_features: int, out_features: int, layers: int = 2) -> None:
        check_integer("layers", layers)
        widths = [in_features, *[hidden_features] * (layers - 1)]
        hidden = [layer for inputs, outputs in pairwise(widths) for layer in dense(inputs, outputs)]
        super().__init__(*hidden, nn.Linear(widths[-1], out_features))


class Decoder(nn.Sequential):
    """Reads a standardised view from an embedding: linear, batch norm, ReLU, linear.

    Shape: ``(b, in_features)`` to ``(b, *shape)``.

    >>> import torch
    >>> Decoder(128, (1, 8, 8))(torch.zeros(4, 128)).shape
    torch.Size([4, 1, 8, 8])
    """

    def __init__(self, in_features: int, shape: tuple[int, ...]) -> None:
        super().__init__(
            *dense(in_features, MLP_HIDDEN), nn.Linear(MLP_HIDDEN, math.prod(shape)), nn.Unflatten(1, shape)
        )


class MLP(nn.Module):
    """Two hidden layers over a vector, the pixels of an image or the values of a time series."""

    num_features = MLP_FEATURES

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        check(len(shape) > 0, "encoder: 'mlp' takes numbers, got texts; use 'small-text'.")
        self.layers = nn.Sequential(
            nn.Flatten(), *dense(math.prod(shape), MLP_HIDDEN), *dense(MLP_HIDDEN, MLP_HIDDEN),
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
        check(
            len(shape) == 3,
            f"encoder: 'small-cnn' takes images, got {describe_shape(shape)}; use {_INSTEAD_OF_IMAGES}.",
        )
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


class Gradients(nn.Module):
    """Histograms of oriented gradients (HOG): which way the edges run in each part of an image, and of images of three
    channels also which hues each part has; it has no weights.

    A pixel's gradient, that of the channel where it is steepest, is shared between the two nearest of 9 directions.
    They are summed in 7 x 7 cells that cover the image whatever its size, and in each block of 2 x 2 cells divided by
    the length of all, so that brightness, contrast and small shifts count little, and the place of an edge does.

    How far a pixel's colour is from grey is shared in the same way between the two nearest of 9 hues, and the square
    root of what each cell has of each, halved, is a feature, so that a little of a hue counts, too. Of grey images all
    are 0.

    Shape: ``(b, C, H, W)`` to ``(b, 1737)``, of other than three channels to ``(b, 1296)``.

    Source: Dalal and Triggs (2005), Histograms of oriented gradients for human detection (CVPR); the hues are ours.

    >>> import torch
    >>> image = torch.rand(1, 1, 28, 28)
    >>> encoder = Gradients((1, 28, 28))
    >>> bool(torch.allclose(encoder(image), encoder(0.5 * image + 0.2), atol=1e-2))
    True
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        check(
            len(shape) == 3,
            f"encoder: 'gradients' takes images, got {describe_shape(shape)}; use {_INSTEAD_OF_IMAGES}.",
        )
        self.colored = shape[0] == 3
        of_edges = GRADIENT_DIRECTIONS * 4 * (GRADIENT_CELLS - 1) ** 2
        self.num_features = of_edges + self.colored * GRADIENT_DIRECTIONS * GRADIENT_CELLS**2

    def forward(self, images: Tensor) -> Tensor:
        """Return the representation, ``(b, num_features)``."""
        return torch.cat([_edges(images), _hues(images)], dim=1) if self.colored else _edges(images)


def _edges(images: Tensor) -> Tensor:
    edged = F.pad(images, (1, 1, 1, 1), mode="replicate")
    across, down = edged[..., 1:-1, 2:] - edged[..., 1:-1, :-2], edged[..., 2:, 1:-1] - edged[..., :-2, 1:-1]
    squares = across.square() + down.square()  # not by hypot, which ONNX has not
    steepest = squares.argmax(dim=1, keepdim=True)
    across, down = across.gather(1, steepest), down.gather(1, steepest)
    # Of lines, not of arrows: an edge from dark to bright is one from bright to dark.
    cells = _by_direction(torch.atan2(down, across) / math.pi, squares.gather(1, steepest).sqrt())
    scale = (4 * F.avg_pool2d(cells.square().sum(dim=1, keepdim=True), 2, 1) + GRADIENT_FLOOR**2).sqrt()
    end = GRADIENT_CELLS - 1
    corners = [cells[:, :, top : top + end, left : left + end] for top in (0, 1) for left in (0, 1)]
    return torch.cat([corner / scale for corner in corners], dim=1).flatten(1)


def _hues(images: Tensor) -> Tensor:
    red, green, blue = images.split(1, dim=1)
    across, down = (red - green) / math.sqrt(2), (red + green - 2 * blue) / math.sqrt(6)  # apart from grey
    cells = _by_direction(torch.atan2(down, across) / (2 * math.pi), (across.square() + down.square()).sqrt())
    return HUE_WEIGHT * cells.sqrt().flatten(1)


def _by_direction(turns: Tensor, lengths: Tensor) -> Tensor:
    """Share lengths between the two nearest of 9 directions, and return their mean in each cell.

    Args:
        turns: where they point, ``(b, 1, H, W)``, in turns.
        lengths: of the same shape.

    Returns:
        of each direction in each cell, ``(b, 9, 7, 7)``.
    """
    directions = torch.arange(GRADIENT_DIRECTIONS, device=turns.device).view(1, -1, 1, 1)
    apart = (turns % 1 * GRADIENT_DIRECTIONS - directions).abs()
    apart = torch.minimum(apart, GRADIENT_DIRECTIONS - apart)
    return F.adaptive_avg_pool2d(lengths * (1 - apart).clamp(min=0), GRADIENT_CELLS)


class SmallTCN(nn.Module):
    """A temporal convolutional network: residual blocks of dilated convolutions, then the mean over time.

    The length stays as it is, so that series of any length pass; the four blocks see 61 steps at once. After Bai et
    al., "An empirical evaluation of generic convolutional and recurrent networks for sequence modeling" (2018), but
    not causal: an encoder has the whole series before it.
    """

    num_features = TCN_FEATURES

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        check(
            len(shape) == 2,
            f"encoder: 'small-tcn' takes time series, got {describe_shape(shape)}; use 'mlp' for vectors, "
            "'small-cnn' for images and 'small-text' for texts.",
        )
        self.entry = nn.Conv1d(shape[0], TCN_FEATURES, 1)
        self.blocks = nn.Sequential(*(_ResidualBlock(TCN_FEATURES, dilation) for dilation in TCN_DILATIONS))

    def forward(self, series: Tensor) -> Tensor:
        """Return the representation, ``(b, num_features)``."""
        steps: Tensor = self.blocks(self.entry(series))
        return steps.mean(dim=2)


class _ResidualBlock(nn.Module):
    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(layer for _ in range(2) for layer in (
                nn.Conv1d(width, width, 3, padding=dilation, dilation=dilation, bias=False),
                nn.BatchNorm1d(width),
                nn.ReLU(inplace=True),
            ))
        )  # fmt: skip

    def forward(self, steps: Tensor) -> Tensor:
        changed: Tensor = self.layers(steps)
        return steps + changed


def dense(inputs: int, outputs: int) -> list[nn.Module]:
    """Return a linear layer, batch norm and ReLU."""
    return [nn.Linear(inputs, outputs, bias=False), nn.BatchNorm1d(outputs), nn.ReLU(inplace=True)]


def _convolution(inputs: int, outputs: int, *, stride: int) -> list[nn.Module]:
    layer = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
    return [layer, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
