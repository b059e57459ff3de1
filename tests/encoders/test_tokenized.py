"""Models of transformers as encoders of texts: a tiny one with random weights, which each test writes itself."""

import json

import pytest
import torch

from contraport import embed, export, train
from contraport._utils.text_tensors import texts_to_tensor
from contraport.data import from_arrays
from contraport.encoders import Model, initial, pretrained
from contraport.encoders.build import build
from contraport.encoders.text_transformer import is_transformers_folder
from contraport.errors import UsageError
from contraport.features import read_features
from contraport.runs import Run

transformers = pytest.importorskip(
    "transformers", reason="the extra text, transformers and tokenizers, is not installed"
)
tokenizers = pytest.importorskip("tokenizers")
safetensors = pytest.importorskip("safetensors.torch")

TEXTS = [f"{color} {thing} {number}" for color in ("red", "blue") for thing in ("bag", "shoe") for number in range(5)]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *sorted({word for text in TEXTS for word in text.split()})]


def write_model(folder, *, kind="bert", seed=0, **more):
    """Write a model of two layers, and a tokenizer that knows the words of the texts."""
    torch.manual_seed(seed)
    words = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    if kind == "bert":
        words.post_processor = tokenizers.processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
        config = transformers.BertConfig(
            vocab_size=len(WORDS), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
            max_position_embeddings=12, **more,
        )  # fmt: skip
        special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    else:
        config = transformers.GPT2Config(
            vocab_size=len(WORDS), n_embd=16, n_layer=1, n_head=2, n_positions=12, bos_token_id=0, eos_token_id=0
        )
        special = {"eos_token": "[PAD]", "unk_token": "[UNK]"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, **special).save_pretrained(folder)
    network = transformers.AutoModel.from_config(config)
    network.save_pretrained(folder)
    return network.eval()


@pytest.fixture
def folder(tmp_path):
    write_model(tmp_path / "tiny")
    return tmp_path / "tiny"


@torch.no_grad()
def expected(folder, texts, pooling="mean"):
    """What a model gives of texts, one at a time, nothing padded."""
    network = transformers.AutoModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    states = [network(**tokenizer(text, return_tensors="pt")).last_hidden_state[0] for text in texts]
    pooled = {"mean": lambda state: state.mean(0), "first": lambda state: state[0], "last": lambda state: state[-1]}
    return torch.stack([pooled[pooling](state) for state in states])


@pytest.mark.parametrize("pooling", ["mean", "first", "last"])
@torch.no_grad()
def test_the_features_of_a_text_are_those_of_its_tokens(folder, pooling):
    texts = ["red bag 3", "blue", "blue shoe 1 red bag"]
    name = f"{folder}@{pooling}"
    encoder = build(name, ())
    pretrained(name).give(model := Model(name, [()]))
    got = model.tower(0).encoder.eval()(texts_to_tensor(texts))
    assert got.shape == (3, encoder.num_features) == (3, 16)
    assert torch.allclose(got, expected(folder, texts, pooling), atol=1e-5)
    assert not torch.allclose(encoder.eval()(texts_to_tensor(texts)), got, atol=1e-2)


@torch.no_grad()
def test_texts_are_cut_where_the_model_ends(folder):
    encoder = build(str(folder), ()).eval()
    assert encoder.length == 12
    assert encoder(texts_to_tensor(["red " * 99])).shape == (1, 16)
    assert torch.equal(encoder(texts_to_tensor(["red " * 99])), encoder(texts_to_tensor(["red " * 50])))


@torch.no_grad()
def test_a_tokenizer_without_padding_has_its_end_for_it(tmp_path):
    write_model(tmp_path / "gpt", kind="gpt2")
    encoder = build(str(tmp_path / "gpt"), ()).eval()
    both = encoder(texts_to_tensor(["red bag 3", "blue"]))
    assert torch.allclose(both[1], encoder(texts_to_tensor(["blue"]))[0], atol=1e-5)
    assert encoder(texts_to_tensor(["", ""])).isfinite().all()


def test_a_folder_of_sentence_transformers_says_how_tokens_are_pooled(folder):
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 7}))
    encoder = build(str(folder), ())
    assert (encoder.pooling, encoder.length) == ("first", 7)
    assert build(f"{folder}@mean", ()).pooling == "mean"
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 600}))
    assert build(str(folder), ()).length == 12


