"""The settings of a training: the one place where each has its name, type, default, check and help.

From here follow the keywords of `contraport.train`, the options of the command line and their groups, what
`config.yaml` keeps, and what may change when a run goes on. What a part alone can judge (the name of an encoder, a
course of the temperature) the part judges when it is built, which is before anything is touched too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contraport.errors import UsageError, check
from contraport.runs.options import (
    fits,
    is_object,
    name_of,
    not_negative,
    one_of,
    option,
    options_of,
    positive,
    some_of,
    whole,
)


def _described(encoder: Any) -> Any:
    # Here, not above: it looks at modules, and the rest needs no torch.
    from contraport.encoders import described

    return described(encoder)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a training is asked to do; see `contraport.train` for each.

    Raises:
        UsageError: a value that is wrong, or values that do not go together.

    >>> Settings(data="digits", epochs=3).accumulate
    1
    >>> Settings(epochs=0)
    Traceback (most recent call last):
    contraport.errors.UsageError: epochs: expected a whole number from 1 on, got 0.
    """

    data: str | Path | Any | None = option(
        None,
        "what to train on: a name (see `contraport list data`); a folder of images, of tar shards or of a Hugging Face "
        "dataset; an .npz, .npy, .csv, .parquet or .tar file, or a pattern of tars; or any map-style Dataset.",
        group="what to train on, and how",
    )
    recipe: str | None = option(
        None, "a named way to train (see `contraport list recipes`): settings that hold unless given here."
    )
    objective: str | Any | None = option(
        "nt-xent",
        "a name (see `contraport list objectives`), or a module that is called with the projections of two views. Of "
        "more than two views an objective for two takes the mean over all pairs, unless it takes all, as cmc does.",
        group="objective",
    )
    objective_settings: dict[str, Any] | None = option(
        None, 'further settings of a named objective, such as ``{"iterations": 5}``.'
    )
    temperature: float | str | None = option(
        None,
        "of a named objective, or its course over the training: start:end or start:end:shape, the shape cosine "
        "(default) or linear, such as 0.5:0.1:cosine; default: the objective's own.",
    )
    constraint: str | None = option(
        None,
        "which plans are allowed: free, simplex, rows, columns, balanced:iterations=5, unbalanced:relaxation=0.2 or "
        "quadratic:over=rows, with their settings; or a course, tighten:every=N, from rows only to balanced by 1, 2, 4 "
        "and 8 iterations, each for N epochs, or relax:every=N, the reverse; default: the objective's own.",
    )
    negatives: str = option(
        "in-batch",
        "what a query is compared with besides the batch: nothing (in-batch), the embeddings of earlier batches "
        "(queue), or some of a bank that keeps one for every item, the positive too (bank). Each view is then compared "
        "with each other in turn, and the mean is taken.",
        check=one_of("in-batch", "queue", "bank"),
        group="what embeddings are compared with",
    )
    queue_size: int | None = option(
        None,
        "how many embeddings of each view the queue keeps; default: as many as there are items, at most 65536.",
        check=whole(1),
    )
    bank_negatives: int | None = option(
        None,
        "how many are drawn from the bank at each step; default: as many as there are items, at most 4096.",
        check=whole(1),
    )
    momentum: float | str | None = option(
        None,
        "how much of itself a second, slow network keeps at each step; it gives the embeddings that the others are "
        "compared with. A number below 1, such as 0.99, or a course, such as 0.99:1:cosine; the fewer steps, the "
        "smaller; default: no second network.",
    )
    predictor: bool = option(
        False,
        "put a head on the projections that predicts the other view's embedding, which is then held fixed.",
    )
    prototypes: int | None = option(
        None,
        "compare with so many learned vectors instead: predict to which of them another view is assigned.",
        check=whole(2),
    )
    predict: str | None = option(
        None,
        "l1 or l2: compare nothing, and decode each view from each other with this error.",
        check=one_of("l1", "l2"),
    )
    views: int | str | None = option(
        None,
        "how many random views of an item to make; or colour (lightness and colours of an RGB image); or multi-crop, "
        "which is 2+6: two large and six small crops; default: two, or all that the data give.",
        group="views",
    )
    augment: str | None = option(
        None,
        "how views are changed at random: none, weak, standard, strong, noise or mixup; default: standard, or none "
        "where the data give several views.",
        check=one_of("none", "weak", "standard", "strong", "noise", "mixup"),
    )
    encoder: Sequence[str | Any] | str | Any | None = option(
        None,
        "a name (see `contraport list encoders`), any timm name, `module:attribute` of your own, or a module of which "
        "a copy is trained; or a list of one per view; default: small-cnn for images, mlp for vectors, small-tcn for "
        "time series.",
        written=_described,
        group="networks",
    )
    shared_encoder: bool | None = option(
        None,
        "one encoder for all views rather than one each; default: where views are random changes of one.",
    )
    projection: int = option(
        128,
        "features of the projection that the objective sees; 0: no projection, it sees the encoder's, as is so with "
        "`predict`.",
        check=whole(0),
    )
    representation: str = option(
        "concatenate",
        "what the trained model gives of several views: concatenate, or one of them by its number.",
    )
    epochs: int = option(10, "passes over the data.", check=whole(1), grows=True, group="optimisation")
    batch_size: int = option(
        256, "items in a batch, of all processes together; a smaller last batch is left out.", check=whole(2)
    )
    cache_chunk: int | None = option(
        None,
        "encode a batch in chunks of at most so many items, of all processes together, each computed twice: the "
        "gradient of the whole batch with the memory of a chunk. Batch norm sees one chunk at a time, the same chunks "
        "however many processes there are; default: all at once.",
        check=whole(2),
    )
    accumulate: int = option(
        1,
        "batches whose gradients are added up for one step. Unlike cache_chunk it adds no negatives.",
        check=whole(1),
    )
    opt: str = option("adamw", "optimiser, a name of timm's, such as adamw, sgd (with Nesterov's momentum) or lars.")
    lr: float | None = option(
        None,
        "peak learning rate; default: 0.001 for adamw and adam, 0.06 for sgd, 0.002 for lamb, 0.3 for lars; all suit "
        "256 items in a step. For more, multiply by items / 256 for sgd and lars, by its square root for the others.",
        check=positive,
    )
    weight_decay: float = option(
        1e-4, "decay of weights; biases, norms and the temperature have none.", check=not_negative
    )
    sched: str = option(
        "cosine",
        "how the learning rate falls after warm-up: cosine, linear or constant.",
        check=one_of("cosine", "linear", "constant"),
    )
    warmup_epochs: float | None = option(
        None,
        "epochs, or a part of one, in which the learning rate rises; default: a tenth of `epochs`.",
        check=not_negative,
    )
    image_size: int | None = option(
        None,
        "side in pixels of the square that images become; default: see `contraport.data.load`.",
        check=whole(1),
        group="reading the data",
    )
    columns: dict[str, Any] | None = option(
        None,
        'of a table, the parts that its columns play: ``{"views": ["audio_*", "image"], "labels": "kind"}``, also '
        '"domains" and "split"; default: by their names and types.',
    )
    test_fraction: float | None = option(
        None,
        "share of each class that is held out, to be measured on by `contraport evaluate`, where the data have no test "
        "split of their own; default: 0.2.",
    )
    root: str | Path | None = option(None, "folder of named data, as torchvision lays it out.", holds="machine")
    workers: int | None = option(
        None,
        "processes that fetch data; default: none for data in memory, else one per core but one.",
        check=whole(0),
        holds="machine",
    )
    device: str = option(
        "auto",
        "auto, cpu, cuda or mps.",
        check=one_of("auto", "cpu", "cuda", "mps"),
        holds="machine",
        group="computing",
    )
    amp: bool = option(False, "compute in bfloat16 where that is safe (the objective stays in float32).")
    seed: int = option(
        0,
        "what all that is random depends on.",
        check=whole(0, most=2**64 - 1),  # what torch's generators take
    )
    log_every: int = option(
        10, "steps between two rows of `metrics.jsonl`.", check=whole(1), group="the run and its folder"
    )
    logger: Sequence[str] = option(
        (),
        "where the rows go too: tensorboard, mlflow, wandb, or several of them.",
        check=some_of("tensorboard", "mlflow", "wandb"),
        holds="machine",
    )
    save_every: float = option(
        10.0,
        "minutes between two checkpoints within an epoch; 0 saves after every step.",
        check=not_negative,
        holds="machine",
    )
    keep_every: int | None = option(
        None,
        "epochs between two checkpoints that are kept beside the last; default: keep the last only.",
        check=whole(1),
    )
    out: str | Path | None = option(
        None, "the run folder; default: runs/DATA-RECIPE or runs/DATA-OBJECTIVE.", holds="call"
    )
    resume: bool = option(
        False,
        "go on with the run in `out`; what is left out comes from its `config.yaml`, and `epochs` may grow.",
        holds="call",
    )
    overwrite: bool = option(
        False, "replace the run in `out`, which is kept until the new one has a checkpoint.", holds="call"
    )
    trust: bool = option(
        False,
        "on resume, import and run the encoder that the run names as ``module:attribute``.",
        holds="call",
    )
    progress: bool = option(True, "show a progress bar and a summary on the standard error.", holds="call")

    def __post_init__(self) -> None:
        mine: type = type(self)
        for name, known in options_of(mine).items():
            known.judge(getattr(self, name))
        if self.warmup_epochs is not None:
            not_negative("warmup_epochs", self.warmup_epochs, below=self.epochs)
        self._check_negatives()
        self._check_predict()
        check(not (self.resume and self.overwrite), "resume: goes on with a run that overwrite would delete.")

    @property
    def warmup(self) -> float:
        """Epochs in which the learning rate rises."""
        return self.epochs / 10 if self.warmup_epochs is None else self.warmup_epochs

    @property
    def method(self) -> str:
        """What the training does, in a word: its recipe, or its objective, or what it predicts by."""
        return self.recipe or name_of(self.objective or f"predict-{self.predict}")

    @property
    def own_encoder(self) -> Any | None:
        """The modules that were given as encoders, which no folder holds; none where all have names."""
        return self.encoder if is_object(_described(self.encoder)) else None

    def kept(self) -> dict[str, Any]:
        """Return what `config.yaml` keeps: the settings that say what the run is, as plain values.

        >>> kept = Settings(data=Path("photos"), objective=object(), out="runs/x").kept()
        >>> kept["data"], kept["objective"], "out" in kept
        ('photos', '<object>', False)
        """
        return {name: known.written(getattr(self, name)) for name, known in KEPT.items()}

    def _check_negatives(self) -> None:
        needs = "expected nothing, as it belongs to negatives"
        check(
            self.queue_size is None or self.negatives == "queue", f"queue_size: {needs}='queue', got {self.queue_size}."
        )
        check(
            self.bank_negatives is None or self.negatives == "bank",
            f"bank_negatives: {needs}='bank', got {self.bank_negatives}.",
        )
        check(
            self.prototypes is None or self.negatives == "in-batch",
            "prototypes: stand in the place of negatives; expected negatives='in-batch' with them, got "
            f"{self.negatives!r}.",
        )

    def _check_predict(self) -> None:
        if self.predict is None:
            return
        own = [name for name in ("objective", "objective_settings", "temperature", "constraint") if getattr(self, name)]
        check(not own, f"{own[0] if own else ''}: predict compares nothing and has none; give one of the two.")
        check(self.projection == 0, f"projection: predict decodes features; expected 0, got {self.projection}.")
        alone = self.negatives == "in-batch" and self.momentum is None and not self.predictor
        check(
            alone and self.prototypes is None,
            "predict: compares nothing; expected neither negatives, momentum, predictor nor prototypes with it.",
        )


OPTIONS = options_of(Settings)
"""What is known of each setting, by its name."""

KEPT = {name: known for name, known in OPTIONS.items() if known.holds != "call"}
"""Those that `config.yaml` keeps."""


def check_kept(config: Mapping[str, Any], where: object) -> None:
    """Raise `UsageError` unless the values of a `config.yaml` can be settings; names that are none are passed."""
    for name in config.keys() & KEPT.keys():
        kind, value = KEPT[name].kind, config[name]
        if not fits(value, kind, objects=False):
            raise UsageError(f"run: {where} is corrupt: {name} is {value!r}.")
