"""Training: the command `train`, its loop and callbacks, and the replay of a failed step."""

from typing import TYPE_CHECKING

from contraport._utils.lazy import make_package_lazy

if TYPE_CHECKING:
    from contraport.training.replay import replay
    from contraport.training.train import train

__all__ = ["replay", "train"]

make_package_lazy(__name__, replay="replay", train="train")
