"""Training in several processes: results equal to one process, one run folder, and one error message."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from contraport import distributed
from contraport.errors import UsageError
from contraport.runs import Run, as_run_folder
from contraport.training import train
from tests import TIMEOUT
from tests.errors import raises_usage_error
from tests.processes import run_in_processes
from tests.training.process_workers import (
    check_collectives,
    fail_in_first_process,
    iterate_failing_stream,
    train_in_double_precision,
    train_on_different_items,
    train_with_unreadable_image,
    wait_for_slow_process,
)

from .test_train import list_files

# 21 steps with an odd batch size, so that the shares of the processes differ.
ARGUMENTS = [
    "--data",
    "digits",
    "--encoder",
    "mlp",
    "--batch_size",
    "63",
    "--epochs",
    "1",
    "--optimizer",
    "sgd",
    "--seed",
    "3",
]


LOCAL_ADDRESS = ["--local_addr", "127.0.0.1"]  # the host name may not resolve
TWO_LOCAL_PROCESSES = ["--standalone", *LOCAL_ADDRESS, "--nproc_per_node", "2"]


def torchrun(
    *arguments: str, module: str = "contraport", launch: Sequence[str] = TWO_LOCAL_PROCESSES
) -> subprocess.Popen[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", *launch]
    return subprocess.Popen(
        [*launcher, "-m", module, "train", *arguments, "--device", "cpu"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def read_errors(process: subprocess.Popen[str]) -> str:
    """Wait for the end of a process, and return its standard error."""
    try:
        return process.communicate(timeout=TIMEOUT)[1]
    finally:
        process.kill()


def select_command_lines(errors: str) -> list[str]:
    """Return the lines written by the command itself."""
    return [line for line in errors.splitlines() if line.startswith("contraport: ")]


def collect_checkpoint_state(run: Run) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = torch.load(as_run_folder(run).checkpoints / "last.ckpt", weights_only=True)[
        "pipeline"
    ]
    return state


@pytest.mark.parametrize(
    "options",
    [
        pytest.param([], marks=pytest.mark.slow),  # covered by the other cases, apart from ring and shards
        ["--exchange", "ring"],
        ["--strategy", "fsdp", "--recipe", "byol", "--gradient_clip", "0.5"],
        pytest.param(["--strategy", "fsdp", "--grad_accum_steps", "2"], marks=pytest.mark.slow),
        pytest.param(["--strategy", "fsdp", "--cache_chunk", "20"], marks=pytest.mark.slow),
        pytest.param(["--gradient_clip", "0.1", "--grad_accum_steps", "2"], marks=pytest.mark.slow),
        pytest.param(["--cache_chunk", "20"], marks=pytest.mark.slow),
        pytest.param(["--target", "neighbors:k=4", "--projection_layers", "3"], marks=pytest.mark.slow),
        pytest.param(["--recipe", "late-interaction", "--encoder", "small-cnn"], marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_two_processes_equal_one(tmp_path: Path, options: list[str]) -> None:
    arguments = [*ARGUMENTS, *options]
    two = torchrun(*arguments, "--out", str(tmp_path / "two"), module="tests.training.double_precision_cli")
    arguments = [*ARGUMENTS, *(options[2:] if {"--strategy", "--exchange"} & {*options} else options)]
    alone = [sys.executable, "-m", "tests.training.double_precision_cli", "train", *arguments, "--device", "cpu"]
    subprocess.run([*alone, "--out", str(tmp_path / "one")], check=True, stderr=subprocess.PIPE)
    errors = read_errors(two)
    assert two.returncode == 0, errors
    one = Run(tmp_path / "one")
    expected, actual = collect_checkpoint_state(one), collect_checkpoint_state(Run(tmp_path / "two"))
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.allclose(actual[name], value, rtol=0, atol=1e-9), name
    assert list_files(tmp_path / "two") == list_files(one.path)
    rows = Run(tmp_path / "two").metrics_rows()
    assert [row["step"] for row in rows] == [row["step"] for row in one.metrics_rows()]
    assert errors.count("waiting") == 1  # only one process logs


@pytest.mark.slow
@pytest.mark.parametrize("method", ["distillation", "coupling"])
def test_two_processes_equal_one_with_a_teacher_and_links(tmp_path: Path, method: str) -> None:
    """Single precision, since features of a teacher and popularity weights are single precision."""
    random = np.random.default_rng(0)
    if method == "distillation":
        np.save(tmp_path / "teacher.npy", random.normal(size=(1348, 12)).astype(np.float32))
        options = [*ARGUMENTS, "--recipe", "distillation", "--teacher", str(tmp_path / "teacher.npy")]
    else:
        sides = {"rows": random.normal(size=(90, 4)), "columns": random.normal(size=(30, 4))}
        for side, items in sides.items():
            lines = [",".join(map(str, (f"{side[0]}{position}", *item))) for position, item in enumerate(items)]
            (tmp_path / f"{side}.csv").write_text("\n".join(["id,a,b,c,d", *lines]))
        links = np.argwhere(sides["rows"] @ sides["columns"].T > 1.5)
        lines = [f"r{row},c{column}" for row, column in links]
        (tmp_path / "pairs.csv").write_text("\n".join(["row,column", *lines]))
        options = ["--data", str(tmp_path), "--objective", "info-nce", "--objective_settings.symmetric", "false"]
        options += ["--log_q", "--shared_encoder", "false", "--batch_size", "63", "--epochs", "2", "--optimizer", "sgd"]
    two = torchrun(*options, "--out", str(tmp_path / "runs" / "two"))
    alone = [sys.executable, "-m", "contraport", "train", *options, "--device", "cpu"]
    subprocess.run([*alone, "--out", str(tmp_path / "runs" / "one")], check=True, stderr=subprocess.PIPE)
    errors = read_errors(two)
    assert two.returncode == 0, errors
    expected, actual = (collect_checkpoint_state(Run(tmp_path / "runs" / name)) for name in ("one", "two"))
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.allclose(actual[name], value, rtol=1e-4, atol=1e-5), name


@pytest.mark.slow
def test_sharded_run_is_resumed_with_and_without_sharding(tmp_path: Path) -> None:
    """Checkpoints contain unsharded tensors of model and optimizer for any number of processes."""
    arguments = [*ARGUMENTS, "--lr_scheduler", "constant", "--warmup_epochs", "0", "--weight_decay", "0.1"]
    last = ["--epochs", "3"]
    module = "tests.training.double_precision_cli"
    alone = [sys.executable, "-m", module, "train", "--device", "cpu"]
    subprocess.run([*alone, *arguments, *last, "--out", str(tmp_path / "one")], check=True, stderr=subprocess.PIPE)
    parts = str(tmp_path / "parts")
    for resumed in (arguments, ["--resume", "--epochs", "2"]):
        process = torchrun(*resumed, "--strategy", "fsdp", "--out", parts, module=module)
        errors = read_errors(process)
        assert process.returncode == 0, errors
    subprocess.run([*alone, "--resume", "--strategy", "ddp", *last, "--out", parts], check=True, stderr=subprocess.PIPE)
    expected, actual = collect_checkpoint_state(Run(tmp_path / "one")), collect_checkpoint_state(Run(parts))
    for name, value in expected.items():
        assert torch.allclose(actual[name], value, rtol=0, atol=1e-9), name
    model = Run(parts).model().state_dict()
    assert all(torch.equal(value, actual[f"model.{name}"].to(value.dtype)) for name, value in model.items())


def test_rejects_sharding_in_one_process(settings: dict[str, Any]) -> None:
    with raises_usage_error("strategy.one_process"):
        train(**settings, strategy="fsdp")
    with raises_usage_error("exchange.one_process"):
        train(**settings, exchange="ring")


@pytest.mark.slow
def test_two_processes_equal_one_on_each_kind_of_data(tmp_path: Path) -> None:
    """The data are a stream, items transformed by a callable, and image files that the first process decodes."""
    generator = np.random.default_rng(0)
    for place in ("one", "two"):
        (tmp_path / place / "photos").mkdir(parents=True)
    for number in range(30):
        photo = Image.fromarray(generator.integers(0, 255, (8, 8, 3)).astype(np.uint8))
        for place in ("one", "two"):
            photo.save(tmp_path / place / "photos" / f"{number}.png")
    module, env = ["-m", "tests.training.data_kinds_script"], {**os.environ, "OMP_NUM_THREADS": "1"}
    for place, launch in (("one", []), ("two", ["-m", "torch.distributed.run", *TWO_LOCAL_PROCESSES])):
        command = [sys.executable, *launch, *module, str(tmp_path / place)]
        subprocess.run(command, check=True, env=env, stderr=subprocess.PIPE, timeout=TIMEOUT)
    for kind in ("stream", "changed", "decoded"):
        one, two = Run(tmp_path / "one" / kind), Run(tmp_path / "two" / kind)
        expected, actual = collect_checkpoint_state(one), collect_checkpoint_state(two)
        assert actual.keys() == expected.keys()
        for name, value in expected.items():
            assert torch.allclose(actual[name], value, rtol=0, atol=1e-9), (kind, name)
        assert [row["step"] for row in two.metrics_rows()] == [row["step"] for row in one.metrics_rows()]
        assert list_files(one.path) == list_files(two.path)
    assert (two.path / "decoded" / "made_of.json").exists()


@pytest.mark.slow
def test_two_nodes_equal_one_process(tmp_path: Path) -> None:
    """Two launchers with one process each and a common rendezvous, as on two machines."""
    rendezvous = [*LOCAL_ADDRESS, "--nnodes", "2", "--nproc_per_node", "1", "--rdzv_backend", "c10d"]
    rendezvous += ["--rdzv_endpoint", str(tmp_path / "meeting"), "--rdzv_conf", "store_type=file"]
    nodes = [
        torchrun(
            *ARGUMENTS, "--out", str(tmp_path / "two"), module="tests.training.double_precision_cli", launch=rendezvous
        )
        for _ in range(2)
    ]
    messages = [read_errors(node) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], messages
    alone = [sys.executable, "-m", "tests.training.double_precision_cli", "train", *ARGUMENTS, "--device", "cpu"]
    subprocess.run([*alone, "--out", str(tmp_path / "one")], check=True, stderr=subprocess.PIPE)
    expected, actual = collect_checkpoint_state(Run(tmp_path / "one")), collect_checkpoint_state(Run(tmp_path / "two"))
    for name, value in expected.items():
        assert torch.allclose(actual[name], value, rtol=0, atol=1e-9), name
    assert sum(errors.count("waiting") for errors in messages) == 1  # only one process of all nodes logs


@pytest.mark.slow
@pytest.mark.parametrize("freezing_options", [["--freeze"], ["--freeze_epochs", "1"]], ids=str)
def test_two_processes_freeze_an_encoder(tmp_path: Path, freezing_options: list[str]) -> None:
    started = train(data="digits", encoder="mlp", epochs=1, batch_size=63, out=tmp_path / "begun", progress=False)
    process = torchrun(
        *ARGUMENTS, "--init", str(started.path), *freezing_options, "--out", str(tmp_path / "two"), "--progress=false"
    )
    errors = read_errors(process)
    assert process.returncode == 0, errors
    initial, trained = (run.model().tower(0).encoder.state_dict() for run in (started, Run(tmp_path / "two")))
    assert all(torch.equal(value, trained[name]) for name, value in initial.items())
    assert not (tmp_path / "two" / "features").exists()
    text = "no feature cache" in as_run_folder(tmp_path / "two").log_path.read_text()
    assert text == (freezing_options == ["--freeze"])


@pytest.mark.slow
def test_processes_fail_together_with_one_message(tmp_path: Path) -> None:
    (tmp_path / "in-the-way").write_text("")
    process = torchrun(*ARGUMENTS, "--out", str(tmp_path))
    errors = read_errors(process)
    assert process.returncode != 0
    message = f"contraport: out: {tmp_path} is not empty and not a run folder (no config.yaml). Choose another folder."
    assert select_command_lines(errors) == [f"{message} More: contraport docs training"]


@pytest.mark.slow
def test_terminated_run_of_two_processes_resumes_with_one(tmp_path: Path) -> None:
    arguments = [*ARGUMENTS, "--log_every", "1"]
    process = torchrun(*arguments, "--epochs", "20", "--out", str(tmp_path / "run"))
    while not (tmp_path / "run" / "metrics.jsonl").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    errors = read_errors(process)
    assert len([line for line in select_command_lines(errors) if "--resume" in line]) == 1
    run = Run(tmp_path / "run")
    saved = torch.load(as_run_folder(run).checkpoints / "last.ckpt", weights_only=True)["step"]
    assert 0 < saved < 420
    train(out=run.path, resume=True, progress=False)
    assert [row["step"] for row in run.metrics_rows()] == list(range(1, 421))


def test_collective_operations_of_three_processes() -> None:
    assert not run_in_processes(check_collectives, 3)


def test_processes_wait_for_a_slow_process() -> None:
    assert sorted(run_in_processes(wait_for_slow_process, 2)) == [0, 1]


def test_processes_with_different_items_end_with_one_message(tmp_path: Path) -> None:
    (first, silent), (second, text) = sorted(run_in_processes(train_on_different_items, 2, str(tmp_path / "run")))
    assert (first, silent, second) == (0, "2", 1)
    assert text.startswith("data: must be equal in all processes")
    assert "56 items in process 1, 80 in the first" in text
    assert not (tmp_path / "run").exists()


def test_prediction_loss_weights_items_of_uneven_shares_equally(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    shared = random.normal(size=(60, 4))
    arrays = [shared @ random.normal(size=(4, width)) for width in (5, 6)]
    states, losses = [], []
    for processes in (1, 2):
        out = tmp_path / str(processes)
        run_in_processes(
            train_in_double_precision, processes, arrays, str(out), {"predict": "l2", "projection": 0, "log_every": 1}
        )
        states.append(collect_checkpoint_state(Run(out)))
        losses.append([row["loss"] for row in Run(out).metrics_rows()])
    for name, value in states[0].items():
        assert torch.allclose(states[1][name], value, rtol=0, atol=1e-9), name
    assert losses[1] == pytest.approx(losses[0], abs=1e-9)  # the mean over all processes, not of the first


@pytest.mark.parametrize("where", ["_compute_audit_state", "append_metrics", "__call__", "open_loggers"])
def test_failure_of_the_first_process_ends_all(tmp_path: Path, where: str) -> None:
    """Operations of the first process only: an audit, a row of metrics, an online metric, opening a logger."""
    reports = run_in_processes(fail_in_first_process, 2, where, str(tmp_path / "run"))
    assert sorted(reports) == [(0, "ValueError('mine')"), (1, "SystemExit(2)")]


def test_only_the_first_process_logs(tmp_path: Path) -> None:
    for number in range(12):
        Image.new("RGB", (8, 8), (20 * number, 0, 0)).save(tmp_path / f"{number}.png")
    (tmp_path / "broken.png").write_bytes(b"no image")
    (_, text), (_, silent) = sorted(
        run_in_processes(train_with_unreadable_image, 2, str(tmp_path), str(tmp_path / "run"))
    )
    assert sum("cannot be read" in line for line in text) == 1
    assert silent == []


def test_failing_stream_ends_all_processes() -> None:
    text = "data: FailingStream failed at item 4 of pass 1: connection lost"
    assert run_in_processes(iterate_failing_stream, 2) == [(3, text)] * 2


def test_collective_operations_in_one_process() -> None:
    assert distributed.is_main_process()
    assert distributed.broadcast_object("value") == "value"
    assert distributed.any_across_processes(True, False) == (True, False)
    with raises_usage_error("*", "mine"), distributed.stop_all_on_error():
        raise UsageError("mine")
