"""Verdict sentences and marked cells of the table of results."""

import re
from dataclasses import replace

import pytest

from contraport._utils.files import write_json
from contraport.reporting.reported_run import load_runs
from contraport.reporting.sections.results_and_settings import build_metric_table_per_dataset, list_evaluated_metrics
from contraport.reporting.verdict import compose_heading, compose_verdict_sentences


def write_evaluation(run, probe, **differences):
    """Write an evaluation with one accuracy and its differences from baselines or runs."""
    rows = {"raw": 0.90, "untrained": 0.88, "trained": probe}
    differences_by_name = {
        name: {"linear_probe": dict(zip(("value", "low", "high"), actual, strict=True))}
        for name, actual in differences.items()
    }
    result = {
        "data": "digits", "classes": 3, "seconds": 1.0, "notes": [], "epochs": 5, "neighbors": 20,
        "train_items": 1000, "test_items": 400, "uniformity_items": 400,
        "rows": {row: {"linear_probe": value} for row, value in rows.items()},
        "intervals": {row: {"linear_probe": {"low": v - 0.02, "high": v + 0.02}} for row, v in rows.items()},
        "differences": differences_by_name,
    }  # fmt: skip
    write_json(run.evaluation_path, result)
    return run


BASELINES = {"raw": (0.05, 0.03, 0.07), "untrained": (0.07, 0.05, 0.09)}


def make_compared_runs(make_run, between):
    one, two = make_run("one", temperature=0.5), make_run("two", temperature=0.1)
    mirrored = -between[0], -between[2], -between[1]
    write_evaluation(one, 0.95, **BASELINES, **{str(two.path): between})
    write_evaluation(two, 0.95 - between[0], **BASELINES, **{str(one.path): mirrored})
    return load_runs([one, two])


def test_significant_difference_has_its_interval(make_run):
    runs = make_compared_runs(make_run, (0.012, 0.004, 0.02))
    sentences = compose_verdict_sentences(runs)
    assert (
        sentences[0] == "one is better than two on the linear probe, 95.0% against 93.8%: by 1.2 points (0.4 to 2.0)."
    )
    assert sentences[1] == (
        "Both runs are significantly better than the untrained encoder and raw inputs on the linear "
        "probe; the smallest gain "
        "is 5.0 points (3.0 to 7.0)."
    )
    assert sentences[2] == "1 of the 400 test items = 0.25 points."
    assert sentences[3] == "The runs differ in temperature (0.5; 0.1)."
    (group,) = build_metric_table_per_dataset(runs, list_evaluated_metrics(runs))
    assert [encoder.name for encoder in group.encoder_rows if encoder.cells[0].is_significantly_best] == ["one"]
    assert group.encoder_rows[-2].cells[0].interval == "93.0–97.0%"


def test_machine_settings_are_not_differences(make_run):
    runs = load_runs([make_run("one", threads=1, device="cpu"), make_run("two", threads=2, device="cuda")])
    assert "The runs have the same settings." in compose_verdict_sentences(runs)


def test_mapping_settings_list_their_names(make_run):
    runs = load_runs([make_run("one", objective_settings={"q": 0.1, "lam": 0.5}), make_run("two")])
    assert "The runs differ in objective_settings (q=0.1, lam=0.5; –)." in compose_verdict_sentences(runs)


def test_insignificant_difference_is_not_marked(make_run):
    runs = make_compared_runs(make_run, (0.012, -0.004, 0.028))
    text = "one and two do not differ significantly on the linear probe, 95.0% and 93.8%: 1.2 points (−0.4 to 2.8)."
    assert compose_verdict_sentences(runs)[0] == text
    (group,) = build_metric_table_per_dataset(runs, list_evaluated_metrics(runs))
    assert not any(encoder.cells[0].is_significantly_best for encoder in group.encoder_rows)


def test_run_worse_than_a_baseline(make_run):
    run = write_evaluation(make_run("one"), 0.87, raw=(-0.03, -0.05, -0.01), untrained=(-0.01, -0.03, 0.01))
    assert compose_verdict_sentences(load_runs([run]))[0] == (
        "one has 87.0% on the linear probe: significantly worse than raw inputs, by 3.0 points (1.0 to "
        "5.0); not significantly "
        "different from the untrained encoder, −1.0 points (−3.0 to +1.0)."
    )


