import os

import pytest


@pytest.fixture
def two_cores(monkeypatch):
    """There is at most one worker process for each core; where there is one core, two share it."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1}, raising=False)
