"""What each section makes of the runs."""

import base64
import io
import json
import math

import numpy as np
import pytest
from PIL import Image

from contraport._utils.files import write_arrays, write_json
from contraport.auditing.pairs import estimate_fdr
from contraport.plots.colors import class_colors
from contraport.plots.curves import POINTS_PER_LINE
from contraport.plots.mass_scale import Scale
from contraport.reporting import plotly_figures
from contraport.reporting import sprite_sheet as pictures
from contraport.reporting.page import render
from contraport.reporting.page_builder import Canvas
from contraport.reporting.report_run import shown
from contraport.reporting.sections.confusion import confusion, most_confused, table
from contraport.reporting.sections.embeddings import embeddings
from contraport.reporting.sections.epochs import epochs, list_epoch_rows
from contraport.reporting.sections.geometry import geometry, similarity
from contraport.reporting.sections.neighbors import neighbors
from contraport.reporting.sections.pairs import pairs
from contraport.reporting.sections.plans import load_snapshots, mass_kept_per_item, plans, quantize_masses
from contraport.reporting.sections.results import results
from contraport.reporting.sections.robustness import robustness
from contraport.reporting.sections.training import curve, training


def canvas_of(*runs) -> Canvas:
    return Canvas(shown(runs))


def test_a_plan_and_its_target_share_one_scale_and_leave_self_pairs_out(make_run) -> None:
    canvas = canvas_of(make_run())
    values = plans(canvas).values
    (one,) = values["shown"]
    plan, target = (canvas.plots[f"{name}-0"]["data"][0] for name in ("plan", "target"))
    assert plan["meta"]["scale"] == target["meta"]["scale"] == list(values["scale"])
    assert plan["z"]["withoutSelf"] is True
    assert plan["meta"]["rows"][7] == "view 2, item 2 (zero)"
    assert one.last.mass == pytest.approx(0.9, abs=1e-5)
    assert 0 < one.last.on_target < 1
    assert one.last.excludes_self_pairs
    assert 0 < len(one.least_kept) <= 6
    assert all(share < 1 for *_, share in one.least_kept)
    assert [share for *_, share in one.least_kept] == sorted(share for *_, share in one.least_kept)


def test_masses_are_bytes_along_the_scale() -> None:
    found = quantize_masses(np.array([[0.1, 0.01, 0.001, 0.0]]), Scale(-3.0, -1.0))
    assert found.tolist() == [[255, 128, 0, 0]]
    letters = plotly_figures.encode_byte_matrix(found)
    assert list(base64.b64decode(letters["bytes"])) == [255, 128, 0, 0]
    assert letters["columns"] == 4


def test_an_item_keeps_what_its_rows_keep(make_run) -> None:
    (run,) = shown([make_run()])
    (moment,) = load_snapshots(run)
    half = moment._replace(plan=moment.target.copy())
    half.plan[2] /= 2
    half.plan[8] = 0
    assert mass_kept_per_item(half, 6).round(6).tolist() == [1, 1, 0.25, 1, 1, 1]


def test_unevenness_is_none_on_an_even_plan_and_all_on_one_negative(make_run) -> None:
    (run,) = shown([make_run()])
    (moment,) = load_snapshots(run)
    even = np.where(moment.target > 0, 0.0, 1.0)
    np.fill_diagonal(even, 0)
    assert moment._replace(plan=even).unevenness == pytest.approx(0)
    single = np.zeros_like(even)
    single[0, 1] = 1
    assert moment._replace(plan=single).unevenness == pytest.approx(1 - 1 / 120)


def test_kept_plans_are_what_the_slider_has(make_run) -> None:
    canvas = canvas_of(make_run(kept=3))
    values = plans(canvas).values
    known = canvas.data["plans"]["plan-0"]
    assert known["epochs"] == [1, 2, 3, 4]
    assert len(known["plans"]) == len(known["onTarget"]) == 4
    assert len(known["targets"]) == 1, "all are the same"
    assert values["course"].key == "on-target"
    assert canvas.plots["on-target"]["data"][0]["x"] == [1, 2, 3, 4]


