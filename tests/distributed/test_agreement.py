"""Processes that call an objective in different ways: all raise, in one line, and none waits for what is never sent."""

import re

import pytest
import torch

import contraport
from tests.processes import reports_of

ITEMS = 4
SHARES = {"weights": torch.ones(ITEMS)}
MARKS = {"present": torch.ones(ITEMS, 2, dtype=torch.bool)}


def views(rank, dtype=torch.float32):
    return torch.randn(2, ITEMS, 3, generator=torch.Generator().manual_seed(rank)).to(dtype).unbind()


def call(name="nt-xent", here=None, **known):
    """Return a call of one process: of an objective, on other views where they are given."""
    return lambda rank: contraport.objective(name)(*(views(rank) if here is None else here), **known)


# What the first process calls, what the second calls, and what both say.
CASES = {
    "weights": (call(), call(**SHARES), r"weights: .*got none on process 0 and torch.float32 \(n\) on process 1"),
    "marks": (call(**MARKS), call(), r"present: .*got torch.bool \(n, 2\) on process 0 and none on process 1"),
    "a plan's weights": (call(), call(weights="plan"), "weights: .*got none .* and plan of strength 0.9, 20 it"),
    "precision": (call(), call(here=views(1, torch.float64)), r"views: .*float32 \(n, 3\).* and 2 views torch.float64"),
    "dimensions": (call(), call(here=torch.randn(2, 4, 5).unbind()), r"views: .*\(n, 3\) on .*\(n, 5\) on process 1"),
    "views": (call("cmc"), call("cmc", torch.randn(3, 4, 3).unbind()), r"views: .*got 2 views .* and 3 views"),
    "classes": (
        call("sup-con", labels=torch.arange(4)),
        call("sup-con", labels=torch.eye(4, dtype=torch.long)),
        r"labels: .*int64 \(n\) on process 0 and torch.int64 \(n, 4\) on process 1",
    ),
    "no rows": (call(), call(here=torch.randn(2, 0, 3).unbind()), "by process 1: z0: expected at least one item"),
    "a value": (call(**SHARES), call(weights=-torch.ones(4)), "by process 1: weights: expected nonnegative"),
    "negatives": (call("info-nce"), call("info-nce", negatives=torch.randn(2, 3)), r"negatives: .*got none"),
    "no repulsion": (call("byol"), call("byol", negatives=torch.randn(2, 3)), "by process 1: .*pushes nothing"),
    "of each item": (
        call("info-nce", negatives=torch.randn(4, 2, 3)),
        call("info-nce", negatives=torch.randn(4, 1, 3)),
        r"negatives: .*\(n, 2, 3\) on process 0 and torch.float32 \(n, 1, 3\) on process 1",
    ),
    "target": (call(target=[(0, 1)]), call(), "target: .*got Listed on process 0 and Pairs on process 1"),
    "a pair": (call(target=[(0, 1)]), call(target=[(0, 9)]), "by process 1: target: expected rows of z1"),
    "temperature": (call(), call(temperature=0.5), "temperature: .*got none on process 0 and float on process 1"),
    "no temperature": (call("vic-reg"), call("vic-reg", temperature=0.5), "by process 1: temperature: expected none"),
    "reduction": (call(), call(reduction="median"), "by process 1: reduction: "),
    "a sum": (call("vic-reg"), call("vic-reg", **SHARES), "by process 1: weights: expected none"),
    "a crash": (call(), call(here=(None, None)), "by process 1: z0: expected a tensor, got NoneType"),
}  # fmt: skip


def differ(rank, report):
    for name, calls in CASES.items():
        try:
            calls[rank](rank)
            report((name, rank, "no error"))
        except contraport.UsageError as error:
            report((name, rank, str(error)))
    value = contraport.nt_xent()(*views(rank))  # nothing is left over of what was refused
    report(("after", rank, value.item()))


@pytest.fixture(scope="module")
def reported():
    return {(name, rank): said for name, rank, said in reports_of(differ, 2)}


@pytest.mark.parametrize("name", CASES)
def test_all_processes_refuse_a_call_in_which_they_differ(reported, name):
    here, there = (reported[name, rank] for rank in (0, 1))
    said = CASES[name][2]
    if "by process 1: " in said:  # the one that refuses says it itself
        said = said.split("process 1: ")[1]
    else:
        assert here == there
    for text in (here, there):
        assert re.search(said, text), text
        assert "\n" not in text


def test_what_was_refused_leaves_nothing_over(reported):
    z = [torch.cat(parts) for parts in zip(views(0), views(1), strict=True)]
    expected = contraport.nt_xent()(*z).item()
    assert reported["after", 0] == reported["after", 1] == pytest.approx(expected, abs=1e-6)


def in_another_order(rank, report):
    known = {"labels": torch.tensor([0, 1, 0, 1]), "ids": torch.arange(4) + 4 * rank, "weights": torch.rand(4) + rank}
    torch.manual_seed(0)
    names = list(known) if rank == 0 else list(known)[::-1]
    loss = contraport.sup_con()
    z = views(rank)
    found = loss.terms(*z, **{name: known[name] for name in names})
    report((rank, found, {name: value.tolist() for name, value in known.items()}))


def test_the_order_of_keywords_does_not_matter():
    (_, here, facts), (_, there, others) = sorted(reports_of(in_another_order, 2))
    z = [torch.cat(parts) for parts in zip(views(0), views(1), strict=True)]
    known = {name: torch.tensor(facts[name] + others[name]) for name in facts}
    expected = contraport.sup_con().terms(*z, **known)
    assert here == pytest.approx(expected, rel=1e-5)
    assert there == pytest.approx(expected, rel=1e-5)
