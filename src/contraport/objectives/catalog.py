"""The catalog: every named method, a recipe over the five questions with its citation and its default settings."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from contraport.engine import Gibbs, RationalQuadratic, StudentT
from contraport.errors import UsageError, check, unknown_name
from contraport.objectives.constraints import Balanced, Constraint, Free, Quadratic, Rows, Simplex, Unbalanced
from contraport.objectives.divergences import (
    KL,
    ClosedFormQuadratic,
    Cost,
    Divergence,
    Energy,
    FenchelYoung,
    LogMean,
    PlanUniformity,
    Rince,
)
from contraport.objectives.divergences.logistic import Logistic, NoiseContrast
from contraport.objectives.divergences.pairwise import PRESETS, SignedPairwise
from contraport.objectives.layouts import CoreView, Cross, FullGraph, Joint, Layout, Leading, Within
from contraport.objectives.loss import Loss, Origin
from contraport.objectives.objective import Objective
from contraport.objectives.targets import Labels, Pairs, Target
from contraport.objectives.total import Total


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


CATALOG: dict[str, Method] = {}

_GCA = (
    "Chen, Lin, Liu, Xiao and Dyer (2024), "
    "Your contrastive learning problem is secretly a distribution alignment problem."
)
_IOT = (
    "Shi, Zhang, Zhen, Fan and Yan (2023), "
    "Understanding and generalizing contrastive learning from the inverse optimal transport perspective."
)
_ALPHA = "Tian (2022), Understanding deep contrastive learning via coordinate-wise optimization"


def recipe(citation: str, formula: str) -> Callable[[Callable[..., Loss]], Callable[..., Loss]]:
    """Enter a function into the catalog, under its own name with hyphens; what it makes knows where it came from."""

    def enter(make: Callable[..., Loss]) -> Callable[..., Loss]:
        @functools.wraps(make)
        def build(*args: Any, **settings: Any) -> Loss:
            loss = make(*args, **settings)
            given = [repr(a) for a in args] + [f"{name}={value!r}" for name, value in settings.items()]
            loss.origin = Origin(name, f"{make.__name__}({', '.join(given)})", citation)
            return loss

        name = make.__name__.replace("_", "-")
        CATALOG[name] = Method(name, build, citation, formula)
        return build

    return enter


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
    key = str(name).replace("_", "-")
    if key not in CATALOG:
        raise unknown_name("objective", name, CATALOG)
    make = CATALOG[key].make
    parameters = inspect.signature(make).parameters
    for setting in settings:
        if setting not in parameters:
            raise unknown_name(f"setting of {key}", setting, parameters)
    try:
        return make(**settings)
    except TypeError as error:
        raise UsageError(f"objective {key}: {error}") from error


def list_objectives() -> list[str]:
    """Return the names in the catalog.

    >>> "nt-xent" in list_objectives()
    True
    """
    return sorted(CATALOG)


@recipe(
    "van den Oord, Li and Vinyals (2018), Representation learning with contrastive predictive coding, eq. 4.",
    r"-\tfrac1n \sum_i \log \frac{e^{s_{ii}/\tau}}{\sum_j e^{s_{ij}/\tau}}",
)
def info_nce(
    temperature: float = 0.1, symmetric: bool = True, target: Target | None = None, shared_columns: bool = False
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
    layout = Cross(symmetric, shared_columns=shared_columns)
    return Objective(layout, Gibbs("cosine", temperature), Rows(), target or Pairs(), KL())


@recipe(
    "Chen, Kornblith, Norouzi and Hinton (2020), A simple framework for contrastive learning (SimCLR), eq. 1.",
    r"-\tfrac1{2n} \sum_i \log \frac{e^{s_{ii'}/\tau}}{\sum_{j \neq i} e^{s_{ij}/\tau}}",
)
def nt_xent(temperature: float = 0.5) -> Loss:
    """Pick the other view of the same item among all embeddings of both views.

    Args:
        temperature: in units of the cosine distance.

    >>> import torch
    >>> nt_xent(temperature=1.0)(torch.eye(2), torch.eye(2))
    tensor(0.5514)
    """
    return Objective(Joint(), Gibbs("cosine", temperature), Rows(), Pairs(), KL())


@recipe(
    "Khosla et al. (2020), Supervised contrastive learning, eq. 2, less its constant, the mean of log |P(i)|.",
    r"\mathrm{KL}(\tilde P \mid P),\; \tilde P_{ij} = \tfrac{[y_i = y_j]}{2n\,|P(i)|}",
)
def sup_con(temperature: float = 0.1) -> Loss:
    """Pick all embeddings of the same class among all embeddings; the call needs ``labels=``.

    Args:
        temperature: in units of the cosine distance.

    >>> import torch
    >>> round(sup_con(temperature=1.0)(torch.eye(2), torch.eye(2), labels=torch.tensor([0, 1])).item(), 4)
    0.5514
    """
    return Objective(Joint(), Gibbs("cosine", temperature), Rows(), Labels(), KL())


@recipe(
    "Chuang et al. (2022), Robust contrastive learning against noisy views (RINCE), eq. 4.",
    r"\tfrac1N \sum_i \tfrac1q \big[(\lambda \sum_j K_{ij})^q - K_{i+}^q\big],\; K = e^{s/\tau}",
)
def rince(temperature: float = 0.5, q: float = 0.5, lam: float = 0.01, layout: str = "joint") -> Loss:
    """Bear with positives that are wrong: a divergence between the logarithm and a symmetric loss. It can be negative.

    Args:
        temperature: in units of the cosine similarity; exp(q / temperature) must stay within single precision.
        q: in (0, 1]; towards 0 it is InfoNCE + log lam, at 1 it is symmetric.
        lam: weight of all candidates against the positive, in (0, 1].
        layout: ``"joint"``, or ``"cross"``, both directions averaged.

    >>> import torch
    >>> round(rince(temperature=1.0, q=1.0, lam=0.5)(torch.eye(2), torch.eye(2)).item(), 4)
    -0.3591
    """
    layouts: dict[str, Layout] = {"joint": Joint(), "cross": Cross()}
    if layout not in layouts:
        raise unknown_name("layout", layout, layouts)
    kernel = Gibbs("negative-cosine", temperature)
    limit = _LARGEST_EXPONENT * temperature
    check(q <= limit, f"temperature: expected at least q / {_LARGEST_EXPONENT:g}, got {temperature!r} for q = {q!r}.")
    return Objective(layouts[layout], kernel, Free(), Pairs(), Rince(q, lam))


_LARGEST_EXPONENT = 60.0
"""exp of more than this, summed over a large batch, leaves single precision."""


@recipe(_GCA, r"\mathrm{KL}(\tilde P \mid P),\; P \in U(a, b) \text{ by } K \text{ Sinkhorn iterations}")
def gca_ince(temperature: float = 0.5, iterations: int = 5) -> Loss:
    """Match every item to its other view by a plan in which rows and columns both carry equal mass.

    Args:
        temperature: in units of the cosine distance.
        iterations: of Sinkhorn's algorithm.

    >>> import torch
    >>> gca_ince(temperature=1.0)(torch.eye(2), torch.eye(2))
    tensor(0.5514)
    """
    return Objective(Joint(), Gibbs("cosine", temperature), Balanced(iterations), Pairs(), KL())


@recipe(_GCA, r"\tfrac1N \sum_i \tfrac1q \big[(\lambda \sum_j N P_{ij})^q - (N P_{i+})^q\big],\; P \in U(a, b)")
def gca_rince(temperature: float = 0.5, iterations: int = 5, q: float = 0.6, lam: float = 0.01) -> Loss:
    """The divergence of RINCE on the balanced plan. It can be negative.

    Args:
        temperature: in units of the cosine distance.
        iterations: of Sinkhorn's algorithm.
        q: in (0, 1].
        lam: weight of the row's mass against the positive, in (0, 1].
    """
    return Objective(Joint(), Gibbs("cosine", temperature), Balanced(iterations), Pairs(), Rince(q, lam))


@recipe(
    _GCA,
    r"\mathrm{KL}(\tilde P \mid P),\; P = \arg\min \langle C, P \rangle - \tau H(P) "
    r"+ \rho\,\mathrm{KL}(P1 \mid a) + \rho\,\mathrm{KL}(P^\top 1 \mid b)",
)
def gca_uot(
    temperature: float = 0.5,
    iterations: int = 5,
    relaxation: float | tuple[float, float] = 1.0,
    rince_weight: float = 0.0,
    q: float = 0.6,
    lam: float = 0.01,
) -> Loss:
    """Match every item to its other view by a plan whose rows and columns may let mass go, as dirty pairs need.

    Args:
        temperature: in units of the cosine distance.
        iterations: of the damped Sinkhorn algorithm.
        relaxation: the price of missing a marginal, in units of the cosine distance; large is strict.
        rince_weight: factor of RINCE's divergence beside KL, nonnegative.
        q: its exponent, in (0, 1].
        lam: its weight of the row's mass, in (0, 1].

    >>> import torch
    >>> gca_uot(temperature=1.0)(torch.eye(2), torch.eye(2))
    tensor(0.8127)
    """
    check(rince_weight >= 0, f"rince_weight: expected a nonnegative number, got {rince_weight!r}.")
    penalties: dict[Divergence, float] | None = {Rince(q, lam): rince_weight} if rince_weight else None
    allowed = Unbalanced(relaxation, iterations)
    return Objective(Joint(), Gibbs("cosine", temperature), allowed, Pairs(), KL(), penalties)


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
    return Objective(Cross(symmetric=False, stop_gradient=True), Gibbs("chordal", 1.0), Free(), Pairs(), Cost())


def _constraint(constraint: str, iterations: int) -> Constraint:
    known: dict[str, Constraint] = {"rows": Rows(), "simplex": Simplex(), "balanced": Balanced(iterations)}
    if constraint not in known:
        raise unknown_name("constraint", constraint, known)
    return known[constraint]


@recipe(
    _IOT,
    r"\mathrm{KL}(\tilde P \mid P) + \lambda\,\mathrm{KL}(\bar Q \mid P),\; P \in U(a), U(1) \text{ or } U(a, b)",
)
def iot(temperature: float = 0.5, constraint: str = "balanced", iterations: int = 5, uniformity: float = 0.0) -> Loss:
    """Learn the cost whose transport plan is the matching of the views, under a chosen constraint on the plan.

    Args:
        temperature: the epsilon of the entropy, in units of the cosine distance.
        constraint: ``"rows"`` (which is NT-Xent), ``"simplex"`` or ``"balanced"``.
        iterations: of Sinkhorn's algorithm, for ``"balanced"``.
        uniformity: factor of the penalty for an uneven plan on the negatives, nonnegative.

    >>> import torch
    >>> iot(temperature=1.0, constraint="rows")(torch.eye(2), torch.eye(2))
    tensor(0.5514)
    """
    check(uniformity >= 0, f"uniformity: expected a nonnegative number, got {uniformity!r}.")
    penalties: dict[Divergence, float] | None = {PlanUniformity(): uniformity} if uniformity else None
    kernel, allowed = Gibbs("cosine", temperature), _constraint(constraint, iterations)
    return Objective(Joint(), kernel, allowed, Pairs(), KL(), penalties)


@recipe(_IOT, r"\mathrm{KL}(\tilde P \mid P) + \lambda\,\mathrm{KL}(\bar Q \mid P)")
def iot_uniform(
    temperature: float = 0.5, constraint: str = "balanced", iterations: int = 5, uniformity: float = 1.0
) -> Loss:
    """Inverse optimal transport with the uniformity penalty on; the settings are those of `iot`."""
    return iot(temperature, constraint, iterations, uniformity)


@recipe(_IOT, r"-\tfrac1N \sum_i \log \tfrac1n \big(1 + \sum_j (C_{ij} - C_{i+})\big)")
def iot_quadratic(
    constraint: str = "rows", closed_form: bool = True, layout: str = "joint", temperature: float = 1.0
) -> Loss:
    """Inverse optimal transport under the quadratic regulariser.

    Args:
        constraint: ``"rows"`` or ``"simplex"``.
        closed_form: use the closed form that lets negative entries pass; else the true plan, with exact zeros, and its
            Fenchel-Young loss.
        layout: ``"joint"``, or ``"cross"``, from view 0 to view 1.
        temperature: factor of the regulariser, in units of the cosine distance.
    """
    layouts: dict[str, Layout] = {"joint": Joint(), "cross": Cross(symmetric=False)}
    if layout not in layouts:
        raise unknown_name("layout", layout, layouts)
    allowed: Constraint = Free() if closed_form else Quadratic(constraint)
    divergence: Divergence = ClosedFormQuadratic(constraint) if closed_form else FenchelYoung()
    return Objective(layouts[layout], Gibbs("cosine", temperature), allowed, Pairs(), divergence)


@recipe(
    "Wang and Isola (2020), Alignment and uniformity on the hypersphere, eq. 1-2.",
    r"\tfrac1n \sum_i \|z_i - z'_i\|^2 + \tfrac{w}{2} \sum_v \log \mathrm{mean}_{i<j} e^{-2 \|z^v_i - z^v_j\|^2}",
)
def align_uniform(weight: float = 1.0) -> Loss:
    """Draw positives together and spread each view over the sphere.

    Args:
        weight: factor of the uniformity, nonnegative.

    >>> import torch
    >>> align_uniform()(torch.eye(2), torch.eye(2))
    tensor(-4.)
    """
    check(weight >= 0, f"weight: expected a nonnegative number, got {weight!r}.")
    alignment = Objective(Cross(symmetric=False), Gibbs("chordal", 1.0), Free(), Pairs(), Cost())
    uniformity = Objective(Within(), Gibbs("chordal", 0.5), Free(), Pairs(), LogMean())
    return Total({alignment: 1.0, uniformity: weight})


@recipe(f"{_ALPHA}, eq. 1 and table 1.", r"\tfrac1{2n} \sum_i \phi\big(\sum_{j} \psi(d_i^2 - d_{ij}^2)\big)")
def pairwise(
    preset: str | None = None,
    temperature: float | None = None,
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

    >>> import torch
    >>> round(pairwise("triplet")(torch.eye(2), torch.eye(2)).item(), 4)
    0.0
    """
    given = phi is not None and psi is not None
    check(given or (phi is None and psi is None), "phi, psi: expected both or neither.")
    check(not (given and preset is not None), "preset: expected either a preset or phi and psi, got both.")
    check(epsilon >= 0, f"epsilon: expected a nonnegative number, got {epsilon!r}.")
    tempered = False
    if phi is not None and psi is not None:
        divergence: Divergence = SignedPairwise(phi, psi)
    else:
        name = str(preset or "info_nce").replace("-", "_")
        if name not in PRESETS:
            raise unknown_name("preset", preset, PRESETS)
        tempered, divergence = PRESETS[name].tempered, PRESETS[name].make(epsilon, c)
    check(tempered or temperature is None, f"temperature: {preset or 'phi and psi'} has none; expected nothing.")
    kernel = Gibbs("cosine", (0.5 if temperature is None else temperature) if tempered else 1.0)
    return Objective(_negatives(negatives), kernel, Free(), Pairs(), divergence)


