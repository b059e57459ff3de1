"""The verdict says what the intervals allow, and the table marks no more."""

from dataclasses import replace

import pytest

from contraport._utils.files import write_json
from contraport.reporting.numbers import measured, table
from contraport.reporting.report_run import shown
from contraport.reporting.verdict import verdict


def evaluated(run, probe, **differences):
    """Write an evaluation with one accuracy, and by how much it exceeds others."""
    rows = {"raw": 0.90, "untrained": 0.88, "trained": probe}
    known = {
        name: {"linear_probe": dict(zip(("value", "low", "high"), found, strict=True))}
        for name, found in differences.items()
    }
    result = {
        "data": "digits", "classes": 3, "seconds": 1.0, "notes": [], "epochs": 5, "neighbors": 20,
        "train_items": 1000, "test_items": 400, "uniformity_items": 400,
        "rows": {row: {"linear_probe": value} for row, value in rows.items()},
        "intervals": {row: {"linear_probe": {"low": v - 0.02, "high": v + 0.02}} for row, v in rows.items()},
        "differences": known,
    }  # fmt: skip
    write_json(run.evaluation_path, result)
    return run


BASELINES = {"raw": (0.05, 0.03, 0.07), "untrained": (0.07, 0.05, 0.09)}


def pair(make_run, between):
    one, two = make_run("one", temperature=0.5), make_run("two", temperature=0.1)
    mirrored = -between[0], -between[2], -between[1]
    evaluated(one, 0.95, **BASELINES, **{str(two.path): between})
    evaluated(two, 0.95 - between[0], **BASELINES, **{str(one.path): mirrored})
    return shown([one, two])


def test_a_sure_difference_is_told_with_its_interval(make_run):
    runs = pair(make_run, (0.012, 0.004, 0.02))
    said = verdict(runs)
    assert said[0] == "one is better than two on the linear probe, 95.0% against 93.8%: by 1.2 points (0.4 to 2.0)."
    assert said[1] == (
        "Both runs are surely better than the untrained encoder and raw inputs on the linear probe; the smallest gain "
        "is 5.0 points (3.0 to 7.0)."
    )
    assert said[2] == "One of the 400 test items is worth 0.25 points: look at nothing smaller."
    assert said[3] == "They differ in temperature (0.5; 0.1)."
    (group,) = table(runs, measured(runs))
    assert [encoder.name for encoder in group.encoders if encoder.cells[0].best] == ["one"]
    assert group.encoders[-2].cells[0].interval == "93.0–97.0%"


def test_settings_of_the_machine_are_no_difference(make_run):
    runs = shown([make_run("one", threads=1, device="cpu"), make_run("two", threads=2, device="cuda")])
    assert "The runs have the same settings." in verdict(runs)


def test_a_setting_of_several_values_is_told_by_their_names(make_run):
    runs = shown([make_run("one", objective_settings={"q": 0.1, "lam": 0.5}), make_run("two")])
    assert "They differ in objective_settings (q=0.1, lam=0.5; –)." in verdict(runs)


def test_a_difference_within_its_interval_is_no_win_and_is_not_marked(make_run):
    runs = pair(make_run, (0.012, -0.004, 0.028))
    told = "one and two cannot be told apart on the linear probe, 95.0% and 93.8%: 1.2 points (−0.4 to 2.8)."
    assert verdict(runs)[0] == told
    (group,) = table(runs, measured(runs))
    assert not any(encoder.cells[0].best for encoder in group.encoders)


def test_a_run_that_does_not_beat_a_baseline_is_named(make_run):
    run = evaluated(make_run("one"), 0.87, raw=(-0.03, -0.05, -0.01), untrained=(-0.01, -0.03, 0.01))
    assert verdict(shown([run]))[0] == (
        "one has 87.0% on the linear probe: surely worse than raw inputs, by 3.0 points (1.0 to 5.0); not surely "
        "different from the untrained encoder, −1.0 points (−3.0 to 1.0)."
    )


