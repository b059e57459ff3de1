"""Adapter to the trainer of sentence-transformers: values and gradients of losses, and training steps."""

import importlib

import pytest
import torch

import contraport
from contraport.integrations import SentenceTransformerLoss
from tests.errors import raises_usage_error

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"]]
TEXTS = [
    ["a b", "c d e", "f", "g h i", "j", "k l a"],
    ["b", "d c", "f g", "i h", "j k", "l"],
    ["a", "b", "c", "d", "e", "f"],
    ["g", "h", "i", "j", "k", "l"],
]


@pytest.fixture(scope="module")
def peer():
    return pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")


def losses(peer):
    return importlib.import_module(f"{peer.__name__}.losses")


@pytest.fixture(scope="module")
def folder(peer, tmp_path_factory):
    """Folder of a BERT with a few thousand parameters and a tokenizer with a dozen words."""
    import transformers

    path = tmp_path_factory.mktemp("bert")
    (path / "vocab.txt").write_text("\n".join(WORDS))
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1, max_position_embeddings=16,
    )  # fmt: skip
    transformers.BertModel(config).save_pretrained(path)
    transformers.BertTokenizerFast(str(path / "vocab.txt")).save_pretrained(path)
    return path


@pytest.fixture
def model(peer, folder):
    return peer.SentenceTransformer(str(folder), device="cpu")


def features(model, columns):
    return [model.preprocess(texts) for texts in columns]


