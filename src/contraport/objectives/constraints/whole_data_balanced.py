"""Constraint `DataBalanced`, a balanced plan of the whole data estimated from batches."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from contraport.engine import Geometry, LabelExclusion, row_log_sums, traceable_log
from contraport.errors import check
from contraport.objectives.constraints.constraint import Constraint, PlanRequest
from contraport.objectives.equal_label_pairs import PairSet, log_sum_exp_by_group
from contraport.objectives.layouts import PairPattern
from contraport.objectives.log_moving_averages import ItemLogAverages
from contraport.objectives.plan import Plan

MAX_VIEWS_WITH_POTENTIALS = 2
"""Maximum number of views that a block may compare; two potentials are stored for each view of an item."""


class DataBalanced(ItemLogAverages, Constraint):
    """Balanced plan of the whole data set, estimated from batches with moving averages.

    With N items in all, the plan of the data is P_ij = K_ij exp(f_i + g_j) / N^2, with e^-f_i = mean_j K_ij e^g_j and
    its mirror. A step estimates both means from its batch, once each, columns first. The pairs of an item's own views
    are always in the batch and count once; the pairs with the other items of the batch count for those with the N - 1
    other items of the data. The estimates go into moving averages, u <- momentum u + (1 - momentum) estimate, whose
    first value is the first estimate. N is the number of items seen so far.

    The objective is that of the plan of the data, in which an item competes with all others. Its gradient holds the
    potentials of the columns and the averages fixed, which is exact for KL at convergence if the target has uniform
    marginals. In evaluation mode the averages are constant. The call needs ``ids``, (n,), in [0, items).

    Args:
        items: maximum number of items; ids count from 0.
        momentum: weight of the past, in [0, 1). With 0 and the whole data as the batch, steps are Sinkhorn iterations.

    Raises:
        UsageError: items is not positive or the momentum out of range; in the objective, a layout other than `Cross`
            and `Joint`, or a divergence other than KL; in the call, ids are missing or out of range, more than two
            views at once, negatives, column weights or pairs that depend on features.

    Source: Yuan et al. (2022), Provable stochastic optimization for global contrastive learning, algorithm 1, whose
    averages of denominators are here those of both half-steps of Sinkhorn.

    >>> import torch, contraport as cp
    >>> constraint = cp.DataBalanced(items=4, momentum=0.0)
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), constraint, cp.Pairs(), cp.KL())
    >>> for ids in torch.tensor([[0, 1], [2, 3], [0, 2]]):
    ...     value = loss(torch.eye(4)[ids], torch.eye(4)[ids], ids=ids)
    >>> value  # of a batch of two, as one of four items
    tensor(0.7437)
    """

    requires_ids: ClassVar[bool] = True

    def __init__(self, items: int = 1 << 17, momentum: float = 0.5) -> None:
        # Two potentials, of an item as a row and as a column, for each of two views.
        super().__init__(items, momentum, averages_per_item=2 * MAX_VIEWS_WITH_POTENTIALS)

    def forward(self, geometry: Geometry, request: PlanRequest = PlanRequest()) -> list[Plan]:
        """Return the batch's part of the whole data set's balanced plan."""
        pattern = request.pattern
        message = f"constraint: {self!r} supports no negatives, column weights or pairs that depend on features."
        check(pattern is not None, message, "conflict")
        assert pattern is not None
        ids = self.get_valid_ids(request.ids)
        row_indices, column_indices = (self._flat_average_indices(ids, pattern, side) for side in range(2))
        like = geometry.log_kernel.inputs[0]
        with torch.no_grad():
            stored = self.log_average.view(-1)[row_indices]
            mean = self.log_average[:MAX_VIEWS_WITH_POTENTIALS].nanmean().nan_to_num(0.0)  # for rows not seen before
            f = -torch.where(stored.isnan(), mean, stored).to(like)
            num_rows = self._count_distinct_seen_or_in_batch(0, row_indices).to(like)
            column_values = self._estimate_log_row_means(geometry.T, pattern.T, f, num_rows)
        g = -self.update_log_averages_if_training(column_indices, column_values).detach()
        num_columns = self._count_distinct_seen_or_in_batch(1, column_indices).to(like)
        row_values = self._estimate_log_row_means(geometry, pattern, g, num_columns)
        f = -self.update_log_averages_if_training(row_indices, row_values)
        plan = Plan(geometry, f - traceable_log(len(f), f), g - num_columns.log(), has_unit_mass=True)
        return [plan, plan.T] if request.bidirectional else [plan]

    def _flat_average_indices(self, ids: Tensor, pattern: PairPattern, side: int) -> Tensor:
        """Return the positions of a block's rows or columns in the averages over all items."""
        items, selected = pattern.items[side], pattern.selected_indices
        places = torch.arange(len(items), device=items.device) if selected is None else selected[side]
        views = places // pattern.num_items  # a layout puts one view after another
        most = int(views.max()) + 1 if len(views) else 1
        limit = MAX_VIEWS_WITH_POTENTIALS
        message = f"views: must be at most {limit} at once for {self!r}, got {most}; train on pairs of views."
        check(most <= limit, message, "too_many")
        return (limit * side + views) * self.log_average.shape[1] + ids[items]

    def _count_distinct_seen_or_in_batch(self, side: int, batch_indices: Tensor) -> Tensor:
        """Count the distinct rows or columns seen so far, including this batch."""
        seen = ~self.log_average.isnan()
        seen.view(-1)[batch_indices] = True
        return seen[MAX_VIEWS_WITH_POTENTIALS * side : MAX_VIEWS_WITH_POTENTIALS * (side + 1)].sum()

    def _estimate_log_row_means(
        self, geometry: Geometry, pattern: PairPattern, column_potential: Tensor, num_data_columns: Tensor
    ) -> Tensor:
        """Estimate the log of each row's mean of K exp(column_potential) over all data, (N,)."""
        rows, own_columns = pattern.positives
        own = log_sum_exp_by_group(
            rows, geometry.gather_log_kernel(rows, own_columns) + column_potential[own_columns], len(pattern.row_items)
        )
        of_others = Geometry(geometry.log_kernel, (*geometry.masks, LabelExclusion(pattern.items)))
        others = row_log_sums(of_others, column_potential)
        counts = pattern.different_item_pairs().row_counts(column_potential.dtype)
        in_data = num_data_columns - PairSet.from_equal_labels(pattern.items).row_counts(column_potential.dtype)
        scale = in_data / counts.clamp_min(1)
        present = (counts > 0) & (in_data > 0)
        others = torch.where(present, others + torch.where(present, scale, 1).log(), -torch.inf)
        return torch.logaddexp(own, others) - num_data_columns.log()
