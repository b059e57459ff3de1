"""Matryoshka representation learning: an objective on several numbers of first coordinates of the embeddings."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

from contraport.errors import check, check_integer
from contraport.objectives.layout_wrappers import LeadingCoordinates, NestedCoordinates
from contraport.objectives.loss import Loss
from contraport.objectives.objective import Objective, SumLoss


def matryoshka(objective: Loss, dims: Sequence[int], weights: Sequence[float] | None = None) -> Loss:
    """Matryoshka loss: sum of an objective over nested embeddings, so that their first coordinates can be used alone.

    Each of `dims` is a number of first coordinates, compared by themselves: a kernel of cosines normalizes them anew.
    Parameters such as a learned temperature are shared by all; moving averages, as those of `sog_clr`, are separate.

    Args:
        objective: an objective of the catalog, an `Objective` or a `SumLoss`; it is not changed.
        dims: numbers of first coordinates, such as ``[256, 128, 64]``, in any order; at most the embedding dimension.
        weights: weight of each of `dims` in the sum, positive; default: 1 each.

    Raises:
        UsageError: the objective is a module of another kind, or dims or weights are invalid.

    Source: Kusupati et al. (2022), Matryoshka representation learning, eq. 1.

    >>> import torch, contraport
    >>> loss = contraport.matryoshka(contraport.info_nce(temperature=1.0), dims=[4, 2])
    >>> round(loss(torch.eye(4), torch.eye(4)).item(), 4)
    1.8086
    """
    good = isinstance(objective, Objective | SumLoss)
    check(good, f"objective: must be a contraport objective, got {type(objective).__name__}.", "type")
    message = f"weights: must be {len(dims)} numbers, one for each of dims, got {weights}."
    check(weights is None or len(weights) == len(dims), message, "number")
    for size in dims:
        check_integer("dims", size)
    # The largest first: the plan that is shown is that of the first block.
    pairs = sorted(zip(dims, [1.0] * len(dims) if weights is None else weights, strict=True), reverse=True)
    sizes, shares = tuple(size for size, _ in pairs), tuple(share for _, share in pairs)
    parts = dict(objective.weighted_objectives()) if isinstance(objective, SumLoss) else {objective: 1.0}
    nested: dict[Objective, float] = {}
    for part, factor in parts.items():
        assert isinstance(part, Objective)
        layout = NestedCoordinates(sizes, part.layout, shares)
        if not list(part.buffers()):
            nested[part.with_layout(layout)] = factor
            continue
        for size, share in zip(sizes, shares, strict=True):
            shared = {id(one): one for one in (part.kernel, *part.parameters())}
            nested[copy.deepcopy(part, shared).with_layout(LeadingCoordinates(size, part.layout))] = factor * share
    loss: Loss = SumLoss(nested) if isinstance(objective, SumLoss) or len(nested) > 1 else next(iter(nested))
    loss.accepts_temperature = objective.accepts_temperature
    if (origin := objective.catalog_origin) is not None:
        arguments = f"dims={list(dims)}" + ("" if weights is None else f", weights={list(weights)}")
        loss.catalog_origin = replace(origin, call=f"matryoshka({origin.call}, {arguments})")
    return loss
