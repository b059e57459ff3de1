"""The matching problem of a call: which pairs are compared, in which directions, and which plan is wanted of each.

A call brings views and facts; a layout makes blocks of the views; a target says what is wanted of a block. None of this
knows of constraints or divergences, and of kernels only where the batch's own plan weighs its items.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from contraport.distributed import Processes, world
from contraport.engine import Kernel
from contraport.errors import UsageError, check, check_positive, describe_value
from contraport.objectives.inputs import (
    NON_ITEM_OPTIONS,
    CallInputs,
    LocalNegatives,
    Negatives,
    check_views,
    read_inputs,
    read_negatives,
    views_of,
)
from contraport.objectives.layouts import Block, Layout, LayoutTraits
from contraport.objectives.plan_weights import PlanWeights, resolve_plan_weights
from contraport.objectives.process_agreement import agree, form, refuse
from contraport.objectives.targets import Matrix, PairList, Target, TargetPlan
from contraport.objectives.targets.feature_targets import call_features


class Direction(NamedTuple):
    """One direction of a block.

    Attributes:
        block: the compared pairs, (N, M).
        target: the plan that is wanted.
        importance: the factor of each row, (N,), 0 for those that want nothing, under which the mass of the target is
            1; None where it is 1 throughout.
    """

    block: Block
    target: TargetPlan
    importance: Tensor | None

    def with_weighted_target(self) -> Direction:
        """Return the same with the importance in the target itself, as a plan has it whose masses are the weights."""
        if self.importance is None:
            return self
        return Direction(self.block, self.target.times(self.importance), None)


@dataclass(frozen=True, eq=False)
class MatchingProblem:
    """A call under a layout and a target.

    Attributes:
        layout: which pairs are compared.
        target: which plan is wanted.
        call: views and facts, of the items of all processes.
        negatives: further columns, or None.
        columns: embeddings that are no view of the items, as prototypes are.
        similarities: what stands in the place of embeddings, or None.
        temperature: of this call, or None.
        requires_features: whether features of the items decide what is compared in a direction.
        mirrors: whether the second direction of a block compares the pairs of the first, no less and no more.
    """

    layout: Layout
    target: Target
    call: CallInputs
    negatives: Negatives | None
    columns: tuple[Tensor, ...] = ()
    similarities: Tensor | None = None
    temperature: float | Tensor | None = None
    requires_features: bool = False
    mirrors: bool = True

    def blocks(self) -> list[Block]:
        """Return what the layout compares, less the rows and columns that are absent."""
        call = self.call
        blocks = self.layout(*call.views, *self.columns)
        if call.present is not None:
            # The layout itself says which rows are absent: it puts the marks where it puts the embeddings.
            marks = call.present.to(call.views[0].dtype).T[:, :, None]
            marked = self.layout(*(mark.expand_as(z) for mark, z in zip(marks, call.views, strict=True)))
            blocks = [_of_those_present(*pair) for pair in zip(blocks, marked, strict=True)]
            blocks = [block for block in blocks if min(block.shape) > 0]
        if self.similarities is not None:
            blocks = [replace(block, similarities=_shown(self.similarities, block)) for block in blocks]
        return blocks

    def directions(self, block: Block) -> list[Direction]:
        """Return the directions of a block: one, or both where the columns are matched to the rows as well."""
        attributes, target = self.call.attributes, self.target
        weights = attributes.get("weights")
        if "ids" in attributes:
            block = replace(block, pattern=block.pattern.without_duplicates(attributes["ids"]))
        sides = [(block, target)]
        if block.pattern.reciprocal:
            sides.append((block.T, target.mirrored()))
        complete = weights is None and target.complete
        complete = complete and not (target.positives_from_views and block.pattern.chosen is not None)
        directions = []
        for k, (side, rule) in enumerate(sides):
            if self.requires_features:
                side = self.layout.guide(side, call_features(attributes, side, backward=k > 0))
            wanted = rule(side, attributes)
            importance = None if complete else _importance(side, wanted, weights)
            directions.append(Direction(side, wanted, importance))
        if self.negatives is not None:
            directions = [self._beside(direction, self.negatives) for direction in directions]
        return directions

    def _beside(self, direction: Direction, negatives: Negatives) -> Direction:
        """Return a direction with negatives beside its columns."""
        further = self.layout.further(negatives.embeddings)
        both = None if negatives.ids is None else (self.call.attributes["ids"], negatives.ids)
        block = direction.block.beside(further, both, negatives.owners)
        return Direction(block, direction.target.beside(len(further)), direction.importance)


def build_problem(
    layout: Layout, kernel: Kernel, target: Target, views: tuple[Tensor, ...], known: Mapping[str, Any]
) -> MatchingProblem:
    """Return the problem of a call, with the inputs of all processes.

    Args:
        layout: which pairs are compared.
        kernel: under which the batch's own plan weighs its items, where it does.
        target: which plan is wanted, unless the call has another.
        views: of the call.
        known: its keywords: facts of the items, what concerns negatives, ``target``, ``similarities``, ``present``,
            ``temperature``.

    Raises:
        UsageError: shapes or types do not fit, or what is given does not go together, or not with what another process
            gives.
    """
    processes, traits = world(), layout.traits
    columns: tuple[Tensor, ...] = ()
    try:
        own = _read(layout, traits, target, views, known, processes)
    except Exception as error:
        refuse(views, error)
        raise
    call, negatives, target, weighting, temperature = own
    sizes = None
    if processes.size > 1:
        beside = f" beside {tuple(views[-1].shape)}" if traits.shared_columns else ""
        rows = 0 if negatives is None else len(negatives.embeddings)
        sizes = agree(processes, own.forms(beside), len(call.views[0]), rows, call.views[0].device)
    if traits.shared_columns:
        columns, target = (processes.as_replicated(views[-1]),), target.gathered()
    else:
        target = target.among(processes, call)
    call = call.gathered(processes, sizes)
    similarities = known.get("similarities")
    if weighting is not None:
        wholly = traits.compares_items and not columns and similarities is None and call.present is None
        check(wholly, "weights: a plan tells them of embeddings of all views of some items; this call has others.")
        call = _weighted(call, weighting(call.views, kernel))
    return MatchingProblem(
        layout,
        target,
        call,
        None if negatives is None else negatives.gathered(call, processes, sizes),
        columns,
        similarities,
        processes.as_replicated(temperature) if isinstance(temperature, Tensor) else temperature,
        traits.requires_features,
        negatives is None and not traits.requires_features and "column_weights" not in call.attributes,
    )


def _weighted(call: CallInputs, weights: Tensor) -> CallInputs:
    """Return a call with these weights times its own, (n,)."""
    own = call.attributes.get("weights")
    weights = weights if own is None else weights * own.to(weights.dtype)
    return call._replace(attributes=call.attributes | {"weights": weights})


class _OwnCall(NamedTuple):
    """The checked inputs of this process; nothing of them is gathered."""

    call: CallInputs
    negatives: LocalNegatives | None
    rule: Target
    weighting: PlanWeights | None
    temperature: float | Tensor | None

    def forms(self, beside: str) -> dict[str, str]:
        """Return in which form each option is given, as far as the processes must agree on it.

        Args:
            beside: what stands beside the views.
        """
        call, negatives = self.call, self.negatives
        apart = "" if call.apart is None else " of different items"
        forms = {name: form(value) for name, value in call.attributes.items()}
        forms |= {"views": f"{len(call.views)} views {form(call.views[0])}{apart}{beside}", "target": self.rule.form}
        forms |= {"present": form(call.present), "temperature": form(self.temperature)}
        if self.weighting is not None:
            by = f"plan of strength {self.weighting.strength:g}, {self.weighting.iterations} iterations"
            forms["weights"] = by if "weights" not in forms else f"{by}, and {forms['weights']}"
        if negatives is not None:
            forms |= {"negatives": form(negatives.embeddings), "negative_ids": form(negatives.ids)}
            forms["shared_negatives"] = repr(negatives.shared)
        return forms


def _read(
    layout: Layout,
    traits: LayoutTraits,
    target: Target,
    views: tuple[Tensor, ...],
    known: Mapping[str, Any],
    processes: Processes,
) -> _OwnCall:
    """Return the checked inputs of this process; see `build_problem`."""
    facts, weighting = dict(known), None
    given, similarities = facts.pop("target", None), facts.pop("similarities", None)
    temperature = facts.pop("temperature", None)
    if temperature is not None:
        temperature = _temperature(temperature)
    if facts.get("weights") is not None:
        weighting = resolve_plan_weights(facts["weights"])
        facts["weights"] = facts["weights"] if weighting is None else weighting.given
    rule = target if given is None else resolve_target(given)
    if traits.shared_columns:
        call = _beside_columns(views, facts | {"similarities": similarities})
    else:
        if similarities is not None:
            views = _stand_ins(layout, views, facts, similarities, processes)
        call = read_inputs(views_of(views), facts, facts.get("present"))
        if (
            rule.positives_from_views
            and traits.views_are_positives
            and (len(call.views) == 1 or call.apart is not None)
        ):
            raise _unmatched(rule, call)
        rule.check_call(call)
    if not traits.compares_items:
        _check_no_items(layout, rule, call, facts)
    negatives = read_negatives(call, facts)
    if "column_weights" in call.attributes:
        alone = negatives is None and not layout.traits.shared_columns
        check(alone, "column_weights: expected none, as there are columns that show no items.")
    return _OwnCall(call, negatives, rule, weighting, temperature)


def _temperature(value: Any) -> float | Tensor:
    """Return the temperature of a call, checked."""
    if not isinstance(value, Tensor):
        check_positive("temperature", value)
        number: float = value
        return number
    got = f"shape {tuple(value.shape)}"
    check(value.numel() == 1, f"temperature: expected a number or a tensor of one element, got {got}.")
    return value.reshape(())


def resolve_target(target: object) -> Target:
    """Return what was given as a target: a rule, or a matrix or list of pairs as the rule that it stands for.

    Raises:
        UsageError: it is none of these.
    """
    if isinstance(target, Tensor | np.ndarray):
        return Matrix(torch.as_tensor(target))
    if isinstance(target, list):
        return PairList(target)
    if not isinstance(target, Target):
        got = describe_value(target) if hasattr(target, "shape") else repr(target)
        expected = "a Target, such as contraport.Domains(alpha=0.1), which only Python can give"
        raise UsageError(f"target: expected {expected}; got {got}.")
    return target


def _stand_ins(
    layout: Layout, views: tuple[Tensor, ...], facts: Mapping[str, Any], similarities: Any, processes: Processes
) -> tuple[Tensor, ...]:
    """Return embeddings of the shape of the rows that similarities are of, which stand for these."""
    check(not views, "similarities: expected either embeddings or similarities, got both.")
    matrix = isinstance(similarities, Tensor) and similarities.ndim == 2 and similarities.is_floating_point()
    check(
        matrix, f"similarities: expected a floating point tensor, rows by columns, got {describe_value(similarities)}."
    )
    check(
        processes.size == 1,
        "similarities: expected embeddings, as several processes share the plan; see local_batch().",
    )
    check(facts.get("negatives") is None, "negatives: expected their similarities as further columns of a target.")
    of_items = [
        fact
        for name, fact in facts.items()
        if name not in NON_ITEM_OPTIONS and fact is not None and not isinstance(fact, tuple)
    ]
    items = len(of_items[0]) if of_items else None
    n, m = similarities.shape
    return tuple(similarities.detach().new_zeros(size, 1) for size in layout.sizes((n, m), items))


def _beside_columns(views: tuple[Tensor, ...], known: dict[str, Any]) -> CallInputs:
    """Return what the call brings where the last view is columns that are the same on every process."""
    check_views(views, shared_columns=True)
    for name in ("present", "similarities"):
        check(known.pop(name, None) is None, f"{name}: expected none, as the columns are shared and show no items.")
    return read_inputs(views[:-1], known, None)


def _check_no_items(layout: Layout, rule: Target, call: CallInputs, known: Mapping[str, Any]) -> None:
    """Check that nothing is known of items, nor asked of them by the target, where none are compared."""
    other = (
        f"target: must match the views, as Pairs() does, got {rule!r}: {layout!r} compares coordinates and not items."
    )
    check(rule.positives_from_views, other)
    for name in ("ids", "weights", "column_weights", "present", "negatives"):
        given = name in call.attributes or known.get(name) is not None
        check(not given, f"{name}: expected none, as {layout!r} compares coordinates and not items.")
    check(call.apart is None, "views: expected two of the same items, as their coordinates are compared.")


def _unmatched(rule: Target, call: CallInputs) -> UsageError:
    """Return the error of a call whose views, one or of different items, do not match."""
    other = "or target=, such as Labels() with labels="
    if call.apart is None:
        return UsageError(
            f"views: {rule!r} matches the views of an item, of which one came; expected two or more, {other}."
        )
    n, m = call.apart, len(call.views[0]) - call.apart
    return UsageError(
        f"views: {rule!r} matches row i to row i, but z0 shows {n} items and z1 {m} others; "
        f"expected equally many rows, {other}."
    )


def _importance(block: Block, target: TargetPlan, weights: Tensor | None) -> Tensor:
    """Return the factor of each row, (N,), that makes the weighted mean of the rows' values of their sum.

    Rows that want nothing get 0, and the others share the mass between them.
    """
    mass = target.row_mass()
    wants = mass > 0
    importance = wants.to(mass.dtype) if weights is None else weights.to(mass.dtype)[block.pattern.row_items] * wants
    total = mass.sum() if weights is None else importance @ mass
    return importance / total.masked_fill(total == 0, 1)


def _of_those_present(block: Block, marked: Block) -> Block:
    """Return the rows and columns of a block that are marked."""
    rows = marked.x[:, 0].nonzero()[:, 0]
    return block.only(rows, rows if block.x is block.y else marked.y[:, 0].nonzero()[:, 0])


def _shown(similarities: Tensor, block: Block) -> Tensor:
    """Return the similarities of the rows and columns that are there."""
    if tuple(similarities.shape) == block.shape or block.pattern.chosen is None:
        return similarities
    rows, columns = block.pattern.chosen
    return similarities[rows][:, columns]
