"""What objectives and sums of objectives have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import TypeAlias

import torch
from torch import Tensor, nn

from contraport.objectives.constraints import Constraint
from contraport.objectives.outcome import Outcome
from contraport.objectives.targets import Target

Known: TypeAlias = Tensor | Target | bool | None
"""What may be known in a call; see `Loss.forward`."""


@dataclass(frozen=True)
class Origin:
    """Where a named objective comes from.

    Attributes:
        name: its name in the catalog.
        call: the call that made it, as it would be written.
        citation: the paper and its equation.
    """

    name: str
    call: str
    citation: str


class Loss(nn.Module, ABC):
    """What objectives and sums of objectives have in common: they are called on embeddings and can be looked into.

    Attributes:
        origin: the catalog's entry that made it, or None.
    """

    origin: Origin | None = None

    @abstractmethod
    def parts(self, *views: Tensor, **known: Known) -> dict[str, Tensor]:
        """Return the named parts of the value, their factors included; the loss is their sum."""

    @abstractmethod
    def outcomes(self, *views: Tensor, **known: Known) -> Iterator[Outcome]:
        """Yield what is compared, wanted and found, block by block and direction by direction."""

    @abstractmethod
    def answers(self) -> dict[str, str]:
        """Return the answer to each of the five questions, as it would be written."""

    @abstractmethod
    def constrain(self, constraint: Constraint) -> None:
        """Allow other plans from now on.

        Raises:
            UsageError: there is no single constraint to change, or the divergence does not go with this one.
        """

    @property
    @abstractmethod
    def temperature(self) -> float:
        """The temperature of the kernel; assign to it to change it between steps."""

    @temperature.setter
    @abstractmethod
    def temperature(self, value: float) -> None: ...

    @property
    @abstractmethod
    def takes_several(self) -> bool:
        """Whether it is called on any number of views, rather than on two."""

    @property
    @abstractmethod
    def mass(self) -> float | None:
        """The mass of the plan of the last call, a mean over directions; None where no marginal tells it.

        Reading it waits for the device; no call does.
        """

    def forward(
        self,
        *views: Tensor,
        labels: Tensor | None = None,
        domains: Tensor | None = None,
        ids: Tensor | None = None,
        weights: Tensor | None = None,
        target: Tensor | Target | None = None,
        negatives: Tensor | None = None,
        negative_ids: Tensor | None = None,
        shared_negatives: bool = False,
    ) -> Tensor:
        """Return the loss, a tensor without dimensions.

        Args:
            views: embeddings, (n, d) each.
            labels: class of each item, (n,) integers, for targets that ask for it.
            domains: domain of each item, (n,) integers, likewise.
            ids: identity of each item, (n,) integers; items with equal ids are never each other's negatives.
            weights: importance of each item, (n,), nonnegative: the loss is the weighted mean of the rows' values.
            target: the plan that is wanted in this call, instead of the objective's own: a matrix as in `Matrix`, or a
                rule. It says nothing of negatives.
            negatives: embeddings of further columns, (k, d), to which nothing is matched: a queue, a memory bank. They
                stand beside the columns of every block and direction and are columns like the others: a plan with
                column marginals gives each of all columns the same mass, so that it keeps the share k / M of the mass
                away from what is wanted. Under `torch.distributed` each process brings its own, such as hard negatives
                of its items, as many as it likes; they are gathered.
            negative_ids: identity of each negative, (k,) integers, beside ``ids``: a negative is left out of the rows
                that show the same item.
            shared_negatives: every process brings the same negatives, a bank or a queue; they are not gathered.
        """
        parts = self.parts(
            *views, labels=labels, domains=domains, ids=ids, weights=weights, target=target, negatives=negatives,
            negative_ids=negative_ids, shared_negatives=shared_negatives or None,
        )  # fmt: skip
        return reduce(torch.add, parts.values())

    def terms(self, *views: Tensor, **known: Known) -> dict[str, float]:
        """Return the named parts of the value as numbers, their factors included; the keywords are those of the
        call.
        """
        with torch.no_grad():
            return {name: value.item() for name, value in self.parts(*views, **known).items()}

    def plan(self, *views: Tensor, **known: Known) -> Tensor:
        """Return the plan that came out on the first block, (N, M), to look at; the keywords are those of the call."""
        with torch.no_grad():
            return next(self.outcomes(*views, **known)).plan.dense()

    def target_plan(self, *views: Tensor, **known: Known) -> Tensor:
        """Return the plan that is wanted on the first block, (N, M), to look at; the keywords are those of the call."""
        with torch.no_grad():
            return next(self.outcomes(*views, **known)).target.dense()

    def explain(self) -> str:
        """Say the answers to the five questions, and where the objective comes from.

        >>> import contraport
        >>> print(contraport.gca_ince(iterations=3).explain())
        gca_ince(iterations=3)
        Which pairs are compared?                Joint()
        How alike are two embeddings?            Gibbs('cosine', 0.5)
        Which plans are allowed?                 Balanced(iterations=3)
        Which plan do we want?                   Pairs()
        How far is one from the other?           KL()
        Source: Chen, Lin, Liu, Xiao and Dyer (2024), Your contrastive learning problem is secretly a ...
        """
        lines = [f"{question:<40} {answer}" for question, answer in self.answers().items()]
        if self.origin is not None:
            lines = [self.origin.call, *lines, f"Source: {self.origin.citation}"]
        return "\n".join(lines)


def add_part(totals: dict[str, Tensor], name: str, value: Tensor) -> None:
    """Add a value to the part of that name."""
    totals[name] = totals[name] + value if name in totals else value
