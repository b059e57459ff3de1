"""Draw the figures of theory.md and print the numbers behind them: ``python -m docs.figures``."""

from __future__ import annotations

from pathlib import Path

import torch
from sklearn.datasets import load_digits

from contraport import analysis

IMAGES = Path(__file__).parent / "images"


def views(items: int = 300, noise: float = 0.1) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two views of handwritten digits, (items, 64) each: pixels from 0 to 1, with Gaussian noise."""
    x = torch.from_numpy(load_digits().data[:items]) / 16
    generator = torch.Generator().manual_seed(0)
    first, second = (x + noise * torch.randn(x.shape, generator=generator, dtype=x.dtype) for _ in range(2))
    return first, second


def main() -> None:
    """Compute everything that the page shows; it takes about a minute."""
    x0, x1 = views()
    alpha = analysis.pair_weights(x0, x1, regularizer="direct", temperature=0.1)
    covariance = analysis.contrastive_covariance(x0, x1, alpha)
    linear = analysis.linear_encoder(x0, x1, 5, alpha=alpha)
    deep = analysis.deep_linear(x0, x1, (16, 16, 8), alpha=alpha)
    collapse = analysis.collapse(torch.from_numpy(load_digits().data[:400]) / 16)
    polygon, simplex = analysis.perfect_uniformity(12, 2), analysis.perfect_uniformity(8, 7)
    toy = analysis.five_gaussians()
    augmentation = analysis.noise_and_mixup(items=100)
    figures = {
        "contrastive-covariance": covariance,
        "linear-encoder": linear,
        "deep-linear": deep,
        "collapse": collapse,
        "polygon": polygon,
        "simplex": simplex,
        "five-gaussians": toy,
        "noise-and-mixup": augmentation,
    }
    IMAGES.mkdir(exist_ok=True)
    for name, result in figures.items():
        result.figure().savefig(IMAGES / f"{name}.png", dpi=110)
    print(f"energy of the digits {covariance.energy:.4f}, largest eigenvalue {covariance.eigenvalues[0]:.4f}")
    print(f"linear encoder: largest angle {linear.angles[-1].max():.1e} after {len(linear.energies) - 1} iterations")
    print(f"deep linear: rank-one shares {deep.rank_one_shares[-1].min():.6f} or more, alignments")
    print(f"  {deep.alignments[-1].min():.6f} or more, |cos| with the top eigenvector {deep.direction:.6f}")
    print("effective ranks:", {name: round(rank, 1) for name, rank in collapse.effective_ranks.items()})
    print(f"polygon: off by {polygon.deviation:.1e} rad; simplex: cosines off by {simplex.deviation:.1e}")
    print(f"five Gaussians: alignment {toy.alignment:.4f}, uniformity {toy.untrained_uniformity:.3f} before,")
    print(f"  {toy.uniformity:.3f} after, {toy.perfect_uniformity:.3f} perfect")
    for k, d in enumerate(augmentation.dimensions):
        inside = f"{augmentation.noise_in_plane[k]:.3f} of noise, {augmentation.mixup_in_plane[k]:.3f} of mixup"
        within = f"{augmentation.noise_within[k]:.3f} of noise's target, {augmentation.mixup_within[k]:.3f} of mixup's"
        print(f"d = {d}: in the plane {inside}; within components {within}")


if __name__ == "__main__":
    main()
