"""An encoder that learns from arrays without labels, in the manner of scikit-learn."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import Any, Self, TypeGuard, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import Tags, check_array, check_random_state
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn
from torch.optim import Optimizer

from contraport._utils.text_tensors import as_string_list
from contraport.auditing.pairs import DecoyDataset, add_decoys
from contraport.auditing.pairs.pair_filter import PairFilter, max_audited_batch_size
from contraport.auditing.result import Audit, audit_from_arrays
from contraport.catalog import resolve_recipe
from contraport.catalog.objectives import info_nce
from contraport.data import Batch, BatchOrder, Dataset, from_arrays, loader
from contraport.data.arrays import as_array, check_equal_shapes, weights_of
from contraport.embedding import LoaderConfig, evaluation_mode, extract_features, fixed_seed
from contraport.encoders import FeatureExtractor, Model
from contraport.errors import UsageError, check
from contraport.estimators.array_input import non_numeric_columns
from contraport.options import warn_renamed
from contraport.training.callbacks import AuditCallback, FiniteGuard
from contraport.training.components import build_training_module, check_components
from contraport.training.config import Settings
from contraport.training.loop import Callback, Loop, Position
from contraport.training.optimization import build_lr_schedule, create_optimizer
from contraport.training.step.training_module import TrainingModule

WARMUP = 0.1
"""The share of the steps in which the learning rate rises."""

SCORE_TEMPERATURES = (0.05, 0.1, 0.2, 0.5, 1.0)
"""The temperatures of which the score takes the best one."""

_Arrays = ArrayLike | tuple[ArrayLike, ...] | Mapping[str, ArrayLike]
"""One array with a row for each item, or a list of texts; or several, as a tuple, or as a dict by their names."""


class _OfGivenViews:
    """The method `transform` of the encoder.

    It stands in a base as scikit-learn would wrap it in the class itself, to make a frame with the names of the
    features of all views; which views are given only the call knows.
    """

    def transform(self: ContrastiveEncoder, X: _Arrays) -> NDArray[np.float32]:  # type: ignore[misc]
        """Return the features of items, (m, features); a frame where `set_output` asks for one.

        Args:
            X: (m, ...), or views as in `fit`; or a dict with some of them, by the names of `fit`, or "0", "1" and so on
                where it was given a tuple: the features are then those of these views, side by side.

        Raises:
            NotFittedError: `fit` has not been called.
            ValueError: X does not fit what was fitted.
        """
        check_is_fitted(self)
        some = None
        if _is_named(X) and len(X) < len(self._names):
            some = [number for number, name in enumerate(self._names) if name in X]
        return _Transformer(self, some).transform(X)


class _Transformer(TransformerMixin, BaseEstimator):
    """A fitted encoder of some views, or of all: what scikit-learn wraps, as the names of its features are known."""

    def __init__(self, encoder: ContrastiveEncoder, views: Sequence[int] | None) -> None:
        self.encoder = encoder
        self.views = views
        self._sklearn_output_config = getattr(encoder, "_sklearn_output_config", {})  # what `set_output` was told

    def transform(self, X: _Arrays) -> NDArray[np.float32]:
        return self.encoder._features(X, self.views)

    def get_feature_names_out(self, input_features: ArrayLike | None = None) -> NDArray[np.object_]:
        if self.views is None:
            return self.encoder.get_feature_names_out(input_features)
        return self.encoder._names_of(self.views)


class ContrastiveEncoder(_OfGivenViews, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Learns features of which two views of one item are alike and those of others are not.

    Views are random changes of each item, or given: a tuple of arrays, or a dict of arrays by name, that show the same
    items in different ways, each with an encoder of its own. A list is one item after the other. Arrays are vectors (n,
    d), time series (n, C, T), images, uint8 (n, H, W), (n, H, W, C) or (n, C, H, W), or with four axes floats in [0,
    1]; texts are a list or an array of strings, (n,).

    The parameters are those of `contraport.train`; what is None is as the recipe says, or as there by default.

    Args:
        objective: a name, or a module that is called with the projections of two views and of which a copy is trained;
            default: nt-xent.
        encoder: a name, or a module of which a copy is trained, or one per view; default: mlp for vectors, small-tcn
            for time series, small-cnn for images, small-text for texts.
        recipe: a named way to train, such as "moco" or "byol".
        objective_settings: further settings of a named objective.
        temperature: of a named objective, or its course.
        views: how many random views to make of an item, "colour", or "multi-crop".
        augment: how views are changed at random: none, weak, standard, strong, noise or mixup, the last two alone or
            with a strength, as in noise:0.2.
        projection: features of the projection that the objective sees; 0: it sees the encoder's.
        representation: "concatenate" the features of several views, the number of one of them, such as "0", or
            "projection", what the objective sees; default: concatenate.
        epochs: passes over the data.
        batch_size: fewest items in a batch. The items are dealt out evenly; if there are fewer, they make one batch.
        optimizer: optimizer, a name of timm's.
        lr: peak learning rate; it rises for a tenth of the epochs and falls as a cosine.
        weight_decay: decay of weights.
        audit: of two given views, leave out the pairs that seem wrong, as `contraport.train` does; see `audit_`.
        random_state: seed of weights, views and order; None draws one from numpy's global generator.
        device: cpu, cuda or mps.
        opt: deprecated name of `optimizer`.

    Attributes:
        pipeline_: what was trained; pipeline_.model is the encoder, and can be saved by save_pretrained.
        loss_curve_: the mean loss of each pass over the data.
        n_iter_: how many steps were taken.
        audit_: with `audit`, what `fit` found of the pairs, a `contraport.auditing.Audit`.
        n_features_in_: where X is one array, the length of its second axis.

    Raises:
        UsageError: in `fit`, for values that do not fit; a ValueError, as all of scikit-learn's.

    >>> X = np.random.default_rng(0).normal(size=(30, 5))
    >>> encoder = ContrastiveEncoder(epochs=2, random_state=0).fit(X)
    >>> encoder.transform(X[:3]).shape
    (3, 256)
    """

    pipeline_: TrainingModule
    loss_curve_: list[float]
    n_iter_: int
    audit_: Audit

    def __init__(
        self,
        objective: str | nn.Module | None = None,
        encoder: str | nn.Module | Sequence[str | nn.Module] | None = None,
        *,
        recipe: str | None = None,
        objective_settings: dict[str, Any] | None = None,
        temperature: float | str | None = None,
        views: int | str | None = None,
        augment: str | None = None,
        projection: int | None = None,
        representation: str | None = None,
        epochs: int = 50,
        batch_size: int = 256,
        optimizer: str = "adamw",
        lr: float | None = None,
        weight_decay: float = 1e-4,
        audit: bool = False,
        random_state: int | np.random.RandomState | None = None,
        device: str = "cpu",
        opt: str = "deprecated",
    ) -> None:
        self.objective = objective
        self.encoder = encoder
        self.recipe = recipe
        self.objective_settings = objective_settings
        self.temperature = temperature
        self.views = views
        self.augment = augment
        self.projection = projection
        self.representation = representation
        self.epochs = epochs
        self.batch_size = batch_size
        self.optimizer = optimizer
        self.lr = lr
        self.weight_decay = weight_decay
        self.random_state = random_state
        self.audit = audit
        self.device = device
        self.opt = opt

    def fit(self, X: _Arrays, y: ArrayLike | None = None, sample_weight: ArrayLike | None = None) -> Self:
        """Learn from the items.

        Args:
            X: (n, ...), or a tuple of such views, or a dict of them by name.
            y: (n,), the class of each item, for objectives that ask for labels, such as sup-con.
            sample_weight: (n,), how much each item counts in the loss, nonnegative: its row, not how often it is
                compared with, so that a weight of two is not the item given twice.

        Raises:
            UsageError: a parameter does not fit, or the loss is not finite.
            ValueError: X is not what scikit-learn's checks ask for.
        """
        dataset = self._dataset(X, y, sample_weight, reset=True, least=2)
        self._start(dataset)
        if self.audit:
            dataset = add_decoys(dataset, seed=self.pipeline_.seed)
        return self._train(dataset, number=self.epochs, lr_scheduler="cosine", warmup=WARMUP)

    def partial_fit(self, X: _Arrays, y: ArrayLike | None = None, sample_weight: ArrayLike | None = None) -> Self:
        """Go on learning: one pass over the items at the full learning rate, with all that was learned kept.

        Args:
            X: as in `fit`; the first call decides on the shapes and the standardisation.
            y: as in `fit`.
            sample_weight: likewise.

        Raises:
            UsageError: the shapes are not those of the first call; there is a memory bank, which knows its items, or an
                audit, which looks at the same pairs several times.
            ValueError: X is not what scikit-learn's checks ask for.
        """
        check(not self.audit, "audit: looks at the same pairs after several passes; use fit.")
        first = not hasattr(self, "pipeline_")
        dataset = self._dataset(X, y, sample_weight, reset=first, least=2)
        if first:
            self._start(dataset)
        check(self._negatives != "bank", "negatives: a bank keeps one embedding for each item of one fit; use fit.")
        return self._train(dataset, number=1, lr_scheduler="constant")

    def get_feature_names_out(self, input_features: ArrayLike | None = None) -> NDArray[np.object_]:
        """Return the names of the features, such as contrastiveencoder7; of several views contrastiveencoder_sound_7.

        Args:
            input_features: ignored.

        Raises:
            NotFittedError: `fit` has not been called.
        """
        check_is_fitted(self)
        if not self._names:
            return cast(NDArray[np.object_], super().get_feature_names_out(input_features))
        return self._names_of(self._model.represented_views)

    def _names_of(self, views: Sequence[int]) -> NDArray[np.object_]:
        """Return the names of the features of some of several views."""
        prefix, widths = type(self).__name__.lower(), [self._model.tower(view).num_features for view in views]
        names = [
            f"{prefix}_{self._names[view]}_{number}"
            for view, width in zip(views, widths, strict=True)
            for number in range(width)
        ]
        return np.asarray(names, dtype=object)

    def _features(self, X: _Arrays, some: Sequence[int] | None) -> NDArray[np.float32]:
        """Return the features of items, of which X holds these views, default: all."""
        dataset = self._dataset(X, reset=False, views=some)
        encoder = self._model if some is None else FeatureExtractor(self._model, some)
        with fixed_seed(0, self._reader.device):  # a loader draws from the caller's random state
            return extract_features(encoder, dataset, self.pipeline_.views, self._reader).numpy()

    def score(self, X: _Arrays, y: object = None) -> float:
        """Return how much one view of an item tells of which item another one shows, in nats; higher is better.

        It is the lower bound of the mutual information of two views that InfoNCE gives, log m - loss, at the best of a
        few temperatures, so that encoders trained by different objectives and temperatures can be compared; the mean
        over pairs of views. It is at most log m, so compare scores of equally many items, and of equal augmentations.
        The random views depend on X alone.

        Args:
            X: (m, ...), or views as in `fit`.
            y: ignored.

        Raises:
            NotFittedError: `fit` has not been called.
            UsageError: nothing was compared in training.
            ValueError: X does not fit what was fitted.

        Source: van den Oord, Li and Vinyals (2018), Representation learning with contrastive predictive coding, eq. 5.
        """
        check_is_fitted(self)
        check(self.pipeline_.objective is not None, "predict: compares nothing, so there is no score of it.")
        dataset, model = self._dataset(X, reset=False), self._model

        def embed(*given: Tensor) -> Tensor:
            return torch.stack(model.project(model.encode(given)), dim=1)

        with fixed_seed(0, self._reader.device), evaluation_mode(model):
            z = self._reader.apply(embed, model, self.pipeline_.views, dataset, "score").unbind(dim=1)
            losses = [
                min(float(info_nce(temperature=temperature)(one, other)) for temperature in SCORE_TEMPERATURES)
                for one, other in combinations(z, 2)
            ]
        return math.log(len(dataset)) - sum(losses) / len(losses)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags

    @property
    def _model(self) -> Model:
        return self.pipeline_.model

    @property
    def _n_features_out(self) -> int:
        return self._model.num_features

    @property
    def _reader(self) -> LoaderConfig:
        return LoaderConfig(device=torch.device(self.device))

    def _dataset(
        self,
        X: _Arrays,
        y: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        *,
        reset: bool,
        least: int = 1,
        views: Sequence[int] | None = None,
    ) -> Dataset:
        """Return the items, once scikit-learn's checks have passed them; `views` says which are given, default: all."""
        # What is not finite passes these: `from_arrays` tells where it is.
        rules: dict[str, Any] = {"allow_nd": True, "ensure_min_samples": least, "ensure_all_finite": False}
        given, read = _by_name(X), partial(validate_data, self, reset=reset, **rules)
        arrays: Any
        if given is None:
            if isinstance(X, list) and as_string_list("X", X) is None:
                check_equal_shapes("X", X)
            arrays = _read("X", X, read, least)
        else:
            if _is_named(X) and not reset:
                given = self._in_order(X)
            arrays = {
                name: _read(f"X[{name!r}]", view, partial(check_array, **rules), least) for name, view in given.items()
            }
        items = len(arrays if given is None else next(iter(arrays.values())))
        given_y = None if y is None else np.asarray(y).shape
        check(given_y is None or given_y[:1] == (items,), f"y: expected one for each of {items} items, got {given_y}.")
        weights = None if sample_weight is None else weights_of("sample_weight", sample_weight)
        got = None if weights is None else len(weights)
        check(got in (None, items), f"sample_weight: expected one number for each of {items} items, got {got}.")
        dataset = from_arrays(arrays, _classes(y), weights=weights, name="X", argument="X")
        if reset:
            self._names = tuple(given or ())
            of_one_array = {"n_features_in_", "feature_names_in_"} if given is not None else set()
            for name in of_one_array & vars(self).keys():
                delattr(self, name)
        else:
            found = ", ".join(map(str, dataset.shapes))
            shapes = self._shapes if views is None else [self._shapes[view] for view in views]
            expected = ", ".join(map(str, shapes))
            check(found == expected, f"X: expected items of shape {expected}, as in fit, got {found}.")
        return dataset

    def _in_order(self, X: Mapping[str, ArrayLike]) -> dict[str, ArrayLike]:
        """Return views by name in the order of `fit`."""
        unknown = [name for name in X if name not in self._names]
        known = f"views named {', '.join(map(repr, self._names))}" if self._names else "one array"
        check(not unknown, f"X: expected {known}, as in fit, got {', '.join(map(repr, X))}.")
        return {name: X[name] for name in self._names if name in X}

    def _start(self, dataset: Dataset) -> None:
        """Make what is trained."""
        settings = self._settings()
        compared = check_components(settings)
        check(self.device != "auto", "device: expected cpu, cuda or mps, got 'auto'.")
        criterion = copy.deepcopy(compared)
        self.pipeline_ = build_training_module(
            settings, dataset, criterion, steps_per_epoch=self._batches(len(dataset))
        )
        self.pipeline_.to(self.device).views.release()
        self.loss_curve_ = []
        self.n_iter_ = 0
        self._negatives = settings.negatives
        self._shapes = dataset.shapes
        self._optimizer: Optimizer = create_optimizer(
            self.pipeline_, optimizer=settings.optimizer, lr=self.lr, weight_decay=self.weight_decay
        )

    def _settings(self) -> Settings:
        """Return the settings of a training."""
        own = self.get_params(deep=False)
        if own.pop("opt") != "deprecated":
            warn_renamed("opt", "optimizer")
            own["optimizer"] = self.opt
        given = {name: value for name, value in own.items() if value is not None and name != "random_state"}
        return Settings(**resolve_recipe(given), seed=int(check_random_state(self.random_state).randint(2**31)))

    def _batches(self, items: int) -> int:
        most = max_audited_batch_size(items) if self.audit else self.batch_size
        return max(1, items // min(self.batch_size, most))

    def _train(self, dataset: Dataset, *, number: int, lr_scheduler: str, warmup: float = 0.0) -> Self:
        """Take the steps of a number of passes over the items, a share of them as warm-up."""
        pipeline, epoch = self.pipeline_, self._batches(len(dataset))
        steps = number * epoch
        schedule = build_lr_schedule(
            self._optimizer, lr_scheduler=lr_scheduler, steps=steps, warmup=int(warmup * steps)
        )
        batches = loader(dataset, len(dataset) // epoch, shuffle=True, seed=pipeline.seed, drop_last=True)
        order = cast(BatchOrder, batches.batch_sampler)
        auditor = PairFilter(dataset, pipeline, order, epochs=number) if isinstance(dataset, DecoyDataset) else None
        done = Position(epoch=len(self.loss_curve_), step=self.n_iter_)
        pipeline.train()
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            Loop(
                pipeline,
                batches,
                self._optimizer,
                schedule,
                epochs=done.epoch + number,
                start=done,
                device=self.device,
                callbacks=[
                    FiniteGuard(),
                    _Curve(self),
                    *([] if auditor is None else [AuditCallback(auditor)]),
                ],
            ).run()
        if auditor is not None:
            self.audit_ = audit_from_arrays(dataset.name, auditor.result())
        return self


class _Curve(Callback):
    """Keeps the mean loss of each epoch, and the number of steps, in an estimator."""

    def __init__(self, encoder: ContrastiveEncoder) -> None:
        self._encoder = encoder
        self._losses: list[Tensor] = []

    def after_backward(self, loop: Loop, batch: Batch, loss: Tensor) -> None:
        self._losses.append(loss)

    def after_epoch(self, loop: Loop) -> None:
        losses, self._losses = torch.stack(self._losses).tolist(), []
        self._encoder.loss_curve_.append(sum(losses) / len(losses))
        self._encoder.n_iter_ = loop.step


def _is_named(X: object) -> TypeGuard[Mapping[str, ArrayLike]]:
    """Return whether X is a dict of views; one kind of sparse array is a dict too."""
    return isinstance(X, Mapping) and not hasattr(X, "shape")


def _by_name(X: object) -> dict[str, ArrayLike] | None:
    """Return the views that a dict or a tuple of arrays holds, or None where X is one array or rows that become one."""
    if _is_named(X):
        return {str(name): view for name, view in X.items()}
    if isinstance(X, tuple) and len(X) > 0 and all(map(_is_view, X)):
        return {str(number): view for number, view in enumerate(X)}
    return None


def _is_view(values: Any) -> bool:
    return getattr(values, "ndim", 0) >= 2 or as_string_list("X", values) is not None


def _read(argument: str, values: Any, read: Callable[[Any], np.ndarray], least: int) -> Any:
    """Return what a check of scikit-learn's makes of values; where it cannot, name the columns that are no numbers.

    Texts are none of its concern.
    """
    texts = as_string_list(argument, values)
    if texts is not None:
        check(len(texts) >= least, f"{argument}: expected {least} texts or more, got {len(texts)}.")
        return texts
    if isinstance(values, Tensor | np.ma.MaskedArray):
        values = as_array(argument, values)
    try:
        found = read(values)
        # Categories of pandas pass as objects; what is no number among them is an error here.
        return found.astype(np.float32) if found.dtype == np.object_ else found
    except ValueError as error:
        columns = non_numeric_columns(values)
        if not columns:
            raise
        raise UsageError(
            f"{argument}: expected numbers, got other values in the columns {', '.join(columns)}; leave these out, or "
            "encode them as numbers."
        ) from error


def _classes(y: ArrayLike | None) -> NDArray[np.int64] | None:
    """Return the class of each item as a number, or None where y is something else than classes."""
    if y is None or type_of_target(y) not in ("binary", "multiclass"):
        return None
    return np.unique(np.asarray(y), return_inverse=True)[1]
