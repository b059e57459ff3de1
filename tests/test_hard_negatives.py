"""Mined hard negatives against an independent search in float64 and against sentence-transformers."""

import logging

import numpy as np
import pytest
import torch

from contraport import hard_negatives
from contraport.catalog.data_option_parsers import MiningRule, parse_mined_negatives
from contraport.hard_negatives import mine_hard_negatives
from tests.errors import raises_usage_error

RULES = {
    "plain": {},
    "ranks": {"range_min": 3, "range_max": 12},
    "relative": {"relative_margin": 0.1},
    "absolute": {"absolute_margin": 0.2},
    "scores": {"max_score": 0.4, "min_score": -0.1},
    "all": {"range_min": 1, "range_max": 9, "relative_margin": 0.05, "absolute_margin": 0.1, "max_score": 0.5},
    "more than there are": {"k": 90},
}


def make_pairs(seed=0, items=60):
    """Return pairs in which some first views and some second views occur several times."""
    random = np.random.default_rng(seed)
    queries, columns = random.integers(40, size=items), random.integers(45, size=items)
    base = random.normal(size=(45, 6))
    anchors = base[queries]
    candidates = (base + 0.7 * random.normal(size=base.shape))[columns]
    return queries, columns, anchors, candidates


def mine_by_loops(queries, columns, anchors, candidates, rule):
    """Return the set of negatives of each pair, as content numbers, by loops in float64."""
    norm = lambda rows: rows / np.linalg.norm(rows, axis=1, keepdims=True)  # noqa: E731
    score = norm(anchors) @ norm(candidates).T
    most = max(len(set(columns[queries == query])) for query in queries)
    excludes = {"relative_margin", "absolute_margin", "max_score"} & rule.keys()
    k, low = rule.get("k", 5), rule.get("range_min", 0)
    high = rule.get("range_max", low + k * (10 if excludes else 1) + most)
    result = []
    for item, query in enumerate(queries):
        own = set(columns[queries == query])
        positive = min(score[item, other] for other in np.flatnonzero(queries == query))
        distinct = {columns[other]: score[item, other] for other in range(len(columns))}
        ranked = sorted(distinct, key=lambda column: -distinct[column])[: high + most]
        remaining = [
            column
            for column in ranked
            if column not in own
            and not distinct[column] > positive - abs(positive) * rule.get("relative_margin", -np.inf)
            and not distinct[column] + rule.get("absolute_margin", -np.inf) > positive
            and rule.get("min_score", -np.inf) <= distinct[column] <= rule.get("max_score", np.inf)
        ]
        result.append(remaining[:high][low : low + k])
    return result


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_equals_a_search_in_float64(rule):
    queries, columns, anchors, candidates = make_pairs()
    mined = mine_hard_negatives(
        torch.from_numpy(anchors),
        torch.from_numpy(candidates),
        MiningRule(**rule),
        anchor_content_ids=torch.from_numpy(queries),
        candidate_content_ids=torch.from_numpy(columns),
    )
    assert mined.positions.shape == (len(queries), MiningRule(**rule).k)
    for row, expected_values in zip(
        mined.positions.tolist(), mine_by_loops(queries, columns, anchors, candidates, rule), strict=True
    ):
        assert [columns[position] for position in row if position >= 0] == expected_values
    assert torch.equal(mined.scores.isnan(), mined.positions < 0)


