"""scikit-learn transformer that trains an encoder by contrastive learning."""

from __future__ import annotations

import copy
import inspect
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import combinations
from typing import Any, Self, TypeGuard, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import Tags, check_array
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn
from torch.optim import Optimizer

from contraport._utils.text_bytes import texts_or_none_if_no_strings
from contraport.auditing.pairs.mismatch_dropping_callback import AuditCallback, max_audited_batch_size
from contraport.auditing.pairs.synthetic_mismatches import DatasetWithDecoysPastEnd, add_decoys, check_auditable_dataset
from contraport.auditing.result import Audit, build_online_audit
from contraport.catalog import apply_recipe
from contraport.catalog.objectives import info_nce
from contraport.data import Batch, BatchOrder, Dataset, build_loader, from_arrays
from contraport.data.array_datasets import as_array, as_weight_per_item, check_equal_shapes, factorize
from contraport.embedding import LoaderConfig, extract_item_features, fixed_seed, inference_mode
from contraport.encoders import FeatureExtractor, Model
from contraport.errors import UsageError, check, rename_argument, suggest_keywords
from contraport.estimators.inverse_ot import check_column_names
from contraport.options import warn_renamed
from contraport.seeding import draw_seed, fork_rng_locked_at_ends
from contraport.training.callbacks.finite_guard import FiniteGuard
from contraport.training.components.assembly import check_settings_valid_and_available
from contraport.training.components.step_builder import build_objective, build_training_module
from contraport.training.config import Settings
from contraport.training.data_parallelism import resolve_available_device
from contraport.training.loop import Callback, Loop, Position
from contraport.training.optimization import build_lr_schedule, create_optimizer
from contraport.training.step.training_module import TrainingModule

_ArrayOrViews = ArrayLike | tuple[ArrayLike, ...] | Mapping[str, ArrayLike]
"""One view: an array with a row for each item, or a list of texts. Or several, in a tuple or in a dict by name."""


class _SelfWrappingTransformMixin:
    """Mixin of `ContrastiveEncoder` with a `transform` that builds data frames itself.

    scikit-learn wraps a `transform` that a class itself defines, to build a frame with the feature names of all views.
    The given views are only known in the call.
    """

    def transform(self: ContrastiveEncoder, X: _ArrayOrViews) -> NDArray[np.float32]:  # type: ignore[misc]
        """Return the features of items, (m, features).

        They are a data frame if `set_output` was called; in pandas with the index of X, or of its first view with one.

        Args:
            X: (m, ...), or views as in `fit`; or a dict with some of the views, by the names in `fit` ("0", "1", ... of
                a tuple), for the features of these views only.

        Raises:
            NotFittedError: `fit` has not been called.
            ValueError: X differs from the fitted data in shape, views or names of columns.
        """
        check_is_fitted(self, "training_module_")
        views = None
        if _is_dict_of_views(X) and len(X) < len(self._names):
            views = [number for number, name in enumerate(self._names) if name in X]
        frames = [view for view in (_find_dict_or_tuple_views(X) or {}).values() if hasattr(view, "iloc")]
        return _AllOrSelectedViewsFeatureTransformer(self, X, views).transform(frames[0] if frames else X)


class _AllOrSelectedViewsFeatureTransformer(TransformerMixin, BaseEstimator):
    """Transformer that computes and names the features of all or some views of X."""

    def __init__(self, encoder: ContrastiveEncoder, X: _ArrayOrViews, views: Sequence[int] | None) -> None:
        self.encoder = encoder
        self.X = X
        self.views = views
        self._sklearn_output_config = getattr(encoder, "_sklearn_output_config", {})  # the setting of `set_output`

    def transform(self, index_source: object) -> NDArray[np.float32]:
        """Return the features, (m, features), with the index of `index_source` if a data frame."""
        encoder, loader_config = self.encoder, LoaderConfig(device=resolve_available_device(self.encoder.device))
        dataset = encoder._build_dataset(self.X, reset=False, views=self.views)
        model = encoder._model if self.views is None else FeatureExtractor(encoder._model, self.views)
        with fixed_seed(0, loader_config.device):  # loaders draw from the global generator
            return extract_item_features(model, dataset, encoder.training_module_.views, loader_config).numpy()

    def get_feature_names_out(self, input_features: ArrayLike | None = None) -> NDArray[np.object_]:
        """Return the name of each feature that `transform` computes."""
        if self.views is None:
            return self.encoder.get_feature_names_out(input_features)
        return self.encoder._name_output_features_of_views(self.views)


