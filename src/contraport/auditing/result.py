"""Result of an audit with scores, noise rate, flagged pairs and better partners."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from contraport._utils.files import write_csv, write_json
from contraport._utils.formatting import format_options, format_percent, pluralize
from contraport._utils.notebook_tables import format_html_rows
from contraport.auditing.pairs.mismatch_dropping_callback import (
    MAX_DROPPED_SHARE,
    MEMORIZATION_AUC_THRESHOLD,
    format_memorization_warning,
)
from contraport.auditing.pairs.noise_rate import (
    MIN_SEPARATION_AUC,
    estimate_pair_fdrs,
    estimate_separation_auc,
    is_rate_reliable,
)
from contraport.errors import check, is_integer, is_number
from contraport.options import keep_deprecated_attributes


@keep_deprecated_attributes(
    data="data_name",
    fdr="pair_fdrs",
    format_worst_rows="format_worst_pairs",
    mismatch_scores="known_mismatch_scores",
    rows="source_rows",
    statistic="statistic_name",
    summary="json_summary",
    table="to_columns",
)
@dataclass(frozen=True, eq=False)
class Audit:
    """Result of an audit of `n` pairs, displayed as a table in notebooks.

    Attributes:
        data_name: name of the audited data.
        method: scoring method: online, crossfit or frozen.
        statistic_name: name of the statistic that scored the pairs.
        scores: scores of the pairs, ``(n,)``; higher is better.
        known_mismatch_scores: scores of pairs that were mismatched on purpose, ``(m,)``.
        noise_rate: estimated share of wrong pairs, from 0 to 1; too high if not `is_rate_reliable`.
        noise_interval: 95% bootstrap interval of the noise rate, over pairs and mismatches but not over training runs.
        partners: item whose second view fits the first view of each pair better, int64 ``(n,)``; -1 if there is none.
        partner_scores: score of each pair with its better partner, ``(n,)``, by the last encoder alone; without a
            better partner, the score of the pair itself.
        notes: warnings about the reliability of the result.
        source_rows: row of each pair in the source, int64 ``(n,)``, counting all splits and skipped rows; None if the
            pairs are all rows of the source.
        keys: names of the pairs in the source, such as file paths; None if they have no names.
        partner_confidences: estimated probability that each better partner is the right one, ``(n,)``; 0 without a
            better partner; None in run folders written before confidences were.
        clean_files: files with the cleaned data that the audit wrote.
        next_commands: command lines that train on the data, or clean them; none for data that only Python has.

    >>> rng = np.random.default_rng(0)
    >>> scores = np.concatenate([rng.normal(4, 1, 90), rng.normal(0, 1, 10)])
    >>> none, own = np.full(100, -1), scores
    >>> result = Audit("toy", "frozen", "cosine", scores, rng.normal(0, 1, 100), 0.1, (0.05, 0.15), none, own)
    >>> len(result.flagged()), len(result.flagged(count=3)), bool((result.flagged(count=8) >= 90).all())
    (10, 3, True)
    """

    data_name: str
    method: str
    statistic_name: str
    scores: NDArray[np.floating]
    known_mismatch_scores: NDArray[np.floating]
    noise_rate: float
    noise_interval: tuple[float, float]
    partners: NDArray[np.int64]
    partner_scores: NDArray[np.floating]
    notes: tuple[str, ...] = ()
    source_rows: NDArray[np.int64] | None = None
    keys: Sequence[str] | None = None
    partner_confidences: NDArray[np.floating] | None = None
    clean_files: tuple[Path, ...] = ()
    next_commands: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        low, high = self.noise_interval
        note = None
        if not self.is_rate_reliable:
            separation = estimate_separation_auc(self.scores, self.known_mismatch_scores, low)
            note = (
                "The views share too little to estimate how many pairs are wrong: right pairs score above known "
                f"mismatches in {separation:.0%} of cases ({MIN_SEPARATION_AUC:.0%} needed). "
                "Right pairs are flagged too."
            )
        elif max(self.noise_rate, high) > MAX_DROPPED_SHARE:
            share, consequence = f"{self.noise_rate:.0%}", "the scores carry no information"
            if self.noise_rate <= MAX_DROPPED_SHARE:
                share, consequence = f"Anything from {low:.0%} to {high:.0%}", "right pairs are flagged"
            note = (
                f"{share} of the pairs look wrong, because known mismatches score no lower. If most pairs are right, "
                f"the two views share too little information for this audit, and {consequence}."
            )
        if note is not None:
            object.__setattr__(self, "notes", (*(other for other in self.notes if other != note), note))

    @property
    def is_rate_reliable(self) -> bool:
        """True if the noise rate can be trusted and is therefore reported."""
        return is_rate_reliable(self.scores, self.known_mismatch_scores, self.noise_interval[0])

    @property
    def pair_fdrs(self) -> NDArray[np.float64]:
        """Estimated false discovery rate at each pair's score, ``(n,)``.

        It is the share of right pairs if this pair and all lower ones are flagged. The estimate has no guarantee.
        """
        return estimate_pair_fdrs(self.scores, self.known_mismatch_scores, self.noise_rate)

    def flagged(
        self, *, rate: float | None = None, count: int | None = None, fdr: float | None = None
    ) -> NDArray[np.int64]:
        """Return the indices of the suspected mismatches, the lowest score first.

        Args:
            rate: share of the pairs to flag; default: the estimated noise rate.
            count: number of pairs to flag.
            fdr: flag as many pairs as keep the estimated share of right ones among them at or below this. It is an
                estimate without guarantee; `docs/audit.md` compares it with the truth.

        Raises:
            UsageError: more than one of these, or one that is out of range.
        """
        limits = {name: value for name, value in (("rate", rate), ("count", count), ("fdr", fdr)) if value is not None}
        check(len(limits) <= 1, f"flagged: accepts one of rate, count and fdr, got {', '.join(limits)}.", "conflict")
        for name, value in (("rate", rate), ("fdr", fdr)):
            good = value is None or (is_number(value) and 0 <= value <= 1)
            check(good, f"{name}: must be a number from 0 to 1, got {value!r}.")
        items = len(self.scores)
        good = count is None or (is_integer(count) and 0 <= count <= items)
        check(good, f"count: must be an integer from 0 to {items}, got {count!r}.")
        if fdr is not None:
            count = int((self.pair_fdrs <= fdr).sum())
        elif count is None:
            count = round(items * float(self.noise_rate if rate is None else rate))
        return np.argsort(self.scores, kind="stable")[:count]

    def to_columns(self) -> dict[str, NDArray[np.generic]]:
        """Return the result per pair as named columns for ``pandas.DataFrame``."""
        items = np.arange(len(self.scores))
        table: dict[str, NDArray[np.generic]] = {
            "id": items,
            "score": self.scores,
            "fdr": self.pair_fdrs,
            "flagged": np.isin(items, self.flagged()),
            "partner": self.partners,
            "partner_score": self.partner_scores,
            **({} if self.partner_confidences is None else {"partner_confidence": self.partner_confidences}),
            "row": items if self.source_rows is None else self.source_rows,
        }
        return table if self.keys is None else table | {"key": np.array(self.keys, dtype=np.str_)}

    def json_summary(self) -> dict[str, object]:
        """Return the contents of `audit.json`, such as the estimated noise rate.

        Rate and interval are None if the rate is not reliable.
        """
        return {
            "data": self.data_name,
            "method": self.method,
            "statistic": self.statistic_name,
            "pairs": len(self.scores),
            "noise_rate": self.noise_rate if self.is_rate_reliable else None,
            "noise_interval": list(self.noise_interval) if self.is_rate_reliable else None,
            "flagged": len(self.flagged()),
            "notes": list(self.notes),
        }

    def json_output_fields(self) -> dict[str, object]:
        """Return what `--json` prints: `audit.json`, all attributes, and derived values per pair.

        `flagged` is the number of flagged pairs, `flagged_pairs` are their indices, the lowest score first. Unlike in
        `audit.json`, the rate has a value even if `is_rate_reliable` is False.
        """
        attributes = {one.name: getattr(self, one.name) for one in fields(self)}
        derived = {"is_rate_reliable": self.is_rate_reliable, "flagged_pairs": self.flagged(), "fdr": self.pair_fdrs}
        return self.json_summary() | attributes | derived

    def save(self, folder: str | Path) -> None:
        """Write `pairs.csv` and `audit.json` to an existing folder."""
        write_csv_columns(Path(folder) / "pairs.csv", self.to_columns())
        write_json(Path(folder) / "audit.json", self.json_summary())

    @property
    def advice(self) -> str:
        """Recommendation of the next step, in a sentence."""
        if not self.is_rate_reliable:
            return "Look at the worst pairs before you train without any: the share of wrong pairs is unknown."
        return compose_training_advice(len(self.flagged()), "pair", self.clean_files)

    @property
    def headline(self) -> str:
        """Sentence with the estimated share of wrong pairs and its interval.

        >>> scores, none = np.ones(100), np.full(100, -1)
        >>> Audit("toy", "frozen", "cosine", scores, scores - 1, 0.12, (0.1, 0.15), none, scores).headline
        '12% of the 100 pairs of toy look wrong (95% interval 10% to 15%).'
        """
        name, pairs = Path(self.data_name).name, len(self.scores)
        if not self.is_rate_reliable:
            return f"The share of wrong pairs in {name} ({pairs:,} pairs) could not be estimated."
        low, high = map(format_percent, self.noise_interval)
        share = format_percent(self.noise_rate) if round(self.noise_rate * pairs) > 0 else "None"
        interval = f"{'share of wrong pairs: ' if share == 'None' else ''}95% interval {low} to {high}"
        return f"{share} of the {pairs:,} pairs of {name} look wrong ({interval})."

    @property
    def worst_table_title(self) -> str:
        """Title of the table of the worst pairs."""
        return f"{self.headline} {'Worst pairs' if len(self.flagged()) else 'Lowest scores'}:"

    def format_worst_pairs(self) -> list[dict[str, str]]:
        """Format the ten pairs with the lowest scores as rows of a table."""
        own_rows = self.source_rows is not None and self.source_rows.tolist() != list(range(len(self.source_rows)))
        rows = []
        for pair in self.flagged(count=min(10, len(self.scores))).tolist():
            row, has_partner = {"pair": str(pair)}, self.partners[pair] >= 0
            if self.keys is not None:
                row["name"] = self.keys[pair]
            elif self.source_rows is not None and own_rows:
                row["row"] = str(self.source_rows[pair])
            row["score"] = f"{self.scores[pair]:z.3f}".replace("-", "−")
            row["better partner"] = str(self.partners[pair]) if has_partner else "-"
            row["score with it"] = f"{self.partner_scores[pair]:z.3f}".replace("-", "−") if has_partner else "-"
            if self.partner_confidences is not None:
                row["confidence"] = f"{self.partner_confidences[pair]:.0%}" if has_partner else "-"
            rows.append(row)
        return rows

    def _repr_html_(self) -> str:
        """Return the table of the worst pairs as HTML, for a notebook."""
        return format_html_rows(self.worst_table_title, self.format_worst_pairs(), self.notes)

    def __repr__(self) -> str:
        low, high = self.noise_interval
        if not self.is_rate_reliable:
            return f"Audit({self.data_name}: {len(self.scores)} pairs, unknown share of wrong pairs)"
        wrong = f"{self.noise_rate:.1%} look wrong (95% interval {low:.1%} to {high:.1%})"
        return f"Audit({self.data_name}: {len(self.scores)} pairs, {wrong})"


def build_online_audit(data: str, pair_scores: Mapping[str, NDArray[Any]]) -> Audit:
    """Build an online audit's result from the arrays of `Run.pair_scores`."""
    message = f"run: the training has not ended. Continue it with {format_options(resume=True)}."
    check("partners" in pair_scores, message)
    memorized = float(pair_scores["remembered"])
    return Audit(
        data,
        "online",
        "combined",
        pair_scores["scores"],
        pair_scores["mismatched"],
        float(pair_scores["rate"]),
        (float(pair_scores["low"]), float(pair_scores["high"])),
        pair_scores["partners"],
        pair_scores["partner_scores"],
        (format_memorization_warning(memorized),) if memorized > MEMORIZATION_AUC_THRESHOLD else (),
        partner_confidences=pair_scores.get("partner_confidences"),
    )


def compose_training_advice(num_flagged: int, noun: str, clean_files: Sequence[Path]) -> str:
    """Return a sentence that recommends the data to train on."""
    if num_flagged == 0:
        return f"Train on all {noun}s: none look wrong."
    if clean_files:
        return f"Train with the cleaned data: {' or '.join(map(str, clean_files))}."
    repeat = f"repeat this audit with {format_options(drop=True)}"
    without = f"to write the data without the {pluralize(num_flagged, f'flagged {noun}')}"
    return f"Train with {format_options(audit=True)}, or {repeat} {without}."


def write_csv_columns(path: Path, table: Mapping[str, NDArray[np.generic]]) -> None:
    """Write named columns as a `.csv` file with six significant digits."""
    columns: list[Iterable[object]] = []
    for values in table.values():
        if np.issubdtype(values.dtype, np.floating):
            columns.append(map("{:.6g}".format, values.tolist()))
        else:
            columns.append((np.where(values, "true", "false") if values.dtype == np.bool_ else values).tolist())
    write_csv(path, table, zip(*columns, strict=True))
