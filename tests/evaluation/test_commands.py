import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from contraport.data import Dataset, Views, from_arrays, load
from contraport.encoders import Model
from contraport.errors import UsageError
from contraport.evaluation import embed, evaluate
from contraport.evaluation.commands import worsened
from contraport.files import write_json
from contraport.runs import Run


def make_run(path: Path, model: Model, **config: Any) -> Run:
    """Write a run folder as a training leaves it, without training."""
    run = Run.create(path, {"data": "digits", "objective": "nt-xent", "seed": 0, "augment": "standard"} | config)
    run.append_metrics({"step": 1, "loss": 2.0, "temperature": 0.3, "seconds": 1.0})
    model.save_pretrained(run.model_path)
    write_json(run.trained_path, {"epochs": config.get("epochs", 1)})
    return run


def image_model(seed: int = 0) -> Model:
    torch.manual_seed(seed)
    return Model("small-cnn", [(1, 8, 8)])


def vector_model() -> Model:
    torch.manual_seed(0)
    return Model("mlp", [(6,)])


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
        assert set(row) == {"alignment", "uniformity", "effective_rank", "linear_probe", "knn"}
        assert 0 < row["alignment"] < 4
        assert row["uniformity"] < 0
        assert row["linear_probe"] > 0.9
    assert result["rows"]["raw"]["knn"] > 0.95
    assert (result["data"], result["classes"], result["test_items"]) == ("digits", 10, 449)


def test_an_encoder_that_never_trained_is_its_own_baseline(evaluated: tuple[Run, dict[str, Any]]) -> None:
    _, result = evaluated
    assert result["rows"]["trained"] == result["rows"]["untrained"]


def test_what_training_made_worse_is_said(tmp_path: Path) -> None:
    """An encoder that was spoilt is worse than as it was drawn; one that is as it was drawn is not."""
    model = vector_model()
    rows = np.random.default_rng(0).normal(size=(90, 6)) + 2 * np.eye(6)[np.arange(90) % 3]
    data = tuple(from_arrays(rows[part], labels=np.arange(90)[part] % 3) for part in (slice(60), slice(60, None)))
    drawn = evaluate(make_run(tmp_path / "drawn", model), data=data, progress=False)
    assert not [note for note in drawn["notes"] if "untrained" in note]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.0)
    spoilt = evaluate(make_run(tmp_path / "spoilt", model), data=data, progress=False)
    (note,) = [note for note in spoilt["notes"] if "worse than the untrained encoder" in note]
    before, after = (f"{spoilt['rows'][row]['linear_probe']:.1%}" for row in ("untrained", "trained"))
    assert f"Linear probe ({after} after {before})" in note
    assert "more epochs" in note
    assert any("worse than the raw inputs by Linear probe" in note for note in spoilt["notes"])


@pytest.mark.parametrize(
    ("trained", "note"),
    [
        (
            {"alignment": 0.5, "uniformity": -2.0},
            "Training made worse Alignment (0.500 after 0.400), which is the price",
        ),
        ({"alignment": 0.5, "uniformity": -1.0}, "Training made worse Alignment (0.500 after 0.400), and nothing"),
        ({"alignment": 0.3, "uniformity": -1.0}, None),
        ({"alignment": 0.40001, "uniformity": -1.0}, None),
    ],
)
def test_alignment_and_uniformity_are_told_together(trained: dict[str, float], note: str | None) -> None:
    baseline = {"alignment": 0.4, "uniformity": -1.0}
    told = worsened({"raw": baseline, "untrained": baseline, "trained": trained})
    assert len(told) == (note is not None)
    assert note is None or told[0].startswith(note)


def test_what_was_held_out_of_the_training_is_measured_and_embedded(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.random.default_rng(0).normal(size=(80, 6)), y=np.arange(80) % 2)
    data = str(tmp_path / "data.npz")
    run = make_run(tmp_path / "run", vector_model(), data=data, test_fraction=0.4)
    for given in (None, data):
        result = evaluate(run, data=given, neighbors=5, progress=False)
        assert (result["train_items"], result["test_items"]) == (48, 32)
    embed(run, out=tmp_path / "features.npz", progress=False)
    assert np.unique(np.load(tmp_path / "features.npz")["splits"], return_counts=True)[1].tolist() == [32, 48]


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


