import io
import json

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from tests.errors import raises_usage_error

from contraport._utils.formatting import use_flag_style
from contraport._utils.text_bytes import tensor_to_texts
from contraport.data import from_arrays, load
from contraport.data.formats import arrow_datasets, tables
from contraport.data.formats.tables import read_table, select_rows_and_replace_view
from contraport.data.views import Views


def write(folder, text, name="data.csv"):
    (folder / name).write_text(text)
    return folder / name


def lines(header, rows):
    return "\n".join([header, *(",".join(str(value) for value in row) for row in rows)])


def write_parquet(folder, **columns):
    pq.write_table(pa.table(columns), folder / "data.parquet")
    return folder / "data.parquet"


def load_all_rows(path, **options):
    """Return (view0, labels) of both splits, in no particular order."""
    parts = [load(path, split, **options) for split in ("train", "test")]
    views = [part.__getitems__(list(range(len(part)))).views[0] for part in parts]
    return torch.cat(views), None if parts[0].labels is None else torch.cat([part.labels for part in parts])


def test_column_names_imply_roles(tmp_path):
    rows = [(i, i / 2, "cat" if i % 2 else "dog", "north" if i < 10 else "south", -i) for i in range(20)]
    path = write(tmp_path, lines("id,a,Label,domain,b", rows))
    train, test = load(path), load(path, "test")
    assert (len(train), len(test)) == (16, 4)
    assert train.shapes == ((2,),)
    assert (train.class_names, train.domain_names) == (("cat", "dog"), ("north", "south"))
    assert test.domains.bincount(minlength=2).tolist() == [2, 2]
    view, labels = load_all_rows(path)
    order = view[:, 0].argsort()
    assert torch.equal(view[order], torch.tensor([[i / 2, -i] for i in range(20)]))
    assert torch.equal(labels[order], torch.tensor([0 if i % 2 else 1 for i in range(20)]))


def test_integers_followed_by_fractions_are_floats(tmp_path):
    values = [[10**6 + i] for i in range(140_000)] + [[0.5]]  # more than Arrow's default block of a megabyte
    assert load_all_rows(write(tmp_path, lines("x", values)))[0].max() == 1_139_999


def test_numbered_columns_are_views_by_their_number(tmp_path):
    rows = np.arange(40.0).reshape(10, 4)
    path = write(tmp_path, lines("view1.a,view0_b,view1.c,view0", rows))
    train = load(path)
    assert train.shapes == ((2,), (2,))
    first, second = train.__getitems__([0]).views
    assert (first - second).tolist() == [[1, 1]]


def test_explicit_columns_override_names(tmp_path):
    rows = [(i, 2 * i, 3 * i, i % 2, i % 3) for i in range(12)]
    path = write(tmp_path, lines("audio_1,audio_2,video,kind,label", rows))
    columns = {"views": ["audio_*", ["video", "audio_1"][:1]], "labels": "kind", "domains": "label"}
    dataset = load(path, columns=columns)
    assert dataset.shapes == ((2,), (1,))
    assert dataset.class_names == ("0", "1")
    assert dataset.domain_names == ("0", "1", "2")
    unlabelled = load(path, columns={"labels": None})
    assert unlabelled.labels is None
    assert unlabelled.shapes == ((5,),)


def test_column_of_keys_names_the_rows(tmp_path):
    rows = [(f"p{i:02d}", i, f"photo {i}") for i in range(10)]
    path = write(tmp_path, lines("id,x,patient", rows))
    with raises_usage_error("data.not_file_names", "keys", "patient"):
        load(path)
    for columns, name in (({"views": ["x"]}, "p{:02d}"), ({"keys": "patient"}, "photo {}")):
        for split in ("train", "test"):
            part = load(path, split, columns=columns)
            assert part.shapes == ((1,),)
            assert list(part.keys) == [name.format(row) for row in part.source_rows.tolist()]
    assert load(path, columns={"views": ["x"], "keys": None}).keys is None


def test_class_names_like_numbers_keep_their_spelling(tmp_path):
    rows = ["007,01,1,2", "7,1,1,2", "1e5,01,3,4", "12345678901234567890,1,3,4", "2020-01-02,1,5,6"]
    all_rows = load(write(tmp_path, lines("id,label,x,z", [[row] for row in rows])), test_fraction=0)
    assert list(all_rows.keys) == ["007", "7", "1e5", "12345678901234567890", "2020-01-02"]
    assert (all_rows.class_names, all_rows.labels.tolist()) == (("01", "1"), [0, 1, 0, 1, 1])
    dataset = load(write(tmp_path, lines("zip,x", [["01", 1], ["1", 2]])), test_fraction=0, columns={"labels": "zip"})
    assert dataset.class_names == ("01", "1")


