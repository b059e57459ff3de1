"""SNE and t-SNE estimators of embeddings that preserve neighborhoods."""

from __future__ import annotations

import copy
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from contraport._utils.progress import ProgressBars
from contraport.data.array_datasets import as_array, as_finite_float64
from contraport.embedding import apply_in_fixed_blocks, inference_mode
from contraport.encoders import build_encoder
from contraport.engine import Gibbs, Kernel, StudentT
from contraport.errors import (
    check,
    check_integer,
    check_name,
    check_positive,
    is_number,
    suggest_keywords,
    unknown_name_error,
)
from contraport.estimators.grid_tsne_loss import GridTSNELoss
from contraport.evaluation.split_loading import resolve_device
from contraport.objectives import KL, Constraint, Matrix, Objective, Rows, Simplex, WithinView
from contraport.objectives.divergences import Divergence
from contraport.objectives.perplexity_affinities import compute_affinity_plan
from contraport.objectives.plan import PlanWithTarget
from contraport.seeding import derive_torch_seed, draw_seed, fork_rng_with_lock, seed_torch_generators


class _ExtraAttraction(Divergence):
    """Extra attraction during early exaggeration, -sum_j p_ij log K_ij for each row."""

    def __call__(self, result: PlanWithTarget) -> Tensor:
        return -result.target.row_products_with_log_kernel(result.plan.geometry.log_kernel)


def _require_encoder(estimator: _NeighborEmbedding) -> Literal[True]:
    """Return True, or raise `AttributeError` if the estimator has no encoder."""
    if estimator.encoder is None:
        raise AttributeError("encoder: transform needs an encoder; fit with encoder='mlp'.")
    return True


