"""What is measured of a frozen encoder: a registry, one row a measure.

```
measure        what a row is; the registry
catalog        every measure: its row, and a few lines
baselines      what a trained encoder is judged beside
monitoring     what is measured while an encoder is trained, and how often
intervals      how sure a number is
influence      what each item does to a number that looks at all at once
subject        what is measured: an encoder and the items it is judged on
probes         how well labels can be read from features
retrieval      how well the two views of an item find one another
geometry       how features lie on the sphere
clusters       how well classes are found without labels
tuning         fine-tuning, which is no probe
```

The registry names measures without importing torch: what computes is imported where it is called.
"""

from contraport.metrics import builtin_metrics as _catalog  # noqa: F401  (enters its measures
from contraport.metrics.registry import (
    METRICS,
    Metric,
    Requirement,
    chosen,
    families,
    measure,
    metric_by_key,
    metrics_of_rows,
)

__all__ = ["METRICS", "Metric", "Requirement", "chosen", "families", "measure", "metric_by_key", "metrics_of_rows"]
