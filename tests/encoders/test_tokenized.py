"""Text encoders from transformers models: tiny models with random weights."""

import json

import pytest
import torch
from tests.errors import raises_usage_error

from contraport import embed, export, train
from contraport._utils.text_bytes import texts_to_tensor
from contraport.data import from_arrays
from contraport.encoders import Model, load_pretrained_weights, read_initial_weights
from contraport.encoders.factory import build_encoder
from contraport.encoders.transformers_text_encoder import MAX_TOKENS_PER_PASS_BY_DEVICE
from contraport.feature_files import read_features
from contraport.runs import Run, as_run_folder

transformers = pytest.importorskip(
    "transformers", reason="the extra text, transformers and tokenizers, is not installed"
)
tokenizers = pytest.importorskip("tokenizers")
safetensors = pytest.importorskip("safetensors.torch")

TEXTS = [f"{color} {thing} {number}" for color in ("red", "blue") for thing in ("bag", "shoe") for number in range(5)]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *sorted({word for text in TEXTS for word in text.split()})]


def write_model(folder, *, kind="bert", seed=0, **options):
    """Write a small model with random weights, and a tokenizer whose vocabulary is the words of the texts."""
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
            max_position_embeddings=12, **options,
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
def compute_reference_features(folder, texts, pooling="mean"):
    """Compute reference features: one text at a time, without padding."""
    network = transformers.AutoModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    states = [network(**tokenizer(text, return_tensors="pt")).last_hidden_state[0] for text in texts]
    pooled = {"mean": lambda state: state.mean(0), "first": lambda state: state[0], "last": lambda state: state[-1]}
    return torch.stack([pooled[pooling](state) for state in states])


@pytest.mark.parametrize("budget", [1, 12, 20, 1000])
@pytest.mark.parametrize("pooling", ["mean", "first", "last"])
def test_token_budgets_change_neither_features_nor_gradients(folder, monkeypatch, pooling, budget):
    texts = ["red bag 3", "blue", "blue shoe 1 red bag", "", "red", "bag bag bag bag bag bag bag"]
    load_pretrained_weights(name := f"{folder}@{pooling}").load_into(model := Model(name, [()]))
    encoder = model.tower(0).encoder.eval()
    passes = []
    encoder.network.register_forward_pre_hook(
        lambda _, __, inputs: passes.append(inputs["input_ids"].shape), with_kwargs=True
    )
    results = []
    for tokens in (10**6, budget):
        monkeypatch.setitem(MAX_TOKENS_PER_PASS_BY_DEVICE, "cpu", tokens)
        encoder.zero_grad()
        features = encoder(texts_to_tensor(texts))
        features.square().sum().backward()
        results.append((features.detach(), [p.grad.clone() for p in encoder.parameters() if p.grad is not None]))
    in_one_pass, in_groups = results
    torch.testing.assert_close(in_groups[0], in_one_pass[0], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(in_groups[1], in_one_pass[1], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(
        in_one_pass[0][:3], compute_reference_features(folder, texts[:3], pooling), atol=1e-5, rtol=1e-5
    )
    first, *others = passes
    assert first[0] == sum(rows for rows, _ in others) == len(texts)
    assert all(rows * width <= budget or rows == 1 for rows, width in others)
    assert sum(rows * width for rows, width in others) <= first[0] * first[1]


@pytest.mark.parametrize("pooling", ["mean", "first", "last"])
@torch.no_grad()
def test_features_are_pooled_token_states(folder, pooling):
    texts = ["red bag 3", "blue", "blue shoe 1 red bag"]
    name = f"{folder}@{pooling}"
    encoder = build_encoder(name, ())
    load_pretrained_weights(name).load_into(model := Model(name, [()]))
    features = model.tower(0).encoder.eval()(texts_to_tensor(texts))
    assert features.shape == (3, encoder.num_features) == (3, 16)
    assert torch.allclose(features, compute_reference_features(folder, texts, pooling), atol=1e-5)
    assert not torch.allclose(encoder.eval()(texts_to_tensor(texts)), features, atol=1e-2)


@torch.no_grad()
def test_texts_are_truncated_to_the_model_length(folder):
    encoder = build_encoder(str(folder), ()).eval()
    assert encoder.length == 12
    assert encoder(texts_to_tensor(["red " * 99])).shape == (1, 16)
    assert torch.equal(encoder(texts_to_tensor(["red " * 99])), encoder(texts_to_tensor(["red " * 50])))


@torch.no_grad()
def test_end_token_pads_without_a_padding_token(tmp_path):
    write_model(tmp_path / "gpt", kind="gpt2")
    encoder = build_encoder(str(tmp_path / "gpt"), ()).eval()
    both = encoder(texts_to_tensor(["red bag 3", "blue"]))
    assert torch.allclose(both[1], encoder(texts_to_tensor(["blue"]))[0], atol=1e-5)
    assert encoder(texts_to_tensor(["", ""])).isfinite().all()


def test_reads_pooling_and_length_of_sentence_transformers(folder):
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 7}))
    encoder = build_encoder(str(folder), ())
    assert (encoder.pooling, encoder.length) == ("first", 7)
    assert build_encoder(f"{folder}@mean", ()).pooling == "mean"
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 600}))
    assert build_encoder(str(folder), ()).length == 12


