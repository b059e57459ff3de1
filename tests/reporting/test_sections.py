"""Sections of the report: plans, curves, maps, neighbors, confusion, geometry, robustness and audits."""

import base64
import io
import json
import math

import numpy as np
import pytest
from PIL import Image

from contraport._utils.files import write_json, write_npz
from contraport.auditing.pairs.noise_rate import estimate_pair_fdrs
from contraport.plots.curves import MAX_POINTS_PER_LINE
from contraport.plots.figure_setup import class_colors
from contraport.plots.plan_plots import LogScale
from contraport.reporting import plotly_figures
from contraport.reporting.html_page_parts import PageAssets, SpriteSheet
from contraport.reporting.page import render_report
from contraport.reporting.reported_run import load_runs
from contraport.reporting.sections.embedding_map import build_embedding_map_section
from contraport.reporting.sections.feature_geometry import build_geometry_section, draw_item_cosine_heatmap
from contraport.reporting.sections.linear_probe_errors import (
    build_confusion_section,
    draw_confusion_matrix,
    frequent_confusion_sentences,
)
from contraport.reporting.sections.metric_curves import (
    build_epoch_curves_section,
    build_robustness_section,
    build_training_curves_section,
    draw_training_curve,
    list_evaluated_epochs_and_rows,
)
from contraport.reporting.sections.nearest_neighbors import build_nearest_neighbors_section
from contraport.reporting.sections.online_audit import build_pair_audit_section
from contraport.reporting.sections.plan_heatmaps import (
    build_plans_section,
    load_plan_snapshots,
    quantize_masses,
    row_mass_over_target_row_mass_per_item,
)
from contraport.reporting.sections.results_and_settings import build_results_section, build_settings_section


def build_assets(*runs) -> PageAssets:
    return PageAssets(load_runs(runs))


def test_items_per_second_are_all_items_over_all_seconds(make_run) -> None:
    row = {"step": 1_000, "seconds": 3.0, "loss": 1.0, "temperature": 0.2, "images_per_second": 50.0, "data_wait": 0.1}
    first = {"step": 10, "seconds": 1.0, "loss": 2.0, "temperature": 0.5, "images_per_second": 200.0, "data_wait": 0.4}
    run = make_run()
    run.replace_metrics([first, row])
    as_trained = build_settings_section(build_assets(run, make_run("unlogged", metrics=False))).template_variables[
        "as_trained"
    ]
    assert as_trained["items per second"] == ["100", "–"]  # 200 and 100 items in 3 seconds
    assert as_trained["share of time waiting for data"] == ["20.0%", "–"]
    assert as_trained["last temperature"] == ["0.2", "–"]
    assert as_trained["steps"] == ["1,000", "–"]


def test_plan_and_target_share_a_scale_without_self_pairs(make_run) -> None:
    assets = build_assets(make_run())
    values = build_plans_section(assets).template_variables
    (one,) = values["plans"]
    plan, target = (assets.plots[f"{name}-0"]["data"][0] for name in ("plan", "target"))
    assert plan["meta"]["scale"] == target["meta"]["scale"] == list(values["scale"])
    assert plan["z"]["withoutSelf"] is True
    assert plan["meta"]["rows"][7] == "view 2, item 2 (zero)"
    assert one.last_snapshot.total_mass == pytest.approx(0.9, abs=1e-5)
    assert 0 < one.last_snapshot.share_on_target < 1
    assert one.last_snapshot.excludes_self_pairs
    assert 0 < len(one.most_dropped_items) <= 6
    assert all(share < 1 for *_, share in one.most_dropped_items)
    assert [share for *_, share in one.most_dropped_items] == sorted(share for *_, share in one.most_dropped_items)


def test_masses_are_quantized_on_the_log_scale() -> None:
    result = quantize_masses(np.array([[0.1, 0.01, 0.001, 0.0]]), LogScale(-3.0, -1.0))
    assert result.tolist() == [[255, 128, 0, 0]]
    letters = plotly_figures.encode_base64_matrix(result)
    assert list(base64.b64decode(letters["bytes"])) == [255, 128, 0, 0]
    assert letters["columns"] == 4


def test_mass_ratio_is_summed_over_the_rows_of_an_item(make_run) -> None:
    (run,) = load_runs([make_run()])
    (snapshot,) = load_plan_snapshots(run)
    half = snapshot._replace(plan=snapshot.target.copy())
    half.plan[2] /= 2
    half.plan[8] = 0
    assert row_mass_over_target_row_mass_per_item(half, 6).round(6).tolist() == [1, 1, 0.25, 1, 1, 1]


def test_unevenness_ranges_from_uniform_to_a_single_negative(make_run) -> None:
    (run,) = load_runs([make_run()])
    (snapshot,) = load_plan_snapshots(run)
    even = np.where(snapshot.target > 0, 0.0, 1.0)
    np.fill_diagonal(even, 0)
    assert snapshot._replace(plan=even).negatives_tv_from_uniform == pytest.approx(0)
    single = np.zeros_like(even)
    single[0, 1] = 1
    assert snapshot._replace(plan=single).negatives_tv_from_uniform == pytest.approx(1 - 1 / 120)
    assert snapshot.share_on_target_if_uniform == pytest.approx(12 / 132)


