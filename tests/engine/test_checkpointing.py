"""Gradient checkpointing of losses: saved tensors are unpacked once, and recomputed after they are freed."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import contraport
from contraport.engine import backend

LOSSES = {
    "half steps": contraport.gca_uot,
    "fixed plan": contraport.alpha_cl,
    "fixed point": lambda: contraport.Objective(
        contraport.Cross(),
        contraport.Gibbs("cosine", 0.5),
        contraport.Balanced(iterations=500, tolerance=1e-10),
        contraport.Pairs(),
        contraport.KL(),
    ),
    "own cost": lambda: contraport.Objective(
        contraport.Cross(), contraport.Gibbs(torch.cdist), contraport.Rows(), contraport.Pairs(), contraport.KL()
    ),
}


@pytest.mark.parametrize("name", ["dense", "stored", "streamed"])
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_a_loss_under_checkpointing(loss, reentrant, name):
    z = [view.requires_grad_() for view in torch.randn(2, 40, 5, dtype=torch.float64)]
    loss = loss()
    with backend(name):
        expected = torch.autograd.grad(loss(*z), z)
        checkpoint(loss, *z, use_reentrant=reentrant).backward()
    for view, slope in zip(z, expected, strict=True):
        torch.testing.assert_close(view.grad, slope, rtol=1e-10, atol=1e-12)
