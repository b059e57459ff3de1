"""Registry of named objectives with their builders, citations and formulas.

Builders use the public names of `contraport`, which are imported on first use: listing the registry needs no torch. A
``temperature`` is in units of the cosine unless its builder names another unit. Invalid settings raise `UsageError`.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeAlias, TypeVar

import contraport as cp
from contraport._utils.formatting import format_options
from contraport.errors import (
    UsageError,
    bind_suggesting_keywords,
    check,
    check_boolean,
    check_name,
    check_nonnegative,
    check_positive,
    check_type,
    is_number,
    rename_argument,
    unknown_name_error,
)
from contraport.schedules import is_learned_temperature, parse_learned_temperature_start

if TYPE_CHECKING:
    from torch import Tensor

    from contraport.engine import Kernel, TemperatureLike
    from contraport.objectives import Constraint, Divergence, Layout, Loss, Target


@dataclass(frozen=True)
class ObjectiveEntry:
    """Named objective with its builder, citation and formula.

    Attributes:
        name: Name of the objective, hyphenated.
        build: Function that builds the objective from its settings.
        citation: Paper and equation that define the objective.
        formula: Formula of the loss, in LaTeX.
    """

    name: str
    build: Callable[..., Loss]
    citation: str
    formula: str

    @property
    def summary(self) -> str:
        """First line of the builder's docstring."""
        return (inspect.getdoc(self.build) or "").split("\n")[0]


P = ParamSpec("P")
ChoiceT = TypeVar("ChoiceT")
LayoutName: TypeAlias = Literal["joint", "cross"]

OBJECTIVES: dict[str, ObjectiveEntry] = {}
"""All registered objectives, by hyphenated name."""

OBJECTIVE_FROM_PARTS = "custom"
"""Name of InfoNCE with at least one part (layout, kernel, constraint, target, divergence) replaced by an option."""

_MAX_SAFE_EXPONENT = 60.0
"""Largest exponent that settings may lead to: the sum of exp(60) over a large batch fits in single precision."""

_GCA_CITATION = (
    "Chen, Lin, Liu, Xiao and Dyer (2024), "
    "Your contrastive learning problem is secretly a distribution alignment problem."
)
_IOT_CITATION = (
    "Shi, Zhang, Zhen, Fan and Yan (2023), "
    "Understanding and generalizing contrastive learning from the inverse optimal transport perspective."
)
_ALPHA_CL_CITATION = "Tian (2022), Understanding deep contrastive learning via coordinate-wise optimization"
_DHEL_CITATION = (
    "Koromilas, Bouritsas, Giannakopoulos, Nicolaou and Panagakis (2024), Bridging mini-batch and asymptotic analysis "
    "in contrastive learning: from InfoNCE to kernel-based losses"
)


def register_objective(citation: str, formula: str) -> Callable[[Callable[P, Loss]], Callable[P, Loss]]:
    """Decorator that wraps a builder and registers it under its hyphenated function name.

    A ``temperature`` argument then accepts a number, or a tensor of one element that a model owns. ``"learn"`` makes it
    a parameter of the objective that starts at the default, ``"learn:0.07"`` at another value.
    """

    def register(make: Callable[P, Loss]) -> Callable[P, Loss]:
        signature = inspect.signature(make)

        @functools.wraps(make)
        def build(*args: P.args, **settings: P.kwargs) -> Loss:
            call = bind_suggesting_keywords(make.__name__, signature, args, settings)
            for option, value in call.arguments.items():
                if isinstance(signature.parameters[option].default, bool):
                    check_boolean(option, value)
            if isinstance(call.arguments.get("temperature"), str):
                text, default = call.arguments["temperature"], signature.parameters["temperature"].default
                message = f"temperature: must be a number, 'learn' or a tensor of one element, got {text!r}."
                check(is_learned_temperature(text), message)
                start = parse_learned_temperature_start(text) or default or 0.5
                call.arguments["temperature"] = cp.engine.InitialTemperature(start)
            loss = make(*call.args, **call.kwargs)
            arguments = [repr(a) for a in args] + [f"{key}={value!r}" for key, value in settings.items()]
            loss.accepts_temperature = "temperature" in signature.parameters
            loss.catalog_origin = cp.objectives.loss.CatalogOrigin(
                name, f"{make.__name__}({', '.join(arguments)})", citation
            )
            return loss

        name = make.__name__.replace("_", "-")
        OBJECTIVES[name] = ObjectiveEntry(name, build, citation, formula)
        return build

    return register


def get_objective_entry(name: str) -> ObjectiveEntry:
    """Return the registry entry of an objective, by hyphenated or underscored name.

    Raises:
        UsageError: the name is unknown.

    >>> get_objective_entry("nt_xent").name
    'nt-xent'
    """
    key = str(name).replace("_", "-")
    if key in OBJECTIVES:
        return OBJECTIVES[key]
    if key == OBJECTIVE_FROM_PARTS:
        return replace(OBJECTIVES["info-nce"], name=key)
    prefix, colon, _ = key.partition(":")
    if colon and prefix in OBJECTIVES:  # the form of the rows of a comparison
        message = f"objective: must be a name alone, such as {prefix!r}, got {name!r}"
        raise UsageError(
            f"{message}; set its options with {format_options(objective_settings={'NAME': ...})}.", kind="settings"
        )
    # Imported here, as recipes build on objectives.
    from contraport.catalog.recipes import RECIPES

    if key.lower() in RECIPES:
        message = f"objective: must be an objective, got the recipe {name!r}; use {format_options(recipe=key.lower())}."
        raise UsageError(message, kind="recipe")
    raise unknown_name_error("objective", name, OBJECTIVES, list_command="contraport list objectives")


def objective(name: str, **settings: Any) -> Loss:
    """Build an objective by its registered name.

    Args:
        name: one of `list_objectives`; underscores may stand for hyphens.
        settings: keyword arguments of the builder.

    Raises:
        UsageError: the name or a setting is unknown, or a value is out of range.

    >>> objective("gca-ince", iterations=3)
    Objective(layout=Joint(), kernel=Gibbs('cosine', 0.5), constraint=Balanced(iterations=3), target=Pairs(),
              divergence=KL())
    """
    entry = get_objective_entry(name)
    parameters = inspect.signature(entry.build).parameters
    for setting in settings:
        if setting not in parameters:
            raise unknown_name_error(entry.build.__name__, setting, parameters, noun="setting")
    try:
        return entry.build(**settings)
    except TypeError as error:
        raise UsageError(f"objective {entry.name}: {error}") from error


def list_objectives() -> list[str]:
    """Return the names of all registered objectives.

    >>> "nt-xent" in list_objectives()
    True
    """
    return sorted(OBJECTIVES)


def _get_choice(option: str, name: object, choices: Mapping[str, ChoiceT]) -> ChoiceT:
    """Return ``choices[name]``, or raise a `UsageError` that names the option."""
    check_name(option, name, choices)
    return choices[str(name)]


