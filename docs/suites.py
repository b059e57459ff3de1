"""What the suites of benchmarks/suites found, as tables and verdicts: for docs/results.md and docs/choosing.md."""

from __future__ import annotations

import json
import shlex
import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scipy.stats import spearmanr

from contraport.comparison.comparison_tables import (
    Comparison,
    epoch_tables_markdown,
    format_mean,
    markdown_table,
    means_table,
)
from contraport.comparison.config import COMPARE
from contraport.comparison.seed_results import HELD, NOT_HELD, PARTLY, UNDECIDED, Entry, EpochMean
from contraport.comparison.suites import load_suite, suites_folder
from contraport.encoders.factory import build_encoder, default_encoder
from contraport.metrics import Metric
from contraport.metrics.intervals import Difference, Interval
from contraport.options import replace_deprecated_names

MEASURED = Path(__file__).parents[1] / "benchmarks" / "results" / "suites"

SHAPES: dict[str, tuple[int, ...]] = {"digits": (1, 8, 8), "fashion-mnist": (1, 28, 28), "docstrings": ()}
"""Of data whose items go through one encoder."""


class Measured(NamedTuple):
    """What a suite found on some data: all that its file says, and the table in it."""

    values: dict[str, Any]
    table: Comparison

    @property
    def data(self) -> str:
        """The data that it was run on."""
        return ", ".join(Path(data).stem for data in self.values["asked"]["data"])

    @property
    def name(self) -> str:
        """The data, of how many items if of more than a suite's small form, and whether settings were searched."""
        asked = self.values["asked"]
        items = f" ({asked['max_items']:,} items)" if asked["max_items"] is not None and not asked["quick"] else ""
        return f"{self.data}{items}" + (f" with --tune {asked['tune']}" if self.table.trials else "")

    @property
    def encoder(self) -> str:
        """The encoder, with its size."""
        name = self.values["asked"]["encoder"]
        if self.data not in SHAPES:
            return name or "an MLP of 0.4 to 0.5 million parameters for each view"
        name = name or default_encoder(SHAPES[self.data])
        parameters = sum(one.numel() for one in build_encoder(name, SHAPES[self.data]).parameters())
        return f"{name} of {parameters / 1e6:.1f} million parameters"

    @property
    def is_small(self) -> bool:
        """Whether it is a suite's small form; the digits are no more than that."""
        return self.values["asked"]["quick"] and self.data != "digits"

    @property
    def seeds(self) -> str:
        """How many seeds there are of each cell."""
        numbers = sorted(Counter((cell["row"], cell["column"]) for cell in self.values["cells"]).values())
        told = f"{numbers[0]}" if numbers[0] == numbers[-1] else f"{numbers[0]} to {numbers[-1]}"
        return f"{told} {'seed' if told == '1' else 'seeds'}"

    @property
    def scale(self) -> str:
        """On how much data, and with what, it was run."""
        cells = [cell for cell in self.values["cells"] if "train_items" in cell]
        asked, machine = self.values["asked"], self.values["machine"]
        items = sorted({(cell["train_items"], cell["test_items"]) for cell in cells})
        sizes = " or ".join(f"{train:,} training and {test:,} test items" for train, test in items[:2])
        epochs = asked["epochs"] or (asked["train"] or {}).get("epochs")
        length = f"{epochs} epochs" if epochs else "epochs as given by the columns"
        took = round(sum(sum(cell["seconds"].values()) for cell in cells) / 60)
        where = "one thread of a shared processor" if machine["device"] == "cpu" else machine["device"]
        return (
            f"{self.name}: {sizes}; {self.encoder}, {length}, {self.seeds}; "
            f"{took} minute{'s' * (took != 1)} in total on {where}, torch {machine['torch']}."
        )


def found_of(path: Path) -> Measured:
    """Return what a suite's file says."""
    values = json.loads(path.read_text())
    values["asked"] = replace_deprecated_names(COMPARE.options, values["asked"], warn=False)
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
        epoch_means=[
            EpochMean(**one | {"interval": Interval(*one["interval"])}) for one in values.get("waypoints", [])
        ],
        references=values.get("references", {}),
        spaces=values.get("spaces", {}),
        trials=values.get("trials", []),
    )
    return Measured(values, table)


