"""Couplings between two different sets: datasets, folders, targets, training and evaluation."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from PIL import Image
from tests.errors import raises_usage_error
from tests.evaluation.builders import make_run

import contraport
from contraport.cli import main
from contraport.data import Dataset, from_coupling, load
from contraport.data.split_digests import SplitDigests
from contraport.encoders import Model
from contraport.objectives import Cross, Joint, SimilarityMatrix
from contraport.reporting.reported_run import load_runs
from contraport.reporting.verdict import compose_comparison_sentences
from contraport.runs import Run, as_run_folder
from contraport.training.components.assembly import build_components
from contraport.training.config import Settings

rng = np.random.default_rng(0)
ROWS, COLUMNS = rng.normal(size=(30, 4)).astype("float32"), rng.normal(size=(12, 3)).astype("float32")
PAIRS = np.array([(row, column) for row in range(30) for column in rng.permutation(12)[:3]])


def write_folder(folder: Path, *, split: list[str] | None = None) -> Path:
    """Write a coupling of texts and vectors as a folder of three tables."""
    (folder / "rows.csv").write_text("id,text\n" + "".join(f"r{row},user {row}\n" for row in range(30)))
    columns = {"id": [f"c{column}" for column in range(12)], "size": COLUMNS[:, 0], "price": COLUMNS[:, 1]}
    pyarrow.parquet.write_table(pa.table(columns), folder / "columns.parquet")
    pairs = {
        "row": [f"r{row}" for row, _ in PAIRS],
        "column": [f"c{column}" for _, column in PAIRS],
        "weight": np.arange(1, len(PAIRS) + 1),
    }
    pyarrow.parquet.write_table(pa.table(pairs | ({} if split is None else {"split": split})), folder / "pairs.parquet")
    return folder


def test_items_of_a_coupling_have_row_and_column_views() -> None:
    data = from_coupling(ROWS, COLUMNS, PAIRS, test_fraction=0)
    batch = data.__getitems__([4, 0])
    assert data.view_names == ("row", "column")
    assert np.array_equal(batch.views[0], ROWS[PAIRS[[4, 0], 0]])
    assert np.array_equal(batch.views[1], COLUMNS[PAIRS[[4, 0], 1]])


def test_repeated_pairs_are_merged_and_their_weights_added() -> None:
    data = from_coupling(ROWS, COLUMNS, [[3, 1], [0, 0], [3, 1]], [1.0, 2.0, 4.0], test_fraction=0)
    assert data.entity_ids is not None
    assert data.weights is not None
    assert data.entity_ids.tolist() == [[3, 1], [0, 0]]
    assert data.weights.tolist() == [5.0, 2.0]


def test_splits_are_disjoint_by_pair_and_cover_all() -> None:
    train, test = (from_coupling(ROWS, COLUMNS, PAIRS, split=split) for split in ("train", "test"))
    pairs = [{tuple(pair) for pair in part.entity_ids.tolist()} for part in (train, test)]
    assert pairs[0].isdisjoint(pairs[1])
    assert pairs[0] | pairs[1] == {tuple(pair) for pair in PAIRS.tolist()}
    record = SplitDigests.from_datasets_unless_stream(train, test)
    assert record is not None
    assert not record.training_overlap_mask(test).any()
    assert record.training_overlap_mask(train).all()


@pytest.mark.parametrize(
    ("pairs", "weights", "code"),
    [
        ([[0, 12]], None, "pairs.out_of_range"),
        ([[-1, 0]], None, "pairs.out_of_range"),
        ([[0, 1, 2]], None, "pairs.invalid"),
        ([[0.5, 1.0]], None, "pairs.invalid"),
        ([[0, 1]], [1.0, 2.0], "weights.shape"),
    ],
)
def test_rejects_invalid_pairs(pairs: list[list[float]], weights: list[float] | None, code: str) -> None:
    with raises_usage_error(code):
        from_coupling(ROWS, COLUMNS, pairs, weights)


def test_rejects_a_side_with_two_views() -> None:
    with raises_usage_error("rows.views"):
        from_coupling((ROWS, ROWS), COLUMNS, PAIRS)


def test_folder_equals_arrays(tmp_path: Path) -> None:
    data = load(write_folder(tmp_path), "train", test_fraction=0)
    assert data.shapes == ((), (2,))
    assert data.entity_ids is not None
    assert data.weights is not None
    assert np.array_equal(data.entity_ids, PAIRS)
    assert data.weights.tolist() == list(range(1, len(PAIRS) + 1))


def test_folder_with_its_own_split(tmp_path: Path) -> None:
    names = ["test" if position % 5 == 0 else "train" for position in range(len(PAIRS))]
    test = load(write_folder(tmp_path, split=names), "test")
    assert np.array_equal(test.entity_ids, PAIRS[::5])


@pytest.mark.parametrize(
    ("table", "content", "code"),
    [
        ("pairs.csv", "row,column\nr0,unknown\n", "data.unknown_key"),
        ("pairs.csv", "row,col\nr0,c0\n", "data.missing_column"),
        ("rows.csv", "id,text\nr0,a\nr0,b\n", "data.repeats"),
        ("rows.csv", "text\na\n", "data.no_keys"),
    ],
)
def test_rejects_tables_that_do_not_fit(tmp_path: Path, table: str, content: str, code: str) -> None:
    write_folder(tmp_path)
    (tmp_path / "pairs.parquet").unlink()
    (tmp_path / "pairs.csv").write_text("row,column\nr0,c0\n")
    (tmp_path / table).write_text(content)
    with raises_usage_error(code, table):
        load(tmp_path, "train", test_fraction=0)


@pytest.mark.parametrize("table", ["rows.csv", "columns.parquet", "pairs.parquet"])
def test_rejects_a_folder_without_one_of_the_tables(tmp_path: Path, table: str) -> None:
    (write_folder(tmp_path) / table).unlink()
    with raises_usage_error("data.no_table", tmp_path, table.partition(".")[0]):
        load(tmp_path, "train")


def write_images(folder: Path) -> None:
    for number in range(6):
        Image.fromarray(np.full((8, 8, 3), 40 * number, np.uint8)).save(folder / f"{number}.png")


def test_images_beside_two_tables_are_the_data(tmp_path: Path) -> None:
    (write_folder(tmp_path) / "pairs.parquet").unlink()
    write_images(tmp_path)
    data = load(tmp_path, "train", test_fraction=0)
    assert data.entity_ids is None
    assert data.is_first_view_image
    assert len(data) == 6


def test_images_beside_three_tables_are_not_the_data(tmp_path: Path) -> None:
    write_images(write_folder(tmp_path))
    assert load(tmp_path, "train", test_fraction=0).entity_ids is not None


def test_rejects_two_tables_that_name_the_images_beside_them(tmp_path: Path) -> None:
    (write_folder(tmp_path) / "pairs.parquet").unlink()
    write_images(tmp_path)
    (tmp_path / "rows.csv").write_text("id,image\n" + "".join(f"r{number},{number}.png\n" for number in range(6)))
    with raises_usage_error("data.no_table", tmp_path, "'pairs'", "images"):
        load(tmp_path, "train")


def test_pairs_are_named_by_their_ids(tmp_path: Path) -> None:
    data = load(write_folder(tmp_path), "train", test_fraction=0)
    assert data.keys is not None
    assert data.items_are_entity_pairs
    with pytest.warns(FutureWarning, match="items_are_entity_pairs"):
        assert data.is_coupling
    assert list(data.keys[:2]) == [f"r{row} | c{column}" for row, column in PAIRS[:2]]


def dense_target_of_pairs() -> torch.Tensor:
    return torch.sparse_coo_tensor(
        torch.tensor(PAIRS.T), torch.ones(len(PAIRS)), (30, 12), check_invariants=True
    ).coalesce()


@pytest.mark.parametrize("sparse", [True, False])
def test_target_has_all_known_partners_in_both_directions(sparse: bool) -> None:
    ids = torch.tensor(PAIRS[rng.permutation(len(PAIRS))[:16]])
    pairs_matrix = dense_target_of_pairs() if sparse else dense_target_of_pairs().to_dense()
    (block,) = Cross()(torch.zeros(16, 2), torch.ones(16, 2))
    target = SimilarityMatrix(pairs_matrix, ids)
    partners = dense_target_of_pairs().to_dense()[ids[:, 0]][:, ids[:, 1]]
    expected = [each / each.sum(1, keepdim=True) / 16 for each in (partners, partners.T)]
    torch.testing.assert_close(target(block, {}).dense(), expected[0])
    torch.testing.assert_close(target.for_transposed_block()(block.T, {}).dense(), expected[1])


def test_target_rejects_layouts_that_compare_rows_with_rows() -> None:
    (block,) = Joint()(torch.zeros(2, 1), torch.ones(2, 1))
    with raises_usage_error("target.layout"):
        SimilarityMatrix(dense_target_of_pairs(), torch.tensor(PAIRS[:2]))(block, {})


@pytest.fixture(scope="module")
def preferences() -> tuple[Dataset, Dataset]:
    """Coupling of users and their nearest items, observed through random linear maps."""
    random = np.random.default_rng(1)
    users, items = random.normal(size=(200, 4)), random.normal(size=(60, 4))
    scores = users @ items.T
    pairs = np.argwhere(scores >= np.sort(scores, axis=1)[:, -5:-4])
    observed = [side @ random.normal(size=(4, 10)) for side in (users, items)]
    train, test = (from_coupling(*observed, pairs, split=split) for split in ("train", "test"))
    return train, test


def test_training_finds_held_out_partners(preferences: tuple[Dataset, Dataset], tmp_path: Path) -> None:
    train, test = preferences
    options = {"epochs": 20, "batch_size": 128, "device": "cpu", "threads": 1, "progress": False}
    run = contraport.train(data=train, objective="info-nce", out=tmp_path / "run", **options)
    rows = contraport.evaluate(run.path, data=(train, test), progress=False)["rows"]
    assert rows["trained"]["link_recall@10"] > 0.7
    assert rows["trained"]["link_recall@10"] > rows["untrained"]["link_recall@10"] + 0.3
    assert "recall@10" not in rows["trained"]


def write_numbers(folder: Path, data: Dataset, other: Dataset) -> Path:
    """Write a coupling of numbers as a folder, with the split of two datasets."""
    folder.mkdir()
    parts = [part.__getitems__(list(range(len(part)))).views for part in (data, other)]
    assert data.entity_ids is not None
    assert other.entity_ids is not None
    ids = torch.cat([data.entity_ids, other.entity_ids])
    for view, (name, letter) in enumerate((("rows", "u"), ("columns", "i"))):
        vectors = np.concatenate([views[view] for views in parts])
        _, first = np.unique(ids[:, view], return_index=True)
        keys = [f"{letter}{k}" for k in ids[first, view].tolist()]
        table = {"id": keys} | {f"x_{k}": vectors[first, k] for k in range(vectors.shape[1])}
        pyarrow.parquet.write_table(pa.table(table), folder / f"{name}.parquet")
    split = ["train"] * len(data) + ["test"] * len(other)
    pairs = {"row": [f"u{k}" for k in ids[:, 0].tolist()], "column": [f"i{k}" for k in ids[:, 1].tolist()]}
    pyarrow.parquet.write_table(pa.table(pairs | {"split": split}), folder / "pairs.parquet")
    return folder


def test_verdict_uses_held_out_links(preferences: tuple[Dataset, Dataset], tmp_path: Path) -> None:
    folder = write_numbers(tmp_path / "shop", *preferences)
    options = {"epochs": 5, "batch_size": 128, "device": "cpu", "progress": False}
    run = contraport.train(data=folder, objective="info-nce", out=tmp_path / "run", threads=1, **options)
    evaluation = contraport.evaluate(run.path, progress=False)
    gains = evaluation["differences"]["untrained"]
    assert gains["link_recall@10"]["low"] > 0
    assert "mutual_information" in gains
    values = as_run_folder(run).test_item_metric_values()
    test = load(folder, "test").entity_ids
    assert test is not None
    for key in ("link_recall@10", "link_ndcg@10"):  # rows are resampled, not their pairs
        assert len(values[key]) == len(test[:, 0].unique()) < len(test)
        assert values[key].mean() == pytest.approx(evaluation["rows"]["trained"][key])
    assert len(values["mutual_information"]) == len(test)
    (written,) = load_runs([run.path])
    page = contraport.report([run.path], out=tmp_path / "page.html").read_text()
    for sentences in ([evaluation["verdict"]], compose_comparison_sentences([written])):
        text = " ".join(sentences)
        assert re.search("link (recall|NDCG)@10", text)
        assert "mutual information" not in text
    text = html.unescape(re.sub("<[^>]*>", "", page))  # each word of the heading has a tag
    assert evaluation["verdict"] in " ".join(text.split())
    options = {"epochs": 1, "seeds": 1, "train": {"batch_size": 128}, "device": "cpu", "progress": False}
    objectives = ["info-nce", "info-nce:temperature=0.3"]
    compared = contraport.compare(data=[folder], objectives=objectives, out=tmp_path / "cmp", **options)
    assert [metric.key for metric in compared.metrics] == ["link_recall@10", "link_ndcg@10"]
    assert all("link recall@10" in sentence for sentence in compared.column_summaries)


def test_training_rejects_an_objective_that_compares_rows_with_rows(
    preferences: tuple[Dataset, Dataset], tmp_path: Path
) -> None:
    with raises_usage_error("target.layout", "objective='info-nce'", "shared_encoder=False"):
        contraport.train(data=preferences[0], objective="nt-xent", out=tmp_path / "run", epochs=1, progress=False)


ONE_DIRECTION = {"objective": "info-nce", "objective_settings": {"symmetric": False}, "log_q": True}


def test_log_q_weights_columns_by_their_inverse_count(preferences: tuple[Dataset, Dataset]) -> None:
    settings = Settings(data=preferences[0], batch_size=32, device="cpu", **ONE_DIRECTION)
    loss = build_components(settings, None, preferences[0]).module.comparison
    columns = preferences[0].entity_ids[:, 1]
    counts = [int((columns == column).sum()) for column in columns.tolist()]
    torch.testing.assert_close(loss.column_weights, 1 / torch.tensor(counts).float())


@pytest.mark.parametrize(
    ("options", "code"), [({"objective_settings": None}, "log_q.two_directions"), ({"data": ROWS}, "log_q.no_coupling")]
)
def test_rejects_log_q_without_counts(
    options: dict[str, object], code: str, preferences: tuple[Dataset, Dataset], tmp_path: Path
) -> None:
    with raises_usage_error(code):
        contraport.train(
            **{"data": preferences[0], "out": tmp_path / "run", "epochs": 1, "progress": False}
            | ONE_DIRECTION
            | options
        )


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda folder: (folder / "columns.parquet").unlink(), "data.no_table"),
        (lambda folder: (folder / "rows.jsonl").write_text("{}\n"), "data.tables"),
    ],
)
def test_rejects_a_folder_with_missing_or_two_tables(tmp_path: Path, change, code: str) -> None:
    change(write_folder(tmp_path))
    with raises_usage_error(code):
        load(tmp_path, "train")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return an untrained run on texts and vectors, some columns of which have test pairs only."""
    (tmp_path / "data").mkdir()
    split = ["test" if column in (3, 7) or number % 5 == 0 else "train" for number, (_, column) in enumerate(PAIRS)]
    folder = write_folder(tmp_path / "data", split=split)
    torch.manual_seed(0)
    model = Model(shapes=[(), (2,)], projection=8, view_names=["row", "column"])
    return make_run(tmp_path / "run", model, data=str(folder), objective="info-nce", projection=8, num_workers=0)


