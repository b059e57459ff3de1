"""Transforms of functions (`torch.func`): within one, all is plain operations, and nothing outside is changed."""

from __future__ import annotations

import torch

from contraport.errors import check


def within_transform() -> bool:
    """Return whether `torch.func` differentiates or batches what is computed here."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


def check_outside(refused: str, expected: str) -> None:
    """Raise `UsageError` within a transform, for what has no plain operations, or changes something.

    Args:
        refused: the name of the argument, and what cannot be.
        expected: what can.
    """
    check(not within_transform(), f"{refused} within torch.func; expected {expected}.")
