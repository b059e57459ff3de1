"""Reference formulas of all objectives of the catalog, dense and in double precision.

Independent of the package: plans are scaled entry by entry and not in the log domain, projections are found by
bisection on their mass, and gradients are autograd's. Functions take the settings of the recipes that they check.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Pairing(NamedTuple):
    """Rows, columns, and which pairs of them are compared, (N, M)."""

    x: Tensor
    y: Tensor
    row_items: Tensor
    column_items: Tensor
    compared: Tensor
    transposed: bool = False

    @property
    def positive(self) -> Tensor:
        return (self.row_items[:, None] == self.column_items) & self.compared

    @property
    def negative(self) -> Tensor:
        return (self.row_items[:, None] != self.column_items) & self.compared


Target = Callable[[Pairing], Tensor]


def duplicates(row_items: Tensor, column_items: Tensor, ids: Tensor | None) -> Tensor:
    different = row_items[:, None] != column_items
    return different & False if ids is None else different & (ids[row_items][:, None] == ids[column_items])


def joint(z0: Tensor, z1: Tensor, ids: Tensor | None = None) -> Pairing:
    z, items = torch.cat([z0, z1]), torch.arange(len(z0)).repeat(2)
    compared = ~torch.eye(len(z), dtype=torch.bool) & ~duplicates(items, items, ids)
    return Pairing(z, z, items, items, compared)


def cross(z0: Tensor, z1: Tensor, ids: Tensor | None = None, *, transposed: bool = False) -> Pairing:
    items = torch.arange(len(z0))
    return Pairing(z0, z1, items, items, ~duplicates(items, items, ids), transposed)


def append_negatives(pairing: Pairing, negatives: Tensor, duplicates_of_items: Tensor) -> Pairing:
    """Append negatives, (k, d), as columns; items are not compared with their duplicates, (n, k) Booleans."""
    return pairing._replace(
        y=torch.cat([pairing.y, negatives]),
        column_items=torch.cat([pairing.column_items, torch.full((len(negatives),), -1)]),
        compared=torch.cat([pairing.compared, ~duplicates_of_items[pairing.row_items]], 1),
    )


# Distances


def unit(z: Tensor) -> Tensor:
    return z / z.square().sum(1, keepdim=True).sqrt()


def cosine(x: Tensor, y: Tensor) -> Tensor:
    return unit(x) @ unit(y).T


def squared_distance(x: Tensor, y: Tensor) -> Tensor:
    return (x[:, None] - y[None]).square().sum(2)


def gibbs(pairing: Pairing, temperature: float) -> Tensor:
    return (-(1 - cosine(pairing.x, pairing.y)) / temperature).exp() * pairing.compared


# Targets


def by_rows(matrix: Tensor) -> Tensor:
    mass = matrix.sum(1, keepdim=True)
    return matrix / torch.where(mass > 0, mass, 1) / len(matrix)


def pairs(pairing: Pairing) -> Tensor:
    return by_rows(pairing.positive.double())


def classes(labels: Tensor) -> Target:
    def target(pairing: Pairing) -> Tensor:
        alike = labels[pairing.row_items][:, None] == labels[pairing.column_items]
        return by_rows((alike & (pairing.column_items >= 0) & pairing.compared).double())

    return target


def domains(domain_labels: Tensor, alpha: float, beta: float) -> Target:
    def target(pairing: Pairing) -> Tensor:
        alike = domain_labels[pairing.row_items][:, None] == domain_labels[pairing.column_items]
        level = (alpha * alike.double() + beta * (~alike).double()) * pairing.negative * (pairing.column_items >= 0)
        return by_rows(level + pairing.positive)

    return target


def matrix(entries: Tensor) -> Target:
    def target(pairing: Pairing) -> Tensor:
        plan = (entries.T if pairing.transposed else entries) / entries.sum()
        return torch.nn.functional.pad(plan, (0, len(pairing.y) - plan.shape[1]))

    return target


def unweighted(pairing: Pairing, target: Target | None) -> Tensor:
    """Return the target normalized to mass 1, so that rows without a target leave their mass to the others."""
    plan = (target or pairs)(pairing)
    return plan / plan.sum()


def row_factors(pairing: Pairing, goal: Tensor, weights: Tensor | None) -> Tensor:
    """Return the factor of each row's value, with which the sum of values is their weighted mean."""
    each = torch.ones_like(goal[:, 0]) if weights is None else weights[pairing.row_items]
    return (each / (each * goal.sum(1)).sum())[:, None]


