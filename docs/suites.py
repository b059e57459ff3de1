"""Tables and verdicts of the suites of benchmarks/suites, for the pages of accuracy, evidence and claims."""

from __future__ import annotations

import json
import shlex
import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from contraport.comparison.command_options import COMPARE_COMMAND_SPEC
from contraport.comparison.comparison_result import Comparison
from contraport.comparison.comparison_tables import (
    format_markdown_table,
    format_mean_and_half_width,
    significant_difference_arrow,
)
from contraport.comparison.grid_builder import get_suites_folder, load_suite
from contraport.comparison.statistics_and_verdicts import (
    HELD,
    NOT_HELD,
    PARTLY,
    UNDECIDED,
    SeedMeanAtEpoch,
    TableEntry,
    from_json_record,
)
from contraport.encoders.factory import build_encoder, default_encoder_name
from contraport.options import replace_deprecated_options
from contraport.training.command_options import TRAIN_COMMAND_SPEC

MEASURED = Path(__file__).parents[1] / "benchmarks" / "results" / "suites"

SHAPES: dict[str, tuple[int, ...]] = {"digits": (1, 8, 8), "fashion-mnist": (1, 28, 28), "docstrings": ()}
"""Of data whose items go through one encoder."""


class Measured(NamedTuple):
    """Results of a suite on one data set: the content of its file, and the comparison in it."""

    values: dict[str, Any]
    table: Comparison

    @property
    def data(self) -> str:
        """Name of the data set."""
        return ", ".join(Path(data).stem for data in self.values["asked"]["data"])

    @property
    def name(self) -> str:
        """Name of the data set, with the number of items if it was limited, and whether settings were tuned."""
        args = self.values["asked"]
        items = f" ({args['max_items']:,} items)" if args["max_items"] is not None and not args["quick"] else ""
        return f"{self.data}{items}" + (f" with --tune {args['tune']}" if self.table.search_trials else "")

    @property
    def encoder(self) -> str:
        """Name and size of the encoder."""
        name = self.values["asked"]["encoder"]
        if self.data not in SHAPES:
            return name or "an MLP of 0.4 to 0.5 million parameters for each view"
        name = name or default_encoder_name(SHAPES[self.data])
        parameters = sum(one.numel() for one in build_encoder(name, SHAPES[self.data]).parameters())
        return f"{name} of {parameters / 1e6:.1f} million parameters"

    @property
    def is_small(self) -> bool:
        """Whether the quick form of the suite was run; digits are too few for another."""
        return self.values["asked"]["quick"] and self.data != "digits"

    @property
    def seeds(self) -> str:
        """Number of seeds of each cell."""
        numbers = sorted(Counter((cell["row"], cell["column"]) for cell in self.values["cells"]).values())
        text = f"{numbers[0]}" if numbers[0] == numbers[-1] else f"{numbers[0]} to {numbers[-1]}"
        return f"{text} {'seed' if text == '1' else 'seeds'}"

    @property
    def scale(self) -> str:
        """Scale of the runs: items, encoder, epochs, seeds, total time and machine, as a sentence."""
        cells = [cell for cell in self.values["cells"] if "train_items" in cell]
        args, machine = self.values["asked"], self.values["machine"]
        items = sorted({(cell["train_items"], cell["test_items"]) for cell in cells})
        sizes = " or ".join(f"{train:,} training and {test:,} test items" for train, test in items[:2])
        epochs = args["epochs"] or (args["train"] or {}).get("epochs")
        length = f"{epochs} epochs" if epochs else "epochs as given by the columns"
        took = round(sum(sum(cell["seconds"].values()) for cell in cells) / 60)
        where = "one thread of a shared processor" if machine["device"] == "cpu" else machine["device"]
        return (
            f"{self.name}: {sizes}; {self.encoder}, {length}, {self.seeds}; "
            f"{took} minute{'s' * (took != 1)} in total on {where}, torch {machine['torch']}."
        )


def read_results(path: Path) -> Measured:
    """Read the results file of a suite."""
    values = json.loads(path.read_text())
    values["asked"] = replace_deprecated_options(COMPARE_COMMAND_SPEC.options_by_name, values["asked"], warn=False)
    entries = [from_json_record(TableEntry, record) for record in values["entries"]]
    table = Comparison(
        values["title"],
        path,
        values["baseline"],
        values["rows"],
        values["columns"],
        entries,
        epoch_means=[from_json_record(SeedMeanAtEpoch, record) for record in values.get("waypoints", [])],
        reference_metrics=values.get("references", {}),
        search_spaces=values.get("spaces", {}),
        search_trials=values.get("trials", []),
        column_data=values.get("column_data", []),
    )
    return Measured(values, table)


def measured() -> dict[str, list[Measured]]:
    """Return the results of each suite, one for each data set."""
    result: dict[str, list[Measured]] = {}
    for path in sorted(MEASURED.glob("*.json")):
        one = read_results(path)
        result.setdefault(one.values["suite"], []).append(one)
    return result


def anchor(suite: str, number: int) -> str:
    """Return the link anchor of a claim in docs/claims.md."""
    return f"{suite}-{number + 1}"


