"""The baseline that compares nothing: each view predicted from each other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import torch.nn.functional as F
from torch import Tensor, nn

from contraport.encoders import Decoder, Model
from contraport.errors import unknown_name_error
from contraport.training.step.step_loss import EmbeddedBatch, StepLoss, mean_of

RECONSTRUCTIONS = {"l1": F.l1_loss, "l2": F.mse_loss}


class ReconstructionLoss(StepLoss):
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
            raise unknown_name_error("predict", loss, RECONSTRUCTIONS)
        self._error = RECONSTRUCTIONS[loss]
        self._standardize = tuple(model.tower(view).standardize for view in range(len(shapes)))
        self.decoders = nn.ModuleDict(
            {
                f"{v}-{w}": Decoder(model.tower(v).num_features, shapes[w])
                for v, w in permutations(range(len(shapes)), 2)
            }
        )

    def forward(self, embedded: EmbeddedBatch) -> Tensor:
        """Return the loss of a batch."""
        wanted = [standardize(view) for standardize, view in zip(self._standardize, embedded.views, strict=True)]
        features = embedded.features
        return mean_of([self._error(self.decoders[f"{v}-{w}"](features[v]), wanted[w]) for v, w in embedded.turns()])
