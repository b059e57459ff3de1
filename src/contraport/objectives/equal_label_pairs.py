"""Sets of pairs with equal labels, stored in O(N + M) memory.

A set is a signed sum of equalities.

Intersections and complements of equalities are signed sums of equalities again, and a sum against one of them is a sum
over groups: O((N + M) d) time and memory, without an (N, M) matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from contraport.engine import Indices, LabelExclusion, SimilarityExclusion
from contraport.errors import UsageError


def num_smaller_labels(labels: Tensor) -> Tensor:
    """Return how many of the labels are smaller than each label.

    >>> num_smaller_labels(torch.tensor([7, 2, 7, 5])).tolist()
    [2, 0, 2, 1]
    """
    return torch.searchsorted(labels.sort().values, labels.contiguous())


def weighted_log_mean_exp_by_group(groups: Tensor, values: Tensor, weights: Tensor, group_sizes: Tensor) -> Tensor:
    """Return each group's weighted log-mean-exp, (num_groups,), 0 for empty groups.

    Args:
        groups: index of the group of each value, (k,).
        values: the values, (k,).
        weights: weight of each value, (k,).
        group_sizes: number of values in each group, (num_groups,).
    """
    mass = torch.zeros_like(group_sizes).index_add(0, groups, weights.to(values)).masked_fill(group_sizes == 0, 1)
    total = log_sum_exp_by_group(groups, values + weights.to(values).log(), len(group_sizes))
    return total.masked_fill(group_sizes == 0, 0) - mass.log()


def log_sum_exp_by_group(groups: Tensor, values: Tensor, num_groups: int) -> Tensor:
    """Return each group's log-sum-exp, (num_groups,), minus infinity for empty groups."""
    with torch.no_grad():  # the maximum is subtracted for stability, and cancels in the gradient
        top = values.new_full((num_groups,), -torch.inf).scatter_reduce(0, groups, values, "amax")
        top = top.masked_fill(top == -torch.inf, 0)
    total = values.new_zeros(num_groups).index_add(0, groups, torch.exp(values - top[groups]))
    empty = total == 0
    return (total.masked_fill(empty, 1).log() + top).masked_fill(empty, -torch.inf)


@dataclass(frozen=True, eq=False)
class EqualLabelTerm:
    """Pairs with equal labels, added to a `PairSet` or subtracted from it.

    Labels are (N, k) and (M, k); k = 0 is the set of all pairs.
    """

    sign: int
    row_labels: Tensor
    column_labels: Tensor
    # Not a cached_property, whose lock torch.compile cannot trace.
    _cached_group_indices: list[tuple[Tensor, Tensor, int]] = field(default_factory=list, init=False, repr=False)

    @property
    def group_indices_and_bound(self) -> tuple[Tensor, Tensor, int]:
        """Index of each row's and column's label group, and a bound on the number of groups.

        A row, (N,), and a column, (M,), have one index if all of their labels are equal.
        """
        if self._cached_group_indices:
            return self._cached_group_indices[0]
        n, same = self.row_labels.shape[0], self.row_labels is self.column_labels
        labels = self.row_labels if same else torch.cat([self.row_labels, self.column_labels])
        size, width = labels.shape
        groups = None if width else labels.new_zeros(size)
        for column in labels.unbind(1):  # many times faster than unique(dim=0)
            indices = num_smaller_labels(column)
            groups = indices if groups is None else num_smaller_labels(groups * size + indices)
        assert groups is not None
        # Bounded by the number of labels: the exact number of groups would have to be read from the device.
        bound = size if width else 1
        result = (groups, groups, bound) if same else (groups[:n], groups[n:], bound)
        self._cached_group_indices.append(result)
        return result

    def __and__(self, other: EqualLabelTerm) -> EqualLabelTerm:
        sign = self.sign * other.sign
        for labels, others in ((self, other), (other, self)):
            if others.row_labels.shape[1] == 0:  # nothing to copy
                return EqualLabelTerm(sign, labels.row_labels, labels.column_labels)
        rows = torch.cat([self.row_labels, other.row_labels], 1)
        same = self.row_labels is self.column_labels and other.row_labels is other.column_labels
        return EqualLabelTerm(sign, rows, rows if same else torch.cat([self.column_labels, other.column_labels], 1))


