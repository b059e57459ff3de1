"""Training with mined negatives: loss, epochs of mining, resuming, several processes."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.errors import raises_usage_error
from tests.processes import run_in_processes
from tests.training.process_workers import train_in_double_precision
from tests.training.test_train import are_equal_states, get_model_state
from torch import Tensor

import contraport
from contraport.catalog.data_option_parsers import MiningRule
from contraport.data import Dataset, from_arrays
from contraport.embedding import LoaderConfig, embed_views
from contraport.hard_negatives import mine_hard_negatives
from contraport.runs import Run, as_run_folder
from contraport.training import train
from contraport.training.components.assembly import build_components
from contraport.training.config import Settings


@pytest.fixture
def pairs() -> Dataset:
    random = np.random.default_rng(0)
    shared = random.normal(size=(70, 4))
    views = [shared @ random.normal(size=(4, width)) + 0.3 * random.normal(size=(70, width)) for width in (5, 6)]
    return from_arrays(tuple(views), name="pairs")


@pytest.fixture
def settings(pairs: Dataset, tmp_path: Path) -> dict[str, Any]:
    return {
        "data": pairs, "batch_size": 16, "epochs": 3, "out": tmp_path / "run", "progress": False,
        "objective": "info-nce", "negatives": "mined:k=3,refresh=2", "log_every": 1,
    }  # fmt: skip


def test_loss_compares_each_item_with_its_own_negatives(pairs: Dataset) -> None:
    """The reference is a dense loss of the batch in float64."""
    settings = Settings(data=pairs, objective="info-nce", temperature=0.3, negatives="mined:k=2", batch_size=8)
    components = build_components(settings)
    module = components.module.double()
    batch = next(iter(components.batches))
    batch = batch._replace(views=tuple(view.double() for view in batch.views))
    assert len(batch.ids) == 8 * (1 + 2 * 2)
    ids = batch.ids.view(8, 5)
    loss = module(batch, step=0)
    assert loss.requires_grad
    views = [view.view(8, 5, -1) for view in batch.views]
    # Items and negatives of a view are encoded in one batch, since batch norm couples them.
    rows = [
        torch.cat([view[:, :1], view[:, 1 + 2 * n : 3 + 2 * n]], dim=1).flatten(0, 1) for n, view in enumerate(views)
    ]
    embedded = module.model.project(module.model.encode(rows))
    z = [torch.nn.functional.normalize(each, dim=1).view(8, 3, -1) for each in embedded]
    losses = []
    for v, w in ((0, 1), (1, 0)):
        for item in range(8):
            own_negatives = [n for n in range(2) if ids[item, 1 + 2 * w + n] != ids[item, 0]]
            columns = torch.cat([z[w][:, 0], z[w][item, 1:][own_negatives]])
            losses.append(torch.logsumexp(columns @ z[v][item, 0] / 0.3, 0) - z[w][item, 0] @ z[v][item, 0] / 0.3)
    assert torch.allclose(loss, torch.stack(losses).mean(), rtol=1e-10)


class RecordingObjective(torch.nn.Module):
    """Objective that records its arguments, and raises at one call."""

    def __init__(self, at: int = 0) -> None:
        super().__init__()
        self.loss, self.at = contraport.info_nce(0.1, symmetric=False), at
        self.ids: list[tuple[Tensor, Tensor]] = []

    def forward(self, z0: Tensor, z1: Tensor, *, ids: Tensor, negatives: Tensor, negative_ids: Tensor) -> Tensor:
        self.ids.append((ids.clone(), negative_ids.clone()))
        if len(self.ids) == self.at:
            raise KeyboardInterrupt
        return self.loss(z0, z1, ids=ids, negatives=negatives, negative_ids=negative_ids)  # type: ignore[no-any-return]


def test_negatives_equal_a_search_by_the_encoder(settings: dict[str, Any], pairs: Dataset) -> None:
    objective = RecordingObjective()
    run = train(**settings | {"objective": objective, "epochs": 1})
    model = as_run_folder(run).find_pretrained_initial_model()
    assert model is None or model.training is False
    components = build_components(run.settings(data=pairs, objective=objective), None, pairs)
    embedded = embed_views(
        components.module.model,
        pairs,
        components.module.views,
        LoaderConfig(),
        project=True,
        view_kind="unaugmented",
    )
    for direction, (anchor, view) in enumerate(((0, 1), (1, 0))):
        mined = mine_hard_negatives(embedded[anchor], embedded[view], MiningRule(k=3, relative_margin=0.05)).positions
        ids, negatives = objective.ids[direction]
        expected = torch.where(mined < 0, torch.arange(len(pairs))[:, None], mined)
        assert torch.equal(negatives, expected[ids])


def test_negatives_are_mined_when_due(settings: dict[str, Any], tmp_path: Path) -> None:
    def list_negative_tables(**changes: Any) -> list[Tensor]:
        objective = RecordingObjective()
        out = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        train(**settings | {"objective": objective, "out": out, "epochs": 4, "lr": 0.01} | changes)
        result = []
        for epoch in range(4):
            table = torch.full((70, 3), -1)
            for ids, negatives in objective.ids[epoch * 8 : epoch * 8 + 8 : 2]:
                table[ids] = negatives
            result.append(table)
        return result

    def are_equal_where_present(first: Tensor, second: Tensor) -> bool:
        present = (first >= 0).all(1) & (second >= 0).all(1)  # the last incomplete batch of an epoch is dropped
        return torch.equal(first[present], second[present])

    every_second = list_negative_tables()
    assert [are_equal_where_present(*pair) for pair in itertools.pairwise(every_second)] == [True, False, True]
    late = list_negative_tables(negatives="mined:k=3,start=2")
    assert [are_equal_where_present(*pair) for pair in itertools.pairwise(late)] == [True, False, False]


@pytest.mark.parametrize(
    ("at", "changes"),
    [
        (5, {}),
        pytest.param(14, {"grad_accum_steps": 2}, marks=pytest.mark.slow),
        (13, {"num_workers": 1, "momentum": 0.9}),
    ],
    ids=str,
)
def test_resumed_run_equals_an_uninterrupted_one(
    settings: dict[str, Any], tmp_path: Path, at: int, changes: dict[str, Any]
) -> None:
    settings |= {"checkpoint_minutes": 0, "lr": 0.01, **changes}
    uninterrupted = train(**settings | {"objective": RecordingObjective(), "out": tmp_path / "whole"})
    with pytest.raises(KeyboardInterrupt):
        train(**settings | {"objective": RecordingObjective(at)})
    resumed = train(
        out=settings["out"], resume=True, data=settings["data"], objective=RecordingObjective(), progress=False
    )
    assert are_equal_states(get_model_state(resumed), get_model_state(uninterrupted))


def test_two_processes_equal_one(pairs: Dataset, tmp_path: Path) -> None:
    arrays = [view.numpy() for view in pairs.store.fetch_views(torch.arange(70))]
    states = []
    for processes in (1, 2):
        out = tmp_path / str(processes)
        run_in_processes(
            train_in_double_precision, processes, arrays, str(out), {"objective": "info-nce", "negatives": "mined:k=3"}
        )
        states.append(torch.load(out / "checkpoints" / "last.ckpt", weights_only=True))
    one, two = states
    for name, value in one["pipeline"].items():
        assert torch.allclose(two["pipeline"][name], value, rtol=0, atol=1e-9), name
    list_negative_tables = [state["callbacks"]["NegativeMiner"]["positions"] for state in states]
    assert torch.equal(*list_negative_tables)


@pytest.mark.parametrize(
    "changes",
    [
        {"objective": "nt-xent"},
        pytest.param({"objective": "gca-ince"}, marks=pytest.mark.slow),
        {"objective": "alpha-cl"},
        pytest.param({"objective": "sigmoid"}, marks=pytest.mark.slow),
        {"objective": "info-nce", "cache_chunk": 6},
        {"objective": "info-nce", "predictor": True, "momentum": 0.9},
        {"objective": "info-nce", "mismatch": 0.2},
        {"objective": "info-nce", "sample_weight": "plan:strength=0.5"},
        pytest.param({"given_views": [0], "augment": lambda row: row + 0.1}, id="own augmentation"),
    ],
    ids=str,
)
def test_trains_with_objectives_and_other_options(settings: dict[str, Any], changes: dict[str, Any]) -> None:
    run = train(**settings | changes)
    assert all(np.isfinite(row["loss"]) for row in run.metrics_rows())


def test_trains_on_cached_features_of_a_frozen_encoder(settings: dict[str, Any], tmp_path: Path) -> None:
    first = train(**settings | {"given_views": [0], "epochs": 1})
    options = {"given_views": [0], "augment": "weak", "init": first.path, "freeze": True, "out": tmp_path / "frozen"}
    run = train(**settings | options)
    assert as_run_folder(run).features_path.exists()
    assert all(np.isfinite(row["loss"]) for row in run.metrics_rows())


def test_uses_negatives_of_a_file(settings: dict[str, Any], tmp_path: Path) -> None:
    file, objective = tmp_path / "negatives.npy", RecordingObjective()
    invalid_negatives = np.stack([(np.arange(70) + 1) % 70, np.full(70, -1)], axis=1)
    np.save(file, invalid_negatives)
    train(**settings | {"objective": objective, "negatives": f"mined:{file}"})
    for ids, negatives in objective.ids:
        assert torch.equal(negatives, torch.stack([(ids + 1) % 70, ids], dim=1))
    file.unlink()
    assert Run(settings["out"]).settings().negatives == f"mined:{file}"  # evaluation does not need the file


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"negatives": "mined:k=0"}, "negatives.invalid"),
        ({"negatives": "mined:nowhere.npy"}, "negatives.not_found"),
        ({"objective": "byol", "predictor": True}, "negatives.conflict"),
        ({"audit": True}, "audit.mined"),
        ({"strategy": "fsdp"}, "strategy.one_process"),
        ({"prototypes": 4}, "negatives.prototypes"),
        ({"queue_size": 4}, "queue_size.conflict"),
    ],
    ids=str,
)
def test_rejects_conflicting_options(settings: dict[str, Any], changes: dict[str, Any], code: str) -> None:
    with raises_usage_error(code):
        train(**settings | changes)


@pytest.mark.parametrize(
    "invalid_negatives", [np.zeros((70, 2)), np.zeros((69, 2), int), np.full((70, 2), 70), np.full((70, 1), -2)]
)
def test_rejects_a_file_of_other_items(settings: dict[str, Any], tmp_path: Path, invalid_negatives: np.ndarray) -> None:
    np.save(tmp_path / "negatives.npy", invalid_negatives)
    with raises_usage_error("negatives.shape"):
        train(**settings | {"negatives": f"mined:{tmp_path / 'negatives.npy'}"})


def test_rejects_items_that_lack_a_view(settings: dict[str, Any]) -> None:
    random = np.random.default_rng(0)
    data = from_arrays((random.normal(size=(40, 3)), random.normal(size=(40, 3))), present=np.eye(2)[[0, 1] * 20] == 0)
    with raises_usage_error("data.missing_views"):
        train(**settings | {"data": data})


def test_failed_step_can_be_replayed(settings: dict[str, Any]) -> None:
    with pytest.raises(FloatingPointError):
        train(**settings | {"lr": 1e30, "optimizer": "sgd", "warmup_epochs": 0})
    failed = contraport.training.load_failed_step(settings["out"], data=settings["data"])
    assert not bool(failed.loss().isfinite())
    assert as_run_folder(settings["out"]).nonfinite_items.exists()


def test_rejects_as_many_negatives_as_items(settings: dict[str, Any]) -> None:
    with raises_usage_error("negatives.too_many"):
        train(**settings | {"negatives": "mined:k=70"})


def test_warns_if_the_limits_exclude_all_items(settings: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    train(**settings | {"negatives": "mined:k=2,max_score=-2", "epochs": 1})
    assert "exclude all items" in caplog.text


def test_mines_at_the_start_epoch_and_at_each_refresh(
    settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="contraport.training"):
        train(**settings | {"negatives": "mined:k=3,start=1,refresh=2", "epochs": 5})
    messages = [message.split(":")[0] for message in caplog.messages if ": mined " in message]
    assert messages == ["Epoch 1", "Epoch 3"]
