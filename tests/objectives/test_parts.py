"""Targets, divergences, plans and kernels against loops and dense matrices."""

import itertools
import math
import re
from dataclasses import replace

import pytest
import torch
from tests.errors import raises_usage_error
from tests.objectives import formulas
from tests.objectives.comparing import BACKENDS, DOMAINS, IDS, LABELS, assert_same, build, outcome, views
from torch import nn

import contraport
from contraport.engine import Gibbs, Kernel, RationalQuadratic, StudentT
from contraport.objectives import (
    KL,
    Balanced,
    Block,
    Columns,
    ContrastiveEnergy,
    Cross,
    Domains,
    Exact,
    FenchelYoung,
    Free,
    Hellinger,
    JensenShannon,
    Joint,
    Labels,
    MarginalPenalty,
    Matrix,
    Neighbors,
    Objective,
    Pairs,
    PlanEntropy,
    PlanUniformity,
    ReverseKL,
    Rince,
    Rows,
    SimilarityMatrix,
    Simplex,
    SoftNeighbors,
    SquaredL2,
    TotalVariation,
    Tsallis,
    Unbalanced,
)

pytestmark = pytest.mark.usefixtures("uneven_tiles")

LAYOUTS = {"joint": Joint(), "cross": Cross(symmetric=False)}


FEATURES = views(seed=3, d=4)


def build_pairing(layout, z, ids=None):
    return (formulas.joint if layout == "joint" else formulas.cross)(*z, ids)


# Targets, by loops over rows and columns


def target_entry(kind, row, column):
    """Return the entry of a target before normalization, for a row and a column, each a pair (view, item)."""
    (_, i), (_, j) = row, column
    if kind == "pairs":
        return float(i == j)
    if kind == "labels":
        return float(LABELS[i] == LABELS[j])
    if kind == "domains":
        return 1.0 if i == j else (0.2 if DOMAINS[i] == DOMAINS[j] else 0.1)
    raise KeyError(kind)


def target_by_loops(kind, layout, ids=None):
    first = [(0, i) for i in range(7)]
    second = [(1, i) for i in range(7)]
    rows, columns = (first + second, first + second) if layout == "joint" else (first, second)
    target = torch.zeros(len(rows), len(columns), dtype=torch.float64)
    for r, row in enumerate(rows):
        allowed = {}
        for c, column in enumerate(columns):
            duplicate = ids is not None and row[1] != column[1] and ids[row[1]] == ids[column[1]]
            if row != column and not duplicate:
                allowed[c] = (
                    target_entry(kind, row, column)
                    if kind in {"pairs", "labels", "domains"}
                    else kind(FEATURES[row[0]][row[1]], FEATURES[column[0]][column[1]]).item()
                )
        if not isinstance(kind, str) and kind.__name__ == "nearest":
            close = sorted(allowed, key=allowed.get)[:3]
            allowed = {c: float(c in close) for c in allowed}
        total = sum(allowed.values())
        for c, value in allowed.items():
            target[r, c] = value / total / len(rows) if total else 0.0
    return target


def nearest(x, y):
    return (x - y).square().sum()


def soft(x, y):
    return torch.exp((torch.cosine_similarity(x, y, dim=0) - 1) / 0.3)


def heavy(x, y):
    return (1 + (x - y).square().sum() / 2) ** -1.5


TARGETS = {
    "pairs": (Pairs(), "pairs"),
    "labels": (Labels(), "labels"),
    "domains": (Domains(0.2, 0.1), "domains"),
    "soft": (SoftNeighbors(FEATURES, Gibbs("cosine", 0.3)), soft),
    "soft by Student's t": (SoftNeighbors(FEATURES, StudentT(2.0)), heavy),
    "neighbors": (Neighbors(FEATURES, 3), nearest),
}
SINGLE = {"domains"}  # computed in single precision; see test_domains_keep_double_precision


def assert_target(result, expected, tolerance=1e-12):
    def close(a, b):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)

    generator = torch.Generator().manual_seed(0)
    close(result.dense(), expected)
    vectors = torch.randn(expected.shape[1], 3, dtype=torch.float64, generator=generator)
    close(result.apply(vectors), expected @ vectors)
    close(result.apply(vectors[:, 0]), expected @ vectors[:, 0])
    close(result.row_mass(), expected.sum(1))
    close(result.row_negative_entropy(), torch.special.xlogy(expected, expected).sum(1))
    close(result.row_squared_norm(), expected.square().sum(1))


