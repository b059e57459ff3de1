"""Several processes give, on average, the gradient of one process on the whole batch: every objective, every policy."""

import itertools
import os
import socket

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import contraport
from contraport.distributed import world
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


def numbers(*shape, seed):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def by_objective(name, rows, bank=None):
    """Return the loss of some of the items, and what has a gradient from it."""
    x0, x1, encoder = batch()
    encoder.requires_grad_()
    loss = contraport.objective(name, **SETTINGS.get(name, {})).double()
    known = {key: fact[rows] for key, fact in FACTS.items()}
    if bank is not None:
        known |= {"negatives": bank, "negative_ids": torch.arange(5), "shared_negatives": True}
    value = loss(x0[rows] @ encoder, x1[rows] @ encoder, **known)
    return value, [encoder, *loss.parameters(), *([] if bank is None else [bank])]


def with_bank(name, rows):
    """The same with negatives that every process brings."""
    return by_objective(name, rows, numbers(5, 4, seed=1).requires_grad_())


def with_prototypes(name, rows):
    """Swapped prediction of assignments to prototypes that every process brings."""
    x0, x1, encoder = batch()
    prototypes = numbers(3, 4, seed=2).requires_grad_()
    wanted = contraport.assignments(x1[rows] @ encoder, prototypes)
    loss = contraport.objective(name, symmetric=False, shared_columns=True)
    encoder.requires_grad_()
    return loss(x0[rows] @ encoder, prototypes, target=wanted), [encoder, prototypes]


def with_own_negatives(name, rows):
    """The same with hard negatives that each process brings of its own items, some of them known as such."""
    x0, x1, encoder = batch()
    encoder.requires_grad_()
    hard = numbers(8, 6, seed=3)
    loss = contraport.objective(name, **SETTINGS.get(name, {})).double()
    known = {"ids": FACTS["ids"][rows], "negatives": hard[rows] @ encoder, "negative_ids": FACTS["ids"][rows]}
    return loss(x0[rows] @ encoder, x1[rows] @ encoder, **known), [encoder, *loss.parameters()]


def with_a_second_derivative(name, rows):
    """A gradient penalty; what each process adds is scaled as its gradient is, so that the mean is that of one."""
    x0, x1, encoder = batch()
    encoder.requires_grad_()
    loss = contraport.objective(name, **SETTINGS.get(name, {})).double()
    inputs = x0[rows].requires_grad_()
    value = loss(inputs @ encoder, x1[rows] @ encoder)
    (slope,) = torch.autograd.grad(value, inputs, create_graph=True)
    penalty = (slope * numbers(8, 6, seed=4)[rows]).sum()
    return world().total(penalty) / world().size + value, [encoder, *loss.parameters()]


CASES = [
    *[(by_objective, name) for name in CATALOG],
    *[(with_bank, name) for name in ["info-nce", "nt-xent", "gca-uot", "t-simclr", "cmc", "cmc-nce"]],
    (with_prototypes, "info-nce"),
    *[(with_own_negatives, name) for name in ["info-nce", "nt-xent", "gca-uot", "cmc-nce"]],
    *[(with_a_second_derivative, name) for name in ["info-nce", "gca-uot", "sigmoid", "alpha-cl"]],
]


def flat(gradients):
    return torch.cat([gradient.flatten() for gradient in gradients])


def work(rank, sizes, port, failures):
    contraport.engine.backends.tiled.TILE = 4, 8
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=len(sizes))
    own = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
    for case, policy in itertools.product(CASES, ["dense", "stored", "streamed"]):
        # The gradient is taken outside of the block that the loss was computed in, and is that of the block all the
        # same.
        make, name = case
        with contraport.engine.policy(policy), contraport.distributed.local():
            value, sources = make(name, slice(None))
        value, gradient = value.detach(), flat(torch.autograd.grad(value, sources))
        with contraport.engine.policy(policy):
            mine, sources = make(name, own)
        gradients = torch.autograd.grad(mine, sources)
        mine, average = mine.detach(), flat(gradients)
        dist.all_reduce(average)
        # What is the same everywhere (a temperature, a bank, prototypes) has the same gradient everywhere: it stays the
        # same even where nobody takes the average.
        if len(gradients) > 1:
            shared = flat(gradients[1:])
            mean = average[-len(shared) :] / len(sizes)
            if not torch.allclose(shared, mean, rtol=1e-7, atol=1e-9):
                failures.put((rank, make.__name__, name, policy, "not the same everywhere"))
        average /= len(sizes)
        if not torch.allclose(mine, value, rtol=1e-9) or not torch.allclose(average, gradient, rtol=1e-7, atol=1e-9):
            failures.put(
                (rank, case[0].__name__, case[1], policy, float((average - gradient).norm() / gradient.norm()))
            )
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
