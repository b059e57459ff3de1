"""The views of a batch: which there are, and how those are made that the data do not give."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from contraport._utils.spec import parse_spec
from contraport._utils.text_tensors import is_text_batch, is_text_shape
from contraport.catalog.augment_specs import AUGMENT_STRENGTHS, ISOTROPIC_NOISE, SCALED_NOISE, Augment, parse_augment
from contraport.data.data_loader import Share
from contraport.data.dataset import Dataset
from contraport.data.stores import StoreWrapper
from contraport.data.views.custom_transforms import BatchTransform, CustomTransform, parse_custom_transform
from contraport.data.views.draws import Draws
from contraport.data.views.images import image_strength, image_transform, lab
from contraport.data.views.noise_mixup import Mixup, Noise, isotropic
from contraport.data.views.series import SERIES, SeriesTransform, Windows
from contraport.data.views.text_views import TEXTS, TextTransform
from contraport.data.views.vectors import VECTORS, VectorTransform
from contraport.errors import UsageError, check, is_integer, unknown_name_error

COLOUR = "colour"
FRAMES = "frames"
MULTI_CROP = "multi-crop"
MOST_VIEWS = 1_000
_NUMBERS_OF_CROPS = re.compile(r"([1-9]\d{0,2})\+([1-9]\d{0,2})")

Shape = tuple[int, ...]
Statistics = tuple[list[float], list[float]]


class Views(nn.Module):
    """Make the views of a batch.

    Args:
        dataset: the data, whose shapes, statistics and permission to flip decide on the random changes.
        augment: how the views are changed at random.

            - "weak", "standard", "strong": what suits the data, ever further. Images are cropped, turned, recoloured
              and partly erased; "strong" has what GCA calls extreme (Chen et al., 2024): large erasure, brightness,
              strong crop. Time series are cropped in time, scaled, masked and jittered; vectors scaled, masked and
              jittered. Of texts a span is cut out, and words are left out of it.
            - "isotropic-noise", "scaled-noise", "mixup": what needs to know nothing of the data, x + delta and
              x_i + lambda (x_j - x_i). Isotropic noise has one standard deviation in all directions, scaled noise one
              for each feature or channel, in proportion to that of the data; "noise" is scaled noise. A strength may
              follow: in "scaled-noise:0.2" the standard deviation of delta in units of the feature's own, in
              "isotropic-noise:0.2" in units of their root mean square (default of both: 0.41, which moves an item as
              far as mixup does), in "mixup:0.3" the largest lambda, at most 1 (default: 0.5).
            - "none": nothing.
            - a callable: on each item, as it is stored, where items are fetched (torchvision's v2, albumentations, a
              function); or on batches of floats, as modules of kornia and what `BatchTransform` says. What it gives is
              taken
              as it comes: uint8 stands for [0, 1], and floats are not changed.

            Default: "standard" for data of one view, "none" for several given ones and for "frames", whose differences
            are the data's own. Chosen by name it holds for every given view, each after its kind.
        views: which views there are.

            - a number: so many random ones of one given view, or all the given ones. Default: 2, or all.
            - "colour": of an RGB image lightness ``(1, H, W)`` and the colours a and b ``(2, H, W)`` of CIE Lab, both
              of one and the same random change, which never greys (CMC, Tian et al., 2020).
            - "frames" or such as "frames:16": of a time series two windows next to one another, of so many steps each
              (default: a quarter of it), at random places; not changed any further unless `augment` says so. What is
              near in time is alike.
            - "multi-crop" or such as "2+6": two large crops, and six small ones of half the side (SwAV, Caron et al.,
              2020).

    Attributes:
        augment: the kind of random change.
        shapes: the shape of one item of each view that is made.
        plain_shapes: likewise of the plain views.
        plain_names: what the plain views are called.

    Raises:
        UsageError: an unknown name, or views that the data cannot give.

    >>> from contraport.data import load
    >>> digits = load("digits")
    >>> view0, view1 = Views(digits)(digits.__getitems__([0, 1, 2]).views)
    >>> view0.shape, view0.dtype, bool((view0 != view1).any())
    (torch.Size([3, 1, 8, 8]), torch.float32, True)
    >>> Views(digits, views="2+3").shapes
    ((1, 8, 8), (1, 8, 8), (1, 4, 4), (1, 4, 4), (1, 4, 4))
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        augment: str | Callable[..., Any] | BatchTransform | None = None,
        views: int | str | None = None,
    ) -> None:
        super().__init__()
        self.own = parse_custom_transform(augment)
        self.forgotten: str | None = None
        if self.own is not None:
            self._of_own(dataset, self.own, views)
            return
        assert augment is None or isinstance(augment, str)
        frames = isinstance(views, str) and views.partition(":")[0] == FRAMES
        augment = augment or ("standard" if len(dataset.shapes) == 1 and not frames else "none")
        gaps = dataset.present is not None
        told = f"views: expected a number of random ones, as pairs of {dataset.name!r} are mismatched, got {views!r}."
        check(not (dataset.paired and isinstance(views, str)), told)
        check(not (gaps and augment == "mixup"), "augment: expected none that mixes items, as some lack a view.")
        parsed = parse_augment(augment)
        self._colour = views == COLOUR
        self._windows: Windows | None = None
        if frames:
            self._windows = Windows(_window(dataset, str(views)))
            shape = dataset.shapes[0][0], self._windows.length
            made = [_Made(view, _change(dataset, 0, parsed), shape) for view in (0, 1)]
            self._plain = dataset
        elif self._colour:
            made = [_colour(dataset, parsed)]
            self._plain = dataset.with_store(_ColourStore(dataset.store), ("lightness", "colours"))
        else:
            made = _crops(dataset, parsed, views) if isinstance(views, str) else _numbered(dataset, parsed, views)
            self._plain = dataset
        self._sources = [view.source for view in made]
        self._changes = nn.ModuleList(view.change for view in made)
        self.augment = augment
        self.plain_shapes: tuple[Shape, ...] = self._plain.shapes
        self.plain_names: tuple[str, ...] = self._plain.view_names
        self.shapes = self.plain_shapes if self._colour else tuple(view.shape for view in made)

    @property
    def on_items(self) -> bool:
        """Whether views are made item by item where items are fetched, so that batches bring all of them."""
        return self.own is not None and not self.own.on_batches

    @property
    def number(self) -> int:
        """How many views are made of each given one."""
        return len(self._sources) // len(self.plain_shapes)

    def _of_own(self, dataset: Dataset, own: CustomTransform, views: int | str | None) -> None:
        check(
            not isinstance(views, str),
            f"views: {own.name} of augment makes the views; expected a number, got {views!r}.",
        )
        check(dataset.present is None, f"augment: {own.name} needs all views of an item, and some lack one.")
        made = _numbered(dataset, Augment("none"), cast(int | None, views))
        self._plain, self._colour, self._windows = dataset, False, None
        self._sources = [view.source for view in made]
        self._changes = nn.ModuleList()
        self.augment = own.name
        self.plain_shapes = dataset.shapes
        self.plain_names = dataset.view_names
        first = dataset.__getitems__([0]).views
        with torch.random.fork_rng(devices=[]):
            tried = self._made_by_own(own, first, None)
        self.shapes = tuple(tuple(view.shape[1:]) for view in tried)

    def _made_by_own(self, own: CustomTransform, views: tuple[Tensor, ...], share: Share | None) -> tuple[Tensor, ...]:
        if own.on_batches:
            floats = _floats(views)
            return tuple(own.of_batch(floats[source], share) for source in self._sources)
        if views[0].ndim == len(self.plain_shapes[0]) + 1:  # items as they are, not those that were changed elsewhere
            drawn = torch.randint(2**31, (len(views[0]),)).tolist()
            seeds = [[seed] for seed in drawn]
            views = tuple(own.of_items(view.cpu(), self.number, seeds).to(view.device) for view in views)
        return _floats(tuple(one for view in views for one in view.unbind(1)))

    def statistics(self) -> list[Statistics]:
        """Return the mean and the standard deviation of each plain view, as `Dataset.statistics` does."""
        return [self._plain.statistics(view) for view in range(len(self.plain_shapes))]

    def release(self) -> None:
        """Let go of the data, so that what is kept or written of these views holds no item; `statistics` needs it."""
        del self._plain

    @torch.no_grad()
    def forward(self, views: tuple[Tensor, ...], share: Share | None = None) -> tuple[Tensor, ...]:
        """Return the float views of a batch, changed at random.

        The random numbers are torch's own, so `torch.manual_seed` fixes them.

        Args:
            views: the given ones, each (b, *shape), images uint8, which stands for [0, 1], or float.
            share: which items of a global batch these are; default: they are all of it. Processes with equal seeds make
                the views that one process would, bit for bit but for the last one of blurred and of "colour" views; for
                mixup they gather the items, so all of them call this together.

        Raises:
            UsageError: a share that does not fit the batch.
        """
        check(
            self.forgotten is None,
            f"augment: the run was given the object {self.forgotten}, which its folder does not hold.",
        )
        if self.own is not None:
            return self._made_by_own(self.own, views, share)
        floats = _floats(views)
        draws = Draws(floats[0], share)
        if self._windows is not None:
            floats = self._windows(floats[0], draws)
        changed = tuple(
            change(floats[source], draws) for source, change in zip(self._sources, self._changes, strict=True)
        )
        return _split_colours(changed[0]) if self._colour else changed

    @torch.no_grad()
    def plain(self, views: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the float views without any random change, to be embedded.

        They are the item itself where views are changes of it, lightness and colours for "colour", else the given ones.
        """
        floats = _floats(views)
        return _split_colours(floats[0]) if self._colour else floats


class _Made(NamedTuple):
    """A view that is made: of which given one, by which random change, of which shape."""

    source: int
    change: nn.Module
    shape: Shape


class _Same(nn.Module):
    def forward(self, items: Tensor, draws: Draws) -> Tensor:
        return items


@dataclass(frozen=True)
class _ColourStore(StoreWrapper):
    """Lightness and colours of the RGB images of a store."""

    @property
    def shapes(self) -> tuple[Shape, ...]:
        _, height, width = self.store.shapes[0]
        return (1, height, width), (2, height, width)

    @property
    def digests(self) -> Tensor | None:
        digests = self.store.digests
        return None if digests is None else digests.expand(-1, 2)

    def fetch(self, positions: Tensor) -> tuple[Tensor, ...]:
        return _split_colours(*_floats(self.store.fetch(positions)))


def _floats(views: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(view / 255.0 if view.dtype == torch.uint8 and not is_text_batch(view) else view for view in views)


def _split_colours(images: Tensor) -> tuple[Tensor, Tensor]:
    converted = lab(images)
    return converted[:, :1], converted[:, 1:]


def _numbered(dataset: Dataset, augment: Augment, views: int | None) -> list[_Made]:
    """Return so many views of one given view, or all the given ones."""
    given = len(dataset.shapes)
    number = max(2, given) if views is None else views
    good = is_integer(number) and 1 <= number <= MOST_VIEWS
    check(good, f"views: expected a number from 1 to {MOST_VIEWS}, or a name, got {views!r}.")
    check(given in (1, number), f"views: expected the {given} that {dataset.name!r} gives, got {views}.")
    made = [_Made(view, _change(dataset, view, augment), shape) for view, shape in enumerate(dataset.shapes)]
    if given > 1:
        return made
    others = made[0]._replace(source=1) if dataset.paired else made[0]
    return [made[0], *[others] * (number - 1)]


def _window(dataset: Dataset, views: str) -> int:
    """Return how many steps each of two windows has."""
    shapes = dataset.shapes
    one = len(shapes) == 1 and len(shapes[0]) == 2
    check(one, f"views: {views!r} cuts one time series, the items of {dataset.name!r} have the shapes {shapes}.")
    longest = shapes[0][1] // 2
    check(longest > 0, f"views: {views!r} cuts series of two steps or more, those of {dataset.name!r} have one.")
    given = parse_spec("views", views, {FRAMES: ("length",)}, default_setting={FRAMES: "length"}).settings
    length = given.get("length", max(1, shapes[0][1] // 4))
    good = isinstance(length, int) and 1 <= length <= longest
    check(good, f"views: expected windows of 1 to {longest} steps, two of which fit into a series, got {views!r}.")
    return int(length)


def _change(dataset: Dataset, view: int, augment: Augment, *, greys: bool = True) -> nn.Module:
    """Return the random change of one given view."""
    shape = dataset.shapes[view]
    strength = {} if augment.strength is None else {"strength": augment.strength}
    if augment.name == "none":
        return _Same()
    if is_text_shape(shape):
        check(
            augment.name in AUGMENT_STRENGTHS,
            f"augment: {augment.name!r} changes numbers, and view {view} of {dataset.name!r} is a text; expected none, "
            f"{', '.join(AUGMENT_STRENGTHS)}.",
        )
        return TextTransform(TEXTS[augment.name])
    if augment.name == "mixup":
        return Mixup(**strength)
    if augment.name in AUGMENT_STRENGTHS and len(shape) == 3:
        size = shape[1], shape[2]
        suited = image_strength(augment.name, size)
        suited = suited if greys else replace(suited, grey=0)
        return image_transform(suited, size, flips=dataset.flips, range_=dataset.pixel_range(view))
    over_places = (-1, *[1] * (len(shape) - 1))
    mean, std = (torch.tensor(values).view(over_places) for values in dataset.statistics(view))
    if augment.name == ISOTROPIC_NOISE:
        return Noise(isotropic(std), **strength)
    if augment.name in SCALED_NOISE:
        return Noise(std, **strength)
    if len(shape) == 2:
        return SeriesTransform(SERIES[augment.name], mean, std)
    return VectorTransform(VECTORS[augment.name], mean, std)


def _colour(dataset: Dataset, augment: Augment) -> _Made:
    """Return the image that is split into lightness and colours."""
    shapes = dataset.shapes
    check(
        len(shapes) == 1 and dataset.is_image and shapes[0][0] == 3,
        f"views: 'colour' splits one image of 3 channels, the items of {dataset.name!r} have the shapes {shapes}.",
    )
    known = dataset.pixel_range()
    check(known is None, f"views: 'colour' needs pixels in [0, 1], {dataset.name!r} has {known and known[0]} and more.")
    return _Made(0, _change(dataset, 0, augment, greys=False), shapes[0])


def _crops(dataset: Dataset, augment: Augment, views: str) -> list[_Made]:
    """Return the large crops, then the small ones."""
    numbers = _NUMBERS_OF_CROPS.fullmatch("2+6" if views == MULTI_CROP else views)
    if numbers is None:
        raise UsageError(
            f"{unknown_name_error('views', views, (COLOUR, FRAMES, MULTI_CROP))} Or a number, or such as '2+6'."
        )
    shapes = dataset.shapes
    check(
        len(shapes) == 1 and dataset.is_image,
        f"views: {views!r} crops one image, the items of {dataset.name!r} have the shapes {shapes}.",
    )
    crops = augment.name in AUGMENT_STRENGTHS
    check(crops, f"augment: {views!r} needs one that crops, {', '.join(AUGMENT_STRENGTHS)}; got {augment.name!r}.")
    channels, height, width = shapes[0]
    strength = image_strength(augment.name, (height, width))
    kinds = (
        (int(numbers[1]), strength, (height, width)),
        (int(numbers[2]), replace(strength, area=strength.small_area), ((height + 1) // 2, (width + 1) // 2)),
    )
    known = dataset.pixel_range()
    return [
        _Made(0, image_transform(kind, size, flips=dataset.flips, range_=known), (channels, *size))
        for number, kind, size in kinds
        for _ in range(number)
    ]
