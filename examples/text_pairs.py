"""Text pairs: names of Python functions and their docstrings.

    python examples/text_pairs.py [--encoder FOLDER]

The pairs are those of Python's own library, which every machine has. The encoder is `small-text`, which learns from
nothing; with --encoder it is a model of transformers by its folder or name, with its weights. On the command line, with
these pairs or with your own in a table:

    contraport train --data docstrings --objective info-nce --temperature 0.05 --projection 0 --out runs/pairs
    contraport train --data pairs.parquet --objective info-nce --temperature 0.05 --projection 0 --out runs/pairs
    contraport evaluate runs/pairs
"""

import argparse
import tempfile

from contraport import evaluate, train

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--encoder", help="a model of transformers, by its folder or name; default: small-text")
parser.add_argument("--epochs", type=int, default=30)
parser.add_argument("--tiny", action="store_true", help="few pairs and steps, to see that it runs")
args = parser.parse_args()

options = {} if args.encoder is None else {"encoder": args.encoder, "pretrained": True, "lr": 1e-4}
if args.tiny:
    options |= {"max_items": 240, "batch_size": 32}
with tempfile.TemporaryDirectory() as folder:
    run = train(
        data="docstrings",
        objective="info-nce",
        temperature=0.05,
        projection=0,
        epochs=1 if args.tiny else args.epochs,
        out=f"{folder}/run",
        progress=False,
        **{"batch_size": 128, **options},
    )
    result = evaluate(run, metrics=["recall@1", "recall@10"], progress=False)

print(f"{result['train_items']:,} pairs to learn from; of {result['test_items']:,} others, the right one is")
print(f"{'':30} {'first':>8} {'among ten':>10}")
before = "given" if args.encoder else "untrained"
for name, row in {"raw words and pieces": "raw", before: before, "trained": "trained"}.items():
    print(f"{name:30} {result['rows'][row]['recall@1']:8.1%} {result['rows'][row]['recall@10']:10.1%}")
