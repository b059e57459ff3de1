"""Every named objective: a recipe over the five questions with its citation and its default settings.

The recipes are written as a user would write them, with the public names of `contraport`, each of which is imported
when it is first used: to know what there is needs no torch.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec

import contraport as cp
from contraport._utils.formatting import format_options
from contraport.errors import (
    UsageError,
    bind_arguments,
    check,
    check_nonnegative,
    check_positive,
    is_number,
    unknown_name_error,
)
from contraport.schedules import is_learned_temperature, parse_learned_temperature

if TYPE_CHECKING:
    from torch import Tensor

    from contraport.engine import Kernel, TemperatureLike
    from contraport.objectives import Constraint, Divergence, Layout, Loss, Target


@dataclass(frozen=True)
class Method:
    """A row of the catalog.

    Attributes:
        name: the hyphenated name.
        make: the function that builds the objective from its settings.
        citation: where the method comes from.
        formula: its value, in LaTeX.
    """

    name: str
    make: Callable[..., Loss]
    citation: str
    formula: str

    @property
    def summary(self) -> str:
        """The first sentence of the recipe's docstring."""
        return (inspect.getdoc(self.make) or "").split("\n")[0]


P = ParamSpec("P")

OBJECTIVES: dict[str, Method] = {}

_GCA = (
    "Chen, Lin, Liu, Xiao and Dyer (2024), "
    "Your contrastive learning problem is secretly a distribution alignment problem."
)
_IOT = (
    "Shi, Zhang, Zhen, Fan and Yan (2023), "
    "Understanding and generalizing contrastive learning from the inverse optimal transport perspective."
)
_ALPHA = "Tian (2022), Understanding deep contrastive learning via coordinate-wise optimization"


def recipe(citation: str, formula: str) -> Callable[[Callable[P, Loss]], Callable[P, Loss]]:
    """Enter a function into the catalog, under its own name with hyphens; what it makes knows where it came from.

    Where it has a temperature, that may be a number; ``"learn"``, a parameter of the objective that starts at the
    recipe's own, or ``"learn:0.07"`` at another; or a tensor of one element that a model owns, such as a parameter.
    """

    def enter(make: Callable[P, Loss]) -> Callable[P, Loss]:
        signature = inspect.signature(make)

        @functools.wraps(make)
        def build(*args: P.args, **settings: P.kwargs) -> Loss:
            call = bind_arguments(make.__name__, signature, args, settings)
            if isinstance(call.arguments.get("temperature"), str):
                call.arguments["temperature"] = _learned(call.arguments["temperature"], signature)
            loss = make(*call.args, **call.kwargs)
            given = [repr(a) for a in args] + [f"{name}={value!r}" for name, value in settings.items()]
            loss.accepts_temperature = "temperature" in signature.parameters
            loss.origin = cp.objectives.objective.Origin(name, f"{make.__name__}({', '.join(given)})", citation)
            return loss

        name = make.__name__.replace("_", "-")
        OBJECTIVES[name] = Method(name, build, citation, formula)
        return build

    return enter


def method(name: str) -> Method:
    """Return a row of the catalog by its name; underscores will do for hyphens.

    Raises:
        UsageError: there is no such objective; the nearest is offered.

    >>> method("nt_xent").name
    'nt-xent'
    """
    key = str(name).replace("_", "-")
    if key in OBJECTIVES:
        return OBJECTIVES[key]
    alone, colon, _ = key.partition(":")
    if colon and alone in OBJECTIVES:  # as the rows of a comparison are written
        raise UsageError(
            f"objective: expected a name alone, such as {alone!r}, got {name!r}; its settings are given apart, "
            "--objective_settings.NAME VALUE."
        )
    # Here, not above: recipes are made of objectives.
    from contraport.catalog.recipes import RECIPES

    recipe = RECIPES.get(key.lower())
    if recipe is not None:
        own = recipe.settings.get("objective")
        least = f", or its objective alone: {format_options(objective=own)}" if own else ""
        raise UsageError(
            f"objective: {name!r} is a recipe and no objective; expected {format_options(recipe=key.lower())}{least}."
        )
    raise unknown_name_error("objective", name, OBJECTIVES)


def _learned(text: str, signature: inspect.Signature) -> float:
    check(
        is_learned_temperature(text),
        f"temperature: expected a number, 'learn' or a tensor of one element, got {text!r}.",
    )
    given = parse_learned_temperature(text)
    start = signature.parameters["temperature"].default if given is None else given
    return cp.engine.LearnedTemperature(0.5 if start is None else start)


def objective(name: str, **settings: Any) -> Loss:
    """Build an objective by its name in the catalog.

    Args:
        name: as `list_objectives` gives it; underscores will do for hyphens.
        settings: the recipe's own keywords.

    Raises:
        UsageError: the name or a setting is unknown (the nearest is offered), or a value does not fit.

    >>> objective("gca-ince", iterations=3)
    Objective(layout=Joint(), kernel=Gibbs('cosine', 0.5), constraint=Balanced(iterations=3), target=Pairs(),
              divergence=KL())
    """
    known = method(name)
    key, make = known.name, known.make
    parameters = inspect.signature(make).parameters
    for setting in settings:
        if setting not in parameters:
            raise unknown_name_error(f"setting of {key}", setting, parameters)
    try:
        return make(**settings)
    except TypeError as error:
        raise UsageError(f"objective {key}: {error}") from error


def list_objectives() -> list[str]:
    """Return the names in the catalog.

    >>> "nt-xent" in list_objectives()
    True
    """
    return sorted(OBJECTIVES)


@recipe(
    "van den Oord, Li and Vinyals (2018), Representation learning with contrastive predictive coding, eq. 4.",
    r"-\tfrac1n \sum_i \log \frac{e^{s_{ii}/\tau}}{\sum_j e^{s_{ij}/\tau}}",
)
def info_nce(
    temperature: TemperatureLike = 0.1,
    symmetric: bool = True,
    target: Target | None = None,
    shared_columns: bool = False,
) -> Loss:
    """Pick the matching item of the other view among the batch.

    Args:
        temperature: in units of the cosine distance.
        symmetric: average both directions.
        target: the plan that is wanted; None is `Pairs`.
        shared_columns: the second view is no view but prototypes, as in `Cross`; see `assignments` for their target.

    >>> import torch
    >>> info_nce(temperature=1.0)(torch.eye(2), torch.eye(2))
    tensor(0.3133)
    """
    layout = cp.Cross(symmetric, shared_columns=shared_columns)
    return cp.Objective(layout, cp.Gibbs("cosine", temperature), cp.Rows(), target or cp.Pairs(), cp.KL())


