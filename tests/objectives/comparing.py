"""Batch, attributes and comparison of gradients for the tests of objectives."""

import torch

import contraport

BACKENDS = ["dense", "stored", "streamed"]
LABELS = torch.tensor([0, 1, 0, 2, 1, 0, 3])
DOMAINS = torch.tensor([0, 1, 0, 1, 1, 2, 0])
IDS = torch.tensor([0, 1, 2, 1, 4, 0, 0])


OF_COORDINATES = {"barlow-twins", "vic-reg"}
"""Objectives that compare coordinates, and so take no attributes of items."""


RANKING = ("cosent", "angle")
"""Names of objectives that rank pairs by their weights, and have no value for each row."""


def required_attributes(name, n=7):
    """Return the attributes of n items that an objective requires."""
    generator = torch.Generator().manual_seed(11)
    features = torch.randn(n, 3, dtype=torch.float64, generator=generator)
    return {
        "sup-con": {"labels": torch.arange(n) % 3},
        "x-clr": {"features": features},
        "guided": {"features": features},
        "sog-clr": {"ids": torch.arange(n)},
        "cosent": {"weights": torch.arange(n).double() % 4 + 0.5},
        "angle": {"weights": torch.arange(n).double() % 4 + 0.5},
    }.get(name, {})


def build(name, **settings):
    """Build an objective of the catalog with parameters and averages in double precision."""
    return contraport.objective(name, **settings).double()


def views(n=7, d=5, k=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(n, d, dtype=torch.float64, generator=generator) for _ in range(k))


def outcome(function, *z):
    """Return the value and its gradient in each view."""
    z = [view.clone().requires_grad_() for view in z]
    value = function(*z)
    slopes = torch.autograd.grad(value, z, allow_unused=True)
    return value.detach(), [torch.zeros_like(view) if s is None else s for view, s in zip(z, slopes, strict=True)]


def assert_same(result, expected, rtol=1e-9):
    """Compare a value and gradients, the latter relative to their largest entry."""
    torch.testing.assert_close(result[0], expected[0], rtol=rtol, atol=rtol)
    largest = max([slope.abs().max().item() for slope in expected[1]])
    for a, b in zip(result[1], expected[1], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=rtol * max(largest, 1e-3))