def test_slider_has_all_snapshots(make_run) -> None:
    assets = build_assets(make_run(num_intermediate=3))
    values = build_plans_section(assets).template_variables
    plan_data = assets.script_data["plans"]["plan-0"]
    assert plan_data["epochs"] == [1, 2, 3, 4]
    assert len(plan_data["plans"]) == len(plan_data["onTarget"]) == 4
    assert len(plan_data["targets"]) == 1, "expected one target for all epochs"
    assert values["over_epochs"].element_id == "on-target"
    assert assets.plots["on-target"]["data"][0]["x"] == [1, 2, 3, 4]


def test_cross_plan_has_no_excluded_pairs(make_run) -> None:
    run = make_run()
    write_npz(run.samples_path, run.page_arrays() | {"plan": np.full((6, 6), 1 / 36), "target": np.eye(6) / 6})
    assets = build_assets(run)
    (one,) = build_plans_section(assets).template_variables["plans"]
    assert not one.last_snapshot.excludes_self_pairs
    drawn = assets.plots["plan-0"]
    assert [drawn["data"][0]["meta"][values][2] for values in ("rows", "columns")] == [
        "view 1, item 3 (one)",
        "view 2, item 3 (one)",
    ]
    assert [drawn["layout"][axis]["ticktext"] for axis in ("xaxis", "yaxis")] == [["view 2"], ["view 1"]]
    assert drawn["layout"]["shapes"] == []
    assert drawn["layout"]["yaxis"]["autorange"] == "reversed", "expected the first item at the top"


def test_dropped_mass_is_described_only_if_any_is_dropped(make_run) -> None:
    run, target = make_run(), np.roll(np.eye(12), 6, axis=1) / 12
    half = target.copy()
    half[0] /= 2

    def summarize(plan: np.ndarray) -> tuple[str, str, list[tuple[int, str, float]], float | None]:
        write_npz(run.samples_path, run.page_arrays() | {"plan": plan, "target": target})
        assets = build_assets(run)
        values = build_plans_section(assets).template_variables
        (one,) = values["plans"]
        assert values["over_epochs"] is None
        assert one.sprite_sheet_key == assets.add_thumbnails(run.page_arrays()["plan_view_1"])
        assert json.loads(plotly_figures.to_script_json(assets.script_data))["plans"]["plan-0"]["mass"] == [
            round(plan.sum(), 4)
        ]
        return (
            one.plan_plot.label.partition(": ")[2],
            one.lines_alt_text.rpartition("; ")[2],
            one.most_dropped_items,
            one.last_snapshot.negatives_tv_from_uniform,
        )

    on_target = "of its mass on target"
    assert summarize(target) == (f"100% {on_target}", "100% of the mass is on target", [], None)
    assert summarize(half)[0] == f"mass 95.8%, 4.2% dropped; 100% {on_target}"
    assert summarize(half)[2] == [(0, "zero", pytest.approx(0.75))]
    assert summarize(1.2 * half)[0] == f"mass 115.0%, above 100%; 100% {on_target}"
    assert summarize(1.2 * half)[2] == [], "expected no dropped mass if the plan exceeds the target"
    nothing = summarize(0 * target)
    assert nothing[0] == f"mass 0.0%, 100.0% dropped; 0% {on_target}"
    assert len(nothing[2]) == 6
    (snapshot,) = load_plan_snapshots(build_assets(run).runs[0])
    assert (
        row_mass_over_target_row_mass_per_item(snapshot._replace(plan=half[:7], target=target[:7]), 6).tolist()
        == [1] * 6
    )


def test_changing_targets_are_stored_per_epoch(make_run) -> None:
    run = make_run(num_intermediate=1)
    samples = run.page_arrays()
    samples["targets"][1] = samples["targets"][0].T / 2
    write_npz(run.samples_path, samples)
    assets = build_assets(run)
    build_plans_section(assets)
    assert len(assets.script_data["plans"]["plan-0"]["targets"]) == 2


def test_scale_ticks_are_integer_powers() -> None:
    assert LogScale(-3.5, -1.5).exponents_and_positions == [(-3, 0.25), (-2, 0.75)]
    assert LogScale(-2.0, -2.0).exponents_and_positions == [(-2, 0.0)]


def pack_thumbnails(thumbnails: np.ndarray) -> SpriteSheet:
    assets = PageAssets([])
    return assets.sheets[assets.add_thumbnails(thumbnails)]