def test_search_adds_a_prior_of_popularity(run: Run) -> None:
    folder = Path(str(run.settings().data))
    train = load(folder, "train").entity_ids
    assert train is not None
    counts = train[:, 1].bincount(minlength=12).numpy()
    assert counts[[3, 7]].tolist() == [0, 0]
    alone = contraport.embed(run, data=folder / "columns.parquet", view="column", out=None, progress=False)
    vectors = alone.features[np.argsort(alone.source_rows)]
    for features, options in ((run, {"split": "all"}), (run, {"split": "test"}), (alone, {})):
        plain = contraport.search(features, "user 4", top=20, query_view="row", **options)
        result = contraport.search(features, "user 4", top=20, query_view="row", popularity=0.3, **options)
        assert (
            len(result) == len({near.name for near in result}) == (12 if options != {"split": "test"} else len(plain))
        )
        similarities = {near.position: near.similarity for near in plain}
        read = alone if options == {} else contraport.embed(run, view="column", out=None, progress=False, **options)
        columns = [int(np.abs(vectors - read.features[near.position]).sum(1).argmin()) for near in result]
        expected = [
            similarities[near.position] + 0.3 * np.log1p(counts[c]) for near, c in zip(result, columns, strict=True)
        ]
        assert [near.similarity for near in result] == pytest.approx(expected, abs=1e-6)
        assert expected == sorted(expected, reverse=True)
        assert [near.position for near in result] != [near.position for near in plain]


