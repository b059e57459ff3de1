"""Write docs/choosing.md from the table in contraport.catalog.choosing and what the suites found, for `make docs`."""

from __future__ import annotations

from suites import anchor, measured, paragraph, scale

from contraport.catalog.choosing import SITUATIONS, Advice
from contraport.comparing.grid import read_suite
from contraport.comparing.results import markdown_table

EXAMPLE = "contraport compare --data photos/ --objectives nt-xent,gca-ince,gca-uot --tune 8 --seeds 3"


def choosing() -> str:
    """Return the page on what to use when."""
    found = measured()

    def behind(one: Advice) -> str:
        """Return the claims that a sentence rests on, each with its verdict and a link to its row."""
        told = []
        for evidence in one.evidence:
            if evidence.suite not in found:
                told.append(f"suite `{evidence.suite}`: not run")
                continue
            claim = found[evidence.suite][0]["verdicts"][evidence.number]
            link = f"results.md#{anchor(*evidence)}"
            told.append(f"[{claim['says'].rstrip('.')}]({link}): **{claim['verdict']}**")
        return "; ".join(dict.fromkeys(told)) or "not measured here"

    rows = [
        [situation.name if number == 0 else "", one.says, behind(one)]
        for situation in SITUATIONS
        for number, one in enumerate(situation.advice)
    ]
    claims = []
    for name, (values, _) in found.items():
        source = read_suite(name)["title"]
        for number, one in enumerate(values["verdicts"]):
            claims.append([f"[{one['says']}](results.md#{anchor(name, number)})", source, f"**{one['verdict']}**"])
    sizes = "\n".join(f"- `{name}`: {scale(values)}" for name, (values, _) in found.items())
    counts = {
        verdict: sum(row[2] == f"**{verdict}**" for row in claims)
        for verdict in ("held", "did not hold", "not decided at this size")
    }
    parts = [
        "# What to choose",
        "Written by `make docs` from what `contraport compare` measured; do not edit.",
        paragraph(
            "Each sentence stands beside the claims that it rests on, with what became of them here and a link to the "
            "row of the table. The encoders and the data are small, and the runs are short, so that little can be "
            "decided: what is not decided is no reason against a method, and what held need not hold for larger ones. "
            "Before you choose, compare on your own data:"
        ),
        f"```sh\n{EXAMPLE}\n```",
        words_table(["you have", "what to do", "what was found of it"], rows),
        "## The claims",
        paragraph(
            f"Of {len(claims)} claims {counts['held']} held, {counts['did not hold']} did not hold, and "
            f"{counts['not decided at this size']} are not decided at this size. They were tried on:"
        ),
        sizes,
        words_table(["claim", "of", "verdict"], claims),
    ]
    return "\n\n".join(parts) + "\n"


def words_table(head: list[str], rows: list[list[str]]) -> str:
    """Return a table in Markdown whose columns all hold words."""
    return markdown_table(head, rows).replace("---:", "---")
