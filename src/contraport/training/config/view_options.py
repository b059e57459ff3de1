"""Options of the views: how they are made of an item, and which pairs of them are trained on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from contraport.catalog.augment_specs import parse_augment
from contraport.errors import check
from contraport.options import Options, is_object_placeholder, option


def _changing(augment: Any) -> Any:
    """Return the name of a random change; of a callable that of its class or function, in angle brackets."""
    if augment is None or isinstance(augment, str):
        return augment
    change = getattr(augment, "change", augment)
    return f"<{getattr(change, '__name__', type(change).__name__).strip('<>')}>"


def _augment(name: str, value: Any) -> None:
    if isinstance(value, str) and not is_object_placeholder(
        value
    ):  # what a folder tells of an object is none of the names
        parse_augment(value)
    good = isinstance(value, str) or callable(value) or callable(getattr(value, "change", None))
    check(good, f"augment: expected a name or a callable, got {value!r}.")


@dataclass(frozen=True, kw_only=True)
class ViewSettings(Options):
    """Options of the views of an item, and of the pairs that take part."""

    views: int | str | None = option(
        None,
        "how many random views of an item to make; or colour (lightness and colours of an RGB image); or frames, two "
        "windows next to one another in a time series (frames:16: of 16 steps each; default: of a quarter of it); or "
        "multi-crop, which is 2+6: two large and six small crops; default: two, or all that the data give.",
        group="views",
    )
    augment: str | Any | None = option(
        None,
        "how views are changed at random: none; weak, standard or strong, as suits the data; or what needs to know "
        "nothing of them, isotropic-noise (x + delta, of one deviation in all directions), scaled-noise (in proportion "
        "to each feature's deviation; also called noise) or mixup (x_i + lambda (x_j - x_i)), alone or with a "
        "strength, as in scaled-noise:0.2, the deviation of delta in units of the data's own, and mixup:0.3, the "
        "largest lambda; default: "
        "standard, or none where the data give several views or these are frames. From Python also a callable, on each "
        "item (torchvision's v2, albumentations, a function) or on batches (kornia, or "
        "`contraport.data.BatchTransform`).",
        serialize=_changing,
        check=_augment,
    )
    audit: bool = option(
        False,
        "of data of two given views, look eight times which pairs seem wrong, and leave these out; the folder "
        "keeps the scores. How many are wrong is estimated with known mismatches that take part for a third of it.",
        group="which pairs",
    )
