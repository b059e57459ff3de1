"""Flattening of nested values into tensors and a hashable structure.

`flatten` and `unflatten` work on tensors, tuples, named tuples, dataclasses of such values, and constants. They differ
from `torch.utils._pytree` in that a tensor that occurs several times stays one tensor, and that the rest is hashable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from torch import Tensor

TreeStructure: TypeAlias = Any
"""Structure of a nested value: tuples of a type and its fields; a tensor is `Tensor` and its index in the list."""


def flatten(value: Any, tensors: list[Tensor]) -> TreeStructure:
    """Append a nested value's tensors to a list, and return its structure.

    A tensor that occurs several times is appended once, so that `unflatten` restores identity: symmetric problems are
    recognized by rows and columns being the same tensor.

    >>> import torch
    >>> from contraport.engine import LabelExclusion
    >>> labels, tensors = torch.arange(3), []
    >>> structure = flatten(LabelExclusion((labels, labels)), tensors)
    >>> len(tensors), unflatten(structure, tensors).is_symmetric
    (1, True)
    """
    if isinstance(value, Tensor):
        for index, other in enumerate(tensors):
            if other is value:
                return Tensor, index
        tensors.append(value)
        return Tensor, len(tensors) - 1
    # Numbers become text: torch.compile may trace a number as a symbol, but a text only as a constant.
    if isinstance(value, float):
        return float, value.hex()
    kind = type(value)
    if kind is int:
        return int, f"{value}"
    if kind is bool:
        return True if value else False  # noqa: SIM210  (a symbol becomes a constant)
    if kind is tuple:
        return tuple, *[flatten(entry, tensors) for entry in value]
    names = _get_field_names(kind)
    return value if names is None else (kind, *[flatten(getattr(value, name), tensors) for name in names])


def unflatten(structure: TreeStructure, tensors: Sequence[Tensor]) -> Any:
    """Rebuild a nested value from its structure and tensors."""
    if type(structure) is not tuple:
        return structure
    kind, *entries = structure
    if kind is Tensor:
        return tensors[entries[0]]
    if kind is float or kind is int:
        return float.fromhex(entries[0]) if kind is float else int(entries[0])
    values = [unflatten(entry, tensors) for entry in entries]
    return tuple(values) if kind is tuple else kind(*values)


def _get_field_names(kind: type) -> tuple[str, ...] | None:
    """Return the field names of a named tuple or dataclass, None otherwise."""
    if issubclass(kind, tuple):
        return getattr(kind, "_fields", None)
    names: tuple[str, ...] | None = getattr(kind, "__match_args__", None)
    return names if names is not None and len(names) == len(getattr(kind, "__dataclass_fields__", ())) else None
