"""What holds for every test."""

import os

import pytest
import torch
from hypothesis import HealthCheck, settings

# A training then times no steps to choose its threads: two runs of a test are to have the same last bits.
os.environ.setdefault("OMP_NUM_THREADS", str(torch.get_num_threads()))

# The same examples in each run, however long each takes; `pytest --hypothesis-profile=random` draws others.
settings.register_profile("fixed", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("random", deadline=None)
settings.load_profile("fixed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse names that differ from process to process: two workers could not share the tests."""
    addresses = [item.nodeid for item in items if " at 0x" in item.nodeid]
    if addresses:
        raise pytest.UsageError(f"names of tests must not hold an object's address: {addresses[0]}; give ids=")
