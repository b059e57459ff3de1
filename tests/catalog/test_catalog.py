"""Catalog: entries refer to existing code, and custom entries can be added."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest
from tests.errors import raises_usage_error
from torch import nn

from contraport._utils.lazy_imports import import_object
from contraport.catalog import (
    DATASETS,
    ENCODERS,
    OBJECTIVES,
    RECIPES,
    DatasetEntry,
    EncoderEntry,
    apply_recipe,
    list_encoders,
)
from contraport.data import Dataset, from_arrays, load
from contraport.encoders import build_encoder


def test_keys_are_names_of_entries() -> None:
    for table in (OBJECTIVES, DATASETS, ENCODERS):
        assert all(name == row.name for name, row in table.items())


@pytest.mark.parametrize("source", DATASETS.values(), ids=DATASETS)
def test_reader_of_data_set_exists(source: DatasetEntry) -> None:
    assert list(inspect.signature(import_object(source.reader_path)).parameters) == ["split", "root"]
    assert source.description
    assert source.location_description


@pytest.mark.parametrize("encoder", ENCODERS.values(), ids=ENCODERS)
def test_network_of_encoder_exists(encoder: EncoderEntry) -> None:
    build = import_object(encoder.network_class_path)
    assert inspect.isfunction(build) or issubclass(build, nn.Module)


@pytest.mark.parametrize(
    ("entry", "values", "old", "new"),
    [
        (DatasetEntry, {"reader_path": "module:read"}, "location", "location_description"),
        (DatasetEntry, {"location_description": "here"}, "reader", "reader_path"),
        (EncoderEntry, {}, "network_class", "network_class_path"),
    ],
)
def test_deprecated_names_of_entries_still_work_with_a_warning(
    entry: type, values: dict[str, str], old: str, new: str
) -> None:
    with pytest.warns(FutureWarning, match=new):
        built = entry("a", "one", **values, **{old: "value"})
    assert getattr(built, new) == "value"
    with pytest.warns(FutureWarning, match=new):
        assert getattr(built, old) == "value"


def test_entries_have_descriptions() -> None:
    assert all(encoder.description for encoder in list_encoders())
    for method in OBJECTIVES.values():
        assert method.summary.endswith(".")
        assert method.citation
    for recipe in RECIPES.values():
        assert recipe.summary.endswith(".")


def test_rejects_unknown_recipes_and_objectives() -> None:
    with raises_usage_error("recipe.unknown", "mocco", "'moco'"):
        apply_recipe({"recipe": "mocco"})
    with raises_usage_error("objective.unknown", "nt-xnt", "'nt-xent'"):
        apply_recipe({"objective": "nt-xnt"})
    own = nn.Identity()
    assert apply_recipe({"objective": own, "recipe": "moco"})["objective"] is own


def lines(split: str, root: object) -> Dataset:
    """Reader of a data set."""
    return from_arrays([[float(part == split)] * 3 for part in ("train", "test")])


@pytest.fixture
def custom_name() -> Iterator[str]:
    DATASETS["mine"] = DatasetEntry("mine", "two rows", "here", f"{__name__}:lines")
    ENCODERS["mine"] = EncoderEntry("mine", "a flat one", f"{__name__}:Flat")
    yield "mine"
    del DATASETS["mine"], ENCODERS["mine"]


class Flat(nn.Sequential):
    """Encoder."""

    num_features = 4

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(nn.Flatten(), nn.LazyLinear(self.num_features))


def test_custom_entries_are_usable(custom_name: str) -> None:
    assert len(load(custom_name)) == 2
    assert build_encoder(custom_name, (3,)).num_features == 4
