"""Losses of a step that call an objective: on all views at once, or on queries and keys with stored negatives."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from contraport._utils.formatting import pluralize
from contraport.data import Batch
from contraport.distributed import gather
from contraport.errors import check
from contraport.objectives import Loss, Target
from contraport.training.step.item_arrays import select_batch_rows
from contraport.training.step.memory import EmbeddingMemory
from contraport.training.step.step_loss import EmbeddedBatch, StepLoss
from contraport.training.step.target_spec import TargetOfBatch

SMALL_BATCH = 32
"""Batch size below which each item has few negatives."""


class ObjectiveLoss(StepLoss):
    """Base class of losses that call an objective with the keyword arguments that it accepts.

    Args:
        objective: the objective.
        views: number of views. Where the objective is called on two of them at a time, each ordered pair of views has
            its own buffers, such as the normalizer of noise contrastive estimation; parameters are shared.
        target: the target plan of each batch; default: that of the objective.
        teacher: features of a teacher per training item, ``(items, k)`` or ``(items, views, k)``.

    Raises:
        UsageError: the call of the objective has no keyword for the target or the teacher's features.
    """

    objective: nn.Module

    def __init__(
        self,
        objective: nn.Module,
        *,
        views: int = 2,
        target: TargetOfBatch | None = None,
        teacher: Tensor | None = None,
    ) -> None:
        super().__init__(objective)
        self._accepted = accepted_keywords(objective)
        self.views = views
        self.target = target
        self.teacher = teacher
        for argument, keyword, value in (("target", "target", target), ("teacher", "features", teacher)):
            self._check_accepts(argument, keyword, value)
        buffers = {} if self._loss is None else dict(self._loss.named_buffers())
        self._pair_buffers = {name: f"each_{name.replace('.', '_')}" for name in buffers}
        for name, value in buffers.items():
            self.register_buffer(self._pair_buffers[name], value.expand(views, views, *value.shape).clone())

    def _check_accepts(self, argument: str, keyword: str, value: object) -> None:
        name = type(self.objective).__name__
        message = f"{argument}: not supported by {name}, whose call has no keyword `{keyword}`."
        check(value is None or keyword in self._accepted, message, "unsupported")

    @property
    def _loss(self) -> Loss | None:
        """The loss if it is a contraport objective; None for a custom module, which declares no properties."""
        return self.objective if isinstance(self.objective, Loss) else None

    def call_objective(
        self, batch: Batch, *embeddings: Tensor, pair: tuple[int, int] | None = None, **kwargs: Any
    ) -> Tensor:
        """Return the loss value of the objective for some embeddings.

        Args:
            batch: the items.
            embeddings: the embeddings to compare.
            pair: the ordered pair of views that they are, which selects buffers; default: all views.
            kwargs: keywords in addition to those of the batch.
        """
        if batch.weights is not None and not bool(gather(batch.weights).any()):
            return torch.stack([z[:0].sum() for z in embeddings]).sum()  # all weights are 0: no loss, gradients of 0
        available = self._batch_kwargs(batch, None if self.target is None else self.target(batch)) | kwargs
        accepted = {name: value for name, value in available.items() if name in self._accepted}
        # Entries are views of a buffer, so that in-place updates by the call persist.
        buffers = {} if pair is None else {name: self.get_buffer(own)[pair] for name, own in self._pair_buffers.items()}
        loss: Tensor = functional_call(self.objective, buffers, embeddings, accepted)
        return loss

    def view_pairs(self, embedded: EmbeddedBatch) -> list[tuple[int, int]]:
        """Return the ordered pairs of views to compare; with a core view, only those that include the first view."""
        core = self._loss is not None and self._loss.has_core_view
        return [pair for pair in embedded.view_pairs() if not core or 0 in pair]

    def example_inputs(
        self, z: Tensor, batch: Batch, target: Target | None
    ) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
        """Return embeddings and keyword arguments of an example call of the objective.

        Args:
            z: embeddings of some items, ``(b, d)``, used for each view.
            batch: the items.
            target: their target plan; None: that of the objective.
        """
        return (z, z.clone()), self._batch_kwargs(batch, target)  # cloned: one tensor twice would be one view twice

    def _batch_kwargs(self, batch: Batch, target: Target | None) -> dict[str, Any]:
        kwargs: dict[str, Any] = {"labels": batch.labels, "domains": batch.domains, "weights": batch.weights}
        if target is not None:
            kwargs["target"] = target
        if self.teacher is not None:
            kwargs["features"] = select_batch_rows(self.teacher, batch)
        if self._loss is not None and self._loss.requires_ids:
            kwargs["ids"] = batch.ids
        return kwargs

    def missing_views_blocker(self) -> str | None:
        """Return the reason why items with missing views are not supported by the objective, or None if they are."""
        if self._loss is not None and not self._loss.compares_items:
            return "the objective compares coordinates, each over the whole batch"
        return None if "present" in self._accepted else "the call of the objective has no keyword `present`"

    def batch_size_warning(self, items: int) -> str | None:
        """Return a warning if an item has few negatives in a batch of this size; else None."""
        if items >= SMALL_BATCH or self._loss is None or not self._loss.has_negatives:
            return None
        return (
            f"small batches: each item has {pluralize(items - 1, 'negative')}. Increase --batch_size, add --negatives "
            "queue, or use --recipe byol, which has no negatives"
        )


class AllViewsLoss(ObjectiveLoss):
    """Loss of all views at once; an objective of two views is averaged over all unordered pairs of views."""

    def __init__(self, objective: nn.Module, **kwargs: Any) -> None:
        super().__init__(objective, **kwargs)
        self._multi_view = is_multi_view(objective)

    def forward(self, embedded: EmbeddedBatch) -> Tensor:
        batch, queries = embedded.batch, embedded.queries
        if self._multi_view or len(queries) == 2:
            return self.call_objective(batch, *queries, **embedded.objective_kwargs())
        losses = [
            self.call_objective(batch, queries[v], queries[w], pair=(v, w), **embedded.objective_kwargs(v, w))
            for w, v in self.view_pairs(embedded)
            if v < w  # each unordered pair once; v has keys, as the keys are those of the first views
        ]
        return torch.stack(losses).mean()

    def example_inputs(
        self, z: Tensor, batch: Batch, target: Target | None
    ) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
        """Return embeddings and keyword arguments of an example call, with all views or with two."""
        pair, kwargs = super().example_inputs(z, batch, target)
        return (z,) * self.views if self._multi_view else pair, kwargs


class QueryKeyLoss(ObjectiveLoss):
    """Loss of the queries of one view against the keys of another, averaged over all ordered pairs of views.

    Args:
        objective: called on queries and keys, and with ``negatives=`` if the memory has some. Negatives that are the
            item of a row are excluded for this row.
        memory: embeddings of earlier batches.
        kwargs: see `ObjectiveLoss`.

    Raises:
        UsageError: there is a memory, and the call of the objective has no keyword `negatives`.
    """

    def __init__(self, objective: nn.Module, memory: EmbeddingMemory | None = None, **kwargs: Any) -> None:
        super().__init__(objective, **kwargs)
        self.memory = memory
        self._check_accepts("negatives", "negatives", memory)

    def forward(self, embedded: EmbeddedBatch) -> Tensor:
        batch, keys = embedded.batch, embedded.key_projections
        losses = []
        for v, w in self.view_pairs(embedded):
            positives = keys[w]
            kwargs: dict[str, Any] = {}
            if self.memory is not None:
                positives, negatives = self.memory.get_positives_and_negatives(w, keys[w], batch.ids)
                if negatives is not None:
                    kwargs = {"ids": batch.ids, "negatives": negatives.embeddings, "negative_ids": negatives.ids}
                    kwargs["shared_negatives"] = True  # the memory is the same on every process
            kwargs |= embedded.objective_kwargs(v, w)
            losses.append(self.call_objective(batch, embedded.queries[v], positives, pair=(v, w), **kwargs))
        if self.memory is not None:
            self.memory.stage(keys, batch.ids)
        return torch.stack(losses).mean()

    def example_inputs(
        self, z: Tensor, batch: Batch, target: Target | None
    ) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
        """Return embeddings and keyword arguments of an example call, with stored negatives if there is a memory."""
        pair, kwargs = super().example_inputs(z, batch, target)
        if self.memory is not None:
            kwargs |= {"ids": batch.ids, "negatives": z, "negative_ids": batch.ids + 1}
        return pair, kwargs

    def missing_views_blocker(self) -> str | None:
        """Return why items with missing views are not supported: a memory of negatives stores all views."""
        return super().missing_views_blocker() if self.memory is None else "a queue or a bank stores all views of items"

    def batch_size_warning(self, items: int) -> str | None:
        """Return a warning if batches are small and no memory provides negatives; else None."""
        return super().batch_size_warning(items) if self.memory is None else None

    def after_step(self) -> None:
        """Write the keys of the step to the memory of negatives, if there is one."""
        if self.memory is not None:
            self.memory.after_step()


def accepted_keywords(objective: nn.Module) -> frozenset[str]:
    """Return the parameter names of the `forward` method of an objective."""
    return frozenset(inspect.signature(objective.forward).parameters)


def is_multi_view(objective: nn.Module) -> bool:
    """Return whether an objective accepts any number of views at once, rather than two."""
    if isinstance(objective, Loss):
        return objective.multi_view
    kinds = [parameter.kind for parameter in inspect.signature(objective.forward).parameters.values()]
    return inspect.Parameter.VAR_POSITIONAL in kinds