def measured() -> dict[str, list[Measured]]:
    """Return what was found, by suite: on each data that it was run on."""
    found: dict[str, list[Measured]] = {}
    for path in sorted(MEASURED.glob("*.json")):
        one = found_of(path)
        found.setdefault(one.values["suite"], []).append(one)
    return found


def anchor(suite: str, number: int) -> str:
    """Return where a claim stands in docs/results.md."""
    return f"{suite}-{number + 1}"


def together(verdicts: Sequence[str]) -> str:
    """Return what verdicts on several data come to: that of those that decide, if they agree.

    >>> together([HELD, UNDECIDED]), together([HELD, NOT_HELD]), together([])
    ('held', 'held in part', 'not measured')
    """
    decided = set(verdicts) - {UNDECIDED}
    if {HELD, NOT_HELD} <= decided or PARTLY in decided:
        return PARTLY
    return next(iter(decided), UNDECIDED if verdicts else "not measured")


def claim(suite: str, number: int) -> str:
    """Return a claim in the words of its suite's file now: the runs keep those of their day."""
    return str(load_suite(suite)["claims"][number]["says"])


def verdicts_on(runs: Sequence[Measured], number: int) -> str:
    """Say what became of a claim on each data."""
    by_verdict: dict[str, list[str]] = {}
    for run in runs:
        verdict = run.values["verdicts"][number]
        if verdict["found"]:
            by_verdict.setdefault(verdict["verdict"], []).append(run.name)
    return "; ".join(f"**{verdict}** on {' and '.join(data)}" for verdict, data in by_verdict.items()) or "not measured"


def suites() -> str:
    """Return the section of docs/results.md."""
    parts = [
        "## Objectives compared",
        paragraph(
            "This section shows what `contraport compare` found (`python -m benchmarks.comparing`) on the suites in "
            "`benchmarks/suites`. The numbers are means over seeds, ± half the width of the 95 % "
            "interval. ▲ and ▼ mark values that are surely above or below the first row, on the same seeds and "
            "test items, with intervals that hold for all comparisons of a table at once. For advice based on these "
            "results, see [choosing.md](choosing.md)."
        ),
        paragraph(
            "The claims come from the papers of the methods. Each has a verdict for this data and encoder, with "
            "intervals that hold for all comparisons of a suite's claims at once. A claim held if it is surely "
            "better somewhere and surely worse nowhere, and held in part if it is surely worse elsewhere. It did not "
            "hold if it is surely worse somewhere and surely better nowhere, or if a gain of one point can be ruled "
            "out everywhere. Otherwise it is "
            "not decided at this size. A claim that says so of each row held if each is surely better, and did not if "
            "for one of them, which is not, a gain of one point can be ruled out."
        ),
        paragraph(
            "On Fashion-MNIST the first measure is a probe on ten labelled items of each class. A training changes it "
            "by several points from the untrained encoder. The tables also show raw pixels, and runs as short as these "
            "seldom beat them. For the views fou and kar the claims use recall@10, because recall@1 was seen to "
            "be near its floor."
        ),
    ]
    found = measured()
    for name, runs in found.items():
        parts += _suite(name, runs)
    lacking = [file.stem for file in sorted(suites_folder().glob("*.yaml")) if file.stem not in found]
    rows = []
    for name in lacking:
        suite = load_suite(name)
        rows.append([f"`{name}`", suite["title"], suite.get("not_run", "there was no time")])
    parts += ["### Suites that were not run", markdown_table(["suite", "about", "why not"], rows)]
    small = [name for name, runs in found.items() if any(run.is_small for run in runs)]
    parts.append(
        paragraph(
            f"These suites were run in their small form: {', '.join(f'`{name}`' for name in small)}. Their full grids, "
            "with ten times as many training items, twice as many epochs and more rows, were not run. Where items are "
            "named beside the data, a part of the full grid was. The digits are few, and all were trained on."
        )
    )
    return "\n\n".join(parts)


RUN_AGAIN = ("beyond", "halves", "mismatch")
"""Suites whose rows with `--audit` were run while its decoys were drawn from the mismatched items."""


