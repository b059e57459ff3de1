"""Batch norm across processes, compared with torch's batch norm of the whole batch."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from contraport.training.data_parallelism import CrossProcessBatchNorm, install_sync_batch_norm_on_any_device
from tests.processes import run_in_processes
from tests.training.process_workers import SIZES, compare_batch_norm


def test_outputs_gradients_and_statistics_equal_one_process() -> None:
    assert not run_in_processes(compare_batch_norm, len(SIZES))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_process_has_plain_batch_norm(dtype: torch.dtype) -> None:
    inputs = torch.randn(6, 3, 2, generator=torch.Generator().manual_seed(0)).to(dtype)
    norm = nn.BatchNorm1d(3)
    container = nn.Sequential(copy.deepcopy(norm))
    install_sync_batch_norm_on_any_device(container, torch.device("cpu"))
    assert isinstance(container[0], CrossProcessBatchNorm)
    assert container(inputs).dtype == dtype
    assert torch.allclose(
        container(inputs).float(), norm(inputs).float(), atol=1e-2 if dtype == torch.bfloat16 else 1e-6
    )