def test_sprite_sheet_holds_thumbnails_in_order() -> None:
    thumbnails = np.random.default_rng(0).integers(0, 255, (7, 3, 4, 5), dtype=np.uint8)
    sheet = pack_thumbnails(thumbnails)
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(sheet.uri.split(",")[1]))))
    for item in range(7):
        top, left = item // sheet.columns * 4, item % sheet.columns * 5
        assert np.array_equal(pixels[top : top + 4, left : left + 5], thumbnails[item].transpose(1, 2, 0))
    assets = PageAssets([])
    key = assets.add_thumbnails(thumbnails)
    assert key == assets.add_thumbnails(thumbnails)
    assert key != assets.add_thumbnails(thumbnails[::-1])


def test_large_sprite_sheets_become_jpeg() -> None:
    noise = np.random.default_rng(0).integers(0, 255, (400, 3, 8, 8), dtype=np.uint8)
    smooth = np.repeat(np.repeat(noise, 4, axis=2), 4, axis=3)
    assert pack_thumbnails(smooth).uri.startswith("data:image/png")
    sheet = pack_thumbnails(np.random.default_rng(0).integers(0, 255, (400, 3, 32, 32), dtype=np.uint8))
    assert sheet.uri.startswith("data:image/jpeg")
    assert len(sheet.uri) < 700_000


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_other_channel_counts_become_gray(channels: int) -> None:
    sheet = pack_thumbnails(np.full((1, channels, 2, 2), 10, dtype=np.uint8))
    image = Image.open(io.BytesIO(base64.b64decode(sheet.uri.split(",")[1])))
    assert image.mode == "L"
    assert np.asarray(image).tolist() == [[10, 10], [10, 10]]


def test_long_curves_are_subsampled_and_diverged_ones_drawn(make_run) -> None:
    run = make_run()
    rows = [{"step": step, "loss": math.nan if step == 2_001 else 1.0} for step in range(2_500)]
    run.replace_metrics(rows)
    figure = draw_training_curve(load_runs([run]), "loss")
    assert len(figure["data"][0]["x"]) <= MAX_POINTS_PER_LINE
    assert None in json.loads(plotly_figures.to_script_json(figure))["data"][0]["y"]


def test_json_cannot_close_a_script_element(make_run) -> None:
    assert "<" not in plotly_figures.to_script_json(draw_training_curve(load_runs([make_run("x</script>")]), "loss"))


def test_curves_have_positions_on_each_axis(make_run) -> None:
    assets = build_assets(make_run())
    build_training_curves_section(assets)
    (along,) = assets.script_data["along"]["curve-loss"]
    assert along["step"][-1] == 19
    assert along["share"][-1] == 1
    assert along["epoch"][-1] == 4
    assert along["seconds"][-1] == 9.5


def test_curves_show_only_logged_columns(make_run) -> None:
    run = make_run()
    columns = ("step", "loss")
    run.replace_metrics(
        {key: row[key] for key in columns} | {"plan_mass": 1 - row["step"] / 50} for row in run.metrics_rows()
    )
    assets = build_assets(run, make_run("none", metrics=False))
    values = build_training_curves_section(assets).template_variables
    assert [title for title, *_ in values["curves"]] == ["Loss", "Mass of the plan"]
    assert [len(assets.plots["curve-loss"]["data"]), len(assets.script_data["along"]["curve-loss"])] == [1, 1]
    assert assets.script_data["along"]["curve-loss"][0].keys() == {"step", "share"}
    shares = ["tickformat" in assets.plots[f"curve-{key}"]["layout"]["yaxis"] for key in ("loss", "plan_mass")]
    assert shares == [False, True]


def test_epoch_curves_start_untrained_and_end_trained(make_run) -> None:
    assets = build_assets(make_run(num_intermediate=2))
    assert list_evaluated_epochs_and_rows(assets.runs[0]) == [
        (0, "untrained"),
        (1, "epoch 1"),
        (2, "epoch 2"),
        (3, "trained"),
    ]
    titles = [measure.title for measure, _ in build_epoch_curves_section(assets).template_variables["curves"]]
    assert titles[:2] == ["Linear probe", "kNN"]
    assert assets.plots["epochs-knn"]["data"][0]["y"] == pytest.approx([0.91, 0.5, 0.9, 0.92])
    assert build_epoch_curves_section(build_assets(make_run("other"))) is None


def test_epoch_curves_show_one_metric_per_family_with_intervals(make_run) -> None:
    first_run, second_run = make_run("made", num_intermediate=2), make_run("other", num_intermediate=2, data="others")
    for run in (first_run, second_run):
        evaluation = run.evaluation()
        for row in evaluation["rows"].values():
            row |= dict.fromkeys(("recall@5", "recall@1", "nmi", "ari"), 0.5)
        evaluation["intervals"] = {"trained": {"knn": {"low": 0.9, "high": 0.95}}}
        write_json(run.evaluation_path, evaluation)
    assets = build_assets(first_run)
    drawn = [plot.element_id for _, plot in build_epoch_curves_section(assets).template_variables["curves"]]
    assert drawn[:5] == ["epochs-linear_probe", "epochs-knn", "epochs-recall-1", "epochs-nmi", "epochs-ari"]
    assert len(drawn) == 6
    (line, _), (plain, _) = (assets.plots[f"epochs-{key}"]["data"] for key in ("knn", "nmi"))
    assert (line["error_y"]["array"][-1], line["error_y"]["arrayminus"][-1]) == pytest.approx((0.03, 0.02))
    assert "error_y" not in plain
    percents = ["tickformat" in assets.plots[f"epochs-{key}"]["layout"]["yaxis"] for key in ("knn", "nmi")]
    assert percents == [True, False]
    curves = {
        measure.key: plot.label
        for measure, plot in build_epoch_curves_section(build_assets(first_run, second_run)).template_variables[
            "curves"
        ]
    }
    assert curves["knn"] == "kNN over the epochs; last values: made: 92.0%; other: 92.0%."
    both = build_assets(first_run, second_run)
    build_epoch_curves_section(both)
    assert both.plots["epochs-knn"]["layout"]["shapes"] == [], "expected no line of raw inputs for different data"