@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".npy"])
def test_search_names_entities_by_their_ids_and_describes_them_by_their_texts(
    run: Run, suffix: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(run.path)
    np.save("size.npy", COLUMNS[0, :2])
    folder = Path(str(run.settings().data))
    for data in (folder / "rows.csv", None):
        contraport.embed(run, data=data, view="row", out=f"rows{suffix}", overwrite=True, progress=False)
        result = contraport.search(f"rows{suffix}", "size.npy", run=run, query_view="column", top=30)
        assert {(near.name, near.description) for near in result} == {(f"r{row}", f"user {row}") for row in range(30)}
    directly = contraport.search(run, "size.npy", query_view="column", split="all", top=30)
    assert [(near.name, near.description) for near in directly] == [(near.name, near.description) for near in result]
    columns = contraport.search(run, "user 4", query_view="row", split="all", top=12)
    assert {(near.name, near.description) for near in columns} == {(f"c{column}", None) for column in range(12)}
    words = ["search", f"rows{suffix}", "size.npy", "--run", str(run.path), "--query_view", "column", "--top", "3"]
    assert main(words) == 0
    assert all(
        f" {near.name} " in line for near, line in zip(result, capsys.readouterr().out.splitlines()[3:], strict=False)
    )
    assert main([*words, "--json"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert [(record["name"], record["description"]) for record in records] == [
        (near.name, near.description) for near in result[:3]
    ]


def test_entities_of_arrays_are_named_by_their_numbers() -> None:
    data = from_coupling(ROWS, COLUMNS, PAIRS, test_fraction=0)
    assert data.keys is None
    assert list(data.select_views([1]).keys) == [str(column) for column in PAIRS[:, 1]]
    swapped = data.select_views([1, 0])
    assert list(swapped.subset(torch.tensor([5])).select_views([1]).keys) == [str(PAIRS[5, 0])]


def test_prior_counts_pairs_of_the_searched_side(run: Run) -> None:
    train = load(run.settings().data, "train").entity_ids
    assert train is not None
    options = {"split": "all", "top": 30, "query_view": "column", "view": "row"}
    np.save(run.path / "size.npy", COLUMNS[0, :2])
    plain, result = (contraport.search(run, run.path / "size.npy", popularity=beta, **options) for beta in (0.0, -1.0))
    similarities = {near.name: near.similarity for near in plain}
    counts = train[:, 0].bincount(minlength=30).numpy()
    expected = {name: value - np.log1p(counts[int(name.removeprefix("r"))]) for name, value in similarities.items()}
    assert {near.name: near.similarity for near in result} == pytest.approx(expected, abs=1e-6)


def test_rejects_a_prior_without_pair_counts(run: Run, tmp_path: Path) -> None:
    with raises_usage_error("index.conflict", "popularity"):
        contraport.search(run, "user 4", query_view="row", popularity=0.1, index=tmp_path / "index.faiss")
    with raises_usage_error("popularity.invalid", "nan"):
        contraport.search(run, "user 4", query_view="row", popularity=float("nan"))
    np.save(tmp_path / "others.npy", COLUMNS[:, :2])
    others = contraport.embed(run, data=tmp_path / "others.npy", view="column", out=None, progress=False)
    with raises_usage_error("popularity.other_data", "others.npy", run.settings().data):
        contraport.search(others, "user 4", query_view="row", popularity=0.1)
    texts = [[f"{k} {word}" for k in range(20)] for word in ("one", "two")]
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("\n".join(f'{{"one": "{a}", "two": "{b}"}}' for a, b in zip(*texts, strict=True)))
    model = Model(shapes=[(), ()], projection=8, view_names=["one", "two"])
    uncoupled = make_run(tmp_path / "uncoupled", model, data=str(pairs), objective="info-nce", projection=8)
    with raises_usage_error("popularity.no_coupling", uncoupled.settings().data):
        contraport.search(uncoupled, "3 one", query_view="one", popularity=0.1)