def _get_layout_by_name(name: LayoutName, *, symmetric: bool = True) -> Layout:
    """Return the layout named ``"joint"`` or ``"cross"``."""
    layouts: dict[str, Layout] = {"joint": cp.Joint(), "cross": cp.Cross(symmetric)}
    return _get_choice("layout", name, layouts)


def _build_joint_layout(negatives: Literal["both", "same", "other"]) -> cp.Joint:
    """Build a `Joint` layout with negatives from both views or one of them."""
    return cp.Joint(_get_choice("negatives", negatives, {"both": "both", "same": "same", "other": "other"}))


@register_objective(
    "van den Oord, Li and Vinyals (2018), Representation learning with contrastive predictive coding, eq. 4.",
    r"-\tfrac1n \sum_i \log \frac{e^{s_{ii}/\tau}}{\sum_j e^{s_{ij}/\tau}}",
)
def info_nce(
    temperature: TemperatureLike = 0.1,
    symmetric: bool = True,
    target: Target | None = None,
    shared_columns: bool = False,
) -> Loss:
    """InfoNCE (CPC, CLIP): classify each item's other view among the batch, in both directions.

    Args:
        temperature: in units of the cosine.
        symmetric: average both directions.
        target: the target plan; None is `Pairs`.
        shared_columns: the second argument of the call is not a view but prototypes, as in `Cross`; `soft_assignments`
            computes targets for them.

    >>> import torch
    >>> info_nce(temperature=1.0)(torch.eye(2), torch.eye(2))
    tensor(0.3133)
    """
    layout, target = cp.Cross(symmetric, shared_columns=shared_columns), cp.Pairs() if target is None else target
    return cp.Objective(layout, cp.Gibbs("cosine", temperature), cp.Rows(), target, cp.KL())


@register_objective(
    "Chen, Kornblith, Norouzi and Hinton (2020), A simple framework for contrastive learning (SimCLR), eq. 1.",
    r"-\tfrac1{2n} \sum_i \log \frac{e^{s_{ii'}/\tau}}{\sum_{j \neq i} e^{s_{ij}/\tau}}",
)
def nt_xent(temperature: TemperatureLike = 0.5) -> Loss:
    """NT-Xent (SimCLR): classify each item's other view among all embeddings of both views.

    With more than two views, all other views of an item are its positives, with equal weights.

    >>> import torch
    >>> nt_xent(temperature=1.0)(torch.eye(2), torch.eye(2))
    tensor(0.5514)
    """
    return cp.Objective(cp.Joint(), cp.Gibbs("cosine", temperature), cp.Rows(), cp.Pairs(), cp.KL())


@register_objective(
    "Khosla et al. (2020), Supervised contrastive learning, eq. 2, less its constant, the mean of log |P(i)|.",
    r"\mathrm{KL}(\tilde P \mid P),\; \tilde P_{ij} = \tfrac{[y_i = y_j]}{2n\,|P(i)|}",
)
def sup_con(temperature: TemperatureLike = 0.1, layout: LayoutName = "joint") -> Loss:
    """SupCon: positives are all embeddings of the same class (``labels=``).

    Accepts any number of views, including one.

    Args:
        temperature: in units of the cosine.
        layout: ``"joint"``, or ``"cross"``, from the embeddings z0 to a reference set z1, with
            ``labels=(of z0, of z1)`` and, if z1 contains items of z0, ``ids=(of z0, of z1)``. Pairs with equal ids are
            no positives, even if they share a label.

    >>> import torch
    >>> round(sup_con(temperature=1.0)(torch.eye(2), torch.eye(2), labels=torch.tensor([0, 1])).item(), 4)
    0.5514
    """
    pairs = _get_layout_by_name(layout, symmetric=False)
    return cp.Objective(pairs, cp.Gibbs("cosine", temperature), cp.Rows(), cp.Labels(), cp.KL())


@register_objective(
    "Chuang et al. (2022), Robust contrastive learning against noisy views (RINCE), eq. 4.",
    r"\tfrac1N \sum_i \tfrac1q \big[(\lambda \sum_j K_{ij})^q - K_{i+}^q\big],\; K = e^{s/\tau}",
)
def rince(temperature: TemperatureLike = 0.5, q: float = 0.5, lam: float = 0.01, layout: LayoutName = "joint") -> Loss:
    """Robust InfoNCE (RINCE) for noisy positives.

    It interpolates between InfoNCE (q -> 0) and a symmetric loss (q = 1). The value can be negative.

    Args:
        temperature: at least q / 60: exp(q / temperature) must fit in single precision.
        q: in (0, 1]; the limit q -> 0 is InfoNCE + log lam.
        lam: weight of all candidates relative to the positive, in (0, 1].
        layout: ``"joint"``, or ``"cross"``, both directions averaged.

    >>> import torch
    >>> round(rince(temperature=1.0, q=1.0, lam=0.5)(torch.eye(2), torch.eye(2)).item(), 4)
    -0.3591
    """
    pairs, kernel, divergence = _get_layout_by_name(layout), cp.Gibbs("negative-cosine", temperature), cp.Rince(q, lam)
    good = q <= _MAX_SAFE_EXPONENT * kernel.temperature
    check(
        good, f"temperature: must be at least q / {_MAX_SAFE_EXPONENT:g}, got {temperature!r} for q = {q!r}.", "range"
    )
    return cp.Objective(pairs, kernel, cp.Free(), cp.Pairs(), divergence)


@register_objective(
    _GCA_CITATION, r"\mathrm{KL}(\tilde P \mid P),\; P \in U(a, b) \text{ by } K \text{ Sinkhorn iterations}"
)
def gca_ince(temperature: TemperatureLike = 0.5, iterations: int = 5) -> Loss:
    """GCA-INCE: InfoNCE on a balanced plan, computed by Sinkhorn iterations.

    Args:
        temperature: in units of the cosine.
        iterations: number of Sinkhorn iterations.

    >>> import torch
    >>> gca_ince(temperature=1.0)(torch.eye(2), torch.eye(2))
    tensor(0.5514)
    """
    return cp.Objective(cp.Joint(), cp.Gibbs("cosine", temperature), cp.Balanced(iterations), cp.Pairs(), cp.KL())


@register_objective(
    _GCA_CITATION, r"\tfrac1N \sum_i \tfrac1q \big[(\lambda \sum_j N P_{ij})^q - (N P_{i+})^q\big],\; P \in U(a, b)"
)
def gca_rince(temperature: TemperatureLike = 0.5, iterations: int = 5, q: float = 0.6, lam: float = 0.01) -> Loss:
    """GCA-RINCE: robust InfoNCE on a balanced (Sinkhorn) plan.

    The value can be negative.

    Args:
        temperature: in units of the cosine.
        iterations: number of Sinkhorn iterations.
        q: in (0, 1].
        lam: weight of the row's mass relative to the positive, in (0, 1].

    >>> import torch
    >>> round(gca_rince(temperature=1.0)(torch.eye(2), torch.eye(2)).item(), 4)
    -1.092
    """
    kernel, divergence = cp.Gibbs("cosine", temperature), cp.Rince(q, lam)
    return cp.Objective(cp.Joint(), kernel, cp.Balanced(iterations), cp.Pairs(), divergence)


