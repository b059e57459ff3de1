"""Writes docs/coupling-results.md from the results of benchmarks/coupling.py."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from audit import mean_interval
from results import paragraph, table

MEASURED = Path(__file__).parents[1] / "benchmarks" / "results" / "coupling.json"
LOG_Q, ONE_WAY, OTHERS_NEGATIVE = "two towers, log-q", "two towers", "two towers, partners as negatives"
PLAIN, BALANCED, UNBALANCED = "InfoNCE", "InfoNCE, balanced", "InfoNCE, unbalanced"
POPULAR, LIGHTFM = "most popular", "LightFM with words"
PACKAGES = {
    POPULAR: "most popular columns",
    "implicit ALS": "ALS (implicit)",
    "implicit BPR": "BPR (implicit)",
    "LightFM": "LightFM",
    LIGHTFM: "LightFM with words",
    ONE_WAY: "one direction",
    LOG_Q: "one direction, `--log_q`",
    OTHERS_NEGATIVE: "one direction, `--target pairs`",
    PLAIN: "both directions",
    UNBALANCED: "both, unbalanced plan",
    BALANCED: "both, balanced plan",
}
"""Methods on packages, with their names on the page."""

RECALL, WITH_PRIOR, POPULARITY = "recall@10", "recall@10 with prior", "popularity@10"
COLUMNS = {
    RECALL: "recall@10",
    WITH_PRIOR: "with prior",
    "NDCG@10": "NDCG@10",
    "new rows": "new rows",
    "coverage@10": "coverage",
    "hubness@10": "hubness",
    POPULARITY: "popularity",
}
LEVELS = "0.4", "0.5", "0.55"
"""Recalls at which popularity is shown."""

Interval = Sequence[float]
Draws = dict[str, list[dict[str, float]]]


def couplings() -> str:
    """Return the page of what was measured on couplings."""
    results = json.loads(MEASURED.read_text())
    return f"""# Measurements of couplings

Measured by `python -m benchmarks.coupling`. How to use couplings is in
[their guide](guides/couplings.md). All values are in `benchmarks/results/{MEASURED.name}`. ± and ranges are 95 %
intervals, bold where they exclude zero.

