"""What is asked of a run: `evaluate`, what its encoder is worth; `embed`, what it says of some data."""

from typing import TYPE_CHECKING

from contraport.lazy import lazy_package

if TYPE_CHECKING:
    from contraport.evaluation.embed import embed
    from contraport.evaluation.evaluate import evaluate

__all__ = ["embed", "evaluate"]

lazy_package(__name__, embed="embed", evaluate="evaluate")
