"""The doors under several processes, as trainers wrap the model: the gradient is that of one process."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import contraport
from contraport.distributed import local
from contraport.integrations import BankLoss, SentenceLoss
from tests.training.ranks import failures_of

SIZES = 5, 3


class Encoder(nn.Module):
    """Texts of three numbers, as a SentenceTransformer takes them."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 4)).double()

    def forward(self, features):
        return {"sentence_embedding": self.layers(features["values"])}


def columns(rows):
    generator = torch.Generator().manual_seed(1)
    return [{"values": torch.randn(8, 3, dtype=torch.float64, generator=generator)[rows]} for _ in range(3)]


def stepped(loss, rows, labels, model):
    value = loss(columns(rows), None if labels is None else labels[rows])
    value.backward()
    return value.detach(), torch.cat([p.grad.flatten() for p in model.parameters()])


def compare(rank, address, failures):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=len(SIZES))
    own = slice(sum(SIZES[:rank]), sum(SIZES[: rank + 1]))
    scores = torch.rand(8, 2, generator=torch.Generator().manual_seed(2))
    for labels in (None, scores, scores[:, 0]):
        for chunk in (None, 2):
            for name, settings in (("info-nce", {"symmetric": False}), ("info-nce", {})):
                alone, together = Encoder(), DistributedDataParallel(Encoder())
                with local():
                    loss = SentenceLoss(alone, contraport.objective(name, **settings))
                    value, slope = stepped(loss, slice(None), labels, alone)
                loss = SentenceLoss(together, contraport.objective(name, **settings), mini_batch_size=chunk)
                found, averaged = stepped(loss, own, labels, together)
                if not (torch.allclose(found, value) and torch.allclose(averaged, slope, rtol=1e-6, atol=1e-9)):
                    failures.put((rank, name, str(settings), chunk, float((averaged - slope).abs().max())))
    bank = BankLoss((6, 4)).double()
    key = torch.randn(8, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    bank(key[own].clone().requires_grad_(), key[own])
    with local():
        one = BankLoss((6, 4)).double()
        one(key.clone().requires_grad_(), key)
    if not torch.equal(bank.bank, one.bank):
        failures.put((rank, "bank"))
    dist.destroy_process_group()
    os._exit(0)  # torch now and then aborts in its own teardown, when all is done


def test_the_gradient_of_a_wrapped_model_is_that_of_one_process():
    assert not failures_of(compare, len(SIZES))
