"""Objectives whose parts are given as text, for methods without a name."""

import pytest
import torch
from tests.errors import raises_usage_error

import contraport
from contraport._utils.spec_parser import build_from_spec
from contraport.objectives.component_specs import DIVERGENCES, KERNELS, LAYOUTS, replace_components
from contraport.objectives.loss_schedules import CONSTRAINTS

Z = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("base", "parts", "expected"),
    [
        (contraport.nt_xent(0.3), {"layout": "cross"}, contraport.info_nce(0.3)),
        (contraport.info_nce(0.3), {"layout": "joint"}, contraport.nt_xent(0.3)),
        (contraport.nt_xent(0.5), {"constraint": "balanced:iterations=5", "layout": "joint"}, contraport.gca_ince(0.5)),
        (contraport.gca_ince(0.5), {"divergence": "rince:q=0.6,lam=0.01"}, contraport.gca_rince(0.5)),
        (contraport.info_nce(0.3), {"layout": "cross:symmetric=false"}, contraport.info_nce(0.3, symmetric=False)),
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
    with pytest.warns(FutureWarning, match="all_views"):
        layout = contraport.Joint(together=True)
    assert layout == contraport.Joint(all_views=True)
    with pytest.warns(FutureWarning, match="all_views"):
        assert layout.together