def test_gain_with_interval_across_zero_is_not_better(make_run):
    run = write_evaluation(make_run("one"), 0.91, raw=(0.01, -0.01, 0.03), untrained=(0.03, 0.01, 0.05))
    assert compose_verdict_sentences(load_runs([run]))[0] == (
        "one has 91.0% on the linear probe: significantly better than the untrained encoder, by 3.0 "
        "points (1.0 to 5.0); not "
        "significantly different from raw inputs, +1.0 points (−1.0 to +3.0)."
    )


@pytest.mark.parametrize(
    ("losses", "best", "worse"),
    [((0.02, 0.03), "one", "one and two"), ((0.002, 0.03), "one", "two"), ((0.03, 0.0), "two", "one")],
)
def test_runs_worse_than_a_baseline_are_named(make_run, losses, best, worse):
    runs = [
        write_evaluation(make_run(name), 0.9 - loss, raw=(-loss, -loss - 0.01, 0.01 - loss))
        for name, loss in zip(("one", "two"), losses, strict=True)
    ]
    sentences = compose_verdict_sentences(load_runs(runs))
    end = f"; closest to raw inputs: {best} at"
    assert f"On the linear probe neither run is significantly better than raw inputs{end}" in sentences[0]
    assert compose_heading(load_runs(runs)) == sentences[0]
    assert f"Significantly worse than raw inputs on the linear probe: {worse}." in sentences


@pytest.mark.parametrize(
    ("raw", "untrained", "expected"),
    [
        (
            (0.05, 0.02),
            (0.07, 0.04),
            "Both runs are significantly better than the untrained encoder and raw inputs on the linear "
            "probe; the smallest "
            "gain is 2.0 points (1.0 to 3.0).",
        ),
        (
            (-0.05, -0.02),
            (-0.07, -0.04),
            "On the linear probe neither run is significantly better than the untrained encoder or raw inputs; "
            "closest to raw inputs: two at −2.0 points (−3.0 to −1.0).",
        ),
        (
            (0.004, 0.001),
            (0.002, -0.003),
            "On the linear probe neither run is significantly better than the untrained encoder or raw inputs; the "
            "largest gain is over raw inputs: one by 0.4 points (−0.6 to 1.4).",
        ),
        (
            (0.004, 0.004),
            (0.002, -0.003),
            "On the linear probe neither run is significantly better than the untrained encoder or raw inputs; the "
            "largest gain is over raw inputs: one by 0.4 points (−0.6 to 1.4); two by 0.4 points (−0.6 to 1.4).",
        ),
        (
            (0.05, 0.001),
            (0.07, 0.04),
            "On the linear probe not all runs are significantly better than raw inputs: two by 0.1 points "
            "(−0.9 to 1.1).",
        ),
    ],
)
def test_weakest_gain_over_baselines_is_given(make_run, raw, untrained, expected):
    runs = [
        write_evaluation(
            make_run(name),
            0.9,
            raw=(raw[k], raw[k] - 0.01, raw[k] + 0.01),
            untrained=(untrained[k], untrained[k] - 0.01, untrained[k] + 0.01),
        )
        for k, name in enumerate(("one", "two"))
    ]
    assert expected in compose_verdict_sentences(load_runs(runs))


def test_lowest_value_is_best_if_lower_is_better(make_run):
    one, two = make_run("one"), make_run("two")
    for run, other, value, (low, high) in ((one, two, 3.0, (-8.0, -4.0)), (two, one, 9.0, (4.0, 8.0))):
        evaluation = write_evaluation(run, 0.9).evaluation()
        evaluation["rows"] = {row: {"median_rank": value} for row in evaluation["rows"]}
        gain = {"value": value - (12.0 - value), "low": low, "high": high}
        evaluation["differences"] = {str(other.path): {"median_rank": gain}}
        write_json(run.evaluation_path, evaluation)
    assert compose_verdict_sentences(load_runs([two, one]))[
        0
    ] == "one is better than two on the median rank, 3.0 against 9.0: by 6.0 " + ("(4.0 to 8.0).")


