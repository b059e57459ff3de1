import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from contraport.data import from_arrays, load
from contraport.encoders import Model
from contraport.errors import UsageError
from contraport.evaluation import embed, evaluate
from contraport.runs import Run


def make_run(path: Path, model: Model, **config: Any) -> Run:
    """Write a run folder as a training leaves it, without training."""
    run = Run.create(path, {"data": "digits", "objective": "nt-xent", "seed": 0, "augment": "standard"} | config)
    run.append_metrics({"step": 1, "loss": 2.0, "temperature": 0.3, "seconds": 1.0})
    model.save_pretrained(run.model_path)
    return run


def image_model(seed: int = 0) -> Model:
    torch.manual_seed(seed)
    return Model("small-cnn", (1, 8, 8))


def vector_model() -> Model:
    torch.manual_seed(0)
    return Model("mlp", (6,))


def vectors(items: int, classes: int | None) -> Any:
    generator = np.random.default_rng(items)
    labels = None if classes is None else np.arange(items) % classes
    return from_arrays(generator.normal(size=(items, 6)).astype(np.float32), labels=labels)


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, dict[str, Any]]:
    run = make_run(tmp_path_factory.mktemp("runs") / "digits", image_model())
    return run, evaluate(run.path, progress=False)


def test_evaluate_measures_the_encoder_and_its_two_baselines(evaluated: tuple[Run, dict[str, Any]]) -> None:
    _, result = evaluated
    assert list(result["rows"]) == ["raw", "untrained", "trained"]
    for row in result["rows"].values():
        assert list(row) == ["alignment", "uniformity", "effective_rank", "linear_probe", "knn"]
        assert 0 < row["alignment"] < 4
        assert row["uniformity"] < 0
        assert row["linear_probe"] > 0.9
    assert result["rows"]["raw"]["knn"] > 0.95
    assert (result["data"], result["classes"], result["test_items"], result["notes"]) == ("digits", 10, 449, [])


def test_an_encoder_that_never_trained_is_its_own_baseline(evaluated: tuple[Run, dict[str, Any]]) -> None:
    _, result = evaluated
    assert result["rows"]["trained"] == result["rows"]["untrained"]


def test_evaluate_writes_what_it_returns(evaluated: tuple[Run, dict[str, Any]]) -> None:
    run, result = evaluated
    assert run.evaluation() == result
    assert json.loads(run.evaluation_path.read_text("utf-8")) == result


def test_samples_hold_what_the_page_draws(evaluated: tuple[Run, dict[str, Any]]) -> None:
    run, _ = evaluated
    samples = run.samples()
    assert samples["points"].shape == (449, 2)
    assert samples["labels"].shape == (449,)
    assert samples["thumbnails"].shape == (449, 1, 8, 8)
    assert samples["thumbnails"].dtype == np.uint8
    assert samples["class_names"].tolist() == list("0123456789")
    assert samples["plan"].shape == samples["target"].shape == (64, 64)
    assert samples["plan"].sum() == pytest.approx(1, abs=1e-5)
    assert not samples["plan"].diagonal().any()
    assert (np.diff(samples["plan_labels"]) >= 0).all()