class _NeighborEmbedding(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator, ABC):
    """Base class of SNE and t-SNE, which differ in kernel and constraint."""

    _has_symmetric_affinities: ClassVar[bool]
    _progress_bars = ProgressBars()  # hidden; `contraport map` shows its own

    embedding_: NDArray[np.float32]
    kl_divergence_: float
    n_iter_: int
    encoder_: nn.Module

    @suggest_keywords
    def __init__(
        self,
        n_components: int = 2,
        *,
        perplexity: float = 30.0,
        early_exaggeration: float = 12.0,
        learning_rate: float | str = "auto",
        max_iter: int = 1000,
        init: str | ArrayLike = "pca",
        method: str = "auto",
        random_state: int | None = None,
        encoder: str | nn.Module | None = None,
        device: str = "cpu",
        verbose: bool = False,
    ) -> None:
        self.n_components = n_components
        self.perplexity = perplexity
        self.early_exaggeration = early_exaggeration
        self.learning_rate = learning_rate
        self.max_iter = max_iter
        self.init = init
        self.method = method
        self.random_state = random_state
        self.encoder = encoder
        self.device = device
        self.verbose = verbose

    @abstractmethod
    def _build_kernel_and_constraint(self) -> tuple[Kernel, Constraint]:
        """Build the kernel of the embedded points, and the constraint on plans."""

    def fit(self, X: ArrayLike, y: object = None) -> Self:
        """Compute the embedding of the data.

        Args:
            X: (n, d), n at least 4; with an encoder any shape (n, ...) that it takes, with distances between flat rows.
            y: ignored.

        Raises:
            UsageError: an invalid parameter, X that is constant or not finite, or an embedding that diverges.
            ValueError: X fails scikit-learn's checks.
        """
        data = self._validate_as_tensor(X, reset=True)
        self._check_parameters_and_data(data)
        # The embedding does not depend on the scale, but squares of extreme numbers overflow or vanish. A power of 2
        # changes no digits.
        flat = data.flatten(1)
        flat = flat / 2.0 ** math.floor(math.log2(float(flat.abs().max())))
        plan = compute_affinity_plan(
            flat, self.perplexity, symmetric=self._has_symmetric_affinities, dense=self.method == "exact"
        )
        build = partial(self._build_objective, plan if self._is_interpolated else plan.float())
        seed = draw_seed(self.random_state)
        if self.encoder is None:
            with fork_rng_with_lock([]):
                seed_torch_generators(derive_torch_seed("estimators.neighbor", seed), "cpu")
                embedding = self._build_initial_embedding(flat).float().requires_grad_()
            self._minimize(build, lambda: embedding, self._build_optimizer(embedding, plan))
        else:
            with fork_rng_with_lock([data.device] if data.device.type == "cuda" else []):  # an encoder may have dropout
                seed_torch_generators(derive_torch_seed("estimators.neighbor", seed), data.device.type)
                data = _to_finite_float32(data)
                if isinstance(self.encoder, nn.Module):
                    encoder = copy.deepcopy(self.encoder)
                else:
                    body = build_encoder(str(self.encoder), tuple(data.shape[1:]))
                    encoder = nn.Sequential(body, nn.Linear(int(body.num_features), self.n_components))  # type: ignore[arg-type]
                self.encoder_ = encoder.to(data)
                optimizer = torch.optim.Adam(
                    self.encoder_.parameters(), self._resolve_early_and_late_learning_rates(len(data))[1]
                )
                self._minimize(build, lambda: self._embed_in_training_mode(data), optimizer)
                embedding = self._encode_in_blocks(data)
        self.embedding_ = embedding.detach().cpu().numpy()
        with torch.no_grad():
            self.kl_divergence_ = build(1.0)(embedding).item()
        shares = plan.values() if plan.is_sparse else plan
        of_one_point = math.log(len(data) * (len(data) - 1)) - torch.special.entr(shares).sum().item()
        if self.learning_rate != "auto" and self.kl_divergence_ > 0.99 * of_one_point:
            warnings.warn(
                f"{type(self).__name__}: KL divergence {self.kl_divergence_:.3g} after {self.n_iter_} iterations with "
                f"learning_rate={self.learning_rate:g}; it is {of_one_point:.3g} if all items are at one point. Set "
                "learning_rate to 'auto', or increase max_iter.",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def fit_transform(self, X: ArrayLike, y: object = None) -> NDArray[np.float32]:
        """Compute the embedding of the data and return it, (n, n_components)."""
        return self.fit(X).embedding_

    def transform(self, X: ArrayLike) -> NDArray[np.float32]:
        """Return the encoder's embedding of new data, (m, n_components).

        Raises:
            AttributeError: there is no encoder.
            NotFittedError: `fit` has not been called.
            ValueError: X is not finite, or differs from the fitted data in shape.
        """
        check_is_fitted(self, "embedding_")
        return self._encode_in_blocks(_to_finite_float32(self._validate_as_tensor(X, reset=False))).cpu().numpy()

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags

    @property
    def _n_features_out(self) -> int:
        """Dimension of the embedding, for scikit-learn's feature names."""
        return int(self.embedding_.shape[1])

    @property
    def _is_interpolated(self) -> bool:
        """True if the sums over all pairs are interpolated on a grid."""
        if self.method == "auto":  # an encoder may place points so far apart that no grid holds them
            return self._has_symmetric_affinities and self.n_components == 2 and self.encoder is None
        return self.method == "interpolated"

    def _encode_in_blocks(self, data: Tensor) -> Tensor:
        """Embed data by the trained encoder in blocks that limit memory."""
        with inference_mode(self.encoder_):
            return apply_in_fixed_blocks(self.encoder_, [data], model=self.encoder_).clone()

    def _validate_as_tensor(self, X: ArrayLike, *, reset: bool) -> Tensor:
        """Check X and return it as a finite tensor on the device."""
        # scikit-learn does not check for NaN, as the error of `as_finite_float64` is more precise.
        images, least = self.encoder is not None, 4 if reset else 1
        X = as_array("X", X) if isinstance(X, Tensor | np.ma.MaskedArray) else X
        array = validate_data(self, X, reset=reset, allow_nd=images, ensure_all_finite=False, ensure_min_samples=least)
        return as_finite_float64("X", array, "(n, d, ...)" if images else "(n, d)").to(resolve_device(self.device))

    def _check_parameters_and_data(self, data: Tensor) -> None:
        """Raise `UsageError` for an invalid parameter or constant data."""
        for name in ("n_components", "max_iter"):
            check_integer(name, getattr(self, name))
        check_name("method", self.method, ("auto", "sparse", "exact", "interpolated"))
        message = f"method: 'interpolated' requires TSNE with n_components=2, got {type(self).__name__}"
        is_allowed = self.method != "interpolated" or (self._has_symmetric_affinities and self.n_components == 2)
        check(is_allowed, f"{message} with n_components={self.n_components}.", "conflict")
        good = is_number(self.early_exaggeration) and 1 <= self.early_exaggeration < math.inf
        check(good, f"early_exaggeration: must be a finite number >= 1, got {self.early_exaggeration!r}.")
        check(bool((data != data[0]).any()), f"X: all {len(data)} items are equal.", "constant")

    def _resolve_early_and_late_learning_rates(self, num_items: int) -> tuple[float, float]:
        """Return the learning rates during and after early exaggeration."""
        if self.learning_rate == "auto":
            if self.encoder is not None:
                return 1e-3, 1e-3  # of Adam
            # While the points are close together the curvature is about 4 * exaggeration / n.
            return num_items / 4 / self.early_exaggeration, num_items / 4
        if isinstance(self.learning_rate, str):
            raise unknown_name_error("learning_rate", self.learning_rate, ["auto"])
        check_positive("learning_rate", self.learning_rate)
        return (float(self.learning_rate),) * 2

    def _build_optimizer(self, embedding: Tensor, plan: Tensor) -> _MomentumWithGains:
        """Build the optimizer that fits an embedding to `plan`."""
        return _MomentumWithGains([embedding], *self._resolve_early_and_late_learning_rates(len(plan)))

    def _build_initial_embedding(self, data: Tensor) -> Tensor:
        """Build the initial embedding, (n, n_components), as `init` specifies."""
        shape = (len(data), self.n_components)
        std = 1e-4  # of the first coordinate: small, so that points can pass one another
        if not isinstance(self.init, str):
            initial = as_finite_float64("init", self.init)
            check(tuple(initial.shape) == shape, f"init: must have shape {shape}, got {tuple(initial.shape)}.", "shape")
            return initial.to(data)
        if self.init == "random":
            return std * torch.randn(shape, dtype=torch.float32).to(data)
        if self.init != "pca":
            raise unknown_name_error("init", self.init, ["pca", "random"])
        limit = min(data.shape)
        check(shape[1] <= limit, f"n_components: init='pca' allows {limit}, got {shape[1]}; use init='random'.", "pca")
        centered = data - data.mean(0)
        centered = (centered / centered.abs().max()).float()  # far from the origin only double precision can center
        _, _, axes = torch.linalg.svd(centered, full_matrices=False)
        axes = axes[: self.n_components]
        largest = axes.gather(1, axes.abs().argmax(1, keepdim=True))
        points: Tensor = centered @ (axes * largest.sign()).T
        return points.mul_(std / points[:, 0].std())

    def _embed_in_training_mode(self, data: Tensor) -> Tensor:
        """Embed all data with the encoder in training mode."""
        embedding: Tensor = self.encoder_.train()(data)
        expected, got = (len(data), self.n_components), tuple(getattr(embedding, "shape", ()))
        check(got == expected, f"encoder: must return shape {expected}, got {got}.", "shape")
        return embedding

    def _build_objective(self, plan: Tensor, exaggeration: float) -> Callable[[Tensor], Tensor]:
        """Build the objective for `plan`, with attraction multiplied by `exaggeration`."""
        if self._is_interpolated:
            return GridTSNELoss(plan, exaggeration)
        penalties: dict[Divergence, float] = {_ExtraAttraction(): exaggeration - 1} if exaggeration > 1 else {}
        return Objective(WithinView(), *self._build_kernel_and_constraint(), Matrix(plan), KL(), penalties)

    def _minimize(
        self,
        build_objective: Callable[[float], Callable[[Tensor], Tensor]],
        embed: Callable[[], Tensor],
        optimizer: torch.optim.Optimizer,
    ) -> None:
        """Minimize the objective, with early exaggeration in the first 250 iterations."""
        early, late = build_objective(self.early_exaggeration), build_objective(1.0)
        last, last_size = torch.inf, torch.inf
        for iteration in self._progress_bars.track(range(1, self.max_iter + 1), type(self).__name__, self.max_iter):
            exaggerated = iteration <= 250  # as in the original implementation
            if iteration == 251 and isinstance(optimizer, _MomentumWithGains):
                optimizer.start_late_phase_and_restart_if_collapsed()
            embedding = embed()
            loss = (early if exaggerated else late)(embedding)
            value, size = loss.item(), embedding.detach().std().item()
            message = f"learning_rate: diverged after {iteration - 1} iterations. Lower it."
            check(math.isfinite(value), message, "diverged")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            self.n_iter_ = iteration
            if iteration % 50:
                continue
            if self.verbose:
                phase = "exaggerated objective" if exaggerated else "KL divergence"
                print(f"[{type(self).__name__}] iteration {iteration}: {phase} {value:.4f}")
            is_expanding = size > 1.1 * last_size  # while the points are close, the divergence hardly changes
            if not exaggerated and last - value < 1e-4 * value and not is_expanding:
                break
            last, last_size = torch.inf if exaggerated else value, size


# Not as a decorator in the class: TransformerMixin wraps the class's methods for set_output, which removes it.
_NeighborEmbedding.transform = available_if(_require_encoder)(_NeighborEmbedding.transform)  # type: ignore[method-assign]


def _to_finite_float32(data: Tensor) -> Tensor:
    """Convert data to float32, or raise `UsageError` if a number is too large."""
    converted = data.float()
    good = bool(converted.isfinite().all())
    check(good, f"X: must be within single precision for an encoder, got {data.abs().max():g}; scale it.", "not_finite")
    return converted


class SNE(_NeighborEmbedding):
    """Stochastic neighbor embedding (SNE), which preserves neighborhoods with a Gaussian kernel.

    Minimizes KL(P | Q) between the conditional neighbor distributions of the data, P, from Gaussians with bandwidths
    set by the perplexity, and those of the embedding, Q, from a Gaussian of fixed width. Every iteration computes all
    pairs of points, in O(n) memory, unless they are interpolated.

    Args:
        n_components: dimension of the embedding.
        perplexity: effective number of neighbors, from 1 to below n - 1.
        early_exaggeration: factor of the attraction in the first 250 iterations, at least 1.
        learning_rate: learning rate; ``"auto"`` is n / 4, or less for SNE with items that are neighbors of many others,
            divided by the early exaggeration during it; 0.001 for an encoder. A warning is issued if the result of a
            number is no better than all items at one point.
        max_iter: maximum number of iterations.
        init: ``"pca"``, ``"random"`` or an array (n, n_components); an encoder starts from its own weights.
        method: ``"sparse"``: P has the 3 * perplexity nearest neighbors of each item; ``"exact"``: P has all, in O(n^2)
            memory. Divergences of the two cannot be compared. ``"interpolated"``, for `TSNE` in two dimensions: P as in
            "sparse", and the sums over all pairs of points by interpolation, in O(n) time. ``"auto"``: "interpolated"
            if possible and without an encoder, else "sparse".
        random_state: seed of the random initialization and of the encoder's weights.
        encoder: learn an encoder that can embed new data: a module from (n, ...) to (n, n_components), of which a copy
            is trained, or a name in `contraport.encoders`, to which a linear layer is added. All items are one batch.
        device: device that computes.
        verbose: print the objective every 50 iterations.

    Attributes:
        embedding_: embedding of the data, (n, n_components), float32.
        kl_divergence_: KL divergence KL(P | Q) of the embedding, in nats; for SNE the mean over items.
        n_iter_: number of optimization iterations.
        encoder_: trained encoder, if the parameter encoder is set; the method `transform` requires it.
        n_features_in_: number of features of X, the length of its second axis.

    Raises:
        UsageError: in `fit`, for invalid parameters or data.

    Source: Hinton and Roweis (2002), Stochastic neighbor embedding, eq. 1-6.

    >>> import numpy as np
    >>> X = np.repeat([[0.0, 0.0], [9.0, 0.0]], 5, axis=0) + np.random.default_rng(0).normal(size=(10, 2))
    >>> SNE(perplexity=3, max_iter=20, random_state=0).fit_transform(X).shape
    (10, 2)
    """

    _has_symmetric_affinities = False

    def _build_kernel_and_constraint(self) -> tuple[Kernel, Constraint]:
        """Build the Gaussian kernel and the constraint of equal row masses."""
        return Gibbs("sqeuclidean", 1.0), Rows()

    def _build_optimizer(self, embedding: Tensor, plan: Tensor) -> _MomentumWithGains:
        """Build the optimizer, with automatic learning rates small enough not to diverge.

        Unlike that of t-SNE, the attraction grows with the distance: too large a step diverges. Its curvature is at
        most four times the largest mass of a row and a column, which is large for a neighbor of many items.
        """
        early, late = self._resolve_early_and_late_learning_rates(len(plan))
        if self.learning_rate == "auto":
            mass = float((plan.sum(0) + plan.sum(1)).to_dense().max())
            late = min(late, 1 / (2 * mass))
            early = late / self.early_exaggeration
        return _MomentumWithGains([embedding], early, late, max_gain=1.0)


class TSNE(_NeighborEmbedding):
    """t-distributed stochastic neighbor embedding (t-SNE), with a heavy-tailed kernel.

    Minimizes KL(P | Q) between the symmetrized neighbor distribution of the data, P, and that of the embedding, Q, from
    the kernel 1 / (1 + distance^2), normalized over all pairs. Parameters and attributes are those of `SNE`.

    Raises:
        UsageError: in `fit`, for invalid parameters or data.

    Source: van der Maaten and Hinton (2008), Visualizing data using t-SNE, eq. 4; initialization and learning rate,
    Kobak and Berens (2019), The art of using t-SNE; with an encoder, van der Maaten (2009), Learning a parametric
    embedding by preserving local structure.

    >>> import numpy as np
    >>> X = np.repeat([[0.0, 0.0], [9.0, 0.0]], 5, axis=0) + np.random.default_rng(0).normal(size=(10, 2))
    >>> TSNE(perplexity=3, max_iter=20, random_state=0).fit_transform(X).shape
    (10, 2)
    """

    _has_symmetric_affinities = True

    def _build_kernel_and_constraint(self) -> tuple[Kernel, Constraint]:
        """Build Student's kernel and the constraint that the total mass is 1."""
        return StudentT(1.0), Simplex()


class _MomentumWithGains(torch.optim.Optimizer):
    """Gradient descent with momentum and an adaptive gain per coordinate.

    A gain grows while the direction of its coordinate persists, and shrinks otherwise.

    Source: Jacobs (1988), Increased rates of convergence through learning rate adaptation, as used by van der Maaten.
    """

    def __init__(self, parameters: list[Tensor], lr: float, late_lr: float, max_gain: float = math.inf) -> None:
        super().__init__(parameters, {"lr": lr, "late_lr": late_lr, "momentum": 0.5, "max_gain": max_gain})
        self._initial = [parameter.detach().clone() for parameter in parameters]

    @torch.no_grad()
    def start_late_phase_and_restart_if_collapsed(self) -> None:
        """Switch to the late learning rate and momentum, and restart if points collapsed.

        With a perplexity near the number of items all of them are neighbors, and exaggerated attraction draws them to
        one point, where all gradients are zero.
        """
        for group in self.param_groups:
            group |= {"lr": group["late_lr"], "momentum": 0.8}
            for parameter, initial in zip(group["params"], self._initial, strict=True):
                if parameter.std() < initial.std():
                    parameter.copy_(initial)
                    self.state.pop(parameter)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update gains, velocities and coordinates by the current gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["gains"], state["velocity"] = torch.ones_like(parameter), torch.zeros_like(parameter)
                gains, velocity = state["gains"], state["velocity"]
                persists = velocity * parameter.grad < 0
                gains.copy_(torch.where(persists, gains + 0.2, gains * 0.8).clamp_(0.01, group["max_gain"]))
                velocity.mul_(group["momentum"]).sub_(group["lr"] * gains * parameter.grad)
                parameter.add_(velocity)