@recipe(
    "Chen, Kornblith, Norouzi and Hinton (2020), A simple framework for contrastive learning (SimCLR), eq. 1.",
    r"-\tfrac1{2n} \sum_i \log \frac{e^{s_{ii'}/\tau}}{\sum_{j \neq i} e^{s_{ij}/\tau}}",
)
def nt_xent(temperature: TemperatureLike = 0.5) -> Loss:
    """Pick the other view of the same item among all embeddings of both views.

    Of more than two views all the others are wanted, in equal parts.

    Args:
        temperature: in units of the cosine distance.

    >>> import torch
    >>> nt_xent(temperature=1.0)(torch.eye(2), torch.eye(2))
    tensor(0.5514)
    """
    return cp.Objective(cp.Joint(), cp.Gibbs("cosine", temperature), cp.Rows(), cp.Pairs(), cp.KL())


@recipe(
    "Khosla et al. (2020), Supervised contrastive learning, eq. 2, less its constant, the mean of log |P(i)|.",
    r"\mathrm{KL}(\tilde P \mid P),\; \tilde P_{ij} = \tfrac{[y_i = y_j]}{2n\,|P(i)|}",
)
def sup_con(temperature: TemperatureLike = 0.1, layout: str = "joint") -> Loss:
    """Pick all embeddings of the same class among all embeddings; the call needs ``labels=``.

    It is called on any number of views, one among them.

    Args:
        temperature: in units of the cosine distance.
        layout: ``"joint"``, or ``"cross"``, from the embeddings z0 to a reference set z1, with
            ``labels=(of z0, of z1)`` and, where z1 has some of z0 among its own, ``ids=(of z0, of z1)``.

    Raises:
        UsageError: the layout has neither name; in the call, there are no labels.

    >>> import torch
    >>> round(sup_con(temperature=1.0)(torch.eye(2), torch.eye(2), labels=torch.tensor([0, 1])).item(), 4)
    0.5514
    """
    layouts: dict[str, Layout] = {"joint": cp.Joint(), "cross": cp.Cross(symmetric=False)}
    if layout not in layouts:
        raise unknown_name_error("layout", layout, layouts)
    return cp.Objective(layouts[layout], cp.Gibbs("cosine", temperature), cp.Rows(), cp.Labels(), cp.KL())


@recipe(
    "Chuang et al. (2022), Robust contrastive learning against noisy views (RINCE), eq. 4.",
    r"\tfrac1N \sum_i \tfrac1q \big[(\lambda \sum_j K_{ij})^q - K_{i+}^q\big],\; K = e^{s/\tau}",
)
def rince(temperature: TemperatureLike = 0.5, q: float = 0.5, lam: float = 0.01, layout: str = "joint") -> Loss:
    """Bear with positives that are wrong: a divergence between the logarithm and a symmetric loss. It can be negative.

    Args:
        temperature: in units of the cosine similarity; exp(q / temperature) must stay within single precision.
        q: in (0, 1]; towards 0 it is InfoNCE + log lam, at 1 it is symmetric.
        lam: weight of all candidates against the positive, in (0, 1].
        layout: ``"joint"``, or ``"cross"``, both directions averaged.

    Raises:
        UsageError: the layout has neither name, q or lam is outside (0, 1], or the temperature is below q / 60.

    >>> import torch
    >>> round(rince(temperature=1.0, q=1.0, lam=0.5)(torch.eye(2), torch.eye(2)).item(), 4)
    -0.3591
    """
    layouts: dict[str, Layout] = {"joint": cp.Joint(), "cross": cp.Cross()}
    if layout not in layouts:
        raise unknown_name_error("layout", layout, layouts)
    kernel, divergence = cp.Gibbs("negative-cosine", temperature), cp.Rince(q, lam)
    good = q <= _LARGEST_EXPONENT * kernel.temperature
    check(good, f"temperature: expected at least q / {_LARGEST_EXPONENT:g}, got {temperature!r} for q = {q!r}.")
    return cp.Objective(layouts[layout], kernel, cp.Free(), cp.Pairs(), divergence)


_LARGEST_EXPONENT = 60.0
"""exp of more than this, summed over a large batch, leaves single precision."""


@recipe(_GCA, r"\mathrm{KL}(\tilde P \mid P),\; P \in U(a, b) \text{ by } K \text{ Sinkhorn iterations}")
def gca_ince(temperature: TemperatureLike = 0.5, iterations: int = 5) -> Loss:
    """Match every item to its other view by a plan in which rows and columns both carry equal mass.

    Args:
        temperature: in units of the cosine distance.
        iterations: of Sinkhorn's algorithm.

    >>> import torch
    >>> gca_ince(temperature=1.0)(torch.eye(2), torch.eye(2))
    tensor(0.5514)
    """
    return cp.Objective(cp.Joint(), cp.Gibbs("cosine", temperature), cp.Balanced(iterations), cp.Pairs(), cp.KL())


@recipe(_GCA, r"\tfrac1N \sum_i \tfrac1q \big[(\lambda \sum_j N P_{ij})^q - (N P_{i+})^q\big],\; P \in U(a, b)")
def gca_rince(temperature: TemperatureLike = 0.5, iterations: int = 5, q: float = 0.6, lam: float = 0.01) -> Loss:
    """The divergence of RINCE on the balanced plan. It can be negative.

    Args:
        temperature: in units of the cosine distance.
        iterations: of Sinkhorn's algorithm.
        q: in (0, 1].
        lam: weight of the row's mass against the positive, in (0, 1].

    >>> import torch, contraport as cp
    >>> round(cp.gca_rince(temperature=1.0)(torch.eye(2), torch.eye(2)).item(), 4)
    -1.092
    """
    return cp.Objective(
        cp.Joint(), cp.Gibbs("cosine", temperature), cp.Balanced(iterations), cp.Pairs(), cp.Rince(q, lam)
    )


