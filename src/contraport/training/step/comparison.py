"""How the embeddings of a batch become a loss: all views together, each from each other, by clusters, by decoding."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from contraport.data import Batch
from contraport.distributed import gather
from contraport.encoders import Decoder, Model
from contraport.errors import UsageError, check, unknown_name
from contraport.objectives import ByPlan, Cross, Loss, Objective, Target, assignments
from contraport.training.step.memory import Memory
from contraport.training.step.wanted import Wanted

FEW_ITEMS = 32
"""With fewer items in a batch there is little to tell an item from."""

RECONSTRUCTIONS = {"l1": F.l1_loss, "l2": F.mse_loss}


class Embedded(NamedTuple):
    """What the networks made of a batch.

    Attributes:
        batch: the items.
        views: their random views, floats.
        features: the encoder's output, ``(b, F)`` per view.
        queries: what the objective sees, ``(b, P)`` per view, with a gradient.
        keys: what each query is compared with, ``(b, P)`` for each of the first views: all, or the large ones of
            multi-crop.
        present: which items have which views, ``(b, views)``; None where all have all.
        weighting: by what plan items count, times the batch's weights; None where by these alone.
    """

    batch: Batch
    views: tuple[Tensor, ...]
    features: tuple[Tensor, ...]
    queries: tuple[Tensor, ...]
    keys: tuple[Tensor, ...]
    present: Tensor | None = None
    weighting: ByPlan | None = None

    def facts(self, *views: int) -> dict[str, Any]:
        """Return what an objective of some views is told beside the batch, of all views by default.

        That is which items lack a view, and by what they count where the batch does not say it.
        """
        told: dict[str, Any] = {}
        if self.present is not None:
            told["present"] = self.present[:, list(views)] if views else self.present
        if self.weighting is not None:
            told["weights"] = replace(self.weighting, given=self.batch.weights)
        return told

    def turns(self) -> Iterator[tuple[int, int]]:
        """Yield each view with each other view that has keys."""
        return ((v, w) for v, w in permutations(range(len(self.queries)), 2) if w < len(self.keys))


class StepComparison(nn.Module, ABC):
    """Makes the loss of a step.

    Attributes:
        objective: what is called on embeddings, or None where nothing is.
    """

    def __init__(self, objective: nn.Module | None) -> None:
        super().__init__()
        self.objective = objective

    @abstractmethod
    def forward(self, embedded: Embedded) -> Tensor:
        """Return the loss of a batch, a tensor without dimensions."""

    def doubt(self, items: int) -> str | None:
        """Return why batches of so many items are too small to learn from, and what to do; None where they are not."""
        return None

    def refuses_gaps(self) -> str | None:
        """Return why items may not lack a view, or None where they may."""
        return "this comparison needs all views of an item"

    def after_step(self) -> None:
        """Take in what the step brought."""


class Compared(StepComparison):
    """A comparison by an objective, which is told what it asks for of what is known of the items.

    Args:
        objective: what is called.
        views: how many views there are. Where two of them are compared at a time, each ordered pair has its own of
            what the objective keeps between calls, such as the normaliser of noise contrastive estimation; what it
            learns is one for all.
        wanted: which plan is wanted of a batch, instead of what the objective itself wants.

    Raises:
        UsageError: something is wanted, and the objective takes no target.
    """

    objective: nn.Module
    wanted: Wanted | None

    def __init__(self, objective: nn.Module, *, views: int = 2, wanted: Wanted | None = None) -> None:
        super().__init__(objective)
        self._asked = taken_by(objective)
        self.views = views
        self.wanted = wanted
        check(
            wanted is None or "target" in self._asked,
            f"target: the call of {type(objective).__name__} has no keyword `target` to take it.",
        )
        kept = dict(objective.named_buffers()) if isinstance(objective, Loss) else {}
        self._kept = {name: f"each_{name.replace('.', '_')}" for name in kept}
        for name, value in kept.items():
            self.register_buffer(self._kept[name], value.expand(views, views, *value.shape).clone())

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

    def example(self, z: Tensor, batch: Batch, target: Target | None) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
        """Return with what the objective is called: views and keywords.

        Args:
            z: the embeddings of some items, (b, d), which stand for those of each view.
            batch: what is known of the items.
            target: what is wanted of them, instead of what the objective itself wants.
        """
        return (z, z), self._known(batch, target)

    def _known(self, batch: Batch, target: Target | None) -> dict[str, Any]:
        known: dict[str, Any] = {"labels": batch.labels, "domains": batch.domains, "weights": batch.weights}
        if target is not None:
            known["target"] = target
        if isinstance(self.objective, Loss) and self.objective.by_item:
            known["ids"] = batch.ids
        return known

    def refuses_gaps(self) -> str | None:
        """Return that the objective's call has no word for it, or that it compares no items."""
        if isinstance(self.objective, Loss) and not self.objective.of_items:
            return "the objective compares coordinates, each over the whole batch"
        return None if "present" in self._asked else "the objective's call has no keyword `present`"

    def doubt(self, items: int) -> str | None:
        """Return that an item has few others to be told from, where the objective tells them apart in the batch."""
        if items >= FEW_ITEMS or not (isinstance(self.objective, Loss) and self.objective.tells_items_apart):
            return None
        return (
            f"batches of {items} are small: each item is told from {items - 1} others; a larger --batch_size or "
            "--negatives queue brings more, --recipe byol needs none"
        )