@register_objective(
    _GCA_CITATION,
    r"\mathrm{KL}(\tilde P \mid P),\; P = \arg\min \langle C, P \rangle + \tau\,\mathrm{KL}(P \mid a b^\top) "
    r"+ \rho\,\mathrm{KL}(P1 \mid a) + \rho\,\mathrm{KL}(P^\top 1 \mid b)",
)
def gca_uot(
    temperature: TemperatureLike = 0.5,
    iterations: int = 5,
    relaxation: float | tuple[float, float] = 1.0,
    conditional: bool = False,
    marginal_weight: float | tuple[float, float] = 0.0,
    marginal_divergence: Literal["kl", "total-variation"] = "kl",
    entropy_weight: float = 0.0,
    rince_weight: float = 0.0,
    q: float = 0.6,
    lam: float = 0.01,
    reference: str = "product",
) -> Loss:
    """GCA-UOT: InfoNCE on an unbalanced plan, which may give outliers less mass.

    `Objective.last_plan_mass` is the share of the mass that was transported, at most 1 with the product reference. On
    digits and Fashion-MNIST (docs/accuracy.md), clean and with a fifth of the pairs mismatched, it was never better
    than NT-Xent or the balanced plan by more than the differences between seeds; at temperature 0.05 about a point of
    kNN accuracy lower, unless `conditional`.

    Args:
        temperature: in units of the cosine.
        iterations: number of damped Sinkhorn iterations.
        relaxation: price of missing a marginal, in units of the cosine; a large price is strict.
        conditional: compare the shares within each row only, so that given-up mass does not count: a small relaxation
            is then close to InfoNCE, a large one to `gca_ince`.
        marginal_weight: weight of the divergence of the plan's marginals, nonnegative; or a pair, of rows and columns.
        marginal_divergence: ``"kl"``, ``"squared-l2"``, ``"total-variation"`` or ``"jensen-shannon"``.
        entropy_weight: weight of the entropy of the plan (epsilon), nonnegative.
        rince_weight: weight of the RINCE divergence, which is added to KL, nonnegative.
        q: exponent of RINCE, in (0, 1].
        lam: weight of the row's mass in RINCE, in (0, 1].
        reference: ``"product"`` or ``"counting"``, as in `Unbalanced`.

    >>> import torch
    >>> gca_uot(temperature=1.0)(torch.eye(2), torch.eye(2))
    tensor(0.5867)
    """
    check_nonnegative("rince_weight", rince_weight)
    check_nonnegative("entropy_weight", entropy_weight)
    marginal_weights = marginal_weight if isinstance(marginal_weight, tuple | list) else (marginal_weight,) * 2
    check(len(marginal_weights) == 2, f"marginal_weight: must be a number or a pair, got {marginal_weight!r}.")
    for weight in marginal_weights:
        check_nonnegative("marginal_weight", weight)
    with rename_argument("marginal_divergence", "divergence"):
        rows, columns = (cp.MarginalPenalty(marginal_divergence, side) for side in ("rows", "columns"))
    weights = {
        rows: marginal_weights[0],
        columns: marginal_weights[1],
        cp.PlanEntropy(): entropy_weight,
        cp.Rince(q, lam): rince_weight,
    }
    penalties = {penalty: weight for penalty, weight in weights.items() if weight}
    kernel, constraint = cp.Gibbs("cosine", temperature), cp.Unbalanced(relaxation, iterations, reference)
    return cp.Objective(cp.Joint(), kernel, constraint, cp.Pairs(), cp.KL(conditional), penalties)


@register_objective(
    "Grill et al. (2020), Bootstrap your own latent (BYOL), eq. 2.",
    r"\tfrac1n \sum_i (2 - 2 \cos(p_i, \mathrm{sg}(t_i)))",
)
def byol() -> Loss:
    """BYOL: squared distance of predictions from detached targets, without negatives.

    Call it on ``(prediction, target)``, and once more with the views exchanged. A momentum encoder makes the targets.

    >>> import torch
    >>> byol()(torch.eye(2), torch.eye(2).flip(0))
    tensor(2.)
    """
    layout = cp.Cross(symmetric=False, stop_gradient=True)
    return cp.Objective(layout, cp.Gibbs("chordal", 1.0), cp.Free(), cp.Pairs(), cp.TargetCost())


@register_objective(
    _IOT_CITATION,
    r"\mathrm{KL}(\tilde P \mid P) + \lambda\,\mathrm{KL}(\bar Q \mid P),\; P \in U(a), U(1) \text{ or } U(a, b)",
)
def iot(
    temperature: TemperatureLike = 0.5, constraint: str = "balanced", iterations: int = 5, uniformity: float = 0.0
) -> Loss:
    """IOT-CL (inverse optimal transport): fits the plan to the positive pairs; by default the same loss as `gca_ince`.

    Args:
        temperature: weight of the entropy (epsilon).
        constraint: ``"rows"`` (which is NT-Xent), ``"simplex"`` or ``"balanced"``.
        iterations: number of Sinkhorn iterations, for ``"balanced"``.
        uniformity: weight of the penalty on an uneven plan over the negatives, nonnegative.

    >>> import torch
    >>> iot(temperature=1.0, constraint="rows")(torch.eye(2), torch.eye(2))
    tensor(0.5514)
    """
    check_nonnegative("uniformity", uniformity)
    penalties: dict[Divergence, float] | None = {cp.PlanUniformity(): uniformity} if uniformity else None
    constraints: dict[str, Constraint]
    constraints = {"rows": cp.Rows(), "simplex": cp.Simplex(), "balanced": cp.Balanced(iterations)}
    kernel, chosen = cp.Gibbs("cosine", temperature), _get_choice("constraint", constraint, constraints)
    return cp.Objective(cp.Joint(), kernel, chosen, cp.Pairs(), cp.KL(), penalties)


@register_objective(_IOT_CITATION, r"\mathrm{KL}(\tilde P \mid P) + \lambda\,\mathrm{KL}(\bar Q \mid P)")
def iot_uniform(
    temperature: TemperatureLike = 0.5, constraint: str = "balanced", iterations: int = 5, uniformity: float = 1.0
) -> Loss:
    """Inverse optimal transport (IOT-CL) with a penalty on uneven plan mass of negatives.

    See `iot`.

    >>> import torch
    >>> round(iot_uniform(temperature=1.0)(torch.eye(2), torch.eye(2)).item(), 4)
    0.5514
    """
    return iot(temperature, constraint, iterations, uniformity)


