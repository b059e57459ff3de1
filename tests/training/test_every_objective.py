"""Training with each objective of the catalog: on two views with a shared factor, and on digits."""

import numpy as np
import pytest
import torch

import contraport
from contraport.catalog import OBJECTIVES
from contraport.data import from_arrays, load
from contraport.embedding import embed_items_as_vectors
from contraport.encoders import Model
from contraport.metrics.probes import knn
from tests.errors import raises_usage_error
from tests.objectives.comparing import RANKING

CLASSES = 6


def measure_accuracy(model, splits):
    train, test = (embed_items_as_vectors(model, split, progress=False) for split in splits)
    return knn(train, splits[0].labels, test, splits[1].labels)


def build_pairs(seed):
    """Build two views of the same items: four coordinates depend on the class, eight are larger independent noise."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, CLASSES, 480)
    shared = np.random.default_rng(0).normal(size=(CLASSES, 4))[labels] + 0.1 * random.normal(size=(480, 4))
    views = (np.hstack([shared, 2 * random.normal(size=(480, 8))]) for _ in range(2))
    return from_arrays(tuple(views), labels=labels, name="pairs")


def test_untrained_encoder_does_not_recover_the_shared_factor():
    """The untrained encoder fails, so the tests below can fail."""
    splits = build_pairs(1), build_pairs(2)
    torch.manual_seed(0)
    assert measure_accuracy(Model(None, splits[0].shapes), splits) < 0.65


NEED_FEATURES = ["x-clr", "guided"]  # of a teacher


def build_graded_pairs(dataset):
    """Build pairs with grades: every second pair has the second view of another item and grade 0."""
    first, second = dataset.__getitems__(list(range(len(dataset)))).views
    second = second.clone()
    second[::2] = second[::2].roll(1, 0)
    grades = (torch.arange(len(dataset)) % 2).float()
    return from_arrays((first.numpy(), second.numpy()), labels=dataset.labels, weights=grades, name="graded")


class PairsWithRequiredFeatures(contraport.Pairs):
    """Custom target that requires features."""

    requires_features_argument = True


def test_custom_target_declares_required_features(tmp_path):
    parts = contraport.Cross(), contraport.Gibbs(), contraport.Rows(), PairsWithRequiredFeatures(), contraport.KL()
    with raises_usage_error("teacher.missing"):
        contraport.train(
            data=build_pairs(1), objective=contraport.Objective(*parts), epochs=1, out=tmp_path, progress=False
        )


def test_rejects_more_items_than_an_objective_can_store(tmp_path):
    with raises_usage_error("ids.*", 478):
        contraport.train(
            data=build_pairs(1), objective="sog-clr", objective_settings={"items": 479}, batch_size=60, epochs=1,
            out=tmp_path / "run", progress=False,
        )  # fmt: skip


@pytest.mark.parametrize("name", OBJECTIVES)
def test_training_recovers_the_shared_factor(name, tmp_path):
    splits = build_pairs(1), build_pairs(2)
    options = {"predictor": True} if name == "byol" else {}  # no negatives
    if name in NEED_FEATURES:
        np.save(tmp_path / "teacher.npy", np.eye(CLASSES)[splits[0].labels])
        options["teacher"] = tmp_path / "teacher.npy"
        options["objective_settings"] = {"margin": 0.5} if name == "guided" else None
    if name in RANKING:
        splits = build_graded_pairs(splits[0]), splits[1]
    run = contraport.train(
        data=splits[0], objective=name, batch_size=60, epochs=25 if name in RANKING else 5, lr=5e-3,
        out=tmp_path / "run", progress=False, **options,
    )  # fmt: skip
    min_accuracy = 0.7 if name == "angle" else 0.9  # the angle term alone; the paper adds it to cosines
    assert measure_accuracy(run.model(), splits) > min_accuracy


RECIPE = {"data": "digits", "encoder": "small-cnn", "batch_size": 128, "epochs": 4, "lr": 2e-3, "progress": False}
OPTIONS_BY_OBJECTIVE = {
    "barlow-twins": {"epochs": 12},  # the correlation matrix of all coordinates needs more steps
    "byol": {"epochs": 20, "predictor": True},  # slow, since it has no negatives
    "quadratic": {"lr": 5e-4},  # its gradient weights do not decrease
}


@pytest.fixture(scope="module")
def digits():
    return load("digits", "train"), load("digits", "test")


@pytest.fixture(scope="module")
def untrained(digits):
    torch.manual_seed(0)
    mean, std = digits[0].mean_and_std()
    return measure_accuracy(Model("small-cnn", digits[0].shapes, mean=[mean], std=[std]), digits)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in OBJECTIVES if name not in (*NEED_FEATURES, *RANKING)])
def test_training_beats_the_untrained_encoder_on_digits(name, digits, untrained, tmp_path):
    run = contraport.train(objective=name, out=tmp_path / "run", **{**RECIPE, **OPTIONS_BY_OBJECTIVE.get(name, {})})
    assert measure_accuracy(run.model(), digits) > untrained
