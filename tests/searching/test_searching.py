"""What is near, there twice, or of one kind: against all pairs at once, in double precision."""

from __future__ import annotations

import inspect
import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.evaluation.making import image_model, make_run

import contraport
from contraport.encoders import Model
from contraport.errors import UsageError
from contraport.features import Features, read_features, write_features
from contraport.searching import blocks, cluster, duplicates, neighbors


def some(items: int = 70, width: int = 5, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(items, width)).astype(np.float32)


def cosines(features: np.ndarray) -> np.ndarray:
    unit = features.astype(np.float64) / np.linalg.norm(features.astype(np.float64), axis=1, keepdims=True)
    return unit @ unit.T


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of which these few items fill several."""
    monkeypatch.setattr("contraport.searching.blocks.BLOCK", 16)


def test_neighbors_are_those_of_all_pairs() -> None:
    features = some()
    alike = cosines(features)
    for query in (0, 33, 69):
        found = neighbors(features, query=query, top=12)
        expected = [place for place in np.argsort(-alike[query], kind="stable") if place != query][:12]
        assert [near.position for near in found] == expected
        assert [near.similarity for near in found] == pytest.approx(alike[query][expected], abs=1e-6)
    assert len(neighbors(features, query=1, top=500)) == 69
    assert neighbors(features, query=-1) == neighbors(features, query=69)
    assert neighbors(features, query=-1).to == "train row 69"


def test_blocks_of_any_size_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    features = np.concatenate([some(), some()])
    found = neighbors(features, query=3, top=20)
    monkeypatch.setattr("contraport.searching.blocks.BLOCK", 7)
    assert [near.position for near in neighbors(features, query=3, top=20)] == [near.position for near in found]
    assert found[0].position == 73


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".parquet"])
def test_a_file_has_names_and_classes(tmp_path: Path, suffix: str) -> None:
    array = some(6)
    keys = np.array([f"photos/{number}.png" for number in range(6)])
    whole = Features(
        array,
        np.arange(6) + 3,
        np.array(["test"] * 6),
        keys,
        np.array([0, 2, 0, 2, 2, 0]),
        np.array(["a", "b", "c"]),
        "r",
        data="photos",
    )
    write_features(tmp_path / f"some{suffix}", whole)
    read = read_features(tmp_path / f"some{suffix}")
    np.testing.assert_array_equal(read.features, array)
    assert (read.rows.tolist(), read.splits.tolist()) == ([3, 4, 5, 6, 7, 8], ["test"] * 6)
    assert (read.run, read.view, read.data) == ("r", None, "photos")
    found = neighbors(tmp_path / f"some{suffix}", query="photos/1.png", top=5)
    assert found == neighbors(whole, query=1, top=5)
    assert {near.name for near in found} == set(keys) - {"photos/1.png"}
    assert all(near.class_name == ("c" if near.position in (1, 3, 4) else "a") for near in found)
    unnamed = Features(array, np.arange(6) + 3, np.array(["test"] * 6))
    assert unnamed.name_of(2) == "test row 5"


def test_where_nothing_is_there_twice_the_most_alike_are_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "contraport.searching")
    assert duplicates(np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]]), threshold=0.9) == []
    assert duplicates(np.array([[1.0, 0.0]])) == []
    (told,) = caplog.records
    assert (told.levelname, told.getMessage()) == ("WARNING", "no cosine is 0.9 or more; the largest is 0.8000")


def test_equal_features_are_the_same_at_a_cosine_of_1() -> None:
    """Whose cosine is often 0.99999994."""
    features = np.repeat(np.random.default_rng(0).normal(size=(50, 50)).astype(np.float32), 2, axis=0)
    expected = [(place, place + 1) for place in range(0, 100, 2)]
    assert [group.positions for group in duplicates(features, threshold=1.0)] == expected


def test_duplicates_are_linked_pairs_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(inspect.unwrap(duplicates).__globals__, "TILE", 16)
    generator = np.random.default_rng(1)
    features = np.repeat(some(30), 3, axis=0) + 0.05 * generator.normal(size=(90, 5)).astype(np.float32)
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
        found = duplicates(features, threshold=threshold)
        assert sorted(group.positions for group in found) == expected
        assert [len(group.positions) for group in found] == sorted(map(len, expected), reverse=True)
    assert duplicates(np.ones((40, 3)))[0].positions == tuple(range(40))


def test_clusters_are_what_lloyd_ends_at(tmp_path: Path) -> None:
    centres = 10 * np.eye(5)[[0, 0, 0, 1, 1, 4]]
    features = np.repeat(centres, 20, axis=0) + np.random.default_rng(0).normal(size=(120, 5))
    out = tmp_path / "clusters.csv"
    labels = np.repeat([0, 1, 2], [60, 40, 20])
    given = Features(
        features.astype(np.float32), np.arange(120), np.array(["train"] * 120), None, labels, np.array(["x", "y", "z"])
    )
    found = cluster(given, k=3, out=out)
    assert found.numbers.tolist() == [0] * 60 + [1] * 40 + [2] * 20
    assert [(one.items, one.class_name) for one in found.clusters] == [(60, "x"), (40, "y"), (20, "z")]
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    for number, one in enumerate(found.clusters):
        inside = np.flatnonzero(found.numbers == number)
        distances = -(unit[inside] @ unit[inside].mean(0))
        assert one.typical[0] == given.name_of(int(inside[distances.argmin()]))
    lines = out.read_text().splitlines()
    assert lines[0] == "position,name,cluster"
    assert lines[-1] == "119,train row 119,2"
    assert len(lines) == 121
    with pytest.raises(UsageError, match="exists; pass overwrite=True"):
        cluster(given, k=3, out=out)
    assert {len(cluster(features, k=k).clusters) for k in (1, 2)} == {1, 2}
    assert cluster(np.ones((9, 2)), k=3).clusters[0].items == 9


def test_clusters_of_more_items_than_the_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    features = np.concatenate([some(50, seed=number) + 6 * np.eye(5)[number] for number in range(3)])
    whole = cluster(features, k=3)
    monkeypatch.setitem(inspect.unwrap(cluster).__globals__, "SAMPLED", 30)
    assert np.array_equal(cluster(features, k=3).numbers, whole.numbers)


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


def test_a_photo_is_embedded_by_the_run_of_the_features(photos: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.png"
    copy.write_bytes((tmp_path / "photos" / "3.png").read_bytes())
    found = neighbors(photos, query=copy, top=3)
    assert found[0].name == str(tmp_path / "photos" / "3.png")
    assert found[0].similarity == pytest.approx(1, abs=1e-5)
    of_key = neighbors(photos, query=str(tmp_path / "photos" / "3.png"), top=2)
    assert [near.name for near in of_key] == [near.name for near in found[1:]]
    pixels = np.asarray(Image.open(copy)).transpose(2, 0, 1)
    np.save(tmp_path / "copy.npy", pixels)
    assert neighbors(photos, query=tmp_path / "copy.npy", top=3)[0].name == found[0].name
    (tmp_path / "text.png").write_text("no image")
    with pytest.raises(UsageError, match=r"^query: .* cannot be read as an image: "):
        neighbors(photos, query=tmp_path / "text.png")
    grey = make_run(tmp_path / "grey", image_model())
    assert len(neighbors(photos, query=copy, run=grey, top=3)) == 3


@pytest.mark.parametrize(
    ("verb", "given", "told"),
    [
        (neighbors, {"query": 70}, "query: expected a position among 70, got 70"),
        (
            neighbors,
            {"query": "nowhere.png"},
            "query: expected a position among 70, a key of theirs or a file, got 'nowhere.png'",
        ),
        (neighbors, {"query": "--5"}, "query: expected a position among 70, a key of theirs or a file, got '--5'"),
        (neighbors, {"query": 1, "top": 0}, "top: expected a whole number from 1 on, got 0"),
        (neighbors, {"query": __file__}, "run: the features do not say which run embedded them"),
        (duplicates, {"threshold": 2.0}, "threshold: expected a cosine, a number from -1 to 1, got 2.0"),
        (cluster, {"k": 71}, "k: expected at most the 70 items, got 71"),
        (cluster, {"k": 2, "out": "x.txt"}, r"out: expected a name that ends in \.csv"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_mistakes_are_told(verb: Any, given: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        verb(some(), **given)


def test_files_that_hold_no_features_are_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"features: expected a file \.npz, \.npy, \.parquet, got 'x\.csv'"):
        duplicates("x.csv")
    with pytest.raises(UsageError, match="features: there is no file"):
        duplicates(tmp_path / "x.npz")
    for suffix in (".npz", ".npy", ".parquet"):
        (tmp_path / f"x{suffix}").write_bytes(b"nothing of the kind")
        with pytest.raises(UsageError, match=f"x{suffix} cannot be read as {suffix}"):
            duplicates(tmp_path / f"x{suffix}")
    np.savez(tmp_path / "y.npz", other=np.ones(3))
    with pytest.raises(UsageError, match="has no array 'features', but"):
        duplicates(tmp_path / "y.npz")
    with pytest.raises(UsageError, match="1 of 3 items have a NaN or infinite feature"):
        duplicates(np.array([[1.0], [np.nan], [2.0]]))
    assert blocks.BLOCK == 16


def test_pages_show_the_pictures_of_files(photos: Path, tmp_path: Path) -> None:
    neighbors(photos, query=0, top=3, page=tmp_path / "near.html")
    shown = (tmp_path / "near.html").read_text()
    assert shown.count('src="data:image/jpeg;base64,') == 4
    assert shown.count('alt="') == 4
    copy = tmp_path / "<b>copy.png"
    copy.write_bytes((tmp_path / "photos" / "3.png").read_bytes())
    neighbors(photos, query=copy, top=2, page=tmp_path / "near.html", overwrite=True)
    shown = (tmp_path / "near.html").read_text()
    assert shown.count('src="data:image/jpeg;base64,') == 3
    assert "<b>" not in shown
    assert "&lt;b&gt;copy.png" in shown
    cluster(photos, k=2, page=tmp_path / "clusters.html")
    assert (tmp_path / "clusters.html").read_text().count('src="data:image/jpeg;base64,') == 8
    duplicates(photos, threshold=-1.0, page=tmp_path / "same.html")
    assert "1 group of duplicates among 8 items" in (tmp_path / "same.html").read_text()
    with pytest.raises(UsageError, match=r"page: .*near\.html exists"):
        neighbors(photos, query=0, page=tmp_path / "near.html")
    with pytest.raises(UsageError, match=r"page: expected a name that ends in \.html, got 'near\.txt'"):
        neighbors(photos, query=0, page=tmp_path / "near.txt")


def test_pages_show_the_pictures_of_the_run_and_say_where_there_are_none(tmp_path: Path) -> None:
    torch.manual_seed(0)
    run = make_run(tmp_path / "run", image_model(), data="digits")
    out = contraport.embed(run, out=tmp_path / "digits.npz", split="test", progress=False)
    neighbors(out, query=5, top=3, page=tmp_path / "near.html")
    assert (tmp_path / "near.html").read_text().count('src="data:image/png;base64,') == 4
    np.savez(tmp_path / "others.npz", x=np.zeros((9, 1, 8, 8), dtype=np.float32))
    others = contraport.embed(run, data=tmp_path / "others.npz", out=tmp_path / "of.npz", split="train", progress=False)
    neighbors(others, query=5, top=3, page=tmp_path / "others.html")
    shown = (tmp_path / "others.html").read_text()
    assert "There are no pictures" in shown, "row 5 of other data is no row of the run's own"
    assert "data:image" not in shown
    neighbors(some(), query=5, top=3, page=tmp_path / "rows.html")
    shown = (tmp_path / "rows.html").read_text()
    assert "There are no pictures" in shown
    assert shown.count("<strong") == 4
    assert "no picture<" not in shown  # said once, above, rather than by a box for each


def test_an_index_finds_nearly_what_looking_at_all_does(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("faiss")
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(60, 12))
    features = (centres[generator.integers(60, size=3_000)] + 0.3 * generator.normal(size=(3_000, 12))).astype("f4")
    features[7] = features[2_000] * 2
    index = tmp_path / "features.faiss"
    hits = 0
    for query in range(0, 3_000, 300):
        exact, found = (neighbors(features, query=query, top=10, index=given) for given in (None, index))
        assert found[0].similarity == pytest.approx(exact[0].similarity, abs=1e-6)
        hits += len({near.position for near in exact} & {near.position for near in found})
    assert hits >= 95
    assert [group.positions for group in duplicates(features, index=index)] == [(7, 2000)]
    stamp = index.stat().st_mtime_ns
    neighbors(features, query=1, index=index)
    assert index.stat().st_mtime_ns == stamp
    neighbors(features[:2_500], query=1, index=index)
    assert "is made again: it is of other features" in caplog.text
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"index: .*mine\.txt exists and is no index"):
        neighbors(features, query=1, index=tmp_path / "mine.txt")


def test_without_faiss_it_is_told_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(UsageError, match=r"contraport\[index\]"):
        neighbors(some(), query=1, index=tmp_path / "a.faiss")


def test_more_than_a_million_rows_are_told_of_an_index(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("contraport.searching.index.MANY", 50)
    neighbors(some(), query=1)
    assert "all of 70 rows are looked at; an index, made once, is quicker: --index FILE" in caplog.text


def test_a_damaged_index_is_told_or_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("faiss")
    neighbors(some(), query=1, index=tmp_path / "a.faiss")
    (tmp_path / "a.faiss").write_bytes(b"nothing")
    with pytest.raises(UsageError, match=r"index: .*a\.faiss cannot be read: .*; delete it"):
        neighbors(some(), query=1, index=tmp_path / "a.faiss")
    (tmp_path / "a.faiss.json").write_text("[")
    assert len(neighbors(some(), query=1, index=tmp_path / "a.faiss")) == 10
    assert "is made again" in caplog.text
