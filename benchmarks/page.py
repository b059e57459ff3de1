"""Size of a report, and time to open it in headless chromium.

Each turn is a browser of its own. Seconds are from the beginning of the navigation, by the page's own clock: until it
can be read (its first paint), until it can be used (its scripts have run), and until its last figure is drawn.

    python -m benchmarks.page runs/a runs/b [--repeats 5] [--out benchmarks/results/page.json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table
from tests.browser import Browser

from benchmarks.engine import machine
from contraport.reporting import report

GOAL_SECONDS, GOAL_BYTES = 2.0, 3_000_000

MOMENTS = {
    "read": "performance.getEntriesByName('first-contentful-paint')[0].startTime",
    "used": "performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd",
    "drawn": "Number(document.documentElement.dataset.drawnAfter)",
}
"""JavaScript expressions for the milliseconds until the page can be read, can be used, and is drawn completely."""


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/page.json"))
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        page = report(options.runs, out=Path(folder) / "page.html")
        turns = [time_opening(page, Path(folder) / f"profile-{turn}") for turn in range(options.repeats)]
        size = page.stat().st_size
    seconds = {name: [turn[name] for turn in turns] for name in MOMENTS}
    print_table(seconds, size)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    results = {"machine": machine(), "runs": len(options.runs), "bytes": size, "seconds": seconds}
    options.out.write_text(json.dumps(results, indent=1) + "\n")
    print(f"written to {options.out}")


def time_opening(page: Path, profile: Path) -> dict[str, float]:
    """Measure the seconds until a page can be read, can be used and is drawn, in a new browser."""
    with Browser(profile) as browser:
        browser.open(page)
        return {name: float(browser.evaluate(clock)) / 1000 for name, clock in MOMENTS.items()}


def print_table(seconds: dict[str, list[float]], size: int) -> None:
    table = Table(title=f"{size / 1e6:.2f} MB (goal: {GOAL_BYTES / 1e6:.0f}); to be open in {GOAL_SECONDS:.0f} s")
    for heading in ("seconds until it is", "least", "median", "most"):
        table.add_column(heading)
    for name, values in seconds.items():
        table.add_row(name, *(f"{pick(values):.2f}" for pick in (min, statistics.median, max)))
    Console().print(table)


if __name__ == "__main__":
    main()
