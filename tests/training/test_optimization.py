from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

from contraport.training.optimization import DEFAULT_LR_BY_OPTIMIZER, build_lr_schedule, create_optimizer


class Tower(nn.Module):
    """Encoder with weights, biases and norms in two layers, with timm's grouping of parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        self.last = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))

    def group_matcher(self, coarse: bool = False) -> dict[str, str]:
        return {"stem": "^first", "blocks": "^last"}

    def no_weight_decay(self) -> set[str]:
        return set()


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="one rate"),
        pytest.param({"encoder_lr_scale": 0.1}, id="a rate of the encoder's own"),
        pytest.param({"layer_decay": 0.5}, id="a rate for each layer"),
        pytest.param({"encoder_lr_scale": 0.1, "layer_decay": 0.5}, id="both"),
    ],
)
def test_each_trainable_parameter_is_in_one_group(options: dict[str, float]) -> None:
    encoder, head = Tower(), nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))
    module = nn.ModuleDict({"encoder": encoder, "head": head})
    module.register_parameter("temperature", nn.Parameter(torch.tensor(0.5)))
    encoder.first[0].weight.requires_grad_(False)
    optimizer = create_optimizer(module, optimizer="adamw", lr=1e-3, weight_decay=0.1, encoders=[encoder], **options)
    grouped = [id(weights) for group in optimizer.param_groups for weights in group["params"]]
    trainable = {id(weights): name for name, weights in module.named_parameters() if weights.requires_grad}
    assert sorted(grouped) == sorted(trainable)
    decaying = {
        trainable[id(weights)]
        for group in optimizer.param_groups
        if group["weight_decay"] > 0
        for weights in group["params"]
    }
    assert decaying == {"encoder.last.0.weight", "head.0.weight"}


def list_rates(schedule: torch.optim.lr_scheduler.LRScheduler, steps: int) -> list[float]:
    result = []
    for _ in range(steps):
        result.append(schedule.optimizer.param_groups[0]["lr"])
        schedule.optimizer.step()
        schedule.step()
    return result


def test_cosine_agrees_with_torch() -> None:
    actual = build_lr_schedule(
        torch.optim.SGD([torch.zeros(1)], lr=0.4), lr_scheduler="cosine", steps=20, warmup_steps=4
    )
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.4)
    reference = SequentialLR(
        optimizer, [LinearLR(optimizer, 1 / 4, 1.0, total_iters=3), CosineAnnealingLR(optimizer, 16)], milestones=[4]
    )
    assert list_rates(actual, 20) == pytest.approx(list_rates(reference, 20))


@pytest.mark.parametrize("optimizer", DEFAULT_LR_BY_OPTIMIZER)
def test_scalars_and_norms_do_not_decay(optimizer: str) -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    module.register_parameter("temperature", nn.Parameter(torch.tensor(0.5)))
    created = create_optimizer(module, optimizer=optimizer, lr=None, weight_decay=0.1)
    decaying = [p for group in created.param_groups if group["weight_decay"] > 0 for p in group["params"]]
    assert [tuple(parameter.shape) for parameter in decaying] == [(4, 3)]
    assert sum(len(group["params"]) for group in created.param_groups) == 5
    assert created.param_groups[0]["lr"] == DEFAULT_LR_BY_OPTIMIZER[optimizer]
