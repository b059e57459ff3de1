"""Repr of the components of an objective, with only the settings that differ from their defaults."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any


class ReprMixin:
    """Dataclass mixin whose repr shows only the settings that differ from their defaults."""

    def __repr__(self) -> str:
        instance: Any = self
        settings = [
            f"{field.name}={getattr(instance, field.name)!r}"
            for field in fields(instance)
            if field.repr and (field.default is MISSING or getattr(instance, field.name) != field.default)
        ]
        return f"{type(self).__name__}({', '.join(settings)})"