def test_another_pooling_than_the_one_that_is_said_can_be_named(folder):
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "max"}))
    with pytest.raises(UsageError, match="pools tokens by max"):
        build(str(folder), ())
    assert build(f"{folder}@mean", ()).pooling == "mean"


@pytest.mark.parametrize("pooling", ["mean", "cls", "lasttoken"])
@torch.no_grad()
def test_a_saved_model_of_sentence_transformers_gives_what_it_gives_there(folder, tmp_path, pooling):
    peer = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    saved = str(tmp_path / "saved")
    theirs = peer.SentenceTransformer(
        modules=[modules.Transformer(str(folder)), modules.Pooling(16, pooling_mode=pooling)], device="cpu"
    )
    theirs.max_seq_length = 7
    theirs.save(saved)
    pretrained(saved).give(model := Model(saved, [()]).eval())
    texts = ["red bag 3", "blue", "blue shoe 1 red bag 2 3 4 0 1"]
    assert torch.allclose(model.tower(0).encoder(texts_to_tensor(texts)), torch.tensor(theirs.encode(texts)), atol=1e-5)
    assert model.tower(0).encoder.length == 7


def test_what_follows_the_transformer_and_is_not_taken_is_told(folder, caplog):
    kinds = ["base.modules.Transformer", "modules.pooling.Pooling", "modules.dense.Dense", "modules.Normalize"]
    (folder / "modules.json").write_text(json.dumps([{"type": kind} for kind in kinds]))
    pretrained(str(folder))
    assert "and not what follows them, Dense" in caplog.text


@torch.no_grad()
def test_a_model_that_was_kept_in_half_precision_is_one_of_single(folder):
    half = transformers.AutoModel.from_pretrained(folder, dtype=torch.bfloat16)
    half.save_pretrained(folder)
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"
    pretrained(str(folder)).give(model := Model(str(folder), [()], projection=4))
    assert {value.dtype for value in model.parameters()} == {torch.float32}
    got = dict(model.tower(0).encoder.network.named_parameters())
    assert all(torch.equal(got[name], value.float()) for name, value in half.named_parameters())
    assert model.project(model.encode([texts_to_tensor(TEXTS[:2])]))[0].shape == (2, 4)


@torch.no_grad()
def test_places_that_nothing_can_stand_at_are_not_counted(folder):
    """The positions of RoBERTa begin behind that of its padding, so that twelve of them are places for ten tokens."""
    size = {"vocab_size": len(WORDS), "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.RobertaConfig(**size, intermediate_size=16, max_position_embeddings=12, pad_token_id=1)
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    encoder = build(str(folder), ()).eval()
    assert encoder.length == 10
    assert encoder(texts_to_tensor(["red " * 99])).isfinite().all()


def test_weights_that_are_not_all_there_are_told(folder):
    weights = safetensors.load_file(folder / "model.safetensors")
    pooler = {name: value for name, value in weights.items() if not name.startswith("pooler.")}
    assert len(pooler) < len(weights)
    safetensors.save_file(pooler, folder / "model.safetensors", {"format": "pt"})
    pretrained(str(folder))  # the features are made without it
    layers = {name: value for name, value in pooler.items() if "layer.1." not in name}
    safetensors.save_file(layers, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(UsageError, match=r"they lack 16 of the bert that its config.json tells of, such as encoder"):
        pretrained(str(folder))
    build(str(folder), ())


def test_a_tokenizer_of_another_model_is_told(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 5}))
    with pytest.raises(UsageError, match=r"tokens up to number 12, and the model knows 5; is the tokenizer another"):
        build(str(folder), ())


def test_a_tokenizer_that_cannot_make_texts_equally_long_is_told(folder):
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: number for number, word in enumerate(WORDS)}))
    transformers.PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)
    with pytest.raises(UsageError, match="has no token to put behind the shorter texts of a batch"):
        build(str(folder), ())


def test_a_model_that_is_not_told_where_a_text_ends_is_refused(folder):
    config = transformers.FNetConfig(vocab_size=len(WORDS), hidden_size=16, num_hidden_layers=1, intermediate_size=16)
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    with pytest.raises(UsageError, match="is a fnet, which is not told where a text ends"):
        build(str(folder), ())


