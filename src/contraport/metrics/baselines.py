"""What a trained encoder is judged beside: the rows of an evaluation that are of no training."""

from __future__ import annotations

from typing import Final

BEFORE: Final = {"given": "the encoder as it was given", "untrained": "the untrained encoder"}
"""What a training began with, by its row, as a sentence calls it: weights that it was given, or else drawn ones.

Only the one says what the training added: a pretrained encoder is far ahead of random weights before the first step.
"""

BASELINES: Final = {**BEFORE, "raw": "raw inputs"}
"""All of them."""
