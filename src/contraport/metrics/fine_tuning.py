"""Fine-tuning: all weights of a copy of the encoder learn from the labels. This is no probe: nothing is frozen."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contraport.data import Batch, Dataset, Share, Views, loader
from contraport.embedding import LoaderConfig, represent, seeded
from contraport.encoders import Model
from contraport.training.loop import Callback, Loop

EPOCHS = 10
STEPS = 200
"""Of few items more passes are made, so that there are so many steps at least."""

BATCH_SIZE = 128
LR = 1e-3


class ClassificationModel(nn.Module):
    """An encoder and a linear head on its representation."""

    def __init__(self, encoder: Model, classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(encoder.num_features, classes)

    def forward(self, *views: Tensor) -> Tensor:
        """Return the logits `(b, classes)` of raw items, given by their plain views."""
        logits: Tensor = self.head(self.encoder(*views))
        return logits


class _Classification(nn.Module):
    """The cross-entropy of a batch, as the training loop calls for it."""

    def __init__(self, tuned: ClassificationModel, views: Views) -> None:
        super().__init__()
        self.tuned = tuned
        self.views = views

    def forward(self, batch: Batch, step: int, part: int = 0, share: Share | None = None) -> Tensor:
        """Return the loss of a batch."""
        assert batch.labels is not None
        return F.cross_entropy(self.tuned(*self.views.plain(batch.views)), batch.labels)

    def after_step(self, step: int) -> None:
        """Do nothing: nothing follows the optimizer's step."""


class _Shown(Callback):
    """Shows the progress of the epochs."""

    def __init__(self, reader: LoaderConfig, name: str, epochs: int) -> None:
        self._epochs = iter(reader.bars.track(range(epochs), f"{name}: passes of fine-tuning", epochs))

    def on_start(self, loop: Loop) -> None:
        next(self._epochs)

    def after_epoch(self, loop: Loop) -> None:
        next(self._epochs, None)


def fine_tuned_hits(
    encoder: Model,
    train: Dataset,
    test: Dataset,
    views: Views,
    reader: LoaderConfig,
    *,
    name: str = "encoder",
    seed: int = 0,
) -> np.ndarray[Any, Any]:
    """Return for each test item whether a fine-tuned copy of the encoder tells its class, `(m,)`.

    A linear head is put on a copy, and all of it is trained on the training items as they are, without random changes:
    10 passes, and 200 steps at least, in batches of 128, AdamW with a rate of 1e-3 that falls to zero along a cosine.
    No setting is chosen by the test items; the last pass is the one that is judged. The encoder itself stays as it is.
    """
    assert train.labels is not None
    assert test.labels is not None
    with seeded(seed, reader.device):
        tuned = ClassificationModel(copy.deepcopy(encoder), int(train.labels.max()) + 1).to(reader.device).train()
        for parameter in tuned.parameters():
            parameter.requires_grad_(True)
        size = min(BATCH_SIZE, len(train))
        batches = loader(train, size, shuffle=True, seed=seed, workers=reader.workers, drop_last=True)
        optimizer = torch.optim.AdamW(tuned.parameters(), lr=LR)
        epochs = max(EPOCHS, math.ceil(STEPS / len(batches)))
        course = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * len(batches))
        Loop(
            _Classification(tuned, views),
            batches,
            optimizer,
            course,
            epochs=epochs,
            device=reader.device,
            callbacks=[_Shown(reader, name, epochs)],
        ).run()
    logits = represent(tuned, test, views, reader, f"{name}, fine-tuned")
    return (logits.argmax(dim=1) == test.labels).numpy()
