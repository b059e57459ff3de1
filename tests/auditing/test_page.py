"""Audit page: its contents for each kind of view, and its functions in a browser without a network."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.accessible import accessibility_faults
from tests.browser import CHROMIUM, Browser

from contraport.auditing import Audit
from contraport.auditing.page import (
    MAX_PAGE_PAIRS,
    METHOD_DESCRIPTIONS,
    build_worst_pair_rows,
    compute_pair_and_mismatch_histograms,
    write_audit_page,
)
from contraport.auditing.pairs.pair_scoring import STATISTICS
from contraport.data import Dataset
from contraport.data.array_datasets import from_arrays

ITEMS = 250
ATTACK = "<img src=x onerror=\"document.title='owned'\"></script><script>document.title='owned'</script>"


def build_audit(name: str = "toy") -> Audit:
    """Build an audit with scores in the order of the pairs; of the first fifty, each two have swapped partners."""
    scores = np.arange(ITEMS) / ITEMS
    partners = np.where(np.arange(ITEMS) < 50, np.arange(ITEMS) ^ 1, -1)
    partners[7] = 200
    return Audit(name, "online", "neighbors", scores, scores[:50], 0.2, (0.1, 0.3), partners, scores + 0.5)


def build_pairs(first: str, second: str) -> Dataset:
    """Build pairs of views of these two kinds."""
    random = np.random.default_rng(0)
    views_by_kind: dict[str, Any] = {
        "photo": random.integers(0, 255, (ITEMS, 3, 20, 20), dtype=np.uint8),
        "large": random.random((ITEMS, 1, 200, 120)).astype(np.float32),
        "sound": random.normal(size=(ITEMS, 9, 300)),
        "vector": random.normal(size=(ITEMS, 7)),
        "long": random.normal(size=(ITEMS, 500)),
        "caption": [f"{ATTACK} caption {row}" for row in range(ITEMS)],
    }
    labels = ["cat", ATTACK] * (ITEMS // 2)
    return from_arrays({name: views_by_kind[name] for name in (first, second)}, labels=labels, name="toy")


def test_worst_pairs_come_first_with_their_better_partners() -> None:
    rows = build_worst_pair_rows(build_audit(), build_pairs("vector", "caption"))
    assert [row["id"] for row in rows] == list(range(MAX_PAGE_PAIRS))
    assert [row["flagged"] for row in rows] == [True] * 50 + [False] * 150
    assert rows[4]["partner"] == 5
    assert [view["text"][-2:] for view in rows[4]["views"][1:]] == [" 4", " 5"]
    assert rows[1]["partner"] == 0
    assert len(rows[1]["views"]) == 3
    assert len(rows[100]["views"]) == 2  # no better partner
    assert rows[1]["kind"] == ATTACK
    json.dumps(rows)


def test_rows_and_scores_follow_the_order_of_pairs() -> None:
    mirrored = replace(build_audit(), scores=build_audit().scores[::-1].copy(), partner_scores=np.arange(ITEMS) / 2)
    dataset = from_arrays({"left": np.ones((ITEMS + 9, 2)), "right": np.ones((ITEMS + 9, 2))})
    first = build_worst_pair_rows(mirrored, dataset.subset(torch.arange(9, ITEMS + 9)))[1]
    assert (first["id"], first["row"]) == (ITEMS - 2, ITEMS + 7)
    assert (first["score"], first["partner_score"]) == (pytest.approx(1 / ITEMS), (ITEMS - 2) / 2)
    assert first["fdr"] == pytest.approx(mirrored.pair_fdrs[ITEMS - 2], abs=1e-4)


@pytest.mark.parametrize(
    ("view", "attributes"),
    [
        ("photo", {"is": "image", "uri": "data:image/png"}),
        ("large", {"is": "image", "uri": "data:image/webp"}),
        ("sound", {"is": "series", "values": (6, 160)}),
        ("vector", {"is": "vector", "values": (7,)}),
        ("long", {"is": "vector", "values": (96,)}),
        ("caption", {"is": "text"}),
    ],
)
def test_content_of_each_kind_of_view(view: str, attributes: dict[str, Any]) -> None:
    shown = build_worst_pair_rows(build_audit(), build_pairs(view, "photo" if view == "vector" else "vector"))[0][
        "views"
    ][0]
    assert shown["is"] == attributes["is"]
    if "uri" in attributes:
        assert shown["uri"].startswith(attributes["uri"])
    if "values" in attributes:
        assert np.shape(shown["values"]) == attributes["values"]
        assert np.abs(shown["values"]).max() <= 100


@pytest.mark.parametrize(
    ("rate", "share", "end"),
    [(0.996, "100%", "100%"), (0.004, "0.4%", "0.4%"), (0.001, "None", "0.1%")],
)
def test_headline_has_shares_without_exponents(rate: float, share: str, end: str) -> None:
    text = replace(build_audit(), noise_rate=rate, noise_interval=(rate, rate)).headline
    assert text.startswith(f"{share} of the 250 pairs of toy ")
    assert text.count(end) >= 2


def test_histograms_have_shares_of_pairs_and_mismatches() -> None:
    bins = compute_pair_and_mismatch_histograms(build_audit())
    assert sum(bins["pairs"]) == pytest.approx(1, abs=1e-3)
    assert sum(bins["mismatched"]) == pytest.approx(1, abs=1e-3)
    assert bins["mark"] == pytest.approx(49 / ITEMS)
    constant = compute_pair_and_mismatch_histograms(
        replace(build_audit(), scores=np.ones(ITEMS), known_mismatch_scores=np.ones(9))
    )
    assert (constant["low"], constant["high"], constant["pairs"][0], constant["mismatched"][0]) == (1, 2, 1, 1)


def test_page_is_one_small_file_without_network_access(tmp_path: Path) -> None:
    write_audit_page(build_audit(ATTACK), build_pairs("large", "photo"), tmp_path / "audit.html")
    text = (tmp_path / "audit.html").read_text()
    assert len(text) < 3_000_000
    addresses = {url for url in re.findall(r"https?://[^\s\"'`]+", text) if "www.w3.org" not in url}
    assert not addresses
    assert not re.findall(r"<link|<script src|@import", text)
    assert "<script>document" not in text
    assert f"online: {METHOD_DESCRIPTIONS['online']}" in text
    assert f"neighbors: {STATISTICS['neighbors'].description}" in unescape(text)


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium or google-chrome on PATH")
def test_page_in_a_browser(tmp_path: Path) -> None:
    """One browser for all checks, since its start takes seconds."""
    write_audit_page(build_audit(ATTACK), build_pairs("sound", "caption"), tmp_path / "audit.html")

    def read_counts() -> tuple[int, str]:
        cards = browser.evaluate("document.querySelectorAll('#list h3').length")
        return cards, browser.evaluate("document.getElementById('count').textContent")

    def choose(**values: str) -> tuple[int, str]:
        browser.evaluate("form.reset()")
        for name, value in values.items():
            browser.evaluate(f"form.{name}.value = {json.dumps(value)}")
        browser.evaluate("form.dispatchEvent(new Event('input'))")
        return read_counts()

    with Browser(tmp_path / "profile") as browser:
        browser.open(tmp_path / "audit.html")
        assert read_counts() == (24, "200 of 200 pairs.")
        browser.resize(390, 800)
        assert browser.evaluate("document.documentElement.scrollWidth") == 390
        words = "[...document.querySelectorAll('#scores figure p *')].map((word) => word.textContent)"
        assert browser.evaluate(words) == ["0.000", "score (higher is better)", "0.996"]
        words = "document.querySelectorAll('#histogram text').length"
        assert browser.evaluate(words) == 0  # text inside the drawing would be scaled down
        browser.resize(1200, 900)
        assert choose(show="flagged") == (24, "50 of 200 pairs.")
        assert choose(show="mutual") == (24, "48 of 200 pairs.")
        assert choose(find="17") == (1, "1 of 200 pairs.")
        assert choose(kind="cat") == (24, "100 of 200 pairs.")
        browser.evaluate("document.getElementById('more').click()")
        assert read_counts() == (48, "100 of 200 pairs.")
        assert choose(order="data", find="3") == (1, "1 of 200 pairs.")
        assert browser.evaluate("download().split('\\n')[1]").startswith("3,3,,0.012,")
        browser.evaluate("chosen()[0].name = '=1+1'")
        assert browser.evaluate("download().split('\\n')[1]").startswith("3,3,'=1+1,0.012,")
        browser.evaluate("document.querySelector('.marks button').click()")
        assert choose(show="wrong") == (1, "1 of 200 pairs; 1 marked wrong, 0 marked right.")
        assert ATTACK in browser.evaluate("document.querySelector('.preview p').textContent")
        assert accessibility_faults(browser) == []
        browser.resize(390, 800)
        assert choose() == (24, "200 of 200 pairs; 1 marked wrong, 0 marked right.")
        assert browser.evaluate("document.documentElement.scrollWidth") == 390
        assert browser.evaluate("document.title").startswith("20% of the 250 pairs of ")
        assert browser.messages == []