def several(items: int, *shapes: tuple[int, ...], integers: bool = False) -> Dataset:
    """Return views of given shapes of items of three classes, which shift every number of a view."""
    generator, labels = np.random.default_rng(items), np.arange(items) % 3
    views = [generator.normal(size=(items, *shape)) + labels.reshape(-1, *[1] * len(shape)) for shape in shapes]
    if integers:
        views = [(view * 30 + 100).clip(0, 255).astype(np.uint8) for view in views]
    return from_arrays(tuple(views), labels=labels)


@pytest.mark.parametrize("representation", ["concatenate", "1"])
def test_views_with_encoders_of_their_own_are_measured(tmp_path: Path, representation: str) -> None:
    train, test = (several(items, (4,), (7,), (2, 9)) for items in (60, 30))
    torch.manual_seed(0)
    model = Model(shapes=train.shapes, representation=representation)
    run = make_run(tmp_path / "run", model, data="<views>", augment=None)
    result = evaluate(run, data=(train, test), neighbors=5, progress=False)
    assert set(result["rows"]["trained"]) == {"uniformity", "effective_rank", "linear_probe", "knn"}
    assert result["rows"]["raw"]["linear_probe"] > 0.8
    assert result["notes"][0] == "Each view has an encoder of its own, so no alignment of their features."
    assert run.samples()["plan"].shape == (60, 60)


@pytest.mark.parametrize(
    ("shapes", "settings"),
    [
        ([(2, 20)], {}),
        ([(5,), (5,)], {"shared": True}),
    ],
    ids=["time series", "given views of one encoder"],
)
def test_views_of_one_encoder_are_measured(tmp_path: Path, shapes: Any, settings: dict[str, Any]) -> None:
    train, test = (several(items, *shapes) for items in (60, 30))
    torch.manual_seed(0)
    run = make_run(tmp_path / "run", Model(shapes=train.shapes, **settings), data="<views>", augment=None)
    rows = evaluate(run, data=(train, test), neighbors=5, progress=False)["rows"]
    assert all(0 < row["alignment"] < 4 for row in rows.values())
    assert rows["trained"]["linear_probe"] > 0.8


@pytest.mark.parametrize("views", ["colour", "2+2"])
def test_views_made_of_an_image_are_measured_and_embedded(tmp_path: Path, views: str) -> None:
    train, test = (several(items, (3, 16, 16), integers=True) for items in (40, 20))
    torch.manual_seed(0)
    model = Model(shapes=Views(train, views=views).plain_shapes)
    run = make_run(tmp_path / "run", model, data="<images>", views=views)
    result = evaluate(run, data=(train, test), neighbors=5, progress=False)
    assert ("alignment" in result["rows"]["trained"]) == (views == "2+2")
    assert run.samples()["thumbnails"].shape == (20, 3, 16, 16)
    out = embed(run, data=test, out=tmp_path / "images.npz", progress=False)
    assert np.load(out)["features"].shape == (20, model.num_features)


def test_a_representation_of_one_view_is_what_is_embedded(tmp_path: Path) -> None:
    data = several(9, (4,), (7,))
    torch.manual_seed(0)
    model = Model(shapes=data.shapes, representation="1").eval()
    run = make_run(tmp_path / "run", model, augment=None)
    features = np.load(embed(run, data=data, out=tmp_path / "views.npz", progress=False))["features"]
    with torch.no_grad():
        expected = model.tower(1)(data.__getitems__(list(range(9))).views[1])
    assert np.allclose(features, expected, atol=1e-5)


