"""Writes docs/papers.md from benchmarks/papers.yaml and the verdicts of the suites, for `make docs`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from suites import Measured, anchor, measured, paragraph, together, verdict_on, words_table

from contraport.comparison.statistics_and_verdicts import HELD, NOT_HELD, PARTLY, UNDECIDED

PAPERS = Path(__file__).parents[1] / "benchmarks" / "papers.yaml"
ANSWERS = {HELD: "agrees", NOT_HELD: "disagrees", PARTLY: "agrees in part", UNDECIDED: "not decided"}


def read_papers() -> list[dict[str, Any]]:
    """Return the documents with their entries."""
    papers: list[dict[str, Any]] = yaml.safe_load(PAPERS.read_text())
    return papers


def papers() -> str:
    """Return the page of tables, figures and equations of the documents."""
    runs = measured()
    parts = [
        "# The papers, entry by entry",
        paragraph(
            "The library is built on five documents. This page lists their tables, figures and main equations: what "
            "each shows, how to redo it, and what came out here. Most experiments here use small images and short "
            "runs, so *not decided* means that the difference is smaller than its interval at this size."
        ),
    ]
    for paper in read_papers():
        rows = [_row(entry, runs) for entry in paper["entries"]]
        parts += [f"## {paper['paper']}", words_table(["entry", "shows", "answer", "here", "redo"], rows)]
    return "\n\n".join(parts) + "\n"


def _row(entry: dict[str, Any], runs: dict[str, list[Measured]]) -> list[str]:
    redo = [f"`{command.partition(' --out ')[0]}`" for command in entry.get("run", [])]
    redo += [f"`{entry['python']}`"] if "python" in entry else []
    answer, result = entry.get("answer", ""), entry.get("found", "")
    if "claims" in entry:
        answer, result = _describe_claims(entry["claims"], runs)
    return [entry["name"], entry["shows"], f"**{answer}**", result, "<br>".join(redo)]


def _describe_claims(claims: list[str], runs: dict[str, list[Measured]]) -> tuple[str, str]:
    """Return the combined verdict of the claims of an entry, and the verdict of each with a link to its row."""
    verdicts, links = [], []
    for claim in claims:
        suite, number = claim.split("/")
        verdict = verdict_on(runs, suite, int(number))
        verdicts.append(verdict)
        links.append(f"[{suite}, claim {int(number) + 1}](claims.md#{anchor(suite, int(number))}): {verdict}")
    return ANSWERS.get(together(verdicts), "not measured"), "; ".join(links)