def test_pooling_suffix_overrides_the_config(folder):
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "max"}))
    with raises_usage_error("encoder.unsupported_pooling", "max"):
        build_encoder(str(folder), ())
    assert build_encoder(f"{folder}@mean", ()).pooling == "mean"


@pytest.mark.parametrize(("file", "content"), [("sentence_bert_config.json", []), ("modules.json", {})])
def test_refuses_json_of_another_type(folder, file, content):
    (folder / file).write_text(json.dumps(content))
    with raises_usage_error("encoder.type", file):
        build_encoder(str(folder), ())
        load_pretrained_weights(str(folder))


@pytest.mark.parametrize("pooling", ["mean", "cls", "lasttoken"])
@torch.no_grad()
def test_features_match_sentence_transformers(folder, tmp_path, pooling):
    sentence_transformers = pytest.importorskip(
        "sentence_transformers", reason="sentence-transformers is not installed"
    )
    modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    saved = str(tmp_path / "saved")
    reference = sentence_transformers.SentenceTransformer(
        modules=[modules.Transformer(str(folder)), modules.Pooling(16, pooling_mode=pooling)], device="cpu"
    )
    reference.max_seq_length = 7
    reference.save(saved)
    load_pretrained_weights(saved).load_into(model := Model(saved, [()]).eval())
    texts = ["red bag 3", "blue", "blue shoe 1 red bag 2 3 4 0 1"]
    assert torch.allclose(
        model.tower(0).encoder(texts_to_tensor(texts)), torch.tensor(reference.encode(texts)), atol=1e-5
    )
    assert model.tower(0).encoder.length == 7


def test_warns_about_dropped_modules(folder, caplog):
    kinds = ["base.modules.Transformer", "modules.pooling.Pooling", "modules.dense.Dense", "modules.Normalize"]
    (folder / "modules.json").write_text(json.dumps([{"type": kind} for kind in kinds]))
    load_pretrained_weights(str(folder))
    assert caplog.records[-1].levelname == "WARNING"
    assert caplog.records[-1].args[-1] == "Dense"


@torch.no_grad()
def test_half_precision_weights_are_loaded_in_single(folder):
    half = transformers.AutoModel.from_pretrained(folder, dtype=torch.bfloat16)
    half.save_pretrained(folder)
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"
    load_pretrained_weights(str(folder)).load_into(model := Model(str(folder), [()], projection=4))
    assert {value.dtype for value in model.parameters()} == {torch.float32}
    features = dict(model.tower(0).encoder.network.named_parameters())
    assert all(torch.equal(features[name], value.float()) for name, value in half.named_parameters())
    assert model.project(model.encode([texts_to_tensor(TEXTS[:2])]))[0].shape == (2, 4)


