"""Custom objectives whose parts are specified as text."""

from functools import partial

import pytest
import torch
from tests.errors import raises_usage_error
from tests.objectives import formulas

import contraport
from contraport._utils.spec_parser import build_from_spec
from contraport.catalog import apply_recipe
from contraport.objectives.component_specs import DIVERGENCES, KERNELS, LAYOUTS, replace_components
from contraport.objectives.loss_schedules import CONSTRAINTS
from contraport.training.components.step_builder import build_objective
from contraport.training.config import Settings

Z = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("base", "parts", "expected"),
    [
        (contraport.nt_xent(0.3), {"layout": "cross"}, contraport.info_nce(0.3)),
        (contraport.info_nce(0.3), {"layout": "joint"}, contraport.nt_xent(0.3)),
        (
            contraport.nt_xent(0.5),
            {"constraint": "balanced:iterations=5", "layout": "joint"},
            contraport.gca_ince(0.5),
        ),
        (contraport.gca_ince(0.5), {"divergence": "rince:q=0.6,lam=0.01"}, contraport.gca_rince(0.5)),
        (contraport.info_nce(0.3), {"layout": "cross:symmetric=false"}, contraport.info_nce(0.3, symmetric=False)),
        (
            contraport.gca_uot(),
            {"constraint": "unbalanced:relaxation=(.1, 2)"},
            contraport.gca_uot(relaxation=(0.1, 2)),
        ),
        (contraport.nt_xent(2.0), {"kernel": "student-t:df=5", "constraint": "simplex"}, None),
    ],
)
def test_equals_the_named_objective(base, parts, expected) -> None:
    built = replace_components(base, **parts)
    if expected is None:
        expected = contraport.Objective(
            contraport.Joint(), contraport.StudentT(5, 2.0), contraport.Simplex(), contraport.Pairs(), contraport.KL()
        )
    assert repr(built) == repr(expected)
    torch.testing.assert_close(built(*Z), expected(*Z))


@pytest.mark.parametrize(
    ("argument", "classes"), [("layout", LAYOUTS), ("kernel", KERNELS), ("divergence", DIVERGENCES)]
)
def test_every_name_builds_its_part(argument, classes) -> None:
    for name, part in classes.items():
        assert isinstance(build_from_spec(argument, name, classes, defaults={"temperature": 1.0}), part)


@pytest.mark.parametrize(
    ("parts", "code"),
    [
        ({"divergence": "renyi"}, "divergence.unknown"),
        ({"divergence": "rince:p=1"}, "divergence.unknown"),
        ({"divergence": "rince:q=2"}, "divergence.invalid"),
        ({"divergence": "fenchel-young"}, "divergence.constraint"),
        ({"kernel": "gibbs:cost=manhattan"}, "kernel.*"),
        ({"layout": "cross:symmetric=maybe"}, "layout.*"),
    ],
)
def test_rejects_parts_that_do_not_fit(parts, code) -> None:
    with raises_usage_error(code):
        replace_components(contraport.nt_xent(), **parts)


def test_rejects_a_sum_of_objectives() -> None:
    with raises_usage_error("kernel.no_parts"):
        replace_components(contraport.align_uniform(), kernel="student-t")


def test_schedule_of_constraints_does_not_replace_the_constraint() -> None:
    for text, expected in (("tighten:every=10", contraport.Balanced()), ("rows", contraport.Rows())):
        objective = build_objective(Settings(objective="gca-ince", layout="cross", constraint=text))
        assert repr(objective.constraint) == repr(expected)


