"""Texts as tensors: round trip, conversion of containers, rejected characters, cut texts."""

import numpy as np
import pandas as pd
import pytest
import torch

from contraport._utils.text_bytes import (
    MAX_TEXT_BYTES,
    check_nonblank_texts,
    concatenate_batches,
    encode_truncated_utf8,
    tensor_to_texts,
    texts_or_none_if_no_strings,
    texts_to_tensor,
)
from tests.errors import raises_usage_error


def test_texts_round_trip():
    texts = ["a red bag", "", "größer", "日本語 🙂", " b "]
    assert tensor_to_texts(texts_to_tensor(texts)) == texts
    batches = [texts_to_tensor(texts), texts_to_tensor(["x" * 99])]
    assert tensor_to_texts(concatenate_batches(batches)) == [*texts, "x" * 99]


@pytest.mark.parametrize(
    "values",
    [
        ["a", "b", ""],
        np.array(["a", "b", ""]),
        np.array(["a", "b", None], dtype=object),
        pd.Series(["a", "b", None]),
        pd.Series(["a", "b", None], dtype="string"),
        ["a", "b", np.float32("nan")],
    ],
    ids=["list", "array", "objects", "series", "string series", "nan"],
)
def test_converts_containers_of_strings(values):
    assert texts_or_none_if_no_strings("views", values) == ["a", "b", ""]


@pytest.mark.parametrize("values", [[1, 2], np.ones(3), torch.ones(3), np.ones((2, 2)), "a b", [], None])
def test_returns_none_for_other_values(values):
    assert texts_or_none_if_no_strings("views", values) is None


@pytest.mark.parametrize(
    ("texts", "code", "row"),
    [(["a", "\ud800"], "texts.not_unicode", "row 1"), (["a\0b"], "texts.null_character", "row 0")],
    ids=["surrogate", "null"],
)
def test_rejects_characters_that_cannot_be_encoded(texts, code, row):
    with raises_usage_error(code, row):
        encode_truncated_utf8(texts)


def test_rejects_mixed_values_and_empty_texts():
    with raises_usage_error("views.mixed", 3, "row 1"):
        texts_or_none_if_no_strings("views", ["a", 3])
    with raises_usage_error("views.mixed", "row 1"):
        texts_or_none_if_no_strings("views", ["a", np.zeros(2)])
    with raises_usage_error("views.empty_text", "1 of 2", "row 1"):
        check_nonblank_texts("views", ["a", " "])


def test_long_texts_are_cut_between_letters_with_a_warning(caplog):
    (content,) = encode_truncated_utf8(["é" * MAX_TEXT_BYTES], "data: x.csv")
    assert content.decode() == "é" * (MAX_TEXT_BYTES // 2)
    (record,) = caplog.records
    assert record.args == ("data: x.csv", 1, 1, MAX_TEXT_BYTES, 0)
