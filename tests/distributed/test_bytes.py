"""Bytes that a call sends between processes."""

from collections import Counter

import pytest
import torch
import torch.distributed as dist

import contraport
from contraport.distributed import collectives
from tests.processes import run_in_processes

ITEMS, DIMENSIONS, NUMBER = 64, 16, 4  # items of all processes, and bytes of a number


def count_bytes(moved, function, name):
    def call(*tensors, **kwargs):
        moved[name] += tensors[0].numel() * tensors[0].element_size()
        return function(*tensors, **kwargs)

    return call


def report_bytes(rank, report, size):
    for name, settings in [("nt-xent", {}), ("gca-ince", {"iterations": 3})]:
        loss, moved = contraport.objective(name, **settings), Counter()
        z0, z1 = torch.randn(2, ITEMS // size, DIMENSIONS).unbind()
        z0.requires_grad_()
        all_reduce, all_gather = dist.all_reduce, collectives._all_gather_into_tensor
        dist.all_reduce = count_bytes(moved, all_reduce, "reduced")
        collectives._all_gather_into_tensor = count_bytes(moved, all_gather, "gathered")
        with contraport.engine.backend("streamed"):
            value = loss(z0, z1)
        forward = dict(moved)
        value.backward()
        dist.all_reduce, collectives._all_gather_into_tensor = all_reduce, all_gather
        if rank == 0:
            report((name, forward, {key: moved[key] - forward.get(key, 0) for key in moved}))


def report_bytes_in_both_precisions(rank, report, size):
    contraport.engine.backends.tiled.has_fast_cpu_bfloat16 = lambda device: True
    z0, z1 = torch.randn(2, 4 + rank, DIMENSIONS).unbind()
    for name in ("float32", "bfloat16"):
        z, moved = z0.clone().requires_grad_(), Counter()
        all_gather, scatter = collectives._all_gather_into_tensor, collectives._ReduceScatter.forward
        collectives._all_gather_into_tensor = count_bytes(moved, all_gather, "gathered")
        collectives._ReduceScatter.forward = lambda ctx, *args, moved=moved, scatter=scatter: (
            moved.update(scattered=args[2].numel() * args[2].element_size()) or scatter(ctx, *args)
        )
        with contraport.engine.precision(name), contraport.engine.backend("streamed"):
            contraport.nt_xent()(z, z1).backward()
        collectives._all_gather_into_tensor, collectives._ReduceScatter.forward = all_gather, scatter
        report((rank, name, moved["gathered"], moved["scattered"], z.grad.tolist()))


def test_embeddings_and_gradients_are_sent_in_the_precision_of_products():
    result = {name: rest for rank, name, *rest in run_in_processes(report_bytes_in_both_precisions, 2, 2) if rank == 0}
    (sent, scattered, slope), (sent_in_half, scattered_in_half, rounded) = result["float32"], result["bfloat16"]
    padded, rows, agreement = 2 * 2 * 5 * DIMENSIONS, 2 * 9 * DIMENSIONS, 8 * 17 * 2
    assert (sent, scattered) == (padded * 4 + agreement, rows * 4)
    assert (sent_in_half, scattered_in_half) == (padded * 2 + agreement, rows * 2)
    slope, rounded = torch.tensor(slope), torch.tensor(rounded)
    assert 0 < float((rounded - slope).norm() / slope.norm()) < 1e-2


@pytest.mark.parametrize("size", [2, 4])
def test_embeddings_are_sent_once_forward_and_once_backward(size):
    result = {name: (forward, backward) for name, forward, backward in run_in_processes(report_bytes, size, size)}
    rows = 2 * ITEMS  # rows of both views
    embeddings, vector, agreement = rows * DIMENSIONS * NUMBER, rows * NUMBER, 8 * 17 * size
    # One half-step with one sum; its gradient is one pass without a sum.
    assert result["nt-xent"] == (
        {"gathered": embeddings + agreement, "reduced": vector},
        {"gathered": 0, "reduced": embeddings},
    )
    # Three iterations: six half-steps forward, five sums backward.
    expected = (
        {"gathered": embeddings + agreement, "reduced": 6 * vector},
        {"gathered": 0, "reduced": 5 * vector + embeddings},
    )
    assert result["gca-ince"] == expected
