"""Every objective of the catalog on a CUDA device (-m gpu), against double precision on the CPU."""

import pytest
import torch
from tests.objectives.comparing import required_attributes, views

import contraport
from contraport.catalog import OBJECTIVES
from contraport.engine import backend

pytestmark = pytest.mark.gpu

N = 700
SETTINGS = {"direct-clr": {"dimensions": 8}}


def outcome(name, dtype, device, backend_name):
    loss = contraport.objective(name, **SETTINGS.get(name, {})).to(device, dtype)
    z = [view.to(device, dtype).requires_grad_() for view in views(N, 24)]
    attributes = {key: value.to(device) for key, value in required_attributes(name, N).items()}
    with backend(backend_name):
        value = loss(*z, **attributes)
    return value.detach(), torch.autograd.grad(value, z, allow_unused=True, materialize_grads=True)


@pytest.mark.parametrize("backend_name", ["cuda", "dense"])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_matches_the_cpu(name, backend_name):
    value, slopes = outcome(name, torch.float32, "cuda", backend_name)
    exact, expected = outcome(name, torch.float64, "cpu", "dense")
    assert value.is_cuda
    torch.testing.assert_close(value.cpu().double(), exact, rtol=1e-4, atol=1e-5)
    largest = max(slope.abs().max() for slope in expected)
    for slope, reference in zip(slopes, expected, strict=True):
        assert (slope.cpu() - reference).abs().max() <= 1e-3 * largest


@pytest.mark.parametrize("name", OBJECTIVES)
def test_in_autocast(name):
    """Half-precision embeddings, as a training with ``amp`` has them: finite, and near those of single precision."""
    loss = contraport.objective(name, **SETTINGS.get(name, {})).cuda()
    z = [view.to("cuda", torch.bfloat16).requires_grad_() for view in views(N, 24)]
    attributes = {key: value.cuda() for key, value in required_attributes(name, N).items()}
    with torch.autocast("cuda", torch.bfloat16), backend("cuda"):
        value = loss(*z, **attributes)
    slopes = torch.autograd.grad(value, z, allow_unused=True, materialize_grads=True)
    exact = contraport.objective(name, **SETTINGS.get(name, {})).cuda()(*(v.detach().float() for v in z), **attributes)
    assert all(slope.isfinite().all() for slope in slopes)
    torch.testing.assert_close(value.float(), exact, rtol=2e-2, atol=1e-2)
