"""What an audit found: scores, the noise rate, and from these what is flagged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from contraport._utils.files import write_csv, write_json
from contraport._utils.formatting import format_options
from contraport._utils.html_repr import format_html_rows
from contraport.auditing.pairs import estimate_fdr
from contraport.auditing.pairs.pair_filter import MAX_DROPPED_SHARE, MEMORIZATION_THRESHOLD, memorization_warning
from contraport.errors import check
from contraport.options import matches_type

_WORST = 10


@dataclass(frozen=True, eq=False)
class Audit:
    """What an audit found of `n` pairs; a notebook shows the worst as a table.

    Attributes:
        data: what the data are called.
        method: how the pairs were judged.
        statistic: by what.
        scores: ``(n,)``; the more, the better a pair.
        mismatched: ``(m,)``, the scores of pairs that are known to be wrong.
        noise_rate: the estimated share of wrong pairs.
        noise_interval: its bootstrap interval of 95 % over the pairs and the mismatches; it knows nothing of other
            trainings.
        partners: int64 ``(n,)``, for each pair the item whose second view would suit its first one more, or -1.
        partner_scores: ``(n,)``, the scores of these pairs by the last encoder alone; where there is none that is
            better, that of the pair itself.
        notes: what is to be known beside.
        rows: int64 ``(n,)``, the number of each pair in its source, all splits of it and what was left out counted;
            None where pairs are all that their source has.
        keys: what the source calls each pair, where it does.

    >>> rng = np.random.default_rng(0)
    >>> scores = np.concatenate([rng.normal(4, 1, 90), rng.normal(0, 1, 10)])
    >>> none, own = np.full(100, -1), scores
    >>> found = Audit("toy", "frozen", "cosine", scores, rng.normal(0, 1, 100), 0.1, (0.05, 0.15), none, own)
    >>> len(found.flagged()), len(found.flagged(count=3)), bool((found.flagged(count=8) >= 90).all())
    (10, 3, True)
    """

    data: str
    method: str
    statistic: str
    scores: NDArray[np.floating]
    mismatched: NDArray[np.floating]
    noise_rate: float
    noise_interval: tuple[float, float]
    partners: NDArray[np.int64]
    partner_scores: NDArray[np.floating]
    notes: tuple[str, ...] = ()
    rows: NDArray[np.int64] | None = None
    keys: Sequence[str] | None = None

    def __post_init__(self) -> None:
        low, high = self.noise_interval
        if max(self.noise_rate, high) > MAX_DROPPED_SHARE:
            share, what = f"{self.noise_rate:.0%}", "the scores say nothing"
            if self.noise_rate <= MAX_DROPPED_SHARE:
                share, what = f"anything from {low:.0%} to {high:.0%}", "right pairs are flagged"
            told = (
                f"{share} of the pairs seem wrong, as known mismatches score no lower: unless they are, "
                f"the views tell too little of one another by what they were judged by, and {what}."
            )
            object.__setattr__(self, "notes", (*(note for note in self.notes if note != told), told))

    @property
    def fdr(self) -> NDArray[np.float64]:
        """Of all pairs that score as low as each, the estimated share that is right, ``(n,)``: no guarantee."""
        return estimate_fdr(self.scores, self.mismatched, self.noise_rate)

    def flagged(
        self, *, rate: float | None = None, count: int | None = None, fdr: float | None = None
    ) -> NDArray[np.int64]:
        """Return the pairs that seem wrong, the worst first.

        Args:
            rate: the share of all pairs that is flagged; default: the estimated noise rate.
            count: or how many.
            fdr: or as many as keep the estimated share of right ones among them at most so large. It is an estimate,
                no guarantee: `docs/audit.md` has what was met.

        Raises:
            UsageError: more than one of these, or one that is no share or no number of pairs.
        """
        given = {name: value for name, value in (("rate", rate), ("count", count), ("fdr", fdr)) if value is not None}
        check(len(given) <= 1, f"flagged: expected one of rate, count and fdr, got {', '.join(given)}.")
        for name, value in (("rate", rate), ("fdr", fdr)):
            check(
                value is None or (matches_type(value, float) and 0 <= value <= 1),
                f"{name}: expected a number from 0 to 1, got {value!r}.",
            )
        items = len(self.scores)
        good = count is None or (matches_type(count, int) and 0 <= count <= items)
        check(good, f"count: expected a whole number from 0 to {items}, got {count!r}.")
        if fdr is not None:
            number = int((self.fdr <= fdr).sum())
        else:
            number = round(items * (self.noise_rate if rate is None else rate)) if count is None else count
        return np.argsort(self.scores, kind="stable")[:number]

    def table(self) -> dict[str, NDArray[np.generic]]:
        """Return a row for each pair, in the order of the data, as columns by name: ``pandas.DataFrame`` takes it."""
        items = np.arange(len(self.scores))
        table: dict[str, NDArray[np.generic]] = {
            "id": items,
            "score": self.scores,
            "fdr": self.fdr,
            "flagged": np.isin(items, self.flagged()),
            "partner": self.partners,
            "partner_score": self.partner_scores,
            "row": items if self.rows is None else self.rows,
        }
        return table if self.keys is None else table | {"key": np.array(self.keys, dtype=np.str_)}

    def summary(self) -> dict[str, object]:
        """Return what `audit.json` holds."""
        return {
            "data": self.data,
            "method": self.method,
            "statistic": self.statistic,
            "pairs": len(self.scores),
            "noise_rate": self.noise_rate,
            "noise_interval": list(self.noise_interval),
            "flagged": len(self.flagged()),
            "notes": list(self.notes),
        }

    def save(self, folder: str | Path) -> None:
        """Write `pairs.csv` and `audit.json` to a folder that is there."""
        table = self.table()
        rows = (map(_written, row) for row in zip(*table.values(), strict=True))
        write_csv(Path(folder) / "pairs.csv", table, rows)
        write_json(Path(folder) / "audit.json", self.summary())

    def worst_table(self) -> list[dict[str, str]]:
        """Return what is known of the ten pairs that seem wrong the most, as texts."""

        def named(pair: int) -> dict[str, str]:
            if self.keys is not None:
                return {"name": self.keys[pair]}
            if self.rows is None or self.rows.tolist() == list(range(len(self.rows))):
                return {}
            return {"row": str(self.rows[pair])}

        return [
            {
                "pair": str(pair),
                **named(int(pair)),
                "score": f"{self.scores[pair]:z.3f}",
                "better partner": "-" if self.partners[pair] < 0 else str(self.partners[pair]),
                "its score": f"{self.partner_scores[pair]:z.3f}",
            }
            for pair in self.flagged(count=min(_WORST, len(self.scores)))
        ]

    def _repr_html_(self) -> str:
        return format_html_rows(f"{self}; the worst are", self.worst_table(), self.notes)

    def __repr__(self) -> str:
        low, high = self.noise_interval
        wrong = f"{self.noise_rate:.1%} seem wrong ({low:.1%} to {high:.1%})"
        return f"Audit({self.data}: {len(self.scores)} pairs, {wrong})"


def audit_from_arrays(data: str, found: Mapping[str, NDArray[Any]]) -> Audit:
    """Return what a training with `audit` found, from the arrays of its folder; see `contraport.runs.Run.pairs`.

    Raises:
        UsageError: the training is not done.
    """
    check("partners" in found, f"run: its training did not end; go on with {format_options(resume=True)}.")
    known = float(found["remembered"])
    return Audit(
        data,
        "online",
        "combined",
        found["scores"],
        found["mismatched"],
        float(found["rate"]),
        (float(found["low"]), float(found["high"])),
        found["partners"],
        found["partner_scores"],
        (f"The {memorization_warning(known)}.",) if known > MEMORIZATION_THRESHOLD else (),
    )


def _written(value: np.generic) -> str:
    if isinstance(value, np.str_):
        return str(value)
    return f"{value:.6g}" if isinstance(value, np.floating) else str(value.item()).lower()
