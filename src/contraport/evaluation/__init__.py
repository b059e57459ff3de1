"""What is asked of a run: `evaluate`, what its encoder is worth; `embed`, what it says of some data."""

from contraport.evaluation.embed import embed
from contraport.evaluation.evaluate import evaluate

__all__ = ["embed", "evaluate"]
