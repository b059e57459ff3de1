"""Training under DistributedDataParallel equals training in one process, including uneven last batches."""

import pytest
import torch
from tests.processes import run_in_processes
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import contraport

BATCHES = [((0, 4), (4, 8)), ((8, 12), (12, 16)), ((16, 19), (19, 20))]
"""The items of each process in each batch; the last one is short, and shorter for the second process."""

LOSSES = {
    "nt_xent": lambda: contraport.nt_xent(temperature=0.2),
    "gca_uot": lambda: contraport.gca_uot(temperature=0.2, iterations=3),
    "learnable": lambda: contraport.Objective(
        contraport.Cross(),
        contraport.Gibbs("cosine", 0.2, learnable=True),
        contraport.Balanced(2),
        contraport.Pairs(),
        contraport.KL(),
    ),
}


class Learner(nn.Module):
    """Encoder and loss in one module, so that the wrapper has all parameters."""

    def __init__(self, loss):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
        self.loss = loss

    def forward(self, x0, x1):
        return self.loss(self.encoder(x0), self.encoder(x1))


def train(name, backend, share, wrap):
    """Return the losses and the parameters after a step on each batch; `share` returns the items of this process."""
    torch.manual_seed(0)
    x0, x1 = torch.randn(2, 20, 6, dtype=torch.float64)
    learner = Learner(LOSSES[name]()).double()
    model = wrap(learner)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    values = []
    with contraport.engine.backend(backend):
        for batch in BATCHES:
            items = slice(*share(batch))
            optimizer.zero_grad()
            value = model(x0[items], x1[items])
            value.backward()
            optimizer.step()
            values.append(value.detach())
    return [*values, *(p.detach() for p in learner.parameters())]


def report_differences(rank, report):
    contraport.engine.backends.tiled.TILE_SHAPE = 4, 8
    for name in LOSSES:
        for backend in ("dense", "streamed"):
            with contraport.distributed.use_local_batch():
                alone = train(name, backend, lambda batch: (batch[0][0], batch[-1][1]), lambda learner: learner)
            together = train(name, backend, lambda batch: batch[rank], DistributedDataParallel)
            if not all(torch.allclose(a, b, rtol=1e-8, atol=1e-10) for a, b in zip(alone, together, strict=True)):
                report((rank, name, backend))


def test_training_matches_one_process():
    assert not run_in_processes(report_differences, 2)


@pytest.mark.parametrize("name", LOSSES)
def test_the_result_depends_on_the_split_into_batches(name):
    """The comparison above can fail."""
    on_all_items = train(name, "dense", lambda batch: (batch[0][0], batch[-1][1]), lambda learner: learner)
    on_own_items = train(name, "dense", lambda batch: batch[0], lambda learner: learner)
    assert not torch.allclose(on_all_items[-1], on_own_items[-1])
