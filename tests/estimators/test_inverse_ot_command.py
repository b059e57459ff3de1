"""`contraport inverse-ot`: recovery of planted affinities from folders and matrices, output files, and errors."""

from __future__ import annotations

import json

import numpy as np
import ot
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import sparse
from tests.errors import raises_usage_error

import contraport
from contraport.cli import main
from contraport.feature_files import Features

RNG = np.random.default_rng(0)


def standardize(values):
    return (values - values.mean(0)) / values.std(0)


X, Y = standardize(RNG.normal(size=(40, 3))), standardize(RNG.normal(size=(30, 2)))
AFFINITY = np.array([[0.9, 0.0], [0.2, -0.5], [0.0, 0.1]])
PLAN = ot.sinkhorn(np.full(40, 1 / 40), np.full(30, 1 / 30), -X @ AFFINITY @ Y.T, 1.0, stopThr=1e-13)


def test_features_of_a_file_are_sorted_by_row():
    order = RNG.permutation(40)
    embedded = Features((X[order]).astype(np.float32), order, np.where(order % 5, "train", "test"))
    result = contraport.inverse_ot(PLAN, row_features=embedded, column_features=Y)
    np.testing.assert_allclose(
        result.affinity, contraport.inverse_ot(PLAN, row_features=X, column_features=Y).affinity, atol=1e-5
    )


def test_recovers_a_planted_affinity(tmp_path):
    np.savetxt(tmp_path / "plan.csv", 100 * PLAN, delimiter=",")
    np.save(tmp_path / "rows.npy", 5 * X.astype(np.float32) + 2)  # in other units
    result = contraport.inverse_ot(
        tmp_path / "plan.csv",
        row_features=tmp_path / "rows.npy",
        column_features=Y.astype(np.float32),
        out=tmp_path / "learned",
    )
    np.testing.assert_allclose(result.affinity, AFFINITY, atol=1e-4)
    np.testing.assert_allclose(result.plan, PLAN, atol=1e-7)
    independent = (PLAN * np.log(PLAN * 40 * 30)).sum()
    assert result.independent_kl == pytest.approx(independent, abs=1e-9)
    assert result.explained_share > 0.999999
    singular_values = np.linalg.svd(AFFINITY, compute_uv=False)
    np.testing.assert_allclose(result.direction_shares, singular_values / singular_values.sum(), atol=1e-4)
    with np.load(tmp_path / "learned" / "inverse_ot.npz") as saved:
        rebuilt = -saved["row_features"] @ saved["affinity"] @ saved["column_features"].T
        centered = rebuilt - rebuilt.mean(0) - rebuilt.mean(1, keepdims=True) + rebuilt.mean()
        np.testing.assert_allclose(saved["cost"], centered, atol=1e-9)
    assert (tmp_path / "learned" / "plans.png").stat().st_size > 1000


def test_learns_from_the_folder_of_a_coupling(tmp_path, capsys):
    folder = tmp_path / "shop"
    folder.mkdir()
    for name, values in (("rows", X), ("columns", Y)):
        header = ",".join(["id", *(f"f{k}" for k in range(values.shape[1]))])
        lines = [f"{name}{k}," + ",".join(map(str, row)) for k, row in enumerate(values)]
        (folder / f"{name}.csv").write_text("\n".join([header, *lines]) + "\n")
    counts = RNG.multinomial(50_000, PLAN.ravel()).reshape(PLAN.shape)
    counts[3] = 0  # a row without pairs
    pairs = [f"rows{i},columns{j},{counts[i, j]}" for i, j in np.argwhere(counts > 0)]
    (folder / "pairs.csv").write_text("\n".join(["row,column,weight", *pairs]) + "\n")
    result = contraport.inverse_ot(folder)
    assert 3 not in result.row_positions
    assert result.plan.shape == (39, 30)
    np.testing.assert_allclose(result.affinity, AFFINITY, atol=0.06)
    assert result.explained_share > 0.9
    assert main(["inverse-ot", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kl_divergence"] == pytest.approx(result.kl_divergence)


def test_keeps_principal_components_of_many_features():
    wide = X @ RNG.normal(size=(3, 50))
    result = contraport.inverse_ot(PLAN, row_features=wide, column_features=Y, components=3)
    assert result.affinity.shape == (3, 2)
    assert result.explained_share > 0.99999  # three components span the features
    one_component = contraport.inverse_ot(PLAN, row_features=wide, column_features=Y, components=1)
    assert one_component.explained_share < result.explained_share


def test_cost_of_an_independent_coupling_is_zero():
    result = contraport.inverse_ot(np.outer([1.0, 2.0, 3.0], [1.0, 1.0]))
    assert result.explained_share == 0
    assert "explained share 0.0%" in str(result)
    assert "-0.0000" not in str(result)
    np.testing.assert_allclose(result.cost, 0, atol=1e-6)


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"coupling": np.zeros((3, 2))}, "coupling.empty"),
        ({"coupling": [[1.0, -1.0]]}, "coupling.invalid"),
        ({"coupling": [[1.0, np.nan]]}, "coupling.invalid"),
        ({"coupling": [1.0, 2.0]}, "coupling.shape"),
        ({"coupling": [["a", "b"]]}, "coupling.shape"),
        ({"coupling": PLAN, "row_features": X[:5]}, "row_features.shape"),
        ({"coupling": PLAN, "column_features": np.ones((30, 2))}, "column_features.constant"),
        ({"coupling": PLAN, "column_features": np.where(Y > 1, np.inf, Y)}, "column_features.not_finite"),
        ({"coupling": sparse.csr_array(PLAN)}, "coupling.sparse"),
        ({"coupling": "missing.csv"}, "coupling.not_found"),
        ({"coupling": PLAN, "row_features": "missing.npz"}, "row_features.not_found"),
        ({"coupling": PLAN, "column_features": np.array([None] * 30)}, "column_features.invalid"),
        ({"coupling": PLAN, "ridge": -1}, "ridge.invalid"),
        ({"coupling": PLAN, "components": 0}, "components.invalid"),
    ],
)
def test_rejects_invalid_couplings(values, code):
    with raises_usage_error(code):
        contraport.inverse_ot(**values)


