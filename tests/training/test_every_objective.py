"""Every objective of the catalog trains the demo's encoder on digits and leaves the untrained one behind."""

import pytest
import torch

import contraport
from contraport.data import load
from contraport.evaluation import embed_dataset, knn
from contraport.objectives import CATALOG

RECIPE = {"data": "digits", "encoder": "small-cnn", "batch_size": 128, "epochs": 4, "lr": 2e-3, "progress": False}
OWN = {
    "byol": {"epochs": 20, "predictor": True},  # no negatives: slow
    "quadratic": {"lr": 5e-4},  # its weights never ease: gently
}


@pytest.fixture(scope="module")
def digits():
    return load("digits", "train"), load("digits", "test")


def accuracy(model, digits):
    train, test = (embed_dataset(model, split, progress=False) for split in digits)
    return knn(train.features, train.labels, test.features, test.labels)


@pytest.fixture(scope="module")
def untrained(digits):
    torch.manual_seed(0)
    mean, std = digits[0].statistics()
    return accuracy(contraport.encoders.Model("small-cnn", digits[0].shapes, mean=[mean], std=[std]), digits)


@pytest.mark.parametrize("name", CATALOG)
def test_it_beats_the_untrained_encoder(name, digits, untrained, tmp_path):
    run = contraport.train(objective=name, out=tmp_path / "run", **{**RECIPE, **OWN.get(name, {})})
    assert accuracy(run.model(), digits) > untrained
