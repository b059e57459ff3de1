import pytest

from tests import TIMEOUT

from .runner import Result, judge, run_cases, summarize

CASES_BY_KIND = {
    "configurations": 1_000,
    "run folders": 300,
    "data": 300,
    "pairs and features": 300,
    "full disk": 200,
    "two commands": 100,
    "names": 200,
    "changed data": 100,
    "repeated items": 60,
}
GOOD_REPORT = {
    "status": 2,
    "err": "contraport: data: no such file\n",
    "lost": [],
    "half": [],
    "children": 0,
    "memory": 0,
}


def check_cases(cases):
    """Check that no case is wrong, and that each command that is tried often succeeds once.

    A command that is refused in all cases, such as for an option that was renamed, is not tested.
    """
    results = list(run_cases(cases, seconds=TIMEOUT))
    wrong = [result for result in results if result.wrong]
    assert not wrong, "\n" + "\n".join(map(str, wrong))
    with_random_options = [result for result in results if result.kind in ("configurations", "pairs and features")]
    rows = summarize(with_random_options)["rows"] if with_random_options else {}
    always_refused = [name for name, row in rows.items() if row["tried"] >= 15 and "done" not in row]
    assert always_refused in ([], ["demo"]), always_refused  # of a demo only invalid options are tried


def test_hostile_input_gives_one_error_line_and_loses_no_file():
    """A twentieth of the cases of each kind."""
    check_cases([(kind, number) for kind, most in CASES_BY_KIND.items() for number in range(most // 20)])


@pytest.mark.slow
@pytest.mark.parametrize("kind", CASES_BY_KIND)
def test_all_hostile_input_gives_one_error_line_and_loses_no_file(kind):
    check_cases([(kind, number) for number in range(CASES_BY_KIND[kind])])


@pytest.mark.parametrize(
    ("differing", "wrong"),
    [
        ({}, ""),
        ({"status": 0, "err": "3 of 7 images of the train split cannot be read and are left out\n"}, ""),
        ({"status": 0, "err": "", "lost": ["new/train.log"]}, ""),
        ({"err": "a warning\ncontraport: data: no such file\n"}, ""),
        ({"status": "Traceback (most recent call last): KeyError"}, "KeyError"),
        ({"status": 3}, "status 3"),
        ({"err": ""}, "expected one line"),
        ({"err": "contraport: a\ncontraport: b\n"}, "expected one line"),
        ({"err": "contraport: Traceback (most recent call last)\n"}, "a traceback"),
        ({"lost": ["notes.txt"]}, "changed or lost: ['notes.txt']"),
        ({"status": 0, "half": [".model-1"]}, "half-written: ['.model-1']"),
        ({"children": 2}, "2 processes are left"),
        ({"beside": [2, "contraport: out: x is in use\n"], "after": [0, ""]}, ""),
        ({"beside": [1, "no line"]}, "the command beside it: expected one line"),
        ({"beside": [-9, ""]}, "the command beside it: status -9"),
        ({"expected": 2}, ""),
        ({"expected": 0}, "expected status 0"),
        ({"after": [2, "contraport: run: x is corrupt\n"]}, "the command after it: status 2"),
    ],
)
def test_judges_reports(differing, wrong):
    result = Result("data", 0)
    judge(result, GOOD_REPORT | differing)
    assert wrong in " ".join(result.wrong)
    assert bool(wrong) == bool(result.wrong)
