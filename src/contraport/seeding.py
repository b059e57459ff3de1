"""The state of torch's random generators, set often."""

from __future__ import annotations

import torch


def reseed(number: int) -> None:
    """Seed torch's generators of the devices that are in use, as `torch.manual_seed` does.

    That prepares the other devices too, and writes down from where it was called for each, which takes as long as a
    small step of training.

    >>> reseed(3)
    >>> drawn = torch.rand(2)
    >>> bool((drawn == torch.rand(2, generator=torch.Generator().manual_seed(3))).all())
    True
    """
    torch.default_generator.manual_seed(number)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(number)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(number)