def value_and_gradient(model, loss, columns, labels=None):
    """Return the value and the gradient, with the same random numbers of dropout in each call."""
    model.zero_grad()
    torch.manual_seed(5)
    value = loss(features(model, columns), labels)
    value.backward()
    return value.detach(), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def assert_same_step(result, expected):
    torch.testing.assert_close(result[0], expected[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(result[1], expected[1], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("columns", [2, 3, 4])
def test_matches_multiple_negatives_ranking_loss(peer, model, columns):
    reference, loss = losses(peer).MultipleNegativesRankingLoss(model), SentenceTransformerLoss(model)
    model.eval()
    assert_same_step(
        value_and_gradient(model, loss, TEXTS[:columns]), value_and_gradient(model, reference, TEXTS[:columns])
    )


def test_matches_the_symmetric_ranking_loss(peer, model):
    model.eval()
    reference = losses(peer).MultipleNegativesSymmetricRankingLoss(model)
    loss = SentenceTransformerLoss(model, contraport.info_nce(temperature=0.05))
    assert_same_step(value_and_gradient(model, loss, TEXTS[:2]), value_and_gradient(model, reference, TEXTS[:2]))


class Projection(torch.nn.Linear):
    """Stand-in for a SentenceTransformer with an input that is not split into chunks."""

    def forward(self, features):
        assert features["prompt"] == "a prompt"
        return {"sentence_embedding": super().forward(features["words"])}


def test_chunks_of_other_models_give_the_gradient_of_the_whole_batch():
    model = Projection(4, 3, dtype=torch.double)
    inputs = [{"words": words, "prompt": "a prompt"} for words in torch.randn(2, 7, 4, dtype=torch.double)]
    steps = []
    for chunk in (None, 3, 7):
        model.zero_grad()
        loss = SentenceTransformerLoss(model, mini_batch_size=chunk)(inputs)
        loss.backward()
        steps.append((loss.detach(), model.weight.grad.clone()))
    for step in steps[1:]:
        torch.testing.assert_close(step, steps[0])


@pytest.mark.parametrize("chunk", [1, 4, 100])
def test_chunks_give_the_gradient_of_the_whole_batch(peer, model, chunk):
    model.eval()
    reference = losses(peer).CachedMultipleNegativesRankingLoss(model, mini_batch_size=chunk)
    result = value_and_gradient(model, SentenceTransformerLoss(model, mini_batch_size=chunk), TEXTS[:3])
    assert_same_step(result, value_and_gradient(model, reference, TEXTS[:3]))
    assert_same_step(result, value_and_gradient(model, SentenceTransformerLoss(model), TEXTS[:3]))


def test_chunks_repeat_dropout_in_backward(model):
    """Backward recomputes each chunk with the same dropout: the gradient matches a difference in one weight."""
    model.train().double()
    loss, weight = SentenceTransformerLoss(model, mini_batch_size=2), next(model.parameters())
    _, slope = value_and_gradient(model, loss, TEXTS[:2])
    place = int(slope[: weight.numel()].abs().argmax())

    def value(step):
        with torch.no_grad():
            weight.view(-1)[place] += step
        result = value_and_gradient(model, loss, TEXTS[:2])[0].item()
        with torch.no_grad():
            weight.view(-1)[place] -= step
        return result

    assert (value(1e-5) - value(-1e-5)) / 2e-5 == pytest.approx(slope[place].item(), rel=1e-5)


def test_chunks_store_fewer_activations(model):
    saved_values = {}
    for chunk in (None, 1):
        num_saved = 0

        def pack(value):
            nonlocal num_saved
            num_saved += value.numel()
            return value

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
            SentenceTransformerLoss(model, mini_batch_size=chunk)(features(model, TEXTS[:2]))
        saved_values[chunk] = num_saved
    assert saved_values[1] < saved_values[None] / 5


def embed_columns(model, columns):
    return [model(dict(column))["sentence_embedding"] for column in features(model, columns)]


def test_scores_of_rows_are_weights(model):
    model.eval()
    scores, columns = torch.tensor([1.0, 0.5, 0.0, 0.2, 1.0, 0.7]), TEXTS[:3]
    first, second, third = embed_columns(model, columns)
    by_row = contraport.info_nce(temperature=0.05, symmetric=False)(first, second, negatives=third, reduction="none")
    result = SentenceTransformerLoss(model)(features(model, columns), scores)
    torch.testing.assert_close(result, (by_row * scores).sum() / scores.sum())


def test_scores_of_candidates_are_target_masses(model):
    """Cross-entropy with the scores of the anchor's own candidates, less the entropy of the scores."""
    model.eval()
    scores = torch.tensor([[1.0, 1.0], [1.0, 0.0], [0.2, 0.8], [3.0, 1.0], [0.0, 1.0], [0.5, 0.5]])
    first, *others = embed_columns(model, TEXTS[:3])
    unit = torch.nn.functional.normalize
    log_share = (unit(first) @ unit(torch.cat(others)).T / 0.05).log_softmax(1)
    target = torch.cat([torch.diag(column) for column in (scores / scores.sum(1, keepdim=True)).T], 1)
    expected = (torch.xlogy(target, target) - target * log_share).sum() / 6
    torch.testing.assert_close(
        SentenceTransformerLoss(model)(features(model, TEXTS[:3]), scores), expected, rtol=1e-4, atol=1e-5
    )


def test_labels_as_classes_and_columns_as_views(model):
    model.eval()
    classes = torch.tensor([0, 1, 0, 2, 1, 0])
    result = SentenceTransformerLoss(model, contraport.sup_con())(features(model, TEXTS[:1]), classes)
    torch.testing.assert_close(result, contraport.sup_con()(*embed_columns(model, TEXTS[:1]), labels=classes))
    result = SentenceTransformerLoss(model, contraport.cmc(), columns="views")(features(model, TEXTS[:3]))
    torch.testing.assert_close(result, contraport.cmc()(*embed_columns(model, TEXTS[:3])))


@pytest.mark.parametrize("labelled", [False, True])
@pytest.mark.parametrize("chunk", [None, 2])
def test_trains_in_sentence_transformer_trainer(peer, model, tmp_path, labelled, chunk):
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    columns = {"anchor": TEXTS[0] * 2, "positive": TEXTS[1] * 2, "negative": TEXTS[2] * 2}
    if labelled:
        columns["score"] = [[1.0, 0.5]] * 12
    arguments = peer.SentenceTransformerTrainingArguments(
        output_dir=str(tmp_path), per_device_train_batch_size=4, max_steps=3, report_to=[], use_cpu=True,
        save_strategy="no", learning_rate=1e-2,
    )  # fmt: skip
    loss = SentenceTransformerLoss(model, contraport.info_nce("learn", symmetric=False), mini_batch_size=chunk)
    before = [p.detach().clone() for p in loss.parameters()]
    trainer = peer.SentenceTransformerTrainer(
        model=model, args=arguments, train_dataset=datasets.Dataset.from_dict(columns), loss=loss
    )
    trainer.train()
    moved = [not torch.equal(a, b) for a, b in zip(before, loss.parameters(), strict=True)]
    assert sum(moved) > len(moved) / 2
    assert loss.objective.temperature != 0.1


@pytest.mark.parametrize(
    ("call", "code", "value"),
    [
        (lambda m: SentenceTransformerLoss(m, columns="texts"), "columns.unknown", "'texts'"),
        (
            lambda m: SentenceTransformerLoss(m, mini_batch_size=0),
            "mini_batch_size.invalid",
            "0",
        ),
        (
            lambda m: SentenceTransformerLoss(m)(features(m, TEXTS[:2]), torch.arange(6)),
            "label.type",
            "torch.int64",
        ),
        (
            lambda m: SentenceTransformerLoss(m)(features(m, TEXTS[:1])),
            "label.missing",
            "one column",
        ),
        (
            lambda m: SentenceTransformerLoss(m)(features(m, TEXTS[:3]), torch.ones(6, 3)),
            "label.shape",
            "(6, 3)",
        ),
        (
            lambda m: SentenceTransformerLoss(m, mini_batch_size=2)(
                [{"input_ids": torch.ones(7), "offsets": torch.ones(6)}] * 2
            ),
            "mini_batch_size.rows_differ",
            "[6, 7]",
        ),
    ],
)
def test_rejects_invalid_arguments(model, call, code, value):
    with raises_usage_error(code, value):
        call(model)