def together(verdicts: Sequence[str]) -> str:
    """Combine the verdicts on several data sets: the common one of those that are decided, if they agree.

    >>> together([HELD, UNDECIDED]), together([HELD, NOT_HELD]), together([])
    ('held', 'held in part', 'not measured')
    """
    decided = set(verdicts) - {UNDECIDED}
    if {HELD, NOT_HELD} <= decided or PARTLY in decided:
        return PARTLY
    return next(iter(decided), UNDECIDED if verdicts else "not measured")


def claim(suite: str, number: int) -> str:
    """Return a claim in the current wording of its suite; results files have the wording of their run."""
    return str(load_suite(suite)["claims"][number]["says"])


def verdict_on(runs: dict[str, list[Measured]], suite: str, number: int) -> str:
    """Return the combined verdict of a claim over all data sets."""
    verdicts = [run.values["verdicts"][number : number + 1] for run in runs.get(suite, ())]
    return together([one["verdict"] for of_run in verdicts for one in of_run if one["found"]])


MAIN = {
    "gca": ["standard", "corrupt", "mismatched:0.4"],
    "beyond": ["zer-kar, clean", "zer-kar, 20 % wrong", "zer-kar, 40 % wrong", "fac-kar, 40 % wrong"],
    "alpha": [],
    "constraint": [],
    "multiview": [],
    "texts": [],
}
"""Suites whose tables are on the page of accuracy, and the settings that are shown; none: all."""


def suites() -> str:
    """Return the section of docs/accuracy.md, and write the rows of all suites as CSV beside their JSON."""
    result = measured()
    for runs in result.values():
        for run in runs:
            run.table.folder.with_suffix(".csv").write_text(run.table.csv())
    parts = [
        "## Objectives compared",
        paragraph(
            "`contraport compare` trains each objective with several seeds on suites of settings. Numbers are means "
            "over seeds ± half the 95% interval. ▲ and ▼ mark values above or below the first row with an interval "
            "that excludes zero and holds for all comparisons of the table at once. All rows, metrics and data are in "
            "`benchmarks/results/suites/*.csv`, the verdicts on the page of [claims](claims.md)."
        ),
    ]
    for name, settings in MAIN.items():
        if name in result:
            parts += _main_table(next(run for run in result[name] if not run.table.search_trials), settings)
    others = [f"[{name}](claims.md#{anchor(name, 0)})" for name in result if name not in MAIN]
    parts += ["### Further suites", f"Their claims and verdicts: {', '.join(others)}."]
    lacking = [path.stem for path in sorted(get_suites_folder().glob("*.yaml")) if path.stem not in result]
    reasons: dict[str, list[str]] = {}
    for name in lacking:
        reasons.setdefault(load_suite(name).get("not_run", "not run yet"), []).append(f"`{name}`")
    not_run = [f"- {', '.join(names)}: {reason}." for reason, names in reasons.items()]
    parts += ["### Suites that were not run", "\n".join(not_run)]
    return "\n\n".join(parts)


def _main_table(run: Measured, settings: Sequence[str]) -> list[str]:
    """Return the first metric of a suite on its first data, in some settings, with the command."""
    table, metric = run.table, run.table.metrics[0]
    shown = [column for column in table.columns if not settings or column.split(", ", 1)[1] in settings]
    shown = shown or table.columns
    names = [column.split(", ", 1)[1] for column in shown]
    rows = []
    for row in table.rows:
        entries = [table.find_entry(row, column, metric.key) for column in shown]
        rows.append(
            [row, *(format_mean_and_half_width(metric, one) + significant_difference_arrow(one) for one in entries)]
        )
    rows += [
        [f"*{name}*", *(table.format_reference(name, column, metric) for column in shown)]
        for name in table.reference_metrics
    ]
    unit = "%" if metric.unit.startswith("share") else metric.unit
    return [
        f"### {run.values['title']}",
        paragraph(f"{run.scale} {metric.title}, {unit}."),
        format_markdown_table(["objective", *names], rows),
        f"```sh\n{wrap_command(with_current_options(run.values['command']))}\n```",
    ]


def with_current_options(command: str) -> str:
    """Replace the deprecated options of a recorded `contraport compare` command by the current ones.

    >>> with_current_options("contraport compare --suite alpha --items 1348 --train.workers 2")
    'contraport compare --suite alpha --max_items 1348 --train.num_workers 2'
    """
    current = {}
    for prefix, spec in (("--", COMPARE_COMMAND_SPEC), ("--train.", TRAIN_COMMAND_SPEC)):
        options = spec.options_by_name
        current |= {prefix + one.deprecated_name: prefix + name for name, one in options.items() if one.deprecated_name}
    return shlex.join(current.get(word, word) for word in shlex.split(command))


def wrap_command(command: str, width: int = 100) -> str:
    """Wrap a shell command between words to the width of a page.

    >>> print(wrap_command("compare --settings 'all four styles' plain", width=30))
    compare --settings \\
        'all four styles' plain
    """
    lines = [""]
    for word in map(shlex.quote, shlex.split(command)):
        if lines[-1].strip() and len(lines[-1]) + len(word) + 3 > width:
            lines.append("   ")
        lines[-1] += f" {word}"
    return " \\\n".join(lines).removeprefix(" ")


def words_table(head: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table of texts, with left-aligned columns."""
    return format_markdown_table(head, rows, align_all_left=True)


def paragraph(words: str) -> str:
    """Wrap a text to the usual line length."""
    return textwrap.fill(" ".join(words.split()), 120, break_on_hyphens=False)
