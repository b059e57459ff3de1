"""What a call moves between processes: counted, as it does not depend on the machine."""

from collections import Counter

import pytest
import torch
import torch.distributed as dist

import contraport
from contraport.distributed import processes as collectives
from tests.processes import reports_of

ITEMS, DIMENSIONS, NUMBER = 64, 16, 4  # items of all processes, and the bytes of a number


def counted(moved, function, name):
    def call(*tensors, **kwargs):
        moved[name] += tensors[0].numel() * tensors[0].element_size()
        return function(*tensors, **kwargs)

    return call


def work(rank, report, size):
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
            report((name, forward, {key: moved[key] - forward.get(key, 0) for key in moved}))


@pytest.mark.parametrize("size", [2, 4])
def test_embeddings_are_sent_once_forward_and_once_backward(size):
    found = {name: (forward, backward) for name, forward, backward in reports_of(work, size, size)}
    rows = 2 * ITEMS  # of both views
    embeddings, vector, agreed = rows * DIMENSIONS * NUMBER, rows * NUMBER, 8 * 16 * size
    # One half step, one sum; its gradient is one pass, and no sum.
    assert found["nt-xent"] == (
        {"gathered": embeddings + agreed, "reduced": vector},
        {"gathered": 0, "reduced": embeddings},
    )
    # Three iterations are six half steps, and five sums on the way back.
    expected = (
        {"gathered": embeddings + agreed, "reduced": 6 * vector},
        {"gathered": 0, "reduced": 5 * vector + embeddings},
    )
    assert found["gca-ince"] == expected
