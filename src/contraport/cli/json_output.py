"""What a verb found, for other programs: `--json`."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def print_json(found: Any) -> None:
    """Print what a verb found as JSON.

    >>> print_json({"rate": float("nan"), "rows": (1, 2)})
    {
      "rate": null,
      "rows": [
        1,
        2
      ]
    }
    """
    print(json.dumps(to_json_value(found), indent=2, ensure_ascii=False))


def to_json_value(value: Any) -> Any:
    """Return a value as numbers, texts, lists and dicts: dataclasses and named tuples by their fields.

    What is not a number there is null, as JSON has no other word for it.

    >>> import numpy as np
    >>> to_json_value({"scores": np.array([0.5, np.inf]), "folder": Path("runs/a")})
    {'scores': [0.5, None], 'folder': 'runs/a'}
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: to_json_value(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if hasattr(value, "_asdict"):
        return to_json_value(value._asdict())
    if hasattr(value, "tolist"):  # of arrays, tensors and their numbers
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
