"""Take the pictures of the guides, of real pages and plots: ``python docs/pictures.py FOLDER [PART]``.

The data come with Python packages or the system: digits (scikit-learn), Fashion-MNIST (Debian's package
``dataset-fashion-mnist``) and BasicMotions (``pip install --no-deps aeon``). FOLDER keeps data, runs and pages. Pages
are photographed by headless Chromium; the plots of measurements are drawn from ``benchmarks/results``.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from figures import IMAGES, broken_pairs, save_figure, save_png
from matplotlib.figure import Figure
from PIL import Image
from sklearn.datasets import load_digits

from contraport import KL, Cross, Gibbs, Objective, Pairs, Rows, embed, gca_ince, plots
from contraport.cli import main as contraport
from contraport.data import load
from contraport.objectives.constraints.sinkhorn import SinkhornConstraint

MEASURED = Path(__file__).parents[1] / "benchmarks" / "results"
BLUE, ORANGE, GRAY = "#0072b2", "#d55e00", "#777777"


def run(*words: str) -> None:
    """Run a command, and stop if it fails."""
    if contraport([*words]) not in (0, None):
        sys.exit(f"failed: contraport {' '.join(words)}")


def photograph(name: str, page: Path, width: int, height: int, top: int = 0) -> None:
    """Take a picture of a page, without its first `top` pixels."""
    profile, shot = page.with_suffix(".chromium"), page.with_suffix(".png").absolute()
    options = [
        "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
        "--hide-scrollbars", "--virtual-time-budget=5000", f"--user-data-dir={profile.absolute()}",
        f"--window-size={width},{top + height}", f"--screenshot={shot}",
    ]  # fmt: skip
    subprocess.run(["chromium", *options, page.absolute().as_uri()], check=True, capture_output=True, timeout=120)
    shutil.rmtree(profile, ignore_errors=True)
    with Image.open(shot) as image:
        save_png(IMAGES / f"{name}.png", image.crop((0, top, width, top + height)))


def draw(name: str, figure: Figure) -> None:
    """Save a figure as a picture."""
    save_figure(IMAGES / f"{name}.png", figure, dpi=110, bbox_inches="tight")


def photos() -> None:
    """Picture a folder of 600 photos: neighbors of one by a pretrained encoder, and near-identical ones."""
    images = load("fashion-mnist", "train")
    for position in range(600):
        item = images[position]
        folder = Path("photos") / str(images.class_names[int(item.labels[0])]).replace("/", "-").lower()
        folder.mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray(item.views[0][0, 0].numpy()).convert("RGB").resize((96, 96))
        picture.save(folder / f"{position:05d}.jpg", quality=90)
        if position < 40:
            picture.resize((64, 64)).save(folder / f"{position:05d}-copy.jpg", quality=60)
    run(
        "train", "--data", "photos", "--encoder", "lite0", "--freeze", "--image_size", "96", "--batch_size", "64",
        "--epochs", "50", "--frozen_draws", "2", "--out", "runs/photos",
    )  # fmt: skip
    run("embed", "runs/photos", "--data", "photos", "--out", "photos.npz")
    run("neighbors", "photos.npz", "--query", "7", "--top", "12", "--page", "near.html")
    run("duplicates", "photos.npz", "--threshold", "0.95", "--page", "same.html")
    photos_pages()


def photos_pages() -> None:
    """Picture the pages of the photos again."""
    photograph("photos-neighbors", Path("near.html"), 760, 690, 28)
    photograph("photos-duplicates", Path("same.html"), 760, 690, 28)


def demo() -> None:
    """Picture the report of the two encoders of the demonstration."""
    run("demo", "--out", "runs/demo")
    demo_pages()


def demo_pages() -> None:
    """Picture the report of the demonstration again."""
    photograph("report", Path("runs/demo/report.html"), 800, 865)


def audit() -> None:
    """Picture the audit of halves of pictures, a fifth of them exchanged."""
    example = Path(__file__).parents[1] / "examples" / "garment_halves.py"
    subprocess.run([sys.executable, str(example), "--out", "halves.npz", "--wrong", "0.2"], check=True)
    run("audit", "--data", "halves.npz", "--out", "audits/halves")
    audit_pages()


def audit_pages() -> None:
    """Picture the audit again."""
    photograph("audit", Path("audits/halves/audit.html"), 800, 945)


def tables() -> None:
    """Picture what is measured on a table: the upper and lower halves of digits as two views."""
    digits = load_digits().data
    names = [f"{half}_{place}" for half in ("top", "bottom") for place in range(32)]
    with open("halves.csv", "w", newline="") as file:
        csv.writer(file).writerows([names, *digits.tolist()])
    run(
        "train", "--data", "halves.csv", "--columns", '{"views": ["top_*", "bottom_*"]}',
        "--recipe", "clip", "--epochs", "60", "--out", "runs/halves",
    )  # fmt: skip
    run("evaluate", "runs/halves")
    run("report", "runs/halves", "--out", "halves.html")
    tables_pages()


def tables_pages() -> None:
    """Picture the report of the table again."""
    photograph("tables-report", Path("halves.html"), 760, 560)


def texts() -> None:
    """Draw what settings are worth on pairs of texts, from the suite `texts`."""
    result = load_measured("suites/texts-docstrings")
    order = {"InfoNCE, temperature 0.05": "one encoder, temperature 0.05"}
    order |= {f"InfoNCE, temperature {one}": f"temperature {one}" for one in (0.1, 0.2, 0.5)}
    order |= {"an encoder for each, temperature 0.05": "an encoder for each, 0.05"}
    references = result["cells"][0]["references"]
    rows = {"raw words and pieces": [100 * references["raw"]["recall@1"]]}
    rows |= {
        title: [100 * cell["values"]["recall@1"] for cell in result["cells"] if cell["row"] == name]
        for name, title in order.items()
    }
    rows |= {"untrained encoder": [100 * references["untrained"]["recall@1"]]}
    figure, panels = axes(6, 2.6)
    dots(panels[0], rows, "right partner first among 787, %")
    draw("texts-settings", figure)


def series() -> None:
    """Picture neighbors among recordings of a smart watch."""
    run(
        "train", "--data", "basic-motions", "--batch_size", "40", "--epochs", "200", "--out", "runs/motions",
    )  # fmt: skip
    items = [load("basic-motions", split) for split in ("train", "test")]
    data = torch.cat([one.store.views[0] for one in items])
    labels = torch.cat([one.labels for one in items])
    features = embed("runs/motions", out=None, progress=False).features
    queries = [int((labels == label).nonzero()[0]) for label in labels.unique()]
    draw("series-neighbors", plots.nearest_items(features, data[:, 0], labels, queries=queries, count=5, width=6))


def curves() -> None:
    """Draw the curves of two training runs that differ in the learning rate."""
    for rate in ("0.001", "0.0001"):
        run(
            "train", "--data", "digits", "--epochs", "20", "--lr", rate, "--online_metrics", "knn",
            "--out", f"runs/lr-{rate}",
        )  # fmt: skip
    draw("training-curves", plots.curves(["runs/lr-0.001", "runs/lr-0.0001"], ["loss", "lr"], width=7.5))


def own_loop() -> None:
    """Draw the plan of a batch before and after a training run in a loop of one's own."""
    torch.manual_seed(0)
    digits = torch.from_numpy(load_digits().data).float() / 16
    encoder = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32))
    loss = gca_ince(temperature=0.2)
    optimizer = torch.optim.AdamW(encoder.parameters(), 1e-3)
    held_out = digits[:16] - digits.mean(0)
    shown = [held_out + 0.3 * torch.randn_like(held_out) for _ in range(2)]

    def plan() -> torch.Tensor:
        with torch.no_grad():
            full = loss.plan(*map(encoder, shown))
        return full[:16, 16:] / full[:16, 16:].sum()

    before = plan()
    for _ in range(200):
        items = digits[16:][torch.randint(len(digits) - 16, (256,))] - digits.mean(0)
        value = loss(*(encoder(items + 0.3 * torch.randn_like(items)) for _ in range(2)))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    even = torch.full((16,), 1 / 16)
    after = plan()
    print(f"own loop: share on pairs {before.trace():.2f} before, {after.trace():.2f} after")
    draw("own-loop-plans", plots.couplings({"before the training": before, "after 200 steps": after}, even, even))