def test_dates_in_json_lines_are_texts(tmp_path):
    rows = [{"id": f"2020-01-0{i + 1}", "x": i, "domain": f"2020-01-01 0{i % 2}:00:00"} for i in range(4)]
    dataset = load(write(tmp_path, "\n".join(map(json.dumps, rows)), "data.jsonl"), test_fraction=0)
    assert list(dataset.keys) == [row["id"] for row in rows]
    assert dataset.domain_names == ("2020-01-01 00:00:00", "2020-01-01 01:00:00")


def test_integer_classes_and_regression_targets_keep_their_type(tmp_path):
    dataset = load(write(tmp_path, lines("label,x", [[10, 1], [" 9", 2], [100, 3]])), test_fraction=0)
    assert dataset.class_names == ("9", "10", "100")
    sized = load(write(tmp_path, lines("size,x", [[1.5, 1], ["2.50", 2]])), test_fraction=0, columns={"labels": "size"})
    assert (sized.labels, sized.regression_targets.tolist()) == (None, [1.5, 2.5])


@pytest.mark.parametrize(
    ("encoding", "code_and_values"),
    [
        ("latin-1", ("data.encoding", "text", "8")),
        ("utf-16", ("data.encoding", "16", "8")),
    ],
)
def test_rejects_a_csv_of_another_encoding(tmp_path, encoding, code_and_values):
    (tmp_path / "data.csv").write_bytes("text,label\nein Müller,a\nkein,b\n".encode(encoding))
    with raises_usage_error(*code_and_values):
        load(tmp_path / "data.csv")


def test_the_index_of_a_data_frame_is_not_a_feature(tmp_path):
    frame = pandas.DataFrame({"x": np.arange(10.0), "z": np.ones(10)})
    for index in (None, "sample"):
        frame.iloc[[0, 1, 5, 7, 8, 9]].rename_axis(index).to_parquet(tmp_path / "data.parquet")
        assert load(tmp_path / "data.parquet").shapes == ((2,),)
    frame.set_index(frame.x.map("row {}".format).rename("text"))[["z"]].to_parquet(tmp_path / "data.parquet")
    assert load(tmp_path / "data.parquet").view_names == ("text", "z")


def test_rows_without_a_key_are_named_by_their_number(tmp_path, caplog):
    path = write(tmp_path, lines("id,x", [("" if i == 3 else i, i) for i in range(10)]))
    with caplog.at_level("INFO"):
        assert load(path).keys is None
    assert "data.csv: rows are identified by their numbers" in caplog.text
    with raises_usage_error("data.missing_value", "column 'id'"):
        load(path, columns={"keys": "id"})


def test_weights_are_read_only_from_a_named_column(tmp_path):
    path = write(tmp_path, lines("x,weights,label", [(i, i % 3, i % 2) for i in range(20)]))
    plain = load(path)
    assert (plain.shapes, plain.weights) == (((2,),), None)
    train, test = (load(path, split, columns={"weights": "weights"}) for split in ("train", "test"))
    assert train.shapes == ((1,),)
    for part in (train, test):
        assert torch.equal(part.weights, part.store.views[0][:, 0] % 3)
    batch = train.__getitems__([3, 1])
    assert torch.equal(batch.weights, train.weights[[3, 1]])


@pytest.mark.parametrize(
    ("values", "code_and_values"),
    [
        (["a", "b", "c"], ("data.not_numeric", "data.csv", "a")),
        ([1, -2, 3], ("data.invalid", "data.csv", "-2")),
        ([0, 0, 0], ("data.all_zero", "data.csv", "w")),
        (
            [1, "", 3],
            ("data.missing_value", "3"),
        ),
        ([1, "inf", 3], ("data.not_finite", "1")),
    ],
)
def test_rejects_invalid_weights_of_a_column(tmp_path, values, code_and_values):
    path = write(tmp_path, lines("x,w", enumerate(values)))
    with raises_usage_error(*code_and_values):
        load(path, columns={"weights": "w"})


