"""Texts held in memory, one behind the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from contraport._utils.text_tensors import TEXT_SHAPE, encode_utf8
from contraport.data.digests import digest_contents
from contraport.data.splits import Positions


@dataclass(frozen=True)
class Texts:
    """Texts of all items of a source, some of which become a store.

    Attributes:
        texts: one for each item.
        argument: what messages call them.
    """

    texts: Sequence[str]
    argument: str = "data"

    def __call__(self, positions: Positions) -> PackedTextStore:
        """Return a store of those at some positions."""
        return PackedTextStore.of([self.texts[position] for position in positions.tolist()], self.argument)


@dataclass(frozen=True)
class PackedTextStore:
    """Texts as one view, held in memory without what fills up the shorter ones.

    Attributes:
        content: the bytes of all.
        ends: where each begins and the next one does, int64 ``(n + 1,)``.
    """

    content: Tensor
    ends: Tensor
    in_memory: bool = True

    @classmethod
    def of(cls, texts: Sequence[str], argument: str = "texts") -> PackedTextStore:
        """Return a store of texts.

        Raises:
            UsageError: they hold what is no text.

        >>> store = PackedTextStore.of(["a", "bc", ""])
        >>> len(store), store.shapes, store.fetch(torch.tensor([1, 0]))[0].tolist()
        (3, ((),), [[98, 99], [97, 0]])
        """
        own = encode_utf8(texts, argument)
        ends = np.cumsum([0, *map(len, own)], dtype=np.int64)
        return cls(torch.frombuffer(bytearray(b"".join(own) or b"\0"), dtype=torch.uint8), torch.from_numpy(ends))

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shape of one item of each view."""
        return (TEXT_SHAPE,)

    @cached_property
    def digests(self) -> Tensor:
        """Digests of the texts, int64 ``(n, 1)``."""
        content, ends = self.content.numpy().tobytes(), self.ends.tolist()
        return digest_contents(content[start:end] for start, end in pairwise(ends))[:, None]

    def __len__(self) -> int:
        return len(self.ends) - 1

    def fetch(self, positions: Tensor) -> tuple[Tensor, ...]:
        """Return the texts at some positions, as long as the longest of them."""
        starts, ends = self.ends[positions], self.ends[positions + 1]
        longest = max(int((ends - starts).max()), 1) if len(positions) else 1
        places = starts[:, None] + torch.arange(longest)
        inside = places < ends[:, None]
        return (torch.where(inside, self.content[torch.where(inside, places, 0)], 0),)
