"""Progress bars: nesting, cleanup, and silence without a terminal."""

import io
import re
from pathlib import Path

import pytest
import rich.progress

import contraport
from contraport._utils.progress import ProgressBars
from contraport.evaluation import evaluate
from tests.evaluation.builders import build_vector_model, build_vectors, make_run

SOURCES = Path(contraport.__file__).parent


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def use_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Replace the standard error by a terminal; not a fixture, as pytest replaces the standard error after fixtures."""
    terminal = Terminal()
    for name in ("NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr("sys.stderr", terminal)
    return terminal


def test_all_consoles_have_markup_off() -> None:
    files = {file: file.read_text() for file in SOURCES.rglob("*.py")}
    assert [file.name for file, text in files.items() if re.search(r"(?<!_)\bConsole\(", text)] == ["progress.py"]
    columns = [column for text in files.values() for column in re.findall(r"TextColumn\((.*)\)", text)]
    assert columns
    assert all("markup=False" in column for column in columns)


def test_nested_bars_share_one_display_and_disappear(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch)
    bars = ProgressBars(shown=True)
    with bars.open_step_bar(2) as step:
        step("outer")
        inner = []
        for item in bars.track("ab", "inner", total=2):
            inner.append(item)
            bars._progress.refresh()
    assert inner == ["a", "b"]
    assert any("outer" in part and "inner" in part for part in terminal.getvalue().split("\x1b[2K\x1b[1A"))
    assert not bars._progress.tasks
    assert "\x1b[2K\x1b[?25h" in terminal.getvalue()  # the last line is cleared, and the cursor is shown again
    assert terminal.getvalue().count("\x1b[?25l") == terminal.getvalue().count("\x1b[?25h") == 1


def test_bar_disappears_on_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch)
    with pytest.raises(KeyboardInterrupt), ProgressBars(shown=True).open_step_bar(2):
        raise KeyboardInterrupt
    assert terminal.getvalue().count("\x1b[?25h") == 1


def test_evaluate_shows_current_metric_encoder_and_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch)
    run = make_run(tmp_path / "mine", build_vector_model())
    data = (build_vectors(60, 3), build_vectors(40, 3))
    evaluate(run, data=data, metrics=["knn", "fine_tuning"], progress=False)
    assert terminal.getvalue() == ""
    update, updates = "rich.progress.Progress.update", []
    monkeypatch.setattr(update, lambda self, task, completed, description: updates.append((completed, description)))
    totals, own = [], rich.progress.Progress.add_task
    monkeypatch.setattr(
        "rich.progress.Progress.add_task",
        lambda self, text, total: totals.append(total) or own(self, text, total=total),  # type: ignore[func-returns-value]
    )
    evaluate(run, data=data, metrics=["knn", "fine_tuning"])
    assert totals[0] == 7
    assert "\x1b[?25l" in terminal.getvalue()
    steps = [(number, what) for number, what in updates if what.startswith("mine")]
    assert steps == [
        *((0, "mine, raw: kNN"), (1, "mine, raw: Fine-tuning")),
        *((2, "mine, untrained: kNN"), (3, "mine, untrained: Fine-tuning")),
        *((4, "mine, trained: kNN"), (5, "mine, trained: Fine-tuning")),
        (6, "mine: samples for contraport report"),
    ]
    assert (0, "trained: epochs of fine-tuning") in updates


def test_shows_nothing_without_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "mine", build_vector_model())
    evaluate(run, data=(build_vectors(60, 3), build_vectors(40, 3)), metrics=["knn"])
    assert capsys.readouterr().err == ""
