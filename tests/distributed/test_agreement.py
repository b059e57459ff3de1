"""Processes that call an objective in different ways: all raise, in one line, and none waits for what is never sent."""

import pytest
import torch

import contraport
from tests.processes import reports_of

ITEMS = 4
SHARES = {"weights": torch.ones(ITEMS)}
MARKS = {"present": torch.ones(ITEMS, 2, dtype=torch.bool)}


def views(rank, dtype=torch.float32):
    return torch.randn(2, ITEMS, 3, generator=torch.Generator().manual_seed(rank)).to(dtype).unbind()


def call(name="nt-xent", here=None, **attributes):
    """Return a call of one process: of an objective, on other views where they are given."""
    return lambda rank: contraport.objective(name)(*(views(rank) if here is None else here), **attributes)


def call_in_bfloat16(rank):
    contraport.engine.backends.tiled.has_fast_cpu_bfloat16 = lambda device: True
    with contraport.engine.precision("bfloat16"):
        return contraport.nt_xent()(*views(rank))


# The calls of both processes, the option that differs, and values in the error, which is the same on both.
DIFFERENT = {
    "weights": (call(), call(**SHARES), "weights", "none on process 0", "torch.float32 (n) on process 1"),
    "marks": (call(**MARKS), call(), "present", "torch.bool (n, 2) on process 0", "none on process 1"),
    "a plan's weights": (call(), call(weights="plan"), "weights", "none on process 0", "strength 0.9", "20 iterations"),
    "precision": (call(), call(here=views(1, torch.float64)), "views", "float32 (n, 3)", "2 views torch.float64"),
    "precision of the exchange": (
        call(),
        call_in_bfloat16,
        "views",
        "(n, 3) on",
        "sent in torch.bfloat16 on process 1",
    ),
    "dimensions": (call(), call(here=torch.randn(2, 4, 5).unbind()), "views", "(n, 3) on", "(n, 5) on process 1"),
    "views": (call("cmc"), call("cmc", torch.randn(3, 4, 3).unbind()), "views", "2 views", "3 views"),
    "classes": (
        call("sup-con", labels=torch.arange(4)),
        call("sup-con", labels=torch.eye(4, dtype=torch.long)),
        "labels",
        "int64 (n) on process 0",
        "torch.int64 (n, 4) on process 1",
    ),
    "negatives": (call("info-nce"), call("info-nce", negatives=torch.randn(2, 3)), "negatives", "none on process 0"),
    "negatives of each item": (
        call("info-nce", negatives=torch.randn(4, 2, 3)),
        call("info-nce", negatives=torch.randn(4, 1, 3)),
        "negatives",
        "(n, 2, 3) on process 0",
        "torch.float32 (n, 1, 3) on process 1",
    ),
    "target": (call(target=[(0, 1)]), call(), "target", "PairList on process 0", "Pairs on process 1"),
    "temperature": (call(), call(temperature=0.5), "temperature", "none on process 0", "float on process 1"),
}
# The call of the second process, which alone is wrong, and the option that its error names.
REFUSED = {
    "no rows": (call(here=torch.randn(2, 0, 3).unbind()), "z0"),
    "a value": (call(weights=-torch.ones(4)), "weights"),
    "no repulsion": (call("byol", negatives=torch.randn(2, 3)), "negatives"),
    "a pair": (call(target=[(0, 9)]), "target"),
    "no temperature": (call("vic-reg", temperature=0.5), "temperature"),
    "reduction": (call(reduction="median"), "reduction"),
    "a sum": (call("vic-reg", **SHARES), "weights"),
    "a crash": (call(here=(None, None)), "z0"),
}
VALID = {
    "a value": call(**SHARES), "no repulsion": call("byol"), "a pair": call(target=[(0, 1)]),
    "no temperature": call("vic-reg"), "a sum": call("vic-reg"),
}  # fmt: skip


def report_errors(rank, report):
    pairs = {name: calls[:2] for name, calls in DIFFERENT.items()}
    pairs |= {name: (VALID.get(name, call()), wrong) for name, (wrong, _) in REFUSED.items()}
    for name, calls in pairs.items():
        try:
            calls[rank](rank)
            report((name, rank, None))
        except contraport.UsageError as error:
            report((name, rank, (error.code, str(error))))
    value = contraport.nt_xent()(*views(rank))  # a refused call leaves no message in flight
    report(("after", rank, value.item()))


@pytest.fixture(scope="module")
def reported():
    return {(name, rank): result for name, rank, result in reports_of(report_errors, 2)}


@pytest.mark.parametrize("name", DIFFERENT)
def test_all_processes_refuse_a_call_in_which_they_differ(reported, name):
    _, _, option, *values = DIFFERENT[name]
    assert reported[name, 0] == reported[name, 1]
    code, text = reported[name, 0]
    assert code == f"{option}.processes_differ"
    assert "\n" not in text
    for value in values:
        assert value in text


@pytest.mark.parametrize("name", REFUSED)
def test_all_processes_refuse_a_call_that_one_refuses(reported, name):
    (here_code, here), (there_code, there) = (reported[name, rank] for rank in (0, 1))
    assert here_code == "call.refused"
    assert there_code.split(".")[0] == REFUSED[name][1]
    assert there in here
    assert "\n" not in here


def test_a_call_after_refused_calls_is_correct(reported):
    z = [torch.cat(parts) for parts in zip(views(0), views(1), strict=True)]
    expected = contraport.nt_xent()(*z).item()
    assert reported["after", 0] == reported["after", 1] == pytest.approx(expected, abs=1e-6)


def in_another_order(rank, report):
    attributes = {
        "labels": torch.tensor([0, 1, 0, 1]),
        "ids": torch.arange(4) + 4 * rank,
        "weights": torch.rand(4) + rank,
    }
    torch.manual_seed(0)
    names = list(attributes) if rank == 0 else list(attributes)[::-1]
    loss = contraport.sup_con()
    z = views(rank)
    result = loss.terms(*z, **{name: attributes[name] for name in names})
    report((rank, result, {name: value.tolist() for name, value in attributes.items()}))


def test_the_order_of_keywords_does_not_matter():
    (_, here, facts), (_, there, others) = sorted(reports_of(in_another_order, 2))
    z = [torch.cat(parts) for parts in zip(views(0), views(1), strict=True)]
    attributes = {name: torch.tensor(facts[name] + others[name]) for name in facts}
    expected = contraport.sup_con().terms(*z, **attributes)
    assert here == pytest.approx(expected, rel=1e-5)
    assert there == pytest.approx(expected, rel=1e-5)
