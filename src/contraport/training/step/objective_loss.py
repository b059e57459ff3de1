"""Comparisons by an objective: of all views together, or of each in turn with each other and a memory."""

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
from contraport.training.step.memory import Memory
from contraport.training.step.step_loss import EmbeddedBatch, StepLoss, mean_of
from contraport.training.step.target_spec import TargetOfBatch
from contraport.training.step.teacher import of_batch

SMALL_BATCH = 32
"""With fewer items in a batch there is little to tell an item from."""


class ObjectiveLoss(StepLoss):
    """A comparison by an objective, which is told what it asks for of what is known of the items.

    Args:
        objective: what is called.
        views: how many views there are. Where two of them are compared at a time, each ordered pair has its own of
            what the objective keeps between calls, such as the normaliser of noise contrastive estimation; what it
            learns is one for all.
        wanted: which plan is wanted of a batch, instead of what the objective itself wants.
        features: what a teacher knows of each item, (items, k), for an objective that asks for it.

    Raises:
        UsageError: something is wanted, and the objective takes no target; or there is a teacher, and it takes no
            features.
    """

    objective: nn.Module
    wanted: TargetOfBatch | None
    features: Tensor | None

    def __init__(
        self,
        objective: nn.Module,
        *,
        views: int = 2,
        wanted: TargetOfBatch | None = None,
        features: Tensor | None = None,
    ) -> None:
        super().__init__(objective)
        self._asked = accepted_keywords(objective)
        self.views = views
        self.wanted = wanted
        self.features = features
        for argument, name, given in (("target", "target", wanted), ("teacher", "features", features)):
            check(
                given is None or name in self._asked,
                f"{argument}: the call of {type(objective).__name__} has no keyword `{name}` to take it.",
            )
        kept = {} if self._loss is None else dict(self._loss.named_buffers())
        self._kept = {name: f"each_{name.replace('.', '_')}" for name in kept}
        for name, value in kept.items():
            self.register_buffer(self._kept[name], value.expand(views, views, *value.shape).clone())

    @property
    def _loss(self) -> Loss | None:
        """The objective, unless it is a module of one's own, which does not tell what it is."""
        return self.objective if isinstance(self.objective, Loss) else None

    def compare(self, batch: Batch, *embeddings: Tensor, turn: tuple[int, int] | None = None, **known: Any) -> Tensor:
        """Return the objective's value.

        Args:
            batch: the items.
            embeddings: what it is called on.
            turn: which view is compared with which; default: all at once.
            known: what is known beside the batch.
        """
        if batch.weights is not None and not bool(gather(batch.weights).any()):
            return torch.stack([z[:0].sum() for z in embeddings]).sum()  # nothing of this batch counts
        everything = self._known(batch, None if self.wanted is None else self.wanted(batch)) | known
        asked = {name: value for name, value in everything.items() if name in self._asked}
        # Entries are views of a buffer, so that what the call writes into them stays.
        kept = {} if turn is None else {name: self.get_buffer(own)[turn] for name, own in self._kept.items()}
        loss: Tensor = functional_call(self.objective, kept, embeddings, asked)
        return loss

    def turns(self, embedded: EmbeddedBatch) -> list[tuple[int, int]]:
        """Return which view is compared with which other one: of a core graph those turns that the first view is in."""
        core = self._loss is not None and self._loss.has_core_view
        return [turn for turn in embedded.turns() if not core or 0 in turn]

    def example(self, z: Tensor, batch: Batch, target: Target | None) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
        """Return with what the objective is called: views and keywords.

        Args:
            z: the embeddings of some items, (b, d), which stand for those of each view.
            batch: what is known of the items.
            target: what is wanted of them, instead of what the objective itself wants.
        """
        return (z, z.clone()), self._known(batch, target)  # one tensor would stand for a view beside itself

    def _known(self, batch: Batch, target: Target | None) -> dict[str, Any]:
        known: dict[str, Any] = {"labels": batch.labels, "domains": batch.domains, "weights": batch.weights}
        if target is not None:
            known["target"] = target
        if self.features is not None:
            known["features"] = of_batch(self.features, batch)
        if self._loss is not None and self._loss.requires_ids:
            known["ids"] = batch.ids
        return known

    def missing_views_blocker(self) -> str | None:
        """Return that the objective's call has no word for it, or that it compares no items."""
        if self._loss is not None and not self._loss.compares_items:
            return "the objective compares coordinates, each over the whole batch"
        return None if "present" in self._asked else "the objective's call has no keyword `present`"

    def doubt(self, items: int) -> str | None:
        """Return that an item has few others to be told from, where the objective tells them apart in the batch."""
        if items >= SMALL_BATCH or self._loss is None or not self._loss.has_negatives:
            return None
        return (
            f"batches of {items} are small: each item is told from {pluralize(items - 1, 'other')}; a larger "
            "--batch_size or --negatives queue brings more, --recipe byol needs none"
        )