def test_a_gain_whose_interval_reaches_zero_is_not_called_better(make_run):
    run = evaluated(make_run("one"), 0.91, raw=(0.01, -0.01, 0.03), untrained=(0.03, 0.01, 0.05))
    assert verdict(shown([run]))[0] == (
        "one has 91.0% on the linear probe: surely better than the untrained encoder, by 3.0 points (1.0 to 5.0); not "
        "surely different from raw inputs, 1.0 points (−1.0 to 3.0)."
    )


def test_two_runs_that_a_baseline_beats_are_worse(make_run):
    runs = [
        evaluated(make_run(name), 0.9 - lost, raw=(-lost, -lost - 0.01, 0.01 - lost))
        for name, lost in (("one", 0.02), ("two", 0.03))
    ]
    told = (
        "Both runs are surely worse than raw inputs on the linear probe; the smallest loss is 2.0 points (1.0 to 3.0)."
    )
    assert told in verdict(shown(runs))


@pytest.mark.parametrize(
    ("raw", "untrained", "told"),
    [
        (
            (0.05, 0.02),
            (0.07, 0.04),
            "Both runs are surely better than the untrained encoder and raw inputs on the linear probe; the smallest "
            "gain is 2.0 points (1.0 to 3.0).",
        ),
        (
            (-0.05, -0.02),
            (-0.07, -0.04),
            "Both runs are surely worse than the untrained encoder and raw inputs on the linear probe; the smallest "
            "loss is 2.0 points (1.0 to 3.0).",
        ),
        (
            (0.004, 0.001),
            (0.002, -0.003),
            "Neither run is surely better than the untrained encoder or raw inputs on the linear probe; the largest "
            "gain is 0.4 points (−0.6 to 1.4).",
        ),
    ],
)
def test_of_all_gains_the_one_that_says_least_is_told(make_run, raw, untrained, told):
    runs = [
        evaluated(
            make_run(name),
            0.9,
            raw=(raw[k], raw[k] - 0.01, raw[k] + 0.01),
            untrained=(untrained[k], untrained[k] - 0.01, untrained[k] + 0.01),
        )
        for k, name in enumerate(("one", "two"))
    ]
    assert told in verdict(shown(runs))


def test_of_a_measure_of_which_less_is_better_the_least_is_the_best(make_run):
    one, two = make_run("one"), make_run("two")
    for run, other, value, (low, high) in ((one, two, 3.0, (-8.0, -4.0)), (two, one, 9.0, (4.0, 8.0))):
        known = evaluated(run, 0.9).evaluation()
        known["rows"] = {row: {"median_rank": value} for row in known["rows"]}
        gain = {"value": value - (12.0 - value), "low": low, "high": high}
        known["differences"] = {str(other.path): {"median_rank": gain}}
        write_json(run.evaluation_path, known)
    assert verdict(shown([two, one]))[0] == "one is better than two on the median rank, 3.0 against 9.0: by 6.000 " + (
        "(4.000 to 8.000)."
    )


def test_of_two_runs_it_is_told_on_how_many_measures_each_is_better(make_run):
    one, two = make_run("one"), make_run("two")
    keys = ("linear_probe", "knn", "few_shot@1", "few_shot@5", "uniformity", "hubness", "effective_rank")
    low = {"linear_probe": 0.01, "knn": -0.03, "few_shot@1": 0.01, "few_shot@5": -0.03}
    low |= {"hubness": -0.03, "uniformity": 0.1}
    for run, other, sign in ((one, two, 1), (two, one, -1)):
        evaluated(run, 0.9)
        known = run.evaluation()
        ends = {key: sorted((sign * low.get(key, -0.01), sign * (low.get(key, -0.01) + 0.02))) for key in keys}
        known["rows"]["trained"] |= {key: 0.5 + sum(of) / 4 for key, of in ends.items()}
        known["differences"] = {
            str(other.path): {key: {"value": sum(of) / 2, "low": of[0], "high": of[1]} for key, of in ends.items()}
        }
        write_json(run.evaluation_path, known)
    said = verdict(shown([one, two]))
    told = "Of 5 kinds of measures one is surely better on 2 (linear probe and hubness), two is surely better on 2 "
    assert told + "(kNN and uniformity)." in said, "few labels speak for either"


