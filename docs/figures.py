"""Draw the figures of idea.md, theory.md and plots.md, and print their numbers: ``python -m docs.figures [PART]``."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from PIL import Image
from sklearn.datasets import load_digits

from contraport import (
    KL,
    Balanced,
    ContrastiveEncoder,
    Cross,
    Gibbs,
    Labels,
    Objective,
    Pairs,
    Rows,
    SoftNeighbors,
    Unbalanced,
    gca_ince,
    plots,
    theory,
)

Figures = dict[str, Figure]

IMAGES = Path(__file__).parent / "images"
LARGEST = 150_000
"""Bytes of a picture; a larger one is reduced to 256 colors."""


def save_png(path: Path, image: Image.Image) -> None:
    """Save a picture as PNG, in 256 colors where it would be too large otherwise."""
    file = io.BytesIO()
    image.convert("RGB").save(file, "PNG", optimize=True)
    if len(file.getvalue()) > LARGEST:
        file = io.BytesIO()
        image.convert("RGB").quantize(256, kmeans=4).save(file, "PNG", optimize=True)
    path.write_bytes(file.getvalue())
    print(f"{path.name}: {image.width} x {image.height}, {len(file.getvalue()):,} bytes")


def save_figure(path: Path, figure: Figure, **settings: Any) -> None:
    """Save a figure as PNG; settings are those of ``Figure.savefig``."""
    file = io.BytesIO()
    figure.savefig(file, **settings)
    with Image.open(file) as image:
        save_png(path, image)


def views(items: int = 300, noise: float = 0.1) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two views of handwritten digits, (items, 64) each: pixels from 0 to 1, with Gaussian noise."""
    x = torch.from_numpy(load_digits().data[:items]) / 16
    generator = torch.Generator().manual_seed(0)
    first, second = (x + noise * torch.randn(x.shape, generator=generator, dtype=x.dtype) for _ in range(2))
    return first, second


def two_distributions() -> tuple[torch.Tensor, torch.Tensor]:
    """Return two distributions on a grid, (48,) each: one peak and two peaks, positive everywhere."""
    line = torch.linspace(0, 1, 48)

    def hill(middle: float, width: float) -> torch.Tensor:
        return torch.exp(-(((line - middle) / width) ** 2) / 2)

    return hill(0.3, 0.08) + 0.01, hill(0.2, 0.05) + 0.7 * hill(0.75, 0.07) + 0.01


