import pytest

from .runner import Result, judge, run_cases

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


@pytest.mark.parametrize(
    "share", [pytest.param(0.05, id="a-twentieth"), pytest.param(1.0, id="all", marks=pytest.mark.slow)]
)
def test_hostile_input_gives_one_error_line_and_loses_no_file(share):
    cases = [(kind, number) for kind, most in CASES_BY_KIND.items() for number in range(int(share * most))]
    wrong = [result for result in run_cases(cases) if result.wrong]
    assert not wrong, "\n" + "\n".join(map(str, wrong))


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
        ({"beside": ["did not end", ""]}, "the command beside it: status did not end"),
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
