"""How much the two members of a pair belong together, by a table of statistics; more is always a better pair."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from contraport.auditing.pairs.paired_features import TIED, ItemPairs, PairedFeatures, crowding, gather_mean, split_rows
from contraport.engine import Gibbs
from contraport.errors import UsageError, unknown_name_error
from contraport.objectives import Balanced, Unbalanced, transport
from contraport.objectives.constraints.sinkhorn import Scaling

TEMPERATURE = 0.1
"""Of softmax and plans."""

RELAXATION = 0.1
"""How far the unbalanced plan may leave its marginals."""

ITERATIONS = 200
"""Of the plans."""


@dataclass(frozen=True)
class Statistic:
    """A row of the table.

    Attributes:
        name: what it is called.
        description: what it says of a pair.
        function: of both sides and of some pairs, ``(p,)``; more is a better pair.
        compares: whether it compares a member with the other, for which both need embeddings in one space.
    """

    name: str
    description: str
    function: Callable[[PairedFeatures, ItemPairs], Tensor]
    compares: bool


def scores(sides: PairedFeatures, pairs: ItemPairs | None = None, statistic: str = "neighbors") -> Tensor:
    """Return the score of each pair, ``(p,)``; the more, the better its two members belong together.

    Args:
        sides: what is known of the items.
        pairs: which are judged; default: those that the data give.
        statistic: a name of `STATISTICS`.

    Raises:
        UsageError: an unknown name, or a statistic that compares sides without embeddings.

    >>> u = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    >>> judged = scores(PairedFeatures((u, torch.cat([u[:190], u[190:].flip(0)]))))
    >>> bool(judged[:190].median() > judged[190:].median())
    True
    """
    if statistic not in STATISTICS:
        raise unknown_name_error("statistic", statistic, STATISTICS)
    known = STATISTICS[statistic]
    if known.compares and sides.embeddings is None:
        fitting = ", ".join(name for name, one in STATISTICS.items() if not one.compares)
        raise UsageError(
            f"statistic: {statistic!r} compares the two views, which have no embeddings in one space; "
            f"expected {fitting}."
        )
    return known.function(sides, pairs or sides.given)


def _cosine(sides: PairedFeatures, pairs: ItemPairs) -> Tensor:
    x, y = _embeddings(sides)
    return (x[pairs.first] * y[pairs.second]).sum(dim=1)


def _softmax(sides: PairedFeatures, pairs: ItemPairs) -> Tensor:
    """Log of the shares that each member gives the other, the mean of both ways: minus the loss of InfoNCE."""
    x, y = _embeddings(sides)
    rows, columns = (_by_rows(a, b, lambda s: torch.logsumexp(s / TEMPERATURE, 1)) for a, b in ((x, y), (y, x)))
    return _cosine(sides, pairs) / TEMPERATURE - (rows[pairs.first] + columns[pairs.second]) / 2


def _csls(sides: PairedFeatures, pairs: ItemPairs) -> Tensor:
    """Cosine similarity, relative to that of each member to its nearest on the other side (Conneau et al., 2018)."""
    rows, columns = sides.crowding
    return 2 * _cosine(sides, pairs) - rows[pairs.first] - columns[pairs.second]


def _rank(sides: PairedFeatures, pairs: ItemPairs) -> Tensor:
    """Minus the mean, both ways, of the share of the other side that is nearer than the partner."""
    x, y = _embeddings(sides)
    return -(_nearer(x[pairs.first], y, y[pairs.second]) + _nearer(y[pairs.second], x, x[pairs.first])) / 2


def _nearer(from_: Tensor, others: Tensor, partner: Tensor) -> Tensor:
    parts = zip(split_rows(from_, len(others)), split_rows(partner, len(others)), strict=True)
    return torch.cat([(x @ others.T > (x * y).sum(1, keepdim=True) + TIED).float().mean(1) for x, y in parts])


def _balanced(sides: PairedFeatures, pairs: ItemPairs) -> Tensor:
    return _kept_mass(sides, pairs, Balanced(ITERATIONS))


def _unbalanced(sides: PairedFeatures, pairs: ItemPairs) -> Tensor:
    return _kept_mass(sides, pairs, Unbalanced(RELAXATION, ITERATIONS))


def _kept_mass(sides: PairedFeatures, pairs: ItemPairs, constraint: Scaling) -> Tensor:
    """Log of the mass that a plan between the two sides puts on each pair."""
    x, y = _embeddings(sides)
    with torch.no_grad():
        return transport(x, y, Gibbs(temperature=TEMPERATURE), constraint).plan.log_at(pairs.first, pairs.second)


def _neighbors(sides: PairedFeatures, pairs: ItemPairs) -> Tensor:
    """How near the partners of a member's neighbours are to the other member, by rank; the mean of both ways.

    What is near to one is only known by itself, so each side may have a space of its own, and what a network remembers
    of a wrong pair does not bring its neighbours together. The share of items that are at least as near as the partner
    of a neighbour is a p-value, and the mean of their logs is how Fisher (1925) joins p-values. Whether *the same*
    items are near to both says less, and nothing where many are equal: of a thousand equal captions fifteen are the
    nearest by chance.
    """
    mine, theirs = sides.neighbors_of(pairs)
    there, here = sides.surprise(1, pairs.second, mine), sides.surprise(0, pairs.first, theirs)
    return (there.mean(dim=1) + here.mean(dim=1)) / 2


def _likeness(sides: PairedFeatures, pairs: ItemPairs) -> Tensor:
    """Mean similarity of each member to the partners of the other's neighbours, both ways."""
    (mine, theirs), (x, y) = sides.neighbors_of(pairs), sides.features
    return (_mean_similarity(y, pairs.second, mine) + _mean_similarity(x, pairs.first, theirs)) / 2


