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

SPLINK, NGRAMS, UNTRAINED = "Splink", "cosine of n-grams", "short-ngrams, untrained"
PERSONS = {
    SPLINK: "Splink",
    NGRAMS: "cosine of n-grams",
    UNTRAINED: "`short-ngrams`, untrained",
    PLAIN: "`short-ngrams`, trained",
    UNBALANCED: "trained, unbalanced plan",
    BALANCED: "trained, balanced plan",
}
"""Methods on persons, with their names on the page."""

NAMES, DIFFERENT = "name and suburb", "different fields"
ONLINE, FROZEN, ABOVE = "contraport audit", "contraport audit, frozen csls", "cosine of n-grams, above the best other"
AUDITS = {
    ONLINE: "`contraport audit`",
    FROZEN: "`--method frozen --statistic csls`",
    SPLINK: "Splink's match weight",
    NGRAMS: "cosine of n-grams",
    ABOVE: "cosine minus that of the best other partners",
}
"""Scores of links, with their names on the page."""

Interval = Sequence[float]
Draws = dict[str, list[dict[str, float]]]


def couplings() -> str:
    """Return the page of what was measured on couplings."""
    results = json.loads(MEASURED.read_text())
    return f"""# Measurements of couplings

Measured by `python -m benchmarks.coupling`. How to use couplings is in
[their guide](guides/couplings.md). All values are in `benchmarks/results/{MEASURED.name}`. ± and ranges are 95%
intervals, bold where they exclude zero.

{packages(results["packages"])}

{persons(drop_settings(results["persons"]))}

{wrong_links(drop_settings(results["audit"]))}
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


def drop_settings(part: dict[str, Any]) -> dict[str, Any]:
    """Return the results of each case, without the machine and the options of the script."""
    return {name: value for name, value in part.items() if name not in ("options", "machine")}


def persons(part: dict[str, Any]) -> str:
    """Return the section of records that belong to one person."""
    measured = {task: of_task["measured"] for task, of_task in part.items()}
    names = [name for name in PERSONS if name in measured[NAMES]]
    keys = ("recall@1", "recall@10", "hubness@10")
    rows = [
        [PERSONS[name], *(f"{mean(measured[task][name], key):.3f}" for task in (NAMES, DIFFERENT) for key in keys)]
        for name in names
    ]
    size, blocked = (
        part[NAMES]["sizes"],
        [part[task]["links among Splink's blocked pairs"] for task in (NAMES, DIFFERENT)],
    )
    lowest = min(mean(values, "recall@1") for values in measured["all fields"].values())
    heads = [f"{key}, {task}" for task in ("names", "different") for key in ("recall@1", "@10", "hubness")]
    return "\n\n".join([
        "## Persons: which records are of one person",
        paragraph(
            f"Rows are {size['rows']:,} persons of FEBRL's data set 4, columns their copies with typing errors; "
            f"{size['training']:,} links to train on, {size['test']:,} held out, so that both records of a held-out "
            "link are new. Three tasks: all fields; names and suburb alone; and different fields on both sides, name, "
            "suburb and date of birth against surname, address, suburb and postcode. Splink compares the fields that "
            "both sides have, and is trained on the same links; the others see each record as one text. Settings were "
            "chosen on a fifth of the training links. Intervals are paired bootstraps over held-out links, of the mean "
            f"of {len(measured[NAMES][PLAIN])} training runs; each objective has its own temperature."
        ),
        paragraph(f"With all fields, the lowest recall@1 of any method was {lowest:.3f}. The other two tasks:"),
        table(["method", *heads], rows),
        "\n".join([
            bullet(f"**Does training help?** {person_verdict(part, PLAIN, UNTRAINED)}"),
            bullet(f"**Against tuned cosines of n-grams?** {person_verdict(part, PLAIN, NGRAMS)}"),
            bullet(f"**Against Splink?** {person_verdict(part, PLAIN, SPLINK)} Splink's blocking keeps "
                   f"{100 * blocked[0]:.1f} and {100 * blocked[1]:.1f}% of the links."),
            bullet(f"**Does a balanced plan help?** {person_verdict(part, BALANCED, PLAIN)}"),
            bullet(f"**Does an unbalanced plan help?** {person_verdict(part, UNBALANCED, PLAIN)}"),
        ]),
    ])  # fmt: skip


def person_verdict(part: dict[str, Any], name: str, base: str) -> str:
    """Return whether a method is above another on both tasks, with the differences of recall@1."""
    answers = []
    for task in (NAMES, DIFFERENT):
        gain, low, high = part[task]["differences"][f"{name} - {base}"]["recall@1"]
        word = "yes" if low > 0 else "no" if high < 0 else "not decided"
        answers.append(f"{'Names' if task == NAMES else 'Different fields'}: {word}, {format_gain(gain, low, high)}.")
    return " ".join(answers)


def format_gain(gain: float, low: float, high: float) -> str:
    """Format a difference with its interval, bold if that excludes zero."""
    text = f"{gain:+.4f} ({low:+.4f} to {high:+.4f})"
    return f"**{text}**" if low * high > 0 else text


def wrong_links(cases: dict[str, Any]) -> str:
    """Return the section of audits of links between persons."""
    names = [name for name in AUDITS if name in next(iter(cases.values()))["AUROC"]]
    rows = [[AUDITS[name], *(f"{statistics.mean(case['AUROC'][name]):.3f}" for case in cases.values())]
            for name in names]  # fmt: skip
    rates = [
        [label, *(" / ".join(f"{100 * statistics.mean(one[key] for one in case['flagged'][name]):.1f}"
                             for key in ("rate", "found", "wrong of flagged")) for case in cases.values())]
        for name, label in AUDITS.items() if name in (ONLINE, FROZEN)
    ]  # fmt: skip
    seeds, links = len(next(iter(cases.values()))["flagged"][ONLINE]), next(iter(cases.values()))["links"]
    return "\n\n".join([
        "## Wrong links between persons",
        paragraph(
            f"The {links:,} training links of the task of different fields, of which 5, 10 or 20% have exchanged "
            "their columns in twos: at random, or with the most similar free record, as a confusion of two persons "
            f"would. AUROC of right above wrong links, means of {seeds} draws. `contraport audit` has its defaults, "
            "with the encoder `short-ngrams`; `frozen` scores the vectors of this encoder before training. Settings of "
            "the three baselines are the best *by the truth*, and Splink is trained on the links that are audited."
        ),
        table(["score", *cases], rows),
        "Estimated share / share of the wrong links that are flagged / share of wrong links among those flagged, in %:",
        table(["score", *cases], rates),
        "\n".join([*(bullet(audit_verdict(cases, name, base)) for name, base in
                     ((ONLINE, NGRAMS), (FROZEN, NGRAMS), (FROZEN, SPLINK), (FROZEN, ABOVE)))]),
    ])  # fmt: skip


def audit_verdict(cases: dict[str, Any], name: str, base: str) -> str:
    """Return in how many cases a score is above or below another, with the range of differences."""
    result = [case["differences"][f"{name} - {base}"] for case in cases.values()]
    above, below = sum(low > 0 for _, low, _ in result), sum(high < 0 for *_, high in result)
    gains = [gain for gain, *_ in result]
    return (
        f"**{AUDITS[name]} against {AUDITS[base]}**: above in {above}, below in {below} of {len(result)} columns, with "
        f"differences from {min(gains):+.3f} to {max(gains):+.3f}."
    )


def bullet(words: str) -> str:
    """Return a wrapped item of a list."""
    return paragraph(f"- {words}").replace("\n", "\n  ")


def mean(values: list[dict[str, float]], key: str) -> float:
    """Return the mean of a measure over draws."""
    return statistics.mean(one[key] for one in values)


def interval(values: Draws, name: str, base: str, key: str) -> Interval:
    """Return the 95% interval of the mean difference of two methods over draws."""
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
