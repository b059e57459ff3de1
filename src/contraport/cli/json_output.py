"""JSON output of the results of commands, for `--json`."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def print_json(result: Any) -> None:
    """Print a result as JSON; NaN becomes null.

    >>> print_json({"rate": float("nan")})
    {
      "rate": null
    }
    """
    print(json.dumps(to_json_value(result), indent=2, ensure_ascii=False))


def to_json_value(value: Any) -> Any:
    """Convert a value to plain JSON types; dataclasses and named tuples become dicts of their fields.

    Numbers that are not finite become None, as JSON cannot represent them.

    >>> import numpy as np
    >>> to_json_value({"scores": np.array([0.5, np.inf]), "folder": Path("runs/a")})
    {'scores': [0.5, None], 'folder': 'runs/a'}
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: to_json_value(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if hasattr(value, "_asdict"):
        return to_json_value(value._asdict())
    if hasattr(value, "tolist"):  # arrays, tensors and their scalars
        return to_json_value(value.tolist())
    if isinstance(value, Mapping):
        return {str(name): to_json_value(part) for name, part in value.items()}
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Iterable) and not isinstance(value, Path):
        return [to_json_value(part) for part in value]
    return str(value)