def broken_pairs(items: int = 14, broken: tuple[int, ...] = (4, 9)) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return two centered views of digits, (items, 64) each, some replaced by noise, and a mask of the right pairs."""
    x0, x1 = views(items, 0.2)
    x1[list(broken)] = torch.rand(len(broken), 64, generator=torch.Generator().manual_seed(1), dtype=x1.dtype)
    middle = torch.from_numpy(load_digits().data.mean(0)) / 16
    partners = torch.eye(items, dtype=torch.bool)
    partners[list(broken), list(broken)] = False
    return x0 - middle, x1 - middle, partners


def encoder_figures() -> Figures:
    """Figures of trained encoders and free points, by objective."""
    x0, x1 = views()
    alpha = theory.pair_weights(x0, x1, regularizer="direct", temperature=0.1)
    covariance = theory.contrastive_covariance(x0, x1, alpha)
    linear = theory.train_linear_encoder(x0, x1, 5, alpha=alpha)
    deep = theory.train_deep_linear_encoder(x0, x1, (16, 16, 8), alpha=alpha)
    collapse = theory.compare_collapse(torch.from_numpy(load_digits().data[:400]) / 16)
    polygon, simplex = theory.minimize_uniformity_loss(12, 2), theory.minimize_uniformity_loss(8, 7)
    toy = theory.train_on_five_gaussians()
    augmentation = theory.compute_noise_and_mixup_targets(items=100)
    print(f"energy of the digits {covariance.trace:.4f}, largest eigenvalue {covariance.eigenvalues[0]:.4f}")
    iterations = len(linear.energy_by_iteration) - 1
    print(
        f"linear encoder: largest angle {linear.principal_angles_by_iteration[-1].max():.1e} "
        f"after {iterations} iterations"
    )
    print(f"deep linear: rank-one shares {deep.rank_one_shares_by_iteration[-1].min():.6f} or more, alignments")
    print(f"  {deep.layer_alignments_by_iteration[-1].min():.6f} or more,")
    print(f"  |cos| with the top eigenvector {deep.top_eigenvector_cosine:.6f}")
    print("effective ranks:", {name: round(rank, 1) for name, rank in collapse.effective_ranks.items()})
    off_polygon, off_simplex = polygon.deviation_from_optimum, simplex.deviation_from_optimum
    print(f"polygon: off by {off_polygon:.1e} rad; simplex: cosines off by {off_simplex:.1e}")
    print(f"five Gaussians: alignment {toy.alignment:.4f}, uniformity {toy.untrained_uniformity:.3f} before,")
    print(f"  {toy.uniformity:.3f} after, {toy.perfect_uniformity:.3f} perfect")
    for k, d in enumerate(augmentation.dimensions):
        inside = (
            f"{augmentation.noise_share_in_plane[k]:.3f} of noise, {augmentation.mixup_share_in_plane[k]:.3f} of mixup"
        )
        within = (
            f"{augmentation.noise_mass_within_components[k]:.3f} of noise's target, "
            f"{augmentation.mixup_mass_within_components[k]:.3f} of mixup's"
        )
        print(f"d = {d}: in the plane {inside}; within components {within}")
    return {
        "contrastive-covariance": covariance.figure(),
        "linear-encoder": linear.figure(),
        "deep-linear": deep.figure(),
        "collapse": collapse.figure(),
        "polygon": polygon.figure(),
        "simplex": simplex.figure(),
        "five-gaussians": toy.figure(),
        "noise-and-mixup": augmentation.figure(),
    }


def plan_figures() -> Figures:
    """Figures of plans: effect of temperature, iterations, constraints and the uniformity penalty."""
    couplings = theory.compute_couplings_1d(*two_distributions())
    triangle = theory.solve_entropic_program()
    matching = theory.compare_constraints(*broken_pairs(), temperature=0.05, relaxation=0.5)
    penalty = theory.sweep_uniformity_penalty((0.0, 1.0, 10.0))
    by_iterations = couplings.lowest_temperature_coupling_by_iterations
    for name, result in {"exact": couplings.exact, **couplings.by_temperature, **by_iterations}.items():
        text = f"cost {result.cost:.4f}, entropy {result.entropy:.3f}, masses off by {result.marginal_error:.1e}"
        print(f"coupling {name}: {text}, {result.iterations} iterations")
    for temperature, margin in zip(triangle.temperatures[::16], triangle.smallest_masses[::16], strict=True):
        print(f"triangle: at temperature {temperature:.2g} the least mass is {margin:.1e}")
    for name, result in matching.plans_by_constraint.items():
        text = f"mass {result.mass:.2f}, on partners {result.true_pair_share:.2f}, uneven by {result.unevenness:.2f}"
        print(f"matching, {name}: {text}, columns used {result.effective_num_columns:.1f}")
    for factor, result in penalty.by_factor.items():
        text = f"penalty {result.penalty_value:.3f}, negatives uneven by {result.negatives_unevenness:.2f}"
        print(
            f"uniformity penalty times {factor:g}: {text}, uniformity {result.alignment_and_uniformity.uniformity:.2f}"
        )
    return {
        "couplings": couplings.figure(),
        "coupling-arrows": couplings.arrow_figure(),
        "triangle": triangle.figure(),
        "matching": matching.figure(),
        "uniformity-penalty": penalty.figure(),
    }


def feature_figures(items: int = 150) -> Figures:
    """Figures of the features of held-out digits, without labels."""
    digits, labels = load_digits(return_X_y=True)
    digits = digits / 16
    encoder = ContrastiveEncoder("nt-xent", random_state=0).fit(digits[items:])
    shown, classes = digits[:items], torch.from_numpy(labels[:items])
    features = torch.from_numpy(encoder.transform(shown))
    rows_by_name = {"pixels": torch.from_numpy(shown), "features": features}
    similarities = {name: theory.compute_item_cosines_by_class(rows, classes) for name, rows in rows_by_name.items()}
    for name, one in similarities.items():
        print(f"cosines of {name}: {one.within:.2f} within classes, {one.between:.2f} between")
    z0, z1 = views(16, 0.3)
    return {
        "similarity": similarities["features"].figure(),
        "plots-plan": gca_ince(0.1).plot(z0, z1),
        "plots-embedding": plots.embedding(features, classes, width=3.9),
        "plots-spectrum": plots.spectrum(rows_by_name, width=3.9),
        "plots-neighbors": plots.nearest_items(
            features, shown.reshape(-1, 8, 8), classes, queries=range(6), count=6, width=3.9
        ),
    }


def idea_figures(items: int = 14) -> Figures:
    """Figures of the page on the idea: a plan, three constraints and three targets on one batch."""
    z0, z1, _ = broken_pairs(items)
    classes = torch.from_numpy(load_digits().target[:items])
    order = classes.argsort(stable=True)
    z0, z1, classes = z0[order], z1[order], classes[order]
    kernel = Gibbs("cosine", 0.05)
    constraints = {"rows (InfoNCE)": Rows(), "balanced (Sinkhorn)": Balanced(10_000, 1e-6)}
    constraints |= {"unbalanced": Unbalanced(0.5, 1000, tolerance=1e-6)}
    losses = {name: Objective(Cross(), kernel, constraint, Pairs(), KL()) for name, constraint in constraints.items()}
    plans = {name: loss.plan(z0, z1) for name, loss in losses.items()}
    for name, plan in plans.items():
        text = f"loss {losses[name](z0, z1):.3f}, mass {plan.sum():.2f}, largest column {plan.sum(0).max() * items:.2f}"
        print(f"idea, {name}: {text}, smallest {plan.sum(0).min() * items:.2f} of its share")
    targets = {"pairs": Pairs(), "labels": Labels(), "soft, by pixels": SoftNeighbors(z0, Gibbs("cosine", 0.2))}
    targets = {
        name: Objective(Cross(), kernel, Rows(), target, KL()).target_plan(z0, z1, labels=classes)
        for name, target in targets.items()
    }
    even = torch.full((items,), 1 / items)
    return {
        "idea-plan": losses["rows (InfoNCE)"].plot(z0, z1),
        "idea-constraints": plots.couplings(plans, even, even),
        "idea-targets": plots.couplings(targets, even, even),
    }


PARTS = {"idea": idea_figures, "encoders": encoder_figures, "plans": plan_figures, "digits": feature_figures}


def main() -> None:
    """Draw all figures, or those of the named parts; all take about two minutes."""
    IMAGES.mkdir(exist_ok=True)
    for part in sys.argv[1:] or PARTS:
        for name, figure in PARTS[part]().items():
            save_figure(IMAGES / f"{name}.png", figure, dpi=110)


if __name__ == "__main__":
    main()
