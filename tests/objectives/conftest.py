"""Fixtures for the tests of objectives."""

import pytest


@pytest.fixture
def uneven_tiles(monkeypatch):
    """Tiles of 4 x 8, so that small batches have several, the last ones smaller."""
    monkeypatch.setattr("contraport.engine.backends.tiled.TILE_SHAPE", (4, 8))
