"""Lazy packages: names are imported on first use."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from contraport._utils.lazy_imports import make_package_lazy


def test_submodule_does_not_hide_function_of_same_name(monkeypatch: pytest.MonkeyPatch) -> None:
    package, submodule = ModuleType("scratch"), ModuleType("scratch.walk")
    monkeypatch.setitem(sys.modules, "scratch", package)
    monkeypatch.setitem(sys.modules, "scratch.walk", submodule)
    vars(submodule)["walk"] = len
    make_package_lazy("scratch", walk="walk")
    package.walk = submodule  # type: ignore[attr-defined]  # as the import system does
    assert package.walk is len
    assert "walk" in dir(package)
    with pytest.raises(AttributeError, match="no attribute 'run'"):
        package.run  # type: ignore[attr-defined]  # noqa: B018
