"""Random seeds and generators, independent for each purpose."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from contraport.errors import UsageError, import_optional

_FIXED_SEED_BY_PURPOSE = {"data.split": 0}
"""Fixed seeds by purpose, in place of derived ones: another seed of the split would change the held-out items."""


def derive_128_bit_seed(purpose: str, *seed_and_keys: int) -> int:
    """Derive the 128-bit seed of a random stream from its purpose and integer keys.

    Args:
        purpose: name of the use, such as ``"audit.decoys"``. Every use has its own, so that two uses never share draws,
            whatever their integers.
        seed_and_keys: all integers that the stream depends on, such as the seed of a run and an epoch.

    >>> derive_128_bit_seed("step", 0, 1) == derive_128_bit_seed("step", 0, 1)
    True
    >>> derive_128_bit_seed("step", 0) == derive_128_bit_seed("data.order", 0)
    False
    """
    if purpose in _FIXED_SEED_BY_PURPOSE and not seed_and_keys:
        return _FIXED_SEED_BY_PURPOSE[purpose]
    for key in seed_and_keys:
        if not isinstance(key, int | np.integer):
            raise UsageError(f"seed: must be an integer, got {key!r}.")
    # A hash, not `SeedSequence` of the keys, which pads with zeros: there (1,) and (1, 0) are one stream.
    text = repr((purpose, *map(int, seed_and_keys)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")


def numpy_generator(purpose: str, *seed_and_keys: int) -> np.random.Generator:
    """Create a NumPy random generator, seeded by its purpose and integer keys.

    >>> numpy_generator("audit.decoys", 0).random() == numpy_generator("data.mismatch", 0).random()
    False
    """
    return np.random.default_rng(derive_128_bit_seed(purpose, *seed_and_keys))


def derive_torch_seed(purpose: str, *seed_and_keys: int) -> int:
    """Derive a 64-bit seed for torch from the name of a purpose and integer keys."""
    return derive_128_bit_seed(purpose, *seed_and_keys) % 2**64


def torch_generator(purpose: str, *seed_and_keys: int) -> torch.Generator:
    """Create a torch generator on the CPU, seeded by its purpose and integer keys."""
    return torch.Generator().manual_seed(derive_torch_seed(purpose, *seed_and_keys))


def draw_seed(random_state: Any) -> int:
    """Draw an integer seed from `random_state`, as scikit-learn does.

    >>> draw_seed(3) == draw_seed(np.random.RandomState(3))
    True
    """
    utils = import_optional("sklearn.utils", "train", "random_state")  # losses need torch and numpy only
    try:
        return int(utils.check_random_state(random_state).randint(2**31))
    except ValueError as error:
        raise UsageError(f"random_state: {error}.") from error


GENERATOR_LOCK = threading.RLock()
"""Lock of torch's global generators: a thread holds it from seeding them to its last draw, so that no other draws."""


@contextmanager
def fork_rng_with_lock(devices: Sequence[Any] | None = None) -> Iterator[None]:
    """Context manager that forks torch's generators while it holds `GENERATOR_LOCK`."""
    with GENERATOR_LOCK, torch.random.fork_rng(devices):
        yield


@contextmanager
def fork_rng_locked_at_ends(devices: Sequence[Any] | None = None) -> Iterator[None]:
    """Context manager that forks torch's generators, with a lock held on entry and exit only."""
    fork = torch.random.fork_rng(devices)
    with GENERATOR_LOCK:
        fork.__enter__()
    try:
        yield
    finally:
        with GENERATOR_LOCK:  # to restore the state in the middle of another thread's step would change its numbers
            fork.__exit__(None, None, None)


def seed_torch_generators(seed: int, device_type: str = "all") -> None:
    """Seed torch's global generators of the CPU and of a device type.

    "all" is all devices in use. A caller that restores only the state of the CPU passes "cpu".

    `torch.manual_seed` also prepares devices that are not in use and records the caller for each, which takes as long
    as a small training step.

    >>> seed_torch_generators(3)
    >>> sample = torch.rand(2)
    >>> bool((sample == torch.rand(2, generator=torch.Generator().manual_seed(3))).all())
    True
    """
    torch.default_generator.manual_seed(seed)
    if device_type in ("all", "cuda") and torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    if device_type in ("all", "mps") and torch.backends.mps.is_available():
        torch.mps.manual_seed(seed)
