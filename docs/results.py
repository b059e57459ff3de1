"""Writes docs/results.md and docs/accuracy.md from the results of benchmarks and examples, for `make docs`."""

from __future__ import annotations

import json
import math
import statistics
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from suites import suites

from contraport.auditing.pairs.paired_features import MAX_EXACT_NEIGHBOR_ITEMS, MAX_REFERENCE_ITEMS
from contraport.metrics.probes import MAX_EXACT_KNN_PAIRS, MIN_KNN_RECALL, NUM_SAMPLED_KNN_TEST_ITEMS
from contraport.metrics.retrieval_ranks import MAX_PAIRS_WITHOUT_SAMPLING, NUM_SAMPLED_RETRIEVAL_TEST_ITEMS

ROOT = Path(__file__).parents[1]
MEASURED = ROOT / "benchmarks" / "results"
SHORT_RUNS = "The runs are short and the sets small, so a difference of one point means nothing."

SHORTEST_COMPARED = 0.2
"""CPU seconds below which a time is too short to give an exponent."""

ALWAYS_SHOWN_ROWS = 100_000
"""Number of rows from which all sizes of commands are listed."""

LIMITS = "900 CPU seconds and 8 GB"

FORMATS = {
    "embed, .npz": "`.npz`",
    "embed, .npy": "`.npy`",
    "embed, .parquet of lists": "`.parquet`, a column of lists",
    "embed, .parquet of numbers": "`.parquet`, a column per number",
}
"""Cases of `benchmarks.scale` that differ in the format of their data."""

Cases = dict[str, dict[str, float]]

ROWS = 512, 8192
TIMED = (
    "nt_xent, streamed", "nt_xent, stored", "nt_xent, lightly",
    "info_nce, streamed", "info_nce, stored", "info_nce, autograd", "info_nce, open_clip",
    "rows, stored", "rows, F.cross_entropy",
    "gca_ince K=3, streamed", "gca_ince K=3, stored", "gca_ince K=3, autograd",
    "sinkhorn K=3, streamed", "sinkhorn K=3, stored", "sinkhorn K=3, POT", "sinkhorn K=3, OTT",
)  # fmt: skip
"""Cases on the page, of all that the benchmark measured."""

TRAINING_LOOPS = {"contraport": "contraport, bare loop", "contraport train": "`contraport train`"}

GROWING = "nt_xent, streamed", "nt_xent, lightly", "sinkhorn K=3, streamed", "sinkhorn K=3, stored", "sinkhorn K=3, POT"


def results() -> str:
    """Return the page of time and memory."""
    engine, growth = load(MEASURED / "engine.json"), load(MEASURED / "growth.json")
    tables = {(table["dimensions"], table["rows"]): table["cases"] for table in engine["results"]}
    return f"""# Time and memory

{describe_machine(engine["machine"], largest_time_ratio(tables, growth["results"]))}

What training runs reach: [accuracy](accuracy.md).

## Time of the losses

Median milliseconds of forward + backward, and in units of the tiled product X Yᵀ of the same problem; d = 128,
temperature 0.1 (`python -m benchmarks.engine`). Other sizes, dimensions and peers are in
`benchmarks/results/engine.json`; those of 256 and 16,384 rows and of 64 and 768 dimensions were measured on an
earlier version of the code.

{times_table(tables)}

{describe_agreement(tables)}

## Growth

d = 128. Memory is the peak in addition to inputs and gradients, in MiB. [engine.md](engine.md) has a plot.

{growth_table(growth["results"])}

{scale(load(MEASURED / "scale.json")["results"])}

{approximate_audits(load(MEASURED / "approximate_audit.json")["results"])}

{device(load(MEASURED / "cuda.json"))}

{training(load(MEASURED / "training.json"))}

{loading(load(MEASURED / "data.json"))}

{assignments(load(MEASURED / "assignment.json"))}

## Not measured

- NCCL, several GPUs, several machines, and any GPU other than an H100.
- On the CPU, peers with more than 16,384 rows.
{largest_wide_audit(load(MEASURED / "scale.json")["results"])}
"""


