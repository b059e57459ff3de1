"""Neighbour embedding: points in the plane whose plan is that of the data, by the same objective as everything else."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from contraport.embedding import apply_in_blocks, evaluation_mode
from contraport.encoders import build_encoder
from contraport.engine import Gibbs, Kernel, StudentT
from contraport.errors import check, check_integer, check_positive, is_number, unknown_name_error
from contraport.estimators.array_input import as_tensor
from contraport.objectives import KL, Constraint, Matrix, Objective, Rows, Simplex, WithinView
from contraport.objectives.affinities import affinities
from contraport.objectives.divergences import Divergence
from contraport.objectives.plan import BlockResult
from contraport.seeding import seed_global_generators, torch_seed

EARLY = 250
"""How many iterations are exaggerated, as in every implementation since the first."""

START = 1e-4
"""The standard deviation of the first coordinate at the start: so small that no two points are out of reach."""

ENCODER_RATE = 1e-3

LOOK = 50
"""After so many iterations the progress is looked at, and told if it is asked for."""

METHODS = ("sparse", "exact")
"""Neighbors that the plan of the data keeps for each item: the nearest, or all."""

SETTLED = 1e-4
"""Less progress than this share of the divergence from one look to the next ends it."""


class _Attraction(Divergence):
    """Minus the mean log-kernel of the wanted pairs: added to KL it makes neighbours draw each other more strongly."""

    def __call__(self, outcome: BlockResult) -> Tensor:
        return -outcome.target.row_inner_products(outcome.plan.geometry.log_kernel)


def _has_encoder(estimator: _NeighborEmbedding) -> bool:
    """Return true, or say why other data cannot be embedded, as scikit-learn asks of methods that may be missing."""
    if estimator.encoder is None:
        raise AttributeError("encoder: transform embeds other data by an encoder; fit with encoder='mlp'.")
    return True


class _NeighborEmbedding(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator, ABC):
    """What SNE and t-SNE have in common: all but the symmetry of the data's plan, the kernel and the allowed plans."""

    _symmetric: ClassVar[bool]

    embedding_: NDArray[np.float32]
    kl_divergence_: float
    n_iter_: int
    encoder_: nn.Module

    def __init__(
        self,
        n_components: int = 2,
        *,
        perplexity: float = 30.0,
        early_exaggeration: float = 12.0,
        learning_rate: float | str = "auto",
        max_iter: int = 1000,
        init: str | ArrayLike = "pca",
        method: str = "sparse",
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
    def _kernel_and_constraint(self) -> tuple[Kernel, Constraint]:
        """Return how alike two points of the embedding are, and which plans are allowed there."""

    def fit(self, X: ArrayLike, y: object = None) -> Self:
        """Find the embedding of the data.

        Args:
            X: (n, d), n at least 4; with an encoder, whatever shape (n, ...) it takes, compared as flat vectors.
            y: ignored.

        Raises:
            UsageError: a parameter does not fit, X is not finite or constant, or the embedding diverges.
            ValueError: X is not what scikit-learn's checks ask for.
        """
        data = self._checked(X)
        exact = self.method == "exact"
        plan = affinities(data.flatten(1), self.perplexity, symmetric=self._symmetric, exact=exact)
        wanted = Matrix(plan.float())
        data = data.float()
        with torch.random.fork_rng(devices=[]):
            seed_global_generators(
                torch_seed("estimators.neighbor", check_random_state(self.random_state).randint(2**31))
            )
            if self.encoder is None:
                embedding = self._start(data.flatten(1)).requires_grad_()
                self._minimize(wanted, lambda: embedding, _MomentumWithGains([embedding], *self._rates(len(data))))
            else:
                self.encoder_ = self._encoder(tuple(data.shape[1:])).to(data)
                optimizer = torch.optim.Adam(self.encoder_.parameters(), self._rates(len(data))[1])
                self._minimize(wanted, lambda: self._encode(data), optimizer)
                embedding = self._embedded(data)
        self.embedding_ = embedding.detach().cpu().numpy()
        self.kl_divergence_ = self._objective(wanted).terms(embedding)["KL"]
        return self

    def fit_transform(self, X: ArrayLike, y: object = None) -> NDArray[np.float32]:
        """Find the embedding of the data and return it, (n, n_components); see `fit`."""
        return self.fit(X).embedding_

    def transform(self, X: ArrayLike) -> NDArray[np.float32]:
        """Return the encoder's embedding of other data, (m, n_components).

        Raises:
            AttributeError: there is no encoder.
            NotFittedError: `fit` has not been called.
            ValueError: X is not finite, or does not fit what was fitted.
        """
        check_is_fitted(self)
        return self._embedded(self._read(X, reset=False).float()).cpu().numpy()

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags

    @property
    def _n_features_out(self) -> int:
        return int(self.embedding_.shape[1])

    def _embedded(self, data: Tensor) -> Tensor:
        with evaluation_mode(self.encoder_):
            return apply_in_blocks(self.encoder_, [data], model=self.encoder_).clone()

    def _read(self, X: ArrayLike, *, reset: bool) -> Tensor:
        """Return the data, once they have passed scikit-learn's checks; what is not finite passes these."""
        images, least = self.encoder is not None, 4 if reset else 1
        array = validate_data(self, X, reset=reset, allow_nd=images, ensure_all_finite=False, ensure_min_samples=least)
        return as_tensor("X", array, "(n, d, ...)" if images else "(n, d)").to(self.device)

    def _checked(self, X: ArrayLike) -> Tensor:
        """Return the data, once everything that can be checked before the work is."""
        data = self._read(X, reset=True)
        for name in ("n_components", "max_iter"):
            check_integer(name, getattr(self, name))
        if self.method not in METHODS:
            raise unknown_name_error("method", self.method, METHODS)
        good = is_number(self.early_exaggeration) and self.early_exaggeration >= 1
        check(good, f"early_exaggeration: expected a number of at least 1, got {self.early_exaggeration!r}.")
        check(bool((data != data[0]).any()), f"X: all {len(data)} items are equal; there is nothing to embed.")
        return data

    def _rates(self, n: int) -> tuple[float, float]:
        """Return the step length while the attraction is exaggerated and after."""
        if self.learning_rate == "auto":
            # While the points are close to each other the curvature is about 4 exaggeration / n.
            return (ENCODER_RATE,) * 2 if self.encoder is not None else (n / 4 / self.early_exaggeration, n / 4)
        if isinstance(self.learning_rate, str):
            raise unknown_name_error("learning_rate", self.learning_rate, ["auto"])
        check_positive("learning_rate", self.learning_rate)
        return (float(self.learning_rate),) * 2

    def _start(self, data: Tensor) -> Tensor:
        """Return where the points start, (n, n_components)."""
        shape = (len(data), self.n_components)
        if not isinstance(self.init, str):
            given = as_tensor("init", self.init)
            check(tuple(given.shape) == shape, f"init: expected shape {shape}, got {tuple(given.shape)}.")
            return given.to(data)
        if self.init == "random":
            return START * torch.randn(shape).to(data)
        if self.init != "pca":
            raise unknown_name_error("init", self.init, ["pca", "random"])
        most = min(data.shape)
        check(shape[1] <= most, f"n_components: the init 'pca' has at most {most}, got {shape[1]}; use init='random'.")
        _, _, axes = torch.linalg.svd(data - data.mean(0), full_matrices=False)
        axes = axes[: self.n_components]
        largest = axes.gather(1, axes.abs().argmax(1, keepdim=True))
        points: Tensor = (data - data.mean(0)) @ (axes * largest.sign()).T
        return points.mul_(START / points[:, 0].std())

    def _encoder(self, shape: tuple[int, ...]) -> nn.Module:
        if isinstance(self.encoder, nn.Module):
            return copy.deepcopy(self.encoder)
        body = build_encoder(str(self.encoder), shape)
        return nn.Sequential(body, nn.Linear(int(body.num_features), self.n_components))  # type: ignore[arg-type]

    def _encode(self, data: Tensor) -> Tensor:
        embedding: Tensor = self.encoder_.train()(data)
        expected = (len(data), self.n_components)
        check(
            isinstance(embedding, Tensor) and tuple(embedding.shape) == expected,
            f"encoder: expected one that returns shape {expected}, got {tuple(getattr(embedding, 'shape', ()))}.",
        )
        return embedding

    def _objective(self, wanted: Matrix, exaggeration: float = 1.0) -> Objective:
        """Return what is minimised over the embedding, its attraction multiplied by the exaggeration."""
        penalties: dict[Divergence, float] = {_Attraction(): exaggeration - 1} if exaggeration > 1 else {}
        return Objective(WithinView(), *self._kernel_and_constraint(), wanted, KL(), penalties)

    def _minimize(self, wanted: Matrix, embed: Callable[[], Tensor], optimizer: torch.optim.Optimizer) -> None:
        """Move what `embed` depends on, first under exaggeration, until it settles or the iterations are spent."""
        early, late = self._objective(wanted, self.early_exaggeration), self._objective(wanted)
        last = torch.inf
        for iteration in range(1, self.max_iter + 1):
            exaggerated = iteration <= EARLY
            if iteration == EARLY + 1 and isinstance(optimizer, _MomentumWithGains):
                optimizer.settle()
            loss = (early if exaggerated else late)(embed())
            value = loss.item()
            check(math.isfinite(value), f"learning_rate: diverged after {iteration - 1} iterations; lower it.")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            self.n_iter_ = iteration
            if iteration % LOOK:
                continue
            if self.verbose:
                phase = "exaggerated objective" if exaggerated else "KL divergence"
                print(f"[{type(self).__name__}] iteration {iteration}: {phase} {value:.4f}")
            if not exaggerated and last - value < SETTLED * value:
                break
            last = torch.inf if exaggerated else value


# Here, not above: TransformerMixin wraps what a class defines, for set_output, and would unwrap this.
_NeighborEmbedding.transform = available_if(_has_encoder)(_NeighborEmbedding.transform)  # type: ignore[method-assign]


class SNE(_NeighborEmbedding):
    """Stochastic neighbour embedding: each item finds its neighbours again by a Gaussian in the embedding.

    Minimises KL(P | Q) between the conditional neighbour shares of the data, P, by Gaussians with bandwidths set by the
    perplexity, and those of the embedding, Q, by a Gaussian of fixed width. Every iteration computes all pairs of
    points, in O(n) memory.

    Args:
        n_components: dimensions of the embedding.
        perplexity: effective number of neighbours, from 1 to below n - 1.
        early_exaggeration: factor of the attraction in the first 250 iterations, at least 1.
        learning_rate: step length; ``"auto"`` is n / 4, divided by the exaggeration while there is one, and for an
            encoder 0.001.
        max_iter: how many iterations at most.
        init: ``"pca"``, ``"random"`` or an array (n, n_components); an encoder starts from its own weights.
        method: ``"sparse"``, P keeps the three times perplexity nearest neighbours of an item, or ``"exact"``, P keeps
            all, in O(n^2) memory. The divergences of the two cannot be compared.
        random_state: seed of the random start and of the encoder's weights.
        encoder: learn a map that embeds other data too: a module from (n, ...) to (n, n_components), of which a copy is
            trained, or a name of `contraport.encoders`, to which a linear layer is added. All items make one batch.
        device: where to compute.
        verbose: print the objective every 50 iterations.

    Attributes:
        embedding_: (n, n_components), float32.
        kl_divergence_: KL(P | Q) of the embedding, in nats; of SNE the mean over the items.
        n_iter_: iterations made.
        encoder_: the trained encoder, where one was asked for; there is a `transform` only then.
        n_features_in_: the length of the second axis of X.

    Raises:
        UsageError: in `fit`, for values that do not fit.

    Source: Hinton and Roweis (2002), Stochastic neighbor embedding, eq. 1-6.

    >>> import numpy as np
    >>> X = np.repeat([[0.0, 0.0], [9.0, 0.0]], 5, axis=0) + np.random.default_rng(0).normal(size=(10, 2))
    >>> SNE(perplexity=3, max_iter=20, random_state=0).fit_transform(X).shape
    (10, 2)
    """

    _symmetric = False

    def _kernel_and_constraint(self) -> tuple[Kernel, Constraint]:
        return Gibbs("sqeuclidean", 1.0), Rows()


class TSNE(_NeighborEmbedding):
    """t-distributed stochastic neighbour embedding: the pairs of neighbours are found again by a heavy-tailed kernel.

    Minimises KL(P | Q) between the symmetrised neighbour shares of the data, P, and those of the embedding, Q, by the
    kernel 1 / (1 + distance^2), normalised over all pairs. Its parameters and attributes are those of `SNE`.

    Raises:
        UsageError: in `fit`, for values that do not fit.

    Source: van der Maaten and Hinton (2008), Visualizing data using t-SNE, eq. 4; the start and the learning rate,
    Kobak and Berens (2019), The art of using t-SNE; with an encoder, van der Maaten (2009), Learning a parametric
    embedding by preserving local structure.

    >>> import numpy as np
    >>> X = np.repeat([[0.0, 0.0], [9.0, 0.0]], 5, axis=0) + np.random.default_rng(0).normal(size=(10, 2))
    >>> TSNE(perplexity=3, max_iter=20, random_state=0).fit_transform(X).shape
    (10, 2)
    """

    _symmetric = True

    def _kernel_and_constraint(self) -> tuple[Kernel, Constraint]:
        return StudentT(1.0), Simplex()


class _MomentumWithGains(torch.optim.Optimizer):
    """Momentum with a step length of its own for each coordinate, longer while its direction lasts.

    Source: Jacobs (1988), Increased rates of convergence through learning rate adaptation, as used by van der Maaten.
    """

    def __init__(self, parameters: list[Tensor], lr: float, late_lr: float) -> None:
        super().__init__(parameters, {"lr": lr, "late_lr": late_lr, "momentum": 0.5})

    def settle(self) -> None:
        """Go on with the late step length and more momentum, once the points have found their places roughly."""
        for group in self.param_groups:
            group |= {"lr": group["late_lr"], "momentum": 0.8}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["gains"], state["velocity"] = torch.ones_like(parameter), torch.zeros_like(parameter)
                gains, velocity = state["gains"], state["velocity"]
                lasting = velocity * parameter.grad < 0
                gains.copy_(torch.where(lasting, gains + 0.2, gains * 0.8).clamp_(min=0.01))
                velocity.mul_(group["momentum"]).sub_(group["lr"] * gains * parameter.grad)
                parameter.add_(velocity)
