"""Write docs/evaluating.md: what there is to say of evaluating, and the registry of measures as tables."""

from __future__ import annotations

from contraport.measures import MEASURES, Measure
from contraport.measures.intervals import LEVEL, RESAMPLES

_BETTER = {"higher": "↑", "lower": "↓", "neither": ""}

PAGE = """# Evaluating

The tables are generated from the registry by `make docs`; do not edit.

```sh
contraport evaluate runs/a                                      # what is usual
contraport evaluate runs/a runs/b --measures accuracy recall@20  # some, by name, number or group; two runs, compared
contraport evaluate runs/a --measures all --test_data harder/   # all, judged on other items of the same classes
contraport evaluate runs/a --checkpoints all --measures knn     # also what --keep_every kept, epoch by epoch
contraport train --data photos/ --monitor knn:every=5           # while it is trained
```

Every number is of the frozen encoder's features and stands beside that of the same encoder untrained and of the raw
inputs. Of projections are only the bound of mutual information and, where each view has an encoder of its own,
retrieval. All numbers are in `evaluation.json` in the run's folder.

## What is measured

Those with a star are measured only where they are asked for. A number after `@` may be any: `recall@20`,
`few_shot@3`. What the data do not allow is left out, and said: accuracies without labels, robustness of what is no
image.

{tables}

A corruption has five severities (`noise@1` to `noise@5`), whose lengths are relative to the side of the image.

## How sure a number is

- **An interval** ({level:.0%}, percentile bootstrap, {resamples:,} draws, seeded) stands beside every number. The test
  items are drawn again; nothing is fitted again. So it says how much the number would move with other test items, and
  nothing of another seed or other training items: train with several seeds for that. What looks at all items at once
  (uniformity, tolerance, effective rank, hubness, calibration, clusters) enters by what each item does to it, to first
  order; on simulated data such an interval was as wide as the numbers of fresh items are spread, that of hubness up to
  2.5 times as wide in few dimensions, and that of calibration covered the true error in 86 to 100 % of 80 draws of 200 or 2,000 items.
- **The calibration error** is the root of a mean square from which chance is taken off, so that an encoder does not
  look worse for fewer test items; 0 is written where no more than chance is seen.
- **A difference** of two encoders on the same items is paired, item by item: its interval is narrower than those of
  the two numbers suggest, and only where it leaves out zero is one better. `differences` in `evaluation.json` has
  them against the untrained encoder, the raw inputs, and the other runs of the same call.
- Where all items agree an interval has no width: with n test items nothing rarer than about 3 in n can be seen.
- **Nothing is chosen by the test items.** The probe's penalty is chosen on a fifth of the training items, and the
  last epoch is measured, not the best. A probe on few labels chooses on a fifth of these few, so that it sees no
  others; with one of each class it is 1/n. By 2, 5, 10 and 40 of each class, of Fashion-MNIST after a training and as
  pixels and of digits after one, that choice was from .8 points below to .7 above 1/n, and .1 above in the mean; a
  cross-validation over the few was no better.

## While training

`--monitor` measures 2,000 training items, drawn once, half to learn from and half to be judged on, at the end of an
epoch; no test item is seen, and no bit of the training depends on it. The numbers are in `metrics.jsonl`, the bar and
the page.

## The page

```sh
contraport report runs/a runs/b --out report.html
```

One file, which opens without a network, in light and in dark, on a phone too; every figure says what to read from it.
What a run does not have is left out, and said. More of it is there after a training and an evaluation that ask for it:

| shown | comes with |
|---|---|
| a verdict in words, held to the intervals; the numbers; the settings that differ | `evaluate runs/a runs/b`, together |
| curves over steps, epochs, seconds or the share of the run | the training; `--monitor knn` adds what is measured on the way |
| what the encoder was worth epoch by epoch; plans over the training, with a slider | `train --keep_every N`, `evaluate --checkpoints all` |
| a map of test items, coloured by class, domain, loss or suspicion; the nearest neighbours of any | `evaluate`; suspicion where the data give two views |
| what the probe takes for what, and the ten items to look at first, which it mistakes most surely | `evaluate` with the linear probe |
| the plan beside its target, lines from items to where their mass goes, what an unbalanced plan let go | `evaluate` |
| cosines class by class, the spectrum, alignment beside uniformity | `evaluate` |
| accuracy over the severity of six corruptions | `evaluate --measures robustness`, beside the usual ones |
| how many pairs seem wrong, and the ten to look at first, with what both members show and the better partner | `train --audit`, `evaluate` |

The loss of an item is that of all points in one batch, so that it is to be compared within a map. Suspicion is
the share of test items that are at least as near to one given view as the partners of the other's neighbours are, the
statistic `neighbors` of an audit, of items that were not trained on: over a third where two views have nothing in
common.

## A measure of your own

```python
from contraport.measures import measure


@measure("Widest feature", group="geometry", better="neither", unit="squared", pattern="{{:.2f}}")
def widest_feature(subject):
    \"\"\"Largest variance of a feature.\"\"\"
    return float(subject.test_x.var(dim=0).max())
```

It returns a value for each test item (of which the mean is taken, with an interval), a `Finding` that says how items
become a number, or one number. `contraport.measures.subject.Subject` has what it may ask for: features, views,
labels, projections.
"""


def evaluating() -> str:
    """Return the page about evaluating."""
    groups = dict.fromkeys(measure.group for measure in MEASURES.values())
    tables = "\n\n".join(table(group) for group in groups)
    return PAGE.format(tables=tables, level=LEVEL, resamples=RESAMPLES)


def table(group: str) -> str:
    """Return the measures of a group as a table."""
    lines = [f"### {group}", "", "| name | better | what it says | in |", "|---|---|---|---|"]
    lines += [row(measure) for measure in MEASURES.values() if measure.group == group]
    return "\n".join(lines)


def row(measure: Measure) -> str:
    """Return the row of a measure."""
    name = "`, `".join(one.key for one in measure.each())
    summary = measure.summary.replace("|", "\\|")
    star = "" if measure.usual else " *"
    return f"| `{name}`{star} | {_BETTER[measure.better]} | {summary} | {measure.unit} |"