@recipe(
    _GCA,
    r"\mathrm{KL}(\tilde P \mid P),\; P = \arg\min \langle C, P \rangle + \tau\,\mathrm{KL}(P \mid a b^\top) "
    r"+ \rho\,\mathrm{KL}(P1 \mid a) + \rho\,\mathrm{KL}(P^\top 1 \mid b)",
)
def gca_uot(
    temperature: TemperatureLike = 0.5,
    iterations: int = 5,
    relaxation: float | tuple[float, float] = 1.0,
    conditional: bool = False,
    marginal_weight: float = 0.0,
    rince_weight: float = 0.0,
    q: float = 0.6,
    lam: float = 0.01,
    reference: str = "product",
) -> Loss:
    """Match every item to its other view by a plan whose rows and columns may let mass go, at a price.

    `Objective.mass` is the share of the mass that was not let go, at most 1 with the product reference. In a comparison
    on digits and Fashion-MNIST, clean and with a fifth of the pairs wrong, with 10 iterations, it was within 0.4 points
    of NT-Xent's kNN accuracy at temperature 0.5 and relaxations from 0.2 on, and nowhere better than NT-Xent and the
    balanced plan by more than the seeds differ; at 0.05 it lost about a point unless `conditional` (docs/results.md).
    With 5 iterations, the default, it was not different from that on digits by more than the seeds are, at temperatures
    from 0.1 to 0.5 and relaxations 0.2 and 1.

    Args:
        temperature: in units of the cosine distance.
        iterations: of the damped Sinkhorn algorithm.
        relaxation: the price of missing a marginal, in units of the cosine distance; large is strict.
        conditional: compare the rows' shares alone, so that mass let go does not count: a small relaxation is then
            close to InfoNCE, a large one to `gca_ince`.
        marginal_weight: factor of KL of the plan's masses from the marginals, nonnegative.
        rince_weight: factor of RINCE's divergence beside KL, nonnegative.
        q: its exponent, in (0, 1].
        lam: its weight of the row's mass, in (0, 1].
        reference: ``"product"`` or ``"counting"``, as in `Unbalanced`.

    Raises:
        UsageError: a weight is negative or not finite, q or lam is outside (0, 1], or the relaxation is not positive.

    >>> import torch
    >>> gca_uot(temperature=1.0)(torch.eye(2), torch.eye(2))
    tensor(0.5867)
    """
    for name, value in {"rince_weight": rince_weight, "marginal_weight": marginal_weight}.items():
        check_nonnegative(name, value)
    further: dict[Divergence, float] = {cp.MarginalPenalty(): marginal_weight, cp.Rince(q, lam): rince_weight}
    penalties = {penalty: weight for penalty, weight in further.items() if weight}
    allowed = cp.Unbalanced(relaxation, iterations, reference)
    return cp.Objective(cp.Joint(), cp.Gibbs("cosine", temperature), allowed, cp.Pairs(), cp.KL(conditional), penalties)


@recipe(
    "Grill et al. (2020), Bootstrap your own latent (BYOL), eq. 2.",
    r"\tfrac1n \sum_i (2 - 2 \cos(p_i, \mathrm{sg}(t_i)))",
)
def byol() -> Loss:
    """Draw predictions to their targets, which are held fixed; no pair is pushed apart.

    Call it on ``(prediction, target)``, the predictor's output and the momentum encoder's, and on the mirror.

    >>> import torch
    >>> byol()(torch.eye(2), torch.eye(2).flip(0))
    tensor(2.)
    """
    return cp.Objective(
        cp.Cross(symmetric=False, stop_gradient=True), cp.Gibbs("chordal", 1.0), cp.Free(), cp.Pairs(), cp.Cost()
    )


def _constraint(constraint: str, iterations: int) -> Constraint:
    known: dict[str, Constraint] = {"rows": cp.Rows(), "simplex": cp.Simplex(), "balanced": cp.Balanced(iterations)}
    if constraint not in known:
        raise unknown_name_error("constraint", constraint, known)
    return known[constraint]


@recipe(
    _IOT,
    r"\mathrm{KL}(\tilde P \mid P) + \lambda\,\mathrm{KL}(\bar Q \mid P),\; P \in U(a), U(1) \text{ or } U(a, b)",
)
def iot(
    temperature: TemperatureLike = 0.5, constraint: str = "balanced", iterations: int = 5, uniformity: float = 0.0
) -> Loss:
    """Learn the cost whose transport plan is the matching of the views, under a chosen constraint on the plan.

    Args:
        temperature: the epsilon of the entropy, in units of the cosine distance.
        constraint: ``"rows"`` (which is NT-Xent), ``"simplex"`` or ``"balanced"``.
        iterations: of Sinkhorn's algorithm, for ``"balanced"``.
        uniformity: factor of the penalty for an uneven plan on the negatives, nonnegative.

    Raises:
        UsageError: the constraint has an unknown name, or the uniformity is negative or not finite.

    >>> import torch
    >>> iot(temperature=1.0, constraint="rows")(torch.eye(2), torch.eye(2))
    tensor(0.5514)
    """
    check_nonnegative("uniformity", uniformity)
    penalties: dict[Divergence, float] | None = {cp.PlanUniformity(): uniformity} if uniformity else None
    kernel, allowed = cp.Gibbs("cosine", temperature), _constraint(constraint, iterations)
    return cp.Objective(cp.Joint(), kernel, allowed, cp.Pairs(), cp.KL(), penalties)


@recipe(_IOT, r"\mathrm{KL}(\tilde P \mid P) + \lambda\,\mathrm{KL}(\bar Q \mid P)")
def iot_uniform(
    temperature: TemperatureLike = 0.5, constraint: str = "balanced", iterations: int = 5, uniformity: float = 1.0
) -> Loss:
    """Inverse optimal transport with the uniformity penalty on; the settings are those of `iot`.

    >>> import torch, contraport as cp
    >>> round(cp.iot_uniform(temperature=1.0)(torch.eye(2), torch.eye(2)).item(), 4)
    0.5514
    """
    return iot(temperature, constraint, iterations, uniformity)


@recipe(_IOT, r"-\tfrac1N \sum_i \log \tfrac1n \big(1 + \sum_j (C_{ij} - C_{i+})\big)")
def iot_quadratic(
    constraint: str = "rows", closed_form: bool = True, layout: str = "joint", temperature: TemperatureLike = 1.0
) -> Loss:
    """Inverse optimal transport under the quadratic regulariser.

    Args:
        constraint: ``"rows"`` or ``"simplex"``.
        closed_form: use the closed form that lets negative entries pass; else the true plan, with exact zeros, and its
            Fenchel-Young loss.
        layout: ``"joint"``, or ``"cross"``, from view 0 to view 1.
        temperature: factor of the regulariser, in units of the cosine distance.

    Raises:
        UsageError: the constraint or the layout has an unknown name.

    >>> import torch, contraport as cp
    >>> round(cp.iot_quadratic()(torch.eye(3), torch.eye(3).roll(1, 0)).item(), 4)
    7.9078
    """
    layouts: dict[str, Layout] = {"joint": cp.Joint(), "cross": cp.Cross(symmetric=False)}
    if layout not in layouts:
        raise unknown_name_error("layout", layout, layouts)
    allowed: Constraint = cp.Free() if closed_form else cp.Tsallis(over=constraint)
    divergence: Divergence = cp.ClosedFormQuadratic(constraint) if closed_form else cp.FenchelYoung()
    return cp.Objective(layouts[layout], cp.Gibbs("cosine", temperature), allowed, cp.Pairs(), divergence)


