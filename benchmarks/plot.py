"""Draw docs/images/engine.png: time and memory against the number of rows, for us and for the peers.

python -m benchmarks.engine --memory ... (`GROWTH`) && python -m benchmarks.plot
"""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

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
    "streamed": ("#2b64bf", "-"),
    "stored": ("#2b64bf", "--"),
    "autograd": ("#6b7280", "-"),
    "lightly": ("#d9731a", "-"),
    "pytorch-metric-learning": ("#8a56c2", "-"),
    "POT": ("#d9731a", "-"),
    "POT, batch": ("#8a56c2", "-"),
    "OTT": ("#2f9e63", "-"),
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
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)


def main() -> None:
    results = json.loads(MEASURED.read_text())["results"]
    figure, grid = plt.subplots(2, 2, figsize=(9, 6.6), constrained_layout=True, sharex=True)
    for (loss, title), (time, memory) in zip(PANELS.items(), grid, strict=True):
        draw(time, results, loss, "seconds")
        draw(memory, results, loss, "mebibytes")
        time.set(title=title, ylabel="seconds, forward + backward")
        memory.set(title=title, ylabel="MiB above the inputs, at the peak")
        time.legend(frameon=False, fontsize=8)
    for axes in grid[-1]:
        axes.set_xlabel("rows, d = 128")
    DRAWN.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(DRAWN, dpi=120)
    print(f"written: {DRAWN}")


if __name__ == "__main__":
    main()
