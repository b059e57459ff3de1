"""Pooling of token states, with a stub network and tokenizer instead of transformers."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.errors import raises_usage_error
from torch import nn

from contraport._utils.text_bytes import texts_to_tensor
from contraport.encoders import Model
from contraport.encoders.initial_weights import read_initial_weights
from contraport.encoders.transformers_text_encoder import TransformersTextEncoder, _read_pooling


class TokenIdNetwork(nn.Module):
    """Stub network: the state of a token is its id and its position, also for padding."""

    def __init__(self, padding_idx=None):
        super().__init__()
        self.config = SimpleNamespace(hidden_size=2, max_position_embeddings=6)
        self.position_embeddings = nn.Embedding(6, 2, padding_idx=padding_idx)

    def forward(self, input_ids, attention_mask):
        positions = torch.arange(input_ids.shape[1]).expand_as(input_ids)
        return SimpleNamespace(last_hidden_state=torch.stack([input_ids, positions], 2).float())


class WordLengthTokenizer:
    """Stub tokenizer: the token of a word is its length, padding is 9."""

    pad_token, pad_token_id, model_max_length, is_fast, special_tokens_map = "#", 9, 100, False, {"pad_token": "#"}

    def __call__(self, texts, max_length, **_):
        rows = [[len(word) for word in text.split()][:max_length] for text in texts]
        longest = max(map(len, rows))
        tokens = [row + [9] * (longest - len(row)) for row in rows]
        mask = [[1] * len(row) + [0] * (longest - len(row)) for row in rows]
        return {"input_ids": torch.tensor(tokens), "attention_mask": torch.tensor(mask)}

    def get_vocab(self):
        return {"#": 9}


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [("mean", [[2, 1], [4, 0]]), ("first", [[1, 0], [4, 0]]), ("last", [[3, 2], [4, 0]])],
)
def test_padding_is_not_pooled(pooling, expected):
    encoder = TransformersTextEncoder(TokenIdNetwork(), WordLengthTokenizer(), pooling)
    assert encoder(texts_to_tensor(["a bb ccc", "dddd"])).tolist() == expected


@pytest.mark.parametrize(
    ("padding", "requested_length", "expected_length"), [(None, None, 6), (1, None, 4), (1, 3, 3), (1, 600, 4)]
)
def test_length_is_limited_by_the_position_embeddings(padding, requested_length, expected_length):
    encoder = TransformersTextEncoder(TokenIdNetwork(padding), WordLengthTokenizer(), "last", requested_length)
    assert encoder.length == expected_length
    assert encoder(texts_to_tensor(["a " * 9])).tolist() == [[1, expected_length - 1]]


def test_repr_depends_on_pooling_length_and_tokenizer():
    options = [{}, {"pooling": "first"}, {"length": 3}]
    assert (
        len({repr(TransformersTextEncoder(TokenIdNetwork(), WordLengthTokenizer(), **kwargs)) for kwargs in options})
        == 3
    )
    other = WordLengthTokenizer()
    other.get_vocab = lambda: {"#": 8}
    assert repr(TransformersTextEncoder(TokenIdNetwork(), other)) != repr(
        TransformersTextEncoder(TokenIdNetwork(), WordLengthTokenizer())
    )


class Scaled(TransformersTextEncoder):
    """Custom encoder with a weight that transformers does not save."""

    def __init__(self):
        super().__init__(TokenIdNetwork(), WordLengthTokenizer())
        self.gain = nn.Parameter(torch.ones(2))

    def forward(self, text_bytes):
        return super().forward(text_bytes) * self.gain


def test_custom_text_encoder_is_loaded_into_the_passed_module(tmp_path, monkeypatch):
    monkeypatch.setattr(Scaled, "save_config_and_tokenizer", lambda self, folder: folder.mkdir())
    model = Model(Scaled(), [()], projection=0).eval()
    with torch.no_grad():
        model.tower(0).encoder.gain.copy_(torch.tensor([3.0, 5.0]))
    model.save_pretrained(tmp_path / "model")
    loaded = Model.from_pretrained(tmp_path / "model", encoder=Scaled())
    assert type(loaded.tower(0).encoder) is Scaled
    assert loaded(texts_to_tensor(["a bb ccc"])).tolist() == [[6, 5]]
    (weights,) = read_initial_weights(tmp_path / "model", Scaled()).encoders
    assert (weights.transformers_folder, weights.state_dict["gain"].tolist()) == (None, [3, 5])


@pytest.mark.parametrize(
    ("config", "pooling"),
    [
        ({"pooling_mode": "cls"}, "first"),
        ({"pooling_mode": "mean"}, "mean"),
        ({"pooling_mode": ["lasttoken"]}, "last"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "first"),
        ({"pooling_mode_lasttoken": True}, "last"),
        ({}, "mean"),
        ({"pooling_mode": "max"}, None),
        ({"pooling_mode_max_tokens": True}, None),
        ({"pooling_mode": ["mean", "cls"]}, None),
    ],
    ids=str,
)
def test_reads_all_forms_of_the_pooling_config(tmp_path, config, pooling):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"embedding_dimension": 16} | config))
    package = SimpleNamespace(utils=SimpleNamespace(cached_file=lambda where, name: str(file)))
    if pooling is None:
        with raises_usage_error("encoder.unsupported_pooling", "mean, cls, lasttoken"):
            _read_pooling("user/name", package)
    else:
        assert _read_pooling("user/name", package) == pooling


def test_pooling_defaults_to_the_mean():
    def raise_not_found(where, name):
        raise OSError(f"{where} has no {Path(name)}")

    assert _read_pooling("user/name", SimpleNamespace(utils=SimpleNamespace(cached_file=raise_not_found))) == "mean"