def test_a_cross_plan_has_no_excluded_pairs(make_run) -> None:
    made = make_run()
    write_arrays(made.samples_path, made.samples() | {"plan": np.full((6, 6), 1 / 36), "target": np.eye(6) / 6})
    canvas = canvas_of(made)
    (one,) = plans(canvas).values["shown"]
    assert not one.last.excludes_self_pairs
    drawn = canvas.plots["plan-0"]
    assert [drawn["data"][0]["meta"][of][2] for of in ("rows", "columns")] == [
        "view 1, item 3 (one)",
        "view 2, item 3 (one)",
    ]
    assert [drawn["layout"][axis]["ticktext"] for axis in ("xaxis", "yaxis")] == [["view 2"], ["view 1"]]
    assert drawn["layout"]["shapes"] == [], "there is one view along each axis"
    assert drawn["layout"]["yaxis"]["autorange"] == "reversed", "the first item is above"


def test_what_a_plan_let_go_is_told_where_it_let_any_go(make_run) -> None:
    made, target = make_run(), np.roll(np.eye(12), 6, axis=1) / 12
    half = target.copy()
    half[0] /= 2

    def shown(plan: np.ndarray) -> tuple[str, str, list[tuple[int, str, float]], float | None]:
        write_arrays(made.samples_path, made.samples() | {"plan": plan, "target": target})
        canvas = canvas_of(made)
        values = plans(canvas).values
        (one,) = values["shown"]
        assert values["course"] is None, "there is one epoch alone"
        assert one.sheets == tuple(canvas.pictures(made.samples()[f"plan_view_{side}"]) for side in (1, 2))
        assert json.loads(plotly_figures.to_json(canvas.data))["plans"]["plan-0"]["mass"] == [round(plan.sum(), 4)]
        return one.plan.label.partition(": ")[2], one.of_lines.rpartition("; ")[2], one.least_kept, one.last.unevenness

    on_target = "of its mass where the target has mass"
    assert shown(target) == (f"100% {on_target}", "100% of the mass is on target", [], None)
    assert shown(half)[0] == f"mass 0.958, so that 4% was let go; 100% {on_target}"
    assert shown(half)[2] == [(0, "zero", pytest.approx(0.75))]
    assert shown(1.2 * half)[0] == f"mass 1.15, more than 1; 100% {on_target}"
    assert shown(1.2 * half)[2] == [], "where it has more than was wanted nothing was let go"
    nothing = shown(0 * target)
    assert nothing[0] == f"mass 0.000, so that 100% was let go; 0% {on_target}"
    assert len(nothing[2]) == 6
    (moment,) = load_snapshots(canvas_of(made).runs[0])
    assert mass_kept_per_item(moment._replace(plan=half[:7], target=target[:7]), 6).tolist() == [1] * 6


def test_targets_that_change_are_kept_epoch_by_epoch(make_run) -> None:
    made = make_run(kept=1)
    samples = made.samples()
    samples["targets"][1] = samples["targets"][0].T / 2
    write_arrays(made.samples_path, samples)
    canvas = canvas_of(made)
    plans(canvas)
    assert len(canvas.data["plans"]["plan-0"]["targets"]) == 2


def test_ticks_of_the_scale_are_the_powers_on_it() -> None:
    assert Scale(-3.5, -1.5).ticks == [(-3, 0.25), (-2, 0.75)]
    assert Scale(-2.0, -2.0).ticks == [(-2, 0.0)]


def test_a_sheet_holds_every_thumbnail_in_its_place() -> None:
    thumbnails = np.random.default_rng(0).integers(0, 255, (7, 3, 4, 5), dtype=np.uint8)
    key, sheet = pictures.sheet(thumbnails)
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(sheet.uri.split(",")[1]))))
    for item in range(7):
        top, left = item // sheet.columns * 4, item % sheet.columns * 5
        assert np.array_equal(pixels[top : top + 4, left : left + 5], thumbnails[item].transpose(1, 2, 0))
    assert key == pictures.sheet(thumbnails)[0]
    assert key != pictures.sheet(thumbnails[::-1])[0]


def test_a_sheet_of_many_colours_stays_small() -> None:
    noise = np.random.default_rng(0).integers(0, 255, (400, 3, 8, 8), dtype=np.uint8)
    smooth = np.repeat(np.repeat(noise, 4, axis=2), 4, axis=3)
    assert pictures.sheet(smooth)[1].uri.startswith("data:image/png")
    _, sheet = pictures.sheet(np.random.default_rng(0).integers(0, 255, (400, 3, 32, 32), dtype=np.uint8))
    assert sheet.uri.startswith("data:image/jpeg")
    assert len(sheet.uri) < 700_000


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_other_channels_are_shown_as_their_mean(channels: int) -> None:
    _, sheet = pictures.sheet(np.full((1, channels, 2, 2), 10, dtype=np.uint8))
    image = Image.open(io.BytesIO(base64.b64decode(sheet.uri.split(",")[1])))
    assert image.mode == "L"
    assert np.asarray(image).tolist() == [[10, 10], [10, 10]]