def test_raw_inputs_with_value_zero_are_drawn(make_run) -> None:
    run = make_run(num_intermediate=2)
    evaluation = run.evaluation()
    evaluation["rows"]["raw"]["knn"] = 0.0
    write_json(run.evaluation_path, evaluation)
    assets = build_assets(run)
    build_epoch_curves_section(assets)
    (shape,) = assets.plots["epochs-knn"]["layout"]["shapes"]
    assert (shape["y0"], shape["y1"]) == (0, 0)


def test_points_are_colored_by_available_data(make_run) -> None:
    run = make_run()
    domains = {"domains": np.arange(30) % 2, "domain_names": np.array(["photo", "sketch"]), "suspicion": np.ones(30)}
    write_npz(run.samples_path, run.page_arrays() | domains)
    assets = build_assets(run)
    values = build_embedding_map_section(assets).template_variables
    assert list(values["colors"]) == ["label", "domain", "loss", "suspicion"]
    embedding_map = assets.script_data["maps"]["map-0"]
    assert embedding_map["colors"]["domain"]["names"] == ["photo", "sketch"]
    assert embedding_map["ids"][0] == 100
    assert json.loads(plotly_figures.to_script_json(assets.script_data))["maps"]["map-0"]["neighbors"][0] == [3, 1, 6]
    assert list(
        build_embedding_map_section(build_assets(make_run("plain", labels=False))).template_variables["colors"]
    ) == ["loss"]


def test_neighbors_of_another_class_are_marked(make_run) -> None:
    (strips,) = build_nearest_neighbors_section(build_assets(make_run())).template_variables["strips"]
    assert [(item.id, item.class_name) for item, _ in strips["rows"]] == [
        (100, "zero"),
        (101, "one"),
        (102, "two"),
    ]
    assert [near.is_same_class for near in strips["rows"][0][1]] == [True, False, True]
    assert strips["same_class_share"] == pytest.approx(2 / 3)
    unlabelled = build_assets(make_run("unlabelled", labels=False))
    (strips,) = build_nearest_neighbors_section(unlabelled).template_variables["strips"]
    assert strips["same_class_share"] is None
    assert len(strips["rows"]) == 10
    assert all(near.is_same_class is None for _, row in strips["rows"] for near in row)
    run = make_run("next")
    after = np.stack([(np.arange(30) + step) % 30 for step in (1, 3)], axis=1)
    write_npz(run.samples_path, run.page_arrays() | {"neighbors": after})
    assert build_nearest_neighbors_section(build_assets(run)).template_variables["strips"][0][
        "same_class_share"
    ] == pytest.approx(0.5)
    both = make_run("labelled"), make_run("not", labels=False)
    assert build_nearest_neighbors_section(build_assets(*both)).template_variables["by_class"] is False


def test_texts_are_shown_verbatim(make_run) -> None:
    run = make_run(images=False)
    write_npz(run.samples_path, run.page_arrays() | {"texts": np.array([f"a <b>text {k}" for k in range(30)])})
    assets = build_assets(run)
    (strips,) = build_nearest_neighbors_section(assets).template_variables["strips"]
    assert [near.text for near in strips["rows"][0][1]] == ["a <b>text 3", "a <b>text 1", "a <b>text 6"]
    build_embedding_map_section(assets)
    assert assets.script_data["maps"]["map-0"]["texts"][2] == "a <b>text 2"


def test_cross_view_retrieval_has_its_own_table(make_run) -> None:
    evaluated_run = make_run()
    evaluation = evaluated_run.evaluation()
    numbers = {"recall@1": {"value": 0.25, "low": 0.2, "high": 0.3}}
    evaluation["directions"] = {"image to text": numbers, "text to image": {}}
    write_json(evaluated_run.evaluation_path, evaluation)
    variables = build_results_section(build_assets(evaluated_run)).template_variables
    assert [metric.title for metric in variables["retrieval_metrics"]] == ["Recall@1"]
    ((run, cells),) = variables["retrieval_cells"]
    assert run.name == "nt-xent"
    options = {way: [(cell.text, cell.interval) for cell in values] for way, values in cells.items()}
    assert options == {"image to text": [("25.0%", "20.0–30.0%")], "text to image": [("–", "")]}


