import numpy as np
import pytest
import torch

from contraport.data import Augment, from_arrays, load
from contraport.errors import UsageError


def images(channels, side, count=16, *, flips=False):
    pixels = np.random.default_rng(0).integers(0, 256, (count, channels, side, side + 1), dtype=np.uint8)
    return from_arrays(pixels, flips=flips)


def batch(dataset, count=16):
    return dataset.__getitems__(list(range(count))).views


@pytest.mark.parametrize("strength", ["weak", "standard", "strong"])
@pytest.mark.parametrize(("channels", "side"), [(1, 8), (2, 28), (3, 32), (4, 20), (3, 64), (1, 48)])
def test_views_of_images_of_any_channels_and_size(channels, side, strength):
    dataset = images(channels, side)
    views = Augment(dataset, strength=strength, views=3)(batch(dataset))
    assert len(views) == 3
    for view in views:
        assert view.shape == (16, channels, side, side + 1)
        assert view.dtype == torch.float32
        assert 0 <= view.min() < view.max() <= 1
    assert not torch.equal(views[0], views[1])


@pytest.mark.parametrize("dataset", [images(3, 32, flips=True), from_arrays(np.random.default_rng(0).random((16, 5)))])
def test_the_views_depend_on_torchs_seed_alone(dataset):
    augment, other = Augment(dataset), Augment(dataset)
    torch.manual_seed(3)
    first = augment(batch(dataset))
    np.random.seed(0)
    torch.manual_seed(3)
    second = other(batch(dataset))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_bytes_and_floats_of_the_same_pixels_give_the_same_views():
    dataset = images(3, 16)
    augment, raw = Augment(dataset), batch(dataset)
    torch.manual_seed(0)
    first = augment(raw)
    torch.manual_seed(0)
    assert torch.equal(first[0], augment((raw[0] / 255.0,))[0])


def left_half():
    pixels = np.zeros((400, 40, 40), np.uint8)
    pixels[:, :, :20] = 255
    return pixels


@pytest.mark.parametrize("flips", [True, False])
def test_images_are_flipped_only_where_that_keeps_their_meaning(flips):
    dataset = from_arrays(left_half(), flips=flips)
    view = Augment(dataset, strength="weak")(batch(dataset, 400))[0]
    brighter_right = view[..., 20:].mean(dim=(1, 2, 3)) > view[..., :20].mean(dim=(1, 2, 3)) + 0.05
    assert bool(brighter_right.any()) == flips


def test_grey_images_stay_grey_under_changes_of_colour():
    dataset = from_arrays(np.repeat(np.random.default_rng(0).integers(0, 256, (16, 1, 48, 48), np.uint8), 3, axis=1))
    view = Augment(dataset, strength="strong")(batch(dataset))[0]
    assert (view - view.mean(dim=1, keepdim=True)).abs().max() < 1e-5


def test_colours_change():
    red = np.zeros((200, 3, 40, 40), np.uint8)
    red[:, 0] = 200
    dataset = from_arrays(red)
    view = Augment(dataset)(batch(dataset, 200))[0].mean(dim=(2, 3))
    grey = (view - view.mean(dim=1, keepdim=True)).abs().max(dim=1).values < 1e-4
    assert 0.1 < grey.float().mean() < 0.3
    assert (view[~grey][:, 0] > view[~grey][:, 2]).all()


def test_an_image_is_not_turned_beyond_recognition():
    digits = load("digits")
    raw = batch(digits, 500)[0] / 255.0
    view = Augment(digits, strength="weak")((raw,))[0]
    own = torch.nn.functional.cosine_similarity(view.flatten(1), raw.flatten(1))
    others = torch.nn.functional.cosine_similarity(view.flatten(1), raw.roll(1, 0).flatten(1))
    assert (own > others).float().mean() > 0.9


def test_vectors_change_in_units_of_each_feature():
    vectors = np.random.default_rng(0).normal([0, 100], [1, 1000], (2000, 2))
    dataset = from_arrays(vectors)
    raw = batch(dataset, 2000)
    change = (Augment(dataset)(raw)[0] - raw[0]).std(dim=0)
    assert change[1] / change[0] == pytest.approx(1000, rel=0.1)


def test_given_views_are_kept_as_they_are():
    dataset = from_arrays([np.full((4, 8, 8), 51, np.uint8), np.ones((4, 3)), np.ones((4, 2))])
    views = Augment(dataset)(batch(dataset, 4))
    assert views[0].unique().tolist() == pytest.approx([0.2])
    assert [tuple(view.shape) for view in views] == [(4, 1, 8, 8), (4, 3), (4, 2)]


def test_no_gradient_flows_through_the_views():
    dataset = from_arrays(np.ones((4, 3)))
    assert not Augment(dataset)((torch.ones(4, 3, requires_grad=True),))[0].requires_grad


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"strength": "stron"}, "did you mean 'strong'"),
        ({"views": 0}, "views: expected at least 1"),
    ],
)
def test_settings_out_of_range_are_told(settings, message):
    with pytest.raises(UsageError, match=message):
        Augment(images(1, 8), **settings)


def test_another_number_of_views_than_the_given_ones_is_told():
    with pytest.raises(UsageError, match="expected the 2"):
        Augment(from_arrays([np.ones((4, 3)), np.ones((4, 3))]), views=3)
