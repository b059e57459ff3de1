"""The ring exchange: values and gradients equal those of one process on the whole batch."""

from collections import Counter

import pytest
import torch
import torch.distributed as dist
from tests.engine.test_distributed import ATTRIBUTES, CASES, batch, by_objective, flatten, numbers
from tests.errors import raises_usage_error
from tests.processes import run_in_processes
from torch.profiler import ProfilerActivity, profile

import contraport
from contraport.distributed import use_local_batch
from contraport.engine import Gibbs, exchange, explain_backend
from contraport.errors import UsageError

SIZES = {2: (5, 3), 3: (4, 1, 3), 4: (2, 2, 3, 1)}
UNSUPPORTED_CASES = {
    "with_bank", "with_prototypes", "with_own_negatives", "with_negatives_of_each_item", "with_weights_by_the_plan",
    "with_a_second_derivative",
}  # fmt: skip
UNSUPPORTED_OBJECTIVES = {"barlow-twins", "vic-reg"}


class LearnedCost(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(numbers(4, seed=7))

    def forward(self, x, y):
        return torch.cdist(x * self.weight, y * self.weight).square()


PLANS = {
    "converged": contraport.Balanced(200, tolerance=1e-12),
    "by weights": contraport.Balanced(4, marginals="weights"),
    "total variation": contraport.Unbalanced(0.3, 4, marginal_divergence="total-variation"),
    "counting": contraport.Unbalanced((0.3, 0.5), 4, reference="counting"),
    "columns": contraport.Columns(),
    "simplex": contraport.Simplex(),
}
LAYOUTS = {"joint": contraport.Joint(), "cross": contraport.Cross(), "pairs of views": contraport.AllViewPairs()}


def loss_of_plan(name, rows):
    """Loss of a plan in a layout, with a penalty on its marginals and the cost of its pairs."""
    layout, plan = name
    x0, x1, encoder = batch()
    encoder.requires_grad_()
    penalties = {contraport.MarginalPenalty(): 0.3, contraport.ContrastiveEnergy(detach_plan=False): 0.2}
    parts = LAYOUTS[layout], Gibbs("cosine", 1.0), PLANS[plan], contraport.Pairs(), contraport.KL()
    attributes = {"weights": ATTRIBUTES["weights"][rows] + 0.5}
    return contraport.Objective(*parts, penalties)(x0[rows] @ encoder, x1[rows] @ encoder, **attributes), [encoder]


def with_a_learned_cost(name, rows):
    x0, x1, encoder = batch()
    encoder.requires_grad_()
    cost = LearnedCost()
    kernel = Gibbs(cost, 1.0)
    parts = LAYOUTS[name], kernel, contraport.Balanced(3), contraport.Labels(), contraport.KL()
    loss = contraport.Objective(*parts).double()
    return loss(x0[rows] @ encoder, x1[rows] @ encoder, labels=ATTRIBUTES["labels"][rows]), [encoder, cost.weight]


OWN_CASES = [
    *[(loss_of_plan, (layout, plan)) for layout in LAYOUTS for plan in PLANS],
    *[(with_a_learned_cost, layout) for layout in LAYOUTS],
]


def report_differences(rank, report, sizes, cases):
    contraport.engine.backends.tiled.TILE_SHAPE = 4, 8
    own = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
    for compute, name in cases:
        case = compute.__name__, name
        try:
            with exchange("ring"):
                own_value, sources = compute(name, own)
            average = flatten(torch.autograd.grad(own_value, sources))
        except UsageError as error:
            report((rank, "rejected", case, error.code))
            continue
        with use_local_batch():
            value, sources = compute(name, slice(None))
        gradient = flatten(torch.autograd.grad(value, sources))
        dist.all_reduce(average)
        error_norm = float((average / len(sizes) - gradient).norm() / gradient.norm().clamp_min(1e-12))
        if not torch.allclose(own_value, value, rtol=1e-12, atol=1e-12) or not error_norm <= 1e-12:
            report((rank, "wrong", case, error_norm))


@pytest.mark.parametrize("processes", [2, 3, 4])
def test_ring_is_exact(processes):
    cases = [*CASES, *OWN_CASES]
    if processes > 2:  # plans suffice to find a wrong order of blocks in a longer ring
        cases = [case for case in cases if case[0] is loss_of_plan or (case[0] is by_objective and processes == 3)]
    result = run_in_processes(report_differences, processes, SIZES[processes], cases)
    assert not [report for report in result if report[1] == "wrong"]
    expected = {
        (compute.__name__, name)
        for compute, name in cases
        if compute.__name__ in UNSUPPORTED_CASES or name in UNSUPPORTED_OBJECTIVES
    }
    for rank in range(processes):
        assert {case for reporting_rank, _, case, _ in result if reporting_rank == rank} == expected
    assert {code.split(".")[-1] for *_, code in result} <= {"exchange"}


def report_unsupported_calls(rank, report):
    z0, z1 = torch.randn(2, 4, 3)
    for name, call in {
        "a plan as a matrix": lambda: contraport.nt_xent().plan(z0, z1),
        "whole rows": lambda: contraport.Objective(
            contraport.Joint(), Gibbs(), contraport.Rows(), contraport.Pairs(), contraport.PlanEntropy()
        )(z0, z1),
        "a backend that stores": lambda: contraport.gca_ince()(z0, z1),
    }.items():
        with exchange("ring"), contraport.engine.backend("stored" if "stores" in name else "streamed"):
            try:
                call()
            except UsageError as error:
                report((name, error.code.split(".")[-1]))
    with exchange("ring" if rank else "gather"):
        try:
            contraport.nt_xent()(z0, z1)
        except UsageError as error:
            report(("another exchange", error.code.split(".")[-1]))


def test_ring_rejects_unsupported_calls():
    result = Counter(run_in_processes(report_unsupported_calls, 2))
    unsupported = ("a plan as a matrix", "whole rows", "a backend that stores")
    assert result == {**{(name, "exchange"): 2 for name in unsupported}, ("another exchange", "processes_differ"): 2}


def test_rejects_an_unknown_exchange():
    with raises_usage_error("exchange.unknown", "'star'"), exchange("star"):
        pass


def report_explanation(rank, report):
    z = torch.randn(6, 3)
    with exchange("ring"):
        (result, *_) = contraport.nt_xent().iterate_plans_with_targets(z, z + 1)
    report(explain_backend(result.plan.geometry))


def test_explains_the_ring():
    assert all("24 x 24 pairs" in text and "around a ring" in text for text in run_in_processes(report_explanation, 2))


ITEMS, DIMENSIONS, NUMBER = 192, 512, 4


def report_bytes_and_memory(rank, report, size):
    contraport.engine.backends.tiled.TILE_SHAPE = 16, 16
    share = ITEMS // size
    generator = torch.Generator().manual_seed(rank)
    for name, settings in [("info-nce", {}), ("nt-xent", {}), ("gca-ince", {"iterations": 3})]:
        loss = contraport.objective(name, **settings)
        for exchange_name in ("gather", "ring"):
            z0, z1 = torch.randn(2, share, DIMENSIONS, generator=generator).unbind()
            z0.requires_grad_()
            z1.requires_grad_()
            moved, start = Counter(), dist.batch_isend_irecv

            def counted(operations, moved=moved, start=start):
                moved["bytes"] += sum(o.tensor.numel() * NUMBER for o in operations if o.op is dist.isend)
                return start(operations)

            dist.batch_isend_irecv = counted
            with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
                with exchange(exchange_name), contraport.engine.backend("streamed"):
                    value = loss(z0, z1)
                forward = moved["bytes"]
                value.backward()
            dist.batch_isend_irecv = start
            report((rank, name, exchange_name, forward, moved["bytes"] - forward, peak(profiled)))


def peak(profiled):
    """Return the peak of the bytes of tensors, beyond those at the start."""
    allocated = most = 0
    for event in profiled.profiler.kineto_results.events():
        if event.name() == "[memory]":
            allocated += event.nbytes()
            most = max(most, allocated)
    return most


@pytest.mark.parametrize("size", [2, 3, 4])
def test_bytes_and_memory_of_a_process(size):
    reports = run_in_processes(report_bytes_and_memory, size, size)
    result = {
        (name, exchange_name): (forward, backward)
        for rank, name, exchange_name, forward, backward, _ in reports
        if rank == 0
    }
    most = {(name, exchange_name): peak for rank, name, exchange_name, *_, peak in reports if rank == 0}
    share = ITEMS // size
    cross, joint = (rows * (DIMENSIONS + 1) * NUMBER for rows in (share, 2 * share))  # embeddings and their biases
    hops = size // 2  # in a symmetric problem
    # Each pass over the pairs sends each block around the ring; its gradient of the same size is sent with it and back.
    assert result["info-nce", "ring"] == (cross * (size - 1), cross * 2 * (size - 1))
    assert result["nt-xent", "ring"] == (joint * hops, joint * 2 * hops)
    # Three iterations: six half-steps forward; five sums and the gradient backward.
    assert result["gca-ince", "ring"] == (6 * joint * hops, 5 * joint * hops + joint * 2 * hops)
    for name in ("info-nce", "nt-xent", "gca-ince"):
        assert result[name, "gather"] == (0, 0)
        all_embeddings = 2 * ITEMS * DIMENSIONS * NUMBER
        # Twelve times the own embeddings: views, normalized views, gradients, and blocks in transit.
        assert most[name, "ring"] <= 12 * all_embeddings / size
        assert most[name, "gather"] >= 4 * all_embeddings
