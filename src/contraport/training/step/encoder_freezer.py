"""Encoder freezing, for the whole training or for its first steps."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


class EncoderFreezer:
    """Freezes encoders: their parameters get no gradient, and their batch norm is in evaluation mode.

    Args:
        encoders: the encoders to freeze.
        steps: number of first steps; None: the whole training. Then they are frozen at once, so that the optimizer
            does not include them.
        followers: momentum copies of the encoders, without gradients; their batch norm is frozen too.
        adapted: encoders of which only LoRA adapters are trained; their batch norm is frozen for the whole training.

    >>> encoder = nn.BatchNorm1d(3)
    >>> freezer = EncoderFreezer([encoder], steps=2)
    >>> freezer.apply(1)
    >>> encoder.training, encoder.weight.requires_grad
    (False, False)
    >>> freezer.apply(2)
    >>> encoder.training, encoder.weight.requires_grad
    (True, True)
    """

    def __init__(
        self,
        encoders: Sequence[nn.Module],
        steps: int | None,
        followers: Sequence[nn.Module] = (),
        adapted: Sequence[nn.Module] = (),
    ) -> None:
        self.encoders = tuple(encoders)
        self.steps = steps
        self.followers = tuple(followers)
        self.adapted = tuple(adapted)
        if steps is None:
            self.apply(0)

    def apply(self, step: int) -> None:
        """Freeze or unfreeze the encoders for a step.

        It is called at each step, since `train()` may have been called on the module in between.
        """
        frozen = self.steps is None or step < self.steps
        for encoder in self.encoders:
            encoder.train(not frozen).requires_grad_(not frozen)
        for follower in self.followers:
            follower.train(not frozen)
        for encoder in self.adapted:
            for part in encoder.modules():  # not cached: convert_batch_norm replaces modules
                if isinstance(part, _BatchNorm):
                    part.eval()