def test_long_curves_are_thinned_and_diverged_ones_still_drawn(make_run) -> None:
    made = make_run()
    rows = [{"step": step, "loss": math.nan if step == 2_001 else 1.0} for step in range(2_500)]
    made.write_metrics(rows)
    figure = curve(shown([made]), "loss")
    assert len(figure["data"][0]["x"]) <= POINTS_PER_LINE
    assert None in json.loads(plotly_figures.to_json(figure))["data"][0]["y"]


def test_json_cannot_end_a_script(make_run) -> None:
    assert "<" not in plotly_figures.to_json(curve(shown([make_run("x</script>")]), "loss"))


def test_curves_know_where_they_are_along_each_axis(make_run) -> None:
    canvas = canvas_of(make_run())
    training(canvas)
    (along,) = canvas.data["along"]["curve-loss"]
    assert along["step"][-1] == 19
    assert along["share"][-1] == 1
    assert along["epoch"][-1] == 4
    assert along["seconds"][-1] == 9.5


def test_curves_are_of_what_was_logged_alone(make_run) -> None:
    made = make_run()
    known = ("step", "loss")
    made.write_metrics({key: row[key] for key in known} | {"plan_mass": 1 - row["step"] / 50} for row in made.metrics())
    canvas = canvas_of(made, make_run("none", metrics=False))
    values = training(canvas).values
    assert [title for title, *_ in values["curves"]] == ["Loss", "Mass of the plan"]
    assert [len(canvas.plots["curve-loss"]["data"]), len(canvas.data["along"]["curve-loss"])] == [1, 1]
    assert canvas.data["along"]["curve-loss"][0].keys() == {"step", "share"}
    shares = ["tickformat" in canvas.plots[f"curve-{key}"]["layout"]["yaxis"] for key in ("loss", "plan_mass")]
    assert shares == [False, True]


def test_the_course_begins_untrained_and_ends_trained(make_run) -> None:
    canvas = canvas_of(make_run(kept=2))
    assert list_epoch_rows(canvas.runs[0]) == [(0, "untrained"), (1, "epoch 1"), (2, "epoch 2"), (3, "trained")]
    titles = [measure.title for measure, _ in epochs(canvas).values["curves"]]
    assert titles[:2] == ["Linear probe", "kNN"]
    assert canvas.plots["epochs-knn"]["data"][0]["y"] == pytest.approx([0.91, 0.5, 0.9, 0.92])
    assert epochs(canvas_of(make_run("other"))) is None


def test_of_measures_that_differ_in_a_number_the_first_is_drawn_with_its_intervals(make_run) -> None:
    made, other = make_run("made", kept=2), make_run("other", kept=2, data="others")
    for run in (made, other):
        known = run.evaluation()
        for row in known["rows"].values():
            row |= dict.fromkeys(("recall@5", "recall@1", "nmi", "ari"), 0.5)
        known["intervals"] = {"trained": {"knn": {"low": 0.9, "high": 0.95}}}
        write_json(run.evaluation_path, known)
    canvas = canvas_of(made)
    drawn = [plot.key for _, plot in epochs(canvas).values["curves"]]
    assert drawn[:5] == ["epochs-linear_probe", "epochs-knn", "epochs-recall-1", "epochs-nmi", "epochs-ari"]
    assert len(drawn) == 6
    (line, _), (plain, _) = (canvas.plots[f"epochs-{key}"]["data"] for key in ("knn", "nmi"))
    assert (line["error_y"]["array"][-1], line["error_y"]["arrayminus"][-1]) == pytest.approx((0.03, 0.02))
    assert "error_y" not in plain
    percents = ["tickformat" in canvas.plots[f"epochs-{key}"]["layout"]["yaxis"] for key in ("knn", "nmi")]
    assert percents == [True, False]
    curves = {measure.key: plot.label for measure, plot in epochs(canvas_of(made, other)).values["curves"]}
    assert curves["knn"] == "kNN over the epochs; last values: made: 92.0%; other: 92.0%."
    both = canvas_of(made, other)
    epochs(both)
    assert both.plots["epochs-knn"]["layout"]["shapes"] == [], "the raw inputs are those of one of them alone"


