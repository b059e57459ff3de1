"""Whether an objective says truly that it sees which plans are allowed: it refuses what would change nothing."""

import inspect

import pytest
import torch

import contraport
from contraport.catalog import OBJECTIVES
from contraport.errors import UsageError
from contraport.objectives import Objective

KNOWN = {
    "labels": torch.arange(8) % 3,
    "domains": torch.arange(8) % 2,
    "ids": torch.arange(8),
    "features": torch.randn(8, 3, generator=torch.Generator().manual_seed(1)),
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_constraint_changes_the_value_or_is_refused(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    views = [torch.randn(8, 4, generator=generator) for _ in range(2)]
    settings = {"items": 8, "dimensions": 4}
    asked = inspect.signature(OBJECTIVES[name].make).parameters
    loss = contraport.objective(name, **{key: settings[key] for key in settings.keys() & asked.keys()}).eval()
    if not isinstance(loss, Objective):
        return
    known = KNOWN if loss.by_item or loss.asks_features() else {key: KNOWN[key] for key in ("labels", "domains")}
    known = known if loss.of_items else {}
    before, changed = loss(*views, **known), False
    for constraint in (contraport.Simplex(), contraport.Balanced(1)):
        if not loss.by_constraint:
            with pytest.raises(UsageError, match=r"expected Free\(\), as the objective judges the kernel alone"):
                loss.constrain(constraint)
            continue
        try:
            loss.constrain(constraint)
        except UsageError:  # it does not go with what the divergence is taken from
            return
        changed = changed or not torch.allclose(loss(*views, **known), before)
    # The plan of quadratic is of an infinite temperature, and so the same under all of them.
    assert loss.by_constraint == changed or name == "quadratic"