def test_column_of_splits_defines_the_split(tmp_path):
    names = ["train", "val", "train", "test", "Train"]
    path = write(tmp_path, lines("x,split,y", [(i, name, "ab"[i % 2]) for i, name in enumerate(names)]))
    assert load(path).store.views[0].flatten().tolist() == [0, 2, 4]
    assert load(path, "test").store.views[0].flatten().tolist() == [3]
    assert load(path, "test").class_names == load(path).class_names == ("a", "b")


def test_lists_in_parquet_are_vectors_series_and_images(tmp_path):
    rng = np.random.default_rng(0)
    vectors, series, pixels = rng.random((9, 3)), rng.random((9, 2, 5)), rng.integers(0, 255, (9, 4, 6), np.uint8)
    path = write_parquet(
        tmp_path,
        vector=pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), 3),
        series=pa.array(series.tolist()),
        pixels=pa.array(pixels.tolist(), pa.list_(pa.list_(pa.uint8()))),
        a=pa.array(range(9)), b=pa.array([True] * 9), target=pa.array(["x", "y", "z"] * 3).dictionary_encode(),
    )  # fmt: skip
    train = load(path)
    assert train.shapes == ((3,), (2, 5), (1, 4, 6), (2,))
    assert train.class_names == ("x", "y", "z")
    batch = train.__getitems__(list(range(len(train))))
    rows = batch.views[3][:, 0].long().numpy()
    assert np.allclose(batch.views[1].numpy(), series[rows])
    assert np.array_equal(batch.views[2].numpy()[:, 0], pixels[rows])
    assert batch.views[2].dtype == torch.uint8


@pytest.mark.parametrize(("block_bytes", "most_rows"), [(1, 2), (200, 12), (2**22, 40)])
def test_numbers_are_converted_in_blocks(tmp_path, monkeypatch, block_bytes, most_rows):
    rng = np.random.default_rng(0)
    lists, numbers = rng.normal(size=(40, 2, 3)), rng.normal(size=(40, 2))
    names = ["train", "val", "test", "train"] * 10
    path = write_parquet(
        tmp_path,
        view0=[None if row == 7 else lists[row].tolist() for row in range(40)],  # row 0 replaces row 7
        **{"view1.a": numbers[:, 0], "view1.b": numbers[:, 1]},
        split=names,
    )
    sizes = []
    read = arrow_datasets.read_numeric_columns
    monkeypatch.setattr(arrow_datasets, "_CONVERTED_BYTES_PER_BLOCK", block_bytes)
    monkeypatch.setattr(
        arrow_datasets, "read_numeric_columns", lambda table, *rest: sizes.append(len(table)) or read(table, *rest)
    )
    train, test = load(path), load(path, "test")
    for dataset, split in ((train, "train"), (test, "test")):
        rows_of_split = [row for row in range(40) if names[row] == split]
        assert dataset.source_rows.tolist() == rows_of_split
        present = [row != 7 for row in rows_of_split]
        first, second = dataset.__getitems__(list(range(len(rows_of_split)))).views
        assert np.allclose(first[present], lists[rows_of_split][present])
        assert np.allclose(second, numbers[rows_of_split])
    assert max(sizes) <= most_rows


@pytest.mark.parametrize(
    ("right", "wrong", "code", "where"),
    [
        ([1.0, 2.0], [1.0], "data.list_lengths", "row 30"),
        ([1.0, 2.0], [1.0, None], "data.missing_value", "row 30"),
        ([1.0, 2.0], [1.0, float("inf")], "data.not_finite", "row 30"),
        (1.0, None, "data.missing_value", "2 of 40 rows"),
    ],
)
def test_errors_in_a_block_count_the_rows_of_the_table(tmp_path, monkeypatch, right, wrong, code, where):
    monkeypatch.setattr(arrow_datasets, "_CONVERTED_BYTES_PER_BLOCK", 1)
    with raises_usage_error(code, where):
        load(write_parquet(tmp_path, x=[*[right] * 30, wrong, wrong, *[right] * 8]))