def test_raw_inputs_that_reach_nothing_are_drawn_at_nothing(make_run) -> None:
    run = make_run(kept=2)
    known = run.evaluation()
    known["rows"]["raw"]["knn"] = 0.0
    write_json(run.evaluation_path, known)
    canvas = canvas_of(run)
    epochs(canvas)
    (shape,) = canvas.plots["epochs-knn"]["layout"]["shapes"]
    assert (shape["y0"], shape["y1"]) == (0, 0)


def test_points_are_coloured_by_what_is_known_of_them(make_run) -> None:
    made = make_run()
    domains = {"domains": np.arange(30) % 2, "domain_names": np.array(["photo", "sketch"]), "suspicion": np.ones(30)}
    write_arrays(made.samples_path, made.samples() | domains)
    canvas = canvas_of(made)
    values = embeddings(canvas).values
    assert list(values["colors"]) == ["label", "domain", "loss", "suspicion"]
    known = canvas.data["maps"]["map-0"]
    assert known["colors"]["domain"]["names"] == ["photo", "sketch"]
    assert known["ids"][0] == 100
    assert json.loads(plotly_figures.to_json(canvas.data))["maps"]["map-0"]["neighbors"][0] == [3, 1, 6]
    assert list(embeddings(canvas_of(make_run("plain", labels=False))).values["colors"]) == ["loss"]


def test_neighbours_of_another_class_are_told(make_run) -> None:
    (strips,) = neighbors(canvas_of(make_run())).values["strips"]
    assert [(item.item, item.name) for item, _ in strips.rows] == [(100, "zero"), (101, "one"), (102, "two")]
    assert [near.same for near in strips.rows[0][1]] == [True, False, True]
    assert strips.of_class == pytest.approx(2 / 3)
    (strips,) = neighbors(canvas_of(make_run("unlabelled", labels=False))).values["strips"]
    assert strips.of_class is None
    assert len(strips.rows) == 10
    assert all(near.same is None for _, row in strips.rows for near in row)
    made = make_run("next")
    after = np.stack([(np.arange(30) + step) % 30 for step in (1, 3)], axis=1)
    write_arrays(made.samples_path, made.samples() | {"neighbors": after})
    assert neighbors(canvas_of(made)).values["strips"][0].of_class == pytest.approx(0.5)
    both = make_run("labelled"), make_run("not", labels=False)
    assert neighbors(canvas_of(*both)).values["by_class"] is False


def test_texts_are_shown_as_they_are(make_run) -> None:
    made = make_run(images=False)
    write_arrays(made.samples_path, made.samples() | {"texts": np.array([f"a <b>text {k}" for k in range(30)])})
    canvas = canvas_of(made)
    (strips,) = neighbors(canvas).values["strips"]
    assert [near.text for near in strips.rows[0][1]] == ["a <b>text 3", "a <b>text 1", "a <b>text 6"]
    embeddings(canvas)
    assert canvas.data["maps"]["map-0"]["texts"][2] == "a <b>text 2"


def test_directions_are_a_table_of_their_own(make_run) -> None:
    made = make_run()
    known = made.evaluation()
    numbers = {"recall@1": {"value": 0.25, "low": 0.2, "high": 0.3}}
    known["directions"] = {"image to text": numbers, "text to image": {}}
    write_json(made.evaluation_path, known)
    measures, found = results(canvas_of(made)).values["directions"]
    assert [measure.title for measure in measures] == ["Recall@1"]
    ((run, cells),) = found
    assert run.name == "nt-xent"
    told = {way: [(cell.text, cell.interval) for cell in of] for way, of in cells.items()}
    assert told == {"image to text": [("25.0%", "20.0–30.0%")], "text to image": [("–", "")]}


def test_a_row_of_the_confusion_is_a_true_class() -> None:
    drawn = table(np.array([[15, 1], [0, 4]]), ["a<", "b"])
    (trace,) = drawn["data"]
    assert list(base64.b64decode(trace["z"]["bytes"])) == [239, 15, 0, 255]
    assert trace["customdata"][0] == ["a< taken for a<\n93.8% (15 of 16)", "a< taken for b\n6.2% (1 of 16)"]
    assert trace["text"] == [["94", "6"], ["", "100"]]
    x, y = (drawn["layout"][axis] for axis in ("xaxis", "yaxis"))
    assert (x["ticktext"], y["ticktext"], y["autorange"]) == (["a&lt;", "b"], ["a&lt;", "b"], "reversed")
    many, very_many = (table(np.eye(classes), [str(k) for k in range(classes)]) for classes in (13, 40))
    assert "text" not in many["data"][0]
    assert len(many["layout"]["xaxis"]["ticktext"]) == 13
    assert very_many["layout"]["xaxis"]["showticklabels"] is False


