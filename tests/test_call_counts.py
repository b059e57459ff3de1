"""Upper bounds on the Python calls within contraport: of a loss, of `train` to its first step, and of `evaluate`.

They are counted in a second call, when modules and constants are there.
"""

import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

import contraport

SOURCE = str(Path(contraport.__file__).parent)


@contextmanager
def counting(of="co_qualname"):
    """Count the calls of the block, by the qualified name of the function or another attribute of its code."""
    calls = Counter()

    def profile(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(SOURCE):
            calls[getattr(frame.f_code, of)] += 1

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield calls
    finally:
        sys.setprofile(before)


def train(out):
    return contraport.train(data="digits", max_items=300, epochs=1, out=out, progress=False, threads=1, device="cpu")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(tmp_path_factory.mktemp("runs") / "run")


def test_calls_of_a_loss():
    z0, z1 = torch.randn(2, 128, 16)
    loss = contraport.nt_xent()
    loss(z0, z1)
    with counting() as calls:
        loss(z0, z1)
    with counting("co_filename") as files:
        loss(z0, z1)
    assert calls.total() <= 90
    assert len(files) <= 18


def test_calls_of_train_to_its_first_step(run, tmp_path):
    with counting() as calls:
        hook = register_optimizer_step_pre_hook(lambda *_: sys.setprofile(None))
        try:
            train(tmp_path / "run")
        finally:
            hook.remove()
    assert calls.total() <= 1_900
    assert calls["build_objective"] == 1
    assert calls["Settings.__post_init__"] == 1


def test_calls_of_evaluate(run):
    contraport.evaluate(run.path, progress=False)
    with counting() as calls:
        contraport.evaluate(run.path, progress=False)
    assert calls.total() <= 3_800
    assert calls["build_objective"] == 1
    assert calls["Settings.__post_init__"] == 1
