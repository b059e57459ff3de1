"""Options of the training data, views, augmentation and online audit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from contraport.catalog.data_option_parsers import (
    parse_augment,
    parse_corruptions,
    parse_domain_shift,
    parse_largest_to_smallest_class_ratio,
    parse_mismatch,
)
from contraport.errors import check
from contraport.options import (
    BaseOptions,
    check_open_unit_interval,
    has_object_placeholder,
    int_in_range,
    matches_type,
    option,
    option_metadata,
    to_config_value,
)
from contraport.runs.shared_options import num_workers_field


def serialize_data_option(data: Any) -> Any:
    """Return `data` as written to `config.yaml`, objects as `<name>`."""
    if data is None or isinstance(data, str | Path):
        return to_config_value(data)
    name = getattr(data, "name", None)
    return f"<{name if isinstance(name, str) else type(data).__name__}>"


def _check_sample_weight(name: str, value: Any) -> None:
    """Raise `UsageError` unless `sample_weight` has a valid type and file suffix."""
    check(matches_type(value, str | Path), f"{name}: must be a string or a path, got {value!r}.")
    check(
        Path(value).suffix not in {".safetensors", ".pt", ".pth", ".ckpt"},
        f"{name}: must be a column, an .npy file, classes or plan, got {str(value)!r}. "
        "Pretrained weights of an encoder are given by init (--init FILE).",
        "encoder_weights",
    )


def _serialize_augment_option(augment: Any) -> Any:
    """Convert the value of `augment` to the form that is written to `config.yaml`."""
    if augment is None or isinstance(augment, str):
        return augment
    change = getattr(augment, "function", augment)
    return f"<{getattr(change, '__name__', type(change).__name__).strip('<>')}>"


def _check_augment(name: str, value: Any) -> None:
    """Raise `UsageError` unless a value is a callable or a valid augmentation name."""
    # A run's config.yaml has a placeholder for a callable.
    if isinstance(value, str) and not has_object_placeholder(value):
        parse_augment(value)
    good = isinstance(value, str) or callable(value) or callable(getattr(value, "function", None))
    check(good, f"augment: must be a name or a callable, got {value!r}.")


@dataclass(frozen=True, kw_only=True)
class DataSettings(BaseOptions):
    """Options of the data source, and the option of the training recipe."""

    data: str | Path | Any | None = field(
        default=None,
        kw_only=False,
        metadata=option_metadata(
            "Training data: a name (see `contraport list data`); a folder of images, of tar shards or of a Hugging "
            "Face dataset; an .npz, .npy, .csv, .jsonl, .parquet or .tar file, or a pattern of tar files; or a URL of "
            "one of these. In Python also a Dataset (contraport, torch or Hugging Face), a data frame, arrays, or a "
            "list of texts, paths or images.",
            serialize=serialize_data_option,
            group="data and recipe",
            is_cli_flag=True,
        ),
    )
    recipe: str | None = option(
        None, "Named set of options (see `contraport list recipes`). Explicit options take precedence."
    )


@dataclass(frozen=True, kw_only=True)
class ValidationSettings(BaseOptions):
    """Option to hold out a validation split."""

    validation: float | None = option(
        None,
        "Share of each class of the training items to hold out as a validation split, between 0 and 1. The validation "
        "split replaces the test split, so that test items are not used to choose settings; default: none.",
        check=check_open_unit_interval,
        group="reading the data",
    )


@dataclass(frozen=True, kw_only=True)
class DataPreparationSettings(BaseOptions):
    """Options for reading the data, such as subsets, sample weights and perturbations."""

    image_size: int | None = option(
        None,
        "Resize images to squares of this side in pixels; default: for image files, the median of their shorter "
        "sides, between 8 and 64; arrays of images keep their size.",
        check=int_in_range(1),
        group="reading the data",
    )
    columns: dict[str, Any] | None = option(
        None,
        'Roles of table columns, such as ``{"views": ["audio_*", "image"], "labels": "kind"}``. Roles: "views", '
        '"labels", "numbers" (targets of a regression), "domains" (such as cameras), "split", "weights", "keys" (row '
        'names), "sequence" (rows with the same value are frames of one series); default: by column names and types.',
    )
    sample_weight: str | Path | None = option(
        None,
        "Sample weights: the loss of a batch is the weighted mean over its items. A column of the table; an .npy FILE "
        "with one nonnegative number per training item, or per row of the data including held-out rows; classes, which "
        "gives all classes the same total weight; or plan, which multiplies the weights of the data by the mass that "
        "the balanced plan of the batch gives each pair. plan:0.9 sets its strength (0 to 1), plan:0:0.9 a schedule. "
        "With the constraints balanced:marginals=weights and unbalanced:marginals=weights the weights are the "
        "marginals of the plan; default: the array `weights` of an .npz, else uniform.",
        check=_check_sample_weight,
        deprecated_name="weights",
    )
    test_fraction: float | None = option(
        None,
        "Share of each class to hold out for evaluation (0: none), if the data have no test split; default: 0.2.",
    )
    ignore_labels: bool = option(False, "Drop the labels of the data, such as the folder names of images.")
    max_items: int | None = option(
        None,
        "Maximum number of items per split, a fixed random subset; default: all.",
        check=int_in_range(4),
        deprecated_name="items",
    )
    test_items: int | None = option(
        None,
        "Maximum number of test items, in place of `max_items`. More test items give narrower intervals; "
        "default: `max_items`.",
        check=int_in_range(4),
    )
    given_views: Sequence[int | str] = option(
        (), "Views of the data to use: names (columns of a table, `view0` of an .npz) or numbers from 0; default: all."
    )
    root: str | Path | None = option(
        None, "Folder with the files of named data (see `contraport list data`).", lifetime="machine"
    )
    num_workers: int | None = num_workers_field()
    decoded: str | Path | None = option(
        None,
        "Cache folder for decoded images, stored as pixels at the training size; several runs on the same data may "
        "share it. none: no cache, images are decoded in each epoch; default: `decoded` in the run folder, or "
        "none for one epoch.",
        lifetime="machine",
    )
    mismatch: float | str | None = option(
        None,
        "Share of the training pairs to mismatch on purpose, such as 0.2: all views but the first are exchanged with "
        "those of another item. 0.2:class exchanges them within a class. `mismatched.npz` records the partners.",
        check=lambda _, value: parse_mismatch(value),
        group="perturbed data",
    )
    imbalance: float | None = option(
        None,
        "Ratio of the largest to the smallest class after dropping training items: class sizes decrease geometrically "
        "in the order of the classes. With 100 the smallest has one hundredth of the largest. The subset is fixed.",
        check=lambda _, value: parse_largest_to_smallest_class_ratio(value),
    )
    corrupt: str | None = option(
        None,
        "Corruption of all items, fixed per item: noise, blur, brightness, contrast, occlusion or jpeg with a severity "
        "from 1 to 5, such as blur:3, or several in order, such as noise:3,blur:2. Data other than images support "
        "noise only.",
        check=lambda _, value: parse_corruptions(value),
    )
    domains: str | None = option(
        None,
        "Assign images to four domains: rotate (quarter turns), or style (plain, edges, posterized, inverted). "
        "style:edges trains on the other three domains and tests on edges.",
        check=lambda _, value: parse_domain_shift(value),
    )

    @property
    def sample_weight_source(self) -> Literal["plan", "classes", "file", "column"] | None:
        """Source of the sample weights, or None without weights."""
        if self.sample_weight is None:
            return None
        if self.sample_weight == "classes":
            return "classes"
        if str(self.sample_weight).partition(":")[0] == "plan":
            return "plan"
        return "file" if Path(self.sample_weight).suffix == ".npy" else "column"


@dataclass(frozen=True, kw_only=True)
class ViewAndAuditSettings(BaseOptions):
    """Options of the views, their augmentation, and the audit during training."""

    views: int | str | None = option(
        None,
        "Views of an item: a number of random ones; color (lightness and color channels of an RGB image); frames "
        "(adjacent windows of a time series, each a quarter of it; frames:16: each of 16 steps); or 2+6 (multi-crop: "
        "two large and six small crops); default: 2, or all views of the data.",
        group="views",
    )
    augment: str | Any | None = option(
        None,
        "Random augmentation of the views. none, weak, standard or strong, suited to the kind of data. Or: "
        "scaled-noise:0.2, also called noise:0.2 (0.2 times the standard deviation of each feature), "
        "isotropic-noise:0.2 (for every feature, 0.2 times the root mean square of these deviations) or mixup:0.3 "
        "(x_i + lambda (x_j - x_i), lambda up to 0.3); the number is optional. In Python also a callable on items (a "
        "function, torchvision.transforms.v2, albumentations) or batches (kornia, `contraport.data.BatchTransform`); "
        "default: standard, or none if the data have several views or the views are frames.",
        serialize=_serialize_augment_option,
        check=_check_augment,
    )
    audit: bool = option(
        False,
        "Online audit, for data of two or more views: score all pairs up to five times during the training, and drop "
        "suspected mismatches; with three or more, score and drop single views of items. The share of wrong pairs is "
        "estimated from mismatches made on purpose, which are trained on in the first third of the epochs only. The "
        "scores are in `pairs.npz`, or `view_scores.npz`, of the run folder.",
        group="selection of pairs",
    )