def test_accepts_deprecated_names_of_the_features(tmp_path, capsys, caplog):
    with pytest.warns(FutureWarning, match="row_features"):
        result = contraport.inverse_ot(PLAN, rows=X, column_features=Y)
    np.testing.assert_array_equal(result.cost, contraport.inverse_ot(PLAN, row_features=X, column_features=Y).cost)
    for name, values in (("plan", PLAN), ("users", X), ("items", Y)):
        np.save(tmp_path / f"{name}.npy", values)
    line = ["inverse-ot", "plan.npy", "--rows", "users.npy", "--columns", "items.npy", "--json"]
    assert main([str(tmp_path / word) if word.endswith(".npy") else word for word in line]) == 0
    assert json.loads(capsys.readouterr().out)["kl_divergence"] == pytest.approx(result.kl_divergence)
    assert [record.getMessage().split()[-1] for record in caplog.records] == ["--row_features.", "--column_features."]


def test_rejects_a_heading_of_column_numbers(tmp_path):
    file = tmp_path / "counts.csv"
    file.write_text("0,1\n3,1\n1,3\n")
    with raises_usage_error("coupling.heading", "counts.csv", "0,1"):
        contraport.inverse_ot(file)
    file.write_text("0.0,1\n1,0\n")
    assert contraport.inverse_ot(file, ridge=0.1).plan.shape == (2, 2)


def test_rejects_files_and_folders_of_another_kind(tmp_path):
    pq.write_table(pa.table({"0": [1.0], "1": [2.0]}), tmp_path / "plan.parquet")
    with raises_usage_error("coupling.suffix", "plan.parquet", ".csv", ".npy"):
        contraport.inverse_ot(tmp_path / "plan.parquet")
    (tmp_path / "text.csv").write_text("a,b\n1,2\n")
    with raises_usage_error("coupling.unreadable"):
        contraport.inverse_ot(tmp_path / "text.csv")
    (tmp_path / "photos").mkdir()
    np.savez(tmp_path / "photos" / "x.npz", x=np.eye(3))
    with raises_usage_error("coupling.no_coupling", tmp_path / "photos"):
        contraport.inverse_ot(tmp_path / "photos")
    for name in ("rows", "pairs"):
        (tmp_path / "photos" / f"{name}.csv").write_text("id,x\n1,2\n")
    with raises_usage_error("coupling.no_table", "columns"):
        contraport.inverse_ot(tmp_path / "photos")
    with raises_usage_error("coupling.too_large"):
        contraport.inverse_ot(np.zeros((5001, 5000), dtype=np.uint8))


def without_resource_warnings(recwarn):
    """Ignore warnings about files that another test left open."""
    return [warning for warning in recwarn if not issubclass(warning.category, ResourceWarning)]


def test_early_stop_names_the_options_to_increase(caplog, recwarn):
    contraport.inverse_ot(PLAN, iterations=2)
    assert "increase iterations or ridge" in caplog.text
    assert not without_resource_warnings(recwarn)


def test_rejects_an_empty_file_without_a_warning(tmp_path, recwarn):
    (tmp_path / "empty.csv").write_text("")
    with raises_usage_error("coupling.shape"):
        contraport.inverse_ot(tmp_path / "empty.csv")
    assert not without_resource_warnings(recwarn)
