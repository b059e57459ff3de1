"""Dimensional collapse: how many directions the embeddings use, objective by objective."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from contraport.catalog.objectives import alpha_cl, direct_clr, nt_xent, quadratic
from contraport.errors import check, is_integer, is_number
from contraport.metrics.embedding_geometry import effective_rank, spectrum
from contraport.objectives.objective import Loss
from contraport.plots.colors import SERIES
from contraport.plots.figure_setup import panels
from contraport.seeding import seed_global_generators, torch_seed

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Collapse:
    """The singular spectra of representations that differ only in what trained them.

    Attributes:
        spectra: by name, the singular values of the centred representation over the largest, (F,), largest first.
        effective_ranks: by name, the exponential of the entropy of the normalised spectrum, 1 to F.
    """

    spectra: Mapping[str, Tensor]
    effective_ranks: Mapping[str, float]

    def figure(self) -> Figure:
        """Draw the spectra and the effective ranks."""
        figure, (left, right) = panels(2)
        for color, (name, values) in zip(SERIES, self.spectra.items(), strict=False):
            left.semilogy(range(1, len(values) + 1), values.clamp_min(1e-8).numpy(), color=color, label=name)
        left.set(title="singular values", xlabel="rank", ylabel="share of the largest")
        left.legend(frameon=False, fontsize="small")
        ranks = list(self.effective_ranks.items())[::-1]
        right.barh([name for name, _ in ranks], [rank for _, rank in ranks], color=SERIES[: len(ranks)][::-1])
        right.set(title="effective rank")
        return figure


def collapse(
    x: Tensor,
    objectives: Mapping[str, Loss] | None = None,
    *,
    features: int = 64,
    masked: float = 0.3,
    iterations: int = 200,
    seed: int = 0,
) -> Collapse:
    """Train one encoder by several objectives, without a projector, and compare how many directions it comes to use.

    A view of an item is the item with some coordinates set to zero; the encoder's last block is residual.

    Args:
        x: the data, (n, d).
        objectives: by name; None is the quadratic loss, NT-Xent, alpha-CL with direct weights, and DirectCLR on the
            first quarter of the features, those with a temperature at 0.5. The untrained encoder is always added.
        features: F, of the representation, at least 4.
        masked: share of the coordinates that are set to zero in a view, in [0, 1).
        iterations: of Adam, each over all items with fresh views.
        seed: of the first weights, the same for all, and of the views.

    Raises:
        UsageError: a number is out of its range.

    Source: Jing, Vincent, LeCun and Tian (2022), Understanding dimensional collapse in contrastive self-supervised
    learning; the direct weights, Tian (2022).

    >>> found = collapse(torch.randn(20, 6), features=4, iterations=1)
    >>> list(found.effective_ranks)
    ['untrained', 'quadratic', 'nt-xent', 'alpha-cl direct', 'direct-clr']
    """
    check(x.ndim == 2 and len(x) >= 2, f"x: expected shape (n, d), n at least 2, got {tuple(x.shape)}.")
    check(is_integer(features) and features >= 4, f"features: expected at least 4, got {features!r}.")
    check(is_number(masked) and 0 <= masked < 1, f"masked: expected a number in [0, 1), got {masked!r}.")
    x = x.float()
    objectives = objectives or {
        "quadratic": quadratic(),
        "nt-xent": nt_xent(0.5),
        "alpha-cl direct": alpha_cl(0.5, "direct"),
        "direct-clr": direct_clr(0.5, features // 4),
    }
    representations = {"untrained": _represent(x, nt_xent(), features, masked, 0, seed)}
    for name, objective in objectives.items():
        representations[name] = _represent(x, objective, features, masked, iterations, seed)
    spectra = {name: spectrum(h) for name, h in representations.items()}
    return Collapse(
        {name: values / values[0] for name, values in spectra.items()},
        {name: effective_rank(h) for name, h in representations.items()},
    )


class _Residual(nn.Module):
    """A linear map, and a block beside the identity."""

    def __init__(self, d: int, features: int) -> None:
        super().__init__()
        self.first = nn.Linear(d, features)
        self.block = nn.Sequential(nn.ReLU(), nn.Linear(features, features), nn.ReLU(), nn.Linear(features, features))

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.first(x)
        return h.add(self.block(h))


@torch.random.fork_rng(devices=[])
def _represent(x: Tensor, objective: Loss, features: int, masked: float, iterations: int, seed: int) -> Tensor:
    """Return the representation of the whole items, (n, F), by an encoder that the objective trained."""
    seed_global_generators(torch_seed("theory.collapse", seed))
    encoder = _Residual(x.shape[1], features)
    optimizer = torch.optim.Adam(encoder.parameters(), 1e-3)
    for _ in range(iterations):
        views = [encoder(x * (torch.rand_like(x) >= masked)) for _ in range(2)]
        optimizer.zero_grad()
        objective(*views).backward()
        optimizer.step()
    with torch.no_grad():
        representation: Tensor = encoder(x)
    return representation