def test_confusion_rows_are_true_classes() -> None:
    drawn = draw_confusion_matrix(np.array([[15, 1], [0, 4]]), ["a<", "b"])
    (trace,) = drawn["data"]
    assert list(base64.b64decode(trace["z"]["bytes"])) == [239, 15, 0, 255]
    assert trace["customdata"][0] == ["a< predicted as a<\n93.8% (15 of 16)", "a< predicted as b\n6.2% (1 of 16)"]
    assert trace["text"] == [["94", "6"], ["", "100"]]
    x, y = (drawn["layout"][axis] for axis in ("xaxis", "yaxis"))
    assert (x["ticktext"], y["ticktext"], y["autorange"]) == (["a&lt;", "b"], ["a&lt;", "b"], "reversed")
    many, very_many = (draw_confusion_matrix(np.eye(classes), [str(k) for k in range(classes)]) for classes in (13, 40))
    assert "text" not in many["data"][0]
    assert len(many["layout"]["xaxis"]["ticktext"]) == 13
    assert very_many["layout"]["xaxis"]["showticklabels"] is False


def test_class_without_a_name_is_shown_by_number(make_run) -> None:
    run = make_run()
    write_npz(run.samples_path, run.page_arrays() | {"confusion": np.array([[8, 0, 0, 2], *np.eye(4, dtype=int)[1:]])})
    ((_, _, worst, *_),) = build_confusion_section(build_assets(run)).template_variables["entries"]
    assert worst == ["zero predicted as 3 (20%, 2 of 10)"]
    others = {name: values for name, values in run.page_arrays().items() if not name.startswith("mistaken")}
    write_npz(run.samples_path, others | {"confusion": np.eye(2, dtype=int)})
    ((_, plot, *_),) = build_confusion_section(build_assets(run)).template_variables["entries"]
    assert plot.label == "nt-xent: no errors."


def test_lists_the_most_frequent_confusions(make_run) -> None:
    ((_, plot, worst, *_),) = build_confusion_section(build_assets(make_run())).template_variables["entries"]
    assert worst == ["zero predicted as one (20%, 2 of 10)"], "two is predicted as zero only once"
    assert worst[0] in plot.label
    assert frequent_confusion_sentences(np.eye(2, dtype=int), ["a", "b"]) == []
    assert build_confusion_section(build_assets(make_run("unlabelled", labels=False))) is None


def test_mass_that_changes_only_by_rounding_is_not_drawn(make_run) -> None:
    constant, decreasing = make_run(), make_run("unbalanced")
    for run, masses in ((constant, 1 + 1e-6 * np.arange(20)), (decreasing, 1 - 1e-2 * np.arange(20))):
        run.replace_metrics(
            row | {"plan_mass": float(mass)} for row, mass in zip(run.metrics_rows(), masses, strict=True)
        )
    drawn = [
        [title for title, *_ in build_training_curves_section(build_assets(run)).template_variables["curves"]]
        for run in (constant, decreasing)
    ]
    assert ["Mass of the plan" in titles for titles in drawn] == [False, True]


def test_lists_the_most_confident_errors(make_run) -> None:
    assets = build_assets(make_run("images"), make_run("vectors", images=False))
    (*_, views, mistaken), (*_, of_vectors) = build_confusion_section(assets).template_variables["entries"]
    assert views == ["view0"]
    assert [
        tuple(one[key] for key in ("item", "true_class", "predicted_class", "probability")) for one in mistaken
    ] == [
        (7, "zero", "one", 0.98),
        (12, "zero", "one", 0.7),
        (3, "two", "zero", 0.5),
    ]
    assert [one["key"] for one in mistaken] == ["", "", ""]
    drawn = assets.script_data["previews"]
    assert [drawn[one["previews"][0]]["is"] for one in (*mistaken, *of_vectors)] == ["image"] * 3 + ["vector"] * 3


def test_errors_are_named_by_their_keys(make_run) -> None:
    run = make_run()
    write_npz(run.samples_path, run.page_arrays() | {"mistaken_keys": np.array(["a/<1>.png", "b.png", "c.png"])})
    page = render_report(list(load_runs([run])))
    assert '<th scope="row">a/&lt;1&gt;.png</th>' in page
    assert "zero, b.png" in page


def test_plans_have_the_view_names_of_the_data(make_run) -> None:
    run, with_view_names = make_run(), make_run("given")
    write_npz(
        with_view_names.samples_path,
        with_view_names.page_arrays() | {"plan_view_names": np.array(["photo", "a<very long name"])},
    )
    assets = build_assets(run, with_view_names)
    build_plans_section(assets)
    ticks = [assets.plots[f"plan-{k}"]["layout"]["xaxis"]["ticktext"] for k in (0, 1)]
    assert ticks == [["view 1", "view 2"], ["photo", "a&lt;very long n…"]]
    assert assets.plots["plan-1"]["data"][0]["meta"]["rows"][0].startswith("photo, item 1")


