"""`contraport map`: inputs, files, page and errors, and trustworthiness compared with scikit-learn."""

from __future__ import annotations

import csv

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.manifold import trustworthiness as reference_trustworthiness
from tests.errors import raises_usage_error

import contraport
from contraport.feature_files import Features, read_features, write_features
from contraport.metrics.embedding_geometry import trustworthiness

QUICK = {"perplexity": 5, "iterations": 60, "progress": False}


@pytest.fixture
def features():
    data = load_digits()
    keys = np.array([f"=digit {k}" for k in range(60)])
    names = np.array([f"class {k}" for k in range(10)])
    return Features(
        data.data[:60].astype(np.float32), np.arange(60) + 7, np.full(60, "test"), keys, data.target[:60], names
    )


def test_writes_coordinates_picture_and_page(tmp_path, features):
    write_features(tmp_path / "features.npz", features)
    result = contraport.map(tmp_path / "features.npz", out=tmp_path / "map", **QUICK)
    assert sorted(file.name for file in (tmp_path / "map").iterdir()) == ["map.csv", "map.html", "map.npz", "map.png"]
    rows = list(csv.DictReader((tmp_path / "map" / "map.csv").open()))
    assert (rows[0]["position"], rows[0]["row"]) == ("0", "7")
    assert rows[0]["name"] == "'=digit 0"  # escaped, so that spreadsheets do not read a formula
    assert rows[3]["class"] == "class 3"
    np.testing.assert_allclose([[float(row["x"]), float(row["y"])] for row in rows], result.points)
    saved = read_features(tmp_path / "map" / "map.npz")
    assert np.array_equal(saved.features, result.points)
    assert saved.class_names.tolist() == features.class_names.tolist()
    page = (tmp_path / "map" / "map.html").read_text()
    assert "t-SNE of 60 items after 60 iterations" in page
    assert '"noun":"item"' in page
    assert "60 test items" not in page
    assert result.trustworthiness == pytest.approx(
        reference_trustworthiness(features.features, result.points, n_neighbors=12), abs=1e-3
    )


def test_maps_runs_and_data(tmp_path):
    x = load_digits().data[:80].astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x, labels=load_digits().target[:80])
    run = contraport.train(data=tmp_path / "data.npz", epochs=1, batch_size=20, out=tmp_path / "run", progress=False)
    run_map = contraport.map(run, out=tmp_path / "map", **QUICK)
    data_map = contraport.map(tmp_path / "data.npz", **QUICK)
    assert len(run_map.points) == 16  # the test split
    assert len(contraport.map(run.path, split="train", **QUICK).points) == 64
    assert data_map.positions.tolist() == list(range(80))
    assert data_map.folder is None
    assert np.array_equal(data_map.points, contraport.map(x, **QUICK).points)
    assert (tmp_path / "map" / "map.html").exists()


def test_maps_chosen_columns_of_a_table(tmp_path):
    x = load_digits().data[:40, 2:6].astype(np.float32)
    lines = ["name,a0,a1,a2,a3,group", *(f"item {k},{','.join(map(str, row))},{k % 3}" for k, row in enumerate(x))]
    (tmp_path / "table.csv").write_text("\n".join(lines) + "\n")
    columns = {"views": ["a*"], "labels": "group", "keys": "name"}
    result = contraport.map(tmp_path / "table.csv", columns=columns, out=tmp_path / "map", **QUICK)
    assert np.array_equal(result.points, contraport.map(x, **QUICK).points)
    saved = read_features(tmp_path / "map" / "map.npz")
    assert saved.keys[:2].tolist() == ["item 0", "item 1"]
    assert saved.labels.tolist() == [k % 3 for k in range(40)]


def test_seed_selects_the_items(features):
    first, repeated, other = (
        contraport.map(features, max_items=30, seed=seed, method="sne", exact=True, **QUICK) for seed in (0, 0, 1)
    )
    assert len(first.points) == 30
    assert np.array_equal(first.points, repeated.points)
    assert not np.array_equal(first.positions, other.positions)


def test_trustworthiness_in_chunks_and_with_ties(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(90, 6, generator=generator)
    z = x[:, :2] + 0.1 * torch.randn(90, 2, generator=generator)
    expected = reference_trustworthiness(x.numpy(), z.numpy(), n_neighbors=12)
    assert trustworthiness(x, z) == pytest.approx(expected, abs=1e-9)
    monkeypatch.setattr("contraport.metrics.embedding_geometry.MAX_PAIRS_IN_MEMORY", 200)
    assert trustworthiness(x, z) == pytest.approx(expected, abs=1e-9)
    assert trustworthiness(torch.ones(40, 2), torch.randn(40, 2, generator=generator)) == 1
    with raises_usage_error("z.invalid", 24):
        trustworthiness(x[:24], z[:24])


@pytest.mark.parametrize(
    ("source", "values", "code"),
    [
        (np.ones((20, 3)), {}, "source.constant"),
        (np.eye(20), {"perplexity": 19}, "perplexity.invalid"),
        (np.eye(20), {"split": "test"}, "split.conflict"),
        (np.eye(20), {"view": 0}, "view.conflict"),
        (np.eye(20), {"columns": {"labels": "a"}}, "columns.conflict"),
        (np.eye(20), {"method": "umap"}, "method.unknown"),
        (np.where(np.eye(20) > 0, np.nan, 1), {}, "source.not_finite"),
        ("missing.npz", {}, "source.not_found"),
        ("digitz", {}, "source.unknown"),
        ("digits", {"view": 3}, "view.unknown"),
    ],
)
def test_rejects_invalid_sources_and_settings(source, values, code):
    with raises_usage_error(code):
        contraport.map(source, **{**QUICK, **values})


def test_does_not_overwrite_other_files(tmp_path, features):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    with raises_usage_error("out.exists"):
        contraport.map(features, out=tmp_path / "full", **QUICK)
    with raises_usage_error("out.not_a_folder"):
        contraport.map(features, out=tmp_path / "full" / "mine.txt" / "b", **QUICK)
    with raises_usage_error("out.suffix", "map.png"):
        contraport.map(features, out=tmp_path / "map.png", **QUICK)
    with raises_usage_error("perplexity.invalid"):
        contraport.map(features, out=tmp_path / "new", **{**QUICK, "perplexity": 60})
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


@pytest.mark.parametrize(
    ("values", "code"),
    [
        (np.ones((1, 5)), "source.too_few"),
        (np.where(np.eye(9) > 0, np.nan, 0), "source.not_finite"),
    ],
)
def test_errors_of_features_name_the_source(values, code):
    with raises_usage_error(code):
        contraport.map(values.astype(np.float32), **QUICK)