def test_counts_metrics_on_which_each_run_is_better(make_run):
    one, two = make_run("one"), make_run("two")
    keys = ("linear_probe", "knn", "few_shot@1", "few_shot@5", "recall@1", "recall@5", "recall@10")
    keys += ("uniformity", "hubness", "effective_rank")
    low = {"linear_probe": 0.01, "knn": -0.03, "few_shot@1": 0.01, "few_shot@5": -0.03}
    low |= {"recall@5": 0.01, "recall@10": 0.02, "hubness": -0.03, "uniformity": 0.1}
    for run, other, sign in ((one, two, 1), (two, one, -1)):
        write_evaluation(run, 0.9)
        evaluation = run.evaluation()
        ends = {key: sorted((sign * low.get(key, -0.01), sign * (low.get(key, -0.01) + 0.02))) for key in keys}
        evaluation["rows"]["trained"] |= {key: 0.5 + sum(interval) / 4 for key, interval in ends.items()}
        evaluation["differences"] = {
            str(other.path): {
                key: {"value": sum(interval) / 2, "low": interval[0], "high": interval[1]}
                for key, interval in ends.items()
            }
        }
        write_json(run.evaluation_path, evaluation)
    sentences = compose_verdict_sentences(load_runs([one, two]))
    (sentence,) = (sentence for sentence in sentences if sentence.startswith("Of 6 metrics"))
    one_list, two_list = re.findall(r"(?:one|two) is significantly better on \d \((.*?)\)", sentence)
    assert one_list.split("; ") == ["linear probe", "recall@5 and 10", "hubness"], "not on few labels, nor on recall@1"
    assert two_list.split("; ") == ["kNN", "uniformity"]


def test_runs_evaluated_separately_get_a_command(make_run):
    runs = [write_evaluation(make_run(name), probe, **BASELINES) for name, probe in (("one", 0.95), ("two", 0.94))]
    sentences = compose_verdict_sentences(load_runs(runs))
    assert sentences[0] == (
        "Of the runs, one is best on the linear probe, 95.0%; differences between runs have no intervals yet."
    )
    paths = " ".join(str(run.path) for run in runs)
    assert sentences[1] == f"For intervals of differences, evaluate them together: contraport evaluate {paths}"


def test_equal_values_of_runs_are_a_tie(make_run):
    probes = {"one": 0.9501, "two": 0.94, "three": 0.9499}
    runs = [write_evaluation(make_run(name), probe, **BASELINES) for name, probe in probes.items()]
    sentence = compose_verdict_sentences(load_runs(runs))[0]
    assert sentence.startswith("Of the runs, one and three are best on the linear probe, 95.0%;")


def test_command_quotes_the_folders(make_run):
    runs = [write_evaluation(make_run(name), 0.9, **BASELINES) for name in ("a run", "$b")]
    assert f"contraport evaluate '{runs[0].path}' '{runs[1].path}'" in compose_verdict_sentences(load_runs(runs))[1]


def test_runs_on_different_test_items_are_not_compared(make_run):
    one, two = make_compared_runs(make_run, (0.012, 0.004, 0.02))
    third = write_evaluation(make_run("three"), 0.97, **BASELINES)
    write_json(third.evaluation_path, third.evaluation() | {"test_items": 900, "train_items": 2000})
    runs = [one, two, *load_runs([third])]
    sentences = compose_verdict_sentences(runs)
    assert sentences[0].startswith("one is better than two on the linear probe")
    assert any(
        sentence.startswith("three has 97.0% on the linear probe: significantly better") for sentence in sentences
    )
    assert (
        "On digits the numbers of test items differ (400 and 900); only runs with equal numbers are compared."
        in sentences
    )
    assert "1 of the 900 test items of digits = 0.11 points." in sentences
    assert not any("evaluate them together" in sentence or "three is best" in sentence for sentence in sentences)
    (group,) = build_metric_table_per_dataset(runs, list_evaluated_metrics(runs))
    assert group.size_sentence == (
        "On digits: 1,000 training and 400 test items of one and two; 2,000 training and 900 test items (uniformity: a "
        "random 400 of them) of three."
    )


