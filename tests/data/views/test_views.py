import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.errors import raises_usage_error
from tests.processes import run_in_processes

from contraport.catalog.data_option_parsers import AUGMENT_NAMES
from contraport.data import LocalBatchOffset, Views, from_arrays, load
from contraport.data.views.image_views import split_lightness_and_color
from contraport.data.views.numeric_views import DEFAULT_MAX_MIXUP_WEIGHT, DEFAULT_NOISE_STD

STRENGTHS = ("weak", "standard", "strong")


def images(channels=3, side=12, count=16, *, flips=True):
    pixels = np.random.default_rng(0).integers(0, 256, (count, channels, side, side + 1), dtype=np.uint8)
    return from_arrays(pixels, flips=flips)


def vectors(features=5, count=16):
    return from_arrays(np.random.default_rng(0).normal(3, 2, (count, features)))


def series(channels=4, length=30, count=16):
    return from_arrays(np.random.default_rng(0).normal(3, 2, (count, channels, length)).astype(np.float32))


def several():
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (16, 1, 8, 9), dtype=np.uint8)
    return from_arrays((pixels, rng.normal(size=(16, 7)), rng.normal(size=(16, 2, 20)).astype(np.float32)))


def fetch_all(dataset):
    return dataset.__getitems__(list(range(len(dataset)))).views


def make_views(views, batch, seed=0, offset=None):
    torch.manual_seed(seed)
    return views(batch, offset)


KINDS = {
    "grey": lambda: images(1, 28),
    "two channels": lambda: images(2),
    "color": images,
    "four channels": lambda: images(4, 20),
    "large grey": lambda: images(1, 48),
    "large color": lambda: images(3, 40),
    "one pixel": lambda: from_arrays(np.full((16, 1, 1, 1), 7, np.uint8)),
    "vectors": vectors,
    "series": series,
    "several": several,
}


