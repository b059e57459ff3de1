"""Dimensional collapse: singular values and effective ranks of representations trained by different objectives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from contraport.catalog.objectives import alpha_cl, direct_clr, nt_xent, quadratic
from contraport.errors import check, check_integer, is_number
from contraport.metrics.embedding_geometry import centered_singular_values, effective_rank
from contraport.objectives.objective import Loss
from contraport.options import keep_deprecated_attributes
from contraport.plots.colors import SERIES
from contraport.plots.figure_setup import create_panels
from contraport.seeding import derive_torch_seed, seed_torch_generators

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@keep_deprecated_attributes(spectra="relative_singular_values")
@dataclass(frozen=True, eq=False)
class CollapseComparison:
    """Singular values and effective ranks of representations, by the objective that trained them.

    Attributes:
        relative_singular_values: singular values of the centered representation divided by the largest, (F,),
            descending, by objective.
        effective_ranks: effective rank of the representation, 1 to F, by objective: exponential of the entropy of the
            singular values, normalized to a sum of 1.
    """

    relative_singular_values: Mapping[str, Tensor]
    effective_ranks: Mapping[str, float]

    def figure(self) -> Figure:
        """Draw the singular values and the effective ranks of all objectives."""
        figure, (left, right) = create_panels(2)
        for color, (name, values) in zip(SERIES, self.relative_singular_values.items(), strict=False):
            left.semilogy(range(1, len(values) + 1), values.clamp_min(1e-8).numpy(), color=color, label=name)
        left.set(title="singular values", xlabel="rank", ylabel="ratio to the largest")
        left.legend(frameon=False, fontsize="small")
        ranks = list(self.effective_ranks.items())[::-1]
        right.barh([name for name, _ in ranks], [rank for _, rank in ranks], color=SERIES[: len(ranks)][::-1])
        right.set(title="effective rank")
        return figure


def compare_collapse(
    x: Tensor,
    objectives: Mapping[str, Loss] | None = None,
    *,
    features: int = 64,
    masked: float = 0.3,
    iterations: int = 200,
    seed: int = 0,
) -> CollapseComparison:
    """Train one encoder without a projector by several objectives and compare dimensional collapse.

    A view of an item is the item with a random part of its coordinates set to zero. The encoder's last block is
    residual. The untrained encoder is always part of the result.

    Args:
        x: the data, (n, d).
        objectives: by name; None: the quadratic loss, NT-Xent, alpha-CL with direct weights, and DirectCLR on the
            first quarter of the features, with temperature 0.5 where there is one.
        features: F, of the representation, at least 4.
        masked: share of the coordinates that are set to zero in a view, in [0, 1).
        iterations: steps of Adam, each over all items with fresh views.
        seed: of the initial weights, which are the same for all, and of the views.

    Raises:
        UsageError: a number is out of range.

    Source: Jing, Vincent, LeCun and Tian (2022), Understanding dimensional collapse in contrastive self-supervised
    learning; the direct weights, Tian (2022).

    >>> result = compare_collapse(torch.randn(20, 6), features=4, iterations=1)
    >>> list(result.effective_ranks)
    ['untrained', 'quadratic', 'nt-xent', 'alpha-cl direct', 'direct-clr']
    """
    check(x.ndim == 2 and len(x) >= 2, f"x: must have shape (n, d) with n >= 2, got {tuple(x.shape)}.", "shape")
    check_integer("features", features, 4)
    check(is_number(masked) and 0 <= masked < 1, f"masked: must be in [0, 1), got {masked!r}.")
    x = x.float()
    objectives = objectives or {
        "quadratic": quadratic(),
        "nt-xent": nt_xent(0.5),
        "alpha-cl direct": alpha_cl(0.5, "direct"),
        "direct-clr": direct_clr(0.5, features // 4),
    }
    representations = {"untrained": _train_encoder(x, nt_xent(), features, masked, 0, seed)}
    for name, objective in objectives.items():
        representations[name] = _train_encoder(x, objective, features, masked, iterations, seed)
    singular_values = {name: centered_singular_values(h) for name, h in representations.items()}
    return CollapseComparison(
        {name: values / values[0] for name, values in singular_values.items()},
        {name: effective_rank(h) for name, h in representations.items()},
    )


class _ResidualEncoder(nn.Module):
    """Encoder of a linear layer and one residual block."""

    def __init__(self, d: int, features: int) -> None:
        super().__init__()
        self.first = nn.Linear(d, features)
        self.block = nn.Sequential(nn.ReLU(), nn.Linear(features, features), nn.ReLU(), nn.Linear(features, features))

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.first(x)
        return h.add(self.block(h))


@torch.random.fork_rng(devices=[])
def _train_encoder(x: Tensor, objective: Loss, features: int, masked: float, iterations: int, seed: int) -> Tensor:
    """Train an encoder on masked views and return the representation of the unmasked items, (n, F)."""
    seed_torch_generators(derive_torch_seed("theory.collapse", seed))
    encoder = _ResidualEncoder(x.shape[1], features)
    optimizer = torch.optim.Adam(encoder.parameters(), 1e-3)
    for _ in range(iterations):
        views = [encoder(x * (torch.rand_like(x) >= masked)) for _ in range(2)]
        optimizer.zero_grad()
        objective(*views).backward()
        optimizer.step()
    with torch.no_grad():
        representation: Tensor = encoder(x)
    return representation
