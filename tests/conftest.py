"""Settings of all tests: threads, hypothesis profiles, seeds, and names without addresses."""

import os
import random
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

# With a given number of threads a training does not time steps to choose it, and results are equal to the last bit.
os.environ.setdefault("OMP_NUM_THREADS", str(torch.get_num_threads()))

# The same examples in each run, without deadlines; `pytest --hypothesis-profile=random` draws other ones.
settings.register_profile("fixed", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("random", deadline=None)
settings.load_profile("fixed")


def seed_global_generators(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Seed the generators for fixtures of modules and packages, which run before `seeded`."""
    seed_global_generators(1)


@cache
def generators_of(module: ModuleType | None) -> list[tuple[np.random.Generator, Any]]:
    """Return the generators in the namespace of a module, with their states before its first test."""
    result = [] if module is None else vars(module).values()
    return [(value, value.bit_generator.state) for value in result if isinstance(value, np.random.Generator)]


@pytest.fixture(autouse=True)
def seeded(request: pytest.FixtureRequest) -> None:
    """Reset all generators, so that no draw depends on the tests before, which differ among parallel workers."""
    seed_global_generators(0)
    for generator, state in generators_of(getattr(request.node, "module", None)):
        generator.bit_generator.state = state


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Reject test names that differ between processes, as parallel workers could not share the tests."""
    addresses = [item.nodeid for item in items if " at 0x" in item.nodeid]
    if addresses:
        raise pytest.UsageError(f"names of tests must not hold an object's address: {addresses[0]}; give ids=")
