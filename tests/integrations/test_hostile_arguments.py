"""Adapters reject invalid types, shapes and ranges of arguments, without the other library."""

import math
from types import SimpleNamespace

import pytest
import torch

import contraport as cp
from contraport.integrations import (
    ClipLoss,
    MemoryBankLoss,
    MetricLearningLoss,
    SentenceTransformerLoss,
    TrainerLoss,
    create_loss,
)
from tests.errors import raises_usage_error

Z = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
MODEL = torch.nn.Identity()
SCORES = torch.rand(6, 2, generator=torch.Generator().manual_seed(1))


def embed(columns, labels=None):
    return SentenceTransformerLoss(MODEL).compute_embedding_loss(columns, labels)


def arguments(steps=1, average=True):
    return SimpleNamespace(gradient_accumulation_steps=steps, average_tokens_across_devices=average)


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda: MemoryBankLoss((8, 4), "info-nce"), "objective.type"),
        (lambda: MemoryBankLoss((8, 4), in_batch_negatives=1), "in_batch_negatives.invalid"),
        (lambda: MemoryBankLoss((8, 4))(None, Z), "query.shape"),
        (lambda: MemoryBankLoss((8, 4))(Z[0], Z), "query.shape"),
        (lambda: MemoryBankLoss((True, 4)), "memory_bank_size.invalid"),
        (lambda: MemoryBankLoss((8, 4))(Z, None), "key.shape"),
        (lambda: MemoryBankLoss((8, 3))(Z, Z), "query.shape"),
        (lambda: ClipLoss(torch.nn.MSELoss()), "objective.type"),
        (lambda: create_loss(object(), cp.info_nce), "objective.type"),
        (lambda: ClipLoss()(Z, [[1.0]] * 6, 1.0), "text_features.type"),
        (lambda: ClipLoss()(Z, Z, 0.0), "logit_scale.invalid"),
        (lambda: ClipLoss()(Z, Z, math.nan), "logit_scale.invalid"),
        (lambda: ClipLoss()(Z, Z, None), "logit_scale.invalid"),
        (lambda: ClipLoss(cp.sigmoid())(Z, Z, 10.0, -10.0), "logit_bias.type"),
        (lambda: ClipLoss(cp.sigmoid())(Z, Z, 10.0, torch.ones(3)), "logit_bias.shape"),
        (lambda: create_loss(None), "args.type"),
        (lambda: create_loss({"siglip": True}), "args.type"),
        (lambda: MetricLearningLoss()(5, ref_emb=5), "embeddings.shape"),
        (lambda: MetricLearningLoss()(Z, [0] * 6, ref_emb="z", ref_labels=[0] * 6), "ref_emb.shape"),
        (lambda: MetricLearningLoss()(Z, [0] * 6, ref_labels=[0] * 6), "ref_labels.conflict"),
        (lambda: MetricLearningLoss(reference="sup-con"), "reference.type"),
        (lambda: MetricLearningLoss(0.1), "objective.type"),
        (lambda: SentenceTransformerLoss(MODEL, "info-nce"), "objective.type"),
        (lambda: embed([Z, Z, Z.numpy()]), "columns.shape"),
        (lambda: embed([Z, Z], [0.5] * 6), "label.type"),
        (lambda: embed(None), "columns.type"),
        (lambda: embed([]), "columns.missing"),
        (lambda: embed([Z, Z, Z[:, :3]]), "columns.shape"),
        (lambda: embed([Z, Z, Z[:3]], SCORES), "columns.shape"),
        (lambda: embed([Z, Z, Z], SCORES.to_sparse()), "label.sparse"),
        (lambda: embed([Z, Z, Z], SCORES.to("meta")), "label.device"),
        (lambda: embed([Z, Z, Z], SCORES - 1), "label.invalid"),
        (lambda: embed([Z, Z, Z], SCORES[:3, 0]), "label.shape"),
        (lambda: SentenceTransformerLoss("bert"), "model.type"),
        (lambda: SentenceTransformerLoss(MODEL, mini_batch_size=True), "mini_batch_size.invalid"),
        (lambda: SentenceTransformerLoss(MODEL)(None), "sentence_features.type"),
        (lambda: SentenceTransformerLoss(MODEL)([Z, Z]), "sentence_features.type"),
        (lambda: SentenceTransformerLoss(MODEL)([{"ids": Z}] * 2), "model.output"),
        (lambda: TrainerLoss("info-nce"), "objective.type"),
        (lambda: TrainerLoss(outputs="image_embeds"), "outputs.type"),
        (lambda: TrainerLoss(outputs=[0, 1]), "outputs.type"),
        (lambda: TrainerLoss(logit_scale=2.6), "logit_scale.type"),
        (lambda: TrainerLoss(logit_scale=torch.ones(3)), "logit_scale.shape"),
        (lambda: TrainerLoss(arguments="arguments"), "arguments.type"),
        (lambda: TrainerLoss(arguments=arguments(steps=0)), "arguments.gradient_accumulation_steps.invalid"),
        (lambda: TrainerLoss(arguments=arguments(average=None)), "arguments.average_tokens_across_devices.invalid"),
        (lambda: TrainerLoss()((Z, Z)), "outputs.type"),
        (lambda: TrainerLoss()({"image_embeds": "z", "text_embeds": Z}), "outputs.type"),
        (lambda: TrainerLoss()({0: Z, "image_embeds": Z}), "outputs.unknown"),
    ],
)
def test_rejects_arguments(call, code):
    with raises_usage_error(code):
        call()
