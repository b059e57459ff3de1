import os

import pytest


@pytest.fixture
def two_cores(monkeypatch):
    """Two available cores, as there is at most one worker process for each core."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1}, raising=False)
