"""The page of an audit: what it shows of each kind of view, and that it works in a browser without a network."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contraport.auditing import Audit
from contraport.auditing.page import SHOWN, histogram, pairs_shown, write_page
from contraport.data import Dataset
from contraport.data.arrays import from_arrays

ITEMS = 250
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
NEEDED = pytest.mark.skipif(BROWSER is None, reason="no chromium or google-chrome on PATH")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
    *("--enable-logging=stderr", "--virtual-time-budget=3000", "--dump-dom"),
)
ATTACK = "<img src=x onerror=\"document.title='owned'\"></script><script>document.title='owned'</script>"


def found(name: str = "toy") -> Audit:
    """The lower the number of a pair the worse it is; the first fifty are wrong, and each two of them swapped."""
    scores = np.arange(ITEMS) / ITEMS
    partners = np.where(np.arange(ITEMS) < 50, np.arange(ITEMS) ^ 1, -1)
    partners[7] = 200
    return Audit(name, "online", "neighbors", scores, scores[:50], 0.2, (0.1, 0.3), partners, scores + 0.5)


def of(first: str, second: str) -> Dataset:
    """Pairs of two kinds of views."""
    random = np.random.default_rng(0)
    known: dict[str, Any] = {
        "photo": random.integers(0, 255, (ITEMS, 3, 20, 20), dtype=np.uint8),
        "large": random.random((ITEMS, 1, 200, 120)).astype(np.float32),
        "sound": random.normal(size=(ITEMS, 9, 300)),
        "vector": random.normal(size=(ITEMS, 7)),
        "long": random.normal(size=(ITEMS, 500)),
        "caption": [f"{ATTACK} caption {row}" for row in range(ITEMS)],
    }
    labels = ["cat", ATTACK] * (ITEMS // 2)
    return from_arrays({name: known[name] for name in (first, second)}, labels=labels, name="toy")


def test_the_worst_pairs_stand_first_each_beside_its_better_partner() -> None:
    rows = pairs_shown(found(), of("vector", "caption"))
    assert [row["id"] for row in rows] == list(range(SHOWN))
    assert [row["flagged"] for row in rows] == [True] * 50 + [False] * 150
    assert rows[4]["partner"] == 5
    assert [view["text"][-2:] for view in rows[4]["views"][1:]] == [" 4", " 5"]
    assert len(rows[100]["views"]) == 2, "there is no better partner"
    assert rows[1]["kind"] == ATTACK
    json.dumps(rows)


@pytest.mark.parametrize(
    ("view", "told"),
    [
        ("photo", {"is": "image", "uri": "data:image/png"}),
        ("large", {"is": "image", "uri": "data:image/webp"}),
        ("sound", {"is": "series", "of": [9, 300], "values": (6, 160)}),
        ("vector", {"is": "vector", "of": 7, "values": (7,)}),
        ("long", {"is": "vector", "of": 500, "values": (96,)}),
        ("caption", {"is": "text"}),
    ],
)
def test_each_kind_of_view_is_drawn_in_its_way(view: str, told: dict[str, Any]) -> None:
    shown = pairs_shown(found(), of(view, "photo" if view == "vector" else "vector"))[0]["views"][0]
    assert shown["is"] == told["is"]
    if "uri" in told:
        assert shown["uri"].startswith(told["uri"])
    if "of" in told:
        assert shown["of"] == told["of"]
        assert np.shape(shown["values"]) == told["values"]
        assert np.abs(shown["values"]).max() <= 100


def test_the_histogram_has_shares_of_both() -> None:
    bins = histogram(found())
    assert sum(bins["pairs"]) == pytest.approx(1, abs=1e-3)
    assert sum(bins["mismatched"]) == pytest.approx(1, abs=1e-3)
    assert bins["mark"] == pytest.approx(49 / ITEMS)


def test_the_page_is_one_small_file_that_needs_no_network(tmp_path: Path) -> None:
    write_page(found(ATTACK), of("large", "photo"), tmp_path / "audit.html")
    text = (tmp_path / "audit.html").read_text()
    assert len(text) < 3_000_000
    addresses = {found for found in re.findall(r"https?://[^\s\"'`]+", text) if "www.w3.org" not in found}
    assert not addresses
    assert not re.findall(r"<link|<script src|@import", text)
    assert "<script>document" not in text


ACTIONS = {
    "": ("24", "200 of 200 pairs."),
    "form.show.value = 'flagged'; form.dispatchEvent(new Event('input'));": ("24", "50 of 200 pairs."),
    "form.show.value = 'mutual'; form.dispatchEvent(new Event('input'));": ("24", "48 of 200 pairs."),
    "form.find.value = '17'; form.dispatchEvent(new Event('input'));": ("1", "1 of 200 pairs."),
    "form.kind.value = 'cat'; form.dispatchEvent(new Event('input')); more.click();": ("48", "100 of 200 pairs."),
    "list.querySelector('.marks button').click();": ("24", "200 of 200 pairs; marked wrong 1, right 0."),
    "form.order.value = 'data'; form.find.value = '3'; show(); document.title = download().split('\\n')[1];": (
        "1",
        "1 of 200 pairs.",
    ),
}


@NEEDED
@pytest.mark.slow
@pytest.mark.parametrize(("act", "expected"), ACTIONS.items(), ids=map(str, range(len(ACTIONS))))
def test_in_a_browser(tmp_path: Path, act: str, expected: tuple[str, str]) -> None:
    page = tmp_path / "audit.html"
    write_page(found(), of("sound", "caption"), page)
    page.write_text(page.read_text().replace("</body>", f"<script>{act}</script></body>"))
    command = [str(BROWSER), *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", page.as_uri()]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert re.findall(r"CONSOLE.*", result.stderr) == []
    assert (
        str(len(re.findall(r"<h3>", result.stdout))),
        re.findall(r'role="status">([^<]*)', result.stdout)[0],
    ) == expected
    title = re.findall(r"<title>(.*?)</title>", result.stdout)[0]
    assert title.startswith("3,,0.012," if "download" in act else "Of 250 pairs of toy about 20")
