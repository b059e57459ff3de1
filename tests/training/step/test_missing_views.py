"""Items that lack a view: what stands in its place is never looked at, and the rest is as if it were not there."""

from __future__ import annotations

from fnmatch import fnmatch
from typing import Any

import numpy as np
import pytest
import torch
from tests.processes import run_in_processes
from tests.training.steps import compare_gaps, gapped, gradients, pipeline_of, some_batches
from torch import Tensor, nn

import contraport
from contraport import UsageError
from contraport.data import from_arrays

KINDS: dict[str, dict[str, Any]] = {
    "two at a time": {},
    "all at once": {"objective": "cmc"},
    "unbalanced": {"objective": "gca-uot"},
    "classes": {"objective": "sup-con"},
    "moco-v3": {"recipe": "moco-v3"},
    "byol": {"recipe": "byol"},
    "in chunks": {"cache_chunk": 4},
    "one tower": {"shared_encoder": True},
    "noise": {"augment": "noise"},
}


def frozen_norms(module: Any) -> Any:
    for part in module.modules():
        if isinstance(part, nn.BatchNorm1d):
            part.eval()
    return module


def actual(module: Any, batch: Any, *, step: int = 0) -> tuple[Tensor, dict[str, Tensor]]:
    module.zero_grad()
    loss = module(batch, step)
    loss.backward()
    return loss.detach(), gradients(module)


@pytest.mark.parametrize("kind", KINDS)
def test_placeholder_of_a_missing_view_is_ignored(kind: str) -> None:
    dataset = gapped(equal=kind == "one tower")
    module, batch = pipeline_of(dataset, **KINDS[kind]), some_batches(dataset, 1, 16)[0]
    assert batch.present is not None
    assert not batch.present.all()
    other = batch._replace(
        views=tuple(torch.where(batch.present[:, v, None], view, 1e3) for v, view in enumerate(batch.views))
    )
    (value, slopes), (again, others) = actual(module, batch), actual(module, other)
    assert value.isfinite()
    assert any(slope.any() for slope in slopes.values())
    torch.testing.assert_close(again, value, rtol=0, atol=0)
    torch.testing.assert_close(others, slopes, rtol=0, atol=0)


@pytest.mark.parametrize("objective", ["cmc", "gca-uot", "info-nce"])
def test_loss_uses_present_embeddings_only(objective: str) -> None:
    """Without batch norm each item's embedding is its own, so that those of the whole batch tell the loss."""
    dataset = gapped()
    module = frozen_norms(pipeline_of(dataset, objective=objective))
    (batch,) = some_batches(dataset, 1, 16)
    value, slopes = actual(module, batch)
    module.zero_grad()
    z = module.model.project(module.model.encode(batch.views))
    loss, present = contraport.objective(objective), batch.present
    if objective == "cmc":
        expected = loss(*z, present=present)
    else:
        pairs = [(0, 1), (0, 2), (1, 2)]
        expected = torch.stack([loss(z[v], z[w], present=present[:, [v, w]]) for v, w in pairs]).mean()
    expected.backward()
    torch.testing.assert_close(value, expected.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(slopes, gradients(module), rtol=1e-4, atol=3e-5)


def test_chunks_equal_the_whole_batch_with_missing_views() -> None:
    dataset = gapped()
    (batch,) = some_batches(dataset, 1, 16)
    one, many = (frozen_norms(pipeline_of(dataset, objective="cmc", cache_chunk=chunk)) for chunk in (None, 8))
    (value, slopes), (chunked, others) = actual(one, batch), actual(many, batch)
    torch.testing.assert_close(chunked, value)
    torch.testing.assert_close(others, slopes, rtol=1e-4, atol=3e-5)


def test_view_present_in_one_item_is_dropped() -> None:
    """Batch norm knows no variance of one."""
    views, labels, _ = raw()
    present = np.ones((40, 3), dtype=bool)
    present[1:, 2] = False
    dataset = from_arrays(views, labels=labels, present=present)
    module = pipeline_of(dataset, objective="cmc")
    (batch,) = some_batches(dataset, 1, 16)
    value, slopes = actual(module, batch)
    assert value.isfinite()
    assert not any(slope.any() for name, slope in slopes.items() if "towers.2" in name)
    assert any(slope.any() for name, slope in slopes.items() if "towers.1" in name)


def raw() -> tuple[tuple[np.ndarray, ...], np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    views = tuple(random.normal(size=(40, 5 + view)) for view in range(3))
    return views, random.integers(0, 3, 40), random.random((40, 3)) < 0.7


@pytest.mark.parametrize(
    ("chosen", "code"),
    [
        ({"recipe": "moco", "queue_size": 8}, "data.missing_views"),
        ({"recipe": "swav", "prototypes": 6}, "data.missing_views"),
        ({"objective": "vic-reg"}, "data.missing_views"),
        ({"recipe": "predictive"}, "data.missing_views"),
        ({"objective": nn.CosineEmbeddingLoss()}, "data.missing_views"),
        ({"target": "neighbors:k=2"}, "target.missing_views"),
        ({"augment": "mixup"}, "augment.*"),
    ],
)
def test_rejects_missing_views_where_all_are_required(chosen: dict[str, Any], code: str) -> None:
    with pytest.raises(UsageError) as raised:
        pipeline_of(gapped(), **chosen)
    assert fnmatch(raised.value.code, code), str(raised.value)


@pytest.mark.slow
def test_two_processes_equal_one_with_missing_views() -> None:
    assert not run_in_processes(compare_gaps, 2)


def test_trains_on_a_table_with_empty_cells(tmp_path: Any) -> None:
    """From the file to the measures: items that lack a view are trained on, and those with all are measured."""
    random = np.random.default_rng(0)
    centres = random.normal(size=(3, 4)) * 3
    rows = ["label,view0.a,view0.b,view0.c,view0.d,view1.a,view1.b,view1.c,view1.d"]
    for item in range(240):
        kind = item % 3
        cells = [(centres[kind] + random.normal(size=4)).round(3).astype(str).tolist() for _ in range(2)]
        if item % 5 == 0:
            cells[item % 2] = [""] * 4
        rows.append(",".join([str(kind), *cells[0], *cells[1]]))
    (tmp_path / "data.csv").write_text("\n".join(rows))
    run = contraport.train(
        data=str(tmp_path / "data.csv"), out=tmp_path / "run", encoder="mlp", objective="gca-uot", batch_size=32,
        epochs=4, seed=1, progress=False, online_metrics=["knn"],
    )  # fmt: skip
    assert run.metrics_rows()[-1]["knn"] > 0.5
    assert np.isfinite([row["loss"] for row in run.metrics_rows()]).all()
    result = contraport.evaluate(run, progress=False)
    assert result["train_items"] < 192
    with pytest.raises(UsageError) as raised:
        contraport.embed(run, data=str(tmp_path / "data.csv"), out=tmp_path / "features.npz", progress=False)
    assert raised.value.argument == "data"
