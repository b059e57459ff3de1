"""Neighbors, duplicates and clusters, compared with all pairs in double precision."""

from __future__ import annotations

import base64
import inspect
import io
import logging
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image
from tests.errors import raises_usage_error
from tests.evaluation.builders import build_image_model, make_run

import contraport
from contraport.cli.result_printers import print_clusters, print_duplicate_groups
from contraport.encoders import Model
from contraport.feature_files import (
    Features,
    open_temporary_feature_buffer,
    read_features,
    write_feature_shards,
    write_features,
)
from contraport.metrics.clustering import assign_kmeans_clusters
from contraport.similarity_search import cluster, duplicates, neighbors
from contraport.similarity_search.duplicates import _find_proposed_threshold
from contraport.similarity_search.output_files import NO_PICTURES_NOTE


def make_features(items: int = 70, width: int = 5, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(items, width)).astype(np.float32)


def cosines(features: np.ndarray) -> np.ndarray:
    unit = features.astype(np.float64) / np.linalg.norm(features.astype(np.float64), axis=1, keepdims=True)
    return unit @ unit.T


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks smaller than the few items of the tests."""
    monkeypatch.setattr("contraport.similarity_search.nearest_rows.MAX_FEATURE_ROWS_IN_MEMORY", 16)


def test_neighbors_equal_those_of_the_full_similarity_matrix() -> None:
    features = make_features()
    alike = cosines(features)
    for query in (0, 33, 69):
        result = neighbors(features, query=query, top=12)
        expected = [place for place in np.argsort(-alike[query], kind="stable") if place != query][:12]
        assert [near.position for near in result] == expected
        assert [near.similarity for near in result] == pytest.approx(alike[query][expected], abs=1e-6)
    assert len(neighbors(features, query=1, top=500)) == 69
    assert neighbors(features[:1], query=0)._repr_html_() == "no other items"
    assert neighbors(features, query="69").query_name == "train row 69"


def test_the_block_size_does_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    features = np.concatenate([make_features(), make_features()])
    result = neighbors(features, query=3, top=20)
    monkeypatch.setattr("contraport.similarity_search.nearest_rows.MAX_FEATURE_ROWS_IN_MEMORY", 7)
    assert [near.position for near in neighbors(features, query=3, top=20)] == [near.position for near in result]
    assert result[0].position == 73


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".parquet"])
def test_feature_files_keep_names_and_classes(tmp_path: Path, suffix: str) -> None:
    array = make_features(6)
    keys = np.array([f"photos/{number}.png" for number in range(6)])
    features = Features(
        array,
        np.arange(6) + 3,
        np.array(["test"] * 6),
        keys,
        np.array([0, 2, 0, 2, 2, 0]),
        np.array(["a", "b", "c"]),
        "r",
        data_name="photos",
    )
    write_features(tmp_path / f"features{suffix}", features)
    read = read_features(tmp_path / f"features{suffix}")
    np.testing.assert_array_equal(read.features, array)
    assert (read.source_rows.tolist(), read.splits.tolist()) == ([3, 4, 5, 6, 7, 8], ["test"] * 6)
    assert (read.run, read.view, read.data_name) == ("r", None, "photos")
    result = neighbors(tmp_path / f"features{suffix}", query="photos/1.png", top=5)
    assert result == neighbors(features, query=1, top=5)
    assert {near.name for near in result} == set(keys) - {"photos/1.png"}
    assert all(near.class_name == ("c" if near.position in (1, 3, 4) else "a") for near in result)
    assert [near.row for near in result] == [near.position + 3 for near in result]
    assert [row["row"] for row in result.format_rows()] == [str(near.position + 3) for near in result]
    unnamed = Features(array, np.arange(6) + 3, np.array(["test"] * 6))
    assert unnamed.item_name(2) == "test row 5"


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".parquet"])
def test_shards_with_different_classes_keep_all_class_names(tmp_path: Path, suffix: str) -> None:
    labels, names = np.array([0, 1, 2, 2, 0, 0]), np.array(["a", "b", "c"])
    features = Features(make_features(6), np.arange(6), np.array(["train"] * 6), labels=labels, class_names=names)
    write_feature_shards(tmp_path / f"features{suffix}", features, 2)
    read = read_features(tmp_path / f"features{suffix}")
    assert list(map(read.class_name_at, range(6))) == ["a", "b", "c", "c", "a", "a"]


def set_module_names(monkeypatch: pytest.MonkeyPatch, verb: Any, **values: Any) -> None:
    """Set names in the module of a function; the package has the function under the name of the module."""
    for name, value in values.items():
        monkeypatch.setitem(inspect.unwrap(verb).__globals__, name, value)


def test_logs_the_largest_similarity_without_duplicates(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    set_module_names(monkeypatch, duplicates, TILE_SIZE=1)
    caplog.set_level(logging.INFO, "contraport.similarity_search")
    assert len(duplicates(np.array([[1.0, 0.0], [2.0, 0.0]]), threshold=1.0)) == 1
    assert duplicates(np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]]), threshold=0.9) == []
    assert duplicates(np.array([[1.0, 0.0]])) == []
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert re.findall(r"\d[\d.]*\d", record.getMessage()) == ["0.9", "0.8000"]


def make_features_with_copies(items: int = 300, copies: int = 12) -> np.ndarray:
    """Return features of items, followed by perturbed copies of the first ones, with increasing perturbations."""
    generator = np.random.default_rng(0)
    features = generator.normal(size=(items, 16))
    noise = generator.normal(size=(copies, 16)) * np.linspace(0.02, 0.3, copies)[:, None]
    return np.concatenate([features, features[:copies] + noise]).astype(np.float32)


@pytest.mark.parametrize("with_index", [False, True])
def test_counts_near_duplicates_and_proposes_a_threshold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, with_index: bool
) -> None:
    if with_index:
        pytest.importorskip("faiss")
    set_module_names(monkeypatch, duplicates, TILE_SIZE=64)
    caplog.set_level(logging.INFO, "contraport.similarity_search")
    features, index = make_features_with_copies(), tmp_path / "a.faiss" if with_index else None
    alike = cosines(features)
    np.fill_diagonal(alike, -1)
    of_copies = np.array([alike[place, 300 + place] for place in range(12)])
    assert (alike[:12].argmax(axis=1) == 300 + np.arange(12)).all()
    result = duplicates(features, index=index, page=tmp_path / "same.html")
    assert 0 < len(result) < 12
    below = np.sort(of_copies[of_copies < 0.999])[::-1]
    assert [pair.similarity for pair in result.pairs_below_threshold][: len(below)] == pytest.approx(below, abs=1e-6)
    assert [pair.positions[1] - pair.positions[0] for pair in result.pairs_below_threshold][: len(below)] == [
        300
    ] * len(below)
    ranges = ((0.99, 1), (0.95, 0.99), (0.9, 0.95))
    highest, high, low = (int(((below >= least) & (below < most)).sum()) for least, most in ranges)
    for number, bounds in ((highest, "0.99 to 0.999"), (high, "0.95 to 0.99"), (low, "0.9 to 0.95")):
        assert re.search(rf"\b{number} [a-z ]*{bounds}", result.threshold_notes[0])
    others = np.delete(alike, np.s_[300:], axis=1)[12:300].max()
    assert others < result.proposed_threshold <= of_copies.min()
    (gap,) = [note for note in result.threshold_notes if "gap" in note]
    assert gap.endswith(f"threshold={result.proposed_threshold:g} links 12 pairs.")
    assert {record.getMessage() for record in caplog.records} >= set(result.threshold_notes)
    assert len(duplicates(features, threshold=result.proposed_threshold, index=index)) == 12
    assert duplicates(features, threshold=result.proposed_threshold, index=index).proposed_threshold is None
    page = (tmp_path / "same.html").read_text()
    assert page.count("<h2") == len(result) + len(result.pairs_below_threshold)
    assert all(f"cosine {pair.similarity:.4f}" in page for pair in result.pairs_below_threshold)
    assert result.threshold_notes[0] in page


def test_page_shows_enough_decimals_of_similarities_near_the_threshold(tmp_path: Path) -> None:
    cosine = 0.99897
    features = np.array([[1, 0], [cosine, (1 - cosine**2) ** 0.5], [0, -1]], dtype=np.float32)
    duplicates(features, page=tmp_path / "same.html")
    page = (tmp_path / "same.html").read_text()
    assert "0.99897" in page
    assert "0.9990" not in page


def test_proposes_no_threshold_without_a_gap() -> None:
    """Points of one cluster, of several, and of clusters of different widths: at most one in twenty has such a gap."""
    generator, proposed = np.random.default_rng(0), 0
    for number in range(20):
        width = int(generator.integers(3, 30))
        features = generator.normal(size=(200, width)) * np.exp(generator.normal(size=(200, 1)) * (number % 2))
        features += 3 * generator.normal(size=(4, width))[generator.integers(4, size=200)] * (number % 4 > 1)
        proposed += duplicates(features).proposed_threshold is not None
    assert proposed <= 2


def test_proposes_no_threshold_in_a_gap_as_narrow_as_rounding_errors() -> None:
    """1,000 pairs are equal up to rounding, and less similar pairs follow without a gap."""
    distances = np.concatenate([np.linspace(0, 1e-6, 1_000), 1.9e-6 * np.exp(0.005 * np.arange(2_000))])
    assert _find_proposed_threshold(1 - distances) is None
    distances[1_000:] *= 10
    assert 1 - distances[1_000] < _find_proposed_threshold(1 - distances) <= 1 - 1e-6


def test_equal_features_are_duplicates_at_threshold_1() -> None:
    """The computed cosine of equal features is often 0.99999994."""
    features = np.repeat(np.random.default_rng(0).normal(size=(50, 50)).astype(np.float32), 2, axis=0)
    expected = [(place, place + 1) for place in range(0, 100, 2)]
    assert [group.positions for group in duplicates(features, threshold=1.0)] == expected


def test_groups_are_connected_components_of_linked_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    set_module_names(monkeypatch, duplicates, TILE_SIZE=16)
    generator = np.random.default_rng(1)
    features = np.repeat(make_features(30), 3, axis=0) + 0.05 * generator.normal(size=(90, 5)).astype(np.float32)
    features = features[generator.permutation(90)]
    for threshold in (0.9, 0.99, 0.9999, 1.0):
        linked = cosines(features) >= threshold
        parent = list(range(90))

        def root(place: int, parent: list[int] = parent) -> int:
            while parent[place] != place:
                place = parent[place]
            return place

        for one, other in zip(*np.nonzero(np.triu(linked, 1)), strict=True):
            parent[root(int(other))] = root(int(one))
        groups: dict[int, list[int]] = {}
        for place in range(90):
            groups.setdefault(root(place), []).append(place)
        expected = sorted(tuple(group) for group in groups.values() if len(group) > 1)
        result = duplicates(features, threshold=threshold)
        assert sorted(group.positions for group in result) == expected
        assert [len(group.positions) for group in result] == sorted(map(len, expected), reverse=True)
    assert duplicates(np.ones((40, 3)))[0].positions == tuple(range(40))


@pytest.mark.parametrize(
    ("changed", "code", "values"),
    [
        ({"features": np.ones((0, 4))}, "features.empty", [(0, 4)]),
        ({"features": np.ones((6, 4), int)}, "features.invalid", ["int64"]),
        ({"features": np.ones((6, 4, 1))}, "features.invalid", [(6, 4, 1)]),
        ({"features": np.array(1.0)}, "features.invalid", [()]),
        ({"labels": np.array(["a"] * 6)}, "features.labels", ["<U1"]),
        ({"labels": np.full(6, 0.5)}, "features.labels", ["float64"]),
        ({"labels": np.full(6, -1)}, "features.labels", [-1]),
        ({"labels": np.arange(6), "class_names": np.array(["a", "b"])}, "features.labels", [1, 5]),
        ({"dims": np.array("many")}, "features.dims", ["'many'"]),
        ({"keys": np.array(["a"])}, "features.shape", [(1,), (6,)]),
    ],
)
@pytest.mark.parametrize(
    "command", [lambda file: neighbors(file, query=0), duplicates, lambda file: cluster(file, k=2)]
)
def test_rejects_files_with_wrong_arrays(
    tmp_path: Path, changed: dict[str, np.ndarray], code: str, values: list[Any], command: Any
) -> None:
    items = len(np.atleast_1d(changed.get("features", np.ones(6))))
    arrays = {"features": np.eye(6, 4), "rows": np.arange(items), "splits": np.full(items, "train")}
    np.savez(tmp_path / "a.npz", **(arrays | changed))
    with raises_usage_error(code, *values):
        command(tmp_path / "a.npz")


def test_names_the_first_of_several_items_with_the_key_of_the_query(caplog: pytest.LogCaptureFixture) -> None:
    features = Features(np.eye(3, dtype=np.float32), np.arange(3), np.full(3, "train"), np.array(["a", "b", "b"]))
    assert neighbors(features, query="a").query_name == "a"
    assert not caplog.records
    neighbors(features, query="b")
    assert caplog.records[-1].args == (2, "b", 1)


def test_file_of_duplicates_has_all_items_of_all_groups(tmp_path: Path) -> None:
    out = tmp_path / "same.csv"
    result = duplicates(np.repeat(np.eye(3), (20, 1, 2), axis=0), out=out)
    assert [len(group.positions) for group in result] == [20, 2]
    lines = out.read_text().splitlines()
    assert lines[0] == "position,row,name,group"
    assert lines[1:] == [
        f"{place},{place},train row {place},{2 if place > 20 else 1}" for place in (*range(20), 21, 22)
    ]
    with raises_usage_error("out.exists", "same.csv"):
        duplicates(np.eye(3), out=out)
    with raises_usage_error("out.suffix", ".csv", "same.txt"):
        duplicates(np.eye(3), out=tmp_path / "same.txt")


@pytest.mark.parametrize("command", [duplicates, partial(cluster, k=1)], ids=["duplicates", "cluster"])
def test_files_and_terminal_name_items_by_row_key_and_text(
    tmp_path: Path, command: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    keys, texts = np.array(["bag-1", "bag-7"]), np.array(["a red bag", "a red bag, used"])
    features = Features(np.ones((2, 3), np.float32), np.array([4, 9]), np.full(2, "test"), keys, descriptions=texts)
    result = command(features, out=tmp_path / "items.csv", page=tmp_path / "items.html")
    header, *lines = (tmp_path / "items.csv").read_text().splitlines()
    assert header.startswith("position,row,name,description,")
    assert [line.rpartition(",")[0] for line in lines] == ["0,4,bag-1,a red bag", '1,9,bag-7,"a red bag, used"']
    assert "bag-7: a red bag, used" in (tmp_path / "items.html").read_text()
    (print_duplicate_groups if command is duplicates else print_clusters)(result)
    printed = " ".join(capsys.readouterr().out.split())
    assert "bag-1: a red bag" in printed
    assert "bag-7: a red bag, used" in printed
    assert "bag-7: a red bag, used" in result._repr_html_()


def test_page_shows_enough_of_paths_to_distinguish_items(tmp_path: Path) -> None:
    keys = np.array(["left/cats/1.png", "right/cats/1.png", "right/cats/2.png", "right/cats/2.png"])
    features = Features(np.ones((4, 3), np.float32), np.arange(4), np.full(4, "train"), keys)
    duplicates(features, page=tmp_path / "same.html")
    names = re.findall(r"<strong title=.*?>(.*?)</strong>", (tmp_path / "same.html").read_text())
    assert names == ["left/cats/1.png", "right/cats/1.png", "right/cats/2.png", "right/cats/2.png"]


def test_clusters_separate_distant_groups(tmp_path: Path) -> None:
    centres = 10 * np.eye(5)[[0, 0, 0, 1, 1, 4]]
    features = np.repeat(centres, 20, axis=0) + np.random.default_rng(0).normal(size=(120, 5))
    out = tmp_path / "clusters.csv"
    labels = np.repeat([0, 1, 2], [60, 40, 20])
    stored = Features(
        features.astype(np.float32), np.arange(120), np.array(["train"] * 120), None, labels, np.array(["x", "y", "z"])
    )
    result = cluster(stored, k=3, out=out)
    assert result.labels.tolist() == [0] * 60 + [1] * 40 + [2] * 20
    assert [(one.size, one.class_name) for one in result.clusters] == [(60, "x"), (40, "y"), (20, "z")]
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    for number, one in enumerate(result.clusters):
        inside = np.flatnonzero(result.labels == number)
        distances = -(unit[inside] @ unit[inside].mean(0))
        assert one.typical_names[0] == stored.item_name(int(inside[distances.argmin()]))
    lines = out.read_text().splitlines()
    assert lines[0] == "position,row,name,cluster"
    assert lines[-1] == "119,119,train row 119,2"
    assert len(lines) == 121
    with raises_usage_error("out.exists", "overwrite=True"):
        cluster(stored, k=3, out=out)
    assert [len(cluster(features, k=k).clusters) for k in (1, 2, 120)] == [1, 2, 120]


def test_clusters_of_equal_items_are_one_with_a_note(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "contraport"):
        assert [one.size for one in cluster(np.ones((9, 2)), k=3).clusters] == [9]
    assert "2 of 3" in caplog.text


def test_large_data_start_from_centers_of_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Items without clusters, which need many iterations of Lloyd's algorithm."""
    set_module_names(monkeypatch, cluster, MAX_KMEANS_INIT_ITEMS=40)
    features = make_features(400, width=3)
    unit = (features / np.linalg.norm(features, axis=1, keepdims=True)).astype(float)
    sample = np.linspace(0, 399, 40).round().astype(int)
    numbers, clustered_rows = assign_kmeans_clusters(torch.from_numpy(features[sample]), 5), unit[sample]
    for _ in range(100):
        centres = np.stack([clustered_rows[numbers == number].mean(axis=0) for number in range(5)])
        clustered_rows, before = unit, numbers
        numbers = np.square(unit[:, None] - centres).sum(axis=2).argmin(axis=1)
    assert np.array_equal(numbers, before), "expected convergence of the reference"
    place = np.argsort(np.argsort(-np.bincount(numbers), kind="stable"))
    assert cluster(features, k=5).labels.tolist() == place[numbers].tolist()
    with raises_usage_error("k.invalid", 40, 41):
        cluster(features, k=41)


