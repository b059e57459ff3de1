"""Custom named data sets: a registered reader is used by `load`, `train` and the list of data."""

import pytest
from tests.errors import raises_usage_error

import contraport
from contraport.catalog import DATASETS, DatasetEntry, list_datasets
from contraport.cli import main
from contraport.data import load

READER = '''
import numpy as np

from contraport.data import from_arrays


def spirals(split, root):
    """Two arms, turned and noisy."""
    count = 40 if split == "train" else 20
    turns, labels = np.linspace(0, 6, count), np.arange(count) % 2
    arms = np.stack([turns * np.cos(turns + np.pi * labels), turns * np.sin(turns + np.pi * labels)], 1)
    return from_arrays(arms, labels=labels, name="spirals" if root is None else str(root), split=split)
'''


@pytest.fixture
def spirals(tmp_path, monkeypatch):
    (tmp_path / "scratch_spirals.py").write_text(READER)
    monkeypatch.syspath_prepend(tmp_path)
    row = DatasetEntry("spirals", "60 points, 2 arms", "nowhere: it is made", "scratch_spirals:spirals")
    monkeypatch.setitem(DATASETS, row.name, row)


def test_custom_source_is_loaded_listed_and_trained_on(spirals, tmp_path, capsys):
    assert len(load("spirals")) == 40
    test = load("spirals", "test", root=tmp_path)
    assert (len(test), test.name, test.class_names) == (20, str(tmp_path), ("0", "1"))
    assert list_datasets()[-1].name == "spirals"
    main(["list", "data"])
    assert "60 points, 2 arms" in " ".join(capsys.readouterr().out.split())
    run = contraport.train(data="spirals", epochs=1, batch_size=20, out=tmp_path / "run", progress=False)
    assert contraport.evaluate(run, neighbors=5, progress=False)["test_items"] == 20


def test_registered_source_has_its_own_splits(spirals):
    with raises_usage_error("data.unknown"):
        load("spirls")
    with raises_usage_error("test_fraction.conflict", "spirals"):
        load("spirals", test_fraction=0.5)


def test_unregistered_names_are_unknown():
    with raises_usage_error("data.unknown"):
        load("spirals")