@pytest.mark.parametrize("rule", list(RULES.values())[:-1], ids=list(RULES)[:-1])
def test_equals_sentence_transformers(rule):
    """Equal negatives from `sentence_transformers.util.mine_hard_negatives` with a model that looks up its vectors."""
    datasets = pytest.importorskip("datasets")
    peer = pytest.importorskip("sentence_transformers.util.hard_negatives")
    queries, columns, anchors, candidates = make_pairs()
    # distinct rows, as sentence-transformers counts a repeated pair as an additional positive
    _, keep = np.unique(np.stack([queries, columns]), axis=1, return_index=True)
    queries, columns, anchors, candidates = (
        values[np.sort(keep)] for values in (queries, columns, anchors, candidates)
    )
    vectors = {f"q{one}": row for one, row in zip(queries, anchors, strict=True)}
    vectors |= {f"c{one}": row for one, row in zip(columns, candidates, strict=True)}

    class Lookup:
        device = "cpu"

        def encode_query(self, texts, **_):
            rows = np.stack([vectors[text] for text in texts]).astype(np.float32)
            return rows / np.linalg.norm(rows, axis=1, keepdims=True)

        encode_document = encode_query

        def similarity(self, first, second):
            return torch.as_tensor(first) @ torch.as_tensor(second).T

        def similarity_pairwise(self, first, second):
            return (torch.as_tensor(first) * torch.as_tensor(second)).sum(1)

    table = datasets.Dataset.from_dict({"a": [f"q{one}" for one in queries], "b": [f"c{one}" for one in columns]})
    reference = peer.mine_hard_negatives(table, Lookup(), num_negatives=5, verbose=False, **rule)
    mined = mine_hard_negatives(
        torch.from_numpy(anchors),
        torch.from_numpy(candidates),
        MiningRule(k=5, **rule),
        anchor_content_ids=torch.from_numpy(queries),
        candidate_content_ids=torch.from_numpy(columns),
    )
    result = [
        (f"q{queries[item]}", f"c{columns[item]}", f"c{columns[position]}")
        for item, row in enumerate(mined.positions.tolist())
        for position in row
        if position >= 0
    ]
    assert sorted(result) == sorted(zip(reference["a"], reference["b"], reference["negative"], strict=True))


def test_random_sampling_follows_the_rule_and_is_reproducible():
    _, _, anchors, candidates = make_pairs()
    first, second = torch.from_numpy(anchors), torch.from_numpy(candidates)
    rule = MiningRule(k=4, range_max=12, sampling="random")
    drawn = [mine_hard_negatives(first, second, rule, seed=seed).positions for seed in (0, 0, 1)]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    allowed = mine_hard_negatives(first, second, MiningRule(k=12, range_max=12)).positions
    for row, among in zip(drawn[0].tolist(), allowed.tolist(), strict=True):
        assert len(set(row)) == 4
        assert set(row) <= set(among)


def test_untrusted_pairs_get_no_negatives_and_partners_are_excluded():
    views = torch.eye(4) + 0.5
    trusted, partners = torch.tensor([True, False, True, True]), torch.tensor([2, -1, -1, -1])
    mined = mine_hard_negatives(views, views, MiningRule(k=3), trusted_item_mask=trusted, excluded_partners=partners)
    assert [sorted(set(row)) for row in mined.positions.tolist()] == [[-1, 1, 3], [-1], [0, 1, 3], [0, 1, 2]]


def test_blocks_do_not_change_the_result(monkeypatch):
    _, _, anchors, candidates = make_pairs()
    expected = mine_hard_negatives(torch.from_numpy(anchors), torch.from_numpy(candidates), MiningRule())
    monkeypatch.setattr("contraport.hard_negatives.MAX_BLOCK_SIMILARITIES", 200)
    parts = mine_hard_negatives(torch.from_numpy(anchors), torch.from_numpy(candidates), MiningRule())
    assert torch.equal(expected.positions, parts.positions)


@pytest.mark.parametrize(
    ("text", "code", "setting", "value"),
    [
        ("mined:k=0", "negatives.invalid", "k", "0"),
        ("mined:k=2.5", "negatives.invalid", "k", "2.5"),
        ("mined:refresh=0", "negatives.invalid", "refresh", "0"),
        ("mined:start=-1", "negatives.invalid", "start", "-1"),
        ("mined:range_min=-1", "negatives.invalid", "range_min", "-1"),
        ("mined:k=4,range_min=3,range_max=6", "negatives.invalid", "range_max", "range_min + k = 7"),
        ("mined:relative_margin=nan", "negatives.invalid", "relative_margin", "nan"),
        ("mined:max_score=high", "negatives.invalid", "max_score", "'high'"),
        ("mined:sampling=best", "negatives.unknown", "sampling", "'best'"),
        ("mined:margin=0.1", "negatives.unknown", "mined", "'margin'"),
    ],
)
def test_rejects_invalid_settings(text, code, setting, value):
    with raises_usage_error(code, setting, value):
        parse_mined_negatives(text)


