"""What the answers to the five questions have in common: they are written back as they would be written."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any


class ReprMixin:
    """A dataclass whose repr gives only the settings that differ from their defaults."""

    def __repr__(self) -> str:
        mine: Any = self
        settings = [
            f"{field.name}={getattr(mine, field.name)!r}"
            for field in fields(mine)
            if field.repr and (field.default is MISSING or getattr(mine, field.name) != field.default)
        ]
        return f"{type(self).__name__}({', '.join(settings)})"