@torch.no_grad()
def test_length_excludes_padding_positions_of_roberta(folder):
    """RoBERTa counts positions from its padding index + 1, so twelve position embeddings serve ten tokens."""
    size = {"vocab_size": len(WORDS), "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.RobertaConfig(**size, intermediate_size=16, max_position_embeddings=12, pad_token_id=1)
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    encoder = build_encoder(str(folder), ()).eval()
    assert encoder.length == 10
    assert encoder(texts_to_tensor(["red " * 99])).isfinite().all()


def test_rejects_incomplete_weights(folder):
    weights = safetensors.load_file(folder / "model.safetensors")
    without_pooler = {name: value for name, value in weights.items() if not name.startswith("pooler.")}
    assert len(without_pooler) < len(weights)
    safetensors.save_file(without_pooler, folder / "model.safetensors", {"format": "pt"})
    load_pretrained_weights(str(folder))  # the features do not need the pooler
    without_layer = {name: value for name, value in without_pooler.items() if "layer.1." not in name}
    safetensors.save_file(without_layer, folder / "model.safetensors", {"format": "pt"})
    with raises_usage_error("encoder.missing_weights", 16, "bert", "encoder.layer.1"):
        load_pretrained_weights(str(folder))
    build_encoder(str(folder), ())


def test_rejects_tokenizer_of_another_model(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 5}))
    with raises_usage_error("encoder.tokenizer_mismatch", 13, 5):
        build_encoder(str(folder), ())


def test_rejects_tokenizer_without_padding(folder):
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: number for number, word in enumerate(WORDS)}))
    transformers.PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)
    with raises_usage_error("encoder.no_padding", "pad_token"):
        build_encoder(str(folder), ())


def test_rejects_model_without_attention_mask(folder):
    config = transformers.FNetConfig(vocab_size=len(WORDS), hidden_size=16, num_hidden_layers=1, intermediate_size=16)
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    with raises_usage_error("encoder.unsupported_model", "fnet"):
        build_encoder(str(folder), ())


def test_feature_cache_depends_on_pooling_and_tokenizer(folder, tmp_path, caplog):
    def train_and_check_encoding(name, encoder):
        data = from_arrays((TEXTS, TEXTS[::-1]), name="texts")
        caplog.clear()
        train(
            data=data, encoder=encoder, pretrained=True, freeze=True, shared_encoder=True, epochs=1, batch_size=5,
            features=tmp_path / "features", out=tmp_path / name, progress=False,
        )  # fmt: skip
        return any(record.module == "feature_cache" for record in caplog.records)

    caplog.set_level("INFO")
    assert train_and_check_encoding("first", str(folder))
    assert not train_and_check_encoding("again", str(folder))
    assert train_and_check_encoding("pooled", f"{folder}@first")
    tokenizer = folder / "tokenizer.json"
    config = json.loads(tokenizer.read_text())
    config["model"]["vocab"] |= {"red": WORDS.index("blue"), "blue": WORDS.index("red")}
    tokenizer.write_text(json.dumps(config))
    assert train_and_check_encoding("other", f"{folder}@first")


@torch.no_grad()
def test_saved_model_does_not_need_the_original_folder(folder, tmp_path):
    model = Model([f"{folder}@first", "small-text"], [(), ()]).eval()
    model.save_pretrained(tmp_path / "model")
    texts = texts_to_tensor(TEXTS[:3])
    expected = model(texts, texts)
    folder.rename(tmp_path / "moved")
    loaded = Model.from_pretrained(tmp_path / "model")
    assert torch.equal(loaded(texts, texts), expected)
    assert loaded.config["encoder"] == [f"{folder}@first", "small-text"]
    loaded.save_pretrained(tmp_path / "loaded")
    assert torch.equal(Model.from_pretrained(tmp_path / "loaded")(texts, texts), expected)