@register_objective(_IOT_CITATION, r"-\tfrac1N \sum_i \log \tfrac1n \big(1 + \sum_j (C_{ij} - C_{i+})\big)")
def iot_quadratic(
    constraint: str = "rows", closed_form: bool = True, layout: LayoutName = "joint", temperature: TemperatureLike = 1.0
) -> Loss:
    """Inverse optimal transport (IOT-CL) with a quadratic regularizer, sparsemax in place of softmax.

    Args:
        constraint: ``"rows"`` or ``"simplex"``; without the closed form also ``"balanced"``, both marginals.
        closed_form: use the closed form of the paper, which allows negative entries; else the exact plan, which has
            zeros, and its Fenchel-Young loss.
        layout: ``"joint"``, or ``"cross"``, from view 0 to view 1.
        temperature: weight of the regularizer.

    >>> import torch
    >>> round(iot_quadratic()(torch.eye(3), torch.eye(3).roll(1, 0)).item(), 4)
    7.9078
    """
    pairs = _get_layout_by_name(layout, symmetric=False)
    with rename_argument("constraint", "mass_constraint"):
        allowed: Constraint = cp.Free() if closed_form else cp.Tsallis(mass_constraint=constraint)
        divergence: Divergence = cp.ClosedFormQuadratic(constraint) if closed_form else cp.FenchelYoung()
    return cp.Objective(pairs, cp.Gibbs("cosine", temperature), allowed, cp.Pairs(), divergence)


@register_objective(
    "Wang and Isola (2020), Alignment and uniformity on the hypersphere, eq. 1-2.",
    r"\tfrac1n \sum_i \|z_i - z'_i\|^2 + \tfrac{w}{2} \sum_v \log \mathrm{mean}_{i<j} e^{-2 \|z^v_i - z^v_j\|^2}",
)
def align_uniform(weight: float = 1.0) -> Loss:
    """Alignment (squared distance of positives) plus uniformity (log mean Gaussian potential).

    Args:
        weight: weight of the uniformity, nonnegative.

    >>> import torch
    >>> align_uniform()(torch.eye(2), torch.eye(2))
    tensor(-4.)
    """
    check_nonnegative("weight", weight)
    layout, free, pairs = cp.Cross(symmetric=False), cp.Free(), cp.Pairs()
    alignment = cp.Objective(layout, cp.Gibbs("chordal", 1.0), free, pairs, cp.TargetCost())
    uniformity = cp.Objective(cp.WithinView(), cp.Gibbs("chordal", 0.5), free, pairs, cp.LogMeanKernel())
    return cp.SumLoss({alignment: 1.0, uniformity: weight})


@register_objective(
    f"{_ALPHA_CL_CITATION}, eq. 1 and table 1.", r"\tfrac1{2n} \sum_i \phi\big(\sum_{j} \psi(d_i^2 - d_{ij}^2)\big)"
)
def pairwise(
    preset: str | None = None,
    temperature: TemperatureLike | None = None,
    negatives: Literal["both", "same", "other"] = "both",
    epsilon: float = 1.0,
    c: float = 1.0,
    phi: Callable[[Tensor], Tensor] | None = None,
    psi: Callable[[Tensor], Tensor] | None = None,
) -> Loss:
    """Pairwise losses selected by `preset`, such as triplet, N+1 tuplet and lifted structure.

    Args:
        preset: a loss of the paper's table (``info_nce``, ``mine``, ``triplet``, ``soft_triplet``, ``n_plus_1_tuplet``,
            ``lifted_structured``, ``sigmoid_pairs``, ``linear_pairs``); ``info_nce`` unless phi and psi are given.
        temperature: in units of half the squared distance; only the presets ``info_nce`` and ``soft_triplet`` have
            one; default: 0.5.
        negatives: of ``"both"`` views, of the anchor's own (``"same"``) or of the ``"other"``.
        epsilon: margin or offset of the presets.
        c: slope of ``sigmoid_pairs``.
        phi: monotone pointwise function of the sum, instead of a preset.
        psi: monotone pointwise function of each difference of half squared distances, instead of a preset.

    >>> import torch
    >>> round(pairwise("triplet")(torch.eye(2), torch.eye(2)).item(), 4)
    0.0
    """
    custom = phi is not None and psi is not None
    check(custom or (phi is None and psi is None), "phi: must be given together with psi, got one of them.", "missing")
    check(not (custom and preset is not None), "preset: cannot be combined with phi and psi.", "conflict")
    check_nonnegative("epsilon", epsilon)
    check_positive("c", c)
    has_temperature = False
    if phi is not None and psi is not None:
        for name, function in (("phi", phi), ("psi", psi)):
            check_type(name, function, Callable, "torch.exp")
        divergence: Divergence = cp.objectives.PairwiseSum(phi, psi)
    else:
        build = _get_choice("preset", str(preset or "info_nce").replace("-", "_"), cp.objectives.PAIRWISE_PRESETS)
        divergence = build(epsilon, c)
        has_temperature = isinstance(divergence, cp.objectives.Pairwise) and divergence.times_temperature
    good = has_temperature or temperature is None
    check(good, f"temperature: does not apply to {preset or 'phi and psi'}, which have none.", "conflict")
    kernel = cp.Gibbs("cosine", (0.5 if temperature is None else temperature) if has_temperature else 1.0)
    return cp.Objective(_build_joint_layout(negatives), kernel, cp.Free(), cp.Pairs(), divergence)


@register_objective(
    f"{_ALPHA_CL_CITATION}, alpha-CL, eq. 5 and table 2.",
    r"\tfrac1{2n} \sum_i \sum_j \alpha_{ij} (d_i^2 - d_{ij}^2),\; \alpha \text{ held fixed}",
)
def alpha_cl(
    temperature: float = 0.5,
    regularizer: str = "direct",
    p: float = 4.0,
    gamma: float = 2.0,
    detach: bool = True,
    negatives: Literal["both", "same", "other"] = "both",
    normalize: bool = True,
    phi: Callable[[Tensor], Tensor] | None = None,
) -> Loss:
    """alpha-CL: contrastive energy with detached weights that are larger for closer negatives.

    The weights of a row minimize 2 sum_j alpha_j d_j^2 - R(alpha) over the probability simplex.

    Args:
        temperature: in units of half the squared distance (its p/2-th power for ``"direct"``).
        regularizer: R, which determines the weights. ``"entropy"``, R = -2 temperature alpha log alpha: softmax(-d^2 /
            temperature). ``"square"``, R = -temperature/2 alpha^2: sparsemax(-2 d^2 / temperature). ``"inverse"``,
            R = 2 temperature/(1 - gamma) alpha^(1 - gamma): (temperature / (d^2 + nu))^(1/gamma), with nu such that
            they add up to 1; in batches of hundreds these weights are almost equal. ``"inverse-shifted"``, a cheaper
            form with far less equal weights: (d^2 + temperature)^(-1/gamma), normalized. ``"direct"``, no regularizer:
            exp(-d^p / temperature). ``"uniform"``: equal weights.
        p: exponent of ``"direct"``.
        gamma: exponent of the inverse weights, above 1.
        detach: hold the weights fixed; False propagates the gradient through them.
        negatives: of ``"both"`` views, of the anchor's own (``"same"``) or of the ``"other"``.
        normalize: normalize the weights of ``"direct"`` to sum 1, as in the paper's experiments; its text does not.
        phi: for ``"entropy"``: the weights add up to xi phi'(xi) / temperature instead, as in `ContrastiveEnergy`. The
            gradient is then that of `pairwise` with this phi and psi = exp(x / temperature).

    >>> import torch
    >>> round(alpha_cl(regularizer="entropy")(torch.eye(2), torch.eye(2)).item(), 4)
    -1.0
    """
    check_positive("p", p)
    check_boolean("detach", detach)
    if phi is not None:
        check_type("phi", phi, Callable, "torch.log1p")
    check(is_number(gamma) and 1 < gamma < math.inf, f"gamma: must be a finite number > 1, got {gamma!r}.")
    applies = {
        "p": (p == 4, ("direct",)),
        "gamma": (gamma == 2, ("inverse", "inverse-shifted")),
        "normalize": (bool(normalize), ("direct",)),
        "phi": (phi is None, ("entropy",)),
    }
    for option, (is_default, regularizers) in applies.items():
        good = is_default or regularizer in regularizers
        check(good, f"{option}: applies to regularizer {' or '.join(regularizers)}, got {regularizer!r}.", "conflict")
    learned = isinstance(temperature, cp.engine.InitialTemperature) and regularizer in ("square", "inverse")
    check(not learned, f"temperature: cannot be learned with regularizer {regularizer!r}; give a number.", "conflict")
    minimum = 2 / _MAX_SAFE_EXPONENT
    good = phi is None or temperature >= minimum
    check(good, f"temperature: must be at least {minimum:.3g} with phi, got {temperature!r}.", "range")
    weights: dict[str, Callable[[], tuple[Kernel, Constraint]]] = {
        "entropy": lambda: (cp.Gibbs("cosine", temperature), cp.Rows()),
        "square": lambda: (cp.Gibbs("cosine", temperature / 2), cp.Tsallis(2, regularizes_row_shares=True)),
        "inverse": lambda: (
            cp.Gibbs("cosine", gamma * temperature),
            cp.Tsallis(1 - gamma, regularizes_row_shares=True),
        ),
        "inverse-shifted": lambda: (cp.RationalQuadratic("cosine", temperature, power=1 / gamma), cp.Rows()),
        "direct": lambda: (cp.Gibbs("cosine", temperature, power=p / 2), cp.Rows() if normalize else cp.Free()),
        "uniform": lambda: (cp.RationalQuadratic("cosine", temperature, power=0), cp.Rows()),
    }
    kernel, constraint = _get_choice("regularizer", regularizer, weights)()
    divergence = cp.ContrastiveEnergy(detach, not normalize, phi)
    return cp.Objective(_build_joint_layout(negatives), kernel, constraint, cp.Pairs(), divergence)


