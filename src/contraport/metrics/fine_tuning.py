"""Fine-tuning of all weights of an encoder copy on the labels."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contraport.data import Batch, Dataset, LocalBatchOffset, Views, build_loader
from contraport.embedding import LoaderConfig, extract_item_features, fixed_seed
from contraport.encoders import Model
from contraport.training.loop import Callback, Loop

MIN_EPOCHS = 10
"""Minimum number of epochs."""

MIN_STEPS = 200
"""Minimum number of optimizer steps: small data get more epochs."""


class ClassificationModel(nn.Module):
    """Encoder with a linear classification head on its representation."""

    def __init__(self, encoder: Model, num_classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(encoder.num_features, num_classes)

    def forward(self, *views: Tensor) -> Tensor:
        """Return the class logits, `(b, classes)`, of unaugmented views."""
        logits: Tensor = self.head(self.encoder(*views))
        return logits


class _UnaugmentedCrossEntropyStep(nn.Module):
    """Training step with cross-entropy loss on unaugmented views."""

    def __init__(self, model: ClassificationModel, views: Views) -> None:
        super().__init__()
        self.model = model
        self.views = views

    def forward(self, batch: Batch, step: int, micro_batch: int = 0, offset: LocalBatchOffset | None = None) -> Tensor:
        """Return the loss of a batch."""
        assert batch.labels is not None
        return F.cross_entropy(self.model(*self.views.make_unaugmented(batch.views)), batch.labels)

    def after_step(self, step: int) -> None:
        """Do nothing, because fine-tuning keeps no state between steps."""


class _EpochProgressBar(Callback):
    """Callback that advances a progress bar with each epoch of fine-tuning."""

    def __init__(self, loader_config: LoaderConfig, name: str, epochs: int) -> None:
        self._epochs = iter(loader_config.bars.track(range(epochs), f"{name}: epochs of fine-tuning", epochs))

    def on_start(self, loop: Loop) -> None:
        """Show the bar before the first epoch."""
        next(self._epochs)

    def after_epoch(self, loop: Loop) -> None:
        """Advance the bar by one epoch."""
        next(self._epochs, None)


def fine_tuning_correctness(
    encoder: Model, train: Dataset, test: Dataset, views: Views, loader_config: LoaderConfig, *, name: str
) -> np.ndarray[Any, Any]:
    """Return whether a fine-tuned encoder copy classifies each test item correctly, `(m,)`.

    The copy and a linear head are trained on the plain training items: 10 epochs and at least 200 steps, batches of
    128, AdamW with a cosine schedule from 1e-3 to zero. Nothing is selected on the test items; the last epoch counts.
    The encoder itself is not changed.
    """
    assert train.labels is not None
    assert test.labels is not None
    with fixed_seed(0, loader_config.device):
        model = ClassificationModel(copy.deepcopy(encoder), int(train.labels.max()) + 1)
        model.to(loader_config.device).train().requires_grad_(True)
        size = min(128, len(train))
        batches = build_loader(train, size, shuffle=True, seed=0, num_workers=loader_config.num_workers, drop_last=True)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        epochs = max(MIN_EPOCHS, math.ceil(MIN_STEPS / len(batches)))
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * len(batches))
        Loop(
            _UnaugmentedCrossEntropyStep(model, views),
            batches,
            optimizer,
            schedule,
            epochs=epochs,
            device=loader_config.device,
            callbacks=[_EpochProgressBar(loader_config, name, epochs)],
        ).run()
    logits = extract_item_features(model, test, views, loader_config, f"{name}, fine-tuned")
    return (logits.argmax(dim=1) == test.labels).numpy()
