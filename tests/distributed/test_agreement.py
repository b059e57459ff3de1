"""Processes with different calls of an objective: all raise a one-line error, and none waits forever."""

import pytest
import torch

import contraport
from tests.processes import run_in_processes

ITEMS = 4
WEIGHTS = {"weights": torch.ones(ITEMS)}
MASKS = {"present": torch.ones(ITEMS, 2, dtype=torch.bool)}


def views(rank, dtype=torch.float32):
    return torch.randn(2, ITEMS, 3, generator=torch.Generator().manual_seed(rank)).to(dtype).unbind()


def call(name="nt-xent", own_views=None, **attributes):
    """Return the call of an objective in one process, on random views or on other ones."""
    return lambda rank: contraport.objective(name)(*(views(rank) if own_views is None else own_views), **attributes)


def call_in_bfloat16(rank):
    contraport.engine.backends.tiled.has_fast_cpu_bfloat16 = lambda device: True
    with contraport.engine.precision("bfloat16"):
        return contraport.nt_xent()(*views(rank))


# The calls of both processes, the option that differs, and values in the error of both.
DIFFERENT = {
    "weights": (call(), call(**WEIGHTS), "weights", "none on process 0", "torch.float32 (n) on process 1"),
    "marks": (call(**MASKS), call(), "present", "torch.bool (n, 2) on process 0", "none on process 1"),
    "a plan's weights": (call(), call(weights="plan"), "weights", "none on process 0", "strength 0.9", "20 iterations"),
    "precision": (call(), call(own_views=views(1, torch.float64)), "views", "float32 (n, 3)", "2 views torch.float64"),
    "precision of the exchange": (
        call(),
        call_in_bfloat16,
        "views",
        "(n, 3) on",
        "sent in torch.bfloat16 on process 1",
    ),
    "dimensions": (call(), call(own_views=torch.randn(2, 4, 5).unbind()), "views", "(n, 3) on", "(n, 5) on process 1"),
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
# The invalid call of the second process, and the option that its error names.
INVALID = {
    "no rows": (call(own_views=torch.randn(2, 0, 3).unbind()), "z0"),
    "a value": (call(weights=-torch.ones(4)), "weights"),
    "no repulsion": (call("byol", negatives=torch.randn(2, 3)), "negatives"),
    "a pair": (call(target=[(0, 9)]), "target"),
    "no temperature": (call("vic-reg", temperature=0.5), "temperature"),
    "reduction": (call(reduction="median"), "reduction"),
    "a sum": (call("vic-reg", **WEIGHTS), "weights"),
    "a crash": (call(own_views=(None, None)), "z0"),
}
VALID = {
    "a value": call(**WEIGHTS), "no repulsion": call("byol"), "a pair": call(target=[(0, 1)]),
    "no temperature": call("vic-reg"), "a sum": call("vic-reg"),
}  # fmt: skip


def report_errors(rank, report):
    pairs = {name: calls[:2] for name, calls in DIFFERENT.items()}
    pairs |= {name: (VALID.get(name, call()), wrong) for name, (wrong, _) in INVALID.items()}
    for name, calls in pairs.items():
        try:
            calls[rank](rank)
            report((name, rank, None))
        except contraport.UsageError as error:
            report((name, rank, (error.code, str(error))))
    value = contraport.nt_xent()(*views(rank))  # a rejected call leaves no pending messages
    report(("after", rank, value.item()))


@pytest.fixture(scope="module")
def results():
    return {(name, rank): result for name, rank, result in run_in_processes(report_errors, 2)}


@pytest.mark.parametrize("name", DIFFERENT)
def test_all_processes_reject_different_calls(results, name):
    _, _, option, *values = DIFFERENT[name]
    assert results[name, 0] == results[name, 1]
    code, text = results[name, 0]
    assert code == f"{option}.processes_differ"
    assert "\n" not in text
    for value in values:
        assert value in text


@pytest.mark.parametrize("name", INVALID)
def test_all_processes_reject_a_call_that_is_invalid_in_one(results, name):
    (first_code, first), (second_code, second) = (results[name, rank] for rank in (0, 1))
    assert first_code == "call.refused"
    assert second_code.split(".")[0] == INVALID[name][1]
    assert second in first
    assert "\n" not in first


def test_a_call_after_rejected_calls_is_correct(results):
    z = [torch.cat(parts) for parts in zip(views(0), views(1), strict=True)]
    expected = contraport.nt_xent()(*z).item()
    assert results["after", 0] == results["after", 1] == pytest.approx(expected, abs=1e-6)


def report_terms_with_ordered_keywords(rank, report):
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
    (_, first, first_attributes), (_, second, second_attributes) = sorted(
        run_in_processes(report_terms_with_ordered_keywords, 2)
    )
    z = [torch.cat(parts) for parts in zip(views(0), views(1), strict=True)]
    attributes = {name: torch.tensor(first_attributes[name] + second_attributes[name]) for name in first_attributes}
    expected = contraport.sup_con().terms(*z, **attributes)
    assert first == pytest.approx(expected, rel=1e-5)
    assert second == pytest.approx(expected, rel=1e-5)