@register_objective(
    f"{_ALPHA_CL_CITATION}, the quadratic loss.", r"\tfrac1{2n} \sum_i \tfrac1{2n-2} \sum_j (d_i^2 - d_{ij}^2)"
)
def quadratic(negatives: Literal["both", "same", "other"] = "both") -> Loss:
    """Squared distance of positives minus mean squared distance of negatives.

    Args:
        negatives: of ``"both"`` views, of the anchor's own (``"same"``) or of the ``"other"``.

    >>> import torch
    >>> round(quadratic()(torch.eye(2), torch.eye(2)).item(), 4)
    -1.0
    """
    return alpha_cl(1.0, "uniform", negatives=negatives)


@register_objective(
    "Jing, Vincent, LeCun and Tian (2022), Understanding dimensional collapse (DirectCLR).",
    r"\text{NT-Xent of the first } d_0 \text{ coordinates}",
)
def direct_clr(temperature: TemperatureLike = 0.1, dimensions: int = 64) -> Loss:
    """DirectCLR: NT-Xent on the first coordinates of the encoder output, without a projector.

    Args:
        temperature: in units of the cosine.
        dimensions: number of coordinates.

    >>> import torch
    >>> round(direct_clr(temperature=1.0, dimensions=2)(torch.eye(3), torch.eye(3)).item(), 4)
    1.1397
    """
    layout = cp.LeadingCoordinates(dimensions, cp.Joint())
    return cp.Objective(layout, cp.Gibbs("cosine", temperature), cp.Rows(), cp.Pairs(), cp.KL())


@register_objective(
    "Hu, Liu, Zhou, Wang and Huang (2023), Your contrastive learning is secretly doing stochastic neighbor embedding.",
    r"-\tfrac1{2n} \sum_i \log \frac{K_{ii'}}{\sum_{s \neq t} K_{st}} - \log 2n,\;"
    r" K = (1 + \tfrac{d^2}{\tau \nu})^{-(\nu+1)/2}",
)
def t_simclr(temperature: TemperatureLike = 8.0, df: float = 5.0, conditional: bool = False) -> Loss:
    """t-SimCLR: SimCLR with the Student-t kernel of t-SNE, on unnormalized embeddings.

    Args:
        temperature: in units of the squared distance.
        df: degrees of freedom.
        conditional: normalize each row, as SNE does, rather than all pairs at once, as t-SNE does.

    >>> import torch
    >>> round(t_simclr(temperature=1.0)(torch.eye(2), torch.eye(2)).item(), 4)
    0.5475
    """
    check_boolean("conditional", conditional)
    constraint: Constraint = cp.Rows() if conditional else cp.Simplex()
    return cp.Objective(cp.Joint(), cp.StudentT(df, temperature), constraint, cp.Pairs(), cp.KL())


@register_objective(
    "Tian, Krishnan and Isola (2020), Contrastive multiview coding, eq. 3 and section 3.3.",
    r"\sum_{v < w} L(V_v, V_w) \text{ or } \sum_{w > 1} L(V_1, V_w),\; L \text{ InfoNCE in both directions}",
)
def cmc(temperature: TemperatureLike = 0.1, graph: str = "full") -> Loss:
    """Contrastive multiview coding (CMC): InfoNCE summed over pairs of views.

    Args:
        temperature: in units of the cosine.
        graph: ``"full"``, all pairs of views, or ``"core"``, the first view with each other view.

    >>> import torch
    >>> cmc(temperature=1.0)(torch.eye(2), torch.eye(2), torch.eye(2))
    tensor(1.8796)
    """
    layouts: dict[str, Layout] = {"full": cp.AllViewPairs(), "core": cp.CoreViewPairs()}
    layout = _get_choice("graph", graph, layouts)
    return cp.Objective(layout, cp.Gibbs("cosine", temperature), cp.Rows(), cp.Pairs(), cp.KL())


@register_objective(
    "Tian, Krishnan and Isola (2020), Contrastive multiview coding, eq. 5-7, with Z a moving average.",
    r"\tfrac1n \sum_i \Big[-\log \tfrac{h_{ii}}{h_{ii} + 1} - \sum_{j \neq i} \log \tfrac{1}{h_{ij} + 1}\Big],\;"
    r" h_{ij} = \frac{e^{s_{ij}/\tau}}{K Z}",
)
def cmc_nce(temperature: TemperatureLike = 0.07, momentum: float = 0.9, graph: str = "full") -> Loss:
    """CMC by noise-contrastive estimation: classifies pairs as matched or as noise.

    Noise is the rest of the batch and ``negatives=``, from a bank for example. The loss goes from the first view to the
    second; use one objective per direction, each with the bank of its second view and its own normalizer.

    Args:
        temperature: in units of the cosine.
        momentum: weight of the past in the moving average Z of the kernel, in [0, 1).
        graph: when training on more than two views, ``"full"``, all pairs of views, or ``"core"``, the first view with
            each other view.

    >>> import torch
    >>> round(cmc_nce(temperature=1.0)(torch.eye(2), torch.eye(2)).item(), 4)
    0.9515
    """
    core = _get_choice("graph", graph, {"full": False, "core": True})
    kernel, layout = cp.Gibbs("negative-cosine", temperature), cp.Cross(symmetric=False, core_view=core)
    return cp.Objective(layout, kernel, cp.Free(), cp.Pairs(), cp.NoiseContrastiveEstimation(momentum))


