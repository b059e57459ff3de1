"""Random views of batches, which contrastive losses compare."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from contraport._utils.formatting import describe_item_shape, join_names
from contraport._utils.spec_parser import parse_spec
from contraport._utils.text_bytes import TEXT_SHAPE, is_text_batch
from contraport.catalog.data_option_parsers import (
    AUGMENT_LEVELS,
    FEATURE_SCALED_NOISE_NAMES,
    ISOTROPIC_NOISE_NAME,
    AugmentSpec,
    parse_augment,
)
from contraport.data.data_loader import LocalBatchOffset
from contraport.data.dataset import Dataset
from contraport.data.stores import Shape, TransformedStore
from contraport.data.views.custom_transforms import BatchTransform, CustomTransform, wrap_transform_unless_name
from contraport.data.views.image_views import ImageAugmentation, choose_image_strength, split_lightness_and_color
from contraport.data.views.numeric_views import (
    SERIES_STRENGTH_BY_NAME,
    VECTOR_STRENGTH_BY_NAME,
    Mixup,
    Noise,
    SeriesAugmentation,
    VectorAugmentation,
    cut_adjacent_windows,
)
from contraport.data.views.random_draws import RandomDraws
from contraport.data.views.text_views import TEXT_STRENGTH_BY_NAME, RandomWordCropAndDeletionOnTextBytes
from contraport.errors import UsageError, check, is_integer, unknown_name_error
from contraport.options import accept_deprecated_keywords, keep_deprecated_attributes
from contraport.seeding import fork_rng_with_lock

COLOR_SPLIT_VIEWS_NAMES = ("color", "colour")  # values of the option `views`: lightness and colors as two views
ADJACENT_WINDOWS_VIEWS_NAME = "frames"  # value of the option `views`: two adjacent windows of a time series


@keep_deprecated_attributes(is_applied_by_dataset="is_transform_applied_by_dataset")
class Views(nn.Module):
    """Random augmentation of batches into the views that a contrastive loss compares.

    Args:
        dataset: the data, whose shapes, statistics and `flips` determine the random changes.
        augment: kind of random change.

            - "weak", "standard", "strong": changes that suit the data, in increasing strength. Images are cropped,
              rotated, recolored and partly erased; "strong" corresponds to the extreme setting of GCA (Chen et al.,
              2024): large erasure, brightness, strong crop. Time series are cropped in time, scaled, masked and
              jittered; vectors scaled, masked and jittered. Texts are cut to a span, with some words deleted.
            - "isotropic-noise", "scaled-noise", "mixup": changes for any numeric data, x + delta and
              x_i + lambda (x_j - x_i). Isotropic noise has one standard deviation in all directions, scaled noise one
              per feature or channel, in proportion to that of the data; "noise" is scaled noise. A strength may follow:
              "scaled-noise:0.2" is the standard deviation of delta relative to that of each feature,
              "isotropic-noise:0.2" relative to their root mean square (default of both: 0.41, which moves an item as
              far as mixup), "mixup:0.3" the largest lambda, at most 1 (default: 0.5).
            - "none": no change.
            - a callable: called on each item as stored, where items are fetched (torchvision's v2, albumentations, a
              function); or on batches of floats (modules of kornia, a `BatchTransform`). In its output uint8 stands
              for [0, 1], and floats are used as they are.

            Default: "standard" for data with one view, "none" for several stored views and for "frames". A named
            change applies to every stored view, by its kind.
        views: the views to make.

            - a number: this many random views of one stored view, or all stored ones. Default: 2, or all.
            - "color": of an RGB image lightness ``(1, H, W)`` and the colors a and b ``(2, H, W)`` of CIE Lab, both
              of the same random change, which never removes the color (CMC, Tian et al., 2020).
            - "frames" or such as "frames:16": of a time series two adjacent windows of this many steps each (default:
              a quarter of it) at random places; further changes only by `augment`.
            - "multi-crop" or such as "2+6": two large crops, and six small ones of half the side (SwAV, Caron et al.,
              2020).

    Attributes:
        augment: name of the augmentation.
        custom: augmentation that the user gave as a callable, or None.
        missing_transform_name: name of the custom transform with which a loaded run was trained, if the caller did not
            pass it; or None.
        shapes: shape of one item of each random view.
        unaugmented_shapes: shape of one item of each view made without random changes.
        unaugmented_names: names of the views made without random changes.
        unaugmented_column_names: names of the table columns of each of these views; see `Dataset`.

    Raises:
        UsageError: an unknown name, or views that cannot be made of the data.

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
        self.custom = wrap_transform_unless_name(augment)
        self.missing_transform_name: str | None = None
        self._splits_color = views in COLOR_SPLIT_VIEWS_NAMES
        self._window_length: int | None = None
        self._unaugmented = dataset
        message = f"views: must be a number, as the pairs of {dataset.name!r} are mismatched, got {views!r}."
        is_named = isinstance(views, str) and self.custom is None
        check(not (dataset.has_mismatched_partners and is_named), message, "mismatched")
        if self.custom is not None:
            self.augment = self.custom.name
            message = f"views: must be a number, as {self.custom.name} of augment makes the views; got {views!r}."
            check(not isinstance(views, str), message, "conflict")
            message = f"augment: {self.custom.name} requires all views of all items, and some lack one."
            check(dataset.present is None, message, "missing_views")
            made = _define_random_views(dataset, AugmentSpec("none"), cast(int | None, views))
        else:
            frames = isinstance(views, str) and views.partition(":")[0] == ADJACENT_WINDOWS_VIEWS_NAME
            default = "standard" if len(dataset.shapes) == 1 and not frames else "none"
            self.augment = cast(str | None, augment) or default
            good = dataset.present is None or self.augment != "mixup"
            check(good, "augment: mixup requires all views of all items, and some lack one.", "missing_views")
            parsed = parse_augment(self.augment)
            if frames:
                self._window_length = _parse_window_length(dataset, str(views))
                shape = dataset.shapes[0][0], self._window_length
                made = [_ViewDefinition(view, _build_transform(dataset, 0, parsed), shape) for view in (0, 1)]
            elif self._splits_color:
                made = [_define_rgb_view_to_split(dataset, parsed)]
                _, *size = dataset.shapes[0]
                lab = TransformedStore(dataset.store, _split_color_of_stored_views, ((1, *size), (2, *size)))
                self._unaugmented = dataset.with_store(lab, ("lightness", "colors"))
            elif isinstance(views, str):
                made = _define_multi_crop_views(dataset, parsed, views)
            else:
                made = _define_random_views(dataset, parsed, views)
        self._sources = [view.source_view for view in made]
        self._transforms = nn.ModuleList(view.transform for view in made)
        self.unaugmented_shapes: tuple[Shape, ...] = self._unaugmented.shapes
        self.unaugmented_names: tuple[str, ...] = self._unaugmented.view_names
        self.unaugmented_column_names: tuple[tuple[str, ...], ...] = self._unaugmented.column_names
        self.shapes = self.unaugmented_shapes if self._splits_color else tuple(view.shape for view in made)
        if self.custom is not None:
            with fork_rng_with_lock([]):  # one item shows the shapes that the callable returns
                views_of_first = self._make_custom_views_unless_made(self.custom, dataset.__getitems__([0]).views, None)
            self.shapes = tuple(tuple(view.shape[1:]) for view in views_of_first)

    @property
    def is_transform_applied_by_dataset(self) -> bool:
        """True if the dataset applies the custom transform whenever it loads an item."""
        return self.custom is not None and not self.custom.takes_batches

    @property
    def num_views_per_source(self) -> int:
        """Number of random views that are made from each view of the dataset."""
        return len(self._sources) // len(self.unaugmented_shapes)

    def _make_custom_views_unless_made(
        self, custom: CustomTransform, views: tuple[Tensor, ...], offset: LocalBatchOffset | None
    ) -> tuple[Tensor, ...]:
        """Draw the items' custom random views, unless the dataset has already drawn them."""
        if custom.takes_batches:
            floats = _uint8_images_to_floats(views)
            return tuple(custom.transform_whole_batch(floats[source], offset) for source in self._sources)
        if views[0].ndim == len(self.unaugmented_shapes[0]) + 1:  # plain items, not yet transformed by a worker
            seeds = [[seed] for seed in torch.randint(2**31, (len(views[0]),)).tolist()]
            number = self.num_views_per_source
            views = tuple(custom.draw_views_per_item(view.cpu(), number, seeds).to(view.device) for view in views)
        return _uint8_images_to_floats(tuple(one for view in views for one in view.unbind(1)))

    def compute_means_and_stds(self) -> list[tuple[list[float], list[float]]]:
        """Return channel means and standard deviations of each view without augmentation."""
        return [self._unaugmented.mean_and_std(view) for view in range(len(self.unaugmented_shapes))]

    def release_data(self) -> None:
        """Drop the reference to the dataset, so that saving stores no items."""
        del self._unaugmented

    @accept_deprecated_keywords(share="offset")
    @torch.no_grad()
    def forward(self, views: tuple[Tensor, ...], offset: LocalBatchOffset | None = None) -> tuple[Tensor, ...]:
        """Return the randomly augmented views of a batch, as floats.

        Random numbers come from torch's global generator, so `torch.manual_seed` fixes them.

        Args:
            views: stored views, each (b, *shape), uint8 images for [0, 1], or float.
            offset: place of the items in the global batch; default: they are all of it. Processes with equal seeds
                make the views that a single process would make, bit for bit except for the last bit of blurred and of
                "color" views. For mixup they gather the items, so all processes must call this together.

        Raises:
            UsageError: the items exceed the global batch.
        """
        message = f"augment: must be the callable {self.missing_transform_name}, with which this run was trained."
        check(self.missing_transform_name is None, message, "missing_transform")
        if self.custom is not None:
            return self._make_custom_views_unless_made(self.custom, views, offset)
        floats = _uint8_images_to_floats(views)
        draws = RandomDraws(len(floats[0]), offset, floats[0].device)
        if self._window_length is not None:
            floats = cut_adjacent_windows(floats[0], self._window_length, draws)
        pairs = zip(self._sources, self._transforms, strict=True)
        made = tuple(transform(floats[source], draws) for source, transform in pairs)
        return split_lightness_and_color(made[0]) if self._splits_color else made

    @torch.no_grad()
    def make_unaugmented(self, views: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the views without random changes, as floats, for embedding.

        They are the stored views, or lightness and colors for "color".
        """
        floats = _uint8_images_to_floats(views)
        return split_lightness_and_color(floats[0]) if self._splits_color else floats


class _ViewDefinition(NamedTuple):
    """Source, random transform and resulting shape of one random view."""

    source_view: int
    transform: nn.Module
    shape: Shape


class _IdentityTransform(nn.Module):
    """Transform that returns the items unchanged."""

    def forward(self, items: Tensor, draws: RandomDraws) -> Tensor:
        return items


def _uint8_images_to_floats(views: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Convert uint8 images to floats in [0, 1], and keep other views."""
    return tuple(view / 255.0 if view.dtype == torch.uint8 and not is_text_batch(view) else view for view in views)


def _split_color_of_stored_views(views: tuple[Tensor, ...], _positions: Tensor) -> tuple[Tensor, ...]:
    """Split RGB images into a view of lightness and a view of colors."""
    return split_lightness_and_color(*_uint8_images_to_floats(views))


def _define_random_views(dataset: Dataset, augment: AugmentSpec, num_views: int | None) -> list[_ViewDefinition]:
    """Define the random views: several of one stored view, or one of each stored view."""
    stored = len(dataset.shapes)
    number = max(2, stored) if num_views is None else num_views
    good = is_integer(number) and 1 <= number <= 1_000
    check(good, f"views: must be an integer from 1 to 1000, or a name, got {num_views!r}.")
    message = f"views: must be {stored}, the number of views of {dataset.name!r}, got {num_views}."
    check(stored in (1, number), message, "number")
    made = [
        _ViewDefinition(view, _build_transform(dataset, view, augment), shape)
        for view, shape in enumerate(dataset.shapes)
    ]
    if stored > 1:
        return made
    others = made[0]._replace(source_view=1) if dataset.has_mismatched_partners else made[0]
    return [made[0], *[others] * (number - 1)]


def _describe_items(dataset: Dataset) -> str:
    """Describe the shapes of a dataset's items for an error message."""
    return f"an item of {dataset.name!r} is {join_names(map(describe_item_shape, dataset.shapes))}"


def _parse_window_length(dataset: Dataset, views: str) -> int:
    """Return the window length, by default a quarter of the time series."""
    shapes = dataset.shapes
    message = f"views: {views!r} requires one time series per item; {_describe_items(dataset)}."
    check(len(shapes) == 1 and len(shapes[0]) == 2, message, "not_series")
    longest = shapes[0][1] // 2
    check(longest > 0, f"views: {views!r} requires series of at least two steps.", "not_series")
    spec = parse_spec(
        "views",
        views,
        {ADJACENT_WINDOWS_VIEWS_NAME: ("length",)},
        unnamed_setting_by_name={ADJACENT_WINDOWS_VIEWS_NAME: "length"},
    )
    length = spec.settings.get("length", max(1, shapes[0][1] // 4))
    good = isinstance(length, int) and 1 <= length <= longest
    message = f"views: two windows must fit in a series, so their length must be from 1 to {longest}, got {views!r}."
    check(good, message, "window_length")
    return int(length)


def _build_transform(dataset: Dataset, view: int, augment: AugmentSpec, *, removes_color: bool = True) -> nn.Module:
    """Build the random augmentation of one view of the dataset."""
    shape = dataset.shapes[view]
    strength = {} if augment.strength is None else {"strength": augment.strength}
    if augment.name == "none":
        return _IdentityTransform()
    if shape == TEXT_SHAPE:
        message = f"augment: must be none or one of {', '.join(AUGMENT_LEVELS)}, as view {view} of {dataset.name!r} "
        check(augment.name in AUGMENT_LEVELS, f"{message}is a text, got {augment.name!r}.", "text_view")
        return RandomWordCropAndDeletionOnTextBytes(TEXT_STRENGTH_BY_NAME[augment.name])
    if augment.name == "mixup":
        return Mixup(**strength)
    if augment.name in AUGMENT_LEVELS and len(shape) == 3:
        size = shape[1], shape[2]
        ranges = choose_image_strength(augment.name, size)
        ranges = ranges if removes_color else replace(ranges, gray_probability=0)
        bounds = dataset.non_unit_channel_range(view)
        return ImageAugmentation(ranges, size, flips=dataset.allows_flips, channel_range=bounds)
    per_channel = (-1, *[1] * (len(shape) - 1))
    mean, std = (torch.tensor(values).view(per_channel) for values in dataset.mean_and_std(view))
    if augment.name == ISOTROPIC_NOISE_NAME:
        return Noise(std.square().mean().sqrt(), **strength)
    if augment.name in FEATURE_SCALED_NOISE_NAMES:
        return Noise(std, **strength)
    if len(shape) == 2:
        return SeriesAugmentation(SERIES_STRENGTH_BY_NAME[augment.name], mean, std)
    return VectorAugmentation(VECTOR_STRENGTH_BY_NAME[augment.name], mean, std)


def _define_rgb_view_to_split(dataset: Dataset, augment: AugmentSpec) -> _ViewDefinition:
    """Define the random RGB view that is later split into lightness and color."""
    shapes = dataset.shapes
    good = len(shapes) == 1 and dataset.is_first_view_image and shapes[0][0] == 3
    check(good, f"views: 'color' requires one image of 3 channels per item; {_describe_items(dataset)}.", "not_rgb")
    bounds = dataset.non_unit_channel_range()
    message = f"views: 'color' requires pixels in [0, 1], those of {dataset.name!r} have the range {bounds}."
    check(bounds is None, message, "pixel_range")
    return _ViewDefinition(0, _build_transform(dataset, 0, augment, removes_color=False), shapes[0])


def _define_multi_crop_views(dataset: Dataset, augment: AugmentSpec, views: str) -> list[_ViewDefinition]:
    """Define the random multi-crop views, large crops first."""
    counts = "2+6" if views == "multi-crop" else views
    numbers = re.fullmatch(r"([1-9]\d{0,2})\+([1-9]\d{0,2})", counts)
    if numbers is None:
        names = COLOR_SPLIT_VIEWS_NAMES[0], ADJACENT_WINDOWS_VIEWS_NAME, "multi-crop"
        error = unknown_name_error("views", views, names)
        raise UsageError(f"{error} Or a number, or such as '2+6'.", kind="unknown")
    shapes = dataset.shapes
    message = f"views: {views!r} requires one image per item; {_describe_items(dataset)}."
    check(len(shapes) == 1 and dataset.is_first_view_image, message, "not_images")
    message = f"augment: {views!r} requires one that crops, {', '.join(AUGMENT_LEVELS)}; got {augment.name!r}."
    check(augment.name in AUGMENT_LEVELS, message, "no_crops")
    channels, height, width = shapes[0]
    strength, bounds = choose_image_strength(augment.name, (height, width)), dataset.non_unit_channel_range()
    kinds = (
        (int(numbers[1]), strength, (height, width)),
        (int(numbers[2]), replace(strength, crop_area=strength.small_crop_area), ((height + 1) // 2, (width + 1) // 2)),
    )
    return [
        _ViewDefinition(
            0, ImageAugmentation(kind, size, flips=dataset.allows_flips, channel_range=bounds), (channels, *size)
        )
        for number, kind, size in kinds
        for _ in range(number)
    ]
