"""What a call moves between processes: counted, as it does not depend on the machine."""

import os
import socket
from collections import Counter

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import contraport
from contraport.distributed import processes as collectives

ITEMS, DIMENSIONS, NUMBER = 64, 16, 4  # items of all processes, and the bytes of a number


def counted(moved, function, name):
    def call(*tensors, **kwargs):
        moved[name] += tensors[0].numel() * tensors[0].element_size()
        return function(*tensors, **kwargs)

    return call


def work(rank, size, port, found):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    for name, settings in [("nt-xent", {}), ("gca-ince", {"iterations": 3})]:
        loss, moved = contraport.objective(name, **settings), Counter()
        z0, z1 = torch.randn(2, ITEMS // size, DIMENSIONS).unbind()
        z0.requires_grad_()
        all_reduce, all_gather = dist.all_reduce, collectives._all_gather
        dist.all_reduce = counted(moved, all_reduce, "reduced")
        collectives._all_gather = counted(moved, all_gather, "gathered")
        with contraport.engine.backend("streamed"):
            value = loss(z0, z1)
        forward = dict(moved)
        value.backward()
        dist.all_reduce, collectives._all_gather = all_reduce, all_gather
        if rank == 0:
            found.put((name, forward, {key: moved[key] - forward.get(key, 0) for key in moved}))
    dist.destroy_process_group()
    os._exit(0)  # torch now and then aborts in its own teardown, when all is done


@pytest.mark.parametrize("size", [2, 4])
def test_embeddings_move_once_there_and_once_back_and_else_only_vectors(size):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = mp.get_context("spawn")
    queue = context.SimpleQueue()
    mp.spawn(work, (size, port, queue), nprocs=size)
    found = {name: (forward, backward) for name, forward, backward in (queue.get() for _ in range(2))}
    rows = 2 * ITEMS  # of both views
    embeddings, vector, sizes = rows * DIMENSIONS * NUMBER, rows * NUMBER, 8 * size
    # One half step, one sum; its gradient is one pass, and no sum.
    assert found["nt-xent"] == (
        {"gathered": embeddings + sizes, "reduced": vector},
        {"gathered": 0, "reduced": embeddings},
    )
    # Three iterations are six half steps, and five sums on the way back.
    expected = (
        {"gathered": embeddings + sizes, "reduced": 6 * vector},
        {"gathered": 0, "reduced": 5 * vector + embeddings},
    )
    assert found["gca-ince"] == expected