def test_a_class_that_no_point_is_of_is_called_by_its_number(make_run) -> None:
    made = make_run()
    write_arrays(made.samples_path, made.samples() | {"confusion": np.array([[8, 0, 0, 2], *np.eye(4, dtype=int)[1:]])})
    ((_, _, worst, *_),) = confusion(canvas_of(made)).values["shown"]
    assert worst == ["20% of zero taken for 3 (2 of 10)"]
    others = {name: of for name, of in made.samples().items() if not name.startswith("mistaken")}
    write_arrays(made.samples_path, others | {"confusion": np.eye(2, dtype=int)})
    ((_, plot, *_),) = confusion(canvas_of(made)).values["shown"]
    assert plot.label == "nt-xent: no item is mistaken."


def test_the_worst_confusions_are_said(make_run) -> None:
    ((_, plot, worst, *_),) = confusion(canvas_of(make_run())).values["shown"]
    assert worst == ["20% of zero taken for one (2 of 10)", "10% of two taken for zero (1 of 10)"]
    assert worst[0] in plot.label
    assert most_confused(np.eye(2, dtype=int), ["a", "b"]) == []
    assert confusion(canvas_of(make_run("unlabelled", labels=False))) is None


def test_a_mass_that_changes_by_rounding_alone_is_not_drawn(make_run) -> None:
    made, other = make_run(), make_run("unbalanced")
    for run, masses in ((made, 1 + 1e-6 * np.arange(20)), (other, 1 - 1e-2 * np.arange(20))):
        run.write_metrics(row | {"plan_mass": float(mass)} for row, mass in zip(run.metrics(), masses, strict=True))
    drawn = [[title for title, *_ in training(canvas_of(run)).values["curves"]] for run in (made, other)]
    assert ["Mass of the plan" in titles for titles in drawn] == [False, True]


def test_what_is_mistaken_most_surely_is_shown(make_run) -> None:
    canvas = canvas_of(make_run("images"), make_run("vectors", images=False))
    (*_, views, mistaken), (*_, of_vectors) = confusion(canvas).values["shown"]
    assert views == ["view0"]
    assert [(one.item, one.true, one.told, one.sure) for one in mistaken] == [
        (7, "zero", "one", 0.98),
        (12, "zero", "one", 0.7),
        (3, "two", "zero", 0.5),
    ]
    assert [one.key for one in mistaken] == ["", "", ""]
    drawn = canvas.data["sketches"]
    assert [drawn[one.views[0]]["is"] for one in (*mistaken, *of_vectors)] == ["image"] * 3 + ["vector"] * 3


def test_what_is_mistaken_is_called_by_its_name_where_it_has_one(make_run) -> None:
    made = make_run()
    write_arrays(made.samples_path, made.samples() | {"mistaken_keys": np.array(["a/<1>.png", "b.png", "c.png"])})
    page = render(list(shown([made])))
    assert '<th scope="row">a/&lt;1&gt;.png</th>' in page
    assert "zero, b.png" in page


def test_plans_are_of_the_views_by_their_names_where_the_data_give_them(make_run) -> None:
    made, given = make_run(), make_run("given")
    write_arrays(given.samples_path, given.samples() | {"plan_view_names": np.array(["photo", "a<very long name"])})
    canvas = canvas_of(made, given)
    plans(canvas)
    ticks = [canvas.plots[f"plan-{k}"]["layout"]["xaxis"]["ticktext"] for k in (0, 1)]
    assert ticks == [["view 1", "view 2"], ["photo", "a&lt;very long n…"]]
    assert canvas.plots["plan-1"]["data"][0]["meta"]["rows"][0].startswith("photo, item 1")


def test_a_map_is_as_wide_as_its_points_lie(make_run) -> None:
    wide, one_place = make_run("wide"), make_run("place")
    write_arrays(wide.samples_path, wide.samples() | {"points": np.array([[0.0, 0.0], [3.0, 2.0]] * 15)})
    write_arrays(one_place.samples_path, one_place.samples() | {"points": np.zeros((30, 2))})
    very, high = make_run("very"), make_run("high")
    for run, end in ((very, [9.0, 1.0]), (high, [1.0, 9.0])):
        write_arrays(run.samples_path, run.samples() | {"points": np.array([[0.0, 0.0], end] * 15)})
    maps = embeddings(canvas_of(wide, one_place, very, high)).values["maps"]
    assert [plot.ratio for _, plot, _ in maps] == [1.5, None, 1.7, 0.8]


