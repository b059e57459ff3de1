"""Evaluation, embedding and export of trained encoders."""

from typing import TYPE_CHECKING

from contraport._utils.lazy_imports import make_package_lazy

if TYPE_CHECKING:
    from contraport.evaluation.embed import embed
    from contraport.evaluation.evaluate import evaluate

__all__ = ["embed", "evaluate"]

make_package_lazy(__name__, embed="embed", evaluate="evaluate")
