"""Random augmentation of texts by selecting word spans and deleting words."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from contraport.data.views.random_draws import RandomDraws

_HASH_MULTIPLIERS = (0x2545F491, 0x5851F42D, 0x14057B7F)  # odd constants of a multiplicative hash
_HASH_MASK = 2**31 - 1  # the lowest 31 bits


@dataclass(frozen=True)
class TextStrength:
    """Span length and word deletion probability of text augmentation at one strength."""

    min_span_fraction: float  # smallest fraction of the words in the span that becomes a view
    deletion_probability: float  # probability that a word of the span is deleted


TEXT_STRENGTH_BY_NAME = {
    "weak": TextStrength(min_span_fraction=0.9, deletion_probability=0.05),
    "standard": TextStrength(min_span_fraction=0.7, deletion_probability=0.1),
    "strong": TextStrength(min_span_fraction=0.5, deletion_probability=0.3),
}


class RandomWordCropAndDeletionOnTextBytes(nn.Module):
    """Keep a random span of words of each text, and delete some words of the span.

    Texts are uint8 ``(b, bytes)``. At least one word is left. Words are separated by white space; each Chinese or
    Japanese character is a word.
    """

    def __init__(self, strength: TextStrength) -> None:
        super().__init__()
        self.strength = strength

    def forward(self, text_bytes: Tensor, draws: RandomDraws) -> Tensor:
        """Return one randomly augmented view of each text."""
        words = word_index_per_byte(text_bytes)
        count = words.amax(1, keepdim=True) + 1
        fraction, place = draws.uniform(self.strength.min_span_fraction, 1, 1), draws.uniform(0, 1, 1)
        length = (fraction * count).ceil().long().clamp(min=1)
        start = (place * (count - length + 1)).long().clamp(max=(count - length).clamp(min=0))
        seeds, spared = draws.integers(_HASH_MASK)[:, None], draws.uniform(0, 1, 1)
        spared = start + (spared * length).long().clamp(max=length - 1)
        inside = (words >= start) & (words < start + length)
        # Numbers in [0, 1), hashed from seeds and word positions: random ones would depend on the longest text of the
        # batch, of which a process may have only a part.
        mixed = seeds ^ (words * _HASH_MULTIPLIERS[0] & _HASH_MASK)
        for multiplier in _HASH_MULTIPLIERS:
            mixed = (mixed ^ (mixed >> 15)) * multiplier & _HASH_MASK
        uniform = (mixed ^ (mixed >> 16)).double() / 2**31
        deleted = (uniform < self.strength.deletion_probability) & (words != spared)
        chosen = inside & ~deleted & (text_bytes > 0)
        # The chosen bytes move to the front, and trailing white space is dropped.
        order = (~chosen).byte().argsort(dim=1, stable=True)
        moved = torch.where(chosen, text_bytes, 0).gather(1, order)
        positions = torch.arange(text_bytes.shape[1], device=text_bytes.device)
        last = torch.where(moved > ord(" "), positions, -1).amax(1, keepdim=True)
        return torch.where(positions <= last, moved, 0)


def word_index_per_byte(text_bytes: Tensor) -> Tensor:
    """Return the index of the word that contains each byte, ``(b, bytes)``.

    >>> from contraport._utils.text_bytes import texts_to_tensor
    >>> word_index_per_byte(texts_to_tensor(["to be 日本"])).tolist()
    [[0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]]
    """
    inside = text_bytes > ord(" ")
    before = torch.cat([torch.zeros_like(inside[:, :1]), inside[:, :-1]], dim=1)
    is_cjk = (text_bytes >= 0xE3) & (text_bytes <= 0xE9)  # lead bytes of U+3000 to U+9FFF, Chinese and Japanese
    starts = inside & ~before | is_cjk
    return (starts.cumsum(1) - 1).clamp(min=0)
