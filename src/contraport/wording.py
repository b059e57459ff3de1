"""Numbers and names as they stand in a sentence."""

from __future__ import annotations

from collections.abc import Sequence


def counted(number: int, thing: str, things: str | None = None) -> str:
    """Return how many things there are.

    Args:
        number: of them.
        thing: what one is called.
        things: what several are called; default: with an s.

    >>> counted(1, "batch", "batches"), counted(0, "epoch"), counted(60_000, "item")
    ('1 batch', '0 epochs', '60,000 items')
    """
    return f"{number:,} {thing if number == 1 else things or f'{thing}s'}"


def rounded(number: float, digits: int = 2) -> str:
    """Return a number of so many digits that tell, without a power of ten where it is large.

    >>> rounded(99.7), rounded(0.0123), rounded(38_147.3, 3)
    ('100', '0.012', '38,100')
    """
    return f"{float(f'{number:.{digits}g}'):,.15g}"


def listed(names: Sequence[str]) -> str:
    """Return names as they stand in a sentence.

    >>> listed(["a", "b", "c"]), listed(["a"])
    ('a, b and c', 'a')
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def items_told(shape: Sequence[int]) -> str:
    """Return what one view of an item is, by its shape.

    >>> items_told((3, 32, 32)), items_told((20,)), items_told(())
    ('3 x 32 x 32', '20 numbers', 'text')
    """
    return counted(shape[0], "number") if len(shape) == 1 else " x ".join(map(str, shape)) or "text"


def shape_told(shape: Sequence[int]) -> str:
    """Return what items of a shape are, where they are not what was expected.

    >>> shape_told((3, 8, 8)), shape_told(())
    ('items of shape (3, 8, 8)', 'texts')
    """
    return f"items of shape {tuple(shape)}" if len(shape) > 0 else "texts"
