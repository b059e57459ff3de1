"""Time series: features of a smart watch's recordings of four activities, learned from 40 of them without labels.

    pip install --no-deps aeon                # BasicMotions lies in this package
    python examples/time_series.py

On the command line: contraport train --data basic-motions --batch_size 40 --epochs 200 --out runs/motions
"""

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from contraport import ContrastiveEncoder
from contraport.data import load

PER_CLASS = 2  # labels

(series, labels), (test_series, test_labels) = (
    (split.store.views[0].numpy(), split.labels.numpy())
    for split in (load("basic-motions", "train"), load("basic-motions", "test"))
)
labelled = np.concatenate([np.flatnonzero(labels == label)[:PER_CLASS] for label in np.unique(labels)])


def accuracy(features: np.ndarray, test_features: np.ndarray) -> float:
    """Return the accuracy of a linear probe on held-out series."""
    probe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    return probe.fit(features[labelled], labels[labelled]).score(test_features, test_labels)


print(f"{len(series)} series {series.shape[1:]}, {len(labelled)} labels")
print(f"raw values            {accuracy(series.reshape(40, -1), test_series.reshape(40, -1)):.1%}")
for epochs in (1, 200):
    encoder = ContrastiveEncoder(epochs=epochs, random_state=0).fit(series)
    print(f"encoder, {epochs:3} epochs   {accuracy(encoder.transform(series), encoder.transform(test_series)):.1%}")
