"""Lazy imports: of objects by location ``"module:attribute"``, and of modules and packages on first use."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


def import_object(location: str) -> Any:
    """Import the object at a location ``"module:attribute"``.

    >>> import_object("math:pi")
    3.141592653589793
    """
    module, _, attribute = location.partition(":")
    return getattr(import_module(module), attribute)


class _LazyModule:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self._name), attribute)


def lazy_module(name: str) -> Any:
    """Return a stand-in for a module that is imported when an attribute is first used.

    >>> lazy_module("math").sqrt(4)
    2.0
    """
    return _LazyModule(name)


class _LazyPackage(ModuleType):
    """Package whose names are imported on first use, so that its `config` module loads without them."""

    _modules: dict[str, str]

    def __getattr__(self, name: str) -> Any:
        if name not in self._modules:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        value = getattr(import_module(self._modules[name]), name)
        super().__setattr__(name, value)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        # Importing a submodule binds it to the package: the module `training.train` must not hide the function `train`.
        if not (name in self._modules and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._modules})


def make_package_lazy(package: str, **modules: str) -> None:
    """Make a package import its public names on first use.

    Args:
        package: name of the package.
        modules: by public name, the module within the package that defines it.
    """
    module = sys.modules[package]
    module.__dict__["_modules"] = {name: f"{package}.{submodule}" for name, submodule in modules.items()}
    module.__class__ = _LazyPackage