@register_objective(
    "Zhai, Mustafa, Kolesnikov and Beyer (2023), Sigmoid loss for language image pre-training (SigLIP), section 3.2.",
    r"-\tfrac1n \sum_{ij} \log \sigma\big(m_{ij} (s_{ij}/\tau + b)\big),\; m_{ii} = 1,\; m_{i \neq j} = -1",
)
def sigmoid(temperature: TemperatureLike = 0.1, bias: float = -10.0) -> Loss:
    """SigLIP: binary cross-entropy of matched and unmatched pairs, with learned temperature and bias.

    Temperature and bias are parameters of the objective: pass them to the optimizer.

    Args:
        temperature: initial value.
        bias: initial value.

    >>> import torch
    >>> round(sigmoid(temperature=1.0, bias=0.0)(torch.eye(2), torch.eye(2)).item(), 4)
    1.0064
    """
    kernel = cp.Gibbs("negative-cosine", temperature, learnable=True)
    return cp.Objective(cp.Cross(symmetric=False), kernel, cp.Free(), cp.Pairs(), cp.Logistic(bias))


@register_objective(
    "Yeh, Hong, Hsu, Liu, Chen and LeCun (2022), Decoupled contrastive learning, eq. 6.",
    r"\tfrac1{2n} \sum_i \Big[-\tfrac{s_{ii'}}{\tau} + \log \sum_{j \neq i, i'} e^{s_{ij}/\tau}\Big]",
)
def dcl(temperature: TemperatureLike = 0.1) -> Loss:
    """Decoupled contrastive learning (DCL): NT-Xent without the positive in the denominator.

    The value can be negative.

    >>> import torch
    >>> round(dcl(temperature=1.0)(torch.eye(2), torch.eye(2)).item(), 4)
    -0.3069
    """
    return cp.Objective(cp.Joint("both"), cp.Gibbs("cosine", temperature), cp.Rows(), cp.Pairs(), cp.KL())


@register_objective(
    "Yeh, Hong, Hsu, Liu, Chen and LeCun (2022), Decoupled contrastive learning, eq. 6-7 (DCLW).",
    r"\tfrac1{2n} \sum_i \Big[-w_i \tfrac{s_{ii'}}{\tau} + \log \sum_{j \neq i, i'} e^{s_{ij}/\tau}\Big],\;"
    r" w_i = 2 - n\,\mathrm{softmax}_i(s_{ii'}/\sigma)",
)
def dclw(temperature: TemperatureLike = 0.1, sigma: float = 0.5) -> Loss:
    """DCLW: decoupled contrastive learning (DCL) with larger weights on dissimilar positives.

    The value can be negative.

    Args:
        temperature: in units of the cosine.
        sigma: temperature of the weights, which are held fixed.

    >>> import torch
    >>> round(dclw(temperature=1.0)(torch.eye(2), torch.eye(2)).item(), 4)
    -0.3069
    """
    check_positive("sigma", sigma)
    kernel, alignment = cp.Gibbs("negative-cosine", temperature), cp.LogKernelAttraction(sigma)
    return cp.Objective(cp.Joint("both"), kernel, cp.Free(), cp.Pairs(), cp.LogSumKernel(), {alignment: 1.0})


@register_objective(
    "Li et al. (2023), Towards general text embeddings with multi-stage contrastive learning (GTE).",
    r"-\tfrac1n \sum_i \log \frac{e^{s(q_i, d_i)/\tau}}{\sum_j e^{s(q_i, d_j)/\tau} + \sum_{j \neq i} "
    r"e^{s(q_i, q_j)/\tau} + \sum_j e^{s(q_j, d_i)/\tau} + \sum_{j \neq i} e^{s(d_j, d_i)/\tau}}",
)
def gte(temperature: TemperatureLike = 0.01) -> Loss:
    """GTE loss: InfoNCE in which both views of an item share a denominator.

    The denominator holds query-text, text-query, query-query and text-text pairs. It differs from NT-Xent in that the
    two views of an item share one denominator, which holds the positive twice: the value is at least log 2.

    >>> import torch
    >>> round(gte(temperature=1.0)(torch.eye(2), torch.eye(2)).item(), 4)
    1.2446
    """
    kernel, denominator = cp.Gibbs("negative-cosine", temperature), cp.LogSumKernel(pooled_over_views=True)
    return cp.Objective(cp.Joint(), kernel, cp.Free(), cp.Pairs(), denominator, {cp.LogKernelAttraction(): 1.0})


@register_objective(
    f"{_DHEL_CITATION}, DHEL.",
    r"\tfrac1n \sum_i \Big[-\tfrac{s_{ii'}}{\tau} + \sum_v \log \sum_{j \neq i} e^{\cos(z^v_i, z^v_j)/\tau}\Big]",
)
def dhel(temperature: TemperatureLike = 0.3) -> Loss:
    """DHEL (decoupled hyperspherical energy loss): InfoNCE with negatives of the same view.

    The value can be negative.

    >>> import torch
    >>> dhel(temperature=1.0)(torch.eye(2), torch.eye(2))
    tensor(-1.)
    """
    kernel = cp.Gibbs("negative-cosine", temperature)
    return _sum_attraction_repulsion(cp.Cross(symmetric=False), kernel, cp.LogKernelAttraction(), cp.LogSumKernel())


@register_objective(
    "Koromilas, Georgiou, Bouritsas, Giannakopoulos, Nicolaou and Panagakis (2025), A principled framework for "
    "multi-view contrastive learning, MV-DHEL.",
    r"\tfrac1n \sum_i \Big[-\log \sum_{v < w} e^{\cos(z^v_i, z^w_i)/\tau}"
    r" + \sum_v \log \sum_{j \neq i} e^{\cos(z^v_i, z^v_j)/\tau}\Big]",
)
def mv_dhel(temperature: TemperatureLike = 0.3) -> Loss:
    """Multi-view DHEL (MV-DHEL): attraction is the log of the kernel summed over an item's view pairs.

    The value can be negative.

    >>> import torch
    >>> mv_dhel(temperature=1.0)(torch.eye(2), torch.eye(2))
    tensor(-1.)
    """
    kernel, layout = cp.Gibbs("negative-cosine", temperature), cp.Joint(compares_all_views_at_once=True)
    return _sum_attraction_repulsion(layout, kernel, cp.LogKernelAttraction(), cp.LogSumKernel())