def test_features_that_are_kept_are_those_of_one_way_to_read_texts(folder, tmp_path, caplog):
    def trained(name, encoder):
        data = from_arrays((TEXTS, TEXTS[::-1]), name="texts")
        caplog.clear()
        train(
            data=data, encoder=encoder, pretrained=True, freeze=True, shared_encoder=True, epochs=1, batch_size=5,
            features=tmp_path / "features", out=tmp_path / name, progress=False,
        )  # fmt: skip
        return "encoding" in caplog.text

    caplog.set_level("INFO")
    assert trained("first", str(folder))
    assert not trained("again", str(folder))
    assert trained("pooled", f"{folder}@first")
    tokenizer = folder / "tokenizer.json"
    told = json.loads(tokenizer.read_text())
    told["model"]["vocab"] |= {"red": WORDS.index("blue"), "blue": WORDS.index("red")}
    tokenizer.write_text(json.dumps(told))
    assert trained("other", f"{folder}@first")


@torch.no_grad()
def test_a_saved_model_needs_the_folder_no_more(folder, tmp_path):
    model = Model([f"{folder}@first", "small-text"], [(), ()]).eval()
    model.save_pretrained(tmp_path / "model")
    texts = texts_to_tensor(TEXTS[:3])
    expected = model(texts, texts)
    folder.rename(tmp_path / "moved")
    again = Model.from_pretrained(tmp_path / "model")
    assert torch.equal(again(texts, texts), expected)
    assert again.config["encoder"] == [f"{folder}@first", "small-text"]
    again.save_pretrained(tmp_path / "again")
    assert torch.equal(Model.from_pretrained(tmp_path / "again")(texts, texts), expected)


def test_training_begins_with_the_weights_and_ends_where_a_resumed_one_does(folder, tmp_path):
    def trained(name, epochs, **more):
        settings = {"data": from_arrays(TEXTS, name="texts"), "batch_size": 5, "augment": "none", "sched": "constant"}
        settings |= {"encoder": str(folder), "pretrained": True, "warmup_epochs": 0}
        return train(**settings, epochs=epochs, out=tmp_path / name, progress=False, **more)

    whole = trained("whole", 2)
    trained("parts", 1)
    parts = trained("parts", 2, resume=True)
    for (name, one), other in zip(whole.model().state_dict().items(), parts.model().state_dict().values(), strict=True):
        assert torch.equal(one, other), name
    begun = Model.from_pretrained(whole.initial_path).tower(0).encoder
    assert torch.equal(
        begun.network.embeddings.word_embeddings.weight,
        transformers.AutoModel.from_pretrained(folder).embeddings.word_embeddings.weight,
    )
    found = read_features(embed(parts.path, data=from_arrays(TEXTS), out=tmp_path / "f.npz", progress=False))
    assert found.features.shape == (20, 16)
    assert found.keys.tolist() == TEXTS


@pytest.mark.parametrize("given", [{}, {"pretrained": True}], ids=["drawn", "pretrained"])
def test_a_run_goes_on_without_the_folder(folder, tmp_path, given):
    def trained(name, **more):
        settings = {"data": from_arrays(TEXTS, name="texts"), "batch_size": 5, "augment": "none", "sched": "constant"}
        return train(**settings, warmup_epochs=0, out=tmp_path / name, progress=False, **more)

    whole = trained("whole", encoder=str(folder), epochs=2, **given)
    trained("parts", encoder=str(folder), epochs=1, **given)
    folder.rename(tmp_path / "moved")
    parts = trained("parts", epochs=2, resume=True)
    for (name, one), other in zip(whole.model().state_dict().items(), parts.model().state_dict().values(), strict=True):
        assert torch.equal(one, other), name
    assert parts.model_config()["encoder"] == [str(folder)]
    assert parts.settings().encoder == str(folder)


@pytest.mark.parametrize("by_view", [False, True])
def test_what_begins_with_a_run_is_built_of_what_the_run_keeps(folder, tmp_path, by_view):
    """Not of the folder that the run began with, which may be gone, or of another tokenizer since."""

    def trained(name, data, **given):
        return train(
            data=from_arrays(data, name="texts"), epochs=1, batch_size=5, out=tmp_path / name, progress=False, **given
        )

    first = trained("first", TEXTS, encoder=f"{folder}@first", pretrained=True)
    for name in ("tokenizer.json", "config.json"):
        (folder / name).write_text((folder / name).read_text().replace("red", "xyz").replace("gelu", "relu"))
    given = {"init": {"caption": first.path}} if by_view else {"init": first.path}
    photos = torch.zeros(20, 1, 8, 8, dtype=torch.uint8)
    data = {"photo": photos.numpy(), "caption": TEXTS} if by_view else TEXTS
    changed = trained("changed", data, **given)
    folder.rename(tmp_path / "moved")
    gone = trained("gone", data, **given)
    for run in (changed, gone):
        encoder = run.model().encoders[-1]
        assert repr(encoder) == repr(first.model().encoders[0])
        assert encoder.network.config.hidden_act == "gelu"
        assert run.settings().init is not None


