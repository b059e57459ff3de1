from __future__ import annotations

import json

import pytest
import torch

import contraport
from contraport.cli import doctor as module

from .conftest import Outcome


def test_losses_pass() -> None:
    for name in ("dense", "stored", "streamed"):
        module._check_losses_of_backend("cpu", name)


def test_detects_wrong_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    original = module._compute_loss_and_z0_gradient

    def with_wrong_gradient(
        objective: str, dtype: torch.dtype, device: str, name: str
    ) -> tuple[torch.Tensor, torch.Tensor]:
        value, slope = original(objective, dtype, device, name)
        return value, slope * (1.01 if dtype == torch.float32 else 1)

    monkeypatch.setattr(module, "_compute_loss_and_z0_gradient", with_wrong_gradient)
    result = module._run_self_test("losses", lambda: module._check_losses_of_backend("cpu", "stored"))
    assert "nt-xent" in str(result.failure)
    assert "1.0e-02" in str(result.failure)


def test_failure_is_printed_and_sets_exit_status(command, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing_test() -> None:
        raise RuntimeError("the\n  disk")

    monkeypatch.setattr(
        module, "_iter_self_tests", lambda extras: [("something", failing_test), ("all else", lambda: None)]
    )
    result: Outcome = command("doctor")
    assert result.status == 1
    assert "failed: something" in result.out
    assert "RuntimeError: the disk" in result.out
    assert "passed: all else" in result.out
    first, second, failure = result.err.splitlines()
    assert first == "self-test 1 of 2: something"
    assert second == "self-test 2 of 2: all else"
    assert "something" in failure
    assert command("doctor", "--progress", "false").err.count("\n") == 1


def test_json_output(command) -> None:
    result: Outcome = command("doctor", "--test", "false", "--json")
    report = json.loads(result.out)
    assert (
        report["versions"]["torch"] == torch.__version__.split("+")[0]
        or report["versions"]["torch"] == torch.__version__
    )
    assert report["extra_versions"]["train"]["timm"]
    assert report["checks"] == []


@pytest.mark.slow
def test_all_self_tests_pass() -> None:
    result = contraport.doctor()
    assert result.passed, result.checks
    assert any("training" in one.name for one in result.checks)