def test_map_ratio_follows_the_points(make_run) -> None:
    wide, one_place = make_run("wide"), make_run("place")
    write_npz(wide.samples_path, wide.page_arrays() | {"points": np.array([[0.0, 0.0], [3.0, 2.0]] * 15)})
    write_npz(one_place.samples_path, one_place.page_arrays() | {"points": np.zeros((30, 2))})
    very, high = make_run("very"), make_run("high")
    for run, end in ((very, [9.0, 1.0]), (high, [1.0, 9.0])):
        write_npz(run.samples_path, run.page_arrays() | {"points": np.array([[0.0, 0.0], end] * 15)})
    maps = build_embedding_map_section(build_assets(wide, one_place, very, high)).template_variables["maps"]
    assert [plot.aspect_ratio for _, plot, _ in maps] == [1.5, None, 1.7, 0.8]


def test_points_have_the_color_of_their_class(make_run) -> None:
    labelled_run, labels = make_run(), np.arange(30) % 3
    write_npz(
        labelled_run.samples_path, labelled_run.page_arrays() | {"points": np.stack([labels, -2.0 * labels], axis=1)}
    )
    assets = build_assets(labelled_run)
    values = build_embedding_map_section(assets).template_variables
    (*of_classes, ring), colors = assets.plots["map-0"]["data"], class_colors(3)
    assert ring["x"] == ring["y"] == []
    for label, trace in enumerate(of_classes):
        assert (trace["meta"], trace["marker"]["color"]) == (label, colors[label])
        assert np.array_equal(trace["customdata"], np.flatnonzero(labels == label))
        assert (trace["x"], trace["y"]) == ([label] * 10, [-2 * label] * 10)
    names = assets.plots["map-0"]["layout"]["annotations"]
    assert [(one["text"], one["x"], one["y"]) for one in names] == [("zero", 0, 0), ("one", 1, -2), ("two", 2, -4)]
    assert values["legends"] == [("digits", list(zip(("zero", "one", "two"), colors, strict=True)))]
    single, many = make_run("single"), make_run("many", class_names=tuple(map(str, range(25))))
    one_class = {"points": np.eye(2), "labels": np.zeros(2, int), "class_names": np.array(["zero"])}
    write_npz(single.samples_path, one_class)
    assets = build_assets(single, many)
    build_embedding_map_section(assets)
    assert [assets.plots[f"map-{run}"]["layout"]["annotations"] for run in (0, 1)] == [[], []]
    assert build_embedding_map_section(build_assets(many)).template_variables["legends"] == []


def test_equally_frequent_confusions_are_sorted_by_count() -> None:
    counts = np.array([[0, 2, 0], [0, 2, 0], [0, 7, 0]])
    assert frequent_confusion_sentences(counts, ["a", "b", "c"]) == [
        "c predicted as b (100%, 7 of 7)",
        "a predicted as b (100%, 2 of 2)",
    ]
    assert frequent_confusion_sentences(np.array([[3, 1], [0, 4]]), ["a", "b"]) == ["a predicted as b (25%, 1 of 4)"]


def test_neighbors_lead_depends_on_the_classes(make_run) -> None:
    text = "Test items of different classes, each with its nearest neighbors."
    assert text in render_report(load_runs([make_run("three")]))
    one = make_run("one")
    write_npz(one.samples_path, one.page_arrays() | {"labels": np.zeros(30, int)})
    assert text not in render_report(load_runs([one]))
    assert text not in render_report(load_runs([make_run("none", labels=False)]))


def test_differences_show_only_percentages(make_run) -> None:
    one, two = make_run("one"), make_run("two")
    for run, other in ((one, two), (two, one)):
        evaluation = run.evaluation()
        for key in ("knn", "nmi", "ari"):
            evaluation["rows"]["trained"][key] = 0.5
        gain = {"value": 0.0, "low": -0.0004, "high": 0.1}
        evaluation["differences"][str(other.path)] = dict.fromkeys(("knn", "nmi", "ari"), gain)
        write_json(run.evaluation_path, evaluation)
    ((_, plot),) = build_results_section(build_assets(one, two)).template_variables["differences"]
    assert plot.label == "Differences from one on digits: kNN, two: 0.0 points (0.0 to 10.0)."


def test_plan_caption_names_the_epoch_if_several(make_run) -> None:
    assert "After epoch 4: 10.0% of the mass is dropped on this test batch." in render_report(
        load_runs([make_run("kept", num_intermediate=3)])
    )
    assert "<figcaption>10.0% of the mass is dropped on this test batch." in render_report(load_runs([make_run("end")]))