def as_png(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", compress_level=1)
    return file.getvalue()


def png(value, size=(9, 12)):
    content = io.BytesIO()
    Image.new("RGB", size, (value,) * 3).save(content, "PNG")
    return content.getvalue()


def test_image_files_of_a_column_are_read_or_skipped(tmp_path):
    (tmp_path / "images").mkdir()
    for number in range(10):
        (tmp_path / "images" / f"{number}.png").write_bytes(png(20 * number) if number != 4 else b"x")
    path = write(tmp_path, lines("photo,age,label", [(f"images/{i}.png", i, i % 2) for i in range(10)]))
    parts = [load(path, split, columns={"views": ["photo", "age"]}) for split in ("train", "test")]
    assert parts[0].shapes == ((3, 9, 9), (1,))
    assert parts[0].allows_flips
    assert (*parts[0].unreadable_files, *parts[1].unreadable_files) == (str(tmp_path / "images" / "4.png"),)
    ages = []
    for part in parts:
        batch = part.__getitems__(list(range(len(part))))
        ages += batch.views[1].flatten().tolist()
        assert torch.equal(batch.views[0][:, 0, 0, 0].float(), 20 * batch.views[1].flatten())
        assert torch.equal(batch.labels, batch.views[1].flatten().long() % 2)
    assert sorted(ages) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert load(path, columns={"views": ["photo", "age"]}, image_size=16).shapes == ((3, 16, 16), (1,))


def test_images_in_parquet_as_hugging_face_writes_them(tmp_path):
    images = [{"bytes": png(10 * i), "path": None} for i in range(9)] + [{"bytes": b"no image", "path": "9.png"}]
    parts = [load(write_parquet(tmp_path, image=images, label=[0, 1] * 5), split) for split in ("train", "test")]
    assert parts[0].shapes == ((3, 9, 9),)
    assert (*parts[0].unreadable_files, *parts[1].unreadable_files) == (
        f"{tmp_path}/data.parquet, column 'image', row 9",
    )
    assert sum(len(part) for part in parts) == 9


HOSTILE = {
    "text": (lines("x,z", [(1, 2), (3, "oops"), (5, 6)]), ("data.not_file_names", "column 'z'", "oops", "row 1")),
    "empty cell": (lines("x,z", [(1, 2), (3, ""), (5, 6)]), ("data.missing_value", "column 'z'", "1 of 3", "row 1")),
    "nan": (lines("x,z", [(1, 2), (3, 4), ("nan", 6)]), ("data.missing_value", "column 'x'", "row 2")),
    "infinite": (lines("x,z", [(1, 2), (3, "inf"), (5, 6)]), ("data.not_finite", "column 'z'", "inf", "row 1")),
    "semicolons": ("x;z\n1,5;2\n3;4\n", ("data.separator", "'x;z'")),
    "tabs": ("x\tz\n1\t2\n", ("data.separator", r"'x\tz'")),
    "unequal rows": ("x,z\n1,2\n3\n", ("data.unreadable", "2 columns")),
    "no names": ("1,2\n3,4\n", ("data.no_header", "['1', '2']")),
    "empty": ("", ("data.empty",)),
    "no row": ("x,z\n", ("data.empty",)),
    "no view": ("id,label\n1,2\n", ("data.no_view", "['id', 'label']")),
    "two labels": ("x,label,y\n1,2,3\n", ("data.ambiguous_columns", "['label', 'y']")),
    "same name": ("x,x\n1,2\n", ("data.columns", "['x']")),
    "a gap": ("view0,view2\n1,2\n", ("data.view_keys", "[0, 2]")),
    "beside views": ("view0,age\n1,2\n", ("data.ambiguous_columns", "['age']")),
    "text alone": ("name,x\nann,2\n", ("data.not_file_names", "column 'name'", "'ann'", "row 0", "columns=")),
    "missing label": (lines("x,label", [(1, "a"), (2, "")]), ("data.missing_value", "column 'label'", "row 1")),
    "unknown split": ("x,split\n1,train\n2,tset\n", ("data.unknown_split", "'tset'")),
    "no train": ("x,split\n1,test\n", ("data.no_train_split",)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_rejects_invalid_tables_naming_file_and_column(tmp_path, name):
    text, error = HOSTILE[name]
    path = write(tmp_path, text)
    with raises_usage_error(*error) as caught:
        load(path)
    assert "data.csv" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("columns", "code_and_values"),
    [
        ({"view": ["x"]}, ("columns.unknown", "views")),
        ({"views": "x,label"}, ("columns.invalid", "['x', 'label']")),
        ({"views": "no_column"}, ("columns.unknown", "no_column")),
        ({"views": []}, ("columns.invalid",)),
        ({"views": ["x", 3]}, ("columns.invalid", "3")),
        ({"views": ["z*"]}, ("columns.unknown", "'z*'", "x, label")),
        ({"labels": "lable"}, ("columns.unknown", "label")),
        ({"weights": "wieght"}, ("columns.unknown", "wieght")),
        ({"weights": "label"}, ("columns.conflict", "['label']")),
        ({"views": ["x", "x"]}, ("columns.conflict", "['x']")),
        ({"views": ["x", "label"]}, ("columns.conflict", "['label']")),
    ],
)
def test_rejects_wrong_columns(tmp_path, columns, code_and_values):
    path = write(tmp_path, lines("x,label", [(1, 2), (3, 4)]))
    with raises_usage_error(*code_and_values):
        load(path, columns=columns)


def test_only_tables_have_columns(tmp_path):
    with raises_usage_error("columns.no_columns"):
        load("digits", columns={"labels": "x"})


@pytest.mark.parametrize(
    ("values", "kind", "value"),
    [
        ([[1.0, 2.0], [3.0]], "list_lengths", "row 1"),
        ([[1.0, 2.0], None], "list_lengths", "row 1"),
        ([[[1.0], [2.0]], [[3.0], [4.0, 5.0]]], "list_lengths", "row 1"),
        ([[1.0, 2.0], [None, 3.0]], "missing_value", "row 1"),
        ([[1.0, 2.0], [float("nan"), 3.0]], "not_finite", "row 1"),
        ([[], []], "list_lengths", "[0]"),
        ([None, 1.0], "missing_value", "1 of 2"),
    ],
)
def test_rejects_parquet_columns_of_unsupported_types(tmp_path, values, kind, value):
    with raises_usage_error(f"data.{kind}", "data.parquet: column 'x'", value):
        load(write_parquet(tmp_path, x=values))


def test_rejects_a_corrupt_parquet_file(tmp_path):
    path = write_parquet(tmp_path, x=list(range(1000)))
    path.write_bytes(path.read_bytes()[:-100])
    with raises_usage_error("data.unreadable", "data.parquet"):
        load(path)


def test_rejects_column_names_that_are_not_text(tmp_path):
    (tmp_path / "data.csv").write_bytes(b"x,\xff\xfe\n1,2\n")
    with raises_usage_error("data.unreadable", "data.csv"):
        load(tmp_path / "data.csv")


def test_empty_cells_are_missing_views(tmp_path):
    rows = [(i % 2, i, i + 0.5, -i, 2 * i) for i in range(20)]
    cells = [list(map(str, row)) for row in rows]
    cells[3][1:3], cells[4][3:], cells[5][3:] = ["", ""], ["", ""], ["nan", ""]
    path = write(tmp_path, lines("label,view0.a,view0.b,view1.a,view1.b", cells))
    train = load(path, columns={"split": None}, test_fraction=0.2)
    test = load(path, "test", test_fraction=0.2)
    rows_by_first_value = {}
    for part in (train, test):
        batch = part.__getitems__(list(range(len(part))))
        marks = torch.ones(len(part), 2, dtype=torch.bool) if batch.present is None else batch.present
        for place in range(len(part)):
            row = [view[place].tolist() if marks[place, v] else None for v, view in enumerate(batch.views)]
            first = row[0][0] if row[0] is not None else -row[1][0]
            rows_by_first_value[int(first)] = row
    expected = {i: [[i, i + 0.5], [-i, 2 * i]] for i in range(20)}
    expected[3][0] = expected[4][1] = expected[5][1] = None
    assert rows_by_first_value == expected


def test_statistics_ignore_items_without_the_view():
    both = from_arrays((np.array([[i] if i != 3 else [np.nan] for i in range(20)]), np.ones((20, 1))))
    assert both.mean_and_std(0)[0] == [pytest.approx(np.mean([i for i in range(20) if i != 3]))]


TEXTS = ["a red bag", "größer", *(f"text {number}" for number in range(8))]


def texts_of(dataset, view=0):
    return tensor_to_texts(dataset.__getitems__(list(range(len(dataset)))).views[view])


@pytest.mark.parametrize("captions", [False, True])
def test_images_of_a_parquet_file_stay_in_files(tmp_path, captions, monkeypatch):
    monkeypatch.setattr(tables, "_PARQUET_BATCH_BYTES", 2**19)
    noise = np.random.default_rng(0).integers(256, size=(400, 100, 100, 3), dtype=np.uint8)
    columns = {"image": [as_png(image) for image in noise], "split": ["train", "test", "train", "val"] * 100}
    if captions:
        columns["caption"] = [[f"a picture {row}", f"picture number {row}"] for row in range(400)]
    pq.write_table(pa.table(columns), tmp_path / "data.parquet", row_group_size=20)
    pool = pa.proxy_memory_pool(pa.default_memory_pool())
    before = pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        dataset = load(tmp_path / "data.parquet", image_size=8)
        items = [399, 5] if captions else [199, 5]
        images = dataset.__getitems__(items).views[0]
    finally:
        pa.set_memory_pool(before)
    expected = [
        Image.fromarray(noise[row]).resize((8, 8), Image.Resampling.BILINEAR) for row in (398, 10 - 6 * captions)
    ]
    assert torch.equal(images, torch.stack([torch.from_numpy(np.array(one)).permute(2, 0, 1) for one in expected]))
    assert (tmp_path / "data.parquet").stat().st_size > 10e6
    assert pool.max_memory() < 5e6


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_a_column_of_texts_is_a_view(tmp_path, suffix):
    path, labels = tmp_path / f"data.{suffix}", ["a", "b"] * 5
    if suffix == "csv":
        write(tmp_path, lines("what,label", zip(TEXTS, labels, strict=True)))
    elif suffix == "jsonl":
        rows = ({"what": text, "label": label} for text, label in zip(TEXTS, labels, strict=True))
        path.write_text("\n".join(map(json.dumps, rows)))
    else:
        pq.write_table(pa.table({"what": pa.array(TEXTS).dictionary_encode(), "label": labels}), path)
    parts = [load(path, split) for split in ("train", "test")]
    assert parts[0].shapes == ((),)
    assert parts[0].class_names == ("a", "b")
    for part in parts:
        assert texts_of(part) == [TEXTS[row] for row in part.source_rows]


def test_text_columns_are_views_with_missing_items(tmp_path):
    answers = [None, " ", *TEXTS[2:]]
    dataset = load(write_parquet(tmp_path, question=TEXTS, answer=answers, split=["train"] * 9 + ["test"]))
    assert dataset.shapes == ((), ())
    assert dataset.present[:3].tolist() == [[True, False], [True, False], [True, True]]
    assert texts_of(dataset.drop_incomplete(), 1) == TEXTS[2:9]


def test_text_columns_beside_numbers_require_a_text_name(tmp_path):
    rows = [(text, number) for number, text in enumerate(TEXTS)]
    assert load(write(tmp_path, lines("caption,x", rows))).shapes == ((), (1,))
    path = write(tmp_path, lines("name,x", rows))
    with raises_usage_error("data.not_file_names", "name"):
        load(path)
    assert load(path, columns={"views": ["name", "x"]}).shapes == ((), (1,))


CATEGORIES = [f"kind {number % 8}" for number in range(100)]
QUESTIONS, REPLIES = ([f"{word} number {number}" for number in range(100)] for word in ("ask", "say"))


def test_text_columns_of_few_values_are_labels(tmp_path, caplog):
    path = write(tmp_path, lines("en,de,section", zip(QUESTIONS, REPLIES, CATEGORIES, strict=True)))
    with caplog.at_level("INFO"):
        dataset = load(path, test_fraction=0)
    assert dataset.view_names == ("en", "de")
    assert dataset.class_names == tuple(sorted(set(CATEGORIES)))
    (message,) = [record.getMessage() for record in caplog.records if "section" in record.getMessage()]
    assert "column 'section' has 8 distinct values in 100 rows, and is taken as the labels" in message
    assert "columns={'views': ['en', 'de', 'section']} makes it a view" in message
    every = load(path, columns={"views": ["en", "de", "section"]}, test_fraction=0)
    assert (every.view_names, every.labels) == (("en", "de", "section"), None)
    table = read_table(path)
    assert write_and_read_reversed_view(table, path, tmp_path) == REPLIES[::-1]


def write_and_read_reversed_view(table, path, folder):
    changed = select_rows_and_replace_view(
        table, table, None, str(path), view=1, partner_rows=np.arange(100)[::-1].copy(),
        kept_row_mask=np.ones(100, dtype=bool),
        old_path=path, new_path=folder / "there.csv",
    )  # fmt: skip
    return changed.column("de").to_pylist()


@pytest.mark.parametrize(
    ("header", "columns", "expected"),
    [
        ("en,de,section,city", None, ("data.ambiguous_columns", "['section', 'city']", "4")),
        ("en,de,label,section", None, ("data.ambiguous_columns", "section", "views")),
        ("en,de,section", {"labels": None}, ("data.ambiguous_columns", "labels", "section")),
    ],
)
def test_rejects_ambiguous_columns_of_few_distinct_texts(tmp_path, header, columns, expected):
    columns_by_name = {"en": QUESTIONS, "de": REPLIES, "section": CATEGORIES, "label": CATEGORIES}
    columns_by_name["city"] = [f"city {number % 4}" for number in range(100)]
    path = write(tmp_path, lines(header, zip(*(columns_by_name[head] for head in header.split(",")), strict=True)))
    with raises_usage_error(*expected):
        load(path, columns=columns)
    with use_flag_style(), raises_usage_error("data.ambiguous_columns"):
        load(path, columns=columns)


def test_text_names_and_distinct_values_make_views(tmp_path):
    """Captions with few distinct values, a column with some repeated texts, and a single column."""
    path = write(tmp_path, lines("de,caption", zip(REPLIES, CATEGORIES, strict=True)))
    assert load(path, test_fraction=0).view_names == ("de", "caption")
    repeated = [f"text {number % 11}" for number in range(100)]
    assert load(write(tmp_path, lines("en,de", zip(QUESTIONS, repeated, strict=True)))).shapes == ((), ())
    assert load(write(tmp_path, lines("section", zip(CATEGORIES, strict=True)))).shapes == ((),)


@pytest.mark.parametrize(
    ("texts", "code_and_values"),
    [
        (["a", "", "c"], ("data.empty_text", "1 of 3")),
        (["a", None, "c"], ("data.empty_text", "1 of 3")),
        (["a.png", "a photo", "c.png"], ("data.not_file_names", "a photo", "labels")),
    ],
    ids=["empty", "nothing", "images"],
)
def test_rejects_cells_without_text(tmp_path, texts, code_and_values):
    with raises_usage_error(*code_and_values):
        load(write_parquet(tmp_path, x=texts))


def test_missing_lists_and_images(tmp_path):
    image = io.BytesIO()
    Image.new("RGB", (8, 8), (255, 0, 0)).save(image, "png")
    path = write_parquet(
        tmp_path,
        view0=[[1.0, 2.0], None, *[[3.0, 4.0]] * 8],
        view1=[image.getvalue(), image.getvalue(), None, *[image.getvalue()] * 7],
        split=["train"] * 9 + ["test"],
    )
    train = load(path)
    assert train.shapes == ((2,), (3, 8, 8))
    assert train.present.tolist() == [[True, True], [False, True], [True, False], *[[True, True]] * 6]
    assert load(path, "test").present is None
    complete = train.drop_incomplete()
    assert (len(complete), complete.present) == (7, None)
    assert complete.__getitems__([1]).views[0].tolist() == [[3.0, 4.0]]


@pytest.mark.parametrize(
    ("cells", "code_and_values"),
    [
        (["", "1", "1"], ("data.missing_value", "10")),
        (["", "", ""], ("data.item_without_view", "1")),
    ],
)
def test_partly_empty_cells(tmp_path, cells, code_and_values):
    rows = [["1", "2", "3"] for _ in range(9)]
    path = write(tmp_path, lines("view0.a,view0.b,view1", [*rows, cells]))
    with raises_usage_error(*code_and_values):
        [load(path, split) for split in ("train", "test")]


FRAMES = [("b", 1, 10, 0), ("a", 5, 50, 1), ("b", 2, 20, 0), ("a", 6, 60, 1), ("b", 3, 30, 0), ("a", 7, 70, 1)]


def test_rows_of_one_sequence_are_the_frames_of_a_series(tmp_path):
    path = write(tmp_path, lines("clip,x,z,label,frame", [(*row, k) for k, row in enumerate(FRAMES)]))
    columns = {"sequence": "clip", "views": [["x", "z"], "frame"], "labels": "label"}
    train = load(path, columns=columns, test_fraction=0.5)
    test = load(path, "test", columns=columns, test_fraction=0.5)
    assert train.shapes == ((2, 3), (1, 3))
    items = {int(part.source_rows[k]): (part, k) for part in (train, test) for k in range(len(part))}
    assert sorted(items) == [0, 1], "expected the first row of each sequence"
    for row, values in ((0, [[1, 2, 3], [10, 20, 30]]), (1, [[5, 6, 7], [50, 60, 70]])):
        part, k = items[row]
        batch = part.__getitems__([k])
        assert batch.views[0][0].tolist() == values
        assert batch.views[1][0].tolist() == [[row, row + 2, row + 4]]
        assert part.class_names[batch.labels[0]] == str(row)
        assert part.keys[k] == "ba"[row]


def test_series_in_a_table_have_views_of_frames(tmp_path):
    rows = [(clip, step, 0.1 * step * clip) for clip in range(12) for step in range(16)]
    path = write(tmp_path, lines("clip,step,x", rows))
    data = load(path, columns={"sequence": "clip", "views": ["x"]})
    views = Views(data, views="frames:4")
    first, second = views(data.__getitems__([0, 1]).views)
    assert first.shape == (2, 1, 4)
    steps = data.__getitems__([0, 1]).views[0][:, 0].diff()[:, :1]
    torch.testing.assert_close(second[:, 0, 0] - first[:, 0, -1], steps[:, 0], msg="the one follows the other")


@pytest.mark.parametrize(
    ("rows", "columns", "code_and_values"),
    [
        (FRAMES[:-1], {}, ("data.sequence_lengths", "clip", "2")),
        ([*FRAMES[:-1], ("a", 7, 70, 0)], {}, ("data.sequence_values", "label")),
        (FRAMES, {"sequence": "klip"}, ("columns.unknown", "klip")),
        (FRAMES, {"views": ["clip", "x"]}, ("columns.conflict", "clip")),
    ],
)
def test_rejects_wrong_sequences(tmp_path, rows, columns, code_and_values):
    path = write(tmp_path, lines("clip,x,z,label", rows))
    with raises_usage_error(*code_and_values):
        load(path, columns={"sequence": "clip", **columns})


def test_warns_of_numbers_in_a_column_named_as_texts(tmp_path, caplog):
    for place in range(10):
        Image.fromarray(np.full((8, 8, 3), place, np.uint8)).save(tmp_path / f"{place}.png")
    rows = "".join(f"{place}.png,{place}\n" for place in range(10))
    (tmp_path / "pairs.csv").write_text("image,caption\n" + rows)
    assert load(tmp_path / "pairs.csv").shapes == ((3, 8, 8), (1,))
    (message,) = caplog.messages
    assert message.startswith(f"{tmp_path}/pairs.csv: column 'caption'")
    (tmp_path / "numbers.csv").write_text("answer,weight\n" + rows.replace(".png", ""))
    load(tmp_path / "numbers.csv")
    assert len(caplog.messages) == 1


def test_missing_images_do_not_depend_on_other_items(tmp_path):
    for name, colour in (("a.png", 40), ("b.png", 90)):
        Image.new("L", (20, 20), colour).save(tmp_path / name)
    (tmp_path / "bad.png").write_bytes(b"no image")
    rows = ["bad.png,zero", ",one", "b.png,two", ",three", "a.png,four"]
    path = write(tmp_path, lines("image,caption", [[row] for row in rows]))
    dataset = load(path, test_fraction=0)
    assert dataset.unreadable_files == (str(tmp_path / "bad.png"),)
    assert dataset.source_rows.tolist() == [1, 2, 3, 4]
    assert dataset.present.tolist() == [[False, True], [True, True], [False, True], [True, True]]
    assert list(dataset.keys) == [f"{path}, row 1", str(tmp_path / "b.png"), f"{path}, row 3", str(tmp_path / "a.png")]
    images, captions = dataset.__getitems__([0, 1, 2, 3]).views
    assert tensor_to_texts(captions) == ["one", "two", "three", "four"]
    assert images[[1, 3], 0, 0, 0].tolist() == [90, 40]


def test_rejects_only_the_split_without_any_image(tmp_path):
    for name in ("a.png", "b.png"):
        Image.new("L", (20, 20), 90).save(tmp_path / name)
    rows = [["", "one", "train"], ["", "two", "train"], ["a.png", "three", "test"], ["b.png", "four", "test"]]
    path = write(tmp_path, lines("image,caption,split", rows))
    with raises_usage_error("data.view_without_item", "train", [0]):
        load(path)
    assert len(load(path, "test")) == 2


@pytest.mark.parametrize(("cell", "expected"), [("1,5", "'1,5'"), ("a.png ", "'a.png '")])
def test_rejects_decimal_commas_and_names_with_spaces(tmp_path, cell, expected):
    (tmp_path / "data.csv").write_text("a,b\n" + f'"{cell}","{cell}"\n' * 8)
    with raises_usage_error("data.not_file_names", expected):
        load(tmp_path / "data.csv")
