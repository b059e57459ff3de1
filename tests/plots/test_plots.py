"""Figures of tensors, arrays and runs, and errors for invalid input."""

from __future__ import annotations

import io
import subprocess
import sys

import numpy as np
import pytest
import torch
from matplotlib import pyplot
from matplotlib.text import Text
from tests import TIMEOUT
from tests.errors import raises_usage_error

import contraport
from contraport import plots
from contraport._utils.files import write_npz
from contraport.errors import UsageError
from contraport.plots.feature_plots import class_name_positions
from contraport.runs import WritableRun


def make_run(tmp_path, name="one", metrics=True, **samples):
    run = WritableRun.create(tmp_path / name, {"data": "digits", "objective": "nt-xent", "epochs": 2})
    if metrics:
        run.replace_metrics({"step": k, "loss": 3 / (k + 1), "lr": 0.1} for k in range(5))
    if samples:
        write_npz(run.samples_path, samples)
    return run


@pytest.mark.parametrize("kind", [torch.tensor, np.array, list])
def test_plan_is_drawn_on_a_log_scale(kind):
    plan, target = [[0.4, 0.1], [0.001, 0.499]], [[0.5, 0.0], [0.0, 0.5]]
    figure = plots.plan(kind(plan), kind(target))
    left, right = figure.axes[:2]
    np.testing.assert_allclose(left.images[0].get_array(), np.log10(plan), rtol=1e-5)
    assert left.get_title() == "plan: 90% of its mass on target"
    assert left.images[0].get_clim() == right.images[0].get_clim() == pytest.approx((-3, np.log10(0.5)))


def test_self_pairs_are_masked_only_if_excluded():
    z = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0))
    joint = contraport.nt_xent().plot(*z).axes[0].images[0].get_array()
    assert np.array_equal(np.ma.getmaskarray(joint), np.eye(8, dtype=bool))
    assert not np.ma.getmaskarray(contraport.info_nce().plot(*z).axes[0].images[0].get_array()).any()


def test_objective_plots_its_plan_beside_its_target():
    z, labels = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 0, 1, 1])
    loss = contraport.sup_con()
    figure = loss.plot(*z, labels=labels)
    plan, target = loss.plan(*z, labels=labels), loss.target_plan(*z, labels=labels)
    assert f"{plan[target > 0].sum() / plan.sum():.0%}" in figure.axes[0].get_title()
    total = contraport.align_uniform()
    assert total.plot(*z).axes[1].get_title() == "target"


def test_embedding_draws_principal_components():
    from sklearn.decomposition import PCA

    features = np.random.default_rng(0).normal(size=(30, 5)) * [5, 3, 1, 1, 1]
    figure = plots.embedding(features)
    drawn = figure.axes[0].collections[0].get_offsets()
    expected = PCA(2).fit_transform(features)
    np.testing.assert_allclose(np.abs(drawn), np.abs(expected), atol=1e-8)
    plane = plots.embedding(features[:, :2]).axes[0].collections[0].get_offsets()
    np.testing.assert_allclose(plane, features[:, :2])


def test_class_names_are_placed_in_the_densest_region():
    features = torch.tensor([[0.0, 9.0], [1.0, 0.0], [1.0, 0.1], [5.0, 5.0]])
    (first, second) = plots.embedding(features, ["x", "x", "x", "y"]).axes[0].texts
    assert (first.get_text(), first.get_position()) == ("x", (1.0, 0.0))
    assert (second.get_text(), second.get_position()) == ("y", (5.0, 5.0))


def test_class_names_do_not_overlap():
    random = np.random.default_rng(0)
    middles = np.repeat([[0.0, 0.0], [0.0, 0.5], [20.0, 20.0]], 50, axis=0)
    labels = np.repeat([0, 1, 2], 50)
    points = np.concatenate([random.normal(size=(150, 2)) * 0.3 + middles, [[-20.0, 20.0]] * 2])
    labels = np.concatenate([labels, [2, 2]])  # mean and median of the third class are elsewhere
    places = class_name_positions(points, labels)
    assert np.linalg.norm(places[2] - 20.0) < 1.5
    assert abs(places[0][1] - places[1][1]) < 4, "expected overlapping names, as all points are close"
    more = np.concatenate([points, [[0.0, 8.0]]])
    assert class_name_positions(more, np.concatenate([labels, [1]]))[1].tolist() == [0.0, 8.0], (
        "expected the free position"
    )