def _mean_similarity(values: Tensor, items: Tensor, others: Tensor) -> Tensor:
    width = values.shape[1]
    blocks = zip(split_rows(items, width), split_rows(others, width), strict=True)
    return torch.cat([(values[i] * gather_mean(values, k)).sum(dim=1) for i, k in blocks])


def _canonical(sides: PairedFeatures, pairs: ItemPairs) -> Tensor:
    """CSLS of what one member tells of the other's view and the part of the other that can be told; mean of both ways.

    A pair is judged by what other pairs' views tell of one another, so that it cannot vouch for itself.
    """
    found = torch.empty(len(pairs.first), device=pairs.first.device)
    centers, folds, maps = sides.canonical
    x, y = (values - center for values, center in zip(sides.features, centers, strict=True))
    for fold, both in enumerate(maps):
        judged = folds[pairs.first] == fold
        (first, mine), (second, theirs) = (side[judged].unique(return_inverse=True) for side in pairs)
        ways = []
        for to_first, to_second in both:
            u, v = F.normalize(x @ to_first, dim=1), F.normalize(y @ to_second, dim=1)
            rows, columns = (
                crowding(own, others[sides.references], sides.neighbors)
                for own, others in ((u[first], v), (v[second], u))
            )
            ways.append(2 * (u[first][mine] * v[second][theirs]).sum(dim=1) - rows[mine] - columns[theirs])
        found[judged] = (ways[0] + ways[1]) / 2
    return found


def _combined(sides: PairedFeatures, pairs: ItemPairs) -> Tensor:
    """The sum of the agreement of neighbours and of canonical, each in units of its spread over the given pairs."""
    number = len(sides)
    judged = ItemPairs(*map(torch.cat, zip(sides.given, pairs, strict=True)))
    return sum_standardized([function(sides, judged) for function in (_neighbors, _canonical)], number)[number:]


def sum_standardized(found: Sequence[Tensor], number: int) -> Tensor:
    """Return the sum of some statistics of the same pairs, ``(p,)``, each in units of its spread over the first ones.

    One that has no spread tells nothing, and adds nothing.

    >>> sum_standardized([torch.tensor([1.0, 3.0, 5.0]), torch.tensor([4.0, 4.0, 4.0])], number=2)
    tensor([-0.7071,  0.7071,  2.1213])
    """
    total = torch.zeros_like(found[0])
    for values in found:
        spread, mean = torch.std_mean(values[:number])
        if spread > 0:
            total += (values - mean) / spread
    return total


def _embeddings(sides: PairedFeatures) -> tuple[Tensor, Tensor]:
    assert sides.embeddings is not None
    return sides.embeddings


def _by_rows(x: Tensor, y: Tensor, reduce: Callable[[Tensor], Tensor]) -> Tensor:
    return torch.cat([reduce(rows @ y.T) for rows in split_rows(x, len(y))])


STATISTICS = {
    one.name: one
    for one in (
        Statistic(
            "neighbors",
            "how near the partners of a member's neighbours are to the other member, by rank",
            _neighbors,
            compares=False,
        ),
        Statistic(
            "canonical",
            "csls in a common space that is learned from the other pairs",
            _canonical,
            compares=False,
        ),
        Statistic(
            "likeness", "similarity of each member to the partners of the other's neighbours", _likeness, compares=False
        ),
        Statistic("cosine", "cosine similarity of the two embeddings", _cosine, compares=True),
        Statistic("softmax", "log-softmax, in both directions: minus the InfoNCE loss", _softmax, compares=True),
        Statistic(
            "csls", "cosine similarity, relative to each member's nearest on the other side", _csls, compares=True
        ),
        Statistic("rank", "minus the share of items that are nearer than the partner", _rank, compares=True),
        Statistic("balanced", "log of the pair's mass in the balanced plan of all items", _balanced, compares=True),
        Statistic(
            "unbalanced", "log of the pair's mass in the unbalanced plan of all items", _unbalanced, compares=True
        ),
        Statistic(
            "combined", "the sum of neighbors and canonical, each divided by its spread", _combined, compares=False
        ),
    )
}
"""All statistics by name, in the order in which they are listed."""
