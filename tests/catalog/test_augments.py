"""A random change is named, with a strength where it has one number."""

from __future__ import annotations

import pytest
from tests.errors import raises_usage_error

from contraport.catalog.augment_specs import AUGMENTS, parse_augment


@pytest.mark.parametrize("name", AUGMENTS)
def test_each_name_stands_for_itself(name: str) -> None:
    assert parse_augment(name) == (name, None)


@pytest.mark.parametrize(("text", "strength"), [("noise:0.2", 0.2), ("noise:3", 3.0), ("mixup:strength=1", 1.0)])
def test_a_strength_follows_a_colon(text: str, strength: float) -> None:
    assert parse_augment(text).strength == strength


@pytest.mark.parametrize(
    ("text", "code", "value"),
    [
        ("niose:0.2", "augment.unknown", "'noise'"),
        ("strong:2", "augment.bad_setting", "'strong:2'"),
        ("noise:", "augment.invalid", "'noise:'"),
        ("strong:", "augment.invalid", ""),
        ("noise:-1", "augment.invalid", "'noise:-1'"),
        ("noise:nan", "augment.invalid", ""),
        ("noise:inf", "augment.invalid", ""),
        ("noise:much", "augment.invalid", ""),
        ("mixup:1.5", "augment.invalid", "'mixup:1.5'"),
        ("mixup:0", "augment.invalid", ""),
        ("noise:0.1,0.2", "augment.bad_setting", ""),
        ("noise:0.1,strength=0.2", "augment.duplicate_setting", ""),
        ("noise:sigma=0.2", "augment.unknown", "'sigma'"),
        (3, "augment.unknown", "'3'"),
        ("", "augment.unknown", "''"),
    ],
)
def test_what_is_none_is_told(text: object, code, value) -> None:
    with raises_usage_error(code, value):
        parse_augment(text)
