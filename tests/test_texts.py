import numpy as np
import pandas as pd
import pytest
import torch

from contraport._utils.text_tensors import LONGEST, as_string_list, concatenated, decoded, encode_utf8, encoded
from contraport.errors import UsageError


def test_texts_come_back_from_their_bytes():
    texts = ["a red bag", "", "größer", "日本語 🙂", " b "]
    assert decoded(encoded(texts)) == texts
    assert decoded(concatenated([encoded(texts), encoded(["x" * 99])])) == [*texts, "x" * 99]


@pytest.mark.parametrize(
    "values",
    [["a", "b", ""], np.array(["a", "b", ""]), pd.Series(["a", "b", None]), np.array(["a", "b", None], dtype=object)],
    ids=["list", "array", "series", "objects"],
)
def test_strings_are_found_in_whatever_holds_them(values):
    assert as_string_list("views", values) == ["a", "b", ""]


@pytest.mark.parametrize("values", [[1, 2], np.ones(3), torch.ones(3), np.ones((2, 2)), "a b", [], None])
def test_what_holds_none_is_left_to_others(values):
    assert as_string_list("views", values) is None


@pytest.mark.parametrize(
    ("texts", "message"),
    [(["a", "\ud800"], "Unicode.*in row 1"), (["a\0b"], "null character, got one in row 0")],
    ids=["surrogate", "null"],
)
def test_strings_that_are_no_texts_are_told(texts, message):
    with pytest.raises(UsageError, match=message):
        encode_utf8(texts)


def test_long_texts_are_cut_between_letters_and_said(caplog):
    (own,) = encode_utf8(["é" * LONGEST], "data: x.csv")
    assert own.decode() == "é" * (LONGEST // 2)
    assert "data: x.csv: 1 of 1 texts are longer than 32768 bytes, and are cut there" in caplog.text
