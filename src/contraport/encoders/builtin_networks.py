"""Built-in encoders small enough to train on a CPU; also a projector and a decoder.

The text encoder works on hashed words and byte n-grams and needs no vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contraport._utils.formatting import describe_items_of_shape
from contraport._utils.text_bytes import MAX_TEXT_BYTES
from contraport.errors import check, check_integer

MLP_HIDDEN_WIDTH = 512
"""Width of the hidden layers of the MLP."""
HISTOGRAM_CELLS_PER_SIDE = 7
"""Number of cells along each side of the image; each cell has a histogram."""
NUM_ANGLE_BINS = 9
"""Number of bins of a histogram of angles, which are gradient directions or hues."""


def default_encoder_name(shape: tuple[int, ...]) -> str:
    """Return the name of the built-in encoder for items of a shape.

    >>> [default_encoder_name(shape) for shape in ((6,), (6, 100), (1, 28, 28), ())]
    ['mlp', 'small-tcn', 'small-cnn', 'small-text']
    """
    return ("small-text", "mlp", "small-tcn", "small-cnn")[len(shape)]


class Projector(nn.Sequential):
    """Projection head of linear layers with batch norm and ReLU between them.

    Args:
        in_features: of the representation.
        hidden_features: between the layers.
        out_features: input of the loss.
        layers: number of linear layers, at least 1; SimCLR has 2.

    Raises:
        UsageError: layers is not an integer >= 1.

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
        hidden = [layer for inputs, outputs in pairwise(widths) for layer in build_linear_norm_relu(inputs, outputs)]
        super().__init__(*hidden, nn.Linear(widths[-1], out_features))

    def forward(self, features: Tensor) -> Tensor:
        """Return the projections of features ``(b, F)``, or of sets ``(b, t, F)``."""
        return apply_to_nonzero_vectors(super().forward, features) if features.ndim == 3 else super().forward(features)


class Decoder(nn.Sequential):
    """Decoder that reconstructs a standardized view from an embedding.

    Its layers are linear, batch norm, ReLU and linear.

    Shape: ``(b, in_features)`` to ``(b, *shape)``.

    >>> import torch
    >>> Decoder(128, (1, 8, 8))(torch.zeros(4, 128)).shape
    torch.Size([4, 1, 8, 8])
    """

    def __init__(self, in_features: int, shape: tuple[int, ...]) -> None:
        super().__init__(
            *build_linear_norm_relu(in_features, MLP_HIDDEN_WIDTH),
            nn.Linear(MLP_HIDDEN_WIDTH, math.prod(shape)),
            nn.Unflatten(1, shape),
        )


