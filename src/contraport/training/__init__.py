"""Training loop, its callbacks, the command `train`, and inspection of failed steps."""

from typing import TYPE_CHECKING

from contraport._utils.lazy_imports import make_package_lazy

if TYPE_CHECKING:
    from contraport.training.failed_step_loading import load_failed_step
    from contraport.training.train import train

__all__ = ["load_failed_step", "train"]

make_package_lazy(__name__, load_failed_step="failed_step_loading", replay="failed_step_loading", train="train")
