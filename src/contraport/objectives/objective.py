"""An objective: one answer to each of the five questions, and the loss that follows."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from contraport.engine import Kernel
from contraport.errors import check
from contraport.objectives.coupling import Coupling
from contraport.objectives.divergences import Divergence
from contraport.objectives.layouts import Block, Layout, check_views
from contraport.objectives.plans import Plan
from contraport.objectives.targets import Attributes, Matrix, Target, TargetPlan


class Objective(nn.Module):
    """The divergence of the allowed plan, taken over the compared pairs, from the plan that is wanted.

    Call it on the embeddings of two views, each (n, d) and of any floating point type; it returns a tensor without
    dimensions. Everything inside is in single precision at least, whatever autocast says.

    Args:
        layout: which pairs are compared.
        kernel: how alike two embeddings are.
        plan: which plans are allowed.
        target: which plan is wanted.
        divergence: how far one is from the other.

    Raises:
        UsageError: in the call, for views or attributes whose shape or type does not fit.

    Source: the framing of contrastive learning as inverse optimal transport (Shi et al., 2023, eq. 7) and generalised
    contrastive alignment (Chen et al., 2024, eq. 3).

    >>> import torch
    >>> from contraport import KL, Balanced, Gibbs, Joint, Objective, Pairs
    >>> loss = Objective(Joint(), Gibbs("cosine", 0.5), Balanced(iterations=5), Pairs(), KL())
    >>> z0, z1 = torch.eye(4), torch.eye(4)
    >>> loss(z0, z1)
    tensor(0.5944)
    """

    def __init__(self, layout: Layout, kernel: Kernel, plan: Plan, target: Target, divergence: Divergence) -> None:
        super().__init__()
        self.layout, self.kernel, self.allowed, self.target, self.divergence = layout, kernel, plan, target, divergence

    @property
    def temperature(self) -> float:
        """The temperature of the kernel; assign to it to change it between steps."""
        return self.kernel.temperature

    @temperature.setter
    def temperature(self, value: float) -> None:
        self.kernel.temperature = value

    def forward(
        self,
        *views: Tensor,
        labels: Tensor | None = None,
        domains: Tensor | None = None,
        ids: Tensor | None = None,
        weights: Tensor | None = None,
        target: Tensor | Target | None = None,
    ) -> Tensor:
        """Return the loss.

        Args:
            views: embeddings, (n, d) each.
            labels: class of each item, (n,), for targets that ask for it.
            domains: domain of each item, (n,), likewise.
            ids: identity of each item, (n,) integers; items with equal ids are never each other's negatives.
            weights: importance of each item's positives, (n,), nonnegative.
            target: the plan that is wanted in this call, in place of the objective's own: a matrix as in `Matrix`, or a
                rule.
        """
        attributes = _attributes(views, labels=labels, domains=domains, ids=ids, weights=weights)
        total: Tensor | float = 0.0
        for block, coupling, wanted in self._matchings(views, attributes, target):
            total = total + block.weight * self.divergence(wanted, coupling)
        assert isinstance(total, Tensor)
        return total

    def plan(self, *views: Tensor, ids: Tensor | None = None) -> Tensor:
        """Return the plan between the rows and columns of the (first) block as a dense (N, M) tensor, to look at."""
        with torch.no_grad():
            _, coupling, _ = next(self._matchings(views, _attributes(views, ids=ids), None))
            return coupling.dense()

    def target_plan(
        self,
        *views: Tensor,
        labels: Tensor | None = None,
        domains: Tensor | None = None,
        weights: Tensor | None = None,
        target: Tensor | Target | None = None,
    ) -> Tensor:
        """Return the plan that is wanted on the (first) block as a dense (N, M) tensor, to look at."""
        attributes = _attributes(views, labels=labels, domains=domains, weights=weights)
        with torch.no_grad():
            _, _, wanted = next(self._matchings(views, attributes, target))
            return wanted.dense()

    def _matchings(
        self, views: tuple[Tensor, ...], attributes: Attributes, target: Tensor | Target | None
    ) -> Iterator[tuple[Block, Coupling, TargetPlan]]:
        """Yield each block's couplings, one or both directions, beside what is wanted of them."""
        check_views(views)
        rule = self.target if target is None else Matrix(target) if isinstance(target, Tensor) else target
        with torch.autocast(views[0].device.type, enabled=False):
            for block in self.layout(*views):
                wanted = rule(block, attributes)
                couplings = self.allowed(
                    block.geometry(self.kernel, attributes.get("ids")), reciprocal=block.reciprocal
                )
                yield from zip((block, block), couplings, (wanted, wanted.T), strict=False)

    def __repr__(self) -> str:
        return (
            f"Objective(layout={self.layout!r}, kernel={self.kernel!r}, plan={self.allowed!r}, "
            f"target={self.target!r}, divergence={self.divergence!r})"
        )


def _attributes(views: tuple[Tensor, ...], **attributes: Tensor | None) -> dict[str, Tensor]:
    """Return what is known of the items, checked: one entry per item, on the views' device."""
    check(len(views) >= 1, "views: expected embeddings, got none.")
    known = {name: value for name, value in attributes.items() if value is not None}
    for name, value in known.items():
        fits = isinstance(value, Tensor) and value.ndim >= 1 and len(value) == len(views[0])
        got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        check(fits, f"{name}: expected a tensor with one entry per item, ({len(views[0])},), got {got}.")
    weights = known.get("weights")
    if weights is not None:
        good = bool((weights >= 0).all() and weights.sum() > 0 and torch.isfinite(weights).all())
        check(good, "weights: expected nonnegative finite numbers that are not all zero.")
    return {name: value.to(views[0].device) for name, value in known.items()}
