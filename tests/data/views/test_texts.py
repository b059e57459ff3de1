import pytest
import torch
from tests.errors import raises_usage_error

from contraport._utils.text_bytes import tensor_to_texts, texts_to_tensor
from contraport.data import LocalBatchOffset, Views, from_arrays
from contraport.data.views.random_draws import RandomDraws
from contraport.data.views.text_views import TEXT_STRENGTH_BY_NAME, RandomWordCropAndDeletionOnTextBytes, TextStrength

TEXTS_ = ["one two three four five six seven eight nine ten", "lone", "日本語 で す", "two words"]


def augment(texts, strength, seed=0):
    torch.manual_seed(seed)
    items = texts_to_tensor(texts)
    return tensor_to_texts(RandomWordCropAndDeletionOnTextBytes(strength)(items, RandomDraws(len(items), None)))


def is_within(part, texts):
    rest = iter(texts)
    return all(word in rest for word in part)


@pytest.mark.parametrize("strength", TEXT_STRENGTH_BY_NAME)
def test_a_view_has_at_least_one_word_of_its_text_in_order(strength):
    for seed in range(20):
        for text, view in zip(TEXTS_, augment(TEXTS_, TEXT_STRENGTH_BY_NAME[strength], seed), strict=True):
            assert view
            assert is_within(list(view.replace(" ", "")), list(text.replace(" ", "")))
            assert view == view.strip()


def test_a_span_is_cut_out():
    text = TEXTS_[0].split()
    lengths = set()
    for seed in range(30):
        words = augment([TEXTS_[0]], TextStrength(min_span_fraction=0.5, deletion_probability=0), seed)[0].split()
        first = text.index(words[0])
        assert words == text[first : first + len(words)]
        lengths.add(len(words))
    assert min(lengths) >= 5
    assert len(lengths) > 3


def test_words_are_deleted_with_the_given_probability():
    long = " ".join(f"w{number}" for number in range(1000))
    shortened = augment([long] * 20, TextStrength(min_span_fraction=1, deletion_probability=0.3))
    shares = [len(view.split()) / 1000 for view in shortened]
    assert 0.68 < sum(shares) / 20 < 0.72
    assert len(set(shortened)) == 20


def test_scripts_without_spaces_are_split_into_characters():
    views = {
        augment(["日本語です"], TextStrength(min_span_fraction=1, deletion_probability=0.5), seed)[0]
        for seed in range(10)
    }
    assert len(views) > 3


def test_text_views_in_several_processes_equal_those_in_one():
    views = Views(from_arrays(TEXTS_), augment="strong")
    texts = texts_to_tensor(TEXTS_)
    torch.manual_seed(3)
    expected = [tensor_to_texts(view) for view in views((texts,))]
    parts = []
    for start in (0, 2):
        torch.manual_seed(3)
        own = texts_to_tensor(TEXTS_[start : start + 2])  # the longest text differs from that of the whole batch
        parts.append([tensor_to_texts(view) for view in views((own,), LocalBatchOffset(start, 4))])
    assert [first + second for first, second in zip(*parts, strict=True)] == expected


def test_zero_strength_gives_equal_texts():
    views = Views(from_arrays(TEXTS_), augment="none")
    assert [tensor_to_texts(view) for view in views((texts_to_tensor(TEXTS_),))] == [TEXTS_, TEXTS_]


@pytest.mark.parametrize("augment", ["noise", "mixup", "noise:0.2"])
def test_rejects_numeric_changes_of_texts(augment):
    with raises_usage_error("augment.text_view", "arrays"):
        Views(from_arrays(TEXTS_), augment=augment)
