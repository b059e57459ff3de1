"""Half precision: errors are those of the rounded embeddings and of the rounded gradient.

The error is that against the same formula in double precision on the same rounded embeddings. It must stay below the
table's tolerance, and below the error of the formula carried out densely by torch in half precision, plans and all.
"""

import math

import pytest
import torch
from tests.objectives import formulas
from tests.objectives.comparing import required_attributes

import contraport
from contraport.catalog import OBJECTIVES

# dtype: the largest relative error of the value, which is in single precision, and of the gradient, which is rounded to
# half precision at the end: entries are then off by up to eps / 2 each, and less in the mean.
TOLERANCES = {
    torch.bfloat16: (2e-5, 0.4 * torch.finfo(torch.bfloat16).eps),
    torch.float16: (2e-5, 0.4 * torch.finfo(torch.float16).eps),
}
SETTINGS = {"direct-clr": {"dimensions": 16}}


def views(dtype, n=64, d=32):
    """Return two similar views of items, as in training."""
    generator = torch.Generator().manual_seed(0)
    items = torch.randn(n, d, generator=generator)
    return [(items + 0.5 * torch.randn(n, d, generator=generator)).to(dtype) for _ in range(2)]


def outcome(function, z):
    z = [view.clone().requires_grad_() for view in z]
    value = function(*z)
    slopes = torch.autograd.grad(value, z, allow_unused=True)
    slopes = [torch.zeros_like(view) if slope is None else slope for view, slope in zip(z, slopes, strict=True)]
    return value.detach().double(), torch.cat(slopes).double()


def errors(result, exact):
    """Return the relative errors of the value and of the gradient; infinite for NaN."""
    pairs = [
        (abs(a - b) / abs(b) if a.ndim == 0 else (a - b).norm() / b.norm()) for a, b in zip(result, exact, strict=True)
    ]
    return [math.inf if error.isnan() else error.item() for error in pairs]


@pytest.mark.parametrize("backend", ["dense", "stored", "streamed"])
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("name", OBJECTIVES)
def test_errors_are_below_tolerance_and_below_those_of_torch(name, dtype, backend):
    settings, attributes, z = SETTINGS.get(name, {}), required_attributes(name, 64), views(dtype)

    def by_formula(*z):
        return getattr(formulas, name.replace("-", "_"))(*z, **settings, **attributes)

    loss = contraport.objective(name, **settings)
    with contraport.engine.backend(backend):
        result = outcome(lambda *z: loss(*z, **attributes), z)
    exact = outcome(by_formula, [view.double() for view in z])
    errors_of_loss, errors_of_torch = errors(result, exact), errors(outcome(by_formula, z), exact)
    for error, tolerance, other in zip(errors_of_loss, TOLERANCES[dtype], errors_of_torch, strict=True):
        assert error <= tolerance
        assert error <= other


@pytest.mark.parametrize("backend", ["dense", "stored", "streamed"])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_gradient_taken_within_autocast_is_in_single_precision(name, backend):
    loss, z = contraport.objective(name, **SETTINGS.get(name, {})).eval(), views(torch.float32, n=20)
    attributes = {key: v.float() if v.is_floating_point() else v for key, v in required_attributes(name, 20).items()}
    with contraport.engine.backend(backend):
        expected = outcome(lambda *z: loss(*z, **attributes), z)
        with torch.autocast("cpu", torch.bfloat16):
            result = outcome(lambda *z: loss(*z, **attributes), z)
    for a, b in zip(result, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def test_target_matrix_within_autocast():
    loss, z, target = contraport.info_nce(), views(torch.float32, n=20), torch.rand(20, 20)
    expected = outcome(lambda *z: loss(*z, target=target), z)
    with torch.autocast("cpu", torch.bfloat16):
        result = outcome(lambda *z: loss(*z, target=target), z)
    for a, b in zip(result, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)
