"""Writes the pages audit, audit-results and audit-trainings from benchmark results and the registry of statistics."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from textwrap import fill
from typing import Any

from scipy.stats import t as student

from contraport._utils.files import format_csv
from contraport._utils.formatting import join_names
from contraport.auditing.pairs.pair_scoring import STATISTICS

SEEDS = 3
WITHIN = 0.05
GAINED, GOAL = 0.02, 0.85
SINGLE_SEED = " (one seed)"
PLANS = ("csls", "balanced", "unbalanced")
MEASURED = Path(__file__).parents[1] / "benchmarks" / "results" / "audit.json"
MEANS = MEASURED.with_suffix(".csv")
OUTLIERS = MEASURED.with_name("outliers.json")
SEVERAL = MEASURED.with_name("view_audit.json")
VIEW_TRAININGS = MEASURED.with_name("view_audit_training.json")
RATES = MEASURED.with_name("noise_rate.json")
PARTNERS = MEASURED.with_name("partners.json")
SWAPS = MEASURED.with_name("near_swaps.json")
REPAIRS = MEASURED.with_name("repair.json")
NAMES = {
    "zer-kar": "UCI zer-kar",
    "fou-kar": "UCI fou-kar",
    "zer-fou": "UCI zer-fou",
    "digits-halves": "halves of digits",
    "fashion-halves": "halves of Fashion-MNIST",
    "captions": "captions",
}
COSTS = {
    "fou-kar": "UCI fou-kar, vectors and a small MLP",
    "digits-halves": "halves of digits as vectors",
    "fashion-images": "halves of 1,200 images and a small CNN",
}
MAIN_SHARES = 0.2, 0.4
BASELINES = {"cosine": "cosine", "infonce": "loss", "neighbors": "neighbors", "lemon": "LEMoN"}
QUANTITIES = {
    "online": ("auroc", "rate", "lost", "fdr", "recall"),
    "frozen": ("auroc", "rate", "lost", "fdr"),
    "baselines": tuple(BASELINES),
    "plain": ("recall",),
    "plan": ("recall",),
    "oracle": ("recall",),
}
"""Quantities of each method in the CSV of means: of the audits, the baselines and the training runs."""


def _outlier(kind: int, score: str) -> str:
    """Return the mean AUROC of a score for a kind of outliers, by its position."""
    values = list(json.loads(OUTLIERS.read_text())["auroc"][score].values())[kind]
    return f"{statistics.mean(values):.3f}"


def _one_view() -> str:
    """Return what was found on outliers among items of one view."""
    mass, forest = (
        ", ".join(_outlier(kind, score) for kind in range(3))
        for score in ("unbalanced mass, relaxation 0.2", "isolation forest, pixels")
    )
    return fill(
        "Data with one view per item have no pairs to audit. As a score for outliers, the mass that unbalanced "
        "transport leaves to an item was not reliably better than an isolation forest "
        f"(`python -m benchmarks.outliers`): AUROC {mass} against {forest} for digits, noise and shuffled pixels among "
        "Fashion-MNIST.",
        120,
        break_on_hyphens=False,
        break_long_words=False,
    )


def _several_views() -> str:
    """Return the table of what audits of several views found."""
    results = json.loads(SEVERAL.read_text())["results"]
    lines = ["| data | seed | AUROC | view named | precision | recall |", "| --- | --- | --- | --- | --- | --- |"]
    lines += [
        f"| {one['data']} | {one['seed']} | {one['auroc']:.3f} | {one['named']:.1%} | {one['precision']:.1%} "
        f"| {one['recall']:.1%} |"
        for one in results
    ]
    text = (
        "*UCI*: six sets of features of digits. *AUROC* is over all views of all items; *view named* is how often the "
        "lowest score of an item with one wrong "
        "view is that of the wrong one; precision and recall are those of what is flagged by default. Two "
        "constants of the method were chosen on UCI with seed 0; emoji and seed 1 played no part in it."
    )
    return "\n".join([*lines, "", text])


def _trainings_of_several_views() -> str:
    """Return the table of what training runs with an online audit of several views reached."""
    results = json.loads(VIEW_TRAININGS.read_text())["results"]
    keys = ["recall", "recall of shuffled", "probe", "probe of shuffled"]
    lines = ["| training | " + " | ".join(keys) + " | CPU s |", "| --- |" + " ---: |" * (len(keys) + 1)]
    for method in ("plain", "audit", "oracle"):
        rows = [one for one in results if one["method"] == method]
        cells = [format_mean([one[key] for one in rows]) for key in keys]
        seconds = statistics.mean(one["cpu"] for one in rows)
        lines.append(f"| {method} | {' | '.join(cells)} | {seconds:.0f} |")
    audits = [one for one in results if one["method"] == "audit"]
    means = {key: statistics.mean(one[key] for one in audits) for key in audits[0] if key != "method"}
    text = (
        f"UCI's six views, one view of 20% of the items shuffled, {len(audits)} seeds (`python -m "
        "benchmarks.view_audit --training`), means ± half their 95% intervals: recall@1 on clean test items, over "
        "all ordered pairs of views and over those with the "
        "shuffled view, and a linear probe on all views and on the shuffled one. The oracle trains with the wrong "
        f"views missing. The audit's AUROC over all views of all items is {means['auroc']:.3f}; the "
        "wrong view is named in "
        f"{means['named']:.1%} of the items, {means['found']:.1%} of the wrong views are left out, and "
        f"{means['precision']:.1%} of what is left out is wrong. The estimated share of the shuffled view is "
        f"{means['rate']:.1%}, of the others at most {max(one['other rates'] for one in audits):.1%}."
    )
    return "\n".join([*lines, "", fill(text, 120, break_on_hyphens=False, break_long_words=False)])


def _believed_rates() -> str:
    """Return the errors of estimated shares, of those that are printed and of those that are not."""
    results = json.loads(RATES.read_text())["results"]
    printed, withheld = ([one for one in results if one["printed"] == shown] for shown in (True, False))
    errors = [one["estimated"] - one["wrong"] for one in printed]
    excess = [one["estimated"] - one["wrong"] for one in withheld]
    names = "; ".join(dict.fromkeys(one["data"].replace("made,", "synthetic,") for one in withheld))
    return fill(
        f"In another benchmark (`python -m benchmarks.noise_rate`; 0, 5, 20 and 40% shuffled), {len(printed)} of "
        f"{len(results)} frozen audits gave a share, at most {max(map(abs, errors)):.3f} from the truth. The other "
        f"{len(withheld)} gave none ({names}): it would have been {min(excess):.3f} to {max(excess):.3f} too high. "
        f"Digits paired with their class, where a view has no information but the class, gave one too, at most "
        f"{max(abs(one['estimated'] - one['wrong']) for one in printed if 'class' in one['data']):.3f} off.",
        120,
        break_on_hyphens=False,
        break_long_words=False,
    )


def _partners() -> str:
    """Return the table of proposed partners, by the plan and alone, a row for each data set."""
    results = json.loads(PARTNERS.read_text())["results"]
    rows: dict[str, list[str]] = {}
    for alone, plan in zip(results[::2], results[1::2], strict=True):
        cells = [f"{one['right']:.0f} / {_format_count(one['proposed'])}, {one['hub']:.0f}" for one in (alone, plan)]
        confidence = f" ({plan['confidence'] / plan['proposed']:.2f})" if plan["proposed"] >= 1 else ""
        rows.setdefault(alone["data"], []).extend([cells[0], cells[1] + confidence])
    heads = [f"{way}, {case}" for case in ("all there", "half missing") for way in ("alone", "plan")]
    lines = ["| data | " + " | ".join(heads) + " |", "| --- |" + " ---: |" * len(heads)]
    return "\n".join([*lines, *(f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items())])


def _format_count(count: float) -> str:
    """Format a mean of counts as an integer, or with a decimal if that would be 0."""
    return f"{count:.1f}" if 0 < count < 0.5 else f"{count:.0f}"


def _near_swaps() -> str:
    """Return the table of audits of pairs swapped between near neighbors, beside random swaps."""
    results = json.loads(SWAPS.read_text())["results"]
    heads = ["online", "frozen", "loss", "LEMoN", "share, online", "share, frozen", "mistakes at .1"]
    keys = ["online: AUROC", "frozen: AUROC", "infonce: AUROC", "lemon: AUROC", "online: rate", "frozen: rate"]
    lines = ["| data | swapped | seeds | " + " | ".join(heads) + " |", "| --- | --- | ---: |" + " ---: |" * len(heads)]
    for name, kind in dict.fromkeys((one["data"], one["swapped"]) for one in results):
        runs = [one["measured"] for one in results if (one["data"], one["swapped"]) == (name, kind)]
        means = []
        for key in (*keys, "online: right at fdr .1"):
            values = [run[key] for run in runs if key in run]
            means.append(f"{statistics.mean(values):.3f}" if values else "-")
        lines.append(f"| {name} | {kind} | {len(runs)} | {' | '.join(means)} |")
    return "\n".join(lines)


def _repairs() -> str:
    """Return the table of what repairs, co-training and a plan score gain over leaving suspected pairs out."""
    results = json.loads(REPAIRS.read_text())["results"]
    runs: dict[tuple[str, float], list[dict[str, Any]]] = {}
    for one in results:
        rows = {row: values for part in one["parts"].values() for row, values in part["rows"].items()}
        runs.setdefault((one["data"], one["level"]), []).append(rows)
    heads = [name for name, level in runs if level == MAIN_SHARES[-1]]
    lines = [f"| training | {' | '.join(heads)} | intervals without 0 |", "| --- |" + " ---: |" * (len(heads) + 1)]
    for row in dict.fromkeys(row for several in runs.values() for rows in several for row in rows):
        base = "recall of two" if row == "co-training" else "recall"
        cells, better, worse = [], 0, 0
        for (_, level), several in runs.items():
            values = [rows[row]["recall"] - (row != "drop") * rows["drop"][base] for rows in several]
            low, high = mean_interval(values)
            better, worse = better + (low > 0), worse + (high < 0)
            if level == MAIN_SHARES[-1]:
                cells.append(f"{statistics.mean(values):{'' if row == 'drop' else '+'}.3f} ± {(high - low) / 2:.3f}")
        verdict = "" if row == "drop" else f"{better} better, {worse} worse"
        lines.append(f"| {row} | {' | '.join(cells)} | {verdict} |")
    return "\n".join(lines)


def audit() -> str:
    """Return the page on audits."""
    results = json.loads(MEASURED.read_text())["results"]
    return f"""# Wrong pairs

