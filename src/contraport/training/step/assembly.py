"""From the choices of a training to its pipeline: which parts there are, and whether they go together."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import nn

from contraport.data import Dataset, Views
from contraport.distributed import local
from contraport.encoders import Model
from contraport.errors import check, unknown_name
from contraport.objectives import Loss, Objective
from contraport.objectives.schedules import Schedule
from contraport.training.step.comparison import Clustered, Comparison, InTurn, Reconstructed, Together, takes_several
from contraport.training.step.memory import Bank, Memory, Queue
from contraport.training.step.momentum import Momentum, MomentumTarget, Predictor
from contraport.training.step.pipeline import Pipeline, keyed

NEGATIVES = ("in-batch", "queue", "bank")
"""Where negatives come from."""

LARGEST_QUEUE = 65_536
LARGEST_DRAW = 4_096


def assemble(
    model: Model,
    views: Views,
    objective: nn.Module | None,
    dataset: Dataset,
    *,
    seed: int,
    negatives: str = "in-batch",
    queue_size: int | None = None,
    bank_negatives: int | None = None,
    momentum: Momentum | None = None,
    predictor: bool = False,
    prototypes: int | None = None,
    predict: str | None = None,
    schedules: Sequence[Schedule] = (),
    cache_chunk: int | None = None,
) -> Pipeline:
    """Return the pipeline that the choices say; the arguments are those of `contraport.train`.

    New weights are drawn from torch's random state.

    Raises:
        UsageError: choices that do not go together, or an objective that does not fit them.

    >>> from contraport import nt_xent
    >>> from contraport.data import load, loader
    >>> digits = load("digits")
    >>> pipeline = assemble(Model("mlp", digits.shapes), Views(digits), nt_xent(), digits, seed=0)
    >>> loss = pipeline(next(iter(loader(digits, 32))), step=0)
    >>> loss.shape, pipeline.after_step(0)
    (torch.Size([]), None)
    """
    _check_choices(negatives, queue_size, bank_negatives, momentum, predictor, prototypes, predict)
    check(len(views.shapes) >= 2, f"views: expected at least 2, to compare them, got {len(views.shapes)}.")
    sizes = [model.tower(view).num_projections for view in range(len(model.towers))]
    comparison: Comparison
    if predict is not None:
        comparison = Reconstructed(model, views.shapes, predict)
    else:
        assert objective is not None
        check(len(set(sizes)) == 1, f"projection: expected a size, as the encoders differ in theirs, {sizes}; got 0.")
        made = len(views.shapes)
        memory = _memory(negatives, queue_size, bank_negatives, dataset, keyed(model, views.shapes), sizes[0])
        in_turn = memory is not None or momentum is not None or predictor
        if prototypes is not None:
            comparison = Clustered(objective, prototypes, sizes[0], views=made)
        else:
            comparison = InTurn(objective, memory, views=made) if in_turn else Together(objective, views=made)
        _check_fits(comparison, dataset, made, sizes[0], predictor)
    return Pipeline(
        model,
        views,
        comparison,
        seed=seed,
        target=None if momentum is None else MomentumTarget(model, momentum),
        predictor=Predictor(sizes) if predictor else None,
        schedules=schedules,
        cache_chunk=cache_chunk,
    )


def _check_choices(
    negatives: str,
    queue_size: int | None,
    bank_negatives: int | None,
    momentum: Momentum | None,
    predictor: bool,
    prototypes: int | None,
    predict: str | None,
) -> None:
    if negatives not in NEGATIVES:
        raise unknown_name("negatives", negatives, NEGATIVES)
    needs = "expected nothing, as it belongs to negatives"
    check(queue_size is None or negatives == "queue", f"queue_size: {needs}='queue', got {queue_size}.")
    check(bank_negatives is None or negatives == "bank", f"bank_negatives: {needs}='bank', got {bank_negatives}.")
    check(
        prototypes is None or negatives == "in-batch",
        f"prototypes: stand in the place of negatives; expected negatives='in-batch' with them, got {negatives!r}.",
    )
    alone = negatives == "in-batch" and momentum is None and not predictor and prototypes is None
    check(
        predict is None or alone,
        "predict: compares nothing; expected neither negatives, momentum, predictor nor prototypes with it.",
    )


def _memory(
    negatives: str, queue_size: int | None, bank_negatives: int | None, dataset: Dataset, views: int, dimensions: int
) -> Memory | None:
    if negatives == "queue":
        return Queue(queue_size or min(LARGEST_QUEUE, len(dataset)), views, dimensions)
    if negatives == "bank":
        return Bank(len(dataset), views, dimensions, bank_negatives or min(LARGEST_DRAW, len(dataset)))
    return None


def _check_fits(comparison: Comparison, dataset: Dataset, views: int, dimensions: int, predictor: bool) -> None:
    """Raise `UsageError` where the objective refuses what it would be called on, before any data is read."""
    objective = comparison.objective
    if not isinstance(objective, Loss):
        return
    fixed = isinstance(objective, Objective) and objective.layout.attracts_to_fixed
    check(
        predictor or not fixed,
        "objective: it pushes nothing apart, so that without a predictor all embeddings become one; "
        "expected predictor=True, as in the recipes byol and simsiam.",
    )
    z = torch.randn(4, dimensions)
    known = {"labels": dataset.labels, "domains": dataset.domains}
    call = {name: None if values is None else values[:1].expand(4) for name, values in known.items()}
    embeddings = [z] * views if isinstance(comparison, Together) and takes_several(objective) else [z, z]
    if isinstance(comparison, Clustered):
        embeddings, call["target"] = [z, comparison.prototypes.detach()], torch.ones(4, len(comparison.prototypes))
    if isinstance(comparison, InTurn) and comparison.memory is not None:
        call |= {"ids": torch.arange(4), "negatives": z, "negative_ids": torch.arange(4) + 1}
    with torch.no_grad(), local():
        copy.deepcopy(objective)(*embeddings, **call)
