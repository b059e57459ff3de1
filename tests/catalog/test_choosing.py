"""The table of advice names what there is, and rests on claims that suites make."""

from __future__ import annotations

import pytest

from contraport.catalog import OBJECTIVES
from contraport.catalog.recommendations import Recommendation, UseCase, describe_use_cases, list_recommendations
from contraport.cli import main
from contraport.comparison.grid_builder import build_grid

ALL = list(list_recommendations())


@pytest.mark.parametrize(("situation", "one"), ALL, ids=[f"{number}" for number in range(len(ALL))])
def test_a_sentence_is_about_what_there_is(situation: UseCase, one: Recommendation) -> None:
    assert set(one.use) <= OBJECTIVES.keys()
    assert one.says.endswith(".")
    for evidence in one.evidence:
        claims = build_grid({"suite": evidence.suite}).claims
        assert 0 <= evidence.number < len(claims)
        assert claims[evidence.number].says.endswith(".")


def test_the_list_of_objectives_says_when_to_use_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "objectives"]) == 0
    told = capsys.readouterr().out
    assert "when to use it: pairs, some of them wrong" in told
    assert describe_use_cases("gca-uot") == "when to use it: pairs, some of them wrong; rare classes or items"
    assert describe_use_cases("spectral") == ""