def test_the_columns_of_a_table_are_the_runs_own_or_given(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    lines = [f"{a},{b},{c},{kind}" for (a, b, c), kind in zip(random.normal(size=(60, 3)), "xyz" * 20, strict=True)]
    (tmp_path / "sensors.csv").write_text("\n".join(["left,right,up,kind", *lines]))
    table, columns = str(tmp_path / "sensors.csv"), {"views": [["left", "up"], "right"], "labels": "kind"}
    torch.manual_seed(0)
    model = Model(shapes=[(2,), (1,)])
    run = make_run(tmp_path / "run", model, data=table, columns=columns, augment=None)
    assert evaluate(run, neighbors=3, progress=False)["rows"]["raw"].keys() >= {"knn"}
    own = np.load(embed(run, out=tmp_path / "own.npz", progress=False))["features"]
    given = np.load(embed(run, data=table, columns=columns, out=tmp_path / "given.npz", progress=False))["features"]
    assert own.shape == (60, 512)
    assert np.array_equal(own, given)


def test_splits_of_different_shapes_are_told(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", vector_model())
    with pytest.raises(UsageError, match="expected splits of equal shapes"):
        evaluate(run, data=(several(30, (6,)), several(30, (7,))), progress=False)


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


@pytest.mark.parametrize(
    ("config", "note"),
    [
        ({"prototypes": 8}, "compared with prototypes"),
        ({"objective": None, "predict": "l2", "projection": 0}, "nothing was compared"),
    ],
)
def test_a_run_without_a_plan_of_two_views_says_so(tmp_path: Path, config: dict[str, Any], note: str) -> None:
    run = make_run(tmp_path / "run", vector_model(), **config)
    result = evaluate(run, data=(vectors(60, 3), vectors(40, 3)), progress=False)
    assert "plan" not in run.samples()
    assert any(note in said for said in result["notes"])


def test_the_plan_is_of_the_allowed_set_and_temperature_at_the_end(tmp_path: Path) -> None:
    settings = {"temperature": "1:0.3", "epochs": 9}
    plans = []
    for number, constraint in enumerate([None, "tighten:every=2", "tighten:every=9"]):
        run = make_run(tmp_path / str(number), vector_model(), constraint=constraint, **settings)
        evaluate(run, data=(vectors(60, 3), vectors(40, 3)), progress=False)
        plans.append(run.samples()["plan"] * 64)
    free, balanced, begun = plans
    assert np.allclose(free, begun)
    assert np.allclose(balanced.sum(axis=0), 1, atol=1e-2)
    assert not np.allclose(free.sum(axis=0), 1, atol=1e-2)


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
    for device in ("abacus", "meta"):
        with pytest.raises(UsageError, match=f"device: '{device}' cannot be used"):
            evaluate(run, data=(vectors(60, 3), vectors(40, 3)), device=device, progress=False)
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


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_processes_write_shards_that_are_the_file_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    run = make_run(tmp_path / "run", image_model())
    whole = embed(run, out=tmp_path / f"digits{suffix}", progress=False)
    monkeypatch.setenv("WORLD_SIZE", "3")
    shards = []
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        shards.append(embed(run, out=tmp_path / f"digits{suffix}", batch_size=100, progress=False))
    assert [shard.name for shard in shards] == [f"digits.0000{rank}-of-00003{suffix}" for rank in range(3)]
    assert_same_rows(shards, whole)


def assert_same_rows(shards: list[Path], whole: Path) -> None:
    parts, expected = [read_columns(shard) for shard in shards], read_columns(whole)
    assert all(part.keys() == expected.keys() for part in parts)
    for name, column in expected.items():
        joined = np.concatenate([part[name] for part in parts])
        assert np.allclose(joined, column, atol=1e-4) if column.dtype.kind == "f" else (joined == column).all()


def read_columns(path: Path) -> dict[str, Any]:
    if path.suffix == ".parquet":
        table = pq.read_table(path)
        return {name: table[name].to_numpy() for name in table.column_names}
    with np.load(path, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files if name != "class_names"}


def test_torchrun_embeds_in_two_processes(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", image_model())
    out = tmp_path / "digits.npz"
    arguments = ["embed", str(run.path), "--out", str(out), "--device", "cpu"]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    subprocess.run([*launcher, "-m", "contraport", *arguments], check=True, capture_output=True, timeout=120)
    embed(run, out=out, progress=False)
    assert_same_rows([tmp_path / f"digits.0000{rank}-of-00002.npz" for rank in range(2)], out)


def test_more_processes_than_items_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "run", vector_model())
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(UsageError, match="3 items cannot be shared among 4 processes"):
        embed(run, data=vectors(3, None), out=tmp_path / "vectors.npz", progress=False)


def test_a_corrupt_model_is_told(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", vector_model())
    (run.model_path / "model.safetensors").write_bytes(b"\x00" * 40)
    with pytest.raises(UsageError, match="model"):
        evaluate(run, data=(vectors(60, 3), vectors(40, 3)), progress=False)
