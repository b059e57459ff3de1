"""What the suites of benchmarks/suites found, as tables and verdicts: for docs/results.md and docs/choosing.md."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

from contraport.comparing.grid import read_suite, suites_folder
from contraport.comparing.results import Comparison, Entry, markdown_table, table_of
from contraport.measures.intervals import Difference, Interval

MEASURED = Path(__file__).parents[1] / "benchmarks" / "results" / "suites"


def found_of(path: Path) -> tuple[dict[str, Any], Comparison]:
    """Return what a suite's file says, and the table in it."""
    values = json.loads(path.read_text())
    entries = [
        Entry(
            **entry
            | {"interval": None if entry["interval"] is None else Interval(*entry["interval"])}
            | {"difference": None if entry["difference"] is None else Difference(*entry["difference"])}
        )
        for entry in values["entries"]
    ]
    table = Comparison(
        values["title"],
        path,
        values["baseline"],
        values["rows"],
        values["columns"],
        entries,
        references=values.get("references", {}),
    )
    return values, table


def measured() -> dict[str, tuple[dict[str, Any], Comparison]]:
    """Return what was found, by suite."""
    return {path.stem: found_of(path) for path in sorted(MEASURED.glob("*.json"))}


def anchor(suite: str, number: int) -> str:
    """Return where a claim stands in docs/results.md."""
    return f"{suite}-{number + 1}"


def scale(values: dict[str, Any]) -> str:
    """Say on how much data, and with what, a suite was run."""
    cells = [cell for cell in values["cells"] if "train_items" in cell]
    asked, machine = values["asked"], values["machine"]
    items = sorted({(cell["train_items"], cell["test_items"]) for cell in cells})
    sizes = " or ".join(f"{train:,} training and {test:,} test items" for train, test in items[:2])
    train = asked["train"] or {}
    epochs = asked["epochs"] or train.get("epochs")
    length = f"{epochs} epochs" if epochs else "epochs as the columns say"
    encoder = asked["encoder"] or "the default encoder"
    numbers = sorted(Counter((cell["row"], cell["column"]) for cell in cells).values())
    seeds = f"{numbers[0]}" if numbers[0] == numbers[-1] else f"{numbers[0]} to {numbers[-1]}"
    took = sum(cell["took"] for cell in cells) / 60
    where = "one thread of a shared processor" if machine["device"] == "cpu" else machine["device"]
    return (
        f"{', '.join(map(str, asked['data']))}: {sizes}; {encoder}, {length}, {seeds} "
        f"{'seed' if seeds == '1' else 'seeds'}; "
        f"{took:.0f} minutes in all on {where}, torch {machine['torch']}."
    )


def suites() -> str:
    """Return the section of docs/results.md."""
    parts = [
        "## Objectives compared",
        paragraph(
            "What `contraport compare` found on the suites in `benchmarks/suites` (`python -m benchmarks.comparing`): "
            "means over seeds, half of their interval of 95 %; ▲ ▼ are surely above or below the first row, on the "
            "same seeds and test items, by intervals that hold for all comparisons of a table at once. The claims "
            "are those of the papers that the methods come from, each with the verdict on this data and encoder; for "
            "these the intervals hold for all comparisons of a suite's claims at once. A claim held where it is surely "
            "better somewhere and surely worse nowhere; it did not hold where it is surely worse somewhere and surely "
            "better nowhere, or where a gain of one point can be ruled out everywhere; else it is not decided at this "
            "size. What to choose by them: [choosing.md](choosing.md)."
        ),
    ]
    found = measured()
    for name, (values, table) in found.items():
        parts += _suite(name, values, table)
    lacking = [file.stem for file in sorted(suites_folder().glob("*.yaml")) if file.stem not in found]
    rows = []
    for name in lacking:
        suite = read_suite(name)
        rows.append([f"`{name}`", suite["title"], suite.get("not_run", "there was no time")])
    parts += ["### Suites that were not run", markdown_table(["suite", "about", "why not"], rows)]
    full = [name for name in found if found[name][0]["asked"]["quick"]]
    parts.append(
        paragraph(
            f"In their small form alone were run: {', '.join(f'`{name}`' for name in full)}. Their full grids, on "
            "Fashion-MNIST with a convolutional encoder, the searched settings and more seeds, were not."
        )
    )
    return "\n\n".join(parts)


def _suite(name: str, values: dict[str, Any], table: Comparison) -> list[str]:
    measure = table.measures[0]
    unit = "%" if measure.unit.startswith("share") else measure.unit
    command = values["command"] or "contraport compare"
    claims = [
        [f'<a id="{anchor(name, number)}"></a>{one["says"]}', f"**{one['verdict']}**", one["why"]]
        for number, one in enumerate(values["verdicts"])
    ]
    lacking = f" {values['lacking']} trainings lack." if values["lacking"] else ""
    return [
        f"### {values['title']}",
        paragraph(f"`{command}`. {scale(values)} {measure.title}, {unit}.{lacking}"),
        table_of(table, measure),
        *([markdown_table(["claim", "verdict", "why"], claims)] if claims else []),
    ]


def paragraph(words: str) -> str:
    """Return words in lines of the usual length."""
    return textwrap.fill(" ".join(words.split()), 120, break_on_hyphens=False)