@recipe(
    "Wang and Isola (2020), Alignment and uniformity on the hypersphere, eq. 1-2.",
    r"\tfrac1n \sum_i \|z_i - z'_i\|^2 + \tfrac{w}{2} \sum_v \log \mathrm{mean}_{i<j} e^{-2 \|z^v_i - z^v_j\|^2}",
)
def align_uniform(weight: float = 1.0) -> Loss:
    """Draw positives together and spread each view over the sphere.

    Args:
        weight: factor of the uniformity, nonnegative.

    Raises:
        UsageError: the weight is negative or not finite.

    >>> import torch
    >>> align_uniform()(torch.eye(2), torch.eye(2))
    tensor(-4.)
    """
    check_nonnegative("weight", weight)
    alignment = cp.Objective(cp.Cross(symmetric=False), cp.Gibbs("chordal", 1.0), cp.Free(), cp.Pairs(), cp.Cost())
    uniformity = cp.Objective(cp.WithinView(), cp.Gibbs("chordal", 0.5), cp.Free(), cp.Pairs(), cp.LogMeanKernel())
    return cp.SumLoss({alignment: 1.0, uniformity: weight})


@recipe(f"{_ALPHA}, eq. 1 and table 1.", r"\tfrac1{2n} \sum_i \phi\big(\sum_{j} \psi(d_i^2 - d_{ij}^2)\big)")
def pairwise(
    preset: str | None = None,
    temperature: TemperatureLike | None = None,
    negatives: str = "both",
    epsilon: float = 1.0,
    c: float = 1.0,
    phi: Callable[[Tensor], Tensor] | None = None,
    psi: Callable[[Tensor], Tensor] | None = None,
) -> Loss:
    """Push negatives beyond positives by any pair of monotone functions phi and psi.

    Args:
        preset: one of the table's losses (``info_nce``, ``mine``, ``triplet``, ``soft_triplet``, ``n_plus_1_tuplet``,
            ``lifted_structured``, ``sigmoid_pairs``, ``linear_pairs``), ``info_nce`` unless phi and psi are given.
        temperature: in units of half the squared distance, of the presets that have one, ``info_nce`` and
            ``soft_triplet``; default: 0.5.
        negatives: ``"both"`` views, the anchor's own (``"same"``) or the ``"other"``.
        epsilon: the presets' margin or offset.
        c: slope of ``sigmoid_pairs``.
        phi: pointwise function of the sum, instead of a preset.
        psi: pointwise function of each difference of half squared distances, instead of a preset.

    Raises:
        UsageError: phi or psi comes alone or beside a preset, the preset is unknown or has no temperature to choose, or
            epsilon is negative.

    >>> import torch
    >>> round(pairwise("triplet")(torch.eye(2), torch.eye(2)).item(), 4)
    0.0
    """
    given = phi is not None and psi is not None
    check(given or (phi is None and psi is None), "phi, psi: expected both or neither.")
    check(not (given and preset is not None), "preset: expected either a preset or phi and psi, got both.")
    check_nonnegative("epsilon", epsilon)
    accepts_temperature = False
    if phi is not None and psi is not None:
        divergence: Divergence = cp.objectives.SignedPairwise(phi, psi)
    else:
        name = str(preset or "info_nce").replace("-", "_")
        if name not in cp.objectives.PRESETS:
            raise unknown_name_error("preset", preset, cp.objectives.PRESETS)
        accepts_temperature, divergence = (
            cp.objectives.PRESETS[name].accepts_temperature,
            cp.objectives.PRESETS[name].make(epsilon, c),
        )
    check(
        accepts_temperature or temperature is None,
        f"temperature: {preset or 'phi and psi'} has none; expected nothing.",
    )
    kernel = cp.Gibbs("cosine", (0.5 if temperature is None else temperature) if accepts_temperature else 1.0)
    return cp.Objective(_negatives(negatives), kernel, cp.Free(), cp.Pairs(), divergence)


@recipe(
    f"{_ALPHA}, alpha-CL, eq. 5 and table 2.",
    r"\tfrac1{2n} \sum_i \sum_j \alpha_{ij} (d_i^2 - d_{ij}^2),\; \alpha \text{ held fixed}",
)
def alpha_cl(
    temperature: float = 0.5,
    regularizer: str = "direct",
    p: float = 4.0,
    gamma: float = 2.0,
    detach: bool = True,
    negatives: str = "both",
    normalize: bool = True,
    phi: Callable[[Tensor], Tensor] | None = None,
) -> Loss:
    """Play the game explicitly: pair weights that favour close negatives, held fixed, against the encoder.

    The weights of a row minimise 2 sum_j alpha_j d_j^2 - R(alpha) among nonnegative ones that add up to 1.

    Args:
        temperature: in units of half the squared distance (its p/2-th power for ``"direct"``).
        regularizer: what chooses the weights. ``"entropy"``, R = -2 temperature alpha log alpha: softmax(-d^2 /
            temperature). ``"square"``, R = -temperature/2 alpha^2: sparsemax(-2 d^2 / temperature). ``"inverse"``,
            R = 2 temperature/(1 - gamma) alpha^(1 - gamma): (temperature / (d^2 + nu))^(1/gamma), nu such that they add
            up to 1; in batches of hundreds these are all but equal. ``"inverse-shifted"``, its cheap form that is far
            from
            equal: (d^2 + temperature)^(-1/gamma), normalised. ``"direct"``, no regulariser: exp(-d^p / temperature).
            ``"uniform"``, all alike.
        p: exponent of ``"direct"``.
        gamma: exponent of the inverse weights, above 1.
        detach: hold the weights fixed; False lets the gradient through them.
        negatives: ``"both"`` views, the anchor's own (``"same"``) or the ``"other"``.
        normalize: let the weights of ``"direct"`` add up to 1; the paper does not, its experiments do.
        phi: for ``"entropy"``: the weights add up to xi phi'(xi) / temperature instead, as in `Energy`, which gives the
            gradient of `pairwise` with this phi and psi = exp(x / temperature).

    Raises:
        UsageError: the regularizer is unknown, p is not positive, gamma is not above 1, or a setting belongs to another
            regularizer.

    >>> import torch
    >>> round(alpha_cl(regularizer="entropy")(torch.eye(2), torch.eye(2)).item(), 4)
    -1.0
    """
    check_positive("p", p)
    check(is_number(gamma) and 1 < gamma < math.inf, f"gamma: expected a finite number above 1, got {gamma!r}.")
    check(p == 4 or regularizer == "direct", f"p: belongs to regularizer='direct', got {regularizer!r}.")
    inverse = regularizer in ("inverse", "inverse-shifted")
    check(gamma == 2 or inverse, f"gamma: belongs to the inverse regularizers, got {regularizer!r}.")
    held = isinstance(temperature, cp.engine.LearnedTemperature) and regularizer in ("square", "inverse")
    check(not held, "temperature: these weights give it no gradient; expected a number.")
    check(normalize or regularizer == "direct", "normalize: False belongs to regularizer='direct'.")
    check(phi is None or regularizer == "entropy", "phi: belongs to regularizer='entropy'.")
    coldest = 2 / _LARGEST_EXPONENT
    check(phi is None or temperature >= coldest, f"temperature: expected at least {coldest:.3g}, got {temperature!r}.")
    weights: dict[str, Callable[[], tuple[Kernel, Constraint]]] = {
        "entropy": lambda: (cp.Gibbs("cosine", temperature), cp.Rows()),
        "square": lambda: (cp.Gibbs("cosine", temperature / 2), cp.Tsallis(2, conditional=True)),
        "inverse": lambda: (cp.Gibbs("cosine", gamma * temperature), cp.Tsallis(1 - gamma, conditional=True)),
        "inverse-shifted": lambda: (cp.RationalQuadratic("cosine", temperature, power=1 / gamma), cp.Rows()),
        "direct": lambda: (cp.Gibbs("cosine", temperature, power=p / 2), cp.Rows() if normalize else cp.Free()),
        "uniform": lambda: (cp.RationalQuadratic("cosine", temperature, power=0), cp.Rows()),
    }
    if regularizer not in weights:
        raise unknown_name_error("regularizer", regularizer, weights)
    kernel, allowed = weights[regularizer]()
    return cp.Objective(_negatives(negatives), kernel, allowed, cp.Pairs(), cp.Energy(detach, not normalize, phi))