@pytest.mark.parametrize("ids", [None, IDS], ids=["all", "without duplicates"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", TARGETS)
def test_targets(name, layout, ids):
    target, kind = TARGETS[name]
    (block,) = LAYOUTS[layout](*views())
    block = block if ids is None else Block(block.pattern.mask_duplicates(ids), block.x, block.y)
    result = target(block, {"labels": LABELS, "domains": DOMAINS})
    expected = target_by_loops(kind, layout, ids)
    assert_target(result, expected, 1e-6 if name in SINGLE else 1e-12)
    torch.testing.assert_close(expected.sum(1), torch.full((len(expected),), 1 / len(expected), dtype=torch.float64))
    log_kernel = Gibbs("cosine", 0.4)(block.x, block.y)
    torch.testing.assert_close(
        result.row_products_with_log_kernel(log_kernel), (expected * log_kernel.dense()).sum(1), rtol=1e-6, atol=0
    )


@pytest.mark.parametrize("alpha", [0.0, 0.3])
@pytest.mark.parametrize("beta", [0.0, 0.7])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_domains_of_any_level(alpha, beta, layout):
    (block,) = LAYOUTS[layout](*views())
    expected = formulas.domains(DOMAINS, alpha, beta)(build_pairing(layout, views()))
    assert_target(Domains(alpha, beta)(block, {"domains": DOMAINS}), expected, 1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_domains_keep_double_precision(layout):
    (block,) = LAYOUTS[layout](*views())
    assert_target(Domains(0.2, 0.1)(block, {"domains": DOMAINS}), target_by_loops("domains", layout), 1e-14)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_matrices(layout, sparse):
    (block,) = LAYOUTS[layout](*views())
    entries = torch.rand(block.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    entries = entries * build_pairing(layout, views()).compared * (entries > 0.4)
    entries[1], entries[:, 2] = 0, 0
    matrix = entries.to_sparse() if sparse else entries
    assert_target(Matrix(matrix)(block, {}), entries / entries.sum())


@pytest.mark.parametrize(
    ("entries", "code"),
    [
        (-torch.eye(7), "target.invalid"),
        (torch.full((7, 7), math.nan), "target.invalid"),
        (torch.full((7, 7), math.inf), "target.invalid"),
        (torch.zeros(7, 7), "target.zero"),
    ],
)
@pytest.mark.parametrize("sparse", [False, True])
def test_rejects_matrices_that_are_not_plans(entries, code, sparse):
    with raises_usage_error(code):
        Matrix(entries.to_sparse() if sparse else entries)(Cross()(*views())[0], {})


@pytest.mark.parametrize("target", [SoftNeighbors(FEATURES[0]), Neighbors(FEATURES[0], 2)])
def test_features_given_once_stand_for_all_views(target):
    (block,) = Joint()(*views())
    twice = type(target)((FEATURES[0], FEATURES[0]), *([2] if isinstance(target, Neighbors) else []))
    torch.testing.assert_close(target(block, {}).dense(), twice(block, {}).dense())


MATRIX = torch.rand(20, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).sub_(0.5).clamp_min_(0)


@pytest.mark.parametrize("layout", ["cross", "joint"])
@pytest.mark.parametrize("ids", [None, IDS])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("items", [[3, 19, 0, 7, 8, 2, 11], [4, 4, 0, 4, 9, 0, 1]])
def test_similarity_matrix_gives_the_targets_of_all_views(layout, ids, sparse, items):
    (block,) = LAYOUTS[layout](*views())
    if ids is not None:
        block = replace(block, pattern=block.pattern.mask_duplicates(ids))
    matrix = MATRIX.clone()
    matrix[items[4]] = 0  # an empty row
    target = SimilarityMatrix(matrix.to_sparse() if sparse else matrix, torch.tensor(items))
    n, m = block.shape
    expected = torch.zeros(n, m, dtype=torch.float64)
    for r in range(n):
        for c in range(m):
            i, j = r % 7, c % 7
            left_out = (layout == "joint" and r == c) or (ids is not None and i != j and ids[i] == ids[j])
            expected[r, c] = 0.0 if left_out else matrix[items[i], items[j]]
        expected[r] /= max(float(expected[r].sum()), 1e-300) * n
    torch.testing.assert_close(target(block, {}).dense().double(), expected, rtol=1e-6, atol=1e-12)
    torch.testing.assert_close(target.for_transposed_block()(block, {}).dense(), target(block, {}).dense())


@pytest.mark.parametrize("name", ["info-nce", "nt-xent"])
@pytest.mark.parametrize("sparse", [False, True])
def test_similarities_have_a_gradient(name, sparse):
    items = torch.tensor([3, 5, 0, 5, 8, 2, 11])

    def loss(values):
        matrix = torch.sparse_coo_tensor(MATRIX.nonzero().T, values, MATRIX.shape, check_invariants=True)
        return build(name)(*views(), target=SimilarityMatrix(matrix if sparse else matrix.to_dense(), items))

    values = MATRIX[MATRIX > 0].requires_grad_()
    assert torch.autograd.grad(loss(values), values)[0].abs().max() > 1e-4
    assert torch.autograd.gradcheck(loss, values)


@pytest.mark.parametrize(
    ("matrix", "items", "code", "value"),
    [
        (
            torch.zeros(3, 4),
            range(7),
            "target.shape",
            "torch.float32 of shape (3, 4)",
        ),
        ([[1.0]], range(7), "target.shape", "list"),
        (torch.ones(20, 20), range(6), "items.shape", "6"),
        (torch.ones(6, 6), range(7), "items.invalid", ""),
        (torch.ones(20, 20), [-1, 0, 1, 2, 3, 4, 5], "items.invalid", ""),
        (torch.ones(20, 20), [0.5] * 7, "items.invalid", ""),
        (-torch.ones(20, 20), range(7), "target.invalid", ""),
        (torch.full((20, 20), math.nan), range(7), "target.invalid", ""),
    ],
)
def test_rejects_invalid_similarity_matrices(matrix, items, code, value):
    with raises_usage_error(code, value):
        SimilarityMatrix(matrix, torch.tensor(list(items)))(Cross()(*views())[0], {})


def test_more_neighbors_than_items_select_all():
    (block,) = Joint()(*views())
    everything = (1 - torch.eye(14, dtype=torch.float64)) / 14 / 13
    torch.testing.assert_close(Neighbors(FEATURES, 50)(block, {}).dense().double(), everything)


# Divergences against the same written with matrices; plans are those of `formulas`

PLANS = {
    "free": (Free(), lambda kernel, tau: kernel / len(kernel)),
    "simplex": (Simplex(), lambda kernel, tau: formulas.simplex_plan(kernel)),
    "rows": (Rows(), lambda kernel, tau: formulas.row_plan(kernel)),
    "columns": (Columns(), lambda kernel, tau: formulas.row_plan(kernel.T).T),
    "balanced": (Balanced(2), lambda kernel, tau: formulas.balanced_plan(kernel, 2)),
    "unbalanced": (
        Unbalanced((0.3, 2.0), 3),
        lambda kernel, tau: formulas.unbalanced_plan(kernel, 3, (0.3, 2.0), tau),
    ),
}


def reverse_kl(target, plan, pairing):
    result, goal = plan[pairing.compared], target[pairing.compared]
    return (result * (result / goal).log()).sum() - result.sum() + goal.sum()


def marginal_penalty(target, plan, pairing):
    def from_uniform(mass):
        return (mass * (mass * len(mass)).log()).sum() - mass.sum() + 1

    return from_uniform(plan.sum(1)) + from_uniform(plan.sum(0))


def jensen_shannon(target, plan, pairing):
    middle = (target + plan) / 2

    def kl(p):
        some = p > 0
        return (p[some] * (p[some] / middle[some]).log()).sum()

    return (kl(target) + kl(plan)) / 2


def cost_of(pairing):
    return 1 - formulas.cosine(pairing.x, pairing.y)


def marginal_distance(terms):
    def distance(target, plan, pairing):
        masses = plan.sum(1), plan.sum(0)
        return sum(terms(mass, torch.full_like(mass, 1 / len(mass))).sum() for mass in masses)

    return distance


def squared_terms(mass, target):
    return len(mass) / 2 * (mass - target).square()


def jensen_shannon_terms(mass, target):
    middle = (mass + target) / 2
    return (mass * (mass / middle).log() + target * (target / middle).log()) / 2


DIVERGENCES = {
    "KL": (KL(), lambda target, plan, pairing: formulas.kl(target, plan)),
    "ReverseKL": (ReverseKL(), reverse_kl),
    "SquaredL2": (
        SquaredL2(),
        lambda target, plan, pairing: len(plan) / 2 * (plan - target).square().sum(),
    ),
    "TotalVariation": (TotalVariation(), lambda target, plan, pairing: (plan - target).abs().sum() / 2),
    "Hellinger": (
        Hellinger(),
        lambda target, plan, pairing: (target.sum() + plan.sum()) / 2 - (target * plan)[target > 0].sqrt().sum(),
    ),
    "JensenShannon": (JensenShannon(), jensen_shannon),
    "MarginalPenalty": (MarginalPenalty(), marginal_penalty),
    "MarginalPenalty, squared-l2": (MarginalPenalty("squared-l2"), marginal_distance(squared_terms)),
    "MarginalPenalty, total-variation": (
        MarginalPenalty("total-variation"),
        marginal_distance(lambda mass, target: (mass - target).abs() / 2),
    ),
    "MarginalPenalty, jensen-shannon": (MarginalPenalty("jensen-shannon"), marginal_distance(jensen_shannon_terms)),
    "PlanEntropy": (PlanEntropy(), lambda target, plan, pairing: sum(p - p * p.log() for p in [plan[plan > 0]]).sum()),
    "Rince": (Rince(0.7, 0.2), lambda target, plan, pairing: formulas.rince_divergence(target, plan, 0.7, 0.2)),
    "Energy": (ContrastiveEnergy(), lambda target, plan, pairing: ((target - plan.detach()) * cost_of(pairing)).sum()),
    "Energy with its slope through the plan": (
        ContrastiveEnergy(detach_plan=False),
        lambda target, plan, pairing: ((target - plan) * cost_of(pairing)).sum(),
    ),
    "PlanUniformity": (PlanUniformity(), lambda target, plan, pairing: formulas.plan_uniformity(pairing, plan)),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_divergences(divergence, plan, layout, backend):
    entries = torch.rand(14, 14, dtype=torch.float64, generator=torch.Generator().manual_seed(2)) + 0.1
    entries = entries.fill_diagonal_(0) if layout == "joint" else entries[:7, 7:]
    measure, by_matrix = DIVERGENCES[divergence]
    allowed, plan_of = PLANS[plan]
    loss = Objective(LAYOUTS[layout], Gibbs("cosine", 0.4), allowed, Matrix(entries), measure)

    def by_formula(*z):
        pairing = build_pairing(layout, z)
        return by_matrix(entries / entries.sum(), plan_of(formulas.gibbs(pairing, 0.4), 0.4), pairing)

    with contraport.engine.backend(backend):
        result = outcome(loss, *views())
    assert_same(result, outcome(by_formula, *views()))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("constraint", [Rows(), Balanced(3), Simplex()], ids=repr)
@pytest.mark.parametrize("cost", ["dot", "negative-cosine"])
def test_energy_of_signed_costs_matches_finite_differences(cost, constraint, backend):
    z0, z1 = (z[:5, :3].double() for z in views())
    z1[1] = torch.linalg.cross(z0[0], z0[1])  # a pair whose cost is 0, but not its gradient
    loss = Objective(
        Cross(symmetric=False), Gibbs(cost, 0.6), constraint, Pairs(), ContrastiveEnergy(detach_plan=False)
    )
    unit = torch.nn.functional.normalize if cost == "negative-cosine" else torch.clone

    def by_formula(z):
        costs = -unit(z) @ unit(z1).T
        return ((torch.eye(5, dtype=z.dtype) / 5 - loss.plan(z, z1)) * costs).sum()

    differences = torch.zeros_like(z0)
    for place in range(z0.numel()):
        step = torch.zeros_like(z0)
        step.view(-1)[place] = 1e-6
        differences.view(-1)[place] = (by_formula(z0 + step) - by_formula(z0 - step)) / 2e-6
    free = z0.clone().requires_grad_()
    with contraport.engine.backend(backend):
        value = loss(free, z1)
        (slopes,) = torch.autograd.grad(value, free)
    torch.testing.assert_close(value, by_formula(z0), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(slopes, differences, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("target", ["pairs", "labels", "soft", "neighbors"])
@pytest.mark.parametrize("divergence", sorted(set(DIVERGENCES) - {"ReverseKL"}))
def test_divergences_from_other_targets(divergence, target):
    measure, by_matrix = DIVERGENCES[divergence]
    goal, kind = TARGETS[target]
    loss = Objective(Joint(), Gibbs("cosine", 0.4), Balanced(2), goal, measure)

    def by_formula(*z):
        pairing = formulas.joint(*z)
        plan = formulas.balanced_plan(formulas.gibbs(pairing, 0.4), 2)
        return by_matrix(target_by_loops(kind, "joint"), plan, pairing)

    options = loss.without_unread_labels({"labels": LABELS})
    assert_same(outcome(lambda *z: loss(*z, **options), *views()), outcome(by_formula, *views()))


@pytest.mark.parametrize("constraint", ["rows", "simplex"])
@pytest.mark.parametrize(
    "divergence", ["SquaredL2", "Energy", "Energy with its slope through the plan", "TotalVariation", "JensenShannon"]
)
def test_divergences_from_the_quadratic_plan(divergence, constraint):
    measure, by_matrix = DIVERGENCES[divergence]
    loss = Objective(Joint(), Gibbs("cosine", 2.0), Tsallis(mass_constraint=constraint), Pairs(), measure)

    def by_formula(*z):
        pairing = formulas.joint(*z)
        logits = (-cost_of(pairing) / 2).masked_fill(~pairing.compared, -math.inf)
        if constraint == "rows":
            plan = formulas.sparsemax(14 * logits) / 14
        else:
            plan = formulas.sparsemax(logits.reshape(1, -1)).reshape(14, 14)
        return by_matrix(formulas.pairs(pairing), plan, pairing)

    assert_same(outcome(loss, *views()), outcome(by_formula, *views()))


def test_penalties_are_added_with_their_factors():
    plan = PLANS["unbalanced"]
    loss = Objective(
        Joint(), Gibbs("cosine", 0.4), plan[0], Pairs(), KL(), {MarginalPenalty(): 0.3, PlanUniformity(): 2.0}
    )

    def by_formula(*z):
        pairing = formulas.joint(*z)
        result = plan[1](formulas.gibbs(pairing, 0.4), 0.4)
        goal = formulas.pairs(pairing)
        return (
            formulas.kl(goal, result)
            + 0.3 * marginal_penalty(goal, result, pairing)
            + 2 * formulas.plan_uniformity(pairing, result)
        )

    assert_same(outcome(loss, *views()), outcome(by_formula, *views()))


def test_gradient_of_row_energy_is_that_of_kl_times_temperature():
    energy = Objective(Joint(), Gibbs("cosine", 0.3), Rows(), Pairs(), ContrastiveEnergy())
    kl = Objective(Joint(), Gibbs("cosine", 0.3), Rows(), Pairs(), KL())
    for a, b in zip(outcome(energy, *views())[1], outcome(kl, *views())[1], strict=True):
        torch.testing.assert_close(a, 0.3 * b, rtol=0, atol=1e-14)


def test_reverse_kl_requires_mass_everywhere():
    with raises_usage_error("target.invalid"):
        Objective(Joint(), Gibbs(), Rows(), Pairs(), ReverseKL())(*views())


@pytest.mark.parametrize("divergence", sorted(DIVERGENCES))
@pytest.mark.parametrize("target", ["pairs", "labels", "soft", "matrix", "sparse matrix"])
@pytest.mark.parametrize("kernel", [Gibbs("cosine", 0.4), StudentT(2.0)], ids=repr)
def test_blocks_of_rows_do_not_change_the_result(monkeypatch, divergence, target, kernel):
    """Blocks of rows, recomputed for the gradient, give the same result as all rows at once."""
    entries = torch.rand(14, 14, dtype=torch.float64, generator=torch.Generator().manual_seed(2)) + 0.1
    entries = entries.fill_diagonal_(0)
    matrices = {"matrix": Matrix(entries), "sparse matrix": Matrix(entries.to_sparse())}
    goal = matrices[target] if target in matrices else TARGETS[target][0]
    if divergence == "ReverseKL" and target in {"pairs", "labels"}:
        goal = Domains(0.2, 0.1)  # a target with mass everywhere
    loss = Objective(Joint(), kernel, Balanced(2), goal, DIVERGENCES[divergence][0])
    options = loss.without_unread_labels({"labels": LABELS, "domains": DOMAINS})

    def result():
        return outcome(lambda *z: loss(*z, **options), *views())

    expected = result()
    monkeypatch.setattr(
        "contraport.engine.autograd_utilities.MAX_BLOCK_PAIRS", 45
    )  # blocks of three rows, and of two at the end
    assert_same(result(), expected, 1e-12)


# Plans


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", PLANS)
def test_plans(name, layout, backend):
    allowed, plan_of = PLANS[name]
    loss = Objective(LAYOUTS[layout], Gibbs("cosine", 0.4), allowed, Pairs(), KL())
    with contraport.engine.backend(backend):
        result = loss.plan(*views())
    expected = plan_of(formulas.gibbs(build_pairing(layout, views()), 0.4), 0.4)
    torch.testing.assert_close(result, expected, rtol=1e-11, atol=0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("temperature", [5.0, 0.5, 0.02])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_quadratic_plan(layout, temperature, backend):
    pairing = build_pairing(layout, views())
    logits = (-cost_of(pairing) / temperature).masked_fill(~pairing.compared, -math.inf)
    N = len(logits)
    for constraint, expected in [
        ("rows", formulas.sparsemax(N * logits) / N),
        ("simplex", formulas.sparsemax(logits.reshape(1, -1)).reshape(logits.shape)),
    ]:
        plan = Tsallis(mass_constraint=constraint)
        loss = Objective(LAYOUTS[layout], Gibbs("cosine", temperature), plan, Pairs(), FenchelYoung())
        with contraport.engine.backend(backend):
            torch.testing.assert_close(loss.plan(*views()), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("tolerance", [1e-2, 1e-6, 1e-10])
def test_a_tolerance_bounds_the_error_of_the_rows(tolerance, layout):
    loss = Objective(LAYOUTS[layout], Gibbs("cosine", 0.3), Balanced(2000, tolerance), Pairs(), KL())
    plan = loss.plan(*views())
    assert (plan.sum(1) - 1 / len(plan)).abs().sum() < tolerance
    torch.testing.assert_close(plan.sum(0), torch.full((len(plan),), 1 / len(plan), dtype=torch.float64))
    enough = next(
        k for k in itertools.count(1)
        if (formulas.balanced_plan(formulas.gibbs(build_pairing(layout, views()), 0.3), k).sum(1) - 1 / len(plan))
        .abs().sum() < tolerance
    )  # fmt: skip
    expected = formulas.balanced_plan(formulas.gibbs(build_pairing(layout, views()), 0.3), enough)
    torch.testing.assert_close(plan, expected, rtol=0, atol=2 * tolerance / len(plan))
    assert_same(
        outcome(loss, *views()),
        outcome(
            lambda *z: formulas.kl(
                formulas.pairs(build_pairing(layout, z)),
                formulas.balanced_plan(formulas.gibbs(build_pairing(layout, z), 0.3), enough + 300),
            ),
            *views(),
        ),
        max(100 * tolerance, 1e-8),
    )


def test_warns_of_too_few_iterations_for_the_tolerance():
    loss = Objective(Joint(), Gibbs("cosine", 0.05), Balanced(1, 1e-12), Pairs(), KL())
    with pytest.warns(UserWarning, match=r"[Tt]olerance|iterations"):
        loss(*views())


@pytest.mark.parametrize("n", [1, 2, 7])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_exact_plan_matches_pot(layout, n):
    ot = pytest.importorskip("ot")
    z = views(n)
    pairing = build_pairing(layout, z)
    cost = cost_of(pairing).masked_fill(~pairing.compared, 1e3)
    mass = torch.full((len(cost),), 1 / len(cost), dtype=torch.float64)
    expected = ot.emd(mass, mass, cost)
    plan = Objective(LAYOUTS[layout], Gibbs("cosine", 0.5), Exact(), Pairs(), KL()).plan(*z)
    torch.testing.assert_close((plan * cost).sum(), (expected * cost).sum(), rtol=1e-12, atol=0)
    torch.testing.assert_close(plan.sum(1), mass)
    torch.testing.assert_close(plan.sum(0), mass)
    assert (plan >= 0).all()
    if layout == "cross":  # the solution of a symmetric problem need not be unique
        torch.testing.assert_close(plan, expected.to(plan), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("temperature", [0.2, 0.05])
def test_plans_converge_to_the_exact_plan_at_low_temperature(temperature):
    """The entropy is higher by at most log 7, so the cost is by at most that times the temperature."""
    pairing = formulas.cross(*views())
    kernel = Gibbs("cosine", temperature)
    exact = Objective(Cross(symmetric=False), kernel, Exact(), Pairs(), KL()).plan(*views())
    cold = Objective(Cross(symmetric=False), kernel, Balanced(3000, 1e-9), Pairs(), KL()).plan(*views())
    excess = ((cold - exact) * cost_of(pairing)).sum()
    assert -1e-9 <= excess <= temperature * math.log(7)


def test_rejects_a_loss_of_the_exact_plan():
    with raises_usage_error("constraint.not_differentiable", "Exact"):
        Objective(Joint(), Gibbs(), Exact(), Pairs(), KL())(*views())


# Kernels


class BilinearCost(nn.Module):
    def __init__(self, d):
        super().__init__()
        entries = torch.randn(d, d, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
        self.weight = nn.Parameter(entries / d)

    def forward(self, x, y):
        return -x @ self.weight @ y.T


def log_distance(x, y):
    return torch.log1p(formulas.squared_distance(x, y))


def dot(x, y):
    return -(x @ y.T)


def norms(x, y):
    """Return a smooth cost that is not a function of inner products alone."""
    return (x[:, None] - y[None]).abs().add(1e-3).log().sum(2)


COSTS = {
    "cosine": lambda x, y: 1 - formulas.cosine(x, y),
    "negative-cosine": lambda x, y: -formulas.cosine(x, y),
    "chordal": lambda x, y: 2 - 2 * formulas.cosine(x, y),
    "sqeuclidean": formulas.squared_distance,
    "dot": dot,
}


def kernels():
    for cost, cost_function in COSTS.items():
        yield f"{cost}", Gibbs(cost, 0.7), lambda x, y, cost_function=cost_function: -cost_function(x, y) / 0.7
    for cost, power in itertools.product(["cosine", "chordal", "sqeuclidean"], [2.0, 1.5, 0.5]):
        yield (
            f"{cost} to the {power}",
            Gibbs(cost, 0.7, power=power),
            lambda x, y, cost_function=COSTS[cost], power=power: -(cost_function(x, y) ** power) / 0.7,
        )
    for cost, power in itertools.product(["cosine", "chordal", "sqeuclidean"], [1.0, 0.3]):
        yield (
            f"rational {cost} to the {power}",
            RationalQuadratic(cost, 0.7, power=power),
            lambda x, y, cost_function=COSTS[cost], power=power: -power * (1 + cost_function(x, y) / 0.7).log(),
        )
    for df in [1.0, 2.5]:
        yield (
            f"Student's t of {df}",
            StudentT(df, 0.7),
            lambda x, y, df=df: -(df + 1) / 2 * (1 + formulas.squared_distance(x, y) / (0.7 * df)).log(),
        )
    for cost in [log_distance, norms]:
        yield cost.__name__, Gibbs(cost, 0.7), lambda x, y, cost=cost: -cost(x, y) / 0.7


KERNELS = {name: (kernel, log) for name, kernel, log in kernels()}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels(name):
    kernel, log = KERNELS[name]
    z0, z1 = views()
    result, expected = kernel(z0, z1), log(z0, z1)
    torch.testing.assert_close(result.dense(), expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(result.T.dense(), expected.T, rtol=1e-10, atol=1e-12)
    rows, columns = torch.tensor([0, 3, 6, 3]), torch.tensor([6, 3, 0, 1])
    torch.testing.assert_close(result.gather_entries(rows, columns), expected[rows, columns], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_in_an_objective(name, layout, backend):
    kernel, log = KERNELS[name]
    loss = Objective(LAYOUTS[layout], kernel, Unbalanced(0.8, 2), Pairs(), KL())
    z = [0.5 * view for view in views()]

    def by_formula(*z):
        pairing = build_pairing(layout, z)
        return formulas.kl(formulas.pairs(pairing), formulas.unbalanced_plan(build_entries(log, pairing), 2, 0.8, 0.7))

    with contraport.engine.backend(backend):
        result = outcome(loss, *z)
    assert_same(result, outcome(by_formula, *z), 1e-9)


def build_entries(log, pairing):
    """Return the kernel by rows without self pairs, at which a root has no gradient."""
    rows = []
    for x, compared in zip(pairing.x, pairing.compared, strict=True):
        row = torch.zeros(len(compared), dtype=x.dtype)
        rows.append(row.index_put((compared,), log(x[None], pairing.y[compared])[0].exp()))
    return torch.stack(rows)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("plan", ["rows", "balanced", "unbalanced", "simplex"])
def test_cost_module_has_its_gradient(plan, layout, backend):
    allowed, plan_of = PLANS[plan]
    cost, reference_cost = BilinearCost(5), BilinearCost(5)
    loss = Objective(LAYOUTS[layout], Gibbs(cost, 0.7), allowed, Pairs(), KL())
    assert any(parameter is cost.weight for parameter in loss.parameters())

    def expected(*z):
        pairing = build_pairing(layout, z)
        entries = (-reference_cost(pairing.x, pairing.y) / 0.7).exp() * pairing.compared
        return formulas.kl(formulas.pairs(pairing), plan_of(entries, 0.7))

    z = [view.clone().requires_grad_() for view in views()]
    with contraport.engine.backend(backend):
        result = torch.autograd.grad(loss(*z), [*z, cost.weight])
    for a, b in zip(result, torch.autograd.grad(expected(*z), [*z, reference_cost.weight]), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10 * b.abs().max().item())


class InDoubledUnits(Kernel):
    """A kernel of a callable whose unit of the cost is not the temperature."""

    def __init__(self):
        super().__init__(log_distance, 0.7, learnable=True)

    def log_kernel(self, negative_cost_in_unit, temperature):
        return negative_cost_in_unit(2 * temperature)


LEARNED = {
    "cosine": (Gibbs("cosine", 0.7, learnable=True), lambda x, y, tau: -(1 - formulas.cosine(x, y)) / tau),
    "sqeuclidean": (Gibbs("sqeuclidean", 0.7, learnable=True), lambda x, y, tau: -COSTS["sqeuclidean"](x, y) / tau),
    "power": (
        Gibbs("cosine", 0.7, power=2, learnable=True),
        lambda x, y, tau: -((1 - formulas.cosine(x, y)) ** 2) / tau,
    ),
    "callable": (Gibbs(log_distance, 0.7, learnable=True), lambda x, y, tau: -log_distance(x, y) / tau),
    "callable in a unit of its own": (InDoubledUnits(), lambda x, y, tau: -log_distance(x, y) / (2 * tau)),
    "rational": (
        RationalQuadratic("sqeuclidean", 0.7, power=0.3, learnable=True),
        lambda x, y, tau: -0.3 * (1 + formulas.squared_distance(x, y) / tau).log(),
    ),
    "Student's t": (
        StudentT(2.5, 0.7, learnable=True),
        lambda x, y, tau: -1.75 * (1 + formulas.squared_distance(x, y) / (tau * 2.5)).log(),
    ),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("plan", ["rows", "balanced", "unbalanced", "simplex", "free"])
@pytest.mark.parametrize("name", LEARNED)
def test_learnable_temperature_has_its_gradient(name, plan, backend):
    allowed, plan_of = PLANS[plan]
    kernel, log = LEARNED[name]
    kernel = kernel.double()
    kernel.temperature = 0.7
    (parameter,) = kernel.parameters()
    loss = Objective(Cross(symmetric=False), kernel, allowed, Pairs(), KL())
    tau = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    pairing = formulas.cross(*views())
    expected = formulas.kl(formulas.pairs(pairing), plan_of(log(pairing.x, pairing.y, tau).exp(), tau))
    (by_tau,) = torch.autograd.grad(expected, tau)
    with contraport.engine.backend(backend):
        value = loss(*views())
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-9)
    (slope,) = torch.autograd.grad(value, parameter)
    torch.testing.assert_close(slope.reshape(()), 0.7 * by_tau, rtol=1e-8, atol=1e-9)  # of its logarithm


@pytest.mark.parametrize("kernel", [Gibbs("cosine", 0.7), StudentT(2.0, 0.7), RationalQuadratic("cosine", 0.7)])
def test_the_temperature_can_be_changed(kernel):
    loss = Objective(Joint(), kernel, Rows(), Pairs(), KL())
    before = loss(*views())
    loss.temperature = 0.2
    assert loss.temperature == kernel.temperature == 0.2
    assert loss(*views()) != before
    loss.temperature = 0.7
    torch.testing.assert_close(loss(*views()), before, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("create", "code"),
    [
        (lambda: Gibbs("cosine", 0.0), "temperature.invalid"),
        (lambda: Gibbs("cosine", math.nan), "temperature.invalid"),
        (lambda: Gibbs("cosine", math.inf), "temperature.invalid"),
        (lambda: Gibbs("dot", 1.0, power=2), "power.conflict"),
        (lambda: Gibbs("cosine", 1.0, power=0), "power.invalid"),
        (lambda: StudentT(0.0), "df.invalid"),
        (lambda: RationalQuadratic("dot"), "cost.unknown"),
        (lambda: RationalQuadratic("cosine", power=-1), "power.invalid"),
        (lambda: Balanced(0), "iterations.invalid"),
        (lambda: Balanced(5, tolerance=0), "tolerance.invalid"),
        (lambda: Unbalanced(-1.0), "relaxation.invalid"),
        (lambda: Unbalanced((1.0, 0.0)), "relaxation.invalid"),
        (lambda: Tsallis(mass_constraint="columns"), "mass_constraint.unknown"),
        (lambda: Rince(q=0), "q.invalid"),
        (lambda: Rince(q=1.1), "q.invalid"),
        (lambda: Rince(lam=0), "lam.invalid"),
        (lambda: Domains(alpha=-0.1), "alpha.invalid"),
        (lambda: Neighbors(FEATURES, 0), "neighbors.invalid"),
        (lambda: Joint("some"), "candidates.unknown"),
        (lambda: Objective(Joint(), Gibbs(), Tsallis(), Pairs(), KL()), "divergence.constraint"),
        (lambda: Objective(Joint(), Gibbs(), Tsallis(), Pairs(), PlanUniformity()), "divergence.constraint"),
    ],
)
def test_rejects_settings(create, code):
    with raises_usage_error(code):
        create()


@pytest.mark.parametrize("order", [0.5, 1.5, 2.0])
@pytest.mark.parametrize("divergence", [KL(), FenchelYoung()])
def test_divergences_proposed_for_a_tsallis_plan_accept_it(order: float, divergence: KL | FenchelYoung) -> None:
    parts = (Cross(), Gibbs("cosine", 1.0), Tsallis(order), Pairs())
    try:
        Objective(*parts, divergence)
    except contraport.UsageError as error:
        proposed = re.findall(r"[A-Z]\w+", str(error).rpartition("; ")[2].rpartition("use ")[2])
        assert proposed
        for name in proposed:
            assert Objective(*parts, getattr(contraport, name)())(*torch.randn(2, 6, 4)).isfinite()