## What you have

Paired data, such as images with captions, two sensors or a joined table, in which some pairs may not belong together:
two or more views of each item (*given* views), and at least 50 items.

## The command

```sh
# scores, flags, better partners, and a page to look at
contraport audit --data pairs.npz --out audits/pairs
# data without the flagged pairs, and with a weight for each other pair
contraport audit --data table.parquet --given_views photo caption --drop --weigh --out audits/table
# trains, and drops suspected mismatches as it goes
contraport train --data pairs.npz --objective info-nce --audit --out runs/pairs
```

```python
audit = contraport.audit(data=(images, sounds))
audit.noise_rate, audit.noise_interval  # share of wrong pairs, 95% interval
audit.flagged()  # suspected mismatches, the worst first: as many as that share
audit.flagged(count=100)
audit.flagged(fdr=0.1)
audit.partners[7]  # item whose second view fits pair 7 better; -1: none
pandas.DataFrame(audit.to_columns())
```

## What you see

![The page of an audit: the share of wrong pairs, and the worst pair, with a better partner](images/audit.png)

`audit.html` shows the two hundred worst pairs, each with its better partner. You can filter them, mark them wrong or
right, and download the list with your marks.

## What it means

- **The ranking** puts wrong pairs first. {describe_separation(results)}
- **The share of wrong pairs** is an estimate with an interval. {describe_coverage(results)}
- **A training run with `--audit`** leaves out what seems wrong. {describe_recovered_gain(results)}
- **If the views share too little, no share is given**, only a note (`audit.is_rate_reliable` is False), since right
  pairs would count as wrong. The order of the pairs may still be useful.

