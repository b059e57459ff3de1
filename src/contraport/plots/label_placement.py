"""Where the names of classes stand on a map."""

from __future__ import annotations

from typing import Any

import numpy as np

NEAR = 0.05
"""Points are about one another within so much of the span of a map."""

SIZE = np.array([0.17, 0.045])
"""How wide and high a name is, of the span of a map."""

MOST_POINTS = 1_500
"""Of more points than this places are sought among some, evenly many of each class."""

Array = np.ndarray[Any, Any]


def place_labels(points: Array, labels: Array) -> Array:
    """Return for each class, in the order of sorted labels, where its name stands, ``(classes, 2)``.

    That is at the one of its points that has the most of its own about it, less others, where no other name stands: a
    middle would lie outside of a class in two pieces.

    Args:
        points: (n, 2).
        labels: class of each, (n,), numbers or words.

    >>> points = np.array([[0.0, 0.0], [0.1, 0.0], [9.0, 9.0], [5.0, 9.0], [5.0, 9.1]])
    >>> place_labels(points, np.array([0, 0, 0, 1, 1])).tolist()
    [[0.0, 0.0], [5.0, 9.0]]
    """
    step = -(-len(points) // MOST_POINTS)
    classes = np.unique(labels)
    some = np.concatenate([np.flatnonzero(labels == label)[::step] for label in classes])
    points, labels = points[some], labels[some]
    span = float(np.ptp(points, axis=0).max()) or 1.0
    apart = np.abs(points[:, None] - points)
    near, own = (apart < NEAR * span).all(axis=2), labels[:, None] == labels
    crowds = (near & own).sum(axis=1) - (near & ~own).sum(axis=1)
    taken: list[int] = []
    for label in classes:
        best = np.flatnonzero(labels == label)
        best = best[np.argsort(-crowds[best], kind="stable")]
        free = best[(apart[best][:, taken] > SIZE * span).any(axis=2).all(axis=1)]
        taken.append(int(free[0] if len(free) else best[0]))
    found: Array = points[taken]
    return found
