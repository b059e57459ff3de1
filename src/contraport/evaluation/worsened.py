"""What training made worse, said in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from contraport.metrics import Metric, metrics_of_rows
from contraport.metrics.baselines import BEFORE
from contraport.metrics.intervals import Difference

_Rows = Mapping[str, Mapping[str, float]]
Differences = Mapping[str, Mapping[str, Difference]]


def worsened(rows: _Rows, differences: Differences = MappingProxyType({})) -> list[str]:
    """Say in words which measures of the trained encoder are worse than before, and what may help.

    A difference within its interval, as `differences` from the baselines tell it, is none.
    """
    told = []
    known = metrics_of_rows([rows["trained"]])
    accuracy = [measure for measure in known if measure.group == "accuracy"]
    of_the_sphere = [measure for measure in known if measure.key in ("alignment", "uniformity")]
    for row, name, advice in (
        ("given", BEFORE["given"], "more epochs, another --augment or a smaller --encoder_lr_scale may help"),
        ("untrained", BEFORE["untrained"], "more epochs, another --augment or another --temperature may help"),
        ("raw", "the raw inputs", "train for longer, or a larger encoder, or use the inputs as they are"),
    ):
        if row not in rows:
            continue
        if worse := _compared(rows, differences, row, accuracy, worse=True):
            told.append(f"Training left the features worse than {name} by {worse}; {advice}.")
    # One is bought with the other, so that the two are told together.
    before = next((row for row in BEFORE if row in rows), None)
    if before is None:
        return told
    if worse := _compared(rows, differences, before, of_the_sphere, worse=True):
        gained = _compared(rows, differences, before, of_the_sphere, worse=False)
        why = f"which is the price of {gained}" if gained else "and nothing was gained for it"
        told.append(f"Training worsened {worse}, {why}.")
    return told


def _compared(rows: _Rows, differences: Differences, row: str, measures: Sequence[Metric], *, worse: bool) -> str:
    """Return those of some measures that are worse, or better, of the trained encoder than of a baseline, in words."""
    after, before, sure = rows["trained"], rows[row], differences.get(row, {})
    pairs = [
        (measure, after[measure.key], before[measure.key])
        for measure in measures
        if measure.key in before and (measure.key not in sure or sure[measure.key].is_significant)
    ]
    return " and ".join(
        f"{measure.title} ({measure.written(value)} against {measure.written(other)})"
        for measure, value, other in pairs
        if (measure.is_worse(value, other) if worse else measure.is_worse(other, value))
    )