def target_matrix(pairing: Pairing, target: Target | None, weights: Tensor | None) -> Tensor:
    """Return the target with weighted rows and total mass 1."""
    goal = unweighted(pairing, target)
    return goal * row_factors(pairing, goal, weights)


def kl_loss(pairing: Pairing, target: Target | None, weights: Tensor | None, plan: Tensor) -> Tensor:
    """Return the weighted mean of the divergences of rows, without the entropies of row masses and weights.

    Rows with a target have the mass that they would have if all rows had one.
    """
    goal = (target or pairs)(pairing)
    weighted, support = target_matrix(pairing, target, weights), goal > 0
    return (weighted[support] * (goal[support] / plan[support]).log()).sum() + plan.sum() - 1


# Plans: functions of the kernel


def row_plan(kernel: Tensor) -> Tensor:
    return kernel / kernel.sum(1, keepdim=True) / len(kernel)


def simplex_plan(kernel: Tensor) -> Tensor:
    return kernel / kernel.sum()


def balanced_plan(kernel: Tensor, iterations: int) -> Tensor:
    N, M = kernel.shape
    for _ in range(iterations):
        kernel = kernel / kernel.sum(1, keepdim=True) / N
        kernel = kernel / kernel.sum(0, keepdim=True) / M
    return kernel


def unbalanced_plan(
    kernel: Tensor, iterations: int, relaxation: float | tuple[float, float], temperature: float, reference="product"
):
    N, M = kernel.shape
    rho = relaxation if isinstance(relaxation, tuple) else (relaxation, relaxation)
    damping = [1.0 if math.isinf(r) else r / (r + temperature) for r in rho]
    v = torch.ones(M, dtype=kernel.dtype)
    reference_kernel = kernel / (N * M) if reference == "product" else kernel
    for _ in range(iterations):
        u = (reference_kernel @ v * N) ** -damping[0]
        v = (reference_kernel.T @ u * M) ** -damping[1]
    return u[:, None] * reference_kernel * v


def sparsemax(logits: Tensor) -> Tensor:
    """Return the Euclidean projection of each row onto the probability simplex; entries of -inf are excluded."""
    low, high = logits.detach().amax(1, keepdim=True) - 1, logits.detach().amax(1, keepdim=True)
    for _ in range(200):
        middle = (low + high) / 2
        heavy = (logits.detach() - middle).clamp(min=0).sum(1, keepdim=True) > 1
        low, high = torch.where(heavy, middle, low), torch.where(heavy, high, middle)
    support = logits.detach() > (low + high) / 2
    selected = torch.where(support, logits, 0)
    threshold = (selected.sum(1, keepdim=True) - 1) / support.sum(1, keepdim=True)
    return torch.where(support, selected - threshold, 0)


def inverse_weights(half: Tensor, among: Tensor, temperature: float, gamma: float) -> Tensor:
    """Return (temperature / (d^2 + nu))^(1/gamma) over the candidates, nu by bisection, with the gradient of nu."""
    least = half.masked_fill(~among, math.inf).amin(1, keepdim=True).detach()
    least = torch.where(least < math.inf, least, 0)

    def weights(d2: Tensor, nu: Tensor) -> Tensor:
        return torch.where(among, (temperature / torch.where(among, d2 + nu, 1)) ** (1 / gamma), 0)

    low, high = temperature - least, temperature * torch.full_like(least, len(half)) ** gamma - least
    for _ in range(300):
        middle = (low + high) / 2
        heavy = weights(half.detach(), middle).sum(1, keepdim=True) > 1
        low, high = torch.where(heavy, middle, low), torch.where(heavy, high, middle)
    nu = (low + high) / 2
    for _ in range(2):  # Newton's steps, differentiated
        alpha = weights(half, nu)
        slope = torch.where(among, -alpha / gamma / torch.where(among, half + nu, 1), 0).sum(1, keepdim=True)
        nu = nu - torch.where(slope < 0, alpha.sum(1, keepdim=True) - 1, 0) / torch.where(slope < 0, slope, 1)
    return weights(half, nu)


# Divergences


def kl(target: Tensor, plan: Tensor) -> Tensor:
    support = target > 0
    return (target[support] * (target[support] / plan[support]).log()).sum() - target.sum() + plan.sum()