def test_many_classes_have_a_list_instead_of_a_matrix(make_run) -> None:
    run = make_run(class_names=tuple(f"class {k}" for k in range(200)))
    counts = np.diag(np.full(200, 9)) + np.roll(np.eye(200, dtype=int), 1, axis=1)
    write_npz(run.samples_path, run.page_arrays() | {"confusion": counts})
    ((_, plot, worst, *_),) = build_confusion_section(build_assets(run)).template_variables["entries"]
    assert plot is None
    assert len(worst) == 12
    assert worst[0] == "class 0 predicted as class 1 (10%, 1 of 10)"
    assert "class 0 predicted as class 1" in render_report(load_runs([run]))


def test_cosines_are_averaged_within_and_between_classes(make_run) -> None:
    run = make_run()
    labels = np.array([0, 0, 1])
    cosines = np.array([[1.0, 0.8, 0.1], [0.8, 1.0, 0.3], [0.1, 0.3, 1.0]])
    write_npz(run.samples_path, run.page_arrays() | {"cosines": cosines, "cosine_labels": labels})
    (one,) = build_geometry_section(build_assets(run)).template_variables["cosines"]
    assert (one["within"], one["between"]) == (pytest.approx(0.8), pytest.approx(0.2))


def test_cosines_share_a_scale_and_name_their_classes(make_run) -> None:
    low, even = make_run("low"), make_run("even")
    cosines = np.full((6, 6), -0.85)
    np.fill_diagonal(cosines, 1)
    cosines[0, 1] = -0.99
    write_npz(low.samples_path, low.page_arrays() | {"cosines": cosines, "cosine_labels": np.array([0, 0, 1, 2, 2, 2])})
    write_npz(even.samples_path, even.page_arrays() | {"cosines": np.ones((30, 30))})
    assets = build_assets(low, even)
    assert build_geometry_section(assets).template_variables["lowest"] == pytest.approx(-1.0)
    assert build_geometry_section(build_assets(even)).template_variables["lowest"] == 0.9
    drawn = draw_item_cosine_heatmap(cosines, np.array([0, 0, 1, 2, 2, 2]), ["zero", "one", "two"], -0.9)
    letters = base64.b64decode(drawn["data"][0]["z"]["bytes"])
    assert [letters[place] for place in (0, 1, 2)] == [255, 0, 6], "expected the lowest color below the scale"
    y = drawn["layout"]["yaxis"]
    assert (y["ticktext"], y["tickvals"], y["autorange"]) == (["zero", "one", "two"], [0.5, 2, 4], "reversed")
    many = draw_item_cosine_heatmap(np.eye(25), np.arange(25), [str(label) for label in range(25)], 0.0)
    assert "ticktext" not in many["layout"]["yaxis"]


def test_alignment_path_starts_open_and_ends_large(make_run) -> None:
    run = make_run()
    write_npz(run.samples_path, run.page_arrays() | {"spectrum": np.array([4.0, 4.0, 1e-9])})
    assets = build_assets(run)
    values = build_geometry_section(assets).template_variables
    (path,) = assets.plots["sphere"]["data"]
    assert (path["x"], path["y"]) == ([-2.0, -3.0], pytest.approx([0.2, 0.1]))
    assert (path["marker"]["symbol"], path["marker"]["size"]) == (["circle-open", "circle"], [6, 11])
    assert values["sphere"].label.endswith("nt-xent: uniformity -3.00, alignment 0.10.")
    assert values["spectrum"].label == "Singular values. nt-xent: effective rank 2.0 of 3."
    assert assets.plots["spectrum"]["data"][0]["x"] == [1, 2], (
        "expected no singular values at the level of rounding errors"
    )
    evaluation = run.evaluation()
    evaluation["rows"] = {"trained": evaluation["rows"]["trained"]}
    write_json(run.evaluation_path, evaluation)
    assert build_geometry_section(build_assets(run)).template_variables["sphere"] is None, (
        "expected no path of a single point"
    )


def test_robustness_starts_at_clean_images(make_run) -> None:
    assets = build_assets(make_run())
    result = build_robustness_section(assets)
    assert [name for name, _ in result.template_variables["curves"]] == ["Noise", "Blur"]
    *beside, own = assets.plots["robust-noise"]["data"]
    assert own["x"] == [0, 1, 5]
    assert [(one["name"], one["x"]) for one in beside] == [("raw inputs", [0]), ("the untrained encoder", [0])]
    assert "noise@1" not in [measure.key for measure in build_results_section(assets).template_variables["metrics"]]
    assert assets.plots["robust-noise"]["layout"]["yaxis"]["range"] == [pytest.approx(0.35), 1.0]
    assert result.template_variables["curves"][0][1].label.endswith("at severity 5: nt-xent 40.0%.")


def test_robustness_shows_baselines_shared_by_all_runs(make_run) -> None:
    one, other = make_run("one"), make_run("other")
    evaluation = other.evaluation()
    evaluation["rows"]["untrained"]["linear_probe"] = 0.5  # baseline of another encoder
    write_json(other.evaluation_path, evaluation)
    assert build_robustness_section(build_assets(one, other)).template_variables["baselines"] == ["raw inputs (dotted)"]
    on_other_data = make_run("elsewhere", data="other")
    assert build_robustness_section(build_assets(one, on_other_data)).template_variables["baselines"] == []
    page = render_report(list(load_runs([one, other])))
    assert "Gray: raw inputs (dotted)." in page


