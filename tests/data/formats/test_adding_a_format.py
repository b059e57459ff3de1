"""Custom data formats: a registered reader is used by `load` and `train`."""

import numpy as np
import pytest
from tests.errors import raises_usage_error

import contraport
from contraport.data import from_arrays, load
from contraport.data.array_datasets import copy_subset_to_memory
from contraport.data.formats import FORMATS, data_format
from contraport.data.splits import select_split_positions


@pytest.fixture
def text_format():
    @data_format("numbers in a text", suffixes=[".dat"])
    def load_text(path, split, test_fraction=None):
        dataset = from_arrays(np.loadtxt(path), name=path)
        return copy_subset_to_memory(
            dataset,
            select_split_positions(split, len(dataset), is_test=None, labels=None, test_fraction=test_fraction),
            split,
        )

    yield
    del FORMATS["numbers in a text"]


@pytest.fixture
def folder_format():
    @data_format("a marked folder", recognizes=lambda path: path.endswith(".rows"), options=[])
    def load_marked(path, split):
        return from_arrays(np.loadtxt(f"{path}/rows.dat"), name=path, split=split)

    yield
    del FORMATS["a marked folder"]


def test_custom_format_is_read_and_trained_on(text_format, tmp_path):
    np.savetxt(tmp_path / "rows.dat", np.random.default_rng(0).normal(size=(50, 3)))
    assert len(load(tmp_path / "rows.dat", "test", test_fraction=0.4)) == 20
    run = contraport.train(
        data=tmp_path / "rows.dat", epochs=1, batch_size=20, encoder="mlp", out=tmp_path / "run", progress=False
    )
    assert contraport.evaluate(run, progress=False)["test_items"] == 10
    with raises_usage_error("columns.no_columns"):
        load(tmp_path / "rows.dat", columns={"labels": "a"})
    (tmp_path / "data.xls").write_text("1")
    with raises_usage_error("data.unknown_format"):
        load(tmp_path / "data.xls")


def test_registered_format_precedes_image_folders(folder_format, tmp_path):
    (tmp_path / "mine.rows").mkdir()
    np.savetxt(tmp_path / "mine.rows" / "rows.dat", np.ones((5, 2)))
    assert load(tmp_path / "mine.rows").shapes == ((2,),)


def test_rejects_two_formats_with_the_same_name(text_format):
    with raises_usage_error("data_format.exists", "numbers in a text"):
        data_format("numbers in a text")(lambda path, split: None)


def test_most_specific_format_is_tried_first():
    assert [name for name, entry in FORMATS.items() if entry.is_fallback] == ["a folder of images or texts"]