def test_rejects_a_file_with_other_settings(tmp_path):
    file = tmp_path / "negatives.npy"
    np.save(file, np.zeros((3, 2), dtype=np.int64))
    assert parse_mined_negatives(f"mined:{file}").file == str(file)
    with raises_usage_error("negatives.conflict"):
        parse_mined_negatives(f"mined:{file},k=3")


def make_clustered_views(pairs=6_000, width=6):
    """Return both views of pairs in 40 clusters; each first view occurs in two pairs, in a row."""
    generator = torch.Generator().manual_seed(0)
    centers = torch.randn(40, width, generator=generator)
    hidden = centers[torch.arange(pairs // 2) % 40] + 0.3 * torch.randn(pairs // 2, width, generator=generator)
    hidden = hidden.repeat_interleave(2, dim=0)
    return hidden, hidden + 0.1 * torch.randn(hidden.shape, generator=generator)


def test_search_by_cells_finds_most_negatives_under_the_same_rule(monkeypatch, caplog):
    anchors, candidates = make_clustered_views()
    rule = MiningRule(k=4, range_min=2, range_max=30, relative_margin=0.02, min_score=0.1)
    pairs = torch.arange(len(anchors))
    options = {
        "anchor_content_ids": pairs // 2,
        "excluded_partners": (pairs + 10) % len(pairs),
        "trusted_item_mask": pairs % 7 > 0,
    }
    exact = mine_hard_negatives(anchors, candidates, rule, **options)
    monkeypatch.setattr(hard_negatives, "MAX_EXACT_PAIRS", 10**6)
    monkeypatch.setattr(hard_negatives, "RECALL_QUERIES", 200)
    monkeypatch.setattr(hard_negatives, "CELL_SEARCH_BLOCK_QUERIES", 700)
    with caplog.at_level(logging.INFO, "contraport.hard_negatives"):
        mined = mine_hard_negatives(anchors, candidates, rule, **options)
    queries, compared, keys, recall, measured = caplog.records[0].args
    assert (queries, keys, measured) == ("3,000", "6,000", "200")
    assert int(compared.replace(",", "")) < 3_000
    assert recall > 0.97
    assert not torch.equal(mined.positions, exact.positions)
    assert float((mined.positions == exact.positions).float().mean()) > 0.9
    assert float((mined.scores - exact.scores)[exact.positions >= 0].abs().mean()) < 1e-3
    result = mined.positions >= 0
    assert bool(result.any())
    assert not bool(result[options["trusted_item_mask"].logical_not()].any())
    others = torch.where(result, mined.positions, -2)
    assert not bool((others // 2 == pairs[:, None] // 2).any())  # second views of both pairs with the same first view
    assert not bool((others == options["excluded_partners"][:, None]).any())
    lowest = mined.positive_scores.reshape(-1, 2)
    lowest = torch.where(options["trusted_item_mask"].reshape(-1, 2), lowest, torch.inf).amin(1)[pairs // 2]
    margin = (lowest - lowest.abs() * 0.02)[:, None].expand_as(mined.scores)
    assert bool((mined.scores[result] <= margin[result]).all())
    assert bool((mined.scores[result] >= 0.1).all())


def test_search_without_clusters_is_exact(monkeypatch, caplog):
    """Most candidates would be compared, so the search compares all of them."""
    generator = torch.Generator().manual_seed(0)
    anchors, candidates = torch.randn(2, 1_500, 64, generator=generator)
    exact = mine_hard_negatives(anchors, candidates, MiningRule())
    monkeypatch.setattr(hard_negatives, "MAX_EXACT_PAIRS", 10**6)
    with caplog.at_level(logging.INFO, "contraport.hard_negatives"):
        mined = mine_hard_negatives(anchors, candidates, MiningRule())
    assert not caplog.records
    assert torch.equal(mined.positions, exact.positions)
