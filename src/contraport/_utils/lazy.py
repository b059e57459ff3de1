"""Lazy imports: places in modules as text, imported on first use."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


def imported(place: str) -> Any:
    """Return what is at a place, ``"module:attribute"``; the module is imported now, unless it was before.

    >>> imported("math:pi")
    3.141592653589793
    """
    module, _, attribute = place.partition(":")
    return getattr(import_module(module), attribute)


class _LazyPackage(ModuleType):
    """Package whose names are imported when they are first used, so that its `config` can be read without them."""

    _places: dict[str, str]

    def __getattr__(self, name: str) -> Any:
        if name not in self._places:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        value = getattr(import_module(self._places[name]), name)
        super().__setattr__(name, value)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        # The import of a submodule binds it to the package: `training.train` must not hide the function `train`.
        if not (name in self._places and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._places})


def make_package_lazy(package: str, **places: str) -> None:
    """Let a package import its names when they are first used.

    Args:
        package: its name.
        places: the module of each name, within the package.
    """
    module = sys.modules[package]
    module.__dict__["_places"] = {name: f"{package}.{place}" for name, place in places.items()}
    module.__class__ = _LazyPackage