class MLP(nn.Module):
    """Multilayer perceptron with two hidden layers over vectors or flattened items."""

    num_features = 256

    def __init__(self, item_shape: tuple[int, ...]) -> None:
        super().__init__()
        check(len(item_shape) > 0, "encoder: 'mlp' takes numbers, got texts; use 'small-text'.", "shape")
        self.layers = nn.Sequential(
            nn.Flatten(),
            *build_linear_norm_relu(math.prod(item_shape), MLP_HIDDEN_WIDTH),
            *build_linear_norm_relu(MLP_HIDDEN_WIDTH, MLP_HIDDEN_WIDTH),
            nn.Linear(MLP_HIDDEN_WIDTH, self.num_features),
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the representation, ``(b, num_features)``."""
        features: Tensor = self.layers(inputs)
        return features


class SmallCNN(nn.Module):
    """Four stages of 3 x 3 convolutions, then average pooling.

    A stage halves the resolution only if it exceeds 16, 8, 4 and 4 pixels, so that tiny images keep theirs.
    """

    num_features = 256

    def __init__(self, item_shape: tuple[int, ...]) -> None:
        super().__init__()
        _check_item_shape("small-cnn", item_shape, 3, "images")
        side, layers, channels = min(item_shape[1:]), list[nn.Module](), item_shape[0]
        for width, largest in ((32, 16), (64, 8), (128, 4), (self.num_features, 4)):
            stride = 1 if side <= largest else 2
            layers += [
                nn.Conv2d(channels, width, 3, stride, 1, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(inplace=True),
            ]
            side, channels = -(-side // stride), width
        self.layers = nn.Sequential(*layers)

    def forward(self, images: Tensor) -> Tensor:
        """Return the representation, ``(b, num_features)``."""
        pixels: Tensor = self.layers(images)
        return pixels.mean(dim=(2, 3))

    def forward_tokens(self, images: Tensor) -> Tensor:
        """Return the features of each patch, ``(b, patches, num_features)``."""
        patches: Tensor = self.layers(images)
        return patches.flatten(2).transpose(1, 2)


class GradientAndHueHistograms(nn.Module):
    """Fixed histograms of oriented gradients (HOG) and of hues as image features.

    The gradient of a pixel, from its steepest channel, is split between the two nearest of 9 directions. Directions are
    averaged in 7 x 7 cells that cover the image, and each block of 2 x 2 cells is divided by its norm. The features
    depend little on brightness, contrast and small shifts.

    The distance of a pixel's color from gray is split in the same way between the two nearest of 9 hues. A feature is
    half the square root of a cell's mean, so that weak hues count. For gray images these features are 0.

    Shape: ``(b, 3, H, W)`` to ``(b, 1737)``, other numbers of channels to ``(b, 1296)``.

    Source: Dalal and Triggs (2005), Histograms of oriented gradients for human detection (CVPR), without the hues.

    >>> import torch
    >>> image = torch.rand(1, 1, 28, 28)
    >>> encoder = GradientAndHueHistograms((1, 28, 28))
    >>> bool(torch.allclose(encoder(image), encoder(0.5 * image + 0.2), atol=1e-2))
    True
    """

    def __init__(self, item_shape: tuple[int, ...]) -> None:
        super().__init__()
        _check_item_shape("gradients", item_shape, 3, "images")
        self.colored = item_shape[0] == 3
        of_edges = NUM_ANGLE_BINS * 4 * (HISTOGRAM_CELLS_PER_SIDE - 1) ** 2
        self.num_features = of_edges + self.colored * NUM_ANGLE_BINS * HISTOGRAM_CELLS_PER_SIDE**2

    def forward(self, images: Tensor) -> Tensor:
        """Return the representation, ``(b, num_features)``."""
        edges = _compute_hog_features(images)
        return torch.cat([edges, _compute_hue_features(images)], dim=1) if self.colored else edges


def _compute_hog_features(images: Tensor) -> Tensor:
    """Return block-normalized histograms of oriented gradients (HOG), ``(b, 1296)``."""
    padded = F.pad(images, (1, 1, 1, 1), mode="replicate")
    dx, dy = padded[..., 1:-1, 2:] - padded[..., 1:-1, :-2], padded[..., 2:, 1:-1] - padded[..., :-2, 1:-1]
    squares = dx.square() + dy.square()  # not torch.hypot, which ONNX lacks
    steepest = squares.argmax(dim=1, keepdim=True)
    dx, dy = dx.gather(1, steepest), dy.gather(1, steepest)
    # Divided by pi, not 2 pi: opposite gradients have the same direction, so that contrast reversal changes nothing.
    cells = _compute_angle_histograms(torch.atan2(dy, dx) / math.pi, squares.gather(1, steepest).sqrt())
    # The constant, in standard deviations of the images, makes faint edges count little.
    scale = (4 * F.avg_pool2d(cells.square().sum(dim=1, keepdim=True), 2, 1) + 0.02**2).sqrt()
    end = HISTOGRAM_CELLS_PER_SIDE - 1
    corners = [cells[:, :, top : top + end, left : left + end] for top in (0, 1) for left in (0, 1)]
    return torch.cat([corner / scale for corner in corners], dim=1).flatten(1)


def _compute_hue_features(images: Tensor) -> Tensor:
    """Return features from hue histograms of RGB images, ``(b, 441)``."""
    red, green, blue = images.split(1, dim=1)
    # Coordinates in the plane orthogonal to the gray axis.
    u, v = (red - green) / math.sqrt(2), (red + green - 2 * blue) / math.sqrt(6)
    cells = _compute_angle_histograms(torch.atan2(v, u) / (2 * math.pi), (u.square() + v.square()).sqrt())
    return 0.5 * cells.sqrt().flatten(1)  # hues count half as much as edges


def _compute_angle_histograms(angles_in_turns: Tensor, magnitudes: Tensor) -> Tensor:
    """Return 9-bin histograms of angles (gradient directions or hues) for each image cell.

    Args:
        angles_in_turns: angle of each pixel, ``(b, 1, H, W)``; 1 is the full circle of bins.
        magnitudes: weight of each pixel, ``(b, 1, H, W)``.

    Returns:
        Mean length per bin and cell, interpolated linearly between bins, ``(b, 9, 7, 7)``.
    """
    bins = torch.arange(NUM_ANGLE_BINS, device=angles_in_turns.device).view(1, -1, 1, 1)
    distance = (angles_in_turns % 1 * NUM_ANGLE_BINS - bins).abs()
    distance = torch.minimum(distance, NUM_ANGLE_BINS - distance)
    return F.adaptive_avg_pool2d(magnitudes * (1 - distance).clamp(min=0), HISTOGRAM_CELLS_PER_SIDE)


class SmallTCN(nn.Module):
    """Temporal convolutional network of dilated residual blocks and mean pooling over time.

    It takes series of any length; the receptive field of the four blocks is 61 steps. Not causal, as an encoder has the
    whole series.

    Source: Bai et al. (2018), An empirical evaluation of generic convolutional and recurrent networks for sequence
    modeling.
    """

    num_features = 128

    def __init__(self, item_shape: tuple[int, ...]) -> None:
        super().__init__()
        _check_item_shape("small-tcn", item_shape, 2, "time series")
        self.entry = nn.Conv1d(item_shape[0], self.num_features, 1)
        self.blocks = nn.Sequential(*(_DilatedResidualBlock(self.num_features, dilation) for dilation in (1, 2, 4, 8)))

    def forward(self, series: Tensor) -> Tensor:
        """Return the representation, ``(b, num_features)``."""
        return self.forward_tokens(series).mean(dim=1)

    def forward_tokens(self, series: Tensor) -> Tensor:
        """Return the features of each time step, ``(b, T, num_features)``."""
        steps: Tensor = self.blocks(self.entry(series))
        return steps.transpose(1, 2)


class _DilatedResidualBlock(nn.Module):
    """Residual block of two dilated convolutions."""

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
        residual: Tensor = self.layers(steps)
        return steps + residual


def build_linear_norm_relu(in_features: int, out_features: int) -> list[nn.Module]:
    """Build a linear layer, batch norm and ReLU."""
    return [nn.Linear(in_features, out_features, bias=False), nn.BatchNorm1d(out_features), nn.ReLU(inplace=True)]


def _check_item_shape(encoder: str, item_shape: tuple[int, ...], num_dimensions: int, expected: str) -> None:
    """Raise `UsageError` unless a shape has `num_dimensions` dimensions."""
    got, suggested = describe_items_of_shape(item_shape), default_encoder_name(item_shape)
    message = f"encoder: {encoder!r} takes {expected}, got {got}; use {suggested!r}."
    check(len(item_shape) == num_dimensions, message, "shape")


HASH_EMBEDDING_WIDTH = 128
"""Length of the vector of a hashed word or n-gram."""
NGRAM_SIZES = (3, 4, 5, 6)
"""Lengths of the n-grams in bytes."""
NUM_HASH_BUCKETS = 32_749  # prime, so that the remainder depends on all bits of the hash
"""Number of rows of the tables of hashed words and n-grams."""
WORD_DROPOUT_PROBABILITY = 0.1
"""Probability that a word or n-gram is dropped in training."""
LOG_WEIGHT_SCALE = 30.0
"""Factor on stored log-weights: Adam changes them by about the learning rate per step, which alone is too slow."""
_HASH_BASE = 0x9E3779B97F4A7C15 - 2**64  # odd, so that it has an inverse among the 64-bit integers


class MaskedHashes(NamedTuple):
    """Hashes of the words or n-grams of each text, padded.

    Attributes:
        hashes: integers, ``(b, W)``.
        mask: True for a word or n-gram, False for padding, ``(b, W)``.
    """

    hashes: Tensor
    mask: Tensor


class WordAndNgramHasher(nn.Module):
    """Module that hashes the words and byte n-grams of texts.

    The hashes are integers below `NUM_HASH_BUCKETS`. ASCII letters are lowercased, white space becomes a blank, and one
    blank is added at both ends. N-grams of `ngram_sizes` bytes may span words, so that scripts without blanks have them
    too. The hash is polynomial in 64-bit integers, whose overflow is the same on every device.

    Shape: texts uint8 ``(b, bytes)`` to hashes and mask of the words ``(b, W)`` and of the n-grams ``(b, P)``.
    """

    base_powers: Tensor
    inverse_base_powers: Tensor

    def __init__(self, ngram_sizes: Sequence[int] = NGRAM_SIZES) -> None:
        super().__init__()
        self.ngram_sizes = ngram_sizes
        inverse = pow(_HASH_BASE % 2**64, -1, 2**64)
        for name, base in (("base_powers", _HASH_BASE % 2**64), ("inverse_base_powers", inverse)):
            factors = torch.full((MAX_TEXT_BYTES + 2,), base - 2**64 if base >= 2**63 else base, dtype=torch.int64)
            factors[0] = 1
            self.register_buffer(name, factors.cumprod(0), persistent=False)

    def forward(self, text_bytes: Tensor) -> tuple[MaskedHashes, MaskedHashes]:
        """Return the hashes of the words, and those of the n-grams."""
        codes = F.pad(text_bytes, (1, 1)).long()
        present = codes > 0
        uppercase = (codes >= 65) & (codes <= 90)
        codes = torch.where(uppercase, codes + 32, codes)
        length = present.sum(1, keepdim=True)
        positions = torch.arange(codes.shape[1], device=codes.device)
        blank = (present & (codes <= ord(" "))) | (positions == 0) | (positions == length + 1)
        codes = torch.where(blank, ord(" "), codes)
        inverse_base_powers = self.inverse_base_powers[: codes.shape[1]]
        terms = codes * self.base_powers[: codes.shape[1]]
        inside = present & ~blank
        starts = inside & ~F.pad(inside[:, :-1], (1, 0))
        number = (starts.cumsum(1) - 1).clamp(min=0)  # index of the word that contains the byte
        empty = torch.zeros_like(terms[:, : (terms.shape[1] + 1) // 2])
        words = empty.scatter_add(1, number, torch.where(inside, terms, 0))
        offsets = empty.scatter_add(1, number, torch.where(starts, inverse_base_powers, 0))
        words = torch.remainder(words * offsets, NUM_HASH_BUCKETS)
        word_mask = torch.arange(words.shape[1], device=terms.device) < starts.sum(1, keepdim=True)
        # A window's hash is a difference of prefix sums; the inverse power of its start makes it position-independent.
        sums = F.pad(terms.cumsum(1), (1, 0))
        ngrams, ngram_masks = [], []
        for size in self.ngram_sizes:
            count = max(codes.shape[1] - size + 1, 0)
            windows = sums[:, size : size + count] - sums[:, :count]
            ngrams.append(torch.remainder(windows * inverse_base_powers[:count] + size, NUM_HASH_BUCKETS))
            ngram_masks.append(positions[:count] + size <= length + 2)
        return MaskedHashes(words, word_mask), MaskedHashes(torch.cat(ngrams, dim=1), torch.cat(ngram_masks, dim=1))


def vectorize_texts(text_bytes: Tensor, num_features: int) -> Tensor:
    """Return unit-norm word and n-gram counts of texts by the hashing trick.

    >>> from contraport._utils.text_bytes import texts_to_tensor
    >>> vectorize_texts(texts_to_tensor(["a red bag", "A red bag", "a blue shoe"]), 4096).shape
    torch.Size([3, 4096])
    """
    pairs = zip(*WordAndNgramHasher().to(text_bytes.device)(text_bytes), strict=True)
    hashes, mask = (torch.cat(parts, dim=1) for parts in pairs)
    return _sum_by_bucket_and_normalize(hashes, mask.float(), num_features)


def _sum_by_bucket_and_normalize(hashes: Tensor, values: Tensor, num_buckets: int) -> Tensor:
    """Sum values into hash buckets and scale to unit norm, ``(b, num_buckets)``."""
    # shape[0], not len: a traced network then takes any number of texts
    sums = values.new_zeros(hashes.shape[0], num_buckets).scatter_add(1, torch.remainder(hashes, num_buckets), values)
    return F.normalize(sums)


def split_into_padded_words(text_bytes: Tensor) -> Tensor:
    """Return the zero-padded UTF-8 words of each text, ``(b, words, bytes)``.

    >>> from contraport._utils.text_bytes import tensor_to_texts, texts_to_tensor
    >>> [tensor_to_texts(words) for words in split_into_padded_words(texts_to_tensor(["a red bag", "bag"]))]
    [['a', 'red', 'bag'], ['bag', '', '']]
    """
    inside = text_bytes > ord(" ")
    starts = inside & ~F.pad(inside[:, :-1], (1, 0))
    rows, columns = inside.nonzero().unbind(1)
    word = (starts.cumsum(1) - 1)[rows, columns]
    positions = torch.arange(text_bytes.shape[1], device=text_bytes.device).expand_as(text_bytes)
    offset = columns - torch.where(starts, positions, 0).cummax(1).values[rows, columns]
    count, longest = (int(values.max()) + 1 if len(values) else 1 for values in (word, offset))
    split = text_bytes.new_zeros(len(text_bytes), count, longest)
    split[rows, word, offset] = text_bytes[rows, columns]
    return split


def apply_to_nonzero_vectors(function: Callable[[Tensor], Tensor], vector_sets: Tensor) -> Tensor:
    """Apply `function` to nonzero vectors only, so that zero padding stays zero."""
    present = vector_sets.any(2).bool()
    values = function(vector_sets[present])
    return values.new_zeros(*present.shape, values.shape[1]).masked_scatter(present[..., None], values)


class NgramEmbeddingTextEncoder(nn.Module):
    """Text encoder of summed word and n-gram vectors, with a residual MLP.

    Words and n-grams share one table of vectors, so there is no vocabulary and every text is accepted. In training a
    random tenth of them is dropped, so that two passes over the same text differ.

    Source: Bojanowski, Grave, Joulin and Mikolov (2017), Enriching word vectors with subword information, without the
    MLP.

    >>> from contraport._utils.text_bytes import texts_to_tensor
    >>> NgramEmbeddingTextEncoder(()).eval()(texts_to_tensor(["a red bag", "ein roter Beutel"])).shape
    torch.Size([2, 256])
    """

    num_features = 2 * HASH_EMBEDDING_WIDTH

    def __init__(self, item_shape: tuple[int, ...]) -> None:
        super().__init__()
        _check_item_shape("small-text", item_shape, 0, "texts")
        self.hasher = WordAndNgramHasher()
        self.table = nn.Embedding(NUM_HASH_BUCKETS, HASH_EMBEDDING_WIDTH)
        self.layers = nn.Sequential(
            *build_linear_norm_relu(self.num_features, MLP_HIDDEN_WIDTH), nn.Linear(MLP_HIDDEN_WIDTH, self.num_features)
        )

    def forward(self, text_bytes: Tensor) -> Tensor:
        """Return the representation, ``(b, num_features)``."""
        sums = []
        for hashes, mask in self.hasher(text_bytes):
            # Divided by the root of their number, not the number: the norm then depends little on the text's length.
            weights = F.dropout(mask.to(self.table.weight.dtype), WORD_DROPOUT_PROBABILITY, self.training)
            weights = weights / mask.sum(1, keepdim=True).clamp(min=1).to(weights.dtype).sqrt()
            sums.append(F.embedding_bag(hashes, self.table.weight, mode="sum", per_sample_weights=weights))
        bags = torch.cat(sums, dim=1)
        residual: Tensor = self.layers(bags)
        return bags + residual

    def forward_tokens(self, text_bytes: Tensor) -> Tensor:
        """Return the features of each word, ``(b, words, num_features)``."""
        return apply_to_nonzero_vectors(self, split_into_padded_words(text_bytes))


class WeightedNgramCountEncoder(nn.Module):
    """Text encoder of hashed word and n-gram counts with learned weights.

    Untrained, all weights are 1 and the features are the raw counts, so training starts at this baseline. It learns
    which words and n-grams identify a text, as inverse document frequencies estimate it without training, but no
    synonyms. In training a random tenth of them is dropped.

    >>> from contraport._utils.text_bytes import texts_to_tensor
    >>> texts = texts_to_tensor(["a red bag", "ein roter Beutel"])
    >>> bool(torch.allclose(WeightedNgramCountEncoder(()).eval()(texts), vectorize_texts(texts, 2_048)))
    True
    """

    num_features = 2_048
    name = "weighted-ngrams"
    ngram_sizes: tuple[int, ...] = NGRAM_SIZES

    def __init__(self, item_shape: tuple[int, ...]) -> None:
        super().__init__()
        _check_item_shape(self.name, item_shape, 0, "texts")
        self.hasher = WordAndNgramHasher(self.ngram_sizes)
        self.log_weights = nn.Embedding(NUM_HASH_BUCKETS, 1)
        nn.init.zeros_(self.log_weights.weight)

    def forward(self, text_bytes: Tensor) -> Tensor:
        """Return the unit-norm representation, ``(b, num_features)``."""
        hashes, mask = (torch.cat(parts, dim=1) for parts in zip(*self.hasher(text_bytes), strict=True))
        dtype = self.log_weights.weight.dtype
        # Half precision has neither the range of the weights nor that of the bound by which an empty text is divided.
        log_weights = self.log_weights(hashes).squeeze(2).to(torch.promote_types(dtype, torch.float32))
        present = F.dropout(mask.to(log_weights.dtype), WORD_DROPOUT_PROBABILITY, self.training)
        values = present * torch.exp(LOG_WEIGHT_SCALE * log_weights)
        return _sum_by_bucket_and_normalize(hashes, values, self.num_features).to(dtype)

    def forward_tokens(self, text_bytes: Tensor) -> Tensor:
        """Return the features of each word, ``(b, words, num_features)``."""
        return apply_to_nonzero_vectors(self, split_into_padded_words(text_bytes))


class ShortNgramCountEncoder(WeightedNgramCountEncoder):
    """Typo-tolerant text encoder that counts words and 2- to 4-byte n-grams."""

    num_features = 4_096
    name = "short-ngrams"
    ngram_sizes = (2, 3, 4)
