"""Parsers of objective components from strings, such as ``rince:q=0.5``."""

from __future__ import annotations

from collections.abc import Mapping

from contraport._utils.spec_parser import build_from_spec
from contraport.engine import Gibbs, Kernel, LateInteraction, RationalQuadratic, StudentT
from contraport.errors import UsageError
from contraport.objectives.divergences import (
    KL,
    Divergence,
    FenchelYoung,
    Hellinger,
    JensenShannon,
    ReverseKL,
    Rince,
    SquaredL2,
    TargetCost,
    TotalVariation,
)
from contraport.objectives.layouts import AllViewPairs, CoreViewPairs, Cross, Joint, Layout, WithinView
from contraport.objectives.loss import Loss
from contraport.objectives.loss_schedules import CONSTRAINTS
from contraport.objectives.objective import Objective

LAYOUTS: Mapping[str, type[Layout]] = {
    "joint": Joint,
    "cross": Cross,
    "within-view": WithinView,
    "core-view": CoreViewPairs,
    "all-view-pairs": AllViewPairs,
}
"""Layouts available on the command line, by name."""

KERNELS: Mapping[str, type[Kernel]] = {
    "gibbs": Gibbs,
    "student-t": StudentT,
    "rational-quadratic": RationalQuadratic,
    "late-interaction": LateInteraction,
}
"""Kernels available on the command line, by name."""

DIVERGENCES: Mapping[str, type[Divergence]] = {
    "kl": KL,
    "reverse-kl": ReverseKL,
    "rince": Rince,
    "squared-l2": SquaredL2,
    "total-variation": TotalVariation,
    "hellinger": Hellinger,
    "jensen-shannon": JensenShannon,
    "fenchel-young": FenchelYoung,
    "target-cost": TargetCost,
}
"""Divergences available on the command line, by name."""


def replace_components(
    objective: Loss,
    *,
    layout: str | None = None,
    kernel: str | None = None,
    divergence: str | None = None,
    constraint: str | None = None,
) -> Objective:
    """Return an objective with components replaced by those that strings specify.

    The temperature stays, unless the kernel gives another.

    Raises:
        UsageError: the loss has no such parts, as a sum of objectives, or the parts do not go together.

    >>> import contraport
    >>> replace_components(contraport.info_nce(0.1), divergence="rince:q=0.5", constraint="rows")
    Objective(layout=Cross(), kernel=Gibbs('cosine', 0.1), constraint=Rows(), target=Pairs(), ...
    """
    if not isinstance(objective, Objective):
        changed = next(
            name for name, value in (("layout", layout), ("kernel", kernel), ("divergence", divergence)) if value
        )
        message = f"{changed}: cannot be replaced in a sum of objectives, {type(objective).__name__}."
        raise UsageError(message, kind="no_parts")
    own = objective.kernel
    defaults = {"temperature": own.temperature, "learnable": own.learns_temperature}
    return Objective(
        objective.layout if layout is None else build_from_spec("layout", layout, LAYOUTS),
        own if kernel is None else build_from_spec("kernel", kernel, KERNELS, defaults=defaults),
        objective.constraint if constraint is None else build_from_spec("constraint", constraint, CONSTRAINTS),
        objective.target,
        objective.divergence if divergence is None else build_from_spec("divergence", divergence, DIVERGENCES),
        objective.penalties,
    )