def test_runs_that_were_measured_apart_are_told_how_to_be_compared(make_run):
    runs = [evaluated(make_run(name), probe, **BASELINES) for name, probe in (("one", 0.95), ("two", 0.94))]
    said = verdict(shown(runs))
    assert said[0] == "one has the highest value on the linear probe, 95.0%; how sure is not known."
    paths = " ".join(str(run.path) for run in runs)
    assert said[1] == f"To know how sure that is, measure all together: contraport evaluate {paths}"


def test_a_command_quotes_the_folders(make_run):
    runs = [evaluated(make_run(name), 0.9, **BASELINES) for name in ("a run", "$b")]
    assert f"contraport evaluate '{runs[0].path}' '{runs[1].path}'" in verdict(shown(runs))[1]


def test_runs_judged_on_other_test_items_are_not_compared(make_run):
    one, two = pair(make_run, (0.012, 0.004, 0.02))
    third = evaluated(make_run("three"), 0.97, **BASELINES)
    write_json(third.evaluation_path, third.evaluation() | {"test_items": 900, "train_items": 2000})
    runs = [one, two, *shown([third])]
    said = verdict(runs)
    assert said[0].startswith("one is better than two on the linear probe")
    assert any(sentence.startswith("three has 97.0% on the linear probe: surely better") for sentence in said)
    assert (
        "On digits the runs were judged on 400 and 900 test items: those of different numbers are not compared." in said
    )
    assert "One of the 900 test items of digits is worth 0.11 points: look at nothing smaller." in said
    assert not any("measure all together" in sentence or "three has the highest" in sentence for sentence in said)
    (group,) = table(runs, measured(runs))
    assert group.sizes == (
        "On digits: 1,000 training and 400 test items of one and two; 2,000 training and 900 test items (uniformity: a "
        "random 400 of them) of three."
    )


def test_only_the_best_is_ahead_where_those_beside_it_may_not_be(make_run):
    runs = [make_run(name) for name in ("a", "b", "c")]
    to_b, to_c = (0.01, -0.01, 0.03), (0.02, 0.001, 0.05)
    evaluated(runs[0], 0.95, **BASELINES, **{str(runs[1].path): to_b, str(runs[2].path): to_c})
    evaluated(runs[1], 0.94, **BASELINES, **{str(runs[0].path): (-0.01, -0.03, 0.01), str(runs[2].path): to_b})
    evaluated(runs[2], 0.93, **BASELINES, **{str(runs[0].path): (-0.02, -0.05, -0.001)})
    assert verdict(shown(runs))[0] == "On the linear probe a and b cannot be told apart; a is ahead of c."


def test_what_is_rounded_to_nothing_has_no_minus(make_run):
    told = verdict(pair(make_run, (0.0001, -0.0004, 0.02)))[0]
    assert told.endswith(": 0.0 points (0.0 to 2.0).")


def test_a_measure_that_is_no_per_cent_has_no_points(make_run):
    run = make_run("one", labels=False)
    known = run.evaluation()
    known["rows"] = {row: {"nmi": value} for row, value in (("raw", 0.5), ("untrained", 0.5), ("trained", 0.612))}
    gain = {"nmi": {"value": 0.112, "low": 0.1, "high": 0.124}}
    known |= {"differences": {"raw": gain, "untrained": gain}, "test_items": 100}
    write_json(run.evaluation_path, known)
    assert verdict(shown([run])) == [
        "one has 0.612 on NMI: surely better than the untrained encoder, by 0.112 (0.100 to 0.124), and than raw "
        "inputs, by 0.112 (0.100 to 0.124)."
    ]


@pytest.mark.parametrize("unsure", [0, 1, 2])
def test_of_several_runs_those_that_cannot_be_told_apart_are_named(make_run, unsure):
    runs = [make_run(name) for name in ("a", "b", "c")]
    found = [(0.01 * (k + 1), -0.01, 0.03) if k < unsure else (0.01 * (k + 1), 0.001, 0.05) for k in range(2)]
    evaluated(runs[0], 0.95, **BASELINES, **{str(run.path): d for run, d in zip(runs[1:], found, strict=True)})
    for run, probe in zip(runs[1:], (0.94, 0.93), strict=True):
        others = {str(runs[0].path): (-0.01, -0.02, 0.0), str(runs[2].path): (0.01, 0.001, 0.02)}
        evaluated(run, probe, **BASELINES, **others)
    assert (
        verdict(shown(runs))[0]
        == [
            "a is the best on the linear probe, ahead of the next by 1.0 points (0.1 to 5.0).",
            "On the linear probe a and b cannot be told apart; they are ahead of c.",
            "On the linear probe none of the 3 runs can be told from the best, a.",
        ][unsure]
    )


