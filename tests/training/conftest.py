from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from contraport.data import Dataset, from_arrays


class StubObjective(nn.Module):
    """Stub objective: contrasts pairs within the batch; at call number `at` it scales its loss or raises an error."""

    def __init__(self, at: int = 0, raising: BaseException | None = None, factor: float = 1.0) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(0.5))
        self.at, self.raising, self.factor = at, raising, factor
        self.calls = 0

    def forward(self, z0: Tensor, z1: Tensor) -> Tensor:
        self.calls += 1
        factor = self.factor if self.calls == self.at else 1.0
        if self.calls == self.at and self.raising is not None:
            raise self.raising
        cosines = nn.functional.normalize(z0) @ nn.functional.normalize(z1).T
        return factor * nn.functional.cross_entropy(cosines / self.temperature, torch.arange(len(z0)))


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """One thread: on a busy machine, synchronization takes longer than these small steps."""
    torch.set_num_threads(1)


@pytest.fixture
def vectors() -> Dataset:
    random = np.random.default_rng(0)
    return from_arrays(random.normal(size=(70, 6)), labels=random.integers(0, 3, 70), name="vectors")


@pytest.fixture
def images() -> Dataset:
    return from_arrays(np.random.default_rng(0).integers(0, 255, (40, 8, 8)).astype(np.uint8), name="images")


@pytest.fixture
def settings(vectors: Dataset, tmp_path: Path) -> dict[str, Any]:
    """Options of a short training with two steps per epoch."""
    return {"data": vectors, "batch_size": 32, "epochs": 2, "out": tmp_path / "run", "progress": False}
