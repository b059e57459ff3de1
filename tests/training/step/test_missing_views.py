"""Items with missing views: placeholders are ignored, and the loss uses present views only."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.errors import raises_usage_error
from tests.processes import run_in_processes
from tests.training.step_builders import (
    build_batches,
    build_data_with_missing_views,
    build_module,
    compare_missing_views,
    get_gradients,
)
from torch import Tensor, nn

import contraport
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


def freeze_batch_norm(module: Any) -> Any:
    for part in module.modules():
        if isinstance(part, nn.BatchNorm1d):
            part.eval()
    return module


def compute_loss_and_gradients(module: Any, batch: Any, *, step: int = 0) -> tuple[Tensor, dict[str, Tensor]]:
    module.zero_grad()
    loss = module(batch, step)
    loss.backward()
    return loss.detach(), get_gradients(module)


@pytest.mark.parametrize("kind", KINDS)
def test_placeholder_of_a_missing_view_is_ignored(kind: str) -> None:
    dataset = build_data_with_missing_views(equal=kind == "one tower")
    module, batch = build_module(dataset, **KINDS[kind]), build_batches(dataset, 1, 16)[0]
    assert batch.present is not None
    assert not batch.present.all()
    other = batch._replace(
        views=tuple(torch.where(batch.present[:, v, None], view, 1e3) for v, view in enumerate(batch.views))
    )
    (value, gradients), (repeated, other_gradients) = (
        compute_loss_and_gradients(module, batch),
        compute_loss_and_gradients(module, other),
    )
    assert value.isfinite()
    assert any(gradient.any() for gradient in gradients.values())
    torch.testing.assert_close(repeated, value, rtol=0, atol=0)
    torch.testing.assert_close(other_gradients, gradients, rtol=0, atol=0)


@pytest.mark.parametrize("objective", ["cmc", "gca-uot", "info-nce"])
def test_loss_uses_present_embeddings_only(objective: str) -> None:
    """Without batch norm, embeddings of the whole batch are independent and give the expected loss."""
    dataset = build_data_with_missing_views()
    module = freeze_batch_norm(build_module(dataset, objective=objective))
    (batch,) = build_batches(dataset, 1, 16)
    value, gradients = compute_loss_and_gradients(module, batch)
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
    torch.testing.assert_close(gradients, get_gradients(module), rtol=1e-4, atol=3e-5)


def test_chunks_equal_the_whole_batch_with_missing_views() -> None:
    dataset = build_data_with_missing_views()
    (batch,) = build_batches(dataset, 1, 16)
    one, many = (freeze_batch_norm(build_module(dataset, objective="cmc", cache_chunk=chunk)) for chunk in (None, 8))
    (value, gradients), (chunked, other_gradients) = (
        compute_loss_and_gradients(one, batch),
        compute_loss_and_gradients(many, batch),
    )
    torch.testing.assert_close(chunked, value)
    torch.testing.assert_close(other_gradients, gradients, rtol=1e-4, atol=3e-5)


def test_view_present_in_one_item_is_dropped() -> None:
    """Batch norm cannot compute a variance of one item."""
    views, labels, _ = draw_views_and_labels()
    present = np.ones((40, 3), dtype=bool)
    present[1:, 2] = False
    dataset = from_arrays(views, labels=labels, present=present)
    module = build_module(dataset, objective="cmc")
    (batch,) = build_batches(dataset, 1, 16)
    value, gradients = compute_loss_and_gradients(module, batch)
    assert value.isfinite()
    assert not any(gradient.any() for name, gradient in gradients.items() if "towers.2" in name)
    assert any(gradient.any() for name, gradient in gradients.items() if "towers.1" in name)


def draw_views_and_labels() -> tuple[tuple[np.ndarray, ...], np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    views = tuple(random.normal(size=(40, 5 + view)) for view in range(3))
    return views, random.integers(0, 3, 40), random.random((40, 3)) < 0.7


@pytest.mark.parametrize(
    ("options", "code"),
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
def test_rejects_missing_views_where_all_are_required(options: dict[str, Any], code: str) -> None:
    with raises_usage_error(code):
        build_module(build_data_with_missing_views(), **options)


@pytest.mark.slow
def test_two_processes_equal_one_with_missing_views() -> None:
    assert not run_in_processes(compare_missing_views, 2)


def test_trains_on_a_table_with_empty_cells(tmp_path: Any) -> None:
    """Items with a missing view are used for training, and only complete items for evaluation."""
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
    with raises_usage_error("data.*"):
        contraport.embed(run, data=str(tmp_path / "data.csv"), out=tmp_path / "features.npz", progress=False)