{packages(results["packages"])}
"""


def packages(part: dict[str, Any]) -> str:
    """Return the section of dependencies between packages."""
    draws, levels, sizes = part["draws"], part["popularity at recall"], part["sizes"]
    names = [name for name in PACKAGES if name in draws]
    rows = [[PACKAGES[name], *(f"{mean(draws[name], key):.3f}" for key in COLUMNS)] for name in names]
    at_levels = [
        [PACKAGES[name], *(f"{mean(levels[name], level):.3f}" for level in LEVELS)]
        for name in names
        if all(level in one for one in levels[name] for level in LEVELS)
    ]
    size = {key: round(statistics.mean(one[key] for one in sizes), -1) for key in sizes[0]}
    return "\n\n".join([
        "## Packages: which depends on which",
        paragraph(
            f"Rows are {size['rows']:,.0f} Debian packages, columns the {size['columns']:.0f} packages that at least "
            f"three of them depend on; {size['training']:,.0f} dependencies to train on, {size['test']:,.0f} held out: "
            "a fifth of all, and all of a twentieth of the source packages (*new rows* are packages without a training "
            "pair). The encoders see the name and the one-line description as 128 numbers, LightFM the words "
            "themselves. Tags are left out, because some are derived from dependencies; of packages that depend on "
            f"each other neither pair is used. Means of {len(sizes)} draws of packages. Settings were chosen by recall "
            f"on a further draw, of {part['tried'][LIGHTFM]} for LightFM and {part['tried'][PLAIN]} for each encoder."
        ),
        table(["method", *COLUMNS.values()], rows),
        paragraph(
            "*With prior*: a multiple of the logarithm of a column's number of training pairs is added to its scores; "
            "the multiple was chosen on the same further draw. *Popularity* and *hubness* are those of the [guide]"
            "(guides/couplings.md). A batch contains a column in proportion to its pairs, so the balanced plan "
            "prescribes popularity as the marginal of the columns."
        ),
        paragraph(
            "Popularity at equal recall: such a prior moves each method along a curve of recall and popularity. "
            "The least popularity at which a recall is reached (lower is better):"
        ),
        table(["method", *(f"at recall {float(level):.2f}" for level in LEVELS)], at_levels),
        "\n".join(package_answers(draws, levels)),
    ])  # fmt: skip


def package_answers(draws: Draws, levels: Draws) -> list[str]:
    """Return an answer to each question on packages, with its numbers."""

    def compare(name: str, base: str, *keys: str) -> str:
        return ", ".join(f"{COLUMNS.get(key, key)} {difference(draws, name, base, key)}" for key in keys)

    lower = [f"{difference(levels, BALANCED, base, level)}" for base in (PLAIN, LIGHTFM) for level in LEVELS]
    at = ", ".join(f"{float(level):.2f}" for level in LEVELS)
    return [
        bullet(f"**Does `--log_q` help?** {yes(draws, LOG_Q, ONE_WAY, RECALL)}, if columns are ranked by the cosine: "
               f"{compare(LOG_Q, ONE_WAY, RECALL, 'NDCG@10', 'new rows', POPULARITY)}. With a prior added to both: "
               f"{difference(draws, LOG_Q, ONE_WAY, WITH_PRIOR)}."),
        bullet(f"**Does a balanced plan lower popularity at equal recall?** {yes(levels, PLAIN, BALANCED, '0.5')}: "
               f"compared with InfoNCE without it, at recalls of {at}: {', '.join(lower[:3])}; with LightFM with "
               f"words: {', '.join(lower[3:])}. Its recall by cosine: {difference(draws, BALANCED, PLAIN, RECALL)}; "
               f"with a prior: {difference(draws, BALANCED, PLAIN, WITH_PRIOR)}."),
        bullet(f"**Against LightFM with words?** `--log_q`: {compare(LOG_Q, LIGHTFM, RECALL, 'NDCG@10', 'new rows')}. "
               f"The balanced plan, both with a prior: {difference(draws, BALANCED, LIGHTFM, WITH_PRIOR)}."),
        bullet(f"**Does an unbalanced plan help?** {yes(draws, UNBALANCED, PLAIN, RECALL)}, if columns are ranked by "
               f"the cosine: {compare(UNBALANCED, PLAIN, RECALL, 'NDCG@10', 'new rows', POPULARITY)}. With a prior: "
               f"{difference(draws, UNBALANCED, PLAIN, WITH_PRIOR)}."),
        bullet(f"**What did not help?** `--log_q` or an unbalanced plan, if a prior is added anyway. To leave known "
               f"partners out of the negatives, compared with `--target pairs`: "
               f"{compare(ONE_WAY, OTHERS_NEGATIVE, RECALL, 'NDCG@10', WITH_PRIOR)}."),
    ]  # fmt: skip


def bullet(words: str) -> str:
    """Return a wrapped item of a list."""
    return paragraph(f"- {words}").replace("\n", "\n  ")


def mean(values: list[dict[str, float]], key: str) -> float:
    """Return the mean of a measure over draws."""
    return statistics.mean(one[key] for one in values)


def interval(values: Draws, name: str, base: str, key: str) -> Interval:
    """Return the 95 % interval of the mean difference of two methods over draws."""
    return mean_interval([one[key] - other[key] for one, other in zip(values[name], values[base], strict=True)])


def difference(values: Draws, name: str, base: str, key: str) -> str:
    """Return the mean difference of two methods over draws with its interval."""
    low, high = interval(values, name, base, key)
    text = f"{(low + high) / 2:+.3f} ± {(high - low) / 2:.3f}"
    return f"**{text}**" if low * high > 0 else text


def yes(values: Draws, name: str, base: str, key: str) -> str:
    """Return whether a method is above another."""
    low, high = interval(values, name, base, key)
    return "Yes" if low > 0 else "No" if high < 0 else "Not decided"
