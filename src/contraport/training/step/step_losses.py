"""Contrastive, prototype, distillation and reconstruction losses of a training step."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from contraport._utils.formatting import format_keyword_or_flag, format_options, pluralize
from contraport.data import Batch
from contraport.distributed import current_processes, gather
from contraport.encoders import Decoder, Model
from contraport.errors import UsageError, check
from contraport.objectives import (
    Cross,
    Layout,
    Loss,
    NestedCoordinates,
    Objective,
    Target,
    WeightsFromPlan,
    soft_assignments,
)
from contraport.objectives.inputs import ExtraNegatives
from contraport.training.step.embedding_memory import EmbeddingMemory
from contraport.training.step.target_parser import select_batch_rows

ObjectiveCallArguments = tuple[tuple[Tensor, ...], dict[str, Any]]
"""Embeddings of the views and keyword arguments, as passed to an objective."""


class EmbeddedBatch(NamedTuple):
    """Batch with its random views, their encoder features and projections.

    Attributes:
        batch: raw items of the batch.
        input_views: random views of the items, one float tensor per view.
        features: encoder features of the views, ``(b, F)`` each.
        queries: projections (or predictions) of all views, ``(b, P)`` each, with gradients.
        key_projections: projections that queries are compared with, ``(b, P)`` each: of all views, or of the first,
            large ones of multi-crop.
        present: mask of the views that each item has, ``(b, views)``; None if all items have all views.
        weights_from_plan: sample weights derived from the plan of the batch; None if the option is not used.
        mined_negatives: those of each item, for each view that has keys, with embeddings ``(b, k, P)`` and ids
            ``(b, k)``; empty without mined negatives.
    """

    batch: Batch
    input_views: tuple[Tensor, ...]
    features: tuple[Tensor, ...]
    queries: tuple[Tensor, ...]
    key_projections: tuple[Tensor, ...]
    present: Tensor | None = None
    weights_from_plan: WeightsFromPlan | None = None
    mined_negatives: tuple[ExtraNegatives, ...] = ()

    def present_and_plan_weights_kwargs(self, *views: int) -> dict[str, Any]:
        """Return keyword arguments of a loss: the mask of present views, and item weights."""
        kwargs: dict[str, Any] = {}
        if self.present is not None:
            kwargs["present"] = self.present[:, list(views)] if views else self.present
        if self.weights_from_plan is not None:
            kwargs["weights"] = replace(self.weights_from_plan, batch_item_weights=self.batch.weights)
        return kwargs

    def list_query_key_view_pairs(self, *, only_pairs_with_core_view: bool = False) -> list[tuple[int, int]]:
        """Return the compared pairs (query view, key view), as view indices.

        With `only_pairs_with_core_view` one of the two is the first view.
        """
        pairs = [(v, w) for v, w in permutations(range(len(self.queries)), 2) if w < len(self.key_projections)]
        return [pair for pair in pairs if not only_pairs_with_core_view or 0 in pair]


class StepLoss(nn.Module, ABC):
    """Base class of losses of a training step, computed from an embedded batch.

    Attributes:
        objective: objective that is called on the embeddings; None with the option `predict`.
    """

    def __init__(self, objective: nn.Module | None) -> None:
        super().__init__()
        self.objective = objective

    @abstractmethod
    def forward(self, embedded: EmbeddedBatch) -> Tensor:
        """Return the loss of a batch, a tensor without dimensions."""

    def small_batch_warning(self, batch_size: int, num_items: int) -> str | None:
        """Return a warning if a batch size is too small for the dataset, else None."""
        return None

    def missing_views_unsupported_reason(self) -> str | None:
        """Return why items with missing views are unsupported, or None if supported."""
        return "predictive learning requires all views of each item"

    def after_step(self) -> None:
        """Update the state of the loss after an optimizer step."""


class ObjectiveStepLoss(StepLoss, ABC):
    """Base class of step losses that call an objective.

    Args:
        objective: the objective.
        views: number of views. Where the objective is called on two of them at a time, each ordered pair of views has
            its own buffers, such as the normalizer of noise contrastive estimation; parameters are shared.
        target_of_batch: returns the target plan of a batch; default: that of the objective.
        teacher_features: features of a teacher per training item, ``(items, k)`` or ``(items, views, k)``.
        column_weights: weight of each training item as a column, ``(items,)``; see `Loss.forward`.
    """

    objective: nn.Module
    computes_target_matrix: ClassVar[bool] = False  # in `forward`; a trial call gets a matrix of ones

    def __init__(
        self,
        objective: nn.Module,
        *,
        views: int = 2,
        target_of_batch: Callable[[Batch], Target] | None = None,
        teacher_features: Tensor | None = None,
        column_weights: Tensor | None = None,
    ) -> None:
        super().__init__(objective)
        self._accepted = get_forward_parameter_names(objective)
        self._has_core_view = isinstance(objective, Loss) and objective.has_core_view
        self.views = views
        self.target_of_batch = target_of_batch
        self.teacher_features = teacher_features
        self.column_weights = column_weights
        for argument, keyword, value in (
            ("target", "target", target_of_batch),
            ("teacher", "features", teacher_features),
            ("log_q", "column_weights", column_weights),
        ):
            self._check_accepts_keyword(argument, keyword, value)
        buffers = dict(objective.named_buffers()) if isinstance(objective, Loss) else {}
        self._pair_buffers = {name: f"each_{name.replace('.', '_')}" for name in buffers}
        for name, value in buffers.items():
            self.register_buffer(self._pair_buffers[name], value.expand(views, views, *value.shape).clone())

    def _check_accepts_keyword(self, argument: str, keyword: str, value: object) -> None:
        """Raise `UsageError` if the objective does not accept a given keyword argument."""
        name = type(self.objective).__name__
        message = f"{argument}: not supported by {name}, whose call has no keyword `{keyword}`."
        check(value is None or keyword in self._accepted, message, "unsupported")

    def call_objective(
        self, batch: Batch, *embeddings: Tensor, pair: tuple[int, int] | None = None, **kwargs: Any
    ) -> Tensor:
        """Call the objective with the keyword arguments that it accepts.

        `pair` is the ordered pair of views that the embeddings are, which selects buffers; None: all views.
        """
        if batch.weights is not None and not bool(gather(batch.weights).any()):
            return torch.stack([z[:0].sum() for z in embeddings]).sum()  # all weights are 0: no loss, gradients of 0
        target = None if self.target_of_batch is None else self.target_of_batch(batch)
        available = self._build_batch_kwargs(batch, target) | kwargs
        if isinstance(self.objective, Loss):
            available = self.objective.without_unread_labels(available)
        accepted = {name: value for name, value in available.items() if name in self._accepted}
        # Entries are views of a buffer, so that in-place updates by the call persist.
        buffers = {} if pair is None else {name: self.get_buffer(own)[pair] for name, own in self._pair_buffers.items()}
        loss: Tensor = functional_call(self.objective, buffers, embeddings, accepted)
        return loss

    def build_trial_arguments(self, z: Tensor, batch: Batch, target: Target | None) -> ObjectiveCallArguments:
        """Return arguments for a trial call of the objective on random embeddings `z`."""
        kwargs = self._build_batch_kwargs(batch, target)
        if self.computes_target_matrix:
            kwargs["target"] = torch.ones(len(z), len(z))
        return (z, z.clone()), kwargs  # cloned: one tensor twice would be one view twice

    def _build_batch_kwargs(self, batch: Batch, target: Target | None) -> dict[str, Any]:
        """Return the keyword arguments that a batch provides for the objective."""
        kwargs: dict[str, Any] = {"labels": batch.labels, "domains": batch.domains, "weights": batch.weights}
        if target is not None:
            kwargs["target"] = target
        if self.teacher_features is not None:
            kwargs["features"] = select_batch_rows(self.teacher_features, batch)
        if self.column_weights is not None:
            kwargs["column_weights"] = select_batch_rows(self.column_weights, batch)
        if isinstance(self.objective, Loss) and self.objective.requires_ids:
            kwargs["ids"] = batch.ids
        return kwargs

    def missing_views_unsupported_reason(self) -> str | None:
        if isinstance(self.objective, Loss) and not self.objective.compares_items:
            return "the objective compares coordinates, each over the whole batch"
        return None if "present" in self._accepted else "the call of the objective has no keyword `present`"

    def small_batch_warning(self, batch_size: int, num_items: int) -> str | None:
        has_negatives = isinstance(self.objective, Loss) and self.objective.has_negatives
        if batch_size >= 32 or not has_negatives:
            return None
        larger = f"Increase {format_keyword_or_flag('batch_size')}, add" if batch_size < num_items else "Add"
        return (
            f"small batches: each item has {pluralize(batch_size - 1, 'negative')}. {larger} "
            f"{format_options(negatives='queue')}, or use {format_options(recipe='byol')}, which has no negatives"
        )


class AllViewsOrPairwiseLoss(ObjectiveStepLoss):
    """Loss of all views at once, or averaged over pairs of views."""

    def __init__(self, objective: nn.Module, **kwargs: Any) -> None:
        super().__init__(objective, **kwargs)
        if isinstance(objective, Loss):
            self._takes_all_views = objective.takes_all_views
        else:  # a custom module accepts any number of views at once if its call has *args
            kinds = [parameter.kind for parameter in inspect.signature(objective.forward).parameters.values()]
            self._takes_all_views = inspect.Parameter.VAR_POSITIONAL in kinds

    def forward(self, embedded: EmbeddedBatch) -> Tensor:
        batch, queries = embedded.batch, embedded.queries
        if self._takes_all_views or len(queries) == 2:
            return self.call_objective(batch, *queries, **embedded.present_and_plan_weights_kwargs())
        losses = [
            self.call_objective(
                batch, queries[v], queries[w], pair=(v, w), **embedded.present_and_plan_weights_kwargs(v, w)
            )
            for w, v in embedded.list_query_key_view_pairs(only_pairs_with_core_view=self._has_core_view)
            if v < w  # each unordered pair once; v has keys, as the keys are those of the first views
        ]
        return torch.stack(losses).mean()

    def build_trial_arguments(self, z: Tensor, batch: Batch, target: Target | None) -> ObjectiveCallArguments:
        pair, kwargs = super().build_trial_arguments(z, batch, target)
        return (z,) * self.views if self._takes_all_views else pair, kwargs


class QueryKeyLoss(ObjectiveStepLoss):
    """Loss of queries against keys, averaged over ordered pairs of views.

    Args:
        objective: called on queries and keys, and with ``negatives=`` if the memory or the batch has some. Negatives
            that are the item of a row are excluded for this row.
        memory: embeddings of earlier batches.
        has_mined_negatives: whether batches have mined negatives of each item.
        kwargs: see `ObjectiveStepLoss`.
    """

    def __init__(
        self,
        objective: nn.Module,
        memory: EmbeddingMemory | None = None,
        *,
        has_mined_negatives: bool = False,
        **kwargs: Any,
    ) -> None:
        if has_mined_negatives and isinstance(objective, Objective):
            # Each direction has negatives of its own: both directions in one call would get those of one view, and
            # compare a view with itself.
            objective = objective.with_layout(_make_one_directional(objective.layout))
        super().__init__(objective, **kwargs)
        self.memory = memory
        self.has_mined_negatives = has_mined_negatives
        self._check_accepts_keyword("negatives", "negatives", memory is not None or has_mined_negatives or None)

    def forward(self, embedded: EmbeddedBatch) -> Tensor:
        batch, keys = embedded.batch, embedded.key_projections
        losses = []
        for v, w in embedded.list_query_key_view_pairs(only_pairs_with_core_view=self._has_core_view):
            positives = keys[w]
            kwargs: dict[str, Any] = {}
            if self.memory is not None:
                positives, negatives = self.memory.get_positives_and_negatives(w, keys[w], batch.ids)
                if negatives is not None:
                    kwargs = {"ids": batch.ids, "negatives": negatives.embeddings, "negative_ids": negatives.ids}
                    kwargs["shared_negatives"] = True  # the memory is the same on every process
            if embedded.mined_negatives:
                negatives = embedded.mined_negatives[w]
                kwargs = {"ids": batch.ids, "negatives": negatives.embeddings, "negative_ids": negatives.ids}
            kwargs |= embedded.present_and_plan_weights_kwargs(v, w)
            losses.append(self.call_objective(batch, embedded.queries[v], positives, pair=(v, w), **kwargs))
        if self.memory is not None:
            self.memory.stage(keys, batch.ids)
        return torch.stack(losses).mean()

    def build_trial_arguments(self, z: Tensor, batch: Batch, target: Target | None) -> ObjectiveCallArguments:
        pair, kwargs = super().build_trial_arguments(z, batch, target)
        if self.memory is not None:
            kwargs |= {"ids": batch.ids, "negatives": z, "negative_ids": batch.ids + 1}
        if self.has_mined_negatives:
            kwargs |= {"ids": batch.ids, "negatives": z[:, None], "negative_ids": batch.ids[:, None] + 1}
        return pair, kwargs

    def missing_views_unsupported_reason(self) -> str | None:
        if self.has_mined_negatives:
            return "negatives are mined among all views of all items"
        if self.memory is not None:
            return "a queue or a bank stores all views of items"
        return super().missing_views_unsupported_reason()

    def small_batch_warning(self, batch_size: int, num_items: int) -> str | None:
        return super().small_batch_warning(batch_size, num_items) if self.memory is None else None

    def after_step(self) -> None:
        """Write the embeddings of the last step to the queue or memory bank."""
        if self.memory is not None:
            self.memory.write_staged()


def _make_one_directional(layout: Layout) -> Layout:
    """Restrict a symmetric layout to one direction, from view 0 to view 1."""
    if isinstance(layout, NestedCoordinates):
        return replace(layout, layout=_make_one_directional(layout.layout))
    return replace(layout, symmetric=False) if isinstance(layout, Cross) else layout


class PrototypeLoss(ObjectiveStepLoss):
    """Loss of each view against learned prototypes (SwAV).

    The target is the prototype assignment of another view. Kernel, plan and divergence are those of the objective. Keys
    are assigned by a balanced plan, so that no prototype receives all items; see
    `contraport.objectives.soft_assignments`.

    Args:
        objective: a single `Objective`.

    Source: Caron et al. (2020), Unsupervised learning of visual features by contrasting cluster assignments (SwAV),
    eq. 2-5; assignments are taken from the views that have keys (section 3.2).
    """

    def __init__(self, objective: nn.Module, num_prototypes: int, dimensions: int, *, views: int = 2) -> None:
        super().__init__(with_layout_against_prototypes(objective), views=views)
        self.prototypes = nn.Parameter(F.normalize(torch.randn(num_prototypes, dimensions)))

    def forward(self, embedded: EmbeddedBatch) -> Tensor:
        batch, queries = embedded.batch, embedded.queries
        targets = [soft_assignments(key, self.prototypes) for key in embedded.key_projections]
        losses = [
            self.call_objective(batch, queries[v], self.prototypes, pair=(v, w), target=targets[w])
            for v, w in embedded.list_query_key_view_pairs()
        ]
        return torch.stack(losses).mean()

    def build_trial_arguments(self, z: Tensor, batch: Batch, target: Target | None) -> ObjectiveCallArguments:
        _, kwargs = super().build_trial_arguments(z, batch, target)
        prototypes = self.prototypes.detach()
        return (z, prototypes), kwargs | {"target": torch.ones(len(z), len(prototypes))}

    def missing_views_unsupported_reason(self) -> str | None:
        return "prototypes are assigned by the other views of an item"

    def small_batch_warning(self, batch_size: int, num_items: int) -> str | None:
        if batch_size >= len(self.prototypes):
            return None
        return (
            f"small batches: {batch_size} items for {len(self.prototypes)} prototypes, each of which is assigned "
            f"an equal part. "
            f"Increase {format_keyword_or_flag('batch_size')} or decrease {format_keyword_or_flag('prototypes')}"
        )

    @torch.no_grad()
    def after_step(self) -> None:
        """Normalize the prototypes."""
        self.prototypes.copy_(F.normalize(self.prototypes))


class FixedTeacherQueueDistillationLoss(ObjectiveStepLoss):
    """Distillation of a teacher's similarities between a batch and recent items in a queue.

    The features of the batch and of the most recent items before it are pseudo-classes, each with its own feature as
    the weights of the classifier. The target is the softmax of the teacher's similarities to them, the plan that of the
    student's, at one temperature; kernel, constraint and divergence are those of the objective.

    Args:
        objective: a single `Objective`.
        teacher_features: features of a teacher per training item, ``(items, P)``, of the size of the projections.

    Source: the method "distillationv1" of LightlyTrain, after Beyer et al. (2022), Knowledge distillation: a good
    teacher is patient and consistent. There the teacher embeds the mixup view of the student; here it embeds the item.
    """

    computes_target_matrix: ClassVar[bool] = True
    queue: Tensor
    written: Tensor

    def __init__(self, objective: nn.Module, teacher_features: Tensor, queue_size: int, *, views: int = 2) -> None:
        super().__init__(with_layout_against_prototypes(objective), views=views)
        self._features = F.normalize(teacher_features, dim=1)
        self._staged: list[Tensor] = []
        self.register_buffer("queue", teacher_features.new_zeros(queue_size, teacher_features.shape[1]))
        self.register_buffer("written", torch.tensor(0))

    def forward(self, embedded: EmbeddedBatch) -> Tensor:
        batch = embedded.batch
        own = select_batch_rows(self._features, batch)
        gathered = gather(own)
        size = len(self.queue)
        classes = torch.cat([gathered, self.queue[: int(self.written)]])[:size]
        self._staged.append(gathered)
        assert isinstance(self.objective, Loss)
        target = (own @ classes.T / self.objective.temperature).softmax(1)
        losses = [
            self.call_objective(batch, query, classes, pair=(view, view), target=target)
            for view, query in enumerate(embedded.queries)
        ]
        return torch.stack(losses).mean()

    def missing_views_unsupported_reason(self) -> str | None:
        return "each view of an item predicts the teacher's features"

    def small_batch_warning(self, batch_size: int, num_items: int) -> str | None:
        return None  # the queue makes small batches sufficient

    @torch.no_grad()
    def after_step(self) -> None:
        """Put the last step's teacher features at the front of the queue."""
        size = len(self.queue)
        recent = torch.cat([*reversed(self._staged), self.queue[: int(self.written)]])[:size]
        self.queue[: len(recent)] = recent
        self.written.fill_(len(recent))
        self._staged.clear()


