"""InfoNCE bound of mutual information: log k less the loss, by its definition."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

import contraport
from contraport import Joint, Labels, Objective, Pairs, PlanUniformity


def views(count: int = 2, n: int = 9) -> list[Tensor]:
    base = torch.randn(n, 4, generator=torch.Generator().manual_seed(0))
    noise = torch.randn(count, n, 4, generator=torch.Generator().manual_seed(1))
    return list(base + 0.3 * noise)


def bound(loss: Any, *z: Tensor, **attributes: Any) -> float | None:
    result: float | None = loss.mutual_information_bound(float(loss(*z, **attributes).detach()))
    return result


def cross_entropy(rows: Tensor, columns: Tensor, temperature: float) -> float:
    """Return InfoNCE of rows whose positives are the columns of the same number."""
    cosines = torch.nn.functional.cosine_similarity(rows[:, None], columns[None], dim=2) / temperature
    return float(-cosines.log_softmax(1).diagonal().mean())


def test_the_bound_of_one_direction() -> None:
    z0, z1 = views()
    result = bound(contraport.info_nce(temperature=0.2, symmetric=False), z0, z1)
    assert result == pytest.approx(math.log(9) - cross_entropy(z0, z1, 0.2), abs=1e-5)


def test_the_bound_of_both_directions_is_their_mean() -> None:
    z0, z1 = views()
    both = [math.log(9) - cross_entropy(*pair, 0.2) for pair in ((z0, z1), (z1, z0))]
    assert bound(contraport.info_nce(temperature=0.2), z0, z1) == pytest.approx(sum(both) / 2, abs=1e-5)


def test_all_others_are_candidates_in_the_joint_layout() -> None:
    z0, z1 = views()
    loss = contraport.nt_xent()
    assert bound(loss, z0, z1) == pytest.approx(math.log(17) - float(loss(z0, z1)), abs=1e-5)


def test_a_sum_over_pairs_of_views_gives_their_mean() -> None:
    z = views(3)
    turns = [(a, b) for a in range(3) for b in range(3) if a != b]
    expected = sum(math.log(9) - cross_entropy(z[a], z[b], 0.1) for a, b in turns) / len(turns)
    assert bound(contraport.cmc(), *z) == pytest.approx(expected, abs=1e-5)


def test_negatives_are_candidates_but_for_those_of_the_row() -> None:
    z0, z1 = views()
    loss = contraport.info_nce(symmetric=False)
    bank = torch.randn(20, 4, generator=torch.Generator().manual_seed(2))
    more = {"negatives": bank, "negative_ids": torch.arange(20), "ids": torch.arange(9)}
    value = float(loss(z0, z1, **more))
    assert loss.mutual_information_bound(value) == pytest.approx(math.log(9 + 19) - value, abs=1e-6)


def test_equal_views_reach_the_maximum_of_the_bound() -> None:
    z = torch.eye(8)
    assert bound(contraport.info_nce(temperature=0.02), z, z) == pytest.approx(math.log(8), abs=1e-6)


@pytest.mark.parametrize(
    "name",
    [
        "gca-ince",
        "gca-uot",
        "rince",
        "iot",
        "sup-con",
        "dcl",
        "dhel",
        "align-uniform",
        "alpha-cl",
        "sigmoid",
        "t-simclr",
    ],
)
def test_information_is_none_for_other_objectives(name: str) -> None:
    z = views()
    labels = {"labels": torch.arange(9) % 3} if name == "sup-con" else {}
    assert bound(contraport.objective(name), *z, **labels) is None


@pytest.mark.parametrize(
    "attributes",
    [
        {"target": Labels(), "labels": torch.arange(9) % 3},
        {"target": torch.ones(18, 18) - torch.eye(18)},
        {"weights": torch.arange(9.0)},
        {"present": torch.tensor([[True, True]] * 8 + [[True, False]])},
    ],
)
def test_information_is_none_for_calls_with_weights_or_targets(attributes: dict[str, Any]) -> None:
    loss, z = contraport.nt_xent(), views()
    assert bound(loss, *z, **attributes) is None
    assert bound(loss, *z) is not None
    assert bound(loss, *z, target=Pairs()) == bound(loss, *z)


def test_information_is_none_with_several_positives() -> None:
    assert bound(contraport.nt_xent(), *views(3)) is None


def test_information_is_none_with_penalties_or_other_constraints() -> None:
    plain, z = contraport.nt_xent(), views()
    parts = plain.layout, plain.kernel, plain.constraint, plain.target, plain.divergence
    assert not Objective(*parts, {PlanUniformity(): 1.0}).is_info_nce
    assert Objective(*parts).is_info_nce
    assert isinstance(plain.layout, Joint)
    plain.set_constraint(contraport.Balanced(3))
    assert bound(plain, *z) is None


def test_information_is_none_before_a_call_and_survives_copies() -> None:
    loss = contraport.nt_xent()
    assert loss.mutual_information_bound(1.0) is None
    value = float(loss(*views()))
    for again in (copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))):
        assert again.mutual_information_bound(value) == loss.mutual_information_bound(value)


def test_deprecated_name_of_the_bound_warns():
    loss = contraport.nt_xent()
    value = loss(torch.eye(4), torch.eye(4)).item()
    with pytest.warns(FutureWarning, match="mutual.information.bound"):
        assert loss.information(value) == loss.mutual_information_bound(value)


def test_deprecated_name_of_the_mass_warns():
    loss = contraport.gca_uot(temperature=1.0)
    loss(torch.eye(2), torch.eye(2))
    with pytest.warns(FutureWarning, match="last_plan_mass"):
        assert loss.last_mass == loss.last_plan_mass
