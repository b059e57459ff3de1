"""Sets of pairs by equal labels: what a batch's classes, domains, masks and duplicates all are.

Products and complements of equalities are signed sums of equalities again, and a sum against one costs a sum over
groups: O((N + M) d) time and memory for what would be an (N, M) matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from contraport.engine import LabelMask, SimilarityMask
from contraport.errors import UsageError


def group_indices(labels: Tensor) -> Tensor:
    """Return for each label, (n,) integers, how many are smaller: a number below n for each group of equal ones.

    >>> group_indices(torch.tensor([7, 2, 7, 5])).tolist()
    [2, 0, 2, 1]
    """
    return torch.searchsorted(labels.sort().values, labels.contiguous())


@dataclass(frozen=True, eq=False)
class SignedEquality:
    """sign * [labels of row i = labels of column j], the labels being (N, k) and (M, k) integers; k = 0 holds
    always.
    """

    sign: int
    rows: Tensor
    columns: Tensor
    _found: list[tuple[Tensor, Tensor, int]] = field(default_factory=list, init=False, repr=False)

    @property
    def groups(self) -> tuple[Tensor, Tensor, int]:
        """A group number per row and per column, equal where it holds, and a bound on them; computed once."""
        if not self._found:
            self._found.append(self._grouped())
        return self._found[0]

    def __and__(self, other: SignedEquality) -> SignedEquality:
        same = self.rows is self.columns and other.rows is other.columns
        rows = _beside_each_other(self.rows, other.rows)
        columns = rows if same else _beside_each_other(self.columns, other.columns)
        return SignedEquality(self.sign * other.sign, rows, columns)

    def beside(self, columns: int) -> SignedEquality:
        """Return it with so many further columns, whose labels are 0."""
        further = self.columns.new_zeros(columns, self.columns.shape[1])
        return SignedEquality(self.sign, self.rows, torch.cat([self.columns, further]))

    def _grouped(self) -> tuple[Tensor, Tensor, int]:
        n, same = self.rows.shape[0], self.rows is self.columns
        labels = self.rows if same else torch.cat([self.rows, self.columns])
        size, several = labels.shape
        groups = None if several else labels.new_zeros(size)
        for one in labels.unbind(1):  # many times as fast as unique(dim=0)
            groups = group_indices(one) if groups is None else group_indices(groups * size + group_indices(one))
        assert groups is not None
        # There are at most as many groups as labels: how many there are would have to be read from the device.
        bound = size if several else 1
        return (groups, groups, bound) if same else (groups[:n], groups[n:], bound)


def _beside_each_other(labels: Tensor, others: Tensor) -> Tensor:
    """Return labels (n, k) and (n, l) as (n, k + l)."""
    if labels.shape[1] == 0:
        return others
    return labels if others.shape[1] == 0 else torch.cat([labels, others], 1)


@dataclass(frozen=True, eq=False)
class PairIndicator:
    """The indicator of a set of pairs, as a signed sum of equalities, of which the first has the sign 1."""

    equalities: tuple[SignedEquality, ...]

    @property
    def shape(self) -> tuple[int, int]:
        """(N, M)."""
        return len(self.equalities[0].rows), len(self.equalities[0].columns)

    @classmethod
    def everything(cls, like: tuple[Tensor, Tensor]) -> PairIndicator:
        """Return the indicator of all pairs between as many rows and columns as the given labels have."""
        rows, columns = like
        none = torch.empty(len(rows), 0, dtype=torch.long, device=rows.device)
        others = none if rows is columns else torch.empty(len(columns), 0, dtype=torch.long, device=columns.device)
        return cls((SignedEquality(1, none, others),))

    @classmethod
    def equal(cls, labels: tuple[Tensor, Tensor]) -> PairIndicator:
        """Return the indicator of the pairs with equal labels, given as integers (N,) and (M,)."""
        rows = labels[0].long()[:, None]
        return cls((SignedEquality(1, rows, rows if labels[0] is labels[1] else labels[1].long()[:, None]),))

    @classmethod
    def allowed(cls, masks: Sequence[LabelMask | SimilarityMask], like: tuple[Tensor, Tensor]) -> PairIndicator:
        """Return the indicator of the pairs that no mask excludes."""
        allowed = cls.everything(like)
        for mask in masks:
            if not isinstance(mask, LabelMask):
                raise UsageError(
                    "features: what is compared depends on them, and what this objective asks of it (targets of labels "
                    "or domains, counts) knows equal labels alone; expected a target of pairs or a matrix, and KL."
                )
            excluded = cls.equal(mask.labels)
            if mask.exceptions is not None:
                excluded = excluded.without(cls.equal(mask.exceptions))
            allowed = allowed.without(excluded)
        return allowed

    def __and__(self, other: PairIndicator) -> PairIndicator:
        return PairIndicator(tuple(a & b for a in self.equalities for b in other.equalities))

    def without(self, other: PairIndicator) -> PairIndicator:
        """Return the indicator of what is in this set and not in the other."""
        both = self & other
        return PairIndicator(
            self.equalities + tuple(SignedEquality(-e.sign, e.rows, e.columns) for e in both.equalities)
        )

    def restrict(self, rows: slice) -> PairIndicator:
        """Return the set on some of its rows."""
        return PairIndicator(tuple(SignedEquality(e.sign, e.rows[rows], e.columns) for e in self.equalities))

    def beside(self, columns: int) -> PairIndicator:
        """Return the set with so many further columns, of which any pair may be in it."""
        return PairIndicator(tuple(e.beside(columns) for e in self.equalities))

    def apply(self, y: Tensor) -> Tensor:
        """Return the sum of y over the columns in the set, for each row: (M, ...) to (N, ...)."""
        total: Tensor | None = None
        for equality in self.equalities:
            rows, columns, count = equality.groups
            found = y.new_zeros(count, *y.shape[1:]).index_add(0, columns, y)[rows]
            total = found if total is None else torch.add(total, found, alpha=equality.sign)
        assert total is not None
        return total

    def row_mass(self) -> Tensor:
        """Return how many columns each row has in the set, (N,) integers."""
        return self.apply(torch.ones(self.shape[1], dtype=torch.long, device=self.equalities[0].rows.device))

    def counts(self, like: Tensor) -> Tensor:
        """Return how many columns each row has in the set, (N,), in the dtype of `like`."""
        return self.row_mass().to(like.dtype)

    def dense(self) -> Tensor:
        """Return the set as an (N, M) tensor of zeros and ones."""
        total = torch.zeros(self.shape, device=self.equalities[0].rows.device)
        for equality in self.equalities:
            rows, columns, _ = equality.groups
            total += equality.sign * (rows[:, None] == columns)
        return total

    @property
    def T(self) -> PairIndicator:
        """The same set with rows and columns exchanged."""
        return PairIndicator(tuple(SignedEquality(e.sign, e.columns, e.rows) for e in self.equalities))