class ColumnsThenRows(SinkhornConstraint):
    """The constraint of the guide: columns, then rows, repeated."""

    def __init__(self, iterations: int = 1) -> None:
        object.__setattr__(self, "iterations", iterations)

    def half_step_axes(self) -> tuple[str, ...]:
        """Return the axes of the half steps in their order."""
        return ("columns", "rows") * self.iterations


def own_constraint() -> None:
    """Draw the plans of a batch by rows alone, and by a constraint of one's own."""
    z0, z1, _ = broken_pairs()
    kernel, even = Gibbs("cosine", 0.05), torch.full((14,), 1 / 14)
    constraints = {"rows (InfoNCE)": Rows(), "columns, then rows": ColumnsThenRows(1), "five times": ColumnsThenRows(5)}
    plans = {name: Objective(Cross(), kernel, one, Pairs(), KL()).plan(z0, z1) for name, one in constraints.items()}
    for name, plan in plans.items():
        shares = 14 * plan.sum(0)
        print(f"own constraint, {name}: fullest column {shares.max():.2f} shares, emptiest {shares.min():.2f}")
    draw("own-constraint", plots.couplings(plans, even, even))


def load_measured(name: str) -> Any:
    """Load the results of a benchmark."""
    return json.loads((MEASURED / f"{name}.json").read_text())


def axes(width: float, height: float, columns: int = 1) -> tuple[Figure, list[Any]]:
    """Return a figure and its axes, without a frame at the top and the right."""
    figure = Figure((width, height), layout="constrained")
    result = figure.subplots(1, columns, squeeze=False)[0]
    for one in result:
        one.spines[["top", "right"]].set_visible(False)
    return figure, list(result)


