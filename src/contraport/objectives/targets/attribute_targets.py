"""Targets that depend on attributes of items, such as class or domain."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from contraport._utils.formatting import format_options, is_flag_style_active
from contraport.distributed import Processes
from contraport.errors import UsageError, check, check_nonnegative, type_and_shape
from contraport.objectives.equal_label_pairs import PairSet
from contraport.objectives.inputs import Attributes, CallInputs, check_values, is_integer_tensor
from contraport.objectives.layouts import Block
from contraport.objectives.targets.target import (
    DenseTargetPlan,
    PiecewiseConstantTargetPlan,
    Target,
    TargetPlan,
    scale_rows_to_uniform_marginal,
)
from contraport.options import accept_deprecated_keywords, keep_deprecated_attributes


@dataclass(frozen=True, repr=False)
class Labels(Target):
    """Target whose positives are all other embeddings of the same class.

    Each row has mass 1/N, divided equally. The call needs ``labels``, (n,). A row without another one of its class has
    no positive and adds nothing to the loss. Items of several classes have labels (n, classes) of zeros and ones:
    positives then count in proportion to the number of shared classes, and the target plan is dense.

    Raises:
        UsageError: in the call, labels are missing.

    Source: Khosla et al. (2020), Supervised contrastive learning, eq. 2.

    >>> import torch
    >>> from contraport.objectives import Cross
    >>> (block,) = Cross()(torch.zeros(3, 1), torch.zeros(3, 1))
    >>> (Labels()(block, {"labels": torch.tensor([0, 0, 1])}).dense() * 6).round()
    tensor([[1., 1., 0.],
            [1., 1., 0.],
            [0., 0., 2.]])
    """

    read_attributes: ClassVar[tuple[str, ...]] = ("labels",)

    def __call__(self, block: Block, attributes: Attributes) -> TargetPlan:
        if "labels" not in attributes:
            if is_flag_style_active():
                remedy = f"Use data with labels, such as a table with {format_options(columns={'labels': 'COLUMN'})}."
            else:
                remedy = "Pass labels= to a loss, y to fit, or data with labels to a training: one label per item."
            raise UsageError(f"labels: required, not given. {remedy}", kind="missing")
        labels, pattern = attributes["labels"], block.pattern
        if labels.ndim == 2:
            good = (labels == 0) | (labels == 1)
            check_values("labels", labels, good, "zeros and ones, (n, classes), for items of several classes")
            labels = labels.to(block.compute_dtype)
            rows, columns = labels[pattern.row_items], labels[pattern.column_items]
            return DenseTargetPlan(scale_rows_to_uniform_marginal(pattern.fill_masked(rows @ columns.T, 0)))
        same_class = pattern.pairs_with_equal(_get_integer_attribute("labels", attributes))
        return _build_piecewise_target(block, ((1.0, pattern.compared_pairs() & same_class),))


@accept_deprecated_keywords(numbers="content_ids")
@keep_deprecated_attributes(numbers="content_ids")
@dataclass(frozen=True, eq=False, repr=False)
class DuplicateGroups(Target):
    """Target whose positives are all views of an item and of the items with equal content.

    Each row has mass 1/N, divided equally.

    Several captions of one image are then positives of it, and none is a negative; likewise several images of one
    caption.

    Args:
        content_ids: number of the content of each item in each view, integers (n, views), or (n,) for one view: items
            share content if they have equal numbers in a column. Under `torch.distributed` each process gives its own
            items.

    Raises:
        UsageError: they are not integers; in the call, there is not one row per item.

    >>> import torch
    >>> from contraport.objectives import Cross
    >>> (block,) = Cross()(torch.zeros(3, 1), torch.zeros(3, 1))
    >>> image_and_caption = torch.tensor([[0, 0], [0, 1], [1, 1]])
    >>> (DuplicateGroups(image_and_caption)(block, {}).dense() * 18).round()
    tensor([[3., 3., 0.],
            [2., 2., 2.],
            [0., 3., 3.]])
    """

    read_attributes: ClassVar[tuple[str, ...]] = ()
    content_ids: Tensor = field(repr=False)

    def __post_init__(self) -> None:
        ids = self.content_ids
        good = is_integer_tensor(ids) and ids.ndim in (1, 2) and ids.numel() > 0
        got = type_and_shape(ids)
        check(good, f"target: must be integer numbers of the content of each view, (n, views), got {got}.", "type")

    def check_inputs(self, inputs: CallInputs) -> None:
        rows = len(inputs.views[0])
        good = len(self.content_ids) == rows
        check(good, f"target: must have one row per item, {rows}, got {len(self.content_ids)}.", "shape")

    def gather_across_processes(self, processes: Processes, inputs: CallInputs) -> DuplicateGroups:
        return DuplicateGroups(processes.gather(self.content_ids.to(inputs.views[0].device)))

    def __call__(self, block: Block, attributes: Attributes) -> PiecewiseConstantTargetPlan:
        remaining, levels = block.pattern.compared_pairs(), []
        for column in self.content_ids.reshape(len(self.content_ids), -1).unbind(1):
            same = block.pattern.pairs_with_equal(column)
            # Each column takes only pairs that earlier columns left, so that the levels are disjoint.
            levels.append((1.0, remaining & same))
            remaining = remaining.without(same)
        return _build_piecewise_target(block, tuple(levels))


@dataclass(frozen=True, repr=False)
class Domains(Target):
    """Target that weights pairs by same item, same domain or different domains (GCA).

    The views of an item have weight 1. The mass of a pair is proportional to its weight; each row has mass 1/N. The
    call needs ``domains``, (n,).

    Args:
        alpha: weight within a domain, nonnegative.
        beta: weight across domains, nonnegative.

    Raises:
        UsageError: alpha or beta is negative.

    Source: Chen et al. (2024), the target plan for domain generalization.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Rows(), cp.Domains(alpha=0.5), cp.KL())
    >>> loss.target_plan(torch.eye(3), torch.eye(3), domains=torch.tensor([0, 0, 1]))
    tensor([[0.2222, 0.1111, 0.0000],
            [0.1111, 0.2222, 0.0000],
            [0.0000, 0.0000, 0.3333]])
    """

    read_attributes: ClassVar[tuple[str, ...]] = ("domains",)
    alpha: float = 0.0
    beta: float = 0.0

    def __post_init__(self) -> None:
        for name in ("alpha", "beta"):
            check_nonnegative(name, getattr(self, name))

    def __call__(self, block: Block, attributes: Attributes) -> PiecewiseConstantTargetPlan:
        pattern = block.pattern
        same_item = PairSet.from_equal_labels(pattern.items)
        same_domain = pattern.pairs_with_equal(_get_integer_attribute("domains", attributes))
        others = pattern.compared_pairs().without(same_item)
        levels = (
            (1.0, pattern.compared_pairs() & same_item),
            (self.alpha, others & same_domain),
            (self.beta, others.without(same_domain)),
        )
        return _build_piecewise_target(block, tuple((level, pairs) for level, pairs in levels if level > 0))


def _build_piecewise_target(block: Block, levels: tuple[tuple[float, PairSet], ...]) -> PiecewiseConstantTargetPlan:
    """Build the target plan whose pairs have the weights of their sets, with row masses 1/N."""
    n, dtype = block.shape[0], block.compute_dtype
    counts = [pairs.row_counts(dtype) if level == 1 else level * pairs.row_counts(dtype) for level, pairs in levels]
    totals = sum(counts[1:], counts[0])
    nonempty = (totals > 0).to(dtype)
    # Bounded before the reciprocal, so that empty rows give 0 rather than NaN.
    row_scale = (totals.clamp_min(1e-30) * n).reciprocal() * nonempty
    return PiecewiseConstantTargetPlan(levels, row_scale, cached_row_mass=nonempty / n)


def _get_integer_attribute(name: str, attributes: Attributes) -> Tensor:
    """Return an integer value per item, (n,), or raise `UsageError` if it is missing."""
    if name not in attributes:
        raise UsageError(f"{name}: required, not given. Pass {name}= in the call, one per item.", kind="missing")
    value = attributes[name]
    check(not value.is_floating_point(), f"{name}: must be integers, got {value.dtype}.", "type")
    return value
