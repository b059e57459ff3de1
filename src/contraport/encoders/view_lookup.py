"""Lookup of the views of a model by name, index or kind of item."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from contraport.encoders.factory import Shape
from contraport.errors import check, unknown_name_error

KINDS = {0: "text", 1: "vector", 2: "series", 3: "image"}


def kind_from_shape(shape: Shape) -> str:
    """Return the kind of item of a shape: text, vector, series or image.

    >>> kind_from_shape((3, 32, 32)), kind_from_shape((6, 100)), kind_from_shape((7,))
    ('image', 'series', 'vector')
    """
    return KINDS[len(shape)]


def resolve_view(
    argument: str, value: object, names: Sequence[str], shapes: Sequence[Shape], *, others: Sequence[str] = ()
) -> int:
    """Return the index of the view with a name, an index, or a kind that only one view has, such as "image".

    Args:
        argument: name of the option, for messages.
        value: name, number or kind.
        names: of the views.
        shapes: of one item of each view.
        others: other valid values, for messages.

    Raises:
        UsageError: no view matches, or several are of the kind.

    >>> names, shapes = ("photo", "audio"), ((3, 32, 32), (1, 8000))
    >>> [resolve_view("view", value, names, shapes) for value in ("audio", "1", "image")]
    [1, 1, 0]
    """
    text, kinds = str(value), [kind_from_shape(shape) for shape in shapes]
    numbers = [str(number) for number in range(len(names))]
    for candidates in (list(names), numbers):
        if text in candidates:
            return candidates.index(text)
    matches = [name for name, kind in zip(names, kinds, strict=True) if kind == text]
    check(
        len(matches) < 2,
        f"{argument}: {text!r} is the kind of {len(matches)} views; name one of {matches}.",
        "ambiguous",
    )
    if not matches:
        raise unknown_name_error(argument, text, dict.fromkeys([*others, *names, *kinds, *numbers]), "view")
    return kinds.index(text)


def mapping_to_view_list(
    argument: str, values: Mapping[str, Any], names: Sequence[str], shapes: Sequence[Shape]
) -> list[Any]:
    """Convert a mapping from views to values into a list with one entry per view, None where there is none.

    Raises:
        UsageError: a key matches no view, or two keys match the same view.

    >>> mapping_to_view_list("encoder", {"image": "resnet18"}, ("photo", "audio"), ((3, 32, 32), (1, 8000)))
    ['resnet18', None]
    """
    result: list[Any] = [None] * len(names)
    for key, value in values.items():
        number = resolve_view(argument, key, names, shapes)
        message = f"{argument}: names the view {names[number]!r} twice, in {list(values)}."
        check(result[number] is None, message, "duplicate")
        result[number] = value
    return result