def test_typical_items_and_pictures_are_members_of_their_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Items of a narrow cluster are closer to the direction of a wide cluster than its own members."""
    wide = np.concatenate([np.full((8, 1), 0.5), 0.75**0.5 * np.repeat(np.eye(5)[:4], 2, axis=0)], axis=1)
    wide[::2, 1:] *= -1  # cluster around the first axis
    narrow = np.array([0.8, 0, 0, 0, 0, 0.6]) + 1e-3 * make_features(20, width=6)
    labels, names = np.array([0, 0, 0, 1, 1, 1, 1, 2, 0, *[2] * 19]), np.array(["a", "b", "c"])
    features = np.concatenate([wide, narrow]).astype(np.float32)
    stored = Features(features, np.arange(28), np.full(28, "train"), labels=labels, class_names=names)
    set_module_names(
        monkeypatch,
        cluster,
        MAX_SECTION_CARDS=3,
        assign_kmeans_clusters=lambda z, k: np.minimum(np.arange(28) // 8, k - 1),
    )
    out, page = tmp_path / "clusters.csv", tmp_path / "clusters.html"
    cluster(stored, k=1, out=out, page=page)
    result = cluster(stored, k=2, out=out, page=page, overwrite=True)
    assert result.labels.tolist() == [1] * 8 + [0] * 20
    assert [(row["items"], row["largest class"]) for row in result.format_rows()] == [
        ("20", "c (19 of 20)"),
        ("8", "b (4 of 8)"),
    ]
    of_narrow, of_wide = (
        [int(name.removeprefix("train row ")) for name in one.typical_names] for one in result.clusters
    )
    assert (len(of_narrow), len(of_wide)) == (3, 3)
    assert min(of_narrow) >= 8 > max(of_wide)
    assert out.read_text().splitlines()[1::27] == ["0,0,train row 0,1", "27,27,train row 27,0"]
    first, second = page.read_text().split("<section")[1:]
    assert "20 items; largest class: c (19 of 20)" in first
    assert "8 items; largest class: b (4 of 8)" in second
    assert [re.findall(r"<span>(.*?)</span>", one) for one in (first, second)] == [["1.000"] * 3, ["0.500"] * 3]
    assert ("and 17 more" in first, "and 5 more" in second) == (True, True)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Return features of a folder of photos, written by a run's encoder."""
    generator = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for number in range(8):
        pixels = generator.integers(0, 255, (8, 8, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{number}.png")
    torch.manual_seed(0)
    run = make_run(tmp_path / "run", Model("small-cnn", [(3, 8, 8)]), data=str(tmp_path / "photos"))
    out: Path = contraport.embed(run, out=tmp_path / "photos.npy", progress=False)
    return out


def test_errors_of_a_query_name_the_query_or_the_run(photos: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "other.npy", np.ones(5, np.float32))
    with raises_usage_error("query.*", (5,)):
        neighbors(photos, query=tmp_path / "other.npy")
    with raises_usage_error("run.not_found", "nowhere"):
        neighbors(photos, query=0, run=tmp_path / "nowhere")
    moved = replace(read_features(photos), run=str(tmp_path / "moved"))
    with raises_usage_error("run.not_found", tmp_path / "moved", "run="):
        neighbors(moved, query=tmp_path / "other.npy")


def test_output_that_cannot_be_created_is_an_error_of_the_option(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        raises_usage_error("out.not_writable", tmp_path / "file"),
        open_temporary_feature_buffer(tmp_path / "file" / "a.npz"),
    ):
        pass


def test_embeds_a_photo_with_the_run_of_the_features(photos: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.png"
    copy.write_bytes((tmp_path / "photos" / "3.png").read_bytes())
    result = neighbors(photos, query=copy, top=3)
    assert result[0].name == str(tmp_path / "photos" / "3.png")
    assert result[0].similarity == pytest.approx(1, abs=1e-5)
    of_key = neighbors(photos, query=str(tmp_path / "photos" / "3.png"), top=2)
    assert [near.name for near in of_key] == [near.name for near in result[1:]]
    pixels = np.asarray(Image.open(copy)).transpose(2, 0, 1)
    np.save(tmp_path / "copy.npy", pixels)
    assert neighbors(photos, query=tmp_path / "copy.npy", top=3)[0].name == result[0].name
    (tmp_path / "text.png").write_text("no image")
    with raises_usage_error("query.unreadable", "text.png"):
        neighbors(photos, query=tmp_path / "text.png")
    assert (result.query_name, of_key.query_name) == ("copy.png", str(tmp_path / "photos" / "3.png"))
    grey = make_run(tmp_path / "grey", build_image_model())
    other = neighbors(photos, query=copy, run=grey, top=3)
    assert len(other) == 3
    assert other[0].similarity < 0.99


@pytest.mark.parametrize(
    ("command", "options", "code", "values"),
    [
        (neighbors, {"query": 70}, "query.out_of_range", [70]),
        (neighbors, {"query": -1}, "query.out_of_range", [-1]),
        (neighbors, {"query": "nowhere.png"}, "query.unknown", [70, "'nowhere.png'"]),
        (neighbors, {"query": "--5"}, "query.unknown", [70, "'--5'"]),
        (neighbors, {"query": 1, "top": 0}, "top.invalid", [0]),
        (neighbors, {"query": __file__}, "run.missing", ["run="]),
        (duplicates, {"threshold": 2.0}, "threshold.invalid", [2.0]),
        (cluster, {"k": 71}, "k.invalid", [70, 71]),
        (cluster, {"k": 2, "out": "x.txt"}, "out.suffix", ["x.txt", ".csv"]),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_rejects_invalid_options(command: Any, options: dict[str, Any], code: str, values: list[object]) -> None:
    with raises_usage_error(code, *values):
        command(make_features(), **options)


@pytest.mark.parametrize(
    ("command", "options"), [(neighbors, {"query": 1}), (duplicates, {}), (cluster, {"k": 2})], ids=lambda value: None
)
def test_rejects_features_that_are_not_finite_rows_of_numbers(
    command: Any, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_module_names(monkeypatch, duplicates, TILE_SIZE=16)
    for value in (np.nan, np.inf, 1e300):
        features = make_features().astype(np.float64)
        features[40, 2] = value
        with raises_usage_error("features.not_finite", "first for item 40."):
            command(features, **options)
    for wrong in (np.array([None] * 70), np.array(1.0), np.array(["a", "b"]), np.ones((70, 3), bool)):
        with raises_usage_error("features.invalid", wrong.dtype, wrong.shape):
            command(wrong, **options)
    command(make_features().astype(np.longdouble), **options)


def test_an_unknown_query_proposes_the_nearest_name(photos: Path) -> None:
    with raises_usage_error("query.unknown", "'7.jpg'", "photos/7.png'"):
        neighbors(photos, query="7.jpg")
    with raises_usage_error("query.unknown", "'nothing like it'") as caught:
        neighbors(photos, query="nothing like it")
    assert "photos" not in str(caught.value)


def test_rejects_files_without_features(tmp_path: Path) -> None:
    with raises_usage_error("features.suffix", "'x.csv'"):
        duplicates("x.csv")
    with raises_usage_error("features.not_found", "x.npz"):
        duplicates(tmp_path / "x.npz")
    for suffix in (".npz", ".npy", ".parquet"):
        (tmp_path / f"x{suffix}").write_bytes(b"nothing of the kind")
        with raises_usage_error("features.unreadable", f"x{suffix}"):
            duplicates(tmp_path / f"x{suffix}")
    np.savez(tmp_path / "y.npz", other=np.ones(3))
    with raises_usage_error("features.no_features", "y.npz", "'features'"):
        duplicates(tmp_path / "y.npz")
    with raises_usage_error("features.not_finite", "item 1"):
        duplicates(np.array([[1.0], [np.nan], [2.0]]))


def test_pages_show_the_pictures_of_files(photos: Path, tmp_path: Path) -> None:
    neighbors(photos, query=0, top=3, page=tmp_path / "near.html")
    page_html = (tmp_path / "near.html").read_text()
    assert page_html.count('src="data:image/jpeg;base64,') == 4
    assert page_html.count('alt="') == 4
    copy = tmp_path / "<b>copy.png"
    copy.write_bytes((tmp_path / "photos" / "3.png").read_bytes())
    neighbors(photos, query=copy, top=2, page=tmp_path / "near.html", overwrite=True)
    page_html = (tmp_path / "near.html").read_text()
    assert page_html.count('src="data:image/jpeg;base64,') == 3
    query, nearest, _ = re.findall(r'src="(data:image/jpeg;base64,[^"]*)', page_html)
    assert query == nearest, "expected the picture of the original"
    assert "<b>" not in page_html
    assert "&lt;b&gt;copy.png" in page_html
    cluster(photos, k=2, page=tmp_path / "clusters.html")
    assert (tmp_path / "clusters.html").read_text().count('src="data:image/jpeg;base64,') == 8
    duplicates(photos, threshold=-1.0, page=tmp_path / "same.html")
    assert "1 group of duplicates among 8 items" in (tmp_path / "same.html").read_text()
    with raises_usage_error("page.exists", "same.html"):
        duplicates(photos, page=tmp_path / "same.html")
    with raises_usage_error("page.exists", "near.html"):
        neighbors(photos, query=0, page=tmp_path / "near.html")
    with raises_usage_error("page.suffix", ".html", "near.txt"):
        neighbors(photos, query=0, page=tmp_path / "near.txt")


def test_pages_show_pictures_of_the_run_or_state_that_there_are_none(tmp_path: Path) -> None:
    torch.manual_seed(0)
    run = make_run(tmp_path / "run", build_image_model(), data="digits")
    out = contraport.embed(run, out=tmp_path / "digits.npz", split="test", progress=False)
    neighbors(out, query=5, top=3, page=tmp_path / "near.html")
    page_html = (tmp_path / "near.html").read_text()
    assert page_html.count('src="data:image/png;base64,') == 4
    for near in neighbors(out, query=5, top=3):
        assert f"<span>{near.similarity:.3f}, {near.class_name}</span>" in page_html
    np.savez(tmp_path / "others.npz", x=np.zeros((9, 1, 8, 8), dtype=np.float32))
    others = contraport.embed(run, data=tmp_path / "others.npz", out=tmp_path / "of.npz", split="train", progress=False)
    neighbors(others, query=5, top=3, page=tmp_path / "others.html")
    page_html = (tmp_path / "others.html").read_text()
    assert NO_PICTURES_NOTE in page_html, "expected no pictures of the run's own data"
    assert "data:image" not in page_html
    neighbors(make_features(), query=5, top=3, page=tmp_path / "rows.html")
    page_html = (tmp_path / "rows.html").read_text()
    assert NO_PICTURES_NOTE in page_html
    assert page_html.count("<strong") == 4
    assert "no picture<" not in page_html  # one note instead of a placeholder for each item


def pictures_of(page: Path) -> dict[str, Image.Image]:
    """Return the pictures of a page by their alternative texts."""
    result = re.findall(r'src="data:image/\w+;base64,([^"]*)" alt="([^"]*)"', page.read_text())
    return {name: Image.open(io.BytesIO(base64.b64decode(letters))) for letters, name in result}


def test_pictures_match_their_split_rotation_and_background(tmp_path: Path) -> None:
    black, white = (np.full((4, 1, 8, 8), shade, dtype=np.uint8) for shade in (0, 255))
    np.savez(tmp_path / "both.npz", x=black, x_test=white)
    run = make_run(tmp_path / "run", build_image_model(), data=str(tmp_path / "both.npz"))
    out = contraport.embed(run, out=tmp_path / "of.npz", split="all", progress=False)
    neighbors(out, query=0, page=tmp_path / "near.html")
    shades = {name: picture.getextrema() for name, picture in pictures_of(tmp_path / "near.html").items()}
    of_train = {f"train row {row}": (0, 0) for row in range(4)}
    assert shades == of_train | {f"test row {row}": (255, 255) for row in range(4, 8)}
    turned = Image.Exif()
    turned[0x0112] = 6
    Image.new("RGB", (40, 20)).save(tmp_path / "turned.jpg", exif=turned)
    Image.new("RGBA", (10, 10), (0, 0, 0, 0)).save(tmp_path / "transparent.png")
    keys = np.array([str(tmp_path / "turned.jpg"), str(tmp_path / "transparent.png")])
    neighbors(
        Features(np.eye(2), np.arange(2), np.full(2, "train"), keys),
        query=0,
        page=tmp_path / "near.html",
        overwrite=True,
    )
    rotated, transparent = pictures_of(tmp_path / "near.html").values()
    assert rotated.size == (20, 40)
    assert transparent.convert("L").getextrema() == (255, 255), "expected white, as the encoder sees it"


def test_page_of_duplicates_shows_the_largest_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    features = np.repeat(np.eye(4), [5, 1, 2, 2], axis=0)

    def page_with(groups: int) -> str:
        set_module_names(monkeypatch, duplicates, MAX_HTML_GROUPS=groups, MAX_SECTION_CARDS=2)
        duplicates(features, page=tmp_path / "same.html", overwrite=True)
        return (tmp_path / "same.html").read_text()

    two = page_with(2)
    assert "3 groups of duplicates among 10 items" in two
    assert "The 2 largest groups are shown." in two
    assert ("Group 2" in two, "Group 3" in two) == (True, False)
    assert two.count("and 3 more") == two.count(" more</p>") == 1
    assert "largest groups" not in page_with(3)


def test_index_finds_nearly_all_nearest_items(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("faiss")
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(60, 12))
    features = (centres[generator.integers(60, size=3_000)] + 0.3 * generator.normal(size=(3_000, 12))).astype("f4")
    features[7] = features[2_000] * 2
    index = tmp_path / "features.faiss"
    hits = 0
    for query in range(0, 3_000, 300):
        exact, result = (neighbors(features, query=query, top=10, index=index_path) for index_path in (None, index))
        assert result[0].similarity == pytest.approx(exact[0].similarity, abs=1e-6)
        hits += len({near.position for near in exact} & {near.position for near in result})
    assert hits >= 95
    assert [group.positions for group in duplicates(features, index=index)] == [(7, 2000)]
    stamp = index.stat().st_mtime_ns
    neighbors(features, query=1, index=index)
    assert index.stat().st_mtime_ns == stamp
    for others in (features[:2_500], -features):
        caplog.clear()
        neighbors(others, query=1, index=index)
        assert [record.levelname for record in caplog.records].count("WARNING") == 1
    (tmp_path / "mine.txt").write_text("mine")
    with raises_usage_error("index.exists", "mine.txt"):
        neighbors(features, query=1, index=tmp_path / "mine.txt")


def test_index_misses_no_near_duplicates(tmp_path: Path) -> None:
    """Items with equal codes in the index, whose cells have little relation to their neighbors."""
    pytest.importorskip("faiss")
    generator = np.random.default_rng(0)
    groups = np.repeat(generator.normal(size=(40, 8)), 20, axis=0) + 1e-2 * generator.normal(size=(800, 8))
    groups[::20] = groups[1::20]
    sizes = np.exp(2 * generator.normal(size=(1_600, 1)))
    features = (np.concatenate([groups, generator.normal(size=(800, 8))]) * sizes).astype(np.float32)
    index, hits = tmp_path / "features.faiss", 0
    for query in range(0, 1_600, 40):
        exact, result = (neighbors(features, query=query, top=5, index=index_path) for index_path in (None, index))
        hits += len({near.position for near in exact} & {near.position for near in result})
        assert query >= 800 or result == exact
    assert hits >= 195
    for threshold in (0.999, 1.0):
        pairs = duplicates(features, threshold=threshold)
        assert duplicates(features, threshold=threshold, index=index) == pairs
        assert len(pairs) == 40


def test_without_faiss_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with raises_usage_error("index.missing_package", "contraport[index]"):
        neighbors(make_features(), query=1, index=tmp_path / "a.faiss")


def test_suggests_an_index_for_many_rows(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("contraport.similarity_search.nearest_rows.SLOW_SEARCH_ROWS", 50)
    neighbors(make_features(), query=1)
    (record,) = caplog.records
    assert (record.levelname, record.args) == ("WARNING", ("70", "index='FILE'"))


def test_damaged_index_is_rejected_or_rebuilt(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    faiss = pytest.importorskip("faiss")
    neighbors(make_features(), query=1, index=tmp_path / "a.faiss")
    (tmp_path / "a.faiss").write_bytes(b"nothing")
    with raises_usage_error("index.unreadable", "a.faiss"):
        neighbors(make_features(), query=1, index=tmp_path / "a.faiss")
    (tmp_path / "a.faiss.json").write_text("[")
    assert len(neighbors(make_features(), query=1, index=tmp_path / "a.faiss")) == 10
    assert "Rebuilding" in caplog.text
    caplog.clear()
    monkeypatch.setattr(faiss, "__version__", "0")
    assert len(neighbors(make_features(), query=1, index=tmp_path / "a.faiss")) == 10
    assert "Rebuilding" in caplog.text
    with raises_usage_error("index.not_a_folder", tmp_path / "a.faiss"):
        neighbors(make_features(), query=1, index=tmp_path / "a.faiss" / "b.faiss")
    neighbors(make_features(), query=1, index=tmp_path / "new" / "a.faiss")
    assert (tmp_path / "new" / "a.faiss").is_file()


def test_partly_written_index_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("faiss")
    neighbors(make_features(), query=1, index=tmp_path / "a.faiss")
    with monkeypatch.context() as stopped:
        stopped.setattr("contraport.similarity_search.nearest_rows.write_json", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            neighbors(-make_features(), query=1, index=tmp_path / "a.faiss")
    with raises_usage_error("index.exists", "a.faiss"):
        neighbors(make_features(), query=1, index=tmp_path / "a.faiss")


def test_notebook_table_of_duplicates(monkeypatch: pytest.MonkeyPatch) -> None:
    features = np.array([[1.0, 0.0]] * 7 + [[0.0, 1.0]] * 2 + [[0.6, 0.8]])
    result = duplicates(features)
    assert str(result) == "2 groups of duplicates among 10 items"
    assert [row["items"] for row in result.format_rows()] == ["7", "2"]
    assert result.format_rows()[0]["names"].endswith(" and 2 more")
    assert result.format_rows()[1]["names"] == "; ".join(result[1].names)
    page_html = result._repr_html_()
    assert page_html.count("<tr>") == 4
    assert "more group" not in page_html
    set_module_names(monkeypatch, duplicates, MAX_HTML_GROUPS=1)
    assert result._repr_html_().count("<tr>") == 4
    assert "and 1 more group<" in result._repr_html_()
    assert duplicates(features[-1:])._repr_html_() == "0 groups of duplicates among 1 item."
    assert duplicates(features[[0, 9]])._repr_html_().endswith("0.6000.")


def test_rejects_a_run_folder_as_features(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("data: digits")
    with raises_usage_error("features.run", tmp_path, "embed"):
        read_features(tmp_path)
