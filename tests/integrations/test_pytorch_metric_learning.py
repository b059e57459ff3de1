"""Adapter to pytorch-metric-learning: values and gradients, less the constant of each class."""

import pytest
import torch

import contraport
from contraport.integrations import MetricLearningLoss
from tests.errors import raises_usage_error
from tests.objectives.comparing import LABELS, assert_same, outcome, views

losses = pytest.importorskip("pytorch_metric_learning.losses", reason="pytorch-metric-learning is not installed")


def log_positives(labels, others, same):
    """Return the mean of log |P(i)| over rows with positives, by which KL and cross-entropy differ."""
    positives = (labels[:, None] == others).sum(1) - int(same)
    return positives[positives > 0].double().log().mean()


def test_sup_con_matches_pytorch_metric_learning():
    (z,) = views(k=1)
    constant = log_positives(LABELS, LABELS, True)
    expected = outcome(lambda z: losses.SupConLoss(0.1)(z, LABELS) - constant, z)
    assert_same(outcome(lambda z: MetricLearningLoss()(z, LABELS), z), expected, rtol=1e-6)


def test_nt_xent_of_two_views_matches_pytorch_metric_learning():
    expected = losses.SelfSupervisedLoss(losses.NTXentLoss(temperature=0.07))
    assert_same(outcome(contraport.nt_xent(temperature=0.07), *views()), outcome(expected, *views()), rtol=1e-6)


def test_reference_set_matches_pytorch_metric_learning():
    x, y = views(7, seed=3)[0], views(4, seed=4)[0]
    labels, other = torch.tensor([2, 0, 0, 5, 0, 2, 5]), torch.tensor([2, 0, 0, 5])
    constant = log_positives(labels, other, False)
    expected = outcome(lambda x, y: losses.SupConLoss(0.1)(x, labels, ref_emb=y, ref_labels=other) - constant, x, y)
    result = outcome(lambda x, y: MetricLearningLoss()(x, labels, ref_emb=y, ref_labels=other.tolist()), x, y)
    assert_same(result, expected, rtol=1e-6)


def test_embeddings_as_their_own_reference_set():
    """Rows are not compared with themselves."""
    (z,) = views(k=1)
    constant = log_positives(LABELS, LABELS, True)
    expected = outcome(lambda z: losses.SupConLoss(0.1)(z, LABELS, ref_emb=z, ref_labels=LABELS) - constant, z)
    assert_same(outcome(lambda z: MetricLearningLoss()(z, LABELS, ref_emb=z), z), expected, rtol=1e-6)


def test_rejects_miners_and_missing_labels():
    (z,) = views(k=1)
    with raises_usage_error("indices_tuple.invalid", "None"):
        MetricLearningLoss()(z, LABELS, (LABELS, LABELS, LABELS))
    with raises_usage_error("ref_labels.missing"):
        MetricLearningLoss()(z, LABELS, ref_emb=z.clone())