@recipe(
    f"{_ALPHA}, alpha-CL.",
    r"\tfrac1{2n} \sum_i \sum_j \alpha_{ij} (d_i^2 - d_{ij}^2),\; \alpha \text{ held fixed}",
)
def alpha_cl(
    temperature: float = 0.5,
    regularizer: str = "direct",
    p: float = 4.0,
    gamma: float = 2.0,
    detach: bool = True,
    negatives: str = "both",
) -> Loss:
    """Play the game explicitly: pair weights that favour close negatives, held fixed, against the encoder.

    Args:
        temperature: in units of half the squared distance (its p/2-th power for ``"direct"``).
        regularizer: what chooses the weights: ``"entropy"`` (softmax), ``"inverse"`` (a power law), ``"square"``
            (sparsemax), ``"direct"`` exp(-d^p / temperature), normalised, or ``"uniform"``.
        p: exponent of ``"direct"``.
        gamma: exponent of ``"inverse"``, above 1.
        detach: hold the weights fixed; False lets the gradient through them.
        negatives: ``"both"`` views, the anchor's own (``"same"``) or the ``"other"``.
    """
    check(p > 0, f"p: expected a positive number, got {p!r}.")
    check(gamma > 1, f"gamma: expected a number above 1, got {gamma!r}.")
    entropic = {
        "entropy": lambda: Gibbs("cosine", temperature),
        "direct": lambda: Gibbs("cosine", temperature, power=p / 2),
        "inverse": lambda: RationalQuadratic("cosine", temperature, power=1 / gamma),
        "square": lambda: Gibbs("cosine", temperature),
        "uniform": lambda: RationalQuadratic("cosine", temperature, power=0),
    }
    if regularizer not in entropic:
        raise unknown_name("regularizer", regularizer, entropic)
    allowed: Constraint = Quadratic("rows", conditional=True) if regularizer == "square" else Rows()
    return Objective(_negatives(negatives), entropic[regularizer](), allowed, Pairs(), Energy(detach))


