"""Options of `contraport evaluate`, `embed` and `export`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from contraport._utils.lazy_imports import import_object
from contraport.errors import check
from contraport.options import (
    TRAIN_AND_REPORT_EXTRAS,
    Command,
    int_in_range,
    matches_type,
    one_of,
    option,
    option_metadata,
)
from contraport.runs.shared_options import DIMS_HELP, VIEW_HELP, DataEmbeddingOptions, Run, TrustOptions

if TYPE_CHECKING:
    from contraport.encoders import Model
else:
    Model = Any  # options are read without torch, and their types with them


def check_metric_names(name: str, value: Any) -> None:
    """Raise `UsageError` unless a value lists names of metrics or groups."""
    check(matches_type(value, Sequence[str]), f"{name}: must be a list of names, got {value!r}.")
    import_object("contraport.metrics:select_metrics")(value)


def _check_distinct_dims(name: str, value: Any) -> None:
    """Raise `UsageError` unless a value is a list of different integers >= 1."""
    good = isinstance(value, list | tuple) and len(set(value)) == len(value)
    check(good, f"{name}: must be different integers >= 1, got {value!r}.")
    for size in value:
        int_in_range(1)(name, size)


def _check_templates(name: str, value: Any) -> None:
    """Raise `UsageError` unless each zero-shot prompt template contains ``{}`` once."""
    is_list = isinstance(value, list | tuple) and len(value) > 0
    good = is_list and all(isinstance(text, str) and text.count("{}") == 1 for text in value)
    check(good, f"{name}: each text must contain {{}} once, as in 'a photo of a {{}}.', got {value!r}.")


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(DataEmbeddingOptions):
    """Options of `contraport.evaluate`."""

    run: Sequence[str | Path | Run] | str | Path | Run = field(
        kw_only=False, metadata=option_metadata("Run folder, or several, which are compared item by item.")
    )
    data: str | Path | Any | None = option(
        None,
        "Data to evaluate on, as in `contraport train`; in Python also a pair (train, test), each of which "
        "gives its split of that name, or all items if it has no splits; default: the run's data.",
    )
    test_data: str | Path | Any | None = option(
        None,
        "Other test data, such as the same classes under other conditions: its test split, or all items of "
        "data without one; default: the test split of `data`.",
    )
    metrics: Sequence[str] = option(
        (),
        "Names of metrics or groups of metrics, or all (see `contraport list metrics`); default: the standard ones.",
        check=check_metric_names,
        deprecated_name="measures",
    )
    checkpoints: Literal["last", "all"] = option(
        "last",
        "Models to evaluate: last, or all, which includes the intermediate ones that `keep_every` saved.",
        check=one_of("last", "all"),
    )
    alone: bool = option(
        False,
        "Evaluate the trained encoder only: no baselines, no samples for `contraport report`, which take most time.",
    )
    dims: Sequence[int] = option(
        (),
        "Prefix lengths to evaluate in addition: for each, only that many first coordinates of each view's "
        "representation are used; default: those that the run trained with `matryoshka`.",
        check=_check_distinct_dims,
    )
    neighbors: int = option(20, "Number of neighbors of kNN.", check=int_in_range(1))
    classes: Sequence[str] = option(
        (),
        "Class names in the order of their numbers, for zero-shot classification by a run of texts and images; "
        "default: those of the data.",
    )
    templates: Sequence[str] = option(
        ("a photo of a {}.",),
        "Texts for the classes, with {} in place of the class name; the embeddings of several texts are averaged.",
        check=_check_templates,
    )


@dataclass(frozen=True, kw_only=True)
class SingleRunEvaluateOptions(EvaluateOptions):
    """Options of the typed `contraport.evaluate` overload that takes a single run."""

    run: str | Path | Run = field(kw_only=False)


@dataclass(frozen=True, kw_only=True)
class SeveralRunsEvaluateOptions(EvaluateOptions):
    """Options of the typed `contraport.evaluate` overload that takes several runs."""

    run: Sequence[str | Path | Run] = field(kw_only=False)


EVALUATE_COMMAND_SPEC = Command(
    EvaluateOptions,
    "contraport.evaluation:evaluate",
    "Evaluate a trained encoder on held-out items.",
    details="""
        Metrics are computed on the representation of the trained encoder and of its baselines: the raw inputs and the
        encoder before training, called `untrained` if its weights were random and `given` if it started from given
        weights. The mutual information, and retrieval between views with encoders of their own, use the projection.
        Metrics that the data do not allow, such as accuracies without labels, are noted.

        Every metric has a 95% bootstrap interval over the test items, and so has its difference from the baselines and
        from other runs on the same test items. For more than two runs the intervals of differences between runs hold
        for all pairs at once (Bonferroni correction). Nothing is trained again for the intervals, so they do not cover
        other training items or seeds. Each run folder gets the values, `intervals`, `differences` and `notes` in
        `evaluation.json`, samples for `contraport report` in `samples.npz`, and values per test item in `items.npz`.
    """,
    examples=(
        "contraport evaluate runs/photos",
        "contraport evaluate runs/a runs/b --metrics accuracy robustness",
        "contraport evaluate runs/photos --checkpoints all --metrics knn",
        "contraport evaluate runs/nested --dims 64 32 --metrics accuracy",
        'contraport evaluate runs/captioned --classes bag coat --templates "a {}" "a photo of a {}"',
    ),
    printer_path="contraport.cli.result_printers:print_metrics_differences_and_verdict",
    printer_flags={"all": "Print all computed metrics, not only the main ones."},
    next_commands_path="contraport.cli.next_commands:after_evaluate",
    required_extra=TRAIN_AND_REPORT_EXTRAS,
    group="train and evaluate",
    docs_page="evaluating",
)


@dataclass(frozen=True, kw_only=True)
class EmbedOptions(DataEmbeddingOptions):
    """Options of `contraport.embed`."""

    run: str | Path | Run = field(kw_only=False, metadata=option_metadata("Run folder."))
    data: str | Path | Any | None = option(
        None,
        "Data to embed, as in `contraport train`; default: the run's own, limited by its `max_items` and `test_items`.",
    )
    out: str | Path | None = field(
        metadata=option_metadata("Output file: .npz, .npy or .parquet. In Python also None, to return the features.")
    )
    split: Literal["train", "test", "all"] = option(
        "all",
        "Split to embed: train, test, or all, which is both in this order; in Python a Dataset is embedded as a whole.",
        check=one_of("train", "test", "all"),
    )
    shard_items: int | None = option(
        None, "Number of items per file, NAME.00000-of-00004.npz and so on; default: one file.", check=int_in_range(1)
    )
    view: str | int | None = option(None, VIEW_HELP)
    dims: int | None = option(None, DIMS_HELP, check=int_in_range(1))
    overwrite: bool = option(False, "Replace `out` if it exists.")


EMBED_COMMAND_SPEC = Command(
    EmbedOptions,
    "contraport.evaluation:embed",
    "Write the features of a dataset to a file.",
    details="""
        An `.npz` file contains the arrays `features` `(n, F)` float32, `rows` `(n,)` (row numbers in the source,
        where rows that were left out count too) and `splits` `(n,)`; if the data have them, `keys` `(n,)` (ids or
        paths, else beginnings of texts), `descriptions` `(n,)` (beginnings of texts that have ids or paths), and
        `labels` `(n,)` with `class_names`. A `.parquet` file contains the columns `f0`, `f1` and so on, `row`, `split`,
        `key`, `description`, `label` and `class_name`. An `.npy` file contains the features alone, with the other
        columns in `NAME.items.parquet` beside it. Features are written batch by batch.

        With several views, `view` selects one of them. The data may then contain that view alone, such as a folder of
        images for a run of images and captions. `contraport search` then finds these items by an item of another view.

        Under `torchrun` each process embeds its share of the items and writes one shard, `NAME.00000-of-00002.npz` and
        so on. Other commands read them all by `NAME.npz`.
    """,
    examples=(
        "contraport embed runs/photos --data photos/ --out photos.parquet",
        "contraport embed runs/captioned --view image --data photos/ --out photos.npz",
        "contraport embed runs/nested --dims 64 --out small.npz",
        "torchrun --nproc_per_node 4 -m contraport embed runs/photos --out photos.parquet",
    ),
    printer_path="builtins:print",
    next_commands_path="contraport.cli.next_commands:after_embed",
    required_extra=TRAIN_AND_REPORT_EXTRAS,
    group="use a trained encoder",
    docs_page="similarity-search",
)


@dataclass(frozen=True, kw_only=True)
class ExportOptions(TrustOptions):
    """Options of `contraport.export`."""

    run: str | Path | Run | Model = field(kw_only=False, metadata=option_metadata("Run folder, or in Python a model."))
    format: Literal["onnx", "torch-export", "torchscript", "safetensors"] | None = option(
        None,
        "Output format: onnx, torch-export, torchscript or safetensors; default: by the suffix of `out`, .onnx, .pt2 "
        "for torch-export or .pt for torchscript.",
        check=one_of("onnx", "torch-export", "torchscript", "safetensors"),
    )
    out: str | Path = field(metadata=option_metadata("Output file, or for safetensors the output folder."))
    view: str | int | None = option(None, VIEW_HELP)
    dims: int | None = option(None, DIMS_HELP, check=int_in_range(1))
    overwrite: bool = option(False, "Replace `out` if it exists.")


EXPORT_COMMAND_SPEC = Command(
    ExportOptions,
    "contraport.evaluation.model_export:export",
    "Export a trained encoder: ONNX, torch.export, TorchScript, safetensors.",
    details="""
        The exported model maps raw items, in batches of any size, to the representation; standardization is included.
        The written file is loaded again, and its features of random items must agree to 1e-5.

        - onnx: one file, for example for ONNX Runtime, with an input named after each represented view (`view0`,
          `view1` and so on if they have no names), and the output `features` `(b, num_features)`.
        - torch-export: one file for `torch.export.load`, in Python with torch alone, called with the views in order.
        - torchscript: one file for `torch.jit.load`, in Python or C++, called in the same way; newer versions of torch
          warn that it is deprecated.
        - safetensors: a folder with `config.json` and `model.safetensors`, projector included, which
          `contraport.encoders.Model.from_pretrained` and the Hugging Face hub read; loading it never unpickles.

        The views of the first three are float32: images `(b, C, H, W)` in [0, 1], vectors `(b, d)`, time series
        `(b, C, T)`.
    """,
    examples=(
        "contraport export runs/photos --out photos.onnx",
        "contraport export runs/photos --out photos.pt2",
        "contraport export runs/captioned --view image --out images.onnx",
        "contraport export runs/photos --format safetensors --out photos-model",
    ),
    printer_path="builtins:print",
    required_extra=TRAIN_AND_REPORT_EXTRAS,
    group="use a trained encoder",
    docs_page="export",
)