def test_a_point_is_drawn_where_it_lies_in_the_colour_of_its_class(make_run) -> None:
    made, labels = make_run(), np.arange(30) % 3
    write_arrays(made.samples_path, made.samples() | {"points": np.stack([labels, -2.0 * labels], axis=1)})
    canvas = canvas_of(made)
    values = embeddings(canvas).values
    (*of_classes, ring), colors = canvas.plots["map-0"]["data"], class_colors(3)
    assert ring["x"] == ring["y"] == []
    for label, trace in enumerate(of_classes):
        assert (trace["meta"], trace["marker"]["color"]) == (label, colors[label])
        assert np.array_equal(trace["customdata"], np.flatnonzero(labels == label))
        assert (trace["x"], trace["y"]) == ([label] * 10, [-2 * label] * 10)
    names = canvas.plots["map-0"]["layout"]["annotations"]
    assert [(one["text"], one["x"], one["y"]) for one in names] == [("zero", 0, 0), ("one", 1, -2), ("two", 2, -4)]
    assert values["legends"] == [("digits", list(zip(("zero", "one", "two"), colors, strict=True)))]
    single, many = make_run("single"), make_run("many", class_names=tuple(map(str, range(25))))
    one_class = {"points": np.eye(2), "labels": np.zeros(2, int), "class_names": np.array(["zero"])}
    write_arrays(single.samples_path, one_class)
    canvas = canvas_of(single, many)
    embeddings(canvas)
    assert [canvas.plots[f"map-{run}"]["layout"]["annotations"] for run in (0, 1)] == [[], []]
    assert embeddings(canvas_of(many)).values["legends"] == []


def test_of_confusions_as_frequent_that_of_more_items_is_the_worse() -> None:
    counts = np.array([[0, 1, 0], [0, 2, 0], [0, 7, 0]])
    assert most_confused(counts, ["a", "b", "c"]) == [
        "100% of c taken for b (7 of 7)",
        "100% of a taken for b (1 of 1)",
    ]


def test_neighbours_are_of_each_class_only_where_they_are(make_run) -> None:
    told = "nearest to those of a few items"
    assert f"{told}, each of another class." in render(shown([make_run("three")]))
    one = make_run("one")
    write_arrays(one.samples_path, one.samples() | {"labels": np.zeros(30, int)})
    assert f"{told}." in render(shown([one]))
    assert f"{told}." in render(shown([make_run("none", labels=False)]))


def test_only_shares_of_items_are_drawn_in_points(make_run) -> None:
    one, two = make_run("one"), make_run("two")
    for run, other in ((one, two), (two, one)):
        known = run.evaluation()
        for key in ("knn", "nmi", "ari"):
            known["rows"]["trained"][key] = 0.5
        gain = {"value": 0.0, "low": -0.0004, "high": 0.1}
        known["differences"][str(other.path)] = dict.fromkeys(("knn", "nmi", "ari"), gain)
        write_json(run.evaluation_path, known)
    ((_, plot),) = results(canvas_of(one, two)).values["differences"]
    assert plot.label == "Differences from one on digits: kNN, two: 0.0 points (0.0 to 10.0)."


def test_of_several_epochs_the_caption_of_a_plan_says_which_it_is_of(make_run) -> None:
    assert "After epoch 4: 10.0% of the pairs’ mass was let go." in render(shown([make_run("kept", kept=3)]))
    assert "<figcaption>10.0% of the pairs’ mass was let go." in render(shown([make_run("end")]))


def test_of_very_many_classes_only_the_worst_confusions_are_told(make_run) -> None:
    made = make_run(class_names=tuple(f"class {k}" for k in range(200)))
    counts = np.diag(np.full(200, 9)) + np.roll(np.eye(200, dtype=int), 1, axis=1)
    write_arrays(made.samples_path, made.samples() | {"confusion": counts})
    ((_, plot, worst, *_),) = confusion(canvas_of(made)).values["shown"]
    assert plot is None
    assert len(worst) == 12
    assert worst[0] == "10% of class 0 taken for class 1 (1 of 10)"
    assert "class 0 taken for class 1" in render(shown([made]))


