"""Fixtures of the objectives' tests."""

import pytest


@pytest.fixture
def uneven_tiles(monkeypatch):
    """Cut small batches into several tiles, the last ones smaller."""
    monkeypatch.setattr("contraport.engine.backends.tiled.TILE_SHAPE", (4, 8))
