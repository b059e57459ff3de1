"""Pages of search results in a browser."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.accessible import accessibility_faults
from tests.browser import CHROMIUM, Browser

from contraport.feature_files import Features
from contraport.similarity_search import cluster


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium or google-chrome on PATH")
def test_pictures_are_shown_and_names_run_nothing(tmp_path: Path) -> None:
    names = ["a.png", "<img src=x onerror=document.title='owned'>.png", "no picture.txt"]
    for number, name in enumerate(names[:2]):
        Image.new("RGB", (200, 90), (90 * number, 0, 0)).save(tmp_path / name)
    keys = np.array([str(tmp_path / name) for name in names])
    features = Features(np.eye(3, dtype=np.float32), np.arange(3), np.full(3, "train"), keys)
    cluster(features, k=1, page=tmp_path / "page.html")
    with Browser(tmp_path / "profile") as browser:
        browser.open(tmp_path / "page.html")
        assert browser.messages == []
        drawn = "[...document.images].filter((image) => image.complete && image.naturalWidth > 0).length"
        browser.wait(f"{drawn} == 2")  # they are drawn when they come into view
        assert browser.evaluate("document.querySelectorAll('.pictures .none').length") == 1
        assert browser.evaluate("document.title") == "1 cluster of 3 items"
        assert accessibility_faults(browser) == []
