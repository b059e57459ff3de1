"""Random combinations of components against dense matrices, and invariances of all objectives."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.objectives.comparing import BACKENDS, OF_COORDINATES, assert_same, build, outcome, required_attributes, views
from torch.nn import functional as F

import contraport as cp
from contraport.catalog import OBJECTIVES

INF = math.inf
ZERO = torch.zeros((), dtype=torch.float64)

COSTS = {
    "cosine": lambda x, y: 1 - F.normalize(x) @ F.normalize(y).T,
    "negative-cosine": lambda x, y: -F.normalize(x) @ F.normalize(y).T,
    "chordal": lambda x, y: 2 - 2 * F.normalize(x) @ F.normalize(y).T,
    "sqeuclidean": lambda x, y: (x[:, None] - y).square().sum(-1),
    "dot": lambda x, y: -x @ y.T,
}
KERNELS = {  # kernel, name of its cost, log kernel from the cost
    "gibbs": (cp.Gibbs("cosine", 0.3), "cosine", lambda c: -c / 0.3),
    "cold": (cp.Gibbs("cosine", 0.05), "cosine", lambda c: -c / 0.05),
    "powered": (cp.Gibbs("cosine", 0.3, power=2), "cosine", lambda c: -c.square() / 0.3),
    "similarity": (cp.Gibbs("negative-cosine", 0.5), "negative-cosine", lambda c: -c / 0.5),
    "chordal": (cp.Gibbs("chordal", 0.5), "chordal", lambda c: -c / 0.5),
    "distance": (cp.Gibbs("sqeuclidean", 3.0), "sqeuclidean", lambda c: -c / 3),
    "product": (cp.Gibbs("dot", 2.0), "dot", lambda c: -c / 2),
    "student": (cp.StudentT(5.0, 8.0), "sqeuclidean", lambda c: -3 * torch.log1p(c / 40)),
    "rational": (cp.RationalQuadratic("cosine", 0.5, power=1.5), "cosine", lambda c: -1.5 * torch.log1p(c / 0.5)),
}
PRICES = [0.2, (0.1, 3.0), (INF, 0.5)]
CONSTRAINTS = [cp.Free(), cp.Simplex(), cp.Rows(), cp.Columns(), cp.Balanced(1), cp.Balanced(4)] + [
    cp.Unbalanced(price, 3, reference, kind)
    for price in PRICES
    for reference in ("product", "counting")
    for kind in ("kl", "total-variation")
]
LABELS = torch.tensor([0, 1, 0, 2, 1, 0, 3])
DOMAINS = torch.tensor([0, 0, 1, 1, 2, 0, 1])
LISTED = [(0, 3), (0, 5), (1, 1), (2, 2), (3, 0), (5, 4), (6, 6)]
WEIGHTS = torch.tensor([1.0, 0.0, 2.0, 0.5, 1.0, 3.0, 0.25], dtype=torch.float64)
TARGETS = {
    "pairs": (cp.Pairs(), {}),
    "labels": (cp.Labels(), {"labels": LABELS}),
    "domains": (cp.Domains(0.3, 0.1), {"domains": DOMAINS}),
    "listed": (cp.PairList(LISTED), {}),
}
DIVERGENCES = [
    cp.KL(), cp.KL(conditional=True), cp.JensenShannon(), cp.Hellinger(), cp.TotalVariation(), cp.SquaredL2(),
    cp.Rince(0.6, 0.3), cp.TargetCost(), cp.ContrastiveEnergy(), cp.ContrastiveEnergy(detach_plan=False),
]  # fmt: skip


def log_plan(s, constraint, temperature):
    """Return log P from log K, which is minus infinity for pairs that are not compared."""
    n, m = s.shape
    log_a, log_b = -math.log(n), -math.log(m)
    if isinstance(constraint, cp.Free):
        return s + log_a
    if isinstance(constraint, cp.Simplex):
        return s - s.flatten().logsumexp(0)
    if isinstance(constraint, cp.Rows):
        return s.log_softmax(1) + log_a
    if isinstance(constraint, cp.Columns):
        return s.log_softmax(0) + log_b
    prices, clamped = (INF, INF), False
    if isinstance(constraint, cp.Unbalanced):
        relaxation = constraint.relaxation
        prices = relaxation if isinstance(relaxation, tuple) else (relaxation, relaxation)
        clamped = constraint.marginal_divergence == "total-variation"
        s = s + log_a + log_b if constraint.reference == "product" else s

    def damped(step, price):
        if clamped:
            return step.clamp(-price / temperature, price / temperature)
        return step * (1 if price == INF else price / (price + temperature))

    g = torch.zeros(m, dtype=s.dtype)
    for _ in range(constraint.iterations):
        f = damped(log_a - (s + g).logsumexp(1), prices[0])
        g = damped(log_b - (s + f[:, None]).logsumexp(0), prices[1])
    return s + f[:, None] + g


def target_shares(name, positives, compared, backward):
    """Return the target with rows that sum to 1, or to 0 without a target."""
    n = len(LABELS)
    several = len(positives) // n
    item = torch.arange(len(positives)) % n
    if name == "pairs":
        target = positives.double()
    elif name == "labels":
        target = (LABELS[item][:, None] == LABELS[item]).double()
    elif name == "domains":
        other, same = item[:, None] != item, DOMAINS[item][:, None] == DOMAINS[item]
        target = positives.double() + 0.3 * (other & same).double() + 0.1 * (other & ~same).double()
    else:
        listed = torch.zeros(n, n, dtype=torch.float64)
        listed[tuple(torch.tensor(LISTED).T)] = 1
        listed = listed.T if backward else listed
        target = (listed if several == 1 else torch.maximum(listed, listed.T)).repeat(several, several)
    target = target * compared
    return target / target.sum(1, keepdim=True).clamp_min(1e-300)


def xlogy(x, log_y):
    return torch.where(x > 0, x * torch.where(x > 0, log_y, ZERO), ZERO)


def row_values(divergence, share, log_p, cost, compared):
    """Return the value of each row; the loss is the mean over rows with a target."""
    n = len(share)
    t = share / n
    p = torch.where(compared, log_p.exp(), ZERO)
    mass = log_p.logsumexp(1)
    entropy = torch.xlogy(t, t)
    if isinstance(divergence, cp.KL):
        if divergence.conditional:
            return n * (torch.xlogy(t, share) - xlogy(t, log_p - mass[:, None])).sum(1)
        return n * (entropy - xlogy(t, log_p)).sum(1) - 1 + p.sum()
    if isinstance(divergence, cp.JensenShannon):
        log_mean = torch.where((t + p) > 0, (t + p) / 2, 1).log()
        return n * (entropy - t * log_mean + xlogy(p, log_p) - p * log_mean).sum(1) / 2
    if isinstance(divergence, cp.Hellinger):
        return n * (torch.where(compared, (log_p / 2).exp(), ZERO) - t.sqrt()).square().sum(1) / 2
    if isinstance(divergence, cp.TotalVariation):
        return n * (p - t).abs().sum(1) / 2
    if isinstance(divergence, cp.SquaredL2):
        return n**2 * (p - t).square().sum(1) / 2
    if isinstance(divergence, cp.Rince):
        q, lam = divergence.q, divergence.lam
        result = torch.where(share > 0, share * (q * (log_p + math.log(n))).exp(), ZERO).sum(1)
        return ((lam * n * mass.exp()) ** q - result) / q
    attraction = n * (t * cost).sum(1)
    if isinstance(divergence, cp.TargetCost):
        return attraction
    return attraction - n * ((p.detach() if divergence.detach_plan else p) * torch.where(compared, cost, ZERO)).sum(1)


def dense_loss(layout, kernel, constraint, target, divergence, weights=None):
    gibbs, name, log_kernel = KERNELS[kernel]

    def one_direction(x, y, positives, compared, *, backward=False):
        cost = COSTS[name](x, y)
        log_p = log_plan(log_kernel(cost).masked_fill(~compared, -INF), constraint, gibbs.temperature)
        share = target_shares(target, positives, compared, backward)
        rows = row_values(divergence, share, log_p, cost, compared)
        counts = (share.sum(1) > 0).double()
        if weights is not None:
            counts = counts * weights.repeat(len(counts) // len(weights))
        return (counts * rows).sum() / counts.sum()

    def loss(z0, z1):
        n = len(z0)
        eye = torch.eye(n, dtype=torch.bool)
        if isinstance(layout, cp.Joint):
            z, self_pair = torch.cat([z0, z1]), torch.eye(2 * n, dtype=torch.bool)
            return one_direction(z, z, self_pair.roll(n, 1), ~self_pair)
        forward = one_direction(z0, z1, eye, torch.ones_like(eye))
        if not layout.symmetric:
            return forward
        return (forward + one_direction(z1, z0, eye, torch.ones_like(eye), backward=True)) / 2

    return loss


@settings(max_examples=150, deadline=None)
@given(
    layout=st.sampled_from([cp.Cross(), cp.Cross(symmetric=False), cp.Joint()]),
    kernel=st.sampled_from(sorted(KERNELS)),
    constraint=st.sampled_from(CONSTRAINTS),
    target=st.sampled_from(sorted(TARGETS)),
    divergence=st.sampled_from(DIVERGENCES),
    backend=st.sampled_from(BACKENDS),
    weights=st.sampled_from([None, WEIGHTS]),
)
def test_random_combinations_match_dense_matrices(layout, kernel, constraint, target, divergence, backend, weights):
    target_rule, attributes = TARGETS[target]
    loss = cp.Objective(layout, KERNELS[kernel][0], constraint, target_rule, divergence)
    attributes = attributes if weights is None else attributes | {"weights": weights}
    with cp.engine.backend(backend):
        result = outcome(lambda *z: loss(*z, **attributes), *views())
    assert_same(result, outcome(dense_loss(layout, kernel, constraint, target, divergence, weights), *views()), 1e-8)


LENGTH_DEPENDENT = {"t-simclr", *OF_COORDINATES}
"""Objectives that depend on the lengths of embeddings."""


def resolve_settings(name):
    return {"dimensions": 3} if name == "direct-clr" else {}


@pytest.mark.parametrize("backend", ["dense", "streamed"])
@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_invariance_to_rotation_and_length(name, backend):
    """Rotations of all embeddings, and lengths of embeddings compared by cosines, change no value."""
    z0, z1 = views(6, 5)
    generator = torch.Generator().manual_seed(3)
    rotation = torch.linalg.qr(torch.randn(5, 5, dtype=torch.float64, generator=generator))[0]
    lengths = torch.rand(6, 1, dtype=torch.float64, generator=generator) + 0.1
    attributes = required_attributes(name, 6)

    def outcome_at(*z):
        return outcome(lambda *z: build(name, **resolve_settings(name))(*z, **attributes), *z)

    with cp.engine.backend(backend):
        value, slopes = outcome_at(z0, z1)
        if name not in {"direct-clr", "angle", *OF_COORDINATES}:
            assert_same(outcome_at(z0 @ rotation, z1 @ rotation), (value, [slope @ rotation for slope in slopes]), 1e-9)
        if name not in LENGTH_DEPENDENT:
            assert_same(
                outcome_at(z0 * lengths, z1 / lengths), (value, [slopes[0] / lengths, slopes[1] * lengths]), 1e-9
            )
            for z, slope in zip((z0, z1), slopes, strict=True):
                coordinates = slice(0, 3) if name == "direct-clr" else slice(None)
                along = (z[:, coordinates] * slope[:, coordinates]).sum(1)
                torch.testing.assert_close(along, torch.zeros_like(along), rtol=0, atol=1e-12 * (1 + slope.abs().max()))
        if name in {"t-simclr", "barlow-twins"}:
            assert_same(outcome_at(z0 + 3, z1 + 3), (value, slopes), 1e-9)