def test_rounded_zero_has_no_minus(make_run):
    text = compose_verdict_sentences(make_compared_runs(make_run, (0.0001, -0.0004, 0.02)))[0]
    assert text.endswith(": 0.0 points (0.0 to 2.0).")


def test_metric_without_percent_has_no_points(make_run):
    run = make_run("one", labels=False)
    evaluation = run.evaluation()
    evaluation["rows"] = {row: {"nmi": value} for row, value in (("raw", 0.5), ("untrained", 0.5), ("trained", 0.612))}
    gain = {"nmi": {"value": 0.112, "low": 0.1, "high": 0.124}}
    evaluation |= {"differences": {"raw": gain, "untrained": gain}, "test_items": 100}
    write_json(run.evaluation_path, evaluation)
    assert compose_verdict_sentences(load_runs([run])) == [
        "one has 0.612 on NMI: significantly better than the untrained encoder, by 0.112 (0.100 to "
        "0.124), and than raw "
        "inputs, by 0.112 (0.100 to 0.124)."
    ]


def test_metrics_of_the_rows_of_a_coupling_have_no_points_per_pair(make_run):
    run = write_evaluation(make_run("one"), 0.95, **BASELINES)
    assert any("1 of the 400 test items" in sentence for sentence in compose_verdict_sentences(load_runs([run])))
    evaluation = run.evaluation()
    evaluation["rows"] = {row: {"link_recall@10": value["linear_probe"]} for row, value in evaluation["rows"].items()}
    write_json(run.evaluation_path, evaluation)
    sentences = compose_verdict_sentences(load_runs([run]))
    assert sentences[0].startswith("one has 95.0% on link recall@10")
    assert not any("1 of the 400" in sentence for sentence in sentences)


@pytest.mark.parametrize("unsure", [0, 1, 2])
def test_names_runs_that_do_not_differ(make_run, unsure):
    runs = [make_run(name) for name in ("a", "b", "c")]
    result = [(0.01 * (k + 1), -0.01, 0.03) if k < unsure else (0.01 * (k + 1), 0.001, 0.05) for k in range(2)]
    write_evaluation(runs[0], 0.95, **BASELINES, **{str(run.path): d for run, d in zip(runs[1:], result, strict=True)})
    for run, probe in zip(runs[1:], (0.94, 0.93), strict=True):
        others = {str(runs[0].path): (-0.01, -0.02, 0.0), str(runs[2].path): (0.01, 0.001, 0.02)}
        write_evaluation(run, probe, **BASELINES, **others)
    assert (
        compose_verdict_sentences(load_runs(runs))[0]
        == [
            "a is the best on the linear probe, ahead of the next by 1.0 points (0.1 to 5.0).",
            "On the linear probe a and b do not differ significantly; a is ahead of c.",
            "On the linear probe none of the 3 runs differs significantly from the best, a.",
        ][unsure]
    )


def test_no_sentence_without_evaluation(make_run):
    assert compose_verdict_sentences(load_runs([make_run("one", evaluated=False)])) == []


def test_states_the_mismatch_rate(make_run):
    run = make_run("one", evaluated=True, audited=True)
    text = (
        "An estimated 10.0% (5.0 to 15.0) of the 60 pairs of one are mismatched; the audit below lists the "
        "10 with the lowest scores."
    )
    (reported,) = load_runs([run])
    assert text in compose_verdict_sentences([reported])
    arrays = reported.online_audit_arrays
    few = replace(reported, online_audit_arrays=arrays | {"scores": arrays["scores"][:7]})
    assert any("lists the 7 " in sentence for sentence in compose_verdict_sentences([few]))


def test_moved_runs_are_matched_by_their_values(make_run):
    """Differences are saved under old paths; after a new evaluation of a run they no longer apply."""
    one, two = make_compared_runs(make_run, (0.012, 0.004, 0.02))
    moved = [replace(run, path=f"elsewhere/{run.name}") for run in (one, two)]
    assert compose_verdict_sentences(moved) == compose_verdict_sentences([one, two])
    changed = replace(two, evaluation={**two.evaluation, "rows": {"trained": {"linear_probe": 0.9}}})
    assert compose_verdict_sentences([one, changed])[0].endswith("no intervals yet.")