class Together(ObjectiveLoss):
    """The objective of all views at once; of each pair of views, averaged, where the objective takes two."""

    def __init__(self, objective: nn.Module, **known: Any) -> None:
        super().__init__(objective, **known)
        self._takes_several = multi_view(objective)

    def forward(self, embedded: EmbeddedBatch) -> Tensor:
        """Return the loss of a batch."""
        queries = embedded.queries
        if self._takes_several or len(queries) == 2:
            return self.compare(embedded.batch, *queries, **embedded.facts())
        pairs = [(w, v) for v, w in self.turns(embedded) if w < v]  # each once, the one that has keys first
        return mean_of(
            [
                self.compare(embedded.batch, queries[v], queries[w], turn=(v, w), **embedded.facts(v, w))
                for v, w in pairs
            ]
        )

    def example(self, z: Tensor, batch: Batch, target: Target | None) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
        """Return all views, or two where the objective takes these at a time."""
        (z0, z1), known = super().example(z, batch, target)
        return (z,) * self.views if self._takes_several else (z0, z1), known


class QueryKeyLoss(ObjectiveLoss):
    """The objective of each view's queries against each other view's keys, averaged over the turns.

    Args:
        objective: is called on queries and keys, with ``negatives=`` where the memory has some; those that show the
            item of a row are left out of it.
        memory: negatives of earlier batches.
        known: as of `ObjectiveLoss`.

    Raises:
        UsageError: there is a memory, and the objective does not take negatives.
    """

    def __init__(self, objective: nn.Module, memory: Memory | None = None, **known: Any) -> None:
        super().__init__(objective, **known)
        self.memory = memory
        check(
            memory is None or "negatives" in self._asked,
            f"negatives: the call of {type(objective).__name__} has no keyword `negatives` to take them.",
        )

    def forward(self, embedded: EmbeddedBatch) -> Tensor:
        """Return the loss of a batch."""
        batch, keys = embedded.batch, embedded.keys
        losses = []
        for v, w in self.turns(embedded):
            positives = keys[w]
            known: dict[str, Any] = {}
            if self.memory is not None:
                positives, negatives = self.memory.offer(w, keys[w], batch.ids)
                if negatives is not None:
                    known = {"ids": batch.ids, "negatives": negatives.embeddings, "negative_ids": negatives.ids}
                    known["shared_negatives"] = True  # the memory is the same on every process
            known |= embedded.facts(v, w)
            losses.append(self.compare(batch, embedded.queries[v], positives, turn=(v, w), **known))
        if self.memory is not None:
            self.memory.keep(keys, batch.ids)
        return mean_of(losses)

    def example(self, z: Tensor, batch: Batch, target: Target | None) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
        """Return two views, and negatives of the next items where there is a memory."""
        views, known = super().example(z, batch, target)
        if self.memory is not None:
            known |= {"ids": batch.ids, "negatives": z, "negative_ids": batch.ids + 1}
        return views, known

    def missing_views_blocker(self) -> str | None:
        """Return that a memory keeps an embedding of each item."""
        return (
            super().missing_views_blocker() if self.memory is None else "a queue or a bank keeps all views of an item"
        )

    def doubt(self, items: int) -> str | None:
        """Return none where a memory brings negatives."""
        return super().doubt(items) if self.memory is None else None

    def after_step(self) -> None:
        """Write the step's keys into the memory."""
        if self.memory is not None:
            self.memory.after_step()


def accepted_keywords(objective: nn.Module) -> frozenset[str]:
    """Return the names of what the call of an objective takes."""
    return frozenset(inspect.signature(objective.forward).parameters)


def multi_view(objective: nn.Module) -> bool:
    """Return whether an objective takes any number of views at once, rather than two."""
    if isinstance(objective, Loss):
        return objective.multi_view
    kinds = [parameter.kind for parameter in inspect.signature(objective.forward).parameters.values()]
    return inspect.Parameter.VAR_POSITIONAL in kinds
