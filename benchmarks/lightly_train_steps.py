"""Distillation steps of LightlyTrain in the training loop of contraport: same student, batches and random views.

Two of its methods, as classes of its package that are not changed but for what is said here:

- its default, ``DistillationV3``: the teacher embeds the mixed random view of each step; one term compares whole images
  with a queue, another the patches of an image with one another. The teacher enlarges the view to its own size.
- ``Distillation``, its first version, on features of the teacher that were computed once from the plain images, and so
  without mixup. Its term is the first of the two above.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contraport.data import Dataset
from contraport.encoders import Model
from contraport.training.components import step_builder, teacher_features
from contraport.training.step.step_losses import EmbeddedBatch, StepLoss
from contraport.training.step.training_module import TrainingModule


class Wrapper(nn.Module):
    """Model of contraport with the interface of a model of LightlyTrain."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward_features(self, x: Tensor) -> dict[str, Tensor]:
        (patches,) = self.model.encode((x,), pooled=False)
        return {"features": patches.mT.unflatten(2, (math.isqrt(patches.shape[1]), -1))}

    def forward_pool(self, output: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"pooled_features": output["features"].mean((2, 3), keepdim=True)}

    def feature_dim(self) -> int:
        return self.model.tower(0).num_features

    def get_model(self) -> nn.Module:
        return self.model


class EnlargingTeacher(Wrapper):
    """Frozen teacher of images of another size, in the layout and number of images that are fastest on a processor."""

    def __init__(self, model: Model, size: int) -> None:
        super().__init__(model.to(memory_format=torch.channels_last))
        self.size = size

    def forward_features(self, x: Tensor) -> dict[str, Tensor]:
        x = F.interpolate(x, size=(self.size, self.size), mode="bilinear", antialias=True)
        parts = [super(EnlargingTeacher, self).forward_features(part)["features"] for part in x.split(16)]
        return {"features": torch.cat(parts)}


class CachedTeacher(nn.Module):
    """Teacher whose features of the current items were computed before."""

    def __init__(self, features: Tensor) -> None:
        super().__init__()
        self.features, self.ids, self.embed_dim = features, torch.empty(0, dtype=torch.long), features.shape[1]

    def forward(self, x: Tensor) -> Tensor:
        return self.features[self.ids]


class LightlyTrainLoss(StepLoss):
    """Loss of a step of a method of LightlyTrain, on the first view; the heads of the method are trained too."""

    def __init__(self, method: Any, heads: list[nn.Module], teacher: CachedTeacher | None = None) -> None:
        super().__init__(None)
        self.heads = nn.ModuleList(heads)
        self._hidden = [method, teacher]  # not modules of this one: the student is the model's, the teacher is frozen

    def forward(self, embedded: EmbeddedBatch) -> Tensor:
        method, teacher = self._hidden
        if teacher is not None:
            teacher.ids = embedded.batch.ids
        loss: Tensor = method.training_step_impl({"views": [embedded.input_views[0]]}, 0).loss
        return loss

    def missing_views_blocker(self) -> str | None:
        return "the method uses the first view"

    def small_batch_warning(self, batch_size: int) -> str | None:
        return None


class ModuleWithoutEmbeddings(TrainingModule):
    """Training module that leaves the encoding of views to the loss."""

    def _embed_batch(self, batch: Any, views: tuple[Tensor, ...], share: Any = None) -> EmbeddedBatch:
        return EmbeddedBatch(batch, views, (), (), ())


def _arguments(args: Any, model: Model, items: int) -> dict[str, Any]:
    """Return the arguments of a method for a student, with its default size of the queue."""
    from lightly_train._models.embedding_model import EmbeddingModel
    from lightly_train._optim.adamw_args import AdamWArgs
    from lightly_train._scaling import ScalingInfo

    student, optimizer = Wrapper(model), AdamWArgs()
    args.resolve_auto(ScalingInfo(dataset_size=items, epochs=1), optimizer, student)
    return {
        "method_args": args,
        "optimizer_args": optimizer,
        "embedding_model": EmbeddingModel(cast(Any, student)),
        "global_batch_size": 128,  # of their learning rate, which is not used
        "num_input_channels": 1,
    }


def build_default_method(model: Model, dataset: Dataset, teacher: Path, temperature: float) -> StepLoss:
    """Build the loss of `DistillationV3`, with one temperature for both terms."""
    from lightly_train._methods.distillationv3.distillationv3 import DistillationV3, DistillationV3Args

    loaded, size = teacher_features._load_teacher(teacher, dataset, trust_remote_code=False)
    assert size is not None
    args = DistillationV3Args(
        teacher=EnlargingTeacher(loaded, size), temperature_global=temperature, temperature_local=temperature
    )
    method = DistillationV3(**_arguments(args, model, len(dataset)))
    return LightlyTrainLoss(method, [method.student_projection_head_global, method.student_projection_head_local])


def build_cached_method(model: Model, dataset: Dataset, features: Tensor, temperature: float) -> StepLoss:
    """Build the loss of `Distillation` on features of a teacher."""
    from lightly_train._methods.distillation import distillation as peer

    teacher = CachedTeacher(features)

    class WithoutMixup(peer.Distillation):  # type: ignore[misc, name-defined, unused-ignore]
        @staticmethod
        def _mixup_data(x: Tensor) -> Tensor:
            return x

    args = peer.DistillationArgs(temperature=temperature)
    theirs, peer.get_teacher = peer.get_teacher, lambda *_, **__: teacher  # that of DINO would be downloaded
    try:
        method = WithoutMixup(**_arguments(args, model, len(dataset)))
    finally:
        peer.get_teacher = theirs
    return LightlyTrainLoss(method, [method.student_projection_head], teacher)


@contextlib.contextmanager
def replaced_step(build: Callable[[Model, Dataset], StepLoss]) -> Iterator[None]:
    """Context manager in which trainings compute their loss by a step of LightlyTrain."""

    def build_loss(settings: Any, dataset: Dataset, model: Model, *_: Any) -> StepLoss:
        return build(model, dataset)

    names: dict[str, Any] = {"_build_step_loss": build_loss, "TrainingModule": ModuleWithoutEmbeddings}
    own = {name: getattr(step_builder, name) for name in names}
    for name, value in names.items():
        setattr(step_builder, name, value)
    try:
        yield
    finally:
        for name, value in own.items():
            setattr(step_builder, name, value)
