"""Encoders of texts of our own: hashed pieces of words, which need no vocabulary."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contraport._utils.formatting import describe_shape
from contraport._utils.text_tensors import MAX_TEXT_BYTES, is_text_shape
from contraport.encoders.networks import MLP_HIDDEN, dense
from contraport.errors import check

TEXT_WIDTH = 128
TEXT_FEATURES = 2 * TEXT_WIDTH
PIECES = (3, 4, 5, 6)
"""How many bytes the pieces of words have."""

BUCKETS = 32_749  # a prime: the remainder of a hash by it depends on all of its bits
DROPPED = 0.1

_BASE = 0x9E3779B97F4A7C15 - 2**64  # odd, so that it has an inverse among the 64-bit integers
_SPACE = 32


class NgramHasher(nn.Module):
    """The words of texts, and their pieces, as numbers below `BUCKETS`: those of equal spelling are equal.

    Capital letters of ASCII count as small ones and white space as blanks, one of which stands before the first word
    and one behind the last. Pieces are runs of 3 to 6 bytes, also across words, so that texts in scripts without blanks
    have them too. All is done in 64-bit integers, which overflow alike everywhere.

    Shape: texts uint8 ``(b, bytes)`` to the numbers of the words ``(b, W)`` and of the pieces ``(b, P)``, each with
    marks that tell which of them there are.
    """

    powers: Tensor
    inverses: Tensor

    def __init__(self) -> None:
        super().__init__()
        inverse = pow(_BASE % 2**64, -1, 2**64)
        for name, base in (("powers", _BASE % 2**64), ("inverses", inverse)):
            factors = torch.full((MAX_TEXT_BYTES + 2,), base - 2**64 if base >= 2**63 else base, dtype=torch.int64)
            factors[0] = 1
            self.register_buffer(name, factors.cumprod(0), persistent=False)

    def forward(self, texts: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return words, which there are, pieces, and which there are."""
        signs = F.pad(texts, (1, 1)).long()
        there = signs > 0
        capital = (signs >= 65) & (signs <= 90)
        signs = torch.where(capital, signs + 32, signs)
        length = there.sum(1, keepdim=True)
        places = torch.arange(signs.shape[1], device=signs.device)
        blank = (there & (signs <= _SPACE)) | (places == 0) | (places == length + 1)
        signs = torch.where(blank, _SPACE, signs)
        powers, inverses = self.powers[: signs.shape[1]], self.inverses[: signs.shape[1]]
        terms = signs * powers
        words, are_words = self._words(terms, there & ~blank, inverses)
        sums = F.pad(terms.cumsum(1), (1, 0))
        pieces, are_pieces = [], []
        for size in PIECES:
            ends = max(signs.shape[1] - size + 1, 0)
            sums_here = sums[:, size : size + ends] - sums[:, :ends]
            pieces.append(torch.remainder(sums_here * inverses[:ends] + size, BUCKETS))
            are_pieces.append(places[:ends] + size <= length + 2)
        return words, are_words, torch.cat(pieces, dim=1), torch.cat(are_pieces, dim=1)

    @staticmethod
    def _words(terms: Tensor, inside: Tensor, inverses: Tensor) -> tuple[Tensor, Tensor]:
        starts = inside & ~F.pad(inside[:, :-1], (1, 0))
        number = (starts.cumsum(1) - 1).clamp(min=0)  # of the word that a byte is in
        words = torch.zeros_like(terms[:, : (terms.shape[1] + 1) // 2])
        hashes = words.scatter_add(1, number, torch.where(inside, terms, 0))
        begins = words.scatter_add(1, number, torch.where(starts, inverses, 0))
        count = starts.sum(1, keepdim=True)
        return torch.remainder(hashes * begins, BUCKETS), torch.arange(words.shape[1], device=terms.device) < count


def vectorize_texts(texts: Tensor, size: int) -> Tensor:
    """Return how often texts have which words and pieces, ``(b, size)`` of length 1, as a hash deals them out.

    >>> from contraport._utils.text_tensors import encoded
    >>> vectorize_texts(encoded(["a red bag", "A red bag", "a blue shoe"]), 4096).matmul(torch.eye(4096)[:, :1]).shape
    torch.Size([3, 1])
    """
    words, are_words, pieces, are_pieces = NgramHasher().to(texts.device)(texts)
    numbers = torch.remainder(torch.cat([words, pieces], dim=1), size)
    counts = torch.cat([are_words, are_pieces], dim=1).float()
    return F.normalize(torch.zeros(len(texts), size, device=texts.device).scatter_add(1, numbers, counts))


class SmallText(nn.Module):
    """Two bags, one of the words of a text and one of their pieces, and what two layers add; trains on a processor.

    Words and pieces are hashed into one table of vectors, so that there is neither a vocabulary nor a text that it
    cannot take. In training a tenth of the words and pieces are left out at random, others at each pass: two passes of
    one text differ.

    After Bojanowski, Grave, Joulin and Mikolov (2017), Enriching word vectors with subword information, with a network
    on top.

    >>> from contraport._utils.text_tensors import encoded
    >>> SmallText(()).eval()(encoded(["a red bag", "ein roter Beutel"])).shape
    torch.Size([2, 256])
    """

    num_features = TEXT_FEATURES

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        check(is_text_shape(shape), f"encoder: 'small-text' takes texts, got {describe_shape(shape)}.")
        self.hashed = NgramHasher()
        self.table = nn.Embedding(BUCKETS, TEXT_WIDTH)
        self.layers = nn.Sequential(*dense(TEXT_FEATURES, MLP_HIDDEN), nn.Linear(MLP_HIDDEN, TEXT_FEATURES))

    def forward(self, texts: Tensor) -> Tensor:
        """Return the representation, ``(b, num_features)``."""
        words, are_words, pieces, are_pieces = self.hashed(texts)
        bags = torch.cat([self._bag(words, are_words), self._bag(pieces, are_pieces)], dim=1)
        changed: Tensor = self.layers(bags)
        return bags + changed

    def _bag(self, numbers: Tensor, there: Tensor) -> Tensor:
        """Return the sum of the vectors, by the root of their number, so that long texts are no longer vectors."""
        weights = F.dropout(there.to(self.table.weight.dtype), DROPPED, self.training)
        weights = weights / there.sum(1, keepdim=True).clamp(min=1).to(weights.dtype).sqrt()
        return F.embedding_bag(numbers, self.table.weight, mode="sum", per_sample_weights=weights)