def test_spectrum_draws_the_singular_values():
    features = np.random.default_rng(0).normal(size=(20, 4))
    values = np.linalg.svd(features - features.mean(0), compute_uv=False)
    (line,) = plots.spectrum(features).axes[0].get_lines()
    np.testing.assert_allclose(line.get_ydata(), values / values[0], rtol=1e-6)
    shares = values / values.sum()
    assert line.get_label() == f"effective rank {np.exp(-(shares * np.log(shares)).sum()):.1f}"


def test_neighbors_are_nearest_and_framed_by_class():
    angles = torch.tensor([0.0, 0.1, 0.25, 3.0])
    features, images = torch.stack([angles.cos(), angles.sin()], 1), torch.arange(4.0)[:, None, None].expand(4, 2, 2)
    figure = plots.nearest_items(features, images, [0, 0, 1, 1], queries=[0], count=3)
    (ax,) = figure.axes
    assert [int(image.get_array()[0, 0]) for image in ax.images] == [0, 1, 2, 3]
    assert [frame.get_linestyle() for frame in ax.patches] == ["-", "--", "--"]
    assert ax.get_title("left") == "item and its nearest neighbors; dashed: another class"
    unlabeled = plots.nearest_items(features, images, queries=[0], count=3).axes[0]
    assert unlabeled.get_title("left") == "item and its nearest neighbors"


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.uint8])
def test_pictures_above_one_keep_their_brightness(channels, dtype):
    values = torch.tensor([0, 51, 102, 255]).to(dtype)[:, None, None, None].expand(4, channels, 2, 2)
    figure = plots.nearest_items(torch.eye(4) + 1, values, queries=4, count=1)
    shades = {}
    for picture in figure.axes[0].images:
        low, high = picture.get_clim() if channels == 1 else (0, 1)
        shades[round((float(np.asarray(picture.get_array()).flat[0]) - low) / (high - low), 3)] = True
    assert {0.0, 0.2, 0.4, 1.0} == set(shades)


def test_names_with_an_underscore_are_in_the_legend():
    for figure in (plots.curves({"_a": [1.0], "b": [2.0]}), plots.spectrum({"_a": torch.eye(4), "b": torch.eye(4)})):
        texts = [text.get_text().strip().partition(":")[0] for text in figure.legends[0].get_texts()]
        assert texts == ["_a", "b"]


def test_diverged_curve_is_drawn():
    (line,) = plots.curves({"a": [1.0, float("nan"), float("inf")]}).axes[0].get_lines()
    np.testing.assert_array_equal(line.get_ydata(), [1.0, np.nan, np.inf])


def test_barycentric_maps_have_arrows_to_the_mean_of_the_columns():
    plan = np.array([[0.2, 0.2, 0.0], [0.0, 0.0, 0.6]])
    (ax,) = plots.barycentric_maps_1d(plan, x=[0.0, 1.0], y=[0.0, 2.0, 5.0]).axes
    assert [text.xy for text in ax.texts] == [(1.0, 1), (5.0, 1)]
    assert [line.get_xdata()[1] - line.get_xdata()[0] for line in ax.lines] == [
        2.0,
        0.0,
    ]  # the width is twice the deviation
    assert len(plots.barycentric_maps_1d(np.eye(100)).axes[0].texts) == 24


@pytest.mark.parametrize(("common_scale", "largest"), [(False, [1.0, 0.5]), (True, [1.0, 1.0])])
def test_couplings_share_a_color_scale_on_request(common_scale, largest):
    figure = plots.couplings({"one": [[1.0, 0.0]], "other": [[0.25, 0.0]]}, common_scale=common_scale)
    assert [ax.images[0].get_clim()[1] for ax in figure.axes] == largest


