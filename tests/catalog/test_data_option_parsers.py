"""Parsers of augmentation options: names, strengths, errors."""

from __future__ import annotations

import pytest
from tests.errors import raises_usage_error

from contraport.catalog.data_option_parsers import AUGMENT_NAMES, parse_augment


@pytest.mark.parametrize("name", AUGMENT_NAMES)
def test_parses_names(name: str) -> None:
    assert parse_augment(name) == (name, None)


@pytest.mark.parametrize(("text", "strength"), [("noise:0.2", 0.2), ("noise:3", 3.0), ("mixup:strength=1", 1.0)])
def test_parses_strength_after_colon(text: str, strength: float) -> None:
    assert parse_augment(text).strength == strength


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("niose:0.2", "unknown"),
        ("strong:2", "bad_setting"),
        ("noise:", "no_strength"),
        ("strong:", "no_strength"),
        ("noise:-1", "invalid"),
        ("noise:nan", "invalid"),
        ("noise:inf", "invalid"),
        ("noise:much", "invalid"),
        ("mixup:1.5", "invalid"),
        ("mixup:0", "invalid"),
        ("noise:0.1,0.2", "bad_setting"),
        ("noise:0.1,strength=0.2", "duplicate_setting"),
        ("noise:sigma=0.2", "unknown"),
        (3, "unknown"),
        ("", "unknown"),
    ],
)
def test_rejects_invalid_specs(text: object, code: str) -> None:
    with raises_usage_error(f"augment.{code}"):
        parse_augment(text)
