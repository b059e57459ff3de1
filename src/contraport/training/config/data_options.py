"""Options of the data: what to train on, how it is read, and how it is made noisier or more varied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contraport.catalog.perturbation_specs import parse_corruptions, parse_domains, parse_imbalance, parse_mismatch
from contraport.errors import check
from contraport.options import Options, int_in_range, matches_type, option, option_metadata, to_config_value


def _named(data: Any) -> Any:
    """Return a name or a path as it is, and of what a program holds the name of its kind, in angle brackets."""
    if data is None or isinstance(data, str | Path):
        return to_config_value(data)
    name = getattr(data, "name", None)
    return f"<{name if isinstance(name, str) else type(data).__name__}>"


def _share(name: str, value: Any) -> None:
    good = matches_type(value, float) and 0 < value < 1
    check(good, f"{name}: expected a number between 0 and 1, got {value!r}.")


def _not_an_encoders(name: str, value: Any) -> None:
    check(matches_type(value, str | Path), f"{name}: expected text or a path, got {value!r}.")
    check(
        Path(value).suffix not in {".safetensors", ".pt", ".pth", ".ckpt"},
        f"{name}: how much each item counts is a column, an .npy file, classes or plan, got {str(value)!r}; an "
        "encoder's own weights are given as init (--init FILE).",
    )


def _different(name: str, value: Any) -> None:
    check(matches_type(value, Sequence[int]), f"{name}: expected numbers of views, got {value!r}.")
    check(len(set(value)) == len(value), f"{name}: expected each view once, got {list(value)}.")


def _mismatch(name: str, value: Any) -> None:
    parse_mismatch(value)


def _imbalance(name: str, value: Any) -> None:
    parse_imbalance(value)


def _corrupt(name: str, value: Any) -> None:
    parse_corruptions(value)


def _domains(name: str, value: Any) -> None:
    parse_domains(value)


@dataclass(frozen=True, kw_only=True)
class DataSettings(Options):
    """Options that name the data."""

    data: str | Path | Any | None = field(
        default=None,
        kw_only=False,
        metadata=option_metadata(
            "what to train on: a name (see `contraport list data`); a folder of images, of tar shards or of a Hugging "
            "Face dataset; an .npz, .npy, .csv, .jsonl, .parquet or .tar file, or a pattern of tars; a URL of one of "
            "these; or from Python a Dataset (of ours, torch or Hugging Face), a data frame, arrays, or a list of "
            "texts, paths or images.",
            serialize=_named,
            group="what to train on, and how",
            cli_flag=True,
        ),
    )
    recipe: str | None = option(
        None, "a named way to train (see `contraport list recipes`): settings that hold unless given here."
    )


@dataclass(frozen=True, kw_only=True)
class ValidationSettings(Options):
    """Which training items take the place of the test split."""

    validation: float | None = option(
        None,
        "share of each class of the training items that is held out in the place of the test split, so that settings "
        "can be chosen without a look at test items.",
        check=_share,
        group="reading the data",
    )


@dataclass(frozen=True, kw_only=True)
class ReadingSettings(Options):
    """How the data are read, and what is made of them."""

    image_size: int | None = option(
        None,
        "side in pixels of the square that images become; default: see `contraport.data.load`.",
        check=int_in_range(1),
        group="reading the data",
    )
    columns: dict[str, Any] | None = option(
        None,
        'of a table, the parts that its columns play: ``{"views": ["audio_*", "image"], "labels": "kind"}``, also '
        '"numbers", "domains", "split", "weights", "keys", what each row is called, and "sequence", which rows are the '
        "frames of one series; default: by their names and types.",
    )
    sample_weight: str | Path | None = option(
        None,
        "how much each item counts: the loss of a batch is the weighted mean of its rows' values. A column of the "
        "table; an .npy FILE with a nonnegative number for each training item, or for each row of the data, those that "
        "are held out too; or classes, so that each class counts the same; or plan, by how sure the batch's own "
        "balanced plan is of an item's pair, times the weights of the data: plan:0.9, with a strength from 0 to 1 or "
        "its course over the training. With the constraints balanced:marginals=weights and "
        "unbalanced:marginals=weights they are the masses that the plan's rows and columns are to have; default: those "
        "that an .npz names `weights`, else all alike.",
        check=_not_an_encoders,
        formerly="weights",
    )
    test_fraction: float | None = option(
        None,
        "share of each class that is held out, to be measured on by `contraport evaluate`, where the data have no test "
        "split of their own; 0 holds out none; default: 0.2.",
    )
    ignore_labels: bool = option(
        False, "leave out the classes that the data tell, such as the folders that images are in."
    )
    max_items: int | None = option(
        None,
        "at most so many items of each split, drawn at random, always the same ones.",
        check=int_in_range(4),
        formerly="items",
    )
    test_items: int | None = option(
        None,
        "at most so many test items, in the place of `max_items`: few to learn from may be judged on many, which tell "
        "small differences.",
        check=int_in_range(4),
    )
    given_views: Sequence[int] = option(
        (), "which of the views that the data give are used, by their numbers from 0; default: all.", check=_different
    )
    root: str | Path | None = option(None, "folder of named data, as torchvision lays it out.", scope="machine")
    num_workers: int | None = option(
        None,
        "processes that fetch data; default: none for data in memory, else one per core but one.",
        check=int_in_range(0),
        scope="machine",
        formerly="workers",
    )
    decoded: str | Path | None = option(
        None,
        "the folder where encoded images are kept as pixels of the size that is trained on, decoded once, which "
        "several trainings of the same data may share; none: each epoch decodes them; default: `decoded` in the run "
        "folder, none for one epoch.",
        scope="machine",
    )
    mismatch: float | str | None = option(
        None,
        "share of the training pairs that is shuffled, to see what wrong pairs do: of these items all views but the "
        "first are another one's. 0.2:class exchanges partners within a class. `mismatched.npz` keeps who is paired "
        "with whom.",
        check=_mismatch,
        group="noisier or more varied data",
    )
    imbalance: float | None = option(
        None,
        "leave out training items of some classes, always the same ones, to see what rare classes do: the sizes of the "
        "classes, in their order, fall by a constant factor, from that of the largest to so small a part of it as in "
        "100 for a hundredth.",
        check=_imbalance,
    )
    corrupt: str | None = option(
        None,
        "make the items of both splits worse, each always alike: noise, blur, brightness, contrast, occlusion or jpeg, "
        "of severity 1 to 5, as in blur:3, or several in turn, as in noise:3,blur:2; what is no image takes noise "
        "alone.",
        check=_corrupt,
    )
    domains: str | None = option(
        None,
        "deal images to four domains: rotate, by quarter turns, or style, plain, edges, posterised and inverted; with "
        "style:edges the training items are of the other domains, and the test items of this one alone.",
        check=_domains,
    )

    @property
    def has_file_weights(self) -> bool:
        """Whether the weights are in a file by themselves, rather than in a column of the data."""
        return (
            self.sample_weight is not None and not self.has_plan_weights and Path(self.sample_weight).suffix == ".npy"
        )

    @property
    def has_column_weights(self) -> bool:
        """Whether the weights are in a column of the data that is named."""
        elsewhere = self.has_plan_weights or self.has_file_weights or self.has_class_weights
        return self.sample_weight is not None and not elsewhere

    @property
    def has_class_weights(self) -> bool:
        """Whether the weights are such that each class counts the same."""
        return self.sample_weight == "classes"

    @property
    def has_plan_weights(self) -> bool:
        """Whether the weights are those of each batch's own plan."""
        return str(self.sample_weight).partition(":")[0] == "plan"
