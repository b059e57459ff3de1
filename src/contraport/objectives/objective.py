"""An objective: one answer to each of the five questions, and the loss that follows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from contraport.engine import Kernel, without_autocast
from contraport.errors import UsageError, check, unknown_name
from contraport.objectives.agreement import refused_by_all
from contraport.objectives.call import Attributes, views_of
from contraport.objectives.constraints import Asked, Constraint, Marginals, Rows
from contraport.objectives.divergences import KL, Divergence
from contraport.objectives.last_call import LastCall
from contraport.objectives.layouts import Block, Layout
from contraport.objectives.loss import Known, Loss, add_part
from contraport.objectives.outcome import Outcome
from contraport.objectives.plan import Plan
from contraport.objectives.posed import Direction, Posed, as_target, pose
from contraport.objectives.targets import Pairs, Target


class Objective(Loss):
    """The divergence of the allowed plan, taken over the compared pairs, from the plan that is wanted.

    Under `torch.distributed` each process calls it on its own items; all get the loss of the whole batch, and the
    average of their gradients is the gradient of that (see `contraport.distributed`).

    Call it on the embeddings of two views, each (n, d) and of any floating point type; it returns a tensor without
    dimensions. Everything inside is in single precision at least, whatever autocast says.

    Args:
        layout: which pairs are compared.
        kernel: how alike two embeddings are.
        constraint: which plans are allowed.
        target: which plan is wanted.
        divergence: how far one is from the other.
        penalties: what is added, each with its factor.

    Raises:
        UsageError: the parts do not go together; in the call, views or attributes whose shape or type does not fit.

    Source: the framing of contrastive learning as inverse optimal transport (Shi et al., 2023, eq. 7) and generalised
    contrastive alignment (Chen et al., 2024, eq. 3).

    >>> import torch
    >>> from contraport import KL, Balanced, Gibbs, Joint, Objective, Pairs
    >>> loss = Objective(Joint(), Gibbs("cosine", 0.5), Balanced(iterations=5), Pairs(), KL())
    >>> z0, z1 = torch.eye(4), torch.eye(4)
    >>> loss(z0, z1)
    tensor(0.5944)
    """

    def __init__(
        self,
        layout: Layout,
        kernel: Kernel,
        constraint: Constraint,
        target: Target,
        divergence: Divergence,
        penalties: Mapping[Divergence, float] | None = None,
    ) -> None:
        super().__init__()
        self.layout, self.kernel, self.divergence = layout, kernel, divergence
        self.target = as_target(target)
        self.penalties = dict(penalties or {})
        tempers = any(term.tempers for term in (divergence, *self.penalties))
        check(tempers or not kernel.learns, f"temperature: {divergence!r} gives it no gradient; expected a number.")
        self.constrain(constraint)
        self._last = LastCall()

    def constrain(self, constraint: Constraint) -> None:
        """Allow other plans from now on.

        Raises:
            UsageError: the divergence does not go with the constraint.
        """
        # A constraint without a gradient is to look at, and no divergence is taken from its plan.
        for term in (self.divergence, *self.penalties) if constraint.differentiable else ():
            if (mismatch := term.mismatch(constraint)) is not None:
                raise UsageError(f"divergence: {mismatch}")
        self.constraint = constraint

    @property
    def takes_several(self) -> bool:
        """Whether it is called on any number of views, rather than on two."""
        return self.layout.traits.takes_several

    @property
    def has_core_view(self) -> bool:
        """Whether a training on more than two views calls it on the pairs that the first view is in alone."""
        return self.layout.traits.core

    @property
    def of_items(self) -> bool:
        """Whether it compares items, rather than the coordinates of their embeddings."""
        return self.layout.traits.of_items

    @property
    def tells_items_apart(self) -> bool:
        """Whether it pushes items apart, so that each batch must bring others."""
        return self.of_items and any(term.repels for term in (self.divergence, *self.penalties))

    @property
    def by_item(self) -> bool:
        """Whether it keeps something of each item between calls, and needs ``ids``."""
        return any(term.by_item for term in (self.divergence, *self.penalties))

    @property
    def weighted(self) -> bool:
        """Whether weights of the items are the marginals of its plan, so that each call must bring them."""
        return self.constraint.weighted

    @property
    def by_constraint(self) -> bool:
        """Whether its value depends on which plans are allowed, rather than on the kernel alone."""
        return any(term.by_constraint for term in (self.divergence, *self.penalties))

    @property
    def attracts_to_fixed(self) -> bool:
        """Whether all that it does is to draw embeddings to others, which are held fixed."""
        return self.layout.traits.attracts_to_fixed

    def asks_features(self, target: Target | None = None) -> bool:
        """Return whether its layout or the target needs ``features=`` of the call."""
        return self.layout.traits.guided or (target or self.target).asks_features

    def mismatch(self, target: Target) -> str | None:
        """Return that an item's views alone can be wanted, where nothing else is among what they are compared with."""
        if target.from_views or self.layout.traits.compares_positives:
            return None
        return (
            "keeps an item's views out of what they are compared with, so that it is these that are wanted; expected "
            f"pairs, or nothing, got {target!r}"
        )

    @property
    def mass(self) -> float | None:
        """The mass of the plan of the last call, a mean over directions; None where no marginal tells it.

        >>> import torch, contraport
        >>> loss = contraport.gca_uot(temperature=1.0)
        >>> _ = loss(torch.eye(2), torch.eye(2))
        >>> round(loss.mass, 4)
        0.7573
        """
        return self._last.mass()

    @property
    def is_info_nce(self) -> bool:
        """Whether its value is InfoNCE: the cross-entropy of telling an item's other view among all that is compared.

        >>> import contraport
        >>> contraport.nt_xent().is_info_nce, contraport.gca_ince().is_info_nce, contraport.dcl().is_info_nce
        (True, False, False)
        """
        traits, answers = self.layout.traits, (self.constraint, self.target, self.divergence, self.penalties)
        among = traits.matches_views and traits.compares_positives and traits.of_items and not traits.guided
        return among and not traits.shared_columns and answers == (Rows(), Pairs(), KL(), {})

    def information(self, value: float) -> float | None:
        """Return the lower bound of mutual information that a value of the last call gives: log k less the loss.

        k is the number of candidates from which an item's other view was told, itself among them; where the value adds
        up pairs of views, the bound is that of their mean. It is in nats, and at most log k.

        Returns:
            The bound; None where the value is no InfoNCE (see `is_info_nce`), or the call had weights or a target or
            reference measure of its own, more than one positive of a row, or items that lack a view.

        Source: van den Oord, Li and Vinyals (2018), Representation learning with contrastive predictive coding, eq. 5;
        Tian, Krishnan and Isola (2020), Contrastive multiview coding, eq. 4.

        >>> import math, torch, contraport
        >>> loss = contraport.info_nce(temperature=0.1)
        >>> value = loss(torch.eye(8), torch.eye(8)).item()
        >>> round(loss.information(value), 3), round(math.log(8), 3)
        (2.079, 2.079)
        """
        return self._last.information(value) if self.is_info_nce else None

    @property
    def temperature(self) -> float:
        """The temperature of the kernel; assign to it to change it between steps."""
        return self.kernel.temperature

    @temperature.setter
    def temperature(self, value: float) -> None:
        self.kernel.temperature = value

    def parts(self, *views: Tensor, **known: Known) -> dict[str, Tensor]:
        """Return the divergence and each penalty, factors included; see `forward` for the keywords.

        Where nothing is left to compare, as no view is there twice, they are 0.
        """
        with refused_by_all(views):
            by_row = _by_row(known.pop("reduction", "mean"))
            self._check_terms(known)
        if not self.constraint.differentiable:
            raise UsageError(f"constraint: {self.constraint!r} has no gradient; use it in plan(...), to look at.")
        terms = [(self.divergence, 1.0), *self.penalties.items()]
        totals: dict[str, Tensor] = {}
        self._last.begin()
        wanted = known.get("target")
        plain = wanted is None or (isinstance(wanted, Target) and wanted.from_views)
        plain = plain and known.get("weights") is None and known.get("column_weights") is None
        for outcome in self.outcomes(*views, **known):
            self._last.note(outcome, plain=plain)
            for term, factor in terms:
                value, weight = _reduced(outcome, term, by_row), factor * outcome.block.pattern.weight
                add_part(totals, type(term).__name__, value if weight == 1 else weight * value)
        if not totals:
            nothing = torch.stack([view[:0].float().sum() for view in views_of(views)]).sum()
            totals[type(self.divergence).__name__] = nothing
        return totals

    def _check_terms(self, known: Mapping[str, Known]) -> None:
        """Check that the divergence and the penalties know what a call gives."""
        terms = (self.divergence, *self.penalties)
        if known.get("negatives") is not None and not any(term.repels for term in terms):
            raise UsageError(f"negatives: the divergence {self.divergence!r} pushes nothing apart.")
        if known.get("column_weights") is not None:
            for term in terms:
                check(term.by_plan or not term.repels, f"column_weights: {term!r} knows none; expected none.")

    def outcomes(self, *views: Tensor, **known: Known) -> Iterator[Outcome]:
        """Yield what is compared, wanted and found, block by block and direction by direction."""
        posed = pose(self.layout, self.target, views, known).weighed(self.kernel)
        if posed.negatives is not None and self.constraint.weighted:
            raise UsageError(f"negatives: {self.constraint!r} gives columns the weights of items, and these show none.")
        attributes = posed.attributes
        with without_autocast(posed.call.views[0]):
            for directions in posed.directions():
                marginals = self._marginals(directions[0].block, attributes.get("weights"))
                plans = self._plans(posed, directions, marginals)
                for direction, plan in zip(directions, plans, strict=True):
                    block, wanted, importance = direction if marginals is None else direction.with_weighted_target()
                    yield Outcome(block, wanted, plan, importance, attributes.get("ids"))

    def _plans(
        self,
        posed: Posed,
        directions: Sequence[Direction],
        marginals: Marginals | None,
    ) -> list[Plan]:
        """Return the plan of each direction: both at once where they compare the same pairs."""
        if posed.mirrors:
            geometry = directions[0].block.geometry(self.kernel, posed.temperature)
            return self.constraint(geometry, Asked(marginals, reciprocal=len(directions) == 2))
        masses = (None, None) if marginals is None else (marginals, marginals[::-1])
        return [
            plan
            for (block, *_), mass in zip(directions, masses, strict=False)
            for plan in self.constraint(
                block.geometry(self.kernel, posed.temperature),
                Asked(mass, log_weights=_log_column_weights(block, posed.attributes)),
            )
        ]

    def _marginals(self, block: Block, weights: Tensor | None) -> Marginals | None:
        """Return the marginals of the rows and columns of a block, or None where they are uniform."""
        if not self.constraint.weighted:
            return None
        if weights is None or not bool((weights > 0).all()):
            raise UsageError(f"weights: {self.constraint!r} expects a positive weight of each item in the call.")
        if block.pattern.strangers > 0:
            raise UsageError(f"weights: {self.constraint!r} expects columns of items; prototypes have no weight.")
        log_a, log_b = block.pattern.spread(weights.to(block.precision).log())
        return log_a.log_softmax(0), log_b.log_softmax(0)

    def answers(self) -> dict[str, str]:
        """Return the answer to each of the five questions, as it would be written."""
        questions = {
            "Which pairs are compared?": self.layout,
            "How alike are two embeddings?": self.kernel,
            "Which plans are allowed?": self.constraint,
            "Which plan do we want?": self.target,
            "How far is one from the other?": self.divergence,
        }
        answers = {question: repr(answer) for question, answer in questions.items()}
        return answers | {f"Penalty, times {factor:g}": repr(penalty) for penalty, factor in self.penalties.items()}

    def __repr__(self) -> str:
        penalties = f", penalties={self.penalties!r}" if self.penalties else ""
        return (
            f"Objective(layout={self.layout!r}, kernel={self.kernel!r}, constraint={self.constraint!r}, "
            f"target={self.target!r}, divergence={self.divergence!r}{penalties})"
        )


def _log_column_weights(block: Block, attributes: Attributes) -> Tensor | None:
    """Return log w of the columns of one direction, (M,), or None where they have no weights."""
    weights = attributes.get("column_weights")
    if weights is None:
        return None
    return weights.to(block.precision).log()[block.pattern.column_items]


def _by_row(reduction: object) -> bool:
    """Return whether a value is wanted for each row."""
    if reduction not in ("mean", "none"):
        raise unknown_name("reduction", reduction, ("mean", "none"))
    return reduction == "none"


def _reduced(outcome: Outcome, term: Divergence, by_row: bool) -> Tensor:
    values = term(outcome)
    if not by_row:
        return outcome.sum(values)
    check(values.ndim > 0, f"reduction: {term!r} is no sum over rows, so that no row has a value; expected 'mean'.")
    return outcome.by_row(values)