def test_couplings_draw_marginals_along_the_edges():
    plan = np.array([[0.1, 0.2, 0.0], [0.0, 0.3, 0.4]])
    figure = plots.couplings(plan, a=[0.3, 0.7], b=[0.2, 0.4, 0.4])
    top, left = figure.axes[0].child_axes
    assert top.collections[0].get_paths()[0].vertices[:, 1].max() == pytest.approx(0.5)
    assert left.collections[0].get_paths()[0].vertices[:, 0].max() == pytest.approx(0.7)
    np.testing.assert_allclose(top.get_lines()[0].get_ydata(), [0.2, 0.4, 0.4])
    np.testing.assert_allclose(left.get_lines()[0].get_xdata(), [0.3, 0.3, 0.7, 0.7])


def test_figures_of_run_folders(tmp_path):
    points = np.random.default_rng(0).normal(size=(9, 2))
    samples = {
        "points": points, "projection": np.array("t-SNE"), "labels": np.arange(9) % 3, "spectrum": np.array([4.0, 1.0]),
        "class_names": np.array(["a", "b", "c"]), "neighbors": np.arange(9)[:, None] * 0 + np.arange(4),
        "thumbnails": np.zeros((9, 1, 3, 3), np.uint8), "plan": np.eye(4) / 4, "target": np.eye(4) / 4,
        "plan_items": np.array(2),
    }  # fmt: skip
    run, other = make_run(tmp_path, **samples), make_run(tmp_path, "two", **samples)
    ax = plots.embedding(run).axes[0]
    assert [text.get_text() for text in ax.texts] == ["a", "b", "c"]
    assert ax.get_xlabel() == "t-SNE"
    assert plots.plan(run.path).axes[0].get_title() == "plan: 100% of its mass on target"
    labels = [line.get_label() for line in plots.spectrum([run, str(other.path)]).axes[0].get_lines()]
    assert [label.split(":")[0] for label in labels] == ["one", "two"]
    assert len(plots.nearest_items(run, count=4, queries=2).axes[0].images) == 10
    loss, rate = plots.curves({"a": run, "b": other}, ["loss", "lr"]).axes
    np.testing.assert_allclose(loss.get_lines()[1].get_ydata(), 3 / np.arange(1, 6))
    assert [loss.get_title(), rate.get_title()] == ["Loss", "Learning rate"]


def test_curves_format_shares_in_percent_and_use_titles():
    rows = [{"step": step, "knn": 0.5 + step / 100, "data_wait": 0.002 * step, "mine": 0.5} for step in range(4)]
    axes = plots.curves({"a": rows}, ["knn", "data_wait", "mine"]).axes
    assert [ax.get_title() for ax in axes] == ["kNN", "Share of time waiting for data", "mine"]
    written = [ax.yaxis.get_major_formatter()(0.525, None) for ax in axes]
    assert written[:2] == ["52.5%", "52.5%"]
    assert "%" not in written[2]