def matryoshka() -> None:
    """Draw the accuracy over the number of coordinates, from `benchmarks.matryoshka`."""
    rows = load_measured("matryoshka")["results"]
    titles = {name: name for name in dict.fromkeys(row["case"] for row in rows)}
    figure, panels = axes(8, 2.9, len(titles))
    styles = {"plain": (GRAY, ":"), "PCA": (ORANGE, "--"), "nested": (BLUE, "-")}
    for panel, case in zip(panels, titles, strict=True):
        for way, (color, dashes) in styles.items():
            result: dict[int, list[float]] = {}
            for row in rows:
                if (row["case"], row["way"]) == (case, way):
                    result.setdefault(row["dims"], []).append(100 * row["knn"])
            sizes = sorted(result)
            means = [statistics.mean(result[size]) for size in sizes]
            panel.plot(sizes, means, dashes, color=color, marker="o", markersize=3.5, label=way)
        panel.set_xscale("log", base=2)
        panel.set_xticks(sizes, [str(size) for size in sizes])
        panel.minorticks_off()
        panel.set_title(case, fontsize=10)
        panel.set_xlabel("coordinates")
    panels[0].set_ylabel("kNN accuracy, %")
    panels[-1].legend(frameon=False)
    draw("matryoshka", figure)


def dots(panel: Any, rows: dict[str, list[float]], label: str) -> None:
    """Draw the values of each row as small dots, and their mean as a larger one."""
    for place, (_, values) in enumerate(rows.items()):
        panel.plot(values, [place] * len(values), ".", color=GRAY, markersize=5)
        panel.plot([statistics.mean(values)], [place], "o", color=BLUE, markersize=6)
    panel.set_yticks(range(len(rows)), rows)
    panel.invert_yaxis()
    panel.set_xlabel(label)
    panel.grid(axis="x", color="#dddddd")
    panel.set_axisbelow(True)


def teacher() -> None:
    """Draw what students of a teacher reach, from `benchmarks.distillation`."""
    result = load_measured("distillation")["results"]
    order = {"the teacher": "the teacher's own", "raw pixels": "raw pixels", "distillation": "--recipe distillation"}
    order |= {"x-clr": "--objective x-clr", "SimCLR": "SimCLR, no teacher"}
    order |= {f"LightlyTrain, {way}, tuned": f"LightlyTrain, {way}" for way in ("cached features", "default method")}
    figure, panels = axes(7.5, 3, 2)
    for panel, key in zip(panels, ("linear probe", "20 neighbors"), strict=True):
        dots(panel, {title: [100 * one[key] for one in result[name]] for name, title in order.items()}, f"{key}, %")
    panels[1].set_yticklabels([])
    draw("teacher", figure)


def many_views() -> None:
    """Draw the accuracy of one view by the number of other views, from the suite `multiview`."""
    result = load_measured("suites/multiview-uci-multiple-features")
    order = {"that view alone, two random ones": "alone, random changes"}
    order |= {f"2 views, kar and {one}": f"with {one}" for one in ("pix", "fac", "zer", "mor")} | {
        "2 views": "with fou"
    }
    order |= {"3 views, full": "with 2 others", "4 views, full": "with 3 others", "6 views, full": "with 5 others"}
    rows = {
        title: [100 * cell["values"]["few_shot@5"] for cell in result["cells"] if cell["row"] == name]
        for name, title in order.items()
    }
    figure, panels = axes(6, 3)
    dots(panels[0], rows, "accuracy of view kar by five labels of each class, %")
    draw("many-views", figure)


def couplings() -> None:
    """Draw recall over popularity of couplings of packages, from `benchmarks.coupling`."""
    draws = load_measured("coupling")["packages"]["draws"]
    shown = {"most popular": "^", "implicit ALS": "s", "LightFM": "D", "InfoNCE": "v", "two towers, log-q": "o"}
    shown |= {"InfoNCE, balanced": "*"}
    figure, panels = axes(6, 3)
    for name, marker in shown.items():
        x, y = ([one[key] for one in draws[name]] for key in ("popularity@10", "recall@10"))
        color = BLUE if name in ("InfoNCE", "two towers, log-q", "InfoNCE, balanced") else GRAY
        panels[0].plot(statistics.mean(x), 100 * statistics.mean(y), marker, color=color, markersize=8)
        panels[0].annotate(name, (statistics.mean(x), 100 * statistics.mean(y)), (7, -3), textcoords="offset points")
    panels[0].set_xlim(0, 1.25)
    panels[0].set_xlabel("popularity of the ten nearest columns, relative to training pairs")
    panels[0].set_ylabel("recall@10, %")
    draw("couplings-popularity", figure)


PARTS: dict[str, Callable[[], None]] = {
    part.__name__: part
    for part in (
        matryoshka, teacher, many_views, couplings, own_loop, own_constraint, curves, demo, audit, tables, texts,
        series, photos,
    )
}  # fmt: skip


def main() -> None:
    """Take all pictures, or those of the named parts; all take about ten minutes."""
    folder, *parts = sys.argv[1:]
    Path(folder).mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    for part in parts or PARTS:
        (PARTS.get(part) or globals()[part])()


if __name__ == "__main__":
    main()
