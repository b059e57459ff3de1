"""What the page draws of an audited training: the pairs that seem wrong, as they were trained on."""

from __future__ import annotations

import numpy as np
import torch

from contraport.data import Dataset
from contraport.data.perturbations import with_partners
from contraport.data.thumbnails import sketches
from contraport.evaluation.page_samples import Arrays
from contraport.runs import Run

PAIRS = 10
SIDE = 64


def worst_pair_samples(run: Run, train: Dataset) -> Arrays:
    """Return what is shown of the worst pairs of a training with `audit`, the worst first.

    `worst` says which pairs these are, `worst_1` and `worst_2` have their two views, and `worst_better` the second view
    of the better partner, or that of the pair itself where there is none. Nothing of a training without an audit, or on
    other items.
    """
    if not run.pairs_path.exists():
        return {}
    found = run.pairs()
    scores, partners = found["scores"], found.get("partners", np.full(len(found["scores"]), -1))
    if len(scores) != len(train) or len(train.shapes) != 2:
        return {}
    if run.mismatched_path.exists():
        train = with_partners(train, torch.from_numpy(run.partners()))
    worst = np.argsort(scores, kind="stable")[:PAIRS]
    better = np.where(partners[worst] < 0, worst, partners[worst])
    first, second = sketches(train, torch.from_numpy(worst), SIDE)
    return {
        "worst": worst,
        "worst_1": first,
        "worst_2": second,
        "worst_better": sketches(train, torch.from_numpy(better), SIDE)[1],
        "worst_views": np.array(train.view_names, dtype=np.str_),
    }
