"""Targets from what is known of the items: which show the same, their classes, their domains."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from contraport.distributed import Processes
from contraport.engine import constant, log_size
from contraport.errors import MissingInputError, check, describe_value
from contraport.objectives.inputs import Attributes, CallInputs, check_values
from contraport.objectives.layouts import Block, PairPattern
from contraport.objectives.pair_masks import PairIndicator
from contraport.objectives.targets.target import (
    DenseTarget,
    SparseTarget,
    StructuredTarget,
    Target,
    TargetPlan,
    normalize_row_masses,
)


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

    positives_from_views: ClassVar[bool] = True
    complete: ClassVar[bool] = True

    def __call__(self, block: Block, attributes: Attributes) -> SparseTarget:
        """Return the target plan of a block."""
        pattern, dtype = block.pattern, block.precision
        return pattern.once((Pairs, dtype), lambda: _pairs(pattern, dtype))


@dataclass(frozen=True, repr=False)
class Labels(Target):
    """Each row is wanted at all other embeddings of its class: mass 1/N a row, in equal parts.

    The call needs ``labels``, (n,). A row that is alone in its class wants nothing and adds nothing to the loss. Items
    of several classes have labels (n, classes) of zeros and ones: a row is wanted in proportion to the number of
    classes that it shares. That plan is held as a matrix.

    Raises:
        UsageError: in the call, there are no labels.

    Source: Khosla et al. (2020), Supervised contrastive learning, eq. 2.

    >>> import torch
    >>> from contraport.objectives import Cross
    >>> (block,) = Cross()(torch.zeros(3, 1), torch.zeros(3, 1))
    >>> (Labels()(block, {"labels": torch.tensor([0, 0, 1])}).dense() * 6).round()
    tensor([[1., 1., 0.],
            [1., 1., 0.],
            [0., 0., 2.]])
    """

    def __call__(self, block: Block, attributes: Attributes) -> TargetPlan:
        """Return the target plan of a block."""
        if "labels" not in attributes:
            raise MissingInputError(
                "labels",
                "labels: this needs a label of each item: the keyword labels in a call of the loss, data with labels "
                "in a training, classes as y in fit.",
            )
        if attributes["labels"].ndim == 2:
            return _shared_classes(block, attributes["labels"])
        same = block.pattern.equal(_attribute("labels", attributes))
        return _by_rows(block, ((1.0, block.pattern.compared() & same),))


@dataclass(frozen=True, eq=False, repr=False)
class DuplicateGroups(Target):
    """Each row is wanted at the views of its item and of those that show the same: mass 1/N a row, in equal parts.

    So several captions of an image are its positives, and none of them a negative; likewise several images of one
    caption.

    Args:
        numbers: what each item shows in each view, whole numbers (n, views), or (n,) of one: two items show the same
            where they have an equal number in a column. Under `torch.distributed` each process brings those of its own
            items.

    Raises:
        UsageError: they are no whole numbers; in the call, they are not one row for each item.

    >>> import torch
    >>> from contraport.objectives import Cross
    >>> (block,) = Cross()(torch.zeros(3, 1), torch.zeros(3, 1))
    >>> image_and_caption = torch.tensor([[0, 0], [0, 1], [1, 1]])
    >>> (DuplicateGroups(image_and_caption)(block, {}).dense() * 18).round()
    tensor([[3., 3., 0.],
            [2., 2., 2.],
            [0., 3., 3.]])
    """

    numbers: Tensor = field(repr=False)

    def __post_init__(self) -> None:
        numbers = self.numbers
        whole = isinstance(numbers, Tensor) and numbers.ndim in (1, 2) and not numbers.is_floating_point()
        check(whole, f"target: expected whole numbers of what is shown, (n, views), got {describe_value(numbers)}.")

    def check_call(self, call: CallInputs) -> None:
        """Raise `UsageError` where there is not one row for each item."""
        rows = len(call.views[0])
        check(len(self.numbers) == rows, f"target: expected what each of {rows} items shows, got {len(self.numbers)}.")

    def among(self, processes: Processes, call: CallInputs) -> DuplicateGroups:
        """Return the rule for the items of all processes."""
        return DuplicateGroups(processes.gather(self.numbers.to(call.views[0].device)))

    def __call__(self, block: Block, attributes: Attributes) -> StructuredTarget:
        """Return the target plan of a block."""
        left, levels = block.pattern.compared(), []
        for column in self.numbers.reshape(len(self.numbers), -1).unbind(1):
            same = block.pattern.equal(column)
            levels.append((1.0, left & same))
            left = left.without(same)
        return _by_rows(block, tuple(levels))


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

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Rows(), cp.Domains(alpha=0.5), cp.KL())
    >>> loss.target_plan(torch.eye(3), torch.eye(3), domains=torch.tensor([0, 0, 1]))
    tensor([[0.2222, 0.1111, 0.0000],
            [0.1111, 0.2222, 0.0000],
            [0.0000, 0.0000, 0.3333]])
    """

    alpha: float = 0.0
    beta: float = 0.0

    def __post_init__(self) -> None:
        for name in ("alpha", "beta"):
            check(getattr(self, name) >= 0, f"{name}: expected a nonnegative number, got {getattr(self, name)!r}.")

    def __call__(self, block: Block, attributes: Attributes) -> StructuredTarget:
        """Return the target plan of a block."""
        same_item = PairIndicator.equal(block.pattern.items)
        same_domain = block.pattern.equal(_attribute("domains", attributes))
        others = block.pattern.compared().without(same_item)
        levels = (
            (1.0, block.pattern.compared() & same_item),
            (self.alpha, others & same_domain),
            (self.beta, others.without(same_domain)),
        )
        return _by_rows(block, tuple((level, pairs) for level, pairs in levels if level > 0))


