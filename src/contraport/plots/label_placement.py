"""Placement of class names on an embedding map without overlap."""

from __future__ import annotations

from typing import Any

import numpy as np

NEIGHBORHOOD = 0.05
"""Half the side of the square in which neighbors are counted, relative to the span of the map."""

NAME_SIZE = np.array([0.17, 0.045])
"""Width and height of a name, relative to the span of the map."""

MAX_POINTS = 1_500
"""With more points a subsample of each class is used: the distances take O(n^2) memory."""

Array = np.ndarray[Any, Any]


def place_class_names(points: Array, labels: Array) -> Array:
    """Return the position of each class name on a map of points, (classes, 2), in the order of sorted labels.

    The position is the class's point with the most neighbors of its own class minus those of others, among points where
    no other name stands. A centroid would lie between the parts of a class that is split in two.

    Args:
        points: (n, 2).
        labels: class of each point, (n,), numbers or strings.

    >>> points = np.array([[0.0, 0.0], [0.1, 0.0], [9.0, 9.0], [5.0, 9.0], [5.0, 9.1]])
    >>> place_class_names(points, np.array([0, 0, 0, 1, 1])).tolist()
    [[0.0, 0.0], [5.0, 9.0]]
    """
    step = -(-len(points) // MAX_POINTS)
    classes = np.unique(labels)
    some = np.concatenate([np.flatnonzero(labels == label)[::step] for label in classes])
    points, labels = points[some], labels[some]
    span = float(np.ptp(points, axis=0).max()) or 1.0
    apart = np.abs(points[:, None] - points)
    near, own = (apart < NEIGHBORHOOD * span).all(axis=2), labels[:, None] == labels
    crowds = (near & own).sum(axis=1) - (near & ~own).sum(axis=1)
    taken: list[int] = []
    for label in classes:
        best = np.flatnonzero(labels == label)
        # Stable, so that equal crowds give the same place on every platform.
        best = best[np.argsort(-crowds[best], kind="stable")]
        free = best[(apart[best][:, taken] > NAME_SIZE * span).any(axis=2).all(axis=1)]
        taken.append(int(free[0] if len(free) else best[0]))
    positions: Array = points[taken]
    return positions
