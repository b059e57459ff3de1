"""Adapters refuse arguments of another type, shape or range by themselves, without the other library."""

import math

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


def embed(columns, labels=None):
    return SentenceTransformerLoss(MODEL).compute_embedding_loss(columns, labels)


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda: MemoryBankLoss((8, 4), "info-nce"), "objective.type"),
        (lambda: MemoryBankLoss((8, 4), in_batch_negatives=1), "in_batch_negatives.invalid"),
        (lambda: MemoryBankLoss((8, 4))(None, Z), "query.shape"),
        (lambda: MemoryBankLoss((8, 4))(Z[0], Z), "query.shape"),
        (lambda: ClipLoss(torch.nn.MSELoss()), "objective.type"),
        (lambda: create_loss(object(), cp.info_nce), "objective.type"),
        (lambda: ClipLoss()(Z, Z, 0.0), "logit_scale.invalid"),
        (lambda: ClipLoss()(Z, Z, math.nan), "logit_scale.invalid"),
        (lambda: ClipLoss()(Z, Z, None), "logit_scale.invalid"),
        (lambda: ClipLoss(cp.sigmoid())(Z, Z, 10.0, -10.0), "logit_bias.type"),
        (lambda: MetricLearningLoss(reference="sup-con"), "reference.type"),
        (lambda: MetricLearningLoss(0.1), "objective.type"),
        (lambda: SentenceTransformerLoss(MODEL, "info-nce"), "objective.type"),
        (lambda: embed([Z, Z, Z.numpy()]), "columns.shape"),
        (lambda: embed([Z, Z], [0.5] * 6), "label.type"),
        (lambda: TrainerLoss("info-nce"), "objective.type"),
        (lambda: TrainerLoss(outputs="image_embeds"), "outputs.type"),
        (lambda: TrainerLoss(outputs=[0, 1]), "outputs.type"),
        (lambda: TrainerLoss(logit_scale=2.6), "logit_scale.type"),
        (lambda: TrainerLoss()((Z, Z)), "outputs.type"),
    ],
)
def test_rejects_arguments(call, code):
    with raises_usage_error(code):
        call()
