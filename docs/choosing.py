"""Write docs/choosing.md from the table in contraport.catalog.recommendations and what the suites found, for `make
docs`.
"""

from __future__ import annotations

from collections import Counter

from suites import RUN_AGAIN, anchor, claim, measured, paragraph, together, verdicts_on, words_table

from contraport.catalog.recommendations import USE_CASES, Recommendation
from contraport.comparison.seed_results import HELD, NOT_HELD, PARTLY, UNDECIDED
from contraport.comparison.suites import load_suite

EXAMPLE = "contraport compare --data photos/ --objectives nt-xent,gca-ince,gca-uot --tune 8 --seeds 3"


def choosing() -> str:
    """Return the page on what to use when."""
    found = measured()

    def behind(one: Recommendation) -> str:
        """Return the claims that a sentence rests on, each with its verdict and a link to its row."""
        told = []
        for evidence in one.evidence:
            if evidence.suite not in found:
                told.append(f"suite `{evidence.suite}`: not run")
                continue
            runs = found[evidence.suite]
            says = claim(*evidence).rstrip(".")
            again = " (to be run again)" if evidence.suite in RUN_AGAIN else ""
            told.append(f"[{says}](results.md#{anchor(*evidence)}): {verdicts_on(runs, evidence.number)}{again}")
        return "; ".join(dict.fromkeys(told)) or "not measured here"

    rows = [
        [situation.name if number == 0 else "", one.text, behind(one)]
        for situation in USE_CASES
        for number, one in enumerate(situation.recommendations)
    ]
    claims, counts = [], Counter[str]()
    for name, runs in found.items():
        for number in range(len(runs[0].values["verdicts"])):
            link = f"[{claim(name, number)}](results.md#{anchor(name, number)})"
            claims.append([link, load_suite(name)["title"], verdicts_on(runs, number)])
            measured_on = [run.values["verdicts"][number] for run in runs]
            counts[together([verdict["verdict"] for verdict in measured_on if verdict["found"]])] += 1
    lacking = counts[together([])]
    sizes = "\n".join(f"- `{name}`, {run.scale}" for name, runs in found.items() for run in runs)
    parts = [
        "# What to choose",
        "Written by `make docs` from what `contraport compare` measured; do not edit.",
        paragraph(
            "Each piece of advice is shown with the claims behind it, their verdicts here, and links to the rows of "
            "the results. The encoders and the data are small, and the runs are short. So an undecided claim is no "
            "reason against a method, and a claim that held, or did not hold, may turn out differently at a larger "
            "size. Before you choose, compare on your own data:"
        ),
        f"```sh\n{EXAMPLE}\n```",
        words_table(["you have", "what to do", "what was found"], rows),
        "## The claims",
        paragraph(
            f"Of {len(claims)} claims, {counts[HELD]} held, {counts[PARTLY]} held in part, {counts[NOT_HELD]} did "
            f"not hold, {counts[UNDECIDED]} are not decided at this size"
            f"{f', {lacking} were not measured' * bool(lacking)}. Where it was computed, the tables show how many "
            "seeds would decide a claim. The claims were tested on:"
        ),
        sizes,
        words_table(["claim", "of", "verdict"], claims),
    ]
    return "\n\n".join(parts) + "\n"
