"""Several processes give, on average, the gradient of one process on the whole batch: all objectives and backends."""

import itertools

import pytest
import torch
import torch.distributed as dist
from tests.objectives.comparing import OF_COORDINATES
from tests.processes import reports_of

import contraport
from contraport.catalog import OBJECTIVES
from contraport.distributed import current_processes

SIZES = {2: (5, 3), 3: (4, 1, 3)}  # items per process: uneven, as last batches are
SETTINGS = {"direct-clr": {"dimensions": 3}}
FACTS = {
    "labels": torch.tensor([0, 1, 2, 0, 1, 2, 0, 1]),
    "ids": torch.tensor([0, 1, 2, 3, 4, 1, 5, 6]),
    "weights": torch.tensor([1.0, 2.0, 0.0, 1.0, 1.0, 0.5, 1.0, 3.0], dtype=torch.float64),
    "features": torch.randn(8, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(6)),
}


def batch():
    generator = torch.Generator().manual_seed(0)
    x0, x1 = (torch.randn(8, 6, dtype=torch.float64, generator=generator) for _ in range(2))
    encoder = torch.randn(6, 4, dtype=torch.float64, generator=generator)
    return x0, x1, encoder


def numbers(*shape, seed):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def known_of(name, rows):
    """Return all that is known of some of the items."""
    return {} if name in OF_COORDINATES else {key: fact[rows] for key, fact in FACTS.items()}


def by_objective(name, rows, bank=None):
    """Return the loss of some of the items, and what has a gradient from it."""
    x0, x1, encoder = batch()
    encoder.requires_grad_()
    loss = contraport.objective(name, **SETTINGS.get(name, {})).double()
    attributes = known_of(name, rows)
    if bank is not None:
        attributes |= {"negatives": bank, "negative_ids": torch.arange(5), "shared_negatives": True}
    value = loss(x0[rows] @ encoder, x1[rows] @ encoder, **attributes)
    return value, [encoder, *loss.parameters(), *([] if bank is None else [bank])]


def with_bank(name, rows):
    """The same with negatives that every process brings."""
    return by_objective(name, rows, numbers(5, 4, seed=1).requires_grad_())


def with_prototypes(name, rows):
    """Swapped prediction of assignments to prototypes that every process brings."""
    x0, x1, encoder = batch()
    prototypes = numbers(3, 4, seed=2).requires_grad_()
    target = contraport.soft_assignments(x1[rows] @ encoder, prototypes)
    loss = contraport.objective(name, symmetric=False, shared_columns=True)
    encoder.requires_grad_()
    return loss(x0[rows] @ encoder, prototypes, target=target), [encoder, prototypes]


def with_own_negatives(name, rows):
    """The same with hard negatives that each process brings of its own items, some of them known as such."""
    x0, x1, encoder = batch()
    encoder.requires_grad_()
    hard = numbers(8, 6, seed=3)
    loss = contraport.objective(name, **SETTINGS.get(name, {})).double()
    attributes = {"ids": FACTS["ids"][rows], "negatives": hard[rows] @ encoder, "negative_ids": FACTS["ids"][rows]}
    return loss(x0[rows] @ encoder, x1[rows] @ encoder, **attributes), [encoder, *loss.parameters()]


def with_a_second_derivative(name, rows):
    """A gradient penalty; what each process adds is scaled as its gradient is, so that the mean is that of one."""
    x0, x1, encoder = batch()
    encoder.requires_grad_()
    loss = contraport.objective(name, **SETTINGS.get(name, {})).double()
    inputs = x0[rows].requires_grad_()
    value = loss(inputs @ encoder, x1[rows] @ encoder)
    (slope,) = torch.autograd.grad(value, inputs, create_graph=True)
    penalty = (slope * numbers(8, 6, seed=4)[rows]).sum()
    return current_processes().all_reduce(penalty) / current_processes().size + value, [encoder, *loss.parameters()]


PRESENT = torch.tensor([[1, 1], [1, 0], [0, 1], [1, 1], [1, 1], [0, 1], [1, 0], [1, 1]]).bool()


def with_gaps(name, rows):
    """Items that lack a view, some of them on each process."""
    x0, x1, encoder = batch()
    encoder.requires_grad_()
    loss = contraport.objective(name, **SETTINGS.get(name, {})).double()
    attributes = known_of(name, rows) | {"present": PRESENT[rows]}
    return loss(x0[rows] @ encoder, x1[rows] @ encoder, **attributes), [encoder, *loss.parameters()]


def with_a_learned_temperature(name, rows):
    """A temperature that each process has of its own, which is the same everywhere; and one of the objective."""
    x0, x1, encoder = batch()
    scale, owned = (torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in (3.0, 0.4))
    encoder.requires_grad_()
    z, attributes = (x0[rows] @ encoder, x1[rows] @ encoder), {"labels": FACTS["labels"][rows]}
    learned = contraport.objective(name, temperature="learn").double()
    value = learned(*z, **attributes) + contraport.objective(name, temperature=owned)(*z, **attributes)
    value = value + contraport.objective(name)(*z, **attributes, temperature=1 / scale)
    return value, [encoder, scale, owned, *learned.parameters()]


def with_negatives_of_each_item(name, rows):
    """The same with hard negatives, each compared with its own item alone."""
    x0, x1, encoder = batch()
    encoder.requires_grad_()
    loss = contraport.objective(name).double()
    attributes = {"negatives": numbers(8, 2, 6, seed=3)[rows] @ encoder, "weights": FACTS["weights"][rows]}
    return loss(x0[rows] @ encoder, x1[rows] @ encoder, **attributes), [encoder, *loss.parameters()]