def test_evaluation_samples_hold_spectrum_and_neighbors():
    from contraport.data.array_datasets import from_arrays
    from contraport.evaluation.report_arrays import collect_feature_plot_arrays

    features = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    arrays = collect_feature_plot_arrays(from_arrays(features), features, torch.arange(40))
    np.testing.assert_allclose(
        arrays["spectrum"], np.linalg.svd(features - features.mean(0), compute_uv=False), rtol=1e-4
    )
    cosines = torch.nn.functional.normalize(features) @ torch.nn.functional.normalize(features).T
    expected = cosines.fill_diagonal_(-2).argmax(1)
    assert arrays["neighbors"][:, 0].tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda: plots.plan(torch.ones(3)), "plan.shape"),
        (lambda: plots.plan([[1.0]], [[1.0, 2.0]]), "target.shape"),
        (lambda: plots.plan([[-1.0]]), "plan.negative"),
        (lambda: plots.plan([[0.0]]), "plan.empty"),
        (lambda: plots.plan([[float("nan")]]), "plan.not_finite"),
        (lambda: plots.plan([["x"]]), "plan.invalid"),
        (lambda: plots.embedding([[1.0], [2.0]]), "features.shape"),
        (lambda: plots.embedding([[1.0, 2.0]], [0, 1]), "labels.shape"),
        (lambda: plots.embedding([[1.0, 2.0]], [float("nan")]), "labels.not_finite"),
        (lambda: plots.embedding([[1.0, 2.0]], [0], class_names=["a", "b"]), "class_names.shape"),
        (lambda: plots.spectrum([[1.0, 2.0]]), "features.shape"),
        (lambda: plots.spectrum(torch.ones(3, 2)), "features.constant"),
        (lambda: plots.curves({"a": [1.0]}, ["lr", "loss"]), "runs.invalid"),
        (lambda: plots.curves({"a": [{"step": 1, "x": 2}]}), "keys.unknown"),
        (lambda: plots.curves([], "loss"), "runs.shape"),
        (lambda: plots.curves({"a": [1.0]}, []), "keys.missing"),
        (lambda: plots.nearest_items(torch.eye(3), torch.eye(3), count=3), "count.invalid"),
        (lambda: plots.nearest_items(torch.eye(3), count=1), "items.missing"),
        (lambda: plots.nearest_items(torch.eye(3), torch.eye(2), count=1), "items.shape"),
        (lambda: plots.nearest_items(torch.eye(3), torch.eye(3), queries=[3], count=1), "queries.invalid"),
        (lambda: plots.couplings({}), "plans.missing"),
        (lambda: plots.barycentric_maps_1d({}), "plans.missing"),
        (lambda: plots.barycentric_maps_1d([[1.0]], y=[1.0, 2.0]), "y.shape"),
        (lambda: plots.barycentric_maps_1d([[-1.0]]), "plans.negative"),
        (lambda: plots.couplings([[1.0]], a=[1.0, 2.0]), "a.shape"),
        (lambda: plots.couplings([[1.0]], b=[-1.0]), "b.negative"),
        (lambda: plots.couplings([[1.0]], common_scale=np.ones(2)), "common_scale.invalid"),
        (lambda: plots.plan(np.ones((2, 2)) * 1j), "plan.invalid"),
        (lambda: plots.plan(torch.ones(2, 2, device="meta")), "plan.invalid"),
        (lambda: plots.plan([[1.0]], width=0.0), "width.invalid"),
        (lambda: plots.curves([1.0], width=float("nan")), "width.invalid"),
        (lambda: plots.curves([1.0], 3), "keys.type"),
        (lambda: plots.curves([1.0], [3]), "keys.type"),
        (lambda: plots.spectrum(torch.eye(3), width="wide"), "width.invalid"),
        (lambda: plots.spectrum(torch.eye(3).double() * 1e200), "features.not_finite"),
        (lambda: plots.embedding(torch.eye(3), torch.ones(3).bfloat16()), "labels.invalid"),
        (lambda: plots.embedding(torch.eye(3), [0, 1, 2], class_names=3), "class_names.type"),
        (lambda: plots.nearest_items(torch.eye(3), torch.eye(3), count="2"), "count.invalid"),
        (lambda: plots.nearest_items(torch.eye(3), torch.eye(3), count=1.5), "count.invalid"),
        (lambda: plots.nearest_items(torch.eye(3), torch.eye(3), queries=1, count=1, width=1e9), "width.invalid"),
        (lambda: plots.nearest_items(torch.eye(3), torch.eye(3), queries=1.5, count=1), "queries.type"),
        (lambda: plots.nearest_items(torch.eye(3), torch.eye(3), queries=[0.5], count=1), "queries.invalid"),
        (lambda: plots.nearest_items(torch.eye(3), torch.eye(3) * float("nan"), count=1), "items.not_numbers"),
        (lambda: plots.nearest_items(torch.eye(3), [["a"], ["b"], ["c"]], count=1), "items.not_numbers"),
    ],
)
def test_rejects_invalid_arguments(call, code):
    with raises_usage_error(code):
        call()


