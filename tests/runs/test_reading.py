import pytest

from contraport.runs.reading import are_numbers, is_one_of


@pytest.mark.parametrize(("value", "holds"), [(1, True), (0.5, True), (None, True), (True, False), ("1", False)])
def test_true_is_no_number(value: object, holds: bool) -> None:
    assert is_one_of(value, int, float, None) is holds
    if value is not None:
        assert are_numbers({"loss": value}, depth=1) is holds
