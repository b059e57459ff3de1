"""Writes docs/choosing.md and docs/claims.md from recommendations and verdicts of the suites."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from suites import Measured, anchor, claim, measured, paragraph, together, verdict_on, words_table

from contraport._utils.files import format_csv
from contraport.catalog.recommendations import USE_CASES, ClaimReference, Recommendation
from contraport.comparison.grid_builder import load_suite, suite_paths_by_name
from contraport.comparison.statistics_and_verdicts import HELD, NOT_HELD, PARTLY, UNDECIDED

EXAMPLE = "contraport compare --data photos/ --objectives nt-xent,gca-ince,gca-uot --tune 8 --seeds 3"
CLAIMS = Path(__file__).parents[1] / "benchmarks" / "results" / "claims.csv"
COMMANDS = (
    ("a folder of images", "contraport train --data photos/ --encoder lite0 --freeze", "guides/photos.md"),
    (
        "two descriptions of the same things, in one table",
        """contraport train --data sensors.csv --columns.views '["lidar_*", "radar_*"]' --recipe clip""",
        "guides/tables.md",
    ),
    ("pairs, some of them wrong", "contraport audit --data pairs.csv --out audits/pairs", "audit.md"),
    (
        "pairs of texts",
        "contraport train --data pairs.csv --objective info-nce --temperature 0.05 --projection 0",
        "guides/texts.md",
    ),
    ("images with captions", "contraport train --data captions.csv --recipe clip", "guides/captions.md"),
    ("time series", "contraport train --data series.npy", "guides/time-series.md"),
    (
        "two sets, and which belong together",
        "contraport train --data shop/ --objective info-nce --shared_encoder false",
        "guides/couplings.md",
    ),
    ("three or more views", "contraport train --data views.npz --recipe cmc", "guides/many-views.md"),
    ("a training loop", "contraport.nt_xent(temperature=0.2)(z0, z1).backward()", "guides/own-loop.md"),
    ("two sets of points", 'contraport.transport(x, y, contraport.Gibbs("sqeuclidean", 5.0))', "transport.md"),
)
"""What one has, what to type, and the guide."""

CERTAINTY = {HELD: "gain measured", PARTLY: "gain in part", NOT_HELD: "no gain here", UNDECIDED: "not decided here"}


def choosing() -> str:
    """Return the page on where to start: a command by what one has, an objective by case, and the evidence."""
    runs = measured()
    cases = [
        [case.name, case.starting_point_markdown, f"[{_certainty(case.evidence, runs)}](#{_slug(case.name)})"]
        for case in USE_CASES
    ]
    parts = [
        "# What to choose",
        words_table(["you have", "type"], [[f"[{have}]({page})", f"`{command}`"] for have, command, page in COMMANDS]),
        "Every other option has a default. `contraport advise DATA` prints the command for your data, and why.",
        "## Which objective",
        words_table(["you have", "start from", "how certain"], cases),
        paragraph(
            "*Gain measured*: better than its baseline on small images, tables or texts, with an interval that "
            "excludes zero. *Not decided here*: the difference is smaller than its interval at this size, which is no "
            "argument against a method. Results on small data may not carry over: compare on your own data."
        ),
        f"```sh\n{EXAMPLE}\n```",
        paragraph(
            "Below, each recommendation with the [claims](claims.md) that were tested and their "
            "[verdicts](evaluating.md#comparing): a claim that did not hold may support its recommendation. "
            "`contraport list objectives` has the same advice per objective."
        ),
    ]
    for case in USE_CASES:
        parts.append(f"## {case.name[0].upper()}{case.name[1:]}")
        parts.append("\n".join(_with_claims(one, runs) for one in case.recommendations))
    return "\n\n".join(parts) + "\n"


def claims() -> str:
    """Return the page of all claims with their verdicts, by suite, and write their differences as CSV."""
    runs = measured()
    sections, counts = [], Counter[str]()
    for name in suite_paths_by_name():
        suite = load_suite(name)
        lines = [f"## {name}", "", f"{suite['title']}.", ""]
        for number in range(len(suite.get("claims", ()))):
            verdict = verdict_on(runs, name, number)
            counts[verdict] += 1
            lines.append(f'{number + 1}. <a id="{anchor(name, number)}"></a>{claim(name, number)} *{verdict}*')
        if suite.get("claims"):
            sections.append("\n".join(lines))
    _write_claims(runs)
    parts = [
        "# Claims",
        paragraph(
            f"Of {counts.total()} claims of the [suites](evaluating.md#comparing), {counts[HELD]} held, "
            f"{counts[PARTLY]} held in part, {counts[NOT_HELD]} did not hold, {counts[UNDECIDED]} are not decided at "
            f"this size and {counts[together([])]} were not measured. A claim *held* if its interval excludes zero in "
            "some setting and in the wrong direction in none, *in part* if in both directions, or if it held on "
            "some data and did not on others; it *did not hold* if only in the wrong direction, or if a gain of one "
            "point can be excluded everywhere; else it is *not decided*. A claim on every setting must hold in each. "
            "INCE is NT-Xent, or InfoNCE in the cross layout; fou-kar, zer-kar and fac-kar are pairs of UCI's feature "
            "sets. Differences and intervals per data set are in "
            "`benchmarks/results/claims.csv`."
        ),
        *sections,
    ]
    return "\n\n".join(parts) + "\n"


def _write_claims(runs: dict[str, list[Measured]]) -> None:
    """Write each claim on each data with its difference and interval, as CSV."""
    rows = [
        (name, number + 1, claim(name, number), run.name, run.values["verdicts"][number]["verdict"], verdict["why"])
        for name, of_suite in runs.items()
        for run in of_suite
        for number, verdict in enumerate(run.values["verdicts"])
        if verdict["found"]
    ]
    CLAIMS.write_text(format_csv(("suite", "number", "claim", "data", "verdict", "difference"), rows))


def _certainty(evidence: tuple[ClaimReference, ...], runs: dict[str, list[Measured]]) -> str:
    if not evidence:
        return "the baseline"
    verdicts = [verdict_on(runs, *item) for item in evidence]
    return CERTAINTY.get(together(verdicts), "not measured")


def _with_claims(one: Recommendation, runs: dict[str, list[Measured]]) -> str:
    """Return a recommendation with its claims, grouped by verdict and linked to the page of claims."""
    by_verdict: dict[str, list[str]] = {}
    for item in one.evidence:
        link = f"[{item.suite} {item.claim_index + 1}](claims.md#{anchor(*item)})"
        by_verdict.setdefault(verdict_on(runs, *item), []).append(link)
    if len(one.evidence) == 1:
        ((verdict, links),) = by_verdict.items()
        return f'- {one.text_markdown} Claim: "{claim(*one.evidence[0]).rstrip(".")}": *{verdict}* ({links[0]}).'
    parts = (
        f"that {'are ' * (verdict == UNDECIDED)}*{verdict}*: {', '.join(links)}"
        for verdict, links in by_verdict.items()
    )
    return f"- {one.text_markdown} Claims {'; '.join(parts)}."


def _slug(title: str) -> str:
    """Return the anchor of a heading.

    >>> _slug("pairs, some of them wrong")
    'pairs-some-of-them-wrong'
    """
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
