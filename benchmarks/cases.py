"""Cases of the engine benchmark: the losses, and the packages that compute them.

All cases of one loss compute the same number from the same raw embeddings at `TEMPERATURE`, with their normalization.
Conventions differ between packages (POT, OTT and GeomLoss take the squared distance, which is twice the cosine cost, or
half of it). Equal gradients show that the conventions agree.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import contraport

Call = Callable[[Tensor, Tensor], Tensor]

TEMPERATURE = 0.1
ITERATIONS = 3
"""Number of Sinkhorn iterations of the comparison with other packages."""

MANY = 100
"""Number of Sinkhorn iterations of the comparison of memory."""


class Case(NamedTuple):
    """Implementation of a loss in a package or backend.

    Attributes:
        loss: Name of the loss.
        by: Name of the package or backend.
        make: Builds the function that computes the loss from two views.
        layout: ``"joint"``, each view has half of the rows; or ``"cross"``, each view has all rows.
        most: Largest number of rows to measure.
        reason: Suggestion for this limit.
        package: Package that must be installed; None for none.
    """

    loss: str
    by: str
    make: Callable[[], Call]
    layout: str
    most: int = 1 << 20
    reason: str = ""
    package: str | None = None

    @property
    def name(self) -> str:
        return f"{self.loss}, {self.by}"

    def skip_reason(self, rows: int) -> str | None:
        """Return the reason why the case is not measured; None if it is."""
        if self.package is not None and importlib.util.find_spec(self.package) is None:
            return f"{self.package} is not installed"
        return self.reason if rows > self.most else None


def with_backend(backend: str, loss: contraport.Objective) -> Call:
    """Return a function that computes a loss on a backend; ``"compiled"`` is the dense one under torch.compile."""
    if backend == "compiled":
        return with_backend("dense", torch.compile(loss))

    def call(z0: Tensor, z1: Tensor) -> Tensor:
        with contraport.engine.backend(backend):
            return loss(z0, z1)

    return call


def rows_loss() -> contraport.Objective:
    return contraport.Objective(
        contraport.Cross(symmetric=False),
        contraport.Gibbs("cosine", TEMPERATURE),
        contraport.Rows(),
        contraport.Pairs(),
        contraport.KL(),
    )


def plain_rows(z0: Tensor, z1: Tensor) -> Tensor:
    return F.cross_entropy(F.normalize(z0) @ F.normalize(z1).T / TEMPERATURE, torch.arange(len(z0)))


def liger_rows() -> Call:
    from liger_kernel.ops.fused_linear_scaled_cross_entropy import LigerFusedLinearScaledCrossEntropyFunction as Liger

    return lambda z0, z1: Liger.apply(F.normalize(z0), F.normalize(z1), torch.arange(len(z0)), TEMPERATURE).mean()


def sentence_transformers_rows() -> Call:
    return _ranking()


def info_nce() -> contraport.Objective:
    return contraport.info_nce(temperature=TEMPERATURE)


def plain_info_nce(z0: Tensor, z1: Tensor) -> Tensor:
    logits, labels = F.normalize(z0) @ F.normalize(z1).T / TEMPERATURE, torch.arange(len(z0))
    return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2


def open_clip_info_nce() -> Call:
    from open_clip.loss import ClipLoss

    loss = ClipLoss()
    return lambda z0, z1: loss(F.normalize(z0), F.normalize(z1), 1 / TEMPERATURE)


def sentence_transformers_info_nce() -> Call:
    return _ranking(directions=("query_to_doc", "doc_to_query"), partition_mode="per_direction")


def _ranking(**settings: object) -> Call:
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    loss = MultipleNegativesRankingLoss(None, scale=1 / TEMPERATURE, **settings)
    return lambda z0, z1: loss.compute_loss_from_embeddings([z0, z1], None)


def nt_xent() -> contraport.Objective:
    return contraport.nt_xent(temperature=TEMPERATURE)


def plain_nt_xent(z0: Tensor, z1: Tensor) -> Tensor:
    z = F.normalize(torch.cat([z0, z1]))
    logits = (z @ z.T / TEMPERATURE).fill_diagonal_(-torch.inf)
    return F.cross_entropy(logits, torch.arange(len(z)).roll(len(z0)))


def lightly_nt_xent() -> Call:
    from lightly.loss import NTXentLoss

    return NTXentLoss(TEMPERATURE)


def metric_learning_nt_xent() -> Call:
    from pytorch_metric_learning.losses import NTXentLoss, SelfSupervisedLoss

    return SelfSupervisedLoss(NTXentLoss(TEMPERATURE))


def gca_ince(iterations: int) -> contraport.Objective:
    return contraport.gca_ince(temperature=TEMPERATURE, iterations=iterations)


def gca_uot() -> contraport.Objective:
    return contraport.gca_uot(temperature=TEMPERATURE, iterations=ITERATIONS)


def sinkhorn(iterations: int = ITERATIONS) -> contraport.Objective:
    """Build -mean log P_ii of the plan after some Sinkhorn iterations, rows first, in the cross layout."""
    return contraport.Objective(
        contraport.Cross(symmetric=False),
        contraport.Gibbs("cosine", TEMPERATURE),
        contraport.Balanced(iterations),
        contraport.Pairs(),
        contraport.KL(),
    )


def pot_sinkhorn(iterations: int = ITERATIONS) -> Call:
    """Build the loss on POT, whose first half step is on the columns, so on the transposed problem."""
    import ot

    def call(z0: Tensor, z1: Tensor) -> Tensor:
        cost = 1 - F.normalize(z1) @ F.normalize(z0).T
        weights = torch.full((len(z0),), 1 / len(z0))
        plan = ot.bregman.sinkhorn_log(
            weights, weights, cost, TEMPERATURE, numItermax=iterations, stopThr=0, warn=False
        )
        return -(plan.diagonal() * len(z0)).log().mean()

    return call


def pot_batch_sinkhorn(iterations: int = ITERATIONS) -> Call:
    from ot.batch import solve_sample_batch

    def call(z0: Tensor, z1: Tensor) -> Tensor:
        x, y = F.normalize(z0)[None], F.normalize(z1)[None]
        settings = {"reg": 2 * TEMPERATURE, "max_iter": iterations, "tol": 0, "method": "log_sinkhorn"}
        plan = solve_sample_batch(x, y, **settings, grad="autodiff").plan[0]
        return -(plan.diagonal() * len(z0)).log().mean()

    return call


def ott_sinkhorn(iterations: int = ITERATIONS) -> Call:
    """Build the loss on OTT, also transposed; with fewer inner iterations its gradient is not exact.

    JAX differentiates; torch is given the gradient.
    """
    import jax
    import jax.numpy as jnp
    from ott.geometry.pointcloud import PointCloud
    from ott.solvers import linear

    def value(z0: jax.Array, z1: jax.Array) -> jax.Array:
        x, y = (z / jnp.linalg.norm(z, axis=1, keepdims=True) for z in (z0, z1))
        settings = dict.fromkeys(("min_iterations", "max_iterations", "inner_iterations"), iterations)
        out = linear.solve(PointCloud(y, x, epsilon=2 * TEMPERATURE), **settings, implicit_diff=None)
        cost = ((x - y) ** 2).sum(1)
        return -(out.f + out.g - cost).mean() / (2 * TEMPERATURE) - jnp.log(len(x))

    compiled = jax.jit(jax.value_and_grad(value, (0, 1)))

    class Through(torch.autograd.Function):
        @staticmethod
        def forward(ctx, z0: Tensor, z1: Tensor) -> Tensor:
            loss, gradients = compiled(*(jnp.asarray(z.detach().numpy()) for z in (z0, z1)))
            ctx.gradients = [torch.from_dlpack(g) for g in gradients]
            return torch.tensor(float(loss))

        @staticmethod
        def backward(ctx, seed: Tensor) -> tuple[Tensor, ...]:
            return tuple(seed * g for g in ctx.gradients)

    return Through.apply


def transport(backend: str) -> Call:
    """Build the entropic transport cost at convergence, from its potentials."""

    def call(z0: Tensor, z1: Tensor) -> Tensor:
        kernel, constraint = contraport.Gibbs("cosine", TEMPERATURE), contraport.Balanced(100, tolerance=1e-3)
        with contraport.engine.backend(backend):
            return contraport.transport(z0, z1, kernel, constraint).value

    return call


def geomloss_transport() -> Call:
    from geomloss import SamplesLoss

    loss = SamplesLoss("sinkhorn", blur=TEMPERATURE**0.5, debias=False, backend="tensorized")
    return lambda z0, z1: loss(F.normalize(z0), F.normalize(z1))


def _own_cases(loss: str, make: Callable[[], contraport.Objective], layout: str) -> list[Case]:
    kept = Case(loss, "stored", lambda: with_backend("stored", make()), layout, 16384, "1 GiB of tiles at 16,384 rows")
    return [Case(loss, "streamed", lambda: with_backend("streamed", make()), layout), kept]


def _dense_cases(loss: str, make: Callable[[], contraport.Objective], layout: str) -> list[Case]:
    """Return cases of the dense backend, which small batches use, plain and under torch.compile."""
    return [
        Case(loss, by, lambda backend=backend: with_backend(backend, make()), layout, 512, "for small batches")
        for by, backend in (("dense", "dense"), ("dense, compiled", "compiled"))
    ]


DENSE = "several matrices of 1 GiB at 16,384 rows"
SLOW = "several GiB and minutes beyond 8,192 rows"

STORED = "every iteration keeps matrices: tens of GiB beyond 2,048 rows"

CASES: list[Case] = [
    *_own_cases("nt_xent", nt_xent, "joint"),
    *_dense_cases("nt_xent", nt_xent, "joint"),
    Case("nt_xent", "autograd", lambda: plain_nt_xent, "joint", 16384, DENSE),
    Case("nt_xent", "lightly", lightly_nt_xent, "joint", 16384, DENSE, "lightly"),
    Case(
        "nt_xent", "pytorch-metric-learning", metric_learning_nt_xent, "joint", 256,
        "34 GB at 2,048 rows", "pytorch_metric_learning",
    ),
    *_own_cases("info_nce", info_nce, "cross"),
    *_dense_cases("info_nce", info_nce, "cross"),
    Case("info_nce", "autograd", lambda: plain_info_nce, "cross", 16384, DENSE),
    Case("info_nce", "open_clip", open_clip_info_nce, "cross", 16384, DENSE, "open_clip"),
    Case(
        "info_nce", "sentence-transformers", sentence_transformers_info_nce, "cross", 16384, DENSE,
        "sentence_transformers",
    ),
    *_own_cases("rows", rows_loss, "cross"),
    *_dense_cases("rows", rows_loss, "cross"),
    Case("rows", "F.cross_entropy", lambda: plain_rows, "cross", 16384, DENSE),
    Case("rows", "liger", liger_rows, "cross", package="liger_kernel"),
    Case("rows", "sentence-transformers", sentence_transformers_rows, "cross", 16384, DENSE, "sentence_transformers"),
    *_own_cases("gca_ince K=3", lambda: gca_ince(3), "joint"),
    Case("gca_ince K=3", "autograd", lambda: with_backend("dense", gca_ince(3)), "joint", 8192, SLOW),
    *_own_cases("gca_ince K=10", lambda: gca_ince(10), "joint"),
    *_own_cases("gca_uot K=3", gca_uot, "joint"),
    *_own_cases("sinkhorn K=3", sinkhorn, "cross"),
    Case("sinkhorn K=3", "POT", pot_sinkhorn, "cross", 8192, SLOW, "ot"),
    Case("sinkhorn K=3", "POT, batch", pot_batch_sinkhorn, "cross", 8192, SLOW, "ot"),
    Case("sinkhorn K=3", "OTT", ott_sinkhorn, "cross", 8192, SLOW, "ott"),
    *_own_cases(f"sinkhorn K={MANY}", lambda: sinkhorn(MANY), "cross"),
    Case(f"sinkhorn K={MANY}", "POT", lambda: pot_sinkhorn(MANY), "cross", 2048, STORED, "ot"),
    Case(
        f"sinkhorn K={MANY}", "POT, batch", lambda: pot_batch_sinkhorn(MANY), "cross", 2048, STORED, "ot",
    ),
    Case(f"sinkhorn K={MANY}", "OTT", lambda: ott_sinkhorn(MANY), "cross", 2048, STORED, "ott"),
    Case("transport", "streamed", lambda: transport("streamed"), "cross"),
    Case("transport", "stored", lambda: transport("stored"), "cross", 16384, "1 GiB of tiles at 16,384 rows"),
    Case("transport", "GeomLoss", geomloss_transport, "cross", 8192, SLOW, "geomloss"),
]  # fmt: skip


def make_views(layout: str, rows: int, dimensions: int) -> tuple[Tensor, Tensor]:
    """Return two random views with similar pairs, (n, d) each."""
    n = rows // 2 if layout == "joint" else rows
    generator = torch.Generator().manual_seed(0)
    z0 = torch.randn(n, dimensions, generator=generator)
    z1 = z0 + 0.5 * torch.randn(n, dimensions, generator=generator)
    return z0.requires_grad_(), z1.requires_grad_()
