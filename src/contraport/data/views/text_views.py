"""Random views of texts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from contraport.data.views.draws import Draws

_BLANK = 32
_FIRST_SIGN, _LAST_SIGN = 0xE3, 0xE9  # lead bytes of the characters of Chinese and Japanese, U+3000 to U+9FFF
_MULTIPLIERS = (0x2545F491, 0x5851F42D, 0x14057B7F)
_MASK = 2**31 - 1


@dataclass(frozen=True)
class TextStrength:
    """How far the views of a text may differ."""

    kept: float  # smallest share of the words in the span that a view is
    deleted: float  # chance of each word of it to be left out


TEXTS = {
    "weak": TextStrength(kept=0.9, deleted=0.05),
    "standard": TextStrength(kept=0.7, deleted=0.1),
    "strong": TextStrength(kept=0.5, deleted=0.3),
}


class TextTransform(nn.Module):
    """Cut a span of words out of each text, and leave some words of it out; at least one stays.

    Words are what blanks part; each character of Chinese or Japanese is one.

    Shape: texts uint8 ``(b, bytes)`` to such texts.
    """

    def __init__(self, strength: TextStrength) -> None:
        super().__init__()
        self.strength = strength

    def forward(self, texts: Tensor, draws: Draws) -> Tensor:
        """Return one random view of each text."""
        words = word_index(texts)
        count = words.amax(1, keepdim=True) + 1
        share, place = draws.uniform(self.strength.kept, 1, 1), draws.uniform(0, 1, 1)
        length = (share * count).ceil().long().clamp(min=1)
        start = (place * (count - length + 1)).long().clamp(max=(count - length).clamp(min=0))
        seeds, spared = draws.integers(_MASK)[:, None], draws.uniform(0, 1, 1)
        spared = start + (spared * length).long().clamp(max=length - 1)
        inside = (words >= start) & (words < start + length)
        left_out = (_uniform(seeds, words) < self.strength.deleted) & (words != spared)
        return _packed(texts, inside & ~left_out & (texts > 0))


def word_index(texts: Tensor) -> Tensor:
    """Return the number of the word that each byte belongs to, from 0 on; blanks belong to the word before them.

    >>> from contraport._utils.text_tensors import encoded
    >>> word_index(encoded(["to be 日本"])).tolist()
    [[0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]]
    """
    inside = texts > _BLANK
    before = torch.cat([torch.zeros_like(inside[:, :1]), inside[:, :-1]], dim=1)
    starts = inside & ~before | ((texts >= _FIRST_SIGN) & (texts <= _LAST_SIGN))
    return (starts.cumsum(1) - 1).clamp(min=0)


def _uniform(seeds: Tensor, places: Tensor) -> Tensor:
    """Return a number between 0 and 1 for each place of each item, a function of the item's seed alone.

    Draws themselves would depend on the longest text of the batch, of which a process may have a part.
    """
    mixed = seeds ^ (places * _MULTIPLIERS[0] & _MASK)
    for multiplier in _MULTIPLIERS:
        mixed = (mixed ^ (mixed >> 15)) * multiplier & _MASK
    return (mixed ^ (mixed >> 16)).double() / 2**31


def _packed(texts: Tensor, kept: Tensor) -> Tensor:
    """Return the kept bytes one after the other, without a blank behind the last."""
    order = (~kept).byte().argsort(dim=1, stable=True)
    moved = torch.where(kept, texts, 0).gather(1, order)
    last = torch.where(moved > _BLANK, torch.arange(texts.shape[1], device=texts.device), -1).amax(1, keepdim=True)
    return torch.where(torch.arange(texts.shape[1], device=texts.device) <= last, moved, 0)
