"""What the page draws of the probe's errors: the test items that it mistakes most surely."""

from __future__ import annotations

import numpy as np
import torch

from contraport.data.thumbnails import sketches
from contraport.evaluation.page_samples import Arrays
from contraport.metrics.eval_context import EvalContext

ITEMS = 10
SIDE = 64


def worst_error_samples(subject: EvalContext) -> Arrays:
    """Return what is shown of the test items that the linear probe is surest of and wrong about, the surest first.

    `mistaken` says which items these are, `mistaken_true` and `mistaken_told` of which class they are and are told to
    be, `mistaken_sure` the probability of the latter, `mistaken_views` the names of their views, `mistaken_keys`
    what the data call them, if they do, and `mistaken_0`, `mistaken_1` and so on what each view shows.
    """
    probabilities = subject.probe.predict_proba(subject.test_x.cpu().numpy())
    told, true = subject.probe.classes_[probabilities.argmax(axis=1)], subject.test_y.cpu().numpy()
    sure = np.where(told == true, -1.0, probabilities.max(axis=1))
    items = np.argsort(-sure, kind="stable")[: min(ITEMS, int((told != true).sum()))]
    if len(items) == 0:
        return {}
    shown = sketches(subject.test, torch.from_numpy(items), SIDE)
    keys = subject.test.keys
    called = {} if keys is None else {"mistaken_keys": np.array([keys[item] for item in items], dtype=np.str_)}
    return called | {
        "mistaken": items,
        "mistaken_true": true[items],
        "mistaken_told": told[items],
        "mistaken_sure": sure[items].astype(np.float32),
        "mistaken_views": np.array(subject.test.view_names, dtype=np.str_),
        **{f"mistaken_{view}": of_view for view, of_view in enumerate(shown)},
    }
