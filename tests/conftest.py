"""What holds for every test."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse names that differ from process to process: two workers could not share the tests."""
    addresses = [item.nodeid for item in items if " at 0x" in item.nodeid]
    if addresses:
        raise pytest.UsageError(f"names of tests must not hold an object's address: {addresses[0]}; give ids=")
