"""Training module, which makes random views, embeds them and computes the loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from contraport.data import Batch, LocalBatchOffset, Views
from contraport.encoders import Model
from contraport.objectives import Loss, WeightsFromPlan
from contraport.objectives.inputs import ExtraNegatives
from contraport.objectives.loss_schedules import LossSchedule
from contraport.seeding import derive_torch_seed, seed_torch_generators
from contraport.training.step.batch_embedding import ViewsToEmbeddings, embed_in_chunks, embed_or_zero_and_update_mask
from contraport.training.step.momentum_and_predictor import MomentumEncoder, Predictor
from contraport.training.step.step_losses import EmbeddedBatch, StepLoss


class MinedBatchParts(NamedTuple):
    """Parts of a batch: its items, the items with mined negatives, the negatives' ids.

    In each view of `each_item_then_negatives`, an item is followed by its k negatives that were mined for this view.
    Ids are ``(b, k)`` per set of negatives.
    """

    items: Batch
    each_item_then_negatives: Batch
    negative_ids: tuple[Tensor, ...]


class MinedBatchLayout(NamedTuple):
    """Row order of a batch in which mined negatives follow each item.

    Attributes:
        num_negatives_per_set: number of negatives of an item in a set.
        num_sets_per_item: number of sets of negatives of an item: one for data of one stored view, else one per view.
    """

    num_negatives_per_set: int
    num_sets_per_item: int

    def split_mined_batch(self, batch: Batch) -> MinedBatchParts:
        """Separate the items of a batch from their mined negatives.

        >>> rows = torch.tensor([0, 5, 6, 1, 7, 8])
        >>> parts = MinedBatchLayout(1, num_sets_per_item=2).split_mined_batch(Batch((rows, rows), None, None, rows))
        >>> parts.items.ids.tolist(), [view.tolist() for view in parts.each_item_then_negatives.views]
        ([0, 1], [[0, 5, 1, 7], [0, 6, 1, 8]])
        >>> [ids.flatten().tolist() for ids in parts.negative_ids]
        [[5, 7], [6, 8]]
        """
        period = 1 + self.num_sets_per_item * self.num_negatives_per_set
        first: dict[str, Any] = {
            name: value[::period] for name, value in batch._asdict().items() if isinstance(value, Tensor)
        }
        items = batch._replace(views=tuple(view[::period] for view in batch.views), **first)
        columns_by_set = [
            [0, *range(1 + start, 1 + start + self.num_negatives_per_set)]
            for start in range(0, period - 1, self.num_negatives_per_set)
        ]
        views = tuple(
            values.unflatten(0, (-1, period))[:, columns_by_set[view % self.num_sets_per_item]].flatten(0, 1)
            for view, values in enumerate(batch.views)
        )
        by_item = batch.ids.unflatten(0, (-1, period))
        ids = tuple(by_item[:, columns[1:]] for columns in columns_by_set)
        return MinedBatchParts(items, batch._replace(views=views), ids)

    def with_extracted_negatives(
        self, embedded: EmbeddedBatch, items: Batch, negative_ids: Sequence[Tensor]
    ) -> EmbeddedBatch:
        """Return an embedded batch with its negatives moved from its rows to `mined_negatives`."""
        period = 1 + self.num_negatives_per_set
        parts: dict[str, Any] = {
            name: tuple(rows[::period] for rows in getattr(embedded, name))
            for name in ("input_views", "features", "queries", "key_projections")
        }
        negatives = tuple(
            ExtraNegatives(keys.unflatten(0, (-1, period))[:, 1:], negative_ids[view % self.num_sets_per_item])
            for view, keys in enumerate(embedded.key_projections)
        )
        return embedded._replace(batch=items, mined_negatives=negatives, **parts)


class EncoderFreezer:
    """Freezes encoders, and sets their batch norm to evaluation mode.

    Frozen parameters get no gradient.

    Args:
        frozen_steps: number of first steps; None: the whole training. Then they are frozen at once, so that the
            optimizer does not include them.
        momentum_encoders: momentum copies of the encoders, without gradients; their batch norm is frozen too.
        lora_encoders: encoders of which only LoRA adapters are trained; their batch norm always stays frozen.

    >>> encoder = nn.BatchNorm1d(3)
    >>> freezer = EncoderFreezer([encoder], frozen_steps=2)
    >>> freezer.freeze_or_unfreeze(1)
    >>> encoder.training, encoder.weight.requires_grad
    (False, False)
    >>> freezer.freeze_or_unfreeze(2)
    >>> encoder.training, encoder.weight.requires_grad
    (True, True)
    """

    def __init__(
        self,
        encoders: Sequence[nn.Module],
        frozen_steps: int | None,
        momentum_encoders: Sequence[nn.Module] = (),
        lora_encoders: Sequence[nn.Module] = (),
    ) -> None:
        self.encoders = tuple(encoders)
        self.frozen_steps = frozen_steps
        self.momentum_encoders = tuple(momentum_encoders)
        self.lora_encoders = tuple(lora_encoders)
        if frozen_steps is None:
            self.freeze_or_unfreeze(0)

    def freeze_or_unfreeze(self, step: int) -> None:
        """Freeze or unfreeze the encoders, depending on the step.

        It is called at each step, since `train()` may have been called on the module in between.
        """
        frozen = self.frozen_steps is None or step < self.frozen_steps
        for encoder in self.encoders:
            encoder.train(not frozen).requires_grad_(not frozen)
        for encoder in self.momentum_encoders:
            encoder.train(not frozen)
        for encoder in self.lora_encoders:
            for part in encoder.modules():  # not cached: install_sync_batch_norm_on_any_device replaces modules
                if isinstance(part, _BatchNorm):
                    part.eval()


class TrainingModule(nn.Module):
    """Module that computes the training loss of a batch.

    It holds augmentation, encoders, objective, memory and momentum encoder. Call it with a batch and the step number,
    take an optimizer step, then call `after_step`. All randomness is a function of seed and step. Views and negatives
    do not depend on the number of processes; dropout differs between processes. Torch's global random state is not
    restored.

    Args:
        comparison: computes the loss of embeddings.
        momentum_encoder: computes the keys; default: the model does.
        predictor: prediction head on the projections; keys of the model are then detached.
        schedules: schedules of the objective's properties.
        weights_from_plan_schedule: function from a step to the weights by the batch's plan; default: none.
        cache_chunk: maximum number of items, over all processes, that are encoded at a time; default: the batch.
        encoder_freezer: freezes the encoders; default: they are trained.
        mined_layout: layout of batches with mined negatives; default: they have none.

    Attributes:
        uses_cached_features: whether batches hold cached features of several draws of each view, ``(b, draws, F)``.
    """

    def __init__(
        self,
        model: Model,
        views: Views,
        comparison: StepLoss,
        *,
        seed: int,
        momentum_encoder: MomentumEncoder | None = None,
        predictor: Predictor | None = None,
        schedules: Sequence[LossSchedule] = (),
        weights_from_plan_schedule: Callable[[int], WeightsFromPlan] | None = None,
        cache_chunk: int | None = None,
        encoder_freezer: EncoderFreezer | None = None,
        mined_layout: MinedBatchLayout | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.views = views
        self.comparison = comparison
        self.seed = seed
        self.momentum_encoder = momentum_encoder
        self.predictor = predictor
        self.schedules = tuple(schedules)
        self.weights_from_plan_schedule = weights_from_plan_schedule
        self.cache_chunk = cache_chunk
        self.encoder_freezer = encoder_freezer
        self.mined_layout = mined_layout
        self.uses_cached_features = False
        self._num_key_views = count_views_used_as_keys(model, views.shapes)
        self._pooled = not (isinstance(self.objective, Loss) and self.objective.accepts_vector_sets)

    @property
    def objective(self) -> nn.Module | None:
        """Objective that compares embeddings, or None if the option `predict` replaces it."""
        return self.comparison.objective

    def list_all_encoders(self) -> list[nn.Module]:
        """Return the encoders of the model and of any momentum encoder."""
        momentum = () if self.momentum_encoder is None else self.momentum_encoder.model.encoders
        return [*self.model.encoders, *momentum]

    def forward(self, batch: Batch, step: int, micro_batch: int = 0, offset: LocalBatchOffset | None = None) -> Tensor:
        """Return the loss of a batch, a scalar tensor.

        Args:
            batch: the items of this process.
            step: number of optimizer steps done before.
            micro_batch: number of the micro-batch within the step, with gradient accumulation.
            offset: part of the batch that this process holds; default: all of it.
        """
        for schedule in self.schedules:
            assert isinstance(self.objective, Loss)
            schedule.apply(self.objective, step)
        weights_from_plan = None if self.weights_from_plan_schedule is None else self.weights_from_plan_schedule(step)
        if self.encoder_freezer is not None:
            self.encoder_freezer.freeze_or_unfreeze(step)
        items, negative_ids = batch, tuple[Tensor, ...]()
        if self.mined_layout is not None:
            items, batch, negative_ids = self.mined_layout.split_mined_batch(batch)
            rows = 1 + self.mined_layout.num_negatives_per_set
            offset = None if offset is None else LocalBatchOffset(offset.start * rows, offset.global_batch_size * rows)
        # One random stream each for views, networks and loss, so that draws in one do not shift those of another. They
        # are seeded anew at each step: a resumed run and a recomputed step draw the same numbers.
        self._seed_step_generators(step, micro_batch, 0)
        views = draw_cached_views(batch.views) if self.uses_cached_features else self.views(batch.views, offset)
        # Dropout differs between processes, by their first item; equal masks on all would correlate their gradients.
        self._seed_step_generators(step, micro_batch, 1, 0 if offset is None else offset.start)
        embedded = self._embed_batch(batch, views, offset)
        if self.mined_layout is not None:
            embedded = self.mined_layout.with_extracted_negatives(embedded, items, negative_ids)
        embedded = embedded._replace(weights_from_plan=weights_from_plan)
        self._seed_step_generators(step, micro_batch, 2)
        try:
            loss: Tensor = self.comparison(embedded)
        except Exception:
            if all(bool(z.isfinite().all()) for z in (*embedded.queries, *embedded.key_projections)):
                raise
            # Reported by the finite guard, rather than by a consequent error of the loss.
            trained = [weights.sum() for weights in self.parameters() if weights.requires_grad]
            return math.nan * torch.stack(trained).sum()  # gives all trained parameters a NaN gradient
        return loss

    def after_step(self, step: int) -> None:
        """Update the momentum encoder and the memory of the loss after an optimizer step."""
        if self.momentum_encoder is not None:
            self.momentum_encoder.update(self.model, step)
        self.comparison.after_step()

    def _embed_batch(self, batch: Batch, views: tuple[Tensor, ...], offset: LocalBatchOffset | None) -> EmbeddedBatch:
        """Compute features, queries and keys of the views of a batch."""

        def encode_and_project(inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
            features = tuple(inputs) if self.uses_cached_features else self.model.encode(inputs, pooled=self._pooled)
            return *features, *self.model.project(features)

        outputs, present = self._embed_present_views(self.model, encode_and_project, views, batch.present, offset)
        features, projections = outputs[: len(views)], outputs[len(views) :]
        queries, keys = projections, projections[: self._num_key_views]
        if self.predictor is not None:
            queries, _ = self._embed_present_views(
                self.predictor, self.predictor, projections, present, offset, in_chunks=False
            )
            keys = tuple(key.detach() for key in keys)
        if self.momentum_encoder is not None:
            mask = None if batch.present is None else batch.present[:, : self._num_key_views]
            embed = partial(self.momentum_encoder, are_features=self.uses_cached_features)
            keys, _ = self._embed_present_views(
                self.momentum_encoder, embed, views[: self._num_key_views], mask, offset
            )
        return EmbeddedBatch(batch, views, features, queries, keys, present)

    def _embed_present_views(
        self,
        network: nn.Module,
        embed: ViewsToEmbeddings,
        views: tuple[Tensor, ...],
        present: Tensor | None,
        offset: LocalBatchOffset | None,
        *,
        in_chunks: bool = True,
    ) -> tuple[tuple[Tensor, ...], Tensor | None]:
        """Return embeddings, zero for missing views, and the mask ``(b, views)`` of present ones.

        The mask is None if no item lacks a view.

        With `in_chunks` the views are embedded in chunks of at most `cache_chunk` items, if this is set.
        """
        inputs = views if present is None else (*views, present)
        embed = embed if present is None else partial(embed_or_zero_and_update_mask, embed)
        if in_chunks and self.cache_chunk is not None:
            outputs = embed_in_chunks(embed, network, inputs, self.cache_chunk, offset)
        else:
            outputs = embed(inputs)
        return (outputs, None) if present is None else (outputs[:-1], outputs[-1])

    def _seed_step_generators(self, *position: int) -> None:
        """Seed torch's generators from the training seed and integers such as the step."""
        seed_torch_generators(derive_torch_seed("training.step", self.seed, *position))


def draw_cached_views(views: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Select one cached random view per item, ``(b, draws, F)`` to ``(b, F)``.

    Torch's global generator makes the choice.

    >>> (features,) = draw_cached_views([torch.arange(6.0).view(3, 2, 1)])
    >>> features.shape, (features.flatten() // 2).tolist()
    (torch.Size([3, 1]), [0.0, 1.0, 2.0])
    """
    drawn = []
    for view in views:
        draws = torch.randint(view.shape[1], (len(view),), device=view.device)
        drawn.append(view[torch.arange(len(view), device=view.device), draws])
    return tuple(drawn)


def count_views_used_as_keys(model: Model, shapes: Sequence[tuple[int, ...]]) -> int:
    """Return the number of views whose embeddings serve as keys.

    With a shared encoder these are the views of the first view's size (multi-crop: the large ones), else all.
    """
    if len(model.towers) > 1:
        return len(shapes)
    return sum(shape == shapes[0] for shape in shapes)
