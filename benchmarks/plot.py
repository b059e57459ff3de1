"""Draws docs/images/engine.png: time and memory by number of rows, of contraport and other packages.

python -m benchmarks.engine --memory ... (`GROWTH`) && python -m benchmarks.plot
"""

from __future__ import annotations

import json
from pathlib import Path

from matplotlib.axes import Axes

from contraport.plots.figure_setup import BLUE, GREEN, GREY, ORANGE, PURPLE, create_panels

MEASURED = Path("benchmarks/results/growth.json")
DRAWN = Path("docs/images/engine.png")

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


def main() -> None:
    results = json.loads(MEASURED.read_text())["results"]
    figure, axes = create_panels(2 * len(PANELS), width=8.6, ratio=1.35)
    for (loss, title), time, memory in zip(PANELS.items(), axes[::2], axes[1::2], strict=True):
        draw(time, results, loss, "seconds")
        draw(memory, results, loss, "mebibytes")
        time.set(title=title, ylabel="seconds, forward + backward")
        memory.set(title=title, ylabel="MiB above the inputs, at the peak")
        time.legend(frameon=False, fontsize=8)
    for below in axes[-2:]:
        below.set_xlabel("rows, d = 128")
    DRAWN.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(DRAWN, dpi=120)
    print(f"written: {DRAWN}")


if __name__ == "__main__":
    main()
