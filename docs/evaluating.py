"""Builds docs/evaluating.md: the guide to evaluation, with the registry of metrics as tables."""

from __future__ import annotations

from contraport.metrics import METRICS, Metric
from contraport.metrics.intervals import CONFIDENCE_LEVEL, NUM_RESAMPLES

_BETTER = {"higher": "↑", "lower": "↓", "neither": ""}

PAGE = """# Evaluating

```sh
# the standard metrics
contraport evaluate runs/a
# two runs compared, by metrics or groups of metrics
contraport evaluate runs/a runs/b --metrics accuracy recall@20
# all metrics, on other items of the same classes
contraport evaluate runs/a --metrics all --test_data harder/
# also of the models that --keep_every saved
contraport evaluate runs/a --checkpoints all --metrics knn
# during training
contraport train --data photos/ --online_metrics knn:every=5
```

Every number is measured on the features of the frozen encoder and shown beside the numbers of the raw inputs and of the
same encoder before training: *untrained*, or *given* if the training began with weights (`--init`, `--pretrained`). Only
two metrics use the projections: the bound of mutual information and, if each view has its own encoder, retrieval. All numbers
are in `evaluation.json` in the run folder. In Python, `contraport.evaluate` and `Run.evaluation()` return them: `evaluation.metrics["knn"].value`, `.low` and `.high`, in the same way
`evaluation.baselines["raw"]["knn"]` and `evaluation.differences["raw"]["knn"]`, and `evaluation.verdict`. A notebook shows tables;
`pandas.DataFrame(evaluation.to_rows())` has a row for each encoder and metric. The command ends with a verdict: whether
to use the trained encoder, or which baseline is as good. It prints the metrics on which the verdict rests, `--all` all of them;
metrics named by `--metrics` are always printed.

## Metrics

Metrics with a star are computed only if you ask for them. The number after `@` can be any: `recall@20`, `few_shot@3`.
Metrics that the data do not allow, such as accuracy without labels or robustness of data that are not images, are left
out with a message.

{tables}

A corruption has five severities (`noise@1` to `noise@5`). Its lengths are relative to the side of the image.

## Intervals

- **An interval** ({level:.0%}, percentile bootstrap, {resamples:,} draws, seeded) is given with every number.
  The test items are resampled; nothing is fitted again. So the interval says how much the number would change with
  other test items. It says nothing about another seed or other training items: train with several seeds for that.

  For metrics of all items at once (uniformity, tolerance, effective rank, hubness, calibration, clusters), the
  interval uses the effect of each item on the metric, to first order. On simulated data such an interval was as wide
  as the spread over fresh items. For hubness in few dimensions it was up to 2.5 times as wide. For calibration it
  covered the true error in 86 to 100 % of 80 draws of 200 or 2,000 items.
- **The calibration error** is the root of a mean square after the part due to chance is subtracted, so an encoder does
  not look worse with fewer test items. The result is 0 if the error is no larger than chance.
- **A difference** between two encoders on the same items is paired, item by item. Its interval is narrower than the
  intervals of the two numbers suggest. One encoder is better only if this interval excludes zero. `differences` in
  `evaluation.json` has the differences from the untrained encoder, the raw inputs, and the other runs of the same call.
  Of more than two runs the intervals between runs are wider, so that for each metric they hold for all pairs of runs
  at once (Bonferroni).
- If all items agree, an interval has no width: n test items cannot show anything rarer than about 3 in n.
- **The test items choose nothing.** The probe's penalty is chosen on a fifth of the training items, and the last epoch
  is measured, not the best one. A probe on few labels uses a fifth of these few for the choice, so it sees no other
  labels; with one item of each class the penalty is 1/n. With 2, 5, 10 and 40 items of each class (features of
  Fashion-MNIST after a training, its pixels, and features of digits after a training), this choice was between .8
  points below and .7 points above 1/n, and .1 above it on average. Cross-validation over the few items was no better.

## While training

`--online_metrics` measures at the end of an epoch on 2,000 training items that are drawn once: one half is for fitting, the
other half for testing. It uses no test item, and it does not change a single bit of the training. The numbers appear in
`metrics.jsonl`, the progress bar and the page.

## The page

```sh
contraport report runs/a runs/b --out report.html
```

The report is one file that opens without a network, in light and dark mode, also on a phone. Every figure explains how
to read it. If a run lacks what a figure needs, the page leaves the figure out and says so. Some parts need an option of
the training or the evaluation:

| shown | comes with |
|---|---|
| a verdict in words, based on the intervals; the numbers; the settings that differ | `evaluate runs/a runs/b`, together |
| curves over steps, epochs, seconds or the share of the run | the training; `--online_metrics knn` adds metrics during training |
| metrics over the epochs; plans over the epochs, with a slider | `train --keep_every N`, `evaluate --checkpoints all` |
| a map of test items, colored by class, domain, loss or suspicion; nearest neighbors | `evaluate`; suspicion if the data have two given views |
| the confusion matrix of the linear probe, and its ten most confident errors | `evaluate` with the linear probe |
| the plan beside its target, lines between items, the mass that an unbalanced plan dropped | `evaluate` |
| cosines by class, the singular spectrum, alignment and uniformity | `evaluate` |
| accuracy over the severity of six corruptions | `evaluate --metrics robustness`, in addition to the standard ones |
| the estimated mismatch rate, and the ten pairs with the lowest scores, with both views and the better partner | `train --audit`, `evaluate` |

The loss of an item is computed with all points of the map in one batch, so compare it only within one map. Suspicion is
the statistic `neighbors` of an audit, on items that were not trained on: the share of test items that are at least as
near to one given view as the partners of the other view's neighbors are. It is over a third if the two views have
nothing in common.

## A metric of your own

```python
from contraport.metrics import register_metric


@register_metric("Largest variance", group="geometry", better="neither", unit="squared", pattern="{{:.2f}}")
def largest_variance(context):
    \"\"\"Largest variance of a feature.\"\"\"
    return float(context.test_features.var(dim=0).max())
```

The function returns one value for each test item (the mean is reported, with an interval), a `MetricResult` with
another statistic of the items, or a single number. `contraport.metrics.eval_context.EvalContext` contains everything
that it can use: features, views, labels, projections. The key of the metric is its title, in lower case with
underscores.
"""


def evaluating() -> str:
    """Return the page."""
    groups = dict.fromkeys(metric.group for metric in METRICS.values())
    tables = "\n\n".join(table(group) for group in groups)
    return PAGE.format(tables=tables, level=CONFIDENCE_LEVEL, resamples=NUM_RESAMPLES)


def table(group: str) -> str:
    """Return the metrics of a group as a table."""
    lines = [f"### {group}", "", "| name | better | definition | unit |", "|---|---|---|---|"]
    lines += [row(metric) for metric in METRICS.values() if metric.group == group]
    return "\n".join(lines)


def row(metric: Metric) -> str:
    """Return the table row of a metric."""
    name = "`, `".join(one.key for one in metric.expand_default_numbers())
    summary = metric.summary.replace("|", "\\|")
    star = "" if metric.is_default else " *"
    return f"| `{name}`{star} | {_BETTER[metric.better_direction]} | {summary} | {metric.unit} |"