def test_training_starts_from_the_weights_and_resumes_exactly(folder, tmp_path):
    def train_run(name, epochs, **options):
        settings = {
            "data": from_arrays(TEXTS, name="texts"),
            "batch_size": 5,
            "augment": "none",
            "lr_scheduler": "constant",
        }
        settings |= {"encoder": str(folder), "pretrained": True, "warmup_epochs": 0}
        return train(**settings, epochs=epochs, out=tmp_path / name, progress=False, **options)

    uninterrupted = train_run("uninterrupted", 2)
    train_run("resumed", 1)
    resumed = train_run("resumed", 2, resume=True)
    for (name, one), other in zip(
        uninterrupted.model().state_dict().items(), resumed.model().state_dict().values(), strict=True
    ):
        assert torch.equal(one, other), name
    weights = Model.from_pretrained(as_run_folder(uninterrupted).initial_path).tower(0).encoder
    assert torch.equal(
        weights.network.embeddings.word_embeddings.weight,
        transformers.AutoModel.from_pretrained(folder).embeddings.word_embeddings.weight,
    )
    result = read_features(embed(resumed.path, data=from_arrays(TEXTS), out=tmp_path / "f.npz", progress=False))
    assert result.features.shape == (20, 16)
    assert result.keys.tolist() == TEXTS


@pytest.mark.parametrize("options", [{}, {"pretrained": True}], ids=["random", "pretrained"])
def test_run_resumes_without_the_original_folder(folder, tmp_path, options):
    def train_run(name, **options):
        settings = {
            "data": from_arrays(TEXTS, name="texts"),
            "batch_size": 5,
            "augment": "none",
            "lr_scheduler": "constant",
        }
        return train(**settings, warmup_epochs=0, out=tmp_path / name, progress=False, **options)

    uninterrupted = train_run("uninterrupted", encoder=str(folder), epochs=2, **options)
    train_run("resumed", encoder=str(folder), epochs=1, **options)
    folder.rename(tmp_path / "moved")
    resumed = train_run("resumed", epochs=2, resume=True)
    for (name, one), other in zip(
        uninterrupted.model().state_dict().items(), resumed.model().state_dict().values(), strict=True
    ):
        assert torch.equal(one, other), name
    assert as_run_folder(resumed).read_model_config()["encoder"] == [str(folder)]
    assert resumed.settings().encoder == str(folder)


@pytest.mark.parametrize("by_view", [False, True])
def test_initialization_from_a_run_uses_the_files_of_the_run(folder, tmp_path, by_view):
    """The folder that the run started from may be missing or contain another tokenizer by then."""

    def train_run(name, data, **options):
        return train(
            data=from_arrays(data, name="texts"), epochs=1, batch_size=5, out=tmp_path / name, progress=False, **options
        )

    first = train_run("first", TEXTS, encoder=f"{folder}@first", pretrained=True)
    for name in ("tokenizer.json", "config.json"):
        (folder / name).write_text((folder / name).read_text().replace("red", "xyz").replace("gelu", "relu"))
    options = {"init": {"caption": first.path}} if by_view else {"init": first.path}
    photos = torch.zeros(20, 1, 8, 8, dtype=torch.uint8)
    data = {"photo": photos.numpy(), "caption": TEXTS} if by_view else TEXTS
    changed = train_run("changed", data, **options)
    folder.rename(tmp_path / "moved")
    after_move = train_run("after_move", data, **options)
    for run in (changed, after_move):
        encoder = run.model().encoders[-1]
        assert repr(encoder) == repr(first.model().encoders[0])
        assert encoder.network.config.hidden_act == "gelu"
        assert run.settings().init is not None


