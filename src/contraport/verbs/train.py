"""What `contraport train` is asked: the settings of a training, each with its name, type, default, check and help.

From here follow the keywords of `contraport.train`, the options of the command line and their groups, what
`config.yaml` keeps, and what may change when a run goes on. What a part alone can judge (the name of an encoder, a
constraint) the part judges when it is built, which is before anything is touched too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contraport.catalog import resolve
from contraport.catalog.augments import parse_augment
from contraport.catalog.encoders import ENCODERS
from contraport.catalog.versions import parse_corruption, parse_domains, parse_mismatch
from contraport.course import SHAPES, is_learned, parse_learned, parse_momentum, parse_temperature
from contraport.errors import UsageError, check
from contraport.importing import imported
from contraport.options import (
    Check,
    Options,
    fits,
    in_words,
    is_object,
    name_of,
    not_negative,
    one_of,
    option,
    options_of,
    plain,
    positive,
    some_of,
    whole,
)
from contraport.verbs import EXTRA, LEARN, Verb


def _described(encoder: Any) -> Any:
    # Here, not above: it looks at modules, and the rest needs no torch.
    from contraport.encoders import described

    return described(encoder)


def _named(data: Any) -> Any:
    """Return a name or a path as it is, and of what a program holds the name of its kind, in angle brackets."""
    if data is None or isinstance(data, str | Path):
        return plain(data)
    name = getattr(data, "name", None)
    return f"<{name if isinstance(name, str) else type(data).__name__}>"


def _changing(augment: Any) -> Any:
    """Return the name of a random change; of a callable that of its class or function, in angle brackets."""
    if augment is None or isinstance(augment, str):
        return augment
    change = getattr(augment, "change", augment)
    return f"<{getattr(change, '__name__', type(change).__name__).strip('<>')}>"


def _views_named(*values: Any) -> list[str | None]:
    """Return the views that some of the values are for, or None alone where each is for all."""
    named = [view for value in values if isinstance(value, Mapping) for view in value]
    return list(dict.fromkeys(named)) or [None]


def _of_view(value: Any, view: str | None) -> Any:
    """Return what a value is for a view, which may be one for all."""
    return value.get(view) if isinstance(value, Mapping) else value


def _is_given(encoder: Any) -> bool:
    """Return whether an encoder is one of the user's, which may bring weights, or a list with one."""
    several = encoder.values() if isinstance(encoder, Mapping) else encoder
    names = several if isinstance(encoder, list | tuple | Mapping) else [encoder]
    return any(name is not None and (not isinstance(name, str) or ":" in name or is_object(name)) for name in names)


def _of_views(each: Check) -> Check:
    """Return a check for a value that another check takes, or such values by the views that they are for."""

    def judge(name: str, value: Any) -> None:
        if not isinstance(value, Mapping):
            each(name, value)
            return
        check(len(value) > 0, f"{name}: expected the name of a view with each value, got none.")
        for view, one in value.items():
            each(f"{name}.{view}", one)

    return judge


def _is(kind: Any) -> Check:
    """Return a check for a value of a type."""

    def judge(name: str, value: Any) -> None:
        check(fits(value, kind), f"{name}: expected {in_words(kind)}, got {value!r}.")

    return judge


def _temperature(name: str, value: Any) -> None:
    if is_learned(value):
        parse_learned(value)
    else:
        parse_temperature(value, steps=1)


def _augment(name: str, value: Any) -> None:
    if isinstance(value, str) and not is_object(value):  # what a folder tells of an object is none of the names
        parse_augment(value)
    good = isinstance(value, str) or callable(value) or callable(getattr(value, "change", None))
    check(good, f"augment: expected a name or a callable, got {value!r}.")


def _momentum(name: str, value: Any) -> None:
    parse_momentum(value, steps=1)


def _share(name: str, value: Any) -> None:
    good = fits(value, float) and 0 < value < 1
    check(good, f"{name}: expected a number between 0 and 1, got {value!r}.")


def _mismatch(name: str, value: Any) -> None:
    parse_mismatch(value)


def _corrupt(name: str, value: Any) -> None:
    parse_corruption(value)


def _domains(name: str, value: Any) -> None:
    parse_domains(value)


def _watches(name: str, value: Sequence[str]) -> None:
    imported("contraport.measures.monitoring:parse_watches")(value)


