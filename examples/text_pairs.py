"""Texts in pairs: what a function of Python is called, and what its docstring says that it does.

    python examples/text_pairs.py [--encoder FOLDER]

The pairs are those of Python's own library, which every machine has. The encoder is `small-text`, which learns from
nothing; with --encoder it is a model of transformers by its folder or name, with its weights. On the command line, with
pairs of your own in a table:

    contraport train --data pairs.parquet --shared_encoder true --objective info-nce --temperature 0.05 --out runs/pairs
    contraport evaluate runs/pairs
"""

import argparse
import re
import tempfile
from collections import Counter

import numpy as np
from helpers.docstrings import functions

from contraport import evaluate, train
from contraport.data import from_arrays

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--encoder", help="a model of transformers, by its folder or name; default: small-text")
parser.add_argument("--epochs", type=int, default=30)
parser.add_argument("--tiny", action="store_true", help="few pairs and steps, to see that it runs")
asked = parser.parse_args()


def words(name: str) -> str:
    """Return the words that a name of Python is made of."""
    return " ".join(re.findall(r"[A-Z]?[a-z]+|[A-Z]+|\d+", name)).lower()


found: dict[str, str] = {}
for place, name, arguments, sentence in functions():
    found.setdefault(words(f"{place.stem} {name} {' '.join(arguments)}"), sentence)
often = Counter(found.values())
rare = {said: name for name, said in found.items() if often[said] == 1}
said, names = np.array(list(rare)), np.array(list(rare.values()))
order = np.random.default_rng(0).permutation(len(said))[: 300 if asked.tiny else None]
held_out = max(len(order) // 5, 2)
splits = [
    from_arrays({"name": names[part], "docstring": said[part]}, name=f"functions of Python, {split}", split=split)
    for part, split in ((order[held_out:], "train"), (order[:held_out], "test"))
]

given = {} if asked.encoder is None else {"encoder": asked.encoder, "pretrained": True, "lr": 1e-4}
with tempfile.TemporaryDirectory() as folder:
    run = train(
        data=splits[0],
        shared_encoder=True,
        objective="info-nce",
        temperature=0.05,
        projection=0,
        batch_size=32 if asked.tiny else 128,
        epochs=1 if asked.tiny else asked.epochs,
        out=f"{folder}/run",
        progress=False,
        **given,
    )
    rows = evaluate(run, data=tuple(splits), measures=["recall@1", "recall@10"], progress=False)["rows"]

print(f"{len(splits[0]):,} pairs to learn from; of {len(splits[1]):,} others, the right one is")
print(f"{'':30} {'first':>8} {'among ten':>10}")
before = "given" if asked.encoder else "untrained"
for name, row in {"raw words and pieces": "raw", before: before, "trained": "trained"}.items():
    print(f"{name:30} {rows[row]['recall@1']:8.1%} {rows[row]['recall@10']:10.1%}")
