"""`DataBalanced`: the balanced plan of a whole data set, estimated from batches, against dense plans."""

import math

import pytest
import torch
from tests.errors import raises_usage_error

import contraport
from contraport import Cross, DataBalanced, Gibbs, Joint, Objective, Pairs
from contraport.objectives.loss_schedules import parse_constraint_schedule

N, TEMPERATURE = 120, 0.25


def data(n=N):
    """Return two views of n items with hubs: some columns are close to many rows."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(n, 6, dtype=torch.float64, generator=generator) + 0.5
    y = x + 0.6 * torch.randn(n, 6, dtype=torch.float64, generator=generator)
    return x, y


def log_kernel(layout, x, y):
    if isinstance(layout, Joint):
        x = y = torch.cat([x, y])
    unit = torch.nn.functional.normalize
    s = (unit(x) @ unit(y).T - 1) / TEMPERATURE
    return s.masked_fill(torch.eye(len(s)).bool(), -torch.inf) if isinstance(layout, Joint) else s


def dense_plan(layout, x, y):
    """Return the balanced plan of all items, by many iterations."""
    s = log_kernel(layout, x, y)
    g = s.new_zeros(len(s))
    for _ in range(200):
        f = -math.log(len(s)) - (s + g).logsumexp(1)
        g = -math.log(len(s)) - (s + f[:, None]).logsumexp(0)
    return (s + f[:, None] + g).exp()


def dense_loss(layout, x, y):
    plan = dense_plan(layout, x, y)
    rows = torch.arange(len(plan))
    partners = rows.roll(len(plan) // 2) if isinstance(layout, Joint) else rows
    return -(len(plan) * plan[rows, partners]).log().mean()


def objective(constraint, layout=None):
    return Objective(layout or Cross(), Gibbs("cosine", TEMPERATURE), constraint, Pairs(), contraport.KL()).double()


def train_on(loss, x, y, size, epochs, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for ids in torch.randperm(len(x), generator=generator).split(size):
            loss(x[ids], y[ids], ids=ids)


@pytest.mark.parametrize(
    "layout", [Cross(), Joint(), pytest.param(Cross(symmetric=False), marks=pytest.mark.slow)], ids=str
)
def test_a_batch_of_all_items_matches_the_dense_plan(layout):
    x, y = (z.requires_grad_() for z in data())
    loss = objective(DataBalanced(N, 0.0), layout)
    for _ in range(200):
        value = loss(x, y, ids=torch.arange(N))
    expected = dense_loss(layout, x, y)
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=0)
    gradients, expected_gradients = (torch.autograd.grad(one, (x, y)) for one in (value, expected))
    torch.testing.assert_close(gradients, expected_gradients, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("layout", [Cross(), pytest.param(Joint(), marks=pytest.mark.slow)], ids=str)
def test_small_batches_converge_to_the_plan_of_all_items(layout):
    (x, y), size = data(), 40
    loss = objective(DataBalanced(N, 0.5), layout)
    for momentum, epochs in ((0.5, 10), (0.9, 30), (0.97, 60)):  # a falling step size, as estimates have variance
        loss.constraint.momentum = momentum
        train_on(loss, x, y, size, epochs)
    with torch.no_grad():
        plan = next(loss.eval().iterate_plans_with_targets(x, y, ids=torch.arange(N))).plan.dense()
    expected = dense_plan(layout, x, y)
    assert (plan - expected).abs().sum() < 0.06
    assert (len(plan) * plan.sum(0) - 1).abs().max() < 0.3
    one_batch = next(
        objective(contraport.Balanced(50), layout).iterate_plans_with_targets(x[:size], y[:size])
    ).plan.dense()
    shares = [
        matrix.diagonal(len(matrix) // 2 if isinstance(layout, Joint) else 0)[:size] for matrix in (one_batch, plan)
    ]
    assert (len(one_batch) * shares[0]).mean() > 2 * (
        len(plan) * shares[1]
    ).mean()  # the plan of a batch alone overestimates


def reference_loss(x, y, ids, memory, momentum):
    """Return the loss of a batch in the cross layout, and update the averages of rows and columns by id."""
    s, b = log_kernel(Cross(), x, y), len(ids)

    def past_averages(side):
        mean = sum(memory[side].values()) / len(memory[side]) if memory[side] else 0.0
        return torch.stack([torch.as_tensor(memory[side].get(i, mean), dtype=s.dtype) for i in ids.tolist()])

    def update(side, kernel, other, total):
        entries = (kernel - other).exp()
        own = entries.diagonal()
        estimate = (own + (total - 1) / (b - 1) * (entries.sum(1) - own)) / total
        mixed = []
        for i, value in zip(ids.tolist(), estimate, strict=True):
            new = value if i not in memory[side] else momentum * math.exp(memory[side][i]) + (1 - momentum) * value
            memory[side][i] = new.log().item()
            mixed.append(new.detach())
        return estimate, torch.stack(mixed)

    total = len(memory["rows"].keys() | set(ids.tolist()))
    _, columns = update("columns", s.T, past_averages("rows"), total)
    estimate, rows = update("rows", s, columns.log().detach(), total)
    f = -(rows.log() + estimate / rows - (estimate / rows).detach())
    return -(s.diagonal() + f - columns.log() - math.log(total)).mean()


@pytest.mark.parametrize("momentum", [0.0, 0.3])
def test_averages_over_batches_follow_the_formula(momentum):
    x, y = data(10)
    loss, memory = objective(DataBalanced(10, momentum)), {"rows": {}, "columns": {}}
    for ids in torch.tensor([[0, 1, 2, 3], [7, 2, 9, 0], [9, 1, 0, 4]]):
        z = [view[ids].requires_grad_() for view in (x, y)]
        value, expected = loss(*z, ids=ids), reference_loss(*z, ids, memory, momentum)
        torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(
            torch.autograd.grad(value, z), torch.autograd.grad(expected, z), rtol=1e-9, atol=1e-12
        )
    before = loss.constraint.log_average.clone()
    loss.eval()(*z, ids=ids)
    with torch.no_grad():
        loss.train()(*z, ids=ids)
    torch.testing.assert_close(loss.constraint.log_average, before, equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("backend", ["dense", "stored", "streamed"])
def test_backends_agree(backend):
    x, y = data(40)
    values = []
    for name in ("dense", backend):
        loss = objective(DataBalanced(40), Joint())
        with contraport.engine.backend(name):
            train_on(loss, x, y, 10, 2)
        values.append(loss.constraint.log_average)
    torch.testing.assert_close(*values, equal_nan=True, rtol=1e-10, atol=1e-12)


def test_items_that_lack_a_view():
    x, y = data(20)
    loss, present = objective(DataBalanced(20), Joint()), torch.ones(20, 2).bool()
    present[3, 1] = present[7, 0] = False
    z = [view.requires_grad_() for view in (x, y)]
    value = loss(*z, ids=torch.arange(20), present=present)
    assert all(slope.isfinite().all() for slope in torch.autograd.grad(value, z))
    assert loss.constraint.log_average.isnan().sum() == 4  # a row and a column of each absent view


def test_large_exponents_stay_finite():
    x, y = (z.float() for z in data(30))
    loss = Objective(Joint(), Gibbs("cosine", 1e-3), DataBalanced(30), Pairs(), contraport.KL())
    for _ in range(3):
        value = loss(x.requires_grad_(), y, ids=torch.arange(30))
    assert value.isfinite()
    assert torch.autograd.grad(value, x)[0].isfinite().all()


def test_a_constraint_with_a_state_is_saved_and_replaced():
    loss = objective(contraport.Rows())
    assert not loss.requires_ids
    parse_constraint_schedule("data-balanced:items=50,momentum=0.2", 1).apply(loss, 0)
    assert loss.requires_ids
    assert list(loss.state_dict()) == ["constraint.log_average"]
    assert repr(loss.constraint) == "DataBalanced(50, 0.2)"
    loss.set_constraint(contraport.Rows())
    assert not loss.state_dict()
    assert loss.constraint == contraport.Rows()


IDS = torch.arange(6)


@pytest.mark.parametrize(
    ("call", "code", "value"),
    [
        (lambda z: objective(DataBalanced())(*z), "ids.missing", ""),
        (lambda z: objective(DataBalanced(5))(*z, ids=IDS), "ids.invalid", "4"),
        (lambda z: objective(DataBalanced())(*z, ids=IDS, negatives=z[0]), "constraint.conflict", "negatives"),
        (lambda z: objective(DataBalanced())(*z, ids=IDS, column_weights=z[0][:, 0].abs()), "constraint.conflict", ""),
        (
            lambda z: objective(DataBalanced(), Joint(compares_all_views_at_once=True))(*z, z[0], ids=IDS),
            "views.too_many",
            "3",
        ),
        (lambda z: DataBalanced(0), "items.invalid", "0"),
        (lambda z: DataBalanced(momentum=1.0), "momentum.invalid", "1.0"),
        (lambda z: contraport.gca_rince().set_constraint(DataBalanced()), "divergence.constraint", "KL"),
        (lambda z: contraport.iot(uniformity=1.0).set_constraint(DataBalanced()), "divergence.constraint", "Plan"),
        (lambda z: contraport.cmc().set_constraint(DataBalanced()), "layout.constraint", "AllViewPairs"),
    ],
)
def test_rejects_invalid_arguments(call, code, value):
    with raises_usage_error(code, value):
        call(data(6))


def test_items_without_kernel_mass_keep_their_averages():
    averages = contraport.objectives.log_moving_averages.ItemLogAverages(2, 0.5)
    averages.update_log_averages_if_training(torch.tensor([0, 1]), torch.tensor([1.0, 2.0]))
    averages.update_log_averages_if_training(torch.tensor([0, 1]), torch.tensor([-torch.inf, 2.0]))
    torch.testing.assert_close(averages.log_average, torch.tensor([1.0, 2.0]))