@dataclass(frozen=True, kw_only=True)
class Settings(Options):
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
        "dataset; an .npz, .npy, .csv, .jsonl, .parquet or .tar file, or a pattern of tars; a URL of one of these; or "
        "from Python a Dataset (of ours, torch or Hugging Face), a data frame, arrays, or a list of texts, paths or "
        "images.",
        written=_named,
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
        "(default) or linear, such as 0.5:0.1:cosine; or learn, from the objective's own on, or from another "
        "number, as in learn:0.07; default: the objective's own.",
        check=_temperature,
    )
    constraint: str | None = option(
        None,
        "which plans are allowed: free, simplex, rows, columns, balanced:iterations=5, unbalanced:relaxation=0.2 or "
        "tsallis:order=2, with their settings; or a course, tighten:every=N, from rows only to balanced by 1, 2, 4 "
        "and 8 iterations, each for N epochs, or relax:every=N, the reverse; default: the objective's own.",
    )
    target: str | None = option(
        None,
        "which plan is wanted, instead of the objective's own: pairs, the views of an item; labels; "
        "domains:alpha=0.1,beta=0, an item's views, and with these weights other items of its domain and of others; "
        "neighbors:k=5, the nearest embeddings by the first views as given, or by features=FILE; soft:FILE, by how "
        "alike the rows of a file are (temperature=0.1), such as a teacher's features; matrix:FILE, by a matrix "
        "between the items, .npy or scipy's sparse .npz; shown, the views of an item and of those that show the same, "
        "as an image with several captions does, which is the default of pairs of which some do. A file of features is "
        "an .npy with a row for each training item, or an .npz that `contraport embed` wrote.",
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
        check=_momentum,
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
        "how many random views of an item to make; or colour (lightness and colours of an RGB image); or frames, two "
        "windows next to one another in a time series (frames:16: of 16 steps each; default: of a quarter of it); or "
        "multi-crop, which is 2+6: two large and six small crops; default: two, or all that the data give.",
        group="views",
    )
    augment: str | Any | None = option(
        None,
        "how views are changed at random: none; weak, standard or strong, as suits the data; or what needs to know "
        "nothing of them, noise (x + delta) or mixup (x_i + lambda (x_j - x_i)), alone or with a strength, as in "
        "noise:0.2, the deviation of delta in units of the data's own, and mixup:0.3, the largest lambda; default: "
        "standard, or none where the data give several views or these are frames. From Python also a callable, on each "
        "item (torchvision's v2, albumentations, a function) or on batches (kornia, or `contraport.data.OnBatches`).",
        written=_changing,
        check=_augment,
    )
    audit: bool = option(
        False,
        "of data of two given views, look every few epochs which pairs seem wrong, and leave these out; the folder "
        "keeps the scores. How many are wrong is estimated with known mismatches that take part for a third of it.",
        group="which pairs",
    )
    encoder: Sequence[str | Any] | dict[str, Any] | str | Any | None = option(
        None,
        "a name (see `contraport list encoders`), any timm name, of texts any transformers name or folder, "
        "`module:attribute` of your own, or a module of which a copy is trained; or a list of one per view; or those "
        "of some views by their names or kinds, such as --encoder.image resnet18 --encoder.audio small-tcn; default: "
        "small-cnn for images, mlp for vectors, small-tcn for time series, small-text for texts.",
        written=_described,
        group="networks",
    )
    pretrained: bool | dict[str, Any] = option(
        False,
        "begin with the weights that timm, or for texts transformers, has of the encoder: in a folder, on the Hugging "
        "Face hub or as downloaded before; images are standardised, and unless `image_size` is given sized, "
        "as those that it was trained on. Or of some views, as in --pretrained.text.",
        check=_of_views(_is(bool)),
    )
    init: str | Path | dict[str, Any] | None = option(
        None,
        "begin with the encoder's weights in a file (.safetensors or .pt), in a folder of timm's, transformers' or of "
        "`contraport export`, or in a run of your own, such as runs/photos, whose encoder it is then by default. Or of "
        "some views, as in --init.image runs/photos --init.text models/minilm.",
        check=_of_views(_is(str | Path)),
    )
    freeze: bool | dict[str, Any] = option(
        False,
        "hold the encoder as it is, not a bit of it moves, so that only what follows it learns; or those of some "
        "views, as in --freeze.image.",
        check=_of_views(_is(bool)),
    )
    lora: int | dict[str, Any] | None = option(
        None,
        "hold the encoder and let adapters of this rank learn beside its linear layers, or of a network without such "
        "beside its convolutions (LoRA, extra `peft`); or those of some views, as in --lora.text 8. The trained model "
        "has them in its weights.",
        check=_of_views(whole(1)),
    )
    freeze_epochs: int = option(
        0, "epochs for which the encoder is held at first, while the rest learns.", check=whole(0)
    )
    frozen_draws: int | None = option(
        None,
        "with `freeze` of all views, how many random views of each kind and item are encoded, once, and kept to be "
        "drawn from; 0: none is kept, and each step encodes its own; default: 4, or 0 with several processes.",
        check=whole(0),
    )
    features: str | Path | None = option(
        None,
        "the folder where the features of a frozen encoder are kept, which several trainings of the same data, encoder "
        "and seed may share; default: `features` in the run folder.",
        holds="machine",
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
    projection_layers: int | None = option(
        None,
        "linear layers between the encoder and what the objective sees, with batch norm and ReLU between them: 0 for "
        "none, as with a `projection` of 0; 1, a linear map; 2 or 3; default: 2, or 0 with a `projection` of 0. What "
        "training takes from an embedding it takes from the layers next to the objective, so more of them keep more in "
        "the encoder's, which is what is used afterwards.",
        check=whole(0, most=3),
    )
    representation: str | None = option(
        None,
        "what the trained model gives of several views: concatenate what the encoder makes of them, or take one of "
        "them by its name, number or kind; or projection, what the objective sees; or both, what the encoder makes of "
        "them and the projection, each of length one; default: concatenate; with `freeze`, where nothing but the "
        "projection learns, both for items of one view and projection for those of several.",
    )
    epochs: int = option(10, "passes over the data.", check=whole(1), grows=True, group="optimisation")
    steps: int | None = option(
        None,
        "how many steps to train, instead of `epochs`: rounded up to whole epochs; or of a stream, of which nobody "
        "knows how many items it has, the steps of an epoch, of which there is then one unless `epochs` says more.",
        check=whole(1),
    )
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
    encoder_lr_scale: float = option(
        1.0,
        "what the learning rate is multiplied by for the encoder, such as 0.1 for a pretrained one.",
        check=positive,
    )
    layer_decay: float | None = option(
        None,
        "what the learning rate is multiplied by for each layer of a timm encoder below its last, such as 0.75; "
        "default: all layers have one.",
        check=positive,
    )
    weight_decay: float = option(
        1e-4, "decay of weights; biases, norms and the temperature have none.", check=not_negative
    )
    sched: str = option(
        "cosine",
        "how the learning rate falls after warm-up: cosine, linear or constant.",
        check=one_of(*SHAPES),
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
        '"numbers", "domains", "split", "weights" and "sequence", which rows are the frames of one series; default: by '
        "their names and types.",
    )
    weights: str | Path | None = option(
        None,
        "how much each item counts: the loss of a batch is the weighted mean of its rows' values. A column of the "
        "table; an .npy FILE with a nonnegative number for each training item, or for each row of the data, those that "
        "are held out too; or plan, by how sure the batch's own balanced plan is of an item's pair, times the weights "
        "of the data: plan:0.9, with a strength from 0 to 1 or its course over the training. With the constraints "
        "balanced:marginals=weights and unbalanced:marginals=weights they are the masses that the plan's rows and "
        "columns are to have; default: those that an .npz names `weights`, else all alike.",
    )
    test_fraction: float | None = option(
        None,
        "share of each class that is held out, to be measured on by `contraport evaluate`, where the data have no test "
        "split of their own; default: 0.2.",
    )
    ignore_labels: bool = option(
        False, "leave out the classes that the data tell, such as the folders that images are in."
    )
    validation: float | None = option(
        None,
        "share of each class of the training items that is held out in the place of the test split, so that settings "
        "can be chosen without a look at test items.",
        check=_share,
    )
    items: int | None = option(
        None, "at most so many items of each split, drawn at random, always the same ones.", check=whole(4)
    )
    given_views: Sequence[int] = option(
        (), "which of the views that the data give are used, by their numbers from 0; default: all."
    )
    root: str | Path | None = option(None, "folder of named data, as torchvision lays it out.", holds="machine")
    workers: int | None = option(
        None,
        "processes that fetch data; default: none for data in memory, else one per core but one.",
        check=whole(0),
        holds="machine",
    )
    decoded: str | Path | None = option(
        None,
        "the folder where encoded images are kept as pixels of the size that is trained on, decoded once, which "
        "several trainings of the same data may share; none: each epoch decodes them; default: `decoded` in the run "
        "folder, none for one epoch.",
        holds="machine",
    )
    mismatch: float | str | None = option(
        None,
        "share of the training pairs that is shuffled, to see what wrong pairs do: of these items all views but the "
        "first are another one's. 0.2:class exchanges partners within a class. `mismatched.npz` keeps who is paired "
        "with whom.",
        check=_mismatch,
        group="noisier or more varied data",
    )
    corrupt: str | None = option(
        None,
        "make the items of both splits worse, each always alike: noise, blur, brightness, contrast, occlusion or jpeg, "
        "of severity 1 to 5, as in blur:3; what is no image takes noise alone.",
        check=_corrupt,
    )
    domains: str | None = option(
        None,
        "deal images to four domains: rotate, by quarter turns, or style, plain, edges, posterised and inverted; with "
        "style:edges the training items are of the other domains, and the test items of this one alone.",
        check=_domains,
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
    monitor: Sequence[str] = option(
        (),
        "what is measured of some training items at the end of each epoch, into `metrics.jsonl`: names of "
        "`contraport list measures`, such as knn, or knn:every=5 for every fifth epoch; it changes no weight.",
        check=_watches,
        holds="machine",
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
    dry_run: bool = option(
        False,
        "say how many items and steps there are, and how long they take with how much memory, as a few steps tell, "
        "and write nothing.",
        holds="call",
    )
    trust: bool = option(
        False,
        "on resume or with `init`, import and run the encoder that the run names as ``module:attribute``.",
        holds="call",
    )
    progress: bool = option(True, "show a progress bar and a summary on the standard error.", holds="call")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.warmup_epochs is not None:
            not_negative("warmup_epochs", self.warmup_epochs, below=self.epochs)
        self._check_projection()
        self._check_frozen()
        self._check_negatives()
        self._check_predict()
        told = "audit: finds out which pairs belong together, and a target says so; give one of the two."
        check(not (self.audit and self.target is not None), told)
        check(not (self.resume and self.dry_run), "dry_run: a run that goes on told it when it began.")
        check(not (self.audit and self.freezes), "audit: judges by what is learned; expected no freeze with it.")
        check(not (self.resume and self.overwrite), "resume: goes on with a run that overwrite would delete.")

    @property
    def warmup(self) -> float:
        """Epochs in which the learning rate rises."""
        return self.epochs / 10 if self.warmup_epochs is None else self.warmup_epochs

    @property
    def projected(self) -> int:
        """Features of the projection, 0 where there is none."""
        return 0 if self.projection_layers == 0 else self.projection

    @property
    def weighs_by_file(self) -> bool:
        """Whether the weights are in a file by themselves, rather than in a column of the data."""
        return self.weights is not None and not self.weighs_by_plan and Path(self.weights).suffix == ".npy"

    @property
    def weighs_by_column(self) -> bool:
        """Whether the weights are in a column of the data that is named."""
        return self.weights is not None and not self.weighs_by_plan and not self.weighs_by_file

    @property
    def weighs_by_plan(self) -> bool:
        """Whether the weights are those of each batch's own plan."""
        return str(self.weights).partition(":")[0] == "plan"

    def represented(self, views: int) -> str:
        """Return what the trained model gives of items of so many views."""
        held = "both" if views == 1 else "projection"
        return self.representation or (held if self.freezes_all else "concatenate")

    @property
    def freezes(self) -> bool:
        """Whether the encoder of some view is held to the end."""
        return any(self.freeze.values()) if isinstance(self.freeze, Mapping) else self.freezes_all

    @property
    def freezes_all(self) -> bool:
        """Whether those of all views are, or have nothing to learn."""
        return self.freeze is True or self._is_fixed

    @property
    def _is_fixed(self) -> bool:
        """Whether nothing of the encoders that are named can learn."""
        names = self.encoder if isinstance(self.encoder, list | tuple) else [self.encoder]
        return all(isinstance(name, str) and name in ENCODERS and ENCODERS[name].fixed for name in names)

    @property
    def brings_weights(self) -> bool:
        """Whether some encoder begins with weights that are not drawn, or may."""
        pretrained = any(self.pretrained.values()) if isinstance(self.pretrained, Mapping) else self.pretrained
        return pretrained or self.init is not None or _is_given(self.encoder)

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

    def _check_projection(self) -> None:
        layers = self.projection_layers
        check(
            self.projection > 0 or not layers,
            f"projection_layers: expected 0 or nothing with a projection of 0, got {layers}.",
        )

    def _check_frozen(self) -> None:
        for view in _views_named(self.pretrained, self.init):
            init = _of_view(self.init, view)
            check(
                not (_of_view(self.pretrained, view) and init),
                f"init: expected nothing with pretrained, got {str(init)!r}.",
            )
        self._check_adapted()
        if not self.freezes_all:
            expected = "freeze of all views with it" if self.freezes else "freeze with it"
            check(self.frozen_draws is None, f"frozen_draws: expected {expected}, got {self.frozen_draws}.")
            check(self.features is None, f"features: expected {expected}, got {str(self.features)!r}.")
        if not self.freezes:
            return
        check(
            self.freeze_epochs == 0,
            f"freeze_epochs: expected 0 with freeze, which has no end, got {self.freeze_epochs}.",
        )
        check(
            self.projected > 0, "freeze: nothing would learn without a projection; expected one of 1 feature or more."
        )
        check(self.predict is None, "freeze: predict decodes what the encoder gives; expected one of the two.")
        check(
            self.brings_weights or self._is_fixed,
            "freeze: an encoder that was never trained would stay so; expected pretrained (--pretrained) or weights of "
            "its own (--init) with it.",
        )

    def _check_adapted(self) -> None:
        if self.lora is None:
            return
        held = any(
            _of_view(self.freeze, view) and _of_view(self.lora, view) for view in _views_named(self.freeze, self.lora)
        )
        check(
            not held and self.freeze_epochs == 0, "lora: holds the encoder itself; expected no freeze of it with lora."
        )
        check(
            self.brings_weights,
            "lora: an encoder that was never trained would stay so; expected pretrained (--pretrained) or weights of "
            "its own (--init) with it.",
        )

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
            self.prototypes is None or self.target is None,
            f"target: prototypes want what items are assigned to; expected nothing, got {self.target!r}.",
        )
        check(
            self.prototypes is None or self.negatives == "in-batch",
            "prototypes: stand in the place of negatives; expected negatives='in-batch' with them, got "
            f"{self.negatives!r}.",
        )

    def _check_predict(self) -> None:
        if self.predict is None:
            return
        own = [
            name
            for name in ("objective", "objective_settings", "temperature", "constraint", "target")
            if getattr(self, name)
        ]
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


VERB = Verb(
    Settings,
    "contraport.training:train",
    "Train an encoder without labels.",
    about="""
        A step makes random views of a batch of items (`views`, `augment`), encodes and projects each (`encoder`,
        `projection`), and compares the embeddings (`objective`): those of one item are pulled together, against the
        rest of the batch and what `negatives`, `momentum`, `predictor` and `prototypes` put beside it. A `recipe` is
        a named choice of these. The folder holds `config.yaml`, `metrics.jsonl`, `checkpoints/`, `model/` and
        `train.log`. All that is random depends on `seed` alone. Ctrl-C stops a run; `resume` goes on and ends at the
        same weights, bit for bit on the CPU, as if it had never stopped.
    """,
    examples=(
        "contraport train --data digits --epochs 20",
        "contraport train --data digits --recipe moco --queue_size 1024 --momentum 0.99:1:cosine",
        "contraport train --recipe swav --data photos/ --views 2+6 --encoder resnet18 --cache_chunk 128",
        "contraport train --recipe cmc --data photos/ --views colour --encoder resnet18",
        "contraport train --data photos/ --objective gca-uot --encoder resnet18 --batch_size 512 --out runs/photos",
        "contraport train --data digits --objective iot --objective_settings.iterations 3 --temperature 0.5:0.1",
        "contraport train --data photos/ --target soft:teacher.npz,temperature=0.2 --out runs/student",
        "contraport train --data people.csv --weights survey_weight --constraint balanced:marginals=weights",
        "contraport train --data basic-motions --views frames --augment noise:0.1",
        "contraport train --data digits --recipe byol --print_config > mine.yaml",
        "contraport train --config mine.yaml --seed 1 --out runs/mine",
        "contraport train --resume --out runs/photos",
    ),
    resolve=resolve,
    extra=EXTRA,
    group=LEARN,
    usual=(
        "data",
        "recipe",
        "objective",
        "temperature",
        "augment",
        "audit",
        "encoder",
        "pretrained",
        "freeze",
        "epochs",
        "batch_size",
        "lr",
        "columns",
        "device",
        "amp",
        "seed",
        "out",
        "resume",
        "dry_run",
    ),
    page="training",
)
