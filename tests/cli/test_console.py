"""Tables of the console: whole words at the width of the narrowest terminals that are used."""

import pytest

from contraport.cli.console import print_table, result_rows
from contraport.measures import MEASURES


def test_no_word_is_cut_at_eighty_columns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    measures = [one for row in MEASURES.values() for one in row.each()]
    values = {measure.key: 0.987 for measure in measures}
    columns = dict.fromkeys(("raw pixels", "untrained encoder", "nt-xent", "gca-uot"), values)
    print_table("a title", result_rows(columns))
    shown = capsys.readouterr().out
    assert "…" not in shown
    for measure in measures:
        assert all(word in shown for word in measure.title.split())
    assert max(map(len, shown.splitlines())) <= 80
