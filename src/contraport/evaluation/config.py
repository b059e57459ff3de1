"""Options of `contraport evaluate`, `embed` and `export`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from contraport._utils.lazy import import_object
from contraport.command import EXTRA, TRAIN_AND_EVALUATE, USE_ENCODER, Command
from contraport.errors import check
from contraport.options import int_in_range, one_of, option, option_metadata
from contraport.runs.config import VIEW, EncoderOptions, Run, RunOptions, TrustOptions, is_run

if TYPE_CHECKING:
    from contraport.encoders import Model
else:
    Model = Any  # options are read without torch, and their types with them


def _names_of_measures(name: str, value: Sequence[str]) -> None:
    import_object("contraport.metrics:select_metrics")(value)


def _templates(name: str, value: Any) -> None:
    given = isinstance(value, list | tuple) and len(value) > 0
    good = given and all(isinstance(text, str) and text.count("{}") == 1 for text in value)
    check(good, f"{name}: expected texts with {{}} once in each, such as 'a photo of a {{}}.', got {value!r}.")


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(EncoderOptions):
    """Options of `contraport.evaluate`; see there for each."""

    run: Sequence[str | Path | Run] | str | Path | Run = field(
        kw_only=False,
        metadata=option_metadata("the run folder, or several, which are compared item by item.", check_exists=is_run),
    )
    data: str | Path | Any | None = option(
        None,
        "what to measure on: as in `contraport train`, or from Python a pair (train, test), each taken whole "
        "unless it has a test split of its own; default: the run's own.",
    )
    test_data: str | Path | Any | None = option(
        None,
        "what to judge on instead, such as the same classes under other conditions: its test split; default: that of "
        "`data`.",
    )
    metrics: Sequence[str] = option(
        (),
        "names of measures, or of groups of them, or all (see `contraport list metrics`); default: those that are "
        "usual.",
        check=_names_of_measures,
        formerly="measures",
    )
    checkpoints: Literal["last", "all"] = option(
        "last",
        "last, or all: also the models that `keep_every` kept on the way, so that numbers are known epoch by epoch.",
        check=one_of("last", "all"),
    )
    alone: bool = option(
        False,
        "measure the trained encoder alone: neither what it began as nor the raw inputs, and nothing for the page to "
        "draw, which together take most of the time.",
    )
    neighbors: int = option(20, "how many vote in kNN.", check=int_in_range(1))
    classes: Sequence[str] = option(
        (),
        "what the classes are called in a text, in the order of their numbers, for zero-shot classification by a run "
        "of texts and images, say; default: as the data call them.",
    )
    templates: Sequence[str] = option(
        ("a photo of a {}.",),
        "texts that name a class in the place of {}; of several the mean is taken.",
        check=_templates,
    )


EVALUATE = Command(
    EvaluateOptions,
    "contraport.evaluation:evaluate",
    "Measure a trained encoder on held-out items.",
    details="""
        Every number is about the representation, not the projection, beside the raw inputs and the same encoder before
        training: `untrained` if its weights were drawn, `given` if it began with weights. `notes` names metrics that
        the data do not allow, such as accuracies without labels, and the epoch of the model if the training was
        extended and has not ended.

        Every number has a bootstrap interval of 95 % over the test items, in `intervals`, and so has its
        difference from the other rows, and from other runs on the same test items, in `differences`; of
        more than two runs these hold for all pairs of runs at once (Bonferroni's correction). Nothing is fitted
        again, so that they say nothing of other training items or seeds. The result is also written to each
        run's `evaluation.json`, and what the page draws to its `samples.npz`; what a measure says of each test item,
        where the number is the mean of that, to `items.npz`.
    """,
    examples=(
        "contraport evaluate runs/photos",
        "contraport evaluate runs/a runs/b --metrics accuracy robustness",
        "contraport evaluate runs/photos --checkpoints all --metrics knn",
        'contraport evaluate runs/captioned --classes bag coat --templates "a {}" "a photo of a {}"',
    ),
    printer="contraport.cli.console:print_evaluation",
    extra=EXTRA,
    group=TRAIN_AND_EVALUATE,
    page="evaluating",
)


@dataclass(frozen=True, kw_only=True)
class EmbedOptions(RunOptions):
    """Options of `contraport.embed`; see there for each."""

    data: str | Path | Any | None = option(
        None,
        "what to embed: as in `contraport train`; default: the run's own, of which as many as its `max_items` and "
        "`test_items` took.",
    )
    out: str | Path = field(metadata=option_metadata("the file to write, .npz, .npy or .parquet."))
    split: Literal["train", "test", "all"] = option(
        "all",
        "train, test, or all: both, one after the other; a Dataset is one split, and all of it is embedded.",
        check=one_of("train", "test", "all"),
    )
    shard_items: int | None = option(
        None,
        "write files of so many items each, NAME.00000-of-00004.npz and so on; default: one file.",
        check=int_in_range(1),
    )
    view: str | int | None = option(None, VIEW)
    overwrite: bool = option(False, "replace `out` where it exists.")


EMBED = Command(
    EmbedOptions,
    "contraport.evaluation:embed",
    "Write the features of some data to a file.",
    details="""
        An `.npz` file has the arrays `features` `(n, F)` float32, `rows` `(n,)` (the number of each item in its source,
        what was left out counted) and `splits` `(n,)`; where the items have names, such as paths, `keys` `(n,)`; and
        where there are labels `labels` `(n,)` and `class_names`. A `.parquet` file has the columns `f0`, `f1` and so
        on, `row`, `split`, `key`, `label` and `class_name`. An `.npy` file has the features alone, and
        `NAME.items.parquet` beside it the other columns. `run` is the folder of the run. Features are written as they
        come, so that memory holds some items at a time, and what each is of all.

        Of a run of several views `view` embeds one of them, and the data may have that one alone, as a folder of images
        has for a run of images and captions. The file says which view it is of, and `contraport search` finds its items
        by another.

        Under `torchrun` each process embeds its share of the items and writes it beside `out`, as
        `NAME.00000-of-00002.npz` and so on; the shards in the order of their numbers are the items in their order.
    """,
    examples=(
        "contraport embed runs/photos --data photos/ --out photos.parquet",
        "contraport embed runs/captioned --view image --data photos/ --out photos.npz",
        "torchrun --nproc_per_node 4 -m contraport embed runs/photos --out photos.parquet",
    ),
    printer="builtins:print",
    extra=EXTRA,
    group=USE_ENCODER,
    page="searching",
)


@dataclass(frozen=True, kw_only=True)
class ExportOptions(TrustOptions):
    """Options of `contraport.export`; see there for each."""

    run: str | Path | Run | Model = field(
        kw_only=False, metadata=option_metadata("the run folder, or from Python a model.", check_exists=is_run)
    )
    format: Literal["onnx", "torch-export", "torchscript", "safetensors"] | None = option(
        None,
        "onnx, torch-export, torchscript or safetensors; default: by how the name of `out` ends, .onnx, .pt2 for "
        "torch-export or .pt for torchscript, otherwise onnx.",
        check=one_of("onnx", "torch-export", "torchscript", "safetensors"),
    )
    out: str | Path = field(metadata=option_metadata("the file to write, or for safetensors the folder."))
    view: str | int | None = option(None, VIEW)
    overwrite: bool = option(False, "replace `out` where it exists.")


EXPORT = Command(
    ExportOptions,
    "contraport.evaluation.model_export:export",
    "Write a trained encoder for other programs: ONNX, torch.export, safetensors.",
    details="""
        All formats take raw items, which are standardised inside, in batches of any size, and give the
        representation. What was written is read again and must give the same features, to 1e-5, on random items in
        batches of other sizes.

        - onnx: one file for ONNX Runtime and the like, with an input for each view that the representation is made of,
          by its name (`view0`, `view1` and so on where it has none), and an output `features` `(b, num_features)`.
        - torch-export: one file for `torch.export.load`, from Python with torch alone; its module is called with the
          same views in order.
        - torchscript: one file for `torch.jit.load`, from Python or C++, called in the same way; newer versions of
          torch warn that they will drop it.
        - safetensors: a folder with `config.json` and `model.safetensors`, the projector too, which
          `contraport.encoders.Model.from_pretrained` and the Hugging Face hub read; nothing in it is ever unpickled.

        The views of the first three are float32: images `(b, C, H, W)` in [0, 1], vectors `(b, d)`, time series
        `(b, C, T)`.
    """,
    examples=(
        "contraport export runs/photos --out photos.onnx",
        "contraport export runs/photos --out photos.pt2",
        "contraport export runs/captioned --view image --out images.onnx",
        "contraport export runs/photos --format safetensors --out photos-model",
    ),
    printer="builtins:print",
    extra=EXTRA,
    group=USE_ENCODER,
    page="export",
)
