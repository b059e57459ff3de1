"""Write the generated pages of the documentation: ``make docs``.

Each page has a module of its own, which reads the results of the benchmarks, examples, suites or fuzz tests, or a
registry of the package. `methods.md` is the catalog as a table, written here; its last column is the largest difference
to the dense double-precision versions in tests/objectives/formulas.py, over all settings and backends, of value and
gradient.
"""

from __future__ import annotations

import argparse
import inspect
import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from audit import audit, audit_results, audit_trainings
from choosing import choosing, claims, evidence
from couplings import couplings
from evaluating import evaluating
from papers import papers
from reliability import reliability
from results import accuracy, results

import contraport
from contraport.catalog import OBJECTIVES
from contraport.objectives import Loss

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "objectives"))
sys.path.insert(0, str(ROOT))

# Other implementations that each method is compared with in tests/objectives, besides its dense formula.
PEERS = {
    "info-nce": "torch cross-entropy",
    "nt-xent": "pytorch-metric-learning, lightly",
    "sup-con": "pytorch-metric-learning",
    "gca-ince": "POT sinkhorn_log",
    "gca-uot": "POT sinkhorn_unbalanced",
    "byol": "lightly",
    "iot": "nt-xent (rows)",
    "iot-quadratic": "POT smooth, proj_simplex",
    "pairwise": "pytorch-metric-learning triplet",
    "alpha-cl": "gradient of pairwise info_nce",
    "direct-clr": "lightly",
    "t-simclr": "scikit-learn t-SNE",
    "rince": "q -> 0 expansion",
    "sigmoid": "open_clip",
    "dcl": "lightly",
    "dclw": "lightly",
    "gte": "sentence-transformers",
    "mv-dhel": "dhel (two views)",
    "debiased": "nt-xent (no prior)",
    "cosent": "sentence-transformers",
    "angle": "sentence-transformers",
    "barlow-twins": "lightly",
    "vic-reg": "lightly",
}
BACKENDS = ("dense", "stored", "streamed")


def main(argv: Sequence[str] | None = None) -> None:
    """Write the generated pages, all or those that are named."""
    pages = {
        "methods": methods,
        "results": results,
        "accuracy": accuracy,
        "reliability": reliability,
        "evaluating": evaluating,
        "audit": audit,
        "audit-results": audit_results,
        "audit-trainings": audit_trainings,
        "coupling-results": couplings,
        "choosing": choosing,
        "evidence": evidence,
        "claims": claims,
        "papers": papers,
    }
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", metavar="PAGE", help=f"of {', '.join(pages)}; default: all of them.")
    chosen = parser.parse_args(argv).pages
    if unknown := [name for name in chosen if name not in pages]:
        parser.error(f"PAGE: expected one of {', '.join(pages)}, got {unknown[0]}")
    for name in chosen or pages:
        (ROOT / "docs" / f"{name}.md").write_text(pages[name]())
        print(f"written: docs/{name}.md")


def methods() -> str:
    """Return the page of methods."""
    from tests.objectives.test_formulas import CASES

    settings: dict[str, list[dict[str, object]]] = {name: [] for name in OBJECTIVES}
    for name, chosen in CASES:
        settings[name].append(chosen)
    lines = [
        "# Methods",
        "",
        "Generated from the catalog by `make docs`; do not edit. Every method is a recipe that answers five questions:",
        "which pairs are compared (layout), how similar two embeddings are (kernel), which plans are allowed",
        "(constraint), which plan is wanted (target), and how far the plan is from the target (divergence).",
        "",
        "| method | layout | kernel | constraint | target | divergence | difference, peer |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in OBJECTIVES:
        loss = contraport.objective(name)
        difference = largest_difference(name, settings[name] or [{}])
        peer = f", {PEERS[name]}" if name in PEERS else ""
        cells = [f"[{name}](#{name})", *format_parts(loss), f"{10 ** math.ceil(math.log10(difference)):.0e}{peer}"]
        lines.append("| " + " | ".join(cells) + " |")
    lines += [
        "",
        "The last column is the largest relative difference, rounded up to a power of ten, in values and gradients,",
        "from a dense version in double precision written from the paper, over all backends and settings of",
        "`tests/objectives/test_formulas.py`, on 7 items; then other libraries and calculations that tests compare the",
        "method with.",
        "",
        "Temperatures differ between libraries: NT-Xent's is 0.5 in SimCLR and lightly, 0.1 in solo-learn, 0.07 in",
        "pytorch-metric-learning and MoCo, 0.05 in sentence-transformers. Ours are in the signatures below;",
        'there `TemperatureLike` is a number, `"learn"` or a tensor of one element ([calls.md](calls.md#temperature)).',
        "",
    ]
    for name, recipe in OBJECTIVES.items():
        lines += [f"## {name}", "", recipe.summary, "", f"$${recipe.formula}$$", ""]
        signature = re.sub(r": '([^']*)'", r": \1", str(inspect.signature(recipe.build)).split(" -> ")[0])
        lines += [
            "```text",
            f"contraport.{recipe.build.__name__}{signature}",
            "```",
            "",
            f"Source: {recipe.citation}",
            "",
        ]
    return "\n".join(lines)


def format_parts(loss: Loss) -> list[str]:
    """Return the five parts of a loss as code: layout, kernel, constraint, target and divergence."""
    columns: list[list[str]] = [[] for _ in range(5)]
    given = loss.describe_components().items()
    for k, answer in enumerate(value for question, value in given if "Penalty" not in question):
        if f"`{answer}`" not in columns[k % 5]:
            columns[k % 5].append(f"`{answer}`")
    columns[4] += [f"{question.split(' ')[-1]} x `{value}`" for question, value in given if "Penalty" in question]
    return ["; ".join(column).replace("|", "\\|") for column in columns]


def largest_difference(name: str, settings: list[dict[str, object]]) -> float:
    """Return the largest relative difference, of value and gradient, over settings and backends."""
    from tests.objectives.test_formulas import build, by_formula, needed, outcome, views

    contraport.engine.backends.tiled.TILE = 4, 8
    known = needed(name)
    worst = 0.0
    for chosen in settings:
        z = views(k=3 if name in {"cmc", "mv-dhel"} else 2)
        theirs = outcome(lambda *v, chosen=chosen: by_formula(name, *v, **chosen, **known), *z)
        for backend in BACKENDS:
            loss = build(name, **chosen)
            with contraport.engine.backend(backend):
                ours = outcome(lambda *v, loss=loss: loss(*v, **known), *z)
            largest = max(float(slope.abs().max()) for slope in theirs[1])
            value = float((ours[0] - theirs[0]).abs() / theirs[0].abs().clamp_min(1))
            slopes = [float((a - b).abs().max()) / max(largest, 1e-3) for a, b in zip(ours[1], theirs[1], strict=True)]
            worst = max(worst, value, *slopes)
    return worst


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