@recipe(f"{_ALPHA}, the quadratic loss.", r"\tfrac1{2n} \sum_i \tfrac1{2n-2} \sum_j (d_i^2 - d_{ij}^2)")
def quadratic(negatives: str = "both") -> Loss:
    """Draw positives together and push all negatives apart alike.

    Args:
        negatives: ``"both"`` views, the anchor's own (``"same"``) or the ``"other"``.
    """
    return alpha_cl(1.0, "uniform", negatives=negatives)


def _negatives(negatives: str) -> Joint:
    if negatives not in ("both", "same", "other"):
        raise unknown_name("negatives", negatives, ("both", "same", "other"))
    return Joint(candidates=negatives)


@recipe(
    "Jing, Vincent, LeCun and Tian (2022), Understanding dimensional collapse (DirectCLR).",
    r"\text{NT-Xent of the first } d_0 \text{ coordinates}",
)
def direct_clr(temperature: float = 0.1, dimensions: int = 64) -> Loss:
    """NT-Xent on the first coordinates of the encoder's own output; no projector is needed.

    Args:
        temperature: in units of the cosine distance.
        dimensions: how many coordinates.
    """
    return Objective(Leading(dimensions, Joint()), Gibbs("cosine", temperature), Rows(), Pairs(), KL())


@recipe(
    "Hu, Liu, Zhou, Wang and Huang (2023), Your contrastive learning is secretly doing stochastic neighbor embedding.",
    r"-\tfrac1{2n} \sum_i \log \frac{K_{ii'}}{\sum_{s \neq t} K_{st}} - \log 2n,\;"
    r" K = (1 + \tfrac{d^2}{\tau \nu})^{-(\nu+1)/2}",
)
def t_simclr(temperature: float = 8.0, df: float = 5.0, conditional: bool = False) -> Loss:
    """SimCLR with the heavy-tailed kernel of t-SNE, on embeddings that are not normalised.

    Args:
        temperature: in units of the squared distance.
        df: degrees of freedom.
        conditional: normalise each row, as SNE does, rather than all pairs at once, as t-SNE does.
    """
    allowed: Constraint = Rows() if conditional else Simplex()
    return Objective(Joint(), StudentT(df, temperature), allowed, Pairs(), KL())