@recipe(f"{_ALPHA}, the quadratic loss.", r"\tfrac1{2n} \sum_i \tfrac1{2n-2} \sum_j (d_i^2 - d_{ij}^2)")
def quadratic(negatives: str = "both") -> Loss:
    """Draw positives together and push all negatives apart alike.

    Args:
        negatives: ``"both"`` views, the anchor's own (``"same"``) or the ``"other"``.

    >>> import torch, contraport as cp
    >>> round(cp.quadratic()(torch.eye(2), torch.eye(2)).item(), 4)
    -1.0
    """
    return alpha_cl(1.0, "uniform", negatives=negatives)


def _negatives(negatives: str) -> cp.Joint:
    if negatives not in ("both", "same", "other"):
        raise unknown_name_error("negatives", negatives, ("both", "same", "other"))
    return cp.Joint(candidates=negatives)


@recipe(
    "Jing, Vincent, LeCun and Tian (2022), Understanding dimensional collapse (DirectCLR).",
    r"\text{NT-Xent of the first } d_0 \text{ coordinates}",
)
def direct_clr(temperature: TemperatureLike = 0.1, dimensions: int = 64) -> Loss:
    """NT-Xent on the first coordinates of the encoder's own output; no projector is needed.

    Args:
        temperature: in units of the cosine distance.
        dimensions: how many coordinates.

    >>> import torch, contraport as cp
    >>> round(cp.direct_clr(temperature=1.0, dimensions=2)(torch.eye(3), torch.eye(3)).item(), 4)
    1.1397
    """
    return cp.Objective(
        cp.LeadingCoordinates(dimensions, cp.Joint()), cp.Gibbs("cosine", temperature), cp.Rows(), cp.Pairs(), cp.KL()
    )


@recipe(
    "Hu, Liu, Zhou, Wang and Huang (2023), Your contrastive learning is secretly doing stochastic neighbor embedding.",
    r"-\tfrac1{2n} \sum_i \log \frac{K_{ii'}}{\sum_{s \neq t} K_{st}} - \log 2n,\;"
    r" K = (1 + \tfrac{d^2}{\tau \nu})^{-(\nu+1)/2}",
)
def t_simclr(temperature: TemperatureLike = 8.0, df: float = 5.0, conditional: bool = False) -> Loss:
    """SimCLR with the heavy-tailed kernel of t-SNE, on embeddings that are not normalised.

    Args:
        temperature: in units of the squared distance.
        df: degrees of freedom.
        conditional: normalise each row, as SNE does, rather than all pairs at once, as t-SNE does.

    Raises:
        UsageError: conditional is neither True nor False.

    >>> import torch, contraport as cp
    >>> round(cp.t_simclr(temperature=1.0)(torch.eye(2), torch.eye(2)).item(), 4)
    0.5475
    """
    check(isinstance(conditional, bool), f"conditional: expected True or False, got {conditional!r}.")
    allowed: Constraint = cp.Rows() if conditional else cp.Simplex()
    return cp.Objective(cp.Joint(), cp.StudentT(df, temperature), allowed, cp.Pairs(), cp.KL())


@recipe(
    "Tian, Krishnan and Isola (2020), Contrastive multiview coding, eq. 3 and section 3.3.",
    r"\sum_{v < w} L(V_v, V_w) \text{ or } \sum_{w > 1} L(V_1, V_w),\; L \text{ InfoNCE in both directions}",
)
def cmc(temperature: TemperatureLike = 0.1, graph: str = "full") -> Loss:
    """InfoNCE between any number of views, in both directions, summed over pairs of views.

    Args:
        temperature: in units of the cosine distance.
        graph: ``"full"``, every pair of views, or ``"core"``, the first view with every other.

    Raises:
        UsageError: the graph has an unknown name.

    >>> import torch
    >>> cmc(temperature=1.0)(torch.eye(2), torch.eye(2), torch.eye(2))
    tensor(1.8796)
    """
    layouts: dict[str, Layout] = {"full": cp.AllViewPairs(), "core": cp.CoreViewPairs()}
    if graph not in layouts:
        raise unknown_name_error("graph", graph, layouts)
    return cp.Objective(layouts[graph], cp.Gibbs("cosine", temperature), cp.Rows(), cp.Pairs(), cp.KL())