def test_rejects_incomplete_runs(tmp_path):
    run = make_run(tmp_path, metrics=False, points=np.zeros((2, 2)), neighbors=np.zeros((2, 1), int))
    with raises_usage_error("run.missing", "'spectrum'", "evaluate the run again"):
        plots.spectrum(run)
    with raises_usage_error("run.no_images"):
        plots.nearest_items(run)
    with raises_usage_error("target.conflict"):
        plots.plan(run, [[1.0]])
    for file, call in (
        ("metrics.jsonl", lambda: plots.curves(run)),
        ("samples.npz", lambda: plots.plan(make_run(tmp_path, "bare"))),
        ("abc, no folder", lambda: plots.plan("abc, no folder")),
    ):
        with pytest.raises(UsageError) as caught:
            call()
        assert caught.value.argument == "run"
        assert file in str(caught.value)


def test_missing_matplotlib_names_the_extra():
    code = """
import sys
sys.modules["matplotlib"] = None
import torch, contraport
for call in (lambda: contraport.plots.plan([[1.0]]), lambda: contraport.info_nce().plot(torch.eye(2), torch.eye(2))):
    try:
        call()
    except contraport.UsageError as error:
        print(error)
"""
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT)
    message = "A figure needs the package 'matplotlib': pip install 'contraport[report]'."
    assert completed.stdout.splitlines() == [message, message], completed.stderr


def test_narrow_figure_stacks_its_panels():
    plan = np.eye(3) / 3
    wide, narrow = plots.plan(plan, plan), plots.plan(plan, plan, width=3.9)
    assert wide.axes[0].get_position().y0 == pytest.approx(wide.axes[1].get_position().y0)
    assert narrow.axes[0].get_position().y0 > narrow.axes[1].get_position().y1
    assert narrow.get_size_inches()[0] == 3.9


def test_figures_follow_the_matplotlib_style_and_leave_pyplot_alone():
    before = pyplot.get_fignums()
    with pyplot.style.context("dark_background"):
        dark = plots.plan(np.eye(3) / 3).axes[0].images[0]
    light = plots.plan(np.eye(3) / 3).axes[0].images[0]
    assert sum(light.cmap(0.0)[:3]) > 2.5 > 0.5 > sum(dark.cmap(0.0)[:3])
    assert pyplot.get_fignums() == before


def test_notebook_displays_a_png():
    assert plots.plan(np.eye(3) / 3)._repr_png_().startswith(b"\x89PNG")


def test_objective_html_repr_lists_the_five_questions():
    html = contraport.gca_ince(iterations=3)._repr_html_()
    assert html.count("<tr>") == 6
    assert "<caption" in html
    assert "Balanced(iterations=3)" in html
    assert "Your contrastive learning problem" in html
    joined = contraport.objectives.SumLoss({contraport.nt_xent(): 1.0})._repr_html_()
    assert "1. Which pairs are compared?" in joined


def test_run_html_repr_lists_settings_and_last_metrics(tmp_path):
    html = make_run(tmp_path, "<b>")._repr_html_()
    assert "<b>" not in html
    assert "objective</th>" in html
    assert "nt-xent</td>" in html
    assert "last loss</th>" in html
    assert ">0.6</td>" in html
    assert "weight_decay" not in html  # a default value
    changed = WritableRun.create(tmp_path / "changed", {"data": "x", "weight_decay": 0.5})._repr_html_()
    assert "weight_decay</th>" in changed
    assert "o metrics yet" in make_run(tmp_path, "new", metrics=False)._repr_html_()
    assert str(tmp_path / "none") in WritableRun(tmp_path / "none")._repr_html_()


def test_names_with_dollars_are_not_formulas() -> None:
    name = "$x^{$"
    for figure in (
        plots.curves({name: [1.0, 2.0]}),
        plots.spectrum({name: torch.eye(4)}),
        plots.embedding(torch.randn(6, 2), torch.arange(6) % 2, class_names=[name, "b"]),
        plots.couplings({name: torch.eye(3)}),
    ):
        figure.savefig(io.BytesIO())
        assert any("$x^{$" in text.get_text().replace("\\$", "$") for text in figure.findobj(Text))
