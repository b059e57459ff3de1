"""Writes docs/choosing.md and docs/evidence.md from the recommendations and the verdicts of the suites."""

from __future__ import annotations

import re
from collections import Counter

from suites import Measured, anchor, claim, measured, paragraph, together, verdicts_on, words_table

from contraport.catalog.recommendations import USE_CASES, Evidence, Recommendation
from contraport.comparison.seed_results import HELD, NOT_HELD, PARTLY, UNDECIDED
from contraport.comparison.suites import load_suite

EXAMPLE = "contraport compare --data photos/ --objectives nt-xent,gca-ince,gca-uot --tune 8 --seeds 3"
CERTAINTY = {HELD: "gain measured", PARTLY: "gain in part", NOT_HELD: "no gain here", UNDECIDED: "not decided here"}


def choosing() -> str:
    """Return the page on where to start, one screen."""
    runs = measured()
    rows = [
        [case.name, case.start, f"[{_certainty(case.basis, runs)}](evidence.md#{_slug(case.name)})"]
        for case in USE_CASES
    ]
    parts = [
        "# What to choose",
        "Written by `make docs` from the recommendations and the measured suites; do not edit.",
        words_table(["you have", "start from", "how certain"], rows),
        paragraph(
            "*Gain measured*: better than its baseline on small images, tables or texts, with an interval that "
            "excludes zero. *Not decided here*: the difference is smaller than its interval at this size. Each entry "
            "links to the claims behind it. `contraport list objectives` has the same advice per objective."
        ),
        "Results on small data may not carry over. Compare on your own data before you choose:",
        f"```sh\n{EXAMPLE}\n```",
    ]
    return "\n\n".join(parts) + "\n"


def evidence() -> str:
    """Return the page of all recommendations and claims with their verdicts."""
    runs = measured()
    parts = [
        "# Evidence",
        "Written by `make docs` from what `contraport compare` measured; do not edit.",
        paragraph(
            "Each recommendation is followed by the claims behind it, their verdicts, and links to the tables. The "
            "encoders and the data are small and the runs short: an undecided claim is no argument against a method."
        ),
    ]
    for case in USE_CASES:
        parts.append(f"## {case.name[0].upper()}{case.name[1:]}")
        parts += [_with_claims(one, runs) for one in case.recommendations]
    claims, counts = [], Counter[str]()
    for name, of_suite in runs.items():
        for number in range(len(load_suite(name)["claims"])):
            on_each = [run.values["verdicts"][number] for run in of_suite if number < len(run.values["verdicts"])]
            verdict = together([one["verdict"] for one in on_each if one["found"]])
            counts[verdict] += 1
            claims.append([f"[{claim(name, number)}](results.md#{anchor(name, number)})", name, f"**{verdict}**"])
    sizes = "\n".join(f"- `{name}`, {run.scale}" for name, of_suite in runs.items() for run in of_suite)
    parts += [
        "## All claims",
        paragraph(
            f"Of {len(claims)} claims, {counts[HELD]} held, {counts[PARTLY]} held in part, {counts[NOT_HELD]} did not "
            f"hold, {counts[UNDECIDED]} are not decided at this size and {counts[together([])]} were not measured."
        ),
        words_table(["claim", "suite", "verdict"], claims),
        "The suites ran on:",
        sizes,
    ]
    return "\n\n".join(parts) + "\n"


def _certainty(basis: tuple[Evidence, ...], runs: dict[str, list[Measured]]) -> str:
    if not basis:
        return "the baseline"
    verdicts = [
        run.values["verdicts"][one.number]["verdict"]
        for one in basis
        for run in runs.get(one.suite, ())
        if run.values["verdicts"][one.number]["found"]
    ]
    return CERTAINTY.get(together(verdicts), "not measured")


def _with_claims(one: Recommendation, runs: dict[str, list[Measured]]) -> str:
    """Return a recommendation with a list of its claims, each with its verdict."""
    lines = [one.says]
    for item in one.evidence:
        if item.suite not in runs:
            lines.append(f"- Suite `{item.suite}`: not run.")
            continue
        link = f"[{claim(*item).rstrip('.')}](results.md#{anchor(*item)})"
        lines.append(f"- {link}: {verdicts_on(runs[item.suite], item.number)}.")
    return "\n".join([lines[0], "", *lines[1:]]) if one.evidence else lines[0]


def _slug(title: str) -> str:
    """Return the anchor of a heading.

    >>> _slug("pairs, some of them wrong")
    'pairs-some-of-them-wrong'
    """
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
