"""Several processes give, on average, the gradient of one process on the whole batch: every objective, every policy."""

import itertools
import os
import socket

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import contraport
from contraport.objectives import CATALOG

SIZES = {2: (5, 3), 3: (4, 1, 3)}  # items per process: uneven, as last batches are
SETTINGS = {"direct-clr": {"dimensions": 3}}
FACTS = {
    "labels": torch.tensor([0, 1, 2, 0, 1, 2, 0, 1]),
    "ids": torch.tensor([0, 1, 2, 3, 4, 1, 5, 6]),
    "weights": torch.tensor([1.0, 2.0, 0.0, 1.0, 1.0, 0.5, 1.0, 3.0], dtype=torch.float64),
}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def batch():
    generator = torch.Generator().manual_seed(0)
    x0, x1 = (torch.randn(8, 6, dtype=torch.float64, generator=generator) for _ in range(2))
    encoder = torch.randn(6, 4, dtype=torch.float64, generator=generator)
    return x0, x1, encoder


def loss_and_gradient(name, rows):
    """What one process computes from some of the items."""
    x0, x1, encoder = batch()
    encoder.requires_grad_()
    loss = contraport.objective(name, **SETTINGS.get(name, {}))
    value = loss(x0[rows] @ encoder, x1[rows] @ encoder, **{key: fact[rows] for key, fact in FACTS.items()})
    value.backward()
    return value.detach(), encoder.grad


def work(rank, sizes, port, failures):
    contraport.engine.passes.TILE = 4
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=len(sizes))
    own = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
    for name, policy in itertools.product(CATALOG, ["dense", "stored", "streamed"]):
        with contraport.engine.policy(policy), contraport.engine.local():
            value, gradient = loss_and_gradient(name, slice(None))
        with contraport.engine.policy(policy):
            mine, average = loss_and_gradient(name, own)
        dist.all_reduce(average)
        average /= len(sizes)
        if not torch.allclose(mine, value, rtol=1e-9) or not torch.allclose(average, gradient, rtol=1e-7, atol=1e-9):
            failures.put((rank, name, policy, float((average - gradient).norm() / gradient.norm())))
    dist.destroy_process_group()
    os._exit(0)  # torch now and then aborts in its own teardown, when all is done


@pytest.mark.parametrize("processes", SIZES)
def test_the_average_gradient_is_that_of_one_process(processes):
    context = mp.get_context("spawn")
    failures = context.SimpleQueue()
    mp.spawn(work, (SIZES[processes], free_port(), failures), nprocs=processes)
    wrong = []
    while not failures.empty():
        wrong.append(failures.get())
    assert not wrong
