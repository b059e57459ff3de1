"""Halves of pictures as paired data: the upper and the lower half of clothes, some of them exchanged.

    python examples/garment_halves.py --out halves.npz --wrong 0.2
    contraport audit --data halves.npz --out audits/halves

The pictures are those of Fashion-MNIST, of 28 x 28 pixels. The numbers of the wrong pairs are written beside the data,
to `halves-wrong.txt`, so that the audit can be judged: `--judge audits/halves` prints how well its scores separate
them, and writes the figures to examples/results/garment_halves.json.
"""

import argparse
import csv
import json
from pathlib import Path

import numpy as np
from sklearn.metrics import roc_auc_score

from contraport.data import load

RESULTS = Path(__file__).parent / "results"


def write_halves(out: Path, wrong_list: Path, items: int, wrong_share: float) -> None:
    """Write the upper and lower halves of images, some lower halves exchanged, and a list of the wrong pairs."""
    images = load("fashion-mnist", "train").__getitems__(list(range(items))).views[0][:, 0].numpy()
    wrong = np.random.default_rng(0).permutation(items)[: round(wrong_share * items)]
    partners = np.arange(items)
    partners[wrong] = np.roll(wrong, 1)
    np.savez(out, top=images[:, :14], bottom=images[partners, 14:])
    np.savetxt(wrong_list, np.sort(wrong), "%d")
    print(
        f"{out}: {items:,} pairs, {len(wrong):,} of them wrong; then: contraport audit --data {out} --out audits/halves"
    )


def judge_audit(audit: Path, wrong: np.ndarray, out: Path) -> None:
    """Print and write as JSON how well the scores of an audit separate the wrong pairs from the others."""
    estimate = json.loads((audit / "audit.json").read_text())
    with open(audit / "pairs.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    scores = np.array([float(row["score"]) for row in rows])
    is_wrong = np.isin([int(row["row"]) for row in rows], wrong)
    worst = np.argsort(scores)
    result = {
        "pairs": len(rows),
        "wrong": int(is_wrong.sum()),
        "noise_rate": estimate["noise_rate"],
        "noise_interval": estimate["noise_interval"],
        "flagged": estimate["flagged"],
        "auroc": float(roc_auc_score(is_wrong, -scores)),
        "wrong_of_worst_50": int(is_wrong[worst[:50]].sum()),
        "wrong_of_worst_200": int(is_wrong[worst[:200]].sum()),
    }
    out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


def main() -> None:
    """Write the data, or judge an audit of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("halves.npz"), help="file to write")
    parser.add_argument("--items", type=int, default=2000, help="number of pairs (default: 2000)")
    parser.add_argument("--wrong", type=float, default=0.2, help="share of wrong pairs (default: 0.2)")
    parser.add_argument("--judge", type=Path, metavar="AUDIT", help="folder of an audit of these data to judge")
    arguments = parser.parse_args()
    wrong_list = arguments.out.with_name(f"{arguments.out.stem}-wrong.txt")
    if arguments.judge is None:
        write_halves(arguments.out, wrong_list, arguments.items, arguments.wrong)
    else:
        judge_audit(arguments.judge, np.loadtxt(wrong_list, dtype=int), RESULTS / "garment_halves.json")


if __name__ == "__main__":
    main()