@recipe(
    "Tian, Krishnan and Isola (2020), Contrastive multiview coding, eq. 5-7, with Z a moving average.",
    r"\tfrac1n \sum_i \Big[-\log \tfrac{h_{ii}}{h_{ii} + 1} - \sum_{j \neq i} \log \tfrac{1}{h_{ij} + 1}\Big],\;"
    r" h_{ij} = \frac{e^{s_{ij}/\tau}}{K Z}",
)
def cmc_nce(temperature: TemperatureLike = 0.07, momentum: float = 0.9, graph: str = "full") -> Loss:
    """Tell the matching item from noise, one pair at a time; the noise is the batch and ``negatives=``, from a bank.

    It goes from the first view to the second. Further directions are further objectives, each with the bank of its
    second view and a normaliser of its own.

    Args:
        temperature: in units of the cosine similarity.
        momentum: the weight of the past in the moving average Z of the kernel, in [0, 1).
        graph: of a training on more than two views: ``"full"``, every pair of views, or ``"core"``, the first view with
            every other.

    Raises:
        UsageError: the graph has an unknown name.

    >>> import torch
    >>> round(cmc_nce(temperature=1.0)(torch.eye(2), torch.eye(2)).item(), 4)
    0.9515
    """
    if graph not in ("full", "core"):
        raise unknown_name_error("graph", graph, ("full", "core"))
    kernel, layout = cp.Gibbs("negative-cosine", temperature), cp.Cross(symmetric=False, core=graph == "core")
    return cp.Objective(layout, kernel, cp.Free(), cp.Pairs(), cp.NoiseContrastiveEstimation(momentum))


@recipe(
    "Zhai, Mustafa, Kolesnikov and Beyer (2023), Sigmoid loss for language image pre-training (SigLIP), section 3.2.",
    r"-\tfrac1n \sum_{ij} \log \sigma\big(m_{ij} (s_{ij}/\tau + b)\big),\; m_{ii} = 1,\; m_{i \neq j} = -1",
)
def sigmoid(temperature: TemperatureLike = 0.1, bias: float = -10.0) -> Loss:
    """Judge each pair of the two views by itself, as matched or not; temperature and bias are learned.

    Both are parameters of the objective, to be given to the optimizer.

    Args:
        temperature: where its learning starts, in units of the cosine similarity.
        bias: where its learning starts.

    >>> import torch
    >>> round(sigmoid(temperature=1.0, bias=0.0)(torch.eye(2), torch.eye(2)).item(), 4)
    1.0064
    """
    kernel = cp.Gibbs("negative-cosine", temperature, learnable=True)
    return cp.Objective(cp.Cross(symmetric=False), kernel, cp.Free(), cp.Pairs(), cp.Logistic(bias))


_DHEL = (
    "Koromilas, Bouritsas, Giannakopoulos, Nicolaou and Panagakis (2024), Bridging mini-batch and asymptotic analysis "
    "in contrastive learning: from InfoNCE to kernel-based losses"
)


@recipe(
    "Yeh, Hong, Hsu, Liu, Chen and LeCun (2022), Decoupled contrastive learning, eq. 6.",
    r"\tfrac1{2n} \sum_i \Big[-\tfrac{s_{ii'}}{\tau} + \log \sum_{j \neq i, i'} e^{s_{ij}/\tau}\Big]",
)
def dcl(temperature: TemperatureLike = 0.1) -> Loss:
    """NT-Xent with the positives left out of the denominators, so that they do not compete. It can be negative.

    Args:
        temperature: in units of the cosine distance.

    >>> import torch
    >>> round(dcl(temperature=1.0)(torch.eye(2), torch.eye(2)).item(), 4)
    -0.3069
    """
    return cp.Objective(cp.Joint("both"), cp.Gibbs("cosine", temperature), cp.Rows(), cp.Pairs(), cp.KL())


@recipe(
    "Yeh, Hong, Hsu, Liu, Chen and LeCun (2022), Decoupled contrastive learning, eq. 6-7 (DCLW).",
    r"\tfrac1{2n} \sum_i \Big[-w_i \tfrac{s_{ii'}}{\tau} + \log \sum_{j \neq i, i'} e^{s_{ij}/\tau}\Big],\;"
    r" w_i = 2 - n\,\mathrm{softmax}_i(s_{ii'}/\sigma)",
)
def dclw(temperature: TemperatureLike = 0.1, sigma: float = 0.5) -> Loss:
    """Decoupled contrastive learning in which the pairs that agree least count most. It can be negative.

    Args:
        temperature: in units of the cosine similarity.
        sigma: of the weights of the pairs, which are held fixed, in units of the cosine similarity.

    >>> import torch
    >>> round(dclw(temperature=1.0)(torch.eye(2), torch.eye(2)).item(), 4)
    -0.3069
    """
    kernel = cp.Gibbs("negative-cosine", temperature)
    return cp.Objective(
        cp.Joint("both"), kernel, cp.Free(), cp.Pairs(), cp.LogSumKernel(), {cp.LogKernelAlignment(sigma): 1.0}
    )


@recipe(
    "Li et al. (2023), Towards general text embeddings with multi-stage contrastive learning (GTE).",
    r"-\tfrac1n \sum_i \log \frac{e^{s(q_i, d_i)/\tau}}{\sum_j e^{s(q_i, d_j)/\tau} + \sum_{j \neq i} "
    r"e^{s(q_i, q_j)/\tau} + \sum_j e^{s(q_j, d_i)/\tau} + \sum_{j \neq i} e^{s(d_j, d_i)/\tau}}",
)
def gte(temperature: TemperatureLike = 0.01) -> Loss:
    """One softmax of an item over four directions: query to texts, text to queries, and both among their own kind.

    It is NT-Xent but for the denominators of an item's two views, which are one. It is at least log 2, as the positive
    stands in both.

    Args:
        temperature: in units of the cosine similarity.

    >>> import torch
    >>> round(gte(temperature=1.0)(torch.eye(2), torch.eye(2)).item(), 4)
    1.2446
    """
    kernel = cp.Gibbs("negative-cosine", temperature)
    spread, drawn = cp.LogSumKernel(pooled=True), cp.LogKernelAlignment()
    return cp.Objective(cp.Joint(), kernel, cp.Free(), cp.Pairs(), spread, {drawn: 1.0})


@recipe(
    f"{_DHEL}, DHEL.",
    r"\tfrac1n \sum_i \Big[-\tfrac{s_{ii'}}{\tau} + \sum_v \log \sum_{j \neq i} e^{\cos(z^v_i, z^v_j)/\tau}\Big]",
)
def dhel(temperature: TemperatureLike = 0.3) -> Loss:
    """Draw positives together and spread each view by itself: negatives are of the same view. It can be negative.

    Args:
        temperature: in units of the cosine similarity.

    >>> import torch
    >>> dhel(temperature=1.0)(torch.eye(2), torch.eye(2))
    tensor(-1.)
    """
    kernel = cp.Gibbs("negative-cosine", temperature)
    return _decoupled(cp.Cross(symmetric=False), kernel, cp.LogKernelAlignment(), cp.LogSumKernel())


