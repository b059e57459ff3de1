"""Draw docs/images/engine.png from what benchmarks.engine wrote: time and memory against the number of rows.

python -m benchmarks.engine --rows 1024 2048 4096 8192 16384 --memory && python -m benchmarks.plot
"""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

LINES = {
    "nt_xent, streamed": ("contraport, streamed", "#2b64bf", "-"),
    "nt_xent, stored": ("contraport, stored", "#2b64bf", "--"),
    "nt_xent, autograd": ("autograd on the matrix", "#6b7280", "-"),
    "nt_xent, lightly": ("lightly", "#d9731a", "-"),
    "nt_xent, pytorch-metric-learning": ("pytorch-metric-learning", "#8a56c2", "-"),
}


def main() -> None:
    results = json.loads(Path("benchmarks/results/engine.json").read_text())
    figure, (time, memory) = plt.subplots(1, 2, figsize=(9, 3.6), constrained_layout=True)
    for case, (label, colour, style) in LINES.items():
        for axes, key in ((time, "seconds"), (memory, "mebibytes")):
            points = [(r["rows"], r["cases"][case][key]) for r in results["results"] if key in r["cases"].get(case, {})]
            points = [(rows, value) for rows, value in points if value > 0]
            axes.plot(*zip(*points, strict=True), style, color=colour, marker="o", markersize=3.5, label=label)
    for axes, title, unit in (
        (time, "forward + backward of NT-Xent", "seconds"),
        (memory, "peak memory above inputs", "MiB"),
    ):
        axes.set(title=title, xlabel="rows (2n), d = 128", ylabel=unit, xscale="log", yscale="log")
        axes.set_xticks([r["rows"] for r in results["results"]], [f"{r['rows']:,}" for r in results["results"]])
        axes.minorticks_off()
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    time.legend(frameon=False, fontsize=8)
    out = Path("docs/images/engine.png")
    figure.savefig(out, dpi=120)
    print(f"written: {out}")


if __name__ == "__main__":
    main()
