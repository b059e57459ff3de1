"""An objective: one answer to each of the five questions, and the loss that follows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from contraport.distributed import Processes, gather_batch, world
from contraport.engine import Kernel
from contraport.errors import UsageError, check
from contraport.objectives.constraints import Constraint
from contraport.objectives.divergences import Divergence
from contraport.objectives.layouts import Block, Layout, check_negatives, check_views
from contraport.objectives.loss import Known, Loss, add_part
from contraport.objectives.outcome import Outcome
from contraport.objectives.targets import Attributes, Matrix, Target, TargetPlan


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
        self.target = _rule(target)
        self.penalties = dict(penalties or {})
        self.constrain(constraint)
        self._log_masses: list[Tensor | None] = []

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
        return self.layout.takes_several

    @property
    def mass(self) -> float | None:
        """The mass of the plan of the last call, a mean over directions; None where no marginal tells it.

        >>> import torch, contraport
        >>> loss = contraport.gca_uot(temperature=1.0)
        >>> _ = loss(torch.eye(2), torch.eye(2))
        >>> round(loss.mass, 4)
        1.9065
        """
        known = [v for v in self._log_masses if v is not None]
        complete = known and len(known) == len(self._log_masses)
        return torch.stack([v.exp().sum() for v in known]).mean().item() if complete else None

    @property
    def temperature(self) -> float:
        """The temperature of the kernel; assign to it to change it between steps."""
        return self.kernel.temperature

    @temperature.setter
    def temperature(self, value: float) -> None:
        self.kernel.temperature = value

    def parts(self, *views: Tensor, **known: Known) -> dict[str, Tensor]:
        """Return the divergence and each penalty, factors included; see `forward` for the keywords."""
        if not self.constraint.differentiable:
            raise UsageError(f"constraint: {self.constraint!r} has no gradient; use it in plan(...), to look at.")
        terms = [(self.divergence, 1.0), *self.penalties.items()]
        if known.get("negatives") is not None and not any(term.repels for term, _ in terms):
            raise UsageError(f"negatives: the divergence {self.divergence!r} pushes nothing apart.")
        totals: dict[str, Tensor] = {}
        self._log_masses = []
        for outcome in self.outcomes(*views, **known):
            log_mass = outcome.plan.known_log_marginal
            self._log_masses.append(None if log_mass is None else _unlinked(log_mass))
            for term, factor in terms:
                value, weight = outcome.sum(term(outcome)), factor * outcome.block.pattern.weight
                add_part(totals, type(term).__name__, value if weight == 1 else weight * value)
        return totals

    def outcomes(self, *views: Tensor, **known: Known) -> Iterator[Outcome]:
        """Yield what is compared, wanted and found, block by block and direction by direction."""
        shared = self.layout.shared_columns
        check_views(views, shared_columns=shared)
        views = _in_one_precision(views)
        target, processes = known.pop("target", None), world()
        negatives = _negatives(views, known, processes)
        rule = _rule(self.target if target is None else target)
        items, columns = (views[:-1], [processes.shared(views[-1])]) if shared else (views, [])
        gathered, attributes = gather_batch(items, _attributes(views, known))
        if shared:
            rule = rule.gathered()
        with torch.autocast(views[0].device.type, enabled=False):
            for block in self.layout(*gathered, *columns):
                if "ids" in attributes:
                    block = Block(block.pattern.without_duplicates(attributes["ids"]), block.x, block.y)
                directions = [(block, rule)] + ([(block.T, rule.mirrored())] if block.pattern.reciprocal else [])
                outcomes = [
                    (side, wanted, _importance(side, wanted, attributes.get("weights"), complete=rule.complete))
                    for side, rule in directions
                    for wanted in [rule(side, attributes)]
                ]
                if negatives is None:
                    plans = self.constraint(block.geometry(self.kernel), reciprocal=block.pattern.reciprocal)
                else:
                    outcomes = [self._widened(*outcome, *negatives, attributes) for outcome in outcomes]
                    plans = [found for side, *_ in outcomes for found in self.constraint(side.geometry(self.kernel))]
                for (side, wanted, importance), plan in zip(outcomes, plans, strict=True):
                    yield Outcome(side, wanted, plan, importance)

    def _widened(
        self,
        block: Block,
        target: TargetPlan,
        importance: Tensor | None,
        negatives: Tensor,
        ids: Tensor | None,
        attributes: Attributes,
    ) -> tuple[Block, TargetPlan, Tensor | None]:
        """Return a direction with negatives beside its columns."""
        further = self.layout.further(negatives)
        both = None if ids is None else (attributes["ids"], ids)
        return block.beside(further, both), target.beside(len(further)), importance

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


def _unlinked(value: Tensor) -> Tensor:
    return value.detach() if value.requires_grad else value


def _in_one_precision(views: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the views in the widest precision among them."""
    dtypes = {view.dtype for view in views}
    return views if len(dtypes) == 1 else tuple(view.to(reduce(torch.promote_types, dtypes)) for view in views)


def _rule(target: object) -> Target:
    if isinstance(target, Tensor):
        return Matrix(target)
    given = f"contraport.Domains(alpha=0.1), which only Python can give; got {target!r}"
    if not isinstance(target, Target):
        raise UsageError(f"target: expected a Target, such as {given}.")
    return target


def _importance(block: Block, target: TargetPlan, weights: Tensor | None, *, complete: bool) -> Tensor | None:
    """Return the factor of each row, (N,), that makes the weighted mean of the rows' values of their sum.

    Rows that want nothing get 0, and the others share the mass between them.
    """
    if weights is None and complete:
        return None
    mass = target.row_mass()
    wants = mass > 0
    importance = wants.to(mass.dtype) if weights is None else weights.to(mass.dtype)[block.pattern.row_items] * wants
    total = mass.sum() if weights is None else importance @ mass
    return importance / total.masked_fill(total == 0, 1)


def _negatives(
    views: tuple[Tensor, ...], known: dict[str, Any], processes: Processes
) -> tuple[Tensor, Tensor | None] | None:
    """Take the negatives and their ids from what is known in the call, checked, with those of all processes."""
    negatives, ids, shared = (known.pop(name, None) for name in ("negatives", "negative_ids", "shared_negatives"))
    check(ids is None or negatives is not None, "negative_ids: expected negatives= with them.")
    check(ids is None or known.get("ids") is not None, "negative_ids: expected ids= of the items with them.")
    check(not shared or negatives is not None, "shared_negatives: expected negatives= with it.")
    if negatives is None:
        return None
    check_negatives(negatives, ids, views)
    negatives = negatives.to(torch.promote_types(views[0].dtype, torch.float32))
    ids = None if ids is None else ids.to(negatives.device)
    if shared:
        return processes.shared(negatives), ids
    return processes.gather(negatives), None if ids is None else processes.gather(ids)


def _attributes(views: tuple[Tensor, ...], known: Mapping[str, Known]) -> Attributes:
    """Return what is known of the items, checked: one number per item, on the views' device."""
    attributes: dict[str, Tensor] = {}
    for name, value in known.items():
        if value is None:
            continue
        fits = isinstance(value, Tensor) and value.shape == views[0].shape[:1]
        got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        check(fits, f"{name}: expected a tensor with one entry per item, ({len(views[0])},), got {got}.")
        assert isinstance(value, Tensor)
        attributes[name] = value.to(views[0].device)
    weights = attributes.get("weights")
    if weights is not None:
        good = bool((weights >= 0).all() and weights.sum() > 0 and torch.isfinite(weights).all())
        check(good, "weights: expected nonnegative finite numbers that are not all zero.")
    return attributes