def rince_divergence(target: Tensor, plan: Tensor, q: float, lam: float) -> Tensor:
    shares = len(plan) * plan
    row_terms = (lam * shares.sum(1, keepdim=True)) ** q
    support = target > 0
    return (target[support] * (row_terms.expand_as(shares)[support] - shares[support] ** q)).sum() / q


def plan_uniformity(pairing: Pairing, plan: Tensor) -> Tensor:
    negatives = plan[pairing.negative]
    if not len(negatives):
        return plan.sum() * 0
    mean = negatives.mean()
    return (mean * (mean / negatives).log()).sum()


def fenchel_young(logits: Tensor, target: Tensor) -> Tensor:
    """Return, per row, max_p <p, logits> - |p|^2/2 over the simplex, less the same at the target."""
    plan = sparsemax(logits)
    finite = torch.where(logits.isfinite(), logits, 0)

    def value(p: Tensor) -> Tensor:
        return (p * finite - p.square() / 2).sum(1)

    return value(plan) - value(target)


# The catalog


def info_nce(z0, z1, temperature=0.1, symmetric=True, target=None, weights=None, ids=None):
    def one_way(pairing):
        return kl_loss(pairing, target, weights, row_plan(gibbs(pairing, temperature)))

    forward = one_way(cross(z0, z1, ids))
    return (forward + one_way(cross(z1, z0, ids, transposed=True))) / 2 if symmetric else forward


def nt_xent(z0, z1, temperature=0.5, target=None, weights=None, ids=None):
    pairing = joint(z0, z1, ids)
    return kl_loss(pairing, target, weights, row_plan(gibbs(pairing, temperature)))


def sup_con(z0, z1, temperature=0.1, labels=None, **attributes):
    return nt_xent(z0, z1, temperature, target=classes(labels), **attributes)


def rince(z0, z1, temperature=0.5, q=0.5, lam=0.01, layout="joint", target=None, weights=None, ids=None):
    def one_way(pairing):
        kernel = (cosine(pairing.x, pairing.y) / temperature).exp() * pairing.compared
        return rince_divergence(target_matrix(pairing, target, weights), kernel / len(kernel), q, lam)

    if layout == "joint":
        return one_way(joint(z0, z1, ids))
    return (one_way(cross(z0, z1, ids)) + one_way(cross(z1, z0, ids, transposed=True))) / 2


def gca_ince(z0, z1, temperature=0.5, iterations=5, target=None, weights=None, ids=None):
    pairing = joint(z0, z1, ids)
    return kl_loss(pairing, target, weights, balanced_plan(gibbs(pairing, temperature), iterations))


def gca_rince(z0, z1, temperature=0.5, iterations=5, q=0.6, lam=0.01, target=None, weights=None, ids=None):
    pairing = joint(z0, z1, ids)
    plan = balanced_plan(gibbs(pairing, temperature), iterations)
    return rince_divergence(target_matrix(pairing, target, weights), plan, q, lam)


def gca_uot(
    z0, z1, temperature=0.5, iterations=5, relaxation=1.0, conditional=False, marginal_weight=0.0, rince_weight=0.0,
    q=0.6, lam=0.01, reference="product", target=None, weights=None, ids=None,
):  # fmt: skip
    pairing = joint(z0, z1, ids)
    plan = unbalanced_plan(gibbs(pairing, temperature), iterations, relaxation, temperature, reference)
    robust = rince_divergence(target_matrix(pairing, target, weights), plan, q, lam)
    masses = plan.sum(1), plan.sum(0)
    marginal = sum(kl(mass, torch.full_like(mass, 1 / len(mass))) for mass in masses)
    compared = row_plan(plan) if conditional else plan
    return kl_loss(pairing, target, weights, compared) + rince_weight * robust + marginal_weight * marginal


def byol(z0, z1, weights=None):
    each = 2 - 2 * (unit(z0) * unit(z1).detach()).sum(1)
    return each.mean() if weights is None else (each * weights / weights.mean()).mean()


def iot(
    z0, z1, temperature=0.5, constraint="balanced", iterations=5, uniformity=0.0, target=None, weights=None, ids=None
):
    pairing = joint(z0, z1, ids)
    kernel = gibbs(pairing, temperature)
    plan = {
        "rows": row_plan,
        "simplex": simplex_plan,
        "balanced": lambda kernel: balanced_plan(kernel, iterations),
    }[constraint](kernel)
    return kl_loss(pairing, target, weights, plan) + uniformity * plan_uniformity(pairing, plan)


