"""Which items show the same in a view: one image with several captions, say."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

import numpy as np

from contraport.data.splits import Codes, Marks


def numbered(names: Iterable[Hashable]) -> Codes:
    """Return a number for each name, the same for equal ones.

    >>> numbered(["a.png", "b.png", "a.png"]).tolist()
    [0, 1, 0]
    """
    known: dict[Hashable, int] = {}
    return np.array([known.setdefault(name, len(known)) for name in names], dtype=np.int64)


def what_is_shown(names: Sequence[Iterable[Hashable]], present: Marks | None = None) -> np.ndarray:
    """Return what each item shows in each view, ``(n, views)``, given what it is called there.

    Args:
        names: of each view, a name for each item.
        present: which items have which views; what is not there is nothing that two have in common.

    >>> what_is_shown([["a.png", "a.png"], ["a bag", "a bag"]], np.array([[True, True], [True, False]])).tolist()
    [[0, 0], [0, -2]]
    """
    shown = np.stack([numbered(one) for one in names], axis=1)
    return shown if present is None else np.where(present, shown, -1 - np.arange(len(shown))[:, None])