def test_differences_are_in_points_with_their_intervals(make_run) -> None:
    one, two = make_run("one"), make_run("two")
    evaluation = two.evaluation()
    evaluation["rows"]["trained"]["knn"] += 0.012
    evaluation["differences"][str(one.path)] = {"knn": {"value": 0.012, "low": 0.004, "high": 0.02}}
    write_json(two.evaluation_path, evaluation)
    assets = build_assets(one, two)
    ((first, plot),) = build_results_section(assets).template_variables["differences"]
    assert first.name == "one"
    assert "kNN, two: 1.2 points (0.4 to 2.0)" in plot.label
    (trace,) = assets.plots[plot.element_id]["data"]
    assert (trace["x"], trace["error_x"]["arrayminus"]) == ([pytest.approx(1.2)], [pytest.approx(0.8)])


def test_differences_of_several_runs_are_shifted(make_run) -> None:
    runs = [make_run(f"run {place}", data="digits" if place < 3 else "others") for place in range(5)]
    for place, base, ends in ((1, 0, (0.012, 0.002, 0.02)), (2, 0, (-0.01, -0.03, -0.002)), (4, 3, (0.0, -0.1, 0.1))):
        evaluation = runs[place].evaluation()
        evaluation["rows"]["trained"]["knn"] += ends[0]
        evaluation["differences"][str(runs[base].path)] = {
            "knn": dict(zip(("value", "low", "high"), ends, strict=True))
        }
        write_json(runs[place].evaluation_path, evaluation)
    assets = build_assets(*runs)
    assert [key for key, _ in build_results_section(assets).template_variables["differing"]] == ["data"]
    result = build_results_section(assets).template_variables["differences"]
    assert [(first.name, plot.element_id) for first, plot in result] == [
        ("run 0", "differences-0"),
        ("run 3", "differences-3"),
    ]
    drawn = assets.plots["differences-0"]
    assert [trace["y"] for trace in drawn["data"]] == [[pytest.approx(-0.18)], [pytest.approx(0.18)]]
    reach = [(trace["error_x"]["array"], trace["error_x"]["arrayminus"]) for trace in drawn["data"]]
    assert reach == [(pytest.approx([0.8]), pytest.approx([1.0])), (pytest.approx([0.8]), pytest.approx([2.0]))]
    assert drawn["layout"]["yaxis"]["range"] == [0.5, -0.5], "expected the first metric at the top"


def test_audit_shows_rate_and_lowest_pairs(make_run) -> None:
    assets = build_assets(make_run(audited=True))
    (one,) = build_pair_audit_section(assets).template_variables["audits"]
    assert (one["rate"], one["low"], one["high"]) == (0.1, 0.05, 0.15)
    assert [pair["index"] for pair in one["lowest_pairs"]] == list(range(10))
    assert one["lowest_pairs"][0]["better_partner"] == 7
    assert one["lowest_pairs"][9]["better_partner"] is None
    assert one["view_names"] == ["image", "text"]
    drawn = [assets.script_data["previews"][place] for place in one["lowest_pairs"][3]["previews"]]
    assert [view["is"] for view in drawn] == ["image", "text", "text"]
    assert drawn[1]["text"] == "<b>pair 3"
    result = assets.runs[0].online_audit_arrays
    assert [pair["fdr"] for pair in one["lowest_pairs"]] == pytest.approx(
        estimate_pair_fdrs(result["scores"], result["mismatched"], 0.1)[:10]
    )
    bars = assets.plots["scores-0"]["data"]
    assert [sum(values["y"]) for values in bars] == pytest.approx([1, 1], abs=1e-3)
    run = make_run("first", audited=True)
    run.save_arrays(run.pairs_path, run.pair_scores() | {"partners": np.full(60, 0)})
    ((first,),) = [build_pair_audit_section(build_assets(run)).template_variables["audits"]]
    assert first["lowest_pairs"][0]["better_partner"] == 0
    assert build_pair_audit_section(build_assets(make_run("plain"))) is None


def test_pairs_without_stored_previews_are_shown_by_index(make_run) -> None:
    run = make_run(audited=True)
    write_npz(run.samples_path, run.page_arrays() | {"worst": np.arange(10)[::-1]})
    assets = build_assets(run)
    (one,) = build_pair_audit_section(assets).template_variables["audits"]
    assert one["lowest_pairs"][0]["previews"] is None
    assert "previews" not in assets.script_data


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_nonfinite_losses_do_not_color_points(make_run, wrong) -> None:
    run = make_run()
    samples = run.page_arrays()
    write_npz(run.samples_path, {**samples, "losses": np.where(np.arange(30) == 3, wrong, samples["losses"])})
    assert 'value="loss"' not in render_report(load_runs([run]))
    write_npz(run.samples_path, samples)
    assert 'value="loss"' in render_report(load_runs([run]))