def iot_uniform(z0, z1, uniformity=1.0, **settings):
    return iot(z0, z1, uniformity=uniformity, **settings)


def iot_quadratic(
    z0, z1, constraint="rows", closed_form=True, layout="joint", temperature=1.0, target=None, weights=None, ids=None
):
    def closed(pairing):
        cost = (1 - cosine(pairing.x, pairing.y)) / temperature
        if constraint == "rows":
            allowed = (cost * pairing.compared).sum(1, keepdim=True) + 1
            number = pairing.compared.sum(1, keepdim=True)
        else:
            allowed = (cost * pairing.compared).sum() + len(cost)
            number = pairing.compared.sum()
        entries = allowed / number - cost  # = 1/n (1 + sum_j (C_ij - C_i+))
        floor = 1e-3
        logarithm = torch.where(
            entries > floor, entries.clamp(min=floor).log(), math.log(floor) + (entries - floor) / floor
        )
        return -(target_matrix(pairing, target, weights) * logarithm).sum()

    def open_form(pairing):
        goal = target_matrix(pairing, target, weights)
        cost = 1 - cosine(pairing.x, pairing.y)
        N = len(cost)
        logits = (-cost / temperature).masked_fill(~pairing.compared, -math.inf)
        if constraint == "rows":  # rows are weighted by their target mass, and compared by their normalized entries
            mass = goal.sum(1)
            return (mass * fenchel_young(N * logits, N * by_rows(goal))).sum()
        all_logits = logits.masked_fill(~pairing.compared, -math.inf).reshape(1, -1)
        conjugate = fenchel_young(all_logits, torch.zeros_like(all_logits)).sum()
        finite = torch.where(pairing.compared, logits, 0)
        return conjugate - (goal * (finite - unweighted(pairing, target) / 2)).sum()

    return (closed if closed_form else open_form)((joint if layout == "joint" else cross)(z0, z1, ids))


def align_uniform(z0, z1, weight=1.0):
    x, y = unit(z0), unit(z1)
    first, second = torch.triu_indices(len(x), len(x), 1)

    def spread(z):
        return (-2 * (z[first] - z[second]).square().sum(1)).exp().mean().log()

    return (x - y).square().sum(1).mean() + weight * (spread(x) + spread(y)) / 2