def test_cosines_are_averaged_within_and_between_classes(make_run) -> None:
    made = make_run()
    labels = np.array([0, 0, 1])
    cosines = np.array([[1.0, 0.8, 0.1], [0.8, 1.0, 0.3], [0.1, 0.3, 1.0]])
    write_arrays(made.samples_path, made.samples() | {"cosines": cosines, "cosine_labels": labels})
    (one,) = geometry(canvas_of(made)).values["likeness"]
    assert (one.within, one.between) == (pytest.approx(0.8), pytest.approx(0.2))


def test_cosines_share_a_scale_and_have_the_names_of_their_classes(make_run) -> None:
    low, even = make_run("low"), make_run("even")
    cosines = np.full((6, 6), -0.85)
    np.fill_diagonal(cosines, 1)
    cosines[0, 1] = -0.99
    write_arrays(low.samples_path, low.samples() | {"cosines": cosines, "cosine_labels": np.array([0, 0, 1, 2, 2, 2])})
    write_arrays(even.samples_path, even.samples() | {"cosines": np.ones((30, 30))})
    canvas = canvas_of(low, even)
    assert geometry(canvas).values["lowest"] == pytest.approx(-1.0)
    assert geometry(canvas_of(even)).values["lowest"] == 0.9
    drawn = similarity(cosines, np.array([0, 0, 1, 2, 2, 2]), ["zero", "one", "two"], -0.9)
    letters = base64.b64decode(drawn["data"][0]["z"]["bytes"])
    assert [letters[place] for place in (0, 1, 2)] == [255, 0, 6], "what is below the scale has its lowest colour"
    y = drawn["layout"]["yaxis"]
    assert (y["ticktext"], y["tickvals"], y["autorange"]) == (["zero", "one", "two"], [0.5, 2, 4], "reversed")
    many = similarity(np.eye(25), np.arange(25), [str(label) for label in range(25)], 0.0)
    assert "ticktext" not in many["layout"]["yaxis"]


def test_the_path_of_a_run_on_the_sphere_begins_open_and_ends_large(make_run) -> None:
    made = make_run()
    write_arrays(made.samples_path, made.samples() | {"spectrum": np.array([4.0, 4.0, 1e-9])})
    canvas = canvas_of(made)
    values = geometry(canvas).values
    (path,) = canvas.plots["sphere"]["data"]
    assert (path["x"], path["y"]) == ([-2.0, -3.0], pytest.approx([0.2, 0.1]))
    assert (path["marker"]["symbol"], path["marker"]["size"]) == (["circle-open", "circle"], [6, 11])
    assert values["plane"].label.endswith("nt-xent: uniformity -3.00, alignment 0.10.")
    assert values["spectrum"].label == "Singular values. nt-xent: effective rank 2.0 of 3."
    assert canvas.plots["spectrum"]["data"][0]["x"] == [1, 2], "what is rounding is not drawn"
    known = made.evaluation()
    known["rows"] = {"trained": known["rows"]["trained"]}
    write_json(made.evaluation_path, known)
    assert geometry(canvas_of(made)).values["plane"] is None, "of one point there is no path"


def test_robustness_begins_at_the_clean_images(make_run) -> None:
    canvas = canvas_of(make_run())
    found = robustness(canvas)
    assert [name for name, _ in found.values["curves"]] == ["Noise", "Blur"]
    *beside, own = canvas.plots["robust-noise"]["data"]
    assert own["x"] == [0, 1, 5]
    assert [(one["name"], one["x"]) for one in beside] == [("raw inputs", [0]), ("the untrained encoder", [0])]
    assert "noise@1" not in [measure.key for measure in results(canvas).values["measures"]]
    assert canvas.plots["robust-noise"]["layout"]["yaxis"]["range"] == [pytest.approx(0.35), 1.0]
    assert found.values["curves"][0][1].label.endswith("at severity 5: nt-xent 40.0%.")


def test_robustness_stands_beside_baselines_that_all_runs_have(make_run) -> None:
    one, other = make_run("one"), make_run("other")
    known = other.evaluation()
    known["rows"]["untrained"]["linear_probe"] = 0.5  # of another encoder
    write_json(other.evaluation_path, known)
    assert robustness(canvas_of(one, other)).values["baselines"] == ["raw inputs (dotted)"]
    elsewhere = make_run("elsewhere", data="other")
    assert robustness(canvas_of(one, elsewhere)).values["baselines"] == []
    page = render(list(shown([one, other])))
    assert "Grey beside them: raw inputs (dotted)." in page


