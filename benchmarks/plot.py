"""Draws time and memory by number of rows: docs/images/engine.png of losses, docs/images/scale.png of audits.

python -m benchmarks.engine --memory ... (`GROWTH`)
python -m benchmarks.scale --cases audit ...
python -m benchmarks.plot [engine] [scale]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from docs.figures import save_figure
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from contraport.auditing.pairs.paired_features import MAX_EXACT_NEIGHBOR_ITEMS
from contraport.plots.figure_setup import BLUE, GREEN, GREY, ORANGE, PURPLE, create_panels

MEASURED = Path("benchmarks/results/growth.json")
AUDITED = Path("benchmarks/results/scale.json")
IMAGES = Path("docs/images")

EXPONENT_LIMIT = 1.1
"""Exponent of the reference lines of the growth of audits."""

AUDIT_STYLES = {
    512: (ORANGE, {"xytext": (-4, 8), "ha": "right", "va": "bottom"}),
    64: (BLUE, {"xytext": (4, -6), "ha": "left", "va": "top"}),
}
"""Color and place of the labels, in points, by the length of the vectors: above the upper line, below the lower one."""

DURATIONS = {1: "1 s", 10: "10 s", 60: "1 min", 600: "10 min", 3600: "1 h", 36000: "10 h"}

GROWTH = [
    ["--only", loss, "--rows", *rows.split(), "--rounds", "1", "--memory", "--out", str(MEASURED)]
    for loss, rows in (
        ("nt_xent", "1024 2048 4096 8192 16384 32768 65536"),
        ("sinkhorn", "1024 2048 4096 8192 16384 32768"),
    )
]
"""The arguments of `benchmarks.engine` that measure what is drawn here."""

PANELS = {"nt_xent": "NT-Xent", "sinkhorn K=3": "three Sinkhorn iterations"}

STYLES = {
    "streamed": (BLUE, "-"),
    "stored": (BLUE, "--"),
    "autograd": (GREY, "-"),
    "lightly": (ORANGE, "-"),
    "pytorch-metric-learning": (PURPLE, "-"),
    "POT": (ORANGE, "-"),
    "POT, batch": (PURPLE, "-"),
    "OTT": (GREEN, "-"),
}


def draw(axes: Axes, results: list[dict], loss: str, key: str) -> None:
    for by, (colour, style) in STYLES.items():
        cases = [(r["rows"], r["cases"].get(f"{loss}, {by}", {}).get(key, 0)) for r in results]
        points = [(rows, value) for rows, value in cases if value > 0]
        label = f"contraport, {by}" if by in ("streamed", "stored") else by
        if points:
            axes.plot(*zip(*points, strict=True), style, color=colour, marker="o", markersize=3.5, label=label)
    axes.set(xscale="log", yscale="log")
    rows = [r["rows"] for r in results]
    axes.set_xticks(rows, [f"{r // 1024}k" for r in rows])
    axes.minorticks_off()
    axes.grid(alpha=0.25)


def draw_engine() -> Figure:
    """Draw the time and memory of losses, of contraport and other packages."""
    results = json.loads(MEASURED.read_text())["results"]
    figure, axes = create_panels(2 * len(PANELS), figure_width=8.6, ratio=1.35)
    for (loss, title), time, memory in zip(PANELS.items(), axes[::2], axes[1::2], strict=True):
        draw(time, results, loss, "seconds")
        draw(memory, results, loss, "mebibytes")
        time.set(title=title, ylabel="seconds, forward + backward")
        memory.set(title=title, ylabel="MiB above the inputs, at the peak")
        time.legend(frameon=False, fontsize=8)
    for below in axes[-2:]:
        below.set_xlabel("rows, d = 128")
    return figure


def draw_audits() -> Figure:
    """Draw the CPU seconds of audits of frozen vectors, with fitted exponents and the growth that is the limit."""
    results = [
        row for row in json.loads(AUDITED.read_text())["results"] if row["case"] == "audit" and "note" not in row
    ]
    figure, (axes,) = create_panels(1, figure_width=6.4, ratio=1.55)
    for width, (color, label_place) in AUDIT_STYLES.items():
        rows, seconds = np.array([(r["rows"], r["seconds"]) for r in results if r["width"] == width]).T
        large = rows > MAX_EXACT_NEIGHBOR_ITEMS  # smaller audits find neighbors exactly, in quadratic time
        exponent = np.polyfit(np.log(rows[large]), np.log(seconds[large]), 1)[0]
        label = f"{width} numbers, $n^{{{exponent:.2f}}}$"
        axes.plot(rows, seconds, "-", color=color, marker="o", markersize=4.5, label=label)
        for place in zip(rows, seconds, strict=True):
            duration = f"{place[1]:.0f} s" if place[1] < 120 else f"{place[1] / 60:.1f} min"
            axes.annotate(duration, place, textcoords="offset points", fontsize=9, **label_place)
        limit = seconds[large][0] * (rows[large] / rows[large][0]) ** EXPONENT_LIMIT
        axes.plot(rows[large], limit, "--", color=GREY, linewidth=1, zorder=1)
    axes.plot([], [], "--", color=GREY, linewidth=1, label=f"limit, $n^{{{EXPONENT_LIMIT}}}$")
    axes.legend(frameon=False, loc="upper left")
    axes.set(xscale="log", yscale="log", xlabel="pairs", title="CPU time of audits of frozen vectors, one thread")
    sizes = sorted({row["rows"] for row in results})
    axes.set_xticks(sizes, [f"{n:,}" for n in sizes])
    axes.set_yticks(list(DURATIONS), list(DURATIONS.values()))
    axes.set_ylim(1, 1.8 * max(row["seconds"] for row in results))
    axes.set_xlim(6_000, 1.6 * sizes[-1])
    axes.minorticks_off()
    axes.grid(alpha=0.25)
    return figure


DRAWN = {"engine": draw_engine, "scale": draw_audits}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("images", nargs="*", default=list(DRAWN), help="engine, scale; default: both.")
    for name in parser.parse_args().images:
        save_figure(IMAGES / f"{name}.png", DRAWN[name](), dpi=120)


if __name__ == "__main__":
    main()