class ContrastiveEncoder(_SelfWrappingTransformMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """scikit-learn transformer that trains an encoder by contrastive learning.

    Views of one item get similar features. Views are random augmentations of each item. Or they are given: a tuple of
    arrays, or a dict of arrays by name, that show the same items; each view then gets its own encoder. An array, frame
    or nested list holds vectors (n, d); time series (n, C, T); or images, uint8 (n, H, W), (n, H, W, C) or
    (n, C, H, W), or with four axes floats in [0, 1]. Texts are a list or an array of strings, (n,). A list is one view.

    Parameters are those of `contraport.train`, with its defaults or those of the recipe where None.

    Args:
        objective: name of an objective, or a module that maps the projections of two views to a loss, of which a copy
            is trained; default: nt-xent.
        encoder: name of an encoder, or a module of which a copy is trained, or one for each view; default: mlp for
            vectors, small-tcn for time series, small-cnn for images, small-text for texts.
        recipe: named training method, such as "moco" or "byol".
        objective_settings: further settings of a named objective.
        temperature: temperature of a named objective, or its schedule.
        matryoshka: numbers of first coordinates that can be used alone, such as [128, 64]; the features are then the
            projection, unless it is 0.
        views: number of random views of an item, "color", or "multi-crop".
        augment: augmentation: none, weak, standard, strong, noise or mixup, the last two optionally with a strength,
            such as noise:0.2.
        projection: width of the projection that the objective compares; 0: no projection.
        representation: features of several views: "concatenate", the number of one view, such as "0", or "projection";
            default: concatenate.
        epochs: number of training epochs.
        batch_size: least batch size. Items are dealt out evenly; with fewer items there is one batch.
        optimizer: name of an optimizer in timm.
        lr: peak learning rate; it rises for a tenth of the epochs and then follows a cosine to zero.
        weight_decay: weight decay.
        audit: drop suspected mismatches of two given views, as `contraport.train` does; see `audit_`.
        random_state: seed of weights, views and order; None: drawn from numpy's global generator.
        device: cpu, cuda, mps or auto, which prefers cuda, then mps.
        opt: deprecated name of `optimizer`.

    Attributes:
        training_module_: trained module; its attribute model is the encoder, which has a method save_pretrained.
        loss_curve_: mean training loss of each epoch.
        n_iter_: number of optimizer steps (not epochs; `loss_curve_` has one value per epoch).
        audit_: result of the audit, a `contraport.auditing.Audit`, if the parameter audit is true.
        n_features_in_: number of features of X (length of its second axis), if X is one array.

    Raises:
        UsageError: in `fit`, for invalid parameters; it is a ValueError, as scikit-learn requires.

    >>> X = np.random.default_rng(0).normal(size=(30, 5))
    >>> encoder = ContrastiveEncoder(epochs=2, random_state=0).fit(X)
    >>> encoder.transform(X[:3]).shape
    (3, 256)
    """

    training_module_: TrainingModule
    loss_curve_: list[float]
    n_iter_: int
    audit_: Audit

    @suggest_keywords
    def __init__(
        self,
        objective: str | nn.Module | None = None,
        encoder: str | nn.Module | Sequence[str | nn.Module] | None = None,
        *,
        recipe: str | None = None,
        objective_settings: dict[str, Any] | None = None,
        temperature: float | str | None = None,
        matryoshka: Sequence[int] | str | None = None,
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
        self.matryoshka = matryoshka
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

    def fit(self, X: _ArrayOrViews, y: ArrayLike | None = None, sample_weight: ArrayLike | None = None) -> Self:
        """Train the encoder on items given as arrays.

        Args:
            X: (n, ...), or a tuple of such views, or a dict of them by name.
            y: (n,), the class of each item, an integer or string, for objectives that need labels, such as sup-con.
            sample_weight: (n,), nonnegative weight of each item's term in the loss. How often others are compared with
                the item does not change, so a weight of two is not the item given twice.

        Raises:
            UsageError: an invalid parameter, or a loss that is not finite.
            ValueError: X fails scikit-learn's checks.
        """
        dataset = self._build_dataset(X, y, sample_weight, reset=True, min_items=2)
        with _explain_noncategorical_y(y):
            self._initialize_training(dataset, self._resolve_settings())
        if self.audit:
            views = len(dataset.shapes)
            check(views == 2, f"audit: requires two views here, got {views}; `contraport.train` takes more.", "views")
            check_auditable_dataset(dataset)
            dataset = add_decoys(dataset, seed=self.training_module_.seed)
        self._train(dataset, num_epochs=self.epochs, lr_scheduler="cosine", warmup_share=0.1)
        return self

    def partial_fit(self, X: _ArrayOrViews, y: ArrayLike | None = None, sample_weight: ArrayLike | None = None) -> Self:
        """Train for one more epoch at the full learning rate.

        Args:
            X: as in `fit`; the first call sets the shapes and the standardization.
            y: as in `fit`.
            sample_weight: as in `fit`.

        Raises:
            UsageError: the shapes differ from those of the first call, or there is a memory bank or an audit, which
                need the same items in all epochs.
            ValueError: X fails scikit-learn's checks.
        """
        check(not self.audit, "audit: needs several epochs of the same pairs; use fit.", "partial_fit")
        first = not hasattr(self, "training_module_")
        dataset = self._build_dataset(X, y, sample_weight, reset=first, min_items=2)
        settings = self._resolve_settings() if first else None
        has_bank = (self._negatives if settings is None else settings.negatives) == "bank"
        check(not has_bank, "negatives: a bank stores one embedding for each item of a fit; use fit.", "partial_fit")
        with _explain_noncategorical_y(y):
            if settings is not None:
                self._initialize_training(dataset, settings)
            self._train(dataset, num_epochs=1, lr_scheduler="constant")
        return self

    def get_feature_names_out(self, input_features: ArrayLike | None = None) -> NDArray[np.object_]:
        """Return the names of the output features, such as contrastiveencoder7.

        With named views, a name contains its view, as in contrastiveencoder_sound_7.

        Args:
            input_features: ignored.

        Raises:
            NotFittedError: `fit` has not been called.
        """
        check_is_fitted(self, "training_module_")
        if not self._names:
            return cast(NDArray[np.object_], super().get_feature_names_out(input_features))
        return self._name_output_features_of_views(self._model.representation_views)

    def _name_output_features_of_views(self, views: Sequence[int]) -> NDArray[np.object_]:
        """Return the feature names of the given views, such as contrastiveencoder_sound_7."""
        prefix = type(self).__name__.lower()
        part = self._model.representation_part
        widths = {self._names[view]: self._model.tower(view).representation_size(part) for view in views}
        names = [f"{prefix}_{name}_{number}" for name, width in widths.items() for number in range(width)]
        return np.asarray(names, dtype=object)

    def score(self, X: _ArrayOrViews, y: object = None) -> float:
        """Return a lower bound on the mutual information of two views, in nats.

        Higher is better. It is the bound of InfoNCE, log m - loss, at the best of a few temperatures, averaged over
        pairs of views, so that encoders trained by different objectives can be compared. It is at most log m: only
        compare scores of equally many items and equal augmentations. The random views depend on X alone.

        Args:
            X: (m, ...), or views as in `fit`.
            y: ignored.

        Raises:
            NotFittedError: `fit` has not been called.
            UsageError: the training compared nothing (`predict`).
            ValueError: X differs from the fitted data in shape or views.

        Source: van den Oord, Li and Vinyals (2018), Representation learning with contrastive predictive coding, eq. 5.
        """
        check_is_fitted(self, "training_module_")
        check(self.training_module_.objective is not None, "predict: predictive learning has no score.", "no_score")
        dataset, model = self._build_dataset(X, reset=False), self._model

        def embed(*views: Tensor) -> Tensor:
            return torch.stack(model.project(model.encode(views)), dim=1)

        loader_config = LoaderConfig(device=resolve_available_device(self.device))
        with fixed_seed(0, loader_config.device), inference_mode(model):
            z = loader_config.collect_outputs(embed, model, self.training_module_.views, dataset, "score").unbind(dim=1)
            losses = [
                min(float(info_nce(temperature=temperature)(one, other)) for temperature in (0.05, 0.1, 0.2, 0.5, 1.0))
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
        """Trained model, including its projector."""
        return self.training_module_.model

    @property
    def _n_features_out(self) -> int:
        """Number of output features, for scikit-learn's feature names."""
        return self._model.num_features

    def _build_dataset(
        self,
        X: _ArrayOrViews,
        y: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        *,
        reset: bool,
        min_items: int = 1,
        views: Sequence[int] | None = None,
    ) -> Dataset:
        """Build a dataset from X after scikit-learn's checks."""
        # scikit-learn does not check for NaN: the error of `from_arrays` names the rows.
        rules: dict[str, Any] = {"allow_nd": True, "ensure_min_samples": min_items, "ensure_all_finite": False}
        by_name = _find_dict_or_tuple_views(X)
        if reset:  # scikit-learn stores the names of the columns of each view in an estimator
            self._column_name_holders = {name: ContrastiveEncoder() for name in by_name or ()}
        arrays: Any
        if by_name is None:
            if isinstance(X, list) and texts_or_none_if_no_strings("X", X) is None:
                check_equal_shapes("X", X)
            arrays = _as_texts_or_array("X", X, partial(validate_data, self, reset=reset, **rules), min_items)
        else:
            if _is_dict_of_views(X) and not reset:
                fitted_views = f"views named {', '.join(map(repr, self._names))}" if self._names else "one array"
                message = f"X: must be {fitted_views}, as in fit, got {', '.join(map(repr, X))}."
                check(all(name in self._names for name in X), message, "views")
                by_name = {name: X[name] for name in self._names if name in X}
            holders = vars(self).get("_column_name_holders", {})  # older pickles have none
            fitted_names = by_name if reset or _is_dict_of_views(X) else self._names  # a tuple may follow a dict
            for name, fitted_name in zip(by_name, fitted_names, strict=False):  # `_shapes` are compared below
                if fitted_name in holders:
                    check_column_names(f"X[{name!r}]", by_name[name], holders[fitted_name], reset=reset)
            read = partial(check_array, **rules)
            arrays = {name: _as_texts_or_array(f"X[{name!r}]", view, read, min_items) for name, view in by_name.items()}
        items = len(arrays if by_name is None else next(iter(arrays.values())))
        shape = None if y is None else np.asarray(y).shape
        good = shape is None or shape[:1] == (items,)
        check(good, f"y: must have one value for each of {items} items, got shape {shape}.", "shape")
        weights = None if sample_weight is None else as_weight_per_item("sample_weight", sample_weight)
        number = items if weights is None else len(weights)
        check(number == items, f"sample_weight: must have one value for each of {items} items, got {number}.", "shape")
        with rename_argument("y", "labels"):
            try:
                is_class = y is not None and type_of_target(y, input_name="y") in ("binary", "multiclass")
            except TypeError:  # values of several types, or None, cannot be sorted
                factorize("y", np.asarray(y))
                raise
            codes = np.unique(np.asarray(y), return_inverse=True)[1] if is_class else None
            dataset = from_arrays(arrays, codes, weights=weights, name="X", argument="X")
        if reset:
            self._names: tuple[str, ...] = tuple(by_name or ())
            if by_name is not None:  # an earlier fit to one array has set these
                for name in {"n_features_in_", "feature_names_in_"} & vars(self).keys():
                    delattr(self, name)
        else:
            fitted = self._shapes if views is None else [self._shapes[view] for view in views]
            expected, got = (", ".join(map(str, shapes)) for shapes in (fitted, dataset.shapes))
            check(got == expected, f"X: items must have shape {expected}, as in fit, got {got}.", "shape")
        return dataset

    def _resolve_settings(self) -> Settings:
        """Return the training settings, with a seed drawn from `random_state`."""
        values, parameters = self.get_params(deep=False), inspect.signature(type(self)).parameters
        options = {
            name: value for name, value in values.items() if value is not None or parameters[name].default is not None
        }
        options.pop("random_state", None)
        if options.pop("opt") != "deprecated":
            warn_renamed("opt", "optimizer")
            options["optimizer"] = self.opt
        return Settings(**apply_recipe(options), seed=draw_seed(self.random_state))

    def _initialize_training(self, dataset: Dataset, settings: Settings) -> None:
        """Build the training module and the optimizer, before the first epoch."""
        objective = build_objective(settings)
        check_settings_valid_and_available(settings, objective)
        objective = copy.deepcopy(objective)
        steps_per_epoch = self._num_batches_per_epoch(len(dataset))
        if not dataset.has_missing_or_distrusted_views and (view := dataset.find_constant_view(50)) is not None:
            message = f"X: view {view!r} is the same in all items read: nothing can be learned from it. Check the data."
            warnings.warn(message, UserWarning, stacklevel=3)
        self.training_module_ = build_training_module(settings, dataset, objective, steps_per_epoch=steps_per_epoch)
        self.training_module_.to(resolve_available_device(self.device)).views.release_data()
        self.loss_curve_ = []
        self.n_iter_ = 0
        self._negatives = settings.negatives
        self._shapes = dataset.shapes
        self._optimizer: Optimizer = create_optimizer(
            self.training_module_, optimizer=settings.optimizer, lr=self.lr, weight_decay=self.weight_decay
        )

    def _num_batches_per_epoch(self, num_items: int) -> int:
        """Return the number of batches per epoch, at least 1."""
        limit = max_audited_batch_size(num_items) if self.audit else self.batch_size
        return max(1, num_items // min(self.batch_size, limit))

    def _train(self, dataset: Dataset, *, num_epochs: int, lr_scheduler: str, warmup_share: float = 0.0) -> None:
        """Train for `num_epochs`, and store the audit if there is one."""
        module, steps_per_epoch = self.training_module_, self._num_batches_per_epoch(len(dataset))
        steps = num_epochs * steps_per_epoch
        optimizer, warmup_steps = self._optimizer, int(warmup_share * steps)
        schedule = build_lr_schedule(optimizer, lr_scheduler=lr_scheduler, steps=steps, warmup_steps=warmup_steps)
        batch_size = len(dataset) // steps_per_epoch
        batches = build_loader(dataset, batch_size, shuffle=True, seed=module.seed, drop_last=True)
        callbacks: list[Callback] = [FiniteGuard(), _LossCurveRecorder(self)]
        audit_callback = None
        if isinstance(dataset, DatasetWithDecoysPastEnd):
            audit_callback = AuditCallback(dataset, module, cast(BatchOrder, batches.batch_sampler), epochs=num_epochs)
            callbacks.append(audit_callback)
        start = Position(completed_epochs=len(self.loss_curve_), step=self.n_iter_)
        module.train()
        with fork_rng_locked_at_ends(range(torch.cuda.device_count())):
            epochs, device = start.completed_epochs + num_epochs, resolve_available_device(self.device)
            Loop(
                module, batches, optimizer, schedule, epochs=epochs, start=start, device=device, callbacks=callbacks
            ).run()
        if audit_callback is not None:
            self.audit_ = build_online_audit(dataset.name, audit_callback.build_result_arrays())


class _LossCurveRecorder(Callback):
    """Callback that records each epoch's mean loss in `loss_curve_`."""

    def __init__(self, encoder: ContrastiveEncoder) -> None:
        self._encoder = encoder
        self._losses: list[Tensor] = []

    def after_backward(self, loop: Loop, batch: Batch, loss: Tensor) -> None:
        """Record the loss of a batch."""
        self._losses.append(loss)

    def after_epoch(self, loop: Loop) -> None:
        """Append the mean loss of the epoch to `loss_curve_`."""
        losses, self._losses = torch.stack(self._losses).tolist(), []
        self._encoder.loss_curve_.append(sum(losses) / len(losses))
        self._encoder.n_iter_ = loop.step


@contextmanager
def _explain_noncategorical_y(y: ArrayLike | None) -> Iterator[None]:
    """Replace an objective's error about missing labels by one about the argument y."""
    try:
        yield
    except UsageError as error:
        if error.code != "labels.missing" or y is None:
            raise
        message = f"y: must be one class per item for this objective, got {type_of_target(y)} of shape {np.shape(y)}."
        remedy = "For items of several classes, call the loss with labels (n, classes) in your own training loop."
        raise UsageError(f"{message} {remedy}", kind="not_categorical") from error


def _is_dict_of_views(X: object) -> TypeGuard[Mapping[str, ArrayLike]]:
    """Return whether X is a mapping from view names to arrays."""
    return isinstance(X, Mapping) and not hasattr(X, "shape")


def _find_dict_or_tuple_views(X: object) -> dict[str, ArrayLike] | None:
    """Return the views in a dict or tuple, or None for one array."""
    if _is_dict_of_views(X):
        check(len(X) > 0, "X: must have at least one view, got none.", "empty")
        return {str(name): view for name, view in X.items()}
    views: tuple[Any, ...] = X if isinstance(X, tuple) else ()
    # A tuple of numbers or of arrays of one axis is a single array.
    are_views = any(_is_text_or_at_least_2d(f"X[{number}]", view) for number, view in enumerate(views))
    return {str(number): view for number, view in enumerate(views)} if are_views else None


def _is_text_or_at_least_2d(argument: str, view: Any) -> bool:
    """Return whether a value can be a view: texts, or data with two axes or more."""
    if texts_or_none_if_no_strings(argument, view) is not None:
        return True
    shape = getattr(view, "shape", None)  # frames and tables have no `ndim`
    return len(as_array(argument, view).shape if shape is None else shape) >= 2


def _as_texts_or_array(argument: str, values: Any, validate: Callable[[Any], np.ndarray], min_items: int) -> Any:
    """Return strings as a list, or numbers as a validated array.

    The error for non-numeric data names the text columns.
    """
    texts = texts_or_none_if_no_strings(argument, values)
    if texts is not None:
        check(len(texts) >= min_items, f"{argument}: must have at least {min_items} texts, got {len(texts)}.")
        return texts
    if isinstance(values, Tensor | np.ma.MaskedArray):
        values = as_array(argument, values)
    try:
        array = validate(values)
        # pandas categories are objects after the check; the cast raises for those that are not numbers.
        return array.astype(np.float32) if array.dtype == np.object_ else array
    except ValueError as error:
        columns = _describe_non_numeric_columns(values)
        if not columns:
            raise
        message = f"{argument}: must be numbers, got text in the columns {', '.join(columns)}. Drop or encode them."
        raise UsageError(message, kind="text_columns") from error


def _describe_non_numeric_columns(frame: Any) -> list[str]:
    """Describe each non-numeric column by its name and first text.

    >>> import pandas
    >>> _describe_non_numeric_columns(pandas.DataFrame({"age": [1, 2], "name": ["Eva", "Ida"]}))
    ["'name' ('Eva')"]
    """
    columns = []
    for name in getattr(frame, "columns", ()):
        for value in np.asarray(frame[name], dtype=object).ravel():
            try:
                float(value)
            except (TypeError, ValueError):
                columns.append(f"{name!r} ({value!r})")
                break
    return columns
