import pytest
import torch

from contraport._utils.text_tensors import concatenate_batches, texts_to_tensor
from contraport.encoders import Model
from contraport.encoders.build import build
from contraport.encoders.small_text import BUCKETS, PIECES, NgramHasher, SmallText, vectorize_texts
from contraport.errors import UsageError

TEXTS = ["a red bag", "A RED BAG", "bag red a", "größer als 日本語", "x"]


def numbers(text):
    words, are_words, pieces, are_pieces = NgramHasher()(texts_to_tensor([text, "padding " * 9]))
    return words[0][are_words[0]].tolist(), pieces[0][are_pieces[0]].tolist()


def test_equal_words_and_pieces_have_equal_numbers_wherever_they_stand():
    (first, second), pieces = numbers("red bag")
    assert numbers("a bag, red  bag\n")[0][2:] == [first, second]
    assert numbers("RED BAG") == ([first, second], pieces)
    assert len({first, second, *numbers("bags reds")[0]}) == 4
    assert len(pieces) == sum(len(" red bag ") - size + 1 for size in PIECES)
    assert set(numbers("bag")[1]) < {*numbers("my bag is")[1], *numbers("bag")[1]}
    assert all(0 <= number < BUCKETS for number in pieces)


def test_numbers_of_words_are_those_of_plain_arithmetic():
    base = 0x9E3779B97F4A7C15
    word = b"bag"
    total = sum(sign * base**place for place, sign in enumerate(word)) % 2**64
    assert numbers("my bag")[0][1] == (total - 2**64 if total >= 2**63 else total) % BUCKETS


@torch.no_grad()
def test_what_is_behind_a_text_changes_nothing():
    encoder = SmallText(()).eval()
    alone, among = encoder(texts_to_tensor(["a red bag"])), encoder(texts_to_tensor(["a red bag", "long " * 99]))
    assert torch.allclose(alone[0], among[0], atol=1e-6)
    assert encoder(torch.zeros(2, 1, dtype=torch.uint8)).isfinite().all()


def test_two_passes_in_training_differ():
    encoder = SmallText(()).train()
    items = texts_to_tensor(TEXTS)
    assert not torch.equal(encoder(items), encoder(items))
    assert torch.equal(encoder.eval()(items), encoder(items))


def test_raw_texts_are_alike_as_they_share_words_and_pieces():
    bags = vectorize_texts(texts_to_tensor(["a red bag", "A RED BAG", "a red cap", "blue shoes"]), 4096)
    alike = bags @ bags.T
    assert alike[0, 1] == pytest.approx(1)
    assert alike[0, 1] > alike[0, 2] > alike[0, 3]


def test_a_tower_of_texts_is_saved_and_read(tmp_path):
    model = Model(shapes=[(), (5,)], projection=16).eval()
    views = texts_to_tensor(TEXTS), torch.ones(5, 5)
    model.save_pretrained(tmp_path / "model")
    again = Model.from_pretrained(tmp_path / "model")
    assert again.shapes == ((), (5,))
    assert torch.equal(again(*views), model(*views))


def test_two_columns_of_texts_pass_a_shared_tower_together():
    model = Model(shapes=[(), ()], shared=True).train()
    one, other = texts_to_tensor(TEXTS), texts_to_tensor([text * 3 for text in TEXTS])
    torch.manual_seed(0)
    first, second = model.encode([one, other])
    torch.manual_seed(0)
    assert torch.equal(torch.cat([first, second]), model.tower(0)(concatenate_batches([one, other])))


@pytest.mark.parametrize(
    ("name", "message"),
    [("mlp", "'mlp' takes numbers, got texts"), ("small-cnn", "'small-text' for texts"), ("small-tcn", "for texts")],
)
def test_encoders_of_numbers_refuse_texts(name, message):
    with pytest.raises(UsageError, match=message):
        build(name, ())


def test_the_encoder_of_texts_refuses_numbers():
    with pytest.raises(UsageError, match=r"'small-text' takes texts, got items of shape \(3, 8, 8\)"):
        build("small-text", (3, 8, 8))