def _suite(name: str, runs: Sequence[Measured]) -> list[str]:
    parts = [f"### {runs[0].values['title']}"]
    if name in RUN_AGAIN:
        parts.append(
            paragraph(
                "**To be run again.** When these rows were run, the random stream that mismatched the pairs was also "
                "the one that drew the decoys of `--audit`, so the audit judged itself by mismatched pairs. The rows "
                "with the audit therefore measure something else; the other rows and their differences stand."
            )
        )
    for run in runs:
        values, table = run
        measure = table.metrics[0]
        unit = "%" if measure.unit.startswith("share") else measure.unit
        lacking = f" {values['lacking']} trainings are missing." if values["lacking"] else ""
        parts += [paragraph(f"{run.scale} {measure.title}, {unit}.{lacking}"), means_table(table, measure)]
        parts += [*epoch_tables_markdown(table, measure), *_information(table, measure)]
        if table.trials:
            parts.append(_search(table))
        parts.append(f"```sh\n{in_lines(values['command'])}\n```")
    claims = []
    for number in range(len(runs[0].values["verdicts"])):
        told = [(run, run.values["verdicts"][number]) for run in runs]
        told = [(run, verdict) for run, verdict in told if verdict["found"]] or told  # a run of few rows judges few
        named = f'<a id="{anchor(name, number)}"></a>{claim(name, number)}'
        for place, (run, verdict) in enumerate(told):
            claims.append(["" if place else named, f"{run.name}: **{verdict['verdict']}**", verdict["why"]])
    return [*parts, *([words_table(["claim", "verdict", "why"], claims)] if claims else [])]


def _information(table: Comparison, measure: Metric) -> list[str]:
    """Return what two views tell of one another beside what the features are worth, where the bound was measured."""
    parts = []
    for bound in (one for one in table.metrics if one.key == "mutual_information"):
        for column in table.columns:
            found = [(row, *(table.entry(row, column, one.key) for one in (bound, measure))) for row in table.rows]
            known = [(row, of, worth) for row, of, worth in found if of and worth and of.mean is not None]
            if len(known) < 3:
                continue
            told = spearmanr([of.mean for _, of, _ in known], [worth.mean for _, _, worth in known])
            went = "better" if told.statistic > 0 else "worse"
            sign = f"came with {went} features" if told.pvalue < 0.05 else "was no sign of better features"
            parts.append(
                paragraph(
                    f"A larger bound of the mutual information {sign}. The table shows the bound for the first two "
                    "views, in nats, beside the same measure. Over these "
                    f"{len(known)} rows their rank correlation is {told.statistic:+.2f} (Spearman; p = "
                    f"{told.pvalue:.2g})."
                )
            )
            rows = [[row, format_mean(bound, of), format_mean(measure, worth)] for row, of, worth in known]
            parts.append(markdown_table(["objective", "bound", measure.title], rows))
    return parts


def _search(table: Comparison) -> str:
    """Say what was searched, what was tried, and what was chosen."""
    spaces = "\n".join(f"- {told}" for told in table.search_sentences)
    own = {(one["row"], one["column"]): one["value"] for one in table.trials if one["trial"] == 0}
    chosen = [one for one in table.trials if one["chosen"]]
    rows = [
        [*(one[key] for key in ("row", "column", "settings", "value")), own[one["row"], one["column"]]]
        for one in chosen
    ]
    head = ["searched", "on", "chosen", "on validation items", "its own settings"]
    what = f"""These settings were searched, with seed 0, on a part of the training items. Of the {len(table.trials)}
        trials the table shows those that were chosen, beside what the settings that an objective has by itself reached
        on the same items; all of them are in `{Path(*table.folder.parts[-4:])}`."""
    return f"{paragraph(what)}\n\n{spaces}\n\n{words_table(head, rows)}"


def in_lines(command: str, width: int = 100) -> str:
    """Return a command in lines that a page has room for, as a shell reads it; no word is divided.

    >>> print(in_lines("compare --settings 'all four styles' plain", width=30))
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
    """Return a table in Markdown whose columns all hold words."""
    return markdown_table(head, rows, words=True)


def paragraph(words: str) -> str:
    """Return words in lines of the usual length."""
    return textwrap.fill(" ".join(words.split()), 120, break_on_hyphens=False)