def test_adapters_of_a_text_transformer(folder, tmp_path):
    pytest.importorskip("peft")
    run = train(
        data=from_arrays((TEXTS, TEXTS[::-1])), init=folder, lora=2, shared_encoder=True, epochs=2,
        batch_size=5, out=tmp_path / "run", progress=False,
    )  # fmt: skip
    actual = run.model().tower(0).encoder.network.state_dict()
    reference = transformers.AutoModel.from_pretrained(folder).state_dict()
    assert actual.keys() == reference.keys()
    moved = {name for name, value in reference.items() if not torch.equal(actual[name], value)}
    assert moved == {
        name
        for name, value in reference.items()
        if value.ndim == 2 and "embeddings" not in name and "pooler" not in name
    }


def test_frozen_encoder_is_unchanged(folder, tmp_path):
    run = train(
        data=from_arrays((TEXTS, TEXTS[::-1])), init=folder, freeze=True, shared_encoder=True, epochs=1, batch_size=5,
        out=tmp_path / "run", progress=False,
    )  # fmt: skip
    actual = run.model().tower(0).encoder.network.state_dict()
    for name, value in transformers.AutoModel.from_pretrained(folder).state_dict().items():
        assert torch.equal(actual[name], value), name
    assert Run(tmp_path / "run").settings().init == str(folder)


def test_pretrained_weights_of_some_views(folder):
    views = {"names": ("photo", "caption"), "shapes": [(1, 8, 8), ()]}
    for encoder in ({"caption": str(folder)}, ["small-cnn", str(folder)]):
        initial = load_pretrained_weights(encoder)
        model = Model(encoder, views["shapes"], view_names=views["names"])
        initial_state = model.tower(0).encoder.state_dict()
        initial_state = {name: value.clone() for name, value in initial_state.items()}
        initial.load_into(model)
        weights = model.tower(1).encoder.network.embeddings.word_embeddings.weight
        reference = transformers.AutoModel.from_pretrained(folder).embeddings.word_embeddings.weight
        assert torch.equal(weights, reference)
        assert all(
            torch.equal(value, initial_state[name]) for name, value in model.tower(0).encoder.state_dict().items()
        )
        statistics = [([0.0], [1.0]), ([], [])]
        assert initial.resolve_input_statistics(statistics, views["names"], views["shapes"]) == statistics


@pytest.mark.parametrize(
    ("missing", "part"),
    [
        (("tokenizer.json", "tokenizer_config.json"), "tokenizer"),
        (("config.json",), "model"),
        (("model.safetensors",), "weights"),
    ],
    ids=["tokenizer", "config", "weights"],
)  # fmt: skip
def test_error_names_the_missing_part_in_one_line(folder, missing, part):
    for name in missing:
        (folder / name).unlink(missing_ok=True)
    with raises_usage_error("encoder.not_loaded", f"the {part} of", folder) as caught:
        load_pretrained_weights(str(folder))
    assert "\n" not in str(caught.value)
    assert "Without a network" not in str(caught.value)


def test_error_names_encoders_that_need_no_network(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with raises_usage_error("encoder.not_loaded", "no-such/model", "local folder", "encoder='small-text'"):
        load_pretrained_weights("no-such/model")


def test_tokenizer_requires_export_to_a_folder(folder, tmp_path):
    model = Model(str(folder), [()])
    for kind in ("onnx", "torchscript"):
        with raises_usage_error("format.tokenizer", "safetensors"):
            export(model, format=kind, out=tmp_path / "model")
    export(model, format="safetensors", out=tmp_path / "model")
    assert Model.from_pretrained(tmp_path / "model").shapes == ((),)


def test_rejects_unknown_pooling_and_other_encoders(folder):
    with raises_usage_error("encoder.unknown", "'middle'"):
        build_encoder(f"{folder}@middle", ())
    with raises_usage_error("init.other_encoder", "'mlp'"):
        read_initial_weights(folder, "mlp")
    with raises_usage_error("encoder.shape", "'text'"):
        build_encoder(str(folder), (3, 32, 32))
    with raises_usage_error("encoder.unknown"):
        build_encoder(str(folder.parent), (3, 32, 32))