@register_objective(
    f"{_DHEL_CITATION}, KCL with the Gaussian kernel.",
    r"-\tfrac2n \sum_i k(z_i, z'_i) + \gamma \sum_v \mathrm{mean}_{i \neq j}\, k(z^v_i, z^v_j),\;"
    r" k = e^{-\|\cdot\|^2/\tau}",
)
def kcl(temperature: TemperatureLike = 0.5, gamma: float = 16.0) -> Loss:
    """Kernel contrastive learning (KCL): mean Gaussian kernel of negatives minus that of positives.

    The value can be negative.

    Args:
        temperature: of the kernel, in units of the squared distance on the sphere; 1/t of the paper.
        gamma: weight of the repulsion, nonnegative.

    >>> import torch
    >>> round(kcl()(torch.eye(2), torch.eye(2)).item(), 4)
    -1.4139
    """
    check_nonnegative("gamma", gamma)
    kernel, layout = cp.Gibbs("chordal", temperature), cp.Cross(symmetric=False)
    return _sum_attraction_repulsion(layout, kernel, cp.KernelAttraction(), cp.MeanKernel(), 2.0, gamma)


def _sum_attraction_repulsion(
    attraction_layout: Layout,
    kernel: Kernel,
    attraction: Divergence,
    repulsion: Divergence,
    attraction_weight: float = 1.0,
    repulsion_weight: float = 1.0,
) -> Loss:
    """Sum an attraction between views of an item and a repulsion within views."""
    attract = cp.Objective(attraction_layout, kernel, cp.Free(), cp.Pairs(), attraction)
    repel = cp.Objective(cp.WithinView(sum_over_views=True), kernel, cp.Free(), cp.Pairs(), repulsion)
    return cp.SumLoss({attract: attraction_weight, repel: repulsion_weight})


@register_objective(
    "HaoChen, Wei, Gaidon and Ma (2021), Provable guarantees for self-supervised deep learning with spectral "
    "contrastive loss, eq. 6.",
    r"-\tfrac2n \sum_i s_{ii} + \mathrm{mean}_{i \neq j}\, s_{ij}^2",
)
def spectral(normalized: bool = True) -> Loss:
    """Spectral contrastive loss: mean squared similarity of negatives minus twice the positives' similarity.

    Its minimum spans the top eigenvectors of the graph whose edges join the views of an item. The value can be
    negative.

    Args:
        normalized: use the cosine; else the inner product, as in the paper's theory.

    >>> import torch
    >>> spectral()(torch.eye(2), torch.eye(2))
    tensor(-2.)
    """
    check_boolean("normalized", normalized)
    layout, kernel = (
        cp.Cross(symmetric=False, decoupled=True),
        cp.Gibbs("negative-cosine" if normalized else "dot", 1.0),
    )
    return cp.Objective(layout, kernel, cp.Free(), cp.Pairs(), cp.MeanSquaredCost(), {cp.TargetCost(): 2.0})


@register_objective(
    "Chuang, Robinson, Lin, Torralba and Jegelka (2020), Debiased contrastive learning, eq. 8.",
    r"-\tfrac1{2n} \sum_i \log \frac{e^{s_{ii'}/\tau}}{e^{s_{ii'}/\tau} + N g_i},\;"
    r" g_i = \max\big(\tfrac{\mathrm{mean}_j e^{s_{ij}/\tau} - \pi e^{s_{ii'}/\tau}}{1 - \pi}, e^{-1/\tau}\big)",
)
def debiased(temperature: TemperatureLike = 0.5, prior: float = 0.1) -> Loss:
    """Debiased contrastive loss: NT-Xent corrected for negatives of the anchor's class.

    Args:
        temperature: in units of the cosine.
        prior: share of negatives of the anchor's own class, in [0, 1); 0 is NT-Xent.

    >>> import torch
    >>> round(debiased(temperature=1.0, prior=0.0)(torch.eye(2), torch.eye(2)).item(), 4)
    0.5514
    """
    return hard_negative(temperature, 0.0, prior)


@register_objective(
    "Robinson, Chuang, Sra and Jegelka (2021), Contrastive learning with hard negative samples, eq. 4.",
    r"\text{as debiased, the mean weighed by } e^{\beta s_{ij}/\tau}",
)
def hard_negative(temperature: TemperatureLike = 0.5, beta: float = 1.0, prior: float = 0.1) -> Loss:
    """Hard-negative contrastive loss (HCL): debiased NT-Xent that weights harder negatives more.

    Args:
        temperature: in units of the cosine.
        beta: negatives have weight exp(beta similarity / temperature), nonnegative.
        prior: share of negatives of the anchor's own class, in [0, 1).

    >>> import torch
    >>> round(hard_negative(temperature=1.0, prior=0.0)(torch.eye(2), torch.eye(2)).item(), 4)
    0.5514
    """
    kernel = cp.Gibbs("negative-cosine", temperature)
    return cp.Objective(cp.Joint("both"), kernel, cp.Free(), cp.Pairs(), cp.DebiasedContrastive(prior, beta))


@register_objective(
    "Sobal, Ibrahim, Balestriero, Cabannes, Bouchacourt, Astolfi, Cho and LeCun (2024), X-sample contrastive loss: "
    "improving contrastive learning with sample similarity graphs, eq. 5, less a constant, the entropy of the target.",
    r"\mathrm{KL}(\tilde P \mid P),\; \tilde P_{ij} = \tfrac1{2n} \mathrm{softmax}_j(g_{ij}/\tau_t),\; i \neq j",
)
def x_clr(temperature: TemperatureLike = 0.1, teacher_temperature: float = 0.1) -> Loss:
    """X-CLR: NT-Xent with soft targets from the similarities of a teacher's embeddings (``features=``).

    Args:
        temperature: in units of the cosine.
        teacher_temperature: of the target plan, in units of the cosine of the features.

    >>> import torch
    >>> z = torch.eye(2)
    >>> bool(x_clr(temperature=1.0, teacher_temperature=1.0)(z, z, features=z).abs() < 1e-6)  # equal to the teacher's
    True
    """
    with rename_argument("teacher_temperature", "temperature"):
        target = cp.SoftNeighbors(kernel=cp.Gibbs("cosine", teacher_temperature))
    return cp.Objective(cp.Joint(), cp.Gibbs("cosine", temperature), cp.Rows(), target, cp.KL())


@register_objective(
    "Solatorio (2024), GISTEmbed: guided in-sample selection of training negatives for text embedding fine-tuning.",
    r"\text{InfoNCE over } j = i \text{ or } g_{ij} \leq g_{ii} - m,\; g \text{ a teacher's cosine}",
)
def guided(temperature: TemperatureLike = 0.1, margin: float = 0.0, layout: LayoutName = "cross") -> Loss:
    """GISTEmbed: InfoNCE without the negatives that a teacher (``features=``) finds too similar.

    The paper's loss goes in one direction, and has the pairs within each view in the same denominator.

    Args:
        temperature: in units of the cosine.
        margin: leaves out negatives above the positive minus this, in units of the teacher's cosine.
        layout: ``"cross"``, both directions averaged, or ``"joint"``, all embeddings of both views.

    >>> import torch
    >>> guided(temperature=1.0)(torch.eye(2), torch.eye(2), features=torch.eye(2))
    tensor(0.3133)
    """
    pairs = cp.GuidedNegatives(_get_layout_by_name(layout), margin)
    return cp.Objective(pairs, cp.Gibbs("cosine", temperature), cp.Rows(), cp.Pairs(), cp.KL())


