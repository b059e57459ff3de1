"""Largest tensors of objectives, forward and backward, do not grow with the number of pairs."""

import resource
import sys

import pytest
import torch
from tests.objectives.comparing import OF_COORDINATES, RANKING
from tests.processes import run_in_processes
from torch.utils._python_dispatch import TorchDispatchMode

import contraport
from contraport.catalog import OBJECTIVES

ITEMS, PROCESSES = 256, 2
TILE = 64, 128
ALLOWED = 16 * 1024
"""Entries. All embeddings, or vectors of ten half-steps, need less; a process's share of the pairs is twice
as many in the cross layout, and eight times in the joint one."""


class LargestTensor(TorchDispatchMode):
    """Context manager that records the largest tensor of any operation."""

    def __init__(self):
        super().__init__()
        self.entries, self.operation = 0, None

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else [result]:
            if isinstance(value, torch.Tensor) and value.untyped_storage().size() // value.itemsize > self.entries:
                self.entries, self.operation = value.untyped_storage().size() // value.itemsize, str(function)
        return result


def largest_tensor_of_loss(name, rows):
    """Return the number of entries of the largest tensor, and the operation that created it."""
    generator = torch.Generator().manual_seed(0)
    z0, z1 = (torch.randn(ITEMS, 4, generator=generator)[rows].requires_grad_() for _ in range(2))
    labels = torch.arange(ITEMS)[rows] % 3
    settings = {"direct-clr": {"dimensions": 3}, "sog-clr": {"items": ITEMS}}.get(name, {})
    loss = contraport.objective(name, **settings)
    with contraport.engine.backend("streamed"), LargestTensor() as recorded:
        attributes = {} if name in OF_COORDINATES else {"ids": torch.arange(ITEMS)[rows] // 2}
        if name in RANKING:
            attributes |= {"weights": torch.arange(ITEMS)[rows] % 5}
        attributes |= {"labels": labels, "features": torch.randn(ITEMS, 3)[rows]}
        unread = loss.unread_item_options()
        loss(z0, z1, **{name: value for name, value in attributes.items() if name not in unread}).backward()
    return recorded.entries, recorded.operation


def report_large_tensors(rank, report):
    contraport.engine.backends.tiled.TILE_SHAPE = TILE
    contraport.engine.autograd_utilities.MAX_BLOCK_PAIRS = TILE[0] * TILE[1]
    share = ITEMS // PROCESSES
    for name in OBJECTIVES:
        entries, operation = largest_tensor_of_loss(name, slice(rank * share, (rank + 1) * share))
        if entries > ALLOWED:
            report((name, entries, operation))


def test_memory_of_a_process_is_linear_in_the_rows():
    assert not run_in_processes(report_large_tensors, PROCESSES)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_memory_is_linear_in_the_rows(monkeypatch, name):
    monkeypatch.setattr("contraport.engine.backends.tiled.TILE_SHAPE", TILE)
    monkeypatch.setattr("contraport.engine.autograd_utilities.MAX_BLOCK_PAIRS", TILE[0] * TILE[1])
    entries, operation = largest_tensor_of_loss(name, slice(None))
    assert entries <= ALLOWED, operation


def test_detects_a_dense_matrix():
    z0, z1 = (torch.randn(ITEMS, 4, requires_grad=True) for _ in range(2))
    with contraport.engine.backend("dense"), LargestTensor() as recorded:
        contraport.nt_xent()(z0, z1).backward()
    assert recorded.entries == (2 * ITEMS) ** 2


def report_growth_of_top(rank, report):
    x = torch.randn(8_000, 8)
    with torch.no_grad():
        plan = contraport.transport(x, x, contraport.Gibbs(temperature=0.1), contraport.Rows()).plan
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        plan.top(1)
    report(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has other units elsewhere")
def test_blocks_of_rows_do_not_fragment_the_heap():
    """The 8,000 x 8,000 matrix takes 244 MiB."""
    assert run_in_processes(report_growth_of_top, 1)[0] < 48 * 1024
