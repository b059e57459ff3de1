"""Targets from what is known of the items: which show the same, their classes, their domains."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from contraport.errors import check
from contraport.objectives.equality import Indicator
from contraport.objectives.layouts import Block
from contraport.objectives.targets.target import Attributes, Target, precision_of
from contraport.objectives.targets.target_plan import SparseTarget, StructuredTarget


@dataclass(frozen=True, repr=False)
class Pairs(Target):
    """Each row is wanted at its positives: mass 1/N a row, in equal parts.

    >>> import torch
    >>> from contraport.objectives import Cross
    >>> (block,) = Cross()(torch.zeros(2, 1), torch.zeros(2, 1))
    >>> Pairs()(block, {}).dense()
    tensor([[0.5000, 0.0000],
            [0.0000, 0.5000]])
    """

    @property
    def complete(self) -> bool:
        """Whether every row wants something: it does."""
        return True

    def __call__(self, block: Block, attributes: Attributes) -> SparseTarget:
        """Return the target plan of a block."""
        rows, columns = block.positives
        per_row = torch.zeros_like(block.row_items).index_add(0, rows, torch.ones_like(rows))
        values = 1 / (per_row[rows] * block.shape[0]).to(precision_of(block))
        return SparseTarget(rows, columns, values, block.shape)


@dataclass(frozen=True, repr=False)
class Labels(Target):
    """Each row is wanted at all other embeddings of its class: mass 1/N a row, in equal parts.

    The call needs ``labels``, (n,). A row that is alone in its class wants nothing and adds nothing to the loss.

    Source: Khosla et al. (2020), Supervised contrastive learning, eq. 2.

    >>> import torch
    >>> from contraport.objectives import Cross
    >>> (block,) = Cross()(torch.zeros(3, 1), torch.zeros(3, 1))
    >>> (Labels()(block, {"labels": torch.tensor([0, 0, 1])}).dense() * 6).round()
    tensor([[1., 1., 0.],
            [1., 1., 0.],
            [0., 0., 2.]])
    """

    def __call__(self, block: Block, attributes: Attributes) -> StructuredTarget:
        """Return the target plan of a block."""
        same = Indicator.equal(block.spread(_attribute("labels", attributes)))
        return _by_rows(block, ((1.0, block.compared() & same),))


@dataclass(frozen=True, repr=False)
class Domains(Target):
    """Each row is wanted at its positives, and somewhat at other items of its own or of other domains.

    Proportional to 1 at positives, alpha at other items of the same domain, beta at items of another one; mass 1/N a
    row. The call needs ``domains``, (n,).

    Args:
        alpha: level within a domain, nonnegative.
        beta: level across domains, nonnegative.

    Raises:
        UsageError: alpha or beta is negative.

    Source: Chen et al. (2024), the target plan for domain generalisation.
    """

    alpha: float = 0.0
    beta: float = 0.0

    def __post_init__(self) -> None:
        for name in ("alpha", "beta"):
            check(getattr(self, name) >= 0, f"{name}: expected a nonnegative number, got {getattr(self, name)!r}.")

    def __call__(self, block: Block, attributes: Attributes) -> StructuredTarget:
        """Return the target plan of a block."""
        same_item = Indicator.equal(block.items)
        same_domain = Indicator.equal(block.spread(_attribute("domains", attributes)))
        others = block.compared().without(same_item)
        levels = (
            (1.0, block.compared() & same_item),
            (self.alpha, others & same_domain),
            (self.beta, others.without(same_domain)),
        )
        return _by_rows(block, tuple((level, pairs) for level, pairs in levels if level > 0))


def _by_rows(block: Block, levels: tuple[tuple[float, Indicator], ...]) -> StructuredTarget:
    """Return the plan with the given levels, each row scaled to 1/N, rows that want nothing to zero."""
    (n, m), like = block.shape, torch.empty(0, dtype=precision_of(block), device=block.x.device)
    totals = sum((level * pairs.counts(like) for level, pairs in levels), like.new_zeros(n))
    row_scale = torch.where(totals > 0, 1 / (totals.clamp_min(1e-30) * n), 0)
    return StructuredTarget(levels, row_scale, like.new_ones(m))


def _attribute(name: str, attributes: Attributes) -> Tensor:
    check(name in attributes, f"{name}: this target needs them; pass {name}=..., one per item, in the call.")
    value = attributes[name]
    check(not value.is_floating_point(), f"{name}: expected integers, got {value.dtype}.")
    return value
