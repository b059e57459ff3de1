"""The baseline that compares nothing: each view predicted from each other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import torch.nn.functional as F
from torch import Tensor, nn

from contraport.encoders import Decoder, Model
from contraport.errors import unknown_name
from contraport.training.step.comparison import Embedded, StepComparison, mean_of

RECONSTRUCTIONS = {"l1": F.l1_loss, "l2": F.mse_loss}


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
        return mean_of([self._error(self.decoders[f"{v}-{w}"](features[v]), wanted[w]) for v, w in embedded.turns()])