@recipe(
    "Koromilas, Georgiou, Bouritsas, Giannakopoulos, Nicolaou and Panagakis (2025), A principled framework for "
    "multi-view contrastive learning, MV-DHEL.",
    r"\tfrac1n \sum_i \Big[-\log \sum_{v < w} e^{\cos(z^v_i, z^w_i)/\tau}"
    r" + \sum_v \log \sum_{j \neq i} e^{\cos(z^v_i, z^v_j)/\tau}\Big]",
)
def mv_dhel(temperature: TemperatureLike = 0.3) -> Loss:
    """DHEL of any number of views: all pairs of an item's views in one logarithm. It can be negative.

    Args:
        temperature: in units of the cosine similarity.

    >>> import torch
    >>> mv_dhel(temperature=1.0)(torch.eye(2), torch.eye(2))
    tensor(-1.)
    """
    kernel = cp.Gibbs("negative-cosine", temperature)
    return _decoupled(cp.Joint(together=True), kernel, cp.LogKernelAlignment(), cp.LogSumKernel())


@recipe(
    f"{_DHEL}, KCL with the Gaussian kernel.",
    r"-\tfrac2n \sum_i k(z_i, z'_i) + \gamma \sum_v \mathrm{mean}_{i \neq j}\, k(z^v_i, z^v_j),\;"
    r" k = e^{-\|\cdot\|^2/\tau}",
)
def kcl(temperature: TemperatureLike = 0.5, gamma: float = 16.0) -> Loss:
    """Draw positives together and spread each view by the mean of a Gaussian kernel. It can be negative.

    Args:
        temperature: of the kernel, in units of the squared distance on the sphere; 1/t of the paper.
        gamma: factor of the repulsion, nonnegative.

    Raises:
        UsageError: gamma is negative or not finite.

    >>> import torch
    >>> round(kcl()(torch.eye(2), torch.eye(2)).item(), 4)
    -1.4139
    """
    check_nonnegative("gamma", gamma)
    return _decoupled(
        cp.Cross(symmetric=False), cp.Gibbs("chordal", temperature), cp.KernelAlignment(), cp.MeanKernel(), 2.0, gamma
    )


def _decoupled(
    layout: Layout,
    kernel: Kernel,
    attraction: Divergence,
    repulsion: Divergence,
    attracts: float = 1.0,
    repels: float = 1.0,
) -> Loss:
    """Return an attraction of the views, and a repulsion within each of them, by one kernel."""
    drawn = cp.Objective(layout, kernel, cp.Free(), cp.Pairs(), attraction)
    spread = cp.Objective(cp.WithinView(summed=True), kernel, cp.Free(), cp.Pairs(), repulsion)
    return cp.SumLoss({drawn: attracts, spread: repels})


@recipe(
    "HaoChen, Wei, Gaidon and Ma (2021), Provable guarantees for self-supervised deep learning with spectral "
    "contrastive loss, eq. 6.",
    r"-\tfrac2n \sum_i s_{ii} + \mathrm{mean}_{i \neq j}\, s_{ij}^2",
)
def spectral(normalized: bool = True) -> Loss:
    """Draw positives together and make other items orthogonal. It can be negative.

    Its optimum spans the top eigenvectors of the graph whose edges are the views of an item.

    Args:
        normalized: compare by the cosine; else by the inner product, as the theory has it.

    Raises:
        UsageError: normalized is neither True nor False.

    >>> import torch
    >>> spectral()(torch.eye(2), torch.eye(2))
    tensor(-2.)
    """
    check(isinstance(normalized, bool), f"normalized: expected True or False, got {normalized!r}.")
    kernel = cp.Gibbs("negative-cosine" if normalized else "dot", 1.0)
    return cp.Objective(
        cp.Cross(symmetric=False, decoupled=True), kernel, cp.Free(), cp.Pairs(), cp.MeanSquaredCost(), {cp.Cost(): 2.0}
    )


@recipe(
    "Chuang, Robinson, Lin, Torralba and Jegelka (2020), Debiased contrastive learning, eq. 8.",
    r"-\tfrac1{2n} \sum_i \log \frac{e^{s_{ii'}/\tau}}{e^{s_{ii'}/\tau} + N g_i},\;"
    r" g_i = \max\big(\tfrac{\mathrm{mean}_j e^{s_{ij}/\tau} - \pi e^{s_{ii'}/\tau}}{1 - \pi}, e^{-1/\tau}\big)",
)
def debiased(temperature: TemperatureLike = 0.5, prior: float = 0.1) -> Loss:
    """NT-Xent corrected for negatives that are of the anchor's own class.

    Args:
        temperature: in units of the cosine similarity.
        prior: the share of negatives that are of the anchor's own class, in [0, 1); 0 is NT-Xent.

    >>> import torch
    >>> round(debiased(temperature=1.0, prior=0.0)(torch.eye(2), torch.eye(2)).item(), 4)
    0.5514
    """
    return hard_negative(temperature, 0.0, prior)


@recipe(
    "Robinson, Chuang, Sra and Jegelka (2021), Contrastive learning with hard negative samples, eq. 4.",
    r"\text{as debiased, the mean weighed by } e^{\beta s_{ij}/\tau}",
)
def hard_negative(temperature: TemperatureLike = 0.5, beta: float = 1.0, prior: float = 0.1) -> Loss:
    """NT-Xent in which harder negatives weigh more, corrected for those that are of the anchor's own class.

    Args:
        temperature: in units of the cosine similarity.
        beta: how much harder negatives weigh, as exp(beta similarity / temperature), nonnegative.
        prior: the share of negatives that are of the anchor's own class, in [0, 1).

    >>> import torch
    >>> round(hard_negative(temperature=1.0, prior=0.0)(torch.eye(2), torch.eye(2)).item(), 4)
    0.5514
    """
    kernel = cp.Gibbs("negative-cosine", temperature)
    return cp.Objective(cp.Joint("both"), kernel, cp.Free(), cp.Pairs(), cp.DebiasedContrastive(prior, beta))


@recipe(
    "Sobal, Ibrahim, Balestriero, Cabannes, Bouchacourt, Astolfi, Cho and LeCun (2024), X-sample contrastive loss: "
    "improving contrastive learning with sample similarity graphs, eq. 5, less a constant, the entropy of the target.",
    r"\mathrm{KL}(\tilde P \mid P),\; \tilde P_{ij} = \tfrac1{2n} \mathrm{softmax}_j(g_{ij}/\tau_t),\; i \neq j",
)
def x_clr(temperature: TemperatureLike = 0.1, teacher_temperature: float = 0.1) -> Loss:
    """NT-Xent that wants each item where a teacher finds it alike; the call needs ``features=`` of the teacher.

    Args:
        temperature: in units of the cosine distance.
        teacher_temperature: of the wanted plan, in units of the cosine distance of the features.

    >>> import torch
    >>> z = torch.eye(2)
    >>> bool(x_clr(temperature=1.0, teacher_temperature=1.0)(z, z, features=z).abs() < 1e-6)  # as the teacher has it
    True
    """
    wanted = cp.SoftNeighbors(kernel=cp.Gibbs("cosine", teacher_temperature))
    return cp.Objective(cp.Joint(), cp.Gibbs("cosine", temperature), cp.Rows(), wanted, cp.KL())


