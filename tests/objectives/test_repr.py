"""The answers to the five questions are values: they do not change, and can be the keys of a dictionary."""

import dataclasses

import pytest

import contraport.theory  # noqa: F401  (all that there are)
from contraport._utils.html_repr import NonDefaultsReprMixin


def all_below(kind):
    return {below for one in kind.__subclasses__() for below in {one, *all_below(one)}}


ANSWERS = sorted(
    (one for one in all_below(NonDefaultsReprMixin) if one.__module__.startswith("contraport.")),
    key=lambda one: one.__name__,
)


@pytest.mark.parametrize("kind", ANSWERS, ids=lambda kind: kind.__name__)
def test_parts_are_immutable(kind):
    assert kind.__hash__ is not None
    if dataclasses.is_dataclass(kind):
        assert kind.__dataclass_params__.frozen
