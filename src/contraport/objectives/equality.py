"""Structured weights: sums of equality rules, which a batch's labels, domains, masks and duplicates all are.

A rule is "the labels of row and column are equal". Products and complements of rules are signed sums of rules again,
and a sum against one costs a sum over groups: O((N + M) d) time and memory for what would be an (N, M) matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from contraport.engine import Mask, Threshold
from contraport.errors import UsageError


@dataclass(frozen=True, eq=False)
class Rule:
    """sign * [labels of row i = labels of column j], the labels being (N, k) and (M, k) integers; k = 0 holds
    always.
    """

    sign: int
    rows: Tensor
    columns: Tensor
    _found: list[tuple[Tensor, Tensor, int]] = field(default_factory=list, init=False, repr=False)

    @property
    def groups(self) -> tuple[Tensor, Tensor, int]:
        """A group number per row and per column, equal where the rule holds, and the number of groups; found once."""
        if not self._found:
            self._found.append(self._grouped())
        return self._found[0]

    def _grouped(self) -> tuple[Tensor, Tensor, int]:
        n = len(self.rows)
        groups, count = self.rows.new_zeros(n + len(self.columns)), 1
        for labels in torch.cat([self.rows, self.columns]).unbind(1):  # many times as fast as unique(dim=0)
            present, finer = torch.unique(labels, return_inverse=True)
            present, groups = torch.unique(groups * len(present) + finer, return_inverse=True)
            count = len(present)
        return groups[:n], groups[n:], count


@dataclass(frozen=True, eq=False)
class Indicator:
    """The indicator of a set of pairs, as a signed sum of rules, of which the first has the sign 1."""

    rules: tuple[Rule, ...]

    @classmethod
    def everything(cls, like: tuple[Tensor, Tensor]) -> Indicator:
        """Return the indicator of all pairs between as many rows and columns as the given labels have."""
        rows, columns = (torch.empty(len(v), 0, dtype=torch.long, device=v.device) for v in like)
        return cls((Rule(1, rows, columns),))

    @classmethod
    def equal(cls, labels: tuple[Tensor, Tensor]) -> Indicator:
        """Return the indicator of the pairs with equal labels, given as integers (N,) and (M,)."""
        return cls((Rule(1, labels[0].long()[:, None], labels[1].long()[:, None]),))

    @classmethod
    def allowed(cls, masks: Sequence[Mask | Threshold], like: tuple[Tensor, Tensor]) -> Indicator:
        """Return the indicator of the pairs that no mask excludes."""
        allowed = cls.everything(like)
        for mask in masks:
            if not isinstance(mask, Mask):
                raise UsageError(
                    "features: what is compared depends on them, and what this objective asks of it (targets of labels "
                    "or domains, counts) knows equal labels alone; expected a target of pairs or a matrix, and KL."
                )
            excluded = cls.equal(mask.labels)
            allowed = allowed.without(excluded if mask.kept is None else excluded.without(cls.equal(mask.kept)))
        return allowed

    def __and__(self, other: Indicator) -> Indicator:
        return Indicator(
            tuple(
                Rule(a.sign * b.sign, torch.cat([a.rows, b.rows], 1), torch.cat([a.columns, b.columns], 1))
                for a in self.rules
                for b in other.rules
            )
        )

    def without(self, other: Indicator) -> Indicator:
        """Return the indicator of what is in this set and not in the other."""
        both = self & other
        return Indicator(self.rules + tuple(Rule(-r.sign, r.rows, r.columns) for r in both.rules))

    def restrict(self, rows: slice) -> Indicator:
        """Return the set on some of its rows."""
        return Indicator(tuple(Rule(r.sign, r.rows[rows], r.columns) for r in self.rules))

    def beside(self, columns: int) -> Indicator:
        """Return the set with so many further columns, of which any pair may be in it."""
        further = [r.columns.new_zeros(columns, *r.columns.shape[1:]) for r in self.rules]
        widened = [torch.cat([r.columns, zeros]) for r, zeros in zip(self.rules, further, strict=True)]
        return Indicator(tuple(Rule(r.sign, r.rows, wide) for r, wide in zip(self.rules, widened, strict=True)))

    def apply(self, y: Tensor) -> Tensor:
        """Return the sum of y over the columns in the set, for each row: (M, ...) to (N, ...)."""
        total: Tensor | None = None
        for rule in self.rules:
            rows, columns, count = rule.groups
            found = y.new_zeros(count, *y.shape[1:]).index_add(0, columns, y)[rows]
            total = found if total is None else torch.add(total, found, alpha=rule.sign)
        assert total is not None
        return total

    def row_mass(self) -> Tensor:
        """Return how many columns each row has in the set, (N,) integers."""
        return self.apply(torch.ones(len(self.rules[0].columns), dtype=torch.long, device=self.rules[0].columns.device))

    def counts(self, like: Tensor) -> Tensor:
        """Return how many columns each row has in the set, (N,), in the dtype of `like`."""
        return self.row_mass().to(like.dtype)

    def dense(self) -> Tensor:
        """Return the set as an (N, M) tensor of zeros and ones."""
        total = torch.zeros(len(self.rules[0].rows), len(self.rules[0].columns), device=self.rules[0].rows.device)
        for rule in self.rules:
            rows, columns, _ = rule.groups
            total += rule.sign * (rows[:, None] == columns)
        return total

    @property
    def T(self) -> Indicator:
        """The same set with rows and columns exchanged."""
        return Indicator(tuple(Rule(r.sign, r.columns, r.rows) for r in self.rules))
