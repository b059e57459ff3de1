"""Tables of the console: whole words at the width of the narrowest terminals that are used."""

import pytest

from contraport.cli.tables import print_table, result_row
from contraport.results import MEASURES


def test_no_word_is_cut_at_eighty_columns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    values = {measure.key: 0.987 for measure in MEASURES}
    print_table("a title", [{**result_row("untrained encoder", values), "seconds": "106"}])
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert "seconds" in shown
    assert "106" in shown
    for measure in MEASURES:
        assert all(word in shown for word in measure.title.split())
    assert max(map(len, shown.splitlines())) <= 80
