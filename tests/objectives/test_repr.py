"""Components of objectives are immutable and hashable."""

import dataclasses

import pytest

import contraport.theory  # noqa: F401  (defines all components)
from contraport._utils.formatting import NonDefaultsReprMixin


def subclasses_of(kind):
    return {below for one in kind.__subclasses__() for below in {one, *subclasses_of(one)}}


ANSWERS = sorted(
    (one for one in subclasses_of(NonDefaultsReprMixin) if one.__module__.startswith("contraport.")),
    key=lambda one: one.__name__,
)


@pytest.mark.parametrize("kind", ANSWERS, ids=lambda kind: kind.__name__)
def test_components_are_immutable(kind):
    assert kind.__hash__ is not None
    if dataclasses.is_dataclass(kind):
        assert kind.__dataclass_params__.frozen
