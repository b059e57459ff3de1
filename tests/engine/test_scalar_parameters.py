"""Scalar parameters (temperature, bias): shape (1,) for FSDP2, and states of earlier versions with shape ()."""

import copy
import pickle

import pytest
import torch
from tests.processes import run_in_processes
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import contraport

LOSSES = {
    "temperature": lambda: contraport.info_nce("learn"),
    "temperature and bias": lambda: contraport.sigmoid("learn"),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_loads_states_without_a_dimension(loss):
    old = {name: (value + 0.25).reshape(()) for name, value in loss().state_dict().items()}
    saved, new = dict(old), copy.deepcopy(pickle.loads(pickle.dumps(loss())))
    new.load_state_dict(old)
    assert {name: value.shape for name, value in new.state_dict().items()} == dict.fromkeys(old, (1,))
    assert all(new.state_dict()[name] == value for name, value in saved.items())
    torch.nn.ModuleDict({"loss": loss()}).load_state_dict({f"loss.{name}": value for name, value in old.items()})


def step_under_fsdp(rank, report, name, z, expected):
    loss = LOSSES[name]()
    fully_shard(loss, mesh=init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.SGD(loss.parameters(), lr=1.0)
    loss(*(view[2 * rank : 2 * rank + 2] for view in z)).backward()
    optimizer.step()
    learned = torch.cat([parameter.full_tensor() for parameter in loss.parameters()])
    torch.testing.assert_close(learned, expected)
    report(loss.temperature)


@pytest.mark.parametrize("name", LOSSES)
def test_fsdp_matches_one_process(name):
    z = torch.randn(2, 4, 3)
    loss = LOSSES[name]()
    loss(*z).backward()
    torch.optim.SGD(loss.parameters(), lr=1.0).step()
    expected = torch.cat([parameter.detach() for parameter in loss.parameters()])
    assert run_in_processes(step_under_fsdp, 2, name, z, expected) == pytest.approx(2 * [loss.temperature])
