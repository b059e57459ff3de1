"""Where something is, as text: imported when it is used, so that to know of it costs nothing."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def imported(place: str) -> Any:
    """Return what is at a place, ``"module:attribute"``; the module is imported now, unless it was before.

    >>> imported("math:pi")
    3.141592653589793
    """
    module, _, attribute = place.partition(":")
    return getattr(import_module(module), attribute)