def test_retrieval_is_a_headline_for_several_views(make_run):
    run = write_evaluation(make_run("one"), 0.95, **BASELINES)
    evaluation = run.evaluation()
    for row, value in (("untrained", 0.01), ("trained", 0.25)):
        evaluation["rows"][row]["recall@1"] = value
    evaluation["differences"]["untrained"]["recall@1"] = {"value": 0.24, "low": 0.2, "high": 0.28}
    write_json(run.evaluation_path, evaluation)
    assert not any("recall" in sentence for sentence in compose_verdict_sentences(load_runs([run]))), (
        "expected no retrieval for augmented views of one"
    )
    numbers = {"recall@1": {"value": 0.25, "low": 0.2, "high": 0.3}}
    write_json(run.evaluation_path, evaluation | {"directions": {"image to text": numbers, "text to image": numbers}})
    text = "one has 25.0% on recall@1: significantly better than the untrained encoder, by 24.0 points (20.0 to 28.0)."
    assert compose_verdict_sentences(load_runs([run]))[1] == text


@pytest.mark.parametrize("untrained", [(0.07, 0.05, 0.09), (0.001, -0.01, 0.012)])
def test_heading_says_that_no_run_beats_a_baseline_and_the_advice_follows(make_run, untrained):
    """With the best run first, the page would praise a run that the raw inputs equal."""
    advice = "Use raw inputs for the linear probe."
    for name, probe in (("one", 0.94), ("two", 0.95)):
        run = write_evaluation(make_run(name), probe, raw=(-0.004, -0.02, 0.013), untrained=untrained)
        write_json(run.evaluation_path, run.evaluation() | {"verdict": advice})
    one, two = load_runs([run.path.parent / "one", run.path.parent / "two"])
    sentences = compose_verdict_sentences([one, two])
    assert compose_heading([one, two]) == sentences[0]
    assert sentences[0].startswith("On the linear probe neither run is significantly better than ")
    assert f"For two, the best run ({two.metrics_rows[-1]['step']} steps): {advice}" in sentences
    assert sum("neither run is" in sentence for sentence in sentences) == 1
    assert any("two is best" in sentence for sentence in sentences[1:])


def test_heading_names_the_best_run_if_one_run_beats_the_baselines(make_run):
    runs = [
        write_evaluation(make_run("one"), 0.95, **BASELINES),
        write_evaluation(make_run("two"), 0.9, raw=(0.0, -0.02, 0.02), untrained=(0.02, 0.0, 0.04)),
    ]
    heading = compose_heading(load_runs(runs))
    assert heading is not None
    assert heading.startswith("Of the runs, one is best on the linear probe")


@pytest.mark.parametrize(("pairs", "expected"), [(0, False), (1, False), (3, True)])
def test_simultaneous_intervals_are_mentioned_for_several_pairs(make_run, pairs, expected):
    one, two = make_compared_runs(make_run, (0.012, 0.004, 0.02))
    runs = [replace(run, evaluation=run.evaluation | {"pairs_of_runs": pairs}) for run in (one, two)]
    assert (
        "The intervals between runs hold simultaneously for all 3 pairs." in compose_verdict_sentences(runs)
    ) == expected
    assert any("simultaneously" in sentence for sentence in compose_verdict_sentences(runs)) == expected


def test_metric_without_direction_has_no_best(make_run):
    one, two = make_run("one"), make_run("two")
    for run, other, sign in ((one, two, 1), (two, one, -1)):
        evaluation = write_evaluation(run, 0.9).evaluation()
        gain = {"value": sign * 10.0, "low": sign * 10.0 - 1, "high": sign * 10.0 + 1}
        evaluation["rows"] = {"trained": {"effective_rank": 20.0 + sign * 5, "knn": 0.5 + sign * 5}}
        evaluation["differences"] = {str(other.path): {"effective_rank": gain, "knn": gain}}
        write_json(run.evaluation_path, evaluation)
    runs = load_runs([one, two])
    best_by_metric = {
        measure.key: [
            encoder.name
            for encoder in build_metric_table_per_dataset(runs, [measure])[0].encoder_rows
            if encoder.cells[0].is_significantly_best
        ]
        for measure in list_evaluated_metrics(runs)
    }
    assert best_by_metric == {"knn": ["one"], "effective_rank": []}
