"""Prototypes: a few learned vectors to which the items are assigned, each to some and all of them to all alike."""

from __future__ import annotations

import torch
from torch import Tensor

from contraport.distributed import gather
from contraport.engine import Geometry, Gibbs, without_autocast
from contraport.objectives.constraints import Balanced
from contraport.objectives.inputs import check_views


@torch.no_grad()
def assignments(z: Tensor, prototypes: Tensor, temperature: float = 0.05, iterations: int = 3) -> Tensor:
    """Return the share of each prototype in each item, by the balanced plan between prototypes and all items: (n, k).

    The rows sum to 1; they are held fixed, ready to be the target of another view of the same items. Under
    `torch.distributed` the plan is that of the items of all processes, and each gets its own rows.

    Args:
        z: embeddings of the items, (n, d).
        prototypes: (k, d), the same on every process.
        temperature: of the Gibbs kernel with the cosine cost.
        iterations: of Sinkhorn's algorithm, prototypes first, items last.

    Raises:
        UsageError: the shapes do not fit, or the temperature or the iterations are not positive.

    Source: Caron et al. (2020), Unsupervised learning of visual features by contrasting cluster assignments (SwAV),
    eq. 3-5.

    >>> import torch, contraport
    >>> prototypes, z0, z1 = torch.randn(5, 8), torch.randn(16, 8), torch.randn(16, 8)
    >>> swap = contraport.info_nce(temperature=0.1, symmetric=False, shared_columns=True)
    >>> value = swap(z0, prototypes, target=assignments(z1, prototypes))
    """
    check_views((z, prototypes), shared_columns=True)
    kernel = Gibbs("cosine", temperature)
    with without_autocast(z):
        (plan,) = Balanced(iterations)(Geometry(kernel(prototypes, gather(z))))
        # The last half step gives every item the same mass: its shares are a softmax over the prototypes.
        shares: Tensor = (kernel(z, prototypes).dense() + plan.f).softmax(1)
        return shares
