"""Better partners of wrong pairs: the plan with slack against the best candidate of each item alone.

A fifth of the pairs exchange their second views. Either the right partners of all wrong pairs are in the data, or half
of the wrong pairs are removed, so that most of the others lack theirs. Audits are those of frozen vectors: views of
UCI's digits, halves of digits, pictures and names of emoji, and descriptions and tags of Debian packages. Printed and
written: how many partners were proposed, how many are right, and how often the same one was proposed. "alone" proposes
the candidate with the highest score of each flagged item, if it is above that of its own partner.

    apt-get update && python -m benchmarks.partners [--seeds 3]
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer

from benchmarks.audit import draw_partners, load_pairs
from benchmarks.comparing import MADE, write_emoji
from benchmarks.engine import machine
from contraport.auditing.pairs.paired_features import PairedFeatures
from contraport.auditing.pairs.partner_proposals import (
    lowest_scoring_indices,
    propose_partners,
    score_likely_candidates,
)
from contraport.auditing.rounds_excluding_suspects import score_frozen_rounds
from contraport.data import from_arrays

SHARE, PACKAGES, DIMENSIONS = 0.2, 3_000, 128
EMOJI = (("picture", "en"), ("en", "de"), ("fr", "es"))


def list_cases() -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield the name and both views of each data set."""
    for name in ("zer-kar", "fou-kar", "zer-fou", "digits-halves"):
        yield name, *load_pairs(name, None, None)[0].views
    path = MADE / "emoji.npz"
    if not path.exists():
        MADE.mkdir(parents=True, exist_ok=True)
        write_emoji(path)
    with np.load(path) as file:
        for first, second in EMOJI:
            yield f"emoji, {first} and {second}", file[first], file[second]
    yield "packages, text and tags", *read_packages()


def read_packages() -> tuple[np.ndarray, np.ndarray]:
    """Return vectors of the descriptions and of the tags of packages with at least four tags."""
    listing = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, text=True, check=True).stdout
    texts, tags = [], []
    for entry in listing.split("\n\n"):
        fields = dict(re.findall(r"^(\S+?): (.*(?:\n .*)*)", entry, flags=re.M))
        if "Description" in fields and fields.get("Tag", "").count(",") >= 3:
            texts.append(f"{fields['Package'].replace('-', ' ')} {fields['Description']}")
            tags.append(re.sub(r"\s", "", fields["Tag"]).replace(",", " "))
    if len(texts) < PACKAGES:
        raise SystemExit(f"apt-cache dumpavail lists {len(texts)} packages with tags; run apt-get update first.")
    chosen = np.random.default_rng(0).choice(len(texts), PACKAGES, replace=False)
    views = []
    for words, pattern in ((texts, r"\b\w+\b"), (tags, r"\S+")):
        counts = TfidfVectorizer(sublinear_tf=True, min_df=2, token_pattern=pattern).fit_transform(
            [words[i] for i in chosen]
        )
        values = TruncatedSVD(DIMENSIONS, random_state=0).fit_transform(counts)
        views.append((values / values.std()).astype(np.float32))
    return views[0], views[1]


def propose_alone(paired: PairedFeatures, free: torch.Tensor) -> torch.Tensor:
    """Return the candidate with the highest score of each free item, ``(n,)``; -1 if its own partner scores higher."""
    result = score_likely_candidates(paired, free, free, "combined", np.arange(len(paired)), with_own=True)
    order = np.lexsort((-result.scores, result.rows))
    best = order[np.unique(result.rows[order], return_index=True)[1]]
    best = best[~result.own_partner_entry_mask[best]]
    partners = torch.full((len(paired),), -1)
    partners[free[result.rows[best]]] = free[result.columns[best]]
    return partners


def measure(first: np.ndarray, second: np.ndarray, seed: int, *, is_half_missing: bool) -> dict[str, dict[str, float]]:
    """Mismatch pairs, audit them, and count the proposals of both ways."""
    partners, kept = draw_partners(len(first), SHARE, seed), np.ones(len(first), dtype=bool)
    wrong = np.flatnonzero(partners != np.arange(len(first)))
    if is_half_missing:
        kept[np.random.default_rng(seed).choice(wrong, len(wrong) // 2, replace=False)] = False
    item, content = np.flatnonzero(kept), partners[kept]
    *_, result = score_frozen_rounds(
        from_arrays((first[kept], second[partners][kept])), statistic="combined", rounds=2, seed=seed
    )
    paired = result.last_computed_features
    assert paired is not None
    free = lowest_scoring_indices(torch.from_numpy(result.scores), result.noise_rate.rate)
    proposals, alone = propose_partners(paired, free), propose_alone(paired, free)
    is_wrong = item != content
    measured = {}
    for name, proposed in (("alone", alone), ("plan", proposals.partners_or_minus_one)):
        at = np.flatnonzero(proposed.numpy() >= 0)
        right = content[proposed.numpy()[at]] == item[at]
        counts = np.bincount(proposed.numpy()[at]) if len(at) > 0 else np.zeros(1)
        measured[name] = {
            "reachable": float((is_wrong & np.isin(item, content)).sum()),
            "proposed": float(len(at)),
            "right": float(right.sum()),
            "hub": float(counts.max()),
            "confidence": float(proposals.confidences.numpy()[at].sum()),
        }
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/partners.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    columns = ("reachable", "proposed", "right", "share right", "mean confidence", "hub")
    table, results = Table("data", "partners", "way", *columns), []
    for name, first, second in list_cases():
        for is_half_missing in (False, True):
            runs = [measure(first, second, seed, is_half_missing=is_half_missing) for seed in range(options.seeds)]
            for way in runs[0]:
                mean = {key: float(np.mean([run[way][key] for run in runs])) for key in runs[0][way]}
                mean["hub"] = max(run[way]["hub"] for run in runs)
                row = {"data": name, "partners": "half missing" if is_half_missing else "all there", "way": way, **mean}
                results.append(row)
                number = max(mean["proposed"], 1e-9)
                shares = (
                    f"{mean['right'] / number:.2f}",
                    "-" if way == "alone" else f"{mean['confidence'] / number:.2f}",
                )
                counts = (f"{mean[key]:.0f}" for key in columns[:3])
                table.add_row(name, row["partners"], way, *counts, *shares, f"{mean['hub']:.0f}")
            print(name, row["partners"], flush=True)
    Console(width=130).print(table)
    command = f"python -m benchmarks.partners --seeds {options.seeds}"
    options.out.write_text(json.dumps({"command": command, "machine": machine(), "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