def test_parts_are_options_of_a_training(tmp_path) -> None:
    options = {"data": "digits", "max_items": 200, "epochs": 1, "device": "cpu", "threads": 1, "progress": False}
    parts = {"layout": "cross", "divergence": "rince:q=0.5", "constraint": "balanced:iterations=2"}
    run = contraport.train(out=tmp_path / "run", **options, **parts)
    assert run.config()["divergence"] == "rince:q=0.5"
    result = contraport.evaluate(run.path, metrics=["knn"], alone=True, progress=False)
    assert 0 < result["rows"]["trained"]["knn"] <= 1
    with raises_usage_error("divergence.constraint"):
        contraport.train(out=tmp_path / "other", **options, divergence="fenchel-young")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("tsallis:over=simplex", "tsallis:mass_constraint=simplex"),
        ("tsallis:conditional=true", "tsallis:regularizes_row_shares=true"),
        ("unbalanced:price=total-variation", "unbalanced:marginal_divergence=total-variation"),
    ],
)
def test_deprecated_setting_is_accepted_with_one_warning(old, new) -> None:
    with pytest.warns(FutureWarning) as raised:
        built = build_from_spec("constraint", old, CONSTRAINTS)
    assert len(raised) == 1
    assert repr(built) == repr(build_from_spec("constraint", new, CONSTRAINTS))
    with raises_usage_error("constraint.unknown", "ower"):
        build_from_spec("constraint", new.replace(":", ":ower=1,"), CONSTRAINTS)


def test_deprecated_keyword_and_attribute_of_a_layout_warn() -> None:
    with pytest.warns(FutureWarning, match="compares_all_views_at_once"):
        layout = contraport.Joint(together=True)
    assert layout == contraport.Joint(compares_all_views_at_once=True)
    with pytest.warns(FutureWarning, match="compares_all_views_at_once"):
        assert layout == contraport.Joint(all_views=True)
    with pytest.warns(FutureWarning, match="compares_all_views_at_once"):
        assert layout.together


@pytest.mark.parametrize(
    ("create", "old", "new"),
    [
        (contraport.WithinView, "summed", "sum_over_views"),
        (contraport.MeanSquaredCost, "summed", "sum_over_pairs"),
        (partial(contraport.CoordinatePairs, contraport.Cross()), "summed", "sum_over_coordinates"),
        (contraport.Tighten, "every", "steps_between_changes"),
        (contraport.Loosen, "every", "steps_between_changes"),
    ],
)
def test_deprecated_keyword_and_attribute_warn(create, old, new) -> None:
    with pytest.warns(FutureWarning, match=new):
        part = create(**{old: True if old == "summed" else 7})
    assert part == create(**{new: getattr(part, new)})
    with pytest.warns(FutureWarning, match=new):
        assert getattr(part, old) == getattr(part, new)


def build(**options):
    return build_objective(Settings(**apply_recipe(options)))


def test_custom_objective_has_the_specified_parts() -> None:
    parts = {"kernel": "student-t:df=5", "divergence": "rince:q=0.4", "layout": "cross:symmetric=false"}
    expected = contraport.Objective(
        contraport.Cross(symmetric=False),
        contraport.StudentT(5, 0.3),
        contraport.Rows(),
        contraport.Pairs(),
        contraport.Rince(q=0.4),
    )
    built = build(objective="custom", temperature=0.3, **parts)
    assert repr(built) == repr(expected)
    torch.testing.assert_close(built(*Z), expected(*Z))
    for part in ({"constraint": "balanced"}, {"target": "labels"}):
        assert repr(build(objective="custom", **part)) == repr(build(objective="info-nce", **part))
    with raises_usage_error("objective.no_parts"):
        build(objective="custom")


def test_parses_a_pair_of_weights() -> None:
    expected = contraport.gca_uot(marginal_weight=(0.1, 2))(*Z)
    for text in ("(.1,2)", "[0.1, 2]"):
        built = build(objective="gca-uot", objective_settings={"marginal_weight": text})
        torch.testing.assert_close(built(*Z), expected)
    with raises_usage_error("marginal_weight.*"):
        build(objective="gca-uot", objective_settings={"marginal_weight": "(.1,.2,.3)"})


def test_published_form_of_unbalanced_transport() -> None:
    views = Z.double()
    dense = formulas.gca_uot(*views, 0.5, 10, 0.2, conditional=True, rince_weight=0.2)
    torch.testing.assert_close(build(recipe="gca-uot-published")(*views), dense)
