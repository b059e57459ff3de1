"""The tables name what is there."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest
from tests.errors import raises_usage_error
from torch import nn

from contraport._utils.lazy import import_object
from contraport.catalog import (
    DATASETS,
    ENCODERS,
    OBJECTIVES,
    RECIPES,
    DatasetEntry,
    EncoderEntry,
    list_encoders,
    resolve_recipe,
)
from contraport.data import Dataset, from_arrays, load
from contraport.encoders import build_encoder


def test_names_are_those_of_the_rows() -> None:
    for table in (OBJECTIVES, DATASETS, ENCODERS):
        assert all(name == row.name for name, row in table.items())


@pytest.mark.parametrize("source", DATASETS.values(), ids=DATASETS)
def test_the_reader_of_named_data_is_there(source: DatasetEntry) -> None:
    assert list(inspect.signature(import_object(source.reader)).parameters) == ["split", "root"]
    assert source.description
    assert source.looks


@pytest.mark.parametrize("encoder", ENCODERS.values(), ids=ENCODERS)
def test_the_network_of_an_encoder_is_there(encoder: EncoderEntry) -> None:
    assert issubclass(import_object(encoder.network), nn.Module)


def test_what_is_listed_says_what_it_is() -> None:
    assert all(encoder.description for encoder in list_encoders())
    for method in OBJECTIVES.values():
        assert method.summary.endswith(".")
        assert method.citation
    for recipe in RECIPES.values():
        assert recipe.summary.endswith(".")


def test_a_recipe_or_an_objective_that_is_none_is_told() -> None:
    with raises_usage_error("recipe.unknown", "'moco'"):
        resolve_recipe({"recipe": "mocco"})
    with raises_usage_error("objective.unknown", "'nt-xent'"):
        resolve_recipe({"objective": "nt-xnt"})
    own = nn.Identity()
    assert resolve_recipe({"objective": own, "recipe": "moco"})["objective"] is own


def lines(split: str, root: object) -> Dataset:
    """Return data of one's own."""
    return from_arrays([[float(part == split)] * 3 for part in ("train", "test")])


@pytest.fixture
def mine() -> Iterator[str]:
    DATASETS["mine"] = DatasetEntry("mine", "two rows", "here", f"{__name__}:lines")
    ENCODERS["mine"] = EncoderEntry("mine", "a flat one", f"{__name__}:Flat")
    yield "mine"
    del DATASETS["mine"], ENCODERS["mine"]


class Flat(nn.Sequential):
    """An encoder of one's own."""

    num_features = 4

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(nn.Flatten(), nn.LazyLinear(self.num_features))


def test_a_row_of_ones_own_is_enough(mine: str) -> None:
    assert len(load(mine)) == 2
    assert build_encoder(mine, (3,)).num_features == 4
