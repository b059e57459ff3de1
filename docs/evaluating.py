"""Builds docs/evaluating.md: the guide to evaluation, with the registry of metrics as tables."""

from __future__ import annotations

from contraport.metrics import METRICS, Metric
from contraport.metrics.intervals import CONFIDENCE_LEVEL, NUM_RESAMPLES

_BETTER = {"higher": "↑", "lower": "↓", "neither": ""}

PAGE = """# Evaluating and comparing

## What you have

One run or several. `evaluate` measures what their features are worth on held-out items; [`compare`](#comparing) trains several objectives or
settings with several seeds.

## The command

```sh
# the standard metrics
contraport evaluate runs/a
# two runs compared, by metrics or groups of metrics
contraport evaluate runs/a runs/b --metrics accuracy recall@20
# all metrics, on other items of the same classes
contraport evaluate runs/a --metrics all --test_data harder/
# also of the models that --keep_every saved
contraport evaluate runs/a --checkpoints all --metrics knn
contraport report runs/a runs/b --out report.html
```

## What you see

![The report page: the verdicts, each in a sentence with the difference and its interval](images/report.png)

The command ends with a verdict, which is also the heading of the page of `report`: whether to use the trained encoder, or which run or
baseline is as good or better.

## What it means

Every number is measured on the features of the frozen encoder and shown beside the numbers of the raw inputs and of the same
encoder before training: *untrained*, or *given* if the training began with weights. Only two metrics use the projections: the
bound of mutual information and, if each view has its own encoder, retrieval. All numbers are in `evaluation.json` of the run
folder. In Python, `contraport.evaluate` and `Run.evaluation()` return them: `evaluation.metrics["knn"].value`, `.low` and `.high`,
likewise `evaluation.baselines["raw"]["knn"]` and `evaluation.differences["raw"]["knn"]`, and `evaluation.verdict`;
`pandas.DataFrame(evaluation.to_rows())` has a row for each encoder and metric. The command prints the metrics on which the
verdict rests, `--all` all that were computed.

## When not to use it

If one test item is worth more than the difference you look for: one of 100 items is one point. n test items cannot show anything
rarer than about 3 in n.

## Metrics

Metrics with a star are computed only if you ask for them. The number after `@` can be any: `recall@20`, `few_shot@3`. Metrics that the
data do not allow are left out with a message.

{tables}

Blur radius and square size are relative to the side of the image.

## Intervals

- **An interval** ({level:.0%}, percentile bootstrap over test items, {resamples:,} draws, seeded) says how much the number would change with
  other test items, not with another seed: train with several seeds for that. For metrics of all items at once (uniformity, effective
  rank, hubness, calibration, clusters) it uses the effect of each item, to first order. On simulated data its width was that
  of the spread over fresh items, for hubness in few dimensions up to 2.5 times that; the interval of the calibration error contained
  the true error in 86 to 100% of 80 draws of 200 or 2,000 items.
- **Links** of one row depend on one another, so the intervals of link metrics resample rows with all their links.
- **The calibration error** is the root of a mean square after the part due to chance is subtracted, so an encoder does not look
  worse with fewer test items.
- **A difference** between two encoders is paired, item by item, so that its interval is narrower than the intervals of the two
  numbers suggest. One encoder is better only if it excludes zero. Of more than two runs the intervals hold for all pairs of runs at
  once (Bonferroni).
- **The test items choose nothing.** The probe's penalty is chosen on a fifth of the training items (with one item of each class it is
  1/n), and the last epoch is measured, not the best one.

**While training**, `--online_metrics knn:every=5` measures on 2,000 training items that are drawn once, half of them for fitting. It
uses no test item, and does not change a single bit of the training.

## The page

`report` writes one file that opens offline, also on a phone. Every figure explains how to read it; what a run lacks is left
out and named. Some parts need an option:

| shown | comes with |
|---|---|
| verdicts; numbers; settings that differ | `evaluate runs/a runs/b`, together |
| curves of the training | the training; `--online_metrics knn` adds metrics |
| metrics and plans over the epochs | `train --keep_every N`, `evaluate --checkpoints all` |
| a map of test items, by class, domain, loss or suspicion; nearest neighbors; the plan beside its target; geometry | `evaluate` |
| the confusion matrix and the ten most confident errors of the linear probe | `evaluate` with the linear probe |
| accuracy over the severity of six corruptions | `evaluate --metrics robustness` |
| the estimated mismatch rate and the ten worst pairs | `train --audit`, `evaluate` |

The loss of an item is computed with all points of the map in one batch: compare it only within one map. Suspicion is from 0 to 1,
high for pairs that look wrong: the mean rank (as a share) behind the statistic `neighbors` of an [audit](audit.md#statistics), on items
that were not trained on. On average it is over a third if the two views have nothing in common.

## Comparing

Which of several objectives, recipes or settings is better on your data, and is the difference more than chance?

```sh
contraport compare --data digits --objectives info-nce,gca-ince,gca-uot:relaxation=0.2 \\
    --settings standard,strong,mismatched:0.2 --seeds 3 --epochs 20 --tune 8 --out runs/mine
# a saved grid (`contraport list suites`) in its small form: minutes, on digits
contraport compare --suite gca --quick
# a grid of your own; the same command resumes it
contraport compare --suite mine.yaml --budget 30m
```

<!-- not run: six training runs; tests/comparison has smaller ones -->
```python
comparison = contraport.compare(data=["digits"], objectives=["info-nce", "gca-ince"], seeds=3, epochs=20)
entry = comparison.find_entry("gca-ince", "digits, standard", "linear_probe")
entry.difference  # from the first row, with its interval
print(comparison.markdown())
```

![Two means with wide intervals that overlap, of nt-xent and gca-uot](images/gallery-comparison.png)

The interval of their difference contains zero, so the command names no winner.

**Rows** are objectives or recipes, with parameters after a colon (`rince:q=0.1,temperature=0.2`) or options of `train`
(`info-nce:audit=true`); `--over temperature=0.1,0.2` makes one row for each value. **Columns** are the data in each of the `--settings`:

| setting | what it means |
|---|---|
| `plain` | the data unchanged, views as by default |
| `weak`, `standard`, `strong`, `scaled-noise:0.2`, `mixup:0.3`, `none` | how views are augmented at random; `none`: not at all |
| `corrupt:noise:3`, `corrupt` | items of both splits are corrupted, with severity 1 to 5 |
| `mismatched:0.2`, `mismatched:0.2:class` | a share of the training pairs is shuffled, freely or within classes |
| `imbalanced:100` | training items are left out, so that the last class has a hundredth of the first |
| `domains:style`, `domains:style:edges` | images are divided into four domains; one that is named (edges) is only in the test |
| `strong+mismatched:0.2` | several settings together |

Any option of `contraport train` applies to all cells as `--train.lr 0.01`. A YAML file with the same options is a suite; it can name rows
(`- mine: {{objective: nt-xent, target: labels}}`) and state `claims` (`says`, `better`, `than`), each of which gets a verdict.

**Fair by construction.** Settings of objectives keep their defaults, or `--tune N` searches all with the same number of trials (the
defaults and N - 1 points of a Sobol sequence), judged on a part of the training items. Test items are used once. All rows of a
column see the same corrupted items and shuffled pairs.

**What comes out**: `table.md`, `table.csv`, `results.json`, `plot.png`, `page.html`, `commands.sh`, which trains each cell on its own, and the
runs in `cells/`.

- The **interval of a mean** is Student's t over the seeds; with one seed it is over the test items.
- The **difference** from the first row (`--baseline`) is on the same seeds and items; its variance is the sum of those over seeds and
  items. Its interval holds for all comparisons of a table at once (Bonferroni). Variances of few seeds are moderated by those of the
  whole table (Smyth, 2004).
- A claim **held** if the row it favors is significantly better in some column and significantly worse in none, **held in part** if it is
  also worse in some (of [several data sets](claims.md): if it held on some only). It **did not hold** if the row is only
  worse, or if a gain of one point can be ruled out everywhere. Otherwise it is **not decided at this size**, and the output says how
  many seeds would decide it.

Choose the number of seeds before you look. Do not add seeds one by one until an interval excludes zero: such an interval is too
confident.

**How long it takes** is estimated before the start from a few steps. With `--budget 30m` no training starts that would end after
it; all cells are trained with one seed before the next, so that a run that was cut short gives a table. Run the command again to continue, with
more seeds or rows if you like; several processes can work on one folder.

## A metric of your own

```python
from contraport.metrics import register_metric


@register_metric("Largest variance", group="geometry", better="neither", unit="squared", value_format="{{:.2f}}")
def largest_variance(context):
    \"\"\"Largest variance of a feature.\"\"\"
    return float(context.test_features.var(dim=0).max())
```

It returns one value for each test item, a `MetricResult`, or a single number. `contraport.metrics.eval_context.EvalContext` contains
everything that it can use: features, views, labels, projections. The key is its title, in lower case with underscores.
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
    keys = [one.key for one in metric.expand_default_numbers()]
    name = "` to `".join((keys[0], keys[-1])) if len(keys) > 3 else "`, `".join(keys)
    summary = metric.summary.replace("|", "\\|")
    star = "" if metric.is_default else " *"
    return f"| `{name}`{star} | {_BETTER[metric.better_direction]} | {summary} | {metric.unit} |"