def test_adapters_of_a_folder(folder, tmp_path):
    pytest.importorskip("peft")
    run = train(
        data=from_arrays((TEXTS, TEXTS[::-1])), init=folder, lora=2, shared_encoder=True, epochs=2,
        batch_size=5, out=tmp_path / "run", progress=False,
    )  # fmt: skip
    own = run.model().tower(0).encoder.network.state_dict()
    theirs = transformers.AutoModel.from_pretrained(folder).state_dict()
    assert own.keys() == theirs.keys()
    moved = {name for name, value in theirs.items() if not torch.equal(own[name], value)}
    assert moved == {
        name for name, value in theirs.items() if value.ndim == 2 and "embeddings" not in name and "pooler" not in name
    }


def test_a_frozen_encoder_stays_as_it_is(folder, tmp_path):
    run = train(
        data=from_arrays((TEXTS, TEXTS[::-1])), init=folder, freeze=True, shared_encoder=True, epochs=1, batch_size=5,
        out=tmp_path / "run", progress=False,
    )  # fmt: skip
    own = run.model().tower(0).encoder.network.state_dict()
    for name, value in transformers.AutoModel.from_pretrained(folder).state_dict().items():
        assert torch.equal(own[name], value), name
    assert Run(tmp_path / "run").settings().init == str(folder)


def test_the_encoders_of_some_views_begin_with_their_weights(folder):
    views = {"names": ("photo", "caption"), "shapes": [(1, 8, 8), ()]}
    for encoder in ({"caption": str(folder)}, ["small-cnn", str(folder)]):
        begun = pretrained(encoder)
        model = Model(encoder, views["shapes"], view_names=views["names"])
        drawn = model.tower(0).encoder.state_dict()
        drawn = {name: value.clone() for name, value in drawn.items()}
        begun.give(model)
        weights = model.tower(1).encoder.network.embeddings.word_embeddings.weight
        theirs = transformers.AutoModel.from_pretrained(folder).embeddings.word_embeddings.weight
        assert torch.equal(weights, theirs)
        assert all(torch.equal(value, drawn[name]) for name, value in model.tower(0).encoder.state_dict().items())
        given = [([0.0], [1.0]), ([], [])]
        assert begun.statistics(given, views["names"], views["shapes"]) == given


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        (("tokenizer.json", "tokenizer_config.json"), "the tokenizer of .* was looked for in that folder"),
        (("config.json",), "the model of .* was looked for in that folder"),
        (("model.safetensors",), "the weights of .* was looked for in that folder"),
    ],
    ids=["tokenizer", "config", "weights"],
)  # fmt: skip
def test_what_is_missing_is_told_in_one_line(folder, missing, message):
    for name in missing:
        (folder / name).unlink(missing_ok=True)
    with pytest.raises(UsageError, match=message) as caught:
        pretrained(str(folder))
    assert "\n" not in str(caught.value)


def test_a_tokenizer_is_exported_in_a_folder_alone(folder, tmp_path):
    model = Model(str(folder), [()])
    for kind in ("onnx", "torchscript"):
        with pytest.raises(UsageError, match="expected safetensors"):
            export(model, format=kind, out=tmp_path / "model")
    export(model, format="safetensors", out=tmp_path / "model")
    assert Model.from_pretrained(tmp_path / "model").shapes == ((),)


def test_what_does_not_fit_is_told(folder):
    with pytest.raises(UsageError, match="unknown name 'middle'"):
        build(f"{folder}@middle", ())
    with pytest.raises(UsageError, match="one encoder of texts, and the encoder is to be 'mlp'"):
        initial(folder, "mlp")
    assert is_transformers_folder(folder)
    assert not is_transformers_folder(folder.parent)
