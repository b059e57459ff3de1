"""What `evaluate` returns: a dictionary, as `evaluation.json` holds it, which a notebook shows as tables."""

from __future__ import annotations

from html import escape
from typing import Any

from contraport._utils.html_repr import format_html_rows
from contraport.evaluation.result_tables import difference_rows, direction_rows, epoch_rows, evaluation_rows


class Evaluation(dict[str, Any]):
    """What was measured of one run."""

    def _repr_html_(self) -> str:
        tables = {
            f"{self['data']}: frozen features of held-out items": evaluation_rows(self),
            "by which view the other one is found": direction_rows(self),
            "the models that were kept on the way": epoch_rows(self),
        }
        shown = {title: rows for title, rows in tables.items() if rows}
        notes = dict.fromkeys(list(shown)[-1:], self["notes"])
        return "".join(format_html_rows(title, rows, notes.get(title, ())) for title, rows in shown.items())


class Evaluations(dict[str, Evaluation]):
    """What was measured of several runs, by their paths."""

    def _repr_html_(self) -> str:
        first, *others = self
        tables = [f"<h4>{escape(name)}</h4>{found._repr_html_()}" for name, found in self.items()]
        for name in others:
            if rows := difference_rows(self[name]["differences"].get(first, {})):
                tables.append(format_html_rows(f"{name} less {first}, item by item", rows))
        return "".join(tables)