def with_layout_against_prototypes(objective: nn.Module) -> Objective:
    """Return the objective, changed so that it compares each embedding with all prototypes."""
    if not isinstance(objective, Objective):
        raise UsageError(f"prototypes: requires a single Objective, got {objective!r}.", kind="no_single_objective")
    layout: Layout = Cross(symmetric=False, shared_columns=True)
    if isinstance(objective.layout, NestedCoordinates):
        layout = replace(objective.layout, layout=layout)
    return objective.with_layout(layout)


RECONSTRUCTION_LOSS_BY_NAME = {"l1": F.l1_loss, "l2": F.mse_loss}
"""Loss functions of reconstructed views, by the value of the option `predict`."""


class CrossViewInputReconstructionLoss(StepLoss):
    """Baseline loss of reconstructing each view from every other view's features.

    Args:
        error: ``"l1"``, mean absolute error, or ``"l2"``, mean squared error.

    Source: the baseline of Tian, Krishnan and Isola (2020), Contrastive multiview coding, section 3.1.
    """

    def __init__(self, model: Model, shapes: Sequence[tuple[int, ...]], error: str) -> None:
        super().__init__(None)
        self._error = RECONSTRUCTION_LOSS_BY_NAME[error]
        self._normalizers = tuple(model.tower(view).standardize for view in range(len(shapes)))
        pairs = permutations(range(len(shapes)), 2)
        decoders = {f"{v}-{w}": Decoder(model.tower(v).num_features, shapes[w]) for v, w in pairs}
        self.decoders = nn.ModuleDict(decoders)

    def forward(self, embedded: EmbeddedBatch) -> Tensor:
        targets = [normalize(view) for normalize, view in zip(self._normalizers, embedded.input_views, strict=True)]
        features = embedded.features
        losses = [
            self._error(self.decoders[f"{v}-{w}"](features[v]), targets[w])
            for v, w in embedded.list_query_key_view_pairs()
        ]
        mean, processes = torch.stack(losses).mean(), current_processes()
        # The mean over the items of all processes, whose parts of a batch may differ in size by one.
        items = mean.new_tensor(float(len(targets[0])))
        return processes.all_reduce(mean * (items / processes.all_reduce(items)))


def get_forward_parameter_names(objective: nn.Module) -> frozenset[str]:
    """Return the parameter names of the `forward` method of an objective."""
    return frozenset(inspect.signature(objective.forward).parameters)