@dataclass(frozen=True, eq=False)
class PairSet:
    """Set of pairs, whose membership (0 or 1) is a signed sum of terms [label_i = label_j].

    The first term has sign 1.
    """

    signed_terms: tuple[EqualLabelTerm, ...]

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and number of columns, (N, M)."""
        return len(self.signed_terms[0].row_labels), len(self.signed_terms[0].column_labels)

    @classmethod
    def all_pairs_except_equal_labels(
        cls, exclusions: Sequence[LabelExclusion | SimilarityExclusion], items: tuple[Tensor, Tensor]
    ) -> PairSet:
        """Build the set of all row-column pairs except those that masks exclude.

        Raises:
            UsageError: a mask is a `SimilarityExclusion`, which is not by equal labels.
        """
        rows, columns = items
        empty = torch.empty(len(rows), 0, dtype=torch.long, device=rows.device)
        others = empty if rows is columns else torch.empty(len(columns), 0, dtype=torch.long, device=columns.device)
        pairs = cls((EqualLabelTerm(1, empty, others),))
        for mask in exclusions:
            if not isinstance(mask, LabelExclusion):
                raise UsageError(
                    "features: the compared pairs depend on them, but this target or divergence needs pairs given by "
                    "equal labels; use a target of pairs or a matrix, and KL.",
                    kind="conflict",
                )
            excluded = cls.from_equal_labels(mask.labels)
            if mask.exception_labels is not None:
                excluded = excluded.without(cls.from_equal_labels(mask.exception_labels))
            pairs = pairs.without(excluded)
        return pairs

    @classmethod
    def from_equal_labels(cls, labels: tuple[Tensor, Tensor]) -> PairSet:
        """Build the set of pairs whose row and column have equal integer labels."""
        rows = labels[0].long()[:, None]
        return cls((EqualLabelTerm(1, rows, rows if labels[0] is labels[1] else labels[1].long()[:, None]),))

    def __and__(self, other: PairSet) -> PairSet:
        return PairSet(tuple(a & b for a in self.signed_terms for b in other.signed_terms))

    def without(self, other: PairSet) -> PairSet:
        """Return the pairs of this set that are not in the other."""
        both = (self & other).signed_terms
        return PairSet(self.signed_terms + tuple(EqualLabelTerm(-e.sign, e.row_labels, e.column_labels) for e in both))

    def take_rows(self, rows: slice) -> PairSet:
        """Return the pair set restricted to some of its rows."""
        return PairSet(tuple(EqualLabelTerm(e.sign, e.row_labels[rows], e.column_labels) for e in self.signed_terms))

    def take_rows_and_columns(self, rows: Indices, columns: Indices) -> PairSet:
        """Return the pair set restricted to some of its rows and columns."""
        terms = (EqualLabelTerm(e.sign, e.row_labels[rows], e.column_labels[columns]) for e in self.signed_terms)
        return PairSet(tuple(terms))

    def apply(self, y: Tensor) -> Tensor:
        """Return the product, (N, ...), of the set's 0/1 matrix and y, (M, ...)."""
        total: Tensor | None = None
        for term in self.signed_terms:
            # Sums by group, then one look-up per row: O((N + M) d) in place of a product with an (N, M) matrix.
            rows, columns, count = term.group_indices_and_bound
            sums = y.new_zeros(count, *y.shape[1:]).index_add(0, columns, y)[rows]
            total = sums if total is None else torch.add(total, sums, alpha=term.sign)
        assert total is not None
        return total

    def row_mass(self) -> Tensor:
        """Return the number of pairs in each row as integers, (N,)."""
        return self.apply(torch.ones(self.shape[1], dtype=torch.long, device=self.signed_terms[0].row_labels.device))

    def row_counts(self, dtype: torch.dtype) -> Tensor:
        """Return the number of pairs in each row, (N,), as `dtype`."""
        return self.row_mass().to(dtype)

    def dense(self) -> Tensor:
        """Return the set as an (N, M) tensor of zeros and ones."""
        total = torch.zeros(self.shape, device=self.signed_terms[0].row_labels.device)
        for term in self.signed_terms:
            rows, columns, _ = term.group_indices_and_bound
            total += term.sign * (rows[:, None] == columns)
        return total

    @property
    def T(self) -> PairSet:
        """Set of pairs with rows and columns exchanged."""
        return PairSet(tuple(EqualLabelTerm(e.sign, e.column_labels, e.row_labels) for e in self.signed_terms))