def accuracy() -> str:
    """Return the page of the accuracy of objectives and recipes."""
    reached = load(ROOT / "examples" / "results" / "recipes.json")
    return f"""# Accuracy

Time and memory are on the page of [results](results.md), advice on [what to choose](choosing.md).

{suites()}

{unbalanced(load(MEASURED / "unbalanced.json"))}

## Recipes

What each recipe reached with its own settings on a data set that suits it: linear probe / kNN accuracy on frozen
features of held-out items, in percent (`python examples/recipes.py`, seed 0; epochs and seconds are in
`examples/results/recipes.json`).

{recipes(reached)}

{paragraph(recipes_without_gain(reached) + SHORT_RUNS)}
"""


def load(path: Path) -> Any:
    """Load the results of a script."""
    return json.loads(path.read_text())


def paragraph(words: str) -> str:
    """Wrap a text to the usual line length."""
    return textwrap.fill(" ".join(words.split()), 120)


def describe_machine(machine: dict[str, str], ratio: float) -> str:
    """Describe the machine and versions of the measurements, and how much times differ between runs."""
    return paragraph(
        f"Measured by the scripts in `benchmarks/`. One machine: {machine['processor']}, "
        f"{machine['threads']} threads, torch {machine['torch']}, Python {machine['python']}. It is shared and noisy: "
        f"compare within a table only. In one of the next two tables a case takes up to {ratio:.1f} times as long as "
        "in the other."
    )


def largest_time_ratio(tables: dict[tuple[int, int], Cases], growth: list[dict[str, Any]]) -> float:
    """Return the largest ratio of the times of one case in the tables of times and of growth, above one."""
    shown = {rows: tables[128, rows] for rows in ROWS}
    pairs = [
        (case["seconds"], shown[grown["rows"]][name]["seconds"])
        for grown in growth
        if grown["rows"] in shown
        for name, case in grown["cases"].items()
        if name in GROWING
    ]
    return max(max(a / b, b / a) for a, b in pairs)


