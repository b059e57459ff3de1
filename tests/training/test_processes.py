"""Several processes train what one would, write one run folder, and fail with one message."""

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
from tests.training.ranks import (
    agree_and_fail,
    break_a_stream,
    fail_in_the_first,
    leave_out_an_image,
    take_other_items,
    train_in_double,
    wait_long,
)

from .test_train import files_of

# 21 steps; an odd batch, whose parts differ.
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


HERE = ["--local_addr", "127.0.0.1"]  # the name of the machine need not be that of an address
ALONE = ["--standalone", *HERE, "--nproc_per_node", "2"]


def torchrun(*arguments: str, module: str = "contraport", launch: Sequence[str] = ALONE) -> subprocess.Popen[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", *launch]
    return subprocess.Popen(
        [*launcher, "-m", module, "train", *arguments, "--device", "cpu"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def errors_of(process: subprocess.Popen[str]) -> str:
    """Wait for the end of a process, and return its standard error."""
    try:
        return process.communicate(timeout=TIMEOUT)[1]
    finally:
        process.kill()


def ours(errors: str) -> list[str]:
    """The lines of the command itself."""
    return [line for line in errors.splitlines() if line.startswith("contraport: ")]


def collect_checkpoint_state(run: Run) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = torch.load(as_run_folder(run).checkpoints / "last.ckpt", weights_only=True)[
        "pipeline"
    ]
    return state


@pytest.mark.parametrize(
    "chosen",
    [
        pytest.param([], marks=pytest.mark.slow),  # what the others do, without ring and shards
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
def test_two_processes_equal_one(tmp_path: Path, chosen: list[str]) -> None:
    arguments = [*ARGUMENTS, *chosen]
    two = torchrun(*arguments, "--out", str(tmp_path / "two"), module="tests.training.in_double")
    arguments = [*ARGUMENTS, *(chosen[2:] if {"--strategy", "--exchange"} & {*chosen} else chosen)]
    alone = [sys.executable, "-m", "tests.training.in_double", "train", *arguments, "--device", "cpu"]
    subprocess.run([*alone, "--out", str(tmp_path / "one")], check=True, stderr=subprocess.PIPE)
    errors = errors_of(two)
    assert two.returncode == 0, errors
    one = Run(tmp_path / "one")
    expected, got = collect_checkpoint_state(one), collect_checkpoint_state(Run(tmp_path / "two"))
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.allclose(got[name], value, rtol=0, atol=1e-9), name
    assert files_of(tmp_path / "two") == files_of(one.path)
    rows = Run(tmp_path / "two").metrics_rows()
    assert [row["step"] for row in rows] == [row["step"] for row in one.metrics_rows()]
    assert errors.count("waiting") == 1, "one process speaks"


@pytest.mark.slow
@pytest.mark.parametrize("method", ["distillation", "coupling"])
def test_two_processes_equal_one_with_a_teacher_and_links(tmp_path: Path, method: str) -> None:
    """In single precision, which the features of a teacher and the weights of popular columns have."""
    random = np.random.default_rng(0)
    if method == "distillation":
        np.save(tmp_path / "teacher.npy", random.normal(size=(1348, 12)).astype(np.float32))
        chosen = [*ARGUMENTS, "--recipe", "distillation", "--teacher", str(tmp_path / "teacher.npy")]
    else:
        sides = {"rows": random.normal(size=(90, 4)), "columns": random.normal(size=(30, 4))}
        for side, items in sides.items():
            lines = [",".join(map(str, (f"{side[0]}{position}", *item))) for position, item in enumerate(items)]
            (tmp_path / f"{side}.csv").write_text("\n".join(["id,a,b,c,d", *lines]))
        links = np.argwhere(sides["rows"] @ sides["columns"].T > 1.5)
        lines = [f"r{row},c{column}" for row, column in links]
        (tmp_path / "pairs.csv").write_text("\n".join(["row,column", *lines]))
        chosen = ["--data", str(tmp_path), "--objective", "info-nce", "--objective_settings.symmetric", "false"]
        chosen += ["--log_q", "--shared_encoder", "false", "--batch_size", "63", "--epochs", "2", "--optimizer", "sgd"]
    two = torchrun(*chosen, "--out", str(tmp_path / "runs" / "two"))
    alone = [sys.executable, "-m", "contraport", "train", *chosen, "--device", "cpu"]
    subprocess.run([*alone, "--out", str(tmp_path / "runs" / "one")], check=True, stderr=subprocess.PIPE)
    errors = errors_of(two)
    assert two.returncode == 0, errors
    expected, got = (collect_checkpoint_state(Run(tmp_path / "runs" / name)) for name in ("one", "two"))
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.allclose(got[name], value, rtol=1e-4, atol=1e-5), name


@pytest.mark.slow
def test_sharded_run_is_resumed_with_and_without_sharding(tmp_path: Path) -> None:
    """Checkpoints have whole tensors, also those of the optimizer, however many processes wrote them."""
    arguments = [*ARGUMENTS, "--lr_scheduler", "constant", "--warmup_epochs", "0", "--weight_decay", "0.1"]
    last = ["--epochs", "3"]
    module = "tests.training.in_double"
    alone = [sys.executable, "-m", module, "train", "--device", "cpu"]
    subprocess.run([*alone, *arguments, *last, "--out", str(tmp_path / "one")], check=True, stderr=subprocess.PIPE)
    parts = str(tmp_path / "parts")
    for resumed in (arguments, ["--resume", "--epochs", "2"]):
        process = torchrun(*resumed, "--strategy", "fsdp", "--out", parts, module=module)
        errors = errors_of(process)
        assert process.returncode == 0, errors
    subprocess.run([*alone, "--resume", "--strategy", "ddp", *last, "--out", parts], check=True, stderr=subprocess.PIPE)
    expected, got = collect_checkpoint_state(Run(tmp_path / "one")), collect_checkpoint_state(Run(parts))
    for name, value in expected.items():
        assert torch.allclose(got[name], value, rtol=0, atol=1e-9), name
    model = Run(parts).model().state_dict()
    assert all(torch.equal(value, got[f"model.{name}"].to(value.dtype)) for name, value in model.items())


def test_rejects_sharding_in_one_process(settings: dict[str, Any]) -> None:
    with raises_usage_error("strategy.one_process"):
        train(**settings, strategy="fsdp")
    with raises_usage_error("exchange.one_process"):
        train(**settings, exchange="ring")


@pytest.mark.slow
def test_two_processes_equal_one_on_every_kind_of_data(tmp_path: Path) -> None:
    """A stream, items that a callable changes one by one, and images in files, which the first process decodes."""
    generator = np.random.default_rng(0)
    for place in ("one", "two"):
        (tmp_path / place / "photos").mkdir(parents=True)
    for number in range(30):
        photo = Image.fromarray(generator.integers(0, 255, (8, 8, 3)).astype(np.uint8))
        for place in ("one", "two"):
            photo.save(tmp_path / place / "photos" / f"{number}.png")
    module, env = ["-m", "tests.training.of_every_kind"], {**os.environ, "OMP_NUM_THREADS": "1"}
    for place, launch in (("one", []), ("two", ["-m", "torch.distributed.run", *ALONE])):
        command = [sys.executable, *launch, *module, str(tmp_path / place)]
        subprocess.run(command, check=True, env=env, stderr=subprocess.PIPE, timeout=TIMEOUT)
    for kind in ("stream", "changed", "decoded"):
        one, two = Run(tmp_path / "one" / kind), Run(tmp_path / "two" / kind)
        expected, got = collect_checkpoint_state(one), collect_checkpoint_state(two)
        assert got.keys() == expected.keys()
        for name, value in expected.items():
            assert torch.allclose(got[name], value, rtol=0, atol=1e-9), (kind, name)
        assert [row["step"] for row in two.metrics_rows()] == [row["step"] for row in one.metrics_rows()]
        assert files_of(one.path) == files_of(two.path)
    assert (two.path / "decoded" / "made_of.json").exists()


@pytest.mark.slow
def test_two_nodes_equal_one_process(tmp_path: Path) -> None:
    """Two launchers that meet at one rendezvous, as on two machines, each with a process of its own."""
    meet = [*HERE, "--nnodes", "2", "--nproc_per_node", "1", "--rdzv_backend", "c10d"]
    meet += ["--rdzv_endpoint", str(tmp_path / "meeting"), "--rdzv_conf", "store_type=file"]
    nodes = [
        torchrun(*ARGUMENTS, "--out", str(tmp_path / "two"), module="tests.training.in_double", launch=meet)
        for _ in range(2)
    ]
    messages = [errors_of(node) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], messages
    alone = [sys.executable, "-m", "tests.training.in_double", "train", *ARGUMENTS, "--device", "cpu"]
    subprocess.run([*alone, "--out", str(tmp_path / "one")], check=True, stderr=subprocess.PIPE)
    expected, got = collect_checkpoint_state(Run(tmp_path / "one")), collect_checkpoint_state(Run(tmp_path / "two"))
    for name, value in expected.items():
        assert torch.allclose(got[name], value, rtol=0, atol=1e-9), name
    assert sum(errors.count("waiting") for errors in messages) == 1, "one process of all nodes speaks"


@pytest.mark.slow
@pytest.mark.parametrize("held", [["--freeze"], ["--freeze_epochs", "1"]], ids=str)
def test_two_processes_freeze_an_encoder(tmp_path: Path, held: list[str]) -> None:
    started = train(data="digits", encoder="mlp", epochs=1, batch_size=63, out=tmp_path / "begun", progress=False)
    process = torchrun(
        *ARGUMENTS, "--init", str(started.path), *held, "--out", str(tmp_path / "two"), "--progress=false"
    )
    errors = errors_of(process)
    assert process.returncode == 0, errors
    own, theirs = (run.model().tower(0).encoder.state_dict() for run in (started, Run(tmp_path / "two")))
    assert all(torch.equal(value, theirs[name]) for name, value in own.items())
    assert not (tmp_path / "two" / "features").exists()
    text = "no feature cache" in as_run_folder(tmp_path / "two").log_path.read_text()
    assert text == (held == ["--freeze"])


@pytest.mark.slow
def test_processes_fail_together_with_one_message(tmp_path: Path) -> None:
    (tmp_path / "in-the-way").write_text("")
    process = torchrun(*ARGUMENTS, "--out", str(tmp_path))
    errors = errors_of(process)
    assert process.returncode != 0
    message = f"contraport: out: {tmp_path} is not empty and not a run folder (no config.yaml). Choose another folder."
    assert ours(errors) == [f"{message} More: contraport docs training"]


@pytest.mark.slow
def test_terminated_run_of_two_processes_resumes_with_one(tmp_path: Path) -> None:
    arguments = [*ARGUMENTS, "--log_every", "1"]
    process = torchrun(*arguments, "--epochs", "20", "--out", str(tmp_path / "run"))
    while not (tmp_path / "run" / "metrics.jsonl").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    errors = errors_of(process)
    assert len([line for line in ours(errors) if "--resume" in line]) == 1
    run = Run(tmp_path / "run")
    saved = torch.load(as_run_folder(run).checkpoints / "last.ckpt", weights_only=True)["step"]
    assert 0 < saved < 420
    train(out=run.path, resume=True, progress=False)
    assert [row["step"] for row in run.metrics_rows()] == list(range(1, 421))


def test_processes_agree() -> None:
    assert not run_in_processes(agree_and_fail, 3)


def test_processes_wait_for_one_that_takes_long() -> None:
    assert sorted(run_in_processes(wait_long, 2)) == [0, 1]


def test_processes_with_different_items_end_with_one_message(tmp_path: Path) -> None:
    (first, silent), (second, text) = sorted(run_in_processes(take_other_items, 2, str(tmp_path / "run")))
    assert (first, silent, second) == (0, "2", 1)
    assert text.startswith("data: must be equal in all processes")
    assert "56 items in process 1, 80 in the first" in text
    assert not (tmp_path / "run").exists()


def test_prediction_weighs_the_items_of_uneven_parts_equally(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    shared = random.normal(size=(60, 4))
    arrays = [shared @ random.normal(size=(4, width)) for width in (5, 6)]
    states, losses = [], []
    for processes in (1, 2):
        out = tmp_path / str(processes)
        run_in_processes(
            train_in_double, processes, arrays, str(out), {"predict": "l2", "projection": 0, "log_every": 1}
        )
        states.append(collect_checkpoint_state(Run(out)))
        losses.append([row["loss"] for row in Run(out).metrics_rows()])
    for name, value in states[0].items():
        assert torch.allclose(states[1][name], value, rtol=0, atol=1e-9), name
    assert losses[1] == pytest.approx(losses[0], abs=1e-9), "that of all processes, not of the first"


@pytest.mark.parametrize("where", ["_compute_next_state", "append_metrics", "add_online_values", "open_loggers"])
def test_a_failure_of_the_first_process_ends_all(tmp_path: Path, where: str) -> None:
    """In what the first one alone does: an audit, a row of metrics, an online metric, opening a logger."""
    reports = run_in_processes(fail_in_the_first, 2, where, str(tmp_path / "run"))
    assert sorted(reports) == [(0, "ValueError('mine')"), (1, "SystemExit(2)")]


def test_only_the_first_process_logs(tmp_path: Path) -> None:
    for number in range(12):
        Image.new("RGB", (8, 8), (20 * number, 0, 0)).save(tmp_path / f"{number}.png")
    (tmp_path / "broken.png").write_bytes(b"no image")
    (_, text), (_, silent) = sorted(run_in_processes(leave_out_an_image, 2, str(tmp_path), str(tmp_path / "run")))
    assert sum("cannot be read" in line for line in text) == 1
    assert silent == []


def test_failing_stream_ends_all_processes() -> None:
    text = "data: Breaking failed at item 4 of pass 1: the line went dead"
    assert run_in_processes(break_a_stream, 2) == [(3, text)] * 2


def test_helpers_work_in_one_process() -> None:
    assert distributed.is_main_process()
    assert distributed.broadcast_object("value") == "value"
    assert distributed.any_across_processes(True, False) == (True, False)
    with pytest.raises(UsageError, match="mine"), distributed.stop_all_on_error():
        raise UsageError("mine")
