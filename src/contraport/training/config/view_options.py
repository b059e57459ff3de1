"""Options of the views: number, augmentation, and online audit of pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from contraport.catalog.option_parsers import parse_augment
from contraport.errors import check
from contraport.options import BaseOptions, has_object_placeholder, option


def _serialize_augment(augment: Any) -> Any:
    """Return the value of `augment` for `config.yaml`: a name as it is, a callable as ``<name>``."""
    if augment is None or isinstance(augment, str):
        return augment
    change = getattr(augment, "function", augment)
    return f"<{getattr(change, '__name__', type(change).__name__).strip('<>')}>"


def _check_augment(name: str, value: Any) -> None:
    if isinstance(value, str) and not has_object_placeholder(
        value
    ):  # the placeholder of a callable in a run's config.yaml
        parse_augment(value)
    good = isinstance(value, str) or callable(value) or callable(getattr(value, "function", None))
    check(good, f"augment: must be a name or a callable, got {value!r}.")


@dataclass(frozen=True, kw_only=True)
class ViewSettings(BaseOptions):
    """Options of the views of an item and of the selection of pairs."""

    views: int | str | None = option(
        None,
        "Views of an item: a number of random views; colour (lightness and color channels of an RGB image); frames "
        "(two adjacent windows of a time series: frames:16 for 16 steps each, default a quarter of the series); or "
        "2+6 (multi-crop: two large and six small crops); default: two random views, or all views of the data.",
        group="views",
    )
    augment: str | Any | None = option(
        None,
        "Random augmentation of the views. For each kind of data: none, weak, standard or strong. For any data: "
        "isotropic-noise (the same standard deviation in all directions), scaled-noise or noise (in proportion to the "
        "standard deviation of each feature) or mixup (x_i + lambda (x_j - x_i)), with an optional strength: "
        "scaled-noise:0.2 for the standard deviation in units of the data's, mixup:0.3 for the largest lambda. In "
        "Python also a callable on items (torchvision.transforms.v2, albumentations, a function) or on batches "
        "(kornia, `contraport.data.BatchTransform`); default: standard, or none if the data have several views or the "
        "views are frames.",
        serialize=_serialize_augment,
        check=_check_augment,
    )
    audit: bool = option(
        False,
        "Online audit of data with two views: score all pairs at eight epochs and drop suspected mismatches. The share "
        "of wrong pairs is estimated from decoys, pairs mismatched on purpose, which are trained on for the first "
        "third of the epochs. The run folder keeps the scores.",
        group="selection of pairs",
    )
