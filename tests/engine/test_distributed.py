"""The mean gradient of several processes equals that of one on the whole batch, for all objectives and backends."""

import itertools

import pytest
import torch
import torch.distributed as dist
from tests.objectives.comparing import OF_COORDINATES
from tests.processes import run_in_processes

import contraport
from contraport.catalog import OBJECTIVES
from contraport.distributed import current_processes

SIZES = {2: (5, 3), 3: (4, 1, 3)}  # items per process: uneven, as in last batches
SETTINGS = {"direct-clr": {"dimensions": 3}}
ATTRIBUTES = {
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


def attributes_of(name, rows):
    """Return the attributes of some items that an objective reads."""
    unread = contraport.objective(name, **SETTINGS.get(name, {})).unread_item_options()
    read = {key: values[rows] for key, values in ATTRIBUTES.items() if key not in unread}
    return {} if name in OF_COORDINATES else read


def by_objective(name, rows, bank=None):
    """Return the loss of some items, and the tensors that have a gradient from it."""
    x0, x1, encoder = batch()
    encoder.requires_grad_()
    loss = contraport.objective(name, **SETTINGS.get(name, {})).double()
    attributes = attributes_of(name, rows)
    if bank is not None:
        attributes |= {"negatives": bank, "negative_ids": torch.arange(5), "shared_negatives": True}
    value = loss(x0[rows] @ encoder, x1[rows] @ encoder, **attributes)
    return value, [encoder, *loss.parameters(), *([] if bank is None else [bank])]


def with_bank(name, rows):
    """Negatives that are the same in every process."""
    return by_objective(name, rows, numbers(5, 4, seed=1).requires_grad_())


def with_prototypes(name, rows):
    """Swapped prediction of assignments to prototypes that are the same in every process."""
    x0, x1, encoder = batch()
    prototypes = numbers(3, 4, seed=2).requires_grad_()
    target = contraport.soft_assignments(x1[rows] @ encoder, prototypes)
    loss = contraport.objective(name, symmetric=False, shared_columns=True)
    encoder.requires_grad_()
    return loss(x0[rows] @ encoder, prototypes, target=target), [encoder, prototypes]


def with_own_negatives(name, rows):
    """Hard negatives of each process, some of them with the id of an item."""
    x0, x1, encoder = batch()
    encoder.requires_grad_()
    hard = numbers(8, 6, seed=3)
    loss = contraport.objective(name, **SETTINGS.get(name, {})).double()
    attributes = {
        "ids": ATTRIBUTES["ids"][rows],
        "negatives": hard[rows] @ encoder,
        "negative_ids": ATTRIBUTES["ids"][rows],
    }
    return loss(x0[rows] @ encoder, x1[rows] @ encoder, **attributes), [encoder, *loss.parameters()]


def with_a_second_derivative(name, rows):
    """Gradient penalty, scaled so that the mean over processes is the value of one process."""
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
    """Items that lack a view, some of them in each process."""
    x0, x1, encoder = batch()
    encoder.requires_grad_()
    loss = contraport.objective(name, **SETTINGS.get(name, {})).double()
    attributes = attributes_of(name, rows) | {"present": PRESENT[rows]}
    return loss(x0[rows] @ encoder, x1[rows] @ encoder, **attributes), [encoder, *loss.parameters()]


def with_a_learned_temperature(name, rows):
    """Learned temperatures: two of the caller, with equal values in all processes, and one of the objective."""
    x0, x1, encoder = batch()
    scale, external = (torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in (3.0, 0.4))
    encoder.requires_grad_()
    z = x0[rows] @ encoder, x1[rows] @ encoder
    learned = contraport.objective(name, temperature="learn").double()
    attributes = learned.without_unread_labels({"labels": ATTRIBUTES["labels"][rows]})
    value = learned(*z, **attributes) + contraport.objective(name, temperature=external)(*z, **attributes)
    value = value + contraport.objective(name)(*z, **attributes, temperature=1 / scale)
    return value, [encoder, scale, external, *learned.parameters()]


def with_negatives_of_each_item(name, rows):
    """Hard negatives that are compared with their own item only."""
    x0, x1, encoder = batch()
    encoder.requires_grad_()
    loss = contraport.objective(name).double()
    attributes = {"negatives": numbers(8, 2, 6, seed=3)[rows] @ encoder, "weights": ATTRIBUTES["weights"][rows]}
    return loss(x0[rows] @ encoder, x1[rows] @ encoder, **attributes), [encoder, *loss.parameters()]


def with_column_weights(name, rows):
    """Column weights."""
    x0, x1, encoder = batch()
    encoder.requires_grad_()
    attributes = {"column_weights": ATTRIBUTES["weights"][rows] + 0.5, "ids": ATTRIBUTES["ids"][rows]}
    return contraport.objective(name)(x0[rows] @ encoder, x1[rows] @ encoder, **attributes), [encoder]


def with_weights_by_the_plan(name, rows):
    """Item weights from the plan of the whole batch."""
    x0, x1, encoder = batch()
    encoder.requires_grad_()
    weights = contraport.WeightsFromPlan(0.7, batch_item_weights=ATTRIBUTES["weights"][rows])
    return contraport.objective(name)(x0[rows] @ encoder, x1[rows] @ encoder, weights=weights), [encoder]


def with_a_reference_set(name, rows):
    """Two views of different items, one fewer in the second, by their labels."""
    x0, x1, encoder = batch()
    encoder.requires_grad_()
    remaining = torch.arange(8)[rows]
    remaining = remaining[remaining != 5]
    attributes = {key: (ATTRIBUTES[key][rows], ATTRIBUTES[key][remaining]) for key in ("labels", "ids")}
    loss = contraport.objective(name, layout="cross")
    return loss(x0[rows] @ encoder, x1[remaining] @ encoder, **attributes), [encoder]


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
    """Target matrix between all items; each process has the rows and columns of its own."""
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


def flatten(gradients):
    return torch.cat([gradient.flatten() for gradient in gradients])


def report_differences(rank, report, sizes):
    contraport.engine.backends.tiled.TILE_SHAPE = 4, 8
    own = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
    for case, backend in itertools.product(CASES, ["dense", "stored", "streamed"]):
        # The gradient is computed outside of the block of the loss, with the settings of that block.
        compute, name = case
        with contraport.engine.backend(backend), contraport.distributed.use_local_batch():
            value, sources = compute(name, slice(None))
        value, gradient = value.detach(), flatten(torch.autograd.grad(value, sources))
        with contraport.engine.backend(backend):
            own_value, sources = compute(name, own)
        gradients = torch.autograd.grad(own_value, sources)
        own_value, average = own_value.detach(), flatten(gradients)
        dist.all_reduce(average)
        # Shared tensors (temperature, bank, prototypes) have the same gradient in all processes without averaging.
        if len(gradients) > 1:
            shared = flatten(gradients[1:])
            mean = average[-len(shared) :] / len(sizes)
            if not torch.allclose(shared, mean, rtol=1e-7, atol=1e-9):
                report((rank, compute.__name__, name, backend, "gradients differ"))
        average /= len(sizes)
        if not torch.allclose(own_value, value, rtol=1e-9) or not torch.allclose(
            average, gradient, rtol=1e-7, atol=1e-9
        ):
            report((rank, case[0].__name__, case[1], backend, float((average - gradient).norm() / gradient.norm())))


@pytest.mark.parametrize("processes", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_mean_gradient_is_that_of_one_process(processes):
    assert not run_in_processes(report_differences, processes, SIZES[processes])
