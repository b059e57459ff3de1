"""Adapters in several processes with wrapped models: the gradient equals that of one process."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import contraport
from contraport.distributed import use_local_batch
from contraport.integrations import MemoryBankLoss, SentenceTransformerLoss
from tests.processes import run_in_processes

SIZES = 5, 3


class Encoder(nn.Module):
    """Encoder of vectors with the interface of a SentenceTransformer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 4)).double()

    def forward(self, features):
        return {"sentence_embedding": self.layers(features["values"])}


def columns(rows):
    generator = torch.Generator().manual_seed(1)
    return [{"values": torch.randn(8, 3, dtype=torch.float64, generator=generator)[rows]} for _ in range(3)]


def value_and_gradient(loss, rows, labels, model):
    value = loss(columns(rows), None if labels is None else labels[rows])
    value.backward()
    return value.detach(), torch.cat([p.grad.flatten() for p in model.parameters()])


def report_differences(rank, report):
    own = slice(sum(SIZES[:rank]), sum(SIZES[: rank + 1]))
    scores = torch.rand(8, 2, generator=torch.Generator().manual_seed(2))
    for labels in (None, scores, scores[:, 0]):
        for chunk in (None, 2):
            for name, settings in (("info-nce", {"symmetric": False}), ("info-nce", {})):
                alone, together = Encoder(), DistributedDataParallel(Encoder())
                with use_local_batch():
                    loss = SentenceTransformerLoss(alone, contraport.objective(name, **settings))
                    value, slope = value_and_gradient(loss, slice(None), labels, alone)
                loss = SentenceTransformerLoss(together, contraport.objective(name, **settings), mini_batch_size=chunk)
                result, averaged = value_and_gradient(loss, own, labels, together)
                if not (torch.allclose(result, value) and torch.allclose(averaged, slope, rtol=1e-6, atol=1e-9)):
                    report((rank, name, str(settings), chunk, float((averaged - slope).abs().max())))
    bank = MemoryBankLoss((6, 4)).double()
    key = torch.randn(8, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    bank(key[own].clone().requires_grad_(), key[own])
    with use_local_batch():
        one = MemoryBankLoss((6, 4)).double()
        one(key.clone().requires_grad_(), key)
    if not torch.equal(bank.bank, one.bank):
        report((rank, "bank"))


def test_gradient_of_a_wrapped_model_matches_one_process():
    assert not run_in_processes(report_differences, len(SIZES))