class Together(Compared):
    """The objective of all views at once; of each pair of views, averaged, where the objective takes two."""

    def __init__(self, objective: nn.Module, *, views: int = 2, wanted: Wanted | None = None) -> None:
        super().__init__(objective, views=views, wanted=wanted)
        self._takes_several = takes_several(objective)

    def forward(self, embedded: Embedded) -> Tensor:
        """Return the loss of a batch."""
        queries = embedded.queries
        if self._takes_several or len(queries) == 2:
            return self.compare(embedded.batch, *queries, **embedded.facts())
        pairs = [(w, v) for v, w in embedded.turns() if w < v]
        return _mean(
            [
                self.compare(embedded.batch, queries[v], queries[w], turn=(v, w), **embedded.facts(v, w))
                for v, w in pairs
            ]
        )

    def example(self, z: Tensor, batch: Batch, target: Target | None) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
        """Return all views, or two where the objective takes these at a time."""
        (z0, z1), known = super().example(z, batch, target)
        return (z,) * self.views if self._takes_several else (z0, z1), known


class InTurn(Compared):
    """The objective of each view's queries against each other view's keys, averaged over the turns.

    Args:
        objective: is called on queries and keys, with ``negatives=`` where the memory has some; those that show the
            item of a row are left out of it.
        memory: negatives of earlier batches.
        views: how many views there are.
        wanted: which plan is wanted of a batch, instead of what the objective itself wants.

    Raises:
        UsageError: there is a memory, and the objective does not take negatives.
    """

    def __init__(
        self,
        objective: nn.Module,
        memory: Memory | None = None,
        *,
        views: int = 2,
        wanted: Wanted | None = None,
    ) -> None:
        super().__init__(objective, views=views, wanted=wanted)
        self.memory = memory
        check(
            memory is None or "negatives" in self._asked,
            f"negatives: the call of {type(objective).__name__} has no keyword `negatives` to take them.",
        )

    def forward(self, embedded: Embedded) -> Tensor:
        """Return the loss of a batch."""
        batch, keys = embedded.batch, embedded.keys
        losses = []
        for v, w in embedded.turns():
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
        return _mean(losses)

    def example(self, z: Tensor, batch: Batch, target: Target | None) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
        """Return two views, and negatives of the next items where there is a memory."""
        views, known = super().example(z, batch, target)
        if self.memory is not None:
            known |= {"ids": batch.ids, "negatives": z, "negative_ids": batch.ids + 1}
        return views, known

    def refuses_gaps(self) -> str | None:
        """Return that a memory keeps an embedding of each item."""
        return super().refuses_gaps() if self.memory is None else "a queue or a bank keeps all views of an item"

    def doubt(self, items: int) -> str | None:
        """Return none where a memory brings negatives."""
        return super().doubt(items) if self.memory is None else None

    def after_step(self) -> None:
        """Write the step's keys into the memory."""
        if self.memory is not None:
            self.memory.after_step()