def test_differences_are_in_points_with_their_intervals(make_run) -> None:
    one, two = make_run("one"), make_run("two")
    known = two.evaluation()
    known["rows"]["trained"]["knn"] += 0.012
    known["differences"][str(one.path)] = {"knn": {"value": 0.012, "low": 0.004, "high": 0.02}}
    write_json(two.evaluation_path, known)
    canvas = canvas_of(one, two)
    ((first, plot),) = results(canvas).values["differences"]
    assert first.name == "one"
    assert "kNN, two: 1.2 points (0.4 to 2.0)" in plot.label
    (trace,) = canvas.plots[plot.key]["data"]
    assert (trace["x"], trace["error_x"]["arrayminus"]) == ([pytest.approx(1.2)], [pytest.approx(0.8)])


def test_differences_of_several_runs_lie_beside_one_another(make_run) -> None:
    runs = [make_run(f"run {place}", data="digits" if place < 3 else "others") for place in range(5)]
    for place, base, ends in ((1, 0, (0.012, 0.002, 0.02)), (2, 0, (-0.01, -0.03, -0.002)), (4, 3, (0.0, -0.1, 0.1))):
        known = runs[place].evaluation()
        known["rows"]["trained"]["knn"] += ends[0]
        known["differences"][str(runs[base].path)] = {"knn": dict(zip(("value", "low", "high"), ends, strict=True))}
        write_json(runs[place].evaluation_path, known)
    canvas = canvas_of(*runs)
    assert [key for key, _ in results(canvas).values["differing"]] == ["data"]
    found = results(canvas).values["differences"]
    assert [(first.name, plot.key) for first, plot in found] == [("run 0", "differences-0"), ("run 3", "differences-3")]
    drawn = canvas.plots["differences-0"]
    assert [trace["y"] for trace in drawn["data"]] == [[pytest.approx(-0.18)], [pytest.approx(0.18)]]
    reach = [(trace["error_x"]["array"], trace["error_x"]["arrayminus"]) for trace in drawn["data"]]
    assert reach == [(pytest.approx([0.8]), pytest.approx([1.0])), (pytest.approx([0.8]), pytest.approx([2.0]))]
    assert drawn["layout"]["yaxis"]["range"] == [0.5, -0.5], "the first measure is above"


def test_an_audited_run_shows_its_rate_and_the_ten_worst_pairs(make_run) -> None:
    canvas = canvas_of(make_run(audited=True))
    (one,) = pairs(canvas).values["judged"]
    assert (one.rate, one.low, one.high) == (0.1, 0.05, 0.15)
    assert [pair.item for pair in one.worst] == list(range(10))
    assert one.worst[0].partner == 7
    assert one.worst[9].partner is None
    assert one.views == ("image", "text")
    drawn = [canvas.data["sketches"][place] for place in one.worst[3].views]
    assert [view["is"] for view in drawn] == ["image", "text", "text"]
    assert drawn[1]["text"] == "<b>pair 3"
    found = canvas.runs[0].pairs
    assert [pair.fdr for pair in one.worst] == pytest.approx(
        estimate_fdr(found["scores"], found["mismatched"], 0.1)[:10]
    )
    bars = canvas.plots["scores-0"]["data"]
    assert [sum(of["y"]) for of in bars] == pytest.approx([1, 1], abs=1e-3)
    made = make_run("first", audited=True)
    made.save_pairs(made.pairs() | {"partners": np.full(60, 0)})
    ((first,),) = [pairs(canvas_of(made)).values["judged"]]
    assert first.worst[0].partner == 0
    assert pairs(canvas_of(make_run("plain"))) is None


def test_pairs_that_the_evaluation_did_not_see_are_shown_by_their_numbers(make_run) -> None:
    made = make_run(audited=True)
    write_arrays(made.samples_path, made.samples() | {"worst": np.arange(10)[::-1]})
    canvas = canvas_of(made)
    (one,) = pairs(canvas).values["judged"]
    assert one.worst[0].views is None
    assert "sketches" not in canvas.data


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_losses_that_are_no_numbers_are_no_colours(make_run, wrong) -> None:
    run = make_run()
    samples = run.samples()
    write_arrays(run.samples_path, {**samples, "losses": np.where(np.arange(30) == 3, wrong, samples["losses"])})
    assert 'value="loss"' not in render(shown([run]))
    write_arrays(run.samples_path, samples)
    assert 'value="loss"' in render(shown([run]))
