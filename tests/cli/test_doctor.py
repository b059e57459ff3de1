from __future__ import annotations

import json

import pytest
import torch

import contraport
from contraport.cli import doctor as module

from .conftest import Outcome


def test_losses_are_well_here() -> None:
    for name in ("dense", "stored", "streamed"):
        module._compare("cpu", name)


def test_a_wrong_gradient_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    right = module._gradient

    def wrong(objective: str, dtype: torch.dtype, device: str, name: str) -> tuple[torch.Tensor, torch.Tensor]:
        value, slope = right(objective, dtype, device, name)
        return value, slope * (1.01 if dtype == torch.float32 else 1)

    monkeypatch.setattr(module, "_gradient", wrong)
    tried = module._tried("losses", lambda: module._compare("cpu", "stored"))
    assert "nt-xent: the value is" in str(tried.failure)
    assert "off by 1.0e-02" in str(tried.failure)


def test_what_fails_is_printed_and_is_the_exit_status(command, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("the\n  disk")

    monkeypatch.setattr(module, "_tests", lambda extras: [("something", broken), ("all else", lambda: None)])
    found: Outcome = command("doctor")
    assert found.status == 1
    assert "failed: something" in found.out
    assert "RuntimeError: the disk" in found.out
    assert "passed: all else" in found.out
    assert found.err == "contraport: 1 of 2 checks failed: something.\n"


def test_for_other_programs(command) -> None:
    found: Outcome = command("doctor", "--test", "false", "--json")
    told = json.loads(found.out)
    assert (
        told["versions"]["torch"] == torch.__version__.split("+")[0] or told["versions"]["torch"] == torch.__version__
    )
    assert told["extras"]["train"]["timm"]
    assert told["checks"] == []


@pytest.mark.slow
def test_all_of_it() -> None:
    found = contraport.doctor()
    assert found.well, found.checks
    assert any("training" in one.name for one in found.checks)
