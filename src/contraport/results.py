"""The measures of an evaluation: how each is called and written, and which direction is better."""

from __future__ import annotations

from typing import NamedTuple


class Measure(NamedTuple):
    """A value that `contraport.evaluate` measures.

    Attributes:
        key: what it is called in `evaluation.json`.
        title: what people call it.
        better: "higher", "lower", or nothing where neither is.
        pattern: how it is written.
    """

    key: str
    title: str
    better: str
    pattern: str

    def is_worse(self, value: float, other: float) -> bool:
        """Return whether a value is worse than another, and is not written like it.

        >>> MEASURES[1].is_worse(0.91, 0.95), MEASURES[1].is_worse(0.95001, 0.95004)
        (True, False)
        """
        differ = self.pattern.format(value) != self.pattern.format(other)
        return differ and ((value < other and self.better == "higher") or (value > other and self.better == "lower"))


MEASURES = (
    Measure("linear_probe", "Linear probe", "higher", "{:.1%}"),
    Measure("knn", "kNN", "higher", "{:.1%}"),
    Measure("alignment", "Alignment", "lower", "{:.3f}"),
    Measure("uniformity", "Uniformity", "lower", "{:.3f}"),
    Measure("effective_rank", "Effective rank", "", "{:.1f}"),
)
"""All measures, in the order in which they are shown."""
