"""Statistics of results: paired differences, intervals, verdicts of claims, and predicted numbers of seeds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import ttest_rel

from contraport._utils.files import write_npz
from contraport.comparison.grid import Claim, Grid
from contraport.comparison.grid_builder import build_grid
from contraport.comparison.jobs import build_cell_job
from contraport.comparison.seed_intervals import (
    MAX_PREDICTED_SEEDS,
    estimate_moderated_variance,
    estimate_paired_difference,
    estimate_variance_prior,
    mean_interval_over_seeds,
)
from contraport.comparison.statistics_and_verdicts import (
    HELD,
    NOT_HELD,
    UNDECIDED,
    JobAndResultByRowColumnSeed,
    TableEntry,
    build_table_entries,
    compute_seed_means_by_epoch,
    from_json_record,
    judge_claims,
    to_json_record,
)
from contraport.runs import WritableRun

Values = Mapping[tuple[str, str], Mapping[int, float]]


def build_test_grid(
    folder: Path, *, settings: tuple[str, ...] = ("plain",), measure: str = "knn", **arguments: Any
) -> Grid:
    options = {"data": ["digits"], "objectives": ["info-nce", "rince", "gca-ince"], "settings": list(settings)}
    return build_grid(options | {"seeds": 4, "metrics": [measure], "out": folder} | arguments)


def results_of(grid: Grid, values: Values, *, items: bool = False, measure: str = "knn") -> JobAndResultByRowColumnSeed:
    """Return the jobs and results for values by row, setting and seed, and save matching values of test items."""
    result = {}
    for cell in grid.cells_of_all_seeds:
        value_by_seed = values.get((cell.row.name, cell.column.setting_name), {})
        if cell.seed not in value_by_seed:
            continue
        job = build_cell_job(grid, cell)
        run = (
            WritableRun(job.run_folder)
            if job.run_folder.exists()
            else WritableRun.create(job.run_folder, {"data": "digits"})
        )
        hits = np.arange(200) < round(200 * value_by_seed[cell.seed])
        hits = np.random.default_rng([len(cell.row.name), cell.seed]).permutation(hits)
        write_npz(run.items_path, {measure if items else "another": hits})
        result[cell.row.name, cell.column.name, cell.seed] = job, {"values": {measure: value_by_seed[cell.seed]}}
    return result


BASE = {0: 0.90, 1: 0.91, 2: 0.90, 3: 0.92}
MORE = {0: 0.93, 1: 0.93, 2: 0.94, 3: 0.94}


def column_of(values: Mapping[int, float]) -> np.ndarray:
    return np.array(list(values.values()))


def test_difference_is_a_paired_t_test_on_shared_seeds(tmp_path: Path) -> None:
    grid = build_test_grid(tmp_path, objectives=["info-nce", "rince"])
    without_seed_1 = {seed: value for seed, value in MORE.items() if seed != 1}
    _, entry = build_table_entries(
        grid, results_of(grid, {("info-nce", "plain"): BASE, ("rince", "plain"): without_seed_1})
    )
    assert (entry.row_name, entry.num_seeds, entry.mean) == ("rince", 3, pytest.approx(np.mean([0.93, 0.94, 0.94])))
    expected = ttest_rel([0.93, 0.94, 0.94], [0.90, 0.90, 0.92])
    ends = expected.confidence_interval()
    assert entry.difference is not None
    assert entry.difference == pytest.approx((0.03, ends.low, ends.high))


def test_intervals_hold_for_all_differences_of_a_table(tmp_path: Path) -> None:
    """The variance prior of differences is estimated from the differences, that of means from the means."""
    grid = build_test_grid(tmp_path, settings=("plain", "weak"))
    random = np.random.default_rng(0)
    values = {
        (row.name, column.setting_name): dict(enumerate(0.9 + 0.01 * place + random.normal(0, 0.01, 4)))
        for place, row in enumerate(grid.rows)
        for column in grid.columns
    }
    entries = build_table_entries(grid, results_of(grid, values))
    mean_prior = estimate_variance_prior(
        filter(None, (estimate_moderated_variance(column_of(by_seed)) for by_seed in values.values()))
    )
    differences = {key: column_of(by_seed) - column_of(values["info-nce", key[1]]) for key, by_seed in values.items()}
    others = [estimate_moderated_variance(by_seed) for (name, _), by_seed in differences.items() if name != "info-nce"]
    difference_prior = estimate_variance_prior(filter(None, others))
    for entry in entries:
        key = entry.row_name, entry.column_name.rpartition(", ")[2]
        assert entry.interval == mean_interval_over_seeds(column_of(values[key]), prior=mean_prior)
        expected = estimate_paired_difference(differences[key], np.zeros(4), prior=difference_prior).with_interval(
            comparisons=2 * 2
        )
        assert entry.difference == (None if entry.row_name == "info-nce" else pytest.approx(expected))


def with_claims(grid: Grid, *claims: Claim) -> Grid:
    return replace(grid, claims=claims)


def test_gain_of_a_metric_that_should_be_low_is_a_decrease(tmp_path: Path) -> None:
    grid = build_test_grid(tmp_path, measure="median_rank", objectives=["info-nce", "rince"])
    grid = with_claims(grid, Claim("it is nearer", ("rince",), "info-nce"), Claim("it is not", ("info-nce",), "rince"))
    values = {("info-nce", "plain"): {0: 9, 1: 10, 2: 9, 3: 9.5}, ("rince", "plain"): {0: 4, 1: 5.5, 2: 4, 3: 4}}
    first, second = judge_claims(grid, results_of(grid, values, measure="median_rank"))
    assert (first.outcome, second.outcome) == (HELD, NOT_HELD)
    (gain,) = first.gains.values()
    assert gain.value == pytest.approx(5.0)


def test_small_gains_matter_only_for_shares(tmp_path: Path) -> None:
    """Gains below one point are negligible for shares, but not for metrics in other units."""
    grid = with_claims(build_test_grid(tmp_path, measure="nmi"), Claim("it is better", ("rince",), "info-nce"))
    values = {("info-nce", "plain"): {0: 0.5, 1: 0.5, 2: 0.5, 3: 0.5}}
    values["rince", "plain"] = {0: 0.502, 1: 0.499, 2: 0.503, 3: 0.499}
    (verdict,) = judge_claims(grid, results_of(grid, values, measure="nmi"))
    (gain,) = verdict.gains.values()
    assert 0 < gain.high < 0.01
    assert verdict.outcome == UNDECIDED
    grid = with_claims(build_test_grid(tmp_path), Claim("it is better", ("rince",), "info-nce"))
    (verdict,) = judge_claims(grid, results_of(grid, values))
    assert verdict.outcome == NOT_HELD


def test_intervals_of_claims_hold_for_all_claims(tmp_path: Path) -> None:
    grid = build_test_grid(tmp_path, settings=("plain", "weak"), objectives=["info-nce", "rince"])
    values = {
        (name, setting): by_seed
        for setting in ("plain", "weak")
        for name, by_seed in (("info-nce", BASE), ("rince", MORE))
    }
    everywhere, weak = Claim("a", ("rince",), "info-nce"), Claim("b", ("rince",), "info-nce", setting_names=("weak",))
    unknown = Claim("c", ("rince", "byol"), "nobody")
    first, second, third = judge_claims(with_claims(grid, everywhere, weak, unknown), results_of(grid, values))
    assert list(first.gains) == ["rince on digits, plain", "rince on digits, weak"]
    assert list(second.gains) == ["rince on digits, weak"]
    assert (third.gains, third.outcome) == ({}, UNDECIDED)
    expected = ttest_rel(column_of(MORE), column_of(BASE)).confidence_interval(1 - 0.05 / 3)
    for gain in (*first.gains.values(), *second.gains.values()):
        assert gain[1:] == pytest.approx((expected.low, expected.high))


def test_claim_is_undecided_with_one_seed(tmp_path: Path) -> None:
    grid = with_claims(build_test_grid(tmp_path), Claim("it is better", ("rince",), "info-nce"))
    values = {("info-nce", "plain"): {0: 0.5}, ("rince", "plain"): {0: 0.9}}
    (verdict,) = judge_claims(grid, results_of(grid, values, items=True))
    assert (verdict.gains, verdict.outcome) == ({}, UNDECIDED)
    entry = build_table_entries(grid, results_of(grid, values, items=True))[1]
    assert entry.difference is not None
    assert entry.difference.low > 0.2


def test_items_of_shared_seeds_are_used(tmp_path: Path) -> None:
    grid = build_test_grid(tmp_path, objectives=["info-nce", "rince"])
    without_seed_1 = {seed: value for seed, value in MORE.items() if seed != 1}
    results = results_of(grid, {("info-nce", "plain"): BASE, ("rince", "plain"): without_seed_1}, items=True)
    _, entry = build_table_entries(grid, results)

    def items(name: str) -> np.ndarray:
        jobs = [results[name, "digits, plain", seed][0] for seed in (0, 2, 3)]
        return np.stack([WritableRun(job.run_folder).test_item_metric_values()["knn"].astype(float) for job in jobs])

    both = [np.array([0.93, 0.94, 0.94]), np.array([0.90, 0.90, 0.92])]
    expected = estimate_paired_difference(*both, items("rince"), items("info-nce")).with_interval()
    assert entry.difference == pytest.approx(expected)
    job, _ = results["rince", "digits, plain", 3]
    write_npz(WritableRun(job.run_folder).items_path, {"knn": np.ones(7)})
    _, entry = build_table_entries(grid, results)
    assert entry.difference == pytest.approx(estimate_paired_difference(*both).with_interval()), (
        "expected no use of items of unequal numbers"
    )


def test_epoch_means_average_available_seeds(tmp_path: Path) -> None:
    grid = build_test_grid(tmp_path, objectives=["info-nce"])
    results = results_of(grid, {("info-nce", "plain"): BASE})
    for (_, _, seed), (_, result) in results.items():
        result["course"] = {"epoch 10": {"knn": 0.9 + 0.01 * seed}} | ({"epoch 2": {"knn": 0.5}} if seed else {})
    early, late = compute_seed_means_by_epoch(grid, results)
    assert (early.epoch, early.mean, late.epoch, late.mean) == (2, 0.5, 10, pytest.approx(0.915))
    assert late.interval == pytest.approx(mean_interval_over_seeds(np.array([0.90, 0.91, 0.92, 0.93])))


def test_entries_predict_the_seeds_that_would_decide(tmp_path: Path) -> None:
    """Rows with close, distant and nearly equal means; the last row has one seed."""
    objectives = ["info-nce", "rince", "gca-ince", "iot", "gca-uot"]
    base = {0: 0.5, 1: 0.52}
    changes = {"rince": (0.01, 0.05), "gca-ince": (0.3, 0.301), "iot": (0.0, 0.0005), "gca-uot": (0.1,)}
    rows = {name: {seed: base[seed] + change for seed, change in enumerate(each)} for name, each in changes.items()}
    grid = build_test_grid(tmp_path, objectives=objectives, seeds=2)
    values = {("info-nce", "plain"): base} | {(name, "plain"): by_seed for name, by_seed in rows.items()}
    entries = {one.row_name: one for one in build_table_entries(grid, results_of(grid, values))}
    rince = entries["rince"].difference
    assert rince is not None
    assert not rince.is_significant
    seeds = entries["rince"].num_seeds_to_decide
    assert seeds is not None
    assert 2 < seeds < MAX_PREDICTED_SEEDS
    assert [entries[name].num_seeds_to_decide for name in ("info-nce", "gca-ince", "iot", "gca-uot")] == [None] * 4
    claims = [Claim(f"{name} is better", (name,), "info-nce") for name in ("rince", "gca-uot")]
    verdicts = judge_claims(with_claims(grid, *claims), results_of(grid, values))
    assert [one.outcome for one in verdicts] == [UNDECIDED] * 2
    assert [one.num_seeds_to_decide is None for one in verdicts] == [False, True]


def test_records_of_results_json_keep_their_keys() -> None:
    record = {
        "row": "rince",
        "column": "digits, plain",
        "measure": "knn",
        "seeds": 2,
        "mean": 0.5,
        "interval": [0.4, 0.6],
        "difference": None,
        "seconds": 1.5,
        "failed": "the loss is not finite",
        "missing_interval_reason": "there is one seed",
        "seconds_by_training": [1.0, 2.0],
        "num_seeds_to_decide": 7,
    }
    assert to_json_record(from_json_record(TableEntry, record)) == record
