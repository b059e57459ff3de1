"""Search among items with sets of vectors, against pairs of sets matched one by one in double precision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.engine.test_late_interaction import similarity
from tests.errors import raises_usage_error
from tests.evaluation.builders import make_run

import contraport
from contraport import LateInteraction
from contraport.cli import main
from contraport.data import load
from contraport.encoders import Model
from contraport.runs import Run

ITEMS = 90
KERNELS = {
    "late-interaction:matching=max": LateInteraction("max"),
    "late-interaction:matching=max,reduction=sum": LateInteraction("max", reduction="sum"),
    "late-interaction:matching=soft,token_temperature=0.2": LateInteraction("soft", token_temperature=0.2),
    "late-interaction:matching=transport,iterations=3": LateInteraction("transport", iterations=3),
}
MAX, TRANSPORT = next(iter(KERNELS)), list(KERNELS)[-1]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a table of images, each with a caption of one to four words."""
    folder, random = tmp_path_factory.mktemp("captioned"), np.random.default_rng(0)
    lines = ["image,caption,label"]
    for number in range(ITEMS):
        Image.fromarray(random.integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(folder / f"{number:02}.png")
        words = " ".join(random.choice(["red", "bag", "blue", "shoe", "old", "new"], 1 + number % 4))
        lines.append(f"{number:02}.png,{words} {number},{number % 3}")
    (folder / "captions.csv").write_text("\n".join(lines) + "\n")
    return folder / "captions.csv"


def make_set_run(path: Path, table: Path, kernel: str | None, **options: Any) -> Run:
    torch.manual_seed(0)
    names = {"view_names": ["image", "caption"], "representation": "projection"}
    model = Model({"image": "small-cnn", "text": "small-text"}, [(3, 8, 8), ()], projection=16, **names)
    settings = {"data": str(table), "objective": "info-nce", "kernel": kernel, "projection": 16, "num_workers": 0}
    return make_run(path, model, **settings | options)


def expected_similarities(run: Run, kernel: LateInteraction, query: int, *, query_view: str) -> dict[str, float]:
    """Return the similarity of an item to each item of the other view, by position, from all vectors at once."""
    dataset = load(run.settings().data, "test", image_size=8)
    images, texts = dataset.__getitems__(list(range(len(dataset)))).views
    model = run.model().double()
    with torch.no_grad():
        sets = model.project(model.encode((images.double() / 255, texts), pooled=False))
    images, texts = (z.numpy() for z in sets)
    if query_view == "image":
        return {str(place): similarity(images[query], one, kernel) for place, one in enumerate(texts)}
    return {str(place): similarity(one, texts[query], kernel) for place, one in enumerate(images)}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks smaller than the few items of the tests."""
    monkeypatch.setattr("contraport.embedding.FORWARD_BLOCK_ITEMS", 4)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("query_view", ["image", "caption"])
def test_equals_pairs_of_sets_matched_one_by_one(table: Path, tmp_path: Path, name: str, query_view: str) -> None:
    run = make_set_run(tmp_path / "run", table, name)
    dataset, query = load(table, "test", image_size=8), 3
    captions = contraport.embed(run, view="caption", split="test", out=None, progress=False).keys
    assert dataset.keys is not None
    text = str(captions[query])
    result = contraport.search(run, dataset.keys[query] if query_view == "image" else text, top=10)
    similarities = expected_similarities(run, KERNELS[name], query, query_view=query_view)
    best = sorted(similarities, key=lambda place: -similarities[place])[:10]
    assert [str(near.position) for near in result] == best
    assert [near.similarity for near in result] == pytest.approx([similarities[place] for place in best], abs=1e-5)
    names = captions if query_view == "image" else dataset.keys
    assert [near.name for near in result] == [names[near.position] for near in result]
    assert {near.class_name for near in result} <= {"0", "1", "2"}


def test_vectors_are_in_memory_for_one_block_only(table: Path, tmp_path: Path) -> None:
    run, sizes = make_set_run(tmp_path / "run", table, MAX), []
    match = LateInteraction.similarities

    def similarities(kernel: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        sizes.append((len(x), len(y)))
        return match(kernel, x, y)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(LateInteraction, "similarities", similarities)
        assert len(contraport.search(run, "a red bag", top=1000, split="all")) == ITEMS
    assert set(sizes) == {(4, 1)}
    assert len(sizes) >= ITEMS // 4


def test_pooled_vectors_are_compared_with_a_warning(
    table: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pooled = make_set_run(tmp_path / "pooled", table, None)
    of_sets = make_set_run(tmp_path / "sets", table, MAX)
    near = contraport.search(pooled, "a red bag", top=5)
    assert contraport.search(of_sets, "a red bag", top=5) != near
    features = contraport.embed(of_sets, view="image", split="test", out=tmp_path / "images.npz", progress=False)
    caplog.clear()
    from_file = contraport.search(features, "a red bag", top=5)
    assert [one.position for one in from_file] == [one.position for one in near]
    warnings = [record.args for record in caplog.records if record.levelname == "WARNING"]
    assert [(str(args[0]), type(args[1])) for args in warnings] == [(str(of_sets.path), LateInteraction)]
    for command, options in (
        (contraport.neighbors, {"query": 0}),
        (contraport.duplicates, {}),
        (contraport.cluster, {"k": 2}),
    ):
        caplog.clear()
        command(features, **options)
        warnings = [record.args for record in caplog.records if record.levelname == "WARNING" and record.args]
        assert [str(args[0]) for args in warnings if isinstance(args[-1], LateInteraction)] == [str(of_sets.path)]
    objects = make_set_run(tmp_path / "objects", table, None, objective="<Objective>")
    assert contraport.search(objects, "a red bag", top=5) == near


def test_command_prints_items_and_writes_a_page(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_set_run(tmp_path / "run", table, TRANSPORT)
    main(["search", str(run.path), "a red bag", "--top", "3", "--page", str(tmp_path / "found.html")])
    printed = capsys.readouterr().out
    assert printed.count(".png") == 3
    page = (tmp_path / "found.html").read_text()
    assert page.count('src="data:image/') == 3
    assert "cosine" not in page


def test_rejects_an_index_and_unsuitable_queries(table: Path, tmp_path: Path) -> None:
    run = make_set_run(tmp_path / "run", table, MAX)
    with raises_usage_error("index.sets", run.path):
        contraport.search(run, "a red bag", index=tmp_path / "index.faiss")
    with raises_usage_error("query.unknown", "a red bag"):
        contraport.search(run, "a red bag", query_view="image", view="caption")
    np.save(tmp_path / "small.npy", np.zeros((3, 4, 4), np.uint8))
    with raises_usage_error("query.shape"):
        contraport.search(run, tmp_path / "small.npy", query_view="image")
    names = {"view_names": ["ear", "eye"], "projection": 8}
    vectors = make_run(tmp_path / "vectors", Model(shapes=[(3,), (4,)], **names), kernel=MAX)
    np.save(tmp_path / "vector.npy", np.zeros(3, np.float32))
    with raises_usage_error("encoder.no_vectors", "forward_features"):
        contraport.search(vectors, tmp_path / "vector.npy", query_view="ear")