def with_column_weights(name, rows):
    """A reference measure of the columns."""
    x0, x1, encoder = batch()
    encoder.requires_grad_()
    attributes = {"column_weights": FACTS["weights"][rows] + 0.5, "ids": FACTS["ids"][rows]}
    return contraport.objective(name)(x0[rows] @ encoder, x1[rows] @ encoder, **attributes), [encoder]


def with_weights_by_the_plan(name, rows):
    """Items count by the plan of the whole batch."""
    x0, x1, encoder = batch()
    encoder.requires_grad_()
    weights = contraport.WeightsFromPlan(0.7, item_weights=FACTS["weights"][rows])
    return contraport.objective(name)(x0[rows] @ encoder, x1[rows] @ encoder, weights=weights), [encoder]


def with_a_reference_set(name, rows):
    """Two views of different items, one fewer in the second, by their labels."""
    x0, x1, encoder = batch()
    encoder.requires_grad_()
    there = torch.arange(8)[rows]
    there = there[there != 5]
    attributes = {key: (FACTS[key][rows], FACTS[key][there]) for key in ("labels", "ids")}
    loss = contraport.objective(name, layout="cross")
    return loss(x0[rows] @ encoder, x1[there] @ encoder, **attributes), [encoder]


def with_listed_pairs(name, rows):
    """Pairs of the items of each process."""
    x0, x1, encoder = batch()
    encoder.requires_grad_()
    listed = [(0, 1), (1, 1), (2, 3), (4, 4), (5, 6), (7, 7)]
    start, stop, _ = rows.indices(8)
    own = [(i - start, j - start) for i, j in listed if start <= i < stop]
    target = contraport.PairList(own, [1.0 + i + start for i, _ in own])
    return contraport.objective(name)(x0[rows] @ encoder, x1[rows] @ encoder, target=target), [encoder]


def with_a_matrix_between_items(name, rows):
    """What is wanted between all items, of which each process names its own."""
    x0, x1, encoder = batch()
    encoder.requires_grad_()
    matrix = numbers(11, 11, seed=6).clamp_min(0)
    target = contraport.SimilarityMatrix(matrix, torch.tensor([3, 0, 10, 7, 5, 1, 2, 8])[rows])
    return contraport.objective(name)(x0[rows] @ encoder, x1[rows] @ encoder, target=target), [encoder]


def with_several_views_and_classes(name, rows):
    """Three views in one tensor, and items of several classes."""
    x0, x1, encoder = batch()
    encoder.requires_grad_()
    z = torch.stack([x0[rows] @ encoder, x1[rows] @ encoder, (x0 + x1)[rows] @ encoder], 1)
    labels = (numbers(8, 3, seed=5) > 0)[rows]
    return contraport.objective(name)(z, labels=labels, reduction="none").mean(), [encoder]


CASES = [
    *[(by_objective, name) for name in OBJECTIVES],
    *[(with_bank, name) for name in ["info-nce", "nt-xent", "gca-uot", "t-simclr", "cmc", "cmc-nce", "dcl", "guided"]],
    (with_prototypes, "info-nce"),
    *[(with_own_negatives, name) for name in ["info-nce", "nt-xent", "gca-uot", "cmc-nce"]],
    *[(with_gaps, name) for name in OBJECTIVES if name not in OF_COORDINATES],
    *[(with_a_learned_temperature, name) for name in ["nt-xent", "sup-con", "gca-uot", "t-simclr"]],
    *[(with_negatives_of_each_item, name) for name in ["info-nce", "nt-xent", "gca-uot"]],
    *[(with_column_weights, name) for name in ["info-nce", "gca-uot"]],
    *[(with_weights_by_the_plan, name) for name in ["nt-xent", "gca-uot"]],
    (with_a_reference_set, "sup-con"),
    *[(with_listed_pairs, name) for name in ["info-nce", "gca-ince"]],
    *[(with_a_matrix_between_items, name) for name in ["info-nce", "gca-uot"]],
    (with_several_views_and_classes, "sup-con"),
    *[
        (with_a_second_derivative, name)
        for name in [
            "info-nce",
            "gca-uot",
            "sigmoid",
            "alpha-cl",
            "dcl",
            "gte",
            "mv-dhel",
            "hard-negative",
            "barlow-twins",
        ]
    ],
]


def flat(gradients):
    return torch.cat([gradient.flatten() for gradient in gradients])


def work(rank, report, sizes):
    contraport.engine.backends.tiled.TILE_SHAPE = 4, 8
    own = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
    for case, backend in itertools.product(CASES, ["dense", "stored", "streamed"]):
        # The gradient is taken outside of the block that the loss was computed in, and is that of the block all the
        # same.
        make, name = case
        with contraport.engine.backend(backend), contraport.distributed.use_local_batch():
            value, sources = make(name, slice(None))
        value, gradient = value.detach(), flat(torch.autograd.grad(value, sources))
        with contraport.engine.backend(backend):
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
                report((rank, make.__name__, name, backend, "not the same everywhere"))
        average /= len(sizes)
        if not torch.allclose(mine, value, rtol=1e-9) or not torch.allclose(average, gradient, rtol=1e-7, atol=1e-9):
            report((rank, case[0].__name__, case[1], backend, float((average - gradient).norm() / gradient.norm())))


@pytest.mark.parametrize("processes", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_the_average_gradient_is_that_of_one_process(processes):
    assert not reports_of(work, processes, SIZES[processes])
