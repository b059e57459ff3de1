"""Recommendations name existing objectives and claims of suites."""

from __future__ import annotations

import pytest

from contraport.catalog import OBJECTIVES
from contraport.catalog.recommendations import USE_CASES, Recommendation, list_use_case_names
from contraport.comparison.grid_builder import build_grid

ALL = [one for use_case in USE_CASES for one in use_case.recommendations]


@pytest.mark.parametrize("recommendation", ALL, ids=[f"{number}" for number in range(len(ALL))])
def test_names_existing_objectives_and_claims(recommendation: Recommendation) -> None:
    assert set(recommendation.objectives) <= OBJECTIVES.keys()
    assert recommendation.text_markdown.endswith(".")
    for evidence in recommendation.evidence:
        claims = build_grid({"suite": evidence.suite}).claims
        assert 0 <= evidence.claim_index < len(claims)
        assert claims[evidence.claim_index].statement.endswith(".")


def test_lists_use_cases_of_an_objective() -> None:
    assert list_use_case_names("gca-uot") == ["pairs, some of them wrong", "rare classes or items"]
    assert list_use_case_names("spectral") == []