def test_nothing_is_said_of_what_was_not_measured(make_run):
    assert verdict(shown([make_run("one", evaluated=False)])) == []


def test_how_many_pairs_seem_wrong_is_said(make_run):
    run = make_run("one", evaluated=True, audited=True)
    told = "Of the 60 pairs of one 10.0% (5.0 to 15.0) seem wrong: the ten to look at first are in the audit below."
    assert told in verdict(shown([run]))


def test_runs_that_moved_are_known_by_their_numbers(make_run):
    """Differences were written under the paths of then; of a run that was measured anew an older one is none."""
    one, two = pair(make_run, (0.012, 0.004, 0.02))
    moved = [replace(run, path=f"elsewhere/{run.name}") for run in (one, two)]
    assert verdict(moved) == verdict([one, two])
    changed = replace(two, evaluation={**two.evaluation, "rows": {"trained": {"linear_probe": 0.9}}})
    assert verdict([one, changed])[0].endswith("how sure is not known.")


def test_of_given_views_retrieval_is_judged_beside_the_accuracy(make_run):
    made = evaluated(make_run("one"), 0.95, **BASELINES)
    known = made.evaluation()
    for row, value in (("untrained", 0.01), ("trained", 0.25)):
        known["rows"][row]["recall@1"] = value
    known["differences"]["untrained"]["recall@1"] = {"value": 0.24, "low": 0.2, "high": 0.28}
    write_json(made.evaluation_path, known)
    assert not any("recall" in sentence for sentence in verdict(shown([made]))), "both views were made of one"
    numbers = {"recall@1": {"value": 0.25, "low": 0.2, "high": 0.3}}
    write_json(made.evaluation_path, known | {"directions": {"image to text": numbers, "text to image": numbers}})
    told = "one has 25.0% on recall@1: surely better than the untrained encoder, by 24.0 points (20.0 to 28.0)."
    assert verdict(shown([made]))[1] == told


def test_the_verdict_says_where_the_items_to_look_at_first_are(make_run):
    told = "Look first at the test items that the probe mistakes most surely: they are under its mistakes."
    assert verdict(shown([make_run("one")]))[-1] == told
    assert told not in verdict(shown([make_run("two", labels=False)]))


@pytest.mark.parametrize(("pairs", "told"), [(0, False), (1, False), (3, True)])
def test_intervals_that_hold_together_are_told_of_more_than_one_pair(make_run, pairs, told):
    one, two = pair(make_run, (0.012, 0.004, 0.02))
    runs = [replace(run, evaluation=run.evaluation | {"pairs_of_runs": pairs}) for run in (one, two)]
    assert ("What is sure between runs is so for all 3 pairs of them at once." in verdict(runs)) == told
    assert any("at once" in sentence for sentence in verdict(runs)) == told


def test_of_what_is_neither_better_nor_worse_none_is_the_best(make_run):
    one, two = make_run("one"), make_run("two")
    for run, other, sign in ((one, two, 1), (two, one, -1)):
        known = evaluated(run, 0.9).evaluation()
        gain = {"value": sign * 10.0, "low": sign * 10.0 - 1, "high": sign * 10.0 + 1}
        known["rows"] = {"trained": {"effective_rank": 20.0 + sign * 5, "knn": 0.5 + sign * 5}}
        known["differences"] = {str(other.path): {"effective_rank": gain, "knn": gain}}
        write_json(run.evaluation_path, known)
    runs = shown([one, two])
    marked = {
        measure.key: [encoder.name for encoder in table(runs, [measure])[0].encoders if encoder.cells[0].best]
        for measure in measured(runs)
    }
    assert marked == {"knn": ["one"], "effective_rank": []}
