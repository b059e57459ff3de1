import builtins
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from tests import TIMEOUT
from tests.errors import raises_usage_error

from contraport.data import build_loader, load


@pytest.fixture
def hub():
    return pytest.importorskip("datasets")


def grey(value):
    return Image.new("RGB", (10, 12), (value,) * 3)


def saved(folder, dataset):
    dataset.save_to_disk(str(folder))
    return folder


def test_a_dataset_on_disk_is_split_by_class_and_not_loaded(hub, tmp_path):
    features = hub.Features({"image": hub.Image(), "label": hub.ClassLabel(names=["x", "y", "z"])})
    rows = {"image": [grey(4 * i) for i in range(20)], "label": [i % 2 for i in range(20)]}
    path = saved(tmp_path / "hf", hub.Dataset.from_dict(rows, features=features))
    train, test = load(path), load(str(path), "test")
    assert (len(train), len(test)) == (16, 4)
    assert train.shapes == ((3, 10, 10),)
    assert train.class_names == test.class_names == ("x", "y", "z")
    assert not train.is_in_memory
    for part in (train, test):
        batch = part.__getitems__(list(range(len(part))))
        assert torch.equal(batch.labels, batch.views[0][:, 0, 0, 0].long() // 4 % 2)


@pytest.mark.usefixtures("two_cores")
def test_splits_arrays_and_sequences(hub, tmp_path):
    features = hub.Features(
        {
            "series": hub.Array2D((2, 5), "float32"),
            "vector": hub.Sequence(hub.Value("float32")),
            "a": hub.Value("int32"),
            "b": hub.Value("float64"),
            "target": hub.Value("string"),
            "domain": hub.Value("int64"),
        }
    )

    def part(numbers):
        rows = [
            {"series": np.full((2, 5), i), "vector": [i] * 3, "a": i, "b": -i, "target": "pq"[i % 2], "domain": i % 3}
            for i in numbers
        ]
        return hub.Dataset.from_list(rows, features=features)

    dataset = hub.DatasetDict({"train": part(range(8)), "validation": part(range(8, 10)), "unused": part([0])})
    path = saved(tmp_path / "hf", dataset)
    train, test = load(path), load(path, "test")
    assert train.shapes == ((2, 5), (3,), (2,))
    assert (len(train), len(test)) == (8, 2)
    batch = test.__getitems__([1, 0])
    assert batch.views[0][:, 0, 0].tolist() == batch.views[1][:, 0].tolist() == [9, 8]
    assert batch.views[2].tolist() == [[9, -9], [8, -8]]
    assert (test.class_names, test.domains.tolist()) == (("p", "q"), [2, 0])
    with_columns = load(path, columns={"views": ["vector", ["b", "a"]], "labels": None})
    assert (with_columns.shapes, with_columns.labels) == (((3,), (2,)), None)
    helped = torch.cat([batch.views[0][:, 0, 0] for batch in build_loader(train, 3, num_workers=2)])
    assert helped.tolist() == list(range(8))


def test_corrupt_images_are_skipped(hub, tmp_path):
    features = hub.Features({"image": hub.Image(decode=False)})
    good = tmp_path / "good.png"
    rows = []
    for value in range(9):
        grey(value).save(good)
        rows.append({"image": {"bytes": good.read_bytes(), "path": None}})
    rows.append({"image": {"bytes": b"no", "path": "x.png"}})
    path = saved(tmp_path / "hf", hub.Dataset.from_list(rows, features=features))
    parts = [load(path, split) for split in ("train", "test")]
    assert (*parts[0].unreadable_files, *parts[1].unreadable_files) == (f"{path}, column 'image', row 9",)
    assert sum(len(part) for part in parts) == 9


def test_unlabeled_items_have_label_minus_one(hub, tmp_path):
    features = hub.Features({"x": hub.Value("float32"), "label": hub.ClassLabel(names=["a"])})
    rows = hub.Dataset.from_dict({"x": [1.0] * 5, "label": [-1] * 5}, features=features)
    assert load(saved(tmp_path / "hf", rows)).labels is None


def test_rejects_invalid_columns(hub, tmp_path):
    uneven = saved(tmp_path / "uneven", hub.Dataset.from_dict({"x": [[1.0], [1.0, 2.0]] * 5}))
    with raises_usage_error("data.list_lengths", "x"):
        load(uneven)
    no_train = saved(tmp_path / "no_train", hub.DatasetDict({"test": hub.Dataset.from_dict({"x": [1.0]})}))
    with raises_usage_error("data.no_train_split", "train", "['test']"):
        load(no_train)
    file = next((tmp_path / "uneven").glob("*.arrow"))
    file.write_bytes(file.read_bytes()[:100])
    with raises_usage_error("data.unreadable"):
        load(uneven)


def test_rejects_a_missing_package(tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name == "datasets":
            raise ImportError
        return real(name, *rest)

    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    monkeypatch.setattr(builtins, "__import__", without)
    (tmp_path / "dataset_dict.json").write_text("{}")
    with raises_usage_error("data.missing_package", "[data]"):
        load(tmp_path)


def test_rejects_corrupt_offsets(hub, tmp_path):
    lists = {"x": [[float(i)] * 3 for i in range(50)]}
    path = saved(tmp_path / "hf", hub.Dataset.from_dict(lists))
    file = next(path.glob("*.arrow"))
    content = bytearray(file.read_bytes())
    first = content.find(np.arange(0, 153, 3, dtype=np.int32).tobytes())
    content[first + 40 : first + 44] = np.int32(2**30).tobytes()
    file.write_bytes(content)
    code = f"from contraport.data import load; load({str(path)!r}).__getitems__(list(range(40)))"
    completed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=TIMEOUT
    )
    assert completed.returncode == 1
    assert "UsageError: data: " in completed.stderr
    assert "offset for slot 10 out of bounds" in completed.stderr


def test_rejects_files_that_are_not_regular(hub, tmp_path):
    path = saved(tmp_path / "hf", hub.Dataset.from_dict({"x": [1.0] * 9}))
    file = next(path.glob("*.arrow"))
    file.unlink()
    os.mkfifo(file)
    with raises_usage_error("data.unreadable"):
        load(path)
