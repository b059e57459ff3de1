"""Built-in text encoder over hashed words and byte n-grams, without a vocabulary."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contraport._utils.formatting import describe_shape
from contraport._utils.text_bytes import MAX_TEXT_BYTES, is_text_shape
from contraport.encoders.networks import MLP_HIDDEN, dense_block
from contraport.errors import check

EMBEDDING_WIDTH = 128
TEXT_FEATURES = 2 * EMBEDDING_WIDTH
NGRAM_SIZES = (3, 4, 5, 6)
"""Lengths of the n-grams in bytes."""

BUCKETS = 32_749  # prime, so that the remainder depends on all bits of the hash
DROPOUT = 0.1

_BASE = 0x9E3779B97F4A7C15 - 2**64  # odd, so that it has an inverse among the 64-bit integers
_SPACE = 32


class NgramHasher(nn.Module):
    """Hashes the words and byte n-grams of texts to integers below `BUCKETS`.

    ASCII letters are lowercased, white space becomes a blank, and one blank is added at both ends. N-grams of 3 to 6
    bytes may span words, so that scripts without blanks have them too. The hash is polynomial in 64-bit integers, whose
    overflow is the same on every device.

    Shape: texts uint8 ``(b, bytes)`` to hashes of the words ``(b, W)`` with a mask, and of the n-grams ``(b, P)`` with
    a mask.
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
        """Return the hashes of words with a mask, and the hashes of n-grams with a mask."""
        codes = F.pad(texts, (1, 1)).long()
        present = codes > 0
        uppercase = (codes >= 65) & (codes <= 90)
        codes = torch.where(uppercase, codes + 32, codes)
        length = present.sum(1, keepdim=True)
        positions = torch.arange(codes.shape[1], device=codes.device)
        blank = (present & (codes <= _SPACE)) | (positions == 0) | (positions == length + 1)
        codes = torch.where(blank, _SPACE, codes)
        powers, inverses = self.powers[: codes.shape[1]], self.inverses[: codes.shape[1]]
        terms = codes * powers
        words, word_mask = self._hash_words(terms, present & ~blank, inverses)
        # A window's hash is a difference of prefix sums; the inverse power of its start makes it position-independent.
        sums = F.pad(terms.cumsum(1), (1, 0))
        ngrams, ngram_masks = [], []
        for size in NGRAM_SIZES:
            count = max(codes.shape[1] - size + 1, 0)
            windows = sums[:, size : size + count] - sums[:, :count]
            ngrams.append(torch.remainder(windows * inverses[:count] + size, BUCKETS))
            ngram_masks.append(positions[:count] + size <= length + 2)
        return words, word_mask, torch.cat(ngrams, dim=1), torch.cat(ngram_masks, dim=1)

    @staticmethod
    def _hash_words(terms: Tensor, inside: Tensor, inverses: Tensor) -> tuple[Tensor, Tensor]:
        starts = inside & ~F.pad(inside[:, :-1], (1, 0))
        number = (starts.cumsum(1) - 1).clamp(min=0)  # index of the word that contains the byte
        words = torch.zeros_like(terms[:, : (terms.shape[1] + 1) // 2])
        hashes = words.scatter_add(1, number, torch.where(inside, terms, 0))
        offsets = words.scatter_add(1, number, torch.where(starts, inverses, 0))
        count = starts.sum(1, keepdim=True)
        return torch.remainder(hashes * offsets, BUCKETS), torch.arange(words.shape[1], device=terms.device) < count


def vectorize_texts(texts: Tensor, size: int) -> Tensor:
    """Return counts of hashed words and n-grams, ``(b, size)``, normalized to length 1 (the hashing trick).

    >>> from contraport._utils.text_bytes import texts_to_tensor
    >>> vectorize_texts(texts_to_tensor(["a red bag", "A red bag", "a blue shoe"]), 4096).shape
    torch.Size([3, 4096])
    """
    words, word_mask, ngrams, ngram_mask = NgramHasher().to(texts.device)(texts)
    buckets = torch.remainder(torch.cat([words, ngrams], dim=1), size)
    counts = torch.cat([word_mask, ngram_mask], dim=1).float()
    return F.normalize(torch.zeros(len(texts), size, device=texts.device).scatter_add(1, buckets, counts))


class SmallText(nn.Module):
    """Text encoder: summed vectors of hashed words and of n-grams, plus a residual MLP; trains on a CPU.

    Words and n-grams share one table of vectors, so there is no vocabulary and every text is accepted. In training a
    random tenth of them is dropped, so that two passes over the same text differ.

    Source: Bojanowski, Grave, Joulin and Mikolov (2017), Enriching word vectors with subword information, without the
    MLP.

    >>> from contraport._utils.text_bytes import texts_to_tensor
    >>> SmallText(()).eval()(texts_to_tensor(["a red bag", "ein roter Beutel"])).shape
    torch.Size([2, 256])
    """

    num_features = TEXT_FEATURES

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        check(is_text_shape(shape), f"encoder: 'small-text' takes texts, got {describe_shape(shape)}.", "shape")
        self.hasher = NgramHasher()
        self.table = nn.Embedding(BUCKETS, EMBEDDING_WIDTH)
        self.layers = nn.Sequential(*dense_block(TEXT_FEATURES, MLP_HIDDEN), nn.Linear(MLP_HIDDEN, TEXT_FEATURES))

    def forward(self, texts: Tensor) -> Tensor:
        """Return the representation, ``(b, num_features)``."""
        words, word_mask, ngrams, ngram_mask = self.hasher(texts)
        bags = torch.cat([self._sum_vectors(words, word_mask), self._sum_vectors(ngrams, ngram_mask)], dim=1)
        residual: Tensor = self.layers(bags)
        return bags + residual

    def _sum_vectors(self, hashes: Tensor, mask: Tensor) -> Tensor:
        """Return the sum of the vectors divided by the square root of their number."""
        # over the root, not the number: the norm then depends little on the length of the text
        weights = F.dropout(mask.to(self.table.weight.dtype), DROPOUT, self.training)
        weights = weights / mask.sum(1, keepdim=True).clamp(min=1).to(weights.dtype).sqrt()
        return F.embedding_bag(hashes, self.table.weight, mode="sum", per_sample_weights=weights)