Details: [pairs found](audit-results.md); [training runs, repairs, and what did not help](audit-trainings.md).

## When not to use it

- **Partners exchanged among similar items** are often not found: a pair that fits as well as the right one seems right
  ([results](claims.md#beyond-8), [of halves of images](claims.md#halves-12)). Nor is the same wrong pair that occurs
  many times: remove duplicates first.
- **For records of two registers that share text**, an online audit ranked wrong links worse than the cosine of
  n-grams did; on vectors of n-grams, `--method frozen --statistic csls` did as well or better
  ([measured](coupling-results.md#wrong-links-between-persons)).
- **If few pairs are wrong, and each view nearly determines the other**, the cosine of a plain training run is as good,
  but gives no number of pairs to leave out.
- Captions written by people, and large image data, were not measured.

{_one_view()}

## Which way

| you want | use |
|---|---|
| an encoder from pairs of which some may be wrong | `train --audit`; without wrong pairs it flagged at most 2 in 100 |
| repaired pairs | `contraport audit --repair`, or its page |
| an audit of vectors from a good encoder | `--method frozen`: seconds for thousands of pairs, minutes for a million |
| a second opinion, with few copies | `--method crossfit`: tens of trainings; it found no more wrong pairs (one seed) |

Of more than two views, choose two (`--given_views photo caption`), or audit [all of them](#three-or-more-views). All
pairs are scored, except those of the data's own test split and those that lack a view, whose number is logged.
`--resume --out FOLDER` continues an audit that was stopped; `--resume --drop` also writes the cleaned data of a
finished one.

`train --audit` saves its scores in `pairs.npz` of the run folder: `Run.pair_scores()` has arrays `scores`, `rows`
(the row of each pair in the data) and `keys`. A batch holds at most a quarter of the pairs unless `--batch_size` says
otherwise; however many pairs are dropped, at least one full batch is trained on. It cannot be combined with `--target`
or `--freeze`. In Python: `ContrastiveEncoder(audit=True)`.

## Output

- `pairs.csv` in the audit's folder has a row for each pair in the order of the data: `id` counts the scored pairs,
  `row` those of the data, `key` is the name. A name that a spreadsheet would take for a formula has an apostrophe
  before it. `--json` prints the contents of `audit.json`, then the numbers of all pairs; `flagged_pairs` (of three or
  more views `flagged_views`) lists what is flagged, the worst first.
- `--drop` writes `dropped.*`, the data without the flagged pairs; `--repair` writes `repaired.*`, in which flagged
  pairs have the second view of their better partner, or are left out if there is none; `--weigh` writes `weighed.*`
  with weights, 0 for flagged pairs and 1 for the others. A table keeps its format (its weights are the column
  `audit_weight`, for `train --sample_weight audit_weight`), and a [coupling](guides/couplings.md) becomes a folder of
  three tables; all other data become an `.npz`, and their weights `weights.npy`. There the images of a folder have the
  size of the audit (`--image_size`; by default at most 64 pixels) and no file names: to copy or delete the files
  themselves, take `key` and `flagged` of `pairs.csv`. Training rows of a table or an `.npz` without an audited pair (a
  view is missing, or its image cannot be read) are left out too, or get weight 0, as the log says.
- **Better partners** are found by matching the suspected mismatches with one another in a transport plan with a
  slack, which stands for no partner. The mass of a proposal is its *confidence*, which assumes that half of the right
  partners are missing: if all are present, it is too low. No second view is proposed twice.

## Method

Networks memorize wrong pairs, so a useful score must not depend on what was memorized.

- **online** (the default): a single training that scores its pairs after the first epoch and then four more times, at
  growing intervals. Each scoring answers two questions, which count equally:

  1. Take the 15 nearest neighbors of one member. How near are their partners to the other member, by rank?
     Items that are equally near share a rank.
  2. How well do the members fit by maps between the views (ridge regression and canonical correlations) that are
     fitted to other pairs (`canonical`)?

  For vectors of at most 1,024 numbers, both are also asked about the raw inputs. A score is the mean over all
  scorings so far. The lowest, as many as the estimated share, are dropped until the next scoring.
- **crossfit**: encoders score pairs that they were not trained on (`--folds`, `--repeats`); suspects are dropped, and
  everything is fitted again (`--rounds`). Pairs that share a content, such as a class or a caption, are held out
  together, so the encoders score contents that they have not seen. The fewer different contents, the worse the scores;
  fewer than 50 are refused: use online.
- **frozen**: the views are vectors from an existing encoder; nothing is trained, and nothing is standardized. Rows are
  compared by their cosine, so columns of large units or with a large offset (timestamps) outweigh all others: the
  ranking gets worse, down to no share at all. Standardize tables of measurements first, such as by `StandardScaler` of
  scikit-learn. (The encoders of other audits standardize numbers.)

**The share of wrong pairs** is estimated from pairs that are mismatched on purpose: the lower part of their scores
shows how wrong pairs score, and the share follows from the number of given pairs that score as low (Storey, 2002).
They must be treated like the unknown ones, so an online audit uses *decoys*: a tenth of the items (at least 200, at
most 2,000 and a fifth) exchange their second views for the first third of the training, and are trained on, dropped
and scored like all others. In a frozen audit each item gets another item's second view, of another content, so that the
mismatches are as varied as wrong pairs if a view has few different contents, such as classes or shared captions.

Notes tell if the scores look memorized (a decoy scores above a fresh mismatch in more than 75% of all cases), or if
more than two thirds of the pairs look wrong. A share is given if right pairs are estimated to score above known
mismatches in at least 87% of cases.

{_believed_rates()}

## Three or more views

With more views, the audit names *the view* of an item that is wrong. Each pair of views is audited by itself; the
scores of all pairs give the probability of each combination of at most three wrong views. `views.csv` has a score for
each view of each item (below 0: probably wrong); `--drop` writes `dropped.npz`, in which flagged views are missing.

The shares of the views follow from those of the pairs of views. Only reliable shares of at most two thirds count, and
a view whose share they do not determine gets none (NaN) and is not flagged. If one of three views shares nothing with
the others, this holds for all three: the share of the remaining pair may be of either view, so audit that pair alone
(`--given_views`). A frozen audit refuses, and names the pair of views, if too few pairs are left to score others by.

```python
audit = contraport.audit(data={{"ear": ears, "eye": eyes, "hand": hands}}, method="frozen")
audit.noise_rates  # estimated share of wrong items, for each view
audit.flagged()  # item and view of each suspect, the worst first
```

{_several_views()}

`train --audit` does this as it trains: a view that is more probably wrong than right counts as missing, and an item
with fewer than two trusted views is left out. `Run.view_scores()` reads the scores. The objective must accept items
that lack views, as `info-nce` and `cmc` do, and the data must lack none.

{_trainings_of_several_views()}

## Statistics

`--statistic` of a crossfit or frozen audit; the default, and that of online audits, is `combined`:

{statistics_table(results)}

{compare_plan_statistics(results)}
"""


def audit_results() -> str:
    """Return the page with the measurements of audits."""
    results = json.loads(MEASURED.read_text())["results"]
    write_means(results)
    largest_hub = max(one["hub"] for one in json.loads(PARTNERS.read_text())["results"][::2])
    return f"""# Measurements of the audit

[The guide to the audit](audit.md) describes the method.

## Wrong pairs found

`python -m benchmarks.audit` shuffles a share of the training pairs; the test pairs are clean. The tables show the mean
± the half-width of the 95% interval over 3 seeds (Student's t), where 20 or 40% were shuffled.
`benchmarks/results/audit.csv` has all shares and quantities. All training runs, including the one on the right pairs
alone, use the same encoders, temperature (.2) and number of steps: 18 epochs (8 for captions). The data are pairs of
UCI's feature sets of digits (1,600), halves of digits (1,348), and halves and captions of Fashion-MNIST (1,200 each).
Images are 14 x 14 and given as vectors. A caption is one of five phrases with the name of the class, and a pair is
right if the image and the caption are of the same class. The online audits of these tables scored their pairs eight
times. In a later comparison (fou-kar, halves of digits and of clothes, 20% wrong, 3 seeds; `python -m
benchmarks.audit_change`) the area was .966, .972 and .977 with eight scorings, and .965, .971 and .977 with five, as
today.

How well encoders are trained is on [a page of its own](audit-trainings.md).

### Separation

Area under the ROC curve. The baselines judge the same pairs that a plain training run used. For each baseline,
the best of three training temperatures and of all its own settings is *chosen with the truth*, which no audit has.
"loss" is minus the InfoNCE loss, "neighbors" is the agreement of neighbors as cleanlab judges labels, and "LEMoN" is
the score of Zhang et al. (2025). A frozen audit needs two views of vectors, so captions have none ("-").

{
        measurement_table(
            results,
            [("online", "auroc"), ("frozen", "auroc"), *(("baselines", name) for name in BASELINES)],
            ["online", "frozen", *BASELINES.values()],
        )
    }

{describe_lead(results)}

With its temperature chosen by the truth, the plain cosine is as good as an online audit if few pairs are wrong and each
view has much information about the item (zer-kar, halves of images), or if a caption only names the class. The
more pairs are wrong and the less the views share, the more the baselines fall behind. On UCI's
vectors, designed by hand for digits, the frozen audit comes within 0.01 of the online one without training.

{describe_crossfits(results)}

### The estimated share

The estimated share of wrong pairs, and the share of right pairs that is flagged by mistake:

{
        measurement_table(
            results,
            [("online", "rate"), ("frozen", "rate"), ("online", "lost"), ("frozen", "lost")],
            ["rate, online", "rate, frozen", "right pairs flagged, online", "frozen"],
        )
    }

{describe_no_wrong_pairs(results)}

Of shuffled captions a tenth are still right, by chance: if 20 and 40% are shuffled, 18 and 36% are wrong. The same
holds for known mismatches.

{describe_coverage(results)}

{describe_right_among_flagged(results)}

### Right partners proposed

A fifth of the pairs exchanged their second views; either all right partners are in the data, or half of the wrong pairs
were removed (`python -m benchmarks.partners`, frozen audits, means of three seeds). *Alone* is the candidate with the
highest score of each suspected item. "87 / 96, 1 (0.43)": 87 of 96 proposed partners were right, the most frequent one
was proposed once, and the mean confidence was 0.43.

{_partners()}

Alone, the same generic item is proposed up to {largest_hub:.0f} times, and most proposals are wrong. The plan proposes
nothing where right partners cannot be separated from wrong ones, as for most of UCI's views. Where it proposes more
than five, it misses 30 to 50% of the right ones that are found alone, and proposes 6 to 24 times fewer wrong ones; the
share of right ones is then above the mean confidence.

### Wrong pairs that resemble right ones

`python -m benchmarks.near_swaps` gives a fifth of the items the partner of the most similar other item, as gettext does
with unconfirmed (fuzzy) translations, or that of a random one: 1,500 of FEBRL's records of persons with their corrupted
copies, and 1,500 messages of Django with their German translations. Loss and LEMoN are chosen with the truth, as above.
"mistakes at .1" is the share of right pairs among `flagged(fdr=.1)`.

{_near_swaps()}

Near swaps of records are found, most of those of translations are not; the loss ranks these better. **The estimated
share does not count near swaps**, since known mismatches are random; hardly any pair is flagged then, with `fdr=.1` in
one of three draws.

Real fuzzy entries were not measured: of fourteen releases of Sphinx and Django only one has any, four messages.
"""


def audit_trainings() -> str:
    """Return the page with the measurements of training runs with an audit."""
    results = json.loads(MEASURED.read_text())["results"]
    repair_seeds = len({one["seed"] for one in json.loads(REPAIRS.read_text())["results"]})
    return f"""# Training runs with an audit

[The guide to the audit](audit.md) describes the method, and
[its measurements](audit-results.md) have the data, and how many wrong pairs are found.

## The trained encoder

Recall@1 between the views of clean test pairs after a training run (for captions: whether the nearest one is of the
same class).

{
        measurement_table(
            results,
            [("plain", "recall"), ("plan", "recall"), ("online", "recall"), ("oracle", "recall")],
            ["on all pairs", "`--sample_weight plan`", "with `--audit`", "on the right pairs alone"],
        )
    }

{describe_recovered_gain(results)}

Weights from the plan of each batch (`--sample_weight plan`) help if both views are informative (zer-kar), but far less
than leaving pairs out, and add nothing significant to `--audit` ([halves](claims.md#halves-15),
[UCI](claims.md#mismatch-2)). Losses for wrong pairs: [UCI](claims.md#beyond-3), [halves](claims.md#halves-3).

Wrong pairs harm the search for partners, not the classes that a probe learns. With InfoNCE on halves of
Fashion-MNIST (2,000 pairs, three seeds) recall@1 fell from 33.8% to 11.8% with 40% wrong pairs, and the accuracy
of a linear probe was 79.5 and 79.0%; on halves of digits 23.2 and 11.8%, and 97.9 and 97.1%. Features
that only serve a classifier need no audit.

{describe_cost(results)}

## Repair in place of leaving out

Recall@1 with `train --audit` (*drop*) where 40% were shuffled, and differences from it with the same {repair_seeds}
seeds (`python -m benchmarks.repair`). All networks take equally many steps, *twice as long* twice as many; *together*
and *co-training* need two. *Target repair*: soft positives from neighbors within each view, as in IN2R but without its
learned refiner; *partner repair*: partners from the plan with slack; *plan score*: the encoders' features scored by the
balanced plan of all items; *co-training*: each network trains on the pairs that the other selects. The last column
counts the settings, also with 20% shuffled, whose interval excludes 0.

{_repairs()}

Target repair, partner repair, plan score and co-training gain nothing certain in any of six settings, and target repair
loses in two; by chance alone about one of these 24 intervals would exclude 0. So none of them is an option of
`train --audit`.

## Where the rest is lost

On zer-kar and fou-kar at 20 and 40%, with one seed and 18 epochs, before the score included `canonical` and raw
vectors: recall@5, as a share of the way from a training run on all pairs to one on the right pairs alone.

- Training runs that leave out all wrong pairs from epoch 2 on reach 91 to 124%, from epoch 3 on 95 to 107%, from
  epoch 7 on 54 to 81%; with the decoys of an audit 96 to 102%. The epochs before the first scoring, and the decoys,
  cost nothing.
- A training run that uses from its first step the pairs that an audit keeps at its end reaches 83 to 93%, about as
  much as the audit itself. So the loss comes from the choice of the pairs. Wrong pairs that are kept (without them: 75
  to 109%) and right pairs that are left out (with them: 84 to 96%) matter alike.

## What did not help

These were tried once, by code that was not kept: read them as hints.

- Scoring before the first step (33 training runs): recall changed by -.011 ± .009 on halves of images and by +.006 ±
  .009 on UCI's views.
- Leaving out a quarter more than the estimated share: worse on zer-kar (1 seed).
- Features of the untrained encoders in place of raw vectors: 8.3% of the pairs kept were wrong, with raw vectors 7.4%
  (two seeds at 40%, six data sets).
- `neighbors` and `canonical` weighted by what separates the decoys best: 7.5 to 7.6% wrong, added up 7.3%.
- The likelihood ratio of jointly normal canonical variates, in place of a cosine: 8.6% wrong, not 8.0%.
- Fourteen scorings in place of eight: .279 against .268 on halves of images at 40% (intervals of .04), for a third
  more CPU time.
- Weights by the probability that a pair is right (two seeds of fou-kar and zer-kar): no encoder was better.
- `--sample_weight plan` with a strength that rises from zero, because wrong pairs are memorized by then.
"""


def measurement_table(results: list[dict[str, Any]], columns: list[tuple[str, str]], heads: list[str]) -> str:
    """Return a Markdown table with a row for each data set and main share of wrong pairs, and means with intervals."""
    lines = ["| data | shuffled | " + " | ".join(heads) + " |", "|---|---" + "|---:" * len(heads) + "|"]
    for name in NAMES:
        for level in MAIN_SHARES:
            cells = [format_mean(values_by_seed(results, name, level, *column)) for column in columns]
            lines.append(f"| {NAMES[name]} | {level:.0%} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def write_means(results: list[dict[str, Any]]) -> None:
    """Write the mean and the half-width of its interval of each quantity, data set and share as CSV."""
    rows = []
    for name in NAMES:
        for level in sorted({one["level"] for one in results if one["data"] == name}):
            for method, keys in QUANTITIES.items():
                for key in keys:
                    values = values_by_seed(results, name, level, method, key)
                    if len(values) > 1:
                        low, high = mean_interval(values)
                        mean, half = f"{statistics.mean(values):.4f}", f"{(high - low) / 2:.4f}"
                        rows.append((NAMES[name], level, method, key, mean, half, len(values)))
    MEANS.write_text(format_csv(("data", "shuffled", "method", "quantity", "mean", "half_width", "seeds"), rows))


def describe_no_wrong_pairs(results: list[dict[str, Any]]) -> str:
    """Describe the estimated share where no pair or one in twenty is wrong."""
    parts = []
    for level in (0.0, 0.05):
        ranges = [
            (
                method,
                [
                    statistics.mean(result)
                    for name in NAMES
                    if (result := values_by_seed(results, name, level, method, "rate"))
                ],
            )
            for method in ("online", "frozen")
        ]
        estimates = " and ".join(f"{min(means):.3f} to {max(means):.3f} ({method})" for method, means in ranges)
        parts.append(f"{estimates} with {level:.0%} shuffled")
    return f"The mean estimate was {'; '.join(parts)}."


def describe_right_among_flagged(results: list[dict[str, Any]]) -> str:
    """Describe the share of right pairs among those that are flagged at a false discovery rate of a tenth."""
    parts = []
    for level in (0.05, *MAIN_SHARES):
        means = [
            statistics.mean(result)
            for name in NAMES
            if (result := values_by_seed(results, name, level, "online", "fdr"))
        ]
        parts.append(f"{min(means):.2f} to {max(means):.2f} with {level:.0%} shuffled")
    return (
        "The rate of `flagged(fdr=.1)` is an estimate, not a guarantee: the mean share of right pairs among those that "
        f"an online audit returned was {join_names(parts)}, by data set."
    )


def describe_separation(results: list[dict[str, Any]]) -> str:
    """Describe how well online audits separate wrong pairs, over data sets and shares of at least a fifth."""
    means = [
        statistics.mean(values)
        for name in NAMES
        for level in (0.2, 0.4)
        if (values := values_by_seed(results, name, level, "online", "auroc"))
    ]
    return (
        f"On {len(NAMES)} data sets with 20 or 40% of the pairs shuffled the AUROC is {min(means):.2f} to "
        f"{max(means):.2f} (median {statistics.median(means):.2f})."
    )


def values_by_seed(results: list[dict[str, Any]], name: str, level: float, method: str, key: str) -> list[float]:
    """Return the measured values of a method, one for each seed."""
    runs = [one["measured"].get(method, {}) for one in results if (one["data"], one["level"]) == (name, level)]
    return [run[key] for run in runs if key in run]


def format_mean(numbers: list[float]) -> str:
    """Format a mean with the half-width of its interval; the number of seeds is added unless it is three."""
    if len(numbers) < 2:
        return f"{numbers[0]:.3f}{SINGLE_SEED}" if numbers else "-"
    half = student.ppf(0.975, len(numbers) - 1) * statistics.stdev(numbers) / len(numbers) ** 0.5
    return f"{statistics.mean(numbers):.3f} ± {half:.3f}" + (f" ({len(numbers)})" if len(numbers) != SEEDS else "")


def _name_single_seed_once(text: str) -> str:
    """Keep the note on a single seed after the last of several numbers only."""
    return text.replace(SINGLE_SEED, "", text.count(SINGLE_SEED) - 1) if SINGLE_SEED in text else text


def describe_lead(results: list[dict[str, Any]]) -> str:
    """Describe where an online audit is better than all baselines, and which are better than it, by paired tests."""
    best: dict[float, list[str]] = {}
    behind = []
    for name, level in measured_settings(results, "baselines"):
        result = values_by_seed(results, name, level, "online", "auroc")
        gains = {
            title: mean_interval(
                [a - b for a, b in zip(result, values_by_seed(results, name, level, "baselines", key), strict=True)]
            )
            for key, title in BASELINES.items()
        }
        if all(low > 0 for low, _ in gains.values()):
            best.setdefault(level, []).append(NAMES[name])
        behind += [
            f"{title} is ahead of it on {NAMES[name].split(',')[0]} at {level:.0%} (by {-high:.3f} to {-low:.3f})"
            for title, (low, high) in gains.items()
            if high < 0
        ]
    parts = [f"at {level:.0%} on {join_names(names)}" for level, names in sorted(best.items(), reverse=True)]
    return (
        f"By differences of the same seeds, an online audit is significantly ahead of all four baselines "
        f"{join_names(parts)}; "
        f"{join_names(behind) if behind else 'none is significantly ahead of it'}. "
        "Elsewhere the difference is not decided."
    )


def mean_interval(numbers: list[float]) -> tuple[float, float]:
    """Return the 95% interval of a mean (Student's t)."""
    half = student.ppf(0.975, len(numbers) - 1) * statistics.stdev(numbers) / len(numbers) ** 0.5
    return statistics.mean(numbers) - half, statistics.mean(numbers) + half


def describe_crossfits(results: list[dict[str, Any]]) -> str:
    """Describe the results of cross-fits."""
    parts = []
    for name, level in measured_settings(results, "crossfit"):
        area, rate = (values_by_seed(results, name, level, "crossfit", key) for key in ("auroc", "rate"))
        text = _name_single_seed_once(f"area {format_mean(area)}, noise rate {format_mean(rate)}")
        parts.append(f"{NAMES[name]} at {level:.0%}: {text}")
    seconds = [one["measured"]["crossfit"]["cpu"] for one in results if "crossfit" in one["measured"]]
    return (
        "A cross-fit (`--method crossfit --rounds 3 --repeats 2`, 30 training runs) separates them no better than an "
        f"online audit does: {'; '.join(parts)}. It took {statistics.median(seconds):.0f} seconds of CPU time."
    )


def measured_settings(results: list[dict[str, Any]], part: str) -> list[tuple[str, float]]:
    """Return the data sets and shares of wrong pairs for which a part was measured."""
    return sorted({(one["data"], one["level"]) for one in results if part in one["measured"]})


def describe_recovered_gain(results: list[dict[str, Any]]) -> str:
    """Describe the share of the gain of a training run on right pairs alone that the audit reaches."""
    parts = []
    for name, level in measured_settings(results, "oracle"):
        here = [one["measured"] for one in results if (one["data"], one["level"]) == (name, level)]
        seeds = [one for one in here if {"plain", "online", "oracle"} <= one.keys()]
        plain, ours, best = (
            statistics.mean(one[part]["recall"] for one in seeds) for part in ("plain", "online", "oracle")
        )
        if best - plain >= GAINED:
            parts.append((ours - plain) / (best - plain))
    reached = sum(share >= GOAL for share in parts)
    return (
        f"Where the right pairs alone gain {GAINED} recall@1 or more over all pairs, a training run with `--audit` "
        f"reaches {min(parts):.0%} to {max(parts):.0%} of that gain, by the means over the same seeds (median "
        f"{statistics.median(parts):.0%}; {GOAL:.0%} or more in {reached} of {len(parts)} cases)."
    )


def compare_plan_statistics(results: list[dict[str, Any]]) -> str:
    """Compare statistics with and without a transport plan, on the same cross-fits."""
    parts = []
    for name, level in measured_settings(results, "crossfit"):
        result = (f"`{one}` {format_mean(values_by_seed(results, name, level, 'crossfit', one))}" for one in PLANS)
        parts.append(f"on {NAMES[name]} with {level:.0%} wrong " + _name_single_seed_once(", ".join(result)))
    return (
        "As a statistic, unbalanced transport is no better than the balanced plan, and neither is better than `csls`, "
        f"which needs no plan: {'; '.join(parts)}."
    )


def describe_coverage(results: list[dict[str, Any]]) -> str:
    """Describe the coverage of the interval of the noise rate, and the error of its estimate."""
    parts, off = [], []
    for method, kind in (("online", "audits that train"), ("frozen", "audits of given vectors")):
        facts = [one["measured"][method]["covered"] for one in results if method in one["measured"]]
        narrow = ", too narrow" if sum(facts) < 0.9 * len(facts) else ""
        parts.append(f"in {sum(facts):.0f} of {len(facts)} {kind} ({method}{narrow})")
    for name, level in measured_settings(results, "online"):
        true = level * (0.9 if name == "captions" else 1)
        if abs(statistics.mean(values_by_seed(results, name, level, "online", "rate")) - true) > WITHIN:
            off.append(f"{NAMES[name]} at {level:.0%}")
    near = f"except on {', '.join(off)}" if off else "at each level"
    return (
        f"The 95% interval contained the true share {' and '.join(parts)}. The mean of the online "
        f"estimate was within {WITHIN} of the truth {near}."
    )


def describe_cost(results: list[dict[str, Any]]) -> str:
    """Describe the CPU time of an online audit, relative to a plain training run with as many steps."""
    shares: dict[str, list[float]] = {}
    for one in results:
        if "cost" in one["measured"]:
            result = one["measured"]["cost"]
            shares.setdefault(one["data"], []).append(result["online"] / result["plain"])
    parts = [
        f"{statistics.median(of):.2f} on {COSTS[name]} ({min(of):.2f} to {max(of):.2f}, {len(of)} seeds)"
        for name, of in sorted(shares.items(), key=lambda item: list(COSTS).index(item[0]))
    ]
    return (
        "An online audit of 36 epochs, the default, took this many times the CPU time of a plain training run of the "
        f"same length: {', '.join(parts)}. This includes everything: decoys, scorings, bootstrap, better partners "
        "and the page. There are at most five scorings (six when the images were measured), so the audit of a larger "
        "network or a longer training run costs less."
    )


def statistics_table(results: list[dict[str, Any]]) -> str:
    """Return the table of statistics, with the area under the ROC curve of each in the same cross-fits."""
    places = [(name, level) for name, level in measured_settings(results, "crossfit") if level > 0]
    lines = [
        "| name | what it is | views in | "
        + " | ".join(
            f"AUROC, {NAMES[name]}, {level:.0%} wrong"
            + SINGLE_SEED * (len(values_by_seed(results, name, level, "crossfit", "combined")) == 1)
            for name, level in places
        )
        + " |",
        "|---|---|---|" + "---:|" * len(places),
    ]
    for name, statistic in STATISTICS.items():
        cells = [
            format_mean(values_by_seed(results, *place, "crossfit", name)).removesuffix(SINGLE_SEED) for place in places
        ]
        space = "one space" if statistic.needs_shared_space else "any"
        lines.append(" | ".join([f"| `{name}` | {statistic.description} | {space}", *cells]) + " |")
    return "\n".join(lines)