def half_distances(z0: Tensor, z1: Tensor, negatives: str, ids: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return d_i^2 (2n, 1), d_ij^2 (2n, 2n) and the mask of negatives in the latter."""
    pairing = joint(z0, z1, ids)
    half = squared_distance(unit(pairing.x), unit(pairing.y)) / 2
    view = torch.arange(2).repeat_interleave(len(z0))
    own = view[:, None] == view
    among = {"both": own | ~own, "same": own, "other": ~own}[negatives]
    among = torch.nn.functional.pad(among, (0, half.shape[1] - len(half)), value=True) & pairing.negative
    return half[pairing.positive][:, None], half, among


PRESETS = {
    "info_nce": lambda tau, e, c: (lambda x: tau * torch.log(e + x), lambda x: torch.exp(x / tau)),
    "mine": lambda tau, e, c: (torch.log, torch.exp),
    "triplet": lambda tau, e, c: (lambda x: x, lambda x: torch.relu(x + e)),
    "soft_triplet": lambda tau, e, c: (lambda x: tau * torch.log(1 + x), lambda x: torch.exp(x / tau + e)),
    "n_plus_1_tuplet": lambda tau, e, c: (lambda x: torch.log(1 + x), torch.exp),
    "lifted_structured": lambda tau, e, c: (lambda x: torch.relu(torch.log(x)) ** 2, lambda x: torch.exp(x + e)),
    "sigmoid_pairs": lambda tau, e, c: (lambda x: x, lambda x: torch.sigmoid(c * x)),
    "linear_pairs": lambda tau, e, c: (lambda x: x, lambda x: x),
}


def pairwise(
    z0, z1, preset="info_nce", temperature=0.5, negatives="both", epsilon=1.0, c=1.0, phi=None, psi=None,
    weights=None, ids=None,
):  # fmt: skip
    if phi is None:
        phi, psi = PRESETS[preset](temperature, epsilon, c)
    positive, half, among = half_distances(z0, z1, negatives, ids)
    sums = torch.stack([psi(positive[i] - half[i][among[i]]).sum() for i in range(len(half))])
    return phi(sums).mean() if weights is None else (phi(sums) * (weights / weights.mean()).repeat(2)).mean()


def alpha_cl(
    z0, z1, temperature=0.5, regularizer="direct", p=4.0, gamma=2.0, detach=True, negatives="both", normalize=True,
    phi=None, weights=None, ids=None,
):  # fmt: skip
    positive, half, among = half_distances(z0, z1, negatives, ids)
    if regularizer == "square":
        alpha = sparsemax((-2 * half / temperature).masked_fill(~among, -math.inf))
    elif regularizer == "inverse":
        alpha = inverse_weights(half, among, temperature, gamma)
    else:
        unscaled = {
            "entropy": lambda d2: torch.exp(-d2 / temperature),
            "inverse-shifted": lambda d2: (d2 + temperature) ** (-1 / gamma),
            "direct": lambda d2: torch.exp(-(d2 ** (p / 2)) / temperature),
            "uniform": torch.ones_like,
        }[regularizer](half.masked_fill(~among, 1))
        mass = (unscaled * among).sum(1, keepdim=True)
        alpha = unscaled * among / (torch.where(mass > 0, mass, 1) if normalize else 1)
    if phi is not None:
        xi = (torch.exp((positive - half) / temperature) * among).sum(1, keepdim=True)
        (slope,) = torch.autograd.grad(phi(xi).sum(), xi, create_graph=True)
        alpha = alpha * xi * slope / temperature
    alpha = alpha.detach() if detach else alpha
    each = alpha.sum(1) * positive[:, 0] - (alpha * half).sum(1)
    return each.mean() if weights is None else (each * (weights / weights.mean()).repeat(2)).mean()


def quadratic(z0, z1, negatives="both", weights=None, ids=None):
    return alpha_cl(z0, z1, regularizer="uniform", negatives=negatives, weights=weights, ids=ids)


def direct_clr(z0, z1, temperature=0.1, dimensions=64, **attributes):
    return nt_xent(z0[:, :dimensions], z1[:, :dimensions], temperature, **attributes)


def t_simclr(z0, z1, temperature=8.0, df=5.0, conditional=False, target=None, weights=None, ids=None):
    pairing = joint(z0, z1, ids)
    kernel = (1 + squared_distance(pairing.x, pairing.y) / (temperature * df)) ** (-(df + 1) / 2) * pairing.compared
    plan = row_plan(kernel) if conditional else simplex_plan(kernel)
    return kl_loss(pairing, target, weights, plan)


def cmc(*views, temperature=0.1, graph="full", **attributes):
    edges = [(v, w) for w in range(len(views)) for v in range(w) if graph == "full" or v == 0]
    return sum(2 * info_nce(views[v], views[w], temperature, **attributes) for v, w in edges)


def sigmoid(z0, z1, temperature=0.1, bias=-10.0, weights=None, ids=None):
    pairing = cross(z0, z1, ids)
    learned = math.exp(torch.tensor(math.log(temperature)).item())  # its logarithm is a parameter in single precision
    logits = cosine(pairing.x, pairing.y) / learned + bias
    return logistic_loss(logits, pairing, weights)


def cmc_nce(z0, z1, temperature=0.07, momentum=0.9, weights=None, ids=None):
    """Normalizer of the first batch, detached; the momentum has no effect yet."""
    pairing = cross(z0, z1, ids)
    kernel = (cosine(pairing.x, pairing.y) / temperature).exp()
    noise = (len(pairing.y) - 1) * kernel[pairing.compared].mean().detach()
    return logistic_loss((kernel / noise).log(), pairing, weights)


def logistic_loss(logits, pairing, weights):
    """Return the loss of a logistic regression of "positive", summed over each row."""
    probability = torch.sigmoid(logits)
    likelihood = torch.where(pairing.positive, probability, 1 - probability)
    each = -(torch.where(pairing.compared, likelihood, 1).log()).sum(1)
    return each.mean() if weights is None else (each * weights / weights.mean())[pairing.row_items].mean()


# Decoupled losses


def weighted_mean(values, pairing, weights):
    """Return the weighted mean of the values of the rows."""
    return values.mean() if weights is None else (values * (weights / weights.mean())[pairing.row_items]).mean()


def log_sum(entries, compared):
    """Return log sum exp over the compared entries of each row, 0 where there are none."""
    total = (entries.exp() * compared).sum(1)
    return torch.where(total > 0, total, 1).log()


def masked_mean(entries, compared):
    """Return the mean of the compared entries of each row, 0 where there are none."""
    return (entries * compared).sum(1) / compared.sum(1).clamp(min=1)


def positives(entries, pairing):
    return (entries * pairing.positive).sum(1)


def dcl(z0, z1, temperature=0.1, weights=None, ids=None):
    pairing = joint(z0, z1, ids)
    s = cosine(pairing.x, pairing.y) / temperature
    return weighted_mean(-positives(s, pairing) + log_sum(s, pairing.negative), pairing, weights)


def dclw(z0, z1, temperature=0.1, sigma=0.5, weights=None, ids=None):
    pairing = joint(z0, z1, ids)
    s = cosine(pairing.x, pairing.y)
    own = cosine(z0, z1).diagonal().detach()
    pair_weights = 2 - (own / sigma).exp() / (own / sigma).exp().mean()
    attraction = pair_weights.repeat(2) * positives(s, pairing) / temperature
    return weighted_mean(-attraction + log_sum(s / temperature, pairing.negative), pairing, weights)


def gte(z0, z1, temperature=0.01, weights=None, ids=None):
    """One softmax over the concatenated logits of both rows of an item."""
    pairing = joint(z0, z1, ids)
    logits = (cosine(pairing.x, pairing.y) / temperature).masked_fill(~pairing.compared, -torch.inf)
    log_match_probability_per_item = torch.cat(tuple(logits.unflatten(0, (2, -1))), 1).log_softmax(1)
    return weighted_mean(-log_match_probability_per_item[:, len(z0) :].diagonal(), cross(z0, z1), weights)


def within(*views, ids=None):
    """Return the pairing of each view with itself."""
    items = torch.arange(len(views[0]))
    return [Pairing(z, z, items, items, ~torch.eye(len(z), dtype=torch.bool) & ~duplicates(items, items, ids))
            for z in views]  # fmt: skip


def mv_dhel(*views, temperature=0.3, weights=None, ids=None):
    pairs_of_views = [(a, b) for k, a in enumerate(views) for b in views[:k]]
    agree = sum((cosine(a, b).diagonal() / temperature).exp() for a, b in pairs_of_views).log()
    repulsion = sum(log_sum(cosine(p.x, p.y) / temperature, p.compared) for p in within(*views, ids=ids))
    return weighted_mean(repulsion - agree, cross(*views[:2]), weights)


def dhel(z0, z1, temperature=0.3, weights=None, ids=None):
    return mv_dhel(z0, z1, temperature=temperature, weights=weights, ids=ids)


def teacher_cosines(pairing, features):
    """Return the cosines of the teacher's features between the rows and the columns."""
    per_view = features.unbind(1) if features.ndim == 3 else (features, features)
    if pairing.x is pairing.y:
        return cosine(torch.cat(per_view), torch.cat(per_view))
    first, second = per_view[::-1] if pairing.transposed else per_view
    return cosine(first, second)


def x_clr(z0, z1, temperature=0.1, teacher_temperature=0.1, features=None, weights=None, ids=None):
    """Cross-entropy with the teacher's target, less the entropy of the target."""

    def teacher_target(pairing):
        return row_plan((teacher_cosines(pairing, features) / teacher_temperature).exp() * pairing.compared)

    return nt_xent(z0, z1, temperature, target=teacher_target, weights=weights, ids=ids)


def guided(z0, z1, temperature=0.1, margin=0.0, layout="cross", features=None, weights=None, ids=None):
    def one_way(pairing):
        alike = teacher_cosines(pairing, features)
        own = positives(alike, pairing)[:, None]
        allowed = pairing._replace(compared=pairing.compared & ((alike <= own - margin) | pairing.positive))
        return kl_loss(allowed, None, weights, row_plan(gibbs(allowed, temperature)))

    if layout == "joint":
        return one_way(joint(z0, z1, ids))
    return (one_way(cross(z0, z1, ids)) + one_way(cross(z1, z0, ids, transposed=True))) / 2


def cosent(z0, z1, temperature=0.05, weights=None):
    """CoSENT over the matrix of all pairs of pairs."""
    return ranking(torch.nn.functional.cosine_similarity(z0, z1) / temperature, weights)


def ranking(scores, grades):
    higher = grades[:, None] > grades
    return torch.log1p(torch.where(higher, torch.exp(scores - scores[:, None]), 0).sum())


def angle(z0, z1, temperature=0.0354, weights=None):
    """AnglE: real and imaginary part of the product of one complex vector and the conjugate of the other."""
    z0, z1 = (torch.cat([z, z[:, : z.shape[1] % 2] * 0], 1) for z in (z0, z1))
    (a, b), (c, d) = ((z / z.norm(dim=1, keepdim=True)).chunk(2, 1) for z in (z0, z1))
    real, imaginary = (a * c + b * d).sum(1), (b * c - a * d).sum(1)
    return ranking((real + imaginary).abs() / math.sqrt(2) / temperature, weights)


def sog_clr(z0, z1, temperature=0.1, momentum=0.1, ids=None, weights=None, average=None):
    """Loss whose gradient is that of the batch mean over the moving average; the dict has the average of each id."""
    average = {} if average is None else average
    pairing = joint(z0, z1, ids)
    s = cosine(pairing.x, pairing.y) / temperature
    of_rows = masked_mean(s.exp(), pairing.negative)
    repulsion = torch.zeros_like(of_rows)
    row_ids = ids[pairing.row_items]
    for item in row_ids.unique():
        mean = of_rows[row_ids == item].mean()
        past = average.get(int(item))
        average[int(item)] = u = mean.item() if past is None else momentum * past + (1 - momentum) * mean.item()
        repulsion[row_ids == item] = math.log(u) + (mean - mean.item()) / u
    return weighted_mean(repulsion - positives(s, pairing), pairing, weights)


def off_diagonal(matrix):
    return matrix[~torch.eye(len(matrix), dtype=torch.bool)]


def barlow_twins(z0, z1, redundancy=5e-3):
    standard = [(z - z.mean(0)) / z.std(0, correction=0) for z in (z0, z1)]
    correlation = standard[0].T @ standard[1] / len(z0)
    return (1 - correlation.diagonal()).square().sum() + redundancy * off_diagonal(correlation).square().sum()


def vic_reg(z0, z1, invariance=25.0, variance=25.0, covariance=1.0):
    spread = sum(torch.relu(1 - (z.var(0) + 1e-4).sqrt()).mean() for z in (z0, z1)) / 2
    crossed = sum(off_diagonal(z.T.cov()).square().sum() / z.shape[1] for z in (z0, z1))
    return invariance * (z0 - z1).square().mean() + variance * spread + covariance * crossed


def kcl(z0, z1, temperature=0.5, gamma=16.0, weights=None, ids=None):
    def k(x, y):
        return (-squared_distance(unit(x), unit(y)) / temperature).exp()

    repulsion = sum(masked_mean(k(p.x, p.y), p.compared) for p in within(z0, z1, ids=ids))
    return weighted_mean(-2 * k(z0, z1).diagonal() + gamma * repulsion, cross(z0, z1), weights)


def spectral(z0, z1, normalized=True, weights=None, ids=None):
    pairing = cross(z0, z1, ids)
    s = cosine(pairing.x, pairing.y) if normalized else pairing.x @ pairing.y.T
    return weighted_mean(-2 * positives(s, pairing) + masked_mean(s**2, pairing.negative), pairing, weights)


def hard_negative(z0, z1, temperature=0.5, beta=1.0, prior=0.1, weights=None, ids=None):
    pairing = joint(z0, z1, ids)
    kernel = (cosine(pairing.x, pairing.y) / temperature).exp()
    positive, number = positives(kernel, pairing), pairing.negative.sum(1)
    harder = masked_mean(kernel**beta * kernel, pairing.negative) / masked_mean(kernel**beta, pairing.negative)
    others = ((harder - prior * positive) / (1 - prior)).clamp(min=math.exp(-1 / temperature))
    return weighted_mean(-(positive / (positive + number * others)).log(), pairing, weights)


def debiased(z0, z1, temperature=0.5, prior=0.1, weights=None, ids=None):
    return hard_negative(z0, z1, temperature, 0.0, prior, weights, ids)