@pytest.mark.parametrize("augment", AUGMENT_NAMES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_change_keeps_shape_and_type(kind, augment):
    dataset = KINDS[kind]()
    views = Views(dataset, augment=augment)
    batch = make_views(views, fetch_all(dataset))
    assert tuple(tuple(view.shape[1:]) for view in batch) == views.shapes
    assert views.unaugmented_shapes == dataset.shapes
    for view in batch:
        assert view.dtype == torch.float32
        assert view.isfinite().all()
        if view.ndim == 4 and "noise" not in augment:
            assert 0 <= view.min() <= view.max() <= 1


@pytest.mark.parametrize("augment", AUGMENT_NAMES[1:])
@pytest.mark.parametrize("kind", ["grey", "color", "large color", "vectors", "series"])
def test_random_views_differ_from_one_another_and_from_the_item(kind, augment):
    dataset = KINDS[kind]()
    view0, view1, view2 = make_views(Views(dataset, augment=augment, views=3), fetch_all(dataset))
    plain = Views(dataset).make_unaugmented(fetch_all(dataset))[0]
    changed = [(a - b).flatten(1).abs().amax(dim=1) > 1e-3 for a, b in ((view0, view1), (view1, view2), (view0, plain))]
    assert all(which.float().mean() > 0.8 for which in changed)


@pytest.mark.parametrize("augment", STRENGTHS)
def test_a_view_is_nearer_to_its_item_than_to_another(augment):
    digits = load("digits")
    batch = digits.__getitems__(list(range(500))).views
    view = make_views(Views(digits, augment=augment), batch)[0]
    plain = Views(digits).make_unaugmented(batch)[0]
    own = torch.nn.functional.cosine_similarity(view.flatten(1), plain.flatten(1))
    others = torch.nn.functional.cosine_similarity(view.flatten(1), plain.roll(1, 0).flatten(1))
    assert (own > others).float().mean() > {"weak": 0.9, "standard": 0.85, "strong": 0.7}[augment]


@pytest.mark.parametrize("flips", [True, False])
def test_images_are_flipped_only_if_flips_are_allowed(flips):
    pixels = np.zeros((400, 40, 40), np.uint8)
    pixels[:, :, :20] = 255
    dataset = from_arrays(pixels, flips=flips)
    view = make_views(Views(dataset, augment="weak"), fetch_all(dataset))[0]
    brighter_right = view[..., 20:].mean(dim=(1, 2, 3)) > view[..., :20].mean(dim=(1, 2, 3)) + 0.05
    assert bool(brighter_right.any()) == flips


def test_strength_after_a_name_applies_to_the_change():
    dataset = vectors()
    for name in ("noise", "mixup"):
        plain, own, weaker = (
            make_views(Views(dataset, augment=augment), fetch_all(dataset))[0] - fetch_all(dataset)[0]
            for augment in (
                name,
                f"{name}:{DEFAULT_NOISE_STD if name == 'noise' else DEFAULT_MAX_MIXUP_WEIGHT}",
                f"{name}:0.01",
            )
        )
        assert torch.equal(plain, own)
        assert 0 < weaker.norm() < 0.05 * plain.norm()


# Randomness


@pytest.mark.parametrize("kind", KINDS)
def test_views_depend_on_the_torch_seed_only(kind):
    dataset = KINDS[kind]()
    first = make_views(Views(dataset, augment="strong"), fetch_all(dataset), seed=3)
    np.random.seed(0)
    second = make_views(Views(dataset, augment="strong"), fetch_all(dataset), seed=3)
    other = make_views(Views(dataset, augment="strong"), fetch_all(dataset), seed=4)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert kind == "one pixel" or not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_bytes_and_floats_of_the_same_pixels_give_the_same_views():
    dataset = images()
    views = Views(dataset)
    from_bytes, from_floats = make_views(views, fetch_all(dataset)), make_views(views, (fetch_all(dataset)[0] / 255,))
    assert all(torch.equal(a, b) for a, b in zip(from_bytes, from_floats, strict=True))


def test_inputs_are_not_modified():
    for dataset in (vectors(), series(), several()):
        batch = fetch_all(dataset)
        before = [view.clone() for view in batch]
        for augment in AUGMENT_NAMES:
            Views(dataset, augment=augment)(batch)
        assert all(torch.equal(a, b) for a, b in zip(batch, before, strict=True))


def test_no_gradient_flows_through_the_views():
    views = Views(vectors(3))
    leaf = torch.ones(4, 3, requires_grad=True)
    assert not views((leaf,))[0].requires_grad


# Several processes


@pytest.mark.parametrize("augment", ["none", *STRENGTHS, "noise"])
@pytest.mark.parametrize("kind", KINDS)
def test_views_in_several_processes_equal_those_in_one(kind, augment):
    dataset = KINDS[kind]()
    views, batch = Views(dataset, augment=augment), fetch_all(dataset)
    expected = make_views(views, batch)
    parts = [
        make_views(views, tuple(view[start:end] for view in batch), offset=LocalBatchOffset(start, 16))
        for start, end in ((0, 8), (8, 13), (13, 16))
    ]
    state = torch.get_rng_state()
    make_views(views, batch)
    assert torch.equal(state, torch.get_rng_state())
    for joined, view in zip(map(torch.cat, zip(*parts, strict=True)), expected, strict=True):
        assert torch.allclose(joined, view, rtol=0, atol=1e-6 if kind.startswith("large") else 0)  # large: blurred


@pytest.mark.parametrize("views", ["2+3", "color"])
@pytest.mark.parametrize("side", [12, 70])
def test_processes_make_the_same_crops_and_colors(views, side):
    dataset = images(3, side)
    maker, (batch,) = Views(dataset, augment="strong", views=views), fetch_all(dataset)
    expected = make_views(maker, (batch,))
    halves = [make_views(maker, (batch[start : start + 8],), offset=LocalBatchOffset(start, 16)) for start in (0, 8)]
    tolerance = 0 if side == 12 and views == "2+3" else 2e-6  # the last bit of blur and Lab depends on the batch
    for joined, view in zip(map(torch.cat, zip(*halves, strict=True)), expected, strict=True):
        assert torch.allclose(joined, view, rtol=0, atol=tolerance)


def gathered_mixup(rank, report):
    own, offset = ((slice(0, 9), LocalBatchOffset(0, 16)), (slice(9, 16), LocalBatchOffset(9, 16)))[rank]
    for dataset in (images(), vectors(), series(), several()):
        views, batch = Views(dataset, augment="mixup"), fetch_all(dataset)
        part = make_views(views, tuple(view[own] for view in batch), offset=offset)
        expected = make_views(views, batch)
        if not all(torch.equal(a, b[own]) for a, b in zip(part, expected, strict=True)):
            report((rank, dataset.shapes))


def test_mixup_takes_partners_from_all_processes():
    assert not run_in_processes(gathered_mixup, 2)


# Several views of the data


def test_paired_views_are_not_transformed_by_default():
    dataset = several()
    for augment in (None, "none"):
        views = Views(dataset, augment=augment)
        pixels, *others = make_views(views, fetch_all(dataset))
        assert torch.equal(pixels, fetch_all(dataset)[0] / 255)
        assert all(torch.equal(a, b) for a, b in zip(others, fetch_all(dataset)[1:], strict=True))


@pytest.mark.parametrize("augment", AUGMENT_NAMES[1:])
def test_chosen_transform_applies_to_every_view_by_kind(augment):
    dataset = several()
    views = Views(dataset, augment=augment)
    plain, changed = views.make_unaugmented(fetch_all(dataset)), make_views(views, fetch_all(dataset))
    assert views.shapes == views.unaugmented_shapes == ((1, 8, 9), (7,), (2, 20))
    assert all((a - b).abs().amax() > 1e-3 for a, b in zip(plain, changed, strict=True))


def test_each_view_is_transformed_in_its_own_units():
    rng = np.random.default_rng(0)
    dataset = from_arrays(tuple(rng.normal(0, scale, (2000, 2)) for scale in (1, 1000)))
    view0, view1 = (
        a - b
        for a, b in zip(make_views(Views(dataset, augment="weak"), fetch_all(dataset)), fetch_all(dataset), strict=True)
    )
    assert float(view1.std() / view0.std()) == pytest.approx(1000, rel=0.1)


# Color split and multi-crop


def test_color_split_shares_one_random_transform():
    gradient = np.linspace(0, 255, 40).astype(np.uint8)
    pixels = np.zeros((30, 3, 40, 40), np.uint8)
    pixels[:, 0], pixels[:, 1] = gradient, gradient[:, None]
    dataset = from_arrays(pixels)
    views = Views(dataset, augment="weak", views="color")
    lightness, colors = views.make_unaugmented(fetch_all(dataset))
    assert views.shapes == views.unaugmented_shapes == ((1, 40, 40), (2, 40, 40))
    assert lightness.shape == (30, 1, 40, 40)
    assert colors.shape == (30, 2, 40, 40)
    one_change = make_views(Views(dataset, augment="weak", views=1), fetch_all(dataset))[0]
    for view, expected in zip(
        make_views(views, fetch_all(dataset)), split_lightness_and_color(one_change), strict=True
    ):
        assert torch.allclose(view, expected, atol=1e-4)


@pytest.mark.parametrize("views", ["color", "colour"])
def test_color_split_is_never_grayscale(views):
    dataset = from_arrays(np.broadcast_to(np.array([200, 20, 20], np.uint8)[:, None, None], (200, 3, 40, 40)))
    _, colors = make_views(Views(dataset, views=views), fetch_all(dataset))
    assert (colors.abs().amax(dim=(1, 2, 3)) > 0.02).all()


@pytest.mark.parametrize("augment", AUGMENT_NAMES)
def test_color_split_combines_with_every_transform(augment):
    dataset = images()
    views = Views(dataset, augment=augment, views="color")
    lightness, colors = make_views(views, fetch_all(dataset))
    assert 0 <= lightness.min() <= lightness.max() <= 1.0001
    assert -1 <= colors.min() <= colors.max() <= 1


def test_multi_crop_makes_large_and_small_crops():
    dataset = images(3, 41)
    views = Views(dataset, views="multi-crop")
    assert views.shapes == ((3, 41, 42),) * 2 + ((3, 21, 21),) * 6
    assert views.unaugmented_shapes == ((3, 41, 42),)
    assert [tuple(view.shape[1:]) for view in make_views(views, fetch_all(dataset))] == list(views.shapes)
    assert Views(dataset, views="2+6").shapes == views.shapes
    assert len(Views(dataset, views="1+12").shapes) == 13


def test_small_crops_show_less_than_large_ones():
    ramp = np.broadcast_to(np.linspace(50, 200, 200).astype(np.uint8), (100, 1, 200, 200))
    dataset = from_arrays(ramp)
    large, *_, small = make_views(Views(dataset, augment="weak", views="2+2"), fetch_all(dataset))
    ranges = [float((view.amax(3) / view.amin(3).clamp(min=1e-6)).log().abs().mean()) for view in (large, small)]
    assert ranges[1] < 0.75 * ranges[0]


# Statistics and plain views


def test_statistics_are_those_of_each_plain_view():
    dataset = several()
    assert Views(dataset).compute_means_and_stds() == [dataset.mean_and_std(view) for view in range(3)]
    assert Views(images(), views="2+6").compute_means_and_stds() == [images().mean_and_std()]


def test_statistics_of_colors_are_those_of_the_plain_views():
    views = Views(images(), views="color")
    for (mean, std), plain in zip(
        views.compute_means_and_stds(), views.make_unaugmented(fetch_all(images())), strict=True
    ):
        assert mean == pytest.approx(plain.mean(dim=(0, 2, 3)).tolist(), abs=1e-4)
        assert std == pytest.approx(plain.std(dim=(0, 2, 3)).tolist(), rel=1e-3)


def test_plain_views_are_deterministic():
    dataset = images()
    state = torch.get_rng_state()
    for views in (2, "2+6"):
        (plain,) = Views(dataset, views=views).make_unaugmented(fetch_all(dataset))
        assert torch.equal(plain, fetch_all(dataset)[0] / 255)
    assert torch.equal(state, torch.get_rng_state())


@settings(deadline=None, max_examples=40)
@given(
    st.one_of(
        st.tuples(st.integers(1, 5), st.integers(1, 40), st.integers(1, 40)),
        st.tuples(st.integers(1, 5), st.integers(1, 40)),
        st.tuples(st.integers(1, 40)),
    ),
    st.integers(1, 4),
    st.sampled_from(AUGMENT_NAMES),
    st.integers(1, 3),
)
def test_any_shape_and_any_number_of_items(shape, count, augment, number):
    dtype = np.uint8 if len(shape) == 3 else np.float32
    array = np.random.default_rng(0).integers(0, 256, (count, *shape)).astype(dtype)
    if len(shape) == 3 and array.shape[3] < array.shape[1]:
        array = np.moveaxis(array, 1, 3)  # the layout of a narrow array
    dataset = from_arrays(array)
    views = make_views(Views(dataset, augment=augment, views=number), fetch_all(dataset))
    assert len(views) == number
    assert all(tuple(view.shape) == (count, *dataset.shapes[0]) and view.isfinite().all() for view in views)


def test_constant_features_are_accepted():
    for array in (np.full((4, 3), 5.0), np.full((4, 3, 9), 5, np.float32), np.full((4, 3, 9, 9), 5, np.uint8)):
        dataset = from_arrays(array)
        for augment in AUGMENT_NAMES:
            assert all(view.isfinite().all() for view in Views(dataset, augment=augment)(fetch_all(dataset)))


# Frames


def steps(length=20, count=16):
    """Return series whose values are the times, with a different start for each item."""
    times = torch.arange(float(length)) + 100 * torch.arange(float(count))[:, None]
    return from_arrays(times[:, None].expand(-1, 3, -1).numpy())


@pytest.mark.parametrize(
    ("text", "length"), [("frames", 5), ("frames:3", 3), ("frames:10", 10), ("frames:length=1", 1)]
)
def test_frames_are_two_consecutive_windows(text, length):
    dataset = steps()
    views = Views(dataset, views=text)
    assert views.shapes == ((3, length),) * 2
    assert views.unaugmented_shapes == dataset.shapes
    assert views.augment == "none"
    earlier, later = make_views(views, fetch_all(dataset))
    frames = torch.cat([earlier, later], 2)
    assert torch.equal(frames, frames[..., :1] + torch.arange(2.0 * length))
    assert torch.equal(frames[:, 0] // 100, torch.arange(16.0)[:, None].expand(-1, 2 * length))


def test_frames_start_uniformly():
    dataset = steps(count=4000)
    starts = make_views(Views(dataset, views="frames:8"), fetch_all(dataset))[0][:, 0, 0] % 100
    counts = starts.long().bincount(minlength=5)
    assert len(counts) == 5
    assert (counts - 800).abs().max() < 120


def test_frames_are_transformed_only_by_augment():
    dataset = series()
    plain, changed = (
        make_views(Views(dataset, views="frames", augment=augment), fetch_all(dataset)) for augment in (None, "weak")
    )
    assert all(a.shape == b.shape and not torch.equal(a, b) for a, b in zip(plain, changed, strict=True))


@pytest.mark.parametrize("augment", ["none", "standard"])
def test_frames_in_several_processes_equal_those_in_one(augment):
    dataset = series()
    views, batch = Views(dataset, views="frames:6", augment=augment), fetch_all(dataset)
    expected = make_views(views, batch)
    parts = [
        make_views(views, (batch[0][own],), offset=LocalBatchOffset(own.start, 16))
        for own in (slice(0, 5), slice(5, 16))
    ]
    assert all(torch.equal(torch.cat(part), one) for part, one in zip(zip(*parts, strict=True), expected, strict=True))


# Invalid settings


@pytest.mark.parametrize(
    ("dataset", "settings", "code_and_values"),
    [
        (images(), {"augment": "stron"}, ("augment.unknown", "stron", "strong")),
        (images(), {"views": 0}, ("views.invalid", "1000")),
        (images(), {"views": True}, ("views.invalid", "1000")),
        (images(), {"views": 2.5}, ("views.invalid", "1000")),
        (images(), {"views": "colr"}, ("views.unknown", "colr", "color", "2+6")),
        (images(), {"views": "0+6"}, ("views.unknown", "0+6")),
        (several(), {"views": 2}, ("views.number", "arrays", "2")),
        (several(), {"views": "2+6"}, ("views.not_images", "2+6", "arrays")),
        (vectors(), {"views": "multi-crop"}, ("views.not_images", "multi-crop")),
        (images(), {"views": "2+6", "augment": "none"}, ("augment.no_crops", "2+6", "none")),
        (images(), {"views": "2+6", "augment": "mixup"}, ("augment.no_crops",)),
        (images(1), {"views": "color"}, ("views.not_rgb", "color", "3")),
        (images(4), {"views": "color"}, ("views.not_rgb", "color", "3")),
        (vectors(3), {"views": "color"}, ("views.not_rgb", "color", "3")),
        (several(), {"views": "color"}, ("views.not_rgb", "color", "3")),
        (images(), {"views": "frames"}, ("views.not_series", "frames", "arrays")),
        (vectors(), {"views": "frames:2"}, ("views.not_series", "frames:2")),
        (several(), {"views": "frames"}, ("views.not_series",)),
        (steps(), {"views": "frames:11"}, ("views.window_length", "10", "frames:11")),
        (steps(), {"views": "frames:0"}, ("views.window_length", "10")),
        (steps(), {"views": "frames:2.5"}, ("views.window_length", "10")),
        (steps(), {"views": "frames:many"}, ("views.window_length", "10")),
        (steps(), {"views": "frames:size=3"}, ("views.unknown", "size")),
        (steps(1), {"views": "frames"}, ("views.not_series", "frames")),
        (steps(), {"views": "frame"}, ("views.unknown", "frame", "frames")),
    ],
)
def test_rejects_impossible_settings(dataset, settings, code_and_values):
    with raises_usage_error(*code_and_values):
        Views(dataset, **settings)


def test_rejects_items_beyond_the_global_batch():
    dataset = images()
    with raises_usage_error("offset.range", "16", "1"):
        Views(dataset)(fetch_all(dataset), LocalBatchOffset(1, 16))
