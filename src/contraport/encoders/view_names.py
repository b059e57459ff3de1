"""What the views of an item are called: by their names, their numbers or their kinds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from contraport.encoders.build import Shape
from contraport.errors import check, unknown_name_error

KINDS = {0: "text", 1: "vector", 2: "series", 3: "image"}


def kind_from_shape(shape: Shape) -> str:
    """Return what kind of item has a shape.

    >>> kind_from_shape((3, 32, 32)), kind_from_shape((6, 100)), kind_from_shape((7,))
    ('image', 'series', 'vector')
    """
    return KINDS[len(shape)]


def resolve_view(
    argument: str, called: object, names: Sequence[str], shapes: Sequence[Shape], *, others: Sequence[str] = ()
) -> int:
    """Return the number of the view that is called so: by its name, its number, or the kind that it alone is of.

    Args:
        argument: what messages call it.
        called: what came.
        names: of the views.
        shapes: of one item of each.
        others: what else could have come, to be told.

    Raises:
        UsageError: no view is called so, or several are of the kind.

    >>> names, shapes = ("photo", "audio"), ((3, 32, 32), (1, 8000))
    >>> [resolve_view("view", called, names, shapes) for called in ("audio", "1", "image")]
    [1, 1, 0]
    """
    text, kinds = str(called), [kind_from_shape(shape) for shape in shapes]
    numbers = [str(number) for number in range(len(names))]
    for known in (list(names), numbers):
        if text in known:
            return known.index(text)
    several = [name for name, kind in zip(names, kinds, strict=True) if kind == text]
    check(len(several) < 2, f"{argument}: {len(several)} views are of kind {text!r}; expected one of {several}.")
    if not several:
        raise unknown_name_error(argument, text, dict.fromkeys([*others, *names, *kinds]))
    return kinds.index(text)


def values_per_view(
    argument: str, given: Mapping[str, Any], names: Sequence[str], shapes: Sequence[Shape]
) -> list[Any]:
    """Return what is given for each view, None where nothing is.

    Raises:
        UsageError: something is given for a view that is not there, or twice for one.

    >>> values_per_view("encoder", {"image": "resnet18"}, ("photo", "audio"), ((3, 32, 32), (1, 8000)))
    ['resnet18', None]
    """
    found: list[Any] = [None] * len(names)
    for called, value in given.items():
        number = resolve_view(argument, called, names, shapes)
        check(found[number] is None, f"{argument}: the view {names[number]!r} is named twice, in {list(given)}.")
        found[number] = value
    return found