def describe_agreement(tables: dict[tuple[int, int], Cases]) -> str:
    """Describe the largest difference of gradients between packages, and the speed of small batches."""
    return paragraph(
        f"Gradients agree with those of the peers to a relative {largest_difference(tables):.0e} in single precision "
        f"(GeomLoss, which iterates to its own tolerance, to 1e-2). {describe_small_batches(tables[128, 256])}"
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]], words: Sequence[str] = ()) -> str:
    """Return a Markdown table; the first column and those in `words` are left-aligned, the others right-aligned."""
    lines = [head, ["---" if name in (head[0], *words) else "---:" for name in head], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def times_table(tables: dict[tuple[int, int], Cases]) -> str:
    """Return the table of computation times of the main cases, by number of rows."""
    head = [heading for rows in ROWS for heading in (f"{rows:,} rows: ms", "products")]

    def cells(case: dict[str, float] | None) -> tuple[str, str]:
        if case is None:
            return "", ""
        milliseconds = 1e3 * case["seconds"]
        return f"{milliseconds:,.{0 if milliseconds >= 100 else 1}f}", f"{case['products']:,.1f}"

    rows = ([name, *(cell for n in ROWS for cell in cells(tables[128, n].get(name)))] for name in TIMED)
    return table(["loss, implementation", *head], rows)


def largest_difference(tables: dict[tuple[int, int], Cases]) -> float:
    """Return the largest relative difference between gradients and those of contraport, except for GeomLoss."""
    cases = [item for result in tables.values() for item in result.items()]
    return max(case["gradient_error"] for name, case in cases if "GeomLoss" not in name)


def describe_small_batches(cases: Cases) -> str:
    """Describe the time of small batches, relative to plain autograd."""

    def ratio(ours: str, plain: str) -> float:
        return cases[ours]["seconds"] / cases[plain]["seconds"]

    return (
        "At 256 rows, where most of the time goes into the bookkeeping of the parts, the row form takes "
        f"{ratio('rows, dense', 'rows, F.cross_entropy'):.1f} times as long as plain `F.cross_entropy` "
        f"({ratio('rows, dense, compiled', 'rows, F.cross_entropy'):.1f} compiled), and both directions of InfoNCE "
        f"{ratio('info_nce, dense', 'info_nce, autograd'):.1f} times as long as plain autograd "
        f"({ratio('info_nce, dense, compiled', 'info_nce, autograd'):.1f} compiled)."
    )


def growth_table(results: list[dict[str, Any]]) -> str:
    """Return the table of time and memory by number of rows."""
    head = [heading for name in GROWING for heading in (f"{name}: s", "MiB")]

    def cells(cases: Cases, name: str) -> tuple[str, str]:
        case = cases.get(name)
        return (f"{case['seconds']:.3f}", f"{case['mebibytes']:,.0f}") if case else ("", "")

    rows = ([f"{r['rows']:,}", *(c for name in GROWING for c in cells(r["cases"], name))] for r in results)
    return table(["rows", *head], rows)


def scale(results: list[dict[str, Any]]) -> str:
    """Return the section of time and memory of commands by number of rows."""
    names = {"audit": "audit of frozen vectors", "audit, exact neighbors": "the same, with exact neighbors"}
    names |= {"mine, exact": "mine, all candidates compared"}

    def exponent(row: dict[str, Any]) -> str:
        smaller = [
            r for r in results if all(r[key] == row[key] for key in ("case", "width")) and r["rows"] < row["rows"]
        ]
        before = max(smaller, key=lambda r: r["rows"], default=row)
        if before is row or before["seconds"] < SHORTEST_COMPARED:
            return ""
        return f"{math.log(row['seconds'] / before['seconds']) / math.log(row['rows'] / before['rows']):.2f}"

    def cells(row: dict[str, Any]) -> list[str]:
        first = [names.get(row["case"], row["case"]), str(row["width"]), f"{row['rows']:,}"]
        if "note" in row:
            return [*first, row["note"], "", "", ""]
        seconds = f"{row['seconds']:,.{1 if row['seconds'] >= 1 else 2}f}"
        auroc = f"{row['auroc']:.4f}" if "auroc" in row else ""
        return [*first, seconds, exponent(row), f"{row['gigabytes']:.2f}", auroc]

    formats = {row["case"]: row for row in results if row["case"] in FORMATS}
    results = [row for row in results if row["case"] not in FORMATS]
    audits = [row for row in results if row["case"] == "audit" and "parts" in row]
    largest = max(audits, key=lambda row: (row["rows"], -row["width"]))
    parts = ", ".join(f"{part} {seconds:.1f}" for part, seconds in largest["parts"].items())
    libraries = min(row["before"] for row in results if "before" in row)
    said = paragraph(
        "CPU seconds of one thread, and the peak memory of the process with its libraries (at least "
        f"{libraries:.1f} GB) and data (`python -m benchmarks.scale`; limits of {LIMITS}). The exponent is that of the "
        f"growth since the next smaller size; sizes below {ALWAYS_SHOWN_ROWS:,} rows are left out where there "
        "are three larger ones. A fifth of the pairs of an audit are wrong; up to "
        f"{MAX_EXACT_NEIGHBOR_ITEMS:,} items its neighbors are exact, above that they are found by cells (groups of "
        f"near items). The audit of {largest['rows']:,} pairs of {largest['width']} numbers took "
        f"{largest['wall']:.0f} s beside other work. CPU "
        f"seconds of its parts: {parts}; the rest is reading. {mapped_share(audits)}"
    )
    assert MAX_PAIRS_WITHOUT_SAMPLING == MAX_EXACT_KNN_PAIRS  # the text names one limit
    quadratic = paragraph(
        "`duplicates` without an index compares all pairs of rows. kNN in `evaluate` compares the test items, here a "
        "fifth of the rows, with the training items, retrieval compares them with one another. Above "
        f"{MAX_EXACT_KNN_PAIRS:,} of these pairs, kNN classifies a random {NUM_SAMPLED_KNN_TEST_ITEMS:,} of the test "
        f"items, and finds {MIN_KNN_RECALL:.0%} of the neighbors by cells if these are less than half of the pairs "
        "(the log has the recall on a sample); retrieval ranks a random "
        f"{NUM_SAMPLED_RETRIEVAL_TEST_ITEMS:,} among all. A note says so. `mine` does the same as kNN"
        f"{mining_gain(results)}. Below the limit the time of retrieval is quadratic, its memory is not. "
        "A comparison trains two objectives for two epochs each, and evaluates both by a "
        "linear probe and kNN. The number of cells of an index grows with the root of the rows, so the time of "
        "`duplicates` with one approaches n^1.5. `cluster` repeats its passes until no item changes its cluster, at "
        "most 100 times."
    )
    head = ["command", "width", "rows", "CPU s", "exponent", "GB", "AUROC"]
    image = "![CPU seconds of audits against the number of pairs, for vectors of 64 and 512 numbers](images/scale.png)"
    shown = paragraph(
        f"The exponents in the plot are those of more than {MAX_EXACT_NEIGHBOR_ITEMS:,} pairs; the dashed lines grow "
        "as n^1.1."
    )
    larger = Counter((row["case"], row["width"]) for row in results if row["rows"] >= ALWAYS_SHOWN_ROWS)
    listed = [row for row in results if row["rows"] >= ALWAYS_SHOWN_ROWS or larger[row["case"], row["width"]] < 3]
    sections = said, quadratic, table(head, map(cells, listed)), shown, image, input_formats(formats)
    return "\n\n".join(("## Commands by number of rows", *sections))


def mapped_share(audits: list[dict[str, Any]]) -> str:
    """Describe which memory of the largest audit of wide vectors is its own, and which is the mapped file."""
    largest = max((row for row in audits if row["width"] == 512), key=lambda row: row["rows"])
    return (
        f"That of {largest['rows']:,} pairs of 512 numbers has {largest['own']:.1f} GB of its own; the rest of its "
        "peak is libraries and mapped pages of the file, which the system takes back when memory is short."
    )


def largest_wide_audit(results: list[dict[str, Any]]) -> str:
    """Return the item of the list of what was not measured: audits of more pairs of wide vectors."""
    wide = [row for row in results if row["case"] == "audit" and row["width"] == 512 and "note" not in row]
    largest = max(wide, key=lambda row: row["rows"])
    text = (
        f"Audits of more than {largest['rows']:,} pairs of 512 numbers ({largest['gigabytes']:.1f} GB), and "
        "wall time on a machine without other work."
    )
    return textwrap.fill(text, 120, initial_indent="- ", subsequent_indent="  ")


def mining_gain(results: list[dict[str, Any]]) -> str:
    """Describe the time of mining by cells relative to comparing all candidates, for the most rows measured so."""
    by_case = {(row["case"], row["rows"]): row["seconds"] for row in results if "note" not in row}
    rows = max(rows for case, rows in by_case if case == "mine, exact")
    share = by_case["mine", rows] / by_case["mine, exact", rows]
    return f" beyond as many pairs of a first view and a candidate: for {rows:,} rows in {share:.2f} times the time"


def input_formats(cases: dict[str, dict[str, Any]]) -> str:
    """Return the section of the time and memory of `embed` by the format of its data."""
    rows = (
        [
            title,
            f"{row['seconds']:.1f}",
            f"{row['own']:.2f}",
            f"{max(row['own'], row['gigabytes'] - row['before']):.2f}",
        ]
        for title, row in ((title, cases[name]) for name, title in FORMATS.items())
    )
    one = cases["embed, .npz"]
    said = paragraph(
        f"`embed` of {one['rows']:,} vectors of {one['width']} numbers, {4e-9 * one['rows'] * one['width']:.2f} GB, by "
        "a small network. The memory is that of the command at its peak, without the libraries. Mapped pages of files "
        "belong to the page cache."
    )
    head = ["file", "CPU s", "GB", "with mapped files"]
    return f"## Input formats\n\n{said}\n\n{table(head, rows)}"


def approximate_audits(results: list[dict[str, Any]]) -> str:
    """Return the section that compares the ranks of approximate audits with those of exact ones."""
    groups: dict[tuple[str, int], list[dict[str, dict[str, float]]]] = {}
    for row in results:
        groups.setdefault((row["data"], row["pairs"]), []).append(row["measured"])

    def cells(data: str, pairs: int, seeds: list[dict[str, dict[str, float]]]) -> list[str]:
        exact, *others = ([result[how]["auroc"] for result in seeds] for how in ("exact", "references", "cells"))
        differences = [[b - a for a, b in zip(exact, other, strict=True)] for other in others]
        means = [f"{statistics.mean(exact):.4f}", *(f"{round(statistics.mean(d), 4) + 0:+.4f}" for d in differences)]
        return [data, f"{pairs:,}", str(len(seeds)), *means, f"{max(map(abs, differences[-1])):.4f}"]

    large = {row["data"]: row["measured"] for row in results if row["pairs"] > MAX_EXACT_NEIGHBOR_ITEMS}
    ratios = [f"{m['exact']['seconds'] / m['cells']['seconds']:.0f} times ({data})" for data, m in large.items()]
    said = paragraph(
        f"An audit ranks similarities among {MAX_REFERENCE_ITEMS:,} reference items, and finds the neighbors among "
        f"more than {MAX_EXACT_NEIGHBOR_ITEMS:,} items by cells; an exact audit compares each item with all others. "
        "The table has the AUROC of the exact audit and the mean differences from it, with reference items alone, and "
        "with cells too, which are forced on smaller data (`python -m benchmarks.approximate_audit`). A fifth of the "
        f"pairs are wrong. Of the largest data the exact audit takes {' and '.join(ratios)} as many CPU seconds."
    )
    head = ["data", "pairs", "seeds", "exact", "reference items", "and cells", "largest difference"]
    return f"## Approximate audits\n\n{said}\n\n{table(head, (cells(*key, seeds) for key, seeds in groups.items()))}"


def device(measured: dict[str, Any]) -> str:
    """Return the section of times on a GPU, in units of the matrix products that every exact method needs."""
    machine, cases = measured["machine"], measured["results"]
    result = {(case["case"], case["dimensions"], case["rows"]): case for case in cases if case["dimensions"] == 128}
    names, sizes = (list(dict.fromkeys(key[place] for key in result)) for place in (slice(1), slice(1, 3)))
    head = [heading for _, n in sizes for heading in (f"{n:,} rows: ms (times the bound)", "MiB")]

    def cells(case: dict[str, Any] | None) -> tuple[str, str]:
        if case is None:
            return "", ""
        if "note" in case:
            return case["note"].removeprefix("fails: ").split(",")[0], ""
        return f"{case['milliseconds']:.1f} ({case['ratio']:.1f})", f"{case['mebibytes']:,.0f}"

    rows = ([name, *(cell for size in sizes for cell in cells(result.get((name, *size))))] for (name,) in names)

    def slower(theirs: str, ours: str) -> str:
        return f"{result[theirs, 128, 65536]['milliseconds'] / result[ours, 128, 65536]['milliseconds']:.1f}"

    said = paragraph(
        f"{machine['device']}, torch {machine['torch']}: forward + backward from embeddings in single precision that "
        "are multiplied in bfloat16, medians measured with device events (`python -m benchmarks.cuda`). The bound is "
        f"the time of the necessary products at {machine['teraflops']:.0f} TFLOP/s, the speed of a large product in "
        "the same run; d = 128. `benchmarks/results/cuda.json` has d = 512. Empty cells were not measured. The code "
        "is that before the engine's passes became custom operators."
    )
    compared = paragraph(
        "At 65,536 rows of 128 dimensions, compiled dense code takes "
        f"{slower('info_nce, dense torch.compile', 'info_nce')} times as long for InfoNCE, and memeff "
        f"{slower('info_nce, memeff', 'info_nce')} times as long. For Sinkhorn, compiled dense code takes "
        f"{slower('sinkhorn K=3, dense torch.compile', 'sinkhorn K=3')} times as long, and flash_sinkhorn "
        f"{slower('sinkhorn K=3, flash_sinkhorn', 'sinkhorn K=3')} times. Up to 16,384 rows of 128 dimensions, the "
        "measured time is the time the host takes to launch kernels, and this host was slow. There compiled dense "
        "InfoNCE is faster, with more memory, so use `torch.compile` for small losses."
    )
    return f"## On a GPU\n\n{said}\n\n{table(['loss, by', *head], rows)}\n\n{compared}"


def training(measured: dict[str, Any]) -> str:
    """Return the section of the speed of training steps."""
    cases, batch = measured["cases"], measured["batch_size"]

    def share(case: dict[str, float], part: str) -> str:
        return f"{case[part] / case['step']:.1%}" if part in case else ""

    rows = (
        [
            TRAINING_LOOPS.get(name, name),
            f"{c['step']:.3f}",
            f"{batch / c['step']:,.0f}",
            share(c, "data"),
            share(c, "objective"),
        ]
        for name, c in cases.items()
    )
    ratios = [cases[f"lightly, {num_workers} workers"]["step"] / cases["contraport"]["step"] for num_workers in (0, 2)]
    return f"""## A training step

Fashion-MNIST, batch {batch}, two views, the same small encoder and similar augmentations
(`python -m benchmarks.training`).

{table(["loop", "seconds a step", "images/s", "waiting for data", "objective"], rows)}

lightly's loop takes {ratios[0]:.1f} times as long without workers and {ratios[1]:.1f} times with two."""


def loading(measured: dict[str, Any]) -> str:
    """Return the section of the cost of loading data."""
    wait, speed, embedding = (measured[key] for key in ("data_wait", "images_per_second", "seconds_to_embed"))
    said = paragraph(
        f"{measured['images']:,} JPEG files of {measured['side']} x {measured['side']}, `{measured['encoder']}` "
        f"(`python -m benchmarks.data`): a training run waits {wait['decoded once']:.1%} of its time if images are "
        f"decoded once, {wait['each epoch decodes']:.1%} if each epoch decodes them. "
        f"It makes {speed['full']:,.0f} images per "
        f"second; on the features of a frozen encoder {speed['frozen']:,.0f}, where a bare loop over the head alone "
        f"would make {speed['the head alone']:,.0f}. `embed` takes "
        f"{embedding['arrays'] / embedding['pass over arrays']:.2f} times the time of the encoder's own pass over "
        f"arrays, and {embedding['files'] / embedding['pass over files']:.1f} times over files, where decoding takes "
        "the time."
    )
    return f"## Loading data\n\n{said}"


def assignments(measured: dict[str, Any]) -> str:
    """Return the section of one-to-one assignments: a known answer, and the excess over the least cost."""
    titles = {"Sinkhorn": "`transport`, 5 iterations", "assignment": "`approximate_assignment`, passes"}
    attributes = sorted(
        measured["known"], key=lambda row: (["nearest neighbors", *titles].index(row["method"]), row["items"])
    )
    answers = (
        [
            titles.get(row["method"], row["method"]),
            f"{row['items']:,}",
            *(f"{row[f'recovered, {side}']:.2%}" for side in ("images", "versions")),
            f"{row['seconds']:,.1f}",
        ]
        for row in attributes
    )
    auctions = {(row["sets"], row["items"]): row for row in measured["auctions"]}

    def excess(row: dict[str, Any]) -> list[str]:
        auction = auctions.get((row["sets"], row["items"]))
        bid = (
            [f"{auction[key]:.{digits}f}" for key, digits in (("excess %", 3), ("bound %", 2), ("seconds", 1))]
            if auction
            else [""] * 3
        )
        passes = [
            f"{row[key]:.{digits}f}" for key, digits in (("excess %, no pass", 2), ("all passes", 3), ("seconds", 1))
        ]
        return [row["sets"], f"{row['items']:,}", *passes, *bid]

    first = paragraph(
        "Images of Fashion-MNIST matched with blurred versions of themselves, by 64 components "
        "(`python -m benchmarks.assignment`): the share of images whose partner is their own version, that of versions "
        "whose partner is their own image, and processor seconds. A matrix of "
        f"the pairs of 60,000 images has {max(row['MiB of the matrix'] for row in attributes):,.0f} MiB."
    )
    second = paragraph(
        "The excess over the least cost, by SciPy on the whole matrix, in percent: of `approximate_assignment` before "
        "and after its passes (at most 30), and of its auction, with the bound that it states. Empty: not measured."
    )
    heads = ["method", "images", "own version", "own image", "seconds"], [
        "sets", "points", "no pass", "passes", "seconds", "auction", "bound", "seconds",
    ]  # fmt: skip
    tables = table(heads[0], answers), table(heads[1], map(excess, measured["excess"]))
    return f"## Assignments\n\n{first}\n\n{tables[0]}\n\n{second}\n\n{tables[1]}"


def unbalanced(measured: dict[str, Any]) -> str:
    """Return the section that compares settings of unbalanced transport with NT-Xent and the balanced plan."""
    ten: dict[tuple[Any, ...], list[float]] = {}
    five: dict[tuple[Any, ...], list[float]] = {}
    for row in measured["rows"]:
        of = five if row["settings"].get("iterations") == 5 else ten
        if not row["settings"].keys() & {"marginal_weight", "rince_weight"}:
            key = (row["objective"], *_chosen(row["settings"]), row["data"], row["mismatched"])
            of[key] = [result["knn"] for result in row["found"]]
    sooner = [a - b for key in five for a, b in zip(five[key], ten[key], strict=True)]
    error = statistics.stdev(sooner) / len(sooner) ** 0.5
    return f"""## Unbalanced transport

kNN accuracy of a two-layer network on digits and Fashion-MNIST, with and without 20% wrong pairs, {measured["seeds"]}
seeds (`python -m benchmarks.unbalanced`; all rows in `benchmarks/results/unbalanced.json`).

- At the published settings (temperature 0.5, relaxation 0.2) unbalanced transport is within 0.4 points of NT-Xent, and
  nowhere better than both NT-Xent and the balanced plan by more than the seeds differ.
- Relaxation 0.05 loses about one point, because most of the mass is dropped; the default is 1.
- Temperatures of 0.1 and 0.2 are better than 0.5 for all three objectives.
- 5 iterations instead of 10 change the accuracy by {statistics.mean(sooner):+.2f} points (standard error {error:.2f}),
  so 5 is the default."""


def _chosen(settings: dict[str, Any]) -> tuple[float, float | None, bool]:
    return settings["temperature"], settings.get("relaxation"), settings.get("conditional", False)


def recipes(reached: dict[str, Any]) -> str:
    """Return the table of the accuracies of the recipes."""

    def scores(result: dict[str, float]) -> str:
        return f"{100 * result['linear_probe']:.1f} / {100 * result['knn']:.1f}"

    rows = (
        [
            name,
            run["data"],
            f"{run['items']:,}",
            *(scores(run[which]) for which in ("raw", "untrained", "trained")),
        ]
        for name, run in reached.items()
    )
    return table(["recipe", "data", "items", "raw", "untrained", "trained"], rows, words=["data"])


def recipes_without_gain(reached: dict[str, Any]) -> str:
    """Return the names of the recipes whose features are no better than those of the untrained encoder."""
    worse = {
        what: [name for name, run in reached.items() if run["trained"][key] <= run["untrained"][key]]
        for what, key in (("the linear probe", "linear_probe"), ("kNN", "knn"))
    }
    said = [f"on {what} {', '.join(names)}" for what, names in worse.items() if names]
    return f"These recipes were no better than the untrained encoder: {'; '.join(said)}. " if said else ""
