"""Each checkpoint tells of which items it is."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback

from contraport.training.loop.opening import MARK


class Marked(Callback):
    """Lets checkpoints have the mark of the items, which `open_run` compares.

    Args:
        mark: as `contraport.data.mark.mark_of` gives it.
    """

    state_key = MARK

    def __init__(self, mark: str | None) -> None:
        self._mark = mark

    def state_dict(self) -> dict[str, Any]:
        """Return the mark."""
        return {MARK: self._mark}
