import pytest
import torch
from tests.errors import raises_usage_error

import contraport
from contraport._utils.text_bytes import concatenate_batches, texts_to_tensor
from contraport.encoders import Model
from contraport.encoders.builtin_networks import (
    LOG_WEIGHT_SCALE,
    NGRAM_SIZES,
    NUM_HASH_BUCKETS,
    NgramEmbeddingTextEncoder,
    WeightedNgramCountEncoder,
    WordAndNgramHasher,
    vectorize_texts,
)
from contraport.encoders.factory import build_encoder

TEXTS = ["a red bag", "A RED BAG", "bag red a", "größer als 日本語", "x"]


def hash_text(text, sizes=NGRAM_SIZES):
    pairs = WordAndNgramHasher(sizes)(texts_to_tensor([text, "padding " * 9]))
    return tuple(result[0][mask[0]].tolist() for result, mask in pairs)


def test_equal_words_and_ngrams_have_equal_hashes_at_any_position():
    (first, second), ngrams = hash_text("red bag")
    assert hash_text("a bag, red  bag\n")[0][2:] == [first, second]
    assert hash_text("RED BAG") == ([first, second], ngrams)
    assert len({first, second, *hash_text("bags reds")[0]}) == 4
    assert len(ngrams) == sum(len(" red bag ") - size + 1 for size in NGRAM_SIZES)
    assert set(hash_text("bag")[1]) < {*hash_text("my bag is")[1], *hash_text("bag")[1]}
    assert all(0 <= number < NUM_HASH_BUCKETS for number in ngrams)


def test_hashes_of_words_match_plain_arithmetic():
    base = 0x9E3779B97F4A7C15
    word = b"bag"
    total = sum(sign * base**place for place, sign in enumerate(word)) % 2**64
    assert hash_text("my bag")[0][1] == (total - 2**64 if total >= 2**63 else total) % NUM_HASH_BUCKETS


@torch.no_grad()
def test_features_do_not_depend_on_padding():
    encoder = NgramEmbeddingTextEncoder(()).eval()
    single, padded = encoder(texts_to_tensor(["a red bag"])), encoder(texts_to_tensor(["a red bag", "long " * 99]))
    assert torch.allclose(single[0], padded[0], atol=1e-6)
    assert encoder(torch.zeros(2, 1, dtype=torch.uint8)).isfinite().all()


def test_dropout_is_active_only_in_training():
    encoder = NgramEmbeddingTextEncoder(()).train()
    items = texts_to_tensor(TEXTS)
    assert not torch.equal(encoder(items), encoder(items))
    assert torch.equal(encoder.eval()(items), encoder(items))


def test_similarity_grows_with_shared_words_and_ngrams():
    bags = vectorize_texts(texts_to_tensor(["a red bag", "A RED BAG", "a red cap", "blue shoes"]), 4096)
    similarities = bags @ bags.T
    assert similarities[0, 1] == pytest.approx(1)
    assert similarities[0, 1] > similarities[0, 2] > similarities[0, 3]


def test_text_tower_is_saved_and_loaded(tmp_path):
    model = Model(shapes=[(), (5,)], projection=16).eval()
    views = texts_to_tensor(TEXTS), torch.ones(5, 5)
    model.save_pretrained(tmp_path / "model")
    loaded = Model.from_pretrained(tmp_path / "model")
    assert loaded.shapes == ((), (5,))
    assert torch.equal(loaded(*views), model(*views))


def test_shared_tower_encodes_both_text_views_in_one_batch():
    model = Model(shapes=[(), ()], shared=True).train()
    one, other = texts_to_tensor(TEXTS), texts_to_tensor([text * 3 for text in TEXTS])
    torch.manual_seed(0)
    first, second = model.encode([one, other])
    torch.manual_seed(0)
    assert torch.equal(torch.cat([first, second]), model.tower(0)(concatenate_batches([one, other])))


@pytest.mark.parametrize("name", ["mlp", "small-cnn", "small-tcn"])
def test_numeric_encoders_reject_texts(name):
    with raises_usage_error("encoder.shape", name, "small-text"):
        build_encoder(name, ())


@pytest.mark.parametrize("name", ["small-text", "weighted-ngrams", "short-ngrams"])
def test_text_encoder_rejects_images(name):
    with raises_usage_error("encoder.shape", name, (3, 8, 8)):
        build_encoder(name, (3, 8, 8))


@torch.no_grad()
def test_weighted_ngrams_start_at_raw_counts_and_scale_each_hash():
    encoder = WeightedNgramCountEncoder(()).eval()
    batch = texts_to_tensor([*TEXTS, ""])
    assert torch.equal(encoder(batch), vectorize_texts(batch, encoder.num_features))
    torch.nn.init.normal_(encoder.log_weights.weight, std=0.03)
    weights = torch.exp(LOG_WEIGHT_SCALE * encoder.log_weights.weight.double().flatten())
    for text, features in zip(TEXTS, encoder(batch), strict=False):
        expected = torch.zeros(encoder.num_features, dtype=torch.double)
        for number in [*hash_text(text)[0], *hash_text(text)[1]]:
            expected[number % encoder.num_features] += weights[number]
        assert torch.allclose(features.double(), expected / expected.norm(), atol=1e-6)
    assert encoder.forward_tokens(texts_to_tensor(["a red bag"])).shape == (1, 3, encoder.num_features)


@torch.no_grad()
def test_short_ngrams_count_words_and_ngrams_of_two_to_four_bytes():
    encoder = build_encoder("short-ngrams", ()).eval()
    words, ngrams = hash_text("ann lee", (2, 3, 4))
    assert len(ngrams) == sum(len(" ann lee ") - size + 1 for size in (2, 3, 4))
    counts = torch.bincount(torch.tensor([*words, *ngrams]) % encoder.num_features, minlength=encoder.num_features)
    features = encoder(texts_to_tensor(["ann lee", "stefan meier", "stephan maier"]))
    torch.testing.assert_close(features[0], torch.nn.functional.normalize(counts.float(), dim=0))
    longer = WeightedNgramCountEncoder(()).eval()(texts_to_tensor(["stefan meier", "stephan maier"]))
    assert features[1] @ features[2] > 1.5 * longer[0] @ longer[1]


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weighted_ngrams_in_half_precision(dtype):
    encoder, batch = WeightedNgramCountEncoder(()).eval(), texts_to_tensor([*TEXTS, ""])
    torch.nn.init.constant_(encoder.log_weights.weight, 12 / LOG_WEIGHT_SCALE)  # beyond the range of float16
    torch.testing.assert_close(encoder.to(dtype)(batch), vectorize_texts(batch, encoder.num_features).to(dtype))


def test_weighted_ngrams_learn_discriminative_words():
    rare = [f"w{number * 7919}" for number in range(64)]
    one, other = (texts_to_tensor([f"{start} {word} library" for word in rare]) for start in ("the", "my"))
    torch.manual_seed(0)
    encoder = WeightedNgramCountEncoder(())
    optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-3)
    for _ in range(30):
        optimizer.zero_grad()
        contraport.info_nce(temperature=0.1)(encoder(one), encoder(other)).backward()
        optimizer.step()
    weights = encoder.log_weights.weight.detach().flatten()
    rare_weights = weights[[hash_text(word)[0][0] for word in rare]]
    assert weights[hash_text("library")[0][0]] < rare_weights.min()
    assert rare_weights.mean() > 0