@recipe(
    "Solatorio (2024), GISTEmbed: guided in-sample selection of training negatives for text embedding fine-tuning.",
    r"\text{InfoNCE over } j = i \text{ or } g_{ij} \leq g_{ii} - m,\; g \text{ a teacher's cosine}",
)
def guided(temperature: TemperatureLike = 0.1, margin: float = 0.0, layout: str = "cross") -> Loss:
    """InfoNCE without the negatives that a teacher finds more alike than the positive; the call needs ``features=``.

    GISTEmbed's own loss goes one way, and has the pairs of each view within itself in the same denominator.

    Args:
        temperature: in units of the cosine distance.
        margin: how much less alike than the positive a negative must be, in units of the teacher's cosine.
        layout: ``"cross"``, both directions averaged, or ``"joint"``, all embeddings of both views.

    Raises:
        UsageError: the layout has neither name; in the call, there are no features.

    >>> import torch
    >>> guided(temperature=1.0)(torch.eye(2), torch.eye(2), features=torch.eye(2))
    tensor(0.3133)
    """
    layouts: dict[str, Layout] = {"joint": cp.Joint(), "cross": cp.Cross()}
    if layout not in layouts:
        raise unknown_name_error("layout", layout, layouts)
    return cp.Objective(
        cp.GuidedNegatives(layouts[layout], margin), cp.Gibbs("cosine", temperature), cp.Rows(), cp.Pairs(), cp.KL()
    )


@recipe(
    "Yuan, Wu, Qiu, Du, Zhang, Zhou and Yang (2022), Provable stochastic optimization for global contrastive learning: "
    "small batch does not harm performance (SogCLR), algorithm 1.",
    r"\tfrac1n \sum_i \big[-\tfrac{s_{ii'}}{\tau} + \log u_i\big],\; u_i \leftarrow \mu u_i + (1 - \mu)\,"
    r"\mathrm{mean}_j e^{s_{ij}/\tau}",
)
def sog_clr(temperature: TemperatureLike = 0.1, items: int = 1 << 17, momentum: float = 0.1) -> Loss:
    """DCL whose denominators are averages over the epochs, one of each item, for small batches; it needs ``ids=``.

    Args:
        temperature: in units of the cosine similarity.
        items: how many items there are at most; ids count from 0.
        momentum: the weight of the past in the averages, in [0, 1); 1 - gamma of the paper.

    >>> import torch
    >>> loss = sog_clr(temperature=1.0)
    >>> loss(torch.eye(2), torch.eye(2), ids=torch.arange(2))
    tensor(-1.)
    """
    kernel = cp.Gibbs("negative-cosine", temperature)
    spread, drawn = cp.MovingAverageLogSum(items, momentum), cp.LogKernelAlignment()
    return cp.Objective(cp.Joint("both"), kernel, cp.Free(), cp.Pairs(), spread, {drawn: 1.0})


@recipe(
    "Zbontar, Jing, Misra, LeCun and Deny (2021), Barlow Twins: self-supervised learning via redundancy reduction, "
    "eq. 1.",
    r"\sum_a (1 - c_{aa})^2 + \lambda \sum_{a \neq b} c_{ab}^2,\; c_{ab} \text{ the correlation of coordinates}",
)
def barlow_twins(redundancy: float = 5e-3) -> Loss:
    """Make each coordinate of one view correlate with the same one of the other view, and with no other.

    Args:
        redundancy: factor of the correlations between coordinates, nonnegative.

    Raises:
        UsageError: redundancy is negative or not finite.

    >>> import torch
    >>> z = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    >>> round(barlow_twins()(z, z).item(), 4)
    0.0
    """
    check_nonnegative("redundancy", redundancy)
    one, other = (cp.Coordinates(cp.Cross(symmetric=False, decoupled=d), summed=True) for d in (False, True))
    alike = cp.Objective(one, cp.Gibbs("cosine", 1.0), cp.Free(), cp.Pairs(), cp.Cost(power=2))
    apart = cp.Objective(
        other, cp.Gibbs("negative-cosine", 1.0), cp.Free(), cp.Pairs(), cp.MeanSquaredCost(summed=True)
    )
    return cp.SumLoss({alike: 1.0, apart: redundancy})


@recipe(
    "Bardes, Ponce and LeCun (2022), VICReg: variance-invariance-covariance regularization, eq. 1-6.",
    r"\lambda\,\mathrm{mean}_{ia} (z_{ia} - z'_{ia})^2"
    r" + \tfrac\mu2 \sum_v \mathrm{mean}_a [1 - \sqrt{v_{aa} + 10^{-4}}]_+"
    r" + \nu \sum_v \tfrac1d \sum_{a \neq b} v_{ab}^2",
)
def vic_reg(invariance: float = 25.0, variance: float = 25.0, covariance: float = 1.0) -> Loss:
    """Draw views together, and keep each coordinate varied and uncorrelated with the others.

    Args:
        invariance: factor of the mean squared difference of the views, nonnegative.
        variance: factor of what a coordinate's standard deviation misses to 1, nonnegative.
        covariance: factor of the squared covariances of coordinates, nonnegative.

    Raises:
        UsageError: a factor is negative or not finite.

    >>> import torch
    >>> z = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    >>> round(vic_reg()(z, z).item(), 4)
    0.0
    """
    factors = {"invariance": invariance, "variance": variance, "covariance": covariance}
    for name, factor in factors.items():
        check_nonnegative(name, factor)
    matched = cp.Coordinates(cp.Cross(symmetric=False), centred=False)
    alike = cp.Objective(matched, cp.Gibbs("sqeuclidean", 1.0), cp.Free(), cp.Pairs(), cp.Cost())
    varied = cp.Objective(
        cp.Coordinates(cp.WithinView()), cp.Gibbs("dot", 1.0), cp.Free(), cp.Pairs(), cp.VarianceHinge()
    )
    each = cp.Coordinates(cp.WithinView(summed=True))
    apart = cp.Objective(each, cp.Gibbs("dot", 1.0), cp.Free(), cp.Pairs(), cp.MeanSquaredCost(summed=True))
    return cp.SumLoss({alike: invariance, varied: variance, apart: covariance})