@register_objective(
    "Huang et al. (2024), CoSENT: consistent sentence embedding via similarity ranking.",
    r"\log\Big(1 + \sum_{y_i > y_j} e^{(s_{jj} - s_{ii})/\tau}\Big)",
)
def cosent(temperature: TemperatureLike = 0.05) -> Loss:
    """CoSENT: ranks the similarities of pairs in the order of their target scores, passed as ``weights=``.

    Only the order of the scores counts. Items are not negatives of each other.

    Args:
        temperature: in units of the cosine.

    >>> import torch
    >>> grades = torch.tensor([1.0, 0.5])  # the second pair is less similar than the first
    >>> round(cosent(temperature=1.0)(torch.eye(2), torch.eye(2), weights=grades).item(), 4)
    0.6931
    """
    layout, kernel = cp.Cross(symmetric=False), cp.Gibbs("negative-cosine", temperature)
    return cp.Objective(layout, kernel, cp.Free(), cp.Pairs(), cp.PairRanking())


@register_objective(
    "Li and Li (2023), AnglE-optimized text embeddings, the angle objective.",
    r"\text{as cosent, with } s = |\cos(e^{-i\pi/4} z, z')|,\; z \in \mathbb{C}^{d/2}",
)
def angle(temperature: TemperatureLike = 0.0354) -> Loss:
    """AnglE: CoSENT with angles between complex embeddings; ``weights=`` are the pairs' target scores.

    The paper adds it to `cosent` and to InfoNCE, which `SumLoss` does.

    Args:
        temperature: in units of the cosine of the turned embeddings, the paper's 0.05 over the square root of 2.

    >>> import torch
    >>> grades = torch.tensor([1.0, 0.5])  # the second pair is less similar than the first
    >>> round(angle(temperature=1.0)(torch.eye(2), torch.eye(2), weights=grades).item(), 4)
    0.6931
    """
    layout, kernel = cp.RotatedFirstView(cp.Cross(symmetric=False)), cp.Gibbs("negative-cosine", temperature)
    return cp.Objective(layout, kernel, cp.Free(), cp.Pairs(), cp.PairRanking(absolute_scores=True))


@register_objective(
    "Yuan, Wu, Qiu, Du, Zhang, Zhou and Yang (2022), Provable stochastic optimization for global contrastive learning: "
    "small batch does not harm performance (SogCLR), algorithm 1.",
    r"\tfrac1n \sum_i \big[-\tfrac{s_{ii'}}{\tau} + \log u_i\big],\; u_i \leftarrow \mu u_i + (1 - \mu)\,"
    r"\mathrm{mean}_j e^{s_{ij}/\tau}",
)
def sog_clr(temperature: TemperatureLike = 0.1, items: int = 1 << 17, momentum: float = 0.1) -> Loss:
    """SogCLR for small batches: averages each item's denominator over steps (``ids=``).

    Args:
        temperature: in units of the cosine.
        items: maximum number of items; ids count from 0.
        momentum: weight of the past in the averages, in [0, 1); 1 - gamma of the paper.

    >>> import torch
    >>> loss = sog_clr(temperature=1.0)
    >>> loss(torch.eye(2), torch.eye(2), ids=torch.arange(2))
    tensor(-1.)
    """
    kernel, denominator = cp.Gibbs("negative-cosine", temperature), cp.MovingAverageLogSum(items, momentum)
    return cp.Objective(cp.Joint("both"), kernel, cp.Free(), cp.Pairs(), denominator, {cp.LogKernelAttraction(): 1.0})


@register_objective(
    "Zbontar, Jing, Misra, LeCun and Deny (2021), Barlow Twins: self-supervised learning via redundancy reduction, "
    "eq. 1.",
    r"\sum_a (1 - c_{aa})^2 + \lambda \sum_{a \neq b} c_{ab}^2,\; c_{ab} \text{ the correlation of coordinates}",
)
def barlow_twins(redundancy: float = 5e-3) -> Loss:
    """Barlow Twins: makes the cross-correlation matrix of the two views the identity.

    Args:
        redundancy: weight of the off-diagonal correlations, nonnegative.

    >>> import torch
    >>> z = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    >>> round(barlow_twins()(z, z).item(), 4)
    0.0
    """
    check_nonnegative("redundancy", redundancy)
    diagonal, others = (
        cp.CoordinatePairs(cp.Cross(symmetric=False, decoupled=d), sum_over_coordinates=True) for d in (False, True)
    )
    equal = cp.Objective(diagonal, cp.Gibbs("cosine", 1.0), cp.Free(), cp.Pairs(), cp.TargetCost(power=2))
    square = cp.MeanSquaredCost(sum_over_pairs=True)
    uncorrelated = cp.Objective(others, cp.Gibbs("negative-cosine", 1.0), cp.Free(), cp.Pairs(), square)
    return cp.SumLoss({equal: 1.0, uncorrelated: redundancy})


@register_objective(
    "Bardes, Ponce and LeCun (2022), VICReg: variance-invariance-covariance regularization, eq. 1-6.",
    r"\lambda\,\mathrm{mean}_{ia} (z_{ia} - z'_{ia})^2"
    r" + \tfrac\mu2 \sum_v \mathrm{mean}_a [1 - \sqrt{v_{aa} + 10^{-4}}]_+"
    r" + \nu \sum_v \tfrac1d \sum_{a \neq b} v_{ab}^2",
)
def vic_reg(invariance: float = 25.0, variance: float = 25.0, covariance: float = 1.0) -> Loss:
    """VICReg: squared difference of the views plus variance and covariance penalties.

    Args:
        invariance: weight of the mean squared difference of the views, nonnegative.
        variance: weight of the hinge that keeps each coordinate's standard deviation at 1 or above, nonnegative.
        covariance: weight of the squared covariances of coordinates, nonnegative.

    >>> import torch
    >>> z = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    >>> round(vic_reg()(z, z).item(), 4)
    0.0
    """
    for name, weight in {"invariance": invariance, "variance": variance, "covariance": covariance}.items():
        check_nonnegative(name, weight)
    free, pairs, dot = cp.Free(), cp.Pairs(), cp.Gibbs("dot", 1.0)
    matched = cp.CoordinatePairs(cp.Cross(symmetric=False), centered=False)
    equal = cp.Objective(matched, cp.Gibbs("sqeuclidean", 1.0), free, pairs, cp.TargetCost())
    varied = cp.Objective(cp.CoordinatePairs(cp.WithinView()), dot, free, pairs, cp.VarianceHinge())
    within = cp.CoordinatePairs(cp.WithinView(sum_over_views=True))
    uncorrelated = cp.Objective(within, dot, free, pairs, cp.MeanSquaredCost(sum_over_pairs=True))
    return cp.SumLoss({equal: invariance, varied: variance, uncorrelated: covariance})
