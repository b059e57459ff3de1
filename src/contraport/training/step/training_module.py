"""One step of training without the loop around it: random views, embeddings, loss, and what is kept for later steps."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from contraport.data import Batch, Share, Views
from contraport.encoders import Model
from contraport.objectives import Loss
from contraport.objectives.loss_schedules import LossSchedule
from contraport.objectives.plan_weights import PlanWeightsSchedule
from contraport.seeding import seed_global_generators, torch_seed
from contraport.training.step.encoder_freezer import EncoderFreezer
from contraport.training.step.feature_cache import draw_cached_views
from contraport.training.step.gradient_cache import embed_in_chunks
from contraport.training.step.missing_views import Embed, embed_present
from contraport.training.step.momentum import MomentumEncoder, Predictor
from contraport.training.step.step_loss import EmbeddedBatch, StepLoss


class TrainingModule(nn.Module):
    """The parts of a training step: a model, what follows it, and the comparison of their embeddings.

    Call it with a batch and the number of the step, take a step of the optimiser, then call `after_step`. All that is
    random is a function of the seed and the step: views and draws are the same however many processes share the batch;
    what the networks draw (dropout) is each process's own. Torch's random state is left where the step ends.

    Args:
        model: what is trained.
        views: makes the random views.
        comparison: makes the loss of their embeddings.
        seed: what all that is random depends on.
        momentum_encoder: gives the keys; default: the model does.
        predictor: is put on the model's projections, which then are fixed where they are keys.
        schedules: set the objective's properties at each step.
        weights: by what plan items count at each step; default: as the data have it.
        cache_chunk: most items, of all processes, whose activations are kept at a time; default: the batch.
        freezing: holds the encoders; default: they learn.

    Attributes:
        encoded: whether batches hold features of several draws of each view, ``(b, draws, F)``, instead of raw items.
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
        weights: PlanWeightsSchedule | None = None,
        cache_chunk: int | None = None,
        freezing: EncoderFreezer | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.views = views
        self.comparison = comparison
        self.seed = seed
        self.momentum_encoder = momentum_encoder
        self.predictor = predictor
        self.schedules = tuple(schedules)
        self.weights = weights
        self.cache_chunk = cache_chunk
        self.freezing = freezing
        self.encoded = False
        self._keyed = num_key_views(model, views.shapes)

    @property
    def objective(self) -> nn.Module | None:
        """What is called on embeddings, or None where nothing is."""
        return self.comparison.objective

    def encoding(self) -> tuple[Model, ...]:
        """Return the models that encode views: the one in training, and the one that follows it, if there is one."""
        return (self.model,) if self.momentum_encoder is None else (self.model, self.momentum_encoder.model)

    def forward(self, batch: Batch, step: int, part: int = 0, share: Share | None = None) -> Tensor:
        """Return the loss of a batch, a tensor without dimensions.

        Args:
            batch: the items of this process.
            step: how many steps of the optimiser were done before.
            part: how many batches of this step were seen before, where gradients of several are added up.
            share: which items of a batch that processes share these are; default: they are all of it.
        """
        for schedule in self.schedules:
            assert isinstance(self.objective, Loss)
            schedule.apply(self.objective, step)
        weighting = None if self.weights is None else self.weights.at(step)
        if self.freezing is not None:
            self.freezing.apply(step)
        self._seed(step, part, 0)
        views = draw_cached_views(batch.views) if self.encoded else self.views(batch.views, share)
        self._seed(step, part, 1, 0 if share is None else share.start)
        embedded = self._embed(batch, views, share)._replace(weighting=weighting)
        self._seed(step, part, 2)
        try:
            loss: Tensor = self.comparison(embedded)
        except Exception:
            if all(bool(z.isfinite().all()) for z in (*embedded.queries, *embedded.keys)):
                raise
            return self._diverged()  # which is to be told, rather than what a part says of such embeddings
        return loss

    def after_step(self, step: int) -> None:
        """Let the momentum encoder follow and the memory take in the step; call it after the optimiser's step."""
        if self.momentum_encoder is not None:
            self.momentum_encoder.follow(self.model, step)
        self.comparison.after_step()

    def _diverged(self) -> Tensor:
        """Return a loss that is no number, and of which no gradient is."""
        return math.nan * torch.stack([weights.sum() for weights in self.parameters() if weights.requires_grad]).sum()

    def _embed(self, batch: Batch, views: tuple[Tensor, ...], share: Share | None = None) -> EmbeddedBatch:
        outputs, present = self._through(self.model, self._trained, views, batch.present, share)
        features, projections = outputs[: len(views)], outputs[len(views) :]
        queries, keys = projections, projections[: self._keyed]
        if self.predictor is not None:
            queries, _ = self._through(self.predictor, self.predictor, projections, present, share, whole=True)
            keys = tuple(key.detach() for key in keys)
        if self.momentum_encoder is not None:
            marks = None if batch.present is None else batch.present[:, : self._keyed]
            keys, _ = self._through(self.momentum_encoder, self._followed, views[: self._keyed], marks, share)
        return EmbeddedBatch(batch, views, features, queries, keys, present)

    def _trained(self, views: Sequence[Tensor]) -> tuple[Tensor, ...]:
        features = tuple(views) if self.encoded else self.model.encode(views)
        return *features, *self.model.project(features)

    def _followed(self, views: Sequence[Tensor]) -> tuple[Tensor, ...]:
        assert self.momentum_encoder is not None
        return self.momentum_encoder.project(views) if self.encoded else self.momentum_encoder(views)

    def _through(
        self,
        network: nn.Module,
        embed: Embed,
        views: tuple[Tensor, ...],
        present: Tensor | None,
        share: Share | None,
        *,
        whole: bool = False,
    ) -> tuple[tuple[Tensor, ...], Tensor | None]:
        """Return what is made of the views, chunk by chunk if so asked, and which items have them; see `gaps`."""
        given = views if present is None else (*views, present)
        embed = embed if present is None else embed_present(embed)
        if whole or self.cache_chunk is None:
            outputs = embed(given)
        else:
            outputs = embed_in_chunks(embed, network, given, self.cache_chunk, share)
        return (outputs, None) if present is None else (outputs[:-1], outputs[-1])

    def _seed(self, *position: int) -> None:
        seed_global_generators(torch_seed("training.step", self.seed, *position))


def num_key_views(model: Model, shapes: Sequence[tuple[int, ...]]) -> int:
    """Return how many of the first views give keys: those as large as the first, or all where each has its tower."""
    if len(model.towers) > 1:
        return len(shapes)
    return sum(shape == shapes[0] for shape in shapes)
