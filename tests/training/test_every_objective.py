"""Every objective of the catalog trains: on what two views share, and the demo's encoder on digits."""

import numpy as np
import pytest
import torch

import contraport
from contraport.catalog import OBJECTIVES
from contraport.data import from_arrays, load
from contraport.embedding import embed_dataset
from contraport.encoders import Model
from contraport.metrics.probes import knn
from tests.errors import raises_usage_error
from tests.objectives.comparing import RANKING

CLASSES = 6


def accuracy(model, splits):
    train, test = (embed_dataset(model, split, progress=False) for split in splits)
    return knn(train, splits[0].labels, test, splits[1].labels)


def pairs(seed):
    """Two views of the same items: four coordinates that tell the class, and eight of larger noise of their own."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, CLASSES, 480)
    shared = np.random.default_rng(0).normal(size=(CLASSES, 4))[labels] + 0.1 * random.normal(size=(480, 4))
    views = (np.hstack([shared, 2 * random.normal(size=(480, 8))]) for _ in range(2))
    return from_arrays(tuple(views), labels=labels, name="pairs")


def test_untrained_encoder_does_not_recover_the_shared_factor():
    """What is asked of the objectives below can fail."""
    splits = pairs(1), pairs(2)
    torch.manual_seed(0)
    assert accuracy(Model(None, splits[0].shapes), splits) < 0.65


NEED_FEATURES = ["x-clr", "guided"]  # a teacher's


def graded(dataset):
    """Return pairs, of which every second one has the second view of another item, and grades, 1 or 0."""
    first, second = dataset.__getitems__(list(range(len(dataset)))).views
    second = second.clone()
    second[::2] = second[::2].roll(1, 0)
    grades = (torch.arange(len(dataset)) % 2).float()
    return from_arrays((first.numpy(), second.numpy()), labels=dataset.labels, weights=grades, name="graded")


class Taught(contraport.Pairs):
    """A target of one's own, which says that it needs features."""

    requires_features = True


def test_custom_target_declares_required_features(tmp_path):
    parts = contraport.Cross(), contraport.Gibbs(), contraport.Rows(), Taught(), contraport.KL()
    with raises_usage_error("teacher.missing"):
        contraport.train(data=pairs(1), objective=contraport.Objective(*parts), epochs=1, out=tmp_path, progress=False)


def test_rejects_more_items_than_an_objective_can_store(tmp_path):
    with raises_usage_error("ids.*", 478):
        contraport.train(
            data=pairs(1), objective="sog-clr", objective_settings={"items": 479}, batch_size=60, epochs=1,
            out=tmp_path / "run", progress=False,
        )  # fmt: skip


@pytest.mark.parametrize("name", OBJECTIVES)
def test_training_recovers_the_shared_factor(name, tmp_path):
    splits = pairs(1), pairs(2)
    own = {"predictor": True} if name == "byol" else {}  # no negatives
    if name in NEED_FEATURES:
        np.save(tmp_path / "teacher.npy", np.eye(CLASSES)[splits[0].labels])
        own["teacher"] = tmp_path / "teacher.npy"
        own["objective_settings"] = {"margin": 0.5} if name == "guided" else None
    if name in RANKING:
        splits = graded(splits[0]), splits[1]
    run = contraport.train(
        data=splits[0], objective=name, batch_size=60, epochs=25 if name in RANKING else 5, lr=5e-3,
        out=tmp_path / "run", progress=False, **own,
    )  # fmt: skip
    least = 0.7 if name == "angle" else 0.9  # the angle term alone; the paper adds it to cosines
    assert accuracy(run.model(), splits) > least


RECIPE = {"data": "digits", "encoder": "small-cnn", "batch_size": 128, "epochs": 4, "lr": 2e-3, "progress": False}
OWN = {
    "barlow-twins": {"epochs": 12},  # a matrix of all coordinates takes its steps
    "byol": {"epochs": 20, "predictor": True},  # no negatives: slow
    "quadratic": {"lr": 5e-4},  # its weights never ease: gently
}


@pytest.fixture(scope="module")
def digits():
    return load("digits", "train"), load("digits", "test")


@pytest.fixture(scope="module")
def untrained(digits):
    torch.manual_seed(0)
    mean, std = digits[0].mean_and_std()
    return accuracy(Model("small-cnn", digits[0].shapes, mean=[mean], std=[std]), digits)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in OBJECTIVES if name not in (*NEED_FEATURES, *RANKING)])
def test_training_beats_the_untrained_encoder_on_digits(name, digits, untrained, tmp_path):
    run = contraport.train(objective=name, out=tmp_path / "run", **{**RECIPE, **OWN.get(name, {})})
    assert accuracy(run.model(), digits) > untrained