class Clustered(Compared):
    """The objective of each view's queries against prototypes; its target is to which another view's keys belong.

    The objective keeps its kernel, plan and divergence, and compares items with prototypes. To which prototypes keys
    belong is a balanced plan, so that none takes all; see `contraport.objectives.assignments`.

    Args:
        objective: a single `Objective`.
        prototypes: how many.
        dimensions: of an embedding.
        views: how many views there are.

    Raises:
        UsageError: another kind of objective.

    Source: Caron et al. (2020), Unsupervised learning of visual features by contrasting cluster assignments (SwAV),
    eq. 2-5; the views from which assignments are taken are those that have keys (section 3.2).
    """

    def __init__(self, objective: nn.Module, prototypes: int, dimensions: int, *, views: int = 2) -> None:
        if not isinstance(objective, Objective):
            raise UsageError(f"prototypes: expected a single Objective to compare them by, got {objective!r}.")
        layout = Cross(symmetric=False, shared_columns=True)
        kernel, constraint, divergence = objective.kernel, objective.constraint, objective.divergence
        compared = Objective(layout, kernel, constraint, objective.target, divergence, objective.penalties)
        super().__init__(compared, views=views)
        self.prototypes = nn.Parameter(F.normalize(torch.randn(prototypes, dimensions)))

    def forward(self, embedded: Embedded) -> Tensor:
        """Return the loss of a batch."""
        targets = [assignments(key, self.prototypes) for key in embedded.keys]
        return _mean(
            [
                self.compare(embedded.batch, embedded.queries[v], self.prototypes, turn=(v, w), target=targets[w])
                for v, w in embedded.turns()
            ]
        )

    def example(self, z: Tensor, batch: Batch, target: Target | None) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
        """Return a view and the prototypes, to all of which each item belongs alike."""
        _, known = super().example(z, batch, target)
        prototypes = self.prototypes.detach()
        return (z, prototypes), known | {"target": torch.ones(len(z), len(prototypes))}

    def refuses_gaps(self) -> str | None:
        """Return that what an item is assigned to comes from its other view."""
        return "to which prototypes an item belongs is told by its other views"

    def doubt(self, items: int) -> str | None:
        """Return that prototypes are more than the items that are assigned to them in equal parts."""
        if items >= len(self.prototypes):
            return None
        return (
            f"batches of {items} are small for {len(self.prototypes)} prototypes, each of which gets an equal part; "
            "a larger --batch_size or fewer --prototypes help"
        )

    @torch.no_grad()
    def after_step(self) -> None:
        """Put the prototypes back on the sphere."""
        self.prototypes.copy_(F.normalize(self.prototypes))


class Reconstructed(StepComparison):
    """The predictive baseline: each view, standardised, decoded from the features of each other, and nothing compared.

    Args:
        model: whose features are decoded.
        shapes: of each view.
        loss: ``"l1"``, the mean absolute error, or ``"l2"``, the mean squared error.

    Raises:
        UsageError: an unknown loss.

    Source: the baseline of Tian, Krishnan and Isola (2020), Contrastive multiview coding, section 3.1.
    """

    def __init__(self, model: Model, shapes: Sequence[tuple[int, ...]], loss: str) -> None:
        super().__init__(None)
        if loss not in RECONSTRUCTIONS:
            raise unknown_name("predict", loss, RECONSTRUCTIONS)
        self._error = RECONSTRUCTIONS[loss]
        self._standardise = tuple(model.tower(view).standardise for view in range(len(shapes)))
        self.decoders = nn.ModuleDict(
            {
                f"{v}-{w}": Decoder(model.tower(v).num_features, shapes[w])
                for v, w in permutations(range(len(shapes)), 2)
            }
        )

    def forward(self, embedded: Embedded) -> Tensor:
        """Return the loss of a batch."""
        wanted = [standardise(view) for standardise, view in zip(self._standardise, embedded.views, strict=True)]
        features = embedded.features
        return _mean([self._error(self.decoders[f"{v}-{w}"](features[v]), wanted[w]) for v, w in embedded.turns()])


def taken_by(objective: nn.Module) -> frozenset[str]:
    """Return the names of what the call of an objective takes."""
    return frozenset(inspect.signature(objective.forward).parameters)


def takes_several(objective: nn.Module) -> bool:
    """Return whether an objective takes any number of views at once, rather than two."""
    if isinstance(objective, Loss):
        return objective.takes_several
    kinds = [parameter.kind for parameter in inspect.signature(objective.forward).parameters.values()]
    return inspect.Parameter.VAR_POSITIONAL in kinds


def _mean(losses: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(losses)).mean()
