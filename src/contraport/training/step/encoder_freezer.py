"""Encoders that are held as they are, to the end or for the first steps, while what follows them learns."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


class EncoderFreezer:
    """Holds encoders: no gradient reaches them, and their batch norm is in evaluation, so that no bit of them moves.

    Args:
        encoders: what is held.
        steps: for how many of the first steps; None: to the end, and from now on, so that no optimiser takes them.
        followers: copies that follow them and learn by no gradient; their batch norm is held with theirs.
        adapted: those of which only adapters learn; their batch norm is held to the end.

    >>> encoder = nn.BatchNorm1d(3)
    >>> freezing = EncoderFreezer([encoder], steps=2)
    >>> freezing.apply(1)
    >>> encoder.training, encoder.weight.requires_grad
    (False, False)
    >>> freezing.apply(2)
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
        """Hold the encoders, or let them go, as a step has them; whoever trains may have set them to train since."""
        held = self.steps is None or step < self.steps
        for encoder in self.encoders:
            encoder.train(not held).requires_grad_(not held)
        for follower in self.followers:
            follower.train(not held)
        for encoder in self.adapted:
            for part in encoder.modules():  # found each time, as several processes put others in the place of some
                if isinstance(part, _BatchNorm):
                    part.eval()
