import base64
import io
import json
import math

import numpy as np
import pytest
from PIL import Image

from contraport.files import write_arrays
from contraport.plots.curves import POINTS_PER_LINE
from contraport.plots.masses import DECADES, Scale
from contraport.reporting import figures
from contraport.reporting.shown import shown


def test_a_plan_and_its_target_share_one_scale_and_leave_self_pairs_out(make_run) -> None:
    (run,) = shown([make_run()])
    scale = figures.plan_scale([run])
    pair = figures.plan_figures(run, scale)
    plan, target = pair.plan.data[0], pair.target.data[0]
    assert (plan.zmin, plan.zmax) == (target.zmin, target.zmax) == (scale.low, scale.high)
    assert scale.high - scale.low <= DECADES
    assert np.isnan(np.diag(plan.z)).all()
    assert np.isfinite(plan.z[~np.eye(12, dtype=bool)]).all()
    assert pair.excludes_self
    assert pair.plan_mass == pytest.approx(0.9, abs=1e-5)
    assert pair.target_mass == pytest.approx(1)
    assert 0 < pair.on_target < 1
    assert plan.meta["rows"][7] == "view 2, item 2 (zero)"


def test_a_cross_plan_has_no_excluded_pairs(make_run) -> None:
    made = make_run()
    samples = made.samples()
    plan = np.full((6, 6), 1 / 36)
    write_arrays(made.samples_path, samples | {"plan": plan, "target": np.eye(6) / 6})
    (run,) = shown([made])
    pair = figures.plan_figures(run, figures.plan_scale([run]))
    assert not pair.excludes_self
    assert pair.plan.data[0].meta["rows"][2] == "view 1, item 3 (one)"
    assert pair.plan.data[0].meta["columns"][2] == "view 2, item 3 (one)"


def test_ticks_of_the_scale_are_the_powers_on_it() -> None:
    assert Scale(-3.5, -1.5).ticks == [(-3, 0.25), (-2, 0.75)]
    assert Scale(-2.0, -2.0).ticks == [(-2, 0.0)]


def test_a_sprite_holds_every_thumbnail_in_its_place() -> None:
    thumbnails = np.random.default_rng(0).integers(0, 255, (7, 3, 4, 5), dtype=np.uint8)
    key, sheet = figures.sprite(thumbnails)
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(sheet.uri.split(",")[1]))))
    for item in range(7):
        top, left = item // sheet.columns * 4, item % sheet.columns * 5
        assert np.array_equal(pixels[top : top + 4, left : left + 5], thumbnails[item].transpose(1, 2, 0))
    assert key == figures.sprite(thumbnails)[0]
    assert key != figures.sprite(thumbnails[::-1])[0]


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_other_channels_are_shown_as_their_mean(channels: int) -> None:
    thumbnails = np.full((1, channels, 2, 2), 10, dtype=np.uint8)
    _, sheet = figures.sprite(thumbnails)
    image = Image.open(io.BytesIO(base64.b64decode(sheet.uri.split(",")[1])))
    assert image.mode == "L"
    assert np.asarray(image).tolist() == [[10, 10], [10, 10]]


def test_long_curves_are_thinned_and_diverged_ones_still_drawn(make_run) -> None:
    made = make_run()
    rows = [{"step": step, "loss": math.nan if step == 2_000 else 1.0} for step in range(2_500)]
    made.write_metrics(rows)
    figure = figures.curve(shown([made]), "loss")
    assert len(figure.data[0].x) <= POINTS_PER_LINE
    assert json.loads(figures.to_json(figure))


def test_json_cannot_end_a_script(make_run) -> None:
    figure = figures.curve(shown([make_run("x</script>")]), "loss")
    assert "<" not in figures.to_json(figure)