def _shared_classes(block: Block, labels: Tensor) -> DenseTarget:
    """Return the plan in proportion to how many classes row and column share, labels being (n, classes)."""
    expected = "zeros and ones, (n, classes), of items that are of several classes"
    check_values("labels", labels, (labels == 0) | (labels == 1), expected)
    rows, columns = block.pattern.spread(labels.to(block.precision))
    return DenseTarget(normalize_row_masses(block.pattern.masked(rows @ columns.T, 0)))


def _pairs(pattern: PairPattern, dtype: torch.dtype) -> SparseTarget:
    """Return the plan of the positives; a row that has none wants nothing."""
    (rows, columns), n = pattern.positives, pattern.shape[0]
    values = torch.full((len(rows),), 1 / n, dtype=dtype, device=rows.device)
    if pattern.one_positive_per_row:
        return SparseTarget(rows, columns, values, pattern.shape, True, values * log_size(n, values))
    per_row = torch.zeros_like(pattern.row_items).index_add(0, rows, torch.ones_like(rows))
    return SparseTarget(rows, columns, values / per_row[rows], pattern.shape)


def _by_rows(block: Block, levels: tuple[tuple[float, PairIndicator], ...]) -> StructuredTarget:
    """Return the plan with the given levels, each row scaled to 1/N, rows that want nothing to zero."""
    n, like = block.shape[0], torch.empty(0, dtype=block.precision, device=block.x.device)
    counts = [pairs.counts(like) if level == 1 else level * pairs.counts(like) for level, pairs in levels]
    totals = sum(counts[1:], counts[0]) if counts else constant(n, 0.0, like)
    wants = (totals > 0).to(like.dtype)
    row_scale = (totals.clamp_min(1e-30) * n).reciprocal() * wants
    return StructuredTarget(levels, row_scale, cached_row_mass=wants / n)


def _attribute(name: str, attributes: Attributes) -> Tensor:
    if name not in attributes:
        raise MissingInputError(
            name, f"{name}: this target needs them; expected the keyword {name}, one per item, in the call."
        )
    value = attributes[name]
    check(not value.is_floating_point(), f"{name}: expected integers, got {value.dtype}.")
    return value
