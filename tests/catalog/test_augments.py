"""A random change is named, with a strength where it has one number."""

from __future__ import annotations

import pytest

from contraport import UsageError
from contraport.catalog.augment_specs import AUGMENTS, parse_augment


@pytest.mark.parametrize("name", AUGMENTS)
def test_each_name_stands_for_itself(name: str) -> None:
    assert parse_augment(name) == (name, None)


@pytest.mark.parametrize(("text", "strength"), [("noise:0.2", 0.2), ("noise:3", 3.0), ("mixup:strength=1", 1.0)])
def test_a_strength_follows_a_colon(text: str, strength: float) -> None:
    assert parse_augment(text).strength == strength


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("niose:0.2", "did you mean 'noise'"),
        ("strong:2", "augment: expected strong, which has no settings, got 'strong:2'"),
        ("noise:", "augment: expected a name, or noise:0.2 or mixup:0.5, got 'noise:'"),
        ("strong:", "augment: expected a name"),
        ("noise:-1", "augment: expected a positive number as the strength of noise, got 'noise:-1'"),
        ("noise:nan", "expected a positive number"),
        ("noise:inf", "expected a positive number"),
        ("noise:much", "expected a positive number"),
        ("mixup:1.5", "expected a number above 0, at most 1, as the strength of mixup, got 'mixup:1.5'"),
        ("mixup:0", "expected a number above 0"),
        ("noise:0.1,0.2", "augment: expected noise:setting=value"),
        ("noise:0.1,strength=0.2", "augment: expected strength once"),
        ("noise:sigma=0.2", "augment: setting of noise: unknown name 'sigma'"),
        (3, "augment: unknown name '3'"),
        ("", "augment: unknown name ''"),
    ],
)
def test_what_is_none_is_told(text: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_augment(text)