@recipe(
    "Tian, Krishnan and Isola (2020), Contrastive multiview coding, eq. 3 and section 3.3.",
    r"\sum_{v < w} L(V_v, V_w) \text{ or } \sum_{w > 1} L(V_1, V_w),\; L \text{ InfoNCE in both directions}",
)
def cmc(temperature: float = 0.1, graph: str = "full") -> Loss:
    """InfoNCE between any number of views, in both directions, summed over pairs of views.

    Args:
        temperature: in units of the cosine distance.
        graph: ``"full"``, every pair of views, or ``"core"``, the first view with every other.

    >>> import torch
    >>> cmc(temperature=1.0)(torch.eye(2), torch.eye(2), torch.eye(2))
    tensor(1.8796)
    """
    layouts: dict[str, Layout] = {"full": FullGraph(), "core": CoreView()}
    if graph not in layouts:
        raise unknown_name("graph", graph, layouts)
    return Objective(layouts[graph], Gibbs("cosine", temperature), Rows(), Pairs(), KL())


@recipe(
    "Tian, Krishnan and Isola (2020), Contrastive multiview coding, eq. 5-7, with Z a moving average.",
    r"\tfrac1n \sum_i \Big[-\log \tfrac{h_{ii}}{h_{ii} + 1} - \sum_{j \neq i} \log \tfrac{1}{h_{ij} + 1}\Big],\;"
    r" h_{ij} = \frac{e^{s_{ij}/\tau}}{K Z}",
)
def cmc_nce(temperature: float = 0.07, momentum: float = 0.9) -> Loss:
    """Tell the matching item from noise, one pair at a time; the noise is the batch and ``negatives=``, from a bank.

    It goes from the first view to the second. Further directions are further objectives, each with the bank of its
    second view and a normaliser of its own.

    Args:
        temperature: in units of the cosine similarity.
        momentum: the weight of the past in the moving average Z of the kernel, in [0, 1).

    >>> import torch
    >>> round(cmc_nce(temperature=1.0)(torch.eye(2), torch.eye(2)).item(), 4)
    0.9515
    """
    kernel = Gibbs("negative-cosine", temperature)
    return Objective(Cross(symmetric=False), kernel, Free(), Pairs(), NoiseContrast(momentum))


@recipe(
    "Zhai, Mustafa, Kolesnikov and Beyer (2023), Sigmoid loss for language image pre-training (SigLIP), section 3.2.",
    r"-\tfrac1n \sum_{ij} \log \sigma\big(m_{ij} (s_{ij}/\tau + b)\big),\; m_{ii} = 1,\; m_{i \neq j} = -1",
)
def sigmoid(temperature: float = 0.1, bias: float = -10.0) -> Loss:
    """Judge each pair of the two views by itself, as matched or not; temperature and bias are learned.

    Both are parameters of the objective, to be given to the optimizer.

    Args:
        temperature: where its learning starts, in units of the cosine similarity.
        bias: where its learning starts.

    >>> import torch
    >>> round(sigmoid(temperature=1.0, bias=0.0)(torch.eye(2), torch.eye(2)).item(), 4)
    1.0064
    """
    kernel = Gibbs("negative-cosine", temperature, learnable=True)
    return Objective(Cross(symmetric=False), kernel, Free(), Pairs(), Logistic(bias))