def test_evaluate_leaves_the_model_file_and_the_random_state_alone(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", vector_model())
    before = (run.model_path / "model.safetensors").read_bytes()
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    evaluate(run, data=(vectors(60, 3), vectors(40, 3)), progress=False)
    assert torch.equal(torch.rand(1), expected)
    assert (run.model_path / "model.safetensors").read_bytes() == before


def test_evaluating_twice_gives_the_same_numbers(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", vector_model())
    data = (vectors(60, 3), vectors(40, 3))
    first, second = (evaluate(run, data=data, progress=False)["rows"] for _ in range(2))
    assert first == second


@pytest.mark.parametrize(("classes", "note"), [(None, "No labels"), (1, "One class only")])
def test_without_classes_only_accuracies_are_left_out(tmp_path: Path, classes: int | None, note: str) -> None:
    run = make_run(tmp_path / "run", vector_model())
    result = evaluate(run, data=(vectors(60, classes), vectors(40, classes)), progress=False)
    assert set(result["rows"]["trained"]) == {"alignment", "uniformity", "effective_rank"}
    assert result["notes"] == [f"{note}, so no linear probe and no kNN."]
    assert ("labels" in run.samples()) == (classes is not None)


def test_an_objective_of_ones_own_has_no_plan_and_this_is_said(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", vector_model(), objective="<MyLoss>")
    result = evaluate(run, data=(vectors(60, 3), vectors(40, 3)), progress=False)
    assert "plan" not in run.samples()
    assert any("objective was given as an object" in note for note in result["notes"])


def test_a_target_that_asks_for_labels_is_given_them(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", vector_model(), objective="sup-con")
    evaluate(run, data=(vectors(60, 3), vectors(40, 3)), progress=False)
    target, labels = run.samples()["target"], np.tile(run.samples()["plan_labels"], 2)
    assert np.array_equal(target > 0, (labels[:, None] == labels) & ~np.eye(len(labels), dtype=bool))


def test_more_neighbours_than_items_are_told_and_nothing_is_written(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", vector_model())
    with pytest.raises(UsageError, match="neighbors: expected a number from 1 to 12"):
        evaluate(run, data=(vectors(12, 3), vectors(12, 3)), progress=False)
    assert not run.evaluation_path.exists()
    assert not run.samples_path.exists()


def test_wrong_arguments_of_evaluate_are_told(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", vector_model(), data="<vectors>")
    with pytest.raises(UsageError, match="pass data="):
        evaluate(run, progress=False)
    with pytest.raises(UsageError, match="a Dataset is one split"):
        evaluate(run, data=vectors(60, 3), progress=False)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"takes items of shape \(6,\), 'digits' has"):
        evaluate(run, data="digits", progress=False)
    with pytest.raises(UsageError, match="device: 'abacus' cannot be used"):
        evaluate(run, data=(vectors(60, 3), vectors(40, 3)), device="abacus", progress=False)
    with pytest.raises(UsageError, match="no such folder"):
        evaluate(tmp_path / "absent", progress=False)


def test_embed_npz_holds_every_item_of_both_splits(tmp_path: Path) -> None:
    model = image_model()
    run = make_run(tmp_path / "run", model)
    out = embed(run.path, out=tmp_path / "digits.npz", progress=False)
    with np.load(out, allow_pickle=False) as arrays:
        assert arrays["features"].shape == (1797, model.num_features)
        assert arrays["labels"].shape == arrays["ids"].shape == (1797,)
        assert arrays["class_names"].tolist() == list("0123456789")
        test = arrays["splits"] == "test"
        assert arrays["ids"][test].tolist() == list(range(449))
        items = load("digits", "test").__getitems__([5]).views[0]
        with torch.no_grad():
            assert np.allclose(arrays["features"][test][5], model.eval()(items)[0], atol=1e-4)


def test_embed_parquet_has_a_column_a_feature(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", vector_model())
    out = embed(run, data=vectors(30, 3), out=tmp_path / "vectors.parquet", progress=False)
    table = pq.read_table(out)
    width = vector_model().num_features
    assert table.column_names == [f"f{number}" for number in range(width)] + ["id", "split", "label", "class_name"]
    assert table.num_rows == 30
    assert table["id"].to_pylist() == list(range(30))
    assert table["label"].to_pylist() == [position % 3 for position in range(30)]


def test_embed_without_labels_has_no_label_column(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", vector_model())
    out = embed(run, data=vectors(30, None), out=tmp_path / "vectors.parquet", progress=False)
    assert pq.read_table(out).column_names[-2:] == ["id", "split"]


def test_embed_refuses_a_wrong_name_and_an_existing_file(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", vector_model())
    data = vectors(30, 3)
    with pytest.raises(UsageError, match=r"ends in \.npz or \.parquet"):
        embed(run, data=data, out=tmp_path / "vectors.csv", progress=False)
    with pytest.raises(UsageError, match="does not exist"):
        embed(run, data=data, out=tmp_path / "absent" / "vectors.npz", progress=False)
    with pytest.raises(UsageError, match="split: expected"):
        embed(run, data=data, split="half", out=tmp_path / "vectors.npz", progress=False)
    existing = tmp_path / "vectors.npz"
    existing.write_bytes(b"mine")
    with pytest.raises(UsageError, match="exists; pass overwrite=True"):
        embed(run, data=data, out=existing, progress=False)
    assert existing.read_bytes() == b"mine"
    embed(run, data=data, out=existing, overwrite=True, progress=False)
    assert np.load(existing)["features"].shape[0] == 30
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "vectors.npz"]


def test_a_corrupt_model_is_told(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", vector_model())
    (run.model_path / "model.safetensors").write_bytes(b"\x00" * 40)
    with pytest.raises(UsageError, match="model"):
        evaluate(run, data=(vectors(60, 3), vectors(40, 3)), progress=False)
